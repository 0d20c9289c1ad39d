use std::net::Ipv4Addr;

use super::*;
use crate::connections::names_except_lo;
use crate::step::Matched;
use ruleset::testing::{self, base, effect_of, not, rule, table, to_port};
use ruleset::{Address, Queue};
use ruleset::{Bits, Condition, Effect, Kind, Label, NatKind, Rule, TCP, Table, Values, address, flags};

/// The IPv4 connections of a direction from a client's port to port 80, by any interface except lo.
fn to_80(direction: Direction) -> Connections {
    let all = Connections::living(Family::V4, direction)
        .narrowed(Field::SourcePort, &Intervals::one(40000))
        .narrowed(Field::DestinationPort, &Intervals::one(80));
    match direction {
        Direction::Inbound => all,
        Direction::Outbound => all.narrowed(Field::OutInterface, &names_except_lo()),
    }
}

/// A socket of this user that listens on all of IPv4's addresses.
fn server(port: u16, uid: u32) -> Listener {
    Listener {
        address: Ipv4Addr::UNSPECIFIED.into(),
        port,
        device: 0,
        is_ipv6_only: false,
        uid,
        queue: Queue::default(),
        is_transparent: Some(false),
    }
}

fn listening(listeners: &[Listener]) -> Network {
    Network { listeners: listeners.to_vec(), ..Network::default() }
}

/// The decisions about those connections, and their treatment in the end, a line each.
fn ends_around(direction: Direction, tables: Vec<Table>, around: &Environment<'_>) -> Vec<String> {
    let ruleset = Ruleset { tables, not_known: vec![] };
    let walk = there_and_back(&ruleset, Family::V4, direction, to_80(direction), around, None);
    let line = |what: &str, outcome: &Outcome<'_>| {
        let certain = if outcome.is_certain() { "" } else { "perhaps " };
        let at = outcome.at.map(|at| format!(" by {}", at.chain().name)).unwrap_or_default();
        format!("{what}{certain}{:?} {:?}{at}", outcome.packet, outcome.treatment)
    };
    let decided = walk.decisions.iter().map(|outcome| line("", outcome));
    let arrived = walk.arrived.iter().map(|outcome| line("at last ", outcome));
    decided.chain(arrived).collect()
}

fn ends(direction: Direction, tables: Vec<Table>) -> Vec<String> {
    ends_around(direction, tables, &Environment::default())
}

fn outbound(tables: Vec<Table>) -> Vec<String> {
    ends(Direction::Outbound, tables)
}

fn inbound(tables: Vec<Table>) -> Vec<String> {
    ends(Direction::Inbound, tables)
}

