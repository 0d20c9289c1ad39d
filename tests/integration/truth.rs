//! verify's answers are the kernel's deeds: other programs' rules and chains that take connections away from ours,
//! and others that don't. Unseen rules are never called absent.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::linkerd::Flags;
use lab::network::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Finished, Folder, PROXY_INIT, Run, chart_in, feed, install, saved, unfolded};

/// The commands run in a namespace, before and after installing.
struct Case<'a> {
    mode: &'static str,
    before: &'a [&'a str],
    after: &'a [&'a str],
    /// The kinds of findings; none: in place.
    kinds: &'static [&'static str],
}

impl Case<'_> {
    fn verify(&self) -> (Option<i32>, Value) {
        let namespace = Namespace::new();
        self.before.iter().for_each(|line| drop(namespace.sh(line)));
        install(&namespace, &chart_in(self.mode));
        self.after.iter().for_each(|line| drop(namespace.sh(line)));
        let verified = Run::new(&format!("verify --output json {}", chart_in(self.mode))).output(&namespace);
        let report = serde_json::from_str(&verified.stdout()).unwrap();
        (verified.code(), report)
    }

    fn check(&self) {
        let (code, report) = self.verify();
        let mut kinds: Vec<_> =
            report["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
        kinds.sort();
        kinds.dedup();
        let what = format!("{} {:?} {:?}: {report:#}", self.mode, self.before, self.after);
        assert_eq!(kinds, self.kinds, "{what}");
        assert_eq!(code, Some(if self.kinds.is_empty() { 0 } else { 3 }), "{what}");
    }
}

#[test]
fn a_dormant_table_or_an_unhooked_chain_is_not_in_place() {
    for (mode, after, kinds) in [
        ("nft", &["nft add table ip nat { flags dormant ; }"][..], &["dormant"][..]),
        ("native", &["nft add table inet proxy-init { flags dormant ; }"], &["dormant"]),
        ("nft", &["nft chain ip nat PREROUTING { policy drop ; }"], &["policy"]),
        ("native", &["nft chain inet proxy-init OUTPUT { policy drop ; }"], &["policy"]),
    ] {
        Case { mode, before: &[], after, kinds }.check();
    }
    // A chain of the same name and rules, without a hook.
    let namespace = Namespace::new();
    install(&namespace, &chart_in("native"));
    let script = "flush chain inet proxy-init PREROUTING\ndelete chain inet proxy-init PREROUTING\nadd chain inet \
                  proxy-init PREROUTING\nadd rule inet proxy-init PREROUTING counter jump PROXY_INIT_REDIRECT comment \
                  \"proxy-init/install-proxy-init-prerouting\"\n";
    feed(&namespace, "nft -f -", script).success();
    let verified = Run::new(&format!("verify {}", chart_in("native"))).output(&namespace);
    assert_eq!(verified.code(), Some(3), "{}", verified.said());
    assert!(verified.stdout().contains("not hooked"), "{}", verified.said());
}

#[test]
fn an_earlier_base_chain_that_redirects_is_reported_in_every_mode() {
    for mode in ["nft", "native", "legacy"] {
        for table in ["ip other", "ip6 other", "inet other", "inet proxy-init"] {
            let namespace = Namespace::new();
            install(&namespace, &chart_in(mode));
            for line in [
                format!("nft add table {table}"),
                format!("nft add chain {table} early {{ type nat hook prerouting priority -150 ; }}"),
                format!("nft add rule {table} early tcp dport 8080 redirect to :9999"),
            ] {
                namespace.sh(&line);
            }
            let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
            assert_eq!(verified.code(), Some(3), "{mode} {table}: {}", verified.said());
            let text = unfolded(&verified.stdout());
            assert!(
                text.contains("redirects connections: to port 8080") && text.contains("redirect to :9999"),
                "{mode} {table}: {text}"
            );
        }
    }
}

