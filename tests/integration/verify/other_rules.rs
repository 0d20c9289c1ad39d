//! `verify` finds those rules of others, and only those, that take connections away from ours.

use lab::network::Namespace;
use serde_json::Value;

use crate::support::{Run, chart_in, install, nft, unfolded};

/// The commands run in a namespace, before and after installing.
struct Case<'a> {
    mode: &'static str,
    before: &'a [&'a str],
    after: &'a [&'a str],
    /// The kinds of findings; none: in place.
    kinds: &'static [&'static str],
}

impl Case<'_> {
    fn verify(&self) -> (Option<i32>, Value) {
        let namespace = Namespace::new();
        namespace.all(self.before);
        install(&namespace, &chart_in(self.mode));
        namespace.all(self.after);
        let verified = Run::new(&format!("verify --output json {}", chart_in(self.mode))).output(&namespace);
        let report = serde_json::from_str(&verified.stdout()).unwrap();
        (verified.code(), report)
    }

    fn check(&self) {
        let (code, report) = self.verify();
        let mut kinds: Vec<_> =
            report["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
        kinds.sort();
        kinds.dedup();
        let what = format!("{} {:?} {:?}: {report:#}", self.mode, self.before, self.after);
        assert_eq!(kinds, self.kinds, "{what}");
        assert_eq!(code, Some(if self.kinds.is_empty() { 0 } else { 3 }), "{what}");
    }
}

#[test]
fn a_dormant_table_or_an_unhooked_chain_is_not_in_place() {
    for (mode, after, kinds) in [
        ("nft", &["nft add table ip nat { flags dormant ; }"][..], &["dormant"][..]),
        ("native", &["nft add table inet proxy-init { flags dormant ; }"], &["dormant"]),
        ("nft", &["nft chain ip nat PREROUTING { policy drop ; }"], &["policy"]),
        ("native", &["nft chain inet proxy-init OUTPUT { policy drop ; }"], &["policy"]),
    ] {
        Case { mode, before: &[], after, kinds }.check();
    }
    // A chain of the same name and rules; another priority alone is no difference.
    for (definition, is_hooked) in [
        ("", false),
        ("{ type nat hook output priority -100; }", false),
        ("{ type nat hook prerouting priority -90; }", true),
    ] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("native"));
        let script = format!(
            "flush chain inet proxy-init PREROUTING\ndelete chain inet proxy-init PREROUTING\nadd chain inet proxy-init \
             PREROUTING {definition}\nadd rule inet proxy-init PREROUTING counter jump PROXY_INIT_REDIRECT comment \
             \"proxy-init/install-proxy-init-prerouting\"\n"
        );
        nft(&namespace, &script);
        let verified = Run::new(&format!("verify {}", chart_in("native"))).output(&namespace);
        assert_eq!(verified.code(), Some(if is_hooked { 0 } else { 3 }), "{definition}: {}", verified.said());
        assert_eq!(verified.stdout().contains("not hooked"), !is_hooked, "{definition}: {}", verified.said());
    }
}

/// Connections of a family for which there are no rules are nobody's loss.
#[test]
fn native_modes_table_may_be_for_one_family() {
    for (flags, lost) in [("", &["IPv4", "IPv6"][..]), ("--ipv6=false", &["IPv4"])] {
        let namespace = Namespace::new();
        let flags = format!("{} {flags}", chart_in("native"));
        install(&namespace, &flags);
        nft(&namespace, "table inet mine { chain early { type filter hook prerouting priority -150; drop; }; }");
        let verified = Run::new(&format!("verify --output json {flags}")).output(&namespace);
        let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        let mut families: Vec<_> = findings.map(|finding| finding["family"].as_str().unwrap()).collect();
        families.sort();
        families.dedup();
        assert_eq!(families, lost, "{report:#}");
    }
}

