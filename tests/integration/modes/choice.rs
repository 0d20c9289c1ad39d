//! Choosing a mode: the flag, the environment, the binaries, the kernel, and what a namespace already holds.

use lab::network::Namespace;

use crate::support::{Folder, PORTS, Run, install};

fn run(arguments: &str) -> Run {
    Run::new(&format!("{PORTS} {arguments}"))
}

/// The backends that hold our rules afterwards, and the run's output.
fn mode_of(run: &Run) -> (String, String) {
    let namespace = Namespace::new();
    let log = run.output(&namespace).success();
    (holders(&namespace), log)
}

fn holders(namespace: &Namespace) -> String {
    let mut holders = Vec::new();
    // Not asking legacy makes no legacy tables.
    if namespace.sh("cat /proc/thread-self/net/ip_tables_names").contains("nat")
        && namespace.sh("iptables-legacy-save -t nat").contains("-j PROXY_INIT_OUTPUT")
    {
        holders.push("legacy");
    }
    for (mode, table) in [("nft", "ip nat"), ("native", "inet proxy-init")] {
        let lists = || namespace.sh(&format!("nft list table {table}"));
        if namespace.sh("nft list tables").contains(table) && lists().contains("jump PROXY_INIT_OUTPUT") {
            holders.push(mode);
        }
    }
    holders.join(" and ")
}

#[test]
fn plain_is_what_iptables_restore_is() {
    for variant in ["legacy", "nft"] {
        let folder = Folder::new(&format!("plain-{variant}"));
        folder.link_plain(variant);
        for arguments in ["--iptables-mode plain", "--firewall-bin-path iptables"] {
            assert_eq!(mode_of(&run(arguments).only_commands_of(&folder)).0, variant, "{arguments}");
        }
    }
}

#[test]
fn what_is_not_installed_is_done_in_nft_mode_with_a_warning() {
    let empty = Folder::new("empty");
    let nft = Folder::new("nft-only");
    nft.link("iptables-nft-restore", "iptables-nft-restore");
    for (folder, mode, missing) in [
        (&empty, "legacy", "iptables-legacy-restore"),
        (&nft, "legacy", "iptables-legacy-restore"),
        (&empty, "plain", "iptables-restore"),
    ] {
        let (holder, log) = mode_of(&run(&format!("--iptables-mode {mode}")).only_commands_of(folder));
        assert_eq!(holder, "nft");
        let warning = log.lines().find(|line| line.contains("falling back to nft mode")).unwrap();
        assert!(warning.contains(&format!("{missing} is not on PATH")), "{warning}");
        assert!(warning.contains("level=warning"), "{warning}");
    }

    // Only IPv6's command is missing: needed or not.
    let v4 = Folder::new("v4-only");
    v4.link("iptables-legacy-restore", "iptables-legacy-restore");
    assert_eq!(mode_of(&run("").only_commands_of(&v4)).0, "nft");
    assert_eq!(mode_of(&run("--ipv6=false").only_commands_of(&v4)).0, "legacy");
}

#[test]
fn when_the_fallback_fails_too_one_error_names_both() {
    let empty = Folder::new("both");
    let namespace = Namespace::new();
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat OUTPUT { type filter hook output priority 0 ; }");
    let line = run("").only_commands_of(&empty).output(&namespace).last_line();
    assert!(line.contains("iptables-legacy-restore is not on PATH"), "{line}");
    assert!(line.contains("falling back to nft mode also failed: nft mode") && line.contains("chain OUTPUT"), "{line}");
}

/// The words of another run with the same flags, and of verify with them, about rules that an earlier run has put into
/// the mode to which it fell back.
fn assert_settled(namespace: &Namespace, run: impl Fn(&str) -> Run, mode: &str) {
    let again = run("").output(namespace).success();
    assert!(again.contains(&format!("rules in {mode} mode")), "{again}");
    assert!(again.contains("nothing was changed"), "{again}");
    assert_eq!(holders(namespace), mode);
    let verified = run("verify").output(namespace).success();
    assert!(verified.starts_with(&format!("in place in {mode} mode")), "{verified}");
}

#[test]
fn an_earlier_runs_fallback_is_followed() {
    let empty = Folder::new("followed");
    let namespace = Namespace::new();
    let flags = format!("--iptables-mode legacy {PORTS}");
    let run = |verb: &str| Run::new(&format!("{verb} {flags}")).only_commands_of(&empty);
    run("").output(&namespace).success();
    assert_settled(&namespace, run, "nft");
    // Where legacy mode can be used, its rules are what is asked for.
    for run in [Run::new(&format!("verify {flags}")), run("verify").environment("PROXY_INIT_NO_FALLBACK", "true")] {
        assert_eq!(run.output(&namespace).code(), Some(3));
    }
    let line = Run::new(&flags).output(&namespace).last_line();
    assert!(line.contains("nft mode holds proxy-init's rules already"), "{line}");
}

