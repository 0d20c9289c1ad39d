//! linkerd-init's flags, and the iptables commands that it runs for them, written from its own source
//! (pkg/iptables/iptables.go) and not from ours.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use xtask::lab::Namespace;

/// One set of flags.
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    pub(crate) inbound_port: u16,
    pub(crate) outbound_port: u16,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) redirect: Vec<u16>,
    pub(crate) inbound: Vec<(u16, u16)>,
    pub(crate) outbound: Vec<(u16, u16)>,
    pub(crate) inbound_subnets: Vec<String>,
    pub(crate) outbound_subnets: Vec<String>,
    pub(crate) ipv6: bool,
}

impl Default for Flags {
    /// Linkerd's chart's values.
    fn default() -> Self {
        Self {
            inbound_port: 4143,
            outbound_port: 4140,
            uid: Some(2102),
            gid: None,
            redirect: vec![],
            inbound: vec![(4190, 4190), (4191, 4191), (4567, 4568)],
            outbound: vec![(4567, 4567), (4568, 4568)],
            inbound_subnets: vec![],
            outbound_subnets: vec![],
            ipv6: true,
        }
    }
}

impl Flags {
    /// As arguments of proxy-init.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let ranges = |ranges: &[(u16, u16)]| {
            let items = ranges.iter().map(|(low, high)| {
                if low == high {
                    low.to_string()
                } else {
                    format!("{low}-{high}")
                }
            });
            items.collect::<Vec<_>>().join(",")
        };
        let ports: Vec<_> = self.redirect.iter().map(ToString::to_string).collect();
        let mut arguments = vec![
            format!("--incoming-proxy-port={}", self.inbound_port),
            format!("--outgoing-proxy-port={}", self.outbound_port),
            format!("--inbound-ports-to-ignore={}", ranges(&self.inbound)),
            format!("--outbound-ports-to-ignore={}", ranges(&self.outbound)),
            format!("--subnets-to-ignore={}", self.inbound_subnets.join(",")),
            format!("--outbound-subnets-to-ignore={}", self.outbound_subnets.join(",")),
            format!("--ipv6={}", self.ipv6),
        ];
        // Without ports, the flag is left out: an empty list is refused.
        arguments.extend((!ports.is_empty()).then(|| format!("--ports-to-redirect={}", ports.join(","))));
        arguments.extend(self.uid.map(|uid| format!("--proxy-uid={uid}")));
        arguments.extend(self.gid.map(|gid| format!("--proxy-gid={gid}")));
        arguments
    }

    /// The rules of one family as iptables arguments behind `-t nat`, chain creations included.
    pub(crate) fn commands(&self, v6: bool) -> Vec<String> {
        let mut commands = Vec::new();
        let mut add = |command: String| commands.push(command);
        let ours = |subnets: &[String]| -> Vec<String> {
            subnets
                .iter()
                .filter(|subnet| subnet.contains(':') == v6)
                .cloned()
                .collect()
        };

        add("-N PROXY_INIT_REDIRECT".into());
        for piece in pieces(&self.inbound) {
            add(ignore_ports("PROXY_INIT_REDIRECT", &piece));
        }
        for subnet in ours(&self.inbound_subnets) {
            add(format!(
                "-A PROXY_INIT_REDIRECT -p all -j RETURN -s {subnet} -m comment --comment proxy-init/ignore-subnet-{subnet}"
            ));
        }
        let to = self.inbound_port;
        if self.redirect.is_empty() {
            add(format!(
                "-A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port {to} -m comment --comment \
                 proxy-init/redirect-all-incoming-to-proxy-port"
            ));
        }
        for port in &self.redirect {
            add(format!(
                "-A PROXY_INIT_REDIRECT -p tcp --destination-port {port} -j REDIRECT --to-port {to} -m comment \
                 --comment proxy-init/redirect-port-{port}-to-proxy-port"
            ));
        }
        add(
            "-A PREROUTING -j PROXY_INIT_REDIRECT -m comment --comment proxy-init/install-proxy-init-prerouting".into(),
        );

        add("-N PROXY_INIT_OUTPUT".into());
        if let Some(uid) = self.uid {
            add(format!(
                "-A PROXY_INIT_OUTPUT -m owner --uid-owner {uid} -j RETURN -m comment --comment \
                 proxy-init/ignore-proxy-user-id"
            ));
        }
        if let Some(gid) = self.gid {
            add(format!(
                "-A PROXY_INIT_OUTPUT -m owner --gid-owner {gid} -j RETURN -m comment --comment \
                 proxy-init/ignore-proxy-group-id"
            ));
        }
        add("-A PROXY_INIT_OUTPUT -o lo -j RETURN -m comment --comment proxy-init/ignore-loopback".into());
        for piece in pieces(&self.outbound) {
            add(ignore_ports("PROXY_INIT_OUTPUT", &piece));
        }
        for subnet in ours(&self.outbound_subnets) {
            add(format!(
                "-A PROXY_INIT_OUTPUT -j RETURN -d {subnet} -m comment --comment proxy-init/ignore-subnet-{subnet}"
            ));
        }
        let to = self.outbound_port;
        add(format!(
            "-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port {to} -m comment --comment \
             proxy-init/redirect-all-outgoing-to-proxy-port"
        ));
        add("-A OUTPUT -j PROXY_INIT_OUTPUT -m comment --comment proxy-init/install-proxy-init-output".into());
        commands
    }

    /// Each family's command and its arguments, for iptables-nft or iptables-legacy.
    pub(crate) fn commands_of(&self, backend: &str) -> Vec<(String, String)> {
        let families: &[(&str, bool)] = if self.ipv6 {
            &[("iptables", false), ("ip6tables", true)]
        } else {
            &[("iptables", false)]
        };
        families
            .iter()
            .flat_map(|&(family, v6)| {
                let program = format!("{family}-{backend}");
                self.commands(v6)
                    .into_iter()
                    .map(move |command| (program.clone(), command))
            })
            .collect()
    }

    /// Adds the rules as linkerd-init would: one process each.
    pub(crate) fn add_with_iptables(&self, namespace: &Namespace, backend: &str) {
        for (program, command) in self.commands_of(backend) {
            namespace.sh(&format!("{program} -t nat {command}"));
        }
    }
}

