//! A rule's conditions and redirections as iptables-nft writes them, some as xtables' matches and targets.
//! [`decode`](super::decode) reads them back.

use nftnl::Rule as NftnlRule;
use nftnl::expr::{Bitwise, Cmp, CmpOp};
use nix::errno::Errno;
use ruleset::{Condition, Family, Field, Rule, TCP, TableFamily, Values, device, subnet};

use super::Missing;
use super::header::{self, last_bytes};
use super::load::add_load;
use super::uapi::*;
use crate::netlink::message::Request;
use crate::netlink::objects::add_extension;
use crate::netlink::{ReadError, Respondent as _, Socket};
use crate::xt::{self, Extension};

pub(super) fn missing(socket: &Socket, family: Family, rule: &Rule) -> Option<Missing> {
    Extension::of(rule).find_map(|extension| missing_extension(socket, family, extension))
}

pub(super) fn add_redirect(to: &mut NftnlRule<'_>, family: Family, ports: Option<(u16, u16)>) {
    add_extension(to, Extension::Redirect, &xt::redirect(family, ports));
}

/// Adds a condition to a rule of a table of this family; none if iptables has no such match, or this writes none.
pub(super) fn add_condition(to: &mut NftnlRule<'_>, table: Family, condition: &Condition) -> Option<()> {
    let Condition::In { field, values, negated } = condition else {
        return None;
    };
    if let Some(extension) = Extension::of_match(condition) {
        // For a single port, iptables-nft since 1.8.9 writes a payload load and a comparison instead of the match, but
        // 1.8.7 reads that back without the port.
        let info = xt::write_match(extension, *field, values, *negated)?;
        add_extension(to, extension, &info);
        return Some(());
    }
    let &Values::Interval((first, last)) = values else {
        return None;
    };
    let length = field.bytes();
    // The bits that count, where those are not all.
    let mut mask = None;
    let value = match *field {
        _ if *negated => return None,
        Field::Protocol if (first, last) == (TCP, TCP) => vec![libc::IPPROTO_TCP as u8],
        Field::Source(family) | Field::Destination(family) if family == table => {
            let net = subnet(family, (first, last))?;
            mask = (net.prefix_len() < net.max_prefix_len()).then_some(field.largest() & !(first ^ last));
            last_bytes(&first.to_be_bytes(), length)?.to_vec()
        }
        Field::InInterface | Field::OutInterface if first == last => {
            let mut name = device(first)?;
            // Comparing the NUL too makes it the whole name and not a prefix.
            name.push(0);
            Some(name).filter(|name| name.len() <= length)?
        }
        _ => return None,
    };
    add_load(to, *field)?;
    // The whole address is loaded, masked and compared: the one form that every version of iptables-nft reads. (Since
    // 1.8.7 it writes a shorter load itself if the prefix ends on a whole byte.)
    if let Some(mask) = mask {
        let (mask, xor) = (mask.to_be_bytes(), [0; 16]);
        to.add_expr(&Bitwise::new(last_bytes(&mask, length)?, last_bytes(&xor, length)?));
    }
    to.add_expr(&Cmp::new(CmpOp::Eq, value.as_slice()));
    Some(())
}

/// The part that the kernel lacks for this extension, if any. This asks nft_compat, as iptables-nft does for each
/// revision (nfnl_compat_get_rcu in net/netfilter/nft_compat.c). Without nft_compat, nfnetlink itself answers EINVAL.
fn missing_extension(socket: &Socket, family: Family, extension: Extension) -> Option<Missing> {
    let (flags, family) = (libc::NLM_F_ACK, header::protocol(TableFamily::Ip(family)));
    let mut request = Request::nfnetlink(libc::NFNL_SUBSYS_NFT_COMPAT, NFNL_MSG_COMPAT_GET, flags, family);
    request.string(NFTA_COMPAT_NAME, extension.name().to_bytes());
    request.be32(NFTA_COMPAT_REV, extension.revision().into());
    request.be32(NFTA_COMPAT_TYPE, u32::from(extension.is_target()));
    match socket.ask(request, &mut |_| Ok(())) {
        Err(ReadError::Socket(Errno::EINVAL)) => {
            Some(("xt extensions in nf_tables".to_owned(), "nft_compat", "CONFIG_NFT_COMPAT"))
        }
        Err(ReadError::Socket(_)) => Some(extension.described()),
        _ => None,
    }
}
