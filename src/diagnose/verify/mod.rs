//! Verifies: compares the kernel's rules with those that the same flags would install.

pub mod difference;
pub mod finding;

use std::fmt;
use std::path::Path;

use ruleset::{Family, Listener, NAT, Network, Numbered, Policy, Ruleset, Subsystem, Table, TableFamily, Unseen};
use serde_json::Value;

use crate::config::settings::arguments;
use crate::config::{Config, Mode, ModeChoice, OwnerId, Port};
use crate::diagnose::other_programs::signs_in_namespace;
use crate::diagnose::output::Conclusion;
use crate::diagnose::output::json::{object, strings};
use crate::diagnose::output::page::{Page, Style};
use crate::diagnose::output::words;
use crate::diagnose::ownership::has_rules;
use crate::diagnose::proxy::{self, PodWarning, first_fatal};
use crate::diagnose::recognize::{NoConfig, config as closest_config};
use crate::diagnose::snapshot::{Snapshot, devices_that_ask, unread_tables, warnings};
use crate::diagnose::trial::choose;
use crate::diagnose::verify::difference::{differences, discovery_findings};
use crate::diagnose::verify::finding::{Finding, FindingKind, Interference};
use crate::error::Error;
use crate::install::Install;
use crate::install::choose::{self, Reason};
use crate::modes::legacy::read::read_table;
use crate::modes::legacy::{self, has_sockets};
use crate::modes::{must_see, try_out};
use crate::netns;
use crate::ownership::holders;
use crate::plan::tables::expected;

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// The mode that was checked; none if none was named, and none holds our rules.
    pub mode: Option<Mode>,
    /// Every difference, and everything that certainly keeps connections from the proxy.
    pub findings: Vec<Finding>,
    /// Rules that may drop redirected connections, depending on something that isn't understood, and rules that keep
    /// out hosts by name.
    pub doubts: Vec<Finding>,
    /// Other modes that hold rules of ours: connections are redirected twice.
    pub others: Vec<Mode>,
    /// The subsystems that could not be seen, and may hold our rules too; in the subsystem that was checked, the
    /// tables other than nat, whose rules may come first.
    pub not_known: Vec<Subsystem>,
    /// Probable defects of the proxy, beside correct rules.
    pub warnings: Vec<PodWarning>,
    /// Signs of other influences on connections: other programs, links, routes.
    pub signs: Vec<String>,
    /// True if any mode holds a rule of ours.
    pub finds_rules: bool,
    /// True if the rules are as expected, and no other rule decides about connections: until the rules change,
    /// [`verify`] finds the same, whatever else changes.
    pub is_alone: bool,
    /// The tables that could not be seen, if no rules were found elsewhere, and no mode was named: then it isn't known if
    /// the rules are in place.
    pub unseen: Option<Unseen>,
    /// If the rules aren't in place, but are one complete, untouched installation of another config, such as an earlier
    /// one: that config. Removing a rule that a config may do without leaves such an installation too.
    pub other_config: Option<Config>,
    /// Where no config was given: the one that comes closest to what was found, or the reason why too little was found to
    /// tell one.
    pub(crate) closest: Option<Result<Config, NoConfig>>,
}

impl Verification {
    /// Returns true if everything that could be seen is as expected.
    pub fn is_in_place(&self) -> bool {
        self.findings.is_empty() && self.others.is_empty() && self.lack().is_none()
    }

    /// The reason why the found rules tell no config.
    fn lack(&self) -> Option<NoConfig> {
        self.closest.as_ref().and_then(|closest| closest.as_ref().err().copied())
    }

    /// The flags of the config that comes closest to the found rules, where none was given.
    pub fn flags(&self) -> Option<Vec<String>> {
        let config = self.closest.as_ref()?.as_ref().ok()?;
        self.mode.map(|mode| spell_flags(config, mode))
    }

