//! Rules as text in iptables' syntax: written as `iptables-restore` reads it, and read as iptables-save prints it.

use std::fmt::{self, Write as _};

use crate::rules::config::{Family, OwnerId, Port};
use crate::rules::found::{Action, Condition, Field, Rule as FoundRule, TCP, Values};
use crate::rules::nftables::{element, interface_name};
use crate::rules::ruleset::{ChainName, Match, Multiport, Purpose, Rule, Ruleset, Target};

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

/// Input for `iptables-restore --noflush`, being written: one transaction in the nat table.
pub(crate) struct Input(String);

impl Input {
    pub(crate) fn new() -> Self {
        Self("*nat\n".to_owned())
    }

    /// Makes a chain, or deletes its rules if it is there.
    pub(crate) fn make_or_flush(&mut self, chain: ChainName) {
        self.line(format_args!(":{chain} - [0:0]"));
    }

    /// Adds a rule behind a chain's last one.
    pub(crate) fn append(&mut self, chain: ChainName, rule: &Rule) {
        self.line(format_args!("-A {chain} {rule}"));
    }

    /// Adds a rule as iptables-save wrote it.
    pub(crate) fn append_saved(&mut self, line: &Line) {
        self.line(format_args!("-A {} {}", line.chain, line.specification));
    }

    /// Deletes the rule that has this specification.
    pub(crate) fn delete(&mut self, chain: ChainName, specification: impl fmt::Display) {
        self.line(format_args!("-D {chain} {specification}"));
    }

    /// Deletes an empty chain.
    pub(crate) fn delete_chain(&mut self, chain: ChainName) {
        self.line(format_args!("-X {chain}"));
    }

    /// The whole input.
    pub(crate) fn finish(mut self) -> String {
        self.line(format_args!("COMMIT"));
        self.0
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a String can't fail.
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
        text += &format!("# {}: {command} --noflush\n{}", ruleset.family, input.finish());
    }
    text
}

/// The nat table as iptables-save wrote it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    chains: Vec<String>,
    lines: Vec<Line>,
}

/// A rule as iptables-save wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    chain: String,
    specification: String,
}

impl Saved {
    /// Reads what iptables-save printed; lines that it doesn't print count for nothing.
    pub(crate) fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        for line in text.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                saved.chains.extend(chain.split(' ').next().map(ToOwned::to_owned));
            } else if let Some((chain, specification)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            {
                saved.lines.push(Line {
                    chain: chain.to_owned(),
                    specification: specification.to_owned(),
                });
            }
        }
        saved
    }

    /// Whether it has a chain.
    pub(crate) fn has(&self, chain: ChainName) -> bool {
        self.chains.iter().any(|name| name == chain.as_str())
    }

    /// Reads every line. One that passes for ours must be written as ours are.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn read_back(&self) {
        for line in &self.lines {
            if let Some(rule) = line.rule() {
                let again = Line {
                    chain: line.chain.clone(),
                    specification: rule.to_string(),
                };
                assert_eq!(again.rule().as_ref(), Some(&rule));
            }
        }
    }

    /// Whether anything of ours is there.
    pub(crate) fn is_ours(&self) -> bool {
        ChainName::ALL
            .into_iter()
            .any(|chain| chain.is_ours() && self.has(chain))
    }

    /// A chain's rules, in order.
    pub(crate) fn lines(&self, chain: ChainName) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.chain == chain.as_str())
    }

    /// The rules of a base chain that send packets to our chains.
    pub(crate) fn our_jumps(&self, base: ChainName) -> impl Iterator<Item = &Line> {
        self.lines(base).filter(|line| jumps_to_ours(&line.specification))
    }
}

impl Line {
    /// The rule without its chain.
    pub(crate) fn specification(&self) -> &str {
        &self.specification
    }