/// A rule that accepts a part of them, by several fields, before one that drops the rest.
#[test]
fn a_finding_names_exactly_the_connections_that_are_lost() {
    let ours = "-A INPUT -s 10.1.0.0/16 -i eth0 -j ACCEPT";
    let tailscale = "-A INPUT -s 100.115.92.0/23 ! -i tailscale0 -j RETURN";
    for (first, second, connections) in [
        (ours, "-A INPUT -s 10.0.0.0/8 -i eth0 -j DROP", "from 10.0.0.0/16,10.2.0.0-10.255.255.255"),
        (
            tailscale,
            "-A INPUT -s 100.64.0.0/10 ! -i tailscale0 -j DROP",
            "from 100.64.0.0-100.115.91.255,100.115.94.0-100.127.255.255",
        ),
        // Packets from there by another device are lost nevertheless.
        (ours, "-A INPUT -s 10.0.0.0/8 -j DROP", "from 10.1.0.0/16 to port 4143 arriving on any interface except"),
    ] {
        let namespace = Namespace::new();
        for device in ["eth0", "eth1"] {
            namespace.sh(&format!("ip link add {device} type veth peer name {device}x"));
        }
        install(&namespace, &chart_in("nft"));
        for rule in [first, second] {
            namespace.sh(&format!("iptables-nft {rule}"));
        }
        let verified = Run::new(&format!("verify --output json {}", chart_in("nft"))).output(&namespace);
        let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
        let findings = [&report["findings"], &report["warnings"]].map(ToString::to_string).concat();
        assert!(findings.contains(connections), "{second}: {report:#}");
        // The ACK meets the socket of the proxy, which is no other connection.
        assert!(!findings.contains("user 2102"), "{report:#}");
    }
}

#[test]
fn an_earlier_base_chain_that_redirects_is_reported_in_every_mode() {
    for mode in ["nft", "native", "legacy"] {
        for table in ["ip other", "ip6 other", "inet other", "inet proxy-init"] {
            let namespace = Namespace::new();
            install(&namespace, &chart_in(mode));
            for line in [
                format!("nft add table {table}"),
                format!("nft add chain {table} early {{ type nat hook prerouting priority -150 ; }}"),
                format!("nft add rule {table} early tcp dport 8080 redirect to :9999"),
            ] {
                namespace.sh(&line);
            }
            let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
            assert_eq!(verified.code(), Some(3), "{mode} {table}: {}", verified.said());
            let text = unfolded(&verified.stdout());
            assert!(
                text.contains("redirects connections: to port 8080") && text.contains("redirect to :9999"),
                "{mode} {table}: {text}"
            );
        }
    }
}

/// With iptables of either kind, before and after.
#[test]
fn jumps_gotos_and_negations_are_followed() {
    for (mode, iptables) in [("nft", "iptables-nft -t nat"), ("legacy", "iptables-legacy -t nat")] {
        for (before, shadowed) in [
            (&["-N F", "-A PREROUTING -p tcp -g F"][..], true),
            (&["-N F", "-A F -p tcp -j REDIRECT --to-ports 99", "-A PREROUTING -j F"], true),
            (
                &[
                    "-N DOCKER",
                    "-A DOCKER -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80",
                    "-A PREROUTING -j DOCKER",
                ],
                true,
            ),
            (&["-A PREROUTING ! -p udp -j ACCEPT"], true),
            (&["-A PREROUTING -p tcp -j NETMAP --to 10.9.0.0/24"], true),
            (&["-A PREROUTING -p tcp -j RETURN"], true),
            (&["-A OUTPUT -m owner ! --uid-owner 2102 -j ACCEPT"], true),
            (&["-A PREROUTING -p tcp -m statistic --mode nth --every 2 --packet 0 -j ACCEPT"], true),
            // These rules can't match TCP, come back, or don't decide.
            (&["-A PREROUTING -p udp -j ACCEPT"], false),
            (&["-A PREROUTING ! -p tcp -j ACCEPT"], false),
            (&["-N F", "-A F -s 10.0.0.0/8 -j RETURN", "-A PREROUTING -j F"], false),
            (&["-N F", "-A F -p udp -j ACCEPT", "-A PREROUTING -p tcp -j F"], false),
            (&["-N F", "-A F -j RETURN", "-A F -j REDIRECT", "-A PREROUTING -j F"], false),
            (&["-N F", "-A F -p tcp --dport 81 -j ACCEPT", "-A PREROUTING -p tcp --dport 80 -j F"], false),
            (&["-N F", "-A F -i eth+ -j RETURN", "-A F -i eth0 -j ACCEPT", "-A PREROUTING -j F"], false),
            // An arriving packet has no outgoing device yet.
            (&["-N F", "-A F -o eth0 -p tcp -j ACCEPT", "-A PREROUTING -j F"], false),
        ] {
            let namespace = Namespace::new();
            for line in before {
                namespace.sh(&format!("{iptables} {line}"));
            }
            install(&namespace, &chart_in(mode));
            let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
            let want = if shadowed { 3 } else { 0 };
            assert_eq!(verified.code(), Some(want), "{mode} {before:?}: {}", verified.said());
            assert_eq!(verified.stdout().contains("shadowed"), shadowed, "{}", verified.said());
        }
    }
}

