//! A finding of a check: its code, which docs/debugging.md explains, its words, and its cure.

use ruleset::Unseen;

use super::fate::{FamilyFate, Fate};
use crate::config::Mode;
use crate::config::warnings::Warning;
use crate::diagnose::output::words;
use crate::diagnose::proxy::PodWarning;
use crate::diagnose::recognize::NoConfig;
use crate::diagnose::verify::finding::{Finding, FindingKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Worth knowing, or asked for by a flag.
    Note,
    /// Something decides that isn't known.
    NotKnown,
    /// Connections are lost, or pass by the proxy unasked.
    Lost,
}

#[derive(Debug)]
pub(super) struct CodedFinding {
    pub(super) code: String,
    pub(super) severity: Severity,
    pub(super) text: String,
    pub(super) cure: String,
}

/// The code of a rule that keeps out hosts which it names.
pub(super) const BARRED: &str = "barred";

const AGAIN: &str =
    "install the rules again; `proxy-init verify` prints the difference, and the flags that come closest";
const LET_PASS: &str = "let that rule pass the pod's connections, or remove it; `proxy-init verify` prints it";

impl CodedFinding {
    fn new(code: &str, severity: Severity, text: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { code: code.to_owned(), severity, text: text.into(), cure: cure.into() }
    }

    /// Tables that could not be seen.
    pub(super) fn unseen(unseen: &Unseen, severity: Severity) -> Self {
        let cure = "run as root: kubectl proxy-init --root, or on the node";
        Self::new(&format!("{}-unseen", unseen.subsystem), severity, words::unseen(unseen), cure)
    }

    /// Too few rules to tell what was installed.
    pub(super) fn lacking(lack: &NoConfig) -> Self {
        let (code, cure) = match lack {
            NoConfig::Nothing => (
                "no-rules",
                "see why proxy-init, linkerd-init or the CNI plugin made none for this pod; a pod without a proxy needs none",
            ),
            NoConfig::Flushed => {
                ("flushed", "restart the pod, or install the rules again: another program flushed them")
            }
            NoConfig::NoRedirect(_) => ("half-gone", "restart the pod, or install the rules again"),
        };
        let text = if *lack == NoConfig::Flushed { lack.to_string() } else { lack.at("here") };
        Self::new(code, Severity::Lost, text, cure)
    }

    /// A difference of the rules, or another program's rule in their way.
    pub(super) fn of_finding(finding: &Finding) -> Self {
        let kind = finding.kind();
        let cure = match kind {
            FindingKind::Shadowed | FindingKind::Dropped | FindingKind::Policy => LET_PASS,
            _ => AGAIN,
        };
        Self::new(&kind.to_string(), Severity::Lost, finding.without_kind(), cure)
    }

    /// Another program's rule that may drop connections, or keeps out some hosts.
    pub(super) fn of_doubt(finding: &Finding) -> Self {
        let (code, severity) =
            if finding.is_barring() { (BARRED, Severity::Note) } else { ("may-drop", Severity::NotKnown) };
        Self::new(code, severity, finding.in_a_line(), LET_PASS)
    }

