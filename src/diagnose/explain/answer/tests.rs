use ruleset::{Hook, Kind, Label, Policy, Table};
use ruleset::{
    testing::base, testing::by_map, testing::chain, testing::dnat, testing::effect_of, testing::not, testing::rule,
    testing::table, testing::to_port,
};

use super::*;
use crate::config::{Config, Mode, OwnerId};
use crate::plan::tables::expected;

/// linkerd-init's rules for user 2102 of the proxy, where some ports bypass it.
fn installed(mode: Mode) -> Vec<Table> {
    let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
    config.proxy_uid = OwnerId::new(2102);
    config.ignored_inbound_ports = vec!["4190".parse().unwrap(), "4191".parse().unwrap()];
    config.ignored_outbound_ports = vec!["25".parse().unwrap()];
    expected(mode, &config)
}

/// The same in nft mode, with other tables before.
fn beside(others: Vec<Table>) -> Ruleset {
    Ruleset { tables: [others, installed(Mode::Nft)].concat(), not_known: vec![] }
}

fn inbound(to: &str) -> Connection {
    Connection {
        direction: Direction::Inbound,
        to: to.parse().unwrap(),
        from: None,
        from_port: None,
        uid: None,
        gid: None,
        device: None,
    }
}

fn outbound(to: &str) -> Connection {
    Connection { direction: Direction::Outbound, device: Some(Name::from("eth0")), ..inbound(to) }
}

/// A base chain of a filter table.
fn filter(hook: Hook, rules: Vec<Rule>) -> Table {
    table("inet mine", vec![base("mine", Kind::Filter, hook, 10, rules)])
}

fn nat(hook: Hook, priority: i32, rules: Vec<Rule>) -> Table {
    table("inet mine", vec![base("mine", Kind::Nat, hook, priority, rules)])
}

fn strange() -> Condition {
    Condition::NotUnderstood(Label::expression("numgen"))
}

fn redirect(port: u16) -> Action {
    Action::Redirect(Some((port, port)))
}

fn said(ruleset: &Ruleset, connection: &Connection) -> String {
    explain(ruleset, connection).verdict.to_string()
}

/// The way as text: `HOOK CHAIN NUMBER` and the match.
fn way(answer: &Answer<'_>) -> Vec<String> {
    let step = |step: &Step<'_>| {
        let chain = step.at.chain();
        let line = step.at.line();
        let number = line.map_or("policy".to_owned(), |line| line.number.to_string());
        let matched = match step.matched {
            Matched::Yes(_) => "yes",
            Matched::No(_) => "no",
            Matched::Perhaps(..) => "?",
        };
        format!("{} {}{} {number} {matched}", step.hook, "> ".repeat(step.depth), chain.name)
    };
    answer.steps.iter().map(step).collect()
}

#[test]
fn each_step_is_recorded_in_the_kernels_order() {
    let verdicts = [(80, Action::Jump(Name::from("of80"))), (81, Action::Drop)];
    let mapped = || by_map("map", Field::DestinationPort, verdicts.clone());
    let rules = vec![
        rule([not(to_port(80))], Action::Drop),
        mapped(),
        rule([], Action::Continue),
        rule([to_port(80)], Action::Goto(Name::from("of80"))),
        rule([], Action::Drop),
    ];
    let of80 = vec![rule([to_port(81)], Action::Accept), rule([to_port(80)], Action::Return), rule([], Action::Drop)];
    let mut mine = filter(Hook::Prerouting, rules);
    mine.chains[0].base.as_mut().unwrap().priority = -150;
    mine.chains.push(chain("of80", of80));
    let input = filter(Hook::Input, vec![mapped(), rule([to_port(4143)], Action::Accept)]);
    let input = Table { name: Name::from("other"), ..input };
    let ruleset = beside(vec![mine, input]);
    let answer = explain(&ruleset, &inbound("10.0.0.1:80"));
    assert_eq!(
        way(&answer),
        [
            "prerouting mine 1 no",
            "prerouting mine 2 yes",
            "prerouting > of80 1 no",
            "prerouting > of80 2 yes",
            "prerouting mine 3 yes",
            "prerouting mine 4 yes",
            "prerouting > of80 1 no",
            "prerouting > of80 2 yes",
            "prerouting PREROUTING 1 yes",
            "prerouting > PROXY_INIT_REDIRECT 1 no",
            "prerouting > PROXY_INIT_REDIRECT 2 yes",
            "input mine 1 no",
            "input mine 2 yes",
        ]
    );
    assert_eq!(answer.verdict, Verdict::Proxy(4143));
}

