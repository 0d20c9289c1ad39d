//! `check` names each of the twelve odd pods in its first ten lines, as root and as a container's usual user, and says of a
//! healthy pod what real connections say.

use std::net::TcpListener;

use lab::linkerd::Flags;
use lab::network::{Lab, NEIGHBOUR, Namespace, POD, ROOT, Reached, Server, connect};
use serde_json::Value;

use crate::support::{Run, chart, chart_in, install, nft, unfolded};
use crate::verify::proxy::listen;

const PROXY: [&str; 3] = ["[::]:4143", "127.0.0.1:4140", "[::1]:4140"];

/// An odd pod: the rules' flags, commands afterwards, and what listens beside the proxy.
struct Odd {
    name: &'static str,
    flags: String,
    after: &'static [&'static str],
    /// The proxy's user; none if there is no proxy.
    proxy: Option<u32>,
    /// Whoever listens on port 8080.
    app: u32,
    code: &'static str,
    exit: i32,
}

impl Odd {
    fn new(name: &'static str, after: &'static [&'static str], code: &'static str) -> Self {
        Self { name, flags: chart_in("nft"), after, proxy: Some(2102), app: 1000, code, exit: 3 }
    }

    fn make(&self) -> (Lab, Vec<TcpListener>) {
        let lab = Lab::new();
        if !self.flags.is_empty() {
            install(&lab.pod, &self.flags);
        }
        lab.pod.all(self.after);
        let mut listeners = listen(&lab.pod, self.app, &["[::]:8080"]);
        if let Some(uid) = self.proxy {
            listeners.extend(listen(&lab.pod, uid, &PROXY));
        }
        (lab, listeners)
    }
}

const ISTIO: &[&str] = &[
    "iptables-nft -t nat -N ISTIO_INBOUND",
    "iptables-nft -t nat -A ISTIO_INBOUND -p tcp -j REDIRECT --to-ports 15006",
    "iptables-nft -t nat -I PREROUTING -p tcp -j ISTIO_INBOUND",
];

const KUBE_PROXY: &[&str] = &[
    "iptables-nft -t nat -N KUBE-SVC-NPX46M4PTMTKRN6Y",
    "iptables-nft -t nat -N KUBE-SERVICES",
    "iptables-nft -t nat -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y",
    "iptables-nft -t nat -A OUTPUT -j KUBE-SERVICES",
];

#[test]
fn each_odd_pod_is_named_in_the_first_ten_lines() {
    let chart = chart();
    let with = |flags: &str| format!("--iptables-mode nft {flags}");
    let odd = [
        Odd::new("flushed", &["iptables-nft -t nat -F", "ip6tables-nft -t nat -F"], "flushed"),
        Odd::new("half gone", &["iptables-nft -t nat -D PREROUTING 1"], "missing"),
        Odd::new("Istio first", ISTIO, "shadowed"),
        Odd { exit: 0, ..Odd::new("kube-proxy beside", KUBE_PROXY, "kube-proxy") },
        Odd { flags: with("-p 4144 -o 4140 -u 2102"), ..Odd::new("wrong port", &[], "other-port") },
        Odd {
            flags: with(&format!("{chart} --ipv6=false")),
            ..Odd::new("IPv6 off and on", &[], "family-without-rules")
        },
        Odd { proxy: None, ..Odd::new("no proxy", &[], "proxy-not-listening") },
        Odd::new("two modes", &["true"], "two-modes"),
        Odd { flags: String::new(), exit: 0, ..Odd::new("Linkerd's rules in legacy", &["true"], "legacy mode") },
        Odd::new("policy drop", &["iptables-nft -P INPUT DROP"], "dropped"),
        Odd { app: 2102, ..Odd::new("app as 2102", &[], "app-as-proxy") },
        Odd {
            flags: with("-p 4143 -o 4140 -u 2102 --inbound-ports-to-ignore 8080"),
            exit: 0,
            ..Odd::new("skipped app port", &[], "port-skipped")
        },
    ];
    for pod in odd {
        let (lab, _listeners) = pod.make();
        if ["two modes", "Linkerd's rules in legacy"].contains(&pod.name) {
            Flags::default().add_with_iptables(&lab.pod, "legacy");
        }
        let by_nobody = Run::new("check").without_signs_of_legacy().nobody(&["net_admin"]);
        for (is_root, run) in [(true, Run::new("check")), (false, by_nobody)] {
            let checked = run.output(&lab.pod);
            let text = checked.stdout();
            let first: Vec<&str> = text.lines().take(10).collect();
            // On a kernel that doesn't tell, only root and its group know of legacy tables.
            let hidden = !is_root && ["two modes", "Linkerd's rules in legacy"].contains(&pod.name);
            let (code, exit) = match hidden {
                true if pod.name == "two modes" => ("legacy-unseen", 0),
                true => ("not known: only root and group 0 can list legacy tables here: run as root", 1),
                false => (pod.code, pod.exit),
            };
            assert!(unfolded(&first.join("\n")).contains(code), "{} {is_root}: {}", pod.name, checked.said());
            assert_eq!(checked.code(), Some(exit), "{} {is_root}: {}", pod.name, checked.said());
        }
        let json: Value = serde_json::from_str(&Run::new("check --output json").output(&lab.pod).stdout()).unwrap();
        let codes: Vec<_> = json["findings"].as_array().unwrap().iter().map(|found| found["code"].clone()).collect();
        assert!(codes.contains(&pod.code.into()) || pod.code == "legacy mode", "{}: {json:#}", pod.name);
    }
}

#[test]
fn a_healthy_pod_has_a_line_for_each_port() {
    for mode in ["nft", "native", "legacy"] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in(mode));
        let _proxy = listen(&lab.pod, 2102, &PROXY);
        let _admin = listen(&lab.pod, 2102, &["[::]:4191"]);
        let _app = listen(&lab.pod, 1000, &["[::]:8080", "127.0.0.1:9090"]);
        let text = install(&lab.pod, "check");
        assert_eq!(
            text,
            format!(
                "well: connections go to the proxy by the rules of {mode} mode\n\
                 rules in {mode} mode for IPv4 and IPv6; proxy: ports 4143 and 4140, user 2102\n   \
                 port  user   connections of other hosts\n   \
                 4191  2102   bypass the proxy: --inbound-ports-to-ignore names it\n   \
                 8080  1000   by the proxy\n  \
                 outbound      by the proxy\n                \
                 except by --outbound-ports-to-ignore 4567,4568\n"
            )
        );
        assert_eq!(install(&lab.pod, "check --output short"), text.lines().next().unwrap().to_owned() + "\n");
    }
}

