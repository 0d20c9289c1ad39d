//! Looks around: the features of this kernel and the content of this network namespace, as data.

mod print;
pub mod user_namespaces;

use std::path::Path;

use nix::errno::Errno;
use nix::sys::utsname::uname;
use ruleset::{Ruleset, Subsystem, Unseen};

use crate::config::{Config, Mode, OwnerId, Port, PortRange};
use crate::diagnose::detect::user_namespaces::UserNamespaces;
use crate::diagnose::other_programs::{signs_in_namespace, signs_on_node};
use crate::diagnose::ownership::has_rules;
use crate::diagnose::snapshot::{self, network, traces, user_namespaces};
use crate::diagnose::trial::choose;
use crate::error::{Error, ModeError};
use crate::install::choose::{self, Reason};
use crate::modes::{try_out, try_tables};
use crate::netns;
use crate::ownership::holders;
use crate::plan::plan;
use crate::plan::tables::nat;

/// The features of this kernel and the content of this network namespace. [`Display`](std::fmt::Display) writes it for
/// people, [`Detected::json`] for machines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detected {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Each mode, and family, that the kernel may support.
    pub features: Vec<Feature>,
    pub(crate) nft: HeldTables,
    pub(crate) legacy: HeldTables,
    /// Signs of other programs in the namespace, the kernel and the node.
    pub(crate) signs: Vec<String>,
    /// The modes that hold our rules.
    pub installed: Vec<Mode>,
    /// The fate of pods with `hostUsers: false`.
    pub user_namespaces: UserNamespaces,
    /// The parts that could not be seen.
    pub not_known: Vec<Subsystem>,
    /// The mode that `auto` would choose, and why; or why it could not choose.
    pub auto: Result<(Mode, Reason), Error>,
}

/// A mode's rules, which the kernel may support.
#[derive(Debug)]
#[non_exhaustive]
pub struct Feature {
    /// The mode's name, with the family.
    pub name: String,
    /// Ok if the kernel has all that they need; else the first missing part.
    pub works: Result<(), Error>,
}

/// A backend's tables by family and name, such as `ip nat`, each with how many rules it has; or why they cannot be read.
pub type HeldTables = Result<Vec<(String, usize)>, String>;

/// Looks around in the network namespace at `netns`, or in that of the calling thread. Nothing is changed: what the
/// kernel supports is found by transactions that are never committed. No table is made.
///
/// # Errors
/// The namespace cannot be entered.
pub fn detect(netns: Option<&Path>) -> Result<Detected, Error> {
    netns::run_in(netns, || Ok(look_around()))
}

fn look_around() -> Detected {
    let everything = config_of_every_kind();
    let kernel = uname().map(|system| system.release().to_string_lossy().into_owned());
    let ruleset = snapshot::ruleset().unwrap_or_else(|error| Ruleset {
        tables: Vec::new(),
        not_known: [Subsystem::NfTables, Subsystem::Legacy]
            .map(|subsystem| Unseen { subsystem, not_permitted: false, reason: error.to_string() })
            .into(),
    });
    let features = features(&everything);
    let auto = choose::first(&ruleset, &ruleset).and_then(|first| choose(first, |mode| try_out(mode, &everything)));
    Detected {
        kernel: kernel.unwrap_or_default(),
        signs: signs(&ruleset, &features),
        features,
        nft: tables(&ruleset, Subsystem::NfTables),
        legacy: tables(&ruleset, Subsystem::Legacy),
        user_namespaces: user_namespaces(),
        installed: if has_rules(&ruleset) { holders(&ruleset).collect() } else { Vec::new() },
        not_known: ruleset.unseen_subsystems(),
        auto,
    }
}

fn tables(ruleset: &Ruleset, subsystem: Subsystem) -> HeldTables {
    if let Some(unseen) = ruleset.unseen(subsystem) {
        return Err(unseen.reason.clone());
    }
    let tables = ruleset.tables_of(subsystem);
    Ok(tables.map(|table| (format!("{} {}", table.family, table.name), table.rules().count())).collect())
}

fn signs(ruleset: &Ruleset, features: &[Feature]) -> Vec<String> {
    let is_refused = features.iter().any(|feature| match &feature.works {
        Err(Error::InMode(_, ModeError::NotPermitted(_))) => true,
        // A call that a filter refuses.
        Err(Error::InMode(_, ModeError::Netlink { errno, .. })) => matches!(errno, Errno::EPERM | Errno::EACCES),
        _ => false,
    });
    let devices = network().devices;
    let mut signs = signs_in_namespace(ruleset, &devices);
    let empty = holders(ruleset).filter(|_| !has_rules(ruleset));
    signs.extend(empty.map(|mode| format!("proxy-init's chains are here without rules, in {mode} mode")));
    signs.extend(signs_on_node(ruleset, &devices, &traces(), is_refused));
    signs
}

/// A config with a rule of each kind that needs something of the kernel, for both families.
fn config_of_every_kind() -> Config {
    let [inbound, outbound] = [4143, 4140].map(|port| Port::new(port).unwrap_or(Port::LOWEST));
    let mut config = Config::new(inbound, outbound);
    config.proxy_uid = OwnerId::new(2102);
    config.redirected_ports = Port::new(80).into_iter().collect();
    config.ignored_inbound_ports = PortRange::new(4190, 4191).into_iter().collect();
    config
}

/// Asks the kernel for all that nft mode needs for each family, and for all that native mode needs.
fn features(everything: &Config) -> Vec<Feature> {
    let mut features = Vec::new();
    for plan in plan(everything) {
        let name = format!("nft mode for {}", plan.family.title());
        features.push(Feature { name, works: try_tables(Mode::Nft, &[nat(plan, Subsystem::NfTables)]) });
    }
    features.push(Feature { name: "native mode".to_owned(), works: try_out(Mode::Native, everything) });
    features
}
