//! Checking a pod: what happens to each port on which something listens, what becomes of outbound connections, and what is
//! wrong, each finding with its cure.

mod coded_finding;
mod fate;
mod print;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use ruleset::{Direction, Family, Network, Ruleset};

use self::coded_finding::{CodedFinding, Severity};
use self::fate::FamilyFate;
use crate::config::settings::arguments;
use crate::config::{Config, Mode};
use crate::diagnose::explain::answer::Connection;
use crate::diagnose::explain::{Routing, Scene};
use crate::diagnose::other_programs::{kube_proxy, signs_in_namespace};
use crate::diagnose::output::Conclusion;
use crate::diagnose::output::words;
use crate::diagnose::snapshot::{self, facts};
use crate::diagnose::verify::{Verification, recognize_in};
use crate::error::Error;
use crate::modes::must_see;
use crate::netns;

/// A pod's connections, port by port.
#[derive(Debug)]
pub struct Checked {
    /// The mode that holds the rules; none if no rules were found.
    pub mode: Option<Mode>,
    /// The config of the rules, as far as they tell one.
    config: Option<Config>,
    /// The first line, if it isn't known if there are rules.
    unseen: Option<String>,
    /// True if tables could not be seen that may drop or redirect connections, too.
    is_partly_unseen: bool,
    /// Each port on which something listens for other hosts, except the proxy's two.
    ports: Vec<CheckedPort>,
    /// The fate of the app's connections to other hosts over each family that the pod has.
    outbound: Vec<FamilyFate>,
    /// The findings, the gravest first.
    findings: Vec<CodedFinding>,
}

#[derive(Debug)]
struct CheckedPort {
    port: u16,
    /// The users who listen there.
    uids: BTreeSet<u32>,
    /// The fate of other hosts' connections over each family for which something listens.
    fates: Vec<FamilyFate>,
}

impl Checked {
    /// The answer for scripts.
    pub fn conclusion(&self) -> Conclusion {
        let gravest = self.findings.iter().map(|finding| finding.severity).max();
        match gravest {
            Some(Severity::Lost) => Conclusion::Differs,
            Some(Severity::NotKnown) => Conclusion::NotKnown,
            Some(Severity::Note) | None => Conclusion::AsExpected,
        }
    }
}

/// Checks the pod whose network namespace is at `netns`, or is the calling thread's. Nothing is changed, and no connection
/// is made.
///
/// # Errors
/// The namespace cannot be entered, or the kernel doesn't show its rules.
pub fn check(netns: Option<&Path>) -> Result<Checked, Error> {
    netns::run_in(netns, || {
        let routing = Routing::read();
        let ruleset = snapshot::ruleset()?;
        must_see(&ruleset, Mode::Nft)?;
        let facts = facts(&ruleset, &routing.network, None);
        let network = Network { facts, ..routing.network.clone() };
        Ok(Checked::of(&routing, &ruleset, &recognize_in(&ruleset, &network, None)?))
    })
}

impl Checked {
    fn of(routing: &Routing, ruleset: &Ruleset, recognized: &Verification) -> Self {
        let network = &routing.network;
        let scene = Scene::new(routing, ruleset);
        let config = recognized.closest.clone().and_then(Result::ok);
        let ports = ports(&scene, network, config.as_ref());
        let outbound = outbound(&scene, network, config.as_ref());
        let mut findings = findings(recognized, ruleset, network);
        findings.extend(skipped_ports(&ports, config.as_ref()));
        // Whatever is wrong already explains what becomes of them.
        let explains =
            |finding: &CodedFinding| finding.severity != Severity::Note || finding.code == coded_finding::BARRED;
        if !findings.iter().any(explains) {
            findings.extend(fates(&ports, &outbound).filter_map(CodedFinding::of_fate));
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let findings = CodedFinding::merge(findings);
        let unseen = recognized.unseen.as_ref().map(words::unseen);
        let is_partly_unseen = !ruleset.not_known.is_empty();
        Self { mode: recognized.mode, config, unseen, is_partly_unseen, ports, outbound, findings }
    }

    /// The flags about outbound connections that don't go to the proxy.
    fn outbound_exceptions(&self) -> Vec<String> {
        let arguments = self.config.as_ref().map(arguments).unwrap_or_default();
        let pairs = arguments.chunks(2).filter(|pair| {
            pair.first().is_some_and(|flag| flag.starts_with("--outbound-") || flag.starts_with("--skip-"))
        });
        pairs.map(|pair| pair.join(" ")).collect()
    }
}

/// Every fate, with the port of inbound connections.
fn fates<'c>(
    ports: &'c [CheckedPort],
    outbound: &'c [FamilyFate],
) -> impl Iterator<Item = (Option<u16>, &'c FamilyFate)> {
    let inbound = ports.iter().flat_map(|port| port.fates.iter().map(|fate| (Some(port.port), fate)));
    inbound.chain(outbound.iter().map(|fate| (None, fate)))
}