/// A kernel without ip_tables, as iptables-legacy-restore and its socket options say it.
#[test]
fn legacy_mode_goes_on_in_nft_mode_without_legacy_tables() {
    let folder = Folder::new("no-tables");
    for command in ["iptables-legacy-restore", "ip6tables-legacy-restore"] {
        folder.script(command, "echo \"iptables-restore: unable to initialize table 'nat'\" >&2; exit 3");
    }
    let run = |verb: &str| {
        Run::new(&format!("{verb} --iptables-mode legacy {PORTS} -u 2102"))
            .only_commands_of(&folder)
            .failing("getsockopt", "ENOPROTOOPT")
    };
    let namespace = Namespace::new();
    let log = run("").output(&namespace).success();
    let warning = log.lines().find(|line| line.contains("level=warning")).unwrap();
    assert!(warning.contains("this kernel has no legacy nat table"), "{warning}");
    assert!(warning.ends_with("falling back to nft mode\""), "{warning}");
    assert_settled(&namespace, run, "nft");

    let namespace = Namespace::new();
    let line = run("--no-fallback").output(&namespace).last_line();
    assert!(line.contains("this kernel has no legacy nat table"), "{line}");
    assert_eq!(holders(&namespace), "");
}

/// A kernel without xt_owner: it refuses a batch, here for its generation, and the answers to that and to the question
/// whether there is such an extension are changed to ENOENT.
#[test]
fn nft_mode_goes_on_in_native_mode_without_xtables() {
    let run = |arguments: &str| Run::new(&format!("--iptables-mode nft {PORTS} -u 2102 {arguments}"));
    let calls = run("").under(["strace", "--string-limit=1000", "--trace=sendto"]);
    let calls = calls.output(&Namespace::new()).stderr();
    let (before, _) = calls.split_once("\\x6f\\x77\\x6e\\x65\\x72").expect("a match on an owner");
    let (_, message) = before.rsplit_once("nlmsg_seq=").unwrap();
    let sequence: u32 = message.split(',').next().unwrap().parse().unwrap();
    // struct nlmsghdr (28 bytes, NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST), struct nfgenmsg (NFNL_SUBSYS_NFTABLES), and the
    // attribute NFTA_GEN_ID (linux/netfilter/nfnetlink.h, nf_tables.h).
    let begin = "1c000000 1000 0100 00000000 00000000 0000000a 0800 0100 7fffffff".replace(' ', "");
    // struct nlmsghdr (36 bytes, NLMSG_ERROR), and the error.
    let answer: Vec<u8> =
        [36, 2, sequence, 0, (-libc::ENOENT).cast_unsigned()].into_iter().flat_map(u32::to_ne_bytes).collect();
    let answer: String = answer.iter().map(|byte| format!("{byte:02x}")).collect();
    let lacking = |run: Run| {
        run.under(["strace", "--output=/dev/null", "--trace=sendto,recvfrom"]).under([
            format!("--inject=sendto:poke_enter=@arg2={begin}:when=1"),
            // The second one says that there is no more.
            format!("--inject=recvfrom:poke_exit=@arg2={answer}:when=1+2"),
        ])
    };
    let namespace = Namespace::new();
    let log = lacking(run("")).output(&namespace).success();
    let warning = log.lines().find(|line| line.contains("level=warning")).unwrap();
    assert!(warning.contains("nft mode: this kernel lacks the xt owner match"), "{warning}");
    assert!(warning.ends_with("falling back to native mode\""), "{warning}");
    assert!(log.lines().last().unwrap().contains(" rules in native mode"), "{log}");
    Run::new("verify").output(&namespace).success();
    Run::new("uninstall").output(&namespace).success();
    assert_eq!(namespace.sh("nft list ruleset"), "");

    for run in [run("--no-fallback"), run("").environment("PROXY_INIT_NO_FALLBACK", "true")] {
        let namespace = Namespace::new();
        let line = lacking(run).output(&namespace).last_line();
        assert!(line.contains("nothing was changed: nft mode: this kernel lacks the xt owner match"), "{line}");
        assert_eq!(namespace.sh("nft list ruleset"), "");
    }
    let output = run("").environment("PROXY_INIT_NO_FALLBACK", "perhaps").output(&Namespace::new());
    assert_eq!(output.code(), Some(2));
    assert!(output.stderr().contains("PROXY_INIT_NO_FALLBACK in the environment \"perhaps\""));
}

