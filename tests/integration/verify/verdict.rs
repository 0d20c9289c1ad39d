//! First lines and exit codes: certain loss is not "in place", and what wasn't seen is not "none".

use lab::network::{Lab, Namespace, POD, ROOT, Reached, Server, connect};
use serde_json::Value;

use super::proxy::listen;
use crate::support::{Run, chart, chart_in, install, unfolded};

/// As Linkerd's proxy listens.
const PROXY: [&str; 3] = ["[::]:4143", "127.0.0.1:4140", "[::1]:4140"];

const L: &str = "-u 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568";

/// Whole rules by which every connection is lost, or none goes to the proxy.
#[test]
fn certain_loss_is_not_in_place() {
    for (flags, after, words) in [
        (
            format!("-p 4143 -o 4140 {L}"),
            &["ip link set lo down"][..],
            "but lo is down: outbound IPv4 connections that are redirected are lost",
        ),
        (
            format!("-p 4144 -o 4140 {L}"),
            &[],
            "but nothing listens on port 4144, so connections are refused: user 2102, the proxy's by the rules, listens on 4143",
        ),
        (
            "-p 4143 -o 4140 -u 1337".to_owned(),
            &[],
            "but what listens on port 4140 is user 2102, and the rules exempt user 1337: what it sends is redirected back to it",
        ),
        ("-p 4143 -o 4140".to_owned(), &[], "but what listens on port 4140 is user 2102, and the rules exempt nobody"),
        (
            "-p 4143 -o 4140 -u 2102 --inbound-ports-to-ignore 1-65535 --outbound-ports-to-ignore 1-65535".to_owned(),
            &[],
            "but the rules skip every inbound connection: none goes to the proxy",
        ),
    ] {
        let lab = Lab::new();
        install(&lab.pod, &format!("--iptables-mode nft {flags}"));
        let _proxy = listen(&lab.pod, 2102, &PROXY);
        after.iter().for_each(|line| drop(lab.pod.sh(line)));
        for question in [format!("verify {flags}"), "verify".to_owned()] {
            let verified = Run::new(&question).output(&lab.pod);
            let text = unfolded(&verified.stdout());
            // Without flags, a user who listens is taken for the proxy's, so the rule that exempts it is missing.
            if question == "verify" && !flags.contains("-u") {
                assert!(text.starts_with("not in place: in nft mode") && text.contains("--proxy-uid 2102"), "{text}");
            } else {
                assert!(text.starts_with(&format!("not in place: rules complete in nft mode, {words}")), "{text}");
            }
            assert_eq!(verified.code(), Some(3), "{text}");
            let json = Run::new(&format!("{question} --output json")).output(&lab.pod);
            assert_eq!(serde_json::from_str::<Value>(&json.stdout()).unwrap()["in_place"], false);
        }
    }
}

#[test]
fn warnings_count_if_that_is_asked_for() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let code = |line: &str| Run::new(line).output(&namespace).code();
    // Nobody listens yet.
    assert_eq!((code("verify"), code("verify --strict")), (Some(0), Some(3)));
    let strict = format!("verify --strict {}", chart());
    assert_eq!(code(&strict), Some(3));
    let _proxy = listen(&namespace, 2102, &PROXY);
    assert_eq!((code("verify --strict"), code(&strict)), (Some(0), Some(0)));
}

