//! Prints the answer of `show`, as text and as JSON.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use ruleset::{Direction, Family, Field, TableFamily};
use serde_json::Value;
use trace::Slot;

use super::{Backend, Effect, Shown, ShownChain, ShownRule, UNUSED, full_name, hook_in_words};
use crate::diagnose::output::json::object;
use crate::diagnose::output::page::{Page, Style, length, split_in_lines};
use crate::diagnose::output::words::{self, several_modes};
use crate::diagnose::verify::finding::{Finding, FindingKind};

/// The most rules of other programs that are listed for a chain; there may be thousands.
const MOST: usize = 10;

/// The most chains of other programs that are listed for a direction.
const MOST_CHAINS: usize = 20;

/// For people.
impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&Page::default()))
    }
}

impl Shown<'_> {
    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        let not_known = self.not_known.iter().map(|unseen| unseen.subsystem.to_string());
        object(vec![
            ("schema", 1.into()),
            ("backends", self.backends.iter().map(backend_json).collect()),
            ("not_known", not_known.collect()),
            ("warnings", self.all_warnings().into()),
        ])
        .to_string()
    }

    fn all_warnings(&self) -> Vec<String> {
        let warnings = self.warnings.iter().map(ToString::to_string);
        warnings.chain(self.signs.iter().cloned()).collect()
    }

    pub(in crate::diagnose) fn text(&self, page: &Page) -> String {
        let mut text = String::new();
        if let Some(twice) = several_modes(self.backends.iter().map(|backend| backend.mode)) {
            text += &page.paragraph(Style::Trouble, &twice, 2);
        }
        for backend in &self.backends {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &backend.text(page, self);
        }
        let mut about = String::new();
        if self.backends.is_empty() {
            about += &match self.not_known.first() {
                Some(unseen) => {
                    format!("{}\nno proxy-init rules are in what could be seen\n", words::unseen(unseen))
                }
                None => "no proxy-init rules were found in this network namespace\n".to_owned(),
            };
        }
        match &self.auto {
            Some(Ok((mode, reason))) => about += &format!("auto would choose {mode} mode, because {reason}\n"),
            Some(Err(error)) => about += &format!("auto cannot choose a mode: {error}\n"),
            None => {}
        }
        for warning in self.all_warnings() {
            about += &format!("warning: {warning}\n");
        }
        // Where no rules were found, the first line has the first reason.
        for unseen in self.not_known.iter().skip(usize::from(self.backends.is_empty())) {
            about += &format!(
                "not known: what {} tables hold, whether proxy-init's rules or others ({})\n",
                unseen.subsystem, unseen.reason
            );
        }
        if !text.is_empty() && !about.is_empty() {
            text.push('\n');
        }
        text + &page.fill_lines(&about)
    }
}

fn backend_json(backend: &Backend<'_>) -> Value {
    object(vec![
        ("mode", backend.mode.to_string().into()),
        ("flags", backend.flags.clone().into()),
        ("chains", backend.chains.iter().map(chain_json).collect()),
        ("later", backend.later.iter().map(slot_json).collect()),
    ])
}

fn slot_json(slot: &Slot<'_>) -> Value {
    object(vec![
        ("family", slot.table.family.title().into()),
        ("chain", full_name(slot.table, slot.chain).into()),
        ("hook", slot.base.hook.to_string().into()),
        ("priority", slot.base.priority.into()),
        ("policy", slot.base.policy.to_string().into()),
    ])
}

fn chain_json(chain: &ShownChain<'_>) -> Value {
    let mut value = vec![
        ("family", chain.table.family.title().into()),
        ("chain", chain.name().into()),
        ("rules", chain.rules.iter().map(rule_json).collect()),
    ];
    if let Some(base) = chain.chain.base {
        value.push(("hook", base.hook.to_string().into()));
        value.push(("priority", base.priority.into()));
    }
    object(value)
}

fn rule_json(rule: &ShownRule<'_>) -> Value {
    let (effect, port) = match rule.effect {
        Effect::Bypass => ("bypass", None),
        Effect::Proxy(port) => ("proxy", Some(port)),
        Effect::Jump => ("jump", None),
        Effect::Other => ("other", None),
    };
    let [matches, does, why] = rule.words();
    let counters = rule.line.rule.counters;
    let mut value = vec![
        ("rule", rule.line.to_string().trim_end().into()),
        ("matches", matches.into()),
        ("does", does.into()),
        ("why", why.into()),
        ("packets", counters.map(|counters| counters.packets).into()),
        ("bytes", counters.map(|counters| counters.bytes).into()),
        ("ours", rule.is_ours().into()),
        ("effect", effect.into()),
    ];
    if let Some(port) = port {
        value.push(("port", port.into()));
    }
    object(value)
}