/// With iptables of either kind, before and after.
#[test]
fn jumps_gotos_and_negations_are_followed() {
    for (mode, iptables) in [("nft", "iptables-nft -t nat"), ("legacy", "iptables-legacy -t nat")] {
        for (before, shadowed) in [
            (&["-N F", "-A PREROUTING -p tcp -g F"][..], true),
            (&["-N F", "-A F -p tcp -j REDIRECT --to-ports 99", "-A PREROUTING -j F"], true),
            (
                &[
                    "-N DOCKER",
                    "-A DOCKER -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80",
                    "-A PREROUTING -j DOCKER",
                ],
                true,
            ),
            (&["-A PREROUTING ! -p udp -j ACCEPT"], true),
            (&["-A PREROUTING -p tcp -j NETMAP --to 10.9.0.0/24"], true),
            (&["-A PREROUTING -p tcp -j RETURN"], true),
            (&["-A OUTPUT -m owner ! --uid-owner 2102 -j ACCEPT"], true),
            (&["-A PREROUTING -p tcp -m statistic --mode nth --every 2 --packet 0 -j ACCEPT"], true),
            // These rules can't match TCP, come back, or don't decide.
            (&["-A PREROUTING -p udp -j ACCEPT"], false),
            (&["-A PREROUTING ! -p tcp -j ACCEPT"], false),
            (&["-N F", "-A F -s 10.0.0.0/8 -j RETURN", "-A PREROUTING -j F"], false),
            (&["-N F", "-A F -p udp -j ACCEPT", "-A PREROUTING -p tcp -j F"], false),
            (&["-N F", "-A F -j RETURN", "-A F -j REDIRECT", "-A PREROUTING -j F"], false),
            (&["-N F", "-A F -p tcp --dport 81 -j ACCEPT", "-A PREROUTING -p tcp --dport 80 -j F"], false),
            (&["-N F", "-A F -i eth+ -j RETURN", "-A F -i eth0 -j ACCEPT", "-A PREROUTING -j F"], false),
            // An arriving packet has no outgoing device yet.
            (&["-N F", "-A F -o eth0 -p tcp -j ACCEPT", "-A PREROUTING -j F"], false),
        ] {
            let namespace = Namespace::new();
            for line in before {
                namespace.sh(&format!("{iptables} {line}"));
            }
            install(&namespace, &chart_in(mode));
            let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
            let want = if shadowed { 3 } else { 0 };
            assert_eq!(verified.code(), Some(want), "{mode} {before:?}: {}", verified.said());
            assert_eq!(verified.stdout().contains("shadowed"), shadowed, "{}", verified.said());
        }
    }
}

/// An unknown expression replaces the register's former content.
#[test]
fn no_rule_is_judged_by_an_old_value() {
    for rule in [
        "ip saddr 10.9.0.1 ct original ip daddr 10.9.0.2 drop",
        "tcp dport 443 ct original proto-dst 444 drop",
        "tcp dport 443 ct original proto-dst { 444, 445 } drop",
        "tcp dport 443 numgen random mod 2 == 0 drop",
        "tcp dport 443 jhash ip saddr mod 2 == 0 drop",
        "tcp dport 443 fib daddr type local drop",
        "tcp dport 443 tcp dport set 4190 tcp dport 4190 drop",
        "ip saddr 10.9.0.1 ip saddr set 10.9.0.5 ip saddr 10.9.0.5 drop",
    ] {
        let before =
            [format!("nft table ip fw {{ chain pre {{ type filter hook prerouting priority -150 ; {rule} ; }} ; }}")];
        Case { mode: "nft", before: &before.each_ref().map(String::as_str), after: &[], kinds: &["shadowed"] }.check();
    }
}

/// Connection tracking has put fragments together before any of these rules see them.
#[test]
fn legacy_conditions_on_fragments_are_understood() {
    for (line, kinds) in [("-f", &[][..]), ("! -f", &["shadowed"])] {
        let before = [format!("iptables-legacy -t nat -A PREROUTING {line} -j ACCEPT")];
        Case { mode: "legacy", before: &before.each_ref().map(String::as_str), after: &[], kinds }.check();
    }
}

