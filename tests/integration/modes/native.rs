//! native mode: its table, as nft sees it.

use lab::linkerd::Flags;
use lab::network::Namespace;

use super::changed_and_fresh;
use crate::support::any_flags::for_any_flags;
use crate::support::{PORTS, Run, chart_in, install, nft};

fn chart() -> String {
    chart_in("native")
}

fn json(namespace: &Namespace) -> serde_json::Value {
    let text = namespace.sh("nft -j list table inet proxy-init");
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    forget_handles(&mut value);
    value
}

/// Handles are numbers that the kernel gives in order.
fn forget_handles(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.remove("handle");
            map.values_mut().for_each(forget_handles);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(forget_handles),
        _ => {}
    }
}

/// Compares the installation, the simulated script's rules, the rules from nft's own listing, and verify's answer.
fn check(flags: &Flags) {
    let with = |namespace: &Namespace, more: &str| {
        install(namespace, &format!("{more} --iptables-mode=native {}", flags.line()))
    };
    let ours = Namespace::new();
    let script = with(&ours, "--simulate");
    assert_eq!(ours.sh("nft list ruleset"), "");
    with(&ours, "");
    let want = json(&ours);
    let verified = with(&ours, "verify");
    assert!(verified.starts_with("in place in native mode: rules complete"), "{verified}");

    let scripted = Namespace::new();
    for _ in 0..2 {
        nft(&scripted, &script);
        assert_eq!(json(&scripted), want);
    }
    let listed = Namespace::new();
    nft(&listed, &ours.sh("nft list ruleset"));
    assert_eq!(json(&listed), want);
    // Over an earlier table, whatever it was.
    with(&listed, "");
    assert_eq!(json(&listed), want);
}

#[test]
fn the_script_makes_the_same_table() {
    check(&Flags::default());
    // In which each takes over from the one before.
    let used = Namespace::new();
    for_any_flags(16, |flags| {
        check(flags);
        let [used_again, fresh] = [&used, &Namespace::new()].map(|namespace| {
            install(namespace, &format!("--iptables-mode=native {}", flags.line()));
            sorted(namespace)
        });
        assert_eq!(used_again, fresh);
    });
}

/// Ports that don't touch, each by itself.
fn single_ports(count: u16) -> Vec<(u16, u16)> {
    (1..=count).map(|port| (2 * port, 2 * port)).collect()
}

#[test]
fn each_list_has_the_set_that_the_kernel_fills_fastest() {
    let inbound = |ports: &[(u16, u16)]| Flags { inbound: ports.to_vec(), outbound: vec![], ..Flags::default() };
    let both = |ports: &[(u16, u16)]| Flags { outbound: ports.to_vec(), ..inbound(ports) };
    for (flags, want, unwanted) in [
        (inbound(&[(80, 90)]), &["set inbound-ports", "flags interval"][..], &["timeout"][..]),
        (inbound(&[(80, 80), (82, 82)]), &["set inbound-ports", "elements = { 80, 82 }"], &["flags"]),
        (
            inbound(&single_ports(200)),
            &["set inbound-ports", "flags timeout", "gc-interval 1d", "size 200"],
            &["interval\n"],
        ),
        (both(&[(80, 80)]), &["tcp dport 80 counter"], &["set "]),
        (
            both(&[(80, 90), (443, 443)]),
            &["set ports", "tcp dport @ports counter"],
            &["set inbound-ports", "set outbound-ports", "@inbound-ports", "@outbound-ports"],
        ),
    ] {
        check(&flags);
        let namespace = Namespace::new();
        install(&namespace, &format!("--iptables-mode native {}", flags.line()));
        let listed = namespace.sh("nft list table inet proxy-init");
        for words in want {
            assert!(listed.contains(words), "{words} in {listed}");
        }
        for words in unwanted {
            assert!(!listed.contains(words), "{words} in {listed}");
        }
        // The flags are recovered from what is there.
        install(&namespace, "verify");
    }
}

/// A set of intervals with the same ports is as good: it stays, with the counters.
#[test]
fn a_table_with_sets_of_intervals_stays() {
    let namespace = Namespace::new();
    let script = install(&namespace, &format!("--simulate {}", chart()));
    assert_eq!(script.matches("type inet_service\n").count(), 2, "{script}");
    let intervals = script.replace("type inet_service\n", "type inet_service\nflags interval\n");
    nft(&namespace, &intervals);
    let before = namespace.sh("nft -a list ruleset");
    assert_eq!(before.matches("flags interval").count(), 2, "{before}");
    install(&namespace, &format!("verify {}", chart()));
    let log = install(&namespace, &chart());
    assert!(log.contains("nothing was changed"), "{log}");
    assert_eq!(namespace.sh("nft -a list ruleset"), before);
}

