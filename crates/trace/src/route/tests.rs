use std::net::Ipv4Addr;

use super::*;
use crate::connections::names_except_lo;
use crate::step::Matched;
use ruleset::testing::{self, base, device, effect_of, not, rule, table, to_port};
use ruleset::{Address, Device, Queue};
use ruleset::{Bits, Chain, Condition, Effect, Kind, Label, NatKind, Rule, TCP, Table, Values, address, flags};

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
fn a_connection_is_three_packets_and_each_passes_the_hooks_of_its_way() {
    let way_in = [Hook::Prerouting, Hook::Input];
    let way_out = [Hook::Output, Hook::Postrouting];
    let to = || Condition::is(Field::DestinationPort, 80);
    let from = || Condition::is(Field::SourcePort, 80);
    let ack = || with_flags(&flags::ACK);
    for (direction, there, back) in [(Direction::Inbound, way_in, way_out), (Direction::Outbound, way_out, way_in)] {
        for hook in there {
            let first = ends(direction, vec![filter("f", hook, 0, drop_if(to()))]);
            assert_eq!(first, ["First Dropped by f"], "{direction} {hook}");
            let rules = vec![rule([to(), ack()], Action::Drop)];
            let last = ends(direction, vec![filter("f", hook, 0, rules)]);
            assert_eq!(last, ["Ack Dropped by f"], "{direction} {hook}");
            let none = ends(direction, vec![filter("f", hook, 0, drop_if(from()))]);
            assert_eq!(none, ["at last Ack Accepted"], "{direction} {hook}");
        }
        for hook in back {
            let reply = ends(direction, vec![filter("f", hook, 0, drop_if(from()))]);
            assert_eq!(reply, ["Reply Dropped by f"], "{direction} {hook}");
            let none = ends(direction, vec![filter("f", hook, 0, drop_if(to()))]);
            assert_eq!(none, ["at last Ack Accepted"], "{direction} {hook}");
        }
        let forwarded = ends(direction, vec![filter("f", Hook::Forward, 0, vec![rule([], Action::Drop)])]);
        assert_eq!(forwarded, ["at last Ack Accepted"], "{direction}");
    }
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
fn nat_chains_are_asked_until_something_is_settled() {
    // A chain that changes sources is asked too, whatever has become of the destination.
    let drop_80 = || drop_if(to_port(80));
    let source_nat = || nat("late", Hook::Postrouting, drop_80());
    assert_eq!(outbound(vec![tracking(), source_nat()]), ["First Dropped by late"]);
    let accepting = nat("early", Hook::Output, vec![rule([], Action::Accept)]);
    assert_eq!(outbound(vec![accepting, tracking(), source_nat()]), ["First Dropped by late"]);
    // Only first packets are asked about.
    let from_80 = drop_if(Condition::is(Field::SourcePort, 80));
    let of_reply = nat("reply", Hook::Prerouting, from_80);
    assert_eq!(outbound(vec![tracking(), of_reply]), ["at last Ack Accepted"]);
    // Without connection tracking, there is no NAT.
    assert_eq!(outbound(vec![source_nat()]), ["at last Ack Accepted"]);
    let untracking = || filter("raw", Hook::Output, -300, vec![effect_of([], Effect::Untrack)]);
    assert_eq!(
        outbound(vec![untracking(), tracking(), source_nat()]),
        ["First Untracked by raw", "at last Reply Accepted by raw"],
        "the server's next packet has to get through too"
    );
    // This packet is taken for the first one of a connection, which nat chains are asked about.
    let redirecting = nat("nat", Hook::Prerouting, vec![redirect(1)]);
    assert_eq!(outbound(vec![untracking(), redirecting]), ["First Untracked by raw", "Reply Dropped by nat"]);
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

/// By net.netfilter.nf_conntrack_tcp_loose = 0, only a SYN begins a connection: nat chains see none of the others.
#[test]
fn without_loose_tracking_no_later_packet_is_the_first_of_a_connection() {
    let untracking = filter("raw", Hook::Output, -300, vec![effect_of([], Effect::Untrack)]);
    let redirecting = nat("nat", Hook::Prerouting, vec![redirect(1)]);
    let settings = Settings { tracks_from_any: false, ..Settings::default() };
    let network = Network { settings, ..Network::default() };
    let around = Environment { network: &network, ..Environment::default() };
    let ends = ends_around(Direction::Outbound, vec![untracking, redirecting], &around);
    assert_eq!(ends, ["First Untracked by raw", "at last Ack Accepted by raw"]);
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
fn what_is_redirected_on_its_way_in_goes_to_an_address_of_its_device() {
    let own = Ipv4Addr::new(10, 77, 0, 2);
    let known = Network {
        devices: vec![device(1, "lo"), device(2, "eth0")],
        addresses: vec![Address { device: 2, address: own.into(), prefix: 24, broadcast: None }],
        ..Network::default()
    };
    let is_lost = |network: &Network, to: Ipv4Addr| {
        let around = Environment { network, ..Environment::default() };
        let to = Condition::is(Field::Destination(Family::V4), address(to.into()));
        let tables = vec![nat("nat", Hook::Prerouting, vec![redirect(1)]), filter("f", Hook::Input, 0, drop_if(to))];
        ends_around(Direction::Inbound, tables, &around).contains(&"First Dropped by f".to_owned())
    };
    assert!(is_lost(&known, own));
    assert!(!is_lost(&known, Ipv4Addr::new(10, 77, 0, 3)));
    // The address isn't known, but no device has such an address.
    assert!(is_lost(&Network::default(), own));
    assert!(!is_lost(&Network::default(), Ipv4Addr::LOCALHOST));
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
fn a_mark_stays_with_the_packet_or_with_the_connection() {
    let marked = |field, at: Hook| {
        let effects = vec![Effect::Mark { field, to: Some(Bits::constant(field, 5)) }];
        let is_first = Condition::is(Field::DestinationPort, 80);
        let marking = vec![Rule { effects, ..rule([is_first], Action::Continue) }];
        let rules = drop_if(Condition::is(field, 5));
        outbound(vec![tracking(), filter("marking", Hook::Output, 0, marking), filter("late", at, 1, rules)])
    };
    let passes = ["at last Ack Accepted"];
    assert_eq!(marked(Field::Mark, Hook::Output), ["First Dropped by late"]);
    assert_eq!(marked(Field::Mark, Hook::Postrouting), ["First Dropped by late"]);
    assert_eq!(marked(Field::Mark, Hook::Input), passes);
    assert_eq!(marked(Field::ConnectionMark, Hook::Input), ["Reply Dropped by late"]);
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

#[test]
fn a_chain_of_a_device_at_egress_sees_what_leaves_by_it() {
    let at_egress = |device: &[u8]| {
        let dropping = base("edge", Kind::Filter, Hook::Egress, 0, vec![rule([], Action::Drop)]);
        let of_one = Chain { devices: Some(Intervals::one(interface(device))), ..dropping };
        table("netdev edge", vec![of_one])
    };
    let said = outbound(vec![at_egress(b"eth1")]);
    assert_eq!(said, ["First Dropped by edge", "at last Ack Accepted"]);
    assert_eq!(outbound(vec![at_egress(b"lo")]), ["at last Ack Accepted"]);
    // By that device alone, nothing depends on it.
    for (device, steps) in [(b"eth1", 1), (b"eth2", 0)] {
        let ruleset = Ruleset { tables: vec![at_egress(b"eth1")], not_known: vec![] };
        let direction = Direction::Outbound;
        let by_it = to_80(direction).narrowed(Field::OutInterface, &Intervals::one(interface(device)));
        let walk = there_and_back(&ruleset, Family::V4, direction, by_it, &Environment::default(), None);
        assert_eq!(walk.steps.len(), steps, "{:?}", walk.steps);
        assert!(walk.steps.iter().all(|step| matches!(step.matched, Matched::Yes(_))));
    }
}

#[test]
fn what_comes_of_each_order_is_certain_and_what_comes_of_one_is_not() {
    let tied = |name: &str, rule: Rule| nat(name, Hook::Output, vec![rule]);
    let to = |port, action| rule([to_port(port)], action);
    let said = outbound(vec![tied("one", to(80, Action::Drop)), tied("two", to(81, Action::Drop)), tracking()]);
    assert_eq!(said, ["First Dropped by one"], "once");
    let said = outbound(vec![tied("one", to(81, Action::Drop)), tied("two", to(82, Action::Drop)), tracking()]);
    assert_eq!(said, ["at last Ack Accepted"]);
    let mut said = outbound(vec![tied("one", redirect(1)), tied("two", redirect(2))]);
    said.sort();
    assert_eq!(
        said,
        [
            "at last perhaps Ack Translated by one",
            "at last perhaps Ack Translated by two",
            "perhaps First Translated by one",
            "perhaps First Translated by two",
        ]
    );
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

/// The treatment of the packets by which neighbours find each other, where this is hooked.
fn discovered(direction: Direction, chains: &[(Hook, i32, Rule)]) -> Vec<String> {
    let chains = chains
        .iter()
        .map(|(hook, priority, rule)| base(&hook.to_string(), Kind::Filter, *hook, *priority, vec![rule.clone()]));
    let ruleset = Ruleset { tables: vec![table("inet t", chains.collect())], not_known: vec![] };
    let walk = discovery(&ruleset, <&Network>::default(), &neighbours(direction));
    assert!(walk.decisions.iter().chain(&walk.arrived).all(|outcome| !outcome.connections.is_arp()));
    let line = |what: &str, outcome: &Outcome<'_>| format!("{what}{:?} {:?}", outcome.packet, outcome.treatment);
    let decided = walk.decisions.iter().map(|outcome| line("", outcome));
    decided.chain(walk.arrived.iter().map(|outcome| line("at last ", outcome))).collect()
}

const FOUND: [&str; 1] = ["at last Advertisement Accepted"];

#[test]
fn neighbours_ask_and_answer_through_the_same_hooks() {
    let drop = |condition| rule([condition], Action::Drop);
    let kind = |number: u128| Condition::is(Field::IcmpType, number);
    let asked_at = Condition::is(Field::Destination(Family::V6), (0xff02_u128 << 112) | 0x1_ff12_3456);
    let of_link = Condition::is(Field::Source(Family::V6), (0xfe80_u128 << 112, (0xfec0_u128 << 112) - 1));
    let begins_with = |kind: u128| Condition::is(Field::SourcePort, kind << 8);
    let (asks, answers) = (["Solicitation Dropped"], ["Advertisement Dropped"]);
    for (hook, condition, inbound, outbound) in [
        (Hook::Ingress, kind(135), &asks[..], &FOUND[..]),
        (Hook::Prerouting, asked_at.clone(), &asks, &FOUND),
        (Hook::Input, of_link.clone(), &asks, &FOUND),
        (Hook::Input, kind(136), &FOUND, &answers),
        (Hook::Output, kind(136), &answers, &FOUND),
        (Hook::Postrouting, asked_at, &FOUND, &asks),
        (Hook::Egress, kind(135), &FOUND, &asks),
        (Hook::Forward, kind(135), &FOUND, &FOUND),
        // Where TCP's packets have their ports, these have the type and the code, and a checksum that isn't known.
        (Hook::Input, begins_with(135), &asks, &FOUND),
        (Hook::Output, begins_with(136), &answers, &FOUND),
        (Hook::Input, to_port(80), &[asks[0], FOUND[0]], &[answers[0], FOUND[0]]),
        // To a group or to one: that isn't known.
        (Hook::Input, Condition::is(Field::PacketType, 2), &[asks[0], FOUND[0]], &[answers[0], FOUND[0]]),
        // They have no owner.
        (Hook::Output, Condition::is(Field::Uid, (0, 4_000_000_000)), &FOUND, &FOUND),
        (Hook::Input, Condition::is(Field::InInterface, interface(b"eth1")), &FOUND, &FOUND),
    ] {
        let chain = [(hook, 0, drop(condition))];
        assert_eq!(discovered(Direction::Inbound, &chain), inbound, "{chain:?}");
        assert_eq!(discovered(Direction::Outbound, &chain), outbound, "{chain:?}");
    }
}

#[test]
fn connection_tracking_leaves_discovery_alone() {
    let drop = |state| rule([flags::ct_state_condition(|is| is == state)], Action::Drop);
    for (priority, state, is_dropped) in [
        (0, flags::CtState::Untracked, true),
        (0, flags::CtState::Invalid, false),
        (0, flags::CtState::New, false),
        // Before it has seen the packet.
        (-300, flags::CtState::Invalid, true),
        (-300, flags::CtState::Untracked, false),
    ] {
        let ends = discovered(Direction::Inbound, &[(Hook::Prerouting, priority, drop(state))]);
        assert_eq!(ends != FOUND, is_dropped, "{priority} {state:?}");
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
fn discovery_with_another_hop_limit_is_ignored() {
    let hops = |to| effect_of([], Effect::Mark { field: Field::HopLimit, to });
    let ends = |to| discovered(Direction::Inbound, &[(Hook::Postrouting, 0, hops(to))]);
    let to = |number| Some(Bits::constant(Field::HopLimit, number));
    assert_eq!(ends(to(255)), FOUND);
    assert_eq!(ends(to(64)), ["Advertisement Dropped"]);
    assert_eq!(ends(None), ["Advertisement NotUnderstood", "at last Advertisement Accepted"]);
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

/// A bond's packets come in by its ports before they come in by it, and leave by them after they leave by it.
#[test]
fn packets_pass_the_devices_beneath_theirs() {
    let bond = Device { kind: b"bond".to_vec(), ..device(2, "bond0") };
    let network =
        Network { devices: vec![bond, Device { master: Some(2), ..device(3, "eth1") }], ..Network::default() };
    let around = Environment { network: &network, ..Environment::default() };
    for (direction, hook) in [(Direction::Inbound, Hook::Ingress), (Direction::Outbound, Hook::Egress)] {
        for (name, is_passed) in [("eth1", true), ("eth2", false)] {
            let mut dropping = base("f", Kind::Filter, hook, 0, vec![rule([], Action::Drop)]);
            dropping.devices = Some(Intervals::one(interface(name.as_bytes())));
            let ruleset = Ruleset { tables: vec![table("netdev f", vec![dropping])], not_known: vec![] };
            let field = if hook == Hook::Ingress { Field::InInterface } else { Field::OutInterface };
            let by_bond = to_80(direction).with_numbers(field, Intervals::one(interface(b"bond0")));
            let walk = there_and_back(&ruleset, Family::V4, direction, by_bond, &around, None);
            let dropped = walk
                .decisions
                .iter()
                .any(|outcome| (outcome.packet, outcome.treatment) == (Leg::First, Treatment::Dropped));
            assert_eq!(dropped, is_passed, "{direction} {name}");
        }
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

/// The client routes its ACK as it did its SYN, whichever way the reply went.
#[test]
fn the_ack_comes_by_the_device_of_the_first_packet() {
    let back = Name::from("bb");
    let around = Environment { back: Some(&back), ..Environment::default() };
    let by = |name: &str| Intervals::one(interface(name.as_bytes()));
    let by_aa = to_80(Direction::Inbound).with_numbers(Field::InInterface, by("aa"));
    for (name, is_dropped) in [("aa", true), ("bb", false)] {
        let later = flags::ct_state_condition(|state| state == flags::CtState::Established);
        let on_it = Condition::is(Field::InInterface, interface(name.as_bytes()));
        let tables = vec![filter("f", Hook::Input, 0, vec![rule([on_it, later], Action::Drop)])];
        let ruleset = Ruleset { tables, not_known: vec![] };
        let walk = there_and_back(&ruleset, Family::V4, Direction::Inbound, by_aa.clone(), &around, None);
        assert_eq!(walk.arrived.is_empty(), is_dropped, "{name}: {:?}", walk.decisions);
    }
}

/// Packets for others than this host are dropped before any rule for IP, and so are those of living connections for it.
#[test]
fn a_packet_of_a_connection_is_for_this_host() {
    for hook in [Hook::Prerouting, Hook::Input] {
        let of_type = |kind: u128| inbound(vec![filter("f", hook, 0, drop_if(Condition::is(Field::PacketType, kind)))]);
        assert_eq!(of_type(0), ["First Dropped by f"]);
        assert_eq!(of_type(2), ["at last Ack Accepted"]);
        let of_frame = |kind| inbound(vec![filter("f", hook, 0, drop_if(Condition::is(Field::EtherType, kind)))]);
        assert_eq!(of_frame(0x0800), ["First Dropped by f"]);
        assert_eq!(of_frame(0x86dd), ["at last Ack Accepted"]);
    }
}

/// Source NAT without a port takes another one where the client's is taken.
#[test]
fn a_new_source_may_have_another_port() {
    let snat = nat("nat", Hook::Postrouting, dnat(Some(Ipv4Addr::new(10, 0, 0, 1))));
    let late = filter("late", Hook::Postrouting, 300, drop_if(Condition::is(Field::SourcePort, 40000)));
    let said = outbound(vec![snat, late]);
    assert_eq!(said.last().map(String::as_str), Some("at last Ack Accepted"), "{said:?}");
}

/// Where iptables' chains are called in a bridge, they may have changed the destination before the bridge's input.
#[test]
fn a_bridge_s_input_sees_a_destination_that_iptables_may_have_changed() {
    let bridge = Device { kind: b"bridge".to_vec(), ..device(2, "br0") };
    let devices = vec![bridge, Device { master: Some(2), ..device(3, "eth1") }];
    let by_bridge = to_80(Direction::Inbound).with_numbers(Field::InInterface, Intervals::one(interface(b"br0")));
    for (hook, bridges_call_ip, want) in [
        (Hook::Prerouting, false, "First Dropped"),
        (Hook::Prerouting, true, "First Dropped"),
        (Hook::Input, false, "First Dropped"),
        (Hook::Input, true, "perhaps First Dropped"),
    ] {
        let settings = Settings { bridges_call_ip, ..Settings::default() };
        let network = Network { devices: devices.clone(), settings, ..Network::default() };
        let around = Environment { network: &network, ..Environment::default() };
        let tables = vec![table("bridge f", vec![base("f", Kind::Filter, hook, 0, drop_if(to_port(80)))])];
        let ruleset = Ruleset { tables, not_known: vec![] };
        let walk = there_and_back(&ruleset, Family::V4, Direction::Inbound, by_bridge.clone(), &around, None);
        let dropped = walk.decisions.first().unwrap();
        let certain = if walk.arrived.is_empty() { "" } else { "perhaps " };
        assert_eq!(format!("{certain}{:?} {:?}", dropped.packet, dropped.treatment), want, "{hook} {bridges_call_ip}");
    }
}

/// The other host answers by a route of its own.
#[test]
fn the_reply_to_another_device_s_address_may_come_by_any() {
    let address = |device, last| Address {
        device,
        address: Ipv4Addr::new(10, 77, device as u8, last).into(),
        prefix: 24,
        broadcast: None,
    };
    let network = Network {
        devices: vec![device(1, "lo"), device(2, "eth0"), device(3, "eth1")],
        addresses: vec![address(2, 1), address(3, 1)],
        ..Network::default()
    };
    let around = Environment { network: &network, ..Environment::default() };
    for (from, by_eth0) in [("10.77.2.1", "Reply Dropped"), ("10.77.3.1", "perhaps Reply Dropped")] {
        let connections = to_80(Direction::Outbound)
            .with_numbers(Field::Source(Family::V4), Intervals::one(ruleset::address(from.parse().unwrap())))
            .with_numbers(Field::OutInterface, Intervals::one(interface(b"eth0")));
        let comes_by_eth0 = Condition::is(Field::InInterface, interface(b"eth0"));
        let tables = vec![filter("f", Hook::Prerouting, 0, drop_if(comes_by_eth0))];
        let ruleset = Ruleset { tables, not_known: vec![] };
        let walk = there_and_back(&ruleset, Family::V4, Direction::Outbound, connections, &around, None);
        let dropped = walk.decisions.first().unwrap();
        let certain = if walk.arrived.is_empty() { "" } else { "perhaps " };
        assert_eq!(format!("{certain}{:?} {:?}", dropped.packet, dropped.treatment), by_eth0, "{from}");
    }
}

/// A rule that takes only impossible connections takes nothing from anybody.
#[test]
fn connections_live_between_hosts_and_by_devices_that_are_there() {
    let own = Ipv4Addr::new(10, 77, 0, 2);
    let network = Network {
        devices: vec![device(1, "lo"), device(2, "eth0")],
        addresses: vec![Address { device: 2, address: own.into(), prefix: 24, broadcast: None }],
        ..Network::default()
    };
    let around = Environment { network: &network, ..Environment::default() };
    let number = |text: &str| address(text.parse().unwrap());
    let (from, to) = (Field::Source(Family::V4), Field::Destination(Family::V4));
    for (direction, field, only, is_live) in [
        (Direction::Inbound, from, number("10.77.0.1"), true),
        (Direction::Inbound, from, number("10.77.0.2"), false),
        (Direction::Outbound, from, number("10.77.0.2"), true),
        (Direction::Outbound, to, number("10.77.0.1"), true),
        (Direction::Outbound, to, number("10.77.0.255"), false),
        (Direction::Inbound, Field::InInterface, interface(b"eth0"), true),
        (Direction::Inbound, Field::InInterface, interface(b"eth1"), false),
        (Direction::Outbound, Field::OutInterface, interface(b"eth1"), false),
    ] {
        let connections = to_80(direction).narrowed(field, &Intervals::one(only));
        assert_eq!(around.could_live(&connections, Family::V4, direction), is_live, "{direction} {connections}");
    }
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
    for (text, is_one) in [
        ("2000::", true),
        ("2001:db8::1", true),
        ("3fff::1", true),
        ("4000::", false),
        ("4000::1", false),
        ("fc00::1", true),
        ("fdff::1", true),
        ("fe00::", false),
        ("fe00::1", false),
        ("fe80::1", true),
        ("febf::1", true),
        ("fec0::", false),
        ("fec0::1", false),
        ("ff02::1", false),
        ("::1", false),
    ] {
        let number = address(text.parse().unwrap());
        assert_eq!(unicast.meets(&[(number, number)]), is_one, "{text}");
    }
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

#[test]
fn connection_tracking_tells_the_reply_from_the_packets_of_the_client() {
    let of_reply = |is_reply| flags::tracking_condition(move |is| is.is_reply == is_reply);
    for (direction, hook, of_client) in [
        (Direction::Inbound, Hook::Input, true),
        (Direction::Inbound, Hook::Output, false),
        (Direction::Outbound, Hook::Postrouting, true),
        (Direction::Outbound, Hook::Input, false),
    ] {
        let dropped = |is_reply| ends(direction, vec![tracking(), filter("f", hook, 0, drop_if(of_reply(is_reply)))]);
        let (first, reply) = (vec!["First Dropped by f"], vec!["Reply Dropped by f"]);
        let none = vec!["at last Ack Accepted"];
        assert_eq!(dropped(false), if of_client { first } else { none.clone() }, "{direction} {hook}");
        assert_eq!(dropped(true), if of_client { none } else { reply }, "{direction} {hook}");
    }
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
    let device = Name::from("eth0");
    let own = |address: Ipv4Addr| Address { device: 2, address: address.into(), prefix: 24, broadcast: None };
    for (address, routes, is_open) in [
        (Ipv4Addr::new(10, 77, 0, 2), &[][..], true),
        (Ipv4Addr::new(10, 77, 0, 2), &[(IpAddr::V4(to), Some(device.clone()))], false),
        (Ipv4Addr::new(10, 77, 0, 2), &[(IpAddr::V4(to), None)], true),
        (Ipv4Addr::new(10, 77, 0, 2), &[(Ipv4Addr::LOCALHOST.into(), Some(device.clone()))], true),
        (to, &[], false),
    ] {
        let network = Network { addresses: vec![own(address)], ..Network::default() };
        let around = Environment { network: &network, routes, ..Environment::default() };
        let chain = base("input", Kind::Nat, Hook::Input, 100, vec![rule([], Action::Nat(snat.clone()))]);
        let ends = ends_around(Direction::Inbound, vec![table("ip snat", vec![chain])], &around);
        assert_eq!(ends[0].contains("NotUnderstood"), is_open, "{address} {routes:?}: {ends:?}");
    }
    // No addresses aren't the same as unknown addresses.
    for (links_not_known, is_open) in [(None, true), (Some("a filter".to_owned()), false)] {
        let network = Network { links_not_known, ..Network::default() };
        let around = Environment { network: &network, ..Environment::default() };
        let chain = base("input", Kind::Nat, Hook::Input, 100, vec![rule([], Action::Nat(snat.clone()))]);
        let ends = ends_around(Direction::Inbound, vec![table("ip snat", vec![chain])], &around);
        assert_eq!(ends[0].contains("NotUnderstood"), is_open, "{ends:?}");
    }
    // A packet that stays on lo has to come from an address of this host.
    for (address, is_redirected, is_open) in
        [(Ipv4Addr::new(10, 77, 0, 2), true, true), (to, true, false), (Ipv4Addr::new(10, 77, 0, 2), false, false)]
    {
        let network = Network { addresses: vec![own(address)], ..Network::default() };
        let around = Environment { network: &network, ..Environment::default() };
        let changing = base("late", Kind::Nat, Hook::Postrouting, 100, vec![rule([], Action::Nat(snat.clone()))]);
        let mut tables = vec![table("ip snat", vec![changing])];
        tables.extend(is_redirected.then(|| nat("nat", Hook::Output, vec![redirect(1)])));
        let ends = ends_around(Direction::Outbound, tables, &around);
        assert_eq!(ends.iter().any(|end| end.contains("NotUnderstood")), is_open, "{address}: {ends:?}");
    }
}
