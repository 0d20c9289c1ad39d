//! What a rule's expressions mean, as conditions and an action.
//!
//! This finds out what the kernel will do with a packet, whichever program wrote the rule: iptables-nft alone writes
//! the same condition in several ways, depending on its version. What isn't understood is recorded as unknown, with the
//! names of its expressions.

use packets::rules::flags::{CtState, ct_state, of_states, tracked};
use packets::rules::nftables::{field_name, is_of, masked, nfproto};
use packets::rules::{
    Action, Bits, Condition, Counters, Effect, Family, Field, Intervals, LOOPBACK, LOOPBACK_INDEX, Name, Nat, Rule,
    Set, TableFamily, Values, interface, without_verdict,
};

use super::expression::{Expression, Verdict};
use super::header::{self, IPV4_PROTOCOL, IPV6_PROTOCOL, META_FIELDS, PAYLOAD_FIELDS, TCP_FLAGS};
use super::number::{bits_of, interval, network};
use super::register::{Loaded, Registers};
use super::uapi::*;
use super::user_data;
use crate::netlink::message::{self, Attributes, Malformed, be64};
use crate::xt::{self, NF_NAT_RANGE_PROTO_SPECIFIED};

/// Tells the name of the device that has a number, if it is known.
pub(crate) type Devices<'a> = &'a dyn Fn(u32) -> Option<Vec<u8>>;

