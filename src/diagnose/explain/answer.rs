//! Would a connection go to the proxy, and by which rule? A pure function of the kernel's rules.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ruleset::{
    Action, Condition, Context, Direction, Effect, Family, Field, Hook, Intervals, LOOPBACK, Name, Rule, Table,
    address, interface,
};
use ruleset::{Network, Ruleset, Unseen};
use trace::{
    Connections, Environment, Leg, Matched, Neighbours, Open, Outcome, Place, Reason, Step, Treatment, Walk,
    client_ports, discovery, there_and_back,
};

use crate::diagnose::output::words::flag;
use crate::diagnose::ownership::{is_ours, mode_of};
use crate::ownership::holds_rules;
use crate::plan::{ChainName, Purpose};

/// A connection, as far as it is known. What isn't known may be anything, except where a field says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// The direction of the connection.
    pub direction: Direction,
    /// The intended destination.
    pub to: SocketAddr,
    /// The source.
    pub from: Option<IpAddr>,
    /// The port from which it comes; none: any that the kernel gives, from 32768 on.
    pub from_port: Option<u16>,
    /// The user of an outbound one; none: any except the proxy's.
    pub uid: Option<u32>,
    /// The group of an outbound one; none: any except the proxy's.
    pub gid: Option<u32>,
    /// The device on which it arrives or by which it leaves; none, for an inbound one: any except the loopback device.
    pub device: Option<Name>,
}

impl Connection {
    /// Any connection in this direction that is meant to go there.
    pub fn new(direction: Direction, to: SocketAddr) -> Self {
        Self { direction, to, from: None, from_port: None, uid: None, gid: None, device: None }
    }
}

/// The fate of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes to this port of the proxy.
    Proxy(u16),
    /// Nothing changes where it goes.
    Bypass,
    /// It goes elsewhere; the text says where.
    Elsewhere(String),
    /// It is dropped silently.
    Dropped,
    /// It is refused by a reset or by ICMP.
    Rejected,
    /// It is lost although the rules let its first packet through; the text says why.
    Lost(String),
    /// The fate isn't known; the text gives the reason.
    NotKnown(String),
}

impl Verdict {
    /// Returns true if the connection fails.
    pub(crate) fn is_dropped(&self) -> bool {
        matches!(self, Verdict::Dropped | Verdict::Rejected | Verdict::Lost(_))
    }

    /// This verdict as one that isn't known, for a reason that reads on with this one.
    pub(crate) fn in_doubt(&self, reason: &str) -> Self {
        Verdict::NotKnown(format!("{reason} it {}", self.clause()))
    }

    /// The verdict in words, after `it`.
    pub fn clause(&self) -> String {
        match self {
            Verdict::Proxy(_) => format!("goes {self}"),
            Verdict::Bypass | Verdict::Elsewhere(_) => self.to_string(),
            _ => format!("is {self}"),
        }
    }
}

/// As the first line of an answer.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Proxy(port) => write!(f, "to the proxy, port {port}"),
            Verdict::Bypass => f.write_str("bypasses the proxy"),
            Verdict::Elsewhere(place) => write!(f, "goes elsewhere: {place}"),
            Verdict::Dropped => f.write_str("dropped"),
            Verdict::Rejected => f.write_str("rejected"),
            Verdict::Lost(why) => write!(f, "dropped: {why}"),
            Verdict::NotKnown(why) => write!(f, "not known: {why}"),
        }
    }
}

/// The fate of a connection, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    pub verdict: Verdict,
    /// The rule or the policy that decides; none if no rule does.
    pub at: Option<Place<'a>>,
    /// The rule's action, if the action changes the destination.
    pub action: Option<&'a Action>,
    /// Every rule and policy that it was compared with, in the kernel's order.
    pub steps: Vec<Step<'a>>,
    /// The users, groups or devices that our rules exempt, that were left open, and for which the answer differs.
    pub exceptions: Vec<(Field, Intervals)>,
    /// The rules on whose limits it depends, which must not be reached.
    pub limits: Vec<Place<'a>>,
}

