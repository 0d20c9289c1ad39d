//! Reads everything in nf_tables that decides where a connection goes, as it was at one generation.

use std::time::{Duration, Instant};

use nftnl::ProtoFamily;
use nix::errno::Errno;
#[cfg(any(test, feature = "decode"))]
use ruleset::Numbered;
use ruleset::{Chain, Name, Rule, Set, Table, TableFamily};

#[cfg(any(test, feature = "decode"))]
use super::decode::Decoder;
use super::header;
use super::set::Elements;
use super::table;
use super::uapi::*;
use crate::netlink::message::{Attributes, Malformed, Request, be32, be64, string};
use crate::netlink::{Generation, ReadError, Respondent};

/// The time for which reading is repeated because other programs change the rules meanwhile. Reading takes a fraction of a
/// millisecond, or about ten milliseconds with 10,000 rules.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot<R = Rule> {
    pub generation: Generation,
    /// In the order in which they were made.
    pub tables: Vec<Table<R>>,
}

impl<R> Snapshot<R> {
    /// Of a namespace in which nothing has been committed yet.
    pub fn fresh() -> Self {
        Self { generation: Generation::FRESH, tables: Vec::new() }
    }
}

/// Reads everything, and decodes the rules, which have some things by their numbers.
#[cfg(any(test, feature = "decode"))]
pub fn snapshot(socket: &impl Respondent, numbered: &Numbered) -> Result<Snapshot, ReadError> {
    let decoder = Decoder::new(numbered);
    let read = |attributes: Attributes<'_>, family, sets: &[Set]| decoder.read(attributes, family, sets);
    read_all(socket, |_, _| true, read, |rule| rule.handle)
}