    /// The finding that more undecided rules were found than are followed, if no other finding is certain.
    fn unfollowed(&self) -> Option<&Finding> {
        let is_open = |finding: &Finding| {
            finding.kind == FindingKind::Shadowed
                && finding.interference.as_ref().is_some_and(|known| !known.is_certain)
        };
        let is_unfollowed = |finding: &&Finding| finding.interference.as_ref().is_some_and(|known| known.is_unfollowed);
        let unfollowed = self.findings.iter().find(is_unfollowed);
        unfollowed.filter(|_| self.others.is_empty() && self.findings.iter().all(is_open))
    }

    /// The answer for scripts: as expected only if, beside the rules, nothing certainly loses connections.
    pub fn conclusion(&self) -> Conclusion {
        match (&self.unseen, first_fatal(&self.warnings)) {
            (Some(_), _) => Conclusion::NotKnown,
            (None, None) if self.unfollowed().is_some() => Conclusion::NotKnown,
            (None, None) if self.is_in_place() => Conclusion::AsExpected,
            _ => Conclusion::Differs,
        }
    }

    /// Returns true if anything is doubtful.
    pub(super) fn warns(&self) -> bool {
        !self.all_warnings().is_empty()
    }

    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        let mut pairs = vec![
            ("schema", 1.into()),
            ("in_place", self.conclusion().in_json()),
            ("mode", self.mode.map(|mode| mode.to_string()).into()),
            ("findings", self.findings.iter().map(finding_json).collect()),
            ("other_backends", strings(&self.others)),
            ("not_known", strings(&self.not_known)),
            ("warnings", self.all_warnings().into()),
        ];
        if self.closest.is_some() {
            pairs.push(("flags", self.flags().into()));
        }
        pairs.extend(self.lack().map(|lack| ("reason", lack.to_string().into())));
        object(pairs).to_string()
    }

    fn all_warnings(&self) -> Vec<String> {
        let doubts = self.doubts.iter().map(Finding::in_a_line);
        let warnings = self.warnings.iter().map(ToString::to_string);
        doubts.chain(warnings).chain(self.signs.iter().cloned()).collect()
    }

    /// Returns true if the finding is that IPv6 has no rules beside IPv4's, which are as expected.
    fn lacks_ipv6_alone(&self, finding: &Finding) -> bool {
        finding.kind == FindingKind::NoRules
            && finding.family == TableFamily::Ip(Family::V6)
            && !self.findings.iter().any(|other| other.family == TableFamily::Ip(Family::V4))
    }
}

fn finding_json(finding: &Finding) -> Value {
    let mut pairs = vec![
        ("family", finding.family().into()),
        ("chain", finding.chain().into()),
        ("kind", finding.kind().to_string().into()),
        ("wanted", finding.wanted.clone().into()),
        ("found", finding.found.clone().into()),
    ];
    if let Some(Interference { connections: Some(connections), is_certain, is_barring: false, is_from_proxy, .. }) =
        &finding.interference
    {
        pairs.push(("connections", connections.as_str().into()));
        pairs.push(("certain", (*is_certain).into()));
        pairs.extend(is_from_proxy.then(|| ("from_proxy", true.into())));
    }
    object(pairs)
}

/// For people.
impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&Page::default()))
    }
}

