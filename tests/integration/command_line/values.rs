//! The flags' values: Linkerd's chart, Go's ways of writing them, variables of the environment, and mistakes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use lab::network::Namespace;

use super::CHART_PORTS;
use crate::support::{PORTS, Run, chart, chart_in, install, saved};

#[test]
fn bad_input_is_one_line_that_names_the_flag_and_the_value() {
    let namespace = Namespace::new();
    let without_ports = [
        ("", &["--incoming-proxy-port and --outgoing-proxy-port are required"][..]),
        ("-p 4143", &["--outgoing-proxy-port is required"]),
        ("-p 70000 -o 4140", &["--incoming-proxy-port \"70000\" is not a valid TCP port (1-65535)"]),
        ("-p 4143 -o 0", &["--outgoing-proxy-port \"0\" is not"]),
        ("-p -1 -o 4140", &["--incoming-proxy-port \"-1\" is not"]),
        ("-p abc -o 4140", &["--incoming-proxy-port", "abc"]),
        ("-p 4143 -o", &["--outgoing-proxy-port", "value"]),
    ];
    let with_ports = [
        ("--inbound-ports-to-ignore 70000", &["--inbound-ports-to-ignore", "70000"][..]),
        (
            "--inbound-ports-to-ignore 9-3",
            &["--inbound-ports-to-ignore", "\"9-3\": upper-bound must be greater than or equal to lower-bound"],
        ),
        ("--outbound-ports-to-ignore 80,abc", &["--outbound-ports-to-ignore", "abc"]),
        ("--outbound-ports-to-ignore 1-2-3", &["ranges expected as <lower>-<upper>"]),
        ("-r 0", &["--ports-to-redirect", "\"0\""]),
        ("-r 80-90", &["--ports-to-redirect", "80-90"]),
        ("--subnets-to-ignore 10.0.0.0/33", &["subnets-to-ignore", "10.0.0.0/33 is not a valid CIDR address"]),
        (
            "--outbound-subnets-to-redirect fd00::/8 --ipv6=false",
            &["--outbound-subnets-to-redirect names IPv6 subnets only"],
        ),
        (
            "--inbound-interfaces-to-ignore net1,net+",
            &["--inbound-interfaces-to-ignore \"net+\" is not an interface's name", "without wildcards"],
        ),
        (
            "--outbound-interfaces-to-ignore 1234567890abcdef",
            &["--outbound-interfaces-to-ignore \"1234567890abcdef\" is not", "at most 15"],
        ),
        ("--outbound-ports-to-redirect ,", &["--outbound-ports-to-redirect \",\" names nothing"]),
        ("--outbound-subnets-to-ignore 0.0.0.0", &["0.0.0.0 is not a valid CIDR address"]),
        ("-u 4294967295", &["--proxy-uid", "4294967295"]),
        ("-g root", &["--proxy-gid", "root"]),
        (
            "--iptables-mode ebtables",
            &["--iptables-mode must be one of legacy, nft, native, auto, plain, not", "ebtables"],
        ),
        ("--ipv6=maybe", &["--ipv6", "maybe"]),
        ("-w=2", &["--use-wait-flag", "2"]),
        ("--timeout-close-wait-secs -5", &["--timeout-close-wait-secs", "-5"]),
        ("--log-level loud", &["--log-level", "loud"]),
        ("--firewall-bin-path /bin/false", &["--firewall-bin-path", "/bin/false"]),
        ("--incoming-port 1", &["--incoming-port", "--incoming-proxy-port"]),
        ("extra", &["extra"]),
        ("--inbound-ports-to-ignore 4190, 4191", &["unexpected argument \"4191\""]),
        ("-r ,", &["--ports-to-redirect \",\" names nothing: name at least one"]),
        ("-r 80 --ports-to-redirect=", &["--ports-to-redirect \"\" names nothing: name at least one"]),
        ("--inbound-ports-to-ignore 80,-5-7", &["\"-5-7\""]),
        ("--subnets-to-ignore 010.0.0.0/8", &["010.0.0.0/8 is not a valid CIDR address"]),
        (
            "--subnets-to-ignore ::ffff:10.0.0.0/104",
            &["::ffff:10.0.0.0/104 is an IPv4-mapped subnet", "write the IPv4 subnet itself, 10.0.0.0/8"],
        ),
        ("--simulate=ipv5", &["--simulate must be one of ipv4, ipv6, true, false, not \"ipv5\""]),
    ];
    let without_ports = without_ports.map(|(arguments, words)| (arguments.to_owned(), words));
    let with_ports = with_ports.map(|(arguments, words)| (format!("{PORTS} {arguments}"), words));
    for (arguments, words) in without_ports.into_iter().chain(with_ports) {
        let names_mode = arguments.contains("iptables-mode") || arguments.contains("firewall");
        let arguments = if names_mode { arguments } else { format!("--iptables-mode nft {arguments}") };
        let output = Run::new(&arguments).output(&namespace);
        let stderr = output.stderr();
        assert_eq!(output.code(), Some(2), "{arguments}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments}: {stderr}");
        assert_eq!(output.stdout(), "", "{arguments}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} in {stderr:?}");
        }
    }
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn the_charts_arguments_run_unchanged() {
    let namespace = Namespace::new();
    let names = "--firewall-bin-path iptables-nft --firewall-save-bin-path iptables-nft-save";
    let log = install(&namespace, &format!("{names} {}", chart()));
    assert!(log.contains("in nft mode for IPv4 and IPv6"), "{log}");
    let others = "--ipv6=false --timeout-close-wait-secs 3600 --log-format json --log-level info --proxy-gid 2102";
    install(&namespace, &format!("{} {others}", chart_in("nft")));
}

