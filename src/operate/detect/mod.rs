//! Looking around: what this kernel supports and what this network namespace holds, as data.

mod print;

use std::path::{Path, PathBuf};

use netfilter::netlink::user_namespace::owns_network;
use nix::sys::utsname::uname;
use packets::found::Found;
use packets::rules::{Subsystem, Table as FoundTable};

use crate::backend::all::{self, in_native_mode, in_nft_mode};
use crate::error::{Error, ModeError};
use crate::findings::neighbours::{shown_by_namespace, shown_by_node};
use crate::findings::user_namespaces::UserNamespaces;
use crate::namespace;
use crate::operate::choose::{Reason, choose, try_out};
use crate::operate::neighbours::{devices, traces, user_namespaces};
use crate::ours::holders;
use crate::wanted::{Config, Mode, OwnerId, Port, PortRange, Purpose, Ruleset, plan};

/// What this kernel supports and this network namespace holds. [`Display`](std::fmt::Display) writes it for people,
/// [`Detected::json`] for machines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detected {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Each thing that nft and native mode need of the kernel.
    pub features: Vec<Feature>,
    /// The tables of nf_tables.
    pub(crate) nft: Tables,
    /// The legacy tables.
    pub(crate) legacy: Tables,
    /// What Kubernetes' chains say about who uses which backend.
    pub(crate) hints: Vec<String>,
    /// What the namespace, the kernel and the node show of other programs.
    pub(crate) neighbours: Vec<String>,
    /// The iptables commands on PATH.
    pub(crate) binaries: Vec<Binary>,
    /// The modes that hold proxy-init's rules.
    pub installed: Vec<Mode>,
    /// What becomes of pods with `hostUsers: false`.
    pub user_namespaces: UserNamespaces,
    /// What could not be seen.
    pub not_known: Vec<Subsystem>,
    /// The mode that `auto` would choose, and why; or why it could not choose.
    pub auto: Result<(Mode, Reason), Error>,
}

/// Something that a mode needs of the kernel.
#[derive(Debug)]
#[non_exhaustive]
pub struct Feature {
    /// Its name, with the family that it is for.
    pub name: String,
    /// Whether the kernel has it; if not, what it lacks.
    pub works: Result<(), Error>,
}

/// A backend's tables, or why they cannot be read.
pub type Tables = Result<Vec<Table>, String>;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its family and name, such as `ip nat`.
    pub name: String,
    /// How many rules it has, as iptables-save would print them.
    pub rules: usize,
}

/// An iptables command on PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Its name.
    pub name: &'static str,
    /// The file that this name leads to.
    pub path: PathBuf,
    /// What the name of that file says it is: `nf_tables`, `legacy` or `unknown kind`.
    pub kind: &'static str,
}

/// Looks around in the network namespace at `netns`, or in that of the calling thread. Nothing is changed: what the
/// kernel supports is found by a transaction that is never committed, or is committed to a new network namespace, where
/// nothing in this one can make a difference. No table is made by asking.
///
/// # Errors
/// The namespace cannot be entered.
pub fn detect(netns: Option<&Path>) -> Result<Detected, Error> {
    namespace::run_in(netns, || Ok(look_around()))
}

fn look_around() -> Detected {
    let everything = everything();
    let kernel = uname().map(|system| system.release().to_string_lossy().into_owned());
    let found = all::read();
    let Trial { features, mut nft } = Trial::all(&everything, found.as_ref().is_ok_and(is_like_new));
    let native_works = features.iter().any(|it| it.name == NATIVE && it.works.is_ok());
    let auto = match &found {
        Ok(found) => choose(found, |mode| match (mode, nft.take()) {
            (Mode::Nft, Some(result)) => result,
            (Mode::Native, _) if native_works => Ok(()),
            (mode, _) => try_out(mode, &everything),
        }),
        Err(error) => Err(ModeError::Unseen(error.to_string()).in_mode(Mode::Nft)),
    };
    let tables = |subsystem| match &found {
        Ok(found) => match found.unseen(subsystem) {
            Some(unseen) => Err(unseen.reason.clone()),
            None => Ok(found.tables_of(subsystem).map(counted).collect()),
        },
        Err(error) => Err(error.to_string()),
    };
    let neighbours = match &found {
        Ok(found) => neighbours(found, &features),
        Err(_) => neighbours(&Found::default(), &features),
    };
    Detected {
        kernel: kernel.unwrap_or_default(),
        features,
        neighbours,
        nft: tables(Subsystem::NfTables),
        legacy: tables(Subsystem::Legacy),
        hints: found.as_ref().map(hints).unwrap_or_default(),
        binaries: binaries(),
        user_namespaces: user_namespaces(),
        installed: found.iter().flat_map(holders).collect(),
        not_known: match &found {
            Ok(found) => found.unseen_subsystems(),
            Err(_) => vec![Subsystem::NfTables, Subsystem::Legacy],
        },
        auto,
    }
}

/// Whether the kernel takes the same rules here as in a new network namespace of the process's.
fn is_like_new(found: &Found) -> bool {
    found.tables.is_empty() && found.not_known.is_empty() && owns_network() == Some(true)
}

