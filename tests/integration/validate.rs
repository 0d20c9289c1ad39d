//! validate: real connections, and what it says of those that go astray.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::network::{DISTANT, Lab, NEIGHBOUR, Namespace, ROOT, Reached, Server, connect};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Finished, Folder, PROXY_INIT, Run, chart_in, install};

const MODES: [&str; 3] = ["nft", "native", "legacy"];

/// The arguments of Linkerd's chart (charts/partials/templates/_network-validator.tpl), for IPv4 alone and with IPv6.
const CHART: [&str; 2] = [
    "--log-format plain --log-level debug --connect-addr 1.1.1.1:20001 --listen-addr 0.0.0.0:4140 --timeout 10s",
    "--log-format plain --log-level debug --connect-addr [fd00::1]:20001 --listen-addr [::]:4140 --timeout 10s",
];

/// A connection that finds no answer takes as long as this.
const SHORT: &str = "--timeout 300ms";
/// For those that are answered, however loaded the machine is; the last one given counts.
const PATIENT: &str = "--timeout 2m";

/// A lab that has made its first connection: over IPv6, that one can take longer than [`SHORT`].
fn lab() -> Lab {
    let lab = Lab::new();
    for neighbour in NEIGHBOUR {
        assert_eq!(connect(&lab.pod, ROOT, SocketAddr::new(neighbour, 9)), Reached::Refused);
    }
    lab
}

/// Runs it as root, with a short timeout.
fn validate(namespace: &Namespace, line: &str) -> Finished {
    Run::new(&format!("validate {SHORT} {line}")).output(namespace)
}

/// It must have failed, with these words in the last line of the log, and said so once.
fn assert_fails(finished: &Finished, words: &[&str]) {
    let said = finished.said();
    assert_eq!(finished.code(), Some(95), "{said}");
    let log = finished.stdout();
    let last = log.lines().last().unwrap().replace("\\\"", "\"");
    for words in words {
        assert!(last.contains("level=error") && last.contains(words), "{words} in {said}");
    }
    assert_eq!(finished.stderr(), "");
    assert!(!said.contains("Validated"), "{said}");
}

#[test]
fn the_charts_arguments_validate_each_mode_as_any_user_but_the_proxys() {
    for mode in MODES {
        let lab = Lab::new();
        install(&lab.pod, &chart_in(mode));
        for arguments in CHART {
            let run = Run::new(&format!("validate {arguments}"));
            for run in [run.clone(), run.clone().nobody(&[]), run.in_pod(&[])] {
                let finished = run.output(&lab.pod);
                assert_eq!(finished.code(), Some(0), "{mode} {arguments}: {}", finished.said());
                let log = finished.stdout();
                assert!(log.lines().last().unwrap().ends_with("level=info msg=\"Validated\""), "{log}");
                assert!(log.contains("Listening for connections on ") && log.contains("level=debug"), "{log}");
                assert_eq!(finished.stderr(), "");
            }
            let as_proxy = Run::new(&format!("validate {arguments} {SHORT}"))
                .under(["setpriv", "--reuid=2102", "--clear-groups", "--inh-caps=+net_admin"])
                .under(["--ambient-caps=+net_admin"])
                .output(&lab.pod);
            assert_fails(
                &as_proxy,
                &["it bypasses the proxy, by rule 1 of chain PROXY_INIT_OUTPUT", "ignore-proxy-user-id"],
            );
        }
        let defaults = Run::new("validate").output(&lab.pod);
        assert_eq!(defaults.code(), Some(0), "{}", defaults.said());
        assert!(defaults.stdout().contains("on 0.0.0.0:4140") && defaults.stdout().contains("to 192.0.2.2:1404"));
        assert!(!defaults.stdout().contains("level=debug"));
    }
}