    /// The rule, if it is one that we could have made.
    pub(crate) fn rule(&self) -> Option<Rule> {
        let words = words(&self.specification);
        let mut words = words.iter().map(String::as_str);
        let (mut matches, mut purpose) = (Vec::new(), None);
        loop {
            let condition = match (words.next()?, words.next()?) {
                ("-p", "tcp") => Match::Tcp,
                ("-s", net) => Match::Source(net.parse().ok()?),
                ("-d", net) => Match::Destination(net.parse().ok()?),
                ("-o", "lo") => Match::OutLoopback,
                ("-m", "comment") => {
                    let ("--comment", comment) = (words.next()?, words.next()?) else {
                        return None;
                    };
                    purpose = Purpose::from_comment(comment);
                    continue;
                }
                ("-m", extension) => match (extension, words.next()?, words.next()?) {
                    ("tcp", "--dport", port) => Match::DestinationPort(port.parse().ok()?),
                    ("multiport", "--dports", ports) => Match::DestinationPorts(Multiport::from_iptables(ports)?),
                    ("owner", "--uid-owner", id) => Match::UidOwner(OwnerId::new(id.parse().ok()?)?),
                    ("owner", "--gid-owner", id) => Match::GidOwner(OwnerId::new(id.parse().ok()?)?),
                    _ => return None,
                },
                ("-j", target) => {
                    let target = match target {
                        "RETURN" => Target::Return,
                        "REDIRECT" => {
                            let ("--to-ports", port) = (words.next()?, words.next()?) else {
                                return None;
                            };
                            Target::Redirect(port.parse::<Port>().ok()?)
                        }
                        chain => Target::Jump(ChainName::from_name(chain.as_bytes())?),
                    };
                    return words.next().is_none().then_some(Rule {
                        matches,
                        target,
                        purpose: purpose?,
                    });
                }
                _ => return None,
            };
            matches.push(condition);
        }
    }
}

/// Whether a rule in iptables' syntax sends packets to a chain of ours, whatever it matches.
pub(crate) fn jumps_to_ours(specification: &str) -> bool {
    target(specification).is_some_and(|target| ChainName::from_name(target.as_bytes()).is_some_and(ChainName::is_ours))
}

fn target(specification: &str) -> Option<String> {
    let words = words(specification);
    let flag = words.iter().position(|word| word == "-j" || word == "-g")?;
    words.into_iter().nth(flag + 1)
}

