//! What a rule's expressions mean, as conditions and an action.
//!
//! This finds out what the kernel will do with a packet, whichever program wrote the rule: iptables-nft alone writes the
//! same condition in several ways, depending on its version. What isn't understood is recorded as unknown, with the names
//! of its expressions.

use super::expression::{Expression, Verdict};
use super::header::{self, IPV4_PROTOCOL, META_FIELDS, PAYLOAD_FIELDS, TCP_FLAGS};
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{Attributes, Malformed, be64};
use crate::rules::family::Family;
use crate::rules::flags::{State, ct_state, tcp_flags};
use crate::rules::name::Name;
use crate::rules::nftables::nfproto;
use crate::rules::rule::{Action, Condition, Effect, Field, LOOPBACK, Rule, Values, interface};
use crate::rules::set::Set;
use crate::rules::table::TableFamily;
use crate::xt;

/// Tells the name of the device that has a number, if it is known.
pub(crate) type Devices<'a> = &'a dyn Fn(u32) -> Option<Vec<u8>>;

/// The only device whose number is the same in every namespace (`LOOPBACK_IFINDEX` in net/flow.h).
pub(crate) fn only_loopback(index: u32) -> Option<Vec<u8>> {
    (index == 1).then(|| LOOPBACK.to_vec())
}

/// Reads one rule of a dump, from a table of this family with these sets.
pub(crate) fn read(
    attributes: Attributes<'_>,
    family: TableFamily,
    sets: &[Set],
    devices: Devices<'_>,
) -> Result<Rule, Malformed> {
    let mut reader = Reader::new(family, sets, devices);
    if let Some(expressions) = attributes.find(NFTA_RULE_EXPRESSIONS)? {
        for element in Attributes(expressions) {
            let (_, element) = element?;
            reader.expression(Expression::read(Attributes(element))?)?;
        }
    }
    if let Some(data) = attributes.find(NFTA_RULE_USERDATA)?
        && let Some(comment) = user_data::read_comment(data)
    {
        reader.rule.comment = Some(comment);
    }
    reader.rule.handle = attributes.find(NFTA_RULE_HANDLE)?.map_or(Ok(0), be64)?;
    Ok(reader.finish())
}

/// What is in a register.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Loaded {
    /// A field, or the first bytes of an address.
    Field {
        field: Field,
        bytes: usize,
        host_order: bool,
    },
    /// An address under a mask.
    Masked { field: Field, mask: Vec<u8> },
    /// conntrack's state of the connection, under a mask.
    State(u32),
    /// TCP's flags, under a mask.
    TcpFlags(u8),
    /// The protocol that the network device's header names.
    EtherType,
    /// The number of a device, whose name is this field.
    Index(Field),
    /// A constant of the rule.
    Value(Vec<u8>),
    /// Something that isn't understood; the text says how it was loaded.
    Other(String),
}

impl Loaded {
    /// How many 4-byte registers it fills; at most as many, where that isn't known.
    fn slots(&self) -> u32 {
        let bytes = match self {
            Self::Field { bytes, .. } => *bytes,
            Self::Masked { mask, .. } => mask.len(),
            Self::Value(value) => value.len(),
            Self::State(_) | Self::TcpFlags(_) | Self::EtherType | Self::Index(_) => 4,
            Self::Other(_) => 16,
        };
        bytes.div_ceil(4) as u32
    }
}

struct Reader<'a> {
    sets: &'a [Set],
    devices: Devices<'a>,
    /// The family of all packets that get as far as the current expression, if it is known.
    family: Option<Family>,
    /// What registers hold, by the [`slot`] of each.
    registers: Vec<(u32, Loaded)>,
    rule: Rule,
    /// The expression, if any, that changes the packet and so perhaps where it goes.
    changes: Option<String>,
    decided: bool,
}

/// Where a register begins, counted in units of 4 bytes: the 16-byte registers 1 to 4 overlap the 4-byte registers 8 to
/// 23 (`enum nft_registers` in linux/netfilter/nf_tables.h).
fn slot(register: u32) -> u32 {
    match register {
        1..=4 => (register - 1) * 4,
        other => other.saturating_sub(8),
    }
}

