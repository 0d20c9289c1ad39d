//! Recognises other programs that affect a pod's connections, by the signs that they leave. Programs without a sign
//! here, such as BPF programs of cgroups, aren't named.

use ruleset::{Action, Name, Table};
use ruleset::{Device, Ruleset};

use crate::config::Interface;
use crate::diagnose::ownership::without_time;
use crate::modes::refusal::is_gvisor;

use crate::plan::Purpose;

/// A program, and the names that its chains, tables and devices have.
struct Program {
    name: &'static str,
    /// The beginning of its chains' names.
    chains: &'static str,
    /// The beginnings of its tables' names.
    tables: &'static [&'static str],
    devices: &'static [&'static str],
    /// The effect on connections; none for a mesh, whose rules show the effect.
    means: Option<&'static str>,
}

const CILIUM: &str = "where its socket load balancing is on, a connection has another address before any rule sees it; its BPF \
                      programs cannot be seen from here";

/// Programs with known names, from their sources: tools/istio-iptables/pkg/constants and
/// tools/istio-nftables/pkg/constants of Istio, pkg/transparentproxy of Kuma, sdk/iptables of Consul,
/// pkg/datapath/iptables, pkg/defaults and pkg/wireguard of Cilium.
const OWNERS: [Program; 4] = [
    Program { name: "Istio", chains: "ISTIO_", tables: &["istio-proxy-", "istio-ambient-"], devices: &[], means: None },
    Program { name: "Kuma", chains: "KUMA_MESH_", tables: &[], devices: &[], means: None },
    Program { name: "Consul", chains: "CONSUL_PROXY_", tables: &[], devices: &[], means: None },
    Program {
        name: "Cilium",
        chains: "CILIUM_",
        tables: &[],
        // All of them in the node's own namespace.
        devices: &[
            "cilium_host",
            "cilium_net",
            "cilium_vxlan",
            "cilium_geneve",
            "cilium_wg0",
            "cilium_ipip4",
            "cilium_ipip6",
        ],
        means: Some(CILIUM),
    },
];

impl Program {
    fn has(&self, table: &Table, chain: &Name) -> bool {
        let table = table.name.to_string();
        chain.as_bytes().starts_with(self.chains.as_bytes())
            || self.tables.iter().any(|prefix| table.starts_with(prefix))
    }

    /// The effect of its chains and devices in the network namespace on connections.
    fn meaning(&self, ruleset: &Ruleset) -> &'static str {
        if let Some(means) = self.means {
            return means;
        }
        let mut rules = ruleset.tables.iter().flat_map(|table| {
            let chains = table.chains.iter().filter(|chain| self.has(table, &chain.name));
            chains.flat_map(|chain| &chain.rules)
        });
        if rules.any(|rule| matches!(rule.action, Action::Redirect(_))) {
            "it has rules that redirect connections too"
        } else {
            "none of its rules is known to redirect connections"
        }
    }
}

/// Whose chain this is, by its name or its table's.
pub fn owner_of(table: &Table, chain: &Name) -> Option<&'static str> {
    let owner = OWNERS.iter().find(|owner| owner.has(table, chain));
    owner.map(|owner| owner.name)
}

/// The signs that other programs have left in the network namespace.
pub fn signs_in_namespace(ruleset: &Ruleset, devices: &[Device]) -> Vec<String> {
    let mut signs = Vec::new();
    if ruleset.tables.iter().flat_map(Table::rules).any(|rule| without_time(rule).is_some()) {
        signs.push(
            "linkerd-init before 2.4.0 made rules here, whose comments end with a time: installing replaces them"
                .to_owned(),
        );
    }
    for owner in &OWNERS {
        let mut places: Vec<String> = Vec::new();
        for table in &ruleset.tables {
            let chain = table.chains.iter().find(|chain| owner.has(table, &chain.name));
            places.extend(chain.map(|chain| format!("chain {} in {table}", chain.name)));
        }
        let mut its = devices.iter().filter(|device| owner.devices.iter().any(|&name| device.name == *name));
        places.extend(its.next().map(|device| format!("device {}", device.name)));
        if !places.is_empty() {
            signs.push(format!("{} is here ({}): {}", owner.name, places.join(", "), owner.meaning(ruleset)));
        }
    }
    for device in devices {
        let kind = match device.kind.as_slice() {
            b"tun" => "tun",
            b"wireguard" => "WireGuard",
            _ => continue,
        };
        let name = &device.name;
        if is_ignored(ruleset, name) {
            continue;
        }
        let exempting = match name.to_string().parse::<Interface>() {
            Ok(_) => "unless --outbound-interfaces-to-ignore and --inbound-interfaces-to-ignore name it",
            Err(_) => "and no flag can exempt them, as flags take no such name",
        };
        signs.push(format!(
            "{name} is a {kind} device: the rules redirect connections by it as all others, {exempting}"
        ));
    }
    signs
}

