//! The errors of docs/errors.md that no other test provokes.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lab::network::Namespace;

use crate::support::{Folder, PORTS, Run, install, saved};

/// `kubectl logs` shows stdout and stderr.
#[test]
fn an_error_stands_once_in_a_pods_log() {
    let namespace = Namespace::new();
    let run = Run::new(&format!("--iptables-mode nft {PORTS}")).nobody(&[]);
    for (run, on_stderr) in [(run.clone(), 1), (run.environment("KUBERNETES_SERVICE_HOST", "10.96.0.1"), 0)] {
        let failed = run.output(&namespace);
        assert_eq!(failed.code(), Some(1), "{}", failed.said());
        assert_eq!(failed.stdout().matches("level=error").count(), 1, "{}", failed.said());
        assert_eq!(failed.stderr().lines().count(), on_stderr, "{}", failed.said());
    }
}

/// A table that belongs to another program, as long as that runs.
#[test]
fn a_table_with_an_owner() {
    for (mode, table) in [("nft", "ip nat"), ("nft", "ip6 nat"), ("native", "inet proxy-init")] {
        let namespace = Namespace::new();
        let mut owner = namespace
            .run(|| Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
        writeln!(owner.stdin.as_mut().unwrap(), "add table {table} {{ flags owner; }}").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while !namespace.sh("nft list tables").contains(table) {
            assert!(Instant::now() < end, "nft makes no table");
            thread::sleep(Duration::from_millis(20));
        }
        let line = Run::new(&format!("--iptables-mode {mode} {PORTS}")).output(&namespace).last_line();
        owner.kill().unwrap();
        owner.wait().unwrap();
        let words = format!("the table {table} belongs to another program");
        assert!(line.contains("EPERM") && line.contains(&words), "{line}");
        assert!(line.contains(&format!("`nft list table {table}`")), "{line}");
        assert!(!line.contains("CAP_NET_ADMIN") && !line.contains("report"), "{line}");
    }
}

#[test]
fn a_base_chain_with_the_name_of_a_chain_of_proxy_inits() {
    for (family, chain, word) in [("ip", "PROXY_INIT_OUTPUT", "IPv4"), ("ip6", "PROXY_INIT_REDIRECT", "IPv6")] {
        let namespace = Namespace::new();
        namespace.sh(&format!("nft add table {family} nat"));
        namespace.sh(&format!("nft add chain {family} nat {chain} {{ type nat hook output priority -100 ; }}"));
        let before = namespace.sh("nft list ruleset");
        let line = Run::new(&format!("--iptables-mode nft {PORTS}")).output(&namespace).last_line();
        assert!(line.contains(&format!("the {word} nat table has a base chain {chain}")), "{line}");
        assert!(line.contains(&format!("`nft list chain {family} nat {chain}`")), "{line}");
        assert!(!line.contains("report"), "{line}");
        assert_eq!(namespace.sh("nft list ruleset"), before);
    }
}

#[test]
fn a_chain_that_another_programs_map_leads_to() {
    let namespace = Namespace::new();
    install(&namespace, &format!("--iptables-mode nft {PORTS}"));
    namespace.sh("nft add map ip nat ports { type inet_service : verdict ; }");
    namespace.sh("nft add element ip nat ports { 80 : jump PROXY_INIT_REDIRECT }");
    let before = saved(&namespace, "nft");
    let line = Run::new("uninstall").output(&namespace).last_line();
    assert!(line.contains("EBUSY") && line.contains("PROXY_INIT_REDIRECT"), "{line}");
    assert!(line.contains("`nft list table ip nat`") && !line.contains("report"), "{line}");
    assert_eq!(saved(&namespace, "nft"), before);
    namespace.sh("nft delete element ip nat ports { 80 }");
    install(&namespace, "uninstall");
    assert!(!saved(&namespace, "nft").contains("PROXY_INIT"));
}

#[test]
fn rules_of_another_backend_that_cannot_be_taken_out() {
    let empty = Folder::new("not-replaced");
    let namespace = Namespace::new();
    install(&namespace, &format!("--iptables-mode legacy {PORTS}"));
    let arguments = format!("--iptables-mode nft --replace-other-backend {PORTS}");
    let line = Run::new(&arguments).only_commands_of(&empty).output(&namespace).last_line();
    assert!(line.contains("the rules are installed, but those of legacy mode are still there too"), "{line}");
    assert!(line.contains("iptables-legacy-restore is not on PATH"), "{line}");
    let line = Run::new("uninstall").only_commands_of(&empty).output(&namespace).last_line();
    assert!(line.contains("iptables-legacy-restore is not on PATH"), "{line}");
}

#[test]
fn a_command_that_cannot_be_executed() {
    let folder = Folder::new("not-executable");
    folder.script("iptables-legacy-restore", "");
    std::fs::write(folder.join("iptables-legacy-restore"), [0; 64]).unwrap();
    folder.link("ip6tables-legacy-restore", "ip6tables-legacy-restore");
    let line = Run::new(PORTS).only_commands_of(&folder).output(&Namespace::new()).last_line();
    assert!(line.contains("cannot run") && line.contains("iptables-legacy-restore"), "{line}");
}

#[test]
fn legacy_tables_that_may_be_listed_but_not_read() {
    let namespace = Namespace::new();
    namespace.sh("iptables-legacy -t nat -A OUTPUT -j ACCEPT");
    let line =
        Run::new(&format!("--iptables-mode auto {PORTS}")).root_without("net_admin").output(&namespace).last_line();
    assert!(line.contains("EPERM") && line.contains("CAP_NET_ADMIN"), "{line}");
}

#[test]
fn auto_says_what_it_cannot_choose_by() {
    let run = Run::new(&format!("--iptables-mode auto {PORTS}")).nobody(&[]);
    let line = run.output(&Namespace::new()).last_line();
    let words =
        "msg=\"cannot read this network namespace's rules, by which auto chooses a mode: EPERM: run as root or with";
    assert!(line.contains(words), "{line}");
}

/// As under a seccomp filter: then it's no capability that is missing.
#[test]
fn a_refused_netlink_socket_is_no_missing_capability() {
    for line in ["explain inbound --to 10.77.0.2:80", "verify", &format!("--iptables-mode auto {PORTS}")] {
        let line = Run::new(line).failing("socket", "EPERM").output(&Namespace::new()).said();
        assert!(line.contains("EPERM: Operation not permitted: if a seccomp profile or sandbox is in force"), "{line}");
        assert!(!line.contains("run as root"), "{line}");
    }
}

/// Each try's batch gets another generation on its way to the kernel, as if somebody had committed just before it.
#[test]
fn somebody_who_commits_before_every_batch() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        let flags = format!("--iptables-mode {mode} {PORTS} -r");
        install(&namespace, &format!("{flags} 80"));
        // The first send is the batch for a fresh namespace. Then comes a try: it reads everything, between two
        // questions for the generation, and sends a batch; a run without a rival needs just one.
        let calls = Run::new(&format!("{flags} 81")).calls(&namespace);
        let sends: Vec<_> = calls.0.lines().filter(|line| line.contains(" sendto(")).collect();
        let a_try = sends.len() - 1;
        let before = namespace.sh("nft list ruleset");
        // struct nlmsghdr (28 bytes, NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST), struct nfgenmsg (NFNL_SUBSYS_NFTABLES), and
        // the attribute NFTA_GEN_ID (linux/netfilter/nfnetlink.h, nf_tables.h).
        let begin = "1c000000 1000 0100 00000000 00000000 0000000a 0800 0100 7fffffff".replace(' ', "");
        let line = Run::new(&format!("{flags} 82"))
            .inject("sendto", &format!("poke_enter=@arg2={begin}:when={}+{a_try}", sends.len()))
            .output(&namespace)
            .last_line();
        assert!(line.contains("ERESTART") && line.contains("1000 tries"), "{line}");
        assert!(line.contains(&format!("\"nothing was changed: {mode} mode: ")), "{line}");
        assert_eq!(namespace.sh("nft list ruleset"), before);
    }
}