/// Whose packets a counter may count, in the order of the columns: those of a family, or of both.
const COUNTED: [Option<Family>; 3] = [Some(Family::V4), Some(Family::V6), None];

fn counted_family(chain: &ShownChain<'_>) -> Option<Family> {
    match chain.table.family {
        TableFamily::Ip(family) => Some(family),
        TableFamily::Inet | TableFamily::Netdev | TableFamily::Arp | TableFamily::Bridge => None,
    }
}

/// A rule as a row of the table.
struct Row<'a> {
    counted: Option<Family>,
    rule: &'a ShownRule<'a>,
    /// IPv6's, beside IPv4's that is told in the same words.
    other: Option<&'a ShownRule<'a>>,
}

impl<'a> Row<'a> {
    fn of(chain: &ShownChain<'_>, rule: &'a ShownRule<'a>) -> Self {
        Self { counted: counted_family(chain), rule, other: None }
    }

    /// The common part of our rules that differ only in their matches; none for other rules, which may be
    /// thousands.
    fn kind(&self) -> Option<[String; 2]> {
        let [_, does, why] = Some(self.rule).filter(|rule| rule.is_ours())?.words();
        Some([does, why])
    }

    /// Returns true if this is a rule of ours that redirects a part of the connections that reach it.
    fn redirects_a_part(&self) -> bool {
        let mut conditions = self.rule.line.rule.conditions.iter();
        self.rule.is_ours()
            && matches!(self.rule.effect, Effect::Proxy(_))
            && conditions.any(|it| it.field() != Some(Field::Protocol))
    }

    fn cells(&self, columns: &[Option<Family>]) -> Line {
        let rule = self.rule;
        let number = rule.line.number;
        let other = self.other.map(|other| other.line.number).filter(|other| *other != number);
        let other = other.map_or(String::new(), |other| format!("/{other}"));
        let mut cells = vec![(Style::Plain, format!("{number}{other}"))];
        for family in columns {
            let counting = match family {
                family if *family == self.counted => Some(rule),
                Some(Family::V6) => self.other,
                _ => None,
            };
            cells.push(match counting.map(|rule| rule.line.rule.counters.map(|counters| counters.packets)) {
                Some(Some(0)) => (Style::Dim, "0".to_owned()),
                Some(Some(packets)) => (Style::Plain, packets.to_string()),
                // The other family has no such rule.
                None if self.counted.is_some() && family.is_some() => (Style::Plain, "-".to_owned()),
                _ => (Style::Plain, String::new()),
            });
        }
        let [matches, does, why] = rule.words();
        let style = match rule.effect {
            Effect::Proxy(_) => Style::Proxy,
            Effect::Bypass => Style::Bypass,
            Effect::Jump | Effect::Other => Style::Plain,
        };
        cells.extend([(Style::Plain, matches), (style, does)]);
        cells.push(match (rule.is_ours(), why.as_str()) {
            (true, _) => (Style::Plain, why),
            (false, "") => (Style::Trouble, "foreign".to_owned()),
            (false, comment) => (Style::Trouble, format!("foreign: {comment}")),
        });
        cells
    }
}

/// A line of text, or if it has several cells, a row of the table.
type Line = Vec<(Style, String)>;

/// A backend's part of the screen.
struct Screen {
    /// The counters' columns.
    columns: Vec<Option<Family>>,
    lines: Vec<Line>,
}

impl Screen {
    fn add_line(&mut self, style: Style, text: impl Into<String>) {
        self.lines.push(vec![(style, text.into())]);
    }

    fn add_titles(&mut self) {
        let families = self.columns.iter().map(|family| family.map_or("both".to_owned(), |family| family.to_string()));
        let mut families: Line = families.map(|family| (Style::Dim, family)).collect();
        families.insert(0, (Style::Dim, String::new()));
        families.resize(families.len() + 3, (Style::Dim, String::new()));
        self.lines.push(families);
        let titles = [&["#"], vec!["pkts"; self.columns.len()].as_slice(), &["matches", "does", "why"]].concat();
        self.lines.push(titles.into_iter().map(|title| (Style::Dim, title.to_owned())).collect());
    }