impl<'a> Reader<'a> {
    fn new(family: TableFamily, sets: &'a [Set], devices: Devices<'a>) -> Self {
        Self {
            sets,
            devices,
            family: match family {
                TableFamily::Ip(family) => Some(family),
                TableFamily::Inet | TableFamily::Netdev => None,
            },
            registers: Vec::new(),
            rule: Rule {
                conditions: Vec::new(),
                effects: Vec::new(),
                action: Action::Continue(None),
                comment: None,
                counters: None,
                handle: 0,
            },
            changes: None,
            decided: false,
        }
    }

    fn finish(mut self) -> Rule {
        match (&self.rule.action, self.changes.take()) {
            (Action::Continue(_), Some(change)) => self.rule.action = Action::Unknown(change),
            // Without a verdict, its effects are all that it does.
            (Action::Continue(_), None) if !self.rule.effects.is_empty() => {
                let effects = std::mem::take(&mut self.rule.effects);
                let texts: Vec<&str> = effects.iter().map(Effect::text).collect();
                self.rule.action = match effects.contains(&Effect::Untrack) {
                    true => Action::Untrack,
                    false => Action::Continue(Some(texts.join(" "))),
                };
            }
            // It decides about a packet that it has changed. How is not understood, so neither is whether it gets here.
            (_, Some(change)) => self.rule.conditions.push(Condition::Unknown(change)),
            _ => {}
        }
        self.rule
    }

    fn load(&mut self, register: u32, loaded: Loaded) {
        let loaded = match &self.changes {
            // What the packet says after the change isn't followed.
            Some(change) if !matches!(loaded, Loaded::Value(_)) => Loaded::Other(change.clone()),
            _ => loaded,
        };
        let first = slot(register);
        // The kernel has no such registers; a garbled message may name them.
        let after = |first: u32, loaded: &Loaded| first.saturating_add(loaded.slots());
        let end = after(first, &loaded);
        self.registers
            .retain(|(other, before)| *other >= end || after(*other, before) <= first);
        self.registers.push((first, loaded));
    }

    fn loaded(&self, register: u32) -> Option<&Loaded> {
        let slot = slot(register);
        self.registers
            .iter()
            .find(|(other, _)| *other == slot)
            .map(|(_, loaded)| loaded)
    }

    /// How the content of a register was loaded, for the text of something that isn't understood.
    fn describe(&self, register: u32) -> String {
        match self.loaded(register) {
            Some(Loaded::Other(text)) => format!("{text} "),
            Some(Loaded::State(_)) => "[ct] ".to_owned(),
            Some(Loaded::Index(_)) => "[meta] ".to_owned(),
            Some(Loaded::Field { .. } | Loaded::Masked { .. } | Loaded::TcpFlags(_) | Loaded::EtherType) => {
                "[payload] ".to_owned()
            }
            Some(Loaded::Value(_)) | None => String::new(),
        }
    }

    fn unknown(&mut self, text: impl Into<String>) {
        self.rule.conditions.push(Condition::Unknown(text.into()));
    }

    fn effect(&mut self, text: impl Into<String>) {
        self.rule.effects.push(Effect::Other(text.into()));
    }

    fn decide(&mut self, action: Action) {
        self.rule.action = action;
        self.decided = true;
    }