/// Tables that this user can't list may drop what the others let through.
#[test]
fn what_could_not_be_seen_is_not_said_to_be_well() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh("iptables-legacy -A INPUT -p tcp --dport 4143 -j DROP");
    let _proxy = listen(&lab.pod, 2102, &PROXY);
    let _app = listen(&lab.pod, 1000, &["[::]:8080"]);
    let seen = |run: Run| run.output(&lab.pod).stdout().lines().next().unwrap().to_owned();
    let hidden = Run::new("check --output short").without_signs_of_legacy().nobody(&["net_admin"]);
    let expected =
        "well, as far as could be seen: connections go to the proxy by the rules of nft mode (beside: legacy-unseen)";
    assert_eq!(seen(hidden), expected);
    assert!(seen(Run::new("check --output short")).starts_with("not well: dropped: "));
}

/// Its neighbours reach it, and it reaches them.
#[test]
fn a_pod_without_a_default_route_is_well() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh("ip route del default");
    lab.pod.sh("ip -6 route del default");
    let proxy = listen(&lab.pod, 2102, &PROXY);
    let checked = Run::new("check").output(&lab.pod);
    drop(proxy);
    assert_eq!(checked.code(), Some(0), "{}", checked.said());
    let text = unfolded(&checked.stdout());
    assert!(
        text.starts_with("well: connections go to the proxy by the rules of nft mode (beside: no-route)"),
        "{text}"
    );
    assert!(text.contains("no-route: outbound over IPv4: there is no route to other networks (ENETUNREACH"), "{text}");
    let _server = Server::start(&lab.pod, &[4140]);
    let reached = connect(&lab.pod, ROOT, (NEIGHBOUR[0], 80).into());
    assert!(matches!(reached, Reached::Server { port: 4140, .. }), "{reached:?}");
}

