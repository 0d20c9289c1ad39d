//! The kernel's rules back into [`Rule`]s.
//!
//! What is understood is what iptables-nft of any version writes for our rules, and what we write. Everything else is
//! somebody else's rule, never one of ours by mistake.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::encode::{LOOPBACK, Side, address_offset};
use super::xt;
use crate::backend::FoundRule;
use crate::netlink::message::{Attributes, Malformed, be32, be64, string};
use crate::netlink::uapi::*;
use crate::rules::config::{Family, Port};
use crate::rules::ruleset::{ChainName, Match, Rule, Target};

/// A rule that the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldRule {
    /// Its number in its table.
    pub(super) handle: u64,
    /// Where it sends packets, if that is a target that we know, whatever it matches.
    pub(super) target: Option<Target>,
    /// What it is, as far as it is understood.
    pub(super) found: FoundRule,
}

/// Reads one rule of a dump.
pub(super) fn rule(attributes: Attributes<'_>, family: Family) -> Result<HeldRule, Malformed> {
    let handle = be64(attributes.get(NFTA_RULE_HANDLE)?)?;
    let mut reader = Reader::new(family);
    if let Some(expressions) = attributes.find(NFTA_RULE_EXPRESSIONS)? {
        for element in Attributes(expressions) {
            let (_, element) = element?;
            let element = Attributes(element);
            let name = string(element.get(NFTA_EXPR_NAME)?)?;
            let data = Attributes(element.find(NFTA_EXPR_DATA)?.unwrap_or_default());
            reader.expression(name, data);
        }
    }
    if let Some(data) = attributes.find(NFTA_RULE_USERDATA)?
        && let Some(comment) = user_comment(data)
    {
        reader.comment = comment;
    }
    Ok(reader.finish(handle))
}

/// What the last expression left in a register.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Loaded {
    register: u32,
    field: Field,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Protocol,
    OutInterface,
    DestinationPort,
    Address { side: Side, mask: Vec<u8> },
}

/// xt targets behind which evaluation goes on.
const PASSING_TARGETS: [&str; 8] = ["LOG", "NFLOG", "ULOG", "MARK", "CONNMARK", "TRACE", "CT", "CHECKSUM"];

struct Reader {
    family: Family,
    loaded: Option<Loaded>,
    matches: Vec<Match>,
    target: Option<Target>,
    comment: String,
    /// What no rule of ours has: a match in iptables' syntax, or an expression's name.
    foreign: Vec<String>,
    /// It compares the protocol with another one than TCP.
    other_protocol: bool,
    /// Evaluation of the base chain ends with it, in a way that isn't a target of ours.
    verdict: Option<&'static str>,
}

impl Reader {
    fn new(family: Family) -> Self {
        Self {
            family,
            loaded: None,
            matches: Vec::new(),
            target: None,
            comment: String::new(),
            foreign: Vec::new(),
            other_protocol: false,
            verdict: None,
        }
    }

    fn finish(mut self, handle: u64) -> HeldRule {
        if self.loaded.is_some() {
            self.foreign.push("[loaded for nothing]".to_owned());
        }
        let whole = self.foreign.is_empty();
        let rule = self.target.map(|target| Rule {
            matches: self.matches.clone(),
            target,
            comment: Cow::Owned(self.comment.clone()),
        });
        let found = match rule.filter(|_| whole) {
            Some(rule) => FoundRule::from(rule),
            None => FoundRule {
                text: self.text(),
                rule: None,
                ends: self.verdict.is_some() || matches!(self.target, Some(Target::Return | Target::Redirect(_))),
                takes_tcp: !self.other_protocol,
            },
        };
        HeldRule {
            handle,
            target: self.target,
            found,
        }
    }

    /// A rule that isn't ours: what is understood of it in iptables' syntax, the rest by its expressions' names.
    fn text(&self) -> String {
        let matches = self.matches.iter().map(ToString::to_string);
        let foreign = self.foreign.iter().cloned();
        let comment = Some(&self.comment).filter(|comment| !comment.is_empty());
        let comment = comment.map(|comment| format!("-m comment --comment \"{comment}\""));
        let target = self.target.map(|target| format!("-j {target}"));
        let verdict = self.verdict.map(|verdict| format!("-j {verdict}"));
        let parts = matches.chain(foreign).chain(comment).chain(target).chain(verdict);
        parts.collect::<Vec<_>>().join(" ")
    }

