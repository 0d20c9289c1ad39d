//! nft mode: xtables-compatible nat chains in nf_tables, written as iptables-nft would write them.
//!
//! One netlink batch for both families, which the kernel commits whole or not at all. In a namespace that nobody has
//! programmed yet, nothing is read first: the batch says that it is for the first generation, and is refused anywhere
//! else. Then, and only then, the chains' rules are read, and a batch for just that generation puts them right.

mod decode;
mod encode;
pub(super) mod refusal;
mod xt;

use std::time::Duration;

use nix::errno::Errno;

pub(super) use self::decode::user_comment as comment_of;
pub(super) use self::encode::NAT_PRIORITY;
use self::encode::Step;
use super::{Backend, Contents, FoundChain, Held};
use crate::error::Error;
use crate::netlink::message::{Attributes, Malformed, Request, be32, string};
use crate::netlink::uapi::*;
use crate::netlink::{CommitError, Finished, Generation, ReadError, Socket};
use crate::operate::verify::{self, Finding};
use crate::rules::config::Family;
use crate::rules::mode::Mode;
use crate::rules::ruleset::{ChainName, Rule, Ruleset, Target};

/// How often a batch is built anew because somebody else's commit came in between. Each try takes about a
/// millisecond; a writer that keeps this up for so long doesn't let anybody else in either.
const TRIES: u32 = 1000;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Nft;

impl Backend for Nft {
    fn mode(&self) -> Mode {
        Mode::Nft
    }

    fn install_if_fresh(&self, rulesets: &[Ruleset]) -> Result<bool, Error> {
        let prepared = Prepared::new(rulesets);
        let socket = Socket::open().map_err(no_socket)?;
        Ok(commit(&socket, &prepared.steps, &prepared.batch)? == Outcome::Committed)
    }

    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        Prepared::new(rulesets).install()
    }

    fn differences(&self, rulesets: &[Ruleset]) -> Result<Vec<Finding>, Error> {
        verify::differences(rulesets, |family| self.read(family))
    }

    fn remove(&self) -> Result<bool, Error> {
        let socket = Socket::open().map_err(no_socket)?;
        reconcile(&socket, &[])
    }

    fn held(&self) -> Result<Held, Error> {
        let socket = Socket::open().map_err(no_socket)?;
        let read = |family| -> Result<Held, ReadError> {
            let mut rules = 0;
            let request = dump(libc::NFT_MSG_GETRULE, family).string(NFTA_RULE_TABLE, "nat");
            socket.ask(request, |_| {
                rules += 1;
                Ok(())
            })?;
            let ours = Table::read(&socket, family)?.chains().any(ChainName::is_ours);
            Ok(Held { ours, rules })
        };
        if socket.generation().map_err(unreadable)? == Generation::FRESH {
            return Ok(Held::default());
        }
        let v4 = read(Family::V4).map_err(unreadable)?;
        let v6 = read(Family::V6).map_err(unreadable)?;
        Ok(v4 + v6)
    }
}

impl Nft {
    /// The family's rules in the chains that we have rules in.
    fn read(&self, family: Family) -> Result<Vec<FoundChain>, Error> {
        let socket = Socket::open().map_err(no_socket)?;
        let read = || {
            let table = Table::read(&socket, family)?;
            let found = |name| -> Result<FoundChain, ReadError> {
                let rules = rules(&socket, family, name)?;
                Ok(FoundChain {
                    name,
                    rules: rules.into_iter().map(|held| held.found).collect(),
                })
            };
            table.chains().map(found).collect::<Result<Vec<_>, ReadError>>()
        };
        read().map_err(unreadable)
    }

    /// Whether the kernel would take the rulesets: it checks them as if to install, and nothing is committed.
    ///
    /// # Errors
    /// What the kernel lacks or refuses.
    pub fn check(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        let socket = Socket::open().map_err(no_socket)?;
        let steps = fresh(rulesets);
        let batch = encode::encode(&steps, None).unfinished();
        socket
            .commit(&batch)
            .map_err(|error| refusal::explain(Mode::Nft, &socket, &steps, &batch, error))
    }
}