#[test]
fn sets_maps_and_other_hooks_are_understood() {
    const CHAIN: &str = "nft add chain ip nat PREROUTING { type nat hook prerouting priority -100 ; }";
    for (before, kinds) in [
        (
            &["nft add table ip nat", CHAIN, "nft add rule ip nat PREROUTING tcp dport vmap { 1-65535 : accept }"][..],
            &["shadowed"][..],
        ),
        (&["nft add table ip nat", CHAIN, "nft add rule ip nat PREROUTING udp dport vmap { 1-65535 : accept }"], &[]),
        (
            &[
                "nft add table ip nat",
                "nft add set ip nat ports { type inet_service ; }",
                "nft add element ip nat ports { 80 }",
                CHAIN,
                "nft add rule ip nat PREROUTING tcp dport @ports accept",
            ],
            &["shadowed"],
        ),
        // Nothing is in the set.
        (
            &[
                "nft add table ip nat",
                "nft add set ip nat ports { type inet_service ; }",
                CHAIN,
                "nft add rule ip nat PREROUTING tcp dport @ports accept",
            ],
            &[],
        ),
        // Anonymous sets, without any named one; and no set at all.
        (
            &[
                "nft table inet fw { chain pre { type filter hook prerouting priority -150 ; meta l4proto { icmp, udp } drop ; } ; }",
            ],
            &[],
        ),
        (
            &[
                "nft table inet fw { chain pre { type filter hook prerouting priority -150 ; tcp dport vmap { 9 : drop } ; } ; }",
            ],
            &["shadowed"],
        ),
        (
            &[
                "nft table inet fw { chain pre { type filter hook prerouting priority -150 ; ct state vmap { established : accept, related : accept, invalid : drop } ; } ; }",
            ],
            &[],
        ),
        (
            &[
                "nft table inet fw { chain pre { type filter hook prerouting priority -150 ; ct state vmap { established : accept, new : drop } ; } ; }",
            ],
            &["dropped", "shadowed"],
        ),
        // Replies would be looked up in another zone than their connection.
        (
            &["nft table inet fw { chain pre { type filter hook prerouting priority -310 ; ct zone set 3 ; } ; }"],
            &["shadowed"],
        ),
        (
            &[
                "nft table inet fw { chain pre { type filter hook prerouting priority -310 ; ct original zone set 3 ; } ; }",
            ],
            &["shadowed"],
        ),
        (&["iptables-legacy -t raw -A PREROUTING -p tcp -j CT --zone 3"], &["shadowed"]),
        // A connection's first packet is new.
        (&["nft add table ip nat", CHAIN, "nft add rule ip nat PREROUTING ct state established,related accept"], &[]),
        (&["iptables-nft -t raw -A PREROUTING -p tcp --dport 80 -j CT --notrack"], &["shadowed"]),
        (&["iptables-legacy -t raw -A PREROUTING -p tcp --dport 22 -j DROP"], &["shadowed"]),
        (&["iptables-nft -t mangle -A PREROUTING -p tcp -j MARK --set-mark 1"], &[]),
        // After the redirection.
        (&["iptables-nft -t filter -A OUTPUT -p tcp --dport 22 -j DROP"], &[]),
        (&["iptables-nft -t filter -P INPUT DROP"], &["dropped"]),
        // As fail2ban bans a host.
        (&["iptables-nft -t filter -A INPUT -s 192.0.2.1 -j REJECT"], &[]),
        (&["iptables-nft -t raw -A PREROUTING -s 192.0.2.1 -j DROP"], &[]),
        (&["iptables-nft -t filter -A INPUT -s 192.0.2.1 ! -i eth1 -j DROP"], &["dropped"]),
    ] {
        Case { mode: "nft", before, after: &[], kinds }.check();
    }
}

#[test]
fn a_finding_says_which_connections() {
    let case = Case {
        mode: "nft",
        before: &["iptables-nft -t nat -A PREROUTING -s 192.0.2.0/24 -p tcp --dport 80:90 -j ACCEPT"],
        after: &[],
        kinds: &["shadowed"],
    };
    case.check();
    let (_, report) = case.verify();
    let finding = &report["findings"][0];
    assert_eq!(report["schema"], 1);
    assert_eq!(finding["connections"], "from 192.0.2.0/24 to port 80-90");
    assert_eq!(finding["certain"], true);
    assert_eq!(finding["family"], "IPv4");
    assert_eq!(finding["found"][0], "-A PREROUTING -s 192.0.2.0/24 -p tcp -m tcp --dport 80:90 -j ACCEPT");
}