/// Returns true if one of our rules exempts connections by this device.
fn is_ignored(ruleset: &Ruleset, device: &Name) -> bool {
    let rules = ruleset.tables.iter().flat_map(Table::rules);
    let mut purposes = rules.filter_map(Purpose::of);
    purposes.any(|purpose| matches!(purpose, Purpose::IgnoreInterface(name) if *device == *name.to_string()))
}

/// The machine's signs beside its rules. A file that can't be read is empty.
#[derive(Debug, Clone, Default)]
pub struct Traces {
    /// /proc/version
    pub version: String,
    /// /proc/self/status
    pub status: String,
    /// /proc/self/attr/current: how a security module confines the process.
    pub confinement: String,
    /// True if the network namespace belongs to the process's user namespace; none: not known.
    pub owns_network: Option<bool>,
    /// The names in /etc/cni/net.d.
    pub networks: Vec<String>,
}

/// The signs in the kernel and on the node, for `detect`. `is_refused`: something was refused for lack of permission.
pub fn signs_on_node(ruleset: &Ruleset, devices: &[Device], traces: &Traces, is_refused: bool) -> Vec<String> {
    let mut signs = Vec::new();
    if is_gvisor(&traces.version) {
        signs.push("the kernel is gVisor, which has no nf_tables".to_owned());
    }
    if traces.owns_network == Some(false) {
        signs.push(
            "the network namespace belongs to another user namespace, as that of a pod with hostUsers: false: rules on owners \
             compare with the ids in there; from outside, they are made in native mode alone"
                .to_owned(),
        );
    }
    signs.extend(kube_proxy(ruleset, devices));
    // Cilium renames other lists there (cni.exclusive in its chart).
    if let Some(name) = traces.networks.iter().find(|name| name.ends_with(".cilium_bak")) {
        signs.push(format!(
            "Cilium has set other CNI configurations aside (/etc/cni/net.d/{name}): its chart's cni.exclusive=false leaves \
             them"
        ));
    }
    // Then something else has refused.
    if is_refused && has_net_admin(&traces.status) {
        signs.extend(refusers(traces));
    }
    signs
}

/// The mode of kube-proxy, which only the node's own network namespace shows.
pub fn kube_proxy(ruleset: &Ruleset, devices: &[Device]) -> Option<String> {
    if let Some(table) = ruleset.tables.iter().find(|table| table.name == *"kube-proxy") {
        return Some(format!("kube-proxy is in nftables mode (table {table})"));
    }
    if devices.iter().any(|device| device.name == *"kube-ipvs0") {
        return Some("kube-proxy is in IPVS mode (device kube-ipvs0)".to_owned());
    }
    ruleset.tables.iter().find_map(|table| {
        let mut chains = table.chains.iter();
        let chain = chains.find(|chain| chain.name.as_bytes().starts_with(b"KUBE-SVC-"))?;
        Some(format!("kube-proxy is in iptables mode (chain {} in {table})", chain.name))
    })
}

/// CAP_NET_ADMIN (linux/capability.h).
const NET_ADMIN: u32 = 12;

