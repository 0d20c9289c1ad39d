//! The kernel's own answers.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use ruleset::testing::{ports, rule, to_port};
use ruleset::{Action, Condition, Family, Field, Hook, NAT, Policy, Rule, TCP, TableFamily};
use ruleset::{Listener, Queue};

use super::namespace::{CHILDREN, in_a_namespace};
use super::replay::replayed;
use crate::ip_tables::{counters, table};
use crate::netlink::listeners::listeners;
use crate::netlink::sockopt::{has_sockets, load_extension, read_entries, replace_entries};
use crate::netlink::user_namespace::{depth, is_known_to_be_outside, note_opened_network, owns_network};
use crate::netlink::{CommitError, Generation, Socket};
use crate::nf_tables::edit::{Edit, batch};
use crate::nf_tables::hooks::legacy_tables;
use crate::nf_tables::read::{generation, snapshot};
use crate::nf_tables::rule::NewRule;
use crate::nf_tables::set::elements;
use crate::nf_tables::{ChainId, TableId};
use ruleset::Numbered;

const OWN: TableId = TableId { family: TableFamily::Inet, name: "proxy-init" };
const OUTPUT: ChainId = ChainId { name: "output", hook: Some(Hook::Output) };

/// More than fits into a socket's buffer at first, and into the datagrams that are read one by one.
#[test]
fn what_is_committed_is_read_back() {
    in_a_namespace(|| {
        let web = ports("web", &[(80, 80), (8000, 8100)]);
        // So many that they are hashed.
        let many = ports("many", &(1..=300).map(|port| (2 * port, 2 * port)).collect::<Vec<_>>());
        let rules: Vec<Rule> =
            (1..=3000).map(|port| rule([Condition::is(Field::Protocol, TCP), to_port(port)], Action::Return)).collect();
        let mut edits = vec![
            Edit::AddTable(OWN),
            Edit::AddSet(OWN, &web, 1),
            Edit::AddElements(OWN, &web, elements(&web)),
            Edit::AddSet(OWN, &many, 2),
            Edit::AddElements(OWN, &many, elements(&many)),
            Edit::AddChain(OWN, OUTPUT),
        ];
        let add = |rule| Edit::AddRule(NewRule { table: OWN, chain: OUTPUT, rule, sets: &[] });
        edits.extend(rules.iter().map(add));
        let socket = Socket::open().unwrap();
        socket.send_batch(&batch(&edits, None).unwrap()).unwrap();
        assert_eq!(generation(&socket).unwrap(), Generation::FRESH, "a trial");
        let fresh = batch(&edits, Some(Generation::FRESH)).unwrap();
        socket.send_batch(&fresh).unwrap();
        assert!(matches!(socket.send_batch(&fresh), Err(CommitError::OtherGeneration)));
        let mut read = snapshot(&socket, &Numbered::default()).unwrap().tables;
        for rule in &mut read[0].chains[0].rules {
            assert!(rule.handle > 0);
            rule.handle = 0;
        }
        assert_eq!(read, replayed(&edits));
        assert_eq!((&read[0].sets, &read[0].chains[0].rules), (&vec![web.clone(), many.clone()], &rules));
    });
}

#[test]
fn each_bad_message_is_named() {
    in_a_namespace(|| {
        let missing = ChainId { name: "missing", hook: None };
        let edits = [Edit::DeleteChain(OWN, missing), Edit::AddTable(OWN), Edit::DeleteChain(OWN, missing)];
        let socket = Socket::open().unwrap();
        // Only a good last message is acknowledged.
        for (edits, bad) in [(&edits[..], &[1, 3][..]), (&edits[..2], &[1])] {
            match socket.send_batch(&batch(edits, Some(Generation::FRESH)).unwrap()) {
                Err(CommitError::Messages(failures)) => {
                    assert!(failures.iter().all(|failure| failure.errno == Errno::ENOENT));
                    let failed = failures.iter().map(|failure| failure.sequence);
                    assert_eq!(failed.collect::<Vec<_>>(), bad);
                }
                other => panic!("{other:?}"),
            }
        }
        let empty = batch(&[], Some(Generation::FRESH)).unwrap();
        assert!(matches!(socket.send_batch(&empty), Err(CommitError::Unanswered(Errno::EAGAIN))));
    });
}

#[test]
fn a_kernel_has_sockets_of_the_families_that_it_lets_listen() {
    let listens = |address: IpAddr| TcpListener::bind((address, 0)).is_ok();
    in_a_namespace(|| {
        for family in Family::ALL {
            let any = if family == Family::V4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            assert_eq!(has_sockets(family), listens(any), "{family}");
        }
    });
}

