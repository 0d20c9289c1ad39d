use ruleset::flags::{CtState, ct_state_condition};
use ruleset::{Action, Condition, Effect, Field, Hook, Intervals, Kind, Label, Name, Policy, TCP, Values, interface};
use ruleset::{Address, Listener};
use ruleset::{
    testing::base, testing::chain, testing::commented, testing::effect_of, testing::ports, testing::rule,
    testing::table, testing::to_port,
};

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

/// A foreign table with a filter chain that runs before nat.
fn early(rules: Vec<Rule>) -> Table {
    table("ip mine", vec![base("early", Kind::Filter, Hook::Prerouting, -150, rules)])
}

fn shadowed(place: &str, does: &str, by: &str) -> String {
    format!("IPv4, {place}: shadowed: the rule marked + {does}\n  + {by}\n  before {JUMP_IN}\n")
}

#[test]
fn rules_that_differ() {
    let loopback = "-A PROXY_INIT_OUTPUT -o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN";
    let output = "PROXY_INIT_OUTPUT";
    // One rule twice is one too many, and a rule without its comment isn't the one that is missing.
    assert_eq!(
        after(|table| {
            let rules = rules_of(table, output);
            rules.push(rules[1].clone());
        }),
        [format!("IPv4, {output}: unexpected\n  + {loopback}\n")]
    );
    assert_eq!(
        after(|table| rules_of(table, output)[1].comment = None),
        [
            format!("IPv4, {output}: missing\n  - {loopback}\n"),
            format!("IPv4, {output}: unexpected\n  + -A {output} -o lo -j RETURN\n"),
        ]
    );
    // Both are compared by their effect: this condition isn't understood, though it is written alike.
    let same_text = after(|table| {
        rules_of(table, output)[1].conditions = vec![Condition::NotUnderstood(Label::expression("osf"))];
    });
    assert_eq!(same_text.len(), 1, "{same_text:?}");
    assert!(same_text[0].starts_with("IPv4, PROXY_INIT_OUTPUT: different\n"), "{same_text:?}");
}

#[test]
fn jumps_that_differ() {
    let goto = Action::Goto(Name::from("PROXY_INIT_REDIRECT"));
    let too = after(|table| rules_of(table, "PREROUTING").push(rule([to_port(80)], goto)));
    let line = "-A PREROUTING -m tcp --dport 80 -g PROXY_INIT_REDIRECT";
    assert_eq!(too, [format!("IPv4, PREROUTING: unexpected\n  + {line}\n")]);

    let elsewhere = after(|table| {
        let jump = Action::Jump(Name::from("PROXY_INIT_REDIRECT"));
        table.chains.push(chain("MINE", vec![rule([to_port(80)], jump)]));
    });
    let line = "-A MINE -m tcp --dport 80 -j PROXY_INIT_REDIRECT";
    assert_eq!(elsewhere, [format!("IPv4, MINE: unexpected\n  + {line}\n")]);

    let missing = after(|table| {
        *rules_of(table, "PREROUTING") = vec![rule([to_port(80)], Action::Accept), rule([to_port(81)], Action::Drop)];
    });
    assert_eq!(
        missing,
        [
            format!("IPv4, PREROUTING: missing\n  - {JUMP_IN}\n"),
            // Without a jump nothing gets past the accept's rule either, so only the drop is worse than nothing.
            shadowed("PREROUTING", "drops connections: to port 81", "-A PREROUTING -m tcp --dport 81 -j DROP"),
        ]
    );
}

