//! The machine's own network namespace, which no test may touch: the kernel's answers are made to say that a namespace
//! of the test's is it.

use lab::network::Namespace;

use crate::support::{PORTS, Run};

/// struct stat (asm/stat.h) begins with the device, 8 bytes, and the inode's number: 0xEFFFFFF9 (`NET_NS_INIT_INO`,
/// linux/nsfs.h).
const INITIAL: &str = "poke_exit=@arg3=0400000000000000f9ffffef00000000";

/// Makes a run take this namespace for the machine's own.
type Pretend = fn(Run, &Namespace) -> Run;

/// With the kernel's answer to the question for the namespace's number changed, in the words of strace's `--inject`.
fn with_number(run: Run, what: &str) -> Run {
    run.under([
        "strace",
        "--follow-forks",
        "--output=/dev/null",
        "--trace-path=/proc/self/ns/net",
        "--trace-path=/proc/thread-self/ns/net",
    ])
    // glibc asks by the one call, musl by the other where it is there: its answer is in another argument.
    .under([format!("--inject=newfstatat:{what}"), format!("--inject=?stat:{}", what.replace("@arg3", "@arg2"))])
}

fn by_number(run: Run, _: &Namespace) -> Run {
    with_number(run, INITIAL)
}

/// As kernels before Linux 6.18 have it: the number says nothing, but a setting is there.
fn by_setting(run: Run, namespace: &Namespace) -> Run {
    // Each network namespace has a /proc/sys/net of its own.
    let there = format!("nsenter --net={}", namespace.path().display());
    let folder = "/proc/sys/net/core";
    run.after_mounting(&format!("{there} mount -t tmpfs tmpfs {folder}; {there} touch {folder}/netdev_max_backlog"))
        .under(["setarch", "--uname-2.6"])
}

const WAYS: [Pretend; 2] = [by_number, by_setting];

fn in_a_pod(flags: &str) -> Run {
    Run::new(&format!("--iptables-mode nft {PORTS} -u 2102 {flags}"))
        .environment("KUBERNETES_SERVICE_HOST", "10.96.0.1")
}

#[test]
fn a_pod_does_not_redirect_its_node() {
    for pretend in WAYS {
        let (namespace, other) = (Namespace::new(), Namespace::new());
        let here = in_a_pod("--timeout-close-wait-secs 9");
        let there = in_a_pod(&format!("--netns {}", namespace.path().display()));
        for (run, started_in) in [(here, &namespace), (there, &other)] {
            let line = pretend(run, &namespace).output(started_in).last_line();
            for words in ["nothing was changed", "the node's own network namespace", "allow-host-network installs"] {
                assert!(line.contains(words), "{words} in {line}");
            }
        }
        assert_eq!(namespace.sh("nft list ruleset") + &other.sh("nft list ruleset"), "");
        let timeout = namespace.sh("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait");
        assert_eq!(timeout.trim(), "60");

        let allowed = pretend(in_a_pod("--allow-host-network"), &namespace);
        let log = allowed.output(&namespace).success();
        assert!(log.contains("installed 12 rules") && !log.contains("level=warning"), "{log}");
        pretend(Run::new("uninstall"), &namespace).output(&namespace).success();
    }
}

#[test]
fn elsewhere_it_is_a_warning() {
    for pretend in WAYS {
        let namespace = Namespace::new();
        let run = Run::new(&format!("--iptables-mode nft {PORTS} -u 2102"));
        let log = pretend(run, &namespace).output(&namespace).success();
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("level=warning")).collect();
        assert_eq!(warnings.len(), 1, "{log}");
        assert!(warnings[0].contains("the machine's own network namespace"), "{log}");
    }
}

#[test]
fn other_namespaces_are_not_taken_for_it() {
    for run in [in_a_pod(""), in_a_pod("").under(["setarch", "--uname-2.6"])] {
        let log = run.output(&Namespace::new()).success();
        assert!(!log.contains("level=warning"), "{log}");
    }
    // Where the kernel doesn't tell, nothing is claimed.
    let untold = with_number(in_a_pod(""), "error=EACCES");
    let log = untold.output(&Namespace::new()).success();
    assert!(!log.contains("level=warning"), "{log}");
}
