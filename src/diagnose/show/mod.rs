//! Shows the rules that redirect connections here, as data: each of our rules and those that run before them, in the
//! order in which the kernel runs them.

mod print;

use std::path::Path;

use ruleset::{Action, Chain, Direction, Family, Line, Network, Policy, Ruleset, Table, TableFamily, Unseen};
use trace::{Slot, chains_at, first_hooks};

use crate::config::{Config, Mode};
use crate::diagnose::explain::answer::proxy_ports;
use crate::diagnose::other_programs::signs_in_namespace;
use crate::diagnose::output::Conclusion;
use crate::diagnose::output::words;
use crate::diagnose::ownership::{is_ours, leads_to};
use crate::diagnose::proxy::PodWarning;
use crate::diagnose::recognize::config;
use crate::diagnose::snapshot::{Snapshot, warnings};
use crate::diagnose::verify::difference::differences;
use crate::diagnose::verify::finding::Finding;
use crate::diagnose::verify::spell_flags;
use crate::error::Error;
use crate::netns;
use crate::ownership::holders;
use crate::plan::tables::expected;
use crate::plan::{ChainName, chain_of};

/// Everything that redirects connections in a network namespace. Its `Display` is for people, [`Shown::json`] for
/// machines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Shown<'a> {
    pub(crate) backends: Vec<Backend<'a>>,
    pub(crate) not_known: Vec<Unseen>,
    /// Probable defects of the proxy that the rules are for.
    pub warnings: Vec<PodWarning>,
    /// Signs of other programs that affect where connections go.
    pub(crate) signs: Vec<String>,
}

/// Our rules in a mode.
#[derive(Debug)]
pub(crate) struct Backend<'a> {
    mode: Mode,
    /// The config that comes closest to the found rules; none if too little was found.
    config: Option<Config>,
    /// The flags that install exactly the found rules; none if these aren't one complete, untouched installation.
    flags: Option<Vec<String>>,
    /// The effects of other programs' rules on connections, if it is one.
    others: Vec<Finding>,
    /// The chains, in the order in which they run; each after the rule that leads to it.
    chains: Vec<ShownChain<'a>>,
}

#[derive(Debug)]
struct ShownChain<'a> {
    direction: Direction,
    /// The family on whose way it was found first; none in native mode, whose table is for both.
    family: Option<Family>,
    table: &'a Table,
    chain: &'a Chain,
    is_in_own_table: bool,
    /// The reason why connections don't pass it as they should.
    note: Option<&'static str>,
    rules: Vec<ShownRule<'a>>,
}

/// A rule. There may be thousands, and the text shows a few, so words are made only for those.
#[derive(Debug, PartialEq, Eq)]
struct ShownRule<'a> {
    line: Line<'a>,
    effect: Effect,
    /// True if the chain comes after the jump to our chain.
    after_jump: bool,
}

impl ShownChain<'_> {
    fn is(&self, table: &Table, chain: &Chain) -> bool {
        self.table.is(table) && self.chain.name == chain.name
    }

    /// Returns true if the chain is ours, or the place for the jump to our chain.
    fn is_own(&self) -> bool {
        self.is_in_own_table && ChainName::from_name(self.chain.name.as_bytes()).is_some()
    }

    /// The chain's name; after the table's name, if the table isn't that of our rules.
    fn name(&self) -> String {
        let (table, name) = (self.table, &self.chain.name);
        if self.is_in_own_table { name.to_string() } else { format!("{table} {name}") }
    }
}

impl ShownRule<'_> {
    fn is_ours(&self) -> bool {
        is_ours(self.line.rule)
    }

    /// The rule's matches, action and purpose, in words.
    fn words(&self) -> [String; 3] {
        let Line { table, rule, .. } = self.line;
        let does = match self.effect {
            Effect::Bypass => "bypasses the proxy".to_owned(),
            Effect::Proxy(port) => format!("to the proxy, port {port}"),
            Effect::Jump | Effect::Other => words::action(table, &rule.effects, &rule.action),
        };
        [words::conditions_in_words(table, rule), does, words::purpose(rule)]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Bypass,
    Proxy(u16),
    Jump,
    Other,
}

/// Shows the rules that redirect connections in the network namespace at `netns`, or in the calling thread's. Nothing
/// is changed, no table is made, and no process is started. Returns `report`'s result.
///
/// # Errors
/// The namespace cannot be entered or read.
pub fn show<T: Send>(netns: Option<&Path>, report: impl FnOnce(&Shown<'_>) -> T + Send) -> Result<T, Error> {
    netns::run_in(netns, || {
        let Snapshot { ruleset, network } = Snapshot::read()?;
        let mut shown = Shown::of(&ruleset, &network);
        if let Some(backend) = shown.backends.first() {
            shown.warnings = backend.config.as_ref().map(|config| warnings(config, &network)).unwrap_or_default();
            shown.signs = signs_in_namespace(&ruleset, &network.devices);
        }
        Ok(report(&shown))
    })
}

impl<'a> Shown<'a> {
    /// The answer for scripts: it is none if no rules were found where all could be seen.
    pub(crate) fn conclusion(&self) -> Conclusion {
        if self.backends.is_empty() && !self.not_known.is_empty() {
            Conclusion::NotKnown
        } else {
            Conclusion::AsExpected
        }
    }

    fn of(ruleset: &'a Ruleset, network: &Network) -> Self {
        Self {
            backends: holders(ruleset).map(|mode| backend(mode, ruleset, network)).collect(),
            not_known: ruleset.not_known.clone(),
            warnings: Vec::new(),
            signs: Vec::new(),
        }
    }
}

fn backend<'a>(mode: Mode, ruleset: &'a Ruleset, network: &Network) -> Backend<'a> {
    let mut chains: Vec<ShownChain<'_>> = Vec::new();
    for family in Family::ALL {
        let Some(ours) = mode.table_among(&ruleset.tables, family) else {
            continue;
        };
        for direction in Direction::ALL {
            let mut way =
                ChainWalk { ours, proxy: proxy_ports(std::slice::from_ref(ours)), direction, chains: Vec::new() };
            way.follow(ruleset, family);
            // An inet table's chains are seen once in each family.
            way.chains.retain(|chain| {
                let is_alike = |known: &ShownChain<'_>| {
                    known.is(chain.table, chain.chain)
                        && (known.direction, known.note) == (chain.direction, chain.note)
                        && known.rules == chain.rules
                };
                !chains.iter().any(is_alike)
            });
            chains.extend(way.chains);
        }
    }
    let config = config(mode, ruleset).ok();
    let findings = config.as_ref().map(|config| differences(mode, &expected(mode, config), ruleset, network));
    let others = findings.filter(|findings| findings.iter().all(|finding| finding.is_about_others()));
    let flags = config.as_ref().filter(|_| others.is_some()).map(|config| spell_flags(config, mode));
    Backend { mode, config, flags, others: others.unwrap_or_default(), chains }
}

