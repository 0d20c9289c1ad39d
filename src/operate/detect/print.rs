//! A report as text and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{Detected, Tables};
use crate::error::reason;
use crate::log::escaped;
use crate::operate::words::folded;

/// kube-proxy's detection, and that of others who copied it, prefers a backend with more rules than this.
const THRESHOLD: usize = 10;

impl Detected {
    /// For machines; docs/detect.md has the schema.
    pub fn json(&self) -> String {
        self.value().to_string()
    }

    fn value(&self) -> Value {
        let tables = |tables: &Tables| match tables {
            Ok(tables) => {
                let rows = tables
                    .iter()
                    .map(|table| json!({"table": table.name, "rules": table.rules}));
                json!({ "tables": rows.collect::<Vec<_>>() })
            }
            Err(reason) => json!({ "unknown": reason }),
        };
        let features = self.features.iter().map(|feature| match &feature.works {
            Ok(()) => json!({"name": feature.name, "works": true}),
            Err(lack) => json!({"name": feature.name, "works": false, "reason": reason(lack)}),
        });
        let binaries = self
            .binaries
            .iter()
            .map(|binary| json!({"name": binary.name, "path": binary.path.display().to_string(), "kind": binary.kind}));
        json!({
            "schema": 1,
            "kernel": self.kernel,
            "nf_tables": tables(&self.nft),
            "features": features.collect::<Vec<_>>(),
            "legacy": tables(&self.legacy),
            "both_backends_in_use": self.both_in_use(),
            "installed": self.installed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "not_known": self.not_known.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "kubernetes": self.hints,
            "neighbours": self.neighbours,
            "user_namespaces": self.user_namespaces.to_string(),
            "binaries": binaries.collect::<Vec<_>>(),
            "auto": match &self.auto {
                Ok((mode, reason)) => json!({"mode": mode.to_string(), "reason": reason.to_string()}),
                Err(error) => json!({"unknown": error.to_string()}),
            },
        })
    }

    /// Whether both nf_tables and the legacy tables hold rules.
    fn both_in_use(&self) -> bool {
        let has_rules = |tables: &Tables| tables.iter().flatten().any(|table| table.rules > 0);
        has_rules(&self.nft) && has_rules(&self.legacy)
    }

    fn write_features(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking: Vec<_> = self
            .features
            .iter()
            .filter_map(|feature| Some((&feature.name, feature.works.as_ref().err()?)))
            .collect();
        match lacking.as_slice() {
            [] => writeln!(
                f,
                "nf_tables   has all that nft and native mode need, for IPv4 and IPv6"
            ),
            [(_, lack), ..] if lacking.len() == self.features.len() => writeln!(f, "nf_tables   {}", reason(lack)),
            lacking => {
                writeln!(f, "nf_tables   lacks:")?;
                lacking.iter().try_for_each(|(name, lack)| {
                    let (reason, named) = (reason(lack), format!("{name}: "));
                    // An error of native mode begins with the mode's name, which is the feature's.
                    writeln!(
                        f,
                        "            {named}{}",
                        reason.strip_prefix(&named).unwrap_or(&reason)
                    )
                })
            }
        }
    }
}