    pub(super) fn of_warning(warning: &PodWarning) -> Self {
        let lost = |code, cure: &str| (code, Severity::Lost, cure.to_owned());
        let (code, severity, cure) = match warning {
            PodWarning::Config(Warning::NoOwner) => lost("no-owner", "install the rules with --proxy-uid"),
            PodWarning::Config(Warning::SamePort(_)) => {
                lost("same-port", "install the rules with the proxy's two ports")
            }
            PodWarning::Config(_) => {
                ("doubtful-flags", Severity::Note, "install the rules with other flags, if it isn't meant".to_owned())
            }
            PodWarning::NotListening { .. } => lost(
                "proxy-not-listening",
                "wait for the proxy to start, or see its container's log; a pod without a proxy needs no rules",
            ),
            PodWarning::OtherPort { .. } => lost(
                "other-port",
                "install the rules with the ports on which the proxy listens (--incoming-proxy-port, --outgoing-proxy-port)",
            ),
            PodWarning::OtherUser { uid, .. } => {
                lost("proxy-loop", &format!("install the rules with --proxy-uid {uid}"))
            }
            PodWarning::EverythingSkipped(direction) => {
                lost("everything-skipped", &format!("skip fewer {direction} ports and subnets"))
            }
            PodWarning::NoRulesFor { .. } => lost(
                "family-without-rules",
                "install the rules without --ipv6=false (in Linkerd's chart: disableIPv6: false)",
            ),
            PodWarning::QueueFull { .. } => {
                lost("queue-full", "see why the program is slow, or raise its backlog and net.core.somaxconn")
            }
            PodWarning::AppAsProxy { .. } => lost(
                "app-as-proxy",
                "run the app as another user (runAsUser), or the proxy (proxy.uid in Linkerd's chart)",
            ),
            PodWarning::NoWay { .. } => {
                lost("no-way", "see `ip address` and `ip route` in the pod, and the node's CNI plugin")
            }
            PodWarning::Bridge { device, .. } => lost(
                "bridge",
                &format!("install the rules with --inbound-interfaces-to-ignore {device}, or with its subnet ignored"),
            ),
            PodWarning::NotKnown(_) | PodWarning::RoutesNotKnown { .. } => {
                ("not-known", Severity::NotKnown, "allow what refuses it: a seccomp filter, or a sandbox".to_owned())
            }
        };
        Self::new(code, severity, warning.to_string(), cure)
    }

    pub(super) fn two_modes(first: Mode, second: Mode) -> Self {
        let text = format!("proxy-init's rules are in {first} and in {second} mode: connections are redirected twice");
        Self::new("two-modes", Severity::Lost, text, "`proxy-init uninstall`, then install in one mode")
    }

    /// A sign of kube-proxy, which works for a whole node.
    pub(super) fn kube_proxy(sign: String) -> Self {
        let cure = "if this is the node's network namespace, look into the pod's: --netns /proc/PID/ns/net";
        Self::new("kube-proxy", Severity::Note, sign, cure)
    }

    pub(super) fn other_program(sign: String) -> Self {
        Self::new("other-program", Severity::Note, sign, "see that only one program redirects the pod's connections")
    }

    /// A port of the app that the rules skip.
    pub(super) fn skipped(port: u16) -> Self {
        let text = format!("port {port} is the app's, and the rules skip it: its connections bypass the proxy");
        let cure =
            "leave the port out of --inbound-ports-to-ignore (config.linkerd.io/skip-inbound-ports), if it isn't meant";
        Self::new("port-skipped", Severity::Note, text, cure)
    }

    /// Joins findings of one kind in a row that have the same cure.
    pub(super) fn merge(findings: Vec<Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for finding in findings {
            match merged.last_mut() {
                Some(last) if last.code == finding.code && last.cure == finding.cure => {
                    last.text += &format!("; {}", finding.text);
                }
                _ => merged.push(finding),
            }
        }
        merged
    }

    /// The loss of a port's connections, or of outbound ones, that no other finding explains.
    pub(super) fn of_fate((port, at): (Option<u16>, &FamilyFate)) -> Option<Self> {
        let what = port.map_or_else(|| "outbound".to_owned(), |port| format!("port {port}"));
        let explain = "`proxy-init explain` shows every rule on the way";
        let (code, severity, cure) = match at.fate {
            Fate::Lost => ("connections-lost", Severity::Lost, explain),
            Fate::NotKnown => ("not-known", Severity::NotKnown, explain),
            Fate::NoRoute => {
                let cure = "if the pod needs other networks, see `ip route` in it, and the node's CNI plugin";
                ("no-route", Severity::Note, cure)
            }
            Fate::Proxy | Fate::Bypass | Fate::Elsewhere | Fate::Refused => return None,
        };
        Some(Self::new(code, severity, format!("{what} over {}: {}", at.family, at.words), cure))
    }
}
