//! Reads the network namespace, and the signs of other programs in the kernel and on the node.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use netfilter::netlink::listeners::listeners;
use netfilter::netlink::route::RouteKind;
use netfilter::netlink::user_namespace::owns_network;
use netfilter::netlink::{ReadError, Socket, ip_set, route, sockopt};
use netfilter::nf_tables;
use nix::errno::Errno;
use ruleset::{Address, Device, Network, Numbered, Ruleset, Settings};
use ruleset::{Context, Facts, Family, Field, Intervals, IpSet, Name, address, ip};

use crate::config::{Config, OwnerId};
use crate::diagnose::detect::user_namespaces::UserNamespaces;
use crate::diagnose::other_programs::Traces;
use crate::diagnose::proxy::{self, PodWarning};
use crate::error::Error;
use crate::kernel::proc_of_thread;
use crate::modes::{self, legacy};

/// Reads everything in the thread's network namespace that decides where a TCP connection goes. Reading changes nothing
/// and starts no process; [`Ruleset::not_known`] lists the parts that could not be read.
///
/// # Errors
/// The kernel's answer makes no sense, or the rules change faster than they can be read.
pub(super) fn ruleset() -> Result<Ruleset, Error> {
    let numbered = Numbered {
        devices: LazyCell::new(|| route::devices().unwrap_or_default()),
        ip_sets: LazyCell::new(sockopt::ip_sets),
    };
    let mut ruleset = modes::nf_tables::read_by(|socket| nf_tables::read::snapshot(socket, &numbered))?.ruleset;
    let legacy = legacy::read::read(&numbered)?;
    ruleset.tables.extend(legacy.tables);
    ruleset.not_known.extend(legacy.not_known);
    Ok(ruleset)
}

/// The content of a network namespace: the rules that decide about TCP connections, devices, addresses and listeners.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) ruleset: Ruleset,
    pub(super) network: Network,
}

impl Snapshot {
    /// Reads the thread's network namespace.
    ///
    /// # Errors
    /// As of [`ruleset`].
    pub(super) fn read() -> Result<Self, Error> {
        let ruleset = ruleset()?;
        let network = network();
        let facts = facts(&ruleset, &network, None);
        Ok(Self { ruleset, network: Network { facts, ..network } })
    }
}

/// The devices of the thread's network namespace, their addresses and listeners, as far as the kernel tells.
pub(super) fn network() -> Network {
    let (devices, addresses, listeners) = (route::devices(), route::addresses(), listeners());
    let links_not_known = devices.as_ref().err().or(addresses.as_ref().err());
    Network {
        links_not_known: links_not_known.map(ToString::to_string),
        listeners_not_known: listeners.as_ref().err().map(ToString::to_string),
        devices: devices.unwrap_or_default(),
        addresses: addresses.unwrap_or_default(),
        listeners: listeners.unwrap_or_default(),
        settings: settings(),
        facts: Facts::default(),
    }
}

/// The program that may have tables for ARP or for a bridge's packets, which are not read; none if nothing shows any.
pub(super) fn unread_tables(network: &Network, asks_by_arp: bool) -> Option<&'static str> {
    // The file lists this namespace's tables, and only root may read it (`xt_proto_init` in net/netfilter/x_tables.c).
    let arp = fs::read(format!("{}/net/arp_tables_names", proc_of_thread())).unwrap_or_default();
    if asks_by_arp && !arp.is_empty() {
        return Some("arptables-legacy");
    }
    let has_bridge =
        network.devices.iter().any(|device| device.kind == b"bridge" && network.lower_devices(device).next().is_some());
    // Modules are the whole machine's.
    let is_loaded = |table: &&str| Path::new("/sys/module").join(format!("ebtable_{table}/initstate")).exists();
    let is_used = has_bridge && ["filter", "nat", "broute"].iter().any(is_loaded);
    is_used.then_some("ebtables-legacy")
}

/// The kernel's settings; one that can't be read has the usual value.
fn settings() -> Settings {
    let is = |name: &str, number: i64| Some(setting(name)? == number);
    let usual = Settings::default();
    let bridge_calls = ["iptables", "ip6tables"].map(|name| setting(&format!("bridge/bridge-nf-call-{name}")));
    let finds_none = |name| is(name, 0).unwrap_or_default();
    Settings {
        bridges_call_ip: bridge_calls.into_iter().flatten().any(|calls| calls != 0),
        keeps_mark: is("ipv4/tcp_fwmark_accept", 1).unwrap_or(usual.keeps_mark),
        finds_sockets: !(finds_none("ipv4/ip_early_demux") || finds_none("ipv4/tcp_early_demux")),
        always_sends_cookies: is("ipv4/tcp_syncookies", 2).unwrap_or(usual.always_sends_cookies),
        tracks_from_any: is("netfilter/nf_conntrack_tcp_loose", 0).map_or(usual.tracks_from_any, |is_off| !is_off),
    }
}

