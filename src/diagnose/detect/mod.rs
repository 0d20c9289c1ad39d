//! Looks around: the features of this kernel and the content of this network namespace, as data.

mod print;
pub mod user_namespaces;

use std::path::{Path, PathBuf};

use netfilter::netlink::user_namespace::owns_network;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::utsname::uname;
use ruleset::{Name, Subsystem};
use ruleset::{Ruleset, Unseen};

use crate::config::{Config, Mode, OwnerId, Port, PortRange};
use crate::diagnose::detect::user_namespaces::UserNamespaces;
use crate::diagnose::other_programs::{signs_in_namespace, signs_on_node};
use crate::diagnose::ownership::has_rules;
use crate::diagnose::snapshot::{self, network, traces, user_namespaces};
use crate::diagnose::trial::{check_each, choose, commits};
use crate::error::{Error, ModeError};
use crate::install::choose::{self, Reason};
use crate::modes::try_out;
use crate::netns::{self, on_a_thread};
use crate::ownership::holders;
use crate::plan::tables::{expected, nat};
use crate::plan::{Purpose, plan};

/// The features of this kernel and the content of this network namespace. [`Display`](std::fmt::Display) writes it for
/// people, [`Detected::json`] for machines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detected {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Each thing that nft and native mode need of the kernel.
    pub features: Vec<Feature>,
    pub(crate) nft: HeldTables,
    pub(crate) legacy: HeldTables,
    /// Hints from the names of Kubernetes' chains about the users of each backend.
    pub(crate) hints: Vec<String>,
    /// Signs of other programs in the namespace, the kernel and the node.
    pub(crate) signs: Vec<String>,
    pub(crate) binaries: Vec<Binary>,
    /// The modes that hold our rules.
    pub installed: Vec<Mode>,
    /// The fate of pods with `hostUsers: false`.
    pub user_namespaces: UserNamespaces,
    /// The parts that could not be seen.
    pub not_known: Vec<Subsystem>,
    /// The mode that `auto` would choose, and why; or why it could not choose.
    pub auto: Result<(Mode, Reason), Error>,
}

/// Something that a mode needs of the kernel.
#[derive(Debug)]
#[non_exhaustive]
pub struct Feature {
    /// The feature's name, with its family.
    pub name: String,
    /// Ok if the kernel has the feature; else the missing part.
    pub works: Result<(), Error>,
}

/// A backend's tables by family and name, such as `ip nat`, each with how many rules it has; or why they cannot be read.
pub type HeldTables = Result<Vec<(String, usize)>, String>;

/// An iptables command on PATH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    pub name: &'static str,
    pub path: PathBuf,
    /// The kind by that file's name: `nf_tables`, `legacy` or `unknown kind`.
    pub kind: &'static str,
}

/// Looks around in the network namespace at `netns`, or in that of the calling thread. Nothing is changed: what the
/// kernel supports is found by a transaction that is never committed, or that is committed to a new network namespace if
/// nothing in this one can make a difference. No table is made.
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
    // Does the kernel take the same rules here as in a new network namespace of this process?
    let is_like_new = ruleset.tables.is_empty() && ruleset.not_known.is_empty() && owns_network() == Some(true);
    let (features, mut nft) = try_features(&everything, is_like_new);
    let native_works = features.iter().any(|it| it.name == NATIVE && it.works.is_ok());
    let auto = choose::first(&ruleset, &ruleset).and_then(|first| {
        choose(first, |mode| match (mode, nft.take()) {
            (Mode::Nft, Some(result)) => result,
            (Mode::Native, _) if native_works => Ok(()),
            (mode, _) => try_out(mode, &everything),
        })
    });
    Detected {
        kernel: kernel.unwrap_or_default(),
        signs: signs(&ruleset, &features),
        features,
        nft: tables(&ruleset, Subsystem::NfTables),
        legacy: tables(&ruleset, Subsystem::Legacy),
        hints: hints(&ruleset),
        binaries: binaries(),
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

fn hints(ruleset: &Ruleset) -> Vec<String> {
    let mut hints = Vec::new();
    for table in &ruleset.tables {
        let (backend, title) = (table.subsystem, format!("{} {}", table.family, table.name));
        let has = |mark: &&str| table.chain(&Name::from(*mark)).is_some();
        let count = table.chains.iter().filter(|chain| chain.name.as_bytes().starts_with(b"KUBE-")).count();
        if let Some(mark) = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"].into_iter().find(has) {
            hints.push(format!("{mark} in {backend} table {title}: kubelet uses {backend}"));
        } else if count > 0 {
            hints.push(format!("{count} KUBE- chains in {backend} table {title}"));
        }
    }
    hints
}

