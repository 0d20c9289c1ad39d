//! Uninstalling: our rules go, and other people's tables, chains and rules stay.

use std::process::Stdio;

use lab::linkerd::Flags;
use lab::network::Namespace;

use crate::support::{Finished, Run, chart_in, install, saved, saved_by};

/// nft's listing of everything.
fn ruleset(namespace: &Namespace) -> String {
    namespace.sh("nft list ruleset")
}

#[test]
fn a_table_that_was_there_before_stays() {
    for (mode, table) in [("nft", "ip nat"), ("nft", "ip6 nat")] {
        let namespace = Namespace::new();
        namespace.sh(&format!("nft add table {table}"));
        let before = ruleset(&namespace);
        install(&namespace, &chart_in(mode));
        assert!(saved(&namespace, mode).contains("PROXY_INIT"));
        install(&namespace, "uninstall");
        assert_eq!(ruleset(&namespace), before);
    }
}

/// The chains that iptables made beside the masquerade are its own; those that installing adds are marked, and go.
#[test]
fn a_foreign_rule_keeps_its_chain_and_no_other() {
    let namespace = Namespace::new();
    for family in ["ip", "ip6"] {
        namespace.sh(&format!("nft add table {family} nat"));
        namespace.sh(&format!("nft add chain {family} nat POSTROUTING {{ type nat hook postrouting priority 100; }}"));
        namespace.sh(&format!("nft add rule {family} nat POSTROUTING counter masquerade"));
    }
    let before = ruleset(&namespace);
    install(&namespace, &chart_in("nft"));
    let between = ruleset(&namespace);
    // Of each family: two base chains and two of our own.
    assert_eq!(between.matches("comment \"made by proxy-init\"").count(), 8, "{between}");
    install(&namespace, "uninstall");
    assert_eq!(ruleset(&namespace), before);
}

/// A rule with a verdict map may lead elsewhere too, so it stays, and then so does everything.
#[test]
fn a_rule_with_a_verdict_map_is_not_removed() {
    let elements = "{ 80 : jump PROXY_INIT_REDIRECT, 443 : jump other }";
    for map in [elements, "@named"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("nft"));
        namespace.sh("nft add chain ip nat other");
        namespace.sh(&format!("nft add map ip nat named {{ type inet_service : verdict; elements = {elements}; }}"));
        namespace.sh("nft add chain ip nat mine { type nat hook prerouting priority -110; }");
        namespace.sh(&format!("nft add rule ip nat mine tcp dport vmap {map}"));
        if map == elements {
            namespace.sh("nft delete map ip nat named");
        }
        let before = ruleset(&namespace);
        let finished = Run::new("uninstall").output(&namespace);
        let line = finished.last_line();
        assert!(
            line.contains("nothing was changed: nft mode: the kernel refused `iptables-nft -t nat -X PROXY_INIT_"),
            "{line}"
        );
        assert_eq!((finished.code(), ruleset(&namespace)), (Some(1), before));
    }
}

/// Chains that iptables-nft made for linkerd-init have no mark, and taking them over adds none.
#[test]
fn without_a_mark_base_chains_and_tables_stay() {
    let bare = Namespace::new();
    for family in ["iptables", "ip6tables"] {
        for chain in ["PREROUTING", "OUTPUT"] {
            let rule = format!("{chain} -j ACCEPT");
            bare.sh(&format!("{family}-nft -t nat -A {rule}"));
            bare.sh(&format!("{family}-nft -t nat -D {rule}"));
        }
    }
    let want = ruleset(&bare);
    assert_eq!(want.matches("type nat hook").count(), 4, "{want}");
    let other = format!("{} -r 80", chart_in("nft"));
    for taken_over in [None, Some(&other)] {
        let namespace = Namespace::new();
        Flags::default().add_with_iptables(&namespace, "nft");
        if let Some(flags) = taken_over {
            install(&namespace, flags);
        }
        install(&namespace, "uninstall");
        assert_eq!(ruleset(&namespace), want, "{taken_over:?}");
    }
}

/// A jump with other conditions, or another comment, than our own.
#[test]
fn a_foreign_jump_stays_until_what_it_leads_to_goes() {
    for mode in ["nft", "legacy"] {
        for jump in FOREIGN_JUMPS {
            check_foreign_jump(mode, jump);
        }
    }
}

