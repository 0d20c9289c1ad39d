use super::*;
use crate::route::{Environment, there_and_back};
use ruleset::flags::ct_state_condition;
use ruleset::testing::by_map;
use ruleset::{Bits, Condition, Direction, Kind, Label, Name, Nat, NatKind, TCP, Values, interface};
use ruleset::{
    testing::base, testing::chain, testing::effect_of, testing::not, testing::rule, testing::table, testing::to_port,
};

const REDIRECT: &str = "PROXY_INIT_REDIRECT";

fn name(text: &str) -> Name {
    Name::from(text)
}

fn jump(to: &str) -> Action {
    Action::Jump(name(to))
}

fn goto(to: &str) -> Action {
    Action::Goto(name(to))
}

fn redirect(port: u16) -> Action {
    Action::Redirect(Some((port, port)))
}

fn unknown() -> Action {
    Action::NotUnderstood(Label::expression("queue"))
}

fn fixed(holds: bool) -> Condition {
    ct_state_condition(|state| (state == CtState::New) == holds)
}

fn strange() -> Condition {
    Condition::NotUnderstood(Label::expression("osf"))
}

fn any(action: Action) -> Rule {
    rule([], action)
}

fn prerouting(rules: Vec<Rule>) -> Chain {
    base("PREROUTING", Kind::Nat, Hook::Prerouting, -100, rules)
}

/// Our own chain, which redirects everything.
fn redirecting() -> Chain {
    chain(REDIRECT, vec![any(redirect(4143))])
}

/// The nat table with these rules before the jump to our chain, and other chains.
fn nat(before: Vec<Rule>, others: Vec<Chain>) -> Table {
    let mut rules = before;
    rules.push(any(jump(REDIRECT)));
    let mut chains = vec![prerouting(rules), redirecting()];
    chains.extend(others);
    table("ip nat", chains)
}

/// A filter table whose chain at the hook runs before nat.
fn mangle(name: &str, rules: Vec<Rule>) -> Table {
    table(name, vec![base("early", Kind::Filter, Hook::Prerouting, -150, rules)])
}

/// The decisions about connections as text, one a line: `TABLE CHAIN RULE: FATE of CONNECTIONS`, with `perhaps`
/// where it isn't certain, and `after` where they have been in our chain.
fn of(tables: Vec<Table>, direction: Direction, connections: Connections) -> Vec<String> {
    let ruleset = Ruleset { tables, not_known: vec![] };
    let nat = table("ip nat", vec![]);
    let watched = Watched {
        table: &nat,
        chain: match direction {
            Direction::Inbound => REDIRECT,
            Direction::Outbound => "PROXY_INIT_OUTPUT",
        },
    };
    let walk = there_and_back(&ruleset, Family::V4, direction, connections, &Environment::default(), Some(watched));
    let outcome = |outcome: &Outcome<'_>| {
        let at = outcome.at.unwrap();
        let place = at.line().map_or("policy".to_owned(), |line| line.number.to_string());
        assert_eq!(at.rule(), at.line().map(|line| line.rule), "a policy is no rule");
        format!(
            "{} {} {place}: {:?}{}{} of {}",
            at.table(),
            at.chain().name,
            outcome.treatment,
            if outcome.is_certain() { "" } else { " perhaps" },
            if outcome.after_watched { " after" } else { "" },
            outcome.connections
        )
    };
    walk.decisions.iter().chain(&walk.arrived).map(outcome).collect()
}

fn inbound(tables: Vec<Table>) -> Vec<String> {
    of(tables, Direction::Inbound, Connections::all(Family::V4, Direction::Inbound))
}

/// The outcome of a nat table in which everything gets to our chain.
const ALL_WELL: [&str; 1] = ["ip nat PROXY_INIT_REDIRECT 1: Translated after of all TCP connections"];

/// The outcomes if all connections but those to port 80 get there, and this one for port 80.
fn but_for_port_80(about: &str) -> Vec<String> {
    let redirected = "ip nat PROXY_INIT_REDIRECT 1: Translated after of to any port except 80".to_owned();
    // A connection that passes by is known to only at the end.
    if about.contains("Accepted") { vec![redirected, about.to_owned()] } else { vec![about.to_owned(), redirected] }
}

