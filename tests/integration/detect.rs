//! `detect`: the machine's features, the tables of both backends, and other programs.

use lab::network::Namespace;
use serde_json::Value;

use crate::support::{chart, chart_in, install};
use crate::verify::verify;

pub(crate) fn detect(namespace: &Namespace) -> Value {
    serde_json::from_str(&install(namespace, "detect --output json")).unwrap()
}

#[test]
fn detect_tells_what_is_there_and_makes_nothing() {
    let namespace = Namespace::new();
    let report = detect(&namespace);
    assert_eq!(report["auto"]["mode"], "nft");
    assert!(report["features"].as_array().unwrap().iter().all(|feature| feature["works"] == true), "{report}");
    assert_eq!(namespace.sh("nft list ruleset"), "");
    assert_eq!(namespace.sh("cat /proc/thread-self/net/ip_tables_names"), "");

    namespace.all([
        "iptables-legacy -t nat -A OUTPUT -p udp -j ACCEPT",
        "ip6tables-legacy -t filter -A INPUT -j ACCEPT",
        "ip6tables-legacy -t filter -N EMPTY",
        "iptables-nft -t nat -A OUTPUT -p udp -j ACCEPT",
    ]);
    let report = detect(&namespace);
    assert_eq!(report["both_backends_in_use"], true);
    for (backend, save) in [("legacy", "legacy-save"), ("nf_tables", "nft-save")] {
        let count = |command: String| namespace.sh(&command).lines().filter(|line| line.starts_with("-A")).count();
        let theirs = count(format!("iptables-{save}")) + count(format!("ip6tables-{save}"));
        let tables = report[backend]["tables"].as_array().unwrap();
        let ours: u64 = tables.iter().map(|table| table["rules"].as_u64().unwrap()).sum();
        assert_eq!(ours as usize, theirs, "{backend}");
    }
    let text = install(&namespace, "detect");
    for words in ["--iptables-mode nft", "IPTABLES_MODE=nft", "proxyInit.iptablesMode", "both backends hold rules"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(text.lines().count() < 25, "{text}");
}

#[test]
fn other_programs_are_named() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    assert_eq!(detect(&namespace)["neighbours"], Value::Array(vec![]));
    let (code, said) = verify(&namespace, &chart());
    assert!(code == 0 && !said.contains(" is here"), "{said}");
    namespace.all([
        "iptables-nft -t nat -N ISTIO_OUTPUT",
        "iptables-nft -t nat -A ISTIO_OUTPUT -p tcp --dport 7 -j RETURN",
        "iptables-nft -t nat -A OUTPUT -p tcp --dport 7 -j ISTIO_OUTPUT",
        "nft add table inet kube-proxy",
        "ip link add cilium_host type veth peer name cilium_net",
        "ip link set lo up",
    ]);
    let istio = "Istio is here (chain ISTIO_OUTPUT in ip nat)";
    let cilium = "Cilium is here (device cilium_";
    let report = detect(&namespace)["neighbours"].to_string();
    let text = install(&namespace, "detect");
    let users = "a pod with hostUsers: false gets native mode from outside of it,\n            whichever is asked for";
    assert!(text.contains(&format!("users       {users}")), "{text}");
    for words in [istio, cilium, "kube-proxy is in nftables mode"] {
        assert!(report.contains(words), "{report}");
        assert!(text.contains(&format!("neighbour   {words}")), "{text}");
    }
    for flags in ["", &chart()] {
        let (code, said) = verify(&namespace, flags);
        assert_eq!(code, 0, "{said}");
        for words in [istio, cilium] {
            assert!(said.contains(&format!("warning: {words}")), "{said}");
        }
    }
    let said = install(&namespace, "explain outbound --to 127.0.0.1:7");
    assert!(said.contains("\n      ISTIO_OUTPUT (Istio's)\n"), "{said}");
}

#[test]
fn detect_tells_modes_and_families_apart() {
    let namespace = Namespace::new();
    // A base chain that is not hooked as iptables' own, for IPv6 alone.
    namespace.sh("nft add table ip6 nat");
    namespace.sh("nft add chain ip6 nat OUTPUT { type filter hook output priority 0 ; }");
    let report = detect(&namespace);
    for feature in report["features"].as_array().unwrap() {
        let name = feature["name"].as_str().unwrap();
        let works = name != "nft mode for IPv6";
        assert_eq!(feature["works"], works, "{feature}");
        if !works {
            let reason = feature["reason"].as_str().unwrap();
            assert!(reason.contains("ip6 nat") || reason.contains("OUTPUT"), "{reason}");
        }
    }
}