#[test]
fn what_the_answer_depends_on_is_said() {
    let dropping = |condition| filter(Hook::Prerouting, vec![rule([condition], Action::Drop)]);
    for (condition, want) in [
        (Condition::is(Field::Source(Family::V4), 0x0a00_0007), "the source address, because of "),
        (Condition::is(Field::SourcePort, (1, 40_000)), "the source port, because of "),
        (Condition::is(Field::InInterface, interface(b"eth1")), "the interface on which it arrives, because of "),
        (strange(), "`[numgen]`, which is not understood, because of `[numgen] drop` in inet mine, chain mine"),
    ] {
        let said = said(&beside(vec![dropping(condition)]), &inbound("10.0.0.1:80"));
        assert!(said.starts_with(&format!("not known: it depends on {want}")), "{said}");
    }
    // After a redirection it isn't known which of the device's addresses it is for.
    let to =
        filter(Hook::Input, vec![rule([Condition::is(Field::Destination(Family::V4), 0x0a00_0001)], Action::Drop)]);
    let ruleset = beside(vec![to]);
    assert!(said(&ruleset, &inbound("10.0.0.1:80")).contains("the address to which it is translated"));
    assert_eq!(said(&ruleset, &inbound("10.0.0.1:4190")), "dropped");
    for (action, want) in [
        (
            Action::NotUnderstood(Label::expression("queue")),
            "`[queue]` in inet mine, chain mine does something that is not understood",
        ),
        (
            Action::Jump(Name::from("mine")),
            "too many undecided rules in mine, to which `jump mine` in inet mine, chain mine leads",
        ),
    ] {
        let ruleset = beside(vec![filter(Hook::Output, vec![rule([], action)])]);
        assert_eq!(said(&ruleset, &outbound("10.0.0.1:80")), format!("not known: {want}"));
    }
    let sending = nat(Hook::Prerouting, -110, vec![rule([], Action::Nat(dnat(Some([10, 0, 0, 9].into()))))]);
    let dropping = Table { name: Name::from("other"), ..filter(Hook::Input, vec![rule([], Action::Drop)]) };
    assert_eq!(
        said(&beside(vec![sending, dropping]), &inbound("10.0.0.1:80")),
        "not known: it depends on where `dnat to 10.0.0.9` sends it, which is not followed"
    );
}

#[test]
fn whose_packet_it_is_is_said_as_the_user_can_tell_it() {
    let of_user = |hook, field| filter(hook, vec![rule([Condition::is(field, 7)], Action::Drop)]);
    let said = |hook, field, connection: &Connection| said(&beside(vec![of_user(hook, field)]), connection);
    let by = |field| match field {
        Field::Uid => "`meta skuid 7 drop` in inet mine, chain mine",
        _ => "`meta skgid 7 drop` in inet mine, chain mine",
    };
    for (field, client, server) in [
        (Field::Uid, "the user", "the user of the process that answers"),
        (Field::Gid, "the group", "the group of the process that answers"),
    ] {
        let by = by(field);
        let flag = if field == Field::Uid { "--uid" } else { "--gid" };
        let of_client = format!("not known: it depends on {client}, because of {by}: give {flag}");
        let of_server = format!("not known: it depends on {server}, because of {by}");
        let (inbound, outbound) = (inbound("10.0.0.1:4190"), outbound("10.0.0.1:25"));
        assert_eq!(said(Hook::Output, field, &outbound), of_client);
        assert_eq!(said(Hook::Input, field, &outbound), of_client, "the reply");
        assert_eq!(said(Hook::Output, field, &inbound), of_server, "the reply");
        assert_eq!(said(Hook::Input, field, &inbound), of_server, "the ACK");
    }
}