/// A config with a rule of each kind that needs something of the kernel, for both families.
pub(super) fn config_of_every_kind() -> Config {
    let [inbound, outbound] = [4143, 4140].map(|port| Port::new(port).unwrap_or(Port::LOWEST));
    let mut config = Config::new(inbound, outbound);
    config.proxy_uid = OwnerId::new(2102);
    config.redirected_ports = Port::new(80).into_iter().collect();
    config.ignored_inbound_ports = PortRange::new(4190, 4191).into_iter().collect();
    config
}

/// The feature that stands for everything that native mode needs.
const NATIVE: &str = "native mode";

/// Asks the kernel for each feature that nft and native mode need, and for all of nft mode's rules together. One batch
/// tries everything, because discarding a batch takes milliseconds. Committing one doesn't, so where a new namespace is
/// like this one, committing is tried there first.
fn try_features(everything: &Config, is_like_new: bool) -> (Vec<Feature>, Option<Result<(), Error>>) {
    let mut names = Vec::new();
    let mut parts = Vec::new();
    for plan in plan(everything) {
        for (name, is_tried) in PARTS {
            let mut part = plan.clone();
            for chain in &mut part.chains {
                chain.rules.retain(|planned| is_tried(&planned.purpose));
            }
            names.push(format!("{}: {name}", plan.family.title()));
            parts.push((Mode::Nft, vec![nat(part, Subsystem::NfTables)]));
        }
    }
    names.push(NATIVE.to_owned());
    let whole = [Mode::Native, Mode::Nft].map(|mode| (mode, expected(mode, everything)));
    // Without the parts, which would replace what the whole has added: that makes the kernel wait.
    let mut results: Vec<_> = if is_like_new && run_in_new(|| commits(&whole)) == Some(true) {
        parts.iter().map(|_| Ok(())).chain([Ok(()), Ok(())]).collect()
    } else {
        parts.extend(whole);
        check_each(&parts)
    };
    let nft = results.pop();
    let features = names.into_iter().zip(results);
    (features.map(|(name, works)| Feature { name, works }).collect(), nft)
}

/// Runs `work` in a new network namespace, which ends with it and belongs to the user namespace that the process is in.
/// None: there can't be one, which takes CAP_SYS_ADMIN. The kernel takes the namespace down after the process has gone
/// on.
fn run_in_new<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    on_a_thread(|| unshare(CloneFlags::CLONE_NEWNET).ok().map(|()| work())).ok()?
}

/// Something that nft mode needs of the kernel for each family, and which rules need it.
type Part = (&'static str, fn(&Purpose) -> bool);

const PARTS: [Part; 5] = [
    ("nat chains", |_| false),
    ("multiport (xt_multiport)", |it| matches!(it, Purpose::IgnorePorts(_))),
    ("owner (xt_owner)", |it| *it == Purpose::IgnoreUser),
    ("REDIRECT (xt_REDIRECT)", |it| *it == Purpose::RedirectOutbound),
    ("tcp (xt_tcpudp)", |it| matches!(it, Purpose::RedirectPort(_))),
];

fn binaries() -> Vec<Binary> {
    let names =
        ["iptables", "iptables-nft", "iptables-legacy", "ip6tables", "ip6tables-nft", "ip6tables-legacy", "nft"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut binaries = Vec::new();
    for name in names {
        let mut files = std::env::split_paths(&path).map(|folder| folder.join(name));
        let Some(file) = files.find(|file| file.is_file()) else {
            continue;
        };
        let path = std::fs::canonicalize(&file).unwrap_or(file);
        let kind = match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.contains("nft") => "nf_tables",
            Some(name) if name.contains("legacy") => "legacy",
            _ => "unknown kind",
        };
        binaries.push(Binary { name, path, kind });
    }
    binaries
}
