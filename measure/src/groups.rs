//! The groups of contenders that are compared with one another.

use std::fmt::Write as _;
use std::sync::Arc;

use lab::network::Namespace;
use nix::libc;

use crate::cgroup::Controller;
use crate::contenders::{Rules, linkerd_init, proxy_init, restore};
use crate::group::{Condition, Contender, Group};
use crate::tools::{LIBC, Step, Tools};
use lab::shell::Result;

const MODES: [&str; 2] = ["nft", "legacy"];

/// The group that the chart shows.
pub(crate) const INSTALL: &str = "whole process";

/// The number of other programs' rules in the crowded namespace.
const CROWD: usize = 10_000;

/// All of them.
pub(crate) fn all(rules: &Rules, tools: &Tools) -> Result<Vec<Group>> {
    let group =
        |title, rounds, full_rounds, condition, contenders| Group { title, rounds, full_rounds, condition, contenders };
    let in_both_modes = |rules: &Rules| -> Vec<Contender> {
        let pairs = MODES.map(|mode| [proxy_init(rules, tools, mode), linkerd_init(rules, tools, mode)]);
        pairs.into_iter().flatten().collect()
    };
    // Linkerd's charts give the init container the proxy's limits.
    let limited = Condition::Limited(Controller::find().map_err(|error| error.to_string()));
    Ok(vec![
        group(INSTALL, 30, 300, Condition::Alone, install(rules, tools)),
        group("both families", 10, 100, Condition::Alone, in_both_modes(&Rules::chart(true))),
        group("CPU limit of 100m", 5, 30, limited, in_both_modes(rules)),
        group("each of 100 pods, 16 at once", 1, 7, Condition::Storm(16), in_both_modes(rules)),
        group("1,000 single ignored ports", 15, 75, Condition::Alone, by_ports(&rules.with_ports(1_000), tools)),
        group("10,000 single ignored ports", 8, 50, Condition::Alone, by_ports(&rules.with_ports(10_000), tools)),
        group("beside 10,000 rules", 5, 30, Condition::Alone, read_beside(rules, tools)?),
    ])
}

/// Floors are lower bounds for any program.
fn install(rules: &Rules, tools: &Tools) -> Vec<Contender> {
    let floor = |mode: &str| {
        let name = format!("floor: static C, replays {mode} mode's batch, {LIBC}");
        Contender::new(name, rules.replay(tools, mode)).check(rules.verify(tools, mode))
    };
    let script = Contender::new("nft -f native mode's script", rules.nft(tools));
    vec![
        proxy_init(rules, tools, "nft"),
        Contender::new(format!("floor: an empty static C program, {LIBC}"), tools.empty().map(|step| vec![step])),
        floor("nft"),
        floor("native"),
        proxy_init(rules, tools, "native"),
        proxy_init(rules, tools, "auto"),
        script.check(rules.verify(tools, "native")),
        restore(rules, tools, "nft"),
        linkerd_init(rules, tools, "nft"),
        proxy_init(rules, tools, "legacy"),
        restore(rules, tools, "legacy"),
        linkerd_init(rules, tools, "legacy"),
    ]
}

fn by_ports(rules: &Rules, tools: &Tools) -> Vec<Contender> {
    vec![proxy_init(rules, tools, "nft"), proxy_init(rules, tools, "native"), restore(rules, tools, "nft")]
}

/// The subcommands that only read, beside another program's table with many rules that inbound connections pass first.
/// The floor is the kernel's time for listing them.
fn read_beside(rules: &Rules, tools: &Tools) -> Result<Vec<Contender>> {
    let mut contenders = vec![proxy_init(rules, tools, "nft")];
    let namespace = Arc::new(Namespace::untouched()?);
    let crowd = || -> Result<()> {
        let file = tools.file("crowd", crowd_script())?.display().to_string();
        let mut steps = vec![Step::new(tools.host("nft")?, ["-f", &file])];
        steps.extend(rules.install(tools, "nft")?);
        // Nothing comes in to an address that the namespace doesn't have.
        steps.push(Step::new(tools.host("ip")?, ["address", "add", "10.0.0.1/32", "dev", "lo"]));
        namespace.run(|| tools.launch(None, 0, &steps)).map(drop)
    };
    let crowded = crowd().map_err(|error| error.to_string());
    for (name, step) in [
        ("floor: static C, reads the list of rules", tools.replay("list", &list_of_rules())),
        ("nft list ruleset", tools.host("nft").map(|nft| Step::new(nft, ["list", "ruleset"]))),
        ("proxy-init show", Ok(tools.proxy_init(["show"]))),
        ("proxy-init verify", Ok(rules.verify(tools, "nft"))),
        ("proxy-init explain", Ok(tools.proxy_init(["explain", "inbound", "--to", "10.0.0.1:80"]))),
    ] {
        let steps = crowded.clone().map_err(Into::into).and_then(|()| Ok(vec![step?]));
        contenders.push(Contender::new(name, steps).shared(&namespace));
    }
    Ok(contenders)
}

/// The request for all rules of all families: a `struct nlmsghdr` and a `struct nfgenmsg`.
fn list_of_rules() -> Vec<u8> {
    let (kind, flags) = (
        (libc::NFNL_SUBSYS_NFTABLES << 8 | libc::NFT_MSG_GETRULE) as u16,
        (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16,
    );
    let mut request = 20u32.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Sequence, port, family, version and resource.
    request.extend([0; 4 + 4 + 4]);
    request
}

/// Another program's filter table, that all inbound connections pass and that lets all of them through.
fn crowd_script() -> String {
    let mut script = "table inet foreign {\nchain early {\ntype filter hook prerouting priority -300;\n".to_owned();
    for rule in 1..=CROWD {
        let _ = writeln!(script, "ip saddr 192.0.2.{} tcp dport {rule} counter accept", rule % 250 + 1);
    }
    script + "}\n}\n"
}