/// A rule in our table before its jump, and not one of another table.
#[test]
fn what_lets_a_connection_bypass_the_proxy_is_in_its_table() {
    for action in [Action::Accept, Action::Return, Action::Goto(Name::from("empty"))] {
        let accepting = filter(Hook::Input, vec![rule([], Action::Accept)]);
        let mut ruleset = beside(vec![accepting]);
        let table = &mut ruleset.tables[1];
        let base = table.chains.iter_mut().find(|chain| chain.name == *"PREROUTING").unwrap();
        base.rules.insert(0, rule([], action));
        table.chains.push(chain("empty", vec![]));
        let answer = explain(&ruleset, &inbound("10.0.0.1:80"));
        assert_eq!(answer.verdict, Verdict::Bypass);
        let line = answer.at.unwrap().line().unwrap();
        assert_eq!((line.chain.name.to_string(), line.number), ("PREROUTING".to_owned(), 1));
    }
}

#[test]
fn the_reason_is_one_that_matters() {
    let rules =
        vec![rule([strange()], Action::Accept), rule([Condition::is(Field::SourcePort, (1, 1023))], Action::Accept)];
    let harmless = filter(Hook::Prerouting, rules);
    let of_source =
        nat(Hook::Prerouting, -110, vec![rule([Condition::is(Field::Source(Family::V4), 0x0a00_0007)], redirect(1))]);
    let of_source = Table { name: Name::from("two"), ..of_source };
    let ruleset = beside(vec![harmless, of_source]);
    let said = said(&ruleset, &inbound("10.0.0.1:80"));
    assert!(said.starts_with("not known: it depends on the source address, because of"), "{said}");
}

#[test]
fn of_two_doubts_the_one_is_said_on_which_it_depends() {
    let doubt = |text: &str, action| rule([Condition::NotUnderstood(Label::expression(text))], action);
    let rules = vec![doubt("first", Action::Continue), doubt("second", Action::Drop)];
    let said = said(&beside(vec![filter(Hook::Prerouting, rules)]), &inbound("10.0.0.1:80"));
    assert!(said.starts_with("not known: it depends on `[second]`, "), "{said}");
}

#[test]
fn the_destination_of_a_translated_connection_may_matter_later() {
    let dnat = |hook| nat(hook, -110, vec![rule([], Action::Nat(dnat(None)))]);
    let to = |hook| {
        let rules = vec![rule([Condition::is(Field::Destination(Family::V4), 7)], Action::Drop)];
        Table { name: Name::from("later"), ..filter(hook, rules) }
    };
    for (translated, later, connection) in [
        (Hook::Output, Hook::Postrouting, outbound("10.0.0.1:80")),
        (Hook::Prerouting, Hook::Forward, inbound("10.0.0.1:80")),
        (Hook::Prerouting, Hook::Input, inbound("10.0.0.1:80")),
    ] {
        assert_eq!(said(&beside(vec![dnat(translated)]), &connection), "goes elsewhere: dnat to [...]");
        assert_eq!(
            said(&beside(vec![dnat(translated), to(later)]), &connection),
            "not known: it depends on the address to which it is translated, because of `ip daddr 0.0.0.7 drop` in inet \
             later, chain mine"
        );
    }
}