fn ports(scene: &Scene<'_>, network: &Network, config: Option<&Config>) -> Vec<CheckedPort> {
    let is_proxys = |port: u16| {
        config.is_some_and(|config| [config.inbound_port.get(), config.outbound_port.get()].contains(&port))
    };
    let listening: BTreeSet<u16> = network.listeners.iter().map(|listener| listener.port).collect();
    let mut ports = Vec::new();
    for port in listening.into_iter().filter(|&port| !is_proxys(port)) {
        let at_port = || network.listeners.iter().filter(|listener| listener.port == port);
        let mut fates = Vec::new();
        for family in Family::ALL {
            let own = network.wide_addresses(family).next().map(|own| own.address);
            let accepts = at_port().any(|listener| listener.accepts(Direction::Inbound, family));
            if let Some(own) = own.filter(|_| accepts) {
                let connection = Connection::new(Direction::Inbound, SocketAddr::new(own, port));
                fates.push(FamilyFate::of(family, scene.follow(&connection)));
            }
        }
        let uids: BTreeSet<u32> = at_port().map(|listener| listener.uid).collect();
        // A program that listens on lo alone isn't there for other hosts.
        if !fates.is_empty() {
            ports.push(CheckedPort { port, uids, fates });
        }
    }
    ports
}

/// The fate of connections to hosts of other networks, at addresses for documentation (RFC 5737, RFC 3849), to a port that
/// no flag names.
fn outbound(scene: &Scene<'_>, network: &Network, config: Option<&Config>) -> Vec<FamilyFate> {
    let is_skipped = |port: u16| {
        let mut ranges = config.into_iter().flat_map(|config| &config.ignored_outbound_ports);
        ranges.any(|range| range.contains(port))
    };
    let port = (80..).find(|&port| !is_skipped(port)).unwrap_or(80);
    let mut fates = Vec::new();
    for family in Family::ALL {
        let distant: IpAddr = match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        };
        if network.wide_addresses(family).next().is_some() {
            let connection = Connection::new(Direction::Outbound, SocketAddr::new(distant, port));
            fates.push(FamilyFate::of(family, scene.follow(&connection)));
        }
    }
    fates
}

/// The defects of the rules, and those beside them.
fn findings(recognized: &Verification, ruleset: &Ruleset, network: &Network) -> Vec<CodedFinding> {
    let mut findings = Vec::new();
    match (&recognized.closest, &recognized.unseen) {
        (_, Some(unseen)) => findings.push(CodedFinding::unseen(unseen, Severity::NotKnown)),
        (Some(Err(lack)), None) => findings.push(CodedFinding::lacking(lack)),
        _ => {
            findings.extend(recognized.findings.iter().map(CodedFinding::of_finding));
            findings.extend(recognized.doubts.iter().map(CodedFinding::of_doubt));
            findings.extend(recognized.warnings.iter().map(CodedFinding::of_warning));
            findings.extend(ruleset.not_known.iter().map(|unseen| CodedFinding::unseen(unseen, Severity::Note)));
        }
    }
    findings.extend(
        recognized.mode.zip(recognized.others.first()).map(|(first, second)| CodedFinding::two_modes(first, *second)),
    );
    findings.extend(kube_proxy(ruleset, &network.devices).map(CodedFinding::kube_proxy));
    let signs = signs_in_namespace(ruleset, &network.devices);
    findings.extend(signs.into_iter().map(CodedFinding::other_program));
    findings
}

/// The ports of the app that inbound rules skip.
fn skipped_ports(ports: &[CheckedPort], config: Option<&Config>) -> Vec<CodedFinding> {
    let Some(config) = config else {
        return Vec::new();
    };
    let is_apps = |port: &&CheckedPort| config.proxy_uid.is_none_or(|uid| !port.uids.contains(&uid.get()));
    let is_skipped = |port: &&CheckedPort| config.ignored_inbound_ports.iter().any(|range| range.contains(port.port));
    ports.iter().filter(is_apps).filter(is_skipped).map(|port| CodedFinding::skipped(port.port)).collect()
}
