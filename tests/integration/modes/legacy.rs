//! legacy mode: what it leaves in the kernel, as iptables-legacy sees it, and how it fails.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::network::Namespace;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

use crate::support::{Folder, PORTS, Run, chart_in, install, saved};

fn chart() -> String {
    chart_in("legacy")
}

/// The listing that the public proxy-init tutorials show (ivanporta.net/Hori/data-plane/proxy-init), without counters.
#[test]
fn the_listing_is_the_tutorials() {
    const TUTORIAL: [(&str, &[&str]); 4] = [
        (
            "PREROUTING",
            &["PROXY_INIT_REDIRECT all -- * * 0.0.0.0/0 0.0.0.0/0 /* proxy-init/install-proxy-init-prerouting */"],
        ),
        (
            "PROXY_INIT_REDIRECT",
            &[
                "RETURN tcp -- * * 0.0.0.0/0 0.0.0.0/0 multiport dports 4190,4191,4567,4568 /* \
                 proxy-init/ignore-port-4190,4191,4567,4568 */",
                "REDIRECT tcp -- * * 0.0.0.0/0 0.0.0.0/0 /* proxy-init/redirect-all-incoming-to-proxy-port */ redir \
                 ports 4143",
            ],
        ),
        ("OUTPUT", &["PROXY_INIT_OUTPUT all -- * * 0.0.0.0/0 0.0.0.0/0 /* proxy-init/install-proxy-init-output */"]),
        (
            "PROXY_INIT_OUTPUT",
            &[
                "RETURN all -- * * 0.0.0.0/0 0.0.0.0/0 owner UID match 2102 /* proxy-init/ignore-proxy-user-id */",
                "RETURN all -- * lo 0.0.0.0/0 0.0.0.0/0 /* proxy-init/ignore-loopback */",
                "RETURN tcp -- * * 0.0.0.0/0 0.0.0.0/0 multiport dports 443,6443 /* proxy-init/ignore-port-443,6443 */",
                "REDIRECT tcp -- * * 0.0.0.0/0 0.0.0.0/0 /* proxy-init/redirect-all-outgoing-to-proxy-port */ redir \
                 ports 4140",
            ],
        ),
    ];
    let namespace = Namespace::new();
    install(
        &namespace,
        "--ipv6=false --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 --inbound-ports-to-ignore \
         4190,4191,4567,4568 --outbound-ports-to-ignore 443,6443",
    );
    for (chain, want) in TUTORIAL {
        let listing = namespace.sh(&format!("iptables-legacy -t nat -L {chain} -n -v"));
        // After the title and the columns' names, without packets and bytes. iptables 1.8.9 and some others write
        // the protocol as a number (6 tcp, 0 all).
        let rules: Vec<String> = listing
            .lines()
            .skip(2)
            .map(|line| {
                let words: Vec<_> = line.split_whitespace().skip(2).collect();
                words.join(" ").replacen(" 6 --", " tcp --", 1).replacen(" 0 --", " all --", 1)
            })
            .collect();
        assert_eq!(rules, want, "{chain}");
    }
}

#[test]
fn with_no_mode_named_it_is_legacy() {
    let namespace = Namespace::new();
    install(&namespace, PORTS);
    assert!(saved(&namespace, "legacy").contains("-j PROXY_INIT_OUTPUT"));
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn the_log_tells_an_installation_from_rules_that_were_there() {
    // Where every port or address is ignored, the kernel's rules may have no condition for that.
    let all = "--inbound-ports-to-ignore 0-65535 --inbound-subnets-to-ignore 0.0.0.0/0,::/0";
    for flags in [chart(), format!("{} {all}", chart())] {
        let namespace = Namespace::new();
        let install = || Run::new(&flags).output(&namespace).success();
        let first = install();
        assert!(!first.contains("nothing was changed"), "{first}");
        let again = install();
        assert!(again.contains("were installed already; nothing was changed"), "{again}");
    }
}

#[test]
fn a_held_lock_is_named_and_the_wait_flag_waits() {
    let namespace = Namespace::new();
    let lock = namespace.run(|| File::create("/run/xtables.lock")).unwrap();
    let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();

    let line = Run::new(&chart()).output(&namespace).last_line();
    assert!(
        line.contains("another program holds the xtables lock")
            && line.contains("wait for it, as iptables does with -w"),
        "{line}"
    );
    assert!(!saved(&namespace, "legacy").contains("PROXY_INIT"));

    let start = Instant::now();
    let patience = Duration::from_millis(1500);
    let patient = Run::new(&format!("{} -w", chart()));
    let output = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.output(&namespace));
        std::thread::sleep(patience);
        assert!(!waiting.is_finished(), "it did not wait");
        drop(held);
        waiting.join().unwrap()
    });
    assert!(start.elapsed() >= patience);
    output.success();
    assert!(saved(&namespace, "legacy").contains("-j PROXY_INIT_OUTPUT"));
}