/// A table with one base chain, which is called like it.
fn filter(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Table {
    table(&format!("ip {name}"), vec![base(name, Kind::Filter, hook, priority, rules)])
}

fn nat(name: &str, hook: Hook, rules: Vec<Rule>) -> Table {
    table(&format!("ip {name}"), vec![base(name, Kind::Nat, hook, -100, rules)])
}

fn drop_if(condition: Condition) -> Vec<Rule> {
    vec![rule([condition], Action::Drop)]
}

fn dnat(address: Option<Ipv4Addr>) -> Vec<Rule> {
    vec![rule([], Action::Nat(testing::dnat(address.map(IpAddr::V4))))]
}

fn with_flags(flags: &[u8]) -> Condition {
    Condition::is(Field::TcpFlags, Values::Listed(flags.iter().map(|&flags| (flags.into(), flags.into())).collect()))
}

fn redirect(port: u16) -> Rule {
    rule([], Action::Redirect(Some((port, port))))
}

/// Something that needs connection tracking, and does nothing.
fn tracking() -> Table {
    let never = Condition::is(Field::Protocol, TCP + 1);
    filter("tracking", Hook::Forward, 0, vec![rule([never, flags::ct_state_condition(|_| true)], Action::Accept)])
}

#[test]
fn only_packets_that_a_socket_here_sends_or_is_to_get_have_its_user() {
    let of_seven = || Condition::is(Field::Uid, 7);
    let at = |direction, hook| ends(direction, vec![filter("f", hook, 0, drop_if(of_seven()))]);
    let passes = ["at last Ack Accepted"];
    for hook in [Hook::Output, Hook::Postrouting] {
        assert_eq!(at(Direction::Outbound, hook), ["First Dropped by f", "at last Ack Accepted"], "{hook}");
        let reply = at(Direction::Inbound, hook);
        assert_eq!(reply, ["perhaps Reply Dropped by f", "at last perhaps Ack Accepted"], "{hook}");
    }
    assert_eq!(at(Direction::Outbound, Hook::Prerouting), passes);
    assert_eq!(at(Direction::Inbound, Hook::Prerouting), passes);
    assert_eq!(at(Direction::Inbound, Hook::Forward), passes);
    // The reply gets to a socket of that user.
    let at_input = at(Direction::Outbound, Hook::Input);
    assert_eq!(at_input, ["Reply Dropped by f", "at last Ack Accepted"]);
    // The first packet gets to none yet, and the ACK to the server's.
    let at_input = at(Direction::Inbound, Hook::Input);
    assert_eq!(at_input, ["perhaps Ack Dropped by f", "at last perhaps Ack Accepted"]);
}

#[test]
fn packets_have_the_device_by_which_they_come_in_or_leave() {
    let no_device = |field| Condition::is(field, 0);
    let (comes, leaves) = (Field::InInterface, Field::OutInterface);
    let passes = ["at last Ack Accepted"];
    for (direction, there, back) in [
        (Direction::Inbound, Hook::Prerouting, Hook::Postrouting),
        (Direction::Outbound, Hook::Postrouting, Hook::Prerouting),
    ] {
        let drop = |hook, condition| ends(direction, vec![filter("f", hook, 0, drop_if(condition))]);
        let (first, second) = match direction {
            Direction::Inbound => (comes, leaves),
            Direction::Outbound => (leaves, comes),
        };
        assert_eq!(drop(there, not(no_device(second))), passes, "{direction}");
        assert_eq!(drop(there, no_device(second)), ["First Dropped by f"], "{direction}");
        // By which device the reply goes back isn't known.
        assert_eq!(drop(back, not(no_device(first))), passes, "{direction}");
        assert_eq!(drop(back, no_device(first)), ["Reply Dropped by f"], "{direction}");
    }
}

#[test]
fn what_is_sent_elsewhere_goes_where_routing_says() {
    let elsewhere = Ipv4Addr::new(10, 0, 0, 1);
    let routes = |device: &str| [(IpAddr::V4(elsewhere), Some(Name::from(device)))];
    let at = |direction: Direction, hook, device: Option<&str>| {
        let routes = device.map(routes);
        let around =
            Environment { routes: routes.as_ref().map_or(&[], |routes| &routes[..]), ..Environment::default() };
        let early = first_hooks(direction).last().copied().unwrap();
        let dropping = filter("f", hook, 0, vec![rule([], Action::Drop)]);
        let mut said = ends_around(direction, vec![nat("nat", early, dnat(Some(elsewhere))), dropping], &around);
        assert_eq!(said.remove(0), "First Translated by nat");
        said
    };
    let arrives = "at last Ack Translated by nat";
    let dropped = "First Dropped by f";
    let (inbound, outbound) = (Direction::Inbound, Direction::Outbound);
    assert_eq!(at(inbound, Hook::Forward, Some("eth1")), [dropped]);
    assert_eq!(at(inbound, Hook::Input, Some("eth1")), [arrives]);
    assert_eq!(at(inbound, Hook::Forward, Some("lo")), [arrives]);
    assert_eq!(at(inbound, Hook::Input, Some("lo")), [dropped]);
    let perhaps = ["perhaps First Dropped by f", "at last perhaps Ack Translated by nat"];
    assert_eq!(at(inbound, Hook::Forward, None), perhaps);
    // A forwarded packet leaves by a device other than lo.
    for (device, drops) in [(&b"lo"[..], false), (b"eth1", true)] {
        let leaves_by_it = Condition::is(Field::OutInterface, interface(device));
        let tables = vec![
            nat("nat", Hook::Prerouting, dnat(Some(elsewhere))),
            filter("f", Hook::Forward, 0, drop_if(leaves_by_it)),
        ];
        let to_eth1 = routes("eth1");
        for (routes, word) in [(&[][..], "perhaps "), (&to_eth1[..], "")] {
            let around = Environment { routes, ..Environment::default() };
            let said = ends_around(inbound, tables.clone(), &around);
            assert_eq!(said.contains(&format!("{word}{dropped}")), drops, "{said:?}");
        }
    }
    assert_eq!(at(inbound, Hook::Input, None), perhaps);
    assert_eq!(at(outbound, Hook::Input, Some("lo")), [dropped]);
    assert_eq!(at(outbound, Hook::Forward, Some("lo")), [arrives]);
    assert_eq!(at(outbound, Hook::Forward, Some("eth1")), [arrives]);
    let reply = at(outbound, Hook::Input, Some("eth1"));
    assert_eq!(reply, ["Reply Dropped by f"]);
    for direction in [inbound, outbound] {
        let around = Environment { routes: &[(IpAddr::V4(elsewhere), None)], ..Environment::default() };
        let early = first_hooks(direction).last().copied().unwrap();
        let said = ends_around(direction, vec![nat("nat", early, dnat(Some(elsewhere)))], &around);
        assert_eq!(said, ["First Translated by nat", "First Dropped by nat"], "{direction}");
    }
}

#[test]
fn what_is_sent_to_an_address_keeps_its_port_and_what_is_redirected_does_not() {
    let elsewhere = Ipv4Addr::new(10, 0, 0, 1);
    let routes = [(IpAddr::V4(elsewhere), Some(Name::from("lo")))];
    let around = Environment { routes: &routes, ..Environment::default() };
    let after = |rules, port| {
        let dropping = filter("f", Hook::Input, 0, drop_if(to_port(port)));
        let tables = vec![nat("nat", Hook::Prerouting, rules), dropping];
        ends_around(Direction::Inbound, tables, &around)[1..].to_vec()
    };
    let (lost, arrives) = (["First Dropped by f"], ["at last Ack Translated by nat"]);
    assert_eq!(after(dnat(Some(elsewhere)), 80), lost);
    assert_eq!(after(dnat(Some(elsewhere)), 81), arrives);
    assert_eq!(after(vec![redirect(81)], 80), arrives);
    assert_eq!(after(vec![redirect(81)], 81), lost);
}

#[test]
fn what_tracking_has_not_seen_has_no_mark_and_no_state() {
    let marked = || Condition::is(Field::ConnectionMark, 0);
    let raw = |condition| outbound(vec![tracking(), filter("raw", Hook::Output, -300, drop_if(condition))]);
    let seen = |condition| outbound(vec![tracking(), filter("late", Hook::Output, 0, drop_if(condition))]);
    let is_new = || flags::ct_state_condition(|state| state == flags::CtState::New);
    assert_eq!(raw(marked()), ["at last Ack Accepted"]);
    assert_eq!(raw(is_new()), ["at last Ack Accepted"]);
    assert_eq!(seen(marked()), ["First Dropped by late"]);
    assert_eq!(seen(is_new()), ["First Dropped by late"]);
    let mut early = base("early", Kind::Filter, Hook::Ingress, 0, drop_if(is_new()));
    early.devices = Some(Field::InInterface.any());
    assert_eq!(inbound(vec![tracking(), table("netdev early", vec![early])]), ["at last Ack Accepted"]);
    // Such a mark can't be set, but the rule goes on; where it is read, the rule ends.
    let set = |field, to| {
        let effects = vec![Effect::Mark { field, to: Some(to) }];
        let rules = vec![Rule { effects, needs_tracking: true, ..rule([], Action::Drop) }];
        outbound(vec![filter("raw", Hook::Output, -300, rules)])
    };
    let (mark, of_connection) = (Field::Mark, Field::ConnectionMark);
    assert_eq!(set(of_connection, Bits::constant(of_connection, 5)), ["First Dropped by raw"]);
    assert_eq!(set(mark, Bits::all(of_connection)), ["at last Ack Accepted"]);
}

#[test]
fn whether_a_connection_is_translated_is_known_only_if_it_surely_changes() {
    let has_dnat = || flags::tracking_condition(|tracked| tracked.has_dnat);
    let after = |rules| {
        let last = filter("f", Hook::Input, 0, drop_if(has_dnat()));
        inbound(vec![nat("nat", Hook::Prerouting, rules), last])
    };
    let translated = "First Translated by nat";
    assert_eq!(after(vec![redirect(81)])[..2], [translated, "First Dropped by f"]);
    // To wherever it may have gone anyway.
    let said = after(vec![rule([], Action::Redirect(Some((80, 80))))]);
    assert_eq!(said[..2], [translated, "perhaps First Dropped by f"]);
    let said = after(dnat(None));
    assert!(said.contains(&"perhaps First Dropped by f".to_owned()), "{said:?}");
    assert_eq!(after(vec![rule([], Action::Accept)]), ["at last Ack Accepted"]);
}

/// The user of the answering process, by the listeners and the rules' facts about the proxy.
#[test]
fn the_server_is_whoever_listens_or_the_proxy() {
    let proxy = Environment { ports: Intervals::one(4143), uids: Intervals::one(2102), ..Environment::default() };
    let drop_of = |uid: u128, port: u16, around: &Environment<'_>| {
        let rules = drop_if(Condition::is(Field::Uid, uid));
        let tables = vec![nat("nat", Hook::Prerouting, vec![redirect(port)]), filter("f", Hook::Output, 0, rules)];
        ends_around(Direction::Inbound, tables, around)[1].clone()
    };
    let (lost, perhaps) = ("Reply Dropped by f", "perhaps Reply Dropped by f");
    let arrives = "at last Ack Translated by nat";
    assert_eq!(drop_of(2102, 4143, &proxy), lost);
    assert_eq!(drop_of(7, 4143, &proxy), arrives);
    assert_eq!(drop_of(2102, 1, &proxy), arrives, "not the proxy's port");
    assert_eq!(drop_of(7, 1, &proxy), perhaps);
    let listeners = [server(4143, 7), server(1, 8)];
    let known = Environment { network: &listening(&listeners), ..proxy.clone() };
    assert_eq!(drop_of(7, 4143, &known), lost);
    assert_eq!(drop_of(2102, 4143, &known), arrives);
    assert_eq!(drop_of(8, 1, &known), lost);
    // Two listen there, or one of a user who has no number here.
    let two = [server(1, 8), server(1, 9)];
    let unmapped = [server(1, Listener::UNMAPPED)];
    for listeners in [&two[..], &unmapped[..]] {
        let around = Environment { network: &listening(listeners), ..proxy.clone() };
        assert_eq!(drop_of(8, 1, &around), perhaps);
    }
}

