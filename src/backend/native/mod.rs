//! native mode: nftables' own way, one inet table with sets, for kernels without xtables.
//!
//! It needs nf_tables with NAT for the inet family (`CONFIG_NF_TABLES_INET`, nft_chain_nat, nft_redir; Linux 5.2), and no
//! xt module and no nft_compat. Adding, deleting and adding the table again in one batch makes it right whatever was
//! there, without reading it.

mod decode;
mod table;

use nftnl::{Chain, ChainType, Hook, MsgType, ProtoFamily};

use self::table::{Condition, Kind, NAME, NativeRule, Set, Table};
use super::nft::refusal::{self, Step};
use super::{Backend, Held};
use crate::error::Error;
use crate::netlink::expr::{Expressions, Verdict};
use crate::netlink::message::{Request, Writer, string};
use crate::netlink::rule::RuleMessage;
use crate::netlink::set::SetMessage;
use crate::netlink::uapi::*;
use crate::netlink::{Batch, CommitError, Generation, ReadError, Socket};
use crate::operate::verify::{Finding, compare_lists};
use crate::rules::config::Family;
use crate::rules::mode::Mode;
use crate::rules::ruleset::{ChainName, Ruleset, Target};

/// The most elements in one message: their list is one attribute, whose length is 16 bits.
const ELEMENTS: usize = 1000;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn install_if_fresh(&self, rulesets: &[Ruleset]) -> Result<bool, Error> {
        let steps = steps(&Table::new(rulesets), false);
        let batch = encode(&steps, Some(Generation::FRESH)).end();
        let socket = open()?;
        match socket.commit(&batch) {
            Ok(()) => Ok(true),
            Err(CommitError::OtherGeneration) => Ok(false),
            Err(error) => Err(refusal::explain(Mode::Native, &socket, &steps, &batch, error)),
        }
    }

    fn install(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        commit(&steps(&Table::new(rulesets), true))
    }

    fn remove(&self) -> Result<bool, Error> {
        if !self.held()?.ours {
            return Ok(false);
        }
        // Added first, for somebody else may have removed it in between.
        commit(&[NativeStep::AddTable, NativeStep::DeleteTable]).map(|()| true)
    }

    fn held(&self) -> Result<Held, Error> {
        let socket = open()?;
        let mut ours = false;
        socket
            .ask(dump(libc::NFT_MSG_GETTABLE), |message| {
                ours |= string(message.attributes()?.get(NFTA_TABLE_NAME)?)? == NAME;
                Ok(())
            })
            .map_err(unreadable)?;
        Ok(Held { ours, rules: 0 })
    }

    fn differences(&self, rulesets: &[Ruleset]) -> Result<Vec<Finding>, Error> {
        let socket = open()?;
        if !self.held()?.ours {
            return Ok(vec![Finding::no_table(&format!("inet {NAME}"))]);
        }
        let wanted = Table::new(rulesets);
        let mut findings = Vec::new();
        for (name, rules) in &wanted.chains {
            let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
            let found = chain(&socket, *name).map_err(unreadable)?;
            findings.extend(compare_lists("inet", name.as_str(), &rules, &found));
        }
        let held = sets(&socket).map_err(unreadable)?;
        for name in held
            .iter()
            .filter(|name| wanted.sets.iter().all(|set| set.name != **name))
        {
            findings.extend(compare_lists(
                "inet",
                &format!("set {name}"),
                &[],
                &["the set".to_owned()],
            ));
        }
        for set in &wanted.sets {
            let text = |intervals: &[(u128, u128)]| -> Vec<String> {
                intervals.iter().map(|&interval| set.kind.interval(interval)).collect()
            };
            let found = match held.contains(&set.name) {
                true => intervals(&socket, set).map_err(unreadable)?,
                false => Vec::new(),
            };
            let place = format!("set {}", set.name);
            findings.extend(compare_lists("inet", &place, &text(&set.intervals), &text(&found)));
        }
        Ok(findings)
    }
}