/// As far as the kernel has legacy tables, and can list what is hooked.
#[test]
fn a_legacy_table_is_read_replaced_and_counted() {
    in_a_namespace(|| {
        for family in Family::ALL {
            match load_extension(family, c"multiport", 1, false) {
                Err(Errno::ENOPROTOOPT) if read_entries(family, NAT) == Err(Errno::ENOPROTOOPT) => return,
                loaded => assert_eq!(loaded, Ok(())),
            }
            assert_eq!(load_extension(family, c"REDIRECT", 0, true), Ok(()));
            assert_eq!(load_extension(family, c"multiport", 0, true), Err(Errno::ENOENT));
            let held = read_entries(family, NAT).unwrap();
            let chains = table(family, NAT, &held, &Numbered::default()).unwrap().chains;
            let chains: Vec<_> =
                chains.iter().map(|chain| (chain.name.to_string(), chain.base.unwrap().policy)).collect();
            let named = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"].map(|name| (name.to_owned(), Policy::Accept));
            assert_eq!(chains, named);
            let uncounted = counters(family, &held).unwrap();
            let counted = [[1; 16], [2; 16], [3; 16], [4; 16], [5; 16]];
            replace_entries(family, NAT, &held, &counted).unwrap();
            assert_eq!(counters(family, &read_entries(family, NAT).unwrap()).unwrap(), counted);
            replace_entries(family, NAT, &held, &uncounted).unwrap();
            assert_eq!(read_entries(family, NAT).unwrap(), held);
            let socket = Socket::open().unwrap();
            if let Ok(hooked) = legacy_tables(&socket, family, true) {
                assert_eq!(hooked, Some(vec![NAT]));
                assert_eq!(legacy_tables(&socket, family, false).unwrap(), Some(vec![]));
            }
        }
    });
}

#[test]
fn every_extension_of_a_rule_is_asked_for() {
    in_a_namespace(|| {
        let rule = rule([Condition::is(Field::Protocol, TCP), to_port(80)], Action::Redirect(Some((4143, 4143))));
        let socket = Socket::open().unwrap();
        let missing = |table| NewRule { table, chain: OUTPUT, rule: &rule, sets: &[] }.missing(&socket);
        let nat = TableId { family: TableFamily::Ip(Family::V4), name: NAT };
        assert_eq!(missing(nat), None);
        assert_eq!(missing(OWN).map(|(_, module, _)| module), Some("nft_redir"));
    });
}

/// Other tests have some open at the same time.
#[test]
fn a_socket_is_closed_with_its_last_use() {
    for _ in 0..1000 {
        Socket::open().unwrap();
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 500, "{open} descriptors are open");
}

#[test]
fn who_listens_is_listed() {
    in_a_namespace(|| {
        assert_eq!(listeners().unwrap(), []);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 4143)).unwrap();
        let uid = nix::unistd::geteuid().as_raw();
        let listed = Listener {
            address: [0; 4].into(),
            port: 4143,
            device: 0,
            is_ipv6_only: false,
            uid,
            // The standard library asks for this limit.
            queue: Queue { waiting: 0, limit: 128 },
            is_transparent: Some(false),
        };
        assert_eq!(listeners().unwrap(), [listed]);
        drop(listener);
    });
}

/// The kernel has numbers for them since 5.14.
#[test]
fn each_namespace_has_a_number_of_its_own() {
    in_a_namespace(|| {
        let Ok(number) = Socket::open().unwrap().namespace() else { return };
        assert_eq!(Socket::open().unwrap().namespace(), Ok(number));
        in_a_namespace(move || assert_ne!(Socket::open().unwrap().namespace(), Ok(number)));
    });
}

/// As far as util-linux' unshare may make a user namespace.
#[test]
fn a_namespace_of_other_users_is_known_once_it_was_opened() {
    let _alone = CHILDREN.lock();
    let own = || File::open("/proc/thread-self/ns/net").unwrap();
    in_a_namespace(|| {
        note_opened_network(own());
        assert_eq!((depth(own()), owns_network(), is_known_to_be_outside()), (Ok(0), Some(true), false));
        let program = ["--user", "--net", "sh", "-c", "echo; sleep 60"];
        let Ok(mut child) = Command::new("unshare").args(program).stdout(Stdio::piped()).spawn() else { return };
        // It is in there once it says something.
        let is_there = child.stdout.take().unwrap().read_exact(&mut [0]).is_ok();
        let network = File::open(format!("/proc/{}/ns/net", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        if let (true, Ok(network)) = (is_there, network) {
            assert_eq!(depth(&network), Ok(1));
            setns(&network, CloneFlags::CLONE_NEWNET).unwrap();
            assert_eq!((owns_network(), is_known_to_be_outside()), (Some(false), false));
            note_opened_network(&network);
            assert!(is_known_to_be_outside());
        }
    });
}
