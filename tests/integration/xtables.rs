//! The common facts of nft mode and legacy mode, as the iptables of each sees them.

use lab::linkerd::Flags;
use lab::network::Namespace;

use crate::any_flags::for_any_flags;
use crate::support::{chart_in, install, saved, saved_by, unfolded};

/// The modes whose rules iptables reads and writes too, as the names of its commands have them.
const MODES: [&str; 2] = ["nft", "legacy"];

/// Installs in one namespace with proxy-init and in another with iptables, and compares.
fn check_against_iptables(mode: &str, flags: &Flags) {
    let ours = Namespace::new();
    install(&ours, &format!("--iptables-mode {mode} -w {}", flags.line()));
    let theirs = Namespace::new();
    flags.add_with_iptables(&theirs, mode);
    assert_eq!(saved(&ours, mode), saved(&theirs, mode), "{mode}");

    let ruleset = ours.sh("nft list ruleset");
    if mode == "legacy" {
        assert_eq!(ruleset, "");
    }
    for (program, command) in flags.commands(mode) {
        let Some(rule) = command.strip_prefix("-A ") else {
            continue;
        };
        let check = match mode {
            // It tells `-p all` from no -p at all, by a flag that it neither saves nor lists.
            "legacy" => rule.replace("-p all ", ""),
            _ => rule.to_owned(),
        };
        ours.sh(&format!("{program} -t nat -C {check}"));
        let comment = rule.rsplit_once("--comment ").unwrap().1;
        assert!(mode == "legacy" || ruleset.contains(&format!("comment \"{comment}\"")), "{comment} in {ruleset}");
    }
}

#[test]
fn the_rules_are_those_that_iptables_makes() {
    let subnets = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    for mode in MODES {
        for flags in [
            Flags::default(),
            Flags { inbound: vec![(4190, 4190), (4191, 4191), (4567, 4568)], ipv6: false, ..Flags::default() },
            Flags { uid: None, inbound: vec![], outbound: vec![], ..Flags::default() },
            Flags {
                gid: Some(2103),
                redirect: vec![80, 443, 80],
                inbound_subnets: subnets(&["10.0.0.0/8", "10.1.2.3/30", "0.0.0.0/0", "fd00::/8", "fd77:1::/45"]),
                outbound_subnets: subnets(&["192.0.2.7/32", "2001:db8::1/128", "::/0"]),
                ..Flags::default()
            },
        ] {
            check_against_iptables(mode, &flags);
        }
    }
}

#[test]
fn any_rules_are_those_that_iptables_makes() {
    for_any_flags(16, |flags| {
        for mode in MODES {
            check_against_iptables(mode, flags);
        }
    });
}

#[test]
fn running_again_gives_the_rules_of_its_own_flags_once() {
    let other = Flags { redirect: vec![80], gid: Some(7), ..Flags::default() };
    let fewer = Flags { inbound: vec![], ..Flags::default() };
    for mode in MODES {
        let namespace = Namespace::new();
        for flags in [&Flags::default(), &Flags::default(), &other, &other, &fewer] {
            install(&namespace, &format!("--iptables-mode {mode} {}", flags.line()));
            let theirs = Namespace::new();
            flags.add_with_iptables(&theirs, mode);
            assert_eq!(saved(&namespace, mode), saved(&theirs, mode), "{mode}");
        }
    }
}

#[test]
fn rules_that_iptables_made_are_taken_over() {
    for mode in MODES {
        let namespace = Namespace::new();
        Flags::default().add_with_iptables(&namespace, mode);
        let before = saved(&namespace, mode);
        install(&namespace, &chart_in(mode));
        assert_eq!(saved(&namespace, mode), before, "{mode}");
    }
}

