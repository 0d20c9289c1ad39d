//! Linkerd's own ways: its chart's arguments, and the iptables commands that linkerd-init runs for any flags,
//! written from its own source (pkg/iptables/iptables.go of linkerd2-proxy-init) and not from ours.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::network::{Namespace, Owner};

/// The defaults of the charts of one version of Linkerd, as linkerd/linkerd2 has them at its tag version-X. (Apache-2.0;
/// [`CHARTS`] says in which line of which file each fact stands.)
#[derive(Debug)]
pub struct Charts {
    /// Such as 2.16.
    pub version: &'static str,
    /// `proxyInit.iptablesMode`, and linkerd2-cni's `iptablesMode`.
    pub iptables_mode: &'static str,
    /// `disableIPv6` in both charts; with it, linkerd-init gets `--ipv6=false`.
    pub disables_ipv6: bool,
    /// The version of linkerd-init.
    pub proxy_init: &'static str,
    /// True if that is a file in the proxy's image; it has an image of its own otherwise.
    pub is_in_proxy_image: bool,
    /// True if `proxyInit.closeWaitTimeoutSecs` demands `proxyInit.runAsRoot`.
    pub demands_root_for_close_wait: bool,
    /// The version of the image cni-plugin.
    pub cni_plugin: &'static str,
    /// True if linkerd2-cni has the value `updateStrategy`.
    pub has_update_strategy: bool,
}

