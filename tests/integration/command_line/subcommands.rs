//! Each subcommand takes the flags that mean something to it, and refuses the others.

use lab::network::Namespace;

use super::CHART_PORTS;
use crate::support::{Run, install};

/// The refusal of a run with these arguments; nothing may be touched.
fn refusal(namespace: &Namespace, arguments: &[&str]) -> String {
    let before = namespace.sh("nft list ruleset");
    let finished = Run::new("").arguments(arguments).output(namespace);
    let text = finished.stderr();
    assert_eq!(finished.code(), Some(2), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(finished.stdout(), "", "{arguments:?}");
    assert_eq!(namespace.sh("nft list ruleset"), before, "{arguments:?}");
    text
}

#[test]
fn a_subcommand_takes_only_what_means_something_to_it() {
    let namespace = Namespace::new();
    install(&namespace, &format!("--iptables-mode nft {CHART_PORTS}"));
    for (subcommand, flags) in [
        (
            "uninstall",
            &[
                "--simulate",
                "--simulate=ipv4",
                "--iptables-mode nft",
                "--iptables-mode bogus",
                "--replace-other-backend",
                "--timeout-close-wait-secs 9",
                "--firewall-save-bin-path x",
                "--output json",
                "--ipv6=false",
                "-p 4143",
            ][..],
        ),
        (
            "verify",
            &[
                "--simulate",
                "--replace-other-backend",
                "--log-level loud",
                "--log-level info",
                "--log-format json",
                "--use-wait-flag",
                "-w",
                "--timeout-close-wait-secs 9",
            ],
        ),
        ("detect", &["-p 4143", "--iptables-mode nft", "--log-level info", "--simulate"]),
    ] {
        for flags in flags {
            let arguments: Vec<_> = std::iter::once(subcommand).chain(flags.split(' ')).collect();
            let text = refusal(&namespace, &arguments);
            let flag = flags.split([' ', '=']).next().unwrap();
            assert!(text.contains(&format!("{subcommand} does not take {flag}: ")), "{arguments:?}: {text}");
        }
    }
    let text = refusal(&namespace, &["--output", "json", "-p", "1", "-o", "2"]);
    assert!(text.contains("does not take --output"), "{text}");

    // The flags that they do take.
    let verified = "verify --iptables-mode nft --netns=/proc/self/ns/net --firewall-bin-path iptables-nft --firewall-save-bin-path x";
    install(&namespace, &format!("{verified} --output text {CHART_PORTS}"));
    install(&namespace, "detect --netns=/proc/self/ns/net --output json");
    install(
        &namespace,
        "uninstall -w --netns=/proc/self/ns/net --firewall-bin-path iptables-nft --log-format json --log-level info",
    );
    assert_eq!(namespace.sh("nft list ruleset").matches("PROXY_INIT").count(), 0);
}