/// The table, and not in which order its sets were made.
fn sorted(namespace: &Namespace) -> Vec<String> {
    let table = json(namespace);
    let (mut sets, mut others) = (Vec::new(), Vec::new());
    for object in table["nftables"].as_array().unwrap() {
        if object.get("metainfo").is_none() {
            let list = if object.get("set").is_some() { &mut sets } else { &mut others };
            list.push(object.to_string());
        }
    }
    sets.sort();
    [sets, others].concat()
}

/// With the same sets, chains whose rules other flags share with the earlier ones stay, and the result is as in a fresh
/// namespace.
#[test]
fn other_flags_replace_only_the_chains_that_differ() {
    let base = format!("--iptables-mode native {PORTS} -u 2102");
    for (before, after, stay) in [
        // An exception with a set before the redirection; and gone again.
        ("", "--inbound-ports-to-ignore 90,92", 0),
        ("--inbound-ports-to-ignore 90,92", "", 0),
        // Another set of the same name.
        ("--inbound-ports-to-ignore 90,92", "--inbound-ports-to-ignore 90,93", 0),
        // A set of both directions is now one direction's own.
        (
            "--inbound-ports-to-ignore 90,92 --outbound-ports-to-ignore 90,92",
            "--inbound-ports-to-ignore 90,92 --outbound-ports-to-ignore 90,93",
            0,
        ),
        // The same sets, and another rule of one chain.
        (
            "--subnets-to-ignore 10.0.0.0/8,192.0.2.0/24",
            "--subnets-to-ignore 10.0.0.0/8,192.0.2.0/24 --inbound-ports-to-ignore 90",
            5,
        ),
    ] {
        let [namespace, fresh] = changed_and_fresh(&base, before, after, stay);
        assert_eq!(sorted(&namespace), sorted(&fresh), "{before} to {after}");
    }
}

/// Other programs' additions to native mode's own table go with the next run, whatever its flags are.
#[test]
fn what_does_not_belong_into_the_table_goes() {
    for more in [
        "nft add set inet proxy-init other { type mark ; }",
        "nft add chain inet proxy-init other",
        "nft add chain inet proxy-init other { type filter hook input priority 0 ; policy drop ; }",
        "nft add chain inet proxy-init PREROUTING { type nat hook prerouting priority -100 ; policy drop ; }",
        "nft add counter inet proxy-init other",
        "nft add rule inet proxy-init OUTPUT tcp dport { 1, 2 } accept",
        "nft add rule inet proxy-init OUTPUT tcp dport vmap { 1 : accept }",
        "nft add map inet proxy-init other { type mark : verdict ; }",
        "nft insert rule inet proxy-init PROXY_INIT_REDIRECT drop",
    ] {
        for flags in [None, Some("-r 80")] {
            let namespace = Namespace::new();
            install(&namespace, &chart());
            let before = json(&namespace);
            namespace.sh(more);
            assert_ne!(json(&namespace), before, "{more}");
            if let Some(flags) = flags {
                install(&namespace, &format!("{} {flags}", chart()));
            }
            install(&namespace, &chart());
            assert_eq!(json(&namespace), before, "{more}, {flags:?}");
        }
    }
}

/// Elements that go by themselves, or that match only sometimes, are not what native mode makes.
#[test]
fn sets_that_do_not_last_are_reported_and_replaced() {
    let namespace = Namespace::new();
    install(&namespace, &chart());
    let listed = namespace.sh("nft list ruleset");
    let (set, before) = ("type inet_service\n\t\telements = { 4190, 4191", sorted(&namespace));
    for other in [
        "type inet_service; timeout 1h\nelements = { 4190, 4191",
        "type inet_service; flags timeout\nelements = { 4190, 4191 timeout 1h",
        "type inet_service; limit rate 1/hour burst 1 packets\nelements = { 4190, 4191",
        "type inet_service; quota over 100 bytes\nelements = { 4190, 4191",
    ] {
        assert!(listed.contains(set), "{listed}");
        let changed = format!("flush ruleset\n{}", listed.replace(set, other));
        for flags in [String::new(), " --outbound-ports-to-ignore 443".to_owned()] {
            nft(&namespace, &changed);
            let verified = Run::new(&format!("verify {}", chart())).output(&namespace);
            assert_eq!(verified.code(), Some(3), "{other}: {}", verified.stdout());
            assert!(verified.stdout().contains("set inbound-ports: "), "{}", verified.stdout());
            install(&namespace, &(chart() + &flags));
            install(&namespace, &chart());
            assert_eq!(sorted(&namespace), before, "{other}, {flags}");
        }
    }
    // Counters of elements change nothing.
    let counted = listed.replace("type inet_service\n", "type inet_service; counter\n");
    nft(&namespace, &format!("flush ruleset\n{counted}"));
    install(&namespace, &format!("verify {}", chart()));
}