impl Native {
    /// Whether the kernel would take the rulesets: it checks them as if to install, and nothing is committed.
    ///
    /// # Errors
    /// What the kernel lacks or refuses.
    pub fn check(&self, rulesets: &[Ruleset]) -> Result<(), Error> {
        let steps = steps(&Table::new(rulesets), true);
        let batch = encode(&steps, None).unfinished();
        let socket = open()?;
        socket
            .commit(&batch)
            .map_err(|error| refusal::explain(Mode::Native, &socket, &steps, &batch, error))
    }
}

/// An nft script that makes the table that installing makes.
pub(crate) fn script(rulesets: &[Ruleset]) -> String {
    Table::new(rulesets).to_string()
}

/// The netlink batch that installs the rulesets in a fresh namespace, ready to send.
pub fn batch(rulesets: &[Ruleset]) -> Vec<u8> {
    encode(&steps(&Table::new(rulesets), false), Some(Generation::FRESH))
        .end()
        .0
}

fn open() -> Result<Socket, Error> {
    Socket::open().map_err(|errno| refusal::no_socket(Mode::Native, errno))
}

fn unreadable(error: ReadError) -> Error {
    refusal::unreadable(Mode::Native, error)
}

fn commit(steps: &[NativeStep]) -> Result<(), Error> {
    let batch = encode(steps, None).end();
    let socket = open()?;
    socket
        .commit(&batch)
        .map_err(|error| refusal::explain(Mode::Native, &socket, steps, &batch, error))
}

/// One change; one netlink message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NativeStep {
    AddTable,
    DeleteTable,
    /// The set and its number in the batch.
    AddSet(Set, u32),
    /// Some of a set's elements: numbers, and whether each is the end of an interval.
    AddElements(Set, Vec<(u128, bool)>),
    AddChain(ChainName),
    AddRule(ChainName, NativeRule),
}

impl Step for NativeStep {
    fn is_base_chain(&self) -> Option<ChainName> {
        match self {
            NativeStep::AddChain(name) if !name.is_ours() => Some(*name),
            _ => None,
        }
    }

    fn is_table(&self) -> bool {
        *self == NativeStep::AddTable
    }

    fn owner(&self) -> Option<(crate::rules::config::OwnerId, &'static str)> {
        None
    }

    fn missing(&self, _: &Socket) -> Option<(String, &'static str, &'static str)> {
        match self {
            NativeStep::AddRule(_, rule) if matches!(rule.target, Target::Redirect(_)) => {
                Some(("redirect in inet tables".to_owned(), "nft_redir", "CONFIG_NFT_REDIR"))
            }
            NativeStep::AddRule(..) => Some(("a counter or set lookup".to_owned(), "nf_tables", "CONFIG_NF_TABLES")),
            _ => None,
        }
    }

    fn jumps_to(&self) -> Option<ChainName> {
        None
    }

    fn deletes_chain(&self) -> bool {
        false
    }

    fn table(&self) -> String {
        format!("inet {NAME}")
    }

    fn family(&self) -> Option<Family> {
        None
    }
}

/// The nft command that the step stands for.
impl std::fmt::Display for NativeStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NativeStep::AddTable => write!(f, "nft add table inet {NAME}"),
            NativeStep::DeleteTable => write!(f, "nft delete table inet {NAME}"),
            NativeStep::AddSet(set, _) => write!(f, "nft add set inet {NAME} {}", set.name),
            NativeStep::AddElements(set, _) => write!(f, "nft add element inet {NAME} {}", set.name),
            NativeStep::AddChain(name) => write!(f, "nft add chain inet {NAME} {name}"),
            NativeStep::AddRule(chain, rule) => write!(f, "nft add rule inet {NAME} {chain} {rule}"),
        }
    }
}

fn steps(table: &Table, replace: bool) -> Vec<NativeStep> {
    let mut steps = vec![NativeStep::AddTable];
    if replace {
        steps.extend([NativeStep::DeleteTable, NativeStep::AddTable]);
    }
    for (set, id) in table.sets.iter().zip(1..) {
        steps.push(NativeStep::AddSet(set.clone(), id));
        let elements = elements(set);
        let named = Set {
            intervals: Vec::new(),
            ..set.clone()
        };
        steps.extend(
            elements
                .chunks(ELEMENTS)
                .map(|chunk| NativeStep::AddElements(named.clone(), chunk.to_vec())),
        );
    }
    steps.extend(table.chains.iter().map(|(name, _)| NativeStep::AddChain(*name)));
    for (name, rules) in &table.chains {
        steps.extend(rules.iter().map(|rule| NativeStep::AddRule(*name, rule.clone())));
    }
    steps
}