impl Charts {
    /// linkerd2-cni's values.yaml, as whoever has copied it passes it.
    pub fn cni_values(&self) -> Value {
        let mut values: Value = serde_json::from_str(include_str!("linkerd2-cni.json")).unwrap();
        values["iptablesMode"] = json!(self.iptables_mode);
        values["disableIPv6"] = json!(self.disables_ipv6);
        values["image"]["version"] = json!(self.cni_plugin);
        if self.has_update_strategy {
            values["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
        }
        values
    }
}

/// 2.15's have no `disableIPv6`, its proxy listens on IPv4 alone, and its linkerd-init knows no `--ipv6`.
///
/// Beside each fact is its line, where it changed: "plane" is charts/linkerd-control-plane/values.yaml, "cni"
/// charts/linkerd2-cni/values.yaml, "init" charts/partials/templates/_proxy-init.tpl. In all of them, init:12 passes
/// `--ipv6=false`, init:9 refuses other modes than nft and legacy, and charts/patch/templates/patch.json:64 and :79 have
/// either linkerd-init or, with `cniEnabled`, the validator.
pub const CHARTS: [Charts; 5] = [V2_16, V2_17, V2_18, V2_19, V2_20];

const V2_16: Charts = Charts {
    version: "2.16",
    iptables_mode: "legacy",            // plane:272, cni:32
    disables_ipv6: true,                // plane:47, cni:34
    proxy_init: "v2.4.1",               // plane:297
    is_in_proxy_image: false,           // init:46
    demands_root_for_close_wait: false, // not in init
    cni_plugin: "v1.5.1",               // cni:64
    has_update_strategy: false,         // not in cni
};
const V2_17: Charts = Charts {
    version: "2.17",
    cni_plugin: "v1.5.2", // cni:64
    ..V2_16
};
const V2_18: Charts = Charts {
    version: "2.18",
    proxy_init: "v2.4.2",              // plane:333
    demands_root_for_close_wait: true, // init:32
    cni_plugin: "v1.6.2",              // cni:72
    has_update_strategy: true,         // cni:43
    ..V2_17
};
const V2_19: Charts = Charts {
    version: "2.19",
    iptables_mode: "nft", // plane:334, cni:35
    proxy_init: "v2.4.3", // plane:359
    cni_plugin: "v1.6.4", // cni:72
    ..V2_18
};
const V2_20: Charts = Charts {
    version: "2.20",
    proxy_init: "v2.4.9",    // Dockerfile.proxy:51
    is_in_proxy_image: true, // init:49, 50
    cni_plugin: "v1.6.8",    // cni:72
    ..V2_19
};

/// The arguments of Linkerd's charts (charts/partials/templates/_proxy-init.tpl) with their default values, but for
/// `disableIPv6: false`: the charts' own default is `--ipv6=false`.
pub const CHART_ARGUMENTS: [&str; 10] = [
    "--incoming-proxy-port",
    "4143",
    "--outgoing-proxy-port",
    "4140",
    "--proxy-uid",
    "2102",
    "--inbound-ports-to-ignore",
    "4190,4191,4567,4568",
    "--outbound-ports-to-ignore",
    "4567,4568",
];

/// The section `linkerd` of the CNI plugin's configuration with the same values, in nft mode for both families;
/// `pod_info` says where the plugin learns about pods.
pub fn cni_section(pod_info: &str) -> Value {
    json!({
        "pod-info": pod_info,
        "incoming-proxy-port": 4143,
        "outgoing-proxy-port": 4140,
        "proxy-uid": 2102,
        "inbound-ports-to-ignore": ["4190", "4191", "4567", "4568"],
        "outbound-ports-to-ignore": ["4567", "4568"],
        "iptables-mode": "nft",
        "ipv6": true,
    })
}

/// The commands that linkerd-init runs for [`CHART_ARGUMENTS`], in its order, each as its words; twelve a family.
/// `mode` is `nft` or `legacy`; without `ipv6`, as the charts have it by default, they are for IPv4 alone.
pub fn commands(mode: &str, ipv6: bool) -> Vec<Vec<String>> {
    let flags = Flags { ipv6, ..Flags::default() };
    let mut lines = Vec::new();
    for (family, v6) in flags.families() {
        // It lists the rules before and after.
        let save = format!("{family}-{mode}-save -t nat");
        lines.push(save.clone());
        lines.extend(flags.rules(v6).iter().map(|rule| format!("{family}-{mode} -t nat {rule}")));
        lines.push(save);
    }
    let words = |line: String| line.split_whitespace().map(ToOwned::to_owned).collect();
    lines.into_iter().map(words).collect()
}

/// One set of linkerd-init's flags, and the outbound subnets that only proxy-init has.
#[derive(Debug, Clone)]
pub struct Flags {
    /// `--incoming-proxy-port`
    pub inbound_port: u16,
    /// `--outgoing-proxy-port`
    pub outbound_port: u16,
    /// `--proxy-uid`
    pub uid: Option<u32>,
    /// `--proxy-gid`
    pub gid: Option<u32>,
    /// `--ports-to-redirect`
    pub redirect: Vec<u16>,
    /// `--inbound-ports-to-ignore`, each the first and the last port of a range.
    pub inbound: Vec<(u16, u16)>,
    /// `--outbound-ports-to-ignore`, as above.
    pub outbound: Vec<(u16, u16)>,
    /// `--subnets-to-ignore`
    pub inbound_subnets: Vec<String>,
    /// `--outbound-subnets-to-ignore`
    pub outbound_subnets: Vec<String>,
    /// `--outbound-ports-to-redirect`, which linkerd-init lacks, as `inbound`.
    pub outbound_chosen: Vec<(u16, u16)>,
    /// `--outbound-subnets-to-redirect`, which it lacks too.
    pub chosen_subnets: Vec<String>,
    /// `--skip-uid`, which linkerd-init lacks, each the first and the last id of a range.
    pub skip_uids: Vec<(u32, u32)>,
    /// `--skip-gid`, as above.
    pub skip_gids: Vec<(u32, u32)>,
    /// `--inbound-interfaces-to-ignore`, which it lacks too.
    pub inbound_interfaces: Vec<String>,
    /// `--outbound-interfaces-to-ignore`, which it lacks too.
    pub outbound_interfaces: Vec<String>,
    /// `--ipv6`
    pub ipv6: bool,
}

impl Default for Flags {
    /// The flags of [`CHART_ARGUMENTS`].
    fn default() -> Self {
        let ports = |ports: &[u16]| ports.iter().map(|&port| (port, port)).collect();
        Self {
            inbound_port: 4143,
            outbound_port: 4140,
            uid: Some(2102),
            gid: None,
            redirect: vec![],
            inbound: ports(&[4190, 4191, 4567, 4568]),
            outbound: ports(&[4567, 4568]),
            inbound_subnets: vec![],
            outbound_subnets: vec![],
            outbound_chosen: vec![],
            chosen_subnets: vec![],
            skip_uids: vec![],
            skip_gids: vec![],
            inbound_interfaces: vec![],
            outbound_interfaces: vec![],
            ipv6: true,
        }
    }
}

impl Flags {
    /// As one line of arguments.
    pub fn line(&self) -> String {
        let list = |ports: &[(u16, u16)]| ranges(ports).join(",");
        let ports: Vec<_> = self.redirect.iter().map(ToString::to_string).collect();
        let mut arguments = vec![
            format!("--incoming-proxy-port={}", self.inbound_port),
            format!("--outgoing-proxy-port={}", self.outbound_port),
            format!("--inbound-ports-to-ignore={}", list(&self.inbound)),
            format!("--outbound-ports-to-ignore={}", list(&self.outbound)),
            format!("--subnets-to-ignore={}", self.inbound_subnets.join(",")),
            format!("--outbound-subnets-to-ignore={}", self.outbound_subnets.join(",")),
            format!("--skip-uid={}", ranges(&self.skip_uids).join(",")),
            format!("--skip-gid={}", ranges(&self.skip_gids).join(",")),
            format!("--ipv6={}", self.ipv6),
        ];
        // Without ports, the flag is left out: an empty list is refused.
        arguments.extend((!ports.is_empty()).then(|| format!("--ports-to-redirect={}", ports.join(","))));
        for (flag, list) in [
            ("outbound-ports-to-redirect", list(&self.outbound_chosen)),
            ("outbound-subnets-to-redirect", self.chosen_subnets.join(",")),
            ("inbound-interfaces-to-ignore", self.inbound_interfaces.join(",")),
            ("outbound-interfaces-to-ignore", self.outbound_interfaces.join(",")),
        ] {
            arguments.extend((!list.is_empty()).then(|| format!("--{flag}={list}")));
        }
        arguments.extend(self.uid.map(|uid| format!("--proxy-uid={uid}")));
        arguments.extend(self.gid.map(|gid| format!("--proxy-gid={gid}")));
        arguments.join(" ")
    }