#[test]
fn nothing_that_decides_leaves_the_way_free() {
    assert_eq!(inbound(vec![nat(vec![], vec![])]), ALL_WELL);
    let to = |port: u16| Condition::is(Field::DestinationPort, u128::from(port));
    let count = Action::Continue;
    for (what, before, others) in [
        ("a counter", vec![any(count.clone())], vec![]),
        ("a log", vec![effect_of([], Effect::Other(Label::expression("log")))], vec![]),
        ("an empty chain", vec![any(jump("empty"))], vec![chain("empty", vec![])]),
        ("a return in a chain", vec![any(jump("back"))], vec![chain("back", vec![any(Action::Return)])]),
        (
            "nested jumps",
            vec![any(jump("one"))],
            vec![
                chain("one", vec![any(jump("two")), any(Action::Return)]),
                chain("two", vec![any(jump("three"))]),
                chain("three", vec![any(Action::Return), any(Action::Drop)]),
            ],
        ),
        (
            "a goto within a jump",
            vec![any(jump("one"))],
            vec![chain("one", vec![any(goto("two")), any(Action::Drop)]), chain("two", vec![any(count.clone())])],
        ),
        ("UDP only", vec![rule([Condition::is(Field::Protocol, 17)], Action::Drop)], vec![]),
        ("no TCP", vec![rule([not(Condition::is(Field::Protocol, TCP))], Action::Drop)], vec![]),
        ("IPv6 only", vec![rule([Condition::is(Field::Family, 10)], Action::Drop)], vec![]),
        ("an IPv6 address", vec![rule([not(Condition::is(Field::Source(Family::V6), 1))], Action::Drop)], vec![]),
        (
            "a user, which inbound packets have none of",
            vec![rule([Condition::is(Field::Uid, 7)], Action::Drop)],
            vec![],
        ),
        (
            "a way out by a device",
            vec![rule([Condition::is(Field::OutInterface, interface(b"lo"))], Action::Drop)],
            vec![],
        ),
        ("no new connection", vec![rule([fixed(false)], Action::Drop)], vec![]),
        ("no new connection and something unknown", vec![rule([strange(), fixed(false)], Action::Drop)], vec![]),
        ("two ports at once", vec![rule([to(80), to(81)], Action::Drop)], vec![]),
        (
            "a map of numbers that no port has",
            vec![by_map("m", Field::DestinationPort, (70_000..75_000).map(|port| (port, Action::Drop)))],
            vec![],
        ),
        ("an unknown condition on a counter", vec![rule([strange()], count)], vec![]),
    ] {
        assert_eq!(inbound(vec![nat(before, others)]), ALL_WELL, "{what}");
    }
}

#[test]
fn a_rule_before_the_jump_takes_its_connections() {
    let first = "ip nat PREROUTING 1";
    for (action, others, want) in [
        (Action::Accept, vec![], "Accepted"),
        (Action::Return, vec![], "Accepted"),
        (goto("empty"), vec![chain("empty", vec![])], "Accepted"),
        (Action::Drop, vec![], "Dropped"),
        (redirect(1), vec![], "Translated"),
        (Action::Nat(Nat::of(NatKind::Destination)), vec![], "Translated"),
    ] {
        let got = inbound(vec![nat(vec![rule([to_port(80)], action)], others)]);
        assert_eq!(got, but_for_port_80(&format!("{first}: {want} of to port 80")));
    }
}

#[test]
fn what_one_rule_has_taken_no_later_one_takes() {
    for first in [Action::Return, Action::Accept] {
        let before =
            vec![rule([to_port(80)], first), rule([to_port(80)], redirect(1)), rule([to_port(80)], Action::Drop)];
        assert_eq!(inbound(vec![nat(before, vec![])]), but_for_port_80("ip nat PREROUTING 1: Accepted of to port 80"));
    }
}

