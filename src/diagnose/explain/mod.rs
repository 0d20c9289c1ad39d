//! Explaining: would this connection go to the proxy, and which rule says so?

pub mod answer;
mod print;
mod routing;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ruleset::{Context, Direction, Facts, Family, Field, Intervals, Listener, Name, Network, Rule, Ruleset};
use trace::{Leg, Matched, Place, Step};

use self::routing::Routed;
pub(super) use self::routing::Routing;
use crate::config::Mode;
use crate::diagnose::explain::answer::{Answer, Connection, Verdict};
use crate::diagnose::other_programs::owner_of;
use crate::diagnose::output::page::Page;
use crate::diagnose::output::words;
use crate::diagnose::ownership::{is_ours, mode_of};
use crate::diagnose::proxy::{PodWarning, warnings};
use crate::diagnose::recognize::config;
use crate::diagnose::snapshot::{self, facts, unread_tables};
use crate::error::{Error, chain};
use crate::modes::must_see;
use crate::netns;
use crate::ownership::holders;
use crate::plan::Purpose;

/// The fate of a connection, and the reason. Its `Display` is for people, [`Explained::json`] for machines.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explained<'a> {
    /// The fate of the connection.
    pub verdict: Verdict,
    /// The connection, in words: the given facts, and those that the kernel's routing adds.
    pub connection: String,
    /// The rule or the policy that decides; none if no rule does.
    pub by: Option<Decider>,
    /// Probable defects of the proxy that the rules are for.
    pub warnings: Vec<PodWarning>,
    /// Defects of the tables themselves, in words.
    table_warnings: Vec<String>,
    /// Every rule and policy that it was compared with, in the kernel's order; there may be thousands.
    steps: Vec<Step<'a>>,
    /// The users, groups and devices for which the answer differs, in words.
    exceptions: Vec<String>,
    /// The rules on whose limits it depends, in words.
    limits: Vec<String>,
    /// The destination of a connection that is redirected, if this namespace doesn't have it.
    stray: Option<IpAddr>,
    /// The proxy's own connection to the destination, if this one goes to the proxy.
    pub(crate) onward: Option<Onward>,
    direction: Direction,
    at: Option<Place<'a>>,
    ports: Vec<u16>,
}

/// The rule or the policy that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decider {
    /// The rule, in iptables' syntax or, in native mode's and nft's own tables, in nft's; `policy drop` for a policy.
    pub rule: String,
    /// The rule's place, as `rule 4 of chain PROXY_INIT_OUTPUT in ip nat`.
    pub place: String,
    /// The mode of proxy-init whose table it is in, if the rule is ours.
    pub mode: Option<Mode>,
}

/// The place and the rule.
impl fmt::Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.map_or(String::new(), |mode| format!(", {mode} mode"));
        write!(f, "{}{mode}: {}", self.place, self.rule)
    }
}

impl Decider {
    /// The same, with the rule on lines of its own, if both together don't fit a line.
    fn text(&self, page: &Page) -> String {
        let line = self.to_string();
        match line.strip_suffix(&self.rule) {
            Some(place) if "by ".len() + line.len() > page.width => {
                format!("{}\n{}", place.trim_end(), page.fold_line(&format!("  {}", self.rule), 2))
            }
            _ => line,
        }
    }
}

/// The answer that the caller expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Proxy,
    Bypass,
}

/// True if the connection matches; none: not known.
fn is_match(step: &Step<'_>) -> Option<bool> {
    match step.matched {
        Matched::Yes(_) => Some(true),
        Matched::No(_) => Some(false),
        Matched::Perhaps(_) => None,
    }
}

/// Explains the fate of a connection in the network namespace at `netns`, or in the calling thread's. Nothing
/// is changed, and no connection is made. Returns `report`'s result.
///
/// The kernel's routing gives the missing facts of an outbound connection.
///
/// # Errors
/// The namespace cannot be entered or read, or there is no such connection: the kernel has no
/// route to its destination, that is no address to which TCP connects, or there is no such device.
pub fn explain<T: Send>(
    netns: Option<&Path>,
    connection: &Connection,
    report: impl FnOnce(&Explained<'_>) -> T + Send,
) -> Result<T, Error> {
    netns::run_in(netns, || {
        let routing = Routing::read();
        let asked = routing.check(connection)?;
        let routed = routing.route_connection(asked.clone())?;
        let ruleset = snapshot::ruleset()?;
        must_see(&ruleset, Mode::Nft)?;
        let explained = Scene::new(&routing, &ruleset).explain(&asked, routed, true);
        Ok(report(&explained))
    })
}

/// A network namespace through which connections are followed.
pub(super) struct Scene<'s> {
    routing: &'s Routing,
    ruleset: &'s Ruleset,
    /// Probable defects beside the rules that are there, if these tell a config.
    warnings: Vec<PodWarning>,
}