/// The kernel is given the `+` of legacy rules too, after what it compares.
#[test]
fn interfaces_that_begin_alike_are_named_alike() {
    for mode in ["nft", "legacy"] {
        let before = [format!("iptables-{mode} -t nat -A PREROUTING -i eth+ -j ACCEPT")];
        let (_, report) =
            Case { mode, before: &before.each_ref().map(String::as_str), after: &[], kinds: &["shadowed"] }.verify();
        let finding = &report["findings"][0];
        assert_eq!(finding["connections"], "arriving on \"eth*\"");
        assert_eq!(finding["found"][0], "-A PREROUTING -i eth+ -j ACCEPT");
    }
}

/// Of chains with equal priorities in different tables, which was hooked first isn't recorded.
#[test]
fn an_order_that_is_not_known_is_said_not_to_be_certain() {
    let (code, report) = Case {
        mode: "nft",
        before: &[],
        after: &[
            "nft add table ip other",
            "nft add chain ip other out { type nat hook output priority -100 ; }",
            "nft add rule ip other out tcp dport 53 dnat to 192.0.2.1",
        ],
        kinds: &["shadowed"],
    }
    .verify();
    assert_eq!(code, Some(3));
    assert_eq!(report["findings"][0]["certain"], false, "{report:#}");
}

#[test]
fn names_that_are_no_text_stop_nothing() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        for table in ["nat", "mangle"] {
            namespace.sh(&format!("bash -c iptables-nft${{IFS}}-t${{IFS}}{table}${{IFS}}-N${{IFS}}$'\\xff\\xfe'"));
        }
        assert!(namespace.run(|| {
            let listed = std::process::Command::new("iptables-nft").args(["-t", "nat", "-S"]).output();
            listed.unwrap().stdout.windows(2).any(|bytes| bytes == b"\xff\xfe")
        }));
        install(&namespace, &chart_in(mode));
        install(&namespace, &format!("verify {}", chart_in(mode)));
        install(&namespace, "--iptables-mode auto -p 4143 -o 4140");
        install(&namespace, "detect");
        install(&namespace, "uninstall");
    }
}

/// Beside a run that installs the same over and over, verify never sees half of it.
#[test]
fn it_raises_no_false_alarm_beside_runs_with_the_same_flags() {
    let namespace = Namespace::new();
    install(&namespace, &format!("{} --proxy-gid 2102", chart_in("nft")));
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            for gid in [2102, 2103].iter().cycle().take(60) {
                install(&namespace, &format!("{} --proxy-gid {gid}", chart_in("nft")));
            }
        });
        let flags = chart_in("nft");
        while !again.is_finished() {
            for gid in [2102, 2103] {
                let verified = Run::new(&format!("verify --output json {flags} --proxy-gid {gid}")).output(&namespace);
                let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
                let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{}", verified.said()));
                // The whole rules of the one run or of the other: the rule on the group differs in both families, and
                // nothing else.
                let kinds: Vec<_> = findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
                assert!(kinds.is_empty() || kinds == ["different"; 2], "{report:#}");
            }
        }
        again.join().unwrap();
    });
}

#[test]
fn without_proc_nothing_is_said_about_legacy_tables() {
    let root = Folder::new("no-proc");
    std::fs::copy(PROXY_INIT.as_str(), root.join("proxy-init")).unwrap();
    // The test's binary is linked dynamically.
    let hide = format!("mount -t tmpfs tmpfs {root}; mount -t tmpfs tmpfs /proc", root = root.path());
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let before = saved(&namespace, "legacy");
    let line = Run::new("uninstall").after_mounting(&hide).output(&namespace).last_line();
    assert!(line.contains("cannot list legacy tables in /proc/self/net: ENOENT"), "{line}");
    assert_eq!(saved(&namespace, "legacy"), before);
    let detected = Run::new("detect").after_mounting(&hide).output(&namespace).success();
    let kernel = format!("kernel      {}", namespace.sh("uname -r"));
    assert!(detected.contains(kernel.trim_end()), "{detected}");
    let log = Run::new(&chart_in("nft")).after_mounting(&hide).output(&namespace).success();
    assert_eq!(log.matches("level=warning").count(), 1, "{log}");
    assert!(log.contains("not known: whether legacy tables hold proxy-init's rules too"), "{log}");
}