/// Where the reply alone isn't tracked, the ACK comes too early for the connection that was begun.
#[test]
fn the_ack_after_an_untracked_reply_is_of_no_new_connection() {
    let of_reply = Condition::is(Field::SourcePort, 80);
    let raw = filter("raw", Hook::Prerouting, -300, vec![effect_of([of_reply], Effect::Untrack)]);
    let is_ack = with_flags(&flags::ACK);
    let redirecting = nat("nat", Hook::Output, vec![rule([is_ack], Action::Redirect(Some((1, 1))))]);
    assert_eq!(outbound(vec![raw, redirecting]), ["at last Ack Accepted"]);
}

/// A chain that some connections get to as others than the rest: each rule is one step all the same, and isn't
/// known to match if only some of them do.
#[test]
fn a_rule_that_is_asked_several_times_is_one_step() {
    let marked = |mark: u128| Condition::is(Field::Mark, mark);
    let marking = Rule {
        effects: vec![Effect::Mark { field: Field::Mark, to: Some(Bits::constant(Field::Mark, 1)) }],
        ..rule([Condition::NotUnderstood(Label::expression("osf"))], Action::Continue)
    };
    let count = |condition| rule([condition], Action::Continue);
    let rules = vec![marking, count(marked(1)), count(marked(0)), count(marked(2)), count(to_port(80))];
    let ruleset = Ruleset { tables: vec![filter("f", Hook::Output, 0, rules)], not_known: vec![] };
    let direction = Direction::Outbound;
    let around = Environment::default();
    let walk = there_and_back(&ruleset, Family::V4, direction, to_80(direction), &around, None);
    let steps = walk.steps.iter().filter(|step| step.packet == Leg::First);
    let said: Vec<_> = steps
        .map(|step| {
            let matched = match &step.matched {
                Matched::Yes(_) => "yes",
                Matched::No(_) => "no",
                Matched::Perhaps(_) => "perhaps",
            };
            (step.at.line().unwrap().number, matched)
        })
        .collect();
    assert_eq!(said, [(1, "perhaps"), (2, "perhaps"), (3, "perhaps"), (4, "no"), (5, "yes")]);
}