    fn expression(&mut self, expression: Expression<'a>) -> Result<(), Malformed> {
        // A verdict ends the rule: no later expression runs.
        if self.decided {
            return Ok(());
        }
        match expression {
            Expression::Counter(counters) => self.rule.counters = self.rule.counters.or(Some(counters)),
            Expression::Meta { key, register } => {
                let known = META_FIELDS.into_iter().find(|(_, known, _)| *known == key);
                let loaded = match known {
                    Some((field, _, host_order)) => Loaded::Field {
                        field,
                        bytes: (field.bits() / 8) as usize,
                        host_order,
                    },
                    None if key == libc::NFT_META_PROTOCOL => Loaded::EtherType,
                    None if key == libc::NFT_META_IIF => Loaded::Index(Field::InInterface),
                    None if key == libc::NFT_META_OIF => Loaded::Index(Field::OutInterface),
                    None => Loaded::Other("[meta]".to_owned()),
                };
                self.load(register, loaded);
            }
            Expression::Payload { place, register } => {
                let loaded = self.payload(place);
                self.load(register, loaded);
            }
            Expression::Conntrack { key, register, .. } => {
                let loaded = match key {
                    libc::NFT_CT_STATE => Loaded::State(u32::MAX),
                    _ => Loaded::Other("[ct]".to_owned()),
                };
                self.load(register, loaded);
            }
            // A connection's tracked addresses are looked up by zone, and the replies' zone is not set here: they may not be
            // translated back.
            Expression::SetZone { direction, .. } => match direction {
                Some(IP_CT_DIR_ORIGINAL) => self.effect("[ct zone]"),
                _ => self.decide(Action::Unknown("[ct zone]".to_owned())),
            },
            Expression::Mask { from, to, mask, xor } => {
                let loaded = self.mask(from, mask, xor);
                self.load(to, loaded);
            }
            Expression::ToNetworkOrder { from, to } => {
                let mut loaded = self
                    .loaded(from)
                    .cloned()
                    .unwrap_or(Loaded::Other("[byteorder]".to_owned()));
                if let Loaded::Field { host_order, .. } = &mut loaded {
                    *host_order = false;
                }
                self.load(to, loaded);
            }
            Expression::Value { register, value } => self.load(register, Loaded::Value(value.to_vec())),
            Expression::Compare {
                operation,
                register,
                value,
            } => {
                let condition = self.compare(operation, register, value);
                self.condition(condition);
            }
            Expression::Range {
                register,
                negated,
                first,
                last,
            } => {
                let condition = self.range(register, negated, first, last);
                self.condition(condition);
            }
            Expression::Lookup {
                register,
                set,
                to,
                negated,
            } => self.look_up(register, set, to, negated),
            Expression::Match(extension) => match xt::read_match(extension.name, extension.revision, extension.info)? {
                xt::Read::Comment(comment) => self.rule.comment = Some(comment),
                xt::Read::Conditions(conditions) => match &self.changes {
                    Some(change) => self.unknown(change.clone()),
                    None => self.rule.conditions.extend(conditions),
                },
            },
            Expression::Target(extension) => {
                let family = self.family.unwrap_or(Family::V4);
                match xt::read_target(extension.name, extension.revision, extension.info, family)? {
                    Action::Continue(effect) => self.rule.effects.extend(effect.map(Effect::Other)),
                    Action::Untrack => self.rule.effects.push(Effect::Untrack),
                    action => self.decide(action),
                }
            }
            Expression::SetOption => self.effect("[exthdr]"),
            Expression::SetCounter => self.effect("[objref]"),
            Expression::SetPayload(place) => match header::is_harmless(self.family, place) {
                true => self.effect("[payload]"),
                false => self.changes = Some("[payload]".to_owned()),
            },
            // It decides whom the packet is for.
            Expression::SetMeta {
                key: libc::NFT_META_PKTTYPE,
            } => self.changes = Some("[meta pkttype]".to_owned()),
            Expression::SetMeta { .. } => self.effect("[meta]"),
            Expression::Verdict(verdict) => self.verdict(verdict),
            Expression::Redirect { first, last } => {
                let action = self.redirect(first, last);
                self.decide(action);
            }
            Expression::Other(name) => self.other(name),
        }
        Ok(())
    }