/// A set's elements as the kernel has them: where each interval begins and where the next gap does, and, as nft writes
/// it, the end of a gap at 0.
fn elements(set: &Set) -> Vec<(u128, bool)> {
    let mut elements = Vec::with_capacity(2 * set.intervals.len() + 1);
    if set.intervals.first().is_some_and(|&(first, _)| first > 0) {
        elements.push((0, true));
    }
    for &(first, last) in &set.intervals {
        elements.push((first, false));
        if last < set.kind.max() {
            elements.push((last + 1, true));
        }
    }
    elements
}

fn encode(steps: &[NativeStep], generation: Option<Generation>) -> Batch {
    let mut batch = Batch::begin(generation);
    let table = nftnl::Table::new(c"proxy-init", ProtoFamily::Inet);
    for (index, step) in steps.iter().enumerate() {
        let last = index + 1 == steps.len();
        match step {
            NativeStep::AddTable => batch.add(&table, MsgType::Add, last),
            NativeStep::DeleteTable => batch.add(&table, MsgType::Del, last),
            NativeStep::AddSet(set, id) => batch.add(&set_message(set, *id), MsgType::Add, last),
            NativeStep::AddElements(set, elements) => batch.add(&elements_message(set, elements), MsgType::Add, last),
            NativeStep::AddChain(name) => {
                let mut chain = Chain::new(name.as_c_str(), &table);
                let hook = match name {
                    ChainName::Prerouting => Some(Hook::PreRouting),
                    ChainName::Output => Some(Hook::Out),
                    ChainName::ProxyInitRedirect | ChainName::ProxyInitOutput => None,
                };
                if let Some(hook) = hook {
                    chain.set_hook(hook, super::nft::NAT_PRIORITY);
                    chain.set_type(ChainType::Nat);
                }
                batch.add(&chain, MsgType::Add, last);
            }
            NativeStep::AddRule(name, rule) => batch.add(&rule_message(*name, rule), MsgType::Add, last),
        }
    }
    batch
}

fn set_message(set: &Set, id: u32) -> SetMessage {
    SetMessage::set(|to| {
        to.string(NFTA_SET_TABLE, NAME);
        to.string(NFTA_SET_NAME, &set.name);
        to.be32(NFTA_SET_FLAGS, libc::NFT_SET_INTERVAL as u32);
        to.be32(NFTA_SET_KEY_TYPE, set.kind.nft_type().1);
        to.be32(NFTA_SET_KEY_LEN, set.kind.size() as u32);
        to.be32(NFTA_SET_ID, id);
        // NFTNL_UDATA_SET_KEYBYTEORDER: BYTEORDER_BIG_ENDIAN, for nft to list it.
        to.bytes(NFTA_SET_USERDATA, &[&[0, 4][..], &2u32.to_ne_bytes()].concat());
    })
}

fn elements_message(set: &Set, elements: &[(u128, bool)]) -> SetMessage {
    let add = |list: &mut Writer, &(number, end): &(u128, bool)| {
        list.nest(NFTA_LIST_ELEM, |element| {
            if end {
                element.be32(NFTA_SET_ELEM_FLAGS, INTERVAL_END);
            }
            element.nest(NFTA_SET_ELEM_KEY, |key| {
                let bytes = number.to_be_bytes();
                key.bytes(NFTA_DATA_VALUE, bytes.get(16 - set.kind.size()..).unwrap_or_default());
            });
        });
    };
    SetMessage::elements(|to| {
        to.string(NFTA_SET_ELEM_LIST_TABLE, NAME);
        to.string(NFTA_SET_ELEM_LIST_SET, &set.name);
        to.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
            elements.iter().for_each(|element| add(list, element))
        });
    })
}

