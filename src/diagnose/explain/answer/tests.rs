use ruleset::{Hook, Kind, Label, Policy, Table, Values};
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
fn the_rule_that_decides_is_named_with_its_mode() {
    for mode in [Mode::Nft, Mode::Legacy] {
        let ruleset = Ruleset { tables: installed(mode), not_known: vec![] };
        for (connection, verdict, rule) in [
            (inbound("10.0.0.1:80"), "to the proxy, port 4143", "PROXY_INIT_REDIRECT 2"),
            (inbound("[fd00::1]:4191"), "bypasses the proxy", "PROXY_INIT_REDIRECT 1"),
            (outbound("10.0.0.1:80"), "to the proxy, port 4140", "PROXY_INIT_OUTPUT 4"),
            (outbound("10.0.0.1:25"), "bypasses the proxy", "PROXY_INIT_OUTPUT 3"),
            (
                Connection { device: Some(Name::from("lo")), ..outbound("10.0.0.1:80") },
                "bypasses the proxy",
                "PROXY_INIT_OUTPUT 2",
            ),
            (Connection { uid: Some(2102), ..outbound("10.0.0.1:80") }, "bypasses the proxy", "PROXY_INIT_OUTPUT 1"),
        ] {
            let answer = explain(&ruleset, &connection);
            assert_eq!(answer.verdict.to_string(), verdict, "{connection:?}");
            let at = answer.at.unwrap();
            let line = at.line().unwrap();
            assert_eq!(format!("{} {}", line.chain.name, line.number), rule, "{connection:?}");
            assert_eq!(mode_of(line.table), Some(mode));
        }
    }
    let nothing = Ruleset::default();
    let answer = explain(&nothing, &inbound("10.0.0.1:80"));
    assert_eq!((answer.verdict, answer.at, answer.steps), (Verdict::Bypass, None, vec![]));
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
fn a_connection_without_a_user_is_any_but_the_proxys() {
    assert_eq!(said(&beside(vec![]), &outbound("10.0.0.1:80")), "to the proxy, port 4140");
    let of_user = |action| nat(Hook::Output, -110, vec![rule([Condition::is(Field::Uid, 7)], action)]);
    assert_eq!(
        said(&beside(vec![of_user(redirect(1))]), &outbound("10.0.0.1:80")),
        "not known: it depends on the user, because of `meta skuid 7 redirect to :1` in inet mine, chain mine: give \
         --uid"
    );
    assert_eq!(said(&beside(vec![of_user(Action::Accept)]), &outbound("10.0.0.1:80")), "to the proxy, port 4140");
    let user = |uid| Connection { uid: Some(uid), ..outbound("10.0.0.1:80") };
    let ruleset = beside(vec![of_user(redirect(1))]);
    assert_eq!(said(&ruleset, &user(8)), "to the proxy, port 4140");
    assert_eq!(said(&ruleset, &user(7)), "goes elsewhere: redirected to port 1 of this host");
}

#[test]
fn a_connection_without_a_device_is_of_none_that_is_ignored() {
    let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
    config.ignored_inbound_interfaces = vec!["net1".parse().unwrap()];
    config.ignored_outbound_interfaces = vec!["tun0".parse().unwrap()];
    let ruleset = Ruleset { tables: expected(Mode::Nft, &config), not_known: vec![] };
    let by = |connection: Connection, device: Option<&str>| Connection { device: device.map(Name::from), ..connection };
    for (device, port) in [(None, 4143), (Some("tun0"), 4143), (Some("net1"), 0)] {
        let verdict = explain(&ruleset, &by(inbound("10.0.0.1:80"), device)).verdict;
        let want = if port == 0 { Verdict::Bypass } else { Verdict::Proxy(port) };
        assert_eq!(verdict, want, "in by {device:?}");
    }
    for (device, port) in [("eth0", 4140), ("net1", 4140), ("tun0", 0)] {
        let verdict = explain(&ruleset, &by(outbound("10.0.0.1:80"), Some(device))).verdict;
        let want = if port == 0 { Verdict::Bypass } else { Verdict::Proxy(port) };
        assert_eq!(verdict, want, "out by {device}");
    }
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
    let odd = filter(Hook::Output, vec![rule([], Action::NotUnderstood(Label::expression("queue")))]);
    assert_eq!(
        said(&beside(vec![odd]), &outbound("10.0.0.1:80")),
        "not known: `[queue]` in inet mine, chain mine does something that is not understood"
    );
    let endless = filter(Hook::Output, vec![rule([], Action::Jump(Name::from("mine")))]);
    assert_eq!(
        said(&beside(vec![endless]), &outbound("10.0.0.1:80")),
        "not known: too many undecided rules in mine, to which `jump mine` in inet mine, chain mine leads"
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

#[test]
fn where_a_rule_sends_a_connection_is_not_followed() {
    let nat_to = dnat(Some([10, 0, 0, 9].into()));
    let sending = nat(Hook::Prerouting, -110, vec![rule([], Action::Nat(nat_to))]);
    let dropping = Table { name: Name::from("other"), ..filter(Hook::Input, vec![rule([], Action::Drop)]) };
    assert_eq!(
        said(&beside(vec![sending, dropping]), &inbound("10.0.0.1:80")),
        "not known: it depends on where `dnat to 10.0.0.9` sends it, which is not followed"
    );
}

/// To the ACK, most rules are the same as to the first packet.
#[test]
fn the_ack_is_told_of_where_something_depends_on_it() {
    let flags = ruleset::flags::ACK.map(|flags| (flags.into(), flags.into()));
    let ack = Condition::is(Field::TcpFlags, Values::Listed(flags.to_vec()));
    let explained = |condition: Condition| {
        let ruleset = beside(vec![filter(Hook::Output, vec![rule([condition], Action::Drop)])]);
        let answer = explain(&ruleset, &outbound("10.0.0.1:25"));
        let has_ack = answer.steps.iter().any(|step| step.packet == Leg::Ack);
        (answer.verdict.to_string(), has_ack)
    };
    let lost = "dropped: the ACK after the reply".to_owned();
    assert_eq!(explained(ack), (lost, true));
    assert_eq!(explained(to_port(80)), ("bypasses the proxy".to_owned(), false));
    let (verdict, has_ack) = explained(strange());
    assert!(verdict.starts_with("not known") && has_ack, "{verdict}");
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
fn a_doubt_that_changes_nothing_is_none() {
    for rules in [
        vec![rule([strange()], Action::Accept)],
        vec![rule([strange()], Action::Return), rule([], Action::Accept)],
        vec![rule([strange()], Action::Continue)],
        vec![rule([strange(), to_port(81)], Action::Drop)],
    ] {
        let ruleset = beside(vec![filter(Hook::Prerouting, rules)]);
        assert_eq!(said(&ruleset, &inbound("10.0.0.1:80")), "to the proxy, port 4143");
    }
    // To the same port by one rule or another.
    let ruleset = beside(vec![nat(Hook::Prerouting, -110, vec![rule([strange()], redirect(4143))])]);
    assert_eq!(said(&ruleset, &inbound("10.0.0.1:80")), "to the proxy, port 4143");
    assert!(said(&ruleset, &inbound("10.0.0.1:4190")).starts_with("not known: it depends on `[numgen]`"));
}

#[test]
fn a_foreign_redirection_to_the_proxys_port_is_one_to_the_proxy() {
    let redirecting = |port| vec![nat(Hook::Prerouting, -110, vec![rule([], redirect(port))])];
    assert_eq!(said(&beside(redirecting(4143)), &inbound("10.0.0.1:4190")), "to the proxy, port 4143");
    assert_eq!(
        said(&beside(redirecting(15006)), &inbound("10.0.0.1:80")),
        "goes elsewhere: redirected to port 15006 of this host"
    );
    // Without rules of ours nobody knows the proxy's ports.
    let alone = Ruleset { tables: redirecting(4143), not_known: vec![] };
    assert!(said(&alone, &inbound("10.0.0.1:80")).starts_with("goes elsewhere"));
    let several = |ports| vec![nat(Hook::Prerouting, -110, vec![rule([], Action::Redirect(ports))])];
    assert_eq!(
        said(&beside(several(Some((1, 9)))), &inbound("10.0.0.1:80")),
        "goes elsewhere: redirected to one of ports 1-9 of this host"
    );
    assert!(said(&beside(several(Some((4000, 5000)))), &inbound("10.0.0.1:80")).starts_with("not known"));
    assert_eq!(
        said(&beside(several(None)), &inbound("10.0.0.1:80")),
        "goes elsewhere: redirected to port 80 of this host"
    );
}

#[test]
fn a_translated_connection_goes_elsewhere_and_its_source_may_change() {
    let dnat = |hook, priority| nat(hook, priority, vec![rule([], Action::Nat(dnat(None)))]);
    assert_eq!(
        said(&beside(vec![dnat(Hook::Output, -110)]), &outbound("10.0.0.1:80")),
        "goes elsewhere: dnat to [...]"
    );
    assert_eq!(
        said(&beside(vec![dnat(Hook::Prerouting, -110)]), &inbound("10.0.0.1:80")),
        "goes elsewhere: dnat to [...]"
    );
    // The destination may matter later.
    let to = |hook| {
        let rules = vec![rule([Condition::is(Field::Destination(Family::V4), 7)], Action::Drop)];
        Table { name: Name::from("later"), ..filter(hook, rules) }
    };
    for (translated, later, connection) in [
        (Hook::Output, Hook::Postrouting, outbound("10.0.0.1:80")),
        (Hook::Prerouting, Hook::Forward, inbound("10.0.0.1:80")),
        (Hook::Prerouting, Hook::Input, inbound("10.0.0.1:80")),
    ] {
        assert_eq!(
            said(&beside(vec![dnat(translated, -110), to(later)]), &connection),
            "not known: it depends on the address to which it is translated, because of `ip daddr 0.0.0.7 drop` in inet \
             later, chain mine"
        );
    }
    let forwarded = filter(Hook::Forward, vec![rule([], Action::Drop)]);
    assert_eq!(said(&beside(vec![forwarded]), &inbound("10.0.0.1:80")), "to the proxy, port 4143");
    // A masqueraded one goes where it was going.
    for (hook, connection) in [(Hook::Postrouting, outbound("10.0.0.1:25")), (Hook::Input, inbound("10.0.0.1:4190"))] {
        assert_eq!(said(&beside(vec![dnat(hook, 100)]), &connection), "bypasses the proxy");
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
fn a_policy_that_drops_does_so_in_whatever_order() {
    let mut mixed = filter(Hook::Prerouting, vec![]);
    let base = mixed.chains[0].base.as_mut().unwrap();
    (base.priority, base.policy) = (-100, Policy::Drop);
    assert_eq!(said(&beside(vec![mixed]), &inbound("10.0.0.1:80")), "dropped");
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
    assert!(said(&beside(vec![mixed]), &inbound("10.0.0.1:80")).starts_with("not known: "));
    // In one table, the order is known: the last one runs first.
    let chain_of = |name: &str, port| base(name, Kind::Nat, Hook::Prerouting, -110, vec![rule([], redirect(port))]);
    let two = table("inet mine", vec![chain_of("a", 1), chain_of("b", 2)]);
    assert_eq!(said(&beside(vec![two]), &inbound("10.0.0.1:80")), "goes elsewhere: redirected to port 2 of this host");
}

/// At ingress, and at egress for the reply, which leaves by the device by which its connection came in.
#[test]
fn a_netdev_chain_sees_its_device_alone() {
    let at = |hook, action| {
        let mut chain = base("edge", Kind::Filter, hook, 0, vec![rule([], action)]);
        chain.devices = Some(Intervals::one(interface(b"eth1")));
        beside(vec![table("netdev edge", vec![chain])])
    };
    for (hook, lost) in [(Hook::Ingress, "dropped"), (Hook::Egress, "dropped: the reply")] {
        assert_eq!(
            said(&at(hook, Action::Drop), &inbound("10.0.0.1:80")),
            "not known: it depends on the interface on which it arrives, because netdev edge, chain edge, is for some: \
             give --in"
        );
        for (device, want) in [("eth1", lost), ("eth0", "to the proxy, port 4143")] {
            let by = Connection { device: Some(Name::from(device)), ..inbound("10.0.0.1:80") };
            assert_eq!(said(&at(hook, Action::Drop), &by), want, "{hook} {device}");
        }
        assert_eq!(said(&at(hook, Action::Accept), &inbound("10.0.0.1:80")), "to the proxy, port 4143");
    }
}

#[test]
fn a_chain_of_some_devices_sees_what_leaves_by_them() {
    let mut egress = base("edge", Kind::Filter, Hook::Egress, 0, vec![rule([], Action::Drop)]);
    egress.devices = Some(Intervals::one(interface(b"eth1")));
    let ruleset = Ruleset { tables: vec![table("netdev edge", vec![egress])], not_known: vec![] };
    let by = |device: Option<&str>| Connection { device: device.map(Name::from), ..outbound("10.0.0.1:25") };
    assert_eq!(
        said(&ruleset, &by(None)),
        "not known: it depends on the interface by which it leaves, because netdev edge, chain edge, is for some: give \
         --out"
    );
    assert_eq!(said(&ruleset, &by(Some("eth1"))), "dropped");
    assert_eq!(said(&ruleset, &by(Some("eth0"))), "bypasses the proxy");
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