#[test]
fn a_lock_file_that_cannot_be_made_is_named() {
    let namespace = Namespace::new();
    let line = Run::new(&chart()).environment("XTABLES_LOCKFILE", "/proc/no/lock").output(&namespace).last_line();
    assert!(line.contains("cannot write its lock file") && line.contains("/proc/no/lock"), "{line}");
    assert!(line.contains("emptyDir"), "{line}");
}

#[test]
fn somebody_with_net_admin_and_net_raw_can() {
    let namespace = Namespace::new();
    for _ in 0..2 {
        Run::new(&chart()).in_pod(&["net_admin", "net_raw"]).output(&namespace).success();
    }
    let whole = Namespace::new();
    install(&whole, &chart());
    assert_eq!(saved(&namespace, "legacy"), saved(&whole, "legacy"));

    let line = Run::new(&chart()).in_pod(&["net_admin"]).output(&Namespace::new()).last_line();
    assert!(line.contains("needs CAP_NET_RAW") && line.contains("nft mode needs NET_ADMIN alone"), "{line}");
    let line = Run::new(&chart()).in_pod(&[]).output(&Namespace::new()).last_line();
    assert!(line.contains("needs CAP_NET_ADMIN"), "{line}");
    // Where /run is root's, too.
    let line = Run::new(&chart()).nobody(&[]).output(&Namespace::new()).last_line();
    assert!(line.contains("needs CAP_NET_ADMIN"), "{line}");
}

/// Only root can see that legacy tables hold rules; whoever installed them there by an image's only iptables commands
/// can verify them all the same.
#[test]
fn what_somebody_installed_by_plain_commands_they_can_verify() {
    let folder = Folder::new("plain-verify");
    folder.link_plain("legacy");
    let flags = format!("{PORTS} --firewall-bin-path {}/iptables", folder.path());
    let namespace = Namespace::new();
    let run = |line: &str| Run::new(line).in_pod(&["net_admin", "net_raw"]).output(&namespace);
    let verify = || run(&format!("verify {flags}"));
    assert_eq!(verify().code(), Some(3));
    run(&flags).success();
    assert!(verify().success().contains("legacy mode"));
    namespace.sh("iptables-legacy -t nat -F PROXY_INIT_OUTPUT");
    assert_eq!(verify().code(), Some(3));
}

#[test]
fn the_child_has_only_what_it_needs() {
    let folder = Folder::new("child");
    let seen = folder.join("seen");
    let spy =
        format!("{{ env; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; }} >{}; exec REAL \"$@\"", seen.display());
    folder.wrap("iptables-legacy-restore", &spy);
    let namespace = Namespace::new();
    Run::new(&format!("{} --ipv6=false", chart()))
        .commands_of(&folder)
        .environment("SECRET", "x")
        .environment("LD_PRELOAD", "")
        .output(&namespace)
        .success();
    let seen = fs::read_to_string(&seen).unwrap();
    // CAP_NET_ADMIN is 12, CAP_NET_RAW 13 (linux/capability.h).
    for set in ["CapPrm", "CapEff"] {
        assert!(seen.contains(&format!("{set}:\t0000000000003000")), "{seen}");
    }
    assert!(seen.contains("NoNewPrivs:\t1"), "{seen}");
    assert!(!seen.contains("SECRET") && !seen.contains("LD_PRELOAD"), "{seen}");
}