    /// Takes in one expression. One that is not as expected makes the rule a foreign one, not the dump unreadable.
    fn expression(&mut self, name: &str, data: Attributes<'_>) {
        // Nothing of ours goes on behind its target.
        let late = self.target.is_some();
        let understood = match name {
            "counter" => Ok(true),
            "meta" => self.meta(data),
            "payload" => self.payload(data),
            "bitwise" => self.bitwise(data),
            "cmp" => self.compare(data),
            "match" => self.xt_match(data),
            "target" => self.xt_target(data),
            "immediate" => self.verdict(data),
            "nat" | "redir" | "masq" | "tproxy" | "reject" | "queue" => {
                self.verdict = Some("[nat]");
                Ok(false)
            }
            _ => Ok(false),
        };
        if late || understood != Ok(true) {
            self.foreign.push(format!("[{name}]"));
        }
    }

    fn load(&mut self, register: u32, field: Field) -> bool {
        let fresh = self.loaded.is_none();
        self.loaded = Some(Loaded { register, field });
        fresh
    }

    fn meta(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        // A meta that writes has no destination register.
        let Some(register) = data.find(NFTA_META_DREG)? else {
            return Ok(false);
        };
        let field = match be32(data.get(NFTA_META_KEY)?)? as i32 {
            libc::NFT_META_L4PROTO => Field::Protocol,
            libc::NFT_META_OIFNAME => Field::OutInterface,
            _ => return Ok(false),
        };
        Ok(self.load(be32(register)?, field))
    }

    fn payload(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let Some(register) = data.find(NFTA_PAYLOAD_DREG)? else {
            return Ok(false);
        };
        let base = be32(data.get(NFTA_PAYLOAD_BASE)?)? as i32;
        let offset = be32(data.get(NFTA_PAYLOAD_OFFSET)?)?;
        let length = be32(data.get(NFTA_PAYLOAD_LEN)?)?;
        let field = match (base, offset, length) {
            (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2) => Field::DestinationPort,
            // `-p tcp` as some versions of iptables-nft write it for IPv4: the protocol in struct iphdr.
            (libc::NFT_PAYLOAD_NETWORK_HEADER, 9, 1) if self.family == Family::V4 => Field::Protocol,
            (libc::NFT_PAYLOAD_NETWORK_HEADER, offset, 1..=16) => {
                let Some(side) = [Side::Source, Side::Destination]
                    .into_iter()
                    .find(|&side| offset == address_offset(self.family, side))
                else {
                    return Ok(false);
                };
                // iptables-nft loads just as many bytes as the prefix covers, where it ends on a byte.
                Field::Address {
                    side,
                    mask: vec![0xff; length as usize],
                }
            }
            _ => return Ok(false),
        };
        Ok(self.load(be32(register)?, field))
    }

