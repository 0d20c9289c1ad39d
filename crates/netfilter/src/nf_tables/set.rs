//! Sets and maps: the messages that make them, and reading them.

use nftnl::set::Set as NftnlSet;
use nftnl::{MsgType, Table};
use ruleset::nftables::datatype;
use ruleset::{Action, Intervals, Key, Label, Name, Set, Shape, set_elements, set_field, set_size};

use super::c_string;
use super::expression::{Data, Expression, Part as _, Verdict};
use super::header;
use super::uapi::*;
use crate::netlink::Batch;
use crate::netlink::message::{Attributes, Malformed, Unwritable, be32, number};
use crate::netlink::objects::{self, AnyKey, SetAttributes, describe_set};

/// An element as the kernel keeps it: a number, which may mark the end of an interval, which is the first number
/// after it, rather than the beginning or a single number.
pub(crate) type Element = (u128, bool);

/// A day in milliseconds.
const DAY: u32 = 86_400_000;

/// Adds the message that makes a set; `id` is its number in the batch.
pub(super) fn add(batch: &mut Batch, table: &Table, set: &Set, id: u32) -> Result<(), Unwritable> {
    let mut object = named(table, set.name.as_bytes(), id)?;
    let (_, key_type) = datatype(set_field(set));
    let shape = SetAttributes { key_type, key_length: set.bits / 8, ..SetAttributes::default() };
    let shape = match Shape::of(set) {
        Shape::Intervals => SetAttributes { flags: libc::NFT_SET_INTERVAL as u32, ..shape },
        Shape::Numbers => shape,
        Shape::Hashed => SetAttributes {
            flags: libc::NFT_SET_TIMEOUT as u32,
            // The interval of the search for elements that have expired; without this, each second.
            collects_every: Some(DAY),
            // A hash table has room for so many elements from the start, and for no more.
            size: Some(set_size(set) as u32),
            ..shape
        },
    };
    // Tells nft the byte order in which to list elements: NFTNL_UDATA_SET_KEYBYTEORDER, BYTEORDER_BIG_ENDIAN.
    describe_set(&mut object, &shape, &[&[0, 4][..], &2u32.to_ne_bytes()].concat());
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

/// A map's value for an element: a verdict, or a port to which the rules that ask the map redirect.
fn mapped(element: Attributes<'_>) -> Result<Option<Action>, Malformed> {
    if let Some(verdict) = Verdict::read(element, NFTA_SET_ELEM_DATA)? {
        return Ok(Some(action(verdict)));
    }
    let port = Data::read(element, NFTA_SET_ELEM_DATA)?.and_then(|value| value.0.try_into().ok());
    Ok(port.map(u16::from_be_bytes).map(|port| Action::Redirect(Some((port, port)))))
}

#[derive(Debug, Default)]
pub struct Elements {
    /// Each element's number, true if it ends an interval, and a map's value for it.
    list: Vec<(u128, bool, Option<Action>)>,
    /// The catch-all element, if there is one, and a map's value for it.
    everything_else: Option<Option<Action>>,
    /// The elements, instead, of a set of several fields, which are longer than numbers or may have intervals.
    keys: Vec<Key>,
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
            let verdict = mapped(element)?;
            if flags & NFT_SET_ELEM_CATCHALL != 0 {
                self.everything_else = Some(verdict);
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
                self.keys.push(Key { first: key.to_vec(), last: last.to_vec(), action: verdict });
                continue;
            }
            self.list.push((number(key), flags & NFT_SET_ELEM_INTERVAL_END != 0, verdict));
        }
        Ok(())
    }

    /// The elements of a set of several fields; none if they aren't understood.
    pub(crate) fn take_keys(&mut self) -> Vec<Key> {
        let is_whole = !self.unknown && self.everything_else.is_none();
        std::mem::take(&mut self.keys).into_iter().filter(|_| is_whole).collect()
    }

    /// The set's numbers and, for a map, their values. `intervals` is true for a set of intervals;
    /// numbers go up to `max`.
    pub(crate) fn finish(mut self, intervals: bool, max: u128) -> (Option<Intervals>, Vec<(Intervals, Action)>) {
        if self.unknown || self.has_keys {
            return (None, Vec::new());
        }
        let mut all: Vec<((u128, u128), Option<Action>)> = Vec::with_capacity(self.list.len());
        if !intervals {
            all.extend(self.list.drain(..).map(|(number, _, verdict)| ((number, number), verdict)));
        }
        self.list.sort_by_key(|&(number, end, _)| (number, !end));
        let mut begun: Option<(u128, Option<Action>)> = None;
        for (number, end, verdict) in self.list {
            if let Some((first, verdict)) = begun.take()
                && let Some(last) = number.checked_sub(1)
            {
                all.push(((first, last), verdict));
            }
            begun = (!end).then_some((number, verdict));
        }
        all.extend(begun.map(|(first, verdict)| ((first, max), verdict)));
        let mut numbers = Intervals::new(all.iter().map(|(interval, _)| *interval));
        let mut verdicts: Vec<_> =
            all.into_iter().filter_map(|(interval, verdict)| Some((Intervals::new([interval]), verdict?))).collect();
        if let Some(verdict) = self.everything_else {
            let rest = Intervals::up_to(max).without(&numbers);
            verdicts.extend(verdict.map(|verdict| (rest, verdict)));
            numbers = Intervals::up_to(max);
        }
        (Some(numbers), verdicts)
    }
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