/// An unknown expression replaces the register's former content.
#[test]
fn no_rule_is_judged_by_an_old_value() {
    for rule in [
        "ip saddr 10.9.0.1 ct reply ip daddr 10.9.0.2 drop",
        "tcp dport 443 ct reply proto-dst 444 drop",
        "tcp dport 443 ct reply proto-dst { 444, 445 } drop",
        "tcp dport 443 numgen random mod 2 == 0 drop",
        "tcp dport 443 jhash ip saddr mod 2 == 0 drop",
        "tcp dport 443 fib daddr type local drop",
        "tcp dport 443 tcp dport set 4190 tcp dport 4190 drop",
        "ip saddr 10.9.0.1 ip saddr set 10.9.0.5 ip saddr 10.9.0.5 drop",
    ] {
        let before =
            [format!("nft table ip fw {{ chain pre {{ type filter hook prerouting priority -150 ; {rule} ; }} ; }}")];
        Case { mode: "nft", before: &before.each_ref().map(String::as_str), after: &[], kinds: &["shadowed"] }.check();
    }
}

/// Connection tracking has put fragments together before any of these rules see them.
#[test]
fn legacy_conditions_on_fragments_are_understood() {
    for (line, kinds) in [("-f", &[][..]), ("! -f", &["shadowed"])] {
        let before = [format!("iptables-legacy -t nat -A PREROUTING {line} -j ACCEPT")];
        Case { mode: "legacy", before: &before.each_ref().map(String::as_str), after: &[], kinds }.check();
    }
}