/// Those of IPv6 by eth0.
fn neighbours(direction: Direction) -> Neighbours {
    Neighbours {
        family: Family::V6,
        direction,
        devices: Intervals::one(interface(b"eth0")),
        asking: Neighbours::link_local(),
        asked: Intervals::one(0xfd77_u128 << 112 | 0x12_3456),
    }
}

/// Where the question may be lost, so may the answer; and no nat chain sees either.
#[test]
fn an_answer_is_as_certain_as_the_question_that_it_answers() {
    let arrived = |kind, rules| {
        let ruleset = Ruleset {
            tables: vec![table("inet t", vec![base("c", kind, Hook::Prerouting, 0, rules)])],
            not_known: vec![],
        };
        let walk = discovery(&ruleset, <&Network>::default(), &neighbours(Direction::Inbound));
        walk.arrived.iter().map(Outcome::is_certain).collect::<Vec<_>>()
    };
    let of_question = || Condition::is(Field::IcmpType, 135);
    let perhaps = || Condition::NotUnderstood(Label::expression("osf"));
    assert_eq!(arrived(Kind::Filter, vec![rule([of_question(), perhaps()], Action::Drop)]), [false]);
    assert_eq!(arrived(Kind::Filter, vec![rule([of_question()], Action::Drop)]), [false; 0]);
    assert_eq!(arrived(Kind::Nat, vec![rule([of_question()], Action::Drop), redirect(1)]), [true]);
}

