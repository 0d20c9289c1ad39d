//! The readers of the kernel's answers, for the fuzzer and for the tests that run its corpus. Nothing that they are
//! given may make them panic, or pass for a rule that wouldn't be written the same.

use ruleset::{Chain, Counters, Family, Name, Numbered, Rule, Subsystem, Table, TableFamily};

use super::written_and_read;
use crate::ip_tables;
use crate::netlink::message::{Attributes, Messages, u32_at};
use crate::netlink::sockopt::Entries;
use crate::netlink::{route, socket};
use crate::nf_tables::decode::Decoder;
use crate::nf_tables::hooks::Hooked;
use crate::nf_tables::set::Elements;
use crate::nf_tables::{table, user_data};

/// Feeds one input to every reader. Each rule that comes of it is handed on, in a table.
pub fn read_all(input: &[u8], mut hand_on: impl FnMut(Table)) {
    let families = [TableFamily::Ip(Family::V4), TableFamily::Ip(Family::V6), TableFamily::Inet, TableFamily::Netdev];
    for message in Messages(input).flatten() {
        let _ = socket::failure(&message);
        let _ = (route::read_route(&message), route::read_device(&message));
        if let Ok(attributes) = message.attributes() {
            for family in families {
                read_attributes(attributes, family, &mut hand_on);
            }
        }
    }
    for family in families {
        read_attributes(Attributes(input), family, &mut hand_on);
    }
    let _ = user_data::read_comment(input);
    for family in Family::ALL {
        read_legacy(input, family, &mut hand_on);
    }
}

/// Reads attributes as each of nf_tables' objects.
fn read_attributes(attributes: Attributes<'_>, family: TableFamily, hand_on: &mut impl FnMut(Table)) {
    let _ = table::read::<ruleset::Rule>(family, attributes);
    let _ = Hooked::default().add(attributes);
    let mut elements = Elements::default();
    let _ = elements.read(attributes);
    let (numbers, keys) = elements.finish(libc::NFT_SET_INTERVAL | libc::NFT_SET_MAP, 16);
    assert!(keys.is_none() || numbers.is_some());
    let chain = table::read_chain::<ruleset::Rule>(family, attributes);
    let Ok(rule) = Decoder::new(&Numbered::default()).read(attributes, family, &[]) else {
        return;
    };
    // Whatever is taken to be written, is written as what it is.
    let counters = rule.counters.map(|_| Counters::default());
    let written = Rule { handle: 0, counters, ..rule.clone() };
    if matches!(family, TableFamily::Ip(_) | TableFamily::Inet)
        && let Ok(again) = written_and_read(family, &written, &[])
    {
        assert_eq!(again, written);
    }
    if let Ok(mut chain) = chain {
        chain.rules.push(rule);
        hand_on(with_chain(family, chain));
    }
}

/// Reads bytes as a legacy table, whose first word says where its base chains are.
fn read_legacy(input: &[u8], family: Family, hand_on: &mut impl FnMut(Table)) {
    let place = |index: usize| u32_at(input, 4 * index).unwrap_or_default() as usize % (input.len() + 1);
    let entries =
        Entries { base_chains: vec![(0, 0, place(0)), (3, place(1), place(2))], count: 0, bytes: input.to_vec() };
    if let Ok(table) = ip_tables::table(family, "nat", &entries, &Numbered::default()) {
        hand_on(table);
    }
}

fn with_chain(family: TableFamily, chain: Chain) -> Table {
    Table { objects: 1, chains: vec![chain], ..Table::new(Subsystem::NfTables, family, Name::from("nat")) }
}