/// A setting of the kernel's about the thread's network namespace, by its file in /proc/sys/net; none if it can't be read.
pub(super) fn setting(name: &str) -> Option<i64> {
    let read = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    read.trim().parse().ok()
}

/// The devices on which hosts have to find each other before they connect over this family: they have an address beyond
/// the link, and no permanent neighbour.
pub(super) fn devices_that_ask(network: &Network, family: Family) -> Result<Vec<&Device>, String> {
    if let Some(reason) = &network.links_not_known {
        return Err(reason.clone());
    }
    let known = route::neighbours(family).map_err(|error| error.to_string())?;
    let asking = network.devices.iter().filter(|device| {
        let mut own = network.wide_addresses(family);
        let is_pinned = known.iter().any(|neighbour| neighbour.device == device.index && neighbour.is_pinned);
        device.has_neighbours && device.is_up && !is_pinned && own.any(|known| known.device == device.index)
    });
    Ok(asking.collect())
}

/// Probable defects of the connections, beside the rules of this config: of the proxy, and of links and routes.
pub(super) fn warnings(config: &Config, network: &Network) -> Vec<PodWarning> {
    let mut warnings = proxy::warnings(config, network);
    for &family in config.families() {
        match no_way(network, family, config.proxy_uid.map(OwnerId::get)) {
            Ok(no_way) => warnings.extend(no_way),
            Err(error) => {
                warnings.push(PodWarning::RoutesNotKnown { family, reason: format!("rtnetlink: {error}") });
            }
        }
    }
    warnings.extend(network.devices.iter().filter_map(|device| forwarding_bridge(config, network, device)));
    warnings
}

/// The warning about a bridge from which the namespace forwards, unless the rules exempt it.
fn forwarding_bridge(config: &Config, network: &Network, device: &Device) -> Option<PodWarning> {
    let name = &device.name;
    let forwards = |family: &str| setting(&format!("{family}/conf/{name}/forwarding")) == Some(1);
    let mut ignored = config.ignored_inbound_interfaces.iter();
    if device.kind != b"bridge" || !(forwards("ipv4") || forwards("ipv6")) || ignored.any(|one| *name == *one.as_str())
    {
        return None;
    }
    let mut own = network.wide_addresses(Family::V4).filter(|known| known.device == device.index);
    let own = own.next().and_then(|known| IpNet::new(known.address, known.prefix).ok());
    let is_exempt = |own: &IpNet| config.ignored_inbound_subnets.iter().any(|subnet| subnet.net().contains(own));
    if own.as_ref().is_some_and(is_exempt) {
        return None;
    }
    Some(PodWarning::Bridge { device: name.clone(), subnet: own.map(|own| own.trunc().to_string()) })
}

/// The warning that no packet can arrive or leave over this family, or none that is redirected on its way out, whatever
/// the rules say; none if some may, or if there is no address.
fn no_way(network: &Network, family: Family, uid: Option<u32>) -> Result<Option<PodWarning>, ReadError> {
    let warning = |reason: String| Ok(Some(PodWarning::NoWay { reason, is_of_redirected: false }));
    let own: Vec<&Address> = network.wide_addresses(family).collect();
    let is_up = |known: &&Address| network.device(known.device).is_none_or(|device| device.is_up);
    if own.is_empty() {
        return Ok(None);
    }
    if !own.iter().any(is_up) {
        return warning(format!("no interface with an {family} address is up"));
    }
    let route = |from: Option<IpAddr>, to: IpAddr| {
        let to = SocketAddr::new(to, 80);
        route::route(route::Packet { to, from, from_port: None, uid, device: None })
    };
    let lost = |why: String| {
        let reason = format!("{why}: outbound {family} connections that are redirected are lost");
        Ok(Some(PodWarning::NoWay { reason, is_of_redirected: true }))
    };
    if network.is_lo_down() {
        return lost("lo is down".to_owned());
    }
    if !route(None, family.localhost())?.is_ok_and(|route| route.kind == RouteKind::Local) {
        return lost(format!("there is no local route to {}", family.localhost()));
    }
    let mut refused = None;
    for known in own {
        // The other address of the smallest network, and an address for documentation (RFC 5737, RFC 3849).
        let neighbour = ip(family, address(known.address) ^ 1);
        let distant = match family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        };
        match route(Some(known.address), distant)? {
            Ok(_) => return Ok(None),
            // There is no default route, but there is one to the neighbour.
            Err(Errno::ENETUNREACH) if route(Some(known.address), neighbour.unwrap_or(distant))?.is_ok() => {
                return Ok(None);
            }
            Err(errno) => refused = Some(errno),
        }
    }
    match refused {
        Some(errno) => {
            warning(format!("the kernel routes no packet of the proxy's over {family} to other networks ({errno})"))
        }
        None => Ok(None),
    }
}

