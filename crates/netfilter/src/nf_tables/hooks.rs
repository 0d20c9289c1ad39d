//! Finds hooked legacy tables: nfnetlink_hook tells a process with CAP_NET_ADMIN, where only root can list them.
//!
//! nfnetlink_hook lists the functions at a hook (net/netfilter/nfnetlink_hook.c; since Linux 5.14, often as a module,
//! in some distributions' kernels not at all). Every legacy table has a function at OUTPUT, so one list per family has
//! them all, except that nat chains are called by a function of nf_nat's, legacy ones and those of nf_tables alike.
//! (Kernels with "netfilter: nfnetlink_hook: Dump nat type chains", which came after Linux 7.2, list them themselves
//! instead.)

use nix::errno::Errno;
use ruleset::{Family, Kind, NAT, TableFamily, XTABLES};

use super::header;
use super::held::held;
use super::uapi::*;
use crate::netlink::message::{Attributes, Malformed, Request, be32, string};
use crate::netlink::{ReadError, Respondent as _, Socket};

/// The legacy tables that a family has in the socket's network namespace; none where it cannot be told. Asking makes no
/// table. With `may_have_nat` false, it is known already that nat isn't among them.
///
/// # Errors
/// The kernel has no nfnetlink_hook (EINVAL): each time that it is asked, it runs modprobe first (`nfnetlink_rcv_msg`
/// in net/netfilter/nfnetlink.c). Or reading fails.
pub fn legacy_tables(
    socket: &Socket,
    family: Family,
    may_have_nat: bool,
) -> Result<Option<Vec<&'static str>>, ReadError> {
    let Hooked { mut tables, nf_nat } = Hooked::read(socket, family)?;
    if nf_nat && may_have_nat {
        // Only a nat chain makes nf_nat hook its function: a legacy one, if nf_tables has none.
        if has_nat_chain(socket, family)? {
            return Ok(None);
        }
        tables.push(NAT);
    }
    Ok(Some(tables))
}