    /// The lines, with the cells of rows in columns: the number and the counters are aligned to the right, and the other
    /// cells take several lines if a row doesn't fit a terminal.
    fn text(&self, page: &Page) -> String {
        let mut text = String::new();
        let counters = self.columns.len();
        let widths = self.widths(page.width);
        for line in &self.lines {
            if let [(style, only)] = line.as_slice() {
                text += &page.paint(*style, only);
                text.push('\n');
                continue;
            }
            let cells = line.iter().zip(&widths);
            let cells: Vec<_> = cells
                .map(|((style, text), &width)| (style, width, split_in_lines(&pieces(text), "", 0, width)))
                .collect();
            for row in 0..cells.iter().map(|(.., lines)| lines.len()).max().unwrap_or_default() {
                let mut written = ROW.to_owned();
                for (column, (style, width, lines)) in cells.iter().enumerate() {
                    let part = lines.get(row).map_or("", String::as_str);
                    let (blanks, part) = (" ".repeat(width.saturating_sub(length(part))), page.paint(**style, part));
                    written += &if column > counters { part + &blanks } else { blanks + &part };
                    written += if column < counters { " " } else { "  " };
                }
                text += written.trim_end();
                text.push('\n');
            }
        }
        text
    }

    /// The widths of the columns: those of their longest cells if a row then fits a terminal; otherwise the columns with the
    /// most room shrink, at most to their longest pieces.
    fn widths(&self, room: usize) -> Vec<usize> {
        let mut columns: Vec<(usize, usize)> = Vec::new();
        for line in self.lines.iter().filter(|line| line.len() > 1) {
            columns.resize(line.len(), (0, 0));
            for ((width, least), (_, cell)) in columns.iter_mut().zip(line) {
                *width = length(cell).max(*width);
                *least = pieces(cell).into_iter().map(length).max().unwrap_or_default().max(*least);
            }
        }
        let between = ROW.len() + columns.len().saturating_sub(1) * 2 - self.columns.len();
        while columns.iter().map(|(width, _)| width).sum::<usize>() + between > room {
            match columns.iter_mut().max_by_key(|(width, least)| *width - *least) {
                Some((width, least)) if *width > *least => *width -= 1,
                _ => break,
            }
        }
        columns.into_iter().map(|(width, _)| width).collect()
    }
}

/// A cell's words, and the items of its lists: a line may end after each.
fn pieces(cell: &str) -> Vec<&str> {
    cell.split_inclusive([' ', ',']).collect()
}

/// The indent of rows: they belong to a chain, which belongs to a direction.
const ROW: &str = "    ";