/// Reads those tables that are asked for, and each of their rules by `read`. The dumps of tables, chains and rules are
/// separate requests, so the snapshot is consistent only if the generation was the same before and after, and if no
/// dump was torn; otherwise everything is read again, unless it changes all the time.
pub(crate) fn read_all<R>(
    socket: &impl Respondent,
    is_asked: impl Fn(TableFamily, &[u8]) -> bool,
    read: impl Fn(Attributes<'_>, TableFamily, &[Set]) -> Result<R, Malformed>,
    handle: impl Fn(&R) -> u64,
) -> Result<Snapshot<R>, ReadError> {
    let start = Instant::now();
    for attempt in 0.. {
        back_off(attempt);
        let now = generation(socket)?;
        if now == Generation::FRESH {
            return Ok(Snapshot::fresh());
        }
        match tables(socket, &is_asked, &read, &handle) {
            Ok(tables) if generation(socket)? == now => return Ok(Snapshot { generation: now, tables }),
            // ENOENT: a set that was listed was deleted before its elements were requested.
            Err(error @ (ReadError::Socket(_) | ReadError::Malformed(_)))
                if !matches!(error, ReadError::Socket(Errno::ENOENT)) =>
            {
                return Err(error);
            }
            _ if start.elapsed() > PATIENCE => break,
            _ => {}
        }
    }
    Err(ReadError::Interrupted)
}

/// Backs off before retrying; the pid staggers competitors.
pub fn back_off(attempt: u32) {
    if attempt > 0 {
        let step = 100 + u64::from(std::process::id() % 100);
        std::thread::sleep(Duration::from_micros(step * u64::from(attempt.min(20))));
    }
}

pub fn generation(socket: &impl Respondent) -> Result<Generation, ReadError> {
    let mut generation = None;
    socket.ask(request(libc::NFT_MSG_GETGEN, libc::NLM_F_ACK, ProtoFamily::Unspec), &mut |message| {
        generation = Some(Generation(be32(message.attributes()?.get(NFTA_GEN_ID)?)?));
        Ok(())
    })?;
    generation.ok_or(ReadError::Malformed(Malformed))
}

fn request(message: i32, flags: i32, family: ProtoFamily) -> Request {
    Request::nfnetlink(libc::NFNL_SUBSYS_NFTABLES, message, flags, family)
}

/// Passes each object of a kind to `read`, with its table's family.
fn dump(
    socket: &impl Respondent,
    message: i32,
    mut read: impl FnMut(TableFamily, Attributes<'_>) -> Result<(), Malformed>,
) -> Result<(), ReadError> {
    socket.ask(request(message, libc::NLM_F_DUMP, ProtoFamily::Unspec), &mut |message| {
        match header::table_family(message.family()?) {
            Some(family) => read(family, message.attributes()?),
            None => Ok(()), // a family that isn't known
        }
    })
}

fn tables<R>(
    socket: &impl Respondent,
    is_asked: impl Fn(TableFamily, &[u8]) -> bool,
    read: impl Fn(Attributes<'_>, TableFamily, &[Set]) -> Result<R, Malformed>,
    handle: impl Fn(&R) -> u64,
) -> Result<Vec<Table<R>>, ReadError> {
    let mut tables: Vec<Table<R>> = Vec::new();
    dump(socket, libc::NFT_MSG_GETTABLE, |family, attributes| {
        if is_asked(family, string(attributes.get(NFTA_TABLE_NAME)?)?) {
            tables.push(table::read(family, attributes)?);
        }
        Ok(())
    })?;
    if tables.is_empty() {
        return Ok(tables);
    }
    dump(socket, libc::NFT_MSG_GETCHAIN, |family, attributes| {
        let place = place_of(&tables, family, attributes.get(NFTA_CHAIN_TABLE)?)?;
        if let Some(table) = place.and_then(|place| tables.get_mut(place)) {
            table.chains.push(table::read_chain(family, attributes)?);
        }
        Ok(())
    })?;
    // Also of a table without objects, for a bound anonymous set isn't counted (seen on 6.18).
    read_sets(socket, &mut tables)?;
    // The table and the chain of the last rule, which are mostly the next one's too: a dump goes chain by chain.
    let mut last = (0, 0);
    let mut is_torn = false;
    dump(socket, libc::NFT_MSG_GETRULE, |family, attributes| {
        let table_name = string(attributes.get(NFTA_RULE_TABLE)?)?;
        let chain_name = string(attributes.get(NFTA_RULE_CHAIN)?)?;
        let is_table = |table: &Table<R>| table.family == family && table.name.as_bytes() == table_name;
        let is_chain = |chain: &Chain<R>| chain.name.as_bytes() == chain_name;
        let holds_chain = |table: &Table<R>| is_table(table) && table.chains.get(last.1).is_some_and(is_chain);
        if !tables.get(last.0).is_some_and(holds_chain) {
            let table = tables.iter().position(is_table).unwrap_or(tables.len());
            let chain = tables.get(table).and_then(|table| table.chains.iter().position(is_chain));
            last = (table, chain.unwrap_or(usize::MAX));
        }
        // None: its table isn't asked for, or was made since the tables were listed, so the generation has changed.
        if let Some(Table { sets, chains, .. }) = tables.get_mut(last.0)
            && let Some(chain) = chains.get_mut(last.1)
        {
            let rule = read(attributes, family, sets)?;
            let position = attributes.find(NFTA_RULE_POSITION)?.map(be64).transpose()?;
            let ends = chain.rules.first().zip(chain.rules.last());
            is_torn |= !follows(ends.map(|(first, last)| (handle(first), handle(last))), handle(&rule), position);
            if chain.rules.is_empty() {
                // There may be ten thousand chains of one rule.
                chain.rules.reserve_exact(1);
            }
            chain.rules.push(rule);
        }
        Ok(())
    })?;
    if is_torn {
        return Err(ReadError::Interrupted);
    }
    Ok(tables)
}

/// Returns true if a rule of a dump comes after the rules before it in its chain, as the kernel says: `position` is the
/// handle of the rule that precedes it, `before` has the handles of the first and the last rule that were listed.
///
/// The kernel continues a dump that takes more than one datagram at the number of rules that it has listed. A batch
/// that is being prepared has put its rules among them already, and one that was discarded has taken them out again,
/// both without another generation: then some rules are listed twice, or not at all (`__nf_tables_dump_rules` in
/// net/netfilter/nf_tables_api.c; seen on 6.18).
fn follows(before: Option<(u64, u64)>, rule: u64, position: Option<u64>) -> bool {
    match position {
        Some(position) => before.is_some_and(|(_, last)| last == position),
        // The first rule of a chain has none before it. No rule of the kernel's has the handle 0.
        None => before.is_none_or(|(first, _)| first != rule || rule == 0),
    }
}

/// Finds the table of this name; none if it isn't asked for, or was made since the tables were listed, so that the
/// generation has changed.
fn place_of<R>(tables: &[Table<R>], family: TableFamily, name: &[u8]) -> Result<Option<usize>, Malformed> {
    let name = string(name)?;
    Ok(tables.iter().position(|table| table.family == family && table.name.as_bytes() == name))
}

fn read_sets<R>(socket: &impl Respondent, tables: &mut [Table<R>]) -> Result<(), ReadError> {
    let mut listed = Vec::new();
    dump(socket, libc::NFT_MSG_GETSET, |family, attributes| {
        let name = Name::from(string(attributes.get(NFTA_SET_NAME)?)?);
        let bits = be32(attributes.get(NFTA_SET_KEY_LEN)?)?.saturating_mul(8);
        let set = Set { name, bits, elements: None, keys: None, expires: false };
        let flags = attributes.find(NFTA_SET_FLAGS)?.map_or(Ok(0), be32)? as i32;
        listed.push((place_of(tables, family, attributes.get(NFTA_SET_TABLE)?)?, set, flags));
        Ok(())
    })?;
    for (place, mut set, flags) in listed {
        let Some(table) = place.and_then(|place| tables.get_mut(place)) else {
            continue;
        };
        // Sets that packets add elements to change without a new generation.
        if flags & libc::NFT_SET_EVAL == 0 && set.bits >= 8 {
            // No single field is that long.
            let has_keys = flags & NFT_SET_CONCAT != 0 || set.bits > 128 || matches!(set.bits, 64 | 96);
            let mut elements = Elements::of(has_keys);
            let family = header::protocol(table.family);
            let mut request = request(libc::NFT_MSG_GETSETELEM, libc::NLM_F_DUMP, family);
            request.string(NFTA_SET_ELEM_LIST_TABLE, table.name.as_bytes());
            request.string(NFTA_SET_ELEM_LIST_SET, set.name.as_bytes());
            socket.ask(request, &mut |message| elements.read(message.attributes()?))?;
            set.expires = elements.expires;
            (set.elements, set.keys) = elements.finish(flags, set.bits);
        }
        table.sets.push(set);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ruleset::Family;
    use ruleset::nftables::NftRule;
    use ruleset::testing::ports;

    use super::*;
    use crate::netlink::message::{Message, Messages, put};
    use crate::nf_tables::TableId;
    use crate::nf_tables::edit::Edit;
    use crate::nf_tables::set::elements;
    use crate::tests::message_of;
    use crate::tests::recording::Recording;
    use crate::tests::replay::replayed;

    fn recording() -> Recording {
        Recording::of(include_str!("../recorded/snapshot.txt"))
    }

    /// It has no tables, and answers the first request for some with an error.
    struct Failing(Cell<Option<Errno>>);

    impl Respondent for Failing {
        fn ask(
            &self,
            mut request: Request,
            read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
        ) -> Result<(), ReadError> {
            request.be32(NFTA_GEN_ID, 2);
            let bytes = request.finish().unwrap();
            if message_of(&Messages(&bytes).next().unwrap()?) != libc::NFT_MSG_GETGEN {
                return self.0.take().map_or(Ok(()), |errno| Err(errno.into()));
            }
            Messages(&bytes).try_for_each(|message| Ok(read(&message?)?))
        }
    }

    #[test]
    fn only_what_a_change_explains_is_asked_for_again() {
        let failing = |errno| snapshot(&Failing(Cell::new(Some(errno))), &Numbered::default());
        assert_eq!(failing(Errno::ENOENT).unwrap(), Snapshot { generation: Generation(2), tables: Vec::new() });
        assert!(matches!(failing(Errno::EPERM), Err(ReadError::Socket(Errno::EPERM))));
    }

    #[test]
    fn whoever_tries_often_waits_longer() {
        let start = Instant::now();
        back_off(20);
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    /// Tables of two families may have the same name, and their sets too.
    #[test]
    fn a_set_is_of_the_table_that_it_is_in() {
        let [v4, v6] = Family::ALL.map(TableFamily::Ip);
        let tables = [(v4, "a", 1), (v6, "a", 2), (v4, "b", 3)].map(|(family, name, port)| {
            let ports = ports("set", &[(port, port)]);
            (TableId { family, name }, ports)
        });
        let mut edits = Vec::new();
        for (table, ports) in &tables {
            edits.extend([
                Edit::AddTable(*table),
                Edit::AddSet(*table, ports, 1),
                Edit::AddElements(*table, ports, elements(ports)),
            ]);
        }
        let read = replayed(&edits);
        for ((table, ports), read) in tables.into_iter().zip(read) {
            assert_eq!(read.sets, [ports], "{table}");
        }
    }

    #[test]
    fn what_changed_while_it_was_read_is_read_again() {
        let (changing, whole) = (recording(), recording());
        // The last answer has the generation after the dumps, in the last byte of its first attribute.
        put(&mut changing.0.borrow_mut().back_mut().unwrap().1, 27, &[9]);
        changing.0.borrow_mut().append(&mut whole.0.borrow_mut());
        assert_eq!(
            snapshot(&changing, &Numbered::default()).unwrap(),
            snapshot(&recording(), &Numbered::default()).unwrap()
        );
        assert!(changing.0.borrow().is_empty());
    }

    /// A dump of rules in two datagrams, between which somebody else's batch has put two rules before those that were
    /// listed, lists two of them again; if the rules were taken out, two are missing.
    #[test]
    fn a_torn_dump_is_read_again() {
        type Tear = fn(&mut Vec<Vec<u8>>);
        let tears: [Tear; 3] = [
            |rules| rules.insert(2, rules[1].clone()),
            |rules| rules.insert(1, rules[0].clone()),
            |rules| drop(rules.remove(1)),
        ];
        for tear in tears {
            let (torn, whole) = (recording(), recording());
            for (request, answer) in torn.0.borrow_mut().iter_mut().filter(|(request, _)| request == "GETRULE") {
                let mut rules: Vec<Vec<u8>> = Vec::new();
                let mut rest = answer.as_slice();
                while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
                    rules.push(rest[..length].to_vec());
                    rest = &rest[length.next_multiple_of(4).min(rest.len())..];
                }
                tear(&mut rules);
                *answer = rules.concat();
                assert_eq!(request, "GETRULE");
            }
            // The generation isn't asked for again after a torn dump.
            torn.0.borrow_mut().pop_back();
            torn.0.borrow_mut().append(&mut whole.0.borrow_mut());
            let read = snapshot(&torn, &Numbered::default()).unwrap();
            assert_eq!(read, snapshot(&recording(), &Numbered::default()).unwrap());
            assert!(torn.0.borrow().is_empty());
        }
    }

    /// As nft listed it.
    #[test]
    fn everything_is_read_as_the_kernel_dumps_it() {
        let answers = recording();
        let snapshot = snapshot(&answers, &Numbered::default()).unwrap();
        assert_eq!(snapshot.generation, Generation(2));
        assert!(answers.0.borrow().is_empty());
        let mut lines = Vec::new();
        for table in &snapshot.tables {
            let dormant = if table.dormant { " dormant" } else { "" };
            lines.push(format!("{table}{dormant} {:?} {}", table.comment, table.objects));
            for set in &table.sets {
                let elements = set.elements.as_ref().map(|elements| elements.as_slice().to_vec());
                let expires = if set.expires { " expires" } else { "" };
                lines.push(format!("set {} of {} bits{expires}: {elements:?}", set.name, set.bits));
                let keys = set.keys.iter().flat_map(|keys| keys.iter());
                lines.extend(keys.map(|key| format!("{:?}-{:?} {:?}", key.first, key.last, key.value)));
            }
            for chain in &table.chains {
                let base = chain.base.map(|base| (base.kind, base.hook, base.priority, base.policy));
                lines.push(format!("chain {} {:?} {base:?}", chain.name, chain.comment));
                lines.extend(chain.rules.iter().map(|rule| format!("    {}", NftRule(rule))));
            }
        }
        assert_eq!(
            lines,
            [
                "inet t Some(\"mine\") 10",
                "set ports of 16 bits: Some([(80, 80), (8000, 8100), (65000, 65535)])",
                "set hosts of 32 bits: Some([(167772161, 167772161), (3221225991, 3221225991)])",
                "set nets of 128 bits: Some([(336294682933583715844663186250927177728, 337623910929368631717566993311207522303)])",
                "set soon of 16 bits expires: Some([(443, 443)])",
                // An element is in the set depending on a limit.
                "set limited of 16 bits: None",
                "set pairs of 64 bits: None",
                "[10, 0, 0, 1, 0, 80, 0, 0]-[10, 0, 0, 1, 0, 80, 0, 0] None",
                "set verdicts of 16 bits: Some([(0, 65535)])",
                "[0, 80]-[0, 90] Some(Verdict(Accept))",
                "[1, 187]-[1, 187] Some(Verdict(Jump(\"other\")))",
                // Any other port.
                "[]-[] Some(Verdict(Drop))",
                "set __set0 of 16 bits: Some([(1, 2), (5, 7)])",
                // Users 7 and 9, in the machine's byte order.
                "set __set1 of 32 bits: Some([(117440512, 117440512), (150994944, 150994944)])",
                "chain other Some(\"a chain\") None",
                "chain in None Some((Filter, Input, 10, Drop))",
                "    tcp dport @ports counter accept",
                "    tcp dport @__set0 jump other",
                "    meta l4proto tcp tcp dport vmap @verdicts",
                "chain out None Some((Nat, Output, -100, Accept))",
                "    meta skuid { 7, 9 } return",
                "    tcp dport 80 redirect to :4140 comment \"why\"",
                "ip6 asleep dormant None 1",
                "chain c None Some((Filter, Forward, 0, Accept))",
                "    drop",
                "arp a None 1",
                "chain c None Some((Filter, Input, 0, Accept))",
                "netdev n None 1",
                "chain c None Some((Filter, Ingress, 0, Accept))",
                "    accept",
            ]
        );
    }
}
