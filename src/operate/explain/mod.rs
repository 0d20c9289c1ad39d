//! Explaining: would this connection go to the proxy, and which rule says so?

mod print;
mod routing;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use crate::backend::all;
use crate::error::Error;
use crate::namespace;
use crate::operate::words;
use crate::rules::explain::{self, Answer, Connection, Verdict};
use crate::rules::found::{Found, Subsystem};
use crate::rules::hook::Hook;
use crate::rules::line::Line;
use crate::rules::mode::Mode;
use crate::rules::walk::{self, Direction, Matched};

/// What becomes of a connection, and why. [`Explained::text`] writes it for people, [`Explained::json`] for machines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explained {
    /// What becomes of it.
    pub verdict: Verdict,
    /// The connection, in words: what was given, and what the kernel's routing adds.
    pub connection: String,
    /// The rule that says so, or the policy; none if no rule does.
    pub by: Option<Decider>,
    /// Everything that the connection was compared with, in the kernel's order.
    pub steps: Vec<Step>,
}

/// The rule or the policy that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decider {
    /// The rule, in iptables' syntax, native mode's and those of nft's own tables in nft's; `policy drop` for a policy.
    pub rule: String,
    /// Where it is, in words.
    pub place: String,
    /// The mode of proxy-init whose table it is in, if the rule is proxy-init's.
    pub mode: Option<Mode>,
}

/// A rule or a policy that the connection was compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The hook at which that was.
    pub hook: Hook,
    /// How many jumps lead to the chain from its base chain.
    pub depth: usize,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The priority of the chain, if it is a base chain.
    pub priority: Option<i32>,
    /// The rule's place in its chain, from 1 on, and the rule; none for a policy.
    pub rule: Option<(usize, String)>,
    /// Which connections it matches, in words.
    pub matches: String,
    /// Whether the connection matches; none: that isn't known.
    pub matched: Option<bool>,
    /// What is done with it if it matches, or why it doesn't or why that isn't known.
    pub why: String,
}

/// Explains what becomes of a connection in the network namespace at `netns`, or in that of the calling thread. Nothing is
/// changed, and no connection is made.
///
/// What isn't known of an outbound connection, the kernel's routing is asked.
///
/// # Errors
/// The namespace cannot be entered, what it holds cannot be read, or there is no such connection: the kernel has no route to
/// its destination, that is no address to which TCP connects, or there is no such device.
pub fn explain(netns: Option<&Path>, connection: &Connection) -> Result<Explained, Error> {
    namespace::run_in(netns, || {
        let mut connection = connection.clone();
        let destination = routing::complete(&mut connection)?;
        let found = all::read()?;
        if let Some(unseen) = found.unseen(Subsystem::NfTables) {
            return Err(Error::Unseen {
                mode: Mode::Nft,
                reason: unseen.reason.clone(),
            });
        }
        let mut answer = explain::of_seen(&found, &connection);
        routing::deliver(&connection, destination, &mut answer);
        Ok(Explained::new(
            &found,
            &connection,
            explain::as_far_as_seen(&found, answer),
        ))
    })
}

impl Explained {
    /// Explains by what was read.
    pub fn of(found: &Found, connection: &Connection) -> Self {
        Self::new(found, connection, explain::explain(found, connection))
    }

    fn new(found: &Found, connection: &Connection, answer: Answer<'_>) -> Self {
        let by = answer.at.map(|at| Decider {
            rule: match at.rule {
                Some(rule) => {
                    let walk::Place { table, chain, .. } = at;
                    Line { table, chain, rule }.to_string().trim_end().to_owned()
                }
                None => "policy drop".to_owned(),
            },
            place: place(at),
            mode: Mode::of(at.table).filter(|_| at.rule.is_some_and(|rule| rule.is_ours())),
        });
        let decided = |step: &walk::Step<'_>| match (answer.at.and_then(|at| at.rule), step.at.rule) {
            (Some(one), Some(other)) => std::ptr::eq(one, other),
            _ => false,
        };
        let ports = explain::proxy_ports(found);
        let steps = answer.steps.iter().map(|step| {
            let to_proxy = step.at.rule.and_then(|rule| rule.redirects_to());
            let verdict = match to_proxy.filter(|port| ports.contains(port)) {
                Some(port) => Some(Verdict::Proxy(port)),
                None => Some(answer.verdict.clone()).filter(|_| decided(step)),
            };
            shown(step, verdict)
        });
        Self {
            steps: steps.collect(),
            connection: InWords(connection).to_string(),
            by,
            verdict: answer.verdict,
        }
    }
}

/// Where a rule is, as `rule 4 of chain PROXY_INIT_OUTPUT in ip nat`.
fn place(at: walk::Place<'_>) -> String {
    let walk::Place { table, chain, .. } = at;
    match number(at) {
        Some(number) => format!("rule {number} of chain {} in {table}", chain.name),
        None => format!("the policy of chain {} in {table}", chain.name),
    }
}

/// A rule's place in its chain, from 1 on.
fn number(at: walk::Place<'_>) -> Option<usize> {
    let rule = at.rule?;
    let index = at.chain.rules.iter().position(|other| std::ptr::eq(other, rule))?;
    Some(index + 1)
}

/// A step in words; with what it comes to for the connection, if that is known.
fn shown(step: &walk::Step<'_>, verdict: Option<Verdict>) -> Step {
    let walk::Place { table, chain, rule } = step.at;
    let (matched, why) = match &step.matched {
        Matched::Yes(_) if let Some(verdict) = &verdict => (Some(true), verdict.to_string()),
        Matched::Yes(action) => (Some(true), words::action(action)),
        Matched::No(reason) => (Some(false), words::why_not(table, reason)),
        Matched::Perhaps(reason, _) => (None, words::why_not_known(reason)),
    };
    Step {
        hook: step.hook,
        depth: step.depth,
        table: table.to_string(),
        chain: chain.name.to_string(),
        priority: chain.base.map(|base| base.priority),
        rule: number(step.at)
            .zip(rule)
            .map(|(number, rule)| (number, Line { table, chain, rule }.to_string().trim_end().to_owned())),
        matches: rule.map_or_else(|| "policy".to_owned(), |rule| words::matches(table, rule)),
        matched,
        why,
    }
}

/// A connection in words, with what isn't known of it.
struct InWords<'a>(&'a Connection);

impl fmt::Display for InWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection {
            direction,
            to,
            from,
            from_port,
            uid,
            gid,
            device,
        } = self.0;
        write!(f, "{direction}, from ")?;
        match (from, from_port) {
            (Some(from), Some(port)) => write!(f, "{}", SocketAddr::new(*from, *port))?,
            (Some(from), None) => write!(f, "{from}")?,
            (None, _) => f.write_str("any address")?,
        }
        write!(f, " to {to}")?;
        let way = match direction {
            Direction::Inbound => "in by",
            Direction::Outbound => "out by",
        };
        match device {
            Some(device) => write!(f, ", {way} {device}")?,
            None => write!(f, ", {way} any device but lo")?,
        }
        if *direction == Direction::Inbound {
            return Ok(());
        }
        match uid {
            Some(uid) => write!(f, ", of user {uid}")?,
            None => f.write_str(", of any user but the proxy's")?,
        }
        match gid {
            Some(gid) => write!(f, " and group {gid}"),
            None => Ok(()),
        }
    }
}
