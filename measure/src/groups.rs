//! What is compared with what.

use std::fmt::Write as _;
use std::sync::Arc;

use lab::network::Namespace;
use nix::libc;

use crate::cgroup::Controller;
use crate::contenders::{Rules, linkerd_init, linkerds, ours, proxy_init, restore, restores};
use crate::group::{Condition, Contender, Group, Rounds};
use crate::result::Result;
use crate::tools::{LIBC, Step, Tools};

const MODES: [&str; 2] = ["nft", "legacy"];

/// The group that the chart shows.
pub(crate) const INSTALL: &str = "whole process";

/// How many rules other programs have in the crowded namespace.
const CROWD: usize = 10_000;

/// All of them.
///
/// # Errors
/// A file can't be written, or the kernel makes no namespace.
pub(crate) fn all(rules: &Rules, tools: &Tools) -> Result<Vec<Group>> {
    Ok(vec![
        install(rules, tools),
        both_families(tools),
        limited(rules, tools),
        storm(rules, tools),
        by_ports("1,000 single ignored ports", Rounds { quick: 15, full: 75 }, &rules.with_ports(1_000), tools),
        by_ports("10,000 single ignored ports", Rounds { quick: 8, full: 50 }, &rules.with_ports(10_000), tools),
        read_beside(rules, tools)?,
    ])
}

/// Floors are lower bounds for any program.
fn install(rules: &Rules, tools: &Tools) -> Group {
    let mut group = Group::new(INSTALL, Rounds { quick: 30, full: 300 });
    let mut add = |name: &str, contender: Result<Contender>| {
        group.add(name, contender.map(|contender| contender.against(ours("nft"))));
    };
    let name = format!("floor: an empty static C program, {LIBC}");
    add(&name, tools.empty().map(|step| Contender::new(&name, [step])));
    for mode in ["nft", "native"] {
        let name = format!("floor: static C, replays {mode} mode's batch, {LIBC}");
        let replay = rules.replay(tools, mode);
        let contender = replay.map(|step| Contender::new(&name, [step]).check(rules.verify(tools, mode)));
        add(&name, contender);
    }
    for mode in ["nft", "native", "auto"] {
        add(&ours(mode), proxy_init(rules, tools, mode));
    }
    let script = "nft -f native mode's script";
    let nft = rules.nft(tools);
    add(script, nft.map(|step| Contender::new(script, [step]).check(rules.verify(tools, "native"))));
    add(&restores(rules, "nft"), restore(rules, tools, "nft"));
    add(&linkerds(rules, "nft"), linkerd_init(rules, tools, "nft"));
    add(&ours("legacy"), proxy_init(rules, tools, "legacy"));
    add(&restores(rules, "legacy"), restore(rules, tools, "legacy"));
    add(&linkerds(rules, "legacy"), linkerd_init(rules, tools, "legacy"));
    group
}

fn both_families(tools: &Tools) -> Group {
    let rules = Rules::chart(true);
    let mut group = Group::new("both families", Rounds { quick: 10, full: 100 });
    for mode in MODES {
        group.add(&ours(mode), proxy_init(&rules, tools, mode));
        group.add(&linkerds(&rules, mode), linkerd_init(&rules, tools, mode));
    }
    group
}

/// Linkerd's charts give the init container the proxy's limits.
fn limited(rules: &Rules, tools: &Tools) -> Group {
    let mut group = Group::new("CPU limit of 100m", Rounds { quick: 5, full: 30 });
    let controller = match Controller::find() {
        Ok(controller) => controller,
        Err(reason) => {
            group.add("all of it", Err(reason));
            return group;
        }
    };
    for mode in MODES {
        group.add(&ours(mode), proxy_init(rules, tools, mode));
        group.add(&linkerds(rules, mode), linkerd_init(rules, tools, mode));
    }
    group.under(Condition::Limited(controller))
}

fn storm(rules: &Rules, tools: &Tools) -> Group {
    let mut group = Group::new("each of 100 pods, 16 at once", Rounds { quick: 1, full: 7 });
    for mode in MODES {
        group.add(&ours(mode), proxy_init(rules, tools, mode));
        group.add(&linkerds(rules, mode), linkerd_init(rules, tools, mode));
    }
    group.under(Condition::Storm(16))
}

fn by_ports(title: &'static str, rounds: Rounds, rules: &Rules, tools: &Tools) -> Group {
    let mut group = Group::new(title, rounds);
    for mode in ["nft", "native"] {
        group.add(&ours(mode), proxy_init(rules, tools, mode));
    }
    group.add(&restores(rules, "nft"), restore(rules, tools, "nft"));
    group
}

/// The subcommands that only read, beside another program's table with many rules that inbound connections pass first.
/// The floor is the kernel's time for listing them.
fn read_beside(rules: &Rules, tools: &Tools) -> Result<Group> {
    let mut group = Group::new("beside 10,000 rules", Rounds { quick: 5, full: 30 });
    group.add(&ours("nft"), proxy_init(rules, tools, "nft"));
    let namespace = Arc::new(Namespace::untouched()?);
    let crowd = tools.host("nft").and_then(|nft| {
        let file = tools.file("crowd", crowd_script())?;
        let steps = [nft_file(&nft, &file), rules.install(tools, "nft")?];
        namespace.run(|| tools.launch(None, 0, &steps))
    });
    if let Err(reason) = crowd {
        group.add("all of it", Err(reason));
        return Ok(group);
    }
    let floor = "floor: static C, reads the list of rules";
    let list = "nft list ruleset";
    let explain = || {
        // Nothing comes in to an address that the namespace doesn't have.
        let words = ["address", "add", "10.0.0.1/32", "dev", "lo"];
        let address = Step::new(tools.host("ip")?, words);
        namespace.run(|| tools.launch(None, 0, &[address]))?;
        Ok(tools.proxy_init(["explain", "inbound", "--to", "10.0.0.1:80"]))
    };
    for (name, step) in [
        (floor, tools.replay("list", &list_of_rules())),
        (list, tools.host("nft").map(|nft| Step::new(nft, ["list", "ruleset"]))),
        ("proxy-init show", Ok(tools.proxy_init(["show"]))),
        ("proxy-init verify", Ok(rules.verify(tools, "nft"))),
        ("proxy-init explain", explain()),
    ] {
        let contender = step.map(|step| Contender::new(name, [step]).shared(&namespace).against(ours("nft")));
        group.add(name, contender);
    }
    Ok(group)
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

fn nft_file(nft: &std::path::Path, file: &std::path::Path) -> Step {
    Step::new(nft, ["-f".to_owned(), file.display().to_string()])
}
