//! A transaction, step by step, and its encoding as a netlink batch.

use std::fmt;

use ipnet::IpNet;
use nftnl::{Chain, ChainType, Hook, MsgType, Table};
use nix::errno::Errno;

use super::refusal;
use super::xt::{self, Extension};
use crate::backend::command;
use crate::netlink::expr::{Expressions, Verdict};
use crate::netlink::message::Request;
use crate::netlink::rule::RuleMessage;
use crate::netlink::uapi::*;
use crate::netlink::{Batch, Generation, ReadError, Socket};
use crate::rules::config::{Family, OwnerId};
use crate::rules::mode::Mode;
use crate::rules::ruleset::{ChainName, Match, Rule, Target};

/// The table, in both families: xtables' nat table.
const NAT: &str = "nat";
/// Where in a hook's order destination NAT happens: `NF_IP_PRI_NAT_DST` in linux/netfilter_ipv4.h.
pub(crate) const NAT_PRIORITY: i32 = -100;

/// One change; one netlink message. The kernel makes them in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Make the nat table, unless it is there.
    AddTable(Family),
    /// Make a chain, unless it is there. A base chain that is there keeps its policy.
    AddChain(Family, ChainName),
    /// Delete all of a chain's rules.
    FlushChain(Family, ChainName),
    /// Delete a chain that nothing jumps to any more.
    DeleteChain(Family, ChainName),
    /// Delete the table and whatever is in it.
    DeleteTable(Family),
    /// Append a rule to a chain.
    AddRule(Family, ChainName, &'a Rule),
    /// Delete the rule with this handle.
    DeleteRule(Family, ChainName, u64),
}

impl refusal::Step for Step<'_> {
    fn is_table(&self) -> bool {
        matches!(self, Step::AddTable(_))
    }

    fn is_base_chain(&self) -> Option<ChainName> {
        match self {
            Step::AddChain(_, chain) if !chain.is_ours() => Some(*chain),
            _ => None,
        }
    }

    fn owner(&self) -> Option<(OwnerId, &'static str)> {
        let Step::AddRule(_, _, rule) = self else {
            return None;
        };
        rule.matches.iter().find_map(|condition| match condition {
            Match::UidOwner(id) => Some((*id, "/proc/self/uid_map")),
            Match::GidOwner(id) => Some((*id, "/proc/self/gid_map")),
            _ => None,
        })
    }

    fn missing(&self, socket: &Socket) -> Option<(String, &'static str, &'static str)> {
        let Step::AddRule(family, _, rule) = self else {
            return None;
        };
        extensions(rule).find_map(|extension| missing(socket, *family, extension))
    }

    fn jumps_to(&self) -> Option<ChainName> {
        match self {
            Step::AddRule(_, _, rule) => match rule.target {
                Target::Jump(chain) => Some(chain),
                _ => None,
            },
            _ => None,
        }
    }

    fn deletes_chain(&self) -> bool {
        matches!(self, Step::DeleteChain(..))
    }

    fn table(&self) -> String {
        format!("{} {NAT}", table_family(self.in_family()))
    }

    fn family(&self) -> Option<Family> {
        Some(self.in_family())
    }
}

impl Step<'_> {
    /// The family that it is about.
    fn in_family(&self) -> Family {
        match *self {
            Step::AddTable(family)
            | Step::DeleteTable(family)
            | Step::AddChain(family, _)
            | Step::FlushChain(family, _)
            | Step::DeleteChain(family, _)
            | Step::AddRule(family, _, _)
            | Step::DeleteRule(family, _, _) => family,
        }
    }
}

