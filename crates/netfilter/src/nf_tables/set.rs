//! Sets and maps: the messages that make them, and reading them.

use std::sync::Arc;

use nftnl::set::Set as NftnlSet;
use nftnl::{MsgType, Table, nftnl_sys as sys};
use ruleset::nftables::datatype;
use ruleset::{Action, Intervals, Key, Label, Mapped, Name, Set, Shape, set_elements, set_field, set_size};

use super::c_string;
use super::expression::{Data, Expression, Part as _, Verdict};
use super::header;
use super::uapi::*;
use crate::netlink::Batch;
use crate::netlink::message::{Attributes, Malformed, Unwritable, be32, number};
use crate::netlink::objects::{self, AnyKey, describe_set};

/// An element as the kernel keeps it: a number, which may mark the end of an interval, which is the first number
/// after it, rather than the beginning or a single number.
pub(crate) type Element = (u128, bool);

/// In milliseconds.
const DAY: u32 = 86_400_000;

/// Adds the message that makes a set; `id` is its number in the batch.
pub(super) fn add(batch: &mut Batch, table: &Table, set: &Set, id: u32) -> Result<(), Unwritable> {
    let mut object = named(table, set.name.as_bytes(), id)?;
    let (_, key_type) = datatype(set_field(set));
    let (flags, size) = match Shape::of(set) {
        Shape::Intervals => (libc::NFT_SET_INTERVAL, None),
        Shape::Numbers => (0, None),
        // A hash table has room for so many elements from the start, and for no more.
        Shape::Hashed => (libc::NFT_SET_TIMEOUT, Some(set_size(set) as u32)),
    };
    let numbers = [
        (sys::NFTNL_SET_KEY_TYPE, Some(key_type)),
        (sys::NFTNL_SET_KEY_LEN, Some(set.bits / 8)),
        (sys::NFTNL_SET_FLAGS, Some(flags as u32)),
        // The interval of the search for elements that have expired; without this, each second.
        (sys::NFTNL_SET_GC_INTERVAL, size.map(|_| DAY)),
        (sys::NFTNL_SET_DESC_SIZE, size),
    ];
    // Tells nft the byte order in which to list elements: NFTNL_UDATA_SET_KEYBYTEORDER, BYTEORDER_BIG_ENDIAN.
    describe_set(&mut object, &numbers, &[&[0, 4][..], &2u32.to_ne_bytes()].concat());
    batch.add(&object, MsgType::Add, libc::NLM_F_CREATE, &[])
}

/// Adds the message that adds elements to a set. They have to fit into one message: a thousand do.
pub(super) fn add_elements(
    batch: &mut Batch,
    table: &Table,
    set: &Set,
    elements: &[Element],
) -> Result<(), Unwritable> {
    let mut object = named(table, set.name.as_bytes(), 0)?;
    for &(number, is_end) in elements {
        let key = number.to_be_bytes();
        let key = header::last_bytes(&key, (set.bits / 8) as usize);
        let key = key.ok_or_else(|| Unwritable(format!("{number} in {} bits", set.bits)))?;
        objects::add_element(&mut object, key, is_end);
    }
    let mut messages = object.elems_iter();
    let Some(message) = messages.next() else {
        return Err(Unwritable("no elements".to_owned()));
    };
    batch.add(&message, MsgType::Add, libc::NLM_F_CREATE, &[])?;
    match messages.next() {
        None => Ok(()),
        Some(_) => Err(Unwritable(format!("{} elements in one message", elements.len()))),
    }
}

/// Adds the message that deletes a set.
pub(super) fn delete(batch: &mut Batch, table: &Table, name: &Name) -> Result<(), Unwritable> {
    batch.add(&named(table, name.as_bytes(), 0)?, MsgType::Del, 0, &[])
}

fn named<'a>(table: &'a Table, name: &[u8], id: u32) -> Result<NftnlSet<'a, AnyKey>, Unwritable> {
    Ok(NftnlSet::new_named(&c_string(name)?, id, table, table.get_family()))
}

/// A set's numbers as the kernel's elements. Of intervals, these are the beginning and the end of each and, as nft writes
/// it, an end at 0 if the first interval begins later.
pub fn elements(set: &Set) -> Vec<Element> {
    let (intervals, max) = (set_elements(set), set_field(set).largest());
    if Shape::of(set) != Shape::Intervals {
        return intervals.iter().map(|&(number, _)| (number, false)).collect();
    }
    let mut elements = Vec::with_capacity(2 * intervals.len() + 1);
    if intervals.first().is_some_and(|&(first, _)| first > 0) {
        elements.push((0, true));
    }
    for (first, last) in intervals {
        elements.push((first, false));
        if last < max {
            elements.push((last + 1, true));
        }
    }
    elements
}

#[derive(Debug, Default)]
pub struct Elements {
    /// Each element's number, true if it ends an interval, and a map's value for it.
    list: Vec<(u128, bool, Option<Mapped>)>,
    /// The elements, instead, of a set of several fields, which are longer than numbers or may have intervals.
    keys: Vec<Key>,
    /// The catch-all element, if there is one.
    everything_else: Option<Key>,
    /// True if the set is such a set.
    has_keys: bool,
    unknown: bool,
    pub(crate) expires: bool,
}

impl Elements {
    /// Those of a set of several fields, if it `has_keys`.
    pub(crate) fn of(has_keys: bool) -> Self {
        Self { has_keys, ..Self::default() }
    }

