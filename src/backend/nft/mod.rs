//! nft mode: xtables-compatible nat chains in nf_tables, written as iptables-nft would write them.
//!
//! One netlink batch for both families, which the kernel commits whole or not at all. In a namespace that nobody has
//! programmed yet, nothing is read first: the batch says that it is for the first generation, and is refused anywhere
//! else. Then, and only then, the chains' rules are read, and a batch for just that generation puts them right.

mod decode;
mod encode;
mod refusal;
mod xt;

use std::time::Duration;

use self::encode::Step;
use super::{Backend, Held};
use crate::config::Family;
use crate::error::{Error, Mode};
use crate::netlink::message::{Request, string};
use crate::netlink::uapi::{NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE};
use crate::netlink::{CommitError, Finished, Generation, ReadError, Socket};
use crate::ruleset::{ChainName, Rule, Ruleset, Target};

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

    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        Prepared::new(rulesets).install()
    }

    fn remove(&self) -> Result<(), Error> {
        let socket = Socket::open().map_err(refusal::no_socket)?;
        finished(reconcile(&socket, &[])?)
    }

    fn held(&self) -> Result<Held, Error> {
        let socket = Socket::open().map_err(refusal::no_socket)?;
        let read = |family| -> Result<Held, ReadError> {
            let mut rules = 0;
            let request = dump(libc::NFT_MSG_GETRULE, family).string(NFTA_RULE_TABLE, "nat");
            socket.ask(request, |_| {
                rules += 1;
                Ok(())
            })?;
            let ours = chains(&socket, family)?.into_iter().any(ChainName::is_ours);
            Ok(Held { ours, rules })
        };
        if socket.generation().map_err(refusal::unreadable)? == Generation::FRESH {
            return Ok(Held::default());
        }
        let v4 = read(Family::V4).map_err(refusal::unreadable)?;
        let v6 = read(Family::V6).map_err(refusal::unreadable)?;
        Ok(v4 + v6)
    }
}

impl Nft {
    /// Whether the kernel would take the rulesets: it checks them as if to install, and nothing is committed.
    ///
    /// # Errors
    /// What the kernel lacks or refuses.
    pub fn check(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        let socket = Socket::open().map_err(refusal::no_socket)?;
        let steps = fresh(rulesets);
        let batch = encode::encode(&steps, None).unfinished();
        socket
            .commit(&batch)
            .map_err(|error| refusal::explain(&socket, &steps, &batch, error))
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
        let socket = Socket::open().map_err(refusal::no_socket)?;
        let mut outcome = commit(&socket, &self.steps, &self.batch)?;
        if outcome == Outcome::OtherGeneration {
            outcome = reconcile(&socket, self.rulesets)?;
        }
        finished(outcome)
    }
}

fn finished(outcome: Outcome) -> Result<(), Error> {
    match outcome {
        Outcome::Committed => Ok(()),
        Outcome::OtherGeneration => Err(Error::Contended { tries: TRIES }),
    }
}

/// From what the namespace holds to the rulesets, whoever else is at work.
fn reconcile(socket: &Socket, rulesets: &[Ruleset]) -> Result<Outcome, Error> {
    for attempt in 0..TRIES {
        back_off(attempt);
        let generation = socket.generation().map_err(refusal::unreadable)?;
        let steps = reconciled(socket, rulesets).map_err(refusal::unreadable)?;
        if steps.is_empty() {
            return Ok(Outcome::Committed);
        }
        let batch = encode::encode(&steps, Some(generation)).end();
        if commit(socket, &steps, &batch)? == Outcome::Committed {
            return Ok(Outcome::Committed);
        }
    }
    Ok(Outcome::OtherGeneration)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Committed,
    OtherGeneration,
}

/// Sends the batch of these steps.
fn commit(socket: &Socket, steps: &[Step<'_>], batch: &Finished) -> Result<Outcome, Error> {
    match socket.commit(batch) {
        Ok(()) => Ok(Outcome::Committed),
        Err(CommitError::OtherGeneration) => Ok(Outcome::OtherGeneration),
        Err(error) => Err(refusal::explain(socket, steps, batch, error)),
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
                match wanted.iter().position(|rule| held.rule.as_ref() == Some(rule)) {
                    Some(kept) => drop(wanted.remove(kept)),
                    None => steps.push(Step::DeleteRule(family, chain.name, held.handle)),
                }
            }
        }
        steps.extend(wanted.into_iter().map(|rule| Step::AddRule(family, chain.name, rule)));
    }
    Ok(())
}

/// Takes our jumps and chains out of a family that shall have none.
fn remove(socket: &Socket, family: Family, steps: &mut Vec<Step<'_>>) -> Result<(), ReadError> {
    for base in [ChainName::Prerouting, ChainName::Output] {
        let ours = rules(socket, family, base)?;
        let jumps = ours.iter().filter(|held| is_our_jump(held));
        steps.extend(jumps.map(|held| Step::DeleteRule(family, base, held.handle)));
    }
    let chains = chains(socket, family)?;
    let ours = || chains.iter().copied().filter(|chain| chain.is_ours());
    steps.extend(ours().map(|chain| Step::FlushChain(family, chain)));
    steps.extend(ours().map(|chain| Step::DeleteChain(family, chain)));
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

/// Those of our chains' names, base chains' included, that the family's nat table has.
fn chains(socket: &Socket, family: Family) -> Result<Vec<ChainName>, ReadError> {
    let mut chains = Vec::new();
    socket.ask(dump(libc::NFT_MSG_GETCHAIN, family), |message| {
        let attributes = message.attributes()?;
        if string(attributes.get(NFTA_CHAIN_TABLE)?)? == "nat" {
            chains.extend(ChainName::from_name(string(attributes.get(NFTA_CHAIN_NAME)?)?));
        }
        Ok(())
    })?;
    Ok(chains)
}

fn dump(message: i32, family: Family) -> Request {
    Request::new(libc::NFNL_SUBSYS_NFTABLES, message, libc::NLM_F_DUMP, family.protocol())
}