    fn payload(&self, (base, offset, length): (i32, u32, u32)) -> Loaded {
        let protocol_of_ipv6 = (libc::NFT_PAYLOAD_NETWORK_HEADER, 6, 1);
        if (self.family == Some(Family::V4) && (base, offset, length) == IPV4_PROTOCOL)
            || (self.family == Some(Family::V6) && (base, offset, length) == protocol_of_ipv6)
        {
            return Loaded::Field {
                field: Field::Protocol,
                bytes: 1,
                host_order: false,
            };
        }
        if (base, offset, length) == TCP_FLAGS {
            return Loaded::TcpFlags(u8::MAX);
        }
        let field = PAYLOAD_FIELDS.into_iter().find(|&field| {
            let Some((known_base, known_offset, known_length)) = header::place(field) else {
                return false;
            };
            // iptables-nft loads only the bytes that a prefix covers, if it ends on a whole byte. Such a load is
            // unambiguous only if the packet's family is known.
            let family_fits = match field {
                Field::Source(family) | Field::Destination(family) => match self.family {
                    Some(known) => known == family && length <= known_length,
                    None => length == known_length,
                },
                _ => length == known_length,
            };
            (base, offset) == (known_base, known_offset) && length > 0 && family_fits
        });
        match field {
            Some(field) => Loaded::Field {
                field,
                bytes: length as usize,
                host_order: false,
            },
            None => Loaded::Other("[payload]".to_owned()),
        }
    }

    fn mask(&self, from: u32, mask: &[u8], xor: &[u8]) -> Loaded {
        let plain = xor.iter().all(|&byte| byte == 0);
        match (self.loaded(from), mask.first_chunk()) {
            (
                Some(&Loaded::Field {
                    field: field @ (Field::Source(_) | Field::Destination(_)),
                    bytes,
                    ..
                }),
                _,
            ) if plain && mask.len() == bytes => Loaded::Masked {
                field,
                mask: mask.to_vec(),
            },
            (Some(Loaded::State(_)), Some(mask)) if plain => Loaded::State(u32::from_ne_bytes(*mask)),
            (Some(Loaded::TcpFlags(u8::MAX)), None) if let (true, [mask]) = (plain, mask) => Loaded::TcpFlags(*mask),
            _ => Loaded::Other(format!("{}[bitwise]", self.describe(from))),
        }
    }

    /// Adds a condition. nft writes `80-90` as two conditions, at least 80 and at most 90; these are joined into one.
    fn condition(&mut self, condition: Condition) {
        let conditions = &mut self.rule.conditions;
        if let Condition::In {
            field,
            values: Values::Interval((0, last)),
            negated: false,
        } = &condition
            && let Some(Condition::In {
                field: before,
                values: Values::Interval((first, end)),
                negated: false,
            }) = conditions.last_mut()
            && before == field
            && *end == field.largest()
            && *first <= *last
        {
            *end = *last;
            return;
        }
        if let Condition::In {
            field: Field::Family,
            values,
            negated: false,
        } = &condition
        {
            let is = |family| values.number() == Some(nfproto(family));
            self.family = self
                .family
                .or([Family::V4, Family::V6].into_iter().find(|&family| is(family)));
        }
        conditions.push(condition);
    }