#[test]
fn every_way_of_writing_the_same_gives_the_same() {
    let plain = Namespace::new();
    install(
        &plain,
        "--iptables-mode nft -p 4143 -o 4140 -u 2102 -r 80,443 --inbound-ports-to-ignore 25,26-27 \
         --outbound-ports-to-ignore 99 --inbound-subnets-to-ignore 10.0.0.0/8,fd00::/8",
    );
    let want = saved(&plain, "nft");
    // Arguments are separated by bars here, for some have spaces.
    for line in [
        "--iptables-mode=nft|--incoming-proxy-port=4143|--outgoing-proxy-port=4140|--proxy-uid=2102|--proxy-gid=-1|\
         --ports-to-redirect= 80 , ,443,|--inbound-ports-to-ignore| 25 ,, 26-27 |--outbound-ports-to-ignore|,99,|\
         --subnets-to-ignore|10.0.0.0/8, fd00::/8|--ipv6",
        "-p4143|-o=4140|-u|+2102|-g|0|-r80|-r|443|--inbound-ports-to-ignore=25, 26-27|--outbound-ports-to-ignore=99-99|\
         --subnets-to-ignore=10.0.0.0/8|--inbound-subnets-to-ignore=fd00::/8|--ipv6=1|-w|--iptables-mode=nft",
        "--ipv6=false|-p|1|-o|2|-p|4143|-o|+4140|-wu|2102|--ipv6=TRUE|-r|80,443|--inbound-ports-to-ignore|25,26-27|\
         --outbound-ports-to-ignore|99|--subnets-to-ignore|10.0.0.0/8,fd00::/8|--iptables-mode|legacy|--iptables-mode|nft",
    ] {
        let arguments: Vec<&str> = line.split('|').collect();
        let namespace = Namespace::new();
        Run::new("").arguments(&arguments).output(&namespace).success();
        assert_eq!(saved(&namespace, "nft"), want, "{arguments:?}");
    }
}