impl Verification {
    /// A sentence if all is well, otherwise each difference and each warning. The first line, rules and warnings are
    /// painted.
    pub(super) fn text(&self, page: &Page) -> String {
        let mut text = self.headline();
        for finding in &self.findings {
            text += &format!("\n{finding}");
            if self.lacks_ipv6_alone(finding) {
                text += &format!("{} is complete\n", Family::V4);
            }
        }
        for other in &self.others {
            text += &format!(
                "\nproxy-init's rules are in {other} mode too: `proxy-init uninstall` removes all of them, \
                 installing with replace-other-backend those of other modes\n"
            );
        }
        for subsystem in &self.not_known {
            text += &if self.lack().is_some() {
                format!("not known: whether {subsystem} tables hold proxy-init rules\n")
            } else if self.mode.is_some_and(|mode| *subsystem == mode.subsystem()) {
                format!("not known: what {subsystem} tables other than nat hold, which run before and after it\n")
            } else {
                format!("not known: whether {subsystem} tables hold proxy-init rules too\n")
            };
        }
        // The first line has it.
        let fatal = first_fatal(&self.warnings).filter(|_| self.is_in_place()).map(ToString::to_string);
        for warning in self.all_warnings().iter().filter(|warning| fatal.as_ref() != Some(warning)) {
            text += &format!("warning: {warning}\n");
        }
        let is_well = self.conclusion() == Conclusion::AsExpected;
        let mut painted = String::new();
        for (index, line) in page.fill_lines(&text).lines().enumerate() {
            let style = match line.split_whitespace().next() {
                _ if index == 0 && is_well => Style::Proxy,
                Some("+" | "warning:") => Style::Trouble,
                Some("-") => Style::Proxy,
                _ if index == 0 => Style::Trouble,
                _ => Style::Plain,
            };
            painted += &page.paint(style, line);
            painted.push('\n');
        }
        if let Some(flags) = self.flags() {
            painted += if self.is_in_place() {
                "these flags install what was found:\n"
            } else {
                "the flags that come closest to what was found:\n"
            };
            painted += &page.wrap_flags(&flags);
            painted.push('\n');
        }
        painted
    }

    fn headline(&self) -> String {
        if let Some(unseen) = &self.unseen {
            return format!("{}\n", words::unseen(unseen));
        }
        let mode = self.mode.map_or(String::new(), |mode| mode.to_string());
        if let Some(lack) = self.lack() {
            let lack = if mode.is_empty() { lack.to_string() } else { lack.at(&format!("in {mode} mode")) };
            return format!("not in place: {lack}\n");
        }
        if let (Some(unfollowed), None) = (self.unfollowed(), first_fatal(&self.warnings)) {
            let chain = &unfollowed.subject;
            return format!("not known: rules complete in {mode} mode, but too many undecided rules in {chain}\n");
        }
        if !self.others.is_empty() && self.findings.is_empty() {
            return format!("not in place: rules complete in {mode} mode, but other modes hold some too\n");
        }
        if !self.is_in_place() {
            return format!("not in place: in {mode} mode, - is expected and + was found\n");
        }
        if let Some(fatal) = first_fatal(&self.warnings) {
            return format!("not in place: rules complete in {mode} mode, but {fatal}\n");
        }
        let seen = if !self.not_known.is_empty() {
            "nothing that could be seen before or after them drops connections to the proxy or from it"
        } else if self.doubts.iter().any(Finding::is_barring) {
            "nothing before or after them drops connections to the proxy or from it, except those of hosts that rules name"
        } else if !self.doubts.is_empty() {
            "nothing before or after them certainly drops connections to the proxy or from it"
        } else {
            "nothing before or after them drops connections to the proxy or from it"
        };
        let proxy = proxy::listening_in_words(&self.warnings);
        format!("in place in {mode} mode: rules complete, {seen}; {proxy}\n")
    }
}

/// Compares the installed rules with those that `install` would install. If no mode is named, checks the one that holds
/// our rules, or else the one that installing would choose.
///
/// # Errors
/// The kernel cannot be asked.
pub fn verify(install: &Install) -> Result<Verification, Error> {
    netns::run_in(install.netns.as_deref(), || verify_here(install))
}

/// Checks if the rules in the network namespace at `netns`, or in the calling thread's, are one complete,
/// untouched installation, whatever flags it was made with; `mode` is the mode to look at, if not the one that holds
/// our rules.
///
/// # Errors
/// The namespace cannot be entered, or the mode's tables cannot be read.
pub fn recognize(netns: Option<&Path>, mode: Option<Mode>) -> Result<Verification, Error> {
    netns::run_in(netns, || {
        let Snapshot { ruleset, network } = Snapshot::read()?;
        recognize_in(&ruleset, &network, mode)
    })
}