    /// Each family's chains and rules, in order: the program, and its arguments after `-t nat`. `mode` is `nft` or
    /// `legacy`.
    pub fn commands(&self, mode: &str) -> Vec<(String, String)> {
        self.families()
            .flat_map(|(family, v6)| {
                let program = format!("{family}-{mode}");
                let rules = self.rules(v6).into_iter();
                rules.map(move |rule| (program.clone(), rule))
            })
            .collect()
    }

    /// Each family's iptables, and whether it is IPv6's.
    fn families(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let families = [("iptables", false), ("ip6tables", true)];
        families.into_iter().take(if self.ipv6 { 2 } else { 1 })
    }

    /// Adds the rules as linkerd-init does: by one process each.
    pub fn add_with_iptables(&self, namespace: &Namespace, mode: &str) {
        for (program, rule) in self.commands(mode) {
            namespace.sh(&format!("{program} -t nat {rule}"));
        }
    }

    /// The proxy's port to which the rules send a connection, if they do.
    pub fn redirects(&self, connection: &Connection) -> Option<u16> {
        let Connection { to, from, way, device } = *connection;
        let ranges = |ranges: &[(u16, u16)]| ranges.iter().any(|&(low, high)| (low..=high).contains(&to.port()));
        let subnets = |subnets: &[String], address| subnets.iter().any(|subnet| contains(subnet, address));
        let ids = |ids: &[(u32, u32)], id| ids.iter().any(|&(first, last)| (first..=last).contains(&id));
        let by_one_of = |names: &[String]| names.iter().any(|name| name == device);
        if !self.ipv6 && to.is_ipv6() {
            return None;
        }
        match way {
            Way::In => {
                let chosen = self.redirect.is_empty() || self.redirect.contains(&to.port());
                let ignored = ranges(&self.inbound)
                    || subnets(&self.inbound_subnets, from)
                    || by_one_of(&self.inbound_interfaces);
                (chosen && !ignored).then_some(self.inbound_port)
            }
            Way::Out { owner } => {
                let is_proxy = self.uid.is_some_and(|uid| uid > 0 && uid == owner.uid)
                    || self.gid.is_some_and(|gid| gid > 0 && gid == owner.gid);
                let ignored = ranges(&self.outbound)
                    || subnets(&self.outbound_subnets, to.ip())
                    || by_one_of(&self.outbound_interfaces)
                    || ids(&self.skip_uids, owner.uid)
                    || ids(&self.skip_gids, owner.gid);
                let chosen = (self.outbound_chosen.is_empty() || ranges(&self.outbound_chosen))
                    && (self.chosen_subnets.is_empty() || subnets(&self.chosen_subnets, to.ip()));
                (!is_proxy && device != "lo" && !ignored && chosen).then_some(self.outbound_port)
            }
        }
    }

