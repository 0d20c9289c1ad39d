use ruleset::flags::{CtState, ct_state_condition};
use ruleset::testing::{base, chain, rule, table, to_port};
use ruleset::{Action, Address, Condition, Field, Hook, Kind, Label, Name, interface};

use super::*;
use crate::config::{Config, OwnerId, Port};
use crate::diagnose::verify::finding::FindingKind;
use crate::plan::tables::expected;

const JUMP_IN: &str =
    "-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT";
const JUMP_OUT: &str = "-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT";

/// linkerd-init's usual rules for IPv4.
fn config() -> Config {
    let port = |number| Port::new(number).unwrap();
    let mut config = Config::new(port(4143), port(4140));
    config.proxy_uid = OwnerId::new(2102);
    config.ipv6 = false;
    config
}

fn of(mode: Mode, config: &Config) -> Vec<Table> {
    expected(mode, config)
}

fn installed() -> Vec<Table> {
    of(Mode::Nft, &config())
}

/// The findings in nft mode for these tables.
fn said(tables: Vec<Table>) -> Vec<String> {
    let ruleset = Ruleset { tables, not_known: vec![] };
    let findings = differences(Mode::Nft, &installed(), &ruleset, &Network::default());
    findings.iter().map(ToString::to_string).collect()
}

/// The findings for the installed table after this change.
fn after(change: impl FnOnce(&mut Table)) -> Vec<String> {
    let mut tables = installed();
    change(&mut tables[0]);
    said(tables)
}

fn in_chain<'a>(table: &'a mut Table, name: &str) -> &'a mut Chain {
    table.chains.iter_mut().find(|chain| chain.name == *name).unwrap()
}

fn rules_of<'a>(table: &'a mut Table, name: &str) -> &'a mut Vec<Rule> {
    &mut in_chain(table, name).rules
}

fn shadowed(place: &str, does: &str, by: &str) -> String {
    format!("IPv4, {place}: shadowed: the rule marked + {does}\n  + {by}\n  before {JUMP_IN}\n")
}

#[test]
fn a_broken_way_is_not_blamed_on_rules_that_let_connections_pass() {
    // The jump of the other direction is there: the accept takes connections from it.
    let accept = |chain: &'static str| {
        after(move |table| {
            rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
            rules_of(table, "OUTPUT").insert(0, rule([to_port(80)], Action::Accept));
            rules_of(table, chain).pop();
        })
    };
    let said = accept("OUTPUT");
    assert_eq!(
        said,
        [
            format!("IPv4, OUTPUT: missing\n  - {JUMP_OUT}\n"),
            shadowed("PREROUTING", "lets connections pass by: to port 80", "-A PREROUTING -m tcp --dport 80 -j ACCEPT"),
        ]
    );
    // Without a jump nothing gets past the accept's rule either, so only the drop is worse than nothing.
    let said = after(|table| {
        *rules_of(table, "PREROUTING") = vec![rule([to_port(80)], Action::Accept), rule([to_port(81)], Action::Drop)];
    });
    assert_eq!(
        said,
        [
            format!("IPv4, PREROUTING: missing\n  - {JUMP_IN}\n"),
            shadowed("PREROUTING", "drops connections: to port 81", "-A PREROUTING -m tcp --dport 81 -j DROP"),
        ]
    );
    // A rule that is missing in our own chain doesn't break the way to it.
    let said = accept("PROXY_INIT_REDIRECT");
    assert_eq!(said.len(), 3, "{said:?}");
    let dormant = after(|table| {
        table.dormant = true;
        rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
    });
    assert_eq!(dormant.len(), 1, "{dormant:?}");
}

#[test]
fn what_is_missing_in_one_family_breaks_no_way_of_the_other() {
    let rules = vec![
        rule([to_port(80)], Action::Accept),
        // With this, connections are tracked.
        rule([ct_state_condition(|state| state == CtState::Invalid)], Action::Drop),
    ];
    let other = base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, rules);
    assert_eq!(said(vec![table("ip nat", vec![other])]).len(), 1, "no rules");
    let mut both = config();
    both.ipv6 = true;
    let expected = of(Mode::Nft, &both);
    let mut tables = expected.clone();
    for table in &mut tables {
        rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], Action::Accept));
    }
    rules_of(&mut tables[1], "PREROUTING").pop();
    let ruleset = Ruleset { tables, not_known: vec![] };
    let findings = differences(Mode::Nft, &expected, &ruleset, &Network::default());
    let said: Vec<_> = findings.iter().map(Finding::kind).zip(findings.iter().map(Finding::family)).collect();
    assert_eq!(said, [(FindingKind::Missing, "IPv6".to_owned()), (FindingKind::Shadowed, "IPv4".to_owned())]);
}

#[test]
fn a_rule_that_is_met_twice_is_reported_once() {
    let twice = after(|table| {
        table.chains.push(chain(
            "sub",
            vec![rule([to_port(80)], Action::NotUnderstood(Label::Extension(Name::from("NFQUEUE"))))],
        ));
        let jump = rule([], Action::Jump(Name::from("sub")));
        rules_of(table, "PREROUTING").splice(0..0, [jump.clone(), jump]);
    });
    let line = "-A sub -m tcp --dport 80 -j NFQUEUE";
    let does = "may take connections away (it is not understood): to port 80";
    assert_eq!(twice, [shadowed("sub", does, line)]);
}

/// Each way to it leaves other connections.
#[test]
fn a_rule_is_reported_once_with_all_its_connections() {
    let twice = after(|table| {
        let drop = rule([], Action::Drop);
        table.chains.push(chain("sub", vec![drop]));
        let jump = |port| rule([to_port(port)], Action::Jump(Name::from("sub")));
        rules_of(table, "PREROUTING").splice(0..0, [80, 81, 82, 83, 84].map(jump));
    });
    let does = "drops connections: to port 80; to port 81; to port 82; to port 83; ...";
    assert_eq!(twice, [shadowed("sub", does, "-A sub -j DROP")]);
}

/// A firewall that keeps out a host is no fault of the installation; one that keeps out the pod's own network is.
#[test]
fn a_rule_that_names_other_hosts_is_only_a_warning() {
    let network = Network {
        addresses: vec![Address { device: 2, address: [10, 77, 0, 2].into(), prefix: 24, broadcast: None }],
        ..Network::default()
    };
    let (host, other) = (0x0a4d_0009, 0x0a4d_0100);
    let source = |values| Condition::compare(Field::Source(Family::V4), values, false);
    let by = |device| Condition::is(Field::InInterface, interface(device));
    for (conditions, hook, are_warnings) in [
        (vec![source((host, host))], Hook::Input, true),
        (vec![source((host, host))], Hook::Prerouting, true),
        (vec![source((0x0a4d_0000, 0x0a4d_00ff))], Hook::Input, false),
        (vec![source((other, u128::from(u32::MAX)))], Hook::Input, true),
        (vec![source((host, host)), by(b"eth0")], Hook::Input, false),
        (vec![to_port(4143)], Hook::Input, false),
    ] {
        let rules = vec![Rule::new(conditions.clone(), Action::Drop)];
        let firewall = table("ip mine", vec![base("in", Kind::Filter, hook, -150, rules)]);
        let ruleset = Ruleset { tables: [installed(), vec![firewall]].concat(), not_known: vec![] };
        let findings = differences(Mode::Nft, &installed(), &ruleset, &network);
        let problems: Vec<_> = findings.iter().map(|finding| finding.is_warning()).collect();
        assert!(
            !problems.is_empty() && problems.iter().all(|is_warning| *is_warning == are_warnings),
            "{conditions:?}: {findings:?}"
        );
    }
}