fn rule_message(chain: ChainName, rule: &NativeRule) -> RuleMessage {
    let mut message = RuleMessage::new(ProtoFamily::Inet, NAME, chain.as_str());
    message.expressions(|to| {
        rule.conditions
            .iter()
            .for_each(|condition| add_condition(to, condition));
        to.counter();
        match rule.target {
            Target::Return => to.verdict(Verdict::Return),
            Target::Jump(chain) => to.verdict(Verdict::Jump(chain.as_str())),
            Target::Redirect(port) => to.redirect(port.get()),
        }
    });
    message.comment(&rule.comment);
    message
}

/// As nft writes it, with what each condition depends on before it.
fn add_condition(to: &mut Expressions<'_>, condition: &Condition) {
    let family = |to: &mut Expressions<'_>, family: Family| {
        to.meta(libc::NFT_META_NFPROTO);
        to.equals(&[family.protocol() as u8]);
    };
    let tcp = |to: &mut Expressions<'_>| {
        to.meta(libc::NFT_META_L4PROTO);
        to.equals(&[libc::IPPROTO_TCP as u8]);
    };
    let mut address = |of: Family, offsets: [u32; 2], set: &str| {
        family(to, of);
        let [v4, v6] = offsets;
        match of {
            Family::V4 => to.network_header(v4, Kind::Addresses(of).size() as u32),
            Family::V6 => to.network_header(v6, Kind::Addresses(of).size() as u32),
        }
        to.lookup(set);
    };
    match condition {
        Condition::Source(of, set) => address(*of, [12, 8], set),
        Condition::Destination(of, set) => address(*of, [16, 24], set),
        Condition::Family(of) => family(to, *of),
        Condition::Tcp => tcp(to),
        Condition::Port(set) => {
            tcp(to);
            to.transport_header(2, 2);
            to.lookup(set);
        }
        Condition::OutLoopback => {
            to.meta(libc::NFT_META_OIFNAME);
            to.equals(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        }
        Condition::Uid(id) => {
            to.meta(libc::NFT_META_SKUID);
            to.equals(&id.get().to_ne_bytes());
        }
        Condition::Gid(id) => {
            to.meta(libc::NFT_META_SKGID);
            to.equals(&id.get().to_ne_bytes());
        }
    }
}

fn dump(message: i32) -> Request {
    Request::new(libc::NFNL_SUBSYS_NFTABLES, message, libc::NLM_F_DUMP, ProtoFamily::Inet)
}

/// A chain's rules as text.
fn chain(socket: &Socket, name: ChainName) -> Result<Vec<String>, ReadError> {
    let mut rules = Vec::new();
    let request = dump(libc::NFT_MSG_GETRULE)
        .string(NFTA_RULE_TABLE, NAME)
        .string(NFTA_RULE_CHAIN, name.as_str());
    socket.ask(request, |message| {
        rules.push(decode::rule(message.attributes()?)?);
        Ok(())
    })?;
    Ok(rules)
}

/// The names of the table's sets.
fn sets(socket: &Socket) -> Result<Vec<String>, ReadError> {
    let mut sets = Vec::new();
    let request = dump(libc::NFT_MSG_GETSET).string(NFTA_SET_TABLE, NAME);
    socket.ask(request, |message| {
        sets.push(string(message.attributes()?.get(NFTA_SET_NAME)?)?.to_owned());
        Ok(())
    })?;
    Ok(sets)
}

/// A set's intervals as the kernel has them.
fn intervals(socket: &Socket, set: &Set) -> Result<Vec<(u128, u128)>, ReadError> {
    let mut elements = Vec::new();
    let request = dump(libc::NFT_MSG_GETSETELEM)
        .string(NFTA_SET_ELEM_LIST_TABLE, NAME)
        .string(NFTA_SET_ELEM_LIST_SET, &set.name);
    socket.ask(request, |message| {
        elements.extend(decode::elements(message.attributes()?)?);
        Ok(())
    })?;
    elements.sort_unstable_by_key(|&(number, end)| (number, !end));
    let mut intervals = Vec::new();
    let mut begun = None;
    for (number, end) in elements {
        if let Some(first) = begun.take()
            && let Some(last) = number.checked_sub(1)
        {
            intervals.push((first, last));
        }
        if !end {
            begun = Some(number);
        }
    }
    intervals.extend(begun.map(|first| (first, set.kind.max())));
    Ok(intervals)
}