#[test]
fn a_list_that_cannot_be_opened_is_not_an_empty_one() {
    for error in ["EMFILE", "ENFILE", "ENOMEM"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("legacy"));
        let lists = |run: Run| {
            run.under([
                "strace",
                "--output=/dev/null",
                "--trace=?open,openat",
                "--trace-path=/proc/self/net/ip_tables_names",
                "--trace-path=/proc/self/net/ip6_tables_names",
                "--trace-path=/proc/thread-self/net/ip_tables_names",
                "--trace-path=/proc/thread-self/net/ip6_tables_names",
                &format!("--inject=?open,openat:error={error}"),
            ])
        };
        let line = lists(Run::new("uninstall")).output(&namespace).last_line();
        assert!(line.contains(error), "{line}");
        let verified = lists(Run::new(&format!("verify --output json {}", chart_in("nft")))).output(&namespace);
        let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
        assert_eq!(report["not_known"][0], "legacy", "{report}");
    }
}

/// A long list of rules is received by a thread of its own, where there can be one.
#[test]
fn a_long_list_is_the_same_with_a_thread_and_without() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let show = Run::new("show --output json");
    let threads = || show.calls(&namespace).count(&["clone", "clone3"]);
    assert_eq!(threads(), 0);
    let rules: String = (1..=1000).map(|port| format!("tcp dport {port} counter accept\n")).collect();
    let chain = format!("chain early {{ type filter hook prerouting priority -300;\n{rules}}}");
    feed(&namespace, "nft -f -", &format!("table inet foreign {{\n{chain}\n}}")).success();
    assert_eq!(threads(), 1);
    let shown = show.output(&namespace).success();
    assert!(shown.contains("tcp dport 1000"), "{shown}");
    let without = show.failing("clone,clone3", "EAGAIN").output(&namespace);
    assert_eq!(without.success(), shown);
}

#[test]
fn a_sysctl_that_cannot_be_opened_is_not_a_missing_one() {
    let text = Run::new("detect")
        .under(["strace", "--output=/dev/null", "--trace=?open,openat"])
        .under(["--trace-path=/proc/sys/user/max_user_namespaces"])
        .under(["--inject=?open,openat:error=EMFILE"])
        .output(&Namespace::new())
        .success();
    assert!(text.contains("users       it is not known whether"), "{text}");
}

#[test]
fn a_sandbox_without_netlink_is_not_a_kernel_without_nf_tables() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let sandboxed = |line: &str| Run::new(line).failing("socket", "EAFNOSUPPORT").output(&namespace);
    for line in ["uninstall".to_owned(), chart_in("auto"), chart_in("legacy")] {
        let said = sandboxed(&line).last_line();
        assert!(said.contains("EAFNOSUPPORT"), "{line}: {said}");
    }
    // Nor is one with too many files.
    for (error, is_limit) in [("EMFILE", true), ("ENFILE", true), ("EPERM", false)] {
        let said = Run::new(&chart_in("nft")).failing("socket", error).output(&namespace).last_line();
        assert!(said.contains(&format!("failed: {error}")), "{said}");
        assert_eq!(said.contains("raise the limit on open files"), is_limit, "{said}");
        assert_eq!(said.contains("seccomp"), !is_limit, "{said}");
    }
    assert!(!namespace.sh("iptables-legacy-save -t nat").contains("PROXY_INIT"));
    install(&namespace, &format!("verify {}", chart_in("nft")));
}

