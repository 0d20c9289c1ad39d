//! nf_tables expressions, the pieces that a rule is made of: each written and read side by side. Each is one line of
//! `nft --debug=netlink list ruleset`.

use super::header::{META_FIELDS, place};
use super::uapi::*;
use crate::netlink::message::{Attributes, Malformed, Writer, be32, be64, string};
use crate::rules::{Counters, Field};
use crate::xt::NF_NAT_RANGE_PROTO_SPECIFIED;

/// The register that every expression of proxy-init's loads into and compares.
pub(crate) const REGISTER: u32 = libc::NFT_REG_1 as u32;

/// One expression. What it holds of a message is borrowed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expression<'a> {
    /// `[ meta load KEY => reg REGISTER ]`; the key is one of `NFT_META_*`.
    Meta { key: i32, register: u32 },
    /// `[ payload load LENGTH b @ BASE header + OFFSET => reg REGISTER ]`
    Payload { place: (i32, u32, u32), register: u32 },
    /// `[ ct load KEY => reg REGISTER , dir DIRECTION ]`; the key is one of `NFT_CT_*`. An address or a port has a
    /// direction: that of the packets that have it (`enum ip_conntrack_dir`).
    Conntrack {
        key: i32,
        register: u32,
        direction: Option<u8>,
    },
    /// `[ ct set mark with reg REGISTER ]`: sets the connection's mark.
    SetConnectionMark { register: u32 },
    /// Sets the connection's zone: for one direction only (`enum ip_conntrack_dir`), or for both.
    SetZone { register: u32, direction: Option<u8> },
    /// `[ cmp OPERATION reg REGISTER VALUE ]`; the operation is one of `NFT_CMP_*`.
    Compare {
        operation: i32,
        register: u32,
        value: &'a [u8],
    },
    /// `[ range eq reg REGISTER FIRST LAST ]`, or `neq`
    Range {
        register: u32,
        negated: bool,
        first: &'a [u8],
        last: &'a [u8],
    },
    /// `[ bitwise reg TO = ( reg FROM & MASK ) ^ XOR ]`
    Mask {
        from: u32,
        to: u32,
        mask: &'a [u8],
        xor: &'a [u8],
    },
    /// `[ byteorder reg TO = hton(reg FROM) ]`
    ToNetworkOrder { from: u32, to: u32 },
    /// `[ lookup reg REGISTER set SET ]`; of a map, with the register that its value goes to.
    Lookup {
        register: u32,
        set: &'a [u8],
        to: Option<u32>,
        negated: bool,
    },
    /// `[ immediate reg REGISTER VALUE ]`
    Value { register: u32, value: &'a [u8] },
    /// `[ immediate reg 0 VERDICT ]`
    Verdict(Verdict<'a>),
    /// `[ redir proto_min reg FIRST proto_max reg LAST ]`
    Redirect { first: Option<u32>, last: Option<u32> },
    /// `[ nat dnat ip addr_min reg … proto_min reg … ]`, or `snat`: each with the first and the last.
    Nat {
        is_destination: bool,
        /// One of `NFPROTO_*`, as libc has them; of other packets it does nothing.
        family: i32,
        address: (Option<u32>, Option<u32>),
        port: (Option<u32>, Option<u32>),
    },
    /// `[ counter pkts PACKETS bytes BYTES ]`
    Counter(Counters),
    /// `[ match name NAME rev REVISION ]`: an xt match, through nft_compat.
    Match(XtData<'a>),
    /// `[ target name NAME rev REVISION ]`: an xt target, through nft_compat.
    Target(XtData<'a>),
    /// `[ meta set KEY with reg REGISTER ]`; the key is one of `NFT_META_*`.
    SetMeta { key: i32, register: u32 },
    /// `[ payload write … => LENGTH b @ BASE header + OFFSET ]`
    SetPayload((i32, u32, u32)),
    /// `[ exthdr write … ]`: changes an option of TCP's.
    SetOption,
    /// `[ objref type 1 name … ]`: a counter that has a name.
    SetCounter,
    /// Another one, by its name.
    Other(&'a [u8]),
}

/// What a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// `NF_ACCEPT`
    Accept,
    /// `NF_DROP`
    Drop,
    /// `NFT_CONTINUE`
    Continue,
    /// `NFT_RETURN`
    Return,
    /// `NFT_JUMP`
    Jump(&'a [u8]),
    /// `NFT_GOTO`
    Goto(&'a [u8]),
    /// Another one (`NF_QUEUE`).
    Other(i32),
}

/// An xt match or target: its name, its revision and its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XtData<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) revision: u32,
    pub(crate) info: &'a [u8],
}

impl<'a> Expression<'a> {
    /// Loads a field; none if no expression that is written here does.
    pub(crate) fn load(field: Field) -> Option<Self> {
        let register = REGISTER;
        let meta = META_FIELDS.into_iter().find(|(known, _)| *known == field);
        Some(match (meta, place(field)) {
            (Some((_, key)), _) => Self::Meta { key, register },
            (None, place) => Self::Payload {
                place: place?,
                register,
            },
        })
    }

    /// `[ cmp eq reg 1 VALUE ]`
    pub(crate) fn equals(value: &'a [u8]) -> Self {
        Self::Compare {
            operation: libc::NFT_CMP_EQ,
            register: REGISTER,
            value,
        }
    }

    /// Adds it to a rule's list of expressions.
    pub(crate) fn write(&self, list: &mut Writer) {
        let mut add = |name: &str, data: &dyn Fn(&mut Writer)| {
            list.nest(NFTA_LIST_ELEM, |element| {
                element.string(NFTA_EXPR_NAME, name);
                element.nest(NFTA_EXPR_DATA, data);
            });
        };
        match *self {
            Self::Meta { key, register } => add("meta", &|data| {
                data.be32(NFTA_META_KEY, key as u32);
                data.be32(NFTA_META_DREG, register);
            }),
            Self::Payload {
                place: (base, offset, length),
                register,
            } => add("payload", &|data| {
                data.be32(NFTA_PAYLOAD_DREG, register);
                data.be32(NFTA_PAYLOAD_BASE, base as u32);
                data.be32(NFTA_PAYLOAD_OFFSET, offset);
                data.be32(NFTA_PAYLOAD_LEN, length);
            }),
            Self::Conntrack {
                key,
                register,
                direction,
            } => add("ct", &|data| {
                data.be32(NFTA_CT_DREG, register);
                data.be32(NFTA_CT_KEY, key as u32);
                if let Some(direction) = direction {
                    data.bytes(NFTA_CT_DIRECTION, &[direction]);
                }
            }),
            Self::SetZone { register, direction } => add("ct", &|data| {
                data.be32(NFTA_CT_SREG, register);
                data.be32(NFTA_CT_KEY, libc::NFT_CT_ZONE as u32);
                if let Some(direction) = direction {
                    data.bytes(NFTA_CT_DIRECTION, &[direction]);
                }
            }),
            Self::Compare {
                operation,
                register,
                value,
            } => add("cmp", &|data| {
                data.be32(NFTA_CMP_SREG, register);
                data.be32(NFTA_CMP_OP, operation as u32);
                data.nest(NFTA_CMP_DATA, |data| data.bytes(NFTA_DATA_VALUE, value));
            }),
            Self::Range {
                register,
                negated,
                first,
                last,
            } => add("range", &|data| {
                data.be32(NFTA_RANGE_SREG, register);
                data.be32(NFTA_RANGE_OP, u32::from(negated));
                data.nest(NFTA_RANGE_FROM_DATA, |data| data.bytes(NFTA_DATA_VALUE, first));
                data.nest(NFTA_RANGE_TO_DATA, |data| data.bytes(NFTA_DATA_VALUE, last));
            }),
            Self::Mask { from, to, mask, xor } => add("bitwise", &|data| {
                data.be32(NFTA_BITWISE_SREG, from);
                data.be32(NFTA_BITWISE_DREG, to);
                data.be32(NFTA_BITWISE_LEN, mask.len() as u32);
                data.nest(NFTA_BITWISE_MASK, |data| data.bytes(NFTA_DATA_VALUE, mask));
                data.nest(NFTA_BITWISE_XOR, |data| data.bytes(NFTA_DATA_VALUE, xor));
            }),
            Self::ToNetworkOrder { from, to } => add("byteorder", &|data| {
                data.be32(NFTA_BYTEORDER_SREG, from);
                data.be32(NFTA_BYTEORDER_DREG, to);
                data.be32(NFTA_BYTEORDER_OP, libc::NFT_BYTEORDER_HTON as u32);
                data.be32(NFTA_BYTEORDER_LEN, 4);
                data.be32(NFTA_BYTEORDER_SIZE, 4);
            }),
            Self::Lookup {
                register,
                set,
                to,
                negated,
            } => add("lookup", &|data| {
                data.string(NFTA_LOOKUP_SET, set);
                data.be32(NFTA_LOOKUP_SREG, register);
                if let Some(to) = to {
                    data.be32(NFTA_LOOKUP_DREG, to);
                }
                if negated {
                    data.be32(NFTA_LOOKUP_FLAGS, libc::NFT_LOOKUP_F_INV as u32);
                }
            }),
            Self::Value { register, value } => add("immediate", &|data| {
                data.be32(NFTA_IMMEDIATE_DREG, register);
                data.nest(NFTA_IMMEDIATE_DATA, |data| data.bytes(NFTA_DATA_VALUE, value));
            }),
            Self::Verdict(verdict) => add("immediate", &|data| {
                data.be32(NFTA_IMMEDIATE_DREG, libc::NFT_REG_VERDICT as u32);
                data.nest(NFTA_IMMEDIATE_DATA, |data| verdict.write(data));
            }),
            Self::Redirect { first, last } => add("redir", &|data| {
                for (attribute, register) in [(NFTA_REDIR_REG_PROTO_MIN, first), (NFTA_REDIR_REG_PROTO_MAX, last)] {
                    if let Some(register) = register {
                        data.be32(attribute, register);
                    }
                }
                if first.is_some() {
                    data.be32(NFTA_REDIR_FLAGS, NF_NAT_RANGE_PROTO_SPECIFIED);
                }
            }),
            // The kernel's numbers begin at 0.
            Self::Counter(counters) => add("counter", &|data| {
                if counters != Counters::default() {
                    data.be64(NFTA_COUNTER_BYTES, counters.bytes);
                    data.be64(NFTA_COUNTER_PACKETS, counters.packets);
                }
            }),
            Self::Match(extension) => add("match", &|data| extension.write(data)),
            Self::Target(extension) => add("target", &|data| extension.write(data)),
            // Made by reading alone.
            Self::Other(name) => list.refuse(format!("[{}]", name.escape_ascii())),
            Self::SetMeta { .. }
            | Self::SetConnectionMark { .. }
            | Self::SetPayload(_)
            | Self::SetOption
            | Self::SetCounter
            | Self::Nat { .. } => {
                list.refuse(format!("{self:?}"));
            }
        }
    }

    /// Reads one element of a rule's list. One whose attributes aren't understood is another one.
    pub(crate) fn read(element: Attributes<'a>) -> Result<Self, Malformed> {
        let name = string(element.get(NFTA_EXPR_NAME)?)?;
        let data = Attributes(element.find(NFTA_EXPR_DATA)?.unwrap_or_default());
        Ok(Self::read_data(name, data)?.unwrap_or(Self::Other(name)))
    }

    fn read_data(name: &'a [u8], data: Attributes<'a>) -> Result<Option<Self>, Malformed> {
        let number = |attribute| data.get(attribute).and_then(be32);
        let optional = |attribute| data.find(attribute)?.map(be32).transpose();
        let value = |attribute| Attributes(data.get(attribute)?).get(NFTA_DATA_VALUE);
        Ok(Some(match name {
            b"meta" => {
                let key = number(NFTA_META_KEY)? as i32;
                match optional(NFTA_META_DREG)? {
                    Some(register) => Self::Meta { key, register },
                    None => {
                        let register = number(NFTA_META_SREG)?;
                        Self::SetMeta { key, register }
                    }
                }
            }
            b"payload" => {
                let (offset, length) = (number(NFTA_PAYLOAD_OFFSET)?, number(NFTA_PAYLOAD_LEN)?);
                let place = (number(NFTA_PAYLOAD_BASE)? as i32, offset, length);
                match optional(NFTA_PAYLOAD_DREG)? {
                    Some(register) => Self::Payload { place, register },
                    None => Self::SetPayload(place),
                }
            }
            b"exthdr" => match (optional(NFTA_EXTHDR_SREG)?, optional(NFTA_EXTHDR_OP)?) {
                (Some(_), Some(NFT_EXTHDR_OP_TCPOPT)) => Self::SetOption,
                _ => return Ok(None),
            },
            b"objref" => match optional(NFTA_OBJREF_IMM_TYPE)? {
                Some(NFT_OBJECT_COUNTER) => Self::SetCounter,
                _ => return Ok(None),
            },
            b"ct" => {
                let key = number(NFTA_CT_KEY)? as i32;
                let direction = data.find(NFTA_CT_DIRECTION)?.and_then(|bytes| bytes.first().copied());
                match (optional(NFTA_CT_DREG)?, key) {
                    (Some(register), _) => Self::Conntrack {
                        key,
                        register,
                        direction,
                    },
                    (None, libc::NFT_CT_ZONE) => Self::SetZone {
                        register: number(NFTA_CT_SREG)?,
                        direction,
                    },
                    (None, libc::NFT_CT_MARK) => Self::SetConnectionMark {
                        register: number(NFTA_CT_SREG)?,
                    },
                    _ => return Ok(None),
                }
            }
            b"cmp" => Self::Compare {
                operation: number(NFTA_CMP_OP)? as i32,
                register: number(NFTA_CMP_SREG)?,
                value: value(NFTA_CMP_DATA)?,
            },
            b"range" => Self::Range {
                register: number(NFTA_RANGE_SREG)?,
                negated: number(NFTA_RANGE_OP)? as i32 == libc::NFT_RANGE_NEQ,
                first: value(NFTA_RANGE_FROM_DATA)?,
                last: value(NFTA_RANGE_TO_DATA)?,
            },
            b"bitwise" => match (data.find(NFTA_BITWISE_MASK)?, data.find(NFTA_BITWISE_XOR)?) {
                (Some(_), Some(_)) => Self::Mask {
                    from: number(NFTA_BITWISE_SREG)?,
                    to: number(NFTA_BITWISE_DREG)?,
                    mask: value(NFTA_BITWISE_MASK)?,
                    xor: value(NFTA_BITWISE_XOR)?,
                },
                _ => return Ok(None), // a shift
            },
            b"byteorder" => match number(NFTA_BYTEORDER_OP)? as i32 {
                libc::NFT_BYTEORDER_HTON => Self::ToNetworkOrder {
                    from: number(NFTA_BYTEORDER_SREG)?,
                    to: number(NFTA_BYTEORDER_DREG)?,
                },
                _ => return Ok(None),
            },
            b"lookup" => Self::Lookup {
                register: number(NFTA_LOOKUP_SREG)?,
                set: string(data.get(NFTA_LOOKUP_SET)?)?,
                to: optional(NFTA_LOOKUP_DREG)?,
                negated: optional(NFTA_LOOKUP_FLAGS)?.unwrap_or_default() as i32 & libc::NFT_LOOKUP_F_INV != 0,
            },
            b"immediate" => {
                let register = number(NFTA_IMMEDIATE_DREG)?;
                let data = Attributes(data.get(NFTA_IMMEDIATE_DATA)?);
                if register as i32 == libc::NFT_REG_VERDICT {
                    Self::Verdict(Verdict::read(data)?)
                } else {
                    Self::Value {
                        register,
                        value: data.get(NFTA_DATA_VALUE)?,
                    }
                }
            }
            b"redir" => {
                // Flags beside those of the ports (random, persistent) don't change which port it may be.
                let flags = optional(NFTA_REDIR_FLAGS)?.unwrap_or_default();
                let first = optional(NFTA_REDIR_REG_PROTO_MIN)?;
                match first {
                    Some(_) if flags & NF_NAT_RANGE_PROTO_SPECIFIED == 0 => return Ok(None),
                    _ => Self::Redirect {
                        first,
                        last: optional(NFTA_REDIR_REG_PROTO_MAX)?,
                    },
                }
            }
            b"nat" => {
                let range = |first, last| Ok((optional(first)?, optional(last)?));
                Self::Nat {
                    is_destination: number(NFTA_NAT_TYPE)? as i32 == libc::NFT_NAT_DNAT,
                    family: number(NFTA_NAT_FAMILY)? as i32,
                    address: range(NFTA_NAT_REG_ADDR_MIN, NFTA_NAT_REG_ADDR_MAX)?,
                    port: range(NFTA_NAT_REG_PROTO_MIN, NFTA_NAT_REG_PROTO_MAX)?,
                }
            }
            b"counter" => {
                let number = |attribute| data.find(attribute)?.map_or(Ok(0), be64);
                Self::Counter(Counters {
                    packets: number(NFTA_COUNTER_PACKETS)?,
                    bytes: number(NFTA_COUNTER_BYTES)?,
                })
            }
            b"match" => Self::Match(XtData::read(data)?),
            b"target" => Self::Target(XtData::read(data)?),
            _ => return Ok(None),
        }))
    }
}

impl<'a> Verdict<'a> {
    fn write(self, data: &mut Writer) {
        let (code, chain) = match self {
            Verdict::Accept => (libc::NF_ACCEPT, None),
            Verdict::Drop => (libc::NF_DROP, None),
            Verdict::Continue => (libc::NFT_CONTINUE, None),
            Verdict::Return => (libc::NFT_RETURN, None),
            Verdict::Jump(chain) => (libc::NFT_JUMP, Some(chain)),
            Verdict::Goto(chain) => (libc::NFT_GOTO, Some(chain)),
            Verdict::Other(code) => (code, None),
        };
        data.nest(NFTA_DATA_VERDICT, |data| {
            data.be32(NFTA_VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                data.string(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the data of a rule's immediate, or of an element of a verdict map.
    pub(crate) fn read(data: Attributes<'a>) -> Result<Self, Malformed> {
        let verdict = Attributes(data.get(NFTA_DATA_VERDICT)?);
        let chain = || string(verdict.get(NFTA_VERDICT_CHAIN)?);
        Ok(match be32(verdict.get(NFTA_VERDICT_CODE)?)? as i32 {
            libc::NF_ACCEPT => Self::Accept,
            libc::NF_DROP => Self::Drop,
            libc::NFT_CONTINUE => Self::Continue,
            libc::NFT_RETURN => Self::Return,
            libc::NFT_JUMP => Self::Jump(chain()?),
            libc::NFT_GOTO => Self::Goto(chain()?),
            code => Self::Other(code),
        })
    }
}

impl<'a> XtData<'a> {
    fn write(self, data: &mut Writer) {
        data.string(NFTA_XT_NAME, self.name);
        data.be32(NFTA_XT_REV, self.revision);
        data.bytes(NFTA_XT_INFO, self.info);
    }

    fn read(data: Attributes<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            name: string(data.get(NFTA_XT_NAME)?)?,
            revision: be32(data.get(NFTA_XT_REV)?)?,
            info: data.get(NFTA_XT_INFO)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let extension = XtData {
            name: b"multiport",
            revision: 1,
            info: &[1, 2, 3, 4, 5, 6, 7, 8],
        };
        for expression in [
            Expression::Meta { key: 7, register: 1 },
            Expression::Payload {
                place: (1, 12, 4),
                register: 1,
            },
            Expression::Conntrack {
                key: 0,
                register: 1,
                direction: None,
            },
            Expression::Conntrack {
                key: libc::NFT_CT_SRC,
                register: 1,
                direction: Some(1),
            },
            Expression::SetZone {
                register: 1,
                direction: None,
            },
            Expression::SetZone {
                register: 1,
                direction: Some(1),
            },
            Expression::equals(&[6]),
            Expression::Range {
                register: 9,
                negated: true,
                first: &[0, 80],
                last: &[0, 90],
            },
            Expression::Mask {
                from: 1,
                to: 2,
                mask: &[255, 0],
                xor: &[0, 0],
            },
            Expression::ToNetworkOrder { from: 1, to: 1 },
            Expression::Lookup {
                register: 1,
                set: b"ports",
                to: Some(0),
                negated: true,
            },
            Expression::Lookup {
                register: 1,
                set: b"\xff",
                to: None,
                negated: false,
            },
            Expression::Value {
                register: 1,
                value: &[16, 47],
            },
            Expression::Verdict(Verdict::Accept),
            Expression::Verdict(Verdict::Drop),
            Expression::Verdict(Verdict::Continue),
            Expression::Verdict(Verdict::Return),
            Expression::Verdict(Verdict::Jump(b"CHAIN")),
            Expression::Verdict(Verdict::Goto(b"CHAIN")),
            Expression::Redirect {
                first: Some(1),
                last: Some(2),
            },
            Expression::Redirect {
                first: None,
                last: None,
            },
            Expression::Counter(Counters::default()),
            Expression::Counter(Counters { packets: 1, bytes: 60 }),
            Expression::Match(extension),
            Expression::Target(extension),
        ] {
            let mut writer = Writer::with_capacity(64);
            expression.write(&mut writer);
            let bytes = writer.finish().unwrap();
            let (_, element) = Attributes(&bytes).next().unwrap().unwrap();
            assert_eq!(Expression::read(Attributes(element)), Ok(expression));
        }
        let mut writer = Writer::with_capacity(64);
        Expression::Other(b"fib").write(&mut writer);
        assert_eq!(writer.finish().unwrap_err().to_string(), "[fib]");
    }
}