impl Backend<'_> {
    fn text(&self, page: &Page, shown: &Shown<'_>) -> String {
        let mut columns = COUNTED.to_vec();
        columns.retain(|family| self.chains.iter().any(|chain| counted_family(chain) == *family));
        let mut screen = Screen { columns, lines: Vec::new() };
        let is_only = shown.backends.len() == 1;
        let mut heading = format!("{} mode", self.mode);
        if let Some(family) = self.family_without_rules().filter(|_| is_only) {
            heading += &format!(" without rules for {family}");
            if shown.not_known.is_empty() {
                heading += ", whose connections bypass the proxy";
            }
        }
        if !self.chains.iter().flat_map(|chain| &chain.rules).any(|rule| matches!(rule.effect, Effect::Proxy(_))) {
            heading += ": no rule redirects connections";
        }
        screen.add_line(Style::Bold, heading);
        if self.flags.is_none() {
            screen.add_line(Style::Trouble, "not one complete, untouched installation (see proxy-init verify)");
        }
        for chain in self.chains.iter().filter(|chain| is_only && chain.note == Some(UNUSED)) {
            let of = counted_family(chain).map_or(String::new(), |family| format!("{family} "));
            let (name, direction) = (chain.name(), chain.direction);
            screen.add_line(
                Style::Trouble,
                format!("no rule leads to {name}: {direction} {of}connections bypass the proxy"),
            );
        }
        self.tell_interference(&mut screen, page, shown.not_known.is_empty());
        screen.add_titles();
        for direction in Direction::ALL {
            screen.add_line(Style::Bold, direction.to_string());
            let mut others = 0;
            for (first, second) in self.side_by_side(direction) {
                others += usize::from(!first.is_own());
                if first.is_own() || others <= MOST_CHAINS {
                    add_chain(&mut screen, first, second);
                }
            }
            if others > MOST_CHAINS {
                let more = others - MOST_CHAINS;
                screen.add_line(Style::Trouble, format!("  ... {more} more chains of other programs"));
            }
            screen.add_line(Style::Plain, "");
        }
        if !self.later.is_empty() {
            let drops = |finding: &Finding| finding.kind() == FindingKind::Dropped;
            let (heading, style) = if self.flags.is_none() || self.others.iter().any(drops) {
                ("after these, and may drop connections (see proxy-init verify)", Style::Trouble)
            } else {
                ("after these, and drop nothing that is redirected", Style::Plain)
            };
            screen.add_line(Style::Bold, heading);
            for Slot { table, chain, base } in self.later.iter().take(MOST_CHAINS) {
                let (name, hooked, policy) = (full_name(table, chain), hook_in_words(*base, chain), base.policy);
                screen.add_line(style, format!("  {name} ({hooked}, policy {policy})"));
            }
            if self.later.len() > MOST_CHAINS {
                screen.add_line(style, format!("  ... {} more", self.later.len() - MOST_CHAINS));
            }
            screen.add_line(Style::Plain, "");
        }
        if let Some(flags) = &self.flags {
            screen.add_line(Style::Bold, "flags that install proxy-init's rules as found");
            screen.add_line(Style::Plain, page.wrap_flags(flags));
        } else {
            screen.lines.pop();
        }
        screen.text(page)
    }

    /// The family for which proxy-init has no rules.
    fn family_without_rules(&self) -> Option<Family> {
        let [has_v4, has_v6, has_both] = COUNTED.map(|family| {
            let mut chains = self.chains.iter().filter(|chain| counted_family(chain) == family);
            chains.any(|chain| chain.rules.iter().any(ShownRule::is_ours))
        });
        let is_without = self.flags.is_some() && self.config.as_ref().is_some_and(|config| !config.ipv6);
        match (has_v4, has_v6, has_both) {
            (true, false, false) => Some(Family::V6),
            _ if is_without => Some(Family::V6),
            (false, true, false) => Some(Family::V4),
            _ => None,
        }
    }

    /// Tells if other programs' rules come first, and how these and later rules treat connections.
    fn tell_interference(&self, screen: &mut Screen, page: &Page, is_all_seen: bool) {
        let mut deeds: Vec<String> = self.others.iter().filter_map(Finding::interference).collect();
        // Both directions may lead to a rule.
        let mut known = HashSet::new();
        deeds.retain(|deed| known.insert(deed.clone()));
        let foreign = self.chains.iter().flat_map(before_jump).filter(|rule| !rule.is_ours());
        let foreign = foreign.map(|rule| std::ptr::from_ref(rule.line.rule)).collect::<HashSet<_>>().len();
        let (rules, run, take) = match foreign {
            1 => ("rule of another program", "runs", "takes"),
            _ => ("rules of other programs", "run", "take"),
        };
        if foreign == 0 && deeds.is_empty() {
            let seen = if is_all_seen { "" } else { " that could be seen" };
            screen.add_line(Style::Plain, format!("no {rules}{seen} {run} before these"));
        } else if foreign > 0 && self.flags.is_some() && deeds.is_empty() && is_all_seen {
            screen.add_line(
                Style::Plain,
                format!("{foreign} {rules} {run} before or among these, and {take} no connection"),
            );
        } else if foreign > 0 {
            screen.add_line(Style::Trouble, format!("{foreign} {rules} {run} before or among these"));
        }
        if !deeds.is_empty() {
            let may = if self.others.iter().all(|finding| finding.problem.is_warning()) { "may " } else { "" };
            screen.add_line(Style::Trouble, format!("rules of other programs {may}interfere (see proxy-init verify)"));
        }
        for deed in deeds.iter().take(MOST) {
            screen.add_line(Style::Plain, page.fold_line(&format!("  {deed}"), 4));
        }
        if deeds.len() > MOST {
            screen.add_line(Style::Plain, format!("  ... {} more", deeds.len() - MOST));
        }
    }

    /// The chains of a direction, those of IPv6 beside IPv4's of the same title.
    fn side_by_side(&self, direction: Direction) -> Vec<(&ShownChain<'_>, Option<&ShownChain<'_>>)> {
        let mut pairs: Vec<(&ShownChain<'_>, Option<&ShownChain<'_>>)> = Vec::new();
        let mut next = 0;
        for chain in self.chains.iter().filter(|chain| chain.direction == direction) {
            if counted_family(chain) != Some(Family::V6) {
                pairs.push((chain, None));
                continue;
            }
            let mut known = pairs.iter_mut().enumerate();
            match known
                .find(|(_, (other, _))| counted_family(other) == Some(Family::V4) && other.title() == chain.title())
            {
                Some((place, (_, second))) => {
                    *second = Some(chain);
                    next = place + 1;
                }
                None => {
                    pairs.insert(next.min(pairs.len()), (chain, None));
                    next += 1;
                }
            }
        }
        pairs
    }
}