/// The note on our own chain if no rule leads there.
const UNUSED: &str = "unused: nothing leads here";

/// Collects the chains that a direction's connections pass.
struct ChainWalk<'a> {
    /// The table of our rules.
    ours: &'a Table,
    proxy: Vec<u16>,
    direction: Direction,
    chains: Vec<ShownChain<'a>>,
}

impl<'a> ChainWalk<'a> {
    /// Adds our chains, and those that run before them.
    fn follow(&mut self, ruleset: &'a Ruleset, family: Family) {
        let own = ChainName::of(self.direction);
        let hooks = first_hooks(self.direction).iter();
        let slots: Vec<Slot<'a>> = hooks.flat_map(|&hook| chains_at(ruleset, family, hook)).collect();
        let jumping = slots.iter().enumerate().find(|(_, slot)| {
            let mut rules = slot.chain.rules.iter();
            slot.table.is(self.ours) && rules.any(|rule| leads_to(rule) == Some(own))
        });
        for (index, slot) in slots.iter().enumerate() {
            let is_ours = slot.table.is(self.ours);
            // The order of two chains that tie isn't known.
            let tied = jumping.is_some_and(|(_, jumping)| slot.ties_with(jumping));
            let comes_first = jumping.map_or(is_ours, |(place, _)| index <= place || tied);
            let matters = is_ours || !slot.chain.rules.is_empty() || slot.base.policy == Policy::Drop;
            if comes_first && matters {
                self.add(slot.table, slot.chain, tied.then_some("may run before or after"));
            }
        }
        // These chains are shown even if nothing leads there.
        for (name, note) in [(own.counterpart(), "not hooked"), (own, UNUSED)] {
            let note = if self.ours.dormant { "switched off: the table is dormant" } else { note };
            if let Some(chain) = chain_of(self.ours, name)
                && (name.is_ours() || !chain.rules.is_empty())
            {
                self.add(self.ours, chain, Some(note));
            }
        }
    }

    /// Adds a chain and then the chains to which its rules lead, up to the jump to ours, each once.
    fn add(&mut self, table: &'a Table, chain: &'a Chain, note: Option<&'static str>) {
        let jump = chain
            .rules
            .iter()
            .position(|rule| chain.base.is_some() && table.is(self.ours) && is_ours(rule) && leads_to(rule).is_some());
        let (before, _) = chain.rules.split_at(jump.map_or(chain.rules.len(), |jump| jump + 1));
        for (chain, note) in
            [(chain, note)].into_iter().chain(table.reached_chains(before).into_iter().map(|chain| (chain, None)))
        {
            if self.chains.iter().any(|known| known.is(table, chain)) {
                continue;
            }
            let drops = chain.base.is_some_and(|base| base.policy == Policy::Drop);
            let rules = Line::all(table, chain).map(|line| ShownRule {
                line,
                effect: self.effect(line),
                after_jump: chain.base.is_some() && line.number > before.len(),
            });
            self.chains.push(ShownChain {
                direction: self.direction,
                family: if let TableFamily::Ip(family) = self.ours.family { Some(family) } else { None },
                table,
                chain,
                is_in_own_table: table.is(self.ours),
                note: note.or(drops.then_some("policy drop: drops the rest")),
                rules: rules.collect(),
            });
        }
    }

    fn effect(&self, line: Line<'_>) -> Effect {
        let Line { table, chain, rule, .. } = line;
        let is_own_table = table.is(self.ours);
        // Here, a return ends our table's treatment of the connection.
        let is_own_chain =
            is_own_table && (chain.base.is_some() || ChainName::from_name(chain.name.as_bytes()).is_some());
        match (&rule.action, rule.redirects_to()) {
            (_, Some(port)) if self.proxy.contains(&port) => Effect::Proxy(port),
            (Action::Return, _) if is_own_chain => Effect::Bypass,
            (Action::Accept, _) if is_own_table => Effect::Bypass,
            (Action::Continue, _) if rule.effects.contains(&ruleset::Effect::Untrack) => Effect::Bypass,
            (Action::Jump(_) | Action::Goto(_), _) => Effect::Jump,
            _ => Effect::Other,
        }
    }
}