/// Returns true if the process has CAP_NET_ADMIN, by its /proc/self/status.
fn has_net_admin(status: &str) -> bool {
    let effective = field(status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    effective.is_some_and(|bits| bits & (1 << NET_ADMIN) != 0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Names guards that may have refused something although the process has CAP_NET_ADMIN.
fn refusers(traces: &Traces) -> Vec<String> {
    let mut signs = Vec::new();
    if field(&traces.status, "Seccomp:") == Some("2") {
        signs.push(
            "a seccomp filter is on (Seccomp: 2 in /proc/self/status): it may be what refuses, for the process has \
             CAP_NET_ADMIN"
                .to_owned(),
        );
    }
    let label = traces.confinement.trim_end_matches(['\0', '\n']);
    // SELinux: user:role:type:level. AppArmor: a profile and its mode, or `unconfined`.
    if label.matches(':').count() >= 2 {
        signs.push(format!(
            "SELinux runs the process as {label}: its policy may be what refuses, for the process has CAP_NET_ADMIN \
             (`ausearch -m AVC` on the node)"
        ));
    } else if label.ends_with("(enforce)") {
        signs.push(format!(
            "AppArmor confines the process by the profile {label}: it may be what refuses, for the process has \
             CAP_NET_ADMIN"
        ));
    }
    signs
}

#[cfg(test)]
mod tests {
    use ruleset::testing::{self, chain, rule, table};

    use super::*;
    use crate::config::{Config, Mode};
    use crate::plan::tables::expected;

    fn ruleset(tables: Vec<Table>) -> Ruleset {
        Ruleset { tables, not_known: vec![] }
    }

    fn device(name: &str, kind: &str) -> Device {
        Device { kind: kind.into(), ..testing::device(2, name) }
    }

    fn holding(name: &str, chains: &[&str]) -> Table {
        table(name, chains.iter().map(|name| chain(name, vec![])).collect())
    }

    #[test]
    fn other_meshes_are_known_by_their_chains() {
        for (table, chain, want) in [
            ("ip nat", "ISTIO_OUTPUT", Some("Istio")),
            ("inet istio-proxy-nat", "output", Some("Istio")),
            ("inet istio-ambient-mangle", "prerouting", Some("Istio")),
            ("ip nat", "KUMA_MESH_INBOUND_REDIRECT", Some("Kuma")),
            ("ip nat", "CONSUL_PROXY_OUTPUT", Some("Consul")),
            ("ip nat", "CILIUM_PRE_nat", Some("Cilium")),
            ("ip nat", "PROXY_INIT_OUTPUT", None),
            ("ip nat", "MY_ISTIO_OUTPUT", None),
            ("ip istio", "OUTPUT", None),
        ] {
            let table = holding(table, &["OUTPUT", chain]);
            assert_eq!(owner_of(&table, &Name::from(chain)), want, "{chain}");
            let signs = signs_in_namespace(&ruleset(vec![table]), &[]);
            assert_eq!(signs.len(), usize::from(want.is_some()), "{signs:?}");
        }
        let tables = ["ip nat", "ip6 nat"].map(|name| holding(name, &["ISTIO_INBOUND", "ISTIO_OUTPUT"]));
        assert_eq!(
            signs_in_namespace(&ruleset(tables.into()), &[]),
            [
                "Istio is here (chain ISTIO_INBOUND in ip nat, chain ISTIO_INBOUND in ip6 nat): none of its rules is known to \
                 redirect connections"
            ]
        );
    }

    #[test]
    fn a_mesh_is_said_to_redirect_only_by_a_rule_that_does() {
        let with = |name: &str, chain_name: &str, action| {
            let rules = vec![rule([], action)];
            table(name, vec![chain("OUTPUT", vec![]), chain(chain_name, rules)])
        };
        let to = || Action::Redirect(Some((15001, 15001)));
        for (table, redirects) in [
            (with("ip nat", "ISTIO_REDIRECT", to()), true),
            (with("inet istio-proxy-nat", "output", to()), true),
            (with("ip nat", "ISTIO_REDIRECT", Action::Return), false),
            // Another program's.
            (with("ip nat", "ISTIOS_NOT", to()), false),
        ] {
            let tables = vec![table, holding("ip6 nat", &["ISTIO_OUTPUT"])];
            let signs = signs_in_namespace(&ruleset(tables), &[]);
            let has = signs[0].ends_with(": it has rules that redirect connections too");
            assert!(signs.len() == 1 && has == redirects, "{signs:?}");
        }
    }

    /// As `ip -d link` shows them in a node's namespace with Cilium, and in a pod's with Tailscale.
    #[test]
    fn devices_are_known_by_their_kind_and_ciliums_by_name() {
        let node = [
            device("eth0", ""),
            device("cilium_x", "dummy"),
            device("cilium_net", "veth"),
            device("cilium_host", "veth"),
        ];
        let signs = signs_in_namespace(&Ruleset::default(), &node);
        assert!(signs.len() == 1 && signs[0].starts_with("Cilium is here (device cilium_net): where"), "{signs:?}");
        let pod = [
            device("lo", ""),
            device("tailscale0", "tun"),
            device("w", "wireguard"),
            device("tun9", "dummy"),
            device("tun:0", "tun"),
        ];
        let signs = signs_in_namespace(&Ruleset::default(), &pod);
        let begin: Vec<_> = signs.iter().map(|sign| sign.split(':').next().unwrap()).collect();
        assert_eq!(begin, ["tailscale0 is a tun device", "w is a WireGuard device", "tun",]);
        // --outbound-interfaces-to-ignore refuses that name.
        assert!(signs[1].ends_with("-ignore name it"), "{signs:?}");
        assert!(signs[2].starts_with("tun:0 is a tun device: ") && !signs[2].contains("--"), "{signs:?}");
        // Nothing is said about devices that the rules exempt.
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.ignored_outbound_interfaces = vec!["tailscale0".parse().unwrap()];
        let installed = ruleset(expected(Mode::Nft, &config));
        assert_eq!(signs_in_namespace(&installed, &pod), signs[1..]);
    }

    fn said(traces: &Traces, is_refused: bool) -> Vec<String> {
        signs_on_node(&Ruleset::default(), &[], traces, is_refused)
    }

    #[test]
    fn gvisor_is_known_by_its_version() {
        for (version, is_gvisor) in [
            ("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n", true),
            ("Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016\n", true),
            ("Linux version 4.4.0-210-generic (buildd@lgw01) (gcc version 5.4.0) #242-Ubuntu SMP\n", false),
            ("", false),
        ] {
            let traces = Traces { version: version.to_owned(), ..Traces::default() };
            let want = ["the kernel is gVisor, which has no nf_tables"];
            assert_eq!(said(&traces, false), &want[..usize::from(is_gvisor)], "{version}");
        }
    }

    #[test]
    fn a_pod_with_users_of_its_own_is_known_by_its_owner() {
        for (owns_network, count) in [(Some(false), 1), (Some(true), 0), (None, 0)] {
            let traces = Traces { owns_network, ..Traces::default() };
            let signs = said(&traces, false);
            assert_eq!(signs.len(), count, "{signs:?}");
            assert!(signs.iter().all(|sign| sign.contains("hostUsers: false")), "{signs:?}");
        }
    }

    #[test]
    fn kube_proxys_mode_is_known_by_what_it_makes() {
        let nat = ["KUBE-SERVICES", "KUBE-SVC-NPX46M4PTMTKRN6Y"];
        for (tables, devices, want) in [
            (
                vec![holding("ip kube-proxy", &["services"])],
                vec![],
                "kube-proxy is in nftables mode (table ip kube-proxy)",
            ),
            (
                vec![holding("ip nat", &["KUBE-SERVICES"])],
                vec![device("kube-ipvs0", "dummy")],
                "kube-proxy is in IPVS mode (device kube-ipvs0)",
            ),
            (
                vec![holding("ip nat", &nat)],
                vec![],
                "kube-proxy is in iptables mode (chain KUBE-SVC-NPX46M4PTMTKRN6Y in ip nat)",
            ),
            (
                vec![holding("legacy ip nat", &nat)],
                vec![],
                "kube-proxy is in iptables mode (chain KUBE-SVC-NPX46M4PTMTKRN6Y in legacy ip nat)",
            ),
        ] {
            assert_eq!(signs_on_node(&ruleset(tables), &devices, &Traces::default(), false), [want]);
        }
        assert_eq!(
            signs_on_node(&ruleset(vec![holding("ip nat", &["KUBE-SERVICES"])]), &[], &Traces::default(), false),
            [""; 0]
        );
    }

    #[test]
    fn what_cilium_set_aside_is_named() {
        let traces = Traces {
            networks: ["05-cilium.conflist", "10-linkerd.conflist.cilium_bak"].map(str::to_owned).into(),
            ..Traces::default()
        };
        let signs = said(&traces, false);
        assert!(signs.len() == 1 && signs[0].contains("10-linkerd.conflist.cilium_bak"), "{signs:?}");
    }

    /// Lines of a container's /proc/self/status, and labels as Fedora's and Debian's kernels show them.
    #[test]
    fn what_may_refuse_is_named_only_after_a_refusal_that_capabilities_do_not_explain() {
        let status = |capabilities: &str, seccomp: u8| {
            format!("Name:\tproxy-init\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t{seccomp}\n")
        };
        const NET_ADMIN: &str = "0000000000003000";
        const NONE: &str = "00000000a80425fb";
        let selinux = "system_u:system_r:container_t:s0:c12,c345\0";
        for (capabilities, seccomp, confinement, is_refused, want) in [
            (
                NET_ADMIN,
                2,
                selinux,
                true,
                &["a seccomp filter", "SELinux runs the process as system_u:system_r:container_t:s0:c12,c345:"][..],
            ),
            (
                NET_ADMIN,
                0,
                "docker-default (enforce)\n",
                true,
                &["AppArmor confines the process by the profile docker-default (enforce):"],
            ),
            (NET_ADMIN, 0, "unconfined\n", true, &[]),
            (NET_ADMIN, 2, selinux, false, &[]),
            (NONE, 2, selinux, true, &[]),
            (NET_ADMIN, 0, "", true, &[]),
        ] {
            let traces = Traces {
                status: status(capabilities, seccomp),
                confinement: confinement.to_owned(),
                ..Traces::default()
            };
            let signs = said(&traces, is_refused);
            assert_eq!(signs.len(), want.len(), "{signs:?}");
            assert!(signs.iter().zip(want).all(|(sign, want)| sign.starts_with(want)), "{signs:?}");
        }
        // Nothing can be read.
        assert_eq!(said(&Traces::default(), true), [""; 0]);
    }
}
