//! `cargo xtask demo`: what the rules do, seen from outside.
//!
//! The namespaces have no names: they are gone when the demo ends, also when it is interrupted.

use std::net::SocketAddr;
use std::process::Command;

use lab::linkerd;
use lab::network::{DISTANT, Lab, Namespace, Owner, POD, ROOT, Reached, Server, connect};
use lab::recording;
use lab::shell::{Result, need_root, target};

use crate::build;

const INBOUND: u16 = 4143;
const OUTBOUND: u16 = 4140;
/// Not with the others: the demo shows these too.
const EXTRA: [&str; 2] = ["--inbound-subnets-to-ignore=198.51.100.0/24", "--outbound-subnets-to-ignore=203.0.113.0/24"];

pub(crate) fn run() -> Result<()> {
    need_root("cargo xtask demo", "to make network namespaces")?;
    println!("Building proxy-init ...");
    let binary = build::to_dist("proxy-init")?;
    let lab = Lab::new();
    for (interface, subnet) in [("198.51.100.1", "198.51.100.0/24"), ("203.0.113.1", "203.0.113.0/24")] {
        lab.outside.sh(&format!("ip address add {interface}/32 dev lo"));
        lab.pod.sh(&format!("ip route add {subnet} via 10.77.0.1"));
    }

    println!("\nA pod and the outside, two network namespaces joined by veth. In the pod:\n");
    println!("$ proxy-init --iptables-mode nft {} {}", linkerd::CHART_ARGUMENTS.join(" "), EXTRA.join(" "));
    let log = lab
        .pod
        .output(Command::new(&binary).args(["--iptables-mode", "nft"]).args(linkerd::CHART_ARGUMENTS).args(EXTRA));
    if !log.status.success() {
        return Err(format!("proxy-init failed: {}", String::from_utf8_lossy(&log.stdout)).into());
    }
    let log = String::from_utf8_lossy(&log.stdout);
    println!("{}\n", log.lines().last().unwrap_or_default());

    connections(&lab);
    for (title, line) in [
        ("What redirects here, and how many connections", "show"),
        ("Would this connection go to the proxy, and which rule says so", "explain outbound --to 192.0.2.1:4567"),
    ] {
        println!("\n{title}:\n$ proxy-init {line}");
        let output = lab.pod.output(Command::new(&binary).args(line.split(' ')));
        if !output.status.success() {
            return Err(format!("proxy-init {line} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            println!("  {line}");
        }
    }
    for (title, command) in [
        ("The rules as iptables-nft sees them (ip6tables-nft: the same)", "iptables-nft-save -t nat"),
        ("As nft sees them", "nft list table ip nat"),
    ] {
        println!("\n{title}:\n$ {command}");
        for line in lab.pod.sh(command).lines().filter(|line| !line.starts_with('#')) {
            println!("  {line}");
        }
    }
    let file = target("recording.svg");
    std::fs::write(&file, recording::record(&binary))?;
    println!("\nThe recording that the README shows, made now: {}", file.display());
    Ok(())
}

/// Makes connections and says what became of each.
fn connections(lab: &Lab) {
    let app = Owner { uid: 1000, gid: 1000 };
    let proxy = Owner { uid: 2102, gid: 2102 };
    let _servers =
        [Server::start(&lab.pod, &[INBOUND, OUTBOUND, 8080, 4191]), Server::start(&lab.outside, &[80, 4567])];
    println!("Connections, each really made:");
    let show = |who: &str, from: &Namespace, owner: Owner, to: SocketAddr, reason: &str| {
        let outcome = match connect(from, owner, to) {
            Reached::Server { port: INBOUND, original } => {
                format!("→ proxy, port {INBOUND} inbound  (original destination {original})")
            }
            Reached::Server { port: OUTBOUND, original } => {
                format!("→ proxy, port {OUTBOUND} outbound (original destination {original})")
            }
            Reached::Server { port, .. } => format!("  direct to port {port}: {reason}"),
            Reached::Refused => format!("  refused: {reason}"),
        };
        println!("  {who:<24} {:<24} {outcome}", to.to_string());
    };
    for (pod, distant) in POD.into_iter().zip(DISTANT) {
        let at = SocketAddr::new;
        show("outside", &lab.outside, ROOT, at(pod, 8080), "");
        show("outside", &lab.outside, ROOT, at(pod, 9999), "nobody listens");
        show("outside", &lab.outside, ROOT, at(pod, 4191), "an ignored inbound port");
        show("pod, app (uid 1000)", &lab.pod, app, at(distant, 80), "");
        show("pod, root", &lab.pod, ROOT, at(distant, 80), "");
        show("pod, proxy (uid 2102)", &lab.pod, proxy, at(distant, 80), "the proxy's own user");
        show("pod, app (uid 1000)", &lab.pod, app, at(distant, 4567), "an ignored outbound port");
        let localhost = if pod.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        show("pod, app (uid 1000)", &lab.pod, app, at(localhost, 8080), "loopback");
        show("pod, app (uid 1000)", &lab.pod, app, at(pod, 8080), "the pod itself, by loopback");
    }
    let documentation = |last: &str| SocketAddr::new(last.parse().unwrap_or(DISTANT[0]), 80);
    show("pod, app (uid 1000)", &lab.pod, app, documentation("203.0.113.1"), "an ignored outbound subnet");
}