/// What the kernel lacks for this extension, if it does: asks nft_compat, as iptables-nft does for each revision.
/// (nfnl_compat_get_rcu in net/netfilter/nft_compat.c; without nft_compat, nfnetlink itself says EINVAL.)
fn missing(socket: &Socket, family: Family, extension: Extension) -> Option<(String, &'static str, &'static str)> {
    let request = Request::new(
        NFNL_SUBSYS_NFT_COMPAT,
        NFNL_MSG_COMPAT_GET,
        libc::NLM_F_ACK,
        family.protocol(),
    )
    .string(NFTA_COMPAT_NAME, extension.name())
    .be32(NFTA_COMPAT_REV, extension.revision())
    .be32(NFTA_COMPAT_TYPE, u32::from(extension.is_target()));
    match socket.ask(request, |_| Ok(())) {
        Err(ReadError::Socket(Errno::EINVAL)) => Some((
            "xt extensions in nf_tables".to_owned(),
            "nft_compat",
            "CONFIG_NFT_COMPAT",
        )),
        Err(ReadError::Socket(_)) => {
            let (module, option) = extension.module();
            let kind = if extension.is_target() { "target" } else { "match" };
            Some((format!("the xt {} {kind}", extension.name()), module, option))
        }
        _ => None,
    }
}

/// The iptables command that the step stands for, where there is one.
impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = command(Mode::Nft, self.in_family());
        match self {
            Step::AddTable(family) => write!(f, "table {} nat", table_family(*family)),
            Step::DeleteTable(family) => write!(f, "nft delete table {} nat", table_family(*family)),
            Step::AddChain(_, chain) => write!(f, "{command} -t nat -N {chain}"),
            Step::FlushChain(_, chain) => write!(f, "{command} -t nat -F {chain}"),
            Step::DeleteChain(_, chain) => write!(f, "{command} -t nat -X {chain}"),
            Step::AddRule(_, chain, rule) => write!(f, "{command} -t nat -A {chain} {rule:#}"),
            Step::DeleteRule(_, chain, handle) => {
                write!(
                    f,
                    "nft delete rule {} nat {chain} handle {handle}",
                    table_family(self.in_family())
                )
            }
        }
    }
}