fn ignore_ports(chain: &str, piece: &str) -> String {
    format!(
        "-A {chain} -p tcp --match multiport --dports {piece} -j RETURN -m comment --comment \
         proxy-init/ignore-port-{piece}"
    )
}

/// makeMultiportDestinations: at most 15 references a rule.
fn pieces(ranges: &[(u16, u16)]) -> Vec<String> {
    let mut pieces: Vec<Vec<String>> = vec![];
    let mut count = 0;
    for &(low, high) in ranges {
        let (text, references) = if low == high {
            (low.to_string(), 1)
        } else {
            (format!("{low}:{high}"), 2)
        };
        if pieces.is_empty() || count + references > 15 {
            pieces.push(vec![]);
            count = 0;
        }
        count += references;
        pieces.last_mut().unwrap().push(text);
    }
    pieces.into_iter().map(|piece| piece.join(",")).collect()
}

/// Any flags that a user might give.
fn any_flags() -> impl Strategy<Value = Flags> {
    let port = 1..=u16::MAX;
    let id = || proptest::option::of(1..u32::MAX - 1);
    let ranges = || proptest::collection::vec((0..=u16::MAX, prop_oneof![Just(0), 0..200u16]), 0..40);
    let subnets = || proptest::collection::vec(prop_oneof![any_v4_subnet(), any_v6_subnet()], 0..5);
    (
        (port.clone(), port.clone(), id(), id()),
        proptest::collection::vec(port, 0..4),
        (ranges(), ranges()),
        (subnets(), subnets()),
        prop::bool::weighted(0.8),
    )
        .prop_map(
            |((inbound_port, outbound_port, uid, gid), redirect, ranges, subnets, ipv6)| {
                let bounds = |ranges: Vec<(u16, u16)>| {
                    ranges
                        .into_iter()
                        .map(|(low, more)| (low, low.saturating_add(more)))
                        .collect()
                };
                Flags {
                    inbound_port,
                    outbound_port,
                    uid,
                    gid,
                    redirect,
                    inbound: bounds(ranges.0),
                    outbound: bounds(ranges.1),
                    inbound_subnets: subnets.0,
                    outbound_subnets: subnets.1,
                    ipv6,
                }
            },
        )
}

fn any_v4_subnet() -> impl Strategy<Value = String> {
    (any::<[u8; 4]>(), 0..=32).prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv4Addr::from(address)))
}

fn any_v6_subnet() -> impl Strategy<Value = String> {
    (any::<[u16; 8]>(), 0..=128).prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv6Addr::from(address)))
}

/// Checks as many random sets of flags.
pub(crate) fn for_any_flags(cases: u32, check: impl Fn(&Flags)) {
    let mut runner = TestRunner::new(Config {
        cases,
        // A case takes dozens of processes.
        max_shrink_iters: 20,
        failure_persistence: None,
        ..Config::default()
    });
    let checked = runner.run(&any_flags(), |flags| {
        check(&flags);
        Ok(())
    });
    checked.unwrap();
}