/// A watch of our chain names the rules that took other connections, and not the treatment of these.
#[test]
fn what_a_rule_has_sent_elsewhere_is_not_followed() {
    let late = vec![base("late", Kind::Filter, Hook::Prerouting, 0, vec![rule([to_port(1)], Action::Drop)])];
    let tables = vec![nat(vec![rule([to_port(80)], redirect(1))], vec![]), table("ip late", late)];
    assert_eq!(inbound(tables), but_for_port_80("ip nat PREROUTING 1: Translated of to port 80"));
}

#[test]
fn conditions_pick_their_connections() {
    let ten = || Condition::is(Field::Source(Family::V4), (0x0a00_0000, 0x0aff_ffff));
    let unlisted = Condition::is(Field::SourcePort, Values::Set(name("missing")));
    let dropped = |conditions: Vec<Condition>| {
        let drop = Rule { conditions, ..any(Action::Drop) };
        let got = inbound(vec![nat(vec![drop], vec![])]);
        let (of, rest) = (&got[0], &got[1..]);
        let of = of.strip_prefix("ip nat PREROUTING 1: Dropped").unwrap().to_owned();
        let prefix = "ip nat PROXY_INIT_REDIRECT 1: Translated ";
        let rest: Vec<_> =
            rest.iter().map(|line| line.strip_prefix(prefix).unwrap().replace("after of ", "")).collect();
        (of, rest)
    };
    let others = [
        "to any port except 80",
        "from any address except 10.0.0.0/8 to port 80",
        "perhaps from 10.0.0.0/8 to port 80",
    ];
    for (conditions, of, rest) in [
        (vec![not(to_port(80))], " of to any port except 80", &["to port 80"][..]),
        (vec![to_port(80), fixed(true)], " of to port 80", &others[..1]),
        (vec![Condition::is(Field::Protocol, TCP), to_port(80)], " of to port 80", &others[..1]),
        // Two tell them apart.
        (vec![to_port(80), ten()], " of from 10.0.0.0/8 to port 80", &others[..2]),
        (vec![strange()], " perhaps of all TCP connections", &["perhaps all TCP connections"]),
        (vec![strange(), to_port(80), ten()], " perhaps of from 10.0.0.0/8 to port 80", &others),
        (vec![unlisted, to_port(80), ten()], " perhaps of from 10.0.0.0/8 to port 80", &others),
    ] {
        let case = format!("{conditions:?}");
        assert_eq!(dropped(conditions), (of.to_owned(), rest.iter().map(ToString::to_string).collect()), "{case}");
    }
    // A doubt is about those that one condition tells apart, and not about all others.
    for conditions in [vec![strange(), to_port(80)], vec![to_port(80), strange()]] {
        let rest = ["to any port except 80", "perhaps to port 80"].map(ToOwned::to_owned).to_vec();
        assert_eq!(dropped(conditions), (" perhaps of to port 80".to_owned(), rest));
    }
}

#[test]
fn what_is_not_understood_is_not_certain_nor_what_comes_after_it() {
    let after = vec![rule([to_port(80)], unknown()), rule([to_port(80)], Action::Drop)];
    assert_eq!(
        inbound(vec![nat(after, vec![])]),
        [
            "ip nat PREROUTING 1: NotUnderstood perhaps of to port 80",
            "ip nat PREROUTING 2: Dropped perhaps of to port 80",
            "ip nat PROXY_INIT_REDIRECT 1: Translated after of to any port except 80",
        ]
    );
    let before = vec![any(jump("missing"))];
    assert_eq!(
        inbound(vec![nat(before, vec![])]),
        ["ip nat PREROUTING 1: NotUnderstood perhaps of all TCP connections", ALL_WELL[0]]
    );
}

/// An outcome names the question that it depends on by its place.
#[test]
fn what_is_assumed_answers_the_question_that_was_left_open() {
    let ruleset =
        Ruleset { tables: vec![mangle("ip mangle", vec![rule([strange()], Action::Drop)])], not_known: vec![] };
    let direction = Direction::Inbound;
    let all = Connections::all(Family::V4, direction);
    let walk = there_and_back(&ruleset, Family::V4, direction, all, &Environment::default(), None);
    let [first, ..] = walk.decisions.as_slice() else { panic!("nothing is decided") };
    let asked: Vec<_> = first.doubt.questions.iter().map(|question| &walk.questions[*question]).collect();
    assert!(
        matches!(asked[..], [Open::Match(at, _, packet, _)] if (Some(*at), *packet) == (first.at, first.packet)),
        "{asked:?}"
    );
}