#[test]
fn auto_goes_by_what_the_namespace_holds() {
    for (before, want, reason) in [
        (&[][..], "nft", "the kernel has all that it needs"),
        (
            &["iptables-legacy -t nat -A OUTPUT -p udp -j ACCEPT"],
            "legacy",
            "legacy tables hold nat rules (1), nf_tables none",
        ),
        (
            &["ip6tables-legacy -t nat -A OUTPUT -p udp -j ACCEPT"],
            "legacy",
            "legacy tables hold nat rules (1), nf_tables none",
        ),
        (
            &["iptables-nft -t nat -A OUTPUT -p udp -j ACCEPT"],
            "nft",
            "nf_tables holds nat rules (1), legacy tables none",
        ),
        (
            &[
                "iptables-legacy -t nat -N OTHER",
                "iptables-legacy -t nat -A OTHER -j ACCEPT",
                "iptables-nft -t nat -A OUTPUT -p udp -j ACCEPT",
            ],
            "nft",
            "the kernel has all that it needs",
        ),
        (&["iptables-legacy -t nat -N OTHER"], "nft", "the kernel has all that it needs"),
        (&["iptables-legacy -t filter -A INPUT -j ACCEPT"], "nft", "the kernel has all that it needs"),
    ] {
        let namespace = Namespace::new();
        namespace.all(before);
        let log = install(&namespace, &format!("--iptables-mode auto {PORTS}"));
        assert_eq!(holders(&namespace), want, "{before:?}");
        assert!(log.contains(&format!("auto: {want} mode, because {reason}")), "{before:?}: {log}");
    }
}

#[test]
fn deciding_starts_no_process_and_makes_no_tables() {
    let namespace = Namespace::new();
    let calls = Run::new(&format!("--iptables-mode auto {PORTS}")).calls(&namespace);
    assert_eq!(calls.count(&["execve"]), 1, "{}", calls.0);
    assert_eq!(calls.count(&["fork", "vfork", "clone", "clone3"]), 0, "{}", calls.0);
    // It asks whether anything was ever committed. What installs is what tells whether it can be: nothing is tried first.
    assert_eq!(calls.count(&["sendto"]), 2, "{}", calls.0);
    for list in ["ip_tables_names", "ip6_tables_names"] {
        assert_eq!(namespace.sh(&format!("cat /proc/thread-self/net/{list}")), "");
    }
}

/// A batch that is only checked is discarded, for which the kernel waits for milliseconds.
#[test]
fn auto_installs_without_a_trial_where_the_rules_found_do_not_decide() {
    for before in [
        &["iptables-nft -t filter -A INPUT -j ACCEPT"][..],
        &["iptables-nft -t nat -A OUTPUT -p udp -j ACCEPT", "iptables-legacy -t nat -A OUTPUT -p udp -j ACCEPT"],
    ] {
        let namespace = Namespace::new();
        namespace.all(before);
        let calls = Run::new(&format!("--iptables-mode auto {PORTS}")).calls(&namespace);
        assert_eq!(calls.trials(), 0, "{before:?}: {}", calls.0);
        assert_eq!(holders(&namespace), "nft");
    }
}

#[test]
fn rules_in_another_backend_are_refused_or_replaced_and_auto_stays_with_them() {
    for first in ["legacy", "nft", "native"] {
        for second in ["legacy", "nft", "native"].into_iter().filter(|second| *second != first) {
            let namespace = Namespace::new();
            install(&namespace, &format!("--iptables-mode {first} {PORTS}"));
            let line = Run::new(&format!("--iptables-mode {second} {PORTS}")).output(&namespace).last_line();
            assert!(line.contains(&format!("{first} mode holds proxy-init's rules already")), "{line}");
            assert!(line.contains("replace-other-backend") && line.contains("proxy-init uninstall"), "{line}");
            assert_eq!(holders(&namespace), first);
            // More rules of strangers in the other backend than of ours in this one.
            let other = if first == "legacy" { "nft" } else { "legacy" };
            for port in 1..20 {
                namespace.sh(&format!("iptables-{other} -t nat -A POSTROUTING -p tcp --dport {port} -j ACCEPT"));
            }
            let log = install(&namespace, &format!("--iptables-mode auto {PORTS} -r 80"));
            assert!(log.contains(&format!("auto: {first} mode, because it holds proxy-init's rules already")), "{log}");
            assert_eq!(holders(&namespace), first);
            install(&namespace, &format!("--iptables-mode {second} {PORTS} --replace-other-backend"));
            assert_eq!(holders(&namespace), second);
        }
    }
}

/// In a namespace in which another program has committed, auto reads nf_tables before it chooses, and not again.
#[test]
fn auto_reads_nf_tables_once() {
    for mode in ["auto", "nft"] {
        let namespace = Namespace::new();
        namespace.sh("nft add table ip nat");
        let calls = Run::new(&format!("--iptables-mode {mode} -p 4143 -o 4140 -u 2102")).calls(&namespace);
        let asked =
            calls.0.lines().filter(|call| call.contains("sendto(") && call.contains("NFT_MSG_GETTABLE")).count();
        assert_eq!(asked, 1, "{mode}: {}", calls.0);
    }
}