impl Answer<'_> {
    /// This answer as one that isn't known, for a reason that reads on with this answer's verdict.
    pub fn in_doubt(mut self, reason: &str) -> Self {
        self.verdict = self.verdict.in_doubt(reason);
        self
    }
}

/// Follows a connection through everything that was found.
#[cfg(any(test, fuzzing))]
pub fn explain<'a>(ruleset: &'a Ruleset, connection: &Connection) -> Answer<'a> {
    doubt_if_unseen(ruleset, follow_connection(ruleset, connection, &Network::default(), &[], None))
}

/// The answer or, if something could not be seen that may decide otherwise, that it isn't known.
pub fn doubt_if_unseen<'a>(ruleset: &'a Ruleset, answer: Answer<'a>) -> Answer<'a> {
    match ruleset.not_known.first() {
        Some(Unseen { subsystem, reason, .. }) => {
            answer.in_doubt(&format!("the {subsystem} tables cannot be seen ({reason}); by all others"))
        }
        None => answer,
    }
}

/// Adds to an answer that supposes that no limit is reached the rules with limits on which it may depend.
pub fn add_limits(mut answer: Answer<'_>) -> Answer<'_> {
    for step in &answer.steps {
        let Some(rule) = step.at.rule().filter(|rule| rule.does_something()) else {
            continue;
        };
        let decides = match &step.matched {
            Matched::Yes(_) | Matched::Perhaps(_) => rule.conditions.iter().any(is_limit),
            Matched::No(reason) => matches!(reason, Reason::Condition(condition, ..) if is_limit(condition)),
        };
        if decides && !answer.limits.contains(&step.at) {
            answer.limits.push(step.at);
        }
    }
    answer
}

fn is_limit(condition: &Condition) -> bool {
    matches!(condition, Condition::Context(Context::Limit { .. }))
}

/// Follows a connection through everything that was found, in this network and with these routes, as if there were no
/// other rules; `back` is the device by which replies to inbound connections leave, if it isn't the one of their arrival.
pub fn follow_connection<'a>(
    ruleset: &'a Ruleset,
    connection: &Connection,
    network: &Network,
    routes: &[(IpAddr, Option<Name>)],
    back: Option<&Name>,
) -> Answer<'a> {
    let (family, direction) = (Family::of(connection.to.ip()), connection.direction);
    let connections = connections(ruleset, network, family, connection);
    let around = Environment { network, routes, back, ..proxy(&ruleset.tables) };
    let answer_for = |connections| {
        conclude(ruleset, &around, there_and_back(ruleset, family, direction, connections, &around, None))
    };
    let mut answer = answer_for(connections.clone());
    for field in [Field::InInterface, Field::Uid, Field::Gid] {
        let exempted = open_exemptions(ruleset, connection, field);
        if !exempted.is_empty()
            && connections.get(field).is_some()
            && answer_for(connections.with_numbers(field, exempted.clone())).verdict != answer.verdict
        {
            answer.exceptions.push((field, exempted));
        }
    }
    answer
}

/// The users, groups or devices, apart from the proxy's, that our rules exempt, if the connection leaves its own
/// open.
pub fn open_exemptions(ruleset: &Ruleset, connection: &Connection, field: Field) -> Intervals {
    let is_left_open = match field {
        Field::Uid => connection.uid.is_none(),
        Field::Gid => connection.gid.is_none(),
        Field::InInterface => connection.direction == Direction::Inbound && connection.device.is_none(),
        _ => connection.device.is_none(),
    };
    if !is_left_open {
        return Intervals::default();
    }
    exempted_numbers(&ruleset.tables, field, |rule| {
        let purpose = Purpose::of(rule);
        purpose.is_some_and(|purpose| purpose.is_about_others() || matches!(purpose, Purpose::IgnoreInterface(_)))
    })
}