impl<'s> Scene<'s> {
    pub(super) fn new(routing: &'s Routing, ruleset: &'s Ruleset) -> Self {
        let config = holders(ruleset).next().and_then(|mode| config(mode, ruleset).ok());
        let warnings = config.map(|config| warnings(&config, &routing.network)).unwrap_or_default();
        Self { routing, ruleset, warnings }
    }

    /// Follows a connection, and from the proxy on, if it goes there. Tables that could not be seen count as empty.
    ///
    /// # Errors
    /// As of [`explain`].
    pub(super) fn follow(&self, asked: &Connection) -> Result<Explained<'s>, Error> {
        let asked = self.routing.check(asked)?;
        let routed = self.routing.route_connection(asked.clone())?;
        Ok(self.explain(&asked, routed, false))
    }

    /// Explains what becomes of a connection that was `asked` about; with `doubts`, tables that could not be seen make it
    /// unknown.
    fn explain(&self, asked: &Connection, routed: Routed<'_>, doubts: bool) -> Explained<'s> {
        let mut explained = self.explain_leg(asked, routed, doubts);
        explained.onward = self.follow_from_proxy(asked, &explained.verdict);
        // Routing may have been silent only now.
        if let (Verdict::Proxy(_), Some(doubt)) = (&explained.verdict, self.routing.doubt()) {
            explained.verdict = explained.verdict.in_doubt(&doubt);
        }
        explained
    }

    fn explain_leg(&self, asked: &Connection, mut routed: Routed<'_>, doubts: bool) -> Explained<'s> {
        let Self { routing, ruleset, .. } = *self;
        if !answer::open_exemptions(ruleset, &routed.connection, Field::InInterface).is_empty() {
            routed.connection.device = routing.network.only_device().map(|device| device.name.clone());
        }
        let facts = facts(ruleset, &routing.network, routed.device_back());
        let network = Network { facts, ..routing.network.clone() };
        let mut answer = answer_by_routing(ruleset, &network, asked, &routed);
        let has_limits = || ruleset.contexts().any(|context| matches!(context, Context::Limit { .. }));
        // Beyond a limit, a connection may be lost in another way.
        let may_differ = matches!(answer.verdict, Verdict::NotKnown(_) | Verdict::Dropped | Verdict::Rejected);
        if may_differ && has_limits() {
            let facts = Facts { is_below_limits: true, ..network.facts.clone() };
            let below = Network { facts, ..network };
            let conditional = answer_by_routing(ruleset, &below, asked, &routed);
            if !matches!(conditional.verdict, Verdict::NotKnown(_)) && conditional.verdict != answer.verdict {
                answer = answer::add_limits(conditional);
            }
        }
        if let Some(doubt) = routing.doubt() {
            answer = answer.in_doubt(&doubt);
        }
        if doubts {
            answer = answer::doubt_if_unseen(ruleset, answer);
        }
        let mut explained = Explained::new(ruleset, &routed.connection, answer);
        let goes_to_proxy = matches!(explained.verdict, Verdict::Proxy(_));
        explained.stray = routed.stray_destination(asked).filter(|_| goes_to_proxy);
        let about = self.warnings.iter().filter(|warning| warning.is_about(&routed.connection, &explained.verdict));
        explained.warnings = about.cloned().collect();
        explained
    }

    /// Follows the connection that the proxy makes once this one has got to it: to the same destination, as the user who
    /// listens there. None if this one doesn't get there, or the user isn't known.
    fn follow_from_proxy(&self, asked: &Connection, verdict: &Verdict) -> Option<Onward> {
        let Verdict::Proxy(port) = *verdict else {
            return None;
        };
        let mut at_port = self.routing.network.listeners.iter().filter(|listener| listener.port == port);
        let known = at_port.next().map(|listener| listener.uid).filter(|uid| *uid != Listener::UNMAPPED);
        let proxy = answer::proxy(&self.ruleset.tables);
        let first = |ids: &Intervals| ids.as_slice().first().and_then(|&(first, _)| u32::try_from(first).ok());
        let uid = known.or_else(|| first(&proxy.uids))?;
        let to = self.routing.own_address(asked.to);
        let onward = Connection { uid: Some(uid), gid: first(&proxy.gids), ..Connection::new(Direction::Outbound, to) };
        let routed = match self.routing.route_connection(onward.clone()) {
            Ok(routed) => routed,
            Err(error) => return Some(Onward { uid, verdict: Verdict::Lost(chain(&error).to_string()), by: None }),
        };
        let Explained { verdict, by, .. } = self.explain_leg(&onward, routed, false);
        Some(Onward { uid, verdict, by })
    }
}

/// The connection that the proxy makes to the destination, after another one was redirected to the proxy.
#[derive(Debug, Clone)]
pub(crate) struct Onward {
    pub(crate) uid: u32,
    pub(crate) verdict: Verdict,
    pub(crate) by: Option<Decider>,
}

impl Onward {
    /// Its loss in words, if it is lost or comes back to the proxy.
    pub(crate) fn loss(&self) -> Option<String> {
        let fate = match &self.verdict {
            Verdict::Proxy(port) => return Some(format!("back to the proxy, port {port}, again and again")),
            verdict if verdict.is_dropped() => verdict,
            _ => return None,
        };
        let by = self.by.as_ref().map_or(String::new(), |by| format!(" by {}", by.place));
        Some(format!("{fate}{by}"))
    }

    /// The reason why its fate isn't known, in words.
    pub(crate) fn doubt(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::NotKnown(why) => Some(why),
            _ => None,
        }
    }
}