#[test]
fn a_connection_that_the_proxys_port_refuses_does_not_go_to_the_proxy() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let code = |line: &str| Run::new(&format!("explain {line} --expect proxy")).output(&lab.pod).code();
    let (inbound, outbound) = ("inbound --to 10.77.0.2:8080", "outbound --to 192.0.2.1:80");
    assert_eq!(connect(&lab.outside, ROOT, (POD[0], 8080).into()), Reached::Refused);
    assert_eq!((code(inbound), code(outbound)), (Some(3), Some(3)));
    let _server = Server::start(&lab.pod, &[4143, 4140]);
    assert_eq!((code(inbound), code(outbound)), (Some(0), Some(0)));
    // The pod's own address needn't be known, and another one never arrives by itself.
    assert_eq!(code("inbound --to :8080"), Some(0));
    let said = Run::new("explain inbound --to :8080").output(&lab.pod).success();
    assert!(said.starts_with("to the proxy, port 4143\ninbound, from any address to 10.77.0.2:8080,"), "{said}");
    let stray = "explain inbound --to 10.96.0.10:80 --output short";
    assert_eq!(
        Run::new(stray).output(&lab.pod).success(),
        "to the proxy, port 4143, if other hosts send it here: this network namespace does not have 10.96.0.10\n"
    );
    assert_eq!(code("inbound --to 10.96.0.10:80"), Some(3));
}

/// Root has made legacy rules, and somebody with NET_ADMIN looks, on a kernel that doesn't tell.
#[test]
fn what_was_not_seen_is_not_said_to_be_absent() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let nobody = |line: &str| {
        Run::new(line)
            .without_signs_of_legacy()
            .nobody(&["net_admin"])
            // As in the image, there are no iptables commands.
            .environment("PATH", "/nowhere")
            .output(&namespace)
    };
    let first = "not known: only root and group 0 can list legacy tables here: run as root (kubectl proxy-init --root)";
    for line in ["verify", "show", &format!("verify {}", chart())] {
        let said = nobody(line);
        assert!(unfolded(&said.stdout()).starts_with(first), "{line}: {}", said.said());
        assert_eq!(said.code(), Some(1), "{line}");
    }
    for line in ["verify", &format!("verify {}", chart())] {
        let json: Value = serde_json::from_str(&nobody(&format!("{line} --output json")).stdout()).unwrap();
        assert_eq!((&json["in_place"], &json["not_known"][0]), (&Value::Null, &"legacy".into()));
    }
    let uninstalled = nobody("uninstall");
    assert_eq!(uninstalled.code(), Some(1), "{}", uninstalled.said());
    assert!(
        uninstalled
            .stderr()
            .contains("error: not known: only root and group 0 can list legacy tables here: run as root"),
        "{}",
        uninstalled.said()
    );
    assert!(namespace.sh("iptables-legacy-save -t nat").contains("PROXY_INIT"));
    // Once something was committed to nf_tables, the namespace isn't a new pod's.
    for (before, level) in [(None, "info"), (Some("nft add table ip other"), "warning")] {
        let namespace = Namespace::new();
        before.map(|line| namespace.sh(line));
        let log =
            Run::new(&chart_in("nft")).without_signs_of_legacy().nobody(&["net_admin"]).output(&namespace).success();
        assert!(log.contains(&format!("level={level} msg=\"not known: whether legacy tables hold")), "{log}");
    }
}

#[test]
fn a_flush_is_told_whole() {
    let namespace = Namespace::new();
    install(&namespace, &format!("{} --ipv6=false", chart_in("nft")));
    namespace.sh("iptables-nft -t nat -F");
    let verified = Run::new("verify").output(&namespace);
    assert_eq!(verified.code(), Some(3));
    let text = unfolded(&verified.stdout());
    assert!(
        text.starts_with("not in place: proxy-init's chains are there, and no rule redirects connections,"),
        "{text}"
    );
    let report: Value = serde_json::from_str(&Run::new("verify --output json").output(&namespace).stdout()).unwrap();
    let lack = "proxy-init's chains are there, and no rule redirects connections, inbound or outbound";
    assert_eq!(report["reason"], lack, "{report}");
    let shown = install(&namespace, "show");
    assert!(shown.starts_with("nft mode: no rule redirects connections"), "{shown}");
    let detected: Value = serde_json::from_str(&install(&namespace, "detect --output json")).unwrap();
    assert_eq!(detected["installed"], serde_json::json!([]), "{detected}");
    assert!(
        unfolded(&install(&namespace, "detect")).contains("proxy-init's chains are here without rules, in nft mode")
    );
}