/// Rulesets encoded for a fresh namespace: once, however many namespaces they are then installed in.
pub struct Prepared<'a> {
    rulesets: &'a [Ruleset],
    steps: Vec<Step<'a>>,
    batch: Finished,
}

impl<'a> Prepared<'a> {
    /// Encodes them.
    pub fn new(rulesets: &'a [Ruleset]) -> Self {
        let steps = fresh(rulesets);
        let batch = encode::encode(&steps, Some(Generation::FRESH)).end();
        Self { rulesets, steps, batch }
    }

    /// The netlink batch, ready to send.
    pub fn bytes(&self) -> &[u8] {
        &self.batch.0
    }

    /// Installs them in the network namespace of the calling thread, fresh or not; see [`Backend::install`].
    ///
    /// # Errors
    /// What the kernel lacks or refuses, with the rule that it is about; then nothing has changed.
    pub fn install(&self) -> Result<(), Error> {
        let socket = Socket::open().map_err(no_socket)?;
        match commit(&socket, &self.steps, &self.batch)? {
            Outcome::Committed => Ok(()),
            Outcome::OtherGeneration => reconcile(&socket, self.rulesets).map(drop),
        }
    }
}

/// From what the namespace holds to the rulesets, whoever else is at work. Tells whether there was anything to do.
fn reconcile(socket: &Socket, rulesets: &[Ruleset]) -> Result<bool, Error> {
    for attempt in 0..TRIES {
        back_off(attempt);
        let generation = socket.generation().map_err(unreadable)?;
        let steps = reconciled(socket, rulesets).map_err(unreadable)?;
        if steps.is_empty() {
            return Ok(false);
        }
        let batch = encode::encode(&steps, Some(generation)).end();
        if commit(socket, &steps, &batch)? == Outcome::Committed {
            return Ok(true);
        }
    }
    Err(Error::Contended { tries: TRIES })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Committed,
    OtherGeneration,
}

fn no_socket(errno: Errno) -> Error {
    refusal::no_socket(Mode::Nft, errno)
}

fn unreadable(error: ReadError) -> Error {
    refusal::unreadable(Mode::Nft, error)
}

/// Sends the batch of these steps.
fn commit(socket: &Socket, steps: &[Step<'_>], batch: &Finished) -> Result<Outcome, Error> {
    match socket.commit(batch) {
        Ok(()) => Ok(Outcome::Committed),
        Err(CommitError::OtherGeneration) => Ok(Outcome::OtherGeneration),
        Err(error) => Err(refusal::explain(Mode::Nft, socket, steps, batch, error)),
    }
}

/// Lets the others through; no two processes for the same time.
fn back_off(attempt: u32) {
    if attempt > 0 {
        let step = 100 + u64::from(std::process::id() % 100);
        std::thread::sleep(Duration::from_micros(step * u64::from(attempt.min(20))));
    }
}

/// The steps in a namespace that holds nothing.
fn fresh(rulesets: &[Ruleset]) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for ruleset in rulesets {
        let family = ruleset.family;
        steps.push(Step::AddTable(family));
        steps.extend(ChainName::ALL.map(|chain| Step::AddChain(family, chain)));
        steps.extend(ruleset.rules().map(|(chain, rule)| Step::AddRule(family, chain, rule)));
    }
    steps
}

/// The steps from what the namespace holds to exactly the rulesets.
fn reconciled<'a>(socket: &Socket, rulesets: &'a [Ruleset]) -> Result<Vec<Step<'a>>, ReadError> {
    let mut steps = Vec::new();
    for family in [Family::V4, Family::V6] {
        match rulesets.iter().find(|ruleset| ruleset.family == family) {
            Some(ruleset) => refill(socket, ruleset, &mut steps)?,
            None => remove(socket, family, &mut steps)?,
        }
    }
    Ok(steps)
}