#[test]
fn an_accept_ends_only_its_own_base_chain() {
    let accept = mangle("ip mangle", vec![any(Action::Accept), any(Action::Drop)]);
    assert_eq!(inbound(vec![accept, nat(vec![], vec![])]), ALL_WELL);
}

/// However many there are, and although some of them aren't understood.
#[test]
fn what_lets_through_at_the_end_of_a_base_chain_decides_nothing() {
    let mut rules: Vec<Rule> = (1..=100).map(|port| rule([to_port(port)], Action::Accept)).collect();
    rules.push(rule([strange()], Action::Return));
    assert_eq!(inbound(vec![mangle("ip mangle", rules.clone()), nat(vec![], vec![])]), ALL_WELL);
    // A mark lasts longer than the chain.
    let marking = Effect::Mark { field: Field::Mark, to: Some(Bits::constant(Field::Mark, 7)) };
    rules[79].effects.push(marking);
    let marked = Condition::is(Field::Mark, 7);
    let others = vec![rule([not(marked)], Action::Drop)];
    let got = inbound(vec![mangle("ip mangle", rules.split_off(79)), nat(others, vec![])]);
    assert_eq!(
        got,
        [
            "ip nat PREROUTING 1: Dropped of to any port except 80",
            "ip nat PROXY_INIT_REDIRECT 1: Translated after of to port 80",
        ]
    );
}

#[test]
fn between_tables_of_equal_priority_the_other_may_run_first() {
    let other = || {
        let rules = vec![rule([to_port(80)], redirect(1))];
        table("ip mine", vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)])
    };
    let last = || {
        let rules = vec![any(redirect(2))];
        table("ip last", vec![base("dstnat", Kind::Nat, Hook::Prerouting, -99, rules)])
    };
    // In one order our chain redirects all of them, in the other one all but those.
    let want = [
        "ip mine dstnat 1: Translated perhaps of to port 80",
        "ip nat PROXY_INIT_REDIRECT 1: Translated perhaps after of all TCP connections",
        "ip nat PROXY_INIT_REDIRECT 1: Translated perhaps after of to any port except 80",
    ];
    let inbound = |tables| {
        let mut said = super::tests::inbound(tables);
        said.sort();
        said
    };
    // Whichever table was made first.
    assert_eq!(inbound(vec![other(), nat(vec![], vec![]), last()]), want);
    assert_eq!(inbound(vec![last(), nat(vec![], vec![]), other()]), want);
    assert_eq!(inbound(vec![nat(vec![], vec![]), last(), other()]), want);
    // A chain named like the one that holds the jump is another one in another table.
    let namesake = base("PREROUTING", Kind::Filter, Hook::Prerouting, -150, vec![]);
    let namesake = table("ip mangle", vec![namesake]);
    assert_eq!(inbound(vec![namesake, other(), nat(vec![], vec![])]), want);
    // A filter chain's priority isn't tied with a nat chain's.
    let rules = vec![rule([to_port(4143)], Action::Drop)];
    let filter = table("ip mine", vec![base("late", Kind::Filter, Hook::Prerouting, -99, rules)]);
    assert_eq!(
        inbound(vec![filter, nat(vec![], vec![])]),
        ["ip mine late 1: Dropped after of to port 4143", ALL_WELL[0]]
    );
}

#[test]
fn what_a_tied_chain_leaves_alone_is_as_certain_as_before() {
    let rules = vec![rule([to_port(80)], Action::Return)];
    let tied = table("ip mine", vec![base("dstnat", Kind::Nat, Hook::Prerouting, -100, rules)]);
    let before = vec![rule([to_port(443)], Action::Drop)];
    assert_eq!(
        inbound(vec![tied.clone(), nat(before.clone(), vec![])])[..1],
        ["ip nat PREROUTING 1: Dropped of to port 443"]
    );
    // An uncertain outcome stays uncertain.
    let doubt = mangle("ip mangle", vec![any(unknown())]);
    let got = inbound(vec![doubt, tied, nat(before, vec![])]);
    assert_eq!(
        got[..2],
        [
            "ip mangle early 1: NotUnderstood perhaps of all TCP connections",
            "ip nat PREROUTING 1: Dropped perhaps of to port 443",
        ]
    );
}

