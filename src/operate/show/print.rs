//! What is shown, as text and as JSON.

use serde_json::{Value, json};

use super::{Backend, Chain, Effect, Rule, Shown};
use crate::rules::config::Family;
use crate::rules::found::{Counters, TableFamily};
use crate::rules::walk::Direction;

/// The most rules of other programs that are listed of a chain; there may be thousands.
const MOST: usize = 10;

/// Lines of flags are no longer than this, unless one flag is.
const WIDTH: usize = 98;

impl Shown {
    /// For machines; docs/show.md has the schema.
    pub fn json(&self) -> String {
        let not_known = self.not_known.iter().map(|unseen| unseen.subsystem.to_string());
        json!({
            "schema": 1,
            "backends": self.backends.iter().map(backend).collect::<Vec<_>>(),
            "not_known": not_known.collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// For people; with `colour`, in bold and dim letters for a terminal.
    pub fn text(&self, colour: bool) -> String {
        let mut text = String::new();
        for backend in &self.backends {
            if !text.is_empty() {
                text.push('\n');
            }
            backend.write(&mut text, Style { colour });
        }
        if self.backends.is_empty() {
            text += "no rules of proxy-init's were found in this network namespace\n";
        }
        match &self.auto {
            Some(Ok((mode, reason))) => text += &format!("auto would choose {mode} mode, because {reason}\n"),
            Some(Err(error)) => text += &format!("auto cannot choose a mode: {error}\n"),
            None => {}
        }
        for unseen in &self.not_known {
            text += &format!(
                "not known: what {} tables hold, whether proxy-init's rules or others ({})\n",
                unseen.subsystem, unseen.reason
            );
        }
        text
    }
}

fn backend(backend: &Backend) -> Value {
    json!({
        "mode": backend.mode.to_string(),
        "flags": backend.flags,
        "chains": backend.chains.iter().map(chain).collect::<Vec<_>>(),
    })
}

fn chain(chain: &Chain) -> Value {
    let mut value = json!({
        "family": match chain.family {
            TableFamily::Ip(family) => family.to_string(),
            other => other.to_string(),
        },
        "chain": chain.name,
        "rules": chain.rules.iter().map(rule).collect::<Vec<_>>(),
    });
    if let (Some(base), Value::Object(value)) = (chain.base, &mut value) {
        value.insert("hook".to_owned(), json!(base.hook.to_string()));
        value.insert("priority".to_owned(), json!(base.priority));
    }
    value
}

fn rule(rule: &Rule) -> Value {
    let (effect, port) = match rule.effect {
        Effect::Bypass => ("bypass", None),
        Effect::Proxy(port) => ("proxy", Some(port)),
        Effect::Jump => ("jump", None),
        Effect::Other => ("other", None),
    };
    let mut value = json!({
        "rule": rule.line.trim_end(),
        "packets": rule.counters.map(|counters| counters.packets),
        "bytes": rule.counters.map(|counters| counters.bytes),
        "ours": rule.ours,
        "effect": effect,
    });
    if let (Some(port), Value::Object(value)) = (port, &mut value) {
        value.insert("port".to_owned(), json!(port));
    }
    value
}

/// Bold and dim letters, or none.
#[derive(Clone, Copy)]
struct Style {
    colour: bool,
}

impl Style {
    fn with(self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }
}

/// Whose packets a counter counts: IPv4's, IPv6's or those of both.
const COUNTED: [&str; 3] = ["IPv4", "IPv6", "both"];

fn counted(chain: &Chain) -> usize {
    match chain.family {
        TableFamily::Ip(Family::V4) => 0,
        TableFamily::Ip(Family::V6) => 1,
        TableFamily::Inet | TableFamily::Netdev => 2,
    }
}

/// A line of the table.
enum Line {
    /// A chain's name.
    Chain(String),
    Rule(Row),
    /// So many rules of other programs are not listed.
    More(usize),
}

/// A rule that one family has, or both.
struct Row {
    number: String,
    counters: [Option<Counters>; 3],
    matches: String,
    does: String,
    why: String,
    ours: bool,
}

impl Row {
    fn new(rules: [Option<(&Chain, &Rule)>; 2]) -> Option<Self> {
        let (_, rule) = rules.into_iter().flatten().next()?;
        let mut counters = [None; 3];
        let mut number = String::new();
        for (chain, rule) in rules.into_iter().flatten() {
            if let Some(slot) = counters.get_mut(counted(chain)) {
                *slot = rule.counters;
            }
            let own = rule.number.to_string();
            if number.is_empty() {
                number = own;
            } else if number != own {
                number = format!("{number}/{own}");
            }
        }
        Some(Self {
            number,
            counters,
            matches: rule.matches.clone(),
            does: rule.does.clone(),
            why: match (rule.ours, rule.why.as_str()) {
                (true, why) => why.to_owned(),
                (false, "") => "foreign".to_owned(),
                (false, comment) => format!("foreign: {comment}"),
            },
            ours: rule.ours,
        })
    }
}

impl Backend {
    fn write(&self, text: &mut String, style: Style) {
        let tables: Vec<(Direction, Vec<Line>)> = Direction::ALL
            .map(|direction| (direction, self.lines(direction)))
            .into();
        let rows = || {
            let lines = tables.iter().flat_map(|(_, lines)| lines);
            lines.filter_map(|line| match line {
                Line::Rule(row) => Some(row),
                _ => None,
            })
        };
        let is_used = |index: &usize| self.chains.iter().any(|chain| counted(chain) == *index);
        let used: Vec<usize> = (0..COUNTED.len()).filter(is_used).collect();
        let wide = |least: usize, of: &dyn Fn(&Row) -> usize| rows().map(of).fold(least, usize::max);
        let number = wide(2, &|row| row.number.len());
        let digits = |row: &Row, index: usize, of: fn(Counters) -> u64| {
            let counters = row.counters.get(index).copied().flatten();
            counters.map_or(1, |counters| of(counters).to_string().len())
        };
        let pairs: Vec<(usize, usize, usize)> = used
            .into_iter()
            .map(|index| {
                let packets = wide(4, &|row| digits(row, index, |counters| counters.packets));
                let bytes = wide(5, &|row| digits(row, index, |counters| counters.bytes));
                (index, packets, bytes)
            })
            .collect();
        let matches = wide(8, &|row| row.matches.chars().count());
        let does = wide(8, &|row| row.does.chars().count());

        let mode = self.mode;
        let title = match self.flags {
            Some(_) => format!("{mode} mode"),
            None => format!("{mode} mode: not one complete, untouched installation (see proxy-init verify)"),
        };
        *text += &format!("{}\n", style.bold(&title));
        for (direction, lines) in &tables {
            let mut head = direction.to_string();
            let mut end = number;
            for &(index, packets, bytes) in &pairs {
                end += 2 + packets + 1 + bytes;
                let name = COUNTED.get(index).copied().unwrap_or_default();
                head += &format!("{name:>width$}", width = end - head.len());
            }
            *text += &format!("{}\n", style.bold(&head));
            if *direction == Direction::Inbound {
                let mut head = format!("{:>number$}", "#");
                for &(_, packets, bytes) in &pairs {
                    head += &format!("  {:>packets$} {:>bytes$}", "pkts", "bytes");
                }
                head += &format!("  {:matches$}  {:does$}  why", "matches", "does");
                *text += &format!("{}\n", style.dim(&head));
            }
            for line in lines {
                match line {
                    Line::Chain(name) => *text += &format!("{}\n", style.dim(name)),
                    Line::More(count) => *text += &format!("{:>number$}  {count} more foreign rules\n", "..."),
                    Line::Rule(row) => {
                        let mut line = format!("{:>number$}", row.number);
                        for &(index, packets, bytes) in &pairs {
                            let shown = |of: fn(Counters) -> u64| {
                                let counters = row.counters.get(index).copied().flatten();
                                counters.map_or_else(|| "-".to_owned(), |counters| of(counters).to_string())
                            };
                            line += &format!(
                                "  {:>packets$} {:>bytes$}",
                                shown(|counters| counters.packets),
                                shown(|counters| counters.bytes)
                            );
                        }
                        line += &format!("  {:matches$}  {:does$}  {}", row.matches, row.does, row.why);
                        let line = line.trim_end();
                        *text += &match row.ours {
                            true => format!("{line}\n"),
                            false => format!("{}\n", style.bold(line)),
                        };
                    }
                }
            }
        }
        if let Some(flags) = &self.flags {
            *text += &format!("{}\n", style.bold("flags that install exactly this"));
            *text += &wrapped(flags);
        }
    }

    /// The lines of a direction, the chains of both families side by side.
    fn lines(&self, direction: Direction) -> Vec<Line> {
        let mut pairs: Vec<[Option<&Chain>; 2]> = Vec::new();
        let mut next = 0;
        for chain in self.chains.iter().filter(|chain| chain.direction == direction) {
            if chain.family != TableFamily::Ip(Family::V6) {
                pairs.push([Some(chain), None]);
                continue;
            }
            let is_counterpart = |pair: &[Option<&Chain>; 2]| {
                matches!(pair, [Some(other), None]
                    if other.title == chain.title && matches!(other.family, TableFamily::Ip(_)))
            };
            match pairs.iter().position(is_counterpart) {
                Some(place) => {
                    if let Some([_, second]) = pairs.get_mut(place) {
                        *second = Some(chain);
                    }
                    next = place + 1;
                }
                None => {
                    pairs.insert(next.min(pairs.len()), [None, Some(chain)]);
                    next += 1;
                }
            }
        }
        let mut lines = Vec::new();
        for pair in pairs {
            let Some(first) = pair.into_iter().flatten().next() else {
                continue;
            };
            lines.push(Line::Chain(heading(first, pair)));
            let mut foreign = 0;
            for row in merged(pair) {
                foreign += usize::from(!row.ours);
                if row.ours || foreign <= MOST {
                    lines.push(Line::Rule(row));
                }
            }
            if foreign > MOST {
                lines.push(Line::More(foreign - MOST));
            }
        }
        lines
    }
}

/// A chain's name, where it is hooked, and what is wrong with it.
fn heading(chain: &Chain, pair: [Option<&Chain>; 2]) -> String {
    let hook = chain
        .base
        .map(|base| format!("{}, priority {}", base.hook, base.priority));
    let notes: Vec<String> = match pair {
        [Some(one), Some(other)] if one.note != other.note => {
            let noted = [one, other]
                .into_iter()
                .filter_map(|chain| Some((counted(chain), chain.note?)));
            let of_family = |(index, note)| format!("{}: {note}", COUNTED.get(index).copied().unwrap_or_default());
            noted.map(of_family).collect()
        }
        _ => chain.note.iter().map(ToString::to_string).collect(),
    };
    let about: Vec<String> = hook.into_iter().chain(notes).collect();
    match about.is_empty() {
        true => chain.title.clone(),
        false => format!("{} ({})", chain.title, about.join(", ")),
    }
}

/// The rules of a chain in both families, those that are the same side by side. What comes after the jump to proxy-init's
/// chain isn't among them.
fn merged(pair: [Option<&Chain>; 2]) -> Vec<Row> {
    let rules = |chain: Option<&Chain>| -> Vec<Rule> {
        let rules = chain.map(|chain| chain.rules.clone()).unwrap_or_default();
        rules.into_iter().filter(|rule| !rule.behind).collect()
    };
    let is_same = |one: &Rule, other: &Rule| {
        (&one.matches, &one.does, &one.why, one.ours) == (&other.matches, &other.does, &other.why, other.ours)
    };
    let [first, second] = pair;
    let seconds = rules(second);
    let mut rest = seconds.as_slice();
    let mut rows = Vec::new();
    for rule in &rules(first) {
        let place = rest.iter().position(|other| is_same(rule, other));
        let (before, from) = rest.split_at(place.unwrap_or(0));
        rows.extend(
            before
                .iter()
                .filter_map(|other| Row::new([None, Some((second?, other))])),
        );
        let counterpart = from.first().filter(|_| place.is_some());
        rest = from.get(usize::from(counterpart.is_some())..).unwrap_or_default();
        let own = first.map(|chain| (chain, rule));
        rows.extend(Row::new([own, second.zip(counterpart)]));
    }
    rows.extend(rest.iter().filter_map(|other| Row::new([None, Some((second?, other))])));
    rows
}

/// Flags, each with its value, on lines that fit a terminal.
fn wrapped(flags: &[String]) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for (index, word) in flags.iter().enumerate() {
        // A value stays on the line of its flag.
        let value = flags.get(index + 1).filter(|next| !next.starts_with("--"));
        let length = word.len() + value.map_or(0, |value| value.len() + 1);
        if word.starts_with("--") && !line.is_empty() && line.len() + 1 + length > WIDTH {
            text += &format!("  {line}\n");
            line.clear();
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    text + &format!("  {line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::all;
    use crate::rules::config::{Config, OwnerId};
    use crate::rules::found::{self, Action, Condition, Field, Found, Name};
    use crate::rules::mode::Mode;
    use crate::rules::plan::plan;

    fn chart() -> Config {
        let list = |text: &str| text.split(',').map(|item| item.parse().unwrap()).collect();
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = OwnerId::new(2102);
        config.ignored_inbound_ports = list("4190,4191,4567,4568");
        config.ignored_outbound_ports = list("4567,4568");
        config
    }

    /// What these flags install, each rule having counted a packet more than the one before.
    fn installed(mode: Mode, config: &Config) -> Found {
        let mut tables = all::expected(mode, &plan(config));
        let rules = tables.iter_mut().flat_map(|table| &mut table.chains);
        for (packets, rule) in (1..).zip(rules.flat_map(|chain| &mut chain.rules)) {
            rule.counters = Some(Counters {
                packets,
                bytes: packets * 60,
            });
        }
        Found {
            tables,
            not_known: vec![],
        }
    }

    #[test]
    fn linkerds_defaults_fit_a_screen() {
        let text = Shown::of(&installed(Mode::Nft, &chart())).text(false);
        let want = "\
nft mode
inbound   IPv4        IPv6
 #  pkts bytes  pkts bytes  matches                      does                     why
PREROUTING (prerouting, priority -100)
 1     3   180    11   660  everything                   to PROXY_INIT_REDIRECT   entry
PROXY_INIT_REDIRECT
 1     1    60     9   540  to port 4190,4191,4567,4568  bypasses the proxy       ignored ports
 2     2   120    10   600  tcp                          to the proxy, port 4143  all the rest
outbound  IPv4        IPv6
OUTPUT (output, priority -100)
 1     8   480    16   960  everything                   to PROXY_INIT_OUTPUT     entry
PROXY_INIT_OUTPUT
 1     4   240    12   720  of user 2102                 bypasses the proxy       the proxy itself
 2     5   300    13   780  out by lo                    bypasses the proxy       within the pod
 3     6   360    14   840  to port 4567,4568            bypasses the proxy       ignored ports
 4     7   420    15   900  tcp                          to the proxy, port 4140  all the rest
flags that install exactly this
  --iptables-mode nft --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102
  --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568
";
        assert_eq!(text, want);
        assert!(text.lines().count() <= 24 && text.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn native_mode_counts_both_families_together() {
        let text = Shown::of(&installed(Mode::Native, &chart())).text(false);
        let want = "\
native mode
inbound   both
 #  pkts bytes  matches                      does                     why
PREROUTING (prerouting, priority -100)
 1     1    60  everything                   to PROXY_INIT_REDIRECT   entry
PROXY_INIT_REDIRECT
 1     3   180  to port 4190-4191,4567-4568  bypasses the proxy       ignored ports
 2     4   240  tcp                          to the proxy, port 4143  all the rest
";
        assert!(text.starts_with(want), "{text}");
        assert!(
            text.ends_with(
                "  --iptables-mode native --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102\n  \
                 --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_only_one_family_has_stands_between_what_both_have() {
        let mut config = chart();
        config.ignored_inbound_subnets = ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24"]
            .map(|net| net.parse().unwrap())
            .into();
        let text = Shown::of(&installed(Mode::Nft, &config)).text(false);
        let want = "
PROXY_INIT_REDIRECT
  1     1    60    11   660  to port 4190,4191,4567,4568  bypasses the proxy       ignored ports
  2     2   120     -     -  from 10.0.0.0/8              bypasses the proxy       ignored subnet
  3     3   180     -     -  from 192.0.2.0/24            bypasses the proxy       ignored subnet
  2     -     -    12   720  from fd00::/8                bypasses the proxy       ignored subnet
4/3     4   240    13   780  tcp                          to the proxy, port 4143  all the rest
";
        assert!(text.contains(want), "{text}");
    }

    fn foreign(field: Field, number: u128, action: Action) -> found::Rule {
        found::Rule {
            conditions: vec![Condition::is(field, number)],
            action,
            comment: None,
            counters: None,
            handle: 0,
        }
    }

    fn rules_of<'a>(found: &'a mut Found, chain: &str) -> &'a mut Vec<found::Rule> {
        let mut chains = found.tables.iter_mut().flat_map(|table| &mut table.chains);
        &mut chains.find(|known| known.name == *chain).unwrap().rules
    }

    #[test]
    fn foreign_rules_are_shown_where_they_run() {
        let mut found = installed(Mode::Nft, &chart());
        let accept = foreign(Field::DestinationPort, 80, Action::Accept);
        let dnat = foreign(Field::DestinationPort, 81, Action::Nat("DNAT to 192.0.2.1".to_owned()));
        rules_of(&mut found, "PREROUTING").insert(0, accept.clone());
        rules_of(&mut found, "PREROUTING").push(dnat.clone());
        rules_of(&mut found, "PROXY_INIT_REDIRECT").insert(1, dnat);
        let jump = foreign(Field::SourcePort, 9, Action::Jump(Name::from("DOCKER")));
        rules_of(&mut found, "OUTPUT").insert(0, jump);
        let mut docker = found.tables[0].chains[0].clone();
        docker.name = Name::from("DOCKER");
        docker.rules = vec![accept; 12];
        found.tables[0].chains.push(docker);

        let shown = Shown::of(&found);
        assert_eq!(shown.backends[0].flags, None);
        let text = shown.text(false);
        for want in [
            "nft mode: not one complete, untouched installation (see proxy-init verify)\n",
            "\n  1     -     -     -     -  to port 80                   bypasses the proxy       foreign\n2/1     3 ",
            "  to port 81                   DNAT to 192.0.2.1        foreign\n",
            "  from port 9                  to DOCKER                foreign\n2/1 ",
            "to PROXY_INIT_OUTPUT     entry\nDOCKER\n  1 ",
            "\n...  2 more foreign rules\n",
        ] {
            assert!(text.contains(want), "{want:?} in {text}");
        }
        // What comes after the jump sees only what bypasses the proxy.
        assert_eq!(text.matches("DNAT to 192.0.2.1").count(), 1, "{text}");
        // A program sees all.
        let json: Value = serde_json::from_str(&shown.json()).unwrap();
        let chains = json["backends"][0]["chains"].as_array().unwrap();
        let rules = |name: &str| {
            let chain = chains.iter().find(|chain| chain["chain"] == name).unwrap();
            chain["rules"].as_array().unwrap().clone()
        };
        assert_eq!(rules("DOCKER").len(), 12);
        let told: Vec<_> = rules("PREROUTING")
            .iter()
            .map(|rule| (rule["ours"].clone(), rule["effect"].clone()))
            .collect();
        assert_eq!(
            told,
            [
                (json!(false), json!("bypass")),
                (json!(true), json!("jump")),
                (json!(false), json!("other"))
            ]
        );
        // Bold letters for what is foreign, and only if asked for.
        assert!(!text.contains('\x1b'));
        assert!(
            shown
                .text(true)
                .contains("\x1b[1m  1     -     -     -     -  to port 80"),
            "{}",
            shown.text(true)
        );
    }

    #[test]
    fn a_dormant_table_and_a_chain_without_a_jump_are_marked() {
        let mut found = installed(Mode::Nft, &chart());
        found.tables[0].dormant = true;
        let text = Shown::of(&found).text(false);
        assert!(
            text.contains("PREROUTING (prerouting, priority -100, IPv4: the table is dormant)"),
            "{text}"
        );
        let mut found = installed(Mode::Native, &chart());
        rules_of(&mut found, "OUTPUT").clear();
        let text = Shown::of(&found).text(false);
        assert!(text.contains("\nPROXY_INIT_OUTPUT (nothing leads here)\n"), "{text}");
    }

    #[test]
    fn json_has_the_documented_keys() {
        let shown = Shown::of(&installed(Mode::Legacy, &chart()));
        let json: Value = serde_json::from_str(&shown.json()).unwrap();
        assert_eq!((&json["schema"], &json["not_known"]), (&json!(1), &json!([])));
        let backend = &json["backends"][0];
        assert_eq!(backend["mode"], "legacy");
        assert_eq!(
            (&backend["flags"][0], &backend["flags"][1]),
            (&json!("--iptables-mode"), &json!("legacy"))
        );
        assert_eq!(
            backend["chains"][0],
            json!({
                "family": "IPv4", "chain": "PREROUTING", "hook": "prerouting", "priority": -100,
                "rules": [{
                    "rule": "-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" \
                             -j PROXY_INIT_REDIRECT",
                    "packets": 3, "bytes": 180, "ours": true, "effect": "jump",
                }],
            })
        );
        assert_eq!(
            backend["chains"][1]["rules"][1],
            json!({
                "rule": "-A PROXY_INIT_REDIRECT -p tcp -m comment --comment \
                         \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143",
                "packets": 2, "bytes": 120, "ours": true, "effect": "proxy", "port": 4143,
            })
        );
        assert_eq!(backend["chains"][1].get("hook"), None);
        assert_eq!(backend["chains"].as_array().unwrap().len(), 8);
    }

    #[test]
    fn what_could_not_be_seen_is_said() {
        let found = Found {
            tables: vec![],
            not_known: vec![found::NotKnown {
                subsystem: found::Subsystem::Legacy,
                not_permitted: true,
                reason: "for a reason".to_owned(),
            }],
        };
        let shown = Shown::of(&found);
        assert_eq!(
            shown.text(false),
            "no rules of proxy-init's were found in this network namespace\n\
             not known: what legacy tables hold, whether proxy-init's rules or others (for a reason)\n"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&shown.json()).unwrap(),
            json!({"schema": 1, "backends": [], "not_known": ["legacy"]})
        );
    }
}