/// Adds a chain of one family or of both.
fn add_chain(screen: &mut Screen, first: &ShownChain<'_>, second: Option<&ShownChain<'_>>) {
    screen.add_line(Style::Dim, format!("  {}", heading(first, second)));
    let rows = merged(first, second);
    if rows.is_empty() {
        screen.add_line(Style::Dim, format!("{ROW}no rules"));
    }
    let mut foreign = 0;
    for alike in rows.chunk_by(|row, next| row.kind() == next.kind()) {
        let is_ours = alike.iter().all(|row| row.rule.is_ours());
        let room = match alike.len() {
            _ if !is_ours => MOST.saturating_sub(foreign),
            // A list of a thousand ports is one of many rules.
            count if count > MOST => 2,
            count => count,
        };
        let rows: Vec<Line> = alike.iter().take(room).map(|row| row.cells(&screen.columns)).collect();
        screen.lines.extend(rows);
        if !is_ours {
            foreign += alike.len();
        } else if alike.len() > room {
            screen.add_line(Style::Plain, format!("{ROW}... {} more like these", alike.len() - room));
        }
    }
    if foreign > MOST {
        screen.add_line(Style::Trouble, format!("{ROW}... {} more foreign rules", foreign - MOST));
    }
    if rows.last().is_some_and(Row::redirects_a_part) {
        screen.add_line(Style::Bypass, format!("{ROW}all others bypass the proxy"));
    }
}

/// A chain's name, its hook, and its defect.
fn heading(first: &ShownChain<'_>, second: Option<&ShownChain<'_>>) -> String {
    let mut about = Vec::new();
    about.extend(first.chain.base.map(|base| hook_in_words(base, first.chain)));
    match second {
        Some(second) if second.note != first.note => {
            for chain in [first, second] {
                about.extend(counted_family(chain).zip(chain.note).map(|(family, note)| format!("{family}: {note}")));
            }
        }
        _ => about.extend(first.note.map(ToOwned::to_owned)),
    }
    if about.is_empty() {
        return first.title();
    }
    format!("{} ({})", first.title(), about.join(", "))
}

/// The rules of a chain in both families up to the jump to ours, those that are the same side by side.
fn merged<'a>(first: &'a ShownChain<'a>, second: Option<&'a ShownChain<'a>>) -> Vec<Row<'a>> {
    let Some(second) = second else {
        return before_jump(first).map(|rule| Row::of(first, rule)).collect();
    };
    // Where the second family has each rule that is told in the same words, the last one first.
    let mut places: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let others: Vec<&ShownRule<'_>> = before_jump(second).collect();
    for (place, rule) in others.iter().enumerate().rev() {
        places.entry((rule.words(), rule.is_ours())).or_default().push(place);
    }
    let mut rows = Vec::new();
    let mut rest = others.into_iter();
    let mut next = 0;
    for rule in before_jump(first) {
        let mut row = Row::of(first, rule);
        let same = places.get_mut(&(rule.words(), rule.is_ours()));
        let place = same.and_then(|places| {
            while places.pop_if(|place| *place < next).is_some() {}
            places.pop()
        });
        if let Some(place) = place {
            rows.extend(rest.by_ref().take(place - next).map(|rule| Row::of(second, rule)));
            row.other = rest.next();
            next = place + 1;
        }
        rows.push(row);
    }
    rows.extend(rest.map(|rule| Row::of(second, rule)));
    rows
}

fn before_jump<'a>(chain: &'a ShownChain<'a>) -> impl Iterator<Item = &'a ShownRule<'a>> {
    chain.rules.iter().filter(|rule| !rule.after_jump)
}

#[cfg(test)]
mod tests {
    use ruleset::{Action, Condition, Counters, Field, Hook, Kind, Name, Nat, NatKind, testing};
    use ruleset::{Network, Ruleset};
    use serde_json::json;

    use super::*;
    use crate::config::{Config, Mode, OwnerId};
    use crate::plan::tables::expected;

    fn chart() -> Config {
        let list = |text: &str| text.split(',').map(|item| item.parse().unwrap()).collect();
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = OwnerId::new(2102);
        config.ignored_inbound_ports = list("4190,4191,4567,4568");
        config.ignored_outbound_ports = list("4567,4568");
        config
    }

    /// The installation of these flags. Each rule has counted a packet more than the rule before.
    fn installed(mode: Mode, config: &Config) -> Ruleset {
        let mut tables = expected(mode, config);
        let rules = tables.iter_mut().flat_map(|table| &mut table.chains);
        for (packets, rule) in (1..).zip(rules.flat_map(|chain| &mut chain.rules)) {
            rule.counters = Some(Counters { packets, bytes: packets * 60 });
        }
        Ruleset { tables, not_known: vec![] }
    }