/// Fills our chains anew, and leaves one right jump to each.
fn refill<'a>(socket: &Socket, ruleset: &'a Ruleset, steps: &mut Vec<Step<'a>>) -> Result<(), ReadError> {
    let family = ruleset.family;
    steps.push(Step::AddTable(family));
    for name in ChainName::ALL {
        steps.push(Step::AddChain(family, name));
        if name.is_ours() {
            steps.push(Step::FlushChain(family, name));
        }
    }
    for chain in &ruleset.chains {
        let mut wanted: Vec<&Rule> = chain.rules.iter().collect();
        if !chain.name.is_ours() {
            for held in rules(socket, family, chain.name)?
                .iter()
                .filter(|held| is_our_jump(held))
            {
                match wanted.iter().position(|rule| held.found.rule.as_ref() == Some(rule)) {
                    Some(kept) => drop(wanted.remove(kept)),
                    None => steps.push(Step::DeleteRule(family, chain.name, held.handle)),
                }
            }
        }
        steps.extend(wanted.into_iter().map(|rule| Step::AddRule(family, chain.name, rule)));
    }
    Ok(())
}

/// Takes our jumps and chains out of a family that shall have none, and with them the base chains and the table if
/// nothing of strangers is in there.
fn remove(socket: &Socket, family: Family, steps: &mut Vec<Step<'_>>) -> Result<(), ReadError> {
    let table = Table::read(socket, family)?;
    let ours: Vec<_> = table.chains().filter(|chain| chain.is_ours()).collect();
    if ours.is_empty() {
        return Ok(());
    }
    let mut emptied = Vec::new();
    for base in table.chains().filter(|chain| !chain.is_ours()) {
        let (jumps, strangers): (Vec<_>, Vec<_>) = rules(socket, family, base)?.into_iter().partition(is_our_jump);
        steps.extend(jumps.iter().map(|held| Step::DeleteRule(family, base, held.handle)));
        if strangers.is_empty() && table.accepts(base) {
            emptied.push(base);
        }
    }
    steps.extend(ours.iter().map(|&chain| Step::FlushChain(family, chain)));
    steps.extend(
        ours.iter()
            .chain(&emptied)
            .map(|&chain| Step::DeleteChain(family, chain)),
    );
    if table.objects == ours.len() + emptied.len() {
        steps.push(Step::DeleteTable(family));
    }
    Ok(())
}

fn is_our_jump(held: &decode::HeldRule) -> bool {
    matches!(held.target, Some(Target::Jump(chain)) if chain.is_ours())
}

/// The rules that a chain of the family's nat table holds, in order; none if there is no such chain.
fn rules(socket: &Socket, family: Family, chain: ChainName) -> Result<Vec<decode::HeldRule>, ReadError> {
    let mut rules = Vec::new();
    let request = dump(libc::NFT_MSG_GETRULE, family)
        .string(NFTA_RULE_TABLE, "nat")
        .string(NFTA_RULE_CHAIN, chain.as_str());
    socket.ask(request, |message| {
        rules.push(decode::rule(message.attributes()?, family)?);
        Ok(())
    })?;
    Ok(rules)
}

/// The family's nat table.
struct Table {
    /// Those of its chains that we have rules in, and whether their policy is to accept.
    chains: Vec<(ChainName, bool)>,
    /// How many chains, sets and other objects it has, strangers' among them.
    objects: usize,
}