/// As under systemd's `RestrictAddressFamilies=`: the kernel lists IPv6's tables, so they may hold rules.
#[test]
fn a_sandbox_without_ipv6_is_not_a_kernel_without_its_tables() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let trace = Run::new("show").calls(&namespace).0;
    let mut sockets = trace.lines().filter(|line| line.contains(" socket("));
    let number = 1 + sockets.position(|line| line.contains("AF_INET6")).expect("it asks");
    let without_ipv6 = format!("error=EAFNOSUPPORT:when={number}+");
    for line in ["show", "verify", "uninstall"] {
        let said = Run::new(line).inject("socket", &without_ipv6).output(&namespace).stderr();
        assert!(said.contains("cannot read the IPv6 legacy nat table: EAFNOSUPPORT"), "{line}: {said}");
    }
    assert_eq!(namespace.sh("ip6tables-legacy-save -t nat").matches("-j PROXY_INIT").count(), 2);
}

/// The first socket that explain opens asks for the route, or for the device.
#[test]
fn explain_says_where_routing_cannot_be_asked() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    for connection in ["outbound --to 127.0.0.1:80", "inbound --to 127.0.0.1:80 --in eth7", "inbound --to 192.0.2.1:80"]
    {
        let said = Run::new(&format!("explain {connection}"))
            .inject("socket", "error=EMFILE:when=1..4")
            .output(&namespace)
            .success();
        assert!(said.contains("not known: the kernel's routing cannot be asked (EMFILE"), "{connection}: {said}");
    }
}

#[test]
fn an_unprivileged_user_is_told_what_is_not_known() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    // The kernel's modules and nfnetlink_hook would tell, where this machine has them: the kernel is not to be told
    // from one that is too old. `cargo xtask kernels` tries the ones that tell.
    let nobody = |line: &str| {
        Run::new(line)
            .after_mounting("mount -t tmpfs tmpfs /sys")
            .failing("uname", "EPERM")
            .nobody(&["net_admin"])
            .output(&namespace)
    };
    let log = nobody(&chart_in("nft")).success();
    // To nf_tables, it looks like a new pod.
    assert_eq!(log.matches("level=warning").count(), 0, "{log}");
    assert!(log.contains("only root and group 0 can list legacy tables"), "{log}");
    let text = nobody(&format!("verify {}", chart_in("nft"))).success();
    assert!(text.contains("not known: whether legacy tables hold"), "{text}");
    let report: Value =
        serde_json::from_str(&nobody(&format!("verify --output json {}", chart_in("nft"))).success()).unwrap();
    assert_eq!(report["not_known"], serde_json::json!(["legacy"]));
    assert_eq!(report["in_place"], true);

    // In legacy mode the nat table can be asked for, and no other.
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    namespace.sh("iptables-legacy -t raw -A PREROUTING -p tcp -j DROP");
    let nobody = |line: &str| {
        Run::new(line)
            .after_mounting("mount -t tmpfs tmpfs /sys")
            .failing("uname", "EPERM")
            .nobody(&["net_admin", "net_raw"])
            .output(&namespace)
    };
    let text = nobody(&format!("verify {}", chart_in("legacy"))).success();
    assert!(text.contains("not known: what legacy tables other than nat hold"), "{text}");
    let json = nobody(&format!("verify --output json {}", chart_in("legacy"))).success();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["not_known"], serde_json::json!(["legacy"]), "{report}");
}

/// After a batch has been sent, an error on receiving says nothing about the commit.
#[test]
fn a_lost_answer_is_looked_into() {
    let want = {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("nft"));
        saved(&namespace, "nft")
    };
    for error in ["ENOMEM", "EAGAIN", "EPERM"] {
        let namespace = Namespace::new();
        let once = format!("error={error}:when=1");
        Run::new(&chart_in("nft")).inject("recvfrom", &once).output(&namespace).success();
        assert_eq!(saved(&namespace, "nft"), want);

        let namespace = Namespace::new();
        let line = Run::new(&chart_in("nft")).failing("recvfrom", error).output(&namespace).last_line();
        assert!(
            line.contains("not known whether the rules are installed") && !line.contains("nothing was changed"),
            "{line}"
        );
        assert_eq!(saved(&namespace, "nft"), want, "and so they are");
    }
}

