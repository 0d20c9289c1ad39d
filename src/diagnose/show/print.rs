//! Prints the answer of `show`, as text and as JSON.

use std::collections::HashSet;
use std::fmt;

use ruleset::{Base, Chain, Family, Field, Hook, Line};
use serde_json::Value;

use super::{Backend, Effect, Shown, ShownChain, ShownRule, UNUSED};
use crate::diagnose::output::json::object;
use crate::diagnose::output::page::{Page, Style};
use crate::diagnose::output::words::{self, several_modes};
use crate::diagnose::verify::finding::Finding;

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

impl Backend<'_> {
    fn text(&self, page: &Page, shown: &Shown<'_>) -> String {
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
        let mut text = page.paragraph(Style::Bold, &heading, 2);
        if self.flags.is_none() {
            let untold = "not one complete, untouched installation (see proxy-init verify)";
            text += &page.paragraph(Style::Trouble, untold, 2);
        }
        for chain in self.chains.iter().filter(|chain| is_only && chain.note == Some(UNUSED)) {
            let of = chain.family.map_or(String::new(), |family| format!("{family} "));
            let (name, direction) = (chain.name(), chain.direction);
            let unused = format!("no rule leads to {name}: {direction} {of}connections bypass the proxy");
            text += &page.paragraph(Style::Trouble, &unused, 2);
        }
        text += &self.interference(page, shown.not_known.is_empty());
        let ways = self.chains.chunk_by(|one, next| (one.family, one.direction) == (next.family, next.direction));
        for way in ways {
            text += &way_text(way, page);
        }
        if let Some(flags) = &self.flags {
            text.push('\n');
            text += &page.paragraph(Style::Bold, "flags that install proxy-init's rules as found", 2);
            text += &page.wrap_flags(flags);
            text.push('\n');
        }
        text
    }

    /// The family for which proxy-init has no rules.
    fn family_without_rules(&self) -> Option<Family> {
        let has_rules = |family: &Family| {
            let mut chains = self.chains.iter().filter(|chain| chain.family.is_none_or(|of| of == *family));
            chains.any(|chain| chain.rules.iter().any(ShownRule::is_ours))
        };
        if self.flags.is_some() && self.config.as_ref().is_some_and(|config| !config.ipv6) {
            return Some(Family::V6);
        }
        let mut without = Family::ALL.into_iter().filter(|family| !has_rules(family));
        without.next().filter(|_| without.next().is_none())
    }

    /// Tells if other programs' rules come first, and how these and later rules treat connections.
    fn interference(&self, page: &Page, is_all_seen: bool) -> String {
        let mut deeds: Vec<String> = self.others.iter().filter_map(Finding::interference).collect();
        // Both directions may lead to a rule.
        let mut known = HashSet::new();
        deeds.retain(|deed| known.insert(deed.clone()));
        let foreign = self.chains.iter().flat_map(before_jump).filter(|rule| !rule.is_ours());
        let foreign = foreign.map(|rule| std::ptr::from_ref(rule.line.rule)).collect::<HashSet<_>>().len();
        let run = if foreign == 1 { "rule of another program runs" } else { "rules of other programs run" };
        let mut text = if foreign > 0 {
            let are_harmless = self.flags.is_some() && deeds.is_empty() && is_all_seen;
            let (style, taken) =
                if are_harmless { (Style::Plain, ": no connection is taken") } else { (Style::Trouble, "") };
            page.paragraph(style, &format!("{foreign} {run} before or among these{taken}"), 2)
        } else if deeds.is_empty() {
            let seen = if is_all_seen { "" } else { " that could be seen" };
            page.paragraph(Style::Plain, &format!("no rules of other programs{seen} run before these"), 2)
        } else {
            String::new()
        };
        if !deeds.is_empty() {
            let may = if self.others.iter().all(Finding::is_warning) { "may " } else { "" };
            let interfere = format!("rules of other programs {may}interfere (see proxy-init verify)");
            text += &page.paragraph(Style::Trouble, &interfere, 2);
        }
        for deed in deeds.iter().take(MOST) {
            text += &page.paragraph(Style::Plain, &format!("  {deed}"), 4);
        }
        if deeds.len() > MOST {
            text += &format!("  ... {} more\n", deeds.len() - MOST);
        }
        text
    }
}

