//! The words of verify, show and explain about the proxy, judged by sockets that listen.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::thread::sleep;
use std::time::Duration;

use lab::network::{Lab, Namespace};
use nix::unistd::{Uid, setfsuid};
use serde_json::{Value, json};

use crate::support::{Run, chart_in, install, unfolded};

/// Sockets of a user that listen in a namespace until they are dropped.
pub(crate) fn listen(namespace: &Namespace, uid: u32, addresses: &[&str]) -> Vec<TcpListener> {
    namespace.run(|| {
        // Of this thread alone, which ends after it. A socket belongs to its maker's.
        setfsuid(Uid::from_raw(uid));
        // A process that another test is starting has a copy of a socket that was closed here, until it runs its
        // program.
        let bind = |address: &&str| {
            let mut tries = (0..1000).map(|_| TcpListener::bind(address));
            let bound = tries.find(|bound| match bound {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    sleep(Duration::from_millis(1));
                    false
                }
                _ => true,
            });
            bound.expect("the address stays in use").unwrap()
        };
        addresses.iter().map(bind).collect()
    })
}

/// Where linkerd-proxy listens.
const PROXY: [&str; 3] = ["[::]:4143", "127.0.0.1:4140", "[::1]:4140"];

/// The questions, and the words that are about a connection or not.
const QUESTIONS: [&str; 3] = ["verify -p 4143 -o 4140 -u 2102", "verify", "show"];

fn warnings(namespace: &Namespace, question: &str) -> Value {
    let said = Run::new(&format!("{question} --output json")).output(namespace);
    assert_eq!(said.stderr(), "");
    serde_json::from_str::<Value>(&said.stdout()).unwrap()["warnings"].clone()
}

/// Rules are in place where no packet comes or goes.
#[test]
fn routes_and_devices_by_which_nothing_comes_or_goes_are_named() {
    let routes_none = "the kernel routes no packet of the proxy's over IPv4";
    let down = "no interface with an IPv4 address is up";
    let lo_down = "lo is down: outbound IPv4 connections that are redirected are lost";
    let no_localhost = "there is no local route to 127.0.0.1: outbound IPv4 connections that are redirected are lost";
    for (line, want) in [
        ("true", None),
        ("ip route delete default", None),
        ("ip link set eth0 down", Some(down)),
        ("ip route replace blackhole default", Some(routes_none)),
        ("ip route replace prohibit default", Some(routes_none)),
        ("ip rule add uidrange 2102-2102 unreachable", Some(routes_none)),
        ("ip rule add uidrange 1000-1000 unreachable", None),
        ("ip route flush table main", Some(routes_none)),
        ("ip address flush dev eth0", None),
        ("ip link set lo down", Some(lo_down)),
        ("ip address del 127.0.0.1/8 dev lo", Some(no_localhost)),
    ] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        lab.pod.sh(line);
        for question in [QUESTIONS[1].to_owned(), format!("verify {}", chart_in("nft")), "show".to_owned()] {
            let said = warnings(&lab.pod, &question).to_string();
            for warning in [routes_none, down, lo_down, no_localhost] {
                assert_eq!(said.contains(warning), want == Some(warning), "{line}: {said}");
            }
        }
    }
}

#[test]
fn a_port_on_which_nothing_listens_is_named() {
    let port = |port: u16| format!("nothing listens on port {port}");
    for mode in ["nft", "native", "legacy"] {
        let namespace = Namespace::new();
        let flags = format!("--iptables-mode {mode} -p 4143 -o 4140 -u 2102");
        // The proxy isn't there yet, and installing says nothing about it.
        let log = install(&namespace, &flags);
        assert!(!log.contains("listen"), "{log}");
        let check = |question: &str, want: &[String]| {
            assert_eq!(warnings(&namespace, question), json!(want), "{mode} {question}");
            let text = Run::new(question).output(&namespace).success();
            for warning in want {
                assert!(unfolded(&text).contains(&format!("warning: {warning}")), "{mode} {question}: {text}");
            }
            assert_eq!(text.matches("warning: ").count(), want.len(), "{mode} {question}: {text}");
            let proxy = if want.is_empty() { "listens" } else { "does not listen" };
            let (first, _) = text.split_once("\nwarning: ").unwrap_or((&text, ""));
            assert_eq!(
                unfolded(first).contains(&format!("; the proxy {proxy}")),
                question.starts_with("verify"),
                "{text}"
            );
        };
        for question in QUESTIONS {
            check(question, &[port(4143), port(4140)]);
        }
        let _inbound = listen(&namespace, 2102, &["0.0.0.0:4143"]);
        for question in QUESTIONS {
            let of_v6 = format!(
                "{} for IPv6 connections, so they are refused: where the proxy is for IPv4 alone, install the rules with \
                 --ipv6=false",
                port(4143)
            );
            check(question, &[of_v6, port(4140)]);
        }
        drop(_inbound);
        let _proxy = listen(&namespace, 2102, &PROXY);
        for question in QUESTIONS {
            check(question, &[]);
        }
    }
}

