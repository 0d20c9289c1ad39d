//! Rules as iptables-save prints them.

use std::fmt;

use crate::field::{Field, IptablesOption};
use crate::flags::{CtState, TCP_FLAGS, TrackingQuestion};
use crate::name::Name;
use crate::nftables::{
    NftAction, NftCondition, NftEffect, address_types, asked, element, interface_name, tcp_flags, unreachable_codes,
};
use crate::rule::{
    Action, Bits, Bound, Condition, Context, Effect, Label, Nat, NatKind, Rejection, Rule, Values, span,
};
use crate::subnet::{ip, subnet};

/// The most port references that one multiport match holds (`XT_MULTI_PORTS` in linux/netfilter/xt_multiport.h); a range
/// counts two.
pub const MULTIPORT_REFERENCES: usize = 15;

/// A rule without its chain, as iptables-save writes it after `-A CHAIN`; with `{:#}` as linkerd-init logs it, its
/// comment unquoted. What isn't understood is in brackets.
pub struct IptablesRule<'a>(pub &'a Rule);

impl fmt::Display for IptablesRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In iptables-save's order: the header's fields first, in whichever order they are compared.
        for place in 0..=OTHERS {
            for condition in self.0.conditions.iter().filter(|condition| order(condition) == place) {
                write_condition(f, condition)?;
            }
        }
        if let Some(lookup) = &self.0.lookup {
            write!(f, "[{}] ", asked(self.0, lookup))?;
        }
        if let Some(comment) = &self.0.comment {
            if f.alternate() {
                write!(f, "-m comment --comment {comment} ")?;
            } else {
                write!(f, "-m comment --comment \"{}\" ", escaped(comment))?;
            }
        }
        let effects = self.0.effects.as_slice();
        if self.0.action == Action::Continue && !effects.is_empty() {
            f.write_str("-j ")?;
            for (index, effect) in effects.iter().enumerate() {
                f.write_str(if index > 0 { " " } else { "" })?;
                write_effect(f, effect)?;
            }
            return Ok(());
        }
        // Only nft's rules have effects beside a verdict.
        for effect in effects {
            write!(f, "[{}] ", NftEffect(effect).to_string().trim_matches(['[', ']']))?;
        }
        match &self.0.action {
            Action::Continue | Action::ByCase(_) => Ok(()),
            Action::Accept => f.write_str("-j ACCEPT"),
            Action::Drop => f.write_str("-j DROP"),
            Action::Return => f.write_str("-j RETURN"),
            Action::Jump(chain) => write!(f, "-j {chain}"),
            Action::Goto(chain) => write!(f, "-g {chain}"),
            Action::Redirect(None) => f.write_str("-j REDIRECT"),
            Action::Redirect(Some(ports)) => write!(f, "-j REDIRECT --to-ports {}", span(*ports)),
            Action::Nat(nat) => write!(f, "-j {}", translation(nat)),
            Action::Tproxy { port, .. } => write!(f, "-j TPROXY --on-port {} [...]", port.unwrap_or_default()),
            Action::Reject(rejection) => write!(f, "-j REJECT --reject-with {}", reject_with(*rejection)),
            Action::NotUnderstood(Label::Extension(name)) => write!(f, "-j {name}"),
            action @ Action::NotUnderstood(_) => write!(f, "-j {}", NftAction(action)),
        }
    }
}

fn translation(nat: &Nat) -> String {
    let words = match (nat.kind, nat.addresses, nat.ports) {
        (NatKind::Netmap, ..) => return "NETMAP [...]".to_owned(),
        (NatKind::Masquerade, _, None) => "MASQUERADE".to_owned(),
        (NatKind::Masquerade, _, Some(ports)) => format!("MASQUERADE --to-ports {}", span(ports)),
        (NatKind::Destination, None, None) => "DNAT [...]".to_owned(),
        (NatKind::Source, None, None) => "SNAT [...]".to_owned(),
        (NatKind::Destination, ..) => format!("DNAT --to-destination {}", nat.place()),
        (NatKind::Source, ..) => format!("SNAT --to-source {}", nat.place()),
    };
    // `NF_NAT_RANGE_PROTO_RANDOM` and the next ones; the last is a port that ports are counted from.
    let options = [(4, " --random"), (16, " --random-fully"), (8, " --persistent"), (32, " [...]")].into_iter();
    let options = options.filter(|(bit, _)| nat.flags & bit != 0);
    options.fold(words, |words, (_, option)| words + option)
}