/// The chains that connections of one direction and family pass.
fn way_text(way: &[ShownChain<'_>], page: &Page) -> String {
    let mut text = "\n".to_owned();
    if let Some(ShownChain { direction, family, .. }) = way.first() {
        let of = family.map_or(String::new(), |family| format!(", {family}"));
        text += &page.paragraph(Style::Bold, &format!("{direction}{of}"), 2);
    }
    let mut others = 0;
    for chain in way {
        others += usize::from(!chain.is_own());
        if chain.is_own() || others <= MOST_CHAINS {
            text += &chain.text(page);
        }
    }
    if others > MOST_CHAINS {
        let more = format!("  ... {} more chains of other programs", others - MOST_CHAINS);
        text += &page.paragraph(Style::Trouble, &more, 2);
    }
    text
}

impl ShownChain<'_> {
    /// The name, the hook and the defect; then the rules up to the jump to ours.
    fn text(&self, page: &Page) -> String {
        let hook = self.chain.base.map(|base| hook_in_words(base, self.chain));
        let about: Vec<String> = hook.into_iter().chain(self.note.map(ToOwned::to_owned)).collect();
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        let mut text = page.paragraph(Style::Dim, &format!("  {}{about}", self.name()), 4);
        let rules: Vec<_> = before_jump(self).collect();
        if rules.is_empty() {
            text += &page.paragraph(Style::Dim, "    no rules", 4);
        }
        let mut foreign = 0;
        for alike in rules.chunk_by(|rule, next| rule.kind() == next.kind()) {
            let is_ours = alike.iter().all(|rule| rule.is_ours());
            let room = match alike.len() {
                _ if !is_ours => MOST.saturating_sub(foreign),
                // A list of a thousand ports is one of many rules.
                count if count > MOST => 2,
                count => count,
            };
            for rule in alike.iter().take(room) {
                text += &rule.text(page);
            }
            if !is_ours {
                foreign += alike.len();
            } else if alike.len() > room {
                text += &format!("    ... {} more like these\n", alike.len() - room);
            }
        }
        if foreign > MOST {
            let more = format!("    ... {} more foreign rules", foreign - MOST);
            text += &page.paragraph(Style::Trouble, &more, 4);
        }
        if rules.last().is_some_and(|rule| rule.redirects_a_part()) {
            text += &page.paragraph(Style::Bypass, "    all others bypass the proxy", 4);
        }
        text
    }
}

/// A base chain's hook, its devices unless they are all, and its priority.
fn hook_in_words(base: Base, chain: &Chain) -> String {
    let field = if base.hook == Hook::Egress { Field::OutInterface } else { Field::InInterface };
    let devices = chain.devices.as_ref().map(|devices| format!(", {}", words::numbers(field, devices)));
    format!("{}{}, priority {}", base.hook, devices.unwrap_or_default(), base.priority)
}

fn before_jump<'a>(chain: &'a ShownChain<'a>) -> impl Iterator<Item = &'a ShownRule<'a>> {
    chain.rules.iter().filter(|rule| !rule.after_jump)
}

impl ShownRule<'_> {
    /// Its number, the packets that it has counted, and its words.
    fn text(&self, page: &Page) -> String {
        let [matches, does, why] = self.words();
        let Line { number, rule, .. } = self.line;
        let packets = rule.counters.map_or(String::new(), |counters| counters.packets.to_string());
        let start = format!("{number:>5} {packets:>8}  ");
        let (style, why) = match (self.effect, why.as_str()) {
            (_, "") if !self.is_ours() => (Style::Trouble, "foreign".to_owned()),
            (_, comment) if !self.is_ours() => (Style::Trouble, format!("foreign: {comment}")),
            (Effect::Proxy(_), _) => (Style::Proxy, why),
            (Effect::Bypass, _) => (Style::Bypass, why),
            (Effect::Jump | Effect::Other, _) => (Style::Plain, why),
        };
        page.paragraph(style, &format!("{start}{matches}: {does} ({why})"), start.len())
    }

    /// The common part of our rules that differ only in their matches; none for other rules, which may be
    /// thousands.
    fn kind(&self) -> Option<[String; 2]> {
        let [_, does, why] = Some(self).filter(|rule| rule.is_ours())?.words();
        Some([does, why])
    }

    /// Returns true if this is a rule of ours that redirects a part of the connections that reach it.
    fn redirects_a_part(&self) -> bool {
        let mut conditions = self.line.rule.conditions.iter();
        self.is_ours()
            && matches!(self.effect, Effect::Proxy(_))
            && conditions.any(|it| it.field() != Some(Field::Protocol))
    }
}

#[cfg(test)]
mod tests {
    use ruleset::{Action, Condition, Counters, Field, Hook, Kind, Name, testing};
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

