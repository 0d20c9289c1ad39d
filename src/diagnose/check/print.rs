//! A check as text and as JSON.

use serde_json::Value;

use super::coded_finding::{CodedFinding, Severity};
use super::fate::{FamilyFate, Fate};
use super::{Checked, CheckedPort};
use crate::diagnose::output::Conclusion;
use crate::diagnose::output::json::object;
use crate::diagnose::output::page::{Page, Style};

impl Checked {
    /// The summary in one sentence, with the code of each finding.
    pub fn answer(&self) -> String {
        if let Some(unseen) = &self.unseen {
            return unseen.clone();
        }
        let codes = |severity| {
            let mut codes: Vec<&str> = Vec::new();
            for finding in self.findings.iter().filter(|finding| finding.severity == severity) {
                if !codes.contains(&finding.code.as_str()) {
                    codes.push(&finding.code);
                }
            }
            codes.join(", ")
        };
        let mode = self.mode.map_or(String::new(), |mode| format!(" by the rules of {mode} mode"));
        let mut answer = match self.conclusion() {
            Conclusion::AsExpected => {
                let reach = if self.is_partly_unseen { ", as far as could be seen" } else { "" };
                format!("well{reach}: connections go to the proxy{mode}")
            }
            Conclusion::NotKnown => format!("not known: {}", codes(Severity::NotKnown)),
            Conclusion::Differs => {
                let lost = codes(Severity::Lost);
                format!("not well: {lost}: connections are lost, or pass by the proxy unasked")
            }
        };
        let notes = codes(Severity::Note);
        if !notes.is_empty() {
            answer += &format!(" (beside: {notes})");
        }
        answer
    }

    /// For people.
    pub(in crate::diagnose) fn text(&self, page: &Page) -> String {
        let style = if self.conclusion() == Conclusion::AsExpected { Style::Proxy } else { Style::Trouble };
        let mut text = page.paragraph(style, &self.answer(), 2);
        text += &self.rules(page);
        text += &page.paragraph(Style::Dim, "   port  user   connections of other hosts", 0);
        for port in &self.ports {
            let uids: Vec<String> = port.uids.iter().map(ToString::to_string).collect();
            text += &row(&format!("  {:>5}  {:<5}  ", port.port, uids.join(",")), &port.fates, page);
        }
        if self.ports.is_empty() {
            text += "         nothing listens for other hosts, except perhaps the proxy\n";
        }
        if self.outbound.is_empty() {
            text += "  outbound      the pod has no address that other networks know\n";
        } else {
            text += &row("  outbound      ", &self.outbound, page);
        }
        for exception in self.outbound_exceptions() {
            text += &page.paragraph(Style::Plain, &format!("                except by {exception}"), 18);
        }
        for CodedFinding { code, severity, text: words, cure } in &self.findings {
            let style = if *severity == Severity::Note { Style::Bold } else { Style::Trouble };
            text.push('\n');
            text += &page.paragraph(style, &format!("{code}: {words}"), 2);
            text += &page.paragraph(Style::Plain, &format!("  cure: {cure}"), 4);
        }
        text
    }

    /// The rules and the proxy in a line.
    fn rules(&self, page: &Page) -> String {
        match (&self.config, self.mode) {
            (Some(config), Some(mode)) => {
                let families: Vec<String> = config.families().iter().map(ToString::to_string).collect();
                let uid = config.proxy_uid.map_or("nobody".to_owned(), |uid| format!("user {uid}"));
                page.fill_lines(&format!(
                    "rules in {mode} mode for {}; proxy: ports {} and {}, {uid}",
                    families.join(" and "),
                    config.inbound_port,
                    config.outbound_port,
                ))
            }
            _ => String::new(),
        }
    }

    /// For machines; docs/commands.md has the schema.
    pub fn json(&self) -> String {
        object(vec![
            ("schema", 1.into()),
            ("well", self.conclusion().in_json()),
            ("answer", self.answer().into()),
            ("mode", self.mode.map(|mode| mode.to_string()).into()),
            ("ports", self.ports.iter().map(port_json).collect()),
            ("outbound", self.outbound.iter().map(fate_json).collect()),
            ("findings", self.findings.iter().map(finding_json).collect()),
        ])
        .to_string()
    }
}

/// A row: each family's fate, or one for both.
fn row(start: &str, fates: &[FamilyFate], page: &Page) -> String {
    let first = fates.first();
    let are_same =
        first.is_some_and(|first| fates.iter().all(|other| (other.fate, &other.words) == (first.fate, &first.words)));
    let words: Vec<String> = match first {
        Some(first) if are_same => vec![first.words.clone()],
        _ => fates.iter().map(|at| format!("{}: {}", at.family, at.words)).collect(),
    };
    let style = match first.map(|first| first.fate) {
        Some(Fate::Proxy) if are_same => Style::Proxy,
        Some(Fate::Bypass) if are_same => Style::Bypass,
        _ => Style::Trouble,
    };
    page.paragraph(style, &format!("{start}{}", words.join("; ")), start.len() + 2)
}

fn port_json(port: &CheckedPort) -> Value {
    object(vec![
        ("port", port.port.into()),
        ("users", port.uids.iter().copied().collect()),
        ("fates", port.fates.iter().map(fate_json).collect()),
    ])
}

fn fate_json(at: &FamilyFate) -> Value {
    object(vec![
        ("family", at.family.to_string().into()),
        ("fate", at.fate.to_string().into()),
        ("words", at.words.as_str().into()),
    ])
}

fn finding_json(finding: &CodedFinding) -> Value {
    let severity = match finding.severity {
        Severity::Lost => "lost",
        Severity::NotKnown => "not-known",
        Severity::Note => "note",
    };
    object(vec![
        ("code", finding.code.as_str().into()),
        ("severity", severity.into()),
        ("text", finding.text.as_str().into()),
        ("cure", finding.cure.as_str().into()),
    ])
}