#[test]
fn named_as_the_validator_it_takes_the_validators_flags() {
    let folder = Folder::new("validator");
    let link = folder.join("linkerd2-network-validator");
    symlink(PROXY_INIT.as_str(), &link).unwrap();
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let run = |line: &str, environment: &[(&str, &str)]| {
        let mut command = Command::new(&link);
        command.args(line.split_whitespace()).envs(environment.iter().copied());
        Finished(lab.pod.output(&mut command))
    };
    for arguments in CHART {
        assert!(run(arguments, &[]).success().contains("Validated"));
    }
    assert!(run("--help", &[]).success().contains("--connect-addr <ADDRESS>"));
    assert!(run("--version", &[]).success().contains(env!("CARGO_PKG_VERSION")));
    let ignored = run(&format!("--connect-addr 192.0.2.2:4567 {SHORT}"), &[]);
    assert_fails(&ignored, &["it bypasses the proxy, by rule ", "ignore-port-4567,4568"]);

    let json = run("", &[("LINKERD_NETWORK_VALIDATOR_LOG_FORMAT", "json")]).success();
    for line in json.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["level"], "info");
    }
    assert_eq!(json.lines().count(), 3, "{json}");
    let level = ("LINKERD_NETWORK_VALIDATOR_LOG_LEVEL", "debug");
    assert!(run("", &[level]).success().contains("level=debug"));
    assert_eq!(run("--log-level error", &[level]).success(), "", "the flag counts");
    assert!(
        run("--log-level linkerd=debug,warn", &[]).success().contains("Validated"),
        "a filter is no reason to fail"
    );
    for (line, words) in [
        ("--timeout 120", "--timeout \"120\" is not a duration"),
        ("--listen-addr 4140", "--listen-addr \"4140\" is not an IP address with a port"),
        ("--log-format xml", "--log-format must be one of plain, json, not \"xml\""),
        ("", "LINKERD_NETWORK_VALIDATOR_LOG_FORMAT in the environment must be one of plain, json, not \"yaml\""),
        ("--netns x", "validate does not take --netns"),
        ("x", "unexpected argument \"x\""),
    ] {
        let refused = run(line, &[("LINKERD_NETWORK_VALIDATOR_LOG_FORMAT", "yaml")]);
        assert_eq!(refused.code(), Some(2), "{line}: {}", refused.said());
        assert!(refused.stderr().contains(words), "{line}: {}", refused.said());
    }
}

#[test]
fn it_says_why_a_connection_went_astray() {
    for mode in MODES {
        let lab = lab();
        for to in ["", "--connect-addr [2001:db8::2]:1404 --listen-addr [::]:4140"] {
            assert_fails(&validate(&lab.pod, to), &["no rule sends it to the proxy"]);
        }
        assert!(lab.pod.sh("nft list ruleset").is_empty(), "looking must not make tables");
        let unseen = Run::new(&format!("validate {SHORT}")).nobody(&[]).output(&lab.pod);
        assert_fails(
            &unseen,
            &[
                "no answer from 192.0.2.2:1404 within 300ms",
                "it was not redirected to this program: most likely, neither linkerd-cni nor proxy-init has set up this pod",
                "(the rules cannot be seen: EPERM)",
            ],
        );

        install(&lab.pod, &format!("{} --outbound-ports-to-ignore 80,1400-1410", chart_in(mode)));
        for to in ["", "--connect-addr [2001:db8::2]:1404 --listen-addr [::]:4140"] {
            assert_fails(
                &validate(&lab.pod, to),
                &["it bypasses the proxy, by rule ", "proxy-init/ignore-port-4567,4568,80,1400:1410"],
            );
        }
        let table = match mode {
            "nft" => "PROXY_INIT_OUTPUT in ip nat, nft mode: ",
            "native" => "PROXY_INIT_OUTPUT in inet proxy-init, native mode: ",
            _ => "PROXY_INIT_OUTPUT in legacy ip nat, legacy mode: ",
        };
        assert_fails(
            &validate(&lab.pod, "--connect-addr [::ffff:192.0.2.2]:1404"),
            &["it bypasses the proxy, by rule ", table],
        );
        // The pod's own address is reached over the loopback interface.
        assert_fails(
            &validate(&lab.pod, "--connect-addr 10.77.0.2:9"),
            &[
                "the connection to 10.77.0.2:9 failed (ECONNREFUSED",
                "it bypasses the proxy, by rule ",
                "ignore-loopback",
            ],
        );
        assert_fails(
            &validate(&lab.pod, "--connect-addr [2001:db8::2]:9"),
            &["by the rules it goes to the proxy, port 4140", "where --listen-addr takes IPv4 alone: use [::]"],
        );
        assert_eq!(validate(&lab.pod, "--connect-addr 192.0.2.2:9").code(), Some(0));
    }
}

