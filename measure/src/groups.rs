//! The tables: what each compares.

use std::fmt::Write as _;
use std::sync::Arc;

use lab::network::Namespace;
use nix::libc;

use crate::cgroup::Controller;
use crate::contenders::{Rules, linkerd_init, linkerds, ours, proxy_init, restore, restores};
use crate::group::{Contender, Group, Rounds};
use crate::result::Result;
use crate::tools::{LIBC, Step, Tools};

const MODES: [&str; 2] = ["nft", "legacy"];

/// The group that the first chart shows.
pub(crate) const INSTALL: &str = "Whole process, from spawn to exit";

/// The only group whose rules are always for IPv6 too.
pub(crate) const BOTH_FAMILIES: &str = "Whole process, both families";

/// How many rules other programs have in the crowded namespace.
const CROWD: usize = 10_000;

/// All but the storm and the lists of ports.
///
/// # Errors
/// A file can't be written, or the kernel makes no namespace.
pub(crate) fn all(rules: &Rules, tools: &Tools) -> Result<Vec<Group>> {
    Ok(vec![install(rules, tools), both_families(tools), limited(rules, tools), read_beside(rules, tools)?])
}

fn install(rules: &Rules, tools: &Tools) -> Group {
    let rounds = Rounds { quick: 30, full: 300 };
    let says = "How long a pod waits for its rules. Floors are lower bounds for any program.";
    let mut group = Group::new(INSTALL, says, rounds);
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
    let rounds = Rounds { quick: 15, full: 100 };
    let says = "The same with `disableIPv6: false` in Linkerd's charts: rules for IPv4 and IPv6.";
    let mut group = Group::new(BOTH_FAMILIES, says, rounds);
    let rules = Rules::chart(true);
    let mut add = |name: &str, contender: Result<Contender>| {
        group.add(name, contender.map(|contender| contender.against(ours("nft"))));
    };
    for mode in MODES {
        add(&ours(mode), proxy_init(&rules, tools, mode));
        add(&restores(&rules, mode), restore(&rules, tools, mode));
        add(&linkerds(&rules, mode), linkerd_init(&rules, tools, mode));
    }
    group
}

fn limited(rules: &Rules, tools: &Tools) -> Group {
    let rounds = Rounds { quick: 5, full: 30 };
    let says = "Linkerd's charts give the init container the proxy's limits. 100m is 10 ms of processor time in each 100 ms; \
                whoever needs more waits for the next 100 ms.";
    let mut group = Group::new("Under a CPU limit of 100m", says, rounds);
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
    group.limit(controller)
}

/// The subcommands that only read, in a namespace with the rules of nft mode and many others.
fn read_beside(rules: &Rules, tools: &Tools) -> Result<Group> {
    let rounds = Rounds { quick: 5, full: 30 };
    let says = format!(
        "Looking at the rules of nft mode beside another program's table with {CROWD} rules that inbound connections pass \
         first, compared with installing in a fresh namespace. The floor is the kernel's time for listing them."
    );
    let mut group = Group::new("Show, verify, explain beside 10,000 rules", says, rounds);
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

/// The meaning of the tables by ports.
pub(crate) const BY_PORTS_SAYS: &str = "Whole processes again, with that many more inbound ports to ignore, no two of \
                                        which make a range: medians.";

/// One group for each number of ports; the names end with it.
pub(crate) fn by_ports(rules: &Rules, tools: &Tools) -> Vec<Group> {
    let rounds = [
        (10, "Whole process, 10 ignored ports", 20, 100),
        (100, "Whole process, 100 ignored ports", 20, 100),
        (1_000, "Whole process, 1,000 ignored ports", 15, 75),
        (10_000, "Whole process, 10,000 ignored ports", 8, 50),
    ];
    let groups = rounds.into_iter().map(|(ports, title, quick, full)| {
        let rules = rules.with_ports(ports);
        let mut group = Group::new(title, BY_PORTS_SAYS, Rounds { quick, full });
        for mode in ["nft", "native"] {
            let name = format!("{}/{ports}", ours(mode));
            let install = rules.install(tools, mode);
            let contender = install.map(|step| Contender::new(&name, [step]).check(rules.verify(tools, mode)));
            group.add(&name, contender);
        }
        let name = format!("{}/{ports}", restores(&rules, "nft"));
        let restore = rules.restore(tools, "nft");
        let contender = restore.map(|steps| Contender::new(&name, steps).check(rules.verify(tools, "nft")));
        group.add(&name, contender);
        group
    });
    groups.collect()
}