fn reject_with(rejection: Rejection) -> String {
    match rejection {
        Rejection::Reset => "tcp-reset".to_owned(),
        Rejection::Icmpx(code) => format!("[icmpx {code}]"),
        Rejection::Icmp(family, code) => match unreachable_codes(family).find(|(known, ..)| *known == code) {
            Some((_, _, name)) => name.to_owned(),
            None => format!("[icmp {code}]"),
        },
    }
}

/// The effect of a rule without a verdict, after `-j`.
fn write_effect(f: &mut fmt::Formatter<'_>, effect: &Effect) -> fmt::Result {
    let (field, to) = match effect {
        Effect::Untrack => return f.write_str("CT --notrack"),
        Effect::Other(Label::Extension(name)) => return write!(f, "{name}"),
        Effect::Other(_) => return write!(f, "{}", NftEffect(effect)),
        Effect::Mark { field, to } => (*field, *to),
    };
    let all = Field::Mark.largest();
    match (field, to) {
        (Field::HopLimit, Some(Bits { xor, .. })) => write!(f, "HL --hl-set {xor}"),
        (Field::HopLimit, None) => f.write_str("HL [...]"),
        (Field::Mark, Some(Bits { field: Field::ConnectionMark, mask, xor: 0 })) => {
            write!(f, "CONNMARK --restore-mark --nfmask {all:#x} --ctmask {mask:#x}")
        }
        (Field::ConnectionMark, Some(Bits { field: Field::Mark, mask, xor: 0 })) => {
            write!(f, "CONNMARK --save-mark --nfmask {mask:#x} --ctmask {all:#x}")
        }
        (Field::Mark, Some(Bits { field: Field::Mark, mask, xor })) => {
            write!(f, "MARK --set-xmark {xor:#x}/{:#x}", all & !mask)
        }
        (Field::ConnectionMark, Some(Bits { field: Field::ConnectionMark, mask, xor })) => {
            write!(f, "CONNMARK --set-xmark {xor:#x}/{:#x}", all & !mask)
        }
        (Field::ConnectionMark, None) => f.write_str("CONNMARK [...]"),
        (Field::Mark, None) => f.write_str("MARK [...]"),
        _ => write!(f, "{}", NftEffect(effect)),
    }
}