/// As [`recognize`], by what was read.
pub(super) fn recognize_in(ruleset: &Ruleset, network: &Network, named: Option<Mode>) -> Result<Verification, Error> {
    let mode = named.or_else(|| holders(ruleset).next());
    let looked_at = mode.unwrap_or(Mode::Nft);
    must_see(ruleset, looked_at)?;
    let mut config = match closest_config(looked_at, ruleset) {
        Ok(config) => config,
        Err(lack) => {
            return Ok(Verification {
                mode,
                unseen: ruleset.not_known.first().filter(|_| mode.is_none()).cloned(),
                closest: Some(Err(lack)),
                ..Verification::without_findings(looked_at, ruleset)
            });
        }
    };
    if config.proxy_uid.is_none() && config.proxy_gid.is_none() {
        config.proxy_uid = user_who_listens(network, config.outbound_port);
    }
    let verification = verdict(looked_at, &expected(looked_at, &config), ruleset, network)?;
    let verification = verification.with_signs(&config, ruleset, network);
    Ok(Verification { closest: Some(Ok(config)), ..verification })
}

/// The only user who listens on this port, if that isn't root: where the rules exempt nobody, that is the proxy's user.
fn user_who_listens(network: &Network, port: Port) -> Option<OwnerId> {
    let mut uids = network.listeners.iter().filter(|listener| listener.port == port.get()).map(|listener| listener.uid);
    let first = uids.next()?;
    OwnerId::new(first).filter(|_| first != Listener::UNMAPPED && uids.all(|uid| uid == first))
}

/// The flags of a config, the mode first.
pub(super) fn spell_flags(config: &Config, mode: Mode) -> Vec<String> {
    let mut flags = vec![format!("--{}", ModeChoice::FLAG), mode.to_string()];
    flags.extend(arguments(config));
    flags
}

/// The mode that installing would use here, and why.
fn chosen_mode(install: &Install, ruleset: &Ruleset) -> Result<(Mode, Reason), Error> {
    let first = match install.named_mode()? {
        Some(named) => named,
        None => choose::first(ruleset, ruleset)?,
    };
    choose(first, |mode| try_out(mode, &install.config))
}

fn verify_here(install: &Install) -> Result<Verification, Error> {
    let Snapshot { mut ruleset, network } = Snapshot::read()?;
    let holder = holders(&ruleset).next();
    if holder.is_none() && !matches!(install.mode, ModeChoice::Mode(_)) {
        // Otherwise it can't even be told which mode to look at.
        must_see(&ruleset, Mode::Nft)?;
    }
    let mode = match (install.mode, holder) {
        (ModeChoice::Mode(mode), Some(holder)) if install.falls_back(mode, holder) => holder,
        (ModeChoice::Mode(mode), _) | (_, Some(mode)) => mode,
        _ => match chosen_mode(install, &ruleset) {
            Ok((Mode::Legacy, _)) if !install.no_fallback && install.find_commands().is_err() => Mode::Nft,
            // If choosing fails, so would installing.
            chosen => chosen.map_or(Mode::Nft, |(mode, _)| mode),
        },
    };
    let others_unseen =
        mode == Mode::Legacy && ruleset.unseen(Subsystem::Legacy).is_some_and(|unseen| unseen.not_permitted);
    if others_unseen {
        // A process that may not list legacy tables may read the tables that the flags are about, and no others.
        ruleset.not_known.retain(|unseen| unseen.subsystem != Subsystem::Legacy);
        for family in Family::ALL {
            if mode.table_among(&ruleset.tables, family).is_none() && has_sockets(family) {
                ruleset.tables.push(read_table(family, NAT, &Numbered::default())?);
            }
        }
    }
    let mut expected = expected(mode, &install.config);
    if mode == Mode::Legacy {
        expected = legacy::tables_with_sockets(expected);
    }
    let mut verdict = verdict(mode, &expected, &ruleset, &network)?;
    if !verdict.is_in_place() {
        verdict.other_config = complete_config(mode, &ruleset, &network);
    }
    if others_unseen {
        verdict.not_known.push(Subsystem::Legacy);
    } else if !verdict.finds_rules && !matches!(install.mode, ModeChoice::Mode(_)) {
        verdict.unseen = ruleset.not_known.first().cloned();
    }
    Ok(verdict.with_signs(&install.config, &ruleset, &network))
}