#[test]
fn chains_that_see_no_connection() {
    let dormant = "IPv4, table ip nat: the table is dormant: none of its chains is hooked\n";
    assert_eq!(after(|table| table.dormant = true), [dormant]);
    let changes: [fn(&mut Chain); 3] = [
        |chain| chain.base = None,
        |chain| chain.base.as_mut().unwrap().hook = Hook::Input,
        |chain| chain.base.as_mut().unwrap().kind = Kind::Filter,
    ];
    for change in changes {
        assert_eq!(
            after(|table| change(in_chain(table, "PREROUTING"))),
            ["IPv4, PREROUTING: the chain is not hooked where it should be, so it sees no connection\n"]
        );
    }
    // Another priority is no difference.
    assert!(after(|table| in_chain(table, "PREROUTING").base.as_mut().unwrap().priority = -90).is_empty());
    // Our own chain sees connections if it is hooked; no jump leads to it.
    let is_hooked = after(|table| {
        in_chain(table, "PROXY_INIT_REDIRECT").base = in_chain(table, "PREROUTING").base;
        rules_of(table, "PREROUTING").clear();
    });
    assert_eq!(is_hooked, [format!("IPv4, PREROUTING: missing\n  - {JUMP_IN}\n")]);
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
fn rules_that_come_first() {
    let first = |action| after(|table| rules_of(table, "PREROUTING").insert(0, rule([to_port(80)], action)));
    let line = |target: &str| format!("-A PREROUTING -m tcp --dport 80 -j {target}");
    for (action, does, target) in [
        (Action::Accept, "lets connections pass by", "ACCEPT"),
        (Action::Drop, "drops connections", "DROP"),
        (Action::Redirect(Some((1, 1))), "redirects connections", "REDIRECT --to-ports 1"),
    ] {
        let want = shadowed("PREROUTING", &format!("{does}: to port 80"), &line(target));
        assert_eq!(first(action), [want]);
    }
    // There, connection tracking has seen the packet already.
    let untracking = effect_of([to_port(80)], Effect::Untrack);
    assert!(after(|table| rules_of(table, "PREROUTING").insert(0, untracking.clone())).is_empty());
    let unknown = first(Action::NotUnderstood(Label::Extension(Name::from("NFQUEUE"))));
    let does = "may take connections away (it is not understood): to port 80";
    assert_eq!(unknown, [shadowed("PREROUTING", does, &line("NFQUEUE"))]);

    // A rule in a table of another name is in nft's syntax, and its table is named.
    let mut tables = installed();
    tables.push(early(vec![rule([to_port(80)], Action::Drop)]));
    let want = shadowed("ip mine early", "drops connections: to port 80", "tcp dport 80 drop");
    assert_eq!(said(tables), [want]);
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

#[test]
fn policies_that_drop() {
    let policy =
        |chain: &'static str| after(move |table| in_chain(table, chain).base.as_mut().unwrap().policy = Policy::Drop);
    assert_eq!(policy("OUTPUT"), ["IPv4, OUTPUT: the chain's policy drops the connections that bypass the proxy\n"]);
    assert!(policy("PREROUTING").is_empty(), "nothing bypasses the proxy inbound");

    let with_policy = |priority, name| {
        let mut table = table(name, vec![base("mine", Kind::Filter, Hook::Prerouting, priority, vec![])]);
        table.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
        let mut tables = installed();
        tables.push(table);
        said(tables)
    };
    let line = "policy drop of inet mine mine";
    let want = shadowed("inet mine mine", "drops connections: all TCP connections", line);
    let back = |inbound: &str| {
        format!(
            "IPv4, inet mine mine: dropped: the rule marked + drops connections that were redirected: {inbound}to 127.0.0.1 \
             to port 4140 arriving on \"lo\"\n  + {line}\n"
        )
    };
    assert_eq!(with_policy(-150, "inet mine"), [want, back("")]);
    assert_eq!(with_policy(0, "inet mine"), [back("to port 4143; ")]);
    // The other table's base chain has the same name as ours.
    let mut other = table("ip mine", vec![base("OUTPUT", Kind::Filter, Hook::Output, 0, vec![])]);
    other.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
    let mut tables = installed();
    tables.push(other);
    let said = said(tables);
    assert!(
        !said.is_empty() && said.iter().all(|said| said.starts_with("IPv4, ip mine OUTPUT: dropped: ")),
        "{said:?}"
    );
}

/// A small table as native mode makes them: the jumps for one family or for both, ports in a set.
fn native_table(only: Option<Family>) -> Table {
    let conditions: Vec<Condition> = only.into_iter().map(family_condition).collect();
    let jump =
        |to: &str| Rule { conditions: conditions.clone(), ..commented("jump", rule([], Action::Jump(Name::from(to)))) };
    let ignored = Condition::is(Field::DestinationPort, Values::Set(Name::from("ignored")));
    let tcp = Condition::is(Field::Protocol, TCP);
    let nat = |name, hook, to| base(name, Kind::Nat, hook, -100, vec![jump(to)]);
    let chains = vec![
        nat("PREROUTING", Hook::Prerouting, "PROXY_INIT_REDIRECT"),
        nat("OUTPUT", Hook::Output, "PROXY_INIT_OUTPUT"),
        chain(
            "PROXY_INIT_REDIRECT",
            vec![
                commented("ignored", rule([tcp.clone(), ignored], Action::Return)),
                commented("all", rule([tcp.clone()], Action::Redirect(Some((4143, 4143))))),
            ],
        ),
        chain("PROXY_INIT_OUTPUT", vec![commented("all", rule([tcp], Action::Redirect(Some((4140, 4140)))))]),
    ];
    let mut table = table("inet proxy-init", chains);
    table.sets = vec![ports("ignored", &[(25, 25), (8000, 8100)])];
    table
}

fn natively(only: Option<Family>, change: impl FnOnce(&mut Vec<Table>)) -> Vec<String> {
    let expected = [native_table(only)];
    let mut ruleset = Ruleset { tables: expected.to_vec(), not_known: vec![] };
    change(&mut ruleset.tables);
    let findings = differences(Mode::Native, &expected, &ruleset, &Network::default());
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn native_modes_table_is_compared_as_a_whole() {
    assert!(natively(None, |_| ()).is_empty());
    let not_found = "inet, table inet proxy-init: not found\n";
    assert_eq!(natively(None, Vec::clear), [not_found]);
    assert_eq!(natively(None, |tables| tables[0].name = Name::from("other")), [not_found]);
    assert_eq!(
        natively(None, |tables| tables[0].dormant = true),
        ["inet, table inet proxy-init: the table is dormant: none of its chains is hooked\n"]
    );
    assert_eq!(
        natively(None, |tables| in_chain(&mut tables[0], "OUTPUT").base = None),
        ["inet, OUTPUT: the chain is not hooked where it should be, so it sees no connection\n"]
    );
    assert_eq!(
        natively(None, |tables| in_chain(&mut tables[0], "OUTPUT").base.as_mut().unwrap().kind = Kind::Filter),
        ["inet, OUTPUT: the chain is not hooked where it should be, so it sees no connection\n"]
    );
    assert_eq!(
        natively(None, |tables| drop(rules_of(&mut tables[0], "PROXY_INIT_REDIRECT").remove(0))),
        ["inet, PROXY_INIT_REDIRECT: missing\n  - tcp dport @ignored return comment \"ignored\"\n"]
    );
    assert_eq!(
        natively(None, |tables| drop(tables[0].chains.pop())),
        [
            "inet, PROXY_INIT_OUTPUT: missing\n  - meta l4proto tcp redirect to :4140 comment \"all\"\n".to_owned(),
            // The jump leads nowhere.
            native_shadow("IPv4", "OUTPUT", "may take connections away (it is not understood): all TCP connections"),
            native_shadow("IPv6", "OUTPUT", "may take connections away (it is not understood): all TCP connections"),
        ]
    );
}

fn native_shadow(family: &str, chain: &str, does: &str) -> String {
    let jump = "jump PROXY_INIT_OUTPUT comment \"jump\"";
    format!("{family}, {chain}: shadowed: the rule marked + {does}\n  + {jump}\n  before {jump}\n")
}

#[test]
fn native_modes_sets_are_compared_element_by_element() {
    let with_elements = |elements: Option<&[(u128, u128)]>| {
        let elements = elements.map(|list| Intervals::new(list.iter().copied()));
        natively(None, |tables| tables[0].sets[0].elements = elements)
    };
    assert!(with_elements(Some(&[(8000, 8100), (25, 25)])).is_empty());
    assert_eq!(
        with_elements(Some(&[(25, 25), (443, 443)])),
        ["inet, set ignored: missing\n  - 8000-8100\n", "inet, set ignored: unexpected\n  + 443\n",]
    );
    let missing = ["inet, set ignored: missing\n  - 25\n", "inet, set ignored: missing\n  - 8000-8100\n"];
    assert_eq!(with_elements(Some(&[])), missing);
    assert_eq!(
        natively(None, |tables| tables[0].sets.push(ports("other", &[(1, 1)]))),
        ["inet, set other: unexpected\n  + the set\n"]
    );
}

#[test]
fn native_modes_table_may_be_for_one_family() {
    let dropping = |tables: &mut Vec<Table>| {
        tables.push(table(
            "inet mine",
            vec![base("early", Kind::Filter, Hook::Prerouting, -150, vec![rule([], Action::Drop)])],
        ));
    };
    let families = |only| -> Vec<String> {
        let said = natively(only, dropping);
        let mut families: Vec<_> = said.iter().map(|line| line.split(',').next().unwrap().to_owned()).collect();
        families.dedup();
        families
    };
    assert_eq!(families(None), ["IPv4", "IPv6"]);
    assert_eq!(families(Some(Family::V4)), ["IPv4"]);
    assert_eq!(families(Some(Family::V6)), ["IPv6"]);
}

/// The answers' user is the listener's, and otherwise the user whom the rules exempt.
#[test]
fn replies_are_of_whoever_listens() {
    let dropping = |uid: u128| {
        let rules = vec![rule([Condition::is(Field::Uid, uid)], Action::Drop)];
        table("ip mine", vec![base("late", Kind::Filter, Hook::Output, 10, rules)])
    };
    let listener = Listener {
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        port: 4143,
        device: 0,
        is_ipv6_only: false,
        uid: 7,
        queue: ruleset::Queue::default(),
        is_transparent: Some(false),
    };
    let loses_replies = |uid, listeners: &[Listener]| {
        let network = Network { listeners: listeners.to_vec(), ..Network::default() };
        let ruleset = Ruleset { tables: [installed(), vec![dropping(uid)]].concat(), not_known: vec![] };
        let findings = differences(Mode::Nft, &installed(), &ruleset, &network);
        findings
            .iter()
            .any(|finding| finding.kind() == FindingKind::Dropped && finding.words.starts_with("drops the replies"))
    };
    assert!(loses_replies(2102, &[]));
    assert!(loses_replies(7, &[listener]));
    assert!(!loses_replies(7, &[]));
    assert!(!loses_replies(8, &[listener]));
}