#[test]
fn it_names_the_earlier_rule_that_takes_the_connection() {
    for mode in MODES {
        for (target, found, said) in [
            ("accept", "no answer from 192.0.2.2:1404", "it bypasses the proxy, by rule 1 "),
            (
                "redirect to :9999",
                "the connection to 192.0.2.2:1404 failed (ECONNREFUSED",
                "it goes elsewhere: redirected to port 9999 of this host, by rule 1 ",
            ),
        ] {
            let lab = lab();
            install(&lab.pod, &chart_in(mode));
            assert_eq!(validate(&lab.pod, "").code(), Some(0));
            let iptables = match target {
                "accept" => "-I OUTPUT -p tcp --dport 1404 -j ACCEPT",
                _ => "-I OUTPUT -p tcp --dport 1404 -j REDIRECT --to-ports 9999",
            };
            let (rule, place) = match mode {
                "native" => (
                    format!("nft insert rule inet proxy-init OUTPUT tcp dport 1404 {target}"),
                    "of chain OUTPUT in inet proxy-init",
                ),
                "nft" => (format!("iptables-nft -t nat {iptables}"), "of chain OUTPUT in ip nat"),
                _ => (format!("iptables-legacy -t nat {iptables}"), "of chain OUTPUT in legacy ip nat"),
            };
            lab.pod.sh(&rule);
            assert_fails(&validate(&lab.pod, ""), &[found, said, "1404 ", place]);
            let other = "--connect-addr [2001:db8::2]:1404 --listen-addr [::]:4140";
            let code = validate(&lab.pod, other).code();
            // native mode's table has both families.
            assert_eq!(code, Some(if mode == "native" { 95 } else { 0 }));
        }
        // Another program's table, hooked earlier.
        let lab = lab();
        install(&lab.pod, &chart_in(mode));
        lab.pod.sh("nft add table inet other");
        lab.pod.sh("nft add chain inet other out { type nat hook output priority -150 ; }");
        lab.pod.sh("nft add rule inet other out meta skuid 0 meta nfproto ipv4 tcp dport 1404 redirect to :9999");
        assert_fails(
            &validate(&lab.pod, ""),
            &["it goes elsewhere: redirected to port 9999 of this host, by rule 1 of chain out in inet other: "],
        );
        assert_eq!(Run::new("validate").nobody(&[]).output(&lab.pod).code(), Some(0), "{mode}");
    }
}

#[test]
fn only_its_own_answer_counts() {
    let lab = lab();
    let _outside = Server::start(&lab.outside, &[1404]);
    for (family, listen) in [(0, "0.0.0.0:4140"), (1, "[::]:4140")] {
        let to = SocketAddr::new(DISTANT[family], 1404);
        assert_fails(
            &validate(&lab.pod, &format!("--connect-addr {to} --listen-addr {listen} {PATIENT}")),
            &[&format!("another program answered the connection to {to}: "), "no rule sends it to the proxy"],
        );
    }
    install(&lab.pod, &chart_in("nft"));
    let right = format!("--connect-addr {}:1404 {PATIENT}", DISTANT[0]);
    assert_eq!(validate(&lab.pod, &right).code(), Some(0), "the rules keep it from the server");

    // The proxy has started already.
    let _proxy = Server::start(&lab.pod, &[4140]);
    assert_fails(
        &validate(&lab.pod, ""),
        &["cannot listen on 0.0.0.0:4140 (EADDRINUSE", "another program listens there"],
    );
    assert_fails(
        &validate(&lab.pod, &format!("--listen-addr 0.0.0.0:4141 {PATIENT}")),
        &[
            "another program answered the connection to 192.0.2.2:1404: by the rules it goes to the proxy, port 4140",
            ", where --listen-addr is not",
        ],
    );
}