/// A policy is a step of the way, and a rule that ends tracking is the reason of a bypass.
#[test]
fn a_policy_and_notrack_are_named() {
    let mut strict = filter(Hook::Input, vec![rule([to_port(4190)], Action::Accept)]);
    strict.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
    let ruleset = beside(vec![strict]);
    let answer = explain(&ruleset, &inbound("10.0.0.1:80"));
    assert_eq!(answer.verdict, Verdict::Dropped);
    assert_eq!(answer.at.unwrap().rule(), None);
    assert_eq!(way(&answer).last().unwrap(), "input mine policy yes");
    assert_eq!(said(&ruleset, &inbound("10.0.0.1:4190")), "bypasses the proxy");

    let raw = |hook, condition| {
        let mut raw = filter(hook, vec![effect_of([condition], Effect::Untrack)]);
        raw.chains[0].base.as_mut().unwrap().priority = -300;
        raw
    };
    let there = raw(Hook::Prerouting, to_port(80));
    let back = Table { name: Name::from("back"), ..raw(Hook::Output, Condition::is(Field::SourcePort, 80)) };
    let ruleset = beside(vec![there, back]);
    let answer = explain(&ruleset, &inbound("10.0.0.1:80"));
    assert_eq!(answer.verdict, Verdict::Bypass);
    assert_eq!(answer.at.unwrap().to_string(), "`tcp dport 80 notrack` in inet mine, chain mine");
}

#[test]
fn an_unknown_order_matters_only_where_answers_differ() {
    let tied = |rules| beside(vec![nat(Hook::Prerouting, -100, rules)]);
    let ruleset = tied(vec![rule([to_port(80)], redirect(1))]);
    assert_eq!(
        said(&ruleset, &inbound("10.0.0.1:80")),
        "not known: it depends on which runs first, ip nat PREROUTING or inet mine mine: their priorities are equal"
    );
    assert_eq!(said(&ruleset, &inbound("10.0.0.1:81")), "to the proxy, port 4143");
    assert_eq!(said(&tied(vec![rule([], redirect(4143))]), &inbound("10.0.0.1:80")), "to the proxy, port 4143");
    // Another kind of chain where nat chains run.
    let mut mixed = filter(Hook::Prerouting, vec![rule([to_port(80)], Action::Drop)]);
    mixed.chains[0].base.as_mut().unwrap().priority = -100;
    assert!(said(&beside(vec![mixed.clone()]), &inbound("10.0.0.1:80")).starts_with("not known: "));
    // A policy drops in either order.
    mixed.chains[0].rules.clear();
    mixed.chains[0].base.as_mut().unwrap().policy = Policy::Drop;
    assert_eq!(said(&beside(vec![mixed]), &inbound("10.0.0.1:80")), "dropped");
    // In one table, the order is known: the last one runs first.
    let chain_of = |name: &str, port| base(name, Kind::Nat, Hook::Prerouting, -110, vec![rule([], redirect(port))]);
    let two = table("inet mine", vec![chain_of("a", 1), chain_of("b", 2)]);
    assert_eq!(said(&beside(vec![two]), &inbound("10.0.0.1:80")), "goes elsewhere: redirected to port 2 of this host");
}

/// By priorities that are equal, a chain's place before connection tracking is not known.
#[test]
fn a_chain_at_the_priority_of_connection_tracking_may_run_before_it() {
    use ruleset::flags::{CtState, ct_state_condition};
    let not_known = "not known: it depends on whether inet mine mine runs before the kernel tracks the connection: \
                     their priorities are equal";
    for (priority, state, want) in [
        (-201, CtState::New, "to the proxy, port 4143"),
        (-200, CtState::Invalid, not_known),
        (-200, CtState::New, not_known),
        (-199, CtState::New, "dropped"),
    ] {
        let condition = ct_state_condition(|other| other == state);
        let mut table = filter(Hook::Prerouting, vec![rule([condition], Action::Drop)]);
        table.chains[0].base.as_mut().unwrap().priority = priority;
        assert_eq!(said(&beside(vec![table]), &inbound("10.0.0.1:80")), want, "{priority} {state:?}");
    }
}