#[test]
fn those_who_have_addresses_are_asked_at_few() {
    let prefix = 0xff02_u128 << 112 | 0x1_ff00_0000;
    for (first, last, asked) in [
        (0x12_3456, 0x12_3456, (prefix | 0x12_3456, prefix | 0x12_3456)),
        (1, 9, (prefix | 1, prefix | 9)),
        (0xff_fff0, 0x100_000f, (prefix, prefix | 0xff_ffff)),
        (0, u128::MAX, (prefix, prefix | 0xff_ffff)),
        (1, 0x200_0005, (prefix, prefix | 0xff_ffff)),
    ] {
        assert_eq!(solicited_node_addresses(&Intervals::new([(first, last)])), Intervals::new([asked]));
    }
}

/// A reply that is dropped is told as the connection that it is of.
#[test]
fn what_becomes_of_a_reply_is_said_of_its_connection() {
    let tables = vec![filter("f", Hook::Output, 0, vec![rule([], Action::Drop)])];
    let ruleset = Ruleset { tables, not_known: vec![] };
    let connections = to_80(Direction::Inbound);
    let around = Environment::default();
    let walk = there_and_back(&ruleset, Family::V4, Direction::Inbound, connections, &around, None);
    let [dropped] = walk.decisions.as_slice() else { panic!("{:?}", walk.decisions) };
    assert_eq!(dropped.packet, Leg::Reply);
    assert_eq!(dropped.connections.get(Field::DestinationPort), Some(&Intervals::one(80)));
}