#[test]
fn an_answer_that_never_comes_or_ends_early_is_none() {
    let lab = Lab::new();
    let silent = lab.outside.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 1404)).unwrap());
    let to = format!("--connect-addr {}:1404", DISTANT[0]);
    assert_fails(&validate(&lab.pod, &to), &["no answer from 192.0.2.1:1404 within 300ms"]);
    // The run before may have made a connection too, or it was given up before that.
    std::thread::spawn(move || {
        for connection in silent.incoming() {
            drop(connection);
        }
    });
    assert_fails(
        &validate(&lab.pod, &format!("{to} {PATIENT}")),
        &["another program answered the connection to 192.0.2.1:1404: "],
    );
}

#[test]
fn without_a_route_it_says_so() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    for to in ["192.0.2.2:1404", "[fd00::1]:20001"] {
        assert_fails(
            &validate(&namespace, &format!("--connect-addr {to}")),
            &["no route to it, or no address of its family", &format!("the connection to {to} failed (E")],
        );
    }
}

#[test]
fn the_timeout_is_kept() {
    let lab = Lab::new();
    // The default.
    const MOST: u128 = 10_000;
    for (timeout, least) in [("0", 0), ("700ms", 700), ("1200ms", 1_200)] {
        let start = Instant::now();
        let finished = validate(&lab.pod, &format!("--timeout {timeout}"));
        let took = start.elapsed().as_millis();
        assert_fails(&finished, &["no answer from 192.0.2.2:1404 within "]);
        assert!((least..MOST).contains(&took), "{timeout}: {took} ms");
    }
}

#[test]
fn a_failure_that_cannot_be_logged_is_on_stderr() {
    for redirection in [">/dev/full", ">&-"] {
        let script = format!("exec \"$@\" {redirection}");
        let run = Run::new(&format!("validate {SHORT}")).under(["sh", "-c", &script, "sh"]);
        let finished = run.output(&lab().pod);
        assert_eq!(finished.code(), Some(95), "{redirection}");
        let stderr = finished.stderr();
        assert!(stderr.starts_with("error: no answer from 192.0.2.2:1404"), "{redirection}: {stderr}");
    }
}

/// Also as a container's first process, for which the kernel drops signals that nothing waits for.
#[test]
fn signals_that_end_a_program_end_it_at_once() {
    let run = Run::new("validate --timeout 5m");
    let first_process = run.clone().under(["unshare", "--pid", "--fork", "--kill-child"]);
    for (run, is_nested) in [(run, false), (first_process, true)] {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let lab = Lab::new();
            let mut child = lab.pod.run(|| {
                let mut command = run.command();
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            });
            let mut log = BufReader::new(child.stdout.take().unwrap());
            let mut lines = String::new();
            while !lines.contains("Connecting to") {
                assert_ne!(log.read_line(&mut lines).unwrap(), 0, "{lines}");
            }
            let id = child.id();
            let id: i32 = match is_nested {
                true => {
                    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
                    children.unwrap().trim().parse().unwrap()
                }
                false => id.try_into().unwrap(),
            };
            let start = Instant::now();
            kill(Pid::from_raw(id), signal).unwrap();
            let status = child.wait().unwrap();
            assert!(start.elapsed() < Duration::from_secs(2));
            log.read_to_string(&mut lines).unwrap();
            assert_eq!(status.code(), Some(95), "{status}: {lines}");
            assert!(lines.contains(&format!("level=error msg=\"killed by {signal}\"")), "{lines}");
        }
    }
}
