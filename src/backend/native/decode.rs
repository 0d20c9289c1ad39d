//! The kernel's table back into text as nft lists it: what isn't understood shows by its expression's name, so that it
//! never passes for a rule of ours.

use crate::backend::nft::comment_of;
use crate::netlink::message::{Attributes, Malformed, be32, string, u32_at};
use crate::netlink::uapi::*;
use crate::rules::config::Family;

/// One rule of a dump, as the table's Display writes it.
pub(super) fn rule(attributes: Attributes<'_>) -> Result<String, Malformed> {
    let mut reader = Reader::default();
    if let Some(expressions) = attributes.find(NFTA_RULE_EXPRESSIONS)? {
        for element in Attributes(expressions) {
            let element = Attributes(element?.1);
            let name = string(element.get(NFTA_EXPR_NAME)?)?;
            let data = Attributes(element.find(NFTA_EXPR_DATA)?.unwrap_or_default());
            if reader.expression(name, data) != Ok(true) {
                reader.words.push(format!("[{name}]"));
                reader.loaded = Loaded::Nothing;
            }
        }
    }
    reader.settle();
    if let Some(comment) = attributes.find(NFTA_RULE_USERDATA)?.and_then(comment_of) {
        reader.words.push(format!("comment \"{comment}\""));
    }
    Ok(reader.words.join(" "))
}

/// What is in the register.
#[derive(Debug, Default, PartialEq, Eq)]
enum Loaded {
    #[default]
    Nothing,
    Meta(i32),
    /// Of the transport header.
    DestinationPort,
    /// Of the network header: the family that it can only be of, and `saddr` or `daddr`.
    Address(Family, &'static str),
    Value(Vec<u8>),
}

#[derive(Debug, Default)]
struct Reader {
    words: Vec<String>,
    loaded: Loaded,
    /// Conditions that nft leaves out where the next one says as much.
    family: Option<Family>,
    tcp: bool,
}

impl Reader {
    fn expression(&mut self, name: &str, data: Attributes<'_>) -> Result<bool, Malformed> {
        let register = |attribute| Ok::<_, Malformed>(be32(data.get(attribute)?)? as i32 == libc::NFT_REG_1);
        match name {
            "meta" => {
                let known = register(NFTA_META_DREG)?;
                self.loaded = Loaded::Meta(be32(data.get(NFTA_META_KEY)?)? as i32);
                Ok(known)
            }
            "payload" => {
                let place = |attribute| Ok::<_, Malformed>(be32(data.get(attribute)?)? as i32);
                self.loaded = match (
                    place(NFTA_PAYLOAD_BASE)?,
                    place(NFTA_PAYLOAD_OFFSET)?,
                    place(NFTA_PAYLOAD_LEN)?,
                ) {
                    (libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2) => Loaded::DestinationPort,
                    (libc::NFT_PAYLOAD_NETWORK_HEADER, 12, 4) => Loaded::Address(Family::V4, "saddr"),
                    (libc::NFT_PAYLOAD_NETWORK_HEADER, 16, 4) => Loaded::Address(Family::V4, "daddr"),
                    (libc::NFT_PAYLOAD_NETWORK_HEADER, 8, 16) => Loaded::Address(Family::V6, "saddr"),
                    (libc::NFT_PAYLOAD_NETWORK_HEADER, 24, 16) => Loaded::Address(Family::V6, "daddr"),
                    _ => return Ok(false),
                };
                register(NFTA_PAYLOAD_DREG)
            }
            "cmp" => {
                let equal = be32(data.get(NFTA_CMP_OP)?)? as i32 == libc::NFT_CMP_EQ;
                let value = Attributes(data.get(NFTA_CMP_DATA)?).get(NFTA_DATA_VALUE)?;
                Ok(equal && register(NFTA_CMP_SREG)? && self.compare(value)?)
            }
            "lookup" => {
                let plain = data.find(NFTA_LOOKUP_FLAGS)?.map_or(Ok(0), be32)? == 0;
                let set = string(data.get(NFTA_LOOKUP_SET)?)?;
                Ok(plain && register(NFTA_LOOKUP_SREG)? && self.look_up(set))
            }
            "counter" => {
                self.settle();
                self.words.push("counter".to_owned());
                Ok(true)
            }
            "immediate" => self.immediate(data),
            "redir" => {
                let Loaded::Value(port) = std::mem::take(&mut self.loaded) else {
                    return Ok(false);
                };
                let &[high, low] = port.as_slice() else {
                    return Ok(false);
                };
                // The kernel says the same register twice, and the flag that a port is given.
                let same = data
                    .find(NFTA_REDIR_REG_PROTO_MAX)?
                    .map_or(Ok(true), |_| register(NFTA_REDIR_REG_PROTO_MAX))?;
                let flags = data.find(NFTA_REDIR_FLAGS)?.map_or(Ok(PROTO_SPECIFIED), be32)?;
                self.words
                    .push(format!("redirect to :{}", u16::from_be_bytes([high, low])));
                Ok(register(NFTA_REDIR_REG_PROTO_MIN)? && same && flags == PROTO_SPECIFIED)
            }
            _ => Ok(false),
        }
    }