    #[test]
    fn linkerds_defaults_fit_a_screen() {
        let text = Shown::of(&installed(Mode::Nft, &chart()), &Network::default()).to_string();
        let want = "\
nft mode
no rules of other programs run before these
      IPv4 IPv6
    # pkts pkts  matches                  does                     why
inbound
  PREROUTING (prerouting, priority -100)
    1    3   11  everything               to PROXY_INIT_REDIRECT   entry
  PROXY_INIT_REDIRECT
    1    1    9  to port 4190,4191,4567,  bypasses the proxy       ignored ports
                 4568
    2    2   10  tcp                      to the proxy, port 4143  all the rest

outbound
  OUTPUT (output, priority -100)
    1    8   16  everything               to PROXY_INIT_OUTPUT     entry
  PROXY_INIT_OUTPUT
    1    4   12  from user 2102           bypasses the proxy       the proxy's
    2    5   13  leaving by lo            bypasses the proxy       in the pod
    3    6   14  to port 4567,4568        bypasses the proxy       ignored ports
    4    7   15  tcp                      to the proxy, port 4140  all the rest

flags that install proxy-init's rules as found
  --iptables-mode nft --incoming-proxy-port 4143 --outgoing-proxy-port 4140 \\
  --proxy-uid 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 \\
  --outbound-ports-to-ignore 4567,4568
";
        assert_eq!(text, want);
        assert!(text.lines().all(|line| line.len() <= 80));
        // As Linkerd's charts have it, without IPv6.
        let mut config = chart();
        config.ipv6 = false;
        let text = Shown::of(&installed(Mode::Nft, &config), &Network::default()).to_string();
        assert!(text.lines().count() <= 24, "{text}");
        let title = "nft mode without rules for IPv6, whose connections bypass the proxy\n";
        assert!(text.starts_with(title), "{text}");
    }