/// The family's name in nft's language.
fn table_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// The steps as a batch; message n is step n, counted from 1. The last one asks for an acknowledgement.
pub(super) fn encode(steps: &[Step<'_>], generation: Option<Generation>) -> Batch {
    let mut batch = Batch::begin(generation);
    let tables = [Family::V4, Family::V6].map(|family| Table::new(c"nat", family.protocol()));
    let [v4, v6] = &tables;
    for (index, step) in steps.iter().enumerate() {
        let last = index + 1 == steps.len();
        let table = match step.in_family() {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        match *step {
            Step::AddTable(_) => batch.add(table, MsgType::Add, last),
            Step::DeleteTable(_) => batch.add(table, MsgType::Del, last),
            Step::AddChain(_, chain) => batch.add(&chain_message(table, chain), MsgType::Add, last),
            Step::DeleteChain(_, chain) => batch.add(&Chain::new(chain.as_c_str(), table), MsgType::Del, last),
            Step::AddRule(family, chain, rule) => batch.add(&rule_message(family, chain, rule), MsgType::Add, last),
            Step::FlushChain(family, chain) => batch.add(&empty_rule(family, chain), MsgType::Del, last),
            Step::DeleteRule(family, chain, handle) => {
                let mut message = empty_rule(family, chain);
                message.handle(handle);
                batch.add(&message, MsgType::Del, last);
            }
        }
    }
    batch
}

fn chain_message(table: &Table, chain: ChainName) -> Chain<'_> {
    let mut message = Chain::new(chain.as_c_str(), table);
    let hook = match chain {
        ChainName::Prerouting => Hook::PreRouting,
        ChainName::Output => Hook::Out,
        ChainName::ProxyInitRedirect | ChainName::ProxyInitOutput => return message,
    };
    message.set_hook(hook, NAT_PRIORITY);
    message.set_type(ChainType::Nat);
    // No policy: a new chain's is accept, and one that is there keeps its own.
    message
}

fn empty_rule(family: Family, chain: ChainName) -> RuleMessage {
    RuleMessage::new(family.protocol(), NAT, chain.as_str())
}

fn rule_message(family: Family, chain: ChainName, rule: &Rule) -> RuleMessage {
    let mut message = empty_rule(family, chain);
    message.expressions(|to| {
        rule.matches.iter().for_each(|condition| add_match(to, condition));
        to.counter();
        match rule.target {
            Target::Return => to.verdict(Verdict::Return),
            Target::Jump(chain) => to.verdict(Verdict::Jump(chain.as_str())),
            Target::Redirect(port) => {
                let target = Extension::Redirect;
                to.xt_target(target.name(), target.revision(), &xt::redirect(family, port));
            }
        }
    });
    if rule.matches.contains(&Match::Tcp) {
        message.compat_protocol(libc::IPPROTO_TCP as u32);
    }
    message.comment(&rule.comment);
    message
}

fn add_match(to: &mut Expressions<'_>, condition: &Match) {
    let mut xt_match = |extension: Extension, info: &[u8]| to.xt_match(extension.name(), extension.revision(), info);
    match condition {
        Match::Tcp => {
            to.meta(libc::NFT_META_L4PROTO);
            to.equals(&[libc::IPPROTO_TCP as u8]);
        }
        // Not payload and cmp, as iptables-nft since 1.8.9 writes it: 1.8.7 reads that back without the port.
        Match::DestinationPort(port) => xt_match(Extension::Tcp, &xt::tcp(*port)),
        Match::DestinationPorts(ports) => xt_match(Extension::Multiport, &xt::multiport(ports)),
        Match::Source(net) => add_address(to, *net, Side::Source),
        Match::Destination(net) => add_address(to, *net, Side::Destination),
        Match::OutLoopback => {
            to.meta(libc::NFT_META_OIFNAME);
            to.equals(LOOPBACK);
        }
        Match::UidOwner(id) => xt_match(Extension::Owner, &xt::uid_owner(*id)),
        Match::GidOwner(id) => xt_match(Extension::Owner, &xt::gid_owner(*id)),
    }
}

/// The loopback interface's name as `meta oifname` holds it: with its NUL, the whole name and not a prefix.
pub(super) const LOOPBACK: &[u8] = b"lo\0";

/// Which address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Where an address is in its family's header, in bytes: `struct iphdr`, `struct ipv6hdr`.
pub(super) fn address_offset(family: Family, side: Side) -> u32 {
    match (family, side) {
        (Family::V4, Side::Source) => 12,
        (Family::V4, Side::Destination) => 16,
        (Family::V6, Side::Source) => 8,
        (Family::V6, Side::Destination) => 24,
    }
}

/// The whole address, masked: the one form that every version of iptables-nft reads. (Since 1.8.7 it shortens the
/// load itself where the prefix ends on a byte.)
fn add_address(to: &mut Expressions<'_>, net: IpNet, side: Side) {
    let (family, address, mask) = match net {
        IpNet::V4(net) => (
            Family::V4,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
        IpNet::V6(net) => (
            Family::V6,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
    };
    to.network_header(address_offset(family, side), address.len() as u32);
    if net.prefix_len() < net.max_prefix_len() {
        to.mask(&mask);
    }
    to.equals(&address);
}

/// The xt extensions in a rule.
fn extensions(rule: &Rule) -> impl Iterator<Item = Extension> {
    let target = match rule.target {
        Target::Redirect(_) => Some(Extension::Redirect),
        Target::Return | Target::Jump(_) => None,
    };
    rule.matches
        .iter()
        .filter_map(|condition| match condition {
            Match::DestinationPort(_) => Some(Extension::Tcp),
            Match::DestinationPorts(_) => Some(Extension::Multiport),
            Match::UidOwner(_) | Match::GidOwner(_) => Some(Extension::Owner),
            Match::Tcp | Match::Source(_) | Match::Destination(_) | Match::OutLoopback => None,
        })
        .chain(target)
}
