//! Rules as iptables-save prints them.

use std::fmt;

use crate::rules::nftables::{element, interface_name};
use crate::rules::rule::{Action, Condition, Field, Rule as FoundRule, TCP, Values};

/// A rule that was found, without its chain, in iptables' syntax. What isn't understood is in brackets.
pub struct IptablesRule<'a>(pub &'a FoundRule);

impl fmt::Display for IptablesRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = self.0.as_rule() {
            return rule.fmt(f);
        }
        // In iptables-save's order: the header's fields first, in whichever order they are compared.
        let mut conditions: Vec<&Condition> = self.0.conditions.iter().collect();
        conditions.sort_by_key(|condition| match condition {
            Condition::In { field, .. } => match field {
                Field::Source(_) => 0,
                Field::Destination(_) => 1,
                Field::InInterface => 2,
                Field::OutInterface => 3,
                Field::Protocol => 4,
                _ => 5,
            },
            Condition::Fixed { .. } | Condition::Unknown(_) => 5,
        });
        for condition in conditions {
            write_condition(f, condition)?;
        }
        if let Some(comment) = &self.0.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        match &self.0.action {
            Action::Continue(None) => Ok(()),
            Action::Continue(Some(effect)) => write!(f, "-j {effect}"),
            Action::Accept => f.write_str("-j ACCEPT"),
            Action::Drop => f.write_str("-j DROP"),
            Action::Return => f.write_str("-j RETURN"),
            Action::Jump(chain) => write!(f, "-j {chain}"),
            Action::Goto(chain) => write!(f, "-g {chain}"),
            Action::Redirect(None) => f.write_str("-j REDIRECT"),
            Action::Redirect(Some((first, last))) if first == last => write!(f, "-j REDIRECT --to-ports {first}"),
            Action::Redirect(Some((first, last))) => write!(f, "-j REDIRECT --to-ports {first}-{last}"),
            Action::Untrack => f.write_str("-j CT --notrack"),
            Action::Map(field, map) => write!(f, "[{field:?} vmap @{map}]"),
            Action::Nat(text) | Action::Unknown(text) => write!(f, "-j {text}"),
        }
    }
}

