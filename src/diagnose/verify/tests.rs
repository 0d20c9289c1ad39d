//! Verifying rules, and recognizing an installation by them.

use ruleset::{Action, Direction, Hook, Kind, testing};

use super::*;
use crate::plan::ChainName;

fn chart() -> Config {
    let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
    config.proxy_uid = OwnerId::new(2102);
    config.ignored_inbound_ports = ["4190", "4191", "4567", "4568"].map(|port| port.parse().unwrap()).into();
    config
}

fn ruleset(tables: Vec<Table>) -> Ruleset {
    Ruleset { tables, not_known: vec![] }
}

#[test]
fn rules_of_another_config_are_known_and_half_of_them_are_not() {
    for (mode, ipv6) in Mode::ALL.iter().flat_map(|&mode| [(mode, true), (mode, false)]) {
        let (mut wanted, mut earlier) = (chart(), chart());
        (wanted.ipv6, earlier.ipv6) = (ipv6, ipv6);
        wanted.ignored_outbound_ports = vec!["5432".parse().unwrap()];
        for older in [earlier.clone(), Config { ipv6: !ipv6, ..earlier.clone() }] {
            let held = ruleset(expected(mode, &older));
            assert!(!verdict(mode, &expected(mode, &wanted), &held, &Network::default()).unwrap().is_in_place());
            assert_eq!(complete_config(mode, &held, &Network::default()), Some(older), "{mode}");
        }
        let mut tables = expected(mode, &earlier);
        let chain = tables[0].chains.iter_mut().find(|chain| chain.name == *"PROXY_INIT_OUTPUT").unwrap();
        chain.rules.pop();
        assert_eq!(complete_config(mode, &ruleset(tables), &Network::default()), None, "{mode}");
        assert_eq!(complete_config(mode, &Ruleset::default(), &Network::default()), None);
    }
}

#[test]
fn rules_are_alone_where_nothing_else_decides() {
    let is_alone = |mode, tables| {
        let verdict = verdict(mode, &expected(mode, &chart()), &ruleset(tables), &Network::default()).unwrap();
        verdict.is_alone
    };
    let beside = |mode, table: &Table| [expected(mode, &chart()), vec![table.clone()]].concat();
    let mut other = testing::table("inet other", vec![testing::chain("other", vec![])]);
    let mut filter = testing::base("filter", Kind::Filter, Hook::Forward, 0, vec![]);
    for mode in [Mode::Nft, Mode::Native] {
        assert!(is_alone(mode, expected(mode, &chart())), "{mode}");
        assert!(is_alone(mode, beside(mode, &other)), "{mode}");
    }
    other.chains[0].rules.push(testing::rule([], Action::Accept));
    // The table sees none of the pod's connections.
    filter.base.as_mut().unwrap().policy = Policy::Drop;
    for other in [other, testing::table("inet filter", vec![filter])] {
        assert!(!is_alone(Mode::Nft, beside(Mode::Nft, &other)), "{other}");
    }
    let mut less = expected(Mode::Nft, &chart());
    less[0].chains[0].rules.pop();
    assert!(!is_alone(Mode::Nft, less));
    let mut unseen = ruleset(expected(Mode::Nft, &chart()));
    unseen.not_known.push(Unseen { subsystem: Subsystem::Legacy, not_permitted: true, reason: String::new() });
    assert!(!verdict(Mode::Nft, &expected(Mode::Nft, &chart()), &unseen, &Network::default()).unwrap().is_alone);
}

#[test]
fn rules_of_another_config_beside_a_second_mode_are_of_none() {
    let both = [Mode::Nft, Mode::Legacy].map(|mode| expected(mode, &chart()));
    assert_eq!(complete_config(Mode::Nft, &ruleset(both.concat()), &Network::default()), None);
}