#[test]
fn what_routing_leaves_on_lo_stays_here() {
    let address: IpAddr = Ipv4Addr::new(192, 0, 2, 9).into();
    let other: IpAddr = Ipv4Addr::new(192, 0, 2, 8).into();
    let is_here = |device: Option<&str>, to: Option<IpAddr>| {
        let routes = [(address, device.map(Name::from))];
        let around = Environment { routes: &routes, ..Environment::default() };
        around.is_here(&testing::dnat(to))
    };
    assert!(is_here(Some("lo"), Some(address)));
    assert!(!is_here(Some("lo"), Some(other)) && !is_here(Some("lo"), None));
    assert!(!is_here(Some("eth0"), Some(address)) && !is_here(None, Some(address)));
}

#[test]
fn neighbours_have_addresses_of_one_host() {
    let unicast = Neighbours::unicast();
    let one = "2000:: 2001:db8::1 3fff::1 fc00::1 fdff::1 fe80::1 febf::1".split(' ').map(|text| (text, true));
    let others = "4000:: 4000::1 fe00:: fe00::1 fec0:: fec0::1 ff02::1 ::1".split(' ').map(|text| (text, false));
    for (text, is_one) in one.chain(others) {
        let number = address(text.parse().unwrap());
        assert_eq!(unicast.meets(&[(number, number)]), is_one, "{text}");
    }
}

/// The server's first reply has no socket where it is a cookie; later packets have one.
#[test]
fn a_reply_with_a_cookie_is_nobodys() {
    let ends = |always_sends_cookies, rules| {
        let settings = Settings { always_sends_cookies, ..Settings::default() };
        let network = Network { settings, ..listening(&[server(80, 7)]) };
        let around = Environment { network: &network, ..Environment::default() };
        ends_around(Direction::Inbound, vec![filter("f", Hook::Output, 0, rules)], &around)
    };
    let (lost, arrives) = (["Reply Dropped by f"], ["at last Ack Accepted"]);
    let of_servers = || Condition::is(Field::Uid, 7);
    let only_of_servers = || vec![rule([of_servers()], Action::Accept), rule([], Action::Drop)];
    assert_eq!(ends(false, only_of_servers()), arrives);
    assert_eq!(ends(true, only_of_servers()), lost);
    assert_eq!(ends(true, drop_if(of_servers())), lost);
    let is_syn = with_flags(&flags::SYN_ACK);
    let first_of_servers = || vec![rule([is_syn.clone(), of_servers()], Action::Drop)];
    assert_eq!(ends(false, first_of_servers()), lost);
    assert_eq!(ends(true, first_of_servers()), arrives);
}

/// The server's packet after its first reply is another step only where something becomes of it.
#[test]
fn later_data_is_told_only_where_something_is_decided_about_it() {
    for (flags, steps) in [(flags::DATA, 2), (flags::SYN[0], 1)] {
        let rules = vec![rule([Condition::is(Field::SourcePort, 80), with_flags(&[flags])], Action::Drop)];
        let ruleset = Ruleset { tables: vec![filter("f", Hook::Output, 0, rules)], not_known: vec![] };
        let direction = Direction::Inbound;
        let around = Environment::default();
        let walk = there_and_back(&ruleset, Family::V4, direction, to_80(direction), &around, None);
        assert_eq!(walk.steps.len(), steps, "{:?}", walk.steps);
        assert_eq!(walk.arrived.is_empty(), flags == flags::DATA);
    }
}

