//! What this kernel and this network namespace have: which backend fits, which `auto` mode goes by, and the report of
//! `proxy-init detect`.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};

use crate::backend::native::Native;
use crate::backend::nft::{self, Nft};
use crate::backend::{Backend, Held, legacy};
use crate::error::Error;
use crate::namespace;
use crate::rules::config::{Config, Family, OwnerId, Port, PortRange};
use crate::rules::mode::Mode;
use crate::rules::plan::plan;
use crate::rules::ruleset::{Match, Rule, Ruleset, Target};

/// The mode for these rulesets, and why. Starts no process and changes nothing; which binaries are installed doesn't
/// count.
///
/// # Errors
/// The kernel can't be asked, or refuses the rules for a reason that no other backend mends.
pub(crate) fn choose(rulesets: &[Ruleset]) -> Result<(Mode, String), Error> {
    let held = |backend: &dyn Backend| match backend.held() {
        Err(error) if error.is_lack() => Ok(Held::default()),
        held => held,
    };
    let (nft, native, legacy) = (held(&Nft)?, held(&Native)?, legacy::held()?);
    let ours = [
        (Mode::Nft, nft.ours),
        (Mode::Native, native.ours),
        (Mode::Legacy, legacy.ours),
    ];
    if let Some((mode, _)) = ours.into_iter().find(|(_, ours)| *ours) {
        return Ok((mode, "it holds rules of ours already".to_owned()));
    }
    match (nft.rules, legacy.rules) {
        (rules @ 1.., 0) => {
            let reason = format!("nf_tables holds nat rules ({rules}), legacy tables none");
            return Ok((Mode::Nft, reason));
        }
        (0, rules @ 1..) => {
            let reason = format!("legacy tables hold nat rules ({rules}), nf_tables none");
            return Ok((Mode::Legacy, reason));
        }
        _ => {}
    }
    let lack = match Nft.check(rulesets) {
        Ok(()) => return Ok((Mode::Nft, nft_reason())),
        Err(error) if error.is_lack() => error,
        Err(error) => return Err(error),
    };
    match Native.check(rulesets) {
        Ok(()) => Ok((Mode::Native, native_reason(&lack))),
        Err(error) if error.is_lack() => Ok((Mode::Legacy, format!("neither nft nor native mode can be used: {lack}"))),
        Err(error) => Err(error),
    }
}

/// Why auto takes nft mode, where nothing speaks for another.
pub(crate) fn nft_reason() -> String {
    let hidden = " (whether legacy tables hold rules, only root can see)";
    let unknown = if legacy::is_hidden() { hidden } else { "" };
    format!("the kernel has all that it needs{unknown}")
}

/// Why auto takes native mode, where nft mode lacks this.
pub(crate) fn native_reason(lack: &Error) -> String {
    format!("the kernel has all that it needs, and nft mode can't be used: {lack}")
}

/// Tables with how many rules each has, or why they can't be seen.
type Tables = Result<Vec<(String, usize)>, String>;

/// What this kernel supports and this network namespace holds.
#[derive(Debug, Clone)]
pub struct Report {
    kernel: String,
    features: Vec<(String, Result<(), String>)>,
    nft: Tables,
    legacy: Tables,
    hints: Vec<String>,
    binaries: Vec<(String, String, &'static str)>,
    auto: Result<(Mode, String), String>,
}

/// kube-proxy's auto-detection, and that of others who copied it, prefers a backend with more than this many rules.
const THRESHOLD: usize = 10;

/// Looks around in the network namespace at `netns`, or in that of the calling thread. Nothing is changed: what the
/// kernel supports is found by transactions that are never committed, and no table is made by asking.
///
/// # Errors
/// The namespace cannot be entered.
pub fn report(netns: Option<&Path>) -> Result<Report, Error> {
    namespace::run_in(netns, || Ok(look_around()))
}

fn look_around() -> Report {
    let (mut nft, mut legacy, mut hints) = (Ok(Vec::new()), Ok(Vec::new()), Vec::new());
    if let Ok(Held { ours: true, .. }) = Native.held() {
        hints.push("table inet proxy-init: rules of ours in native mode".to_owned());
    }
    for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let in_nft = nft::tables(family).map_err(|error| error.to_string());
        for (backend, list, found) in [
            ("nf_tables", &mut nft, in_nft),
            ("legacy", &mut legacy, legacy::tables(family)),
        ] {
            match (list.as_mut(), found) {
                (Ok(list), Ok(tables)) => {
                    for contents in tables {
                        let table = format!("{name} {}", contents.table);
                        hints.extend(kubernetes_hint(backend, &table, &contents.chains));
                        list.push((table, contents.rules));
                    }
                }
                (Ok(_), Err(reason)) => *list = Err(reason),
                (Err(_), _) => {}
            }
        }
    }
    Report {
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        features: features(),
        nft,
        legacy,
        hints,
        binaries: binaries(),
        auto: choose(&everything()).map_err(|error| error.to_string()),
    }
}

/// What Kubernetes' chains in a table say of who uses the backend.
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