/// Exceptions alone would say nothing.
#[test]
fn a_pod_without_addresses_has_a_line_for_outbound_connections() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let text = Run::new("check").output(&namespace).stdout();
    let line = "\n  outbound      the pod has no address that other networks know\n                except by";
    assert!(text.contains(line), "{text}");
}

/// In a cluster of IPv4 alone, a pod's device has an IPv6 address of its link all the same.
#[test]
fn a_pod_of_an_ipv4_cluster_is_well() {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab.pod.sh("ip -6 address flush dev eth0 scope global");
    let _proxy = listen(&lab.pod, 2102, &["0.0.0.0:4143", "127.0.0.1:4140"]);
    let checked = Run::new("check --output short").output(&lab.pod);
    assert_eq!(checked.success(), "well: connections go to the proxy by the rules of nft mode\n");
}

/// The port's flag is for one direction, and the subnet's for the other.
#[test]
fn a_bypass_is_told_with_its_own_directions_flag() {
    for mode in ["nft", "native"] {
        let lab = Lab::new();
        install(&lab.pod, &format!("{} --outbound-subnets-to-ignore 192.0.2.0/24,2001:db8::/32", chart_in(mode)));
        let _proxy = listen(&lab.pod, 2102, &PROXY);
        let _admin = listen(&lab.pod, 2102, &["[::]:4191"]);
        let text = install(&lab.pod, "check");
        for line in [
            "4191  2102   bypass the proxy: --inbound-ports-to-ignore names it",
            "outbound      bypass the proxy: --outbound-subnets-to-ignore names it",
        ] {
            assert!(text.contains(line), "{mode}: {text}");
        }
    }
}

/// Whatever drops connections on their way from the proxy to the app, or from the proxy to other hosts.
#[test]
fn the_proxys_own_connections_are_followed_too() {
    let inbound = "ct state established accept; tcp dport { 4143, 4140 } accept; meta l4proto tcp drop";
    for (hook, rules, line, words) in [
        ("input", inbound, "inbound --to :8080", "then from the proxy: dropped by rule 3 of chain c in inet late"),
        (
            "output",
            "oifname != lo tcp dport 5432 drop",
            "outbound --to 192.0.2.1:5432",
            "then from the proxy: dropped by rule 1 of chain c in inet late",
        ),
    ] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        nft(&lab.pod, &format!("table inet late {{ chain c {{ type filter hook {hook} priority 10; {rules}; }}; }}"));
        let _server = Server::start(&lab.pod, &[4143, 4140, 8080]);
        let explained = Run::new(&format!("explain {line} --expect proxy")).output(&lab.pod);
        assert!(explained.stdout().lines().next().unwrap().ends_with(words), "{}", explained.said());
        assert_eq!(explained.code(), Some(3), "{}", explained.said());
        let verified = Run::new("verify").output(&lab.pod);
        assert_eq!(verified.code(), Some(3), "{}", verified.said());
        let port = if hook == "input" { 8080 } else { 5432 };
        let words = format!("inet late c: dropped: the rule marked + drops connections from the proxy: to port {port}");
        assert!(unfolded(&verified.stdout()).contains(&words), "{}", verified.said());
        if hook == "input" {
            // The client gets to the proxy, and the proxy to nobody.
            let reached = connect(&lab.outside, ROOT, (POD[0], 8080).into());
            assert!(matches!(reached, Reached::Server { port: 4143, .. }), "{reached:?}");
            let checked = Run::new("check").output(&lab.pod);
            assert_eq!(checked.code(), Some(3), "{}", checked.said());
            assert!(
                unfolded(&checked.stdout()).contains("8080 0 from the proxy: dropped by rule 3"),
                "{}",
                checked.said()
            );
        }
    }
}