#[test]
fn when_the_second_family_fails_the_first_is_rolled_back() {
    let folder = Folder::new("second");
    folder.script("ip6tables-legacy-restore", "echo 'ip6tables-restore: line 9 failed' >&2; exit 1");
    let namespace = Namespace::new();
    namespace.sh("iptables-legacy -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    let before = saved(&namespace, "legacy");
    let line = Run::new(&chart()).commands_of(&folder).output(&namespace).last_line();
    assert!(line.contains("ip6tables-restore: line 9 failed"), "{line}");
    assert!(line.contains("nothing was changed"), "{line}");
    assert_eq!(saved(&namespace, "legacy"), before);

    // Over an earlier run's rules, it is those that are back.
    install(&namespace, &chart());
    namespace.sh("iptables-legacy -t nat -A OUTPUT -p tcp -j PROXY_INIT_OUTPUT");
    let before = saved(&namespace, "legacy");
    let line = Run::new(&format!("{} -r 80 --ipv6=true", chart())).commands_of(&folder).output(&namespace).last_line();
    assert!(line.contains("nothing was changed"), "{line}");
    assert_eq!(saved(&namespace, "legacy"), before);
}

/// SIGTERM comes once IPv4 is committed, and then IPv6 fails.
#[test]
fn a_signal_between_the_commits_leaves_no_family_changed() {
    let folder = Folder::new("terminated");
    folder.wrap("iptables-legacy-restore", "REAL \"$@\"; kill -TERM $PPID");
    folder.script("ip6tables-legacy-restore", "cat >/dev/null; exit 1");
    let namespace = Namespace::new();
    namespace.sh("iptables-legacy -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    let before = saved(&namespace, "legacy");
    // By --netns, another thread does the work, and the process's first thread waits for it.
    for flags in [chart(), format!("{} --netns /proc/self/ns/net", chart())] {
        let mut child = Run::new(&flags).commands_of(&folder).spawn(&namespace, Stdio::null());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
        assert_eq!(saved(&namespace, "legacy"), before);
    }
}

/// As a program inherits it from whoever started it.
#[test]
fn where_sigchld_is_ignored_it_installs_all_the_same() {
    let namespace = Namespace::new();
    Run::new(&chart()).under(["env", "--ignore-signal=CHLD"]).output(&namespace).success();
    assert!(saved(&namespace, "legacy").contains("-j PROXY_INIT_OUTPUT"));
}

#[test]
fn a_child_that_hangs_is_killed() {
    let folder = Folder::new("hang");
    folder.script("iptables-legacy-restore", "exec sleep 1000");
    let namespace = Namespace::new();
    let start = Instant::now();
    let line = Run::new(&chart()).commands_of(&folder).output(&namespace).last_line();
    assert!(line.contains("did not end within 10 seconds and was killed"), "{line}");
    assert!(start.elapsed() < Duration::from_secs(30));

    folder.script("iptables-legacy-restore", "kill -9 $$");
    let line = Run::new(&chart()).commands_of(&folder).output(&namespace).last_line();
    assert!(line.contains("signal: 9") && !line.contains(": :"), "{line}");
}

/// A process that has left the group isn't killed, and may hold the command's words open for ever.
#[test]
fn a_childs_daemon_is_not_waited_for() {
    let folder = Folder::new("daemon");
    folder.wrap("iptables-legacy-restore", "setsid sleep 20 & REAL \"$@\"");
    let namespace = Namespace::new();
    let start = Instant::now();
    let line = Run::new(&chart()).commands_of(&folder).output(&namespace).last_line();
    assert!(line.contains("did not end within 10 seconds and was killed"), "{line}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(!saved(&namespace, "legacy").contains("PROXY_INIT"));
}
