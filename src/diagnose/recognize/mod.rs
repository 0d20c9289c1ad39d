//! Finds the flags with which the rules were installed, and compares the rules with a complete installation.

pub mod config;

use std::fmt;
use std::path::Path;

use ruleset::{Listener, Network, Ruleset, Subsystem, Unseen};
use serde_json::Value;

use crate::config::settings::arguments;
use crate::config::{Config, Mode, ModeChoice, OwnerId, Port};
use crate::diagnose::output::Conclusion;
use crate::diagnose::output::json::{object, strings};
use crate::diagnose::output::page::Page;
use crate::diagnose::output::words;
use crate::diagnose::recognize::config::{NoConfig, config};
use crate::diagnose::snapshot::Snapshot;
use crate::diagnose::verify::{Verification, verdict};
use crate::error::Error;
use crate::modes::must_see;
use crate::netns;
use crate::ownership::holders;
use crate::plan::tables::expected;

/// The installation that comes closest to the found rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closest {
    pub(crate) config: Config,
    /// The flags that make it.
    pub(crate) flags: Vec<String>,
    /// The differences from it.
    pub(crate) verification: Verification,
}

/// The result of a verification without the flags of the installation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recognized {
    /// The mode that was looked at: the one that was named, or else the first that holds our rules.
    pub mode: Option<Mode>,
    /// The differences from an installation of these flags; or the reason why too little was found to tell the flags.
    pub(crate) closest: Result<Closest, NoConfig>,
    /// The other modes that hold rules of ours.
    pub others: Vec<Mode>,
    /// The parts that could not be seen, and may hold our rules too.
    pub not_known: Vec<Subsystem>,
    /// The first of these parts, if no rules were found elsewhere, and no mode was named.
    pub unseen: Option<Unseen>,
}

impl Recognized {
    /// Returns true if the rules are one complete, untouched installation.
    pub fn is_in_place(&self) -> bool {
        self.closest.as_ref().is_ok_and(|closest| closest.verification.is_in_place())
    }

    /// The answer for scripts: as expected only if, beside the rules, nothing certainly loses connections.
    pub fn conclusion(&self) -> Conclusion {
        match (&self.closest, &self.unseen) {
            (_, Some(_)) => Conclusion::NotKnown,
            (Ok(closest), None) => closest.verification.conclusion(),
            (Err(_), None) => Conclusion::Differs,
        }
    }

    /// Returns true if anything is doubtful.
    pub(super) fn warns(&self) -> bool {
        self.closest.as_ref().is_ok_and(|closest| closest.verification.warns())
    }

    /// The flags that install the found rules or, if these aren't in place, come closest to them, if that can be told.
    pub fn flags(&self) -> Option<&[String]> {
        self.closest.as_ref().ok().map(|closest| closest.flags.as_slice())
    }

    pub(super) fn text(&self, page: &Page) -> String {
        match (&self.closest, &self.unseen) {
            (Ok(Closest { flags, verification, .. }), _) => {
                let which = if self.is_in_place() {
                    "these flags install what was found:"
                } else {
                    "the flags that come closest to what was found:"
                };
                format!("{}{which}\n{}\n", verification.text(page), page.wrap_flags(flags))
            }
            (Err(_), Some(unseen)) => page.fill_lines(&words::unseen(unseen)),
            (Err(reason), None) => {
                let lack = self.mode.map_or_else(|| reason.to_string(), |mode| reason.at(&format!("in {mode} mode")));
                let mut text = page.fill_lines(&format!("not in place: {lack}"));
                for subsystem in &self.not_known {
                    text += &format!("not known: whether {subsystem} tables hold proxy-init rules\n");
                }
                text
            }
        }
    }

    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        let nothing = Value::Array(Vec::new());
        let mut pairs = match &self.closest {
            Ok(closest) => closest.verification.pairs(),
            Err(reason) => vec![
                ("schema", 1.into()),
                ("in_place", self.conclusion().in_json()),
                ("mode", self.mode.map(|mode| mode.to_string()).into()),
                ("findings", nothing.clone()),
                ("other_backends", nothing.clone()),
                ("not_known", strings(&self.not_known)),
                ("warnings", nothing),
                ("reason", reason.to_string().into()),
            ],
        };
        pairs.push(("flags", self.flags().map(<[String]>::to_vec).into()));
        object(pairs).to_string()
    }
}

/// For people.
impl fmt::Display for Recognized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&Page::default()))
    }
}

/// Checks if the rules in the network namespace at `netns`, or in the calling thread's, are one complete,
/// untouched installation, whatever flags it was made with; `mode` is the mode to look at, if not the one that holds
/// our rules.
///
/// # Errors
/// The namespace cannot be entered, or the mode's tables cannot be read.
pub fn recognize(netns: Option<&Path>, mode: Option<Mode>) -> Result<Recognized, Error> {
    netns::run_in(netns, || {
        let Snapshot { ruleset, network } = Snapshot::read()?;
        of(&ruleset, &network, mode)
    })
}