fn write_condition(f: &mut fmt::Formatter<'_>, condition: &Condition) -> fmt::Result {
    let (field, values, negated) = match condition {
        Condition::Fixed { text, .. } | Condition::Unknown(text) => return write!(f, "{text} "),
        Condition::In { field, values, negated } => (*field, values, *negated),
    };
    let not = if negated { "! " } else { "" };
    let values = match values {
        Values::Set(name) => return write!(f, "{not}[{field:?} @{name}] "),
        Values::Listed(values) => values.as_slice(),
    };
    let one = match values {
        [interval] => Some(*interval),
        _ => None,
    };
    let ports = || {
        let range = |&(first, last): &(u128, u128)| match first == last {
            true => first.to_string(),
            false => format!("{first}:{last}"),
        };
        values.iter().map(range).collect::<Vec<_>>().join(",")
    };
    match (field, one) {
        (Field::Protocol, Some((TCP, TCP))) => write!(f, "{not}-p tcp "),
        (Field::Protocol, Some(interval)) => write!(f, "{not}-p {} ", element(field, interval)),
        (Field::Source(_), Some(interval)) => write!(f, "{not}-s {} ", element(field, interval)),
        (Field::Destination(_), Some(interval)) => write!(f, "{not}-d {} ", element(field, interval)),
        (Field::InInterface, Some((first, last))) => {
            write!(f, "{not}-i {} ", interface_name(first, last).replace('*', "+"))
        }
        (Field::OutInterface, Some((first, last))) => {
            write!(f, "{not}-o {} ", interface_name(first, last).replace('*', "+"))
        }
        (Field::SourcePort, Some(_)) => write!(f, "-m tcp {not}--sport {} ", ports()),
        (Field::SourcePort, None) => write!(f, "-m multiport {not}--sports {} ", ports()),
        (Field::DestinationPort, Some(_)) => write!(f, "-m tcp {not}--dport {} ", ports()),
        (Field::DestinationPort, None) => write!(f, "-m multiport {not}--dports {} ", ports()),
        (Field::Uid, _) => write!(f, "-m owner {not}--uid-owner {} ", ports().replace(':', "-")),
        (Field::Gid, _) => write!(f, "-m owner {not}--gid-owner {} ", ports().replace(':', "-")),
        (field, _) => write!(f, "{not}[{field:?} {}] ", ports()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::examples::{commented, not, rule, to_port};
    use crate::rules::family::Family;
    use crate::rules::name::Name;
    use crate::rules::rule::interface;
    use crate::wanted::config::{Config, Port};
    use crate::wanted::plan::plan;

    fn written(rule: &FoundRule) -> String {
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
        let beginning = |name: &[u8]| {
            let first = interface(name);
            (first, first | (u128::MAX >> (8 * name.len())))
        };
        let ports = [(80, 80), (90, 100)];
        for (conditions, action, text) in [
            (
                vec![tcp(), to_port(80)],
                Action::Accept,
                "-p tcp -m tcp --dport 80 -j ACCEPT",
            ),
            (
                vec![tcp(), not(Condition::is(Field::DestinationPort, (80, 90)))],
                Action::Drop,
                "-p tcp -m tcp ! --dport 80:90 -j DROP",
            ),
            (
                vec![tcp(), Condition::is(Field::SourcePort, 80)],
                Action::Return,
                "-p tcp -m tcp --sport 80 -j RETURN",
            ),
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
                    Condition::is(Field::InInterface, beginning(b"eth")),
                    Condition::is(Field::Destination(Family::V4), (0xc000_0200, 0xc000_02ff)),
                    ten(),
                ],
                Action::Return,
                "-s 10.0.0.0/8 -d 192.0.2.0/24 -i eth+ -o eth0 -p tcp -j RETURN",
            ),
            (
                vec![to_port(1), Condition::Unknown("-m recent --rcheck".to_owned()), tcp()],
                Action::Accept,
                "-p tcp -m tcp --dport 1 -m recent --rcheck -j ACCEPT",
            ),
            (vec![not(ten())], Action::Redirect(None), "! -s 10.0.0.0/8 -j REDIRECT"),
            (
                vec![not(Condition::is(Field::InInterface, eth0)), not(tcp())],
                Action::Accept,
                "! -i eth0 ! -p tcp -j ACCEPT",
            ),
            (
                vec![Condition::is(Field::Protocol, 17)],
                Action::Accept,
                "-p udp -j ACCEPT",
            ),
            (
                vec![tcp()],
                Action::Redirect(Some((80, 80))),
                "-p tcp -j REDIRECT --to-ports 80",
            ),
            (
                vec![tcp()],
                Action::Redirect(Some((80, 90))),
                "-p tcp -j REDIRECT --to-ports 80-90",
            ),
            (vec![], Action::Jump(Name::from("SUB")), "-j SUB"),
            (vec![], Action::Goto(Name::from("SUB")), "-g SUB"),
            (
                vec![Condition::is(Field::OutInterface, interface(b"lo"))],
                Action::Return,
                "-o lo -j RETURN",
            ),
            (
                vec![not(Condition::is(Field::OutInterface, beginning(b"lo")))],
                Action::Return,
                "! -o lo+ -j RETURN",
            ),
            (
                vec![Condition::is(Field::Uid, 7)],
                Action::Return,
                "-m owner --uid-owner 7 -j RETURN",
            ),
            (
                vec![Condition::is(Field::Uid, (7, 9))],
                Action::Return,
                "-m owner --uid-owner 7-9 -j RETURN",
            ),
            (
                vec![not(Condition::is(Field::Gid, 7))],
                Action::Return,
                "-m owner ! --gid-owner 7 -j RETURN",
            ),
            (vec![], Action::Untrack, "-j CT --notrack"),
            (vec![], Action::Continue(Some("LOG".to_owned())), "-j LOG"),
            (vec![], Action::Continue(None), ""),
            (
                vec![],
                Action::Nat("DNAT --to-destination 10.0.0.1".to_owned()),
                "-j DNAT --to-destination 10.0.0.1",
            ),
            (vec![], Action::Unknown("NFQUEUE".to_owned()), "-j NFQUEUE"),
        ] {
            let rule = FoundRule {
                conditions,
                ..rule([], action)
            };
            assert_eq!(written(&rule), text);
        }
        let commented = commented("a b", rule([tcp()], Action::Accept));
        assert_eq!(written(&commented), "-p tcp -m comment --comment \"a b\" -j ACCEPT");
    }

    /// What iptables has no words for; nft can make such rules in its tables.
    #[test]
    fn what_iptables_cannot_say_is_in_brackets() {
        let set = |field| Condition::is(field, Values::Set(Name::from("web")));
        for (condition, text) in [
            (set(Field::DestinationPort), "[DestinationPort @web] -j ACCEPT"),
            (not(set(Field::Uid)), "! [Uid @web] -j ACCEPT"),
            (Condition::is(Field::Family, 2), "[Family 2] -j ACCEPT"),
            (
                listed(Field::Protocol, &[(6, 6), (17, 17)]),
                "[Protocol 6,17] -j ACCEPT",
            ),
        ] {
            assert_eq!(written(&rule([condition], Action::Accept)), text);
        }
        let map = Action::Map(Field::SourcePort, Name::from("m"));
        assert_eq!(written(&rule([], map)), "[SourcePort vmap @m]");
    }

    /// A rule of proxy-init's reads the same before it is installed and after it was found.
    #[test]
    fn a_found_rule_is_written_as_it_was_planned() {
        let mut config = Config::new(Port::new(4143).unwrap(), Port::new(4140).unwrap());
        config.ipv6 = true;
        for ruleset in plan(&config) {
            for (_, rule) in ruleset.rules() {
                let text = rule.to_string();
                assert_eq!(format!("{rule:#}"), text.replace('"', ""));
                assert_eq!(written(&crate::found::expected::found(rule)), text);
            }
        }
    }
}