/// A name or a comment as it stands between double quotes: iptables-save escapes these (`xtables_save_string` in iptables'
/// xtables.c), and iptables-restore reads whatever comes after a backslash (`add_param_to_argv` in xshared.c).
pub fn escaped(name: &Name) -> Name {
    let mut escaped = Vec::with_capacity(name.as_bytes().len());
    for &byte in name.as_bytes() {
        if matches!(byte, b'"' | b'\'' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    Name::from(&escaped)
}

/// The place in iptables-save's order of conditions that it doesn't write with the header's fields.
const OTHERS: u8 = 5;

/// The place in which iptables-save writes a condition.
fn order(condition: &Condition) -> u8 {
    match (condition, condition.field().map(|field| field.facts().iptables)) {
        // A list of addresses is another match's.
        (Condition::In { values: Values::Listed(_), .. }, _) => OTHERS,
        (_, Some(IptablesOption::Header(place, _))) => place,
        _ => OTHERS,
    }
}

fn write_condition(f: &mut fmt::Formatter<'_>, condition: &Condition) -> fmt::Result {
    let (field, values, negated) = match condition {
        Condition::In { field, values, negated } => (*field, values, *negated),
        &Condition::Masked { field, mask, number, negated } => {
            return write_masked(f, field, (mask, number), negated, condition);
        }
        Condition::Context(context) => return write_context(f, context),
        Condition::Constant { of: Label::Fragment, holds } => return write!(f, "{}-f ", not(*holds)),
        Condition::Constant { of, .. } | Condition::NotUnderstood(of) => match of {
            Label::Extension(name) => return write!(f, "-m {name} [...] "),
            _ => return write!(f, "{} ", NftCondition(condition)),
        },
    };
    let not = not(negated);
    let (list, is_list) = match values {
        Values::Set(name) => return write!(f, "{not}[{field:?} @{name}] "),
        Values::Interval(interval) => (std::slice::from_ref(interval), false),
        Values::Listed(list) => (list.as_slice(), true),
    };
    match (field.facts().iptables, list) {
        (IptablesOption::Header(_, option), &[interval]) if !is_list => {
            write!(f, "{not}{option} {} ", in_header(field, interval))
        }
        (IptablesOption::Header(..), &[(first, last)])
            if let Field::Source(family) | Field::Destination(family) = field
                && let (Some(first), Some(last)) = (ip(family, first), ip(family, last)) =>
        {
            let side = if field == Field::Source(family) { "src" } else { "dst" };
            write!(f, "-m iprange {not}--{side}-range {first}-{last} ")
        }
        (IptablesOption::Port(option), _) if is_list => {
            write!(f, "-m multiport {not}{option}s {} ", numbers(list, ':'))
        }
        (IptablesOption::Port(option), _) => write!(f, "-m tcp {not}{option} {} ", numbers(list, ':')),
        (IptablesOption::Owner(_), &[(0, last)]) if last == field.largest() => {
            write!(f, "-m owner {not}--socket-exists ")
        }
        (IptablesOption::Conntrack(option), &[interval]) if field.address_family().is_some() => {
            write!(f, "-m conntrack {not}{option} {} ", element(field, interval))
        }
        (IptablesOption::Conntrack(option), _) => write!(f, "-m conntrack {not}{option} {} ", numbers(list, ':')),
        (IptablesOption::Owner(option), _) => write!(f, "-m owner {not}{option} {} ", numbers(list, '-')),
        _ => match field {
            Field::State if let Some(question) = TrackingQuestion::of(list) => write_question(f, &question),
            Field::HopLimit if let &[(first, last)] = list => match (first, last) {
                _ if first == last => write!(f, "-m hl {not}--hl-eq {first} "),
                (0, _) => write!(f, "-m hl --hl-lt {} ", last + 1),
                _ => write!(f, "-m hl --hl-gt {} ", first.saturating_sub(1)),
            },
            Field::PacketType if let &[(0, 0)] = list => write!(f, "-m pkttype {not}--pkt-type unicast "),
            Field::PacketType if let &[kind] = list => {
                write!(f, "-m pkttype {not}--pkt-type {} ", element(field, kind))
            }
            Field::IcmpType if let &[(kind, _)] = list => write!(f, "-m icmp6 {not}--icmpv6-type {kind} "),
            _ => write!(f, "{not}[{field:?} {}] ", numbers(list, ':')),
        },
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

fn write_masked(
    f: &mut fmt::Formatter<'_>,
    field: Field,
    (mask, number): (u128, u128),
    negated: bool,
    condition: &Condition,
) -> fmt::Result {
    let not = not(negated);
    let masked = |number: u128, mask: u128| match mask {
        whole if whole == field.largest() => format!("{number:#x}"),
        mask => format!("{number:#x}/{mask:#x}"),
    };
    match field {
        Field::Mark => write!(f, "-m mark {not}--mark {} ", masked(number, mask)),
        Field::ConnectionMark => write!(f, "-m connmark {not}--mark {} ", masked(number, mask)),
        Field::TcpFlags => {
            let names = TCP_FLAGS.map(str::to_uppercase);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let flags = |bits| match tcp_flags(bits, &names).join(",") {
                none if none.is_empty() => "NONE".to_owned(),
                flags => flags,
            };
            write!(f, "-m tcp {not}--tcp-flags {} {} ", flags(mask), flags(number))
        }
        Field::Source(family) | Field::Destination(family)
            if let (Some(number), Some(mask)) = (ip(family, number), ip(family, mask))
                && let IptablesOption::Header(_, option) = field.facts().iptables =>
        {
            write!(f, "{not}{option} {number}/{mask} ")
        }
        _ => write!(f, "[{}] ", NftCondition(condition)),
    }
}

fn write_context(f: &mut fmt::Formatter<'_>, context: &Context) -> fmt::Result {
    match context {
        Context::AddressType { is_source, types, negated, of_device, .. } => {
            let side = if *is_source { "src" } else { "dst" };
            let types = address_types(*types).join(",").to_uppercase();
            let limit = match of_device {
                None => "",
                Some(Field::InInterface) => "--limit-iface-in ",
                Some(_) => "--limit-iface-out ",
            };
            write!(f, "-m addrtype {}--{side}-type {types} {limit}", not(*negated))
        }
        Context::ReversePath { xt_flags, .. } => {
            let options = [" --loose", " --validmark", " --accept-local", " --invert"].into_iter().enumerate();
            let set = options.filter(|(bit, _)| xt_flags.unwrap_or_default() >> bit & 1 != 0);
            let set: Vec<&str> = set.map(|(_, option)| option).collect();
            write!(f, "-m rpfilter{} ", set.concat())
        }
        Context::IpSet { set, are_sources, negated, .. } => {
            let sides: Vec<&str> = are_sources.iter().map(|is_source| if *is_source { "src" } else { "dst" }).collect();
            write!(f, "-m set {}--match-set {set} {} ", not(*negated), sides.join(","))
        }
        Context::SocketClass { classes, negated } => {
            let classes: Vec<String> = classes.iter().map(u32::to_string).collect();
            write!(f, "-m cgroup {}--cgroup {} ", not(*negated), classes.join(","))
        }
        Context::Limit { of: Bound::XtRate { period, burst }, .. } => {
            write!(f, "-m limit --limit {} --limit-burst {burst} ", rate(*period))
        }
        Context::Limit { of: Bound::Extension(name), .. } => write!(f, "-m {name} [...] "),
        Context::Limit { of: Bound::Connections(most), holds_below } => {
            write!(f, "-m connlimit --connlimit-{} {most} [...] ", if *holds_below { "upto" } else { "above" })
        }
        Context::Limit { .. } => write!(f, "[{}] ", NftCondition(&Condition::Context(context.clone()))),
    }
}

/// The rate of `struct xt_rateinfo`: 10,000 over the packets of a second.
fn rate(period: u32) -> String {
    const UNITS: [(&str, u32); 4] = [("day", 864_000_000), ("hour", 36_000_000), ("min", 600_000), ("sec", 10_000)];
    let is_too_long = |length: u32| period == 0 || length / period < length % period;
    // The last one before the first that doesn't fit.
    let [day, shorter @ ..] = UNITS;
    let (name, length) = shorter.into_iter().take_while(|(_, length)| !is_too_long(*length)).last().unwrap_or(day);
    format!("{}/{name}", length.checked_div(period).unwrap_or_default())
}

fn write_question(f: &mut fmt::Formatter<'_>, question: &TrackingQuestion) -> fmt::Result {
    match question {
        TrackingQuestion::State { states, has_snat, has_dnat, negated } => {
            // In iptables-save's order.
            let order = [CtState::Invalid, CtState::New, CtState::Related, CtState::Established, CtState::Untracked];
            let named = order.into_iter().filter(|state| states.contains(state));
            let mut names: Vec<String> = named.map(|state| state.to_string().to_uppercase()).collect();
            let nat = [(*has_snat, "SNAT"), (*has_dnat, "DNAT")].into_iter();
            names.extend(nat.filter(|(is_so, _)| *is_so).map(|(_, name)| name.to_owned()));
            write!(f, "-m conntrack {}--ctstate {} ", not(*negated), names.join(","))
        }
        TrackingQuestion::Direction { is_reply, .. } => {
            write!(f, "-m conntrack --ctdir {} ", if *is_reply { "REPLY" } else { "ORIGINAL" })
        }
        TrackingQuestion::Status { mask, bits, negated } => {
            write!(f, "{}[ct status & {mask:#x} == {bits:#x}] ", not(*negated))
        }
    }
}

/// Numbers of a header's field as iptables-save writes them: `+` ends a prefix of interfaces, and a single address is a
/// subnet too.
fn in_header(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => interface_name(first, last).replace('*', "+"),
        _ => match field.address_family().and_then(|family| subnet(family, (first, last))) {
            Some(subnet) => subnet.to_string(),
            None => element(field, (first, last)),
        },
    }
}

/// `80,8000:8100`, with this sign between the ends of an interval.
fn numbers(list: &[(u128, u128)], to: char) -> String {
    let mut text = String::new();
    for (first, last) in list {
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}{to}{last}") };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::interface;
    use crate::testing::{by_map, commented, effect_of, not, rule, to_port};
    use crate::{Family, TCP};

    fn written(rule: &Rule) -> String {
        IptablesRule(rule).to_string()
    }

    fn listed(field: Field, list: &[(u128, u128)]) -> Condition {
        Condition::is(field, Values::Listed(list.to_vec()))
    }

    /// Each text is of a line that iptables-legacy-save 1.8.9 printed.
    #[test]
    fn rules_of_others_are_written_as_iptables_save_writes_them() {
        let tcp = || Condition::is(Field::Protocol, TCP);
        let ten = || Condition::is(Field::Source(Family::V4), (0x0a00_0000, 0x0aff_ffff));
        let eth0 = interface(b"eth0");
        let names_beginning_with = |name: &[u8]| {
            let first = interface(name);
            (first, first | (u128::MAX >> (8 * name.len())))
        };
        let ports = [(80, 80), (90, 100)];
        for (conditions, action, text) in [
            (vec![tcp(), to_port(80)], Action::Accept, "-p tcp -m tcp --dport 80 -j ACCEPT"),
            (
                vec![tcp(), not(Condition::is(Field::DestinationPort, (80, 90)))],
                Action::Drop,
                "-p tcp -m tcp ! --dport 80:90 -j DROP",
            ),
            (vec![tcp(), Condition::is(Field::SourcePort, 80)], Action::Return, "-p tcp -m tcp --sport 80 -j RETURN"),
            (
                vec![tcp(), listed(Field::DestinationPort, &ports)],
                Action::Return,
                "-p tcp -m multiport --dports 80,90:100 -j RETURN",
            ),
            (
                vec![tcp(), not(listed(Field::SourcePort, &[(80, 80), (90, 90)]))],
                Action::Return,
                "-p tcp -m multiport ! --sports 80,90 -j RETURN",
            ),
            // In whichever order they are compared.
            (
                vec![
                    tcp(),
                    Condition::is(Field::OutInterface, eth0),
                    Condition::is(Field::InInterface, names_beginning_with(b"eth")),
                    Condition::is(Field::Destination(Family::V4), (0xc000_0200, 0xc000_02ff)),
                    ten(),
                ],
                Action::Return,
                "-s 10.0.0.0/8 -d 192.0.2.0/24 -i eth+ -o eth0 -p tcp -j RETURN",
            ),
            (
                vec![to_port(1), Condition::NotUnderstood(Label::Extension(Name::from("recent"))), tcp()],
                Action::Accept,
                "-p tcp -m tcp --dport 1 -m recent [...] -j ACCEPT",
            ),
            // Matches come after the header, whatever they look at.
            (
                vec![listed(Field::Source(Family::V4), &[(0x0a00_0001, 0x0a00_0009)]), tcp()],
                Action::Accept,
                "-p tcp -m iprange --src-range 10.0.0.1-10.0.0.9 -j ACCEPT",
            ),
            (vec![not(ten())], Action::Redirect(None), "! -s 10.0.0.0/8 -j REDIRECT"),
            (vec![Condition::is(Field::Source(Family::V4), 0x0a4d_0001)], Action::Return, "-s 10.77.0.1/32 -j RETURN"),
            (vec![Condition::is(Field::Source(Family::V6), 1)], Action::Return, "-s ::1/128 -j RETURN"),
            (
                vec![not(Condition::is(Field::InInterface, eth0)), not(tcp())],
                Action::Accept,
                "! -i eth0 ! -p tcp -j ACCEPT",
            ),
            (vec![Condition::is(Field::Protocol, 17)], Action::Accept, "-p udp -j ACCEPT"),
            (vec![tcp()], Action::Redirect(Some((80, 80))), "-p tcp -j REDIRECT --to-ports 80"),
            (vec![tcp()], Action::Redirect(Some((80, 90))), "-p tcp -j REDIRECT --to-ports 80-90"),
            (vec![], Action::Jump(Name::from("SUB")), "-j SUB"),
            (vec![], Action::Goto(Name::from("SUB")), "-g SUB"),
            (vec![Condition::is(Field::OutInterface, interface(b"lo"))], Action::Return, "-o lo -j RETURN"),
            (
                vec![not(Condition::is(Field::OutInterface, names_beginning_with(b"lo")))],
                Action::Return,
                "! -o lo+ -j RETURN",
            ),
            (vec![Condition::is(Field::Uid, 7)], Action::Return, "-m owner --uid-owner 7 -j RETURN"),
            (vec![Condition::is(Field::Uid, (7, 9))], Action::Return, "-m owner --uid-owner 7-9 -j RETURN"),
            (vec![not(Condition::is(Field::Gid, 7))], Action::Return, "-m owner ! --gid-owner 7 -j RETURN"),
            (vec![], Action::Continue, ""),
            (vec![], Action::Nat(Nat::of(NatKind::Masquerade)), "-j MASQUERADE"),
            (vec![], Action::NotUnderstood(Label::Extension(Name::from("NFQUEUE"))), "-j NFQUEUE"),
        ] {
            let rule = Rule { conditions, ..rule([], action) };
            assert_eq!(written(&rule), text);
        }
        for (comment, shown) in [("a b", "a b"), ("it's \"\u{7f}\"", r#"it\'s \"\u{7f}\""#)] {
            let commented = commented(comment, rule([tcp()], Action::Accept));
            assert_eq!(written(&commented), format!("-p tcp -m comment --comment \"{shown}\" -j ACCEPT"));
        }
    }

    /// iptables has no words for these rules; nft can make them in its tables.
    #[test]
    fn what_iptables_cannot_say_is_in_brackets() {
        let set = |field| Condition::is(field, Values::Set(Name::from("web")));
        for (condition, text) in [
            (set(Field::DestinationPort), "[DestinationPort @web] -j ACCEPT"),
            (not(set(Field::Uid)), "! [Uid @web] -j ACCEPT"),
            (Condition::is(Field::Family, 2), "[Family 2] -j ACCEPT"),
            (listed(Field::Protocol, &[(6, 6), (17, 17)]), "[Protocol 6,17] -j ACCEPT"),
        ] {
            assert_eq!(written(&rule([condition], Action::Accept)), text);
        }
        let log = || Effect::Other(Label::expression("log"));
        let effects = |action| Rule { effects: vec![log(), Effect::Untrack], ..rule([], action) };
        assert_eq!(written(&effects(Action::Accept)), "[log] [notrack] -j ACCEPT");
        assert_eq!(written(&effects(Action::Continue)), "-j [log] CT --notrack");
        let doing = |effect| written(&effect_of([], effect));
        assert_eq!(doing(Effect::Untrack), "-j CT --notrack");
        assert_eq!(doing(Effect::Other(Label::Extension(Name::from("LOG")))), "-j LOG");
        let map = by_map("m", Field::SourcePort, [(1, Action::Drop)]);
        assert_eq!(written(&map), "[tcp sport vmap @m] ");
    }
}