/// The facts beside packets on which conditions of these rules depend. `back` has the names of the device by which the
/// route back to the other host leaves; without it, that is the only device that is up. What routing can't answer stays
/// unknown.
pub(super) fn facts(ruleset: &Ruleset, network: &Network, back: Option<Intervals>) -> Facts {
    let mut facts = Facts { ip_sets: ip_sets(ruleset), ..Facts::default() };
    let mut contexts = ruleset.contexts();
    if contexts.any(|context| matches!(context, Context::SocketClass { .. })) {
        facts.has_no_classes = has_no_classes(&text("/proc/cgroups"));
    }
    let mut contexts = ruleset.contexts();
    if !contexts.any(|context| matches!(context, Context::AddressType { .. } | Context::ReversePath { .. })) {
        return facts;
    }
    // Every packet arrives on the only device.
    let back = back.or_else(|| network.only_device().map(|_| Field::InInterface.any()));
    let mut local = Vec::new();
    for family in Family::ALL {
        let Ok(entries) = route::local_table(family) else {
            return facts;
        };
        local.extend(entries);
    }
    (facts.back, facts.local) = (back, local);
    // Some IPv6 addresses are added to the table only once it is certain that no other host has them.
    for known in &network.addresses {
        facts.add_own(known.address, known.device);
    }
    facts
}

/// Returns true if no process can be in a cgroup with a class, by the kernel's list of controllers: their names, and the
/// number of the hierarchy that each is mounted in (0: none).
fn has_no_classes(controllers: &str) -> bool {
    let mut lines = controllers.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
    lines.any(|line| line == ["net_cls", "0"])
}

/// The content of ipset's sets that rules ask, as far as it is understood.
fn ip_sets(ruleset: &Ruleset) -> HashMap<Name, IpSet> {
    let asked: BTreeSet<&Name> = ruleset.contexts().filter_map(Context::ip_set).collect();
    let socket = if asked.is_empty() { None } else { Socket::open().ok() };
    let content = |set: &Name| Some((set.clone(), ip_set::content(socket.as_ref()?, set).ok()??));
    asked.into_iter().filter_map(content).collect()
}

pub(super) fn traces() -> Traces {
    let thread = proc_of_thread();
    let names = fs::read_dir("/etc/cni/net.d").into_iter().flatten().flatten();
    Traces {
        version: text("/proc/version"),
        status: text(&format!("{thread}/status")),
        confinement: text(&format!("{thread}/attr/current")),
        owns_network: owns_network(),
        networks: names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect(),
    }
}

fn text(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Finds out if pods with `hostUsers: false` can run here, and how the modes serve them from outside.
pub fn user_namespaces() -> UserNamespaces {
    let thread = proc_of_thread();
    let maximum = fs::read_to_string("/proc/sys/user/max_user_namespaces");
    let is_missing = matches!(&maximum, Err(error) if error.kind() == ErrorKind::NotFound);
    UserNamespaces::of(
        maximum.ok().as_deref(),
        is_missing && fs::exists(format!("{thread}/ns/net")).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::has_no_classes;

    /// As Linux writes /proc/cgroups on a node that has mounted other controllers, and on one that has mounted this one too.
    #[test]
    fn sockets_have_no_classes_where_their_controller_is_not_mounted() {
        let of = |hierarchy| {
            format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t4\t52\t1\nnet_cls\t{hierarchy}\t1\t1\n")
        };
        assert!(has_no_classes(&of(0)));
        assert!(!has_no_classes(&of(7)));
        assert!(!has_no_classes(""), "the file can't be read");
    }
}