/// The same answer, if the neighbours find each other before the connection's first packet.
pub fn add_discovery<'a>(
    ruleset: &'a Ruleset,
    network: &Network,
    neighbours: &Neighbours,
    answer: Answer<'a>,
) -> Answer<'a> {
    let before = conclude(ruleset, &Environment::default(), discovery(ruleset, network, neighbours));
    match &before.verdict {
        Verdict::Lost(_) if answer.verdict == Verdict::Rejected || !answer.verdict.is_dropped() => before,
        _ if answer.verdict.is_dropped() => answer,
        Verdict::NotKnown(why) if !matches!(answer.verdict, Verdict::NotKnown(_)) => {
            Answer { verdict: Verdict::NotKnown(format!("whether neighbours find each other: {why}")), ..before }
        }
        _ => answer,
    }
}

/// The set of connections that this one may be.
fn connections(ruleset: &Ruleset, network: &Network, family: Family, connection: &Connection) -> Connections {
    let mut set = Connections::living(family, connection.direction)
        .with_numbers(Field::Destination(family), Intervals::one(address(connection.to.ip())))
        .narrowed(Field::DestinationPort, &Intervals::one(connection.to.port().into()));
    match (connection.from, connection.direction) {
        (Some(from), _) => set = set.with_numbers(Field::Source(family), Intervals::one(address(from))),
        (None, Direction::Inbound) => set = set.without_numbers(Field::Source(family), &network.own_addresses(family)),
        (None, Direction::Outbound) => {}
    }
    let from_port = connection.from_port.map_or_else(client_ports, |port| Intervals::one(port.into()));
    set = set.narrowed(Field::SourcePort, &from_port);
    for (field, id) in [(Field::Uid, connection.uid), (Field::Gid, connection.gid)] {
        let ids = match id {
            Some(id) => Intervals::one(id.into()),
            None => field.any().without(&exempted_numbers(&ruleset.tables, field, |_| true)),
        };
        set = set.narrowed(field, &ids);
    }
    let (field, lo) = match connection.direction {
        Direction::Inbound => (Field::InInterface, Intervals::one(interface(LOOPBACK))),
        Direction::Outbound => (Field::OutInterface, Intervals::default()),
    };
    let there = network.device_names().without(&lo).without(&network.port_names());
    let devices = match &connection.device {
        Some(name) => Intervals::one(interface(name.as_bytes())),
        None if there.is_empty() => field.any().without(&lo),
        None => there.without(&open_exemptions(ruleset, connection, field)),
    };
    set.narrowed(field, &devices)
}

/// Our rules in these tables.
fn own_rules(tables: &[Table]) -> impl Iterator<Item = &Rule> {
    let tables = tables.iter().filter(|table| mode_of(table).is_some());
    tables.flat_map(Table::rules).filter(|rule| is_ours(rule))
}

/// The proxy's ports: those to which our rules redirect. Any other rule that redirects to them counts as well.
pub fn proxy_ports(tables: &[Table]) -> Vec<u16> {
    own_rules(tables).filter_map(Rule::redirects_to).collect()
}

/// The proxy, as far as our rules in these tables name it.
pub fn proxy(tables: &[Table]) -> Environment<'static> {
    Environment {
        ports: Intervals::each(proxy_ports(tables)),
        uids: proxy_ids(tables, Field::Uid),
        gids: proxy_ids(tables, Field::Gid),
        ..Environment::default()
    }
}

/// The users or groups that our rules exempt as the proxy's.
fn proxy_ids(tables: &[Table], wanted: Field) -> Intervals {
    exempted_numbers(tables, wanted, |rule| !Purpose::of(rule).is_some_and(|purpose| purpose.is_about_others()))
}

/// The users, groups or devices that these rules of ours exempt.
fn exempted_numbers(tables: &[Table], wanted: Field, counts: fn(&Rule) -> bool) -> Intervals {
    let mut numbers = Vec::new();
    for rule in own_rules(tables).filter(|rule| counts(rule)) {
        if let [Condition::In { field, values, negated: false }] = rule.conditions.as_slice()
            && *field == wanted
            && rule.action == Action::Return
        {
            numbers.extend(values.listed().unwrap_or_default());
        }
    }
    Intervals::new(numbers)
}

