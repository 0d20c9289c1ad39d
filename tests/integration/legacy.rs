//! legacy mode: what it leaves in the kernel, as iptables-legacy sees it, and how it fails.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use xtask::lab::Namespace;

use crate::linkerd::{Flags, for_any_flags};
use crate::{Calls, assert_success, install, last_line, proxy_init, run, saved};

const CHART: &str = "--iptables-mode legacy -p 4143 -o 4140 -u 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 \
                     --outbound-ports-to-ignore 4567,4568";

fn saved_by_legacy(namespace: &Namespace) -> String {
    saved(namespace, "iptables-legacy-save") + &saved(namespace, "ip6tables-legacy-save")
}

/// A folder of commands of our making, gone when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("proxy-init-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A link to a real command, under this name.
    pub(crate) fn link(&self, name: &str, command: &str) {
        let which = Command::new("sh")
            .args(["-c", &format!("command -v {command}")])
            .output()
            .unwrap();
        let original = String::from_utf8(which.stdout).unwrap();
        assert!(!original.is_empty(), "{command} is not installed");
        symlink(original.trim(), self.0.join(name)).unwrap();
    }

    pub(crate) fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Runs with a PATH and an xtables lock of its own.
fn run_with(namespace: &Namespace, folder: &Folder, path: &str, arguments: &str) -> Output {
    let mut command = proxy_init();
    command
        .env("PATH", path)
        .env("XTABLES_LOCKFILE", folder.0.join("lock"))
        .args(arguments.split_whitespace());
    namespace.output(&mut command)
}

const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

fn check_against_iptables(flags: &Flags) {
    let ours = Namespace::new();
    let output = ours.output(
        proxy_init()
            .args(["--iptables-mode=legacy", "-w"])
            .args(flags.arguments()),
    );
    assert_success(&output);
    let theirs = Namespace::new();
    flags.add_with_iptables(&theirs, "legacy");
    assert_eq!(saved_by_legacy(&ours), saved_by_legacy(&theirs));
    assert_eq!(ours.sh("nft list ruleset"), "");
}

#[test]
fn any_rules_are_those_that_iptables_legacy_makes() {
    check_against_iptables(&Flags::default());
    for_any_flags(10, check_against_iptables);
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
        (
            "OUTPUT",
            &["PROXY_INIT_OUTPUT all -- * * 0.0.0.0/0 0.0.0.0/0 /* proxy-init/install-proxy-init-output */"],
        ),
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
        // Behind the title and the columns' names, without packets and bytes. iptables 1.8.9 and some others write
        // the protocol as a number (6 tcp, 0 all).
        let rules: Vec<String> = listing
            .lines()
            .skip(2)
            .map(|line| {
                let words: Vec<_> = line.split_whitespace().skip(2).collect();
                words
                    .join(" ")
                    .replacen(" 6 --", " tcp --", 1)
                    .replacen(" 0 --", " all --", 1)
            })
            .collect();
        assert_eq!(rules, want, "{chain}");
    }
}

#[test]
fn running_again_gives_exactly_the_wanted_rules() {
    let namespace = Namespace::new();
    for line in [
        "iptables-legacy -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT",
        "iptables-legacy -t nat -N OTHER",
        "iptables-legacy -t nat -A OUTPUT -p udp -m comment --comment it's\"mine\" -j OTHER",
    ] {
        namespace.sh(line);
    }
    let strangers = saved_by_legacy(&namespace);
    // What iptables-legacy itself made, then other flags, twice.
    Flags::default().add_with_iptables(&namespace, "legacy");
    let other = Flags {
        redirect: vec![80],
        gid: Some(7),
        ..Flags::default()
    };
    for flags in [Flags::default(), other.clone(), other] {
        install(
            &namespace,
            &format!("--iptables-mode legacy {}", flags.arguments().join(" ")),
        );
        let theirs = Namespace::new();
        flags.add_with_iptables(&theirs, "legacy");
        let ours = saved_by_legacy(&namespace);
        for line in saved_by_legacy(&theirs).lines().chain(strangers.lines()) {
            assert!(ours.contains(line), "{line} in {ours}");
        }
        // The second family has no strangers; ours, once each.
        assert_eq!(
            saved(&namespace, "ip6tables-legacy-save"),
            saved(&theirs, "ip6tables-legacy-save")
        );
        assert_eq!(ours.matches("-A PREROUTING").count(), 3, "{ours}");
    }
}