/// A ruleset with a rule of each kind, for both families.
fn everything() -> Vec<Ruleset> {
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

/// Each thing that nft mode needs, and whether the kernel has it.
fn features() -> Vec<(String, Result<(), String>)> {
    let mut features = Vec::new();
    for ruleset in everything() {
        let mut check = |name: &str, keep: &dyn Fn(&Rule) -> bool| {
            let mut part = ruleset.clone();
            for chain in &mut part.chains {
                chain.rules.retain(|rule| keep(rule));
            }
            let result = Nft.check(&[part]).map_err(|error| error.to_string());
            features.push((format!("{}: {name}", ruleset.family), result));
        };
        let has = |rule: &Rule, wanted: fn(&Match) -> bool| rule.matches.iter().any(wanted);
        let redirects = |rule: &Rule| matches!(rule.target, Target::Redirect(_));
        check("nat chains", &|_| false);
        check("multiport (xt_multiport)", &|rule| {
            has(rule, |it| matches!(it, Match::DestinationPorts(_)))
        });
        check("owner (xt_owner)", &|rule| {
            has(rule, |it| matches!(it, Match::UidOwner(_)))
        });
        check("REDIRECT (xt_REDIRECT)", &|rule| {
            redirects(rule) && rule.matches.len() == 1
        });
        check("tcp (xt_tcpudp)", &|rule| {
            has(rule, |it| matches!(it, Match::DestinationPort(_)))
        });
    }
    let native = Native.check(&everything()).map_err(|error| error.to_string());
    features.push(("native mode".to_owned(), native));
    features
}

/// The iptables binaries on PATH, where they lead to, and what they are by that name. None is run.
fn binaries() -> Vec<(String, String, &'static str)> {
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
    let find = |name: &str| {
        let file = std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())?;
        let real = std::fs::canonicalize(&file).unwrap_or(file);
        let kind = match real.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.contains("nft") => "nf_tables",
            Some(name) if name.contains("legacy") => "legacy",
            _ => "unknown kind",
        };
        Some((name.to_owned(), real.display().to_string(), kind))
    };
    names.into_iter().filter_map(find).collect()
}

impl Report {
    fn rules(list: &Tables) -> usize {
        list.iter().flatten().map(|(_, rules)| rules).sum()
    }

    /// For machines; docs/detect.md has the schema.
    pub fn json(&self) -> Value {
        let tables = |list: &Tables| match list {
            Ok(list) => {
                let rows = list.iter().map(|(name, rules)| json!({"table": name, "rules": rules}));
                json!({ "tables": rows.collect::<Vec<_>>() })
            }
            Err(reason) => json!({ "unknown": reason }),
        };
        let features = self.features.iter().map(|(name, result)| match result {
            Ok(()) => json!({"name": name, "works": true}),
            Err(reason) => json!({"name": name, "works": false, "reason": reason}),
        });
        let binaries = self
            .binaries
            .iter()
            .map(|(name, path, kind)| json!({"name": name, "path": path, "kind": kind}));
        json!({
            "kernel": self.kernel,
            "nf_tables": tables(&self.nft),
            "features": features.collect::<Vec<_>>(),
            "legacy": tables(&self.legacy),
            "both_backends_in_use": self.both(),
            "kubernetes": self.hints,
            "binaries": binaries.collect::<Vec<_>>(),
            "auto": match &self.auto {
                Ok((mode, reason)) => json!({"mode": mode.to_string(), "reason": reason}),
                Err(reason) => json!({"unknown": reason}),
            },
        })
    }

    fn both(&self) -> bool {
        Self::rules(&self.nft) > 0 && Self::rules(&self.legacy) > 0
    }
}

/// One screen for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel      {}", self.kernel)?;
        let lacking: Vec<_> = self
            .features
            .iter()
            .filter_map(|(name, result)| Some((name, result.as_ref().err()?)))
            .collect();
        match lacking.first() {
            None => writeln!(
                f,
                "nf_tables   has all that nft and native mode need, for IPv4 and IPv6"
            )?,
            Some((_, reason)) if lacking.len() == self.features.len() => writeln!(f, "nf_tables   {reason}")?,
            Some(_) => {
                writeln!(f, "nf_tables   lacks:")?;
                for (name, reason) in lacking {
                    writeln!(f, "            {name}: {reason}")?;
                }
            }
        }
        for (title, list) in [("nft rules  ", &self.nft), ("legacy     ", &self.legacy)] {
            match list {
                Ok(list) if list.is_empty() => writeln!(f, "{title} no tables")?,
                Ok(list) => {
                    let rows: Vec<_> = list.iter().map(|(name, rules)| format!("{name} {rules}")).collect();
                    writeln!(f, "{title} {} (rules a table)", rows.join(", "))?;
                }
                Err(reason) => writeln!(f, "{title} can't be seen: {reason}")?,
            }
        }
        if self.both() {
            writeln!(
                f,
                "warning     both backends hold rules: kube-proxy's and others' detection may flip between them (it goes \
                 by more than {THRESHOLD} rules), and connections may be redirected twice or lost"
            )?;
        }
        for hint in &self.hints {
            writeln!(f, "hint        {hint}")?;
        }
        for (name, path, kind) in &self.binaries {
            writeln!(f, "binary      {name}: {kind} ({path})")?;
        }
        match &self.auto {
            Ok((mode, reason)) => writeln!(
                f,
                "auto        would choose {mode}, because {reason}\npin it      --iptables-mode {mode}, or IPTABLES_MODE={mode}, \
                 or proxyInit.iptablesMode: {mode} in Linkerd's chart"
            ),
            Err(reason) => writeln!(f, "auto        can't be told: {reason}"),
        }
    }
}