/// As [`recognize`], by what was read.
pub(super) fn of(ruleset: &Ruleset, network: &Network, named: Option<Mode>) -> Result<Recognized, Error> {
    let mode = named.or_else(|| holders(ruleset).next());
    let looked_at = mode.unwrap_or(Mode::Nft);
    must_see(ruleset, looked_at)?;
    let closest = match config(looked_at, ruleset) {
        Ok(mut config) => {
            if config.proxy_uid.is_none() && config.proxy_gid.is_none() {
                config.proxy_uid = user_who_listens(network, config.outbound_port);
            }
            let verification = verdict(looked_at, &expected(looked_at, &config), ruleset, network)?;
            let verification = verification.with_signs(&config, ruleset, network);
            Ok(Closest { flags: spell_flags(&config, looked_at), config, verification })
        }
        Err(reason) => Err(reason),
    };
    Ok(Recognized {
        mode,
        closest,
        others: holders(ruleset).filter(|&other| other != looked_at).collect(),
        not_known: ruleset.unseen_subsystems(),
        unseen: ruleset.not_known.first().filter(|_| mode.is_none()).cloned(),
    })
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

#[cfg(test)]
mod tests {
    use ruleset::{Direction, Table};

    use super::*;
    use crate::plan::ChainName;
    use crate::plan::tables::expected;

    fn ruleset(tables: Vec<Table>) -> Ruleset {
        Ruleset { tables, not_known: vec![] }
    }

    fn chart() -> Config {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = OwnerId::new(2102);
        config.ignored_inbound_ports = ["4190", "4191", "4567", "4568"].map(|port| port.parse().unwrap()).into();
        config
    }

    #[test]
    fn flags_come_back_as_they_were_written() {
        let mut config = chart();
        config.ignored_inbound_subnets = vec!["10.1.2.3/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        config.redirected_ports = vec!["443".parse().unwrap(), "80".parse().unwrap()];
        for &mode in Mode::ALL {
            let installed = ruleset(expected(mode, &config));
            assert_eq!(super::config(mode, &installed), Ok(config.clone()));
            let recognized = of(&installed, &Network::default(), None).unwrap();
            assert!(recognized.is_in_place(), "{recognized}");
            assert_eq!(
                recognized.flags().unwrap().join(" "),
                format!(
                    "--iptables-mode {mode} --incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
                     --ports-to-redirect 443,80 --inbound-ports-to-ignore 4190,4191,4567,4568 \
                     --inbound-subnets-to-ignore 10.1.2.3/8,fd00::/8"
                )
            );
        }
    }

    #[test]
    fn what_was_tampered_with_is_no_installation() {
        for &mode in Mode::ALL {
            let whole = expected(mode, &chart());
            // One rule less, whichever.
            for (table, chain, rule) in whole.iter().enumerate().flat_map(|(index, table)| {
                let chains = table.chains.iter().enumerate();
                chains.flat_map(move |(chain, held)| (0..held.rules.len()).map(move |rule| (index, chain, rule)))
            }) {
                let mut tables = whole.clone();
                let removed = tables[table].chains[chain].rules.remove(rule);
                // The rest without it is an installation too, with another flag.
                let is_optional = ["user-id", "ignore-port"]
                    .iter()
                    .any(|name| removed.comment.clone().unwrap_or_default().to_string().contains(name));
                let recognized = of(&ruleset(tables.clone()), &Network::default(), None).unwrap();
                let whole_elsewhere = mode == Mode::Native && is_optional;
                assert_eq!(
                    recognized.is_in_place(),
                    whole_elsewhere && !removed_set(&removed),
                    "{mode} {removed:?}: {recognized}"
                );
            }
            // The rest without one family is an installation for the other family alone.
            if whole.len() == 2 {
                let recognized = of(&ruleset(whole[..1].to_vec()), &Network::default(), None).unwrap();
                assert!(recognized.is_in_place(), "{recognized}");
                let recognized = of(&ruleset(whole[1..].to_vec()), &Network::default(), None).unwrap();
                assert!(!recognized.is_in_place(), "{recognized}");
            }
        }
    }

    /// A set that no rule uses is left over.
    fn removed_set(rule: &ruleset::Rule) -> bool {
        rule.comment.clone().unwrap_or_default().to_string().contains("ignore-port")
    }

    #[test]
    fn without_a_redirection_no_flags_are_told() {
        for (mode, direction) in Mode::ALL.iter().flat_map(|&mode| Direction::ALL.map(|it| (mode, it))) {
            let mut tables = expected(mode, &chart());
            for chain in tables.iter_mut().flat_map(|table| &mut table.chains) {
                if chain.name == *ChainName::of(direction).as_str() {
                    chain.rules.clear();
                }
            }
            let recognized = of(&ruleset(tables), &Network::default(), None).unwrap();
            assert_eq!(recognized.closest, Err(NoConfig::NoRedirect(direction)));
            assert_eq!(
                recognized.to_string(),
                Page::default().fill_lines(&format!(
                    "not in place: no proxy-init rule redirects {direction} connections in {mode} mode"
                ))
            );
        }
    }

    #[test]
    fn nothing_is_not_an_installation() {
        let recognized = of(&Ruleset::default(), &Network::default(), None).unwrap();
        assert!(!recognized.is_in_place());
        assert_eq!(recognized.to_string(), "not in place: no proxy-init rules were found\n");
        let json: Value = serde_json::from_str(&recognized.json()).unwrap();
        assert_eq!(json["flags"], Value::Null);
        assert_eq!(json["mode"], Value::Null);
        // A mode that was named, beside rules in another.
        let installed = ruleset(expected(Mode::Nft, &chart()));
        let recognized = of(&installed, &Network::default(), Some(Mode::Native)).unwrap();
        assert_eq!(recognized.to_string(), "not in place: no proxy-init rules were found in native mode\n");
    }

    #[test]
    fn rules_in_two_modes_are_not_one_installation() {
        let both = [Mode::Nft, Mode::Legacy].map(|mode| expected(mode, &chart())).concat();
        let recognized = of(&ruleset(both), &Network::default(), None).unwrap();
        assert!(!recognized.is_in_place());
        assert_eq!((recognized.mode, &recognized.others[..]), (Some(Mode::Nft), &[Mode::Legacy][..]));
        let text = recognized.to_string();
        assert!(
            text.starts_with("not in place: rules complete in nft mode, but other modes hold some too\n\n"),
            "{text}"
        );
        assert!(text.contains("proxy-init's rules are in legacy mode too"), "{text}");
    }
}