impl Verification {
    /// A verification of a mode that has found nothing.
    fn without_findings(mode: Mode, ruleset: &Ruleset) -> Self {
        Self {
            mode: Some(mode),
            findings: Vec::new(),
            doubts: Vec::new(),
            others: holders(ruleset).filter(|&other| other != mode).collect(),
            not_known: ruleset.unseen_subsystems(),
            warnings: Vec::new(),
            signs: Vec::new(),
            finds_rules: has_rules(ruleset),
            is_alone: false,
            unseen: None,
            other_config: None,
            closest: None,
        }
    }

    /// Adds facts that the rules alone don't show: defects of this config's proxy, and signs of other programs.
    pub(super) fn with_signs(mut self, config: &Config, ruleset: &Ruleset, network: &Network) -> Self {
        // Warnings are about the rules that are there.
        let installed = self.other_config.as_ref().unwrap_or(config);
        self.warnings = warnings(installed, network);
        self.signs = signs_in_namespace(ruleset, &network.devices);
        for &family in config.families() {
            match devices_that_ask(network, family) {
                Ok(devices) => {
                    let whose = unread_tables(network, family == Family::V4 && !devices.is_empty());
                    let unread = whose.map(|whose| format!("not known: what {whose}'s tables drop over {family}"));
                    self.signs.extend(unread);
                    self.findings.extend(discovery_findings(ruleset, network, family, &devices));
                }
                Err(error) => self
                    .signs
                    .push(format!("not known: whether neighbours find each other over {family} (rtnetlink: {error})")),
            }
        }
        self
    }
}

/// Compares the rules found in a network with those that a mode would install.
///
/// # Errors
/// The mode's tables could not be seen.
pub(crate) fn verdict(
    mode: Mode,
    expected: &[Table],
    ruleset: &Ruleset,
    network: &Network,
) -> Result<Verification, Error> {
    must_see(ruleset, mode)?;
    let all = differences(mode, expected, ruleset, network);
    let is_alone = all.is_empty() && ruleset.not_known.is_empty() && !has_others(&ruleset.tables, expected);
    let (doubts, findings): (Vec<_>, Vec<_>) = all.into_iter().partition(|finding| finding.is_warning());
    Ok(Verification { findings, doubts, is_alone, ..Verification::without_findings(mode, ruleset) })
}

/// Returns true if tables with all expected rules hold more: another rule, or a policy to drop.
fn has_others(held: &[Table], expected: &[Table]) -> bool {
    let rules = |tables: &[Table]| tables.iter().flat_map(Table::rules).count();
    let mut bases = held.iter().flat_map(|table| &table.chains).filter_map(|chain| chain.base);
    rules(held) != rules(expected) || bases.any(|base| base.policy != Policy::Accept)
}

/// The config whose rules a mode holds, if these are complete and untouched, and nothing is in their way.
fn complete_config(mode: Mode, ruleset: &Ruleset, network: &Network) -> Option<Config> {
    let config = closest_config(mode, ruleset).ok()?;
    let verdict = verdict(mode, &expected(mode, &config), ruleset, network).ok()?;
    verdict.is_in_place().then_some(config)
}

#[cfg(test)]
mod tests;