    fn compare(&self, operation: i32, register: u32, value: &[u8]) -> Condition {
        let unknown = || Condition::Unknown(format!("{}[cmp]", self.describe(register)));
        let negated = operation == libc::NFT_CMP_NEQ;
        let equality = negated || operation == libc::NFT_CMP_EQ;
        match self.loaded(register) {
            Some(&Loaded::Field {
                field,
                bytes,
                host_order,
            }) => {
                let Some((first, last)) = interval(field, bytes, host_order, value) else {
                    return unknown();
                };
                let values: Values = match operation {
                    _ if equality => (first, last).into(),
                    // The kernel compares the bytes in network order.
                    _ if host_order => return unknown(),
                    libc::NFT_CMP_LT => match first.checked_sub(1) {
                        Some(last) => (0, last).into(),
                        None => Values::Listed(Vec::new()),
                    },
                    libc::NFT_CMP_LTE => (0, last).into(),
                    libc::NFT_CMP_GT => match last.checked_add(1).filter(|&first| first <= field.largest()) {
                        Some(first) => (first, field.largest()).into(),
                        None => Values::Listed(Vec::new()),
                    },
                    libc::NFT_CMP_GTE => (first, field.largest()).into(),
                    _ => return unknown(),
                };
                Condition::In { field, values, negated }
            }
            Some(Loaded::Masked { field, mask }) if equality => match network(*field, value, mask) {
                Some(interval) => Condition::In {
                    field: *field,
                    values: interval.into(),
                    negated,
                },
                None => unknown(),
            },
            Some(Loaded::EtherType) if equality => {
                let number = match value {
                    [0x08, 0x00] => nfproto(Family::V4),
                    [0x86, 0xdd] => nfproto(Family::V6),
                    _ => 0,
                };
                Condition::In {
                    field: Field::Family,
                    values: number.into(),
                    negated,
                }
            }
            Some(&Loaded::Index(field)) if equality => match value.try_into().map(u32::from_ne_bytes) {
                Ok(index) => match (self.devices)(index) {
                    Some(name) => Condition::In {
                        field,
                        values: interface(&name).into(),
                        negated,
                    },
                    None => unknown(),
                },
                Err(_) => unknown(),
            },
            Some(&Loaded::State(mask)) if equality => match value.try_into().map(u32::from_ne_bytes) {
                Ok(value) => ct_state(|state| (state.bit() & mask == value) != negated),
                Err(_) => unknown(),
            },
            Some(&Loaded::TcpFlags(mask)) if equality => {
                let operator = if negated { "!=" } else { "==" };
                match value {
                    &[flags] => {
                        let text = format!("tcp flags & {mask:#04x} {operator} {flags:#04x}");
                        tcp_flags(text, mask, flags, negated)
                    }
                    _ => unknown(),
                }
            }
            _ => unknown(),
        }
    }

    fn range(&self, register: u32, negated: bool, first: &[u8], last: &[u8]) -> Condition {
        if let Some(&Loaded::Field {
            field,
            bytes,
            host_order: false,
        }) = self.loaded(register)
            && let Some((first, _)) = interval(field, bytes, false, first)
            && let Some((_, last)) = interval(field, bytes, false, last)
        {
            return Condition::In {
                field,
                values: (first, last).into(),
                negated,
            };
        }
        Condition::Unknown(format!("{}[range]", self.describe(register)))
    }

    fn look_up(&mut self, register: u32, name: &[u8], to: Option<u32>, negated: bool) {
        let name = Name::from(name);
        let verdict = to == Some(libc::NFT_REG_VERDICT as u32);
        let text = format!("{}[lookup]", self.describe(register));
        if let Some(Loaded::State(u32::MAX)) = self.loaded(register) {
            let set = self.sets.iter().find(|set| set.name == name);
            let elements = set.and_then(|set| set.elements.as_ref());
            return match (verdict, to, elements) {
                (true, _, Some(_)) => self.decide(Action::Map(Field::State, name)),
                (true, _, None) => self.decide(Action::Unknown("[vmap]".to_owned())),
                (false, None, Some(elements)) => {
                    let is_in = |state: State| elements.meets(&[(state.number(), state.number())]) != negated;
                    self.rule.conditions.push(ct_state(is_in));
                }
                (false, ..) => self.unknown(text),
            };
        }
        let whole = match self.loaded(register) {
            Some(&Loaded::Field {
                field,
                bytes,
                host_order,
            }) if bytes * 8 == field.bits() as usize => Some((field, host_order)),
            _ => None,
        };
        let set = self.sets.iter().find(|set| set.name == name);
        // A set whose elements have several fields is looked up by several registers; this one is only a part of the
        // key.
        let set = set.filter(|set| whole.is_some_and(|(field, _)| field.bits() == set.bits));
        let condition = match (whole, set.and_then(|set| set.elements.as_ref())) {
            (Some((field, false)), Some(_)) => Condition::In {
                field,
                values: Values::Set(name.clone()),
                negated,
            },
            // The set's elements are in the machine's byte order.
            (Some((field, true)), Some(elements)) => {
                let swapped = elements.as_slice().iter().map(|&(first, last)| {
                    let swap = |number: u128| u32::try_from(number).ok().map(|number| u128::from(number.swap_bytes()));
                    (first == last)
                        .then(|| swap(first))
                        .flatten()
                        .map(|number| (number, number))
                });
                match swapped.collect::<Option<Vec<_>>>() {
                    Some(list) => Condition::In {
                        field,
                        values: Values::Listed(list),
                        negated,
                    },
                    None => Condition::Unknown(text),
                }
            }
            _ => Condition::Unknown(text),
        };
        match (verdict, whole) {
            (true, Some((field, false))) if matches!(condition, Condition::In { .. }) => {
                self.decide(Action::Map(field, name));
            }
            (true, _) => self.decide(Action::Unknown("[vmap]".to_owned())),
            (false, _) => {
                self.rule.conditions.push(condition);
                if let Some(to) = to {
                    self.load(to, Loaded::Other("[map]".to_owned()));
                }
            }
        }
    }