/// One possible end of a walk, and its verdict; none if that isn't known.
type End<'a> = (Outcome<'a>, Option<Verdict>);

/// The answer to which all possible ends of a walk lead.
fn conclude<'a>(ruleset: &'a Ruleset, around: &Environment<'_>, walk: Walk<'a>) -> Answer<'a> {
    let ended = walk.decisions.into_iter();
    let ended = ended.filter(|outcome| {
        matches!(outcome.treatment, Treatment::Dropped | Treatment::NotUnderstood | Treatment::Unfollowed)
    });
    let mut ends: Vec<End<'a>> = Vec::new();
    for end in ended.chain(walk.arrived) {
        let verdict = verdict(around, &end);
        ends.push((end, verdict));
    }
    let decisive = if ends.iter().all(|(_, verdict)| verdict.as_ref().is_some_and(Verdict::is_dropped)) {
        // If either packet may be dropped, the last end is the one that gets farthest. The client is told only if no rule
        // may be silent.
        ends.iter().rfind(|(_, verdict)| *verdict != Some(Verdict::Rejected)).or(ends.last())
    } else {
        ends.first().filter(|(_, first)| ends.iter().all(|(_, verdict)| verdict == first))
    };
    let verdict = match decisive {
        Some((_, Some(verdict))) => verdict.clone(),
        _ => Verdict::NotKnown(open_question(&walk.questions, &ends)),
    };
    let at = match &verdict {
        Verdict::NotKnown(_) => None,
        Verdict::Bypass => bypassing_rule(ruleset, &walk.steps),
        _ => decisive.and_then(|(end, _)| end.at),
    };
    let action = decisive.and_then(|(end, _)| end.action);
    // Most rules treat the ACK as they treat the first packet, so its steps are kept only where something depends on it.
    let mut steps = walk.steps;
    if !matches!(verdict, Verdict::NotKnown(_))
        && !ends.iter().any(|(end, _)| end.treatment == Treatment::Dropped && end.packet == Leg::Ack)
    {
        steps.retain(|step| step.packet != Leg::Ack);
    }
    Answer { verdict, at, action, steps, exceptions: Vec::new(), limits: Vec::new() }
}

/// The verdict of one end; none if it isn't known.
fn verdict(around: &Environment<'_>, end: &Outcome<'_>) -> Option<Verdict> {
    let ports = &around.ports;
    let port = end.port.as_ref().map(Intervals::as_slice);
    let rule = end.at.and_then(|at| at.rule());
    Some(match (end.treatment, end.action) {
        (Treatment::Dropped, _) => {
            let lost = match (end.packet, rule.map(|rule| &rule.action)) {
                (Leg::First, Some(Action::Nat(_))) => "routing has no way to where a rule sends it",
                _ if end.is_rejection() => return Some(Verdict::Rejected),
                (Leg::First, _) => return Some(Verdict::Dropped),
                (Leg::Reply, _) => "the reply",
                (Leg::Ack, _) => "the ACK after the reply",
                (Leg::Rejection, _) => "rejected, and the rejection does not get back",
                (Leg::Solicitation, _) if end.connections.is_arp() => "the ARP request before it",
                (Leg::Advertisement, _) if end.connections.is_arp() => "the ARP reply before it",
                (Leg::Solicitation, _) => "the neighbour solicitation before it (ICMPv6 135)",
                (Leg::Advertisement, _) => "the neighbour advertisement before it (ICMPv6 136)",
            };
            Verdict::Lost(lost.to_owned())
        }
        (Treatment::Translated, Some(Action::Redirect(_))) => match port {
            Some(&[(first, last)]) if first == last => match u16::try_from(first) {
                Ok(port) if ports.meets(&[(first, last)]) => Verdict::Proxy(port),
                _ => Verdict::Elsewhere(format!("redirected to port {first} of this host")),
            },
            Some(&[(first, last)]) if !ports.meets(&[(first, last)]) => {
                Verdict::Elsewhere(format!("redirected to one of ports {first}-{last} of this host"))
            }
            _ => return None,
        },
        (Treatment::Translated, Some(Action::Nat(nat))) => match port {
            Some(&[(first, last)]) if first == last && ports.meets(&[(first, last)]) && around.is_here(nat) => {
                Verdict::Proxy(u16::try_from(first).ok()?)
            }
            _ => Verdict::Elsewhere(in_syntax(end)),
        },
        (Treatment::Accepted, _) => Verdict::Bypass,
        _ => return None,
    })
}