    /// As Linkerd's charts have it, without IPv6.
    #[test]
    fn linkerds_defaults_fit_a_screen() {
        let text =
            Shown::of(&installed(Mode::Nft, &Config { ipv6: false, ..chart() }), &Network::default()).to_string();
        assert!(text.lines().count() <= 24 && text.lines().all(|line| line.len() <= 80), "{text}");
        let title = "nft mode without rules for IPv6, whose connections bypass the proxy\n";
        assert!(text.starts_with(title), "{text}");
    }

    #[test]
    fn a_long_list_of_ports_is_a_few_lines() {
        let mut config = chart();
        config.ignored_inbound_ports = (1..=200).map(|port| (port * 3).to_string().parse().unwrap()).collect();
        let text = Shown::of(&installed(Mode::Nft, &config), &Network::default()).to_string();
        assert!(text.contains("\n    ... 12 more like these\n"), "{text}");
        assert!(text.contains("\n   15 "), "the rule after them: {text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn what_no_rule_redirects_is_told_after_those_that_redirect_a_part() {
        let mut config = chart();
        config.redirected_ports = vec!["8080".parse().unwrap()];
        for mode in [Mode::Nft, Mode::Native] {
            let text = Shown::of(&installed(mode, &config), &Network::default()).to_string();
            let told = "(chosen port)\n    all others bypass the proxy\n\noutbound";
            assert!(text.contains(told), "{text}");
        }
    }

    fn foreign(field: Field, number: u128, action: Action) -> ruleset::Rule {
        ruleset::Rule::new(vec![Condition::is(field, number)], action)
    }

    fn rules_of<'a>(ruleset: &'a mut Ruleset, chain: &str) -> &'a mut Vec<ruleset::Rule> {
        let mut chains = ruleset.tables.iter_mut().flat_map(|table| &mut table.chains);
        &mut chains.find(|known| known.name == *chain).unwrap().rules
    }

    /// One each for the proxy, for bypasses and for foreign rules, and only if asked for.
    #[test]
    fn colours_move_nothing() {
        let mut ruleset = installed(Mode::Nft, &chart());
        let accept = foreign(Field::DestinationPort, 80, Action::Accept);
        rules_of(&mut ruleset, "PREROUTING").splice(0..0, vec![accept; 12]);
        let shown = Shown::of(&ruleset, &Network::default());
        let text = shown.to_string();
        assert!(!text.contains('\x1b') && text.contains("\n    ... 2 more foreign rules\n"), "{text}");
        let coloured = shown.text(&Page::new(true, None));
        for want in [
            "\x1b[1minbound, IPv4\x1b[0m\n",
            "\x1b[32m    2       10  tcp: to the proxy, port 4143 (all the rest)\x1b[0m\n",
            ": bypasses the proxy (the proxy's)\x1b[0m\n",
            "\x1b[1;31m    1           to port 80: bypasses the proxy (foreign)\x1b[0m\n",
        ] {
            assert!(coloured.contains(want), "{want:?} in {coloured:?}");
        }
        let plain = ["1", "2", "32", "33", "1;31", "0"];
        let plain = plain.iter().fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(plain, text);
    }

    #[test]
    fn foreign_rules_interfere_or_do_not() {
        let told = |action| {
            let mut ruleset = installed(Mode::Nft, &chart());
            rules_of(&mut ruleset, "PREROUTING").insert(0, foreign(Field::DestinationPort, 81, action));
            let text = Shown::of(&ruleset, &Network::default()).to_string();
            let (told, _) = text.split_once("\n\ninbound").unwrap();
            told.trim_end().to_owned()
        };
        assert_eq!(
            told(Action::Continue),
            "nft mode\n1 rule of another program runs before or among these: no connection is taken"
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
        assert_eq!(text.matches("\n  ip mangle shared\n").count(), 2, "{text}");
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
        let chains = many(Hook::Prerouting, -150).collect();
        ruleset.tables.push(testing::table("inet many", chains));
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert_eq!(text.matches("\n  inet many prerouting").count(), 20, "{text}");
        let own = text.find("\n  PROXY_INIT_REDIRECT\n").unwrap();
        assert!(text.find("\n  ... 10 more chains of other programs\n\noutbound").unwrap() > own, "{text}");
    }

    #[test]
    fn a_dormant_table_and_a_chain_without_a_jump_are_marked() {
        let mut ruleset = installed(Mode::Nft, &chart());
        ruleset.tables[0].dormant = true;
        let text = Shown::of(&ruleset, &Network::default()).to_string();
        assert!(text.contains("PREROUTING (prerouting, priority -100, switched off: the table is dormant)"), "{text}");
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