#[test]
fn sets_maps_and_other_hooks_are_understood() {
    // The rules of a nat chain, with sets before it, and those of a chain that runs before it.
    for (sets, rules, kinds) in [
        ("", "tcp dport vmap { 1-65535 : accept }", &["shadowed"][..]),
        ("", "udp dport vmap { 1-65535 : accept }", &[]),
        ("set ports { type inet_service; elements = { 80 }; };", "tcp dport @ports accept", &["shadowed"]),
        // Nothing is in the set.
        ("set ports { type inet_service; };", "tcp dport @ports accept", &[]),
        // A connection's first packet is new.
        ("", "ct state established,related accept", &[]),
    ] {
        let chain = "chain PREROUTING { type nat hook prerouting priority -100;";
        let before = format!("nft table ip nat {{ {sets} {chain} {rules}; }}; }}");
        Case { mode: "nft", before: &[&before], after: &[], kinds }.check();
    }
    for (priority, rules, kinds) in [
        // Anonymous sets, without any named one; and no set at all.
        (-150, "meta l4proto { icmp, udp } drop", &[][..]),
        (-150, "tcp dport vmap { 9 : drop }", &["shadowed"]),
        (-150, "ct state vmap { established : accept, related : accept, invalid : drop }", &[]),
        (-150, "ct state vmap { established : accept, new : drop }", &["dropped", "shadowed"]),
        // Replies would be looked up in another zone than their connection.
        (-310, "ct zone set 3", &["shadowed"]),
        (-310, "ct original zone set 3", &["shadowed"]),
    ] {
        let chain = format!("chain pre {{ type filter hook prerouting priority {priority}; {rules}; }}");
        let before = format!("nft table inet fw {{ {chain}; }}");
        Case { mode: "nft", before: &[&before], after: &[], kinds }.check();
    }
    for (before, kinds) in [
        ("iptables-legacy -t raw -A PREROUTING -p tcp -j CT --zone 3", &["shadowed"][..]),
        ("iptables-nft -t raw -A PREROUTING -p tcp --dport 80 -j CT --notrack", &["shadowed"]),
        ("iptables-legacy -t raw -A PREROUTING -p tcp --dport 22 -j DROP", &["shadowed"]),
        ("iptables-nft -t mangle -A PREROUTING -p tcp -j MARK --set-mark 1", &[]),
        // After the redirection, from the proxy on.
        ("iptables-nft -t filter -A OUTPUT -p tcp --dport 22 -j DROP", &["dropped"]),
        ("iptables-nft -t filter -A OUTPUT -p tcp --dport 22 -d 192.0.2.1 -j DROP", &[]),
        ("iptables-nft -t filter -A OUTPUT -p tcp --dport 22 -m owner ! --uid-owner 2102 -j DROP", &[]),
        ("iptables-nft -t filter -P INPUT DROP", &["dropped"]),
        // As fail2ban bans a host.
        ("iptables-nft -t filter -A INPUT -s 192.0.2.1 -j REJECT", &[]),
        ("iptables-nft -t raw -A PREROUTING -s 192.0.2.1 -j DROP", &[]),
        ("iptables-nft -t filter -A INPUT -s 192.0.2.1 ! -i eth1 -j DROP", &["dropped"]),
    ] {
        Case { mode: "nft", before: &[before], after: &[], kinds }.check();
    }
}

#[test]
fn a_finding_says_which_connections() {
    let case = Case {
        mode: "nft",
        before: &["iptables-nft -t nat -A PREROUTING -s 192.0.2.0/24 -p tcp --dport 80:90 -j ACCEPT"],
        after: &[],
        kinds: &["shadowed"],
    };
    case.check();
    let (_, report) = case.verify();
    let finding = &report["findings"][0];
    assert_eq!(report["schema"], 1);
    assert_eq!(finding["connections"], "from 192.0.2.0/24 to port 80-90");
    assert_eq!(finding["certain"], true);
    assert_eq!(finding["family"], "IPv4");
    assert_eq!(finding["found"][0], "-A PREROUTING -s 192.0.2.0/24 -p tcp -m tcp --dport 80:90 -j ACCEPT");
}

/// The kernel is given the `+` of legacy rules too, after what it compares.
#[test]
fn interfaces_that_begin_alike_are_named_alike() {
    for mode in ["nft", "legacy"] {
        let before = [format!("iptables-{mode} -t nat -A PREROUTING -i eth+ -j ACCEPT")];
        let (_, report) =
            Case { mode, before: &before.each_ref().map(String::as_str), after: &[], kinds: &["shadowed"] }.verify();
        let finding = &report["findings"][0];
        assert_eq!(finding["connections"], "arriving on \"eth*\"");
        assert_eq!(finding["found"][0], "-A PREROUTING -i eth+ -j ACCEPT");
    }
}

