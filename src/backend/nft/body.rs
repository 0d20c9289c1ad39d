//! Rules as iptables-nft writes them: nf_tables expressions, some of which are xtables' matches and targets.

use std::borrow::Cow;
use std::fmt;

use ipnet::IpNet;
use nftnl::ProtoFamily;
use nix::errno::Errno;

use crate::netlink::message::{Header, Writer};
use crate::netlink::{ReadError, Socket};
use crate::nf_tables::expression::{Expression, Extension as Written, REGISTER, Verdict};
use crate::nf_tables::header::{self, place};
use crate::nf_tables::step::Body;
use crate::nf_tables::uapi::*;
use crate::rules::family::Family;
use crate::rules::rule::Field;
use crate::rules::rule::LOOPBACK;
use crate::rules::table::TableFamily;
use crate::wanted::config::OwnerId;
use crate::wanted::ruleset::{Match, Rule, Target};
use crate::xt::{self, Extension};

/// A rule of a family's nat table.
pub(super) struct XtRule<'a> {
    pub(super) family: Family,
    pub(super) rule: &'a Rule,
}

/// In the form in which linkerd-init logs it.
impl fmt::Display for XtRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.rule)
    }
}

impl Body for XtRule<'_> {
    fn write(&self, list: &mut Writer) {
        for condition in &self.rule.matches {
            write_match(list, condition);
        }
        Expression::Counter(Default::default()).write(list);
        match self.rule.target {
            Target::Return => Expression::Verdict(Verdict::Return).write(list),
            Target::Jump(chain) => Expression::Verdict(Verdict::Jump(chain.as_str().as_bytes())).write(list),
            Target::Redirect(port) => {
                let info = xt::redirect(self.family, port);
                Expression::Target(written(Extension::Redirect, &info)).write(list);
            }
        }
    }

    fn comment(&self) -> Cow<'_, [u8]> {
        self.rule.purpose.to_string().into_bytes().into()
    }

    fn for_tcp(&self) -> bool {
        self.rule.matches.contains(&Match::Tcp)
    }

    fn owner(&self) -> Option<(OwnerId, &'static str)> {
        self.rule.owner()
    }

    fn missing(&self, socket: &Socket) -> Option<(String, &'static str, &'static str)> {
        Extension::of(self.rule).find_map(|extension| missing(socket, self.family, extension))
    }
}

fn written(extension: Extension, info: &[u8]) -> Written<'_> {
    Written {
        name: extension.name().as_bytes(),
        revision: extension.revision().into(),
        info,
    }
}

fn write_match(list: &mut Writer, condition: &Match) {
    let mut xt_match = |extension, info: &[u8]| Expression::Match(written(extension, info)).write(list);
    match condition {
        Match::Tcp => compare(list, libc::NFT_META_L4PROTO, &[libc::IPPROTO_TCP as u8]),
        // iptables-nft since 1.8.9 writes a payload load and a comparison instead, but 1.8.7 reads that back without
        // the port.
        Match::DestinationPort(port) => xt_match(Extension::Tcp, &xt::tcp(*port)),
        Match::DestinationPorts(ports) => xt_match(Extension::Multiport, &xt::multiport(ports)),
        Match::Source(net) => write_address(list, *net, Field::Source),
        Match::Destination(net) => write_address(list, *net, Field::Destination),
        // Comparing the NUL too makes it the whole name and not a prefix.
        Match::OutLoopback => compare(list, libc::NFT_META_OIFNAME, &[LOOPBACK, &[0]].concat()),
        Match::UidOwner(id) => xt_match(Extension::Owner, &xt::uid_owner(*id)),
        Match::GidOwner(id) => xt_match(Extension::Owner, &xt::gid_owner(*id)),
    }
}

/// Loads a meta key and compares it with a value.
fn compare(list: &mut Writer, key: i32, value: &[u8]) {
    let register = REGISTER;
    Expression::Meta { key, register }.write(list);
    Expression::equals(value).write(list);
}

/// Loads the whole address, masks it and compares it: the one form that every version of iptables-nft reads. (Since
/// 1.8.7 it writes a shorter load itself if the prefix ends on a whole byte.)
fn write_address(list: &mut Writer, net: IpNet, side: fn(Family) -> Field) {
    let (family, address, mask) = match net {
        IpNet::V4(net) => (
            Family::V4,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
        IpNet::V6(net) => (
            Family::V6,
            net.network().octets().to_vec(),
            net.netmask().octets().to_vec(),
        ),
    };
    let Some(place) = place(side(family)) else {
        return;
    };
    let register = REGISTER;
    Expression::Payload { place, register }.write(list);
    if net.prefix_len() < net.max_prefix_len() {
        Expression::Mask {
            from: REGISTER,
            to: REGISTER,
            mask: &mask,
            xor: &vec![0; mask.len()],
        }
        .write(list);
    }
    Expression::equals(&address).write(list);
}

/// What the kernel lacks for this extension, if anything. It asks nft_compat, as iptables-nft does for each revision
/// (nfnl_compat_get_rcu in net/netfilter/nft_compat.c). Without nft_compat, nfnetlink itself answers EINVAL.
fn missing(socket: &Socket, family: Family, extension: Extension) -> Option<(String, &'static str, &'static str)> {
    let protocol: ProtoFamily = header::protocol(TableFamily::Ip(family));
    let request = Header {
        subsystem: NFNL_SUBSYS_NFT_COMPAT,
        message: NFNL_MSG_COMPAT_GET,
        flags: libc::NLM_F_ACK,
        sequence: 0,
        family: protocol,
    };
    let attributes = |to: &mut Writer| {
        to.string(NFTA_COMPAT_NAME, extension.name());
        to.be32(NFTA_COMPAT_REV, extension.revision().into());
        to.be32(NFTA_COMPAT_TYPE, u32::from(extension.is_target()));
    };
    match socket.ask(request, attributes, |_| Ok(())) {
        Err(ReadError::Socket(Errno::EINVAL)) => Some((
            "xt extensions in nf_tables".to_owned(),
            "nft_compat",
            "CONFIG_NFT_COMPAT",
        )),
        Err(ReadError::Socket(_)) => {
            let (module, option) = extension.module();
            let kind = if extension.is_target() { "target" } else { "match" };
            Some((format!("the xt {} {kind}", extension.name()), module, option))
        }
        _ => None,
    }
}