#[test]
fn what_somebody_broke_is_put_right() {
    let whole = Namespace::new();
    install(&whole, CHART);
    for damage in [
        "iptables-legacy -t nat -F PREROUTING",
        "iptables-legacy -t nat -A OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT",
        "ip6tables-legacy -t nat -F PROXY_INIT_OUTPUT",
        "ip6tables-legacy -t nat -A PROXY_INIT_OUTPUT -j ACCEPT",
    ] {
        let namespace = Namespace::new();
        install(&namespace, CHART);
        namespace.sh(damage);
        install(&namespace, CHART);
        assert_eq!(saved_by_legacy(&namespace), saved_by_legacy(&whole), "{damage}");
    }
    install(&whole, &format!("{CHART} --ipv6=false"));
    assert!(
        !saved(&whole, "ip6tables-legacy-save").contains("PROXY_INIT"),
        "IPv6 was not asked for"
    );
}

#[test]
fn a_fresh_namespace_takes_one_process_a_family() {
    for (flags, processes) in [("", 2), ("--ipv6=false", 1)] {
        let namespace = Namespace::new();
        let calls = Calls::of(&namespace, &format!("{CHART} {flags}"));
        assert_eq!(calls.count(&["execve"]), 1 + processes, "{}", calls.0);
    }
}

#[test]
fn with_no_mode_named_it_is_legacy() {
    let namespace = Namespace::new();
    install(&namespace, "-p 4143 -o 4140");
    assert!(saved_by_legacy(&namespace).contains("-j PROXY_INIT_OUTPUT"));
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn a_held_lock_is_named_and_the_wait_flag_waits() {
    let folder = Folder::new("lock");
    let lock = File::create(folder.0.join("lock")).unwrap();
    let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();

    let namespace = Namespace::new();
    let line = last_line(&run_with(&namespace, &folder, PATH, CHART));
    assert!(
        line.contains("another program holds the xtables lock") && line.contains("add -w"),
        "{line}"
    );
    assert!(!saved_by_legacy(&namespace).contains("PROXY_INIT"));

    let start = Instant::now();
    let patience = Duration::from_millis(1500);
    let output = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| run_with(&namespace, &folder, PATH, &format!("{CHART} -w")));
        std::thread::sleep(patience);
        assert!(!waiting.is_finished(), "it did not wait");
        drop(held);
        waiting.join().unwrap()
    });
    assert!(start.elapsed() >= patience);
    assert_success(&output);
    assert!(saved_by_legacy(&namespace).contains("-j PROXY_INIT_OUTPUT"));
}

#[test]
fn a_lock_file_that_cannot_be_made_is_named() {
    let namespace = Namespace::new();
    let mut command = proxy_init();
    command
        .env("XTABLES_LOCKFILE", "/proc/no/lock")
        .args(CHART.split_whitespace());
    let line = last_line(&namespace.output(&mut command));
    assert!(
        line.contains("cannot write its lock file") && line.contains("/proc/no/lock"),
        "{line}"
    );
    assert!(line.contains("emptyDir"), "{line}");
}

/// Somebody who isn't root, with just these capabilities, as a pod's security context gives them.
fn run_as_nobody(namespace: &Namespace, capabilities: &str, arguments: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec"]).arg(format!(
        "mount -t tmpfs -o mode=1777 tmpfs /run && mount -o remount,bind,ro / && \
         exec setpriv --no-new-privs --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all{capabilities} \
         --ambient-caps=-all{capabilities} --bounding-set=-all{capabilities} {} {arguments}",
        env!("CARGO_BIN_EXE_proxy-init")
    ));
    namespace.output(&mut command)
}

#[test]
fn somebody_with_net_admin_and_net_raw_can() {
    let namespace = Namespace::new();
    for _ in 0..2 {
        assert_success(&run_as_nobody(&namespace, ",+net_admin,+net_raw", CHART));
    }
    let whole = Namespace::new();
    install(&whole, CHART);
    assert_eq!(saved_by_legacy(&namespace), saved_by_legacy(&whole));

    let line = last_line(&run_as_nobody(&Namespace::new(), ",+net_admin", CHART));
    assert!(
        line.contains("needs CAP_NET_RAW") && line.contains("nft mode needs NET_ADMIN alone"),
        "{line}"
    );
    let line = last_line(&run_as_nobody(&Namespace::new(), "", CHART));
    assert!(line.contains("needs CAP_NET_ADMIN"), "{line}");
}

/// Only root can see that legacy tables hold rules; whoever installed them there by an image's only iptables commands
/// can verify them all the same.
#[test]
fn what_somebody_installed_by_plain_commands_they_can_verify() {
    let folder = Folder::new("plain-verify");
    for family in ["iptables", "ip6tables"] {
        for suffix in ["-restore", "-save"] {
            folder.link(&format!("{family}{suffix}"), &format!("{family}-legacy{suffix}"));
        }
    }
    let flags = format!("-p 4143 -o 4140 --firewall-bin-path {}/iptables", folder.path());
    let namespace = Namespace::new();
    let verify = || run_as_nobody(&namespace, ",+net_admin,+net_raw", &format!("verify {flags}"));
    assert_eq!(verify().status.code(), Some(3));
    assert_success(&run_as_nobody(&namespace, ",+net_admin,+net_raw", &flags));
    let verified = verify();
    assert_success(&verified);
    assert!(String::from_utf8_lossy(&verified.stdout).contains("legacy mode"));
    namespace.sh("iptables-legacy -t nat -F PROXY_INIT_OUTPUT");
    assert_eq!(verify().status.code(), Some(3));
}