    #[test]
    fn a_long_list_of_ports_is_a_few_lines() {
        let mut config = chart();
        config.ignored_inbound_ports = (1..=200).map(|port| (port * 3).to_string().parse().unwrap()).collect();
        let text = Shown::of(&installed(Mode::Nft, &config), &Network::default()).to_string();
        assert!(text.contains("\n    ... 12 more like these\n"), "{text}");
        assert!(text.contains("\n    15 "), "the rule after them: {text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn what_no_rule_redirects_is_told_after_those_that_redirect_a_part() {
        let mut config = chart();
        config.redirected_ports = vec!["8080".parse().unwrap()];
        for mode in [Mode::Nft, Mode::Native] {
            let text = Shown::of(&installed(mode, &config), &Network::default()).to_string();
            let told = "chosen port\n    all others bypass the proxy\n\noutbound\n";
            assert!(text.contains(told), "{text}");
            assert_eq!(text.matches("all others").count(), 1, "{text}");
        }
    }

    #[test]
    fn native_mode_counts_both_families_together() {
        let text = Shown::of(&installed(Mode::Native, &chart()), &Network::default()).to_string();
        let want = "\
native mode
no rules of other programs run before these
      both
    # pkts  matches                      does                     why
inbound
  PREROUTING (prerouting, priority -100)
    1    3  everything                   to PROXY_INIT_REDIRECT   entry
  PROXY_INIT_REDIRECT
    1    1  to port 4190-4191,4567-4568  bypasses the proxy       ignored ports
    2    2  tcp                          to the proxy, port 4143  all the rest
";
        assert!(text.starts_with(want), "{text}");
        assert!(
            text.ends_with(
                "  --iptables-mode native --incoming-proxy-port 4143 --outgoing-proxy-port 4140 \\\n  \
                 --proxy-uid 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 \\\n  \
                 --outbound-ports-to-ignore 4567,4568\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_only_one_family_has_stands_between_what_both_have() {
        let mut config = chart();
        config.ignored_inbound_subnets =
            ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24"].map(|net| net.parse().unwrap()).into();
        let text = Shown::of(&installed(Mode::Nft, &config), &Network::default()).to_string();
        let want = "
  PROXY_INIT_REDIRECT
      1    1   11  to port 4190,4191,    bypasses the proxy       ignored ports
                   4567,4568
      2    2    -  from 10.0.0.0/8       bypasses the proxy       ignored subnet
      3    3    -  from 192.0.2.0/24     bypasses the proxy       ignored subnet
      2    -   12  from fd00::/8         bypasses the proxy       ignored subnet
    4/3    4   13  tcp                   to the proxy, port 4143  all the rest
";
        assert!(text.contains(want), "{text}");
    }

    fn foreign(field: Field, number: u128, action: Action) -> ruleset::Rule {
        ruleset::Rule::new(vec![Condition::is(field, number)], action)
    }

    fn rules_of<'a>(ruleset: &'a mut Ruleset, chain: &str) -> &'a mut Vec<ruleset::Rule> {
        let mut chains = ruleset.tables.iter_mut().flat_map(|table| &mut table.chains);
        &mut chains.find(|known| known.name == *chain).unwrap().rules
    }

    #[test]
    fn foreign_rules_are_shown_where_they_run() {
        let mut ruleset = installed(Mode::Nft, &chart());
        let accept = foreign(Field::DestinationPort, 80, Action::Accept);
        let masquerading = foreign(Field::DestinationPort, 81, Action::Nat(Nat::of(NatKind::Masquerade)));
        rules_of(&mut ruleset, "PREROUTING").insert(0, accept.clone());
        rules_of(&mut ruleset, "PREROUTING").push(masquerading.clone());
        rules_of(&mut ruleset, "PROXY_INIT_REDIRECT").insert(1, masquerading);
        let jump = foreign(Field::SourcePort, 9, Action::Jump(Name::from("DOCKER")));
        rules_of(&mut ruleset, "OUTPUT").insert(0, jump);
        let mut docker = ruleset.tables[0].chains[0].clone();
        docker.name = Name::from("DOCKER");
        docker.rules = vec![accept; 12];
        ruleset.tables[0].chains.push(docker);

        let shown = Shown::of(&ruleset, &Network::default());
        assert_eq!(shown.backends[0].flags, None);
        let text = shown.to_string();
        for want in [
            "nft mode\nnot one complete, untouched installation (see proxy-init verify)\n\
             15 rules of other programs run before or among these\n",
            "\n      1         -  to port 80             bypasses the proxy       foreign\n    2/1    3 ",
            "  to port 81             MASQUERADE               foreign\n",
            "  from port 9            to DOCKER                foreign\n    2/1 ",
            "to PROXY_INIT_OUTPUT     entry\n  DOCKER\n      1 ",
            "\n    ... 2 more foreign rules\n",
        ] {
            assert!(text.contains(want), "{want:?} in {text}");
        }
        // Rules after the jump see only connections that bypass the proxy.
        assert_eq!(text.matches("MASQUERADE").count(), 1, "{text}");
        // A program sees all.
        let json: Value = serde_json::from_str(&shown.json()).unwrap();
        let chains = json["backends"][0]["chains"].as_array().unwrap();
        let rules = |name: &str| {
            let chain = chains.iter().find(|chain| chain["chain"] == name).unwrap();
            chain["rules"].as_array().unwrap().clone()
        };
        assert_eq!(rules("DOCKER").len(), 12);
        let told: Vec<_> =
            rules("PREROUTING").iter().map(|rule| (rule["ours"].clone(), rule["effect"].clone())).collect();
        assert_eq!(
            told,
            [(json!(false), json!("bypass")), (json!(true), json!("jump")), (json!(false), json!("other"))]
        );
        // One colour each for the proxy, for bypasses and for foreign rules, and only if asked for.
        assert!(!text.contains('\x1b'));
        let coloured = shown.text(&Page::new(true, None));
        for want in [
            "\x1b[1minbound\x1b[0m\n",
            "  \x1b[32mto the proxy, port 4143\x1b[0m  all the rest\n",
            "  \x1b[33mbypasses the proxy\x1b[0m       the proxy's\n",
            "  \x1b[1;31mforeign\x1b[0m\n",
        ] {
            assert!(coloured.contains(want), "{want:?} in {coloured:?}");
        }
        let plain = ["1", "2", "32", "33", "1;31", "0"];
        let plain = plain.iter().fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(plain, text, "colours move nothing");
    }

    #[test]
    fn foreign_rules_interfere_or_do_not() {
        let told = |action| {
            let mut ruleset = installed(Mode::Nft, &chart());
            rules_of(&mut ruleset, "PREROUTING").insert(0, foreign(Field::DestinationPort, 81, action));
            let text = Shown::of(&ruleset, &Network::default()).to_string();
            let (told, _) = text.split_once("IPv4 IPv6\n").unwrap();
            told.trim_end().to_owned()
        };
        assert_eq!(
            told(Action::Continue),
            "nft mode\n1 rule of another program runs before or among these, and takes no connection"
        );
        assert_eq!(
            told(Action::Redirect(Some((15006, 15006)))),
            "nft mode\n1 rule of another program runs before or among these\n\
             rules of other programs interfere (see proxy-init verify)\n  \
             IPv4, PREROUTING: a rule redirects connections: to port 81"
        );
    }

    #[test]
    fn a_rule_to_which_both_directions_lead_counts_once() {
        let to_shared = || vec![testing::rule([], Action::Jump(Name::from("shared")))];
        let mut ruleset = installed(Mode::Nft, &chart());
        ruleset.tables.push(testing::table(
            "ip mangle",
            vec![
                testing::base("early", Kind::Filter, Hook::Prerouting, -150, to_shared()),
                testing::base("leaving", Kind::Filter, Hook::Output, -150, to_shared()),
                testing::chain("shared", vec![testing::rule([testing::to_port(81)], Action::Drop)]),
            ],
        ));
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert!(text.contains("\n3 rules of other programs run before or among these\n"), "{text}");
        assert_eq!(text.matches("ip mangle shared: a rule drops connections").count(), 1, "{text}");
        assert_eq!(text.matches("\n  mangle shared\n").count(), 2, "{text}");
    }

    #[test]
    fn of_many_chains_the_first_are_shown_and_all_of_proxy_inits() {
        let mut ruleset = installed(Mode::Nft, &chart());
        let many = |hook, priority| {
            (0..30).map(move |index| {
                let rules = vec![testing::rule([testing::to_port(81)], Action::Drop)];
                testing::base(&format!("{hook}{index}"), Kind::Filter, hook, priority, rules)
            })
        };
        let chains = many(Hook::Prerouting, -150).chain(many(Hook::Postrouting, 0)).collect();
        ruleset.tables.push(testing::table("inet many", chains));
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert_eq!(text.matches("\n  inet many prerouting").count(), 20, "{text}");
        let own = text.find("\n  PROXY_INIT_REDIRECT\n").unwrap();
        assert!(text.find("\n  ... 10 more chains of other programs\n\noutbound\n").unwrap() > own, "{text}");
        assert_eq!(text.matches("\n  inet many postrouting").count(), 20, "{text}");
        assert!(text.contains("policy accept)\n  ... 10 more\n"), "{text}");
    }

    #[test]
    fn a_dormant_table_and_a_chain_without_a_jump_are_marked() {
        let mut ruleset = installed(Mode::Nft, &chart());
        ruleset.tables[0].dormant = true;
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert!(
            text.contains("PREROUTING (prerouting, priority -100, IPv4: switched off: the table is dormant)"),
            "{text}"
        );
        let mut ruleset = installed(Mode::Native, &chart());
        rules_of(&mut ruleset, "OUTPUT").clear();
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert!(text.contains("\n  PROXY_INIT_OUTPUT (unused: nothing leads here)\n"), "{text}");
        assert!(
            text.contains("\nno rule leads to PROXY_INIT_OUTPUT: outbound connections bypass the proxy\n"),
            "{text}"
        );
    }

    #[test]
    fn json_has_the_documented_keys() {
        let ruleset = installed(Mode::Legacy, &chart());
        let shown = Shown::of(&ruleset, &Network::default());
        let json: Value = serde_json::from_str(&shown.json()).unwrap();
        assert_eq!((&json["schema"], &json["not_known"]), (&json!(1), &json!([])));
        let backend = &json["backends"][0];
        assert_eq!(backend["mode"], "legacy");
        assert_eq!((&backend["flags"][0], &backend["flags"][1]), (&json!("--iptables-mode"), &json!("legacy")));
        assert_eq!(
            backend["chains"][0],
            json!({
                "family": "IPv4", "chain": "PREROUTING", "hook": "prerouting", "priority": -100,
                "rules": [{
                    "rule": "-A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" \
                             -j PROXY_INIT_REDIRECT",
                    "matches": "everything", "does": "to PROXY_INIT_REDIRECT", "why": "entry",
                    "packets": 3, "bytes": 180, "ours": true, "effect": "jump",
                }],
            })
        );
        assert_eq!(
            backend["chains"][1]["rules"][1],
            json!({
                "rule": "-A PROXY_INIT_REDIRECT -p tcp -m comment --comment \
                         \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143",
                "matches": "tcp", "does": "to the proxy, port 4143", "why": "all the rest",
                "packets": 2, "bytes": 120, "ours": true, "effect": "proxy", "port": 4143,
            })
        );
        assert_eq!(backend["chains"][1].get("hook"), None);
        assert_eq!(backend["chains"].as_array().unwrap().len(), 8);
    }
}
