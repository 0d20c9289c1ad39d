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
}