const FOREIGN_JUMPS: [&str; 6] = [
    "-I PREROUTING -s 1.2.3.4 -j PROXY_INIT_REDIRECT",
    "-A OUTPUT -j PROXY_INIT_OUTPUT",
    "-A PREROUTING -p tcp -i eth0 -j PROXY_INIT_REDIRECT",
    "-A PREROUTING -p tcp -i eth0 -m mark --mark 7 -j PROXY_INIT_REDIRECT",
    "-A OUTPUT -p udp -m comment --comment it's\"mine\" -g PROXY_INIT_OUTPUT",
    "-A O\"THER -p tcp -j PROXY_INIT_OUTPUT",
];

fn check_foreign_jump(mode: &str, jump: &str) {
    let namespace = Namespace::new();
    for rule in ["-N O\"THER", "-A O\"THER -p udp -j ACCEPT", "-A OUTPUT -j O\"THER"] {
        namespace.sh(&format!("iptables-{mode} -t nat {rule}"));
    }
    let foreign = saved(&namespace, mode);
    install(&namespace, &chart_in(mode));
    namespace.sh(&format!("iptables-{mode} -t nat {jump}"));
    let before = saved(&namespace, mode);
    install(&namespace, &chart_in(mode));
    assert_eq!(saved(&namespace, mode), before, "{jump}");
    install(&namespace, &format!("{} -r 80", chart_in(mode)));
    let after = saved(&namespace, mode);
    let leads = |saved: &str| -> Vec<String> {
        let lines = saved.lines().filter(|line| line.contains("-j PROXY_INIT") || line.contains("-g PROXY_INIT"));
        lines.map(ToOwned::to_owned).collect()
    };
    assert_eq!(leads(&after), leads(&before), "{jump}");
    assert_eq!(leads(&after).len(), 5, "{jump}: {after}");

    let log = install(&namespace, "uninstall");
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("level=warning")).collect();
    assert_eq!(warnings.len(), 1, "{jump}: {log}");
    let chain = jump.split(' ').nth(1).unwrap();
    let warning = warnings[0].replace('\\', "");
    assert!(warning.contains(chain) && warning.contains("PROXY_INIT"), "{jump}: {log}");
    let left = saved(&namespace, mode);
    assert!(!left.contains("PROXY_INIT"), "{jump}: {left}");
    let rules = |saved: &str| -> Vec<String> {
        let lines = saved.lines().filter(|line| line.starts_with("-A"));
        lines.map(ToOwned::to_owned).collect()
    };
    assert_eq!(rules(&left), rules(&foreign), "{jump}");
}

#[test]
fn uninstall_leaves_nothing_of_ours_and_all_of_strangers() {
    let namespace = Namespace::new();
    install(&namespace, "uninstall");
    assert_eq!(namespace.sh("nft list ruleset"), "", "nothing there is success, and makes nothing");
    install(&namespace, &chart_in("nft"));
    install(&namespace, "uninstall");
    assert_eq!(namespace.sh("nft list ruleset"), "", "no empty leftovers");
    install(&namespace, "uninstall");

    for line in [
        "nft add table ip nat",
        "nft add chain ip nat OUTPUT { type nat hook output priority -100 ; policy drop ; }",
        "nft add set ip6 nat addresses { type ipv6_addr ; }",
        "iptables-nft -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT",
        "ip6tables-nft -t nat -A POSTROUTING -j MASQUERADE",
    ] {
        if line.contains("ip6 nat addresses") {
            namespace.sh("nft add table ip6 nat");
        }
        namespace.sh(line);
    }
    let before = namespace.sh("nft list ruleset");
    install(&namespace, &chart_in("nft"));
    install(&namespace, "uninstall");
    assert_eq!(namespace.sh("nft list ruleset"), before);

    let legacy = Namespace::new();
    legacy.sh("iptables-legacy -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    let before = saved_by(&legacy, "iptables-legacy-save");
    install(&legacy, &chart_in("legacy"));
    install(&legacy, "uninstall -w");
    assert_eq!(saved_by(&legacy, "iptables-legacy-save"), before);
    assert_eq!(saved_by(&legacy, "ip6tables-legacy-save").matches("-A").count(), 0);
}

#[test]
fn installing_and_uninstalling_at_once_leaves_all_or_nothing() {
    let namespace = Namespace::new();
    let whole = Namespace::new();
    let flags = chart_in("nft");
    install(&whole, &flags);
    let start = |index| {
        let run = Run::new(if index % 2 == 0 { &flags } else { "uninstall" });
        run.spawn(&namespace, Stdio::piped())
    };
    let children: Vec<_> = (0..24).map(start).collect();
    for child in children {
        Finished(child.wait_with_output().unwrap()).success();
    }
    let left = saved(&namespace, "nft");
    assert!(!left.contains("PROXY_INIT") || left == saved(&whole, "nft"), "{left}");
}