/// linkerd-init 2.2.4 and 2.3.x, as in Linkerd 2.15, end each comment with the time.
#[test]
fn rules_of_linkerd_init_before_2_4_are_known_and_replaced() {
    for mode in MODES {
        let namespace = Namespace::new();
        for (program, rule) in Flags::default().commands(mode) {
            let time = if rule.contains(" --comment ") { "/1700000000" } else { "" };
            namespace.sh(&format!("{program} -t nat {rule}{time}"));
        }
        let told = "linkerd-init before 2.4.0 made rules here";
        let flags = chart_in(mode);
        for line in ["verify".to_owned(), format!("verify {flags}")] {
            let text = unfolded(&install(&namespace, &line));
            assert!(text.contains(told), "{mode}: {text}");
        }
        install(&namespace, &flags);
        let fresh = Namespace::new();
        install(&fresh, &flags);
        assert_eq!(saved(&namespace, mode), saved(&fresh, mode), "{mode}");
        let text = unfolded(&install(&namespace, "verify"));
        assert!(!text.contains(told), "{mode}: {text}");
    }
}

#[test]
fn running_again_beside_other_peoples_rules_leaves_them() {
    for mode in MODES {
        let namespace = Namespace::new();
        for rule in [
            "-A PREROUTING -s 192.0.2.9 -j ACCEPT",
            "-N OTHER",
            "-A OUTPUT -p udp -m comment --comment it's\"mine\" -j OTHER",
        ] {
            namespace.sh(&format!("iptables-{mode} -t nat {rule}"));
        }
        let foreign = saved(&namespace, mode);
        // First iptables' own rules, then other flags, twice.
        Flags::default().add_with_iptables(&namespace, mode);
        let other = Flags { redirect: vec![80], gid: Some(7), ..Flags::default() };
        for flags in [Flags::default(), other.clone(), other] {
            install(&namespace, &format!("--iptables-mode {mode} {}", flags.line()));
            let theirs = Namespace::new();
            flags.add_with_iptables(&theirs, mode);
            let ours = saved(&namespace, mode);
            for line in saved(&theirs, mode).lines().chain(foreign.lines()) {
                assert!(ours.contains(line), "{mode}: {line} in {ours}");
            }
            // IPv6 has no foreign rules: it holds what was installed, once each.
            let save = format!("ip6tables-{mode}-save");
            assert_eq!(saved_by(&namespace, &save), saved_by(&theirs, &save), "{mode}");
            assert_eq!(ours.matches("-A PREROUTING").count(), 3, "{mode}: {ours}");
        }
    }
}

#[test]
fn what_somebody_broke_is_put_right() {
    for mode in MODES {
        let iptables = |rest: &str| format!("iptables-{mode} -t nat {rest}");
        let ip6tables = |rest: &str| format!("ip6tables-{mode} -t nat {rest}");
        let mut damages = vec![
            vec![iptables("-F PREROUTING")],
            // A second copy of the jump.
            vec![iptables("-A OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT")],
            vec![iptables("-F PROXY_INIT_OUTPUT"), ip6tables("-D PROXY_INIT_REDIRECT 1")],
            vec![ip6tables("-F PROXY_INIT_OUTPUT")],
            vec![ip6tables("-F OUTPUT"), ip6tables("-F PROXY_INIT_OUTPUT"), ip6tables("-X PROXY_INIT_OUTPUT")],
            vec![ip6tables("-A PROXY_INIT_OUTPUT -j ACCEPT")],
        ];
        if mode == "nft" {
            damages.push(vec!["nft delete table ip6 nat".to_owned()]);
            damages.push(vec!["nft add rule ip nat PROXY_INIT_OUTPUT tcp dport 80 accept".to_owned()]);
        }
        let chart = chart_in(mode);
        let whole = Namespace::new();
        install(&whole, &chart);
        for damage in damages {
            let namespace = Namespace::new();
            install(&namespace, &chart);
            for line in &damage {
                namespace.sh(line);
            }
            install(&namespace, &chart);
            assert_eq!(saved(&namespace, mode), saved(&whole, mode), "{damage:?}");
        }
    }
}

#[test]
fn without_ipv6_an_earlier_runs_ipv6_rules_go() {
    for mode in MODES {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        install(&namespace, &format!("{} --ipv6=false", chart_in(mode)));
        let left = saved_by(&namespace, &format!("ip6tables-{mode}-save"));
        assert!(!left.contains("PROXY_INIT"), "{mode}: {left}");
        let kept = saved_by(&namespace, &format!("iptables-{mode}-save"));
        assert!(kept.contains("-j PROXY_INIT_OUTPUT"), "{mode}: {kept}");
    }
}