/// The fate of a connection by the rules and by routing; `asked` is the connection that was asked about.
fn answer_by_routing<'a>(
    ruleset: &'a Ruleset,
    network: &Network,
    asked: &Connection,
    routed: &Routed<'_>,
) -> Answer<'a> {
    let is_inbound = asked.direction == Direction::Inbound;
    let answer_for = |routed: &Routed<'_>, back: Option<&Name>| {
        let mut answer =
            answer::follow_connection(ruleset, &routed.connection, network, &routed.routes_of_nat(ruleset), back);
        routed.deliver(&mut answer);
        answer
    };
    let mut answer = answer_for(routed, None);
    match routed.way_back(ruleset, &answer) {
        Some(Ok(device)) if is_inbound && routed.connection.device.as_ref() != Some(device) => {
            answer = answer_for(routed, Some(device));
        }
        Some(Err(why)) => {
            answer.steps.retain(|step| step.packet == Leg::First);
            answer.verdict = Verdict::Lost(why);
        }
        _ => {}
    }
    for other in routed.for_other_users(ruleset, asked) {
        let is_same = other.is_some_and(|other| answer_for(&other, None).verdict == answer.verdict);
        if !is_same {
            answer.verdict =
                Verdict::NotKnown("it depends on the user, by whom `ip rule` routes: give --uid".to_owned());
        }
    }
    if let Some(at) = routed.marking_rule(&answer) {
        let why = format!("{at} sets a mark, by which `ip rule` routes, which is not followed");
        answer.verdict = Verdict::NotKnown(why);
    }
    let neighbours = routed.neighbours(&answer);
    if let Some(neighbours) = &neighbours {
        answer = answer::add_discovery(ruleset, network, neighbours, answer);
    }
    // A packet that stays in this namespace meets neither ARP nor a bridge.
    let is_open = match answer.verdict {
        Verdict::Bypass => !routed.is_by_lo(),
        Verdict::Proxy(_) | Verdict::Elsewhere(_) => is_inbound,
        _ => false,
    };
    let asks_by_arp = neighbours.is_some_and(|asking| asking.family == Family::V4);
    match unread_tables(network, asks_by_arp) {
        Some(whose) if is_open => answer.in_doubt(&format!("{whose}'s tables are not read; by all others")),
        _ => answer,
    }
}

impl<'a> Explained<'a> {
    /// The flag of ours by whose rule a connection bypasses the proxy, with the rule's comment; none if another rule
    /// decides.
    pub(crate) fn exempting_setting(&self) -> Option<String> {
        let rule = self.at.and_then(|at| at.rule()).filter(|rule| is_ours(rule))?;
        let ignored = match Purpose::of_first(rule)? {
            Purpose::IgnorePorts(_) => "ports",
            Purpose::IgnoreSubnet(_) => "subnets",
            Purpose::IgnoreInterface(_) => "interfaces",
            _ => return Some(words::purpose(rule)),
        };
        Some(format!("--{}-{ignored}-to-ignore names it", self.direction))
    }

    /// Returns true if the answer is this one. A connection that the proxy's port refuses doesn't get to the proxy.
    pub(crate) fn is(&self, expected: Expected) -> bool {
        match expected {
            Expected::Proxy => {
                matches!(self.verdict, Verdict::Proxy(_))
                    && self.stray.is_none()
                    && self.onward.as_ref().and_then(Onward::loss).is_none()
                    && !self.warnings.iter().any(PodWarning::is_refusal)
            }
            Expected::Bypass => self.verdict == Verdict::Bypass,
        }
    }