    /// One family's chains and rules.
    fn rules(&self, v6: bool) -> Vec<String> {
        let of_family = |subnets: &[String]| -> Vec<String> {
            let subnets = subnets.iter().filter(|subnet| subnet.contains(':') == v6);
            subnets.cloned().collect()
        };
        // linkerd-init gives the list to both families. iptables ignores the address before /0, and fails with any
        // other of the other family: such a list is proxy-init's own, which has each subnet in its own family.
        let mut inbound = of_family(&self.inbound_subnets);
        if inbound.is_empty() && self.inbound_subnets.iter().all(|subnet| subnet.ends_with("/0")) {
            inbound.clone_from(&self.inbound_subnets);
        }
        let mut rules = self.inbound_rules(&inbound);
        rules.extend(self.outbound_rules(&of_family(&self.outbound_subnets), &of_family(&self.chosen_subnets)));
        rules
    }

    fn inbound_rules(&self, subnets: &[String]) -> Vec<String> {
        let to = self.inbound_port;
        let mut rules = vec!["-N PROXY_INIT_REDIRECT".to_owned()];
        rules.extend(ignored_ports("PROXY_INIT_REDIRECT", &self.inbound));
        rules.extend(subnets.iter().map(|subnet| {
            rule(&format!("-A PROXY_INIT_REDIRECT -p all -j RETURN -s {subnet}"), &format!("ignore-subnet-{subnet}"))
        }));
        rules.extend(ignored_interfaces("PROXY_INIT_REDIRECT -i", &self.inbound_interfaces));
        if self.redirect.is_empty() {
            rules.push(rule(
                &format!("-A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port {to}"),
                "redirect-all-incoming-to-proxy-port",
            ));
        }
        rules.extend(self.redirect.iter().map(|port| {
            rule(
                &format!("-A PROXY_INIT_REDIRECT -p tcp --destination-port {port} -j REDIRECT --to-port {to}"),
                &format!("redirect-port-{port}-to-proxy-port"),
            )
        }));
        rules.push(rule("-A PREROUTING -j PROXY_INIT_REDIRECT", "install-proxy-init-prerouting"));
        rules
    }

