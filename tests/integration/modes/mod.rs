//! Choosing a mode, what is true of each, and what is true of one mode alone.

mod choice;
mod legacy;
mod legacy_locks;
mod native;
mod nft;

use lab::network::Namespace;

use crate::support::{PORTS, Run, chart_in, handles, install};

/// Installs with the flags `before`, and then with `after`: as many rules as `stay` are kept, and verify finds the others in
/// their place. Returns the namespace, and a fresh one with the rules of `after`.
fn changed_and_fresh(base: &str, before: &str, after: &str, stay: usize) -> [Namespace; 2] {
    let namespace = Namespace::new();
    install(&namespace, &format!("{base} {before}"));
    let earlier = handles(&namespace);
    install(&namespace, &format!("{base} {after}"));
    let now = handles(&namespace);
    let kept = now.iter().filter(|rule| earlier.contains(rule)).count();
    assert_eq!(kept, stay, "{before} to {after}: {earlier:?} {now:?}");
    install(&namespace, &format!("verify {base} {after}"));
    let fresh = Namespace::new();
    install(&fresh, &format!("{base} {after}"));
    [namespace, fresh]
}

/// The system calls of a run in a fresh namespace, by a trace.
#[test]
fn a_fresh_namespace_takes_few_calls() {
    for (mode, programs, most_receives) in
        [("nft", 1, Some(3)), ("native", 1, Some(1)), ("legacy", 3, None), ("legacy --ipv6=false", 2, None)]
    {
        let calls = Run::new(&chart_in(mode)).calls(&Namespace::new());
        let trace = &calls.0;
        assert_eq!(calls.count(&["execve"]), programs, "{trace}");
        if let Some(most_receives) = most_receives {
            assert_eq!(calls.count(&["fork", "vfork", "clone", "clone3"]), 0, "{trace}");
            assert_eq!(calls.count(&["sendmsg", "sendto", "sendmmsg"]), 1, "{trace}");
            assert!((1..=most_receives).contains(&calls.count(&["recvmsg", "recvfrom"])), "{trace}");
            assert_eq!(trace.matches(" write(1,").count(), 1, "the log is one write: {trace}");
        }
    }
}

#[test]
fn in_a_user_namespace_an_id_that_is_not_mapped_is_named() {
    for mode in ["nft", "native", "legacy"] {
        // Lists what is left in the user namespace's own network namespace, after the log.
        let unshared = |arguments: &str| {
            Run::new(&format!("--iptables-mode {mode} {PORTS} --inbound-ports-to-ignore 4190 {arguments}"))
                .in_user_namespace()
                .under(["sh", "-c", "\"$@\"; code=$?; nft list ruleset; exit $code", "sh"])
                .output(&Namespace::new())
        };
        if mode != "legacy" {
            assert!(unshared("-u 0 -r 80").success().contains("PROXY_INIT_OUTPUT"), "{mode}");
        }
        for (flag, id, owner) in [("-u", 2102, "--uid-owner 2102"), ("-g", 7, "--gid-owner 7")] {
            let line = unshared(&format!("{flag} {id}")).last_line();
            assert!(line.contains("nothing was changed"), "{mode}: {line}");
            assert!(line.contains(&format!("id {id} is not mapped in this user namespace")), "{mode}: {line}");
            assert!(mode == "native" || line.contains(owner), "{mode}: {line}");
        }
    }
}

#[test]
fn a_call_that_fails_is_named_with_its_cure() {
    for (mode, call, error, words) in [
        ("nft", "sendto", "EMSGSIZE", ["EMSGSIZE", "net.core.wmem_max"]),
        ("nft", "socket", "EPROTONOSUPPORT", ["this kernel has no nf_tables", "CONFIG_NF_TABLES"]),
        ("nft", "sendto", "ENOMEM", ["ENOMEM", "nft mode"]),
        ("nft", "recvfrom", "EIO", ["EIO", "nft mode"]),
        ("legacy", "clone,clone3", "EAGAIN", ["cannot run", "Resource temporarily unavailable"]),
    ] {
        let line = Run::new(&chart_in(mode)).failing(call, error).output(&Namespace::new()).last_line();
        assert!(words.iter().all(|words| line.contains(words)), "{call} {error}: {line}");
    }
}
