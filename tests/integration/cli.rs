//! The command line as users write it: Linkerd's chart, Go's ways, and mistakes.

use lab::network::Namespace;

use crate::support::{PORTS, Run, chart, chart_in, install, saved};

#[test]
fn bad_input_is_one_line_that_names_the_flag_and_the_value() {
    let namespace = Namespace::new();
    for (arguments, words) in [
        ("", &["--incoming-proxy-port is required"][..]),
        ("-p 4143", &["--outgoing-proxy-port is required"]),
        ("-p 70000 -o 4140", &["--incoming-proxy-port \"70000\" is not a valid TCP port (1-65535)"]),
        ("-p 4143 -o 0", &["--outgoing-proxy-port \"0\" is not"]),
        ("-p -1 -o 4140", &["--incoming-proxy-port \"-1\" is not"]),
        ("-p abc -o 4140", &["--incoming-proxy-port", "abc"]),
        ("-p 4143 -o 4140 --inbound-ports-to-ignore 70000", &["--inbound-ports-to-ignore", "70000"]),
        (
            "-p 4143 -o 4140 --inbound-ports-to-ignore 9-3",
            &["--inbound-ports-to-ignore", "\"9-3\": upper-bound must be greater than or equal to lower-bound"],
        ),
        ("-p 4143 -o 4140 --outbound-ports-to-ignore 80,abc", &["--outbound-ports-to-ignore", "abc"]),
        ("-p 4143 -o 4140 --outbound-ports-to-ignore 1-2-3", &["ranges expected as <lower>-<upper>"]),
        ("-p 4143 -o 4140 -r 0", &["--ports-to-redirect", "\"0\""]),
        ("-p 4143 -o 4140 -r 80-90", &["--ports-to-redirect", "80-90"]),
        (
            "-p 4143 -o 4140 --subnets-to-ignore 10.0.0.0/33",
            &["subnets-to-ignore", "10.0.0.0/33 is not a valid CIDR address"],
        ),
        (
            "-p 4143 -o 4140 --outbound-subnets-to-redirect fd00::/8 --ipv6=false",
            &["--outbound-subnets-to-redirect names IPv6 subnets only"],
        ),
        (
            "-p 4143 -o 4140 --inbound-interfaces-to-ignore net1,net+",
            &["--inbound-interfaces-to-ignore \"net+\" is not an interface's name", "without wildcards"],
        ),
        (
            "-p 4143 -o 4140 --outbound-interfaces-to-ignore 1234567890abcdef",
            &["--outbound-interfaces-to-ignore \"1234567890abcdef\" is not", "at most 15"],
        ),
        ("-p 4143 -o 4140 --outbound-ports-to-redirect ,", &["--outbound-ports-to-redirect \",\" names nothing"]),
        ("-p 4143 -o 4140 --outbound-subnets-to-ignore 0.0.0.0", &["0.0.0.0 is not a valid CIDR address"]),
        ("-p 4143 -o 4140 -u 4294967295", &["--proxy-uid", "4294967295"]),
        ("-p 4143 -o 4140 -g root", &["--proxy-gid", "root"]),
        (
            "-p 4143 -o 4140 --iptables-mode ebtables",
            &["--iptables-mode must be one of legacy, nft, native, auto, plain, not", "ebtables"],
        ),
        ("-p 4143 -o 4140 --ipv6=maybe", &["--ipv6", "maybe"]),
        ("-p 4143 -o 4140 -w=2", &["--use-wait-flag", "2"]),
        ("-p 4143 -o 4140 --timeout-close-wait-secs -5", &["--timeout-close-wait-secs", "-5"]),
        ("-p 4143 -o 4140 --log-level loud", &["--log-level", "loud"]),
        ("-p 4143 -o 4140 --firewall-bin-path /bin/false", &["--firewall-bin-path", "/bin/false"]),
        ("-p 4143 -o 4140 --incoming-port 1", &["--incoming-port", "--incoming-proxy-port"]),
        ("-p 4143 -o", &["--outgoing-proxy-port", "value"]),
        ("-p 4143 -o 4140 extra", &["extra"]),
    ] {
        let arguments = if arguments.contains("iptables-mode") || arguments.contains("firewall") {
            arguments.to_owned()
        } else {
            format!("--iptables-mode nft {arguments}")
        };
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
    for arguments in [
        &[
            "--iptables-mode=nft",
            "--incoming-proxy-port=4143",
            "--outgoing-proxy-port=4140",
            "--proxy-uid=2102",
            "--proxy-gid=-1",
            "--ports-to-redirect= 80 , ,443,",
            "--inbound-ports-to-ignore",
            " 25 ,, 26-27 ",
            "--outbound-ports-to-ignore",
            ",99,",
            "--subnets-to-ignore",
            "10.0.0.0/8, fd00::/8",
            "--ipv6",
        ][..],
        &[
            "-p4143",
            "-o=4140",
            "-u",
            "+2102",
            "-g",
            "0",
            "-r80",
            "-r",
            "443",
            "--inbound-ports-to-ignore=25, 26-27",
            "--outbound-ports-to-ignore=99-99",
            "--subnets-to-ignore=10.0.0.0/8",
            "--inbound-subnets-to-ignore=fd00::/8",
            "--ipv6=1",
            "-w",
            "--iptables-mode=nft",
        ],
        &[
            "--ipv6=false",
            "-p",
            "1",
            "-o",
            "2",
            "-p",
            "4143",
            "-o",
            "+4140",
            "-wu",
            "2102",
            "--ipv6=TRUE",
            "-r",
            "80,443",
            "--inbound-ports-to-ignore",
            "25,26-27",
            "--outbound-ports-to-ignore",
            "99",
            "--subnets-to-ignore",
            "10.0.0.0/8,fd00::/8",
            "--iptables-mode",
            "legacy",
            "--iptables-mode",
            "nft",
        ],
    ] {
        let namespace = Namespace::new();
        Run::new("").arguments(arguments).output(&namespace).success();
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

    for (path, word) in [("/nonexistent", "ENOENT"), ("/etc/passwd", "EINVAL"), ("/proc/self/ns/mnt", "EINVAL")] {
        let line = Run::new(&format!("--iptables-mode nft -p 4143 -o 4140 --netns {path}")).output(&here).last_line();
        assert!(line.contains(word) && line.contains(path) && line.contains("/var/run/netns"), "{line}");
    }
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

#[test]
fn the_log_is_what_was_done() {
    let plain = install(&Namespace::new(), &chart_in("nft"));
    for line in plain.lines() {
        assert!(line.starts_with("time=\"20") && line.contains("Z\" level=info msg=\""), "{line}");
    }
    let rule = "iptables-nft -t nat -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment \
                proxy-init/ignore-proxy-user-id -j RETURN";
    assert!(plain.contains(&format!("msg=\"{rule}\"")), "{plain}");
    assert!(plain.contains(&format!("msg=\"ip6tables{}\"", rule.strip_prefix("iptables").unwrap())));
    let summary = plain.lines().last().unwrap();
    assert!(summary.contains("installed 16 rules in nft mode for IPv4 and IPv6 in "), "{summary}");

    let json = install(&Namespace::new(), &format!("{} --log-format json", chart_in("nft")));
    for line in json.lines() {
        assert!(line.starts_with("{\"level\":\"info\",\"msg\":\"") && line.ends_with("Z\"}"), "{line}");
    }
    let other = install(&Namespace::new(), &format!("{} --log-format text", chart_in("nft")));
    let mut lines = other.lines();
    let warning = "level=warning msg=\"log format \\\"text\\\" is neither plain nor json: this log is plain\"";
    assert!(lines.next().unwrap().ends_with(warning), "{other}");
    assert_eq!(lines.count(), plain.lines().count());
    let quiet = install(&Namespace::new(), &format!("{} --log-level error", chart_in("nft")));
    assert_eq!(quiet, "");
}

#[test]
fn help_and_version_tell() {
    let stdout = |line: &str| install(&Namespace::new(), line);
    let help = stdout("--help");
    for flag in [
        "--incoming-proxy-port",
        "--outgoing-proxy-port",
        "--proxy-uid",
        "--proxy-gid",
        "--ports-to-redirect",
        "--inbound-ports-to-ignore",
        "--outbound-ports-to-ignore",
        "--subnets-to-ignore",
        "--simulate",
        "--netns",
        "--use-wait-flag",
        "--timeout-close-wait-secs",
        "--log-format",
        "--log-level",
        "--ipv6",
        "--iptables-mode",
        "--firewall-bin-path",
        "--firewall-save-bin-path",
        "Example:",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    let version = stdout("--version");
    assert!(version.contains("libnftnl 1.") && version.contains("libmnl 1."), "{version}");
}

#[test]
fn the_man_page_and_completions_know_the_flags() {
    let stdout = |line: &str| install(&Namespace::new(), line);
    let page = stdout("man");
    // Name, section, date, source and manual; a page without a date says so.
    let title = concat!(".TH proxy-init 8 \"\" \"proxy-init ", env!("CARGO_PKG_VERSION"), "\" \"proxy-init manual\"\n");
    assert!(page.contains(title) && page.contains("inbound\\-ports\\-to\\-ignore"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&format!("completions {shell}")).contains("outbound-subnets-to-ignore"), "{shell}");
    }
    let output = Run::new("completions cmd.exe").output(&Namespace::new());
    assert_eq!(output.code(), Some(2));
}

/// A question without an answer is an error; an installation's log is not an answer.
#[test]
fn an_answer_that_cannot_be_printed_is_an_error() {
    let namespace = Namespace::new();
    namespace.sh("ip link set lo up");
    install(&namespace, &format!("{PORTS} --iptables-mode nft"));
    for (redirection, words) in [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")] {
        let run = |line: &str| {
            let script = format!("exec \"$@\" {redirection}");
            Run::new(line).under(["sh", "-c", &script, "sh"]).output(&namespace)
        };
        for line in [
            "show",
            "show --output json",
            "detect",
            "explain outbound --to 127.0.0.1:80",
            &format!("verify {PORTS}"),
            &format!("{PORTS} --simulate"),
            "--help",
        ] {
            let finished = run(line);
            assert_eq!(finished.code(), Some(1), "{line} {redirection}: {}", finished.stderr());
            let want = format!("error: cannot write to stdout: {words}");
            assert!(finished.stderr().starts_with(&want), "{line} {redirection}: {}", finished.stderr());
        }
        run(&format!("{PORTS} --iptables-mode nft")).success();
    }
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
