//! A report as text and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{Detected, HeldTables};
use crate::diagnose::output::json::strings;
use crate::diagnose::output::page::{Page, Style};
use crate::error::reason;
use crate::log::escaped;

/// kube-proxy's detection, and that of others who copied it, prefers a backend with more rules than this.
const THRESHOLD: usize = 10;

impl Detected {
    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        let features = self.features.iter().map(|feature| match &feature.works {
            Ok(()) => json!({"name": feature.name, "works": true}),
            Err(lack) => json!({"name": feature.name, "works": false, "reason": reason(lack)}),
        });
        json!({
            "schema": 1,
            "kernel": self.kernel,
            "nf_tables": tables(&self.nft),
            "features": features.collect::<Vec<_>>(),
            "legacy": tables(&self.legacy),
            "both_backends_in_use": self.both_in_use(),
            "installed": strings(&self.installed),
            "not_known": strings(&self.not_known),
            "neighbours": self.signs,
            "user_namespaces": self.user_namespaces.to_string(),
            "auto": match &self.auto {
                Ok((mode, reason)) => json!({"mode": mode.to_string(), "reason": reason.to_string()}),
                Err(error) => json!({"unknown": error.to_string()}),
            },
        })
        .to_string()
    }

    pub(in crate::diagnose) fn text(&self, page: &Page) -> String {
        let lines = self.lines().into_iter();
        lines.map(|(title, line)| page.paragraph(Style::Plain, &format!("{title:11} {}", escaped(&line)), 12)).collect()
    }

    fn both_in_use(&self) -> bool {
        let [nft, legacy] = [&self.nft, &self.legacy].map(|tables| tables.iter().flatten());
        nft.clone().any(|(_, rules)| *rules > 0) && legacy.clone().any(|(_, rules)| *rules > 0)
    }

    /// The features that nf_tables lacks and a mode needs.
    fn missing_features(&self) -> Vec<String> {
        let lacking: Vec<_> =
            self.features.iter().filter_map(|feature| Some((&feature.name, feature.works.as_ref().err()?))).collect();
        match lacking.as_slice() {
            [] => vec!["has all that nft and native mode need, for IPv4 and IPv6".to_owned()],
            [(_, lack), ..] if lacking.len() == self.features.len() => vec![reason(*lack)],
            lacking => {
                let mut lines = vec!["lacks:".to_owned()];
                for (name, lack) in lacking {
                    // It begins with the mode, as the name does.
                    let reason = reason(*lack);
                    lines
                        .push(format!("{name}: {}", reason.split_once(": ").map_or(reason.as_str(), |(_, lack)| lack)));
                }
                lines
            }
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("kernel", self.kernel.clone())];
        for (index, line) in self.missing_features().into_iter().enumerate() {
            lines.push((if index == 0 { "nf_tables" } else { "" }, line));
        }
        for (title, tables) in [("nft rules", &self.nft), ("legacy", &self.legacy)] {
            let text = match tables {
                Ok(tables) if tables.is_empty() => "no tables".to_owned(),
                Ok(tables) => {
                    let rows = tables.iter().map(|(name, rules)| format!("{name} {rules}"));
                    format!("{} (rules per table)", rows.collect::<Vec<_>>().join(", "))
                }
                Err(reason) => format!("cannot be read: {reason}"),
            };
            lines.push((title, text));
        }
        if self.both_in_use() {
            let text = format!(
                "both backends hold rules: the detection of kube-proxy and others may flip between them (it \
                 goes by more than {THRESHOLD} rules), and connections may be redirected twice or lost"
            );
            lines.push(("warning", text));
        }
        for mode in &self.installed {
            lines.push(("installed", format!("proxy-init's rules, in {mode} mode")));
        }
        lines.extend(self.signs.iter().map(|sign| ("neighbour", sign.clone())));
        lines.push(("users", self.user_namespaces.to_string()));
        match &self.auto {
            Ok((mode, reason)) => {
                lines.push(("auto", format!("would choose {mode}, because {reason}")));
                let pin = format!(
                    "--iptables-mode {mode}, or IPTABLES_MODE={mode}, or proxyInit.iptablesMode: {mode} in Linkerd's chart"
                );
                lines.push(("pin it", pin));
            }
            Err(error) => lines.push(("auto", format!("cannot choose: {error}"))),
        }
        lines
    }
}

fn tables(tables: &HeldTables) -> Value {
    match tables {
        Ok(tables) => {
            let rows = tables.iter().map(|(name, rules)| json!({"table": name, "rules": rules}));
            json!({ "tables": rows.collect::<Vec<_>>() })
        }
        Err(reason) => json!({ "unknown": reason }),
    }
}

/// For people: at most a screen.
impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&Page::default()))
    }
}