/// Two modes at once: one of them has to give way, and say so.
#[test]
fn of_two_modes_at_once_one_gives_way() {
    for modes in [["nft", "native"], ["nft", "legacy"], ["native", "legacy"]] {
        for _ in 0..8 {
            let namespace = Namespace::new();
            let children = modes.map(|mode| Run::new(&chart_in(mode)).spawn(&namespace, Stdio::null()));
            let done = children.map(|mut child| child.wait().unwrap().success());
            assert!(done.iter().filter(|&&done| done).count() <= 1, "{modes:?}: {done:?}");
            let held = [
                namespace.sh("nft list ruleset").contains("table inet proxy-init"),
                saved(&namespace, "nft").contains("PROXY_INIT_OUTPUT"),
                saved(&namespace, "legacy").contains("PROXY_INIT_OUTPUT"),
            ];
            let held = held.iter().filter(|&&held| held).count();
            assert_eq!(held, usize::from(done.contains(&true)), "{modes:?}: {done:?}");
        }
    }
}

/// Of several runs in two modes: one that finds its rules installed already leaves them to the run that installed them.
#[test]
fn a_run_that_changed_nothing_removes_nothing() {
    for mode in ["native", "nft"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        let before = namespace.sh("nft list ruleset");
        assert!(before.contains("4143"), "{before}");
        // It looks at legacy tables before it sends its first batch, and after it has committed: it stops in between.
        let folder = Folder::new(&format!("stopped-{mode}"));
        let trace = folder.join("trace");
        let stops = Run::new(&chart_in(mode))
            .under(["strace", "--trace=sendto", "--inject=sendto:signal=STOP:when=1", "--output"])
            .under([&trace]);
        let child = namespace.run(|| stops.command().stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
        let has_stopped = || std::fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("stopped by SIGSTOP"));
        let end = Instant::now() + Duration::from_secs(60);
        while !has_stopped() {
            assert!(Instant::now() < end, "{mode}: it sends no batch");
            std::thread::sleep(Duration::from_millis(5));
        }
        Flags::default().add_with_iptables(&namespace, "legacy");
        let traced = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        kill(Pid::from_raw(traced.trim().parse().unwrap()), Signal::SIGCONT).unwrap();
        let finished = Finished(child.wait_with_output().unwrap());
        let stderr = finished.stderr();
        assert_eq!(finished.code(), Some(1), "{stderr}");
        assert!(stderr.contains("legacy mode holds proxy-init's rules already"), "{stderr}");
        assert_eq!(namespace.sh("nft list ruleset"), before);
    }
}

/// Rules that drop only packets that the kernel drops too take nothing away: the usual rules against forged addresses.
#[test]
fn rules_against_forged_addresses_are_no_finding() {
    let v4 = ["127.0.0.0/8", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"];
    let v6 = ["::1/128", "ff00::/8"];
    for (mode, table) in [("nft", "-t raw"), ("nft", "-t mangle"), ("legacy", "-t raw")] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        for (command, networks) in [("iptables", &v4[..]), ("ip6tables", &v6)] {
            for network in networks {
                namespace.sh(&format!("{command}-{mode} {table} -A PREROUTING ! -i lo -s {network} -j DROP"));
                namespace.sh(&format!("{command}-{mode} {table} -A PREROUTING ! -i lo -d {network} -j DROP"));
            }
            let loopback = networks[0];
            namespace.sh(&format!("{command}-{mode} -A INPUT ! -i lo -d {loopback} -j REJECT"));
            namespace.sh(&format!("{command}-{mode} -A INPUT ! -i lo -s {loopback} -j DROP"));
        }
        let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
        assert_eq!(verified.code(), Some(0), "{mode} {table}: {}", verified.said());
        // One that drops others besides is one.
        namespace.sh(&format!("iptables-{mode} {table} -A PREROUTING ! -i lo -s 126.0.0.0/7 -j DROP"));
        let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
        assert_eq!(verified.code(), Some(3), "{mode} {table}: {}", verified.said());
        assert!(unfolded(&verified.stdout()).contains("drops connections: from 126.0.0.0/8"), "{}", verified.said());
    }
}