#[test]
fn an_address_of_a_family_without_rules_is_named() {
    let lab = Lab::new();
    install(&lab.pod, &format!("{} --ipv6=false", chart_in("nft")));
    let _proxy = listen(&lab.pod, 2102, &["0.0.0.0:4143", "127.0.0.1:4140"]);
    let words =
        "there is an IPv6 address here (fd77::2), and there are no rules for IPv6: its connections bypass the proxy";
    for line in ["verify", "show", "explain inbound --to [fd77::2]:80", "explain outbound --to [2001:db8::1]:80"] {
        let said = Run::new(line).output(&lab.pod).success();
        assert!(unfolded(&said).contains(&format!("warning: {words}")), "{line}: {said}");
    }
    let said = install(&lab.pod, "explain inbound --to 10.77.0.2:80");
    assert!(!said.contains("warning"), "{said}");
}

/// Installing with the flags that come closest makes nothing worse: what one family has, both get.
#[test]
fn the_closest_flags_lose_nothing_that_either_family_has() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    namespace.sh("iptables-nft -t nat -D PREROUTING 1");
    namespace.sh("iptables-nft -t nat -D PROXY_INIT_OUTPUT 1");
    namespace.sh("ip6tables-nft -t nat -F PROXY_INIT_REDIRECT");
    let said = Run::new("verify").output(&namespace).stdout();
    assert!(!said.contains("unexpected"), "{said}");
    let flags = said.split("come closest to what was found:\n").nth(1).unwrap();
    let whole = format!(
        "--iptables-mode nft --incoming-proxy-port 4143 --outgoing-proxy-port 4140 {}",
        L.replace("-u", "--proxy-uid")
    );
    assert_eq!(unfolded(flags).replace(" \\", ""), whole);
}

/// A program that doesn't accept: the kernel takes one connection more than the queue's length.
#[test]
fn a_full_queue_is_named() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let _proxy = listen(&lab.pod, 2102, &PROXY);
    let script = "import socket,sys; s=socket.socket(); s.bind(('0.0.0.0',4191)); s.listen(1); print('x',flush=True); \
                  sys.stdin.read()";
    let mut slow = lab.pod.run(|| {
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        python.spawn().unwrap()
    });
    std::io::Read::read_exact(slow.stdout.as_mut().unwrap(), &mut [0; 1]).unwrap();
    let clients = lab.outside.run(|| [(); 2].map(|()| std::net::TcpStream::connect((POD[0], 4191)).unwrap()));
    let said = install(&lab.pod, "verify");
    let words = "warning: what listens on port 4191 does not accept fast enough: 2 connections wait in its queue of 1";
    assert!(unfolded(&said).contains(words), "{said}");
    drop(clients);
    drop(slow.stdin.take());
    slow.wait().unwrap();
}

/// As Docker makes one in a pod.
#[test]
fn a_bridge_that_forwards_is_named_with_its_cure() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let _proxy = listen(&lab.pod, 2102, &PROXY);
    for line in
        ["ip link add docker0 type bridge", "ip address add 172.17.0.1/16 dev docker0", "ip link set docker0 up"]
    {
        lab.pod.sh(line);
    }
    assert!(!install(&lab.pod, "verify").contains("bridge"));
    lab.pod.sh("sysctl -qw net.ipv4.ip_forward=1");
    let said = unfolded(&install(&lab.pod, "verify"));
    assert!(said.contains("warning: docker0 is a bridge, and this network namespace forwards"), "{said}");
    assert!(
        said.contains("--inbound-interfaces-to-ignore docker0 or --subnets-to-ignore 172.17.0.0/16 exempts"),
        "{said}"
    );
    for cure in ["--inbound-interfaces-to-ignore docker0", "--subnets-to-ignore 172.17.0.0/16"] {
        install(&lab.pod, &format!("{} {cure}", chart_in("nft")));
        assert!(!install(&lab.pod, "verify").contains("docker0 is a bridge"));
    }
}