/// Of chains with equal priorities in different tables, which was hooked first isn't recorded.
#[test]
fn an_order_that_is_not_known_is_said_not_to_be_certain() {
    let (code, report) = Case {
        mode: "nft",
        before: &[],
        after: &[
            "nft add table ip other",
            "nft add chain ip other out { type nat hook output priority -100 ; }",
            "nft add rule ip other out tcp dport 53 dnat to 192.0.2.1",
        ],
        kinds: &["shadowed"],
    }
    .verify();
    assert_eq!(code, Some(3));
    assert_eq!(report["findings"][0]["certain"], false, "{report:#}");
}

#[test]
fn names_that_are_no_text_stop_nothing() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        for table in ["nat", "mangle"] {
            namespace.sh(&format!("bash -c iptables-nft${{IFS}}-t${{IFS}}{table}${{IFS}}-N${{IFS}}$'\\xff\\xfe'"));
        }
        assert!(namespace.run(|| {
            let listed = std::process::Command::new("iptables-nft").args(["-t", "nat", "-S"]).output();
            listed.unwrap().stdout.windows(2).any(|bytes| bytes == b"\xff\xfe")
        }));
        install(&namespace, &chart_in(mode));
        install(&namespace, &format!("verify {}", chart_in(mode)));
        install(&namespace, "--iptables-mode auto -p 4143 -o 4140");
        install(&namespace, "detect");
        install(&namespace, "uninstall");
    }
}

/// Beside a run that installs the same over and over, verify never sees half of it.
#[test]
fn it_raises_no_false_alarm_beside_runs_with_the_same_flags() {
    let namespace = Namespace::new();
    install(&namespace, &format!("{} --proxy-gid 2102", chart_in("nft")));
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            for gid in [2102, 2103].iter().cycle().take(60) {
                install(&namespace, &format!("{} --proxy-gid {gid}", chart_in("nft")));
            }
        });
        let flags = chart_in("nft");
        while !again.is_finished() {
            for gid in [2102, 2103] {
                let verified = Run::new(&format!("verify --output json {flags} --proxy-gid {gid}")).output(&namespace);
                let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
                let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{}", verified.said()));
                // The whole rules of the one run or of the other: the rule on the group differs in both families, and
                // nothing else.
                let kinds: Vec<_> = findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
                assert!(kinds.is_empty() || kinds == ["different"; 2], "{report:#}");
            }
        }
        again.join().unwrap();
    });
}

/// Rules that drop only packets that the kernel drops too take nothing away: the usual rules against forged addresses.
#[test]
fn rules_against_forged_addresses_are_no_finding() {
    let v4 = ["127.0.0.0/8", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"];
    let v6 = ["::1/128", "ff00::/8"];
    for (mode, table) in [("nft", "-t raw"), ("nft", "-t mangle"), ("legacy", "-t raw")] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        for (command, networks) in [("iptables", &v4[..]), ("ip6tables", &v6)] {
            for network in networks {
                namespace.sh(&format!("{command}-{mode} {table} -A PREROUTING ! -i lo -s {network} -j DROP"));
                namespace.sh(&format!("{command}-{mode} {table} -A PREROUTING ! -i lo -d {network} -j DROP"));
            }
            let loopback = networks[0];
            namespace.sh(&format!("{command}-{mode} -A INPUT ! -i lo -d {loopback} -j REJECT"));
            namespace.sh(&format!("{command}-{mode} -A INPUT ! -i lo -s {loopback} -j DROP"));
        }
        let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
        assert_eq!(verified.code(), Some(0), "{mode} {table}: {}", verified.said());
        // One that drops others besides is one.
        namespace.sh(&format!("iptables-{mode} {table} -A PREROUTING ! -i lo -s 126.0.0.0/7 -j DROP"));
        let verified = Run::new(&format!("verify {}", chart_in(mode))).output(&namespace);
        assert_eq!(verified.code(), Some(3), "{mode} {table}: {}", verified.said());
        assert!(unfolded(&verified.stdout()).contains("drops connections: from 126.0.0.0/8"), "{}", verified.said());
    }
}