/// The name of the only device whose number says which one it is.
pub(crate) fn only_loopback(index: u32) -> Option<Vec<u8>> {
    (index == LOOPBACK_INDEX).then(|| LOOPBACK.to_vec())
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

struct Reader<'a> {
    sets: &'a [Set],
    devices: Devices<'a>,
    /// The family of all packets that get as far as the current expression, if it is known.
    family: Option<Family>,
    registers: Registers,
    rule: Rule,
    /// The expression, if any, that changes the packet and so perhaps where it goes.
    changes: Option<String>,
    decided: bool,
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
            registers: Registers::default(),
            rule: Rule::new(Vec::new(), Action::Continue(None)),
            changes: None,
            decided: false,
        }
    }

    fn finish(mut self) -> Rule {
        match (&self.rule.action, self.changes.take()) {
            (Action::Continue(_), Some(change)) => self.rule.action = Action::Unknown(change),
            (Action::Continue(_), None) => {
                (self.rule.action, self.rule.effects) = without_verdict(std::mem::take(&mut self.rule.effects));
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
        self.registers.load(register, loaded);
    }

    fn unknown(&mut self, text: impl Into<String>) {
        self.rule.conditions.push(Condition::Unknown(text.into()));
    }

    /// The condition of this expression on what a register holds.
    fn not_understood(&self, register: u32, expression: &str) -> Condition {
        Condition::Unknown(self.registers.describe(register) + expression)
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
        let conditions = self.rule.conditions.len();
        let done = self
            .rule
            .effects
            .iter()
            .find(|effect| !matches!(effect, Effect::Other(_)));
        let done = done.map(|effect| effect.text().to_owned());
        self.next(expression)?;
        if let Some(done) = done
            && self.rule.conditions.len() > conditions
        {
            // It was done whether the condition holds or not.
            self.rule.conditions.truncate(conditions);
            self.decide(Action::Unknown(done));
        }
        Ok(())
    }

    fn next(&mut self, expression: Expression<'a>) -> Result<(), Malformed> {
        match expression {
            Expression::Counter { packets, bytes } => {
                self.rule.counters = self.rule.counters.or(Some(Counters { packets, bytes }));
            }
            Expression::Meta { key, register } => {
                let known = META_FIELDS.into_iter().find(|(_, known)| *known == key);
                let loaded = match known {
                    Some((field, _)) => self.whole(field),
                    None if key == libc::NFT_META_PROTOCOL => Loaded::EtherType,
                    None if key == libc::NFT_META_IIF => Loaded::Index(Field::InInterface),
                    None if key == libc::NFT_META_OIF => Loaded::Index(Field::OutInterface),
                    None => Loaded::Other("[meta]".to_owned()),
                };
                self.load(register, loaded);
            }
            Expression::Payload {
                register,
                base,
                offset,
                length,
            } => {
                let loaded = self.payload((base, offset, length));
                self.load(register, loaded);
            }
            Expression::Conntrack { key, register, .. } => {
                let loaded = match key {
                    libc::NFT_CT_STATE => Loaded::State(u32::MAX),
                    libc::NFT_CT_STATUS => Loaded::Status(u32::MAX),
                    libc::NFT_CT_DIRECTION => Loaded::Direction,
                    libc::NFT_CT_MARK => self.whole(Field::ConnectionMark),
                    _ => Loaded::Other("[ct]".to_owned()),
                };
                self.load(register, loaded);
            }
            Expression::SetConntrack {
                key,
                register,
                direction,
            } => match (key, direction) {
                (libc::NFT_CT_MARK, _) => self.set_mark(Field::ConnectionMark, register),
                (libc::NFT_CT_ZONE, Some(IP_CT_DIR_ORIGINAL)) => self.effect("[ct zone]"),
                // A connection's tracked addresses are looked up by zone, and the replies' zone is not set here: they
                // may not be translated back.
                (libc::NFT_CT_ZONE, _) => self.decide(Action::Unknown("[ct zone]".to_owned())),
                _ => self.other(b"ct"),
            },
            Expression::Mask {
                from, to, mask, xor, ..
            } => {
                let loaded = self.mask(from, mask.0, xor.0);
                let text = || Loaded::Other(format!("{}[bitwise]", self.registers.describe(from)));
                self.load(to, loaded.unwrap_or_else(text));
            }
            Expression::ByteOrder {
                from,
                to,
                operation: libc::NFT_BYTEORDER_HTON,
                ..
            } => {
                let mut loaded = self
                    .registers
                    .get(from)
                    .cloned()
                    .unwrap_or(Loaded::Other("[byteorder]".to_owned()));
                if let Loaded::Field { host_order, .. } = &mut loaded {
                    *host_order = false;
                }
                self.load(to, loaded);
            }
            Expression::ByteOrder { .. } => self.other(b"byteorder"),
            Expression::Value { register, value } => self.load(register, Loaded::Value(value.0.to_vec())),
            Expression::Compare {
                operation,
                register,
                value,
            } => {
                let condition = self.compare(operation, register, value.0);
                self.condition(condition.unwrap_or_else(|| self.not_understood(register, "[cmp]")));
            }
            Expression::Range {
                register,
                operation,
                first,
                last,
            } => {
                let negated = operation == libc::NFT_RANGE_NEQ;
                let condition = self.range(register, negated, first.0, last.0);
                self.condition(condition.unwrap_or_else(|| self.not_understood(register, "[range]")));
            }
            Expression::Lookup {
                register,
                set,
                to,
                flags,
            } => {
                let negated = flags.unwrap_or_default() as i32 & libc::NFT_LOOKUP_F_INV != 0;
                self.look_up(register, set.0, to, negated);
            }
            Expression::Match { name, revision, info } => match xt::read_match(name.0, revision, info.0)? {
                xt::Read::Comment(comment) => self.rule.comment = Some(comment),
                xt::Read::Conditions(conditions) => match &self.changes {
                    Some(change) => self.unknown(change.clone()),
                    None => self.rule.conditions.extend(conditions),
                },
            },
            Expression::Target { name, revision, info } => {
                let family = self.family.unwrap_or(Family::V4);
                match xt::read_target(name.0, revision, info.0, family)? {
                    xt::Target::Effect(effect) => self.rule.effects.push(effect),
                    xt::Target::Action(action) => self.decide(action),
                }
            }
            Expression::SetOption {
                operation: NFT_EXTHDR_OP_TCPOPT,
                ..
            } => self.effect("[exthdr]"),
            Expression::SetOption { .. } => self.other(b"exthdr"),
            Expression::SetObject {
                kind: NFT_OBJECT_COUNTER,
            } => self.effect("[objref]"),
            Expression::SetObject { .. } => self.other(b"objref"),
            Expression::SetPayload { base, offset, length } => {
                match header::is_harmless(self.family, (base, offset, length)) {
                    true => self.effect("[payload]"),
                    false => self.changes = Some("[payload]".to_owned()),
                }
            }
            // It decides whom the packet is for.
            Expression::SetMeta {
                key: libc::NFT_META_PKTTYPE,
                ..
            } => self.changes = Some("[meta pkttype]".to_owned()),
            Expression::SetMeta {
                key: libc::NFT_META_MARK,
                register,
            } => self.set_mark(Field::Mark, register),
            Expression::SetMeta { .. } => self.effect("[meta]"),
            Expression::Decide { verdict, .. } => self.verdict(verdict),
            // Flags beside that of the ports (random, persistent) don't change which port it may be.
            Expression::Redirect {
                first: Some(_), flags, ..
            } if flags.unwrap_or_default() & NF_NAT_RANGE_PROTO_SPECIFIED == 0 => {
                self.other(b"redir");
            }
            Expression::Redirect { first, last, .. } => {
                let action = self.redirect(first, last);
                self.decide(action);
            }
            Expression::Nat {
                kind,
                family,
                first_address,
                last_address,
                first_port,
                last_port,
            } => {
                // Of the other family, the next rule is asked (`nft_nat_inet_eval` in net/netfilter/nft_nat.c).
                let of = Family::ALL.into_iter().find(|&of| nfproto(of) == family as u128);
                if let (None, Some(of)) = (self.family, of) {
                    self.condition(is_of(of));
                }
                let nat = self.nat(
                    kind == libc::NFT_NAT_DNAT,
                    (first_address, last_address),
                    (first_port, last_port),
                );
                self.decide(Action::Nat(nat));
            }
            Expression::Other(name) => self.other(name),
        }
        Ok(())
    }

    /// All of a field, as `meta` and `ct` load it.
    fn whole(&self, field: Field) -> Loaded {
        let is_set = |effect: &Effect| matches!(effect, Effect::Mark { field: set, .. } if *set == field);
        match self.rule.effects.iter().any(is_set) {
            // Conditions are on what it was before.
            true => Loaded::Other("[meta]".to_owned()),
            false => Loaded::Field {
                field,
                bytes: (field.bits() / 8) as usize,
                host_order: field.is_in_host_order(),
            },
        }
    }

    fn set_mark(&mut self, field: Field, register: u32) {
        let to = match self.registers.get(register) {
            Some(Loaded::Value(value)) => value.first_chunk().map(|number| {
                let number = u32::from_ne_bytes(*number);
                Bits::constant(field, number.into())
            }),
            Some(&Loaded::Field {
                field: from @ (Field::Mark | Field::ConnectionMark),
                host_order: true,
                ..
            }) => Some(Bits::all(from)),
            Some(&Loaded::Bits(bits)) if matches!(bits.field, Field::Mark | Field::ConnectionMark) => Some(bits),
            _ => None,
        };
        let what = match to {
            Some(Bits { mask: 0, xor, .. }) => format!("{xor:#x}"),
            Some(bits) if bits == Bits::all(bits.field) => field_name(bits.field).to_owned(),
            Some(Bits { field, mask, xor }) => format!("{} & {mask:#x} ^ {xor:#x}", field_name(field)),
            None => "[...]".to_owned(),
        };
        let text = format!("{} set {what}", field_name(field));
        self.rule.effects.push(Effect::Mark { field, to, text });
    }

    /// What `dnat to` or `snat to` say.
    fn nat(&self, is_destination: bool, address: (Option<u32>, Option<u32>), port: (Option<u32>, Option<u32>)) -> Nat {
        let verb = if is_destination { "dnat" } else { "snat" };
        let value = |register: Option<u32>| match self.registers.get(register?) {
            Some(Loaded::Value(value)) => Some(value.clone()),
            _ => None,
        };
        let single = address
            .1
            .is_none_or(|last| Some(last) == address.0 || value(Some(last)) == value(address.0));
        let known = value(address.0)
            .filter(|_| single)
            .and_then(|value| message::address(&value).ok());
        let ports = match port {
            (None, _) => None,
            (Some(first), last) => self.port(first).zip(self.port(last.unwrap_or(first))),
        };
        // Where it is, or may be, something that a map says.
        if (known.is_none() && address.0.is_some()) || (ports.is_none() && port.0.is_some()) {
            return Nat::somewhere(format!("{verb} to a mapped port"));
        }
        Nat::to(&format!("{verb} to"), known, ports)
    }

    fn payload(&self, (base, offset, length): (i32, u32, u32)) -> Loaded {
        let is_protocol = match self.family {
            Some(Family::V4) => (base, offset, length) == IPV4_PROTOCOL,
            Some(Family::V6) => (base, offset, length) == IPV6_PROTOCOL,
            None => false,
        };
        if is_protocol {
            return self.whole(Field::Protocol);
        }
        if (base, offset, length) == TCP_FLAGS {
            return Loaded::Bits(Bits::all(Field::TcpFlags));
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

    /// What a register holds, under a mask and with bits turned round; none if it isn't understood.
    fn mask(&self, from: u32, mask: &[u8], xor: &[u8]) -> Option<Loaded> {
        let is_plain = xor.iter().all(|&byte| byte == 0);
        let flags = || Some(u32::from_ne_bytes(*mask.first_chunk().filter(|_| is_plain)?));
        let field = match self.registers.get(from)? {
            Loaded::State(_) => return flags().map(Loaded::State),
            Loaded::Status(_) => return flags().map(Loaded::Status),
            &Loaded::Bits(Bits { field, xor: 0, .. }) => field,
            &Loaded::Field {
                field,
                bytes,
                host_order,
            } => match field {
                Field::Source(_) | Field::Destination(_) if is_plain && mask.len() == bytes => {
                    let mask = mask.to_vec();
                    return Some(Loaded::Masked { field, mask });
                }
                Field::SourcePort | Field::DestinationPort => field,
                Field::Mark | Field::ConnectionMark if host_order => field,
                _ => return None,
            },
            _ => return None,
        };
        let (mask, xor) = (bits_of(field, mask)?, bits_of(field, xor)?);
        Some(Loaded::Bits(Bits { field, mask, xor }))
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

    /// The condition that a comparison is; none if it isn't understood.
    fn compare(&self, operation: i32, register: u32, value: &[u8]) -> Option<Condition> {
        let negated = operation == libc::NFT_CMP_NEQ;
        let is_equality = negated || operation == libc::NFT_CMP_EQ;
        let loaded = self.registers.get(register)?;
        if let &Loaded::Field {
            field,
            bytes,
            host_order,
        } = loaded
        {
            let (first, last) = interval(field, bytes, host_order, value)?;
            let up_to = |last: Option<u128>| last.map_or(Values::Listed(Vec::new()), |last| (0, last).into());
            let from = |first: Option<u128>| match first.filter(|&first| first <= field.largest()) {
                Some(first) => (first, field.largest()).into(),
                None => Values::Listed(Vec::new()),
            };
            let values: Values = match operation {
                _ if is_equality => (first, last).into(),
                // The kernel compares the bytes in network order.
                _ if host_order => return None,
                libc::NFT_CMP_LT => up_to(first.checked_sub(1)),
                libc::NFT_CMP_LTE => up_to(Some(last)),
                libc::NFT_CMP_GT => from(last.checked_add(1)),
                libc::NFT_CMP_GTE => from(Some(first)),
                _ => return None,
            };
            return Some(Condition::compare(field, values, negated));
        }
        if !is_equality {
            return None;
        }
        let number = || value.try_into().map(u32::from_ne_bytes).ok();
        Some(match loaded {
            Loaded::Masked { field, mask } => Condition::compare(*field, network(*field, value, mask)?, negated),
            Loaded::EtherType => {
                let number = match value {
                    [0x08, 0x00] => nfproto(Family::V4),
                    [0x86, 0xdd] => nfproto(Family::V6),
                    _ => 0,
                };
                Condition::compare(Field::Family, number, negated)
            }
            Loaded::Index(field) => Condition::compare(*field, interface(&(self.devices)(number()?)?), negated),
            Loaded::State(mask) => {
                let number = number()?;
                ct_state(|state| (state.bit() & mask == number) != negated)
            }
            &Loaded::Bits(Bits { field, mask, xor }) => masked(field, mask, bits_of(field, value)? ^ xor, negated),
            Loaded::Status(mask) if mask & !(IPS_SRC_NAT | IPS_DST_NAT) == 0 => {
                let number = number()?;
                let operator = if negated { "!=" } else { "==" };
                let text = format!("ct status & {mask:#x} {operator} {number:#x}");
                tracked(text, |tracked| {
                    let bit = |is_set, bit| if is_set { bit } else { 0 };
                    let status = bit(tracked.has_snat, IPS_SRC_NAT) | bit(tracked.has_dnat, IPS_DST_NAT);
                    tracked.has_entry() && (status & mask == number) != negated
                })
            }
            Loaded::Direction => {
                let not = if negated { "!= " } else { "" };
                let &[way] = value else { return None };
                let name = if way == IP_CT_DIR_ORIGINAL { "original" } else { "reply" };
                tracked(format!("ct direction {not}{name}"), |tracked| {
                    tracked.has_entry() && (u8::from(tracked.is_reply) == way) != negated
                })
            }
            _ => return None,
        })
    }

    /// The condition that a comparison with an interval is; none if it isn't understood.
    fn range(&self, register: u32, negated: bool, first: &[u8], last: &[u8]) -> Option<Condition> {
        let &Loaded::Field {
            field,
            bytes,
            host_order: false,
        } = self.registers.get(register)?
        else {
            return None;
        };
        let (first, _) = interval(field, bytes, false, first)?;
        let (_, last) = interval(field, bytes, false, last)?;
        Some(Condition::compare(field, (first, last), negated))
    }

    fn look_up(&mut self, register: u32, name: &[u8], to: Option<u32>, negated: bool) {
        let set = self.sets.iter().find(|set| set.name.as_bytes() == name);
        let (condition, field) = set
            .and_then(|set| self.is_in(register, set, negated))
            .unwrap_or_else(|| (self.not_understood(register, "[lookup]"), None));
        if to == Some(libc::NFT_REG_VERDICT as u32) {
            return self.decide(match field {
                Some(field) => Action::Map(field, Name::from(name)),
                None => Action::Unknown("[vmap]".to_owned()),
            });
        }
        self.rule.conditions.push(condition);
        if let Some(to) = to {
            let mapped = field.map(|field| Loaded::Mapped {
                field,
                map: Name::from(name),
            });
            self.load(to, mapped.unwrap_or_else(|| Loaded::Other("[map]".to_owned())));
        }
    }

    /// The condition that what a register holds is in a set, or isn't, if negated; and the field, if a verdict map may
    /// be asked for its numbers. None if it isn't understood.
    fn is_in(&self, register: u32, set: &Set, negated: bool) -> Option<(Condition, Option<Field>)> {
        match *self.registers.get(register)? {
            Loaded::State(u32::MAX) => {
                let states = set.numbers_of(Field::State)?;
                let is_in = |state: CtState| {
                    let of_state = of_states(&Intervals::one(state.bit().into()));
                    states.meets(of_state.as_slice()) != negated
                };
                Some((ct_state(is_in), Some(Field::State)))
            }
            Loaded::Index(field) => {
                // Numbers of devices are in the machine's order, as marks are.
                let numbers = set.numbers_of(Field::Mark)?;
                let numbers = numbers.as_slice().iter().flat_map(|&(first, last)| first..=last);
                let name = |index: u128| {
                    let name = interface(&(self.devices)(u32::try_from(index).ok()?)?);
                    Some((name, name))
                };
                let names = Values::Listed(numbers.map(name).collect::<Option<_>>()?);
                Some((Condition::compare(field, names, negated), None))
            }
            // A set whose elements have several fields is looked up by several registers; this one is only a part of
            // the key.
            Loaded::Field {
                field,
                bytes,
                host_order,
            } if bytes * 8 == field.bits() as usize && set.bits == field.bits() => {
                set.elements.as_ref()?;
                let values = match host_order {
                    false => Values::Set(set.name.clone()),
                    // The set's elements are in the machine's byte order.
                    true => Values::Listed(set.numbers_of(field)?.as_slice().to_vec()),
                };
                // An interval's elements are in network order, which the map doesn't tell.
                let field_of_map = (host_order == field.is_in_host_order()).then_some(field);
                Some((Condition::compare(field, values, negated), field_of_map))
            }
            _ => None,
        }
    }

    fn verdict(&mut self, verdict: Verdict<'_>) {
        if verdict != Verdict::Continue {
            self.decide(action(verdict));
        }
    }

    /// The port that a register holds, if it is a constant of the rule.
    fn port(&self, register: u32) -> Option<u16> {
        match self.registers.get(register) {
            Some(Loaded::Value(value)) => value.first_chunk().copied().map(u16::from_be_bytes),
            _ => None,
        }
    }

    fn redirect(&self, first: Option<u32>, last: Option<u32>) -> Action {
        let Some((first, last)) = first.zip(last.or(first)) else {
            return Action::Redirect(None);
        };
        if let Some(Loaded::Mapped { field, map }) = self.registers.get(first).filter(|_| first == last) {
            return Action::RedirectByMap(*field, map.clone());
        }
        match self.port(first).zip(self.port(last)) {
            Some(ports) => Action::Redirect(Some(ports)),
            // What several fields or a changing map say isn't followed.
            None => Action::Redirect(Some((0, u16::MAX))),
        }
    }

    fn other(&mut self, name: &[u8]) {
        let text = format!("[{}]", Name::from(name));
        // It may load something, into any register.
        self.registers.clear();
        match name {
            b"nat" => self.decide(Action::Nat(Nat::somewhere(text))),
            b"masq" => self.decide(Action::Nat(Nat::somewhere("masquerade"))),
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

#[cfg(test)]
mod tests {
    use packets::rules::examples;
    use packets::rules::nftables::NftRule;
    use packets::rules::xtables::IptablesRule;

    use super::*;
    use crate::netlink::message::recorded;
    use crate::nf_tables::expression::Data;

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
                Condition::Flags { numbers, .. } => {
                    let numbers = Intervals::new(numbers.iter().copied());
                    let held =
                        |state: &&CtState| of_states(&Intervals::one(state.bit().into())).meets(numbers.as_slice());
                    Some(format!(" (of {} states)", CtState::ALL.iter().filter(held).count()))
                }
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
            let (value, key) = (Data(&[1; 64]), libc::NFT_META_IIFNAME);
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