#[test]
fn the_child_has_only_what_it_needs() {
    let folder = Folder::new("child");
    let seen = folder.0.join("seen");
    let spy = format!(
        "cat >/dev/null; {{ env; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; }} >{}",
        seen.display()
    );
    folder.script("iptables-legacy-restore", &spy);
    let path = format!("{}:{PATH}", folder.path());
    let namespace = Namespace::new();
    let mut command = proxy_init();
    command
        .env("PATH", &path)
        .env("SECRET", "x")
        .env("LD_PRELOAD", "")
        .args(CHART.split_whitespace());
    assert_success(&namespace.output(command.arg("--ipv6=false")));
    let seen = fs::read_to_string(&seen).unwrap();
    // CAP_NET_ADMIN is 12, CAP_NET_RAW 13 (linux/capability.h).
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert!(seen.contains(&format!("{set}:\t0000000000003000")), "{seen}");
    }
    assert!(seen.contains("NoNewPrivs:\t1"), "{seen}");
    assert!(!seen.contains("SECRET") && !seen.contains("LD_PRELOAD"), "{seen}");
}

#[test]
fn a_kernel_without_legacy_tables_is_named() {
    let folder = Folder::new("no-tables");
    // What iptables-legacy-restore 1.8.9 says then; the kernels under `cargo xtask kernels` make it say so for real.
    folder.script(
        "iptables-legacy-restore",
        "echo \"iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'\" >&2; exit 1",
    );
    let path = format!("{}:{PATH}", folder.path());
    let line = last_line(&run_with(&Namespace::new(), &folder, &path, CHART));
    assert!(
        line.contains("this kernel has no legacy nat table") && line.contains("unable to initialize"),
        "{line}"
    );
    assert!(line.contains("--iptables-mode nft"), "{line}");
}

#[test]
fn when_the_second_family_fails_the_first_is_taken_back() {
    let folder = Folder::new("second");
    folder.script(
        "ip6tables-legacy-restore",
        "echo 'ip6tables-restore: line 9 failed' >&2; exit 1",
    );
    let path = format!("{}:{PATH}", folder.path());
    let namespace = Namespace::new();
    namespace.sh("iptables-legacy -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    let before = saved_by_legacy(&namespace);
    let line = last_line(&run_with(&namespace, &folder, &path, CHART));
    assert!(line.contains("ip6tables-restore: line 9 failed"), "{line}");
    assert!(line.contains("nothing was changed"), "{line}");
    assert_eq!(saved_by_legacy(&namespace), before);

    // Over an earlier run's rules, it is those that are put back.
    let real = format!("{PATH}:{}", folder.path());
    assert_success(&run_with(&namespace, &folder, &real, CHART));
    namespace.sh("iptables-legacy -t nat -A OUTPUT -p tcp -j PROXY_INIT_OUTPUT");
    let before = saved_by_legacy(&namespace);
    let line = last_line(&run_with(
        &namespace,
        &folder,
        &path,
        &format!("{CHART} -r 80 --ipv6=true"),
    ));
    assert!(line.contains("nothing was changed"), "{line}");
    assert_eq!(saved_by_legacy(&namespace), before);
}

#[test]
fn a_child_that_hangs_is_killed() {
    let folder = Folder::new("hang");
    folder.script("iptables-legacy-restore", "exec sleep 1000");
    let path = format!("{}:{PATH}", folder.path());
    let namespace = Namespace::new();
    let start = Instant::now();
    let line = last_line(&run_with(&namespace, &folder, &path, CHART));
    assert!(line.contains("did not end within 10 seconds and was killed"), "{line}");
    assert!(start.elapsed() < Duration::from_secs(30));

    folder.script("iptables-legacy-restore", "kill -9 $$");
    let line = last_line(&run_with(&namespace, &folder, &path, CHART));
    assert!(line.contains("signal: 9"), "{line}");
}

#[test]
fn in_legacy_mode_a_wrong_flag_touches_nothing() {
    let namespace = Namespace::new();
    assert_eq!(run(&namespace, "-p 4143 -o 4140 -r 70000").status.code(), Some(2));
    assert_eq!(namespace.sh("cat /proc/self/net/ip_tables_names"), "");
}