#[test]
fn netns_is_where_everything_happens() {
    let (here, there) = (Namespace::new(), Namespace::new());
    let path = there.path();
    install(
        &here,
        &format!("--iptables-mode nft -p 4143 -o 4140 --timeout-close-wait-secs 1234 --netns {}", path.display()),
    );
    assert_eq!(here.sh("nft list ruleset"), "");
    assert!(there.sh("iptables-nft-save -t nat").contains("PROXY_INIT_OUTPUT"));
    let timeout = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    assert_eq!(there.sh(timeout).trim(), "1234");
    assert_ne!(here.sh(timeout).trim(), "1234");
    // The rules stay, but not the timeout.
    let again =
        format!("--iptables-mode nft -p 4143 -o 4140 --timeout-close-wait-secs 1235 --netns {}", path.display());
    let log = install(&here, &again);
    assert!(log.contains("no rule was changed") && !log.contains("nothing was changed"), "{log}");
    assert_eq!(there.sh(timeout).trim(), "1235");
}

#[test]
fn a_timeout_that_cannot_be_written_stops_everything() {
    let namespace = Namespace::new();
    let line = Run::new("--iptables-mode nft -p 4143 -o 4140 --timeout-close-wait-secs 9")
        .after_mounting("mount -o bind,ro /proc/sys /proc/sys")
        .output(&namespace)
        .last_line();
    assert!(line.contains("EROFS") && line.contains("privileged"), "{line}");
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn a_failed_install_takes_the_timeout_back() {
    let namespace = Namespace::new();
    let file = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let before = namespace.sh(file);
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat OUTPUT { type filter hook output priority 0 ; }");
    Run::new("--iptables-mode nft -p 4143 -o 4140 --timeout-close-wait-secs 9").output(&namespace).last_line();
    assert_eq!(namespace.sh(file), before);
}

/// `--netns "$POD"` on a node, where the variable is not set.
#[test]
fn an_empty_netns_is_not_the_current_one() {
    let namespace = Namespace::new();
    for line in [
        "detect",
        "show",
        "uninstall",
        "explain outbound --to 127.0.0.1:80",
        &format!("verify {PORTS}"),
        &format!("{PORTS} --iptables-mode nft"),
    ] {
        let by_two = Run::new(line).arguments(["--netns", ""]).output(&namespace);
        let by_one = Run::new(&format!("{line} --netns=")).output(&namespace);
        for finished in [by_two, by_one] {
            assert_eq!(finished.code(), Some(2), "{line}: {}", finished.said());
            let stderr = finished.stderr();
            assert!(stderr.starts_with("error: --netns is empty"), "{line}: {stderr}");
        }
    }
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn a_value_that_is_not_text_names_its_flag_and_cannot_steer_a_terminal() {
    let namespace = Namespace::new();
    for (joined, flag) in [(false, "--proxy-uid"), (true, "--inbound-ports-to-ignore")] {
        let bytes = OsStr::from_bytes(b"\xff\x1b[31m\n7");
        let arguments = if joined {
            let mut argument = OsString::from(format!("{flag}="));
            argument.push(bytes);
            vec![argument]
        } else {
            vec![flag.into(), bytes.to_owned()]
        };
        let finished = Run::new(CHART_PORTS).arguments(arguments).output(&namespace);
        let text = finished.stderr();
        assert_eq!(finished.code(), Some(2), "{text}");
        assert!(text.contains(flag) && text.contains("is not UTF-8 text"), "{text}");
        assert!(text.contains("\\u{1b}[31m\\n7") && text.lines().count() == 1, "{text}");
    }
    // A path need not be text.
    let finished = Run::new("detect --netns").arguments([OsStr::from_bytes(b"/run/\xff")]).output(&namespace);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr().contains("ENOENT"), "{finished:?}");
    let path = "/run/\u{1b}]0;title\u{7}\nsecond line";
    let finished = Run::new("verify -p 1 -o 2 --netns").arguments([path]).output(&namespace);
    let text = finished.stderr();
    assert_eq!(finished.code(), Some(1), "{text}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}\\nsecond line"), "{text}");
    assert_eq!(text.trim_end().chars().filter(|it| it.is_control()).count(), 0, "{text}");
}