/// A server's packets may not find back to an address that its host neither has nor has a route to.
#[test]
fn where_a_source_is_changed_the_answer_has_to_find_it() {
    let to = Ipv4Addr::new(192, 0, 2, 9);
    let snat = Nat { kind: NatKind::Source, ..testing::dnat(Some(to.into())) };
    let device = || Some(Name::from("eth0"));
    let with = |address: Ipv4Addr| Network {
        addresses: vec![Address { device: 2, address: address.into(), prefix: 24, broadcast: None }],
        ..Network::default()
    };
    let at = |hook| {
        let rules = vec![rule([], Action::Nat(snat.clone()))];
        table("ip snat", vec![base("snat", Kind::Nat, hook, 100, rules)])
    };
    let is_open = |network: &Network, routes: &[(IpAddr, Option<Name>)], direction, tables| {
        let around = Environment { network, routes, ..Environment::default() };
        ends_around(direction, tables, &around).iter().any(|end| end.contains("NotUnderstood"))
    };
    let inbound = |network: &Network, routes: &[_]| is_open(network, routes, Direction::Inbound, vec![at(Hook::Input)]);
    let own = Ipv4Addr::new(10, 77, 0, 2);
    assert!(inbound(&with(own), &[]) && !inbound(&with(to), &[]));
    assert!(!inbound(&with(own), &[(to.into(), device())]) && inbound(&with(own), &[(to.into(), None)]));
    assert!(inbound(&with(own), &[(Ipv4Addr::LOCALHOST.into(), device())]));
    // No addresses aren't the same as unknown addresses.
    let not_known = Network { links_not_known: Some("a filter".to_owned()), ..Network::default() };
    assert!(inbound(&Network::default(), &[]) && !inbound(&not_known, &[]));
    // A packet that stays on lo has to come from an address of this host.
    let leaving = |address, more: Vec<Table>| {
        is_open(&with(address), &[], Direction::Outbound, [vec![at(Hook::Postrouting)], more].concat())
    };
    let redirected = || vec![nat("nat", Hook::Output, vec![redirect(1)])];
    assert!(leaving(own, redirected()) && !leaving(to, redirected()) && !leaving(own, vec![]));
}

/// Where the first packet alone is not tracked, a later one is taken for the first of a connection.
#[test]
fn the_ack_of_an_untracked_connection_is_of_a_new_one() {
    let is_syn = with_flags(&flags::SYN);
    let raw = || filter("raw", Hook::Output, -300, vec![effect_of([is_syn.clone()], Effect::Untrack)]);
    let redirecting = || nat("nat", Hook::Output, vec![redirect(1)]);
    assert_eq!(outbound(vec![raw(), redirecting()]), ["First Untracked by raw", "Ack Dropped by nat"]);
    assert_eq!(outbound(vec![raw(), tracking()]), ["First Untracked by raw", "at last Ack Accepted by raw"]);
}

#[test]
fn the_reply_is_translated_back_at_the_hook_for_that() {
    // The proxy's answer comes from its port until it is translated back, after output's NAT.
    let from = |port: u128| drop_if(Condition::is(Field::SourcePort, port));
    let at = |hook, port| {
        inbound(vec![nat("nat", Hook::Prerouting, vec![redirect(4143)]), filter("f", hook, 0, from(port))])
    };
    let translated = "First Translated by nat";
    let arrives = [translated, "at last Ack Translated by nat"];
    let lost = [translated, "Reply Dropped by f"];
    assert_eq!(at(Hook::Output, 4143), lost);
    assert_eq!(at(Hook::Output, 80), arrives);
    assert_eq!(at(Hook::Postrouting, 4143), lost);
    assert_eq!(at(Hook::Postrouting, 80), arrives);
    assert_eq!(at(Hook::Egress, 4143), arrives);
    assert_eq!(at(Hook::Egress, 80), lost);
}

