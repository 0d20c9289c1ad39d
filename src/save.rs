//! A [`Ruleset`] as iptables-save text: what `iptables-restore` reads, and what people know.

use std::fmt::{self, Write as _};

use ipnet::IpNet;

use crate::config::Family;
use crate::ruleset::{Match, Rule, Ruleset, Target};

/// A rule without its chain, as iptables-save writes it after `-A CHAIN`; with `{:#}` as linkerd-init logs it, its
/// comment unquoted.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in &self.matches {
            write!(f, "{condition} ")?;
        }
        // A subnet as the user wrote it is the only foreign text in a comment, and it holds no quote, space or
        // backslash: it was read as an address.
        let quote = if f.alternate() { "" } else { "\"" };
        write!(
            f,
            "-m comment --comment {quote}{}{quote} -j {}",
            self.comment, self.target
        )
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Tcp => f.write_str("-p tcp"),
            Match::DestinationPort(port) => write!(f, "-m tcp --dport {port}"),
            Match::DestinationPorts(ports) => write!(f, "-m multiport --dports {ports}"),
            Match::Source(net) => write!(f, "-s {net}"),
            Match::Destination(net) => write!(f, "-d {net}"),
            Match::OutLoopback => f.write_str("-o lo"),
            Match::UidOwner(id) => write!(f, "-m owner --uid-owner {id}"),
            Match::GidOwner(id) => write!(f, "-m owner --gid-owner {id}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Return => f.write_str("RETURN"),
            Target::Redirect(port) => write!(f, "REDIRECT --to-ports {port}"),
            Target::Jump(chain) => chain.fmt(f),
        }
    }
}

/// The ruleset as input for `iptables-restore` or `ip6tables-restore`: one nat block that makes our chains (or
/// flushes them, with `--noflush`) and adds the rules.
///
/// A rule on a subnet says which family it is for (`-4`, `-6`; see iptables(8)), so that the other family's
/// iptables-restore passes over it instead of failing when both blocks are piped into one.
pub fn restore_input(ruleset: &Ruleset) -> String {
    let mut text = String::from("*nat\n");
    for chain in ruleset.chains.iter().filter(|chain| chain.name.is_ours()) {
        // Writing to a String can't fail.
        let _ = writeln!(text, ":{} - [0:0]", chain.name);
    }
    for (chain, rule) in ruleset.rules() {
        let on_subnet = rule.matches.iter().find_map(|condition| match condition {
            Match::Source(IpNet::V4(_)) | Match::Destination(IpNet::V4(_)) => Some("-4 "),
            Match::Source(IpNet::V6(_)) | Match::Destination(IpNet::V6(_)) => Some("-6 "),
            _ => None,
        });
        let _ = writeln!(text, "{}-A {chain} {rule}", on_subnet.unwrap_or(""));
    }
    text.push_str("COMMIT\n");
    text
}

/// What `--simulate` prints: each family's [`restore_input`] behind a line that names its command.
pub fn simulation(rulesets: &[Ruleset]) -> String {
    rulesets
        .iter()
        .map(|ruleset| {
            let command = match ruleset.family {
                Family::V4 => "iptables-restore",
                Family::V6 => "ip6tables-restore",
            };
            format!("# {}: {command} --noflush\n{}", ruleset.family, restore_input(ruleset))
        })
        .collect()
}