#[test]
fn linkerds_word_for_legacy_mode_is_understood() {
    for (environment, arguments) in [("", "--iptables-mode iptables"), ("iptables", "")] {
        let namespace = Namespace::new();
        Run::new(&format!("{CHART_PORTS} {arguments}"))
            .environment("IPTABLES_MODE", environment)
            .output(&namespace)
            .success();
        assert!(saved(&namespace, "legacy").contains("-j PROXY_INIT_OUTPUT"));
    }
}

#[test]
fn a_flag_goes_before_its_variable_and_a_bad_value_is_refused_with_its_name() {
    const VARIABLE: &str = "PROXY_INIT_OUTBOUND_SUBNETS_TO_IGNORE";
    let namespace = Namespace::new();
    let run = |arguments: &str, value: &str| {
        Run::new(&format!("--iptables-mode nft {CHART_PORTS} {arguments}"))
            .environment(VARIABLE, value)
            .output(&namespace)
    };
    let output_rules = || -> Vec<String> {
        let saved = namespace.sh("iptables-nft-save -t nat");
        saved.lines().filter(|line| line.contains("-d ")).map(ToOwned::to_owned).collect()
    };
    run("", "10.0.0.0/8").success();
    let rule =
        "-A PROXY_INIT_OUTPUT -d 10.0.0.0/8 -m comment --comment \"proxy-init/ignore-subnet-10.0.0.0/8\" -j RETURN";
    assert_eq!(output_rules(), [rule]);
    let verified = Run::new(&format!("verify {CHART_PORTS}")).environment(VARIABLE, "10.0.0.0/8").output(&namespace);
    assert!(verified.success().starts_with("in place"));

    run("--outbound-subnets-to-ignore 192.0.2.0/24", "10.0.0.0/8").success();
    assert_eq!(output_rules(), [rule.replace("10.0.0.0/8", "192.0.2.0/24")]);

    let before = saved(&namespace, "nft");
    let finished = run("", "10.0.0.0/33");
    assert_eq!(finished.code(), Some(2));
    assert_eq!(
        finished.stderr(),
        format!(
            "error: {VARIABLE} in the environment 10.0.0.0/33 is not a valid CIDR address (such as 10.0.0.0/8 or fd00::/8)\n"
        )
    );
    assert_eq!(saved(&namespace, "nft"), before);
    // A service's variables, which kubelet makes, are nobody's.
    let service = Run::new(&format!("--iptables-mode nft {CHART_PORTS}"));
    let service =
        service.environment("PROXY_INIT_PORT", "tcp://10.0.0.1:80").environment("PROXY_INIT_SERVICE_HOST", "x");
    service.output(&namespace).success();
}

#[test]
fn what_is_probably_a_mistake_is_one_warning_each() {
    let warnings = |arguments: &str| -> Vec<String> {
        let log = install(&Namespace::new(), &format!("--iptables-mode nft {arguments}"));
        let lines = log.lines().filter(|line| line.contains("level=warning"));
        lines.map(ToOwned::to_owned).collect()
    };
    assert_eq!(warnings(CHART_PORTS), [""; 0]);
    assert_eq!(warnings(&format!("{CHART_PORTS} --subnets-to-ignore fd00::/8")), [""; 0]);
    for (arguments, words) in [
        ("-p 4143 -o 4140 -u 0 -g -1", "proxy-uid and proxy-gid are 0 or not given"),
        ("-p 4143 -o 4143 -g 7", "incoming-proxy-port and outgoing-proxy-port are both 4143"),
        (
            "-p 4143 -o 4140 -u 7 --subnets-to-ignore 0.0.0.0/0",
            "inbound-subnets-to-ignore 0.0.0.0/0: inbound IPv6 connections bypass the proxy too, as with linkerd-init",
        ),
        (
            "-p 4143 -o 4140 -u 7 --ipv6=false --subnets-to-ignore 10.0.0.0/8 --outbound-subnets-to-ignore fd00::/8",
            "subnet fd00::/8 has no effect: with ipv6=false there are no rules for IPv6",
        ),
    ] {
        let lines = warnings(arguments);
        assert_eq!(lines.len(), 1, "{arguments}: {lines:?}");
        assert!(lines[0].contains(words), "{lines:?}");
    }
}