/// For people: at most a screen.
impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel      {}", self.kernel)?;
        self.write_features(f)?;
        for (title, tables) in [("nft rules  ", &self.nft), ("legacy     ", &self.legacy)] {
            match tables {
                Ok(tables) if tables.is_empty() => writeln!(f, "{title} no tables")?,
                Ok(tables) => {
                    let rows: Vec<_> = tables
                        .iter()
                        .map(|table| format!("{} {}", table.name, table.rules))
                        .collect();
                    writeln!(f, "{title} {} (rules per table)", rows.join(", "))?;
                }
                Err(reason) => writeln!(f, "{title} cannot be read: {reason}")?,
            }
        }
        if self.both_in_use() {
            writeln!(
                f,
                "warning     both backends hold rules: the detection of kube-proxy and others may flip between them (it \
                 goes by more than {THRESHOLD} rules), and connections may be redirected twice or lost"
            )?;
        }
        for mode in &self.installed {
            writeln!(f, "installed   proxy-init's rules, in {mode} mode")?;
        }
        for hint in &self.hints {
            writeln!(f, "hint        {hint}")?;
        }
        for neighbour in &self.neighbours {
            writeln!(f, "neighbour   {}", escaped(neighbour))?;
        }
        writeln!(f, "{}", folded(&format!("users       {}", self.user_namespaces), 12))?;
        for binary in &self.binaries {
            writeln!(
                f,
                "binary      {}: {} ({})",
                binary.name,
                binary.kind,
                escaped(&binary.path.display().to_string())
            )?;
        }
        match &self.auto {
            Ok((mode, reason)) => writeln!(
                f,
                "auto        would choose {mode}, because {reason}\npin it      --iptables-mode {mode}, or IPTABLES_MODE={mode}, \
                 or proxyInit.iptablesMode: {mode} in Linkerd's chart"
            ),
            Err(error) => writeln!(f, "auto        cannot choose: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use packets::rules::Subsystem;

    use super::*;
    use crate::error::{Error, ModeError, Privilege};
    use crate::findings::user_namespaces::UserNamespaces;
    use crate::operate::choose::Reason;
    use crate::operate::detect::{Binary, Feature, Table};
    use crate::wanted::Mode;

    fn refused(lacking: Privilege) -> Error {
        ModeError::NotPermitted(lacking).in_mode(Mode::Nft)
    }

    fn feature(name: &str, works: bool) -> Feature {
        Feature {
            name: name.to_owned(),
            works: works.then_some(()).ok_or(refused(Privilege::Change)),
        }
    }

    fn tables(tables: &[(&str, usize)]) -> Tables {
        let table = |&(name, rules): &(&str, usize)| Table {
            name: name.to_owned(),
            rules,
        };
        Ok(tables.iter().map(table).collect())
    }

    fn report() -> Detected {
        Detected {
            kernel: "6.12.0".to_owned(),
            features: vec![feature("IPv4: nat chains", true), feature("native mode", true)],
            nft: tables(&[("ip nat", 8), ("ip6 nat", 0)]),
            legacy: tables(&[]),
            hints: vec!["a hint".to_owned()],
            neighbours: vec!["a sign".to_owned()],
            user_namespaces: UserNamespaces::Forbidden,
            binaries: vec![Binary {
                name: "iptables",
                path: "/usr/sbin/xtables-nft-multi".into(),
                kind: "nf_tables",
            }],
            installed: vec![Mode::Nft],
            not_known: vec![Subsystem::Legacy],
            auto: Ok((Mode::Nft, Reason::Holds)),
        }
    }

    #[test]
    fn a_report_for_people() {
        let want = "\
kernel      6.12.0
nf_tables   has all that nft and native mode need, for IPv4 and IPv6
nft rules   ip nat 8, ip6 nat 0 (rules per table)
legacy      no tables
installed   proxy-init's rules, in nft mode
hint        a hint
neighbour   a sign
users       no pod with hostUsers: false can run here: the sysctl
            user.max_user_namespaces is 0
binary      iptables: nf_tables (/usr/sbin/xtables-nft-multi)
auto        would choose nft, because it holds proxy-init's rules already
pin it      --iptables-mode nft, or IPTABLES_MODE=nft, or proxyInit.iptablesMode: nft in Linkerd's chart
";
        assert_eq!(report().to_string(), want);
    }

    #[test]
    fn what_the_kernel_lacks_is_listed_or_said_once_if_it_is_everything() {
        let lack = reason(&refused(Privilege::Change));
        assert!(!lack.contains("nothing was changed"), "{lack}");
        let mut report = report();
        report.features = vec![feature("one", true), feature("two", false), feature("three", false)];
        let want = format!("nf_tables   lacks:\n            two: {lack}\n            three: {lack}\n");
        assert!(report.to_string().contains(&want), "{report}");
        // The mode's error begins with its name.
        let works = Err(ModeError::NotPermitted(Privilege::Change).in_mode(Mode::Native));
        let name = "native mode".to_owned();
        report.features.push(Feature { name, works });
        let (_, said) = lack.split_once(": ").unwrap();
        let want = format!("\n            native mode: {said}\n");
        assert!(report.to_string().contains(&want), "{report}");
        report.features.pop();
        report.features.remove(0);
        assert!(
            report.to_string().contains(&format!("nf_tables   {lack}\n")),
            "{report}"
        );
        assert_eq!(report.to_string().matches("CAP_NET_ADMIN").count(), 1);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let mut report = report();
        report.legacy = Err("for a reason".to_owned());
        report.auto = Err(Error::CannotChoose {
            reason: "EPERM".to_owned(),
        });
        let text = report.to_string();
        assert!(text.contains("\nlegacy      cannot be read: for a reason\n"), "{text}");
        assert!(
            text.contains("\nauto        cannot choose: cannot read this network namespace's rules"),
            "{text}"
        );
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["legacy"], json!({"unknown": "for a reason"}));
        assert!(json["auto"]["unknown"].as_str().unwrap().contains("EPERM"), "{json}");
    }

    #[test]
    fn both_in_use_are_rules_in_both() {
        let mut report = report();
        for (legacy, want) in [
            (tables(&[]), false),
            (tables(&[("ip nat", 0)]), false),
            (Err("hidden".to_owned()), false),
            (tables(&[("ip nat", 0), ("ip filter", 1)]), true),
        ] {
            report.legacy = legacy;
            assert_eq!(
                report.to_string().contains("warning     both backends"),
                want,
                "{report}"
            );
            let json: Value = serde_json::from_str(&report.json()).unwrap();
            assert_eq!(json["both_backends_in_use"], want);
        }
    }

    #[test]
    fn a_report_for_machines() {
        let mut report = report();
        report.features.push(feature("lacking", false));
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let want = json!({
            "schema": 1,
            "kernel": "6.12.0",
            "nf_tables": {"tables": [{"table": "ip nat", "rules": 8}, {"table": "ip6 nat", "rules": 0}]},
            "features": [
                {"name": "IPv4: nat chains", "works": true},
                {"name": "native mode", "works": true},
                {"name": "lacking", "works": false, "reason": reason(&refused(Privilege::Change))},
            ],
            "legacy": {"tables": []},
            "both_backends_in_use": false,
            "installed": ["nft"],
            "not_known": ["legacy"],
            "kubernetes": ["a hint"],
            "neighbours": ["a sign"],
            "user_namespaces": "no pod with hostUsers: false can run here: the sysctl user.max_user_namespaces is 0",
            "binaries": [{"name": "iptables", "path": "/usr/sbin/xtables-nft-multi", "kind": "nf_tables"}],
            "auto": {"mode": "nft", "reason": "it holds proxy-init's rules already"},
        });
        assert_eq!(json, want);
    }
}