    fn verdict(&mut self, verdict: Verdict<'_>) {
        if verdict != Verdict::Continue {
            self.decide(action(verdict));
        }
    }

    fn redirect(&self, first: Option<u32>, last: Option<u32>) -> Action {
        let port = |register| match self.loaded(register) {
            Some(Loaded::Value(value)) => value.first_chunk().copied().map(u16::from_be_bytes),
            _ => None,
        };
        match (first, last.or(first)) {
            (Some(first), Some(last)) => match (port(first), port(last)) {
                (Some(first), Some(last)) => Action::Redirect(Some((first, last))),
                _ => Action::Nat("redirect to a mapped port".to_owned()),
            },
            _ => Action::Redirect(None),
        }
    }

    fn other(&mut self, name: &[u8]) {
        let text = format!("[{}]", Name::from(name));
        // It may load something, into any register.
        self.registers.clear();
        match name {
            b"nat" | b"masq" => self.decide(Action::Nat(text)),
            b"reject" => self.decide(Action::Drop),
            b"notrack" => self.rule.effects.push(Effect::Untrack),
            // tproxy needs a listener that is transparent; without one it does nothing, and xt's drops.
            b"queue" | b"synproxy" | b"fwd" | b"tproxy" => self.decide(Action::Unknown(text)),
            b"log" | b"last" | b"dup" | b"meta" | b"ct" | b"flow_offload" => self.effect(text),
            // It writes into the packet, perhaps into the destination.
            b"payload" | b"exthdr" => self.changes = Some(text),
            _ => self.unknown(text),
        }
    }
}

/// What a verdict does.
pub(crate) fn action(verdict: Verdict<'_>) -> Action {
    match verdict {
        Verdict::Accept => Action::Accept,
        Verdict::Drop => Action::Drop,
        Verdict::Continue => Action::Continue(None),
        Verdict::Return => Action::Return,
        Verdict::Jump(chain) => Action::Jump(Name::from(chain)),
        Verdict::Goto(chain) => Action::Goto(Name::from(chain)),
        Verdict::Other(code) => Action::Unknown(format!("[verdict {code}]")),
    }
}

/// The numbers of a field whose first bytes are these: a single number or, if only part of an address or a name is
/// given, an interval.
fn interval(field: Field, loaded: usize, host_order: bool, value: &[u8]) -> Option<(u128, u128)> {
    let bytes = (field.bits() / 8) as usize;
    if matches!(field, Field::InInterface | Field::OutInterface) {
        // For a whole name, nft compares all 16 bytes and iptables-nft the name with its NUL. A prefix has no NUL.
        if value.len() > bytes {
            return None;
        }
        let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
        if value.iter().skip(name.len()).any(|&byte| byte != 0) {
            return None; // no device has such a name
        }
        let first = interface(name);
        return Some(if name.len() < value.len() || value.len() == bytes {
            (first, first)
        } else {
            (first, first | u128::MAX.checked_shr(8 * name.len() as u32).unwrap_or(0))
        });
    }
    if value.len() != loaded || loaded > bytes {
        return None;
    }
    let number = value.iter().fold(0u128, |number, &byte| number << 8 | u128::from(byte));
    if host_order && cfg!(target_endian = "little") {
        let swapped = value
            .iter()
            .rev()
            .fold(0u128, |number, &byte| number << 8 | u128::from(byte));
        return Some((swapped, swapped));
    }
    let rest = 8 * (bytes - loaded) as u32;
    let first = number.checked_shl(rest).unwrap_or(0);
    Some((first, first | (1u128.checked_shl(rest).unwrap_or(0).wrapping_sub(1))))
}