#[test]
fn in_whichever_order_chains_run_the_same_comes_of_them_where_steps_are_recorded() {
    let early = |name, port: u128| {
        let of_port = Condition::is(Field::SourcePort, port);
        mangle(name, vec![rule([of_port], Action::Accept)])
    };
    let drop = base("INPUT", Kind::Filter, Hook::Input, 0, vec![any(Action::Drop)]);
    let ruleset = Ruleset {
        tables: vec![early("ip one", 1000), early("ip two", 2000), table("ip filter", vec![drop])],
        not_known: vec![],
    };
    let (family, direction) = (Family::V4, Direction::Inbound);
    let all = Connections::all(family, direction);
    let walk = there_and_back(&ruleset, family, direction, all, &Environment::default(), None);
    let dropped: Vec<_> = walk.decisions.iter().map(Outcome::is_certain).collect();
    assert_eq!(dropped, [true; 3], "{:#?}", walk.decisions);
}

/// The step of a rule whose verdict map decides has the map's verdict.
#[test]
fn a_step_by_a_map_matches_as_far_as_the_map_says_something() {
    let by_map = by_map("m", Field::DestinationPort, [(80, Action::Accept)]);
    let ruleset = Ruleset { tables: vec![mangle("ip mangle", vec![by_map])], not_known: vec![] };
    let direction = Direction::Inbound;
    let all = Connections::all(Family::V4, direction);
    let of_first = |connections| {
        let walk = there_and_back(&ruleset, Family::V4, direction, connections, &Environment::default(), None);
        walk.steps[0].matched.clone()
    };
    let to = |port| all.narrowed(Field::DestinationPort, &Intervals::one(port));
    assert_eq!(of_first(to(80)), Matched::Yes(&Action::Accept));
    assert!(matches!(of_first(to(81)), Matched::No(Reason::Lookup(..))));
    assert!(matches!(of_first(all.clone()), Matched::Perhaps(Reason::Condition(..))));
}

/// An outcome of every order is said once, and chains that are for other packets have no order.
#[test]
fn an_order_is_open_only_between_chains_that_may_decide() {
    let udp = || vec![rule([Condition::is(Field::Protocol, 17)], Action::Drop)];
    let to_80 = || vec![rule([to_port(80)], Action::Drop)];
    let direction = Direction::Inbound;
    let all = Connections::all(Family::V4, direction);
    let walk_of = |connections: &Connections, rules: [Vec<Rule>; 3]| {
        let names = ["ip one", "ip two", "ip three"].into_iter();
        let tables = names.zip(rules).map(|(name, rules)| mangle(name, rules)).collect();
        let ruleset = Ruleset { tables, not_known: vec![] };
        let (connections, around) = (connections.clone(), Environment::default());
        let walk = there_and_back(&ruleset, Family::V4, direction, connections, &around, None);
        let is_of_itself = |open: &Open<'_>| matches!(open, Open::Order(one, two) if one == two);
        assert!(!walk.questions.iter().any(is_of_itself), "{:?}", walk.questions);
        let orders = walk.questions.iter().filter(|open| matches!(open, Open::Order(..) | Open::Orders));
        let of_80 = walk.decisions.iter().filter(|decision| decision.is_certain());
        (orders.count(), of_80.count())
    };
    let walk = |rules| walk_of(&all, rules);
    assert_eq!(walk([udp(), to_80(), udp()]), (0, 1));
    let counting = || vec![any(Action::Continue)];
    assert_eq!(walk([counting(), to_80(), udp()]), (0, 1));
    let other = || vec![rule([to_port(81)], Action::Accept)];
    // The step of the first packet, and the step of the ACK.
    assert_eq!(walk([other(), to_80(), other()]), (2, 1));
    // Filter chains change no port, so that those for another one are for other packets.
    let only_80 = all.narrowed(Field::DestinationPort, &Intervals::one(80));
    assert_eq!(walk_of(&only_80, [other(), to_80(), other()]), (0, 1));
}

