//! Each subcommand takes the flags that mean something to it, and names mistakes.

use lab::network::Namespace;

use super::{CHART_PORTS, refusal};
use crate::support::install;

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
        ("man", &["--netns /"]),
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

#[test]
fn a_mistake_is_named_with_what_to_write_instead() {
    let namespace = Namespace::new();
    for (arguments, words) in [
        (
            &["--ipv6", "false"][..],
            "unexpected argument \"false\": a boolean takes its value after \"=\", as in --ipv6=false",
        ),
        (&["-w", "false"], "a boolean takes its value after"),
        (&["--simulate", "ipv4"], "unexpected argument \"ipv4\""),
        (&["--inbound-ports-to-ignore", "4190,", "4191"], "unexpected argument \"4191\""),
        (&["--outbound-ports-to-ignore=4190", ",4191"], "and a list has no blanks"),
        (&["80"], "unexpected argument \"80\""),
        (&["verify"], "proxy-init verify ..."),
        (&["-r", ","], "--ports-to-redirect \",\" names nothing: name at least one"),
        (&["-r", ""], "--ports-to-redirect \"\" names nothing: name at least one"),
        (&["-r", "80", "--ports-to-redirect="], "--ports-to-redirect \"\" names nothing: name at least one"),
        (&["--inbound-ports-to-ignore", "-5"], "--inbound-ports-to-ignore \"-5\" is not"),
        (&["--inbound-ports-to-ignore", "80,-5-7"], "\"-5-7\""),
        (&["--ports-to-redirect", "-5"], "--ports-to-redirect \"-5\" is not"),
        (&["--subnets-to-ignore", "010.0.0.0/8"], "010.0.0.0/8 is not a valid CIDR address"),
        (&["--outbound-subnets-to-ignore", "10.0.0.0/08"], "10.0.0.0/08 is not a valid CIDR address"),
        (
            &["--subnets-to-ignore", "::ffff:10.0.0.0/104"],
            "::ffff:10.0.0.0/104 is an IPv4-mapped subnet, which is never on the wire: write the IPv4 subnet itself, \
             10.0.0.0/8",
        ),
        (&["--simulate=ipv5"], "--simulate must be one of ipv4, ipv6, true, false, not \"ipv5\""),
        (&["--simulate=ipv4", "--iptables-mode", "native"], "write --simulate alone"),
        (&["--simulate=ipv6", "--ipv6=false"], "no rules for IPv6"),
        (&["--proxy-udi", "7"], "unknown flag --proxy-udi, did you mean --proxy-uid?"),
    ] {
        let arguments: Vec<_> = CHART_PORTS.split(' ').chain(arguments.iter().copied()).collect();
        let text = refusal(&namespace, &arguments);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    for (arguments, words) in [
        (&["verfiy"][..], "unknown subcommand \"verfiy\", did you mean verify?"),
        (&["-p", "-5", "-o", "1"], "--incoming-proxy-port \"-5\" is not a valid TCP port (1-65535)"),
        (&["verify", "-o", "-5", "-p", "1"], "--outgoing-proxy-port"),
        (&["help", "verfiy"], "\"verfiy\" is invalid: use check, show, explain, verify, uninstall"),
        (&["completions"], "the name of a shell"),
        (&["completions", "cmd.exe"], "\"cmd.exe\" is invalid: use bash"),
    ] {
        let text = refusal(&namespace, arguments);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}