/// The addresses that equal this one under a mask, both as long as what was loaded; none if the mask has holes.
fn network(field: Field, address: &[u8], mask: &[u8]) -> Option<(u128, u128)> {
    if address.len() != mask.len() {
        return None;
    }
    let bits = field.bits();
    let number = |bytes: &[u8]| {
        let number = bytes.iter().fold(0u128, |number, &byte| number << 8 | u128::from(byte));
        number.checked_shl(bits - 8 * bytes.len() as u32)
    };
    let (address, mask) = (number(address)?, number(mask)?);
    let hosts = field.largest() & !mask;
    // The bits outside the mask must be the last ones, and those of the address must be zero, or nothing would be
    // equal.
    let contiguous = hosts & hosts.wrapping_add(1) == 0;
    (contiguous && address & hosts == 0).then_some((address, address | hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::recorded;
    use crate::rules::examples;
    use crate::rules::intervals::Intervals;
    use crate::rules::nftables::NftRule;
    use crate::rules::xtables::IptablesRule;

    /// The sets of the tables that the recorded rules are from.
    fn sets() -> Vec<Set> {
        let map = Set {
            verdicts: vec![
                (Intervals::one(80), Action::Accept),
                (Intervals::one(443), Action::Jump(Name::from("other"))),
            ],
            ..examples::ports("m", &[(80, 80), (443, 443)])
        };
        vec![examples::ports("ports", &[(80, 80), (8000, 8100)]), map]
    }

    #[test]
    fn rules_are_read_as_the_kernel_dumps_them() {
        let mut wrong = Vec::new();
        let recorded_rules = include_str!("recorded/rules.txt")
            .lines()
            .filter(|line| !line.starts_with('#'));
        for line in recorded_rules {
            let [family, written, wanted, hex] = line.split(" ; ").collect::<Vec<_>>().try_into().unwrap();
            let family = match family {
                "ip" => TableFamily::Ip(Family::V4),
                _ => TableFamily::Inet,
            };
            let message = recorded(hex);
            // The header of nfnetlink comes before the attributes.
            let rule = read(Attributes(&message[4..]), family, &sets(), &only_loopback).unwrap();
            assert!(rule.handle > 0, "{written}");
            let shown = match written.strip_prefix("-A ") {
                Some(_) => format!("-A OUTPUT {}", IptablesRule(&rule)),
                None => NftRule(&rule).to_string(),
            };
            // What such a condition comes to isn't in its text.
            let fixed = rule.conditions.iter().find_map(|condition| match condition {
                Condition::Flags { numbers, .. } => Some(format!(" (of {} numbers)", numbers.len())),
                _ => None,
            });
            let shown = shown + &fixed.unwrap_or_default();
            if shown != wanted {
                wrong.push(format!("{written}\n    wanted {wanted}\n    read   {shown}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// A message may name any register, also one that the kernel doesn't have.
    #[test]
    fn no_register_overflows() {
        let mut reader = Reader::new(TableFamily::Inet, &[], &only_loopback);
        for register in [u32::MAX, u32::MAX - 1, 0, 1, 8] {
            let (value, key) = (&[1; 64], libc::NFT_META_IIFNAME);
            reader.expression(Expression::Value { register, value }).unwrap();
            reader.expression(Expression::Meta { key, register }).unwrap();
            reader
                .expression(Expression::Compare {
                    operation: libc::NFT_CMP_EQ,
                    register,
                    value,
                })
                .unwrap();
        }
        assert_eq!(reader.finish().conditions.len(), 5);
    }

    /// The kernel compares all 16 bytes, and no device's name has more after its NUL.
    #[test]
    fn a_name_ends_at_its_nul() {
        let field = Field::InInterface;
        let whole = |name: &[u8; 16]| interval(field, 16, false, name);
        assert_eq!(
            whole(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
            Some((interface(b"lo"), interface(b"lo")))
        );
        assert_eq!(whole(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0x"), None);
    }
}
