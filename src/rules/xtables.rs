//! Rules as text in iptables' syntax: written as `iptables-restore` reads it, and as iptables-save prints it.

use std::fmt;
use std::io::Write as _;

use crate::rules::config::Family;
use crate::rules::found::{Action, Condition, Field, Name, Rule as FoundRule, TCP, Values};
use crate::rules::nftables::{element, interface_name};
use crate::rules::ruleset::{ChainName, Match, Rule, Ruleset, Target};

/// A rule without its chain, as iptables-save writes it after `-A CHAIN`; with `{:#}` as linkerd-init logs it, its
/// comment unquoted.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        // A subnet as the user wrote it is the only foreign text in a comment, and it holds no quote, space or
        // backslash: it was read as an address.
        let quote = if f.alternate() { "" } else { "\"" };
        write!(
            f,
            "-m comment --comment {quote}{}{quote} -j {}",
            self.purpose, self.target
        )
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Tcp => f.write_str("-p tcp"),
            Match::DestinationPort(port) => write!(f, "-m tcp --dport {port}"),
            Match::DestinationPorts(ports) => write!(f, "-m multiport --dports {ports}"),
            Match::Source(net) => write!(f, "-s {net}"),
            Match::Destination(net) => write!(f, "-d {net}"),
            Match::OutLoopback => f.write_str("-o lo"),
            Match::UidOwner(id) => write!(f, "-m owner --uid-owner {id}"),
            Match::GidOwner(id) => write!(f, "-m owner --gid-owner {id}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Return => f.write_str("RETURN"),
            Target::Redirect(port) => write!(f, "REDIRECT --to-ports {port}"),
            Target::Jump(chain) => chain.fmt(f),
        }
    }
}

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

/// Input for `iptables-restore --noflush`, being written: one transaction in the nat table. Names of chains are others'
/// bytes, so it need not be UTF-8.
pub(crate) struct Input(Vec<u8>);

impl Input {
    /// The transaction's first line.
    pub(crate) fn new() -> Self {
        Self(b"*nat\n".to_vec())
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == Self::new().0
    }

    /// Makes a chain, or deletes its rules if it is there.
    pub(crate) fn make_or_flush(&mut self, chain: ChainName) {
        self.line(format_args!(":{chain} - [0:0]"));
    }

    /// Adds a rule behind a chain's last one.
    pub(crate) fn append(&mut self, chain: ChainName, rule: &Rule) {
        self.line(format_args!("-A {chain} {rule}"));
    }

    /// Deletes the rule with this index. Of several in a chain, the last must go first: those behind move up.
    pub(crate) fn delete(&mut self, chain: &Name, index: usize) {
        // Quoted as iptables-restore reads it (add_param_to_argv in iptables' xshared.c).
        self.0.extend(b"-D \"");
        for &byte in chain.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
        self.line(format_args!("\" {}", index + 1));
    }

    /// Deletes an empty chain.
    pub(crate) fn delete_chain(&mut self, chain: ChainName) {
        self.line(format_args!("-X {chain}"));
    }

    /// The input without its last line, `COMMIT`.
    pub(crate) fn uncommitted(self) -> Vec<u8> {
        self.0
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a Vec can't fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// Lines at which iptables-restore and ip6tables-restore stop with an error before they have committed anything.
/// Without them, one command would accept the text of both families, and the second part would flush the chains of the
/// first and double its jumps.
///
/// The invalid line stands inside a table because `--table` makes some versions skip what is outside.
const NOT_FOR_ONE_COMMAND: &str = "\
*nat
text-of-both-families: for a restore command, ask for one with --simulate=ipv4 or --simulate=ipv6

";

/// What `--simulate` prints: for each family a comment that names its restore command, followed by that command's
/// input. The text of one family can be restored as it is; restore commands refuse the text of several.
pub fn simulation(rulesets: &[Ruleset]) -> String {
    let mut text = String::new();
    if rulesets.len() > 1 {
        text += NOT_FOR_ONE_COMMAND;
    }
    for ruleset in rulesets {
        let command = match ruleset.family {
            Family::V4 => "iptables-restore",
            Family::V6 => "ip6tables-restore",
        };
        let mut input = Input::new();
        for chain in ruleset.chains.iter().filter(|chain| chain.name.is_ours()) {
            input.make_or_flush(chain.name);
        }
        for (chain, rule) in ruleset.rules() {
            input.append(chain, rule);
        }
        let lines = input.uncommitted();
        text += &format!(
            "# {}: {command} --noflush\n{}COMMIT\n",
            ruleset.family,
            String::from_utf8_lossy(&lines)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::config::{Config, Port};
    use crate::rules::found::examples::{commented, not, rule, to_port};
    use crate::rules::found::{Name, interface};
    use crate::rules::plan::plan;
    use crate::rules::ruleset::Purpose;

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
                assert_eq!(written(&crate::rules::expected::found(rule)), text);
            }
        }
    }

    #[test]
    fn what_a_restore_command_is_fed() {
        let port = |number| Port::new(number).unwrap();
        let jump = Rule {
            matches: vec![],
            target: Target::Jump(ChainName::ProxyInitOutput),
            purpose: Purpose::LookAtOutbound,
        };
        let mut input = Input::new();
        input.make_or_flush(ChainName::ProxyInitOutput);
        input.append(ChainName::Output, &jump);
        input.delete(&Name::from("a \\ \"b\""), 2);
        input.delete_chain(ChainName::ProxyInitRedirect);
        assert_eq!(
            String::from_utf8(input.uncommitted()).unwrap(),
            "*nat\n:PROXY_INIT_OUTPUT - [0:0]\n-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j \
             PROXY_INIT_OUTPUT\n-D \"a \\\\ \\\"b\\\"\" 3\n-X PROXY_INIT_REDIRECT\n"
        );

        let mut config = Config::new(port(4143), port(4140));
        config.ipv6 = false;
        let restore = "*nat\n:PROXY_INIT_REDIRECT - [0:0]\n:PROXY_INIT_OUTPUT - [0:0]\n\
            -A PROXY_INIT_REDIRECT -p tcp -m comment --comment \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143\n\
            -A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT\n\
            -A PROXY_INIT_OUTPUT -o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN\n\
            -A PROXY_INIT_OUTPUT -p tcp -m comment --comment \"proxy-init/redirect-all-outgoing-to-proxy-port\" -j REDIRECT --to-ports 4140\n\
            -A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT\nCOMMIT\n";
        let v4 = format!("# IPv4: iptables-restore --noflush\n{restore}");
        assert_eq!(simulation(&plan(&config)), v4);
        config.ipv6 = true;
        let both = simulation(&plan(&config));
        let rest = both.strip_prefix(NOT_FOR_ONE_COMMAND).unwrap();
        assert_eq!(rest, format!("{v4}# IPv6: ip6tables-restore --noflush\n{restore}"));
    }
}