    pub(crate) fn read(&mut self, attributes: Attributes<'_>) -> Result<(), Malformed> {
        let Some(list) = attributes.find(NFTA_SET_ELEM_LIST_ELEMENTS)? else {
            return Ok(());
        };
        for element in Attributes(list) {
            let element = Attributes(element?.1);
            let flags = element.find(NFTA_SET_ELEM_FLAGS)?.map_or(Ok(0), be32)?;
            let verdict = Verdict::read(element, NFTA_SET_ELEM_DATA)?.map(|verdict| Mapped::Verdict(action(verdict)));
            let data = Data::read(element, NFTA_SET_ELEM_DATA)?.map(|data| Mapped::Bytes(data.0.to_vec()));
            let value = verdict.or(data);
            if flags & NFT_SET_ELEM_CATCHALL != 0 {
                self.everything_else = Some(Key { first: Vec::new(), last: Vec::new(), value });
                continue;
            }
            self.expires |= element.find(NFTA_SET_ELEM_EXPIRATION)?.is_some();
            // A limit or a quota, for example, decides anew for each packet whether the element matches.
            let (one, list) = (element.find(NFTA_SET_ELEM_EXPR)?, element.find(NFTA_SET_ELEM_EXPRESSIONS)?);
            for expression in Expression::each(one, list) {
                self.unknown |= !matches!(expression?, Expression::Counter(_) | Expression::Other(b"last"));
            }
            let key = Attributes(element.get(NFTA_SET_ELEM_KEY)?).get(NFTA_DATA_VALUE)?;
            if self.has_keys {
                let last = Data::read(element, NFTA_SET_ELEM_KEY_END)?.map_or(key, |last| last.0);
                self.keys.push(Key { first: key.to_vec(), last: last.to_vec(), value });
                continue;
            }
            self.list.push((number(key), flags & NFT_SET_ELEM_INTERVAL_END != 0, value));
        }
        Ok(())
    }

    /// The numbers of a set with these flags and so many bits, and the elements of a map or of several fields.
    pub(crate) fn finish(mut self, flags: i32, bits: u32) -> (Option<Intervals>, Option<Arc<[Key]>>) {
        if self.unknown {
            return (None, None);
        }
        let mut numbers = None;
        if !self.has_keys {
            let max = u128::MAX >> 128u32.saturating_sub(bits);
            let all = intervals(self.list, flags & libc::NFT_SET_INTERVAL != 0, max);
            numbers = Some(match self.everything_else {
                Some(_) => Intervals::up_to(max),
                None => Intervals::new(all.iter().map(|(interval, _)| *interval)),
            });
            if flags & libc::NFT_SET_MAP == 0 {
                return (numbers, None);
            }
            self.keys.extend(all.into_iter().map(|(ends, value)| key(ends, bits, value)));
        }
        self.keys.extend(self.everything_else);
        (numbers, Some(self.keys.into()))
    }
}

/// An interval of numbers of so many bits as an element of a map.
pub(super) fn key((first, last): (u128, u128), bits: u32, value: Option<Mapped>) -> Key {
    let bytes = |number: u128| {
        let all = number.to_be_bytes();
        header::last_bytes(&all, (bits / 8) as usize).unwrap_or_default().to_vec()
    };
    Key { first: bytes(first), last: bytes(last), value }
}

/// Elements as intervals: single numbers or, in a set of intervals, their ends. Numbers go up to `max`.
fn intervals(
    mut list: Vec<(u128, bool, Option<Mapped>)>,
    are_ends: bool,
    max: u128,
) -> Vec<((u128, u128), Option<Mapped>)> {
    if !are_ends {
        return list.into_iter().map(|(number, _, value)| ((number, number), value)).collect();
    }
    list.sort_by_key(|&(number, end, _)| (number, !end));
    let mut all = Vec::with_capacity(list.len());
    let mut begun: Option<(u128, Option<Mapped>)> = None;
    for (number, end, value) in list {
        if let Some((first, value)) = begun.take()
            && let Some(last) = number.checked_sub(1)
        {
            all.push(((first, last), value));
        }
        begun = (!end).then_some((number, value));
    }
    all.extend(begun.map(|(first, value)| ((first, max), value)));
    all
}

/// The action of a verdict.
pub(crate) fn action(Verdict { code, chain }: Verdict<'_>) -> Action {
    match (code, chain.map(|chain| Name::from(chain.0))) {
        (libc::NF_ACCEPT, _) => Action::Accept,
        (libc::NF_DROP, _) => Action::Drop,
        (libc::NFT_CONTINUE, _) => Action::Continue,
        (libc::NFT_RETURN, _) => Action::Return,
        (libc::NFT_JUMP, Some(chain)) => Action::Jump(chain),
        (libc::NFT_GOTO, Some(chain)) => Action::Goto(chain),
        _ => Action::NotUnderstood(Label::Verdict(code)),
    }
}

#[cfg(test)]
mod tests {
    use ruleset::testing::ports;

    use super::*;

    /// As nft writes them, with an end before the first.
    #[test]
    fn an_interval_has_an_element_for_each_of_its_ends() {
        for (intervals, want) in [
            (&[(80, 90), (8000, 65535)][..], &[(0, true), (80, false), (91, true), (8000, false)][..]),
            (&[(0, 9), (80, 82)], &[(0, false), (10, true), (80, false), (83, true)]),
            // Single numbers are hashed or in a bitmap.
            (&[(80, 80), (90, 90)], &[(80, false), (90, false)]),
        ] {
            assert_eq!(elements(&ports("web", intervals)), want);
        }
    }
}
