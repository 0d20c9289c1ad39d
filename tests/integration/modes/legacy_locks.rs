//! legacy mode under stress: several at once, failures half-way, and somebody else's rules.

use std::fs::File;
use std::process::{Command, Stdio};

use lab::network::Namespace;
use nix::fcntl::{Flock, FlockArg};

use crate::support::{Folder, Run, chart_in, install, saved};

fn chart() -> String {
    chart_in("legacy")
}

#[test]
fn several_at_once_leave_one_jump_each() {
    for trial in 0..25_u32 {
        let namespace = Namespace::new();
        if trial & 1 == 0 {
            // A doubled jump is what each of them would delete.
            install(&namespace, &chart());
            for command in ["iptables-legacy", "ip6tables-legacy"] {
                namespace.sh(&format!(
                    "{command} -t nat -A OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT"
                ));
            }
        }
        let ports = |index| format!("{} -w -r {}", chart(), 80 + index);
        let children: Vec<_> =
            (0..2 + trial % 7).map(|index| Run::new(&ports(index)).spawn(&namespace, Stdio::null())).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let rules = saved(&namespace, "legacy");
        for chain in ["PREROUTING", "OUTPUT"] {
            assert_eq!(rules.matches(&format!("-A {chain} ")).count(), 2, "{rules}");
        }
        assert_eq!(rules.matches("proxy-init/redirect-port-").count(), 2, "{rules}");
    }
}

/// Namespaces have a /run of their own, and so a lock.
#[test]
fn nothing_waits_for_the_lock_of_the_machine_around_it() {
    let machine = Namespace::new();
    machine.run(|| {
        let lock = File::create("/run/xtables.lock").unwrap();
        let _held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        let here = Command::new("timeout").args(["1", "iptables-legacy", "-t", "nat", "-S"]).status();
        assert_eq!(here.unwrap().code(), Some(124), "it waits for the lock");
        let namespace = Namespace::new();
        namespace.sh("timeout 60 iptables-legacy -t nat -A OUTPUT -j ACCEPT");
        install(&namespace, &chart());
    });
}

#[test]
fn the_same_flags_again_change_nothing() {
    let namespace = Namespace::new();
    let flags = format!("{} -r 80,443 --proxy-gid 7 --subnets-to-ignore 0.0.0.0/0,10.0.0.0/8,fd00::/8,::/0", chart());
    install(&namespace, &flags);
    namespace.sh("iptables-legacy -t nat -A OUTPUT -p tcp -j PROXY_INIT_OUTPUT -c 7 77");
    let counted = || namespace.sh("iptables-legacy-save -c -t nat") + &namespace.sh("ip6tables-legacy-save -c -t nat");
    let rules =
        |text: String| -> Vec<String> { text.lines().filter(|line| !line.starts_with('#')).map(Into::into).collect() };
    let before = rules(counted());
    let calls = Run::new(&flags).calls(&namespace);
    assert_eq!(calls.count(&["execve"]), 1, "{}", calls.0);
    assert_eq!(rules(counted()), before);
}

/// Whatever goes wrong half-way, all rules are in their old places, with their counters.
#[test]
fn what_fails_half_way_leaves_everything_as_it_was() {
    let failures = [
        ("exit", "ip6tables-legacy-restore", "cat >/dev/null; echo line 9 failed >&2; exit 1"),
        ("early", "ip6tables-legacy-restore", "echo line 9 failed >&2; exit 1"),
        ("after", "ip6tables-legacy-restore", "REAL \"$@\"; exit 3"),
        ("hang", "ip6tables-legacy-restore", "REAL \"$@\"; sleep 12"),
        ("hang4", "iptables-legacy-restore", "REAL \"$@\"; sleep 12"),
    ];
    std::thread::scope(|scope| {
        let cases = failures.into_iter().flat_map(|failure| [(failure, true), (failure, false)]);
        // All at once: those that hang do so for ten seconds.
        for ((name, command, script), fresh) in cases {
            scope.spawn(move || {
                let folder = Folder::new(&format!("half-{name}-{fresh}"));
                folder.wrap(command, script);
                let namespace = Namespace::new();
                if !fresh {
                    install(&namespace, &format!("{} -w", chart()));
                    namespace.sh("iptables-legacy -t nat -A OUTPUT -p tcp -j ACCEPT -c 7 77");
                    namespace.sh("iptables-legacy -t nat -I OUTPUT -p udp -j PROXY_INIT_OUTPUT");
                }
                let counted = || {
                    // Asking about a table makes it.
                    let text = namespace.sh("iptables-legacy-save -c -t nat")
                        + &namespace.sh("ip6tables-legacy-save -c -t nat");
                    text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
                };
                let before = if fresh { String::new() } else { counted() };
                let run = |line: &str| Run::new(line).commands_of(&folder).output(&namespace).last_line();
                let line = run(&format!("{} -r 80", chart()));
                assert!(!line.contains("NOT"), "{line}");
                if fresh {
                    assert!(!counted().contains("PROXY_INIT"), "{name}: {}", counted());
                } else {
                    assert_eq!(counted(), before, "{name}");
                    if name != "hang" && name != "hang4" {
                        run("uninstall");
                        assert_eq!(counted(), before, "{name}: uninstall");
                    }
                }
            });
        }
    });
}

