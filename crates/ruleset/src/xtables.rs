//! Rules as iptables-save prints them.

use std::fmt;

use crate::field::{Field, IptablesOption};
use crate::name::Name;
use crate::nftables::{element, interface_name};
use crate::rule::{Action, Condition, Effect, Nat, Rule, Values, span};
use crate::subnet::subnet;

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
        if let Some(comment) = &self.0.comment {
            if f.alternate() {
                write!(f, "-m comment --comment {comment} ")?;
            } else {
                write!(f, "-m comment --comment \"{}\" ", escaped(comment))?;
            }
        }
        let effects = self.0.effects.as_slice();
        if self.0.action == Action::Continue && !effects.is_empty() {
            if effects == [Effect::Untrack] {
                return f.write_str("-j CT --notrack");
            }
            let texts: Vec<&str> = effects.iter().map(Effect::text).collect();
            return write!(f, "-j {}", texts.join(" "));
        }
        // Only nft's rules have effects beside a verdict.
        for effect in effects {
            write!(f, "[{}] ", effect.text().trim_matches(['[', ']']))?;
        }
        match &self.0.action {
            Action::Continue => Ok(()),
            Action::Accept => f.write_str("-j ACCEPT"),
            Action::Drop => f.write_str("-j DROP"),
            Action::Return => f.write_str("-j RETURN"),
            Action::Jump(chain) => write!(f, "-j {chain}"),
            Action::Goto(chain) => write!(f, "-g {chain}"),
            Action::Redirect(None) => f.write_str("-j REDIRECT"),
            Action::Redirect(Some(ports)) => write!(f, "-j REDIRECT --to-ports {}", span(*ports)),
            Action::Map(field, map) => write!(f, "[{field:?} vmap @{map}]"),
            Action::RedirectByMap(field, map) => write!(f, "[redirect to :{field:?} map @{map}]"),
            Action::Nat(Nat { text, .. }) | Action::Reject(text) | Action::NotUnderstood(text) => {
                write!(f, "-j {text}")
            }
        }
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

/// The place in iptables-save's order of what it doesn't write with the header's fields.
const OTHERS: u8 = 5;

/// Where iptables-save writes a condition.
fn order(condition: &Condition) -> u8 {
    match condition.field().map(|field| field.facts().iptables) {
        Some(IptablesOption::Header(place, _)) if condition.text().is_none() => place,
        _ => OTHERS,
    }
}

fn write_condition(f: &mut fmt::Formatter<'_>, condition: &Condition) -> fmt::Result {
    let Condition::In { field, values, negated } = condition else {
        return write!(f, "{} ", condition.text().unwrap_or_default());
    };
    let not = if *negated { "! " } else { "" };
    let (list, is_list) = match values {
        Values::Set(name) => return write!(f, "{not}[{field:?} @{name}] "),
        Values::Interval(interval) => (std::slice::from_ref(interval), false),
        Values::Listed(list) => (list.as_slice(), true),
    };
    match (field.facts().iptables, list) {
        (IptablesOption::Header(_, option), &[interval]) => write!(f, "{not}{option} {} ", in_header(*field, interval)),
        (IptablesOption::Port(option), _) if is_list => {
            write!(f, "-m multiport {not}{option}s {} ", numbers(list, ':'))
        }
        (IptablesOption::Port(option), _) => write!(f, "-m tcp {not}{option} {} ", numbers(list, ':')),
        (IptablesOption::Owner(option), _) => write!(f, "-m owner {not}{option} {} ", numbers(list, '-')),
        (IptablesOption::Header(..) | IptablesOption::None, _) => write!(f, "{not}[{field:?} {}] ", numbers(list, ':')),
    }
}

/// Numbers of a header's field as iptables-save writes them: `+` ends a prefix of interfaces, and a single address is a
/// subnet too.
fn in_header(field: Field, (first, last): (u128, u128)) -> String {
    match field {
        Field::InInterface | Field::OutInterface => interface_name(first, last).replace('*', "+"),
        Field::Source(family) | Field::Destination(family) => match subnet(family, (first, last)) {
            Some(subnet) => subnet.to_string(),
            None => element(field, (first, last)),
        },
        _ => element(field, (first, last)),
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
    use crate::name::Name;
    use crate::rule::{Effect, interface};
    use crate::testing::{commented, effect_of, not, rule, to_port};
    use crate::{Family, Intervals, TCP};

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
                vec![to_port(1), Condition::NotUnderstood("-m recent --rcheck".to_owned()), tcp()],
                Action::Accept,
                "-p tcp -m tcp --dport 1 -m recent --rcheck -j ACCEPT",
            ),
            // Matches come after the header, whatever they look at.
            (
                vec![
                    Condition::Flags {
                        text: "-m iprange --src-range 10.0.0.1-10.0.0.9".to_owned(),
                        field: Field::Source(Family::V4),
                        numbers: Intervals::new([(0x0a00_0001, 0x0a00_0009)]),
                    },
                    tcp(),
                ],
                Action::Accept,
                "-p tcp -m iprange --src-range 10.0.0.1-10.0.0.9 -j ACCEPT",
            ),
            (vec![not(ten())], Action::Redirect(None), "! -s 10.0.0.0/8 -j REDIRECT"),
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
            (
                vec![],
                Action::Nat(Nat::somewhere("DNAT --to-destination 10.0.0.1")),
                "-j DNAT --to-destination 10.0.0.1",
            ),
            (vec![], Action::NotUnderstood("NFQUEUE".to_owned()), "-j NFQUEUE"),
        ] {
            let rule = Rule { conditions, ..rule([], action) };
            assert_eq!(written(&rule), text);
        }
        for (comment, shown) in [("a b", "a b"), ("it's \"\u{7f}\"", r#"it\'s \"\u{7f}\""#)] {
            let commented = commented(comment, rule([tcp()], Action::Accept));
            assert_eq!(written(&commented), format!("-p tcp -m comment --comment \"{shown}\" -j ACCEPT"));
        }
    }

    /// What iptables has no words for; nft can make such rules in its tables.
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
        let effects =
            |action| Rule { effects: vec![Effect::Other("[log]".to_owned()), Effect::Untrack], ..rule([], action) };
        assert_eq!(written(&effects(Action::Accept)), "[log] [notrack] -j ACCEPT");
        assert_eq!(written(&effects(Action::Continue)), "-j [log] notrack");
        let doing = |effect| written(&effect_of([], effect));
        assert_eq!(doing(Effect::Untrack), "-j CT --notrack");
        assert_eq!(doing(Effect::Other("LOG".to_owned())), "-j LOG");
        let map = Action::Map(Field::SourcePort, Name::from("m"));
        assert_eq!(written(&rule([], map)), "[SourcePort vmap @m]");
    }

    /// As iptables-save writes them.
    #[test]
    fn a_single_address_is_a_subnet() {
        for (family, interval, want) in [
            (Family::V4, (0x0a4d_0001, 0x0a4d_0001), "-s 10.77.0.1/32"),
            (Family::V4, (0x0a00_0000, 0x0aff_ffff), "-s 10.0.0.0/8"),
            (Family::V6, (1, 1), "-s ::1/128"),
        ] {
            let rule = Rule::new(vec![Condition::is(Field::Source(family), interval)], Action::Continue);
            assert_eq!(IptablesRule(&rule).to_string().trim_end(), want);
        }
    }
}