/// At input, an ACK has the socket of the server, unless the kernel remembers no connection before it.
#[test]
fn the_socket_is_found_before_a_packet_is_delivered() {
    let of_servers = || drop_if(Condition::is(Field::Uid, 7));
    let ends = |settings: Settings| {
        let network = Network { settings, ..listening(&[server(80, 7)]) };
        let around = Environment { network: &network, ..Environment::default() };
        ends_around(Direction::Inbound, vec![filter("f", Hook::Input, 0, of_servers())], &around)
    };
    let (lost, arrives) = (["Ack Dropped by f"], ["at last Ack Accepted"]);
    assert_eq!(ends(Settings::default()), lost);
    assert_eq!(ends(Settings { always_sends_cookies: true, ..Settings::default() }), arrives);
    assert_eq!(ends(Settings { finds_sockets: false, ..Settings::default() }), arrives);
}

/// Source NAT without a port takes another one where the client's is taken.
#[test]
fn a_new_source_may_have_another_port() {
    let snat = nat("nat", Hook::Postrouting, dnat(Some(Ipv4Addr::new(10, 0, 0, 1))));
    let late = filter("late", Hook::Postrouting, 300, drop_if(Condition::is(Field::SourcePort, 40000)));
    let said = outbound(vec![snat, late]);
    assert_eq!(said.last().map(String::as_str), Some("at last Ack Accepted"), "{said:?}");
}

#[test]
fn connection_tracking_leaves_discovery_alone() {
    for (priority, state, is_dropped) in [
        (0, flags::CtState::Untracked, true),
        (0, flags::CtState::Invalid, false),
        (0, flags::CtState::New, false),
        // Before it has seen the packet.
        (-300, flags::CtState::Invalid, true),
        (-300, flags::CtState::Untracked, false),
    ] {
        let drop = rule([flags::ct_state_condition(|is| is == state)], Action::Drop);
        let chain = base("c", Kind::Filter, Hook::Prerouting, priority, vec![drop]);
        let ruleset = Ruleset { tables: vec![table("inet t", vec![chain])], not_known: vec![] };
        let walk = discovery(&ruleset, <&Network>::default(), &neighbours(Direction::Inbound));
        assert!(walk.decisions.iter().chain(&walk.arrived).all(|outcome| !outcome.connections.is_arp()));
        assert_eq!(walk.arrived.is_empty(), is_dropped, "{priority} {state:?}");
    }
}

#[test]
fn arp_passes_tables_of_its_own_and_those_of_devices() {
    let ends = |name: &str, hook: Hook, conditions: Vec<Condition>, direction| {
        let drop = Rule::new(conditions, Action::Drop);
        let ruleset = Ruleset {
            tables: vec![table(name, vec![base("c", Kind::Filter, hook, 0, vec![drop])])],
            not_known: vec![],
        };
        let neighbours = Neighbours { family: Family::V4, ..neighbours(direction) };
        let walk = discovery(&ruleset, <&Network>::default(), &neighbours);
        assert!(walk.decisions.iter().chain(&walk.arrived).all(|outcome| outcome.connections.is_arp()));
        walk.arrived.is_empty()
    };
    let of = |family| vec![Condition::is(Field::Family, family)];
    for (name, hook, conditions, is_lost) in [
        ("arp t", Hook::Input, vec![], true),
        ("arp t", Hook::Output, vec![], true),
        ("netdev t", Hook::Ingress, of(ruleset::nftables::ARP), true),
        ("netdev t", Hook::Egress, vec![], true),
        ("netdev t", Hook::Ingress, of(2), false),
        ("netdev t", Hook::Ingress, vec![Condition::is(Field::Protocol, TCP)], false),
        ("ip t", Hook::Input, vec![], false),
        ("inet t", Hook::Ingress, vec![], false),
    ] {
        for direction in Direction::ALL {
            assert_eq!(ends(name, hook, conditions.clone(), direction), is_lost, "{name} {hook}");
        }
    }
}