    fn compare(&mut self, value: &[u8]) -> Result<bool, Malformed> {
        let Loaded::Meta(key) = std::mem::take(&mut self.loaded) else {
            return Ok(false);
        };
        match (key, value) {
            (libc::NFT_META_NFPROTO, &[protocol]) => {
                self.settle();
                self.family = match i32::from(protocol) {
                    libc::NFPROTO_IPV4 => Some(Family::V4),
                    libc::NFPROTO_IPV6 => Some(Family::V6),
                    _ => return Ok(false),
                };
            }
            (libc::NFT_META_L4PROTO, &[protocol]) if i32::from(protocol) == libc::IPPROTO_TCP => {
                self.settle();
                self.tcp = true;
            }
            (libc::NFT_META_SKUID | libc::NFT_META_SKGID, value) => {
                self.settle();
                let key = if key == libc::NFT_META_SKUID { "skuid" } else { "skgid" };
                self.words.push(format!("meta {key} {}", u32_at(value, 0)?));
            }
            (libc::NFT_META_OIFNAME, value) => {
                self.settle();
                let name = std::ffi::CStr::from_bytes_until_nul(value).map_err(|_| Malformed)?;
                self.words.push(format!("oifname \"{}\"", name.to_string_lossy()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn look_up(&mut self, set: &str) -> bool {
        match std::mem::take(&mut self.loaded) {
            Loaded::DestinationPort if self.tcp => {
                self.tcp = false;
                self.settle();
                self.words.push(format!("tcp dport @{set}"));
                true
            }
            Loaded::Address(family, side) if self.family == Some(family) => {
                self.family = None;
                self.settle();
                let protocol = if family == Family::V4 { "ip" } else { "ip6" };
                self.words.push(format!("{protocol} {side} @{set}"));
                true
            }
            _ => false,
        }
    }

    fn immediate(&mut self, data: Attributes<'_>) -> Result<bool, Malformed> {
        let register = be32(data.get(NFTA_IMMEDIATE_DREG)?)? as i32;
        let data = Attributes(data.get(NFTA_IMMEDIATE_DATA)?);
        if register == libc::NFT_REG_1 {
            self.loaded = Loaded::Value(data.get(NFTA_DATA_VALUE)?.to_vec());
            return Ok(true);
        }
        let verdict = Attributes(data.get(NFTA_DATA_VERDICT)?);
        let word = match be32(verdict.get(NFTA_VERDICT_CODE)?)? as i32 {
            libc::NFT_RETURN => "return".to_owned(),
            libc::NFT_JUMP => format!("jump {}", string(verdict.get(NFTA_VERDICT_CHAIN)?)?),
            libc::NF_ACCEPT => "accept".to_owned(),
            libc::NF_DROP => "drop".to_owned(),
            _ => return Ok(false),
        };
        self.settle();
        self.words.push(word);
        Ok(true)
    }

    /// Writes out the conditions that nothing behind them has said.
    fn settle(&mut self) {
        match self.family.take() {
            Some(Family::V4) => self.words.push("meta nfproto ipv4".to_owned()),
            Some(Family::V6) => self.words.push("meta nfproto ipv6".to_owned()),
            None => {}
        }
        if std::mem::take(&mut self.tcp) {
            self.words.push("meta l4proto tcp".to_owned());
        }
    }
}

/// The elements of a set's dump: their keys, and whether each is the end of an interval.
pub(super) fn elements(attributes: Attributes<'_>) -> Result<Vec<(u128, bool)>, Malformed> {
    let Some(list) = attributes.find(NFTA_SET_ELEM_LIST_ELEMENTS)? else {
        return Ok(Vec::new());
    };
    Attributes(list)
        .map(|element| {
            let element = Attributes(element?.1);
            let key = Attributes(element.get(NFTA_SET_ELEM_KEY)?).get(NFTA_DATA_VALUE)?;
            let number = key.iter().fold(0u128, |number, &byte| number << 8 | u128::from(byte));
            let flags = element.find(NFTA_SET_ELEM_FLAGS)?.map_or(Ok(0), be32)?;
            Ok((number, flags & INTERVAL_END != 0))
        })
        .collect()
}