impl Table {
    fn read(socket: &Socket, family: Family) -> Result<Self, ReadError> {
        let mut table = Self {
            chains: Vec::new(),
            objects: 0,
        };
        socket.ask(dump(libc::NFT_MSG_GETTABLE, family), |message| {
            let attributes = message.attributes()?;
            if string(attributes.get(NFTA_TABLE_NAME)?)? == "nat" {
                table.objects = be32(attributes.get(NFTA_TABLE_USE)?)? as usize;
            }
            Ok(())
        })?;
        socket.ask(dump(libc::NFT_MSG_GETCHAIN, family), |message| {
            let attributes = message.attributes()?;
            let name = string(attributes.get(NFTA_CHAIN_NAME)?)?;
            if string(attributes.get(NFTA_CHAIN_TABLE)?)? == "nat"
                && let Some(name) = ChainName::from_name(name)
            {
                let policy = attributes.find(NFTA_CHAIN_POLICY)?.map(be32).transpose()?;
                table.chains.push((name, policy == Some(libc::NF_ACCEPT as u32)));
            }
            Ok(())
        })?;
        Ok(table)
    }

    fn chains(&self) -> impl Iterator<Item = ChainName> {
        self.chains.iter().map(|&(name, _)| name)
    }

    fn accepts(&self, chain: ChainName) -> bool {
        self.chains.contains(&(chain, true))
    }
}

/// Every table of a family.
pub(crate) fn tables(family: Family) -> Result<Vec<Contents>, Error> {
    let socket = Socket::open().map_err(no_socket)?;
    let mut tables: Vec<Contents> = Vec::new();
    let mut add = |message, name: u16, add_to: fn(&mut Contents, Attributes<'_>) -> Result<(), Malformed>| {
        socket.ask(dump(message, family), |message| {
            let attributes = message.attributes()?;
            let name = string(attributes.get(name)?)?;
            match tables.iter_mut().find(|contents| contents.table == name) {
                Some(contents) => add_to(contents, attributes),
                None => {
                    let mut contents = Contents {
                        table: name.to_owned(),
                        rules: 0,
                        chains: Vec::new(),
                    };
                    add_to(&mut contents, attributes)?;
                    tables.push(contents);
                    Ok(())
                }
            }
        })
    };
    let mut add_all = || {
        add(libc::NFT_MSG_GETTABLE, NFTA_TABLE_NAME, |_, _| Ok(()))?;
        add(libc::NFT_MSG_GETCHAIN, NFTA_CHAIN_TABLE, |contents, chain| {
            contents.chains.push(string(chain.get(NFTA_CHAIN_NAME)?)?.to_owned());
            Ok(())
        })?;
        add(libc::NFT_MSG_GETRULE, NFTA_RULE_TABLE, |contents, _| {
            contents.rules += 1;
            Ok(())
        })
    };
    add_all().map_err(unreadable)?;
    Ok(tables)
}

fn dump(message: i32, family: Family) -> Request {
    Request::new(libc::NFNL_SUBSYS_NFTABLES, message, libc::NLM_F_DUMP, family.protocol())
}

/// Reads bytes as one rule of a dump. One that passes for ours must be written as ours are.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_back(attributes: Attributes<'_>, family: Family) {
    if let Ok(held) = decode::rule(attributes, family)
        && let Some(rule) = held.found.rule
    {
        let steps = [Step::AddRule(family, ChainName::Output, &rule)];
        let bytes = encode::encode(&steps, None).end().0;
        if rule.comment.len() < 128 && !rule.comment.contains('\0') {
            assert_eq!(rules_in(&bytes, family), [rule]);
        }
    }
}

/// The rules of a batch, read as if the kernel had dumped them.
#[cfg(any(test, fuzzing))]
pub(crate) fn rules_in(batch: &[u8], family: Family) -> Vec<Rule> {
    let new_rule = (libc::NFNL_SUBSYS_NFTABLES << 8 | libc::NFT_MSG_NEWRULE) as u16;
    crate::netlink::message::Messages(batch)
        .flatten()
        .filter(|message| message.kind == new_rule)
        .filter_map(|message| {
            // The kernel adds the handle.
            let handle = [&12u16.to_ne_bytes()[..], &NFTA_RULE_HANDLE.to_ne_bytes(), &[0; 8]].concat();
            let attributes = [&handle, message.payload.get(4..)?].concat();
            decode::rule(Attributes(&attributes), family).ok()?.found.rule
        })
        .collect()
}