    fn bitwise(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let source = be32(data.get(NFTA_BITWISE_SREG)?)?;
        let destination = be32(data.get(NFTA_BITWISE_DREG)?)?;
        let (Some(new_mask), Some(xor)) = (data.find(NFTA_BITWISE_MASK)?, data.find(NFTA_BITWISE_XOR)?) else {
            return Ok(false); // a shift
        };
        let new_mask = Attributes(new_mask).get(NFTA_DATA_VALUE)?;
        let xor = Attributes(xor).get(NFTA_DATA_VALUE)?;
        match &mut self.loaded {
            Some(Loaded {
                register,
                field: Field::Address { mask, .. },
            }) if *register == source && new_mask.len() == mask.len() && xor.iter().all(|&byte| byte == 0) => {
                *register = destination;
                *mask = new_mask.to_vec();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn compare(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let register = be32(data.get(NFTA_CMP_SREG)?)?;
        let equal = be32(data.get(NFTA_CMP_OP)?)? as i32 == libc::NFT_CMP_EQ;
        let value = Attributes(data.get(NFTA_CMP_DATA)?).get(NFTA_DATA_VALUE)?;
        let Some(loaded) = self.loaded.take().filter(|loaded| equal && loaded.register == register) else {
            return Ok(false);
        };
        let condition = match (loaded.field, value) {
            (Field::Protocol, [protocol]) if i32::from(*protocol) == libc::IPPROTO_TCP => Some(Match::Tcp),
            (Field::Protocol, [protocol]) => {
                self.other_protocol = true;
                self.foreign.push(format!("-p {protocol}"));
                return Ok(true);
            }
            (Field::OutInterface, name) if interface_is_loopback(name) => Some(Match::OutLoopback),
            (Field::DestinationPort, &[high, low]) => {
                Port::new(u16::from_be_bytes([high, low])).map(Match::DestinationPort)
            }
            (Field::Address { side, mask }, address) => network(self.family, address, &mask).map(|net| match side {
                Side::Source => Match::Source(net),
                Side::Destination => Match::Destination(net),
            }),
            _ => None,
        };
        let understood = condition.is_some();
        self.matches.extend(condition);
        Ok(understood)
    }

    fn xt_match(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let name = string(data.get(NFTA_XT_NAME)?)?;
        let revision = be32(data.get(NFTA_XT_REV)?)?;
        let info = data.get(NFTA_XT_INFO)?;
        let condition = match (name, revision) {
            ("comment", 0) => {
                self.comment = string(info)?.to_owned();
                return Ok(true);
            }
            ("multiport", 1) => xt::read_multiport(info)?,
            ("owner", 1) => xt::read_owner(info)?,
            ("tcp", 0) => xt::read_tcp(info)?,
            _ => None,
        };
        let understood = condition.is_some();
        self.matches.extend(condition);
        Ok(understood)
    }

    fn xt_target(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let name = string(data.get(NFTA_XT_NAME)?)?;
        let revision = be32(data.get(NFTA_XT_REV)?)?;
        if (name, revision) == ("REDIRECT", 0) {
            let port = xt::read_redirect(self.family, data.get(NFTA_XT_INFO)?)?;
            self.target = port.map(Target::Redirect);
        }
        if self.target.is_none() && !PASSING_TARGETS.contains(&name) {
            self.verdict = Some("[target]");
        }
        Ok(self.target.is_some())
    }

    fn verdict(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        if be32(data.get(NFTA_IMMEDIATE_DREG)?)? as i32 != libc::NFT_REG_VERDICT {
            return Ok(false);
        }
        let data = Attributes(data.get(NFTA_IMMEDIATE_DATA)?);
        let verdict = Attributes(data.get(NFTA_DATA_VERDICT)?);
        let code = be32(verdict.get(NFTA_VERDICT_CODE)?)? as i32;
        self.target = match code {
            libc::NFT_RETURN => Some(Target::Return),
            libc::NFT_JUMP => ChainName::from_name(string(verdict.get(NFTA_VERDICT_CHAIN)?)?).map(Target::Jump),
            _ => None,
        };
        self.verdict = match code {
            libc::NF_ACCEPT => Some("ACCEPT"),
            libc::NF_DROP => Some("DROP"),
            _ => None,
        };
        Ok(self.target.is_some() || self.verdict.is_some())
    }
}

/// Whether a comparison with `meta oifname` asks for `lo` and not for names that begin with it. nft pads the name to
/// the register's 16 bytes.
fn interface_is_loopback(name: &[u8]) -> bool {
    name.strip_prefix(LOOPBACK)
        .is_some_and(|padding| padding.iter().all(|&byte| byte == 0))
}

/// The subnet that an address (as much of it as was loaded) and a mask stand for; none if the mask has holes.
fn network(family: Family, address: &[u8], mask: &[u8]) -> Option<IpNet> {
    if address.len() != mask.len() {
        return None;
    }
    let prefix = mask.iter().map(|byte| byte.leading_ones()).sum::<u32>();
    let set = mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let contiguous = prefix == set
        && mask
            .iter()
            .rev()
            .skip_while(|&&byte| byte == 0)
            .skip(1)
            .all(|&byte| byte == 0xff);
    if !contiguous {
        return None;
    }
    let prefix = u8::try_from(prefix).ok()?;
    match family {
        Family::V4 => Ipv4Net::new(Ipv4Addr::from(padded::<4>(address)?), prefix)
            .ok()
            .map(IpNet::V4),
        Family::V6 => Ipv6Net::new(Ipv6Addr::from(padded::<16>(address)?), prefix)
            .ok()
            .map(IpNet::V6),
    }
}

fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut whole = [0; N];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(whole)
}

/// The comment in a rule's user data: type, length, value, one after another (`struct nftnl_udata`).
pub(crate) fn user_comment(mut data: &[u8]) -> Option<String> {
    /// `NFTNL_UDATA_RULE_COMMENT`
    const COMMENT: u8 = 0;
    while let &[kind, length, ref rest @ ..] = data {
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        if kind == COMMENT {
            return string(value).ok().map(ToOwned::to_owned);
        }
        data = rest;
    }
    None
}