#[test]
fn calls_that_fail_at_any_time_leave_all_or_nothing() {
    for (call, error) in [
        ("poll", "ENOMEM"),
        ("ppoll", "ENOMEM"),
        ("read", "EIO"),
        ("wait4", "EIO"),
        ("clone,clone3", "EAGAIN"),
        ("pipe2", "EMFILE"),
    ] {
        for when in 1..=6 {
            let namespace = Namespace::new();
            let finished = Run::new(&chart()).inject(call, &format!("error={error}:when={when}")).output(&namespace);
            let rules = saved(&namespace, "legacy");
            let jumps = rules.matches("-j PROXY_INIT").count();
            let want = if finished.code() == Some(0) { 4 } else { 0 };
            assert_eq!(jumps, want, "{call} {when}: {} {rules}", finished.said());
            assert_ne!(finished.code(), Some(101), "{call} {when}: {}", finished.said());
        }
    }
}

/// Killed at each of its first calls of a kind. The two families are two commits, each whole by itself.
#[test]
fn killed_at_any_call_the_next_run_repairs() {
    let waits = format!("{} -w", chart());
    let mut killed = 0;
    for call in ["openat", "socket", "flock", "pipe2", "clone3", "read", "write", "poll", "wait4", "close"] {
        for when in 1..=6 {
            let namespace = Namespace::new();
            let finished = Run::new(&waits).inject(call, &format!("signal=KILL:when={when}")).output(&namespace);
            killed += usize::from(finished.code().is_none_or(|code| code != 0));
            // The lock is held until the commands have ended.
            namespace.sh("iptables-legacy -w 60 -t nat -L -n");
            for save in ["iptables-legacy-save", "ip6tables-legacy-save"] {
                let jumps = namespace.sh(save).matches("-j PROXY_INIT").count();
                assert!(matches!(jumps, 0 | 2), "{call} {when}: {save}: {jumps}");
            }
            install(&namespace, &waits);
            assert_eq!(saved(&namespace, "legacy").matches("-j PROXY_INIT").count(), 4);
        }
    }
    assert!(killed >= 10, "{killed}: each call is made at least once");
}

#[test]
fn a_kernel_without_ipv6_gets_the_ipv4_rules_and_a_warning() {
    for (mode, families) in [("legacy", 1), ("nft", 2), ("native", 2), ("auto", 2)] {
        let namespace = Namespace::new();
        // strace tells sockets apart by their number alone, so the call that asks for IPv6 is found first.
        let trace = Run::new(&chart_in(mode)).calls(&Namespace::new()).0;
        let mut sockets = trace.lines().filter(|line| line.contains(" socket("));
        let asks = |line: &str| line.contains("AF_INET6") && line.contains("SOCK_DGRAM");
        let number = sockets.position(asks).expect("it asks") + 1;
        let said = Run::new(&chart_in(mode))
            .inject("socket", &format!("error=EAFNOSUPPORT:when={number}"))
            .output(&namespace)
            .success();
        assert_eq!(said.matches("this kernel has no IPv6").count(), 1, "{said}");
        assert!(said.contains("level=warning"), "{said}");
        let wanted = if families == 1 { "for IPv4 in" } else { "for IPv4 and IPv6 in" };
        assert!(said.contains(wanted), "{said}");
        if mode == "legacy" {
            let jumps = |save: &str| namespace.sh(save).matches("-j PROXY_INIT").count();
            assert_eq!(jumps("iptables-legacy-save -t nat"), 2);
            assert_eq!(jumps("ip6tables-legacy-save -t nat"), 0);
        }
    }
}