/// What the namespace, the kernel and the node show of other programs.
fn neighbours(found: &Found, features: &[Feature]) -> Vec<String> {
    let is_refused = |feature: &Feature| match &feature.works {
        Err(Error::InMode(_, ModeError::NotPermitted(_))) => true,
        // A call that a filter refuses.
        Err(Error::InMode(_, ModeError::Netlink { errno, .. })) => [libc::EPERM, libc::EACCES].contains(&errno.raw()),
        _ => false,
    };
    let devices = devices();
    let mut signs = shown_by_namespace(found, &devices);
    signs.extend(shown_by_node(
        found,
        &devices,
        &traces(),
        features.iter().any(is_refused),
    ));
    signs
}

/// A table's name without what it is in, and its rules.
fn counted(table: &FoundTable) -> Table {
    Table {
        name: format!("{} {}", table.family, table.name),
        rules: table.chains.iter().map(|chain| chain.rules.len()).sum(),
    }
}

/// What Kubernetes' chains say about who uses which backend.
fn hints(found: &Found) -> Vec<String> {
    let of_table = |table: &FoundTable| {
        let chains: Vec<String> = table.chains.iter().map(|chain| chain.name.to_string()).collect();
        kubernetes_hint(&table.subsystem.to_string(), &counted(table).name, &chains)
    };
    found.tables.iter().filter_map(of_table).collect()
}

/// What the names of Kubernetes' chains in a table say about who uses the backend.
fn kubernetes_hint(backend: &str, table: &str, chains: &[String]) -> Option<String> {
    let marks = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
    let named = marks.into_iter().find(|mark| chains.iter().any(|chain| chain == mark));
    let count = chains.iter().filter(|chain| chain.starts_with("KUBE-")).count();
    match named {
        Some(mark) => Some(format!("{mark} in {backend} table {table}: kubelet uses {backend}")),
        None if count > 0 => Some(format!("{count} KUBE- chains in {backend} table {table}")),
        None => None,
    }
}

/// Rulesets with a rule of each kind, for both families.
pub(super) fn everything() -> Vec<Ruleset> {
    let port = |number| Port::new(number).into_iter();
    let Some((inbound, outbound)) = port(4143).zip(port(4140)).next() else {
        return Vec::new();
    };
    let mut config = Config::new(inbound, outbound);
    config.proxy_uid = OwnerId::new(2102);
    config.redirected_ports = port(80).collect();
    config.ignored_inbound_ports = PortRange::new(4190, 4191).into_iter().collect();
    plan(&config)
}

/// The feature that stands for everything that native mode needs.
const NATIVE: &str = "native mode";

/// What the kernel said to each thing that nft and native mode need.
struct Trial {
    features: Vec<Feature>,
    /// What it said to all of nft mode's rules together.
    nft: Option<Result<(), Error>>,
}

impl Trial {
    /// Tries all in one batch, for discarding a batch takes milliseconds. Committing one doesn't: where a new namespace is
    /// like this one, that is tried first, there.
    fn all(everything: &[Ruleset], is_like_new: bool) -> Self {
        let mut names = Vec::new();
        let mut parts = Vec::new();
        for ruleset in everything {
            let mut add = |name: &str, keep: fn(&Purpose) -> bool| {
                names.push(format!("{}: {name}", ruleset.family));
                let rules = ruleset.rules.iter();
                let rules = rules.filter(|(_, rule)| Purpose::of(rule).is_some_and(|it| keep(&it)));
                parts.push([Ruleset {
                    family: ruleset.family,
                    rules: rules.cloned().collect(),
                }]);
            };
            add("nat chains", |_| false);
            add("multiport (xt_multiport)", |it| matches!(it, Purpose::IgnorePorts(_)));
            add("owner (xt_owner)", |it| *it == Purpose::IgnoreUser);
            add("REDIRECT (xt_REDIRECT)", |it| *it == Purpose::RedirectOutbound);
            add("tcp (xt_tcpudp)", |it| matches!(it, Purpose::RedirectPort(_)));
        }
        names.push(NATIVE.to_owned());
        let whole = [in_native_mode(everything), in_nft_mode(everything)];
        // Without the parts, which would change what the whole has added: the kernel waits before it lets go of a change.
        let mut results = match is_like_new && namespace::run_in_new(|| all::commits(&whole)) == Some(true) {
            true => parts.iter().map(|_| Ok(())).chain([Ok(()), Ok(())]).collect(),
            false => {
                let parts = parts.iter().map(|part| in_nft_mode(part));
                all::check_each(&parts.chain(whole).collect::<Vec<_>>())
            }
        };
        let nft = results.pop();
        let feature = |(name, works)| Feature { name, works };
        Self {
            features: names.into_iter().zip(results).map(feature).collect(),
            nft,
        }
    }
}

/// The iptables commands on PATH. None is run.
fn binaries() -> Vec<Binary> {
    let names = [
        "iptables",
        "iptables-nft",
        "iptables-legacy",
        "ip6tables",
        "ip6tables-nft",
        "ip6tables-legacy",
        "nft",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = |name: &'static str| {
        let file = std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())?;
        let path = std::fs::canonicalize(&file).unwrap_or(file);
        let kind = match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.contains("nft") => "nf_tables",
            Some(name) if name.contains("legacy") => "legacy",
            _ => "unknown kind",
        };
        Some(Binary { name, path, kind })
    };
    names.into_iter().filter_map(find).collect()
}