#[test]
fn without_a_way_to_the_goal_nothing_is_reached_and_nothing_decided() {
    assert!(inbound(vec![]).is_empty());
    let only_hooked = table("ip nat", vec![prerouting(vec![]), redirecting()]);
    assert!(inbound(vec![only_hooked]).is_empty());
    // A chain of the same name in another table isn't the goal.
    for name in ["ip mine", "inet nat", "legacy ip nat"] {
        let mut other = table("ip nat", vec![prerouting(vec![any(jump(REDIRECT))]), redirecting()]);
        let of_name = table(name, vec![]);
        other.name = of_name.name;
        other.family = of_name.family;
        other.subsystem = of_name.subsystem;
        assert_eq!(inbound(vec![other]), [format!("{name} PROXY_INIT_REDIRECT 1: Translated of all TCP connections")]);
    }
}

#[test]
fn deep_jumps_are_followed_and_loops_end() {
    let deep = |depth: usize| {
        let link = |at: usize| {
            let next = if at == depth { REDIRECT.to_owned() } else { format!("c{}", at + 1) };
            chain(&format!("c{at}"), vec![any(jump(&next))])
        };
        let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
        chains.extend((1..=depth).map(link));
        inbound(vec![table("ip nat", chains)])
    };
    // The kernel's own limit, and this one's.
    assert_eq!(deep(16), ALL_WELL);
    assert_eq!(deep(31), ALL_WELL);
    assert_eq!(deep(32), ["ip nat c32 1: Unfollowed perhaps of all TCP connections"]);

    let circle = vec![chain("a", vec![any(jump("b"))]), chain("b", vec![any(goto("a"))])];
    let got = inbound(vec![nat(vec![any(jump("a"))], circle)]);
    assert_eq!(got.len(), 2, "{got:?}");
    assert!(got[0].contains("Unfollowed perhaps"), "{got:?}");
}

/// Sixteen levels of chains that jump to the next four times each would be four thousand million ways.
#[test]
fn too_many_ways_are_not_followed() {
    let level = |at: usize| {
        let next = format!("c{}", at + 1);
        chain(&format!("c{at}"), vec![any(jump(&next)); 4])
    };
    let mut chains = vec![prerouting(vec![any(jump("c1"))]), redirecting()];
    chains.extend((1..16).map(level));
    chains.push(chain("c16", vec![rule([to_port(80)], Action::Return)]));
    let got = inbound(vec![table("ip nat", chains)]);
    assert!(got.iter().any(|line| line.contains("Unfollowed perhaps")), "{got:?}");
}

/// Each question divides a share in two, and no memory grows with the questions before.
#[test]
fn what_may_match_is_joined_with_what_it_meets_again() {
    for (last, is_lost) in [(Action::Accept, false), (Action::Drop, true)] {
        let may = |action: Action| rule([strange()], action);
        let chains = vec![
            base("early", Kind::Filter, Hook::Prerouting, -150, vec![may(jump("one")); 20]),
            chain("one", vec![may(jump("two")); 20]),
            chain("two", vec![may(last.clone()); 20]),
        ];
        let ruleset = Ruleset { tables: vec![table("ip mangle", chains)], not_known: vec![] };
        let direction = Direction::Inbound;
        let all = Connections::all(Family::V4, direction);
        let walk = there_and_back(&ruleset, Family::V4, direction, all, &Environment::default(), None);
        assert!(walk.decisions.len() <= 2 * 20, "{}: once for each rule and packet", walk.decisions.len());
        assert!(walk.decisions.iter().all(|decision| decision.doubt.questions.len() <= 8));
        let [arrived] = walk.arrived.as_slice() else { panic!("{:?}", walk.arrived) };
        assert_eq!(arrived.is_certain(), !is_lost);
    }
}