/// The words of a line; those with spaces are in double quotes, in which a backslash takes the next character as it is
/// (xtables_save_string() in iptables' libxtables).
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None;
    let mut quoted = false;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_with(String::new);
            }
            '\\' if quoted => word.get_or_insert_with(String::new).extend(characters.next()),
            ' ' if !quoted => words.extend(word.take()),
            other => word.get_or_insert_with(String::new).push(other),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::config::Config;
    use crate::rules::found::examples::{commented, not, rule, to_port};
    use crate::rules::found::{Name, interface};
    use crate::rules::plan::plan;
    use proptest::prelude::*;

    fn line(specification: &str) -> Line {
        Line {
            chain: "PREROUTING".to_owned(),
            specification: specification.to_owned(),
        }
    }

    #[test]
    fn what_iptables_save_prints_is_read() {
        // Lines that iptables-legacy-save 1.8.9 printed.
        let saved = Saved::parse(
            "# Generated by iptables-save v1.8.9 on Fri Nov 20 23:58:48 2026\n*nat\n:PREROUTING ACCEPT [0:0]\n\
             :PROXY_INIT_REDIRECT - [0:0]\n\
             -A PREROUTING -p tcp -m comment --comment \"it's \\\"mine\\\"\" -j PROXY_INIT_REDIRECT\n\
             -A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT\n\
             -A PREROUTING -s 10.0.0.0/8 -j ACCEPT\nCOMMIT\n",
        );
        assert!(saved.has(ChainName::ProxyInitRedirect) && !saved.has(ChainName::ProxyInitOutput));
        let jumps: Vec<_> = saved.our_jumps(ChainName::Prerouting).collect();
        assert_eq!(jumps.len(), 2);
        assert_eq!(jumps[0].rule(), None, "the comment isn't one of proxy-init's");
        assert_eq!(jumps[1].rule().unwrap().matches, []);
        assert_eq!(saved.lines(ChainName::Prerouting).nth(2).unwrap().rule(), None);
    }

    #[test]
    fn rules_of_others_are_none_of_ours() {
        for specification in [
            "! -p tcp -j RETURN",
            "-p udp -j RETURN",
            "-p tcp -m multiport ! --dports 80 -j RETURN",
            "-p tcp -m multiport --sports 80 -j RETURN",
            "-p tcp -m tcp --dport 80:90 -j RETURN",
            "-m owner --uid-owner 0-7 -j RETURN",
            "-m owner ! --uid-owner 7 -j RETURN",
            "-j REDIRECT --to-ports 80-90",
            "-j REDIRECT --to-ports 80 --random",
            "-j ACCEPT",
            "-o lo+ -j RETURN",
            "-o lo",
            "",
        ] {
            assert_eq!(line(specification).rule(), None, "{specification}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let saved = Saved::parse(&text);
            for chain in ChainName::ALL {
                for line in saved.lines(chain) {
                    line.rule();
                }
            }
            line(&text).rule();
        }
    }

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

    /// linkerd-init's rules, in the words in which it hands them to iptables.
    #[test]
    fn a_rule_of_proxy_inits_is_written_and_read_back() {
        for text in [
            "-p tcp -m multiport --dports 4190,8000:8100 -m comment --comment \"proxy-init/ignore-port-4190,8000:8100\" -j RETURN",
            "-s 10.0.0.0/8 -m comment --comment \"proxy-init/ignore-subnet-10.1.2.3/8\" -j RETURN",
            "-d 10.0.0.0/8 -m comment --comment \"proxy-init/ignore-subnet-10.1.2.3/8\" -j RETURN",
            "-p tcp -m tcp --dport 80 -m comment --comment \"proxy-init/redirect-port-80-to-proxy-port\" -j REDIRECT --to-ports 4143",
            "-m owner --uid-owner 2102 -m comment --comment \"proxy-init/ignore-proxy-user-id\" -j RETURN",
            "-m owner --gid-owner 2102 -m comment --comment \"proxy-init/ignore-proxy-group-id\" -j RETURN",
            "-o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN",
            "-m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT",
        ] {
            let rule = line(text).rule().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(format!("{rule:#}"), text.replace('"', ""));
            assert_eq!(written(&crate::rules::expected::found(&rule)), text);
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
        input.append_saved(&line("-j ACCEPT"));
        input.delete(ChainName::Output, "-j RETURN");
        input.delete_chain(ChainName::ProxyInitRedirect);
        assert_eq!(
            input.finish(),
            "*nat\n:PROXY_INIT_OUTPUT - [0:0]\n-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j \
             PROXY_INIT_OUTPUT\n-A PREROUTING -j ACCEPT\n-D OUTPUT -j RETURN\n-X PROXY_INIT_REDIRECT\nCOMMIT\n"
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

    #[test]
    fn what_is_saved_is_ours_by_its_chains() {
        let saved = |chains: &str| Saved::parse(chains);
        assert!(
            !saved("*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:PROXY_INIT_REDIRECT_OLD - [0:0]\n")
                .is_ours()
        );
        assert!(saved(":PROXY_INIT_REDIRECT - [0:0]\n").is_ours());
        assert!(saved(":PROXY_INIT_OUTPUT - [0:0]\n").is_ours());
        let one = saved("-A OUTPUT -j PROXY_INIT_OUTPUT\n-A PREROUTING -j ACCEPT\n");
        let specifications: Vec<_> = one.lines(ChainName::Output).map(Line::specification).collect();
        assert_eq!(specifications, ["-j PROXY_INIT_OUTPUT"]);
        for (specification, ours) in [
            ("-j PROXY_INIT_REDIRECT", true),
            ("-p tcp -g PROXY_INIT_OUTPUT", true),
            ("-j PREROUTING", false),
            ("-j PROXY_INIT", false),
            ("-m comment --comment \"-j PROXY_INIT_OUTPUT\" -j ACCEPT", false),
            ("-j", false),
            ("", false),
        ] {
            assert_eq!(jumps_to_ours(specification), ours, "{specification}");
        }
    }

    #[test]
    fn words_are_quoted_as_iptables_save_quotes_them() {
        for (line, want) in [
            ("a b", &["a", "b"][..]),
            (" a  b ", &["a", "b"]),
            (r#""a b" c"#, &["a b", "c"]),
            (r#""" x"#, &["", "x"]),
            (r#""a\"b\\" c"#, &["a\"b\\", "c"]),
            // Outside quotes it is a character like any other.
            (r"a\b", &[r"a\b"]),
            (r#""a b"#, &["a b"]),
            ("", &[]),
        ] {
            assert_eq!(words(line), want, "{line}");
        }
    }

    #[test]
    fn a_rule_with_too_much_or_too_little_is_not_proxy_inits() {
        let comment = "-m comment --comment \"proxy-init/install-proxy-init-prerouting\"";
        assert!(line(&format!("{comment} -j PROXY_INIT_REDIRECT")).rule().is_some());
        for specification in [
            "-j PROXY_INIT_REDIRECT".to_owned(),
            format!("{comment} -j PROXY_INIT_REDIRECT -x"),
            format!("{comment} -g PROXY_INIT_REDIRECT"),
            format!("{comment} -j KUBE-SERVICES"),
            format!("{comment} -p udp -j RETURN"),
            format!("{comment} -o eth0 -j RETURN"),
            format!("{comment} -m tcp --sport 80 -j RETURN"),
            format!("{comment} -j REDIRECT --to-port 80"),
            "-m comment --xcomment \"proxy-init/install-proxy-init-prerouting\" -j RETURN".to_owned(),
        ] {
            assert_eq!(line(&specification).rule(), None, "{specification}");
        }
    }
}