/// Of the proxy's ports, explain speaks of the one to which the connection goes.
#[test]
fn explain_warns_of_what_the_connection_touches() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let nothing = |port: u16| format!("nothing listens on port {port}");
    let check = |line: &str, want: &[String]| {
        assert_eq!(warnings(&lab.pod, &format!("explain {line}")), json!(want), "{line}");
    };
    check("inbound --to 10.77.0.2:80", &[nothing(4143)]);
    check("outbound --to 192.0.2.1:80", &[nothing(4140)]);
    check("inbound --to 10.77.0.2:4191", &[]);
    check("outbound --to 192.0.2.1:4567", &[]);
    let _inbound = listen(&lab.pod, 1000, &["0.0.0.0:4143"]);
    let other = "what listens on port 4143 is user 1000, and the rules exempt user 2102: what it sends is redirected back to it";
    check("inbound --to 10.77.0.2:80", &[other.to_owned()]);
    let of_v6 = nothing(4143)
        + " for IPv6 connections, so they are refused: where the proxy is for IPv4 alone, install the \
                                 rules with --ipv6=false";
    check("inbound --to [fd77::2]:80", &[of_v6, other.to_owned()]);
    check("inbound --to 10.77.0.2:4191", &[]);
}

#[test]
fn a_proxy_of_another_user_than_the_exempt_one_is_named() {
    let namespace = Namespace::new();
    install(&namespace, "--iptables-mode nft -p 4143 -o 4140 -u 1000");
    let _proxy = listen(&namespace, 2102, &PROXY);
    let want = "what listens on port 4140 is user 2102, and the rules exempt user 1000: what it sends is redirected back to it";
    for question in ["verify -p 4143 -o 4140 -u 1000", "verify", "show"] {
        assert_eq!(warnings(&namespace, question), json!([want]), "{question}");
    }
}

/// The flags name another user than the rules exempt.
#[test]
fn warnings_are_about_the_rules_that_are_there() {
    let namespace = Namespace::new();
    install(&namespace, "--iptables-mode nft -p 4143 -o 4140 -u 2102 --ipv6=false");
    let _proxy = listen(&namespace, 2102, &["0.0.0.0:4143", "127.0.0.1:4140"]);
    for flags in ["-u 2103", "-u 2102"] {
        let text = Run::new(&format!("verify -p 4143 -o 4140 {flags}")).output(&namespace).stdout();
        assert!(text.starts_with("not in place") && !text.contains("warning"), "{text}");
    }
}

#[test]
fn flags_that_exempt_nobody_are_warned_about_after_the_installation_too() {
    let namespace = Namespace::new();
    install(&namespace, "--iptables-mode nft -p 4143 -o 4140");
    let _proxy = listen(&namespace, 2102, &PROXY);
    for question in ["verify -p 4143 -o 4140", "show"] {
        let warnings = warnings(&namespace, question);
        let [Value::String(warning)] = warnings.as_array().unwrap().as_slice() else {
            panic!("{question}: {warnings}");
        };
        assert!(warning.contains("the rules exempt nobody: what it sends is redirected back to it"), "{warning}");
    }
}

/// As the containers of a pod run.
#[test]
fn any_user_sees_what_listens() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let verify = Run::new(&format!("verify {}", chart_in("nft"))).nobody(&["net_admin"]);
    let text = verify.output(&namespace).success();
    assert!(text.contains("warning: nothing listens on port 4143\n"), "{text}");
    let _proxy = listen(&namespace, 2102, &PROXY);
    let text = verify.output(&namespace).success();
    assert!(text.contains("; the proxy listens\n") && !text.contains("warning"), "{text}");
}

#[test]
fn what_listens_elsewhere_does_not_count() {
    let (here, there) = (Namespace::new(), Namespace::new());
    let netns = |line: &str| format!("{line} --netns {}", there.path().display());
    install(&here, &netns("--iptables-mode nft -p 4143 -o 4140 -u 2102"));
    let _proxy = listen(&here, 2102, &PROXY);
    assert_eq!(warnings(&here, &netns("verify")).as_array().unwrap().len(), 2);
    let _proxy = listen(&there, 2102, &PROXY);
    assert_eq!(warnings(&here, &netns("verify")), json!([]));
}

#[test]
fn where_it_cannot_be_asked_it_is_not_known() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let _proxy = listen(&namespace, 2102, &PROXY);
    let run = Run::new("verify");
    let trace = run.calls(&namespace).0;
    let mut sockets = trace.lines().filter(|line| line.contains(" socket("));
    let number = 1 + sockets.position(|line| line.contains("NETLINK_SOCK_DIAG")).expect("it asks");
    // Again and again: musl tries once more without SOCK_CLOEXEC, for kernels that don't know it.
    let refused = run.inject("socket", &format!("error=EPROTONOSUPPORT:when={number}+"));
    let text = refused.output(&namespace).success();
    assert!(text.contains("; not known whether the proxy listens\n"), "{text}");
    assert!(text.contains("warning: not known: whether the proxy listens (sock_diag: EPROTONOSUPPORT"), "{text}");
}