#[test]
fn flags_come_back_as_they_were_written() {
    let mut config = chart();
    config.ignored_inbound_subnets = vec!["10.1.2.3/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    config.redirected_ports = vec!["443".parse().unwrap(), "80".parse().unwrap()];
    for &mode in Mode::ALL {
        let installed = ruleset(expected(mode, &config));
        assert_eq!(closest_config(mode, &installed), Ok(config.clone()));
        let recognized = recognize_in(&installed, &Network::default(), None).unwrap();
        assert!(recognized.is_in_place(), "{recognized}");
        assert_eq!(
            recognized.flags().unwrap().join(" "),
            format!(
                "--iptables-mode {mode} --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
                 --ports-to-redirect 443,80 --inbound-ports-to-ignore 4190,4191,4567,4568 \
                 --inbound-subnets-to-ignore 10.1.2.3/8,fd00::/8"
            )
        );
    }
}

#[test]
fn what_was_tampered_with_is_no_installation() {
    for &mode in Mode::ALL {
        let whole = expected(mode, &chart());
        // One rule less, whichever.
        for (table, chain, rule) in whole.iter().enumerate().flat_map(|(index, table)| {
            let chains = table.chains.iter().enumerate();
            chains.flat_map(move |(chain, held)| (0..held.rules.len()).map(move |rule| (index, chain, rule)))
        }) {
            let mut tables = whole.clone();
            let removed = tables[table].chains[chain].rules.remove(rule);
            // The rest without it is an installation too, with another flag.
            let is_optional = ["user-id", "ignore-port"]
                .iter()
                .any(|name| removed.comment.clone().unwrap_or_default().to_string().contains(name));
            let recognized = recognize_in(&ruleset(tables.clone()), &Network::default(), None).unwrap();
            let whole_elsewhere = mode == Mode::Native && is_optional;
            assert_eq!(
                recognized.is_in_place(),
                whole_elsewhere && !removed_set(&removed),
                "{mode} {removed:?}: {recognized}"
            );
        }
        // The rest without one family is an installation for the other family alone.
        if whole.len() == 2 {
            let recognized = recognize_in(&ruleset(whole[..1].to_vec()), &Network::default(), None).unwrap();
            assert!(recognized.is_in_place(), "{recognized}");
            let recognized = recognize_in(&ruleset(whole[1..].to_vec()), &Network::default(), None).unwrap();
            assert!(!recognized.is_in_place(), "{recognized}");
        }
    }
}

/// A set that no rule uses is left over.
fn removed_set(rule: &ruleset::Rule) -> bool {
    rule.comment.clone().unwrap_or_default().to_string().contains("ignore-port")
}

#[test]
fn without_a_redirection_no_flags_are_told() {
    for (mode, direction) in Mode::ALL.iter().flat_map(|&mode| Direction::ALL.map(|it| (mode, it))) {
        let mut tables = expected(mode, &chart());
        for chain in tables.iter_mut().flat_map(|table| &mut table.chains) {
            if chain.name == *ChainName::of(direction).as_str() {
                chain.rules.clear();
            }
        }
        let recognized = recognize_in(&ruleset(tables), &Network::default(), None).unwrap();
        assert_eq!(recognized.closest, Some(Err(NoConfig::NoRedirect(direction))));
        assert_eq!(
            recognized.to_string(),
            Page::default().fill_lines(&format!(
                "not in place: no proxy-init rule redirects {direction} connections in {mode} mode"
            ))
        );
    }
}

#[test]
fn nothing_is_not_an_installation() {
    let recognized = recognize_in(&Ruleset::default(), &Network::default(), None).unwrap();
    assert!(!recognized.is_in_place());
    assert_eq!(recognized.to_string(), "not in place: no proxy-init rules were found\n");
    let json: Value = serde_json::from_str(&recognized.json()).unwrap();
    assert_eq!(json["flags"], Value::Null);
    assert_eq!(json["mode"], Value::Null);
    // A mode that was named, beside rules in another.
    let installed = ruleset(expected(Mode::Nft, &chart()));
    let recognized = recognize_in(&installed, &Network::default(), Some(Mode::Native)).unwrap();
    assert_eq!(
        recognized.to_string(),
        "not in place: no proxy-init rules were found in native mode\n\nproxy-init's rules are in nft mode too: `proxy-init uninstall` removes all of\n  them, installing with replace-other-backend those of other modes\n"
    );
}

#[test]
fn rules_in_two_modes_are_not_one_installation() {
    let both = [Mode::Nft, Mode::Legacy].map(|mode| expected(mode, &chart())).concat();
    let recognized = recognize_in(&ruleset(both), &Network::default(), None).unwrap();
    assert!(!recognized.is_in_place());
    assert_eq!((recognized.mode, &recognized.others[..]), (Some(Mode::Nft), &[Mode::Legacy][..]));
    let text = recognized.to_string();
    assert!(text.starts_with("not in place: rules complete in nft mode, but other modes hold some too\n\n"), "{text}");
    assert!(text.contains("proxy-init's rules are in legacy mode too"), "{text}");
}