    /// Explains by the rules that were read, without routing.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(ruleset: &'a Ruleset, connection: &Connection) -> Self {
        Self::new(ruleset, connection, answer::explain(ruleset, connection))
    }

    fn new(ruleset: &Ruleset, connection: &Connection, answer: Answer<'a>) -> Self {
        let by = answer.at.map(|at| {
            let (what, rule) = match at {
                Place::Rule(line) => (format!("rule {}", line.number), line.to_string().trim_end().to_owned()),
                Place::Policy(_) => ("the policy".to_owned(), "policy drop".to_owned()),
            };
            let place = format!("{what} of chain {} in {}{}", at.chain().name, at.table(), owner_in_brackets(at));
            Decider { rule, place, mode: mode_of(at.table()).filter(|_| at.rule().is_some_and(is_ours)) }
        });
        let stands = matches!(answer.verdict, Verdict::Proxy(_) | Verdict::Bypass | Verdict::Elsewhere(_));
        let exceptions = answer.exceptions.iter().filter(|_| stands);
        let limits = answer.limits.iter().map(ToString::to_string).collect();
        Self {
            exceptions: exceptions.map(|(field, numbers)| words::numbers(*field, numbers)).collect(),
            limits,
            stray: None,
            onward: None,
            steps: answer.steps,
            direction: connection.direction,
            at: answer.at,
            ports: answer::proxy_ports(&ruleset.tables),
            connection: connection_in_words(connection),
            by,
            verdict: answer.verdict,
            warnings: Vec::new(),
            table_warnings: table_warnings(ruleset, Family::of(connection.to.ip())),
        }
    }

    /// The action on the connection if it matches; else the reason why it doesn't, or why nobody knows, in words.
    fn why(&self, step: &Step<'_>) -> String {
        let (at, table) = (step.at, step.at.table());
        let action = match &step.matched {
            Matched::Yes(action) => action,
            Matched::No(reason) => return words::mismatch_in_words(table, reason),
            Matched::Perhaps(reason) => {
                let (what, _) = answer::dependence_in_words(at, reason, step.packet, step.hook);
                return format!("not known: it depends on {what}");
            }
        };
        let port = at.rule().and_then(Rule::redirects_to).filter(|port| self.ports.contains(port));
        if let Some(port) = port {
            return Verdict::Proxy(port).to_string();
        }
        match (at.rule(), action.target().and_then(|chain| table.chain(chain))) {
            (Some(_), _) if self.at == Some(at) => self.verdict.to_string(),
            (_, Some(chain)) if chain.rules.is_empty() => format!("to {}, which has no rules", chain.name),
            (rule, _) => words::action(step.at.table(), rule.map_or(&[], |rule| &rule.effects), action),
        }
    }
}

/// Warns of several modes with our rules, and of tables that do nothing to connections of this family.
fn table_warnings(ruleset: &Ruleset, family: Family) -> Vec<String> {
    let dormant =
        ruleset.tables.iter().filter(|table| table.dormant && table.family.sees(family) && !table.chains.is_empty());
    let dormant = dormant.map(|table| format!("the table {table} is dormant: none of its chains is hooked"));
    words::several_modes(holders(ruleset)).into_iter().chain(dormant).collect()
}

/// The program that owns the chain, by the chain's name: ` (Istio's)`.
fn owner_in_brackets(at: Place<'_>) -> String {
    let owner = owner_of(at.table(), &at.chain().name);
    owner.map_or_else(String::new, |owner| format!(" ({owner}'s)"))
}

fn connection_in_words(connection: &Connection) -> String {
    let Connection { direction, to, .. } = connection;
    let from = match (connection.from, connection.from_port) {
        (Some(from), Some(port)) => SocketAddr::new(from, port).to_string(),
        (Some(from), None) => from.to_string(),
        (None, _) => "any address".to_owned(),
    };
    let way = match direction {
        Direction::Inbound => "arriving on",
        Direction::Outbound => "leaving by",
    };
    let device = connection.device.as_ref();
    let device = device.map_or("any interface except lo".to_owned(), ToString::to_string);
    let mut words = format!("{direction}, from {from} to {to}, {way} {device}");
    if *direction == Direction::Outbound {
        words += &match connection.uid {
            Some(uid) => format!(", from user {uid}"),
            None => ", from any user except the proxy's".to_owned(),
        };
        words += &connection.gid.map_or(String::new(), |gid| format!(" and group {gid}"));
    }
    words
}