#[test]
fn somebody_who_knows_linkerd_finds_the_rules() {
    let namespace = Namespace::new();
    install(&namespace, &chart());
    let table = namespace.sh("nft list table inet proxy-init");
    for words in [
        "chain PROXY_INIT_REDIRECT",
        "chain PROXY_INIT_OUTPUT",
        "elements = { 4190, 4191, 4567, 4568 }",
        "meta skuid 2102 counter packets 0 bytes 0 return comment \"proxy-init/ignore-proxy-user-id\"",
        "comment \"proxy-init/ignore-port-4190,4191,4567,4568\"",
        "redirect to :4140 comment \"proxy-init/redirect-all-outgoing-to-proxy-port\"",
    ] {
        assert!(table.contains(words), "{words} in {table}");
    }
}

#[test]
fn all_ports_in_both_lists_work() {
    let namespace = Namespace::new();
    // Every other port first, so that nothing merges until the rest comes.
    let ports: Vec<String> =
        (1..=65_535u32).step_by(2).chain((2..=65_535).step_by(2)).map(|port| port.to_string()).collect();
    let list = ports.join(",");
    let odd = ports[..32_768].join(",");
    // With the chart's 4568. All ports are one interval, and the same for both directions.
    for (list, set, elements) in [(odd, "outbound-ports", 32_769), (list, "ports", 1)] {
        // Longer than one argument may be: in several.
        let chunks = list.split(',').collect::<Vec<_>>();
        let arguments = chunks.chunks(10_000).flat_map(|chunk| {
            let chunk = chunk.join(",");
            ["inbound", "outbound"].map(|way| format!("--{way}-ports-to-ignore={chunk}"))
        });
        Run::new(&chart()).arguments(arguments).output(&namespace).success();
        let set = namespace.sh(&format!("nft list set inet proxy-init {set}"));
        let found = set.split_once('{').unwrap().1.split("elements").nth(1).unwrap().matches(',').count() + 1;
        assert_eq!(found, elements, "{}", &set[..200]);
    }
}

#[test]
fn a_failed_replacement_leaves_the_old_table() {
    let namespace = Namespace::new();
    install(&namespace, &chart());
    let before = namespace.sh("nft list ruleset");
    let line = Run::new(&format!("{} -r 80", chart())).failing("sendto", "ENOBUFS").output(&namespace).last_line();
    assert!(line.contains("native mode") && line.contains("ENOBUFS"), "{line}");
    assert_eq!(namespace.sh("nft list ruleset"), before);
}

#[test]
fn drift_is_reported() {
    for (drift, want) in [
        ("nft delete table inet proxy-init", "table inet proxy-init: not found"),
        ("nft flush chain inet proxy-init OUTPUT", "missing"),
        ("nft add element inet proxy-init inbound-ports { 80 }", "unexpected\n  + 80"),
        ("nft delete element inet proxy-init inbound-ports { 4190, 4191 }", "missing\n  - 4190-4191"),
        ("nft add rule inet proxy-init PROXY_INIT_OUTPUT ct mark 7 accept", "unexpected\n  + ct mark 7 accept"),
        ("nft insert rule inet proxy-init PROXY_INIT_OUTPUT tcp dport != 80 return", "unexpected"),
        ("nft add set inet proxy-init other { type mark ; }", "set other: unexpected"),
    ] {
        let namespace = Namespace::new();
        install(&namespace, &chart());
        namespace.sh(drift);
        let output = Run::new(&format!("verify {}", chart())).output(&namespace);
        let text = output.stdout();
        assert_eq!(output.code(), Some(3), "{drift}: {text}");
        assert!(text.contains(want), "{drift}: {text}");
    }
}