/// Finds out if nf_tables has a nat chain for packets of this family, hooked or in a dormant table.
fn has_nat_chain(socket: &Socket, family: Family) -> Result<bool, ReadError> {
    let tables = match held(socket, |table, _| table.sees(family)) {
        Ok(snapshot) => snapshot.tables,
        // The kernel has no nf_tables (nfnetlink_rcv_msg).
        Err(ReadError::Socket(Errno::EINVAL | Errno::EOPNOTSUPP)) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut chains = tables.iter().flat_map(|table| &table.chains);
    Ok(chains.any(|chain| chain.base.is_some_and(|base| base.kind == Kind::Nat)))
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hooked {
    tables: Vec<&'static str>,
    /// nf_nat's own function is, which runs nat chains that aren't listed.
    nf_nat: bool,
}

impl Hooked {
    fn read(socket: &Socket, family: Family) -> Result<Self, ReadError> {
        let mut hooked = Self::default();
        let (flags, family) = (libc::NLM_F_DUMP, header::protocol(TableFamily::Ip(family)));
        let mut request = Request::nfnetlink(libc::NFNL_SUBSYS_HOOK, NFNL_MSG_HOOK_GET, flags, family);
        request.be32(NFNLA_HOOK_HOOKNUM, libc::NF_INET_LOCAL_OUT as u32);
        socket.ask(request, &mut |message| hooked.add(message.attributes()?))?;
        Ok(hooked)
    }

    /// Adds one function of the list. Without its name, as in a kernel without CONFIG_KALLSYMS, nobody can tell the
    /// function.
    pub(crate) fn add(&mut self, attributes: Attributes<'_>) -> Result<(), Malformed> {
        let priority = be32(attributes.get(NFNLA_HOOK_PRIORITY)?)? as i32;
        let function = string(attributes.get(NFNLA_HOOK_FUNCTION_NAME)?)?;
        self.nf_nat |= function.starts_with(b"nf_nat_");
        // A table's own function, such as iptable_mangle_hook, or the one that all tables share, each at its place in
        // the order of the hook. Which of the two a table has differs between tables and versions of the kernel.
        let is_own = function.starts_with(b"iptable_") || function.starts_with(b"ip6table_");
        if is_own || matches!(function, b"ipt_do_table" | b"ip6t_do_table") {
            self.tables.push(table_at(priority).ok_or(Malformed)?);
        }
        Ok(())
    }
}

/// The legacy table whose functions have this priority at OUTPUT.
fn table_at(priority: i32) -> Option<&'static str> {
    // With its parameter raw_before_defrag, raw comes before all others.
    let priority = if priority == -450 { -300 } else { priority };
    XTABLES.into_iter().find(|(_, known)| *known == priority).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use nftnl::ProtoFamily;
    use proptest::prelude::*;
    use ruleset::Hook;
    use ruleset::testing::random;

    use super::*;
    use crate::netlink::Generation;
    use crate::netlink::message::Messages;
    use crate::nf_tables::edit::{Edit, batch};
    use crate::nf_tables::{ChainId, TableId};
    use crate::tests::namespace::in_a_namespace;

    /// Linux 6.12's list at OUTPUT with these bytes, in hexadecimal; 7.2 lists the same functions.
    fn recorded(bytes: &str) -> Hooked {
        let mut hooked = Hooked::default();
        for message in Messages(&crate::tests::recorded(bytes)) {
            hooked.add(message.unwrap().attributes().unwrap()).unwrap();
        }
        hooked
    }

    #[test]
    fn a_nat_table_is_called_by_a_function_of_nf_nats() {
        // With iptables-legacy's nat table and nothing else, over IPv4 and IPv6.
        for bytes in [
            "54000000000c0200010000000000000002000000130005006e665f6465667261675f6970763400001a00040069707634\
             5f636f6e6e747261636b5f646566726167000000080001000000000308000200fffffe7054000000000c020001000000\
             0000000002000000110005006e665f636f6e6e747261636b0000000019000400697076345f636f6e6e747261636b5f6c\
             6f63616c00000000080001000000000308000200ffffff384c000000000c02000100000000000000020000000b000500\
             6e665f6e61740000190004006e665f6e61745f697076345f6c6f63616c5f666e00000000080001000000000308000200\
             ffffff9c",
            "48000000000c020001000000000000000a000000130005006e665f6465667261675f6970763600001000040069707636\
             5f64656672616700080001000000000308000200fffffe7054000000000c020001000000000000000a00000011000500\
             6e665f636f6e6e747261636b0000000019000400697076365f636f6e6e747261636b5f6c6f63616c0000000008000100\
             0000000308000200ffffff384c000000000c020001000000000000000a0000000b0005006e665f6e6174000019000400\
             6e665f6e61745f697076365f6c6f63616c5f666e00000000080001000000000308000200ffffff9c",
        ] {
            let want = Hooked { tables: Vec::new(), nf_nat: true };
            assert_eq!(recorded(bytes), want);
        }
    }

    #[test]
    fn every_other_table_is_listed() {
        // With all five tables of iptables-legacy and of ip6tables-legacy.
        for bytes in [
            "48000000000c02000100000000000000020000000e00050069705f7461626c6573000000110004006970745f646f5f74\
             61626c6500000000080001000000000308000200fffffed450000000000c020001000000000000000200000013000500\
             69707461626c655f6d616e676c6500001800040069707461626c655f6d616e676c655f686f6f6b000800010000000003\
             08000200ffffff6a4c000000000c02000100000000000000020000000b0005006e665f6e61740000190004006e665f6e\
             61745f697076345f6c6f63616c5f666e00000000080001000000000308000200ffffff9c48000000000c020001000000\
             00000000020000000e00050069705f7461626c6573000000110004006970745f646f5f7461626c650000000008000100\
             00000003080002000000000048000000000c02000100000000000000020000000e00050069705f7461626c6573000000\
             110004006970745f646f5f7461626c650000000008000100000000030800020000000032",
            "48000000000c020001000000000000000a0000000f0005006970365f7461626c6573000012000400697036745f646f5f\
             7461626c65000000080001000000000308000200fffffed454000000000c020001000000000000000a00000014000500\
             6970367461626c655f6d616e676c6500190004006970367461626c655f6d616e676c655f686f6f6b0000000008000100\
             0000000308000200ffffff6a4c000000000c020001000000000000000a0000000b0005006e665f6e6174000019000400\
             6e665f6e61745f697076365f6c6f63616c5f666e00000000080001000000000308000200ffffff9c48000000000c0200\
             01000000000000000a0000000f0005006970365f7461626c6573000012000400697036745f646f5f7461626c65000000\
             0800010000000003080002000000000048000000000c020001000000000000000a0000000f0005006970365f7461626c\
             6573000012000400697036745f646f5f7461626c6500000008000100000000030800020000000032",
        ] {
            let want = Hooked { tables: vec!["raw", "mangle", "filter", "security"], nf_nat: true };
            assert_eq!(recorded(bytes), want);
        }
    }

    #[test]
    fn nothing_is_hooked_in_a_fresh_namespace() {
        assert_eq!(recorded(""), Hooked::default());
    }

    /// A message about one function.
    fn listed(function: Option<&str>, priority: i32) -> Result<Hooked, Malformed> {
        let mut listed = Request::nfnetlink(libc::NFNL_SUBSYS_HOOK, NFNL_MSG_HOOK_GET, 0, ProtoFamily::Ipv4);
        if let Some(function) = function {
            listed.string(NFNLA_HOOK_FUNCTION_NAME, function);
        }
        listed.be32(NFNLA_HOOK_PRIORITY, priority as u32);
        let bytes = listed.finish().unwrap();
        let mut hooked = Hooked::default();
        let message = Messages(&bytes).next().unwrap()?;
        hooked.add(message.attributes()?)?;
        Ok(hooked)
    }

    #[test]
    fn a_nat_table_of_its_own_is_told_by_its_priority() {
        // As newer kernels list it; nft's own nat chains are not taken for it.
        assert_eq!(listed(Some("ipt_do_table"), -100).unwrap().tables, ["nat"]);
        assert_eq!(listed(Some("iptable_nat_do_chain"), -100).unwrap().tables, ["nat"]);
        assert_eq!(listed(Some("nft_nat_do_chain"), -100), Ok(Hooked::default()));
        // As raw is with its parameter raw_before_defrag.
        assert_eq!(listed(Some("iptable_raw_hook"), -450).unwrap().tables, ["raw"]);
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        assert_eq!(listed(None, -100), Err(Malformed));
        assert_eq!(listed(Some("ipt_do_table"), -99), Err(Malformed));
    }

    #[test]
    fn a_nat_chain_of_nf_tables_is_for_the_packets_that_its_table_sees() {
        in_a_namespace(|| {
            let socket = Socket::open().unwrap();
            let has_one = || Family::ALL.map(|family| has_nat_chain(&socket, family).unwrap());
            assert_eq!(has_one(), [false, false]);
            let table = TableId { family: TableFamily::Ip(Family::V6), name: "t" };
            let chain = ChainId { name: "c", hook: Some(Hook::Output) };
            let edits = [Edit::AddTable(table), Edit::AddChain(table, chain)];
            socket.send_batch(&batch(&edits, Some(Generation::FRESH)).unwrap()).unwrap();
            assert_eq!(has_one(), [false, true]);
        });
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Hooked::default().add(Attributes(&bytes));
        }
    }
}