    fn outbound_rules(&self, subnets: &[String], chosen: &[String]) -> Vec<String> {
        let to = self.outbound_port;
        let mut rules = vec!["-N PROXY_INIT_OUTPUT".to_owned()];
        for (id, option, what) in [(self.uid, "--uid-owner", "user"), (self.gid, "--gid-owner", "group")] {
            rules.extend(id.map(|id| {
                rule(
                    &format!("-A PROXY_INIT_OUTPUT -m owner {option} {id} -j RETURN"),
                    &format!("ignore-proxy-{what}-id"),
                )
            }));
        }
        rules.push(rule("-A PROXY_INIT_OUTPUT -o lo -j RETURN", "ignore-loopback"));
        rules.extend(ignored_ports("PROXY_INIT_OUTPUT", &self.outbound));
        rules.extend(subnets.iter().map(|subnet| {
            rule(&format!("-A PROXY_INIT_OUTPUT -j RETURN -d {subnet}"), &format!("ignore-subnet-{subnet}"))
        }));
        for (ids, option, what) in [(&self.skip_uids, "--uid-owner", "user"), (&self.skip_gids, "--gid-owner", "group")]
        {
            rules.extend(ranges(ids).iter().map(|ids| {
                rule(
                    &format!("-A PROXY_INIT_OUTPUT -m owner {option} {ids} -j RETURN"),
                    &format!("ignore-{what}-id-{ids}"),
                )
            }));
        }
        rules.extend(ignored_interfaces("PROXY_INIT_OUTPUT -o", &self.outbound_interfaces));
        if !self.outbound_chosen.is_empty() {
            let pieces = pieces(&self.outbound_chosen);
            let pieces = pieces.iter().map(|piece| format!("-m multiport ! --dports {piece}"));
            let unlisted = pieces.collect::<Vec<_>>().join(" ");
            rules.push(rule(&format!("-A PROXY_INIT_OUTPUT -p tcp {unlisted} -j RETURN"), "ignore-unlisted-ports"));
        }
        if self.chosen_subnets.is_empty() {
            rules.push(rule(
                &format!("-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port {to}"),
                "redirect-all-outgoing-to-proxy-port",
            ));
        }
        rules.extend(chosen.iter().map(|subnet| {
            rule(
                &format!("-A PROXY_INIT_OUTPUT -p tcp -d {subnet} -j REDIRECT --to-port {to}"),
                &format!("redirect-subnet-{subnet}-to-proxy-port"),
            )
        }));
        rules.push(rule("-A OUTPUT -j PROXY_INIT_OUTPUT", "install-proxy-init-output"));
        rules
    }
}

/// A connection to a pod or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Where it is meant to go.
    pub to: SocketAddr,
    /// Where it comes from.
    pub from: IpAddr,
    /// Its direction.
    pub way: Way,
    /// The device by which it comes in or leaves.
    pub device: &'static str,
}

/// The direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From another host to the pod.
    In,
    /// From the pod.
    Out {
        /// Whose it is.
        owner: Owner,
    },
}

/// True if a subnet in CIDR notation, or an address alone, has this address in it.
fn contains(subnet: &str, address: IpAddr) -> bool {
    let (base, length) = match subnet.split_once('/') {
        Some((base, length)) => (base, length.parse().ok()),
        None => (subnet, None),
    };
    // The bits in which the two differ, from the first one on.
    let (differing, bits) = match (base.parse(), address) {
        (Ok(IpAddr::V4(base)), IpAddr::V4(address)) => (u128::from(base.to_bits() ^ address.to_bits()) << 96, 32),
        (Ok(IpAddr::V6(base)), IpAddr::V6(address)) => (base.to_bits() ^ address.to_bits(), 128),
        _ => return false,
    };
    differing.leading_zeros() >= length.unwrap_or(bits)
}

/// A rule, and its comment after it.
fn rule(text: &str, purpose: &str) -> String {
    format!("{text} -m comment --comment proxy-init/{purpose}")
}

/// Ranges of ports or ids, as flags have both, and iptables has ids.
fn ranges<N: PartialEq + Display>(ranges: &[(N, N)]) -> Vec<String> {
    let mut words = Vec::new();
    for (first, last) in ranges {
        words.push(if first == last { first.to_string() } else { format!("{first}-{last}") });
    }
    words
}

/// A rule for each interface.
fn ignored_interfaces(begun: &str, names: &[String]) -> impl Iterator<Item = String> {
    let one = move |name: &String| rule(&format!("-A {begun} {name} -j RETURN"), &format!("ignore-interface-{name}"));
    names.iter().map(one)
}

/// A rule for each piece of a list of ports.
fn ignored_ports(chain: &str, ranges: &[(u16, u16)]) -> Vec<String> {
    let one = |piece: &String| {
        rule(
            &format!("-A {chain} -p tcp --match multiport --dports {piece} -j RETURN"),
            &format!("ignore-port-{piece}"),
        )
    };
    pieces(ranges).iter().map(one).collect()
}

/// At most 15 references a rule, of which a range takes two (`makeMultiportDestinations`).
fn pieces(ranges: &[(u16, u16)]) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut count = 0;
    for &(low, high) in ranges {
        let (text, references) = if low == high { (low.to_string(), 1) } else { (format!("{low}:{high}"), 2) };
        if count + references > 15 {
            pieces.push(std::mem::take(&mut piece));
            count = 0;
        }
        if !piece.is_empty() {
            piece.push(',');
        }
        piece += &text;
        count += references;
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}