/// The action that ends a connection, in its table's syntax.
fn in_syntax(end: &Outcome<'_>) -> String {
    match (end.at, end.action) {
        (Some(at), Some(action)) => at.table().action_in_syntax(&[], action),
        _ => String::new(),
    }
}

/// The rule that lets a connection bypass the proxy: in our chains, or before them.
fn bypassing_rule<'a>(ruleset: &'a Ruleset, steps: &[Step<'a>]) -> Option<Place<'a>> {
    let (mut in_own_chain, mut before) = (None, None);
    for step in steps {
        let (Matched::Yes(action), at) = (&step.matched, step.at) else {
            continue;
        };
        if at.rule().is_some_and(|rule| rule.effects.contains(&Effect::Untrack)) {
            return Some(at);
        }
        let is_own_table = mode_of(at.table()).is_some_and(|mode| holds_rules(ruleset, mode));
        if !is_own_table || !matches!(action, Action::Return | Action::Accept | Action::Goto(_)) {
            continue;
        }
        // The last of several counts.
        if ChainName::own(&at.chain().name).is_some() {
            in_own_chain = Some(at);
        }
        if step.depth == 0 || **action == Action::Accept {
            before = Some(at);
        }
    }
    in_own_chain.or(before)
}

/// The reason why the fate of a connection with these possible ends isn't known.
fn open_question(questions: &[Open<'_>], ends: &[End<'_>]) -> String {
    let unclear = ends.iter().find(|(_, verdict)| verdict.is_none());
    if let Some((end, at)) = unclear.and_then(|(end, _)| Some((end, end.at?))) {
        let target = at.rule().and_then(|rule| rule.action.target());
        return match (end.treatment, target) {
            (Treatment::Unfollowed, Some(chain)) => format!("too many undecided rules in {chain}, to which {at} leads"),
            (Treatment::Unfollowed, None) => format!("too many undecided rules in {}", at.chain().name),
            _ => format!("{at} does something that is not understood"),
        };
    }
    let mut first = None;
    for (index, open) in questions.iter().enumerate() {
        let Some(text) = question_in_words(open) else {
            continue;
        };
        let field = match open {
            Open::Match(_, reason, packet, _) => {
                deciding_field(reason).map(|field| field_of_connection(field, *packet))
            }
            _ => None,
        };
        let mut asked = ends.iter().flat_map(|(end, _)| &end.doubt.questions);
        if field.is_some_and(|field| field_matters(field, ends)) || asked.any(|question| *question == index) {
            return text;
        }
        first = first.or(Some(text));
    }
    if let Some(text) = first {
        return text;
    }
    for (end, _) in ends {
        // The new destination may or may not be this host, so the rules for both cases apply.
        if let Some(Action::Nat(_)) = end.action {
            return format!("it depends on where `{}` sends it, which is not followed", in_syntax(end));
        }
    }
    "more rules were found than can be followed".to_owned()
}

/// Returns true if the verdict differs between numbers of this field.
fn field_matters(field: Field, ends: &[End<'_>]) -> bool {
    let mut verdicts: BTreeMap<Option<&Intervals>, HashSet<&Option<Verdict>>> = BTreeMap::new();
    for (end, verdict) in ends {
        verdicts.entry(end.connections.get(field)).or_default().insert(verdict);
    }
    let mut all = verdicts.values();
    all.next().is_some_and(|first| all.any(|others| others != first))
}

/// The field on which a match depends.
fn deciding_field(reason: &Reason<'_>) -> Option<Field> {
    match reason {
        Reason::Condition(_, field, _) => field.filter(|_| reason.numbers().is_some()),
        Reason::Lookup(lookup, _) => lookup.field(),
        Reason::Device(Hook::Egress) => Some(Field::OutInterface),
        Reason::Device(_) => Some(Field::InInterface),
    }
}

/// The connection's field, as the client opened it, that is this field of one of its packets.
fn field_of_connection(field: Field, packet: Leg) -> Field {
    match packet {
        Leg::Reply | Leg::Rejection | Leg::Advertisement => field.reversed(),
        Leg::First | Leg::Ack | Leg::Solicitation => field,
    }
}

/// An open question in words; none if a user can't do anything about it.
fn question_in_words(open: &Open<'_>) -> Option<String> {
    let (at, reason, packet, hook) = match open {
        Open::Other => return None,
        Open::Orders => return Some("it depends on the order of base chains whose priorities are equal".to_owned()),
        Open::Order(one, two) => {
            let [one, two] = [one, two].map(|slot| format!("{} {}", slot.table, slot.chain.name));
            return Some(format!("it depends on which runs first, {one} or {two}: their priorities are equal"));
        }
        Open::Side(slot, what) => {
            let (table, chain) = (slot.table, &slot.chain.name);
            return Some(format!(
                "it depends on whether {table} {chain} runs before the kernel {what}: their priorities are equal"
            ));
        }
        Open::Match(at, reason, packet, hook) => (*at, reason, *packet, *hook),
    };
    let (what, advice) = dependence_in_words(at, reason, packet, hook);
    let (table, chain) = (at.table(), &at.chain().name);
    Some(match reason {
        Reason::Device(_) => format!("it depends on {what}, because {table}, chain {chain}, is for some{advice}"),
        _ => format!("it depends on {what}, because of {at}{advice}"),
    })
}

/// Whatever it depends on if one of a connection's packets matches at this hook, and the flag that gives it, if there is
/// one.
pub(super) fn dependence_in_words(at: Place<'_>, reason: &Reason<'_>, packet: Leg, hook: Hook) -> (String, String) {
    let mut advice = String::new();
    let what = match reason {
        Reason::Condition(condition @ Condition::NotUnderstood(_), ..) => {
            format!("`{}`, which is not understood", at.table().condition_in_syntax(condition))
        }
        Reason::Condition(condition @ Condition::Context(context), None, _) => match context {
            Context::Limit { .. } => {
                format!("`{}`, which counts others too", at.table().condition_in_syntax(condition))
            }
            Context::AddressType { .. } => {
                format!("`{}`, by routing, which cannot be asked", at.table().condition_in_syntax(condition))
            }
            Context::SocketClass { .. } => {
                let words = at.table().condition_in_syntax(condition);
                format!("`{words}`, by the socket's cgroup, which is not asked")
            }
            Context::IpSet { set, .. } => format!("what ipset's set {set} has"),
            Context::ReversePath { .. } => {
                advice = ": give --from ADDRESS".to_owned();
                "the route back".to_owned()
            }
        },
        _ => match deciding_field(reason) {
            Some(field) => return field_in_words(field_of_connection(field, packet), packet, hook),
            None => "a set that is not understood".to_owned(),
        },
    };
    (what, advice)
}

/// A connection's field in words, for one of its packets at this hook, and the flag that gives it, if there is one.
fn field_in_words(field: Field, packet: Leg, hook: Hook) -> (String, String) {
    // At input, packets have the socket that gets them.
    let is_of_server = (packet == Leg::Reply) != (hook == Hook::Input) && packet != Leg::First;
    let is_discovery = matches!(packet, Leg::Solicitation | Leg::Advertisement);
    let what = match field {
        Field::SourcePort | Field::DestinationPort if is_discovery => "a checksum, which is where TCP has a port",
        Field::Uid if is_of_server => "the user of the process that answers",
        Field::Gid if is_of_server => "the group of the process that answers",
        _ => {
            let advice = flag(field).map_or(String::new(), |flag| format!(": give {flag}"));
            return (field.facts().open.to_owned(), advice);
        }
    };
    (what.to_owned(), String::new())
}

#[cfg(test)]
mod tests;