/// Sets that something else has become of can't be one.
#[test]
fn of_too_many_kinds_the_rest_is_not_followed() {
    let to = |port: u16| rule([strange()], redirect(port));
    let walk_of = |kinds: u16| {
        let redirecting = base("dstnat", Kind::Nat, Hook::Prerouting, -110, (1..=kinds).map(to).collect());
        let ruleset = Ruleset { tables: vec![table("ip mine", vec![redirecting])], not_known: vec![] };
        let direction = Direction::Inbound;
        let all = Connections::all(Family::V4, direction);
        let walk = there_and_back(&ruleset, Family::V4, direction, all, &Environment::default(), None);
        let unfollowed = walk.decisions.iter().filter(|decision| decision.treatment == Treatment::Unfollowed).count();
        (walk.arrived.len(), unfollowed)
    };
    // One is that which nothing has taken.
    assert_eq!(walk_of(15), (16, 0));
    assert_eq!(walk_of(17), (16, 2));
}

/// The ports of the connections that pass our chain by, where each port has a rule of its own that accepts
/// it, and how many decisions say so.
fn accepted(ports: impl Iterator<Item = u16>) -> (usize, Vec<u128>) {
    let before = ports.map(|port| rule([to_port(port)], Action::Accept)).collect();
    let mut table = nat(before, vec![]);
    // Some more that nothing decides about, but that have been in our chain.
    table.chains[1].rules.insert(0, rule([to_port(1001)], Action::Return));
    let ruleset = Ruleset { tables: vec![table], not_known: vec![] };
    let nat = &ruleset.tables[0];
    let watched = Watched { table: nat, chain: REDIRECT };
    let all = Connections::all(Family::V4, Direction::Inbound);
    let walk = there_and_back(&ruleset, Family::V4, Direction::Inbound, all, &Environment::default(), Some(watched));
    let decisions = walk
        .decisions
        .iter()
        .chain(&walk.arrived)
        .filter(|decision| decision.treatment == Treatment::Accepted && !decision.after_watched);
    let ports = decisions.clone().flat_map(|decision| {
        let ports = decision.connections.get(Field::DestinationPort).unwrap();
        ports.as_slice().to_vec().into_iter().flat_map(|(first, last)| first..=last)
    });
    (decisions.clone().count(), ports.collect())
}

/// However many sets of connections there are, each connection that is taken is said to be.
#[test]
fn of_many_sets_no_connection_is_lost() {
    let even = |count: u16| (1..=count).map(|number| number * 2);
    let numbers = |count: u16| even(count).map(u128::from).collect::<Vec<_>>();
    assert_eq!(accepted(even(10)), (10, numbers(10)), "few are told apart");
    assert_eq!(accepted(even(40)), (1, numbers(40)), "many are not");
    assert_eq!(accepted(even(64)), (1, numbers(64)));
    assert_eq!(accepted(even(65)), (1, (2..=130).collect()), "nor those between them");
    // Each compared with all others, these would take minutes.
    let (decisions, ports) = accepted(even(30_000));
    assert_eq!(decisions, 1);
    assert!(numbers(30_000).iter().all(|port| ports.binary_search(port).is_ok()));
}

/// A field that would be in more than 64 pieces is kept whole: beyond that, results are over-approximated.
#[test]
fn of_many_intervals_no_connection_is_lost() {
    let every_second = |count: u128| {
        let list = (1..=count).map(|port| (port * 2, port * 2)).collect();
        Condition::is(Field::DestinationPort, Values::Listed(list))
    };
    let redirected = |condition| {
        let got = inbound(vec![nat(vec![rule([condition], Action::Drop)], vec![])]);
        let rest = got[1].strip_prefix("ip nat PROXY_INIT_REDIRECT 1: Translated ").unwrap().replace("after of ", "");
        (got[0].clone(), rest)
    };
    let certain = "ip nat PREROUTING 1: Dropped of to port 2,4,6,8,10,12,14,16,...".to_owned();
    let odd = "to any port except 2,4,6,8,10,12,14,16,...".to_owned();
    let all = "all TCP connections".to_owned();
    // 63 holes leave 64 pieces, 64 leave 65.
    assert_eq!(redirected(every_second(63)), (certain.clone(), odd));
    assert_eq!(redirected(every_second(64)), (certain, all.clone()));
    let perhaps = "ip nat PREROUTING 1: Dropped perhaps of all TCP connections".to_owned();
    assert_eq!(redirected(every_second(65)), (perhaps, format!("perhaps {all}")));
}
