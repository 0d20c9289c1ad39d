//! Sets of a table.

use std::sync::Arc;

use crate::family::Family;
use crate::field::Field;
use crate::intervals::Intervals;
use crate::name::Name;
use crate::rule::Action;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: Name,
    /// The bits of an element.
    pub bits: u32,
    /// The numbers in it; none if they are not understood, as in a set whose elements have several fields.
    pub elements: Option<Intervals>,
    /// The elements of a map, or of several fields; none if they are not understood.
    pub keys: Option<Arc<[Key]>>,
    pub expires: bool,
}

/// An element of a map or of several fields, as the bytes of its first and of its last field's numbers; each field begins
/// at a multiple of four. Without bytes, it stands for everything that no other element has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub first: Vec<u8>,
    pub last: Vec<u8>,
    /// Its value in a map.
    pub value: Option<Mapped>,
}

/// The value that a map has for an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mapped {
    Verdict(Action),
    /// The bytes that it puts into a register.
    Bytes(Vec<u8>),
}

impl Set {
    /// The set's intervals of numbers, as far as they are understood.
    pub fn intervals(&self) -> &[(u128, u128)] {
        self.elements.as_ref().map(Intervals::as_slice).unwrap_or_default()
    }

    /// The numbers in it, whose bytes are in network order, as those of a field; none if they aren't understood.
    pub fn numbers_of(&self, field: Field) -> Option<Intervals> {
        let numbers = self.elements.as_ref()?;
        if !field.facts().is_in_host_order {
            return Some(numbers.clone());
        }
        // An interval whose bytes are swapped is no interval any more; nft swaps the field's bytes before it looks it up.
        let swapped = numbers.as_slice().iter().map(|&(first, last)| {
            let number = u32::try_from(first).ok().filter(|_| first == last)?;
            Some(u32::from_ne_bytes(number.to_be_bytes()))
        });
        swapped.collect::<Option<Vec<_>>>().map(Intervals::each)
    }

    /// The verdicts of a verdict map.
    pub fn verdicts(&self) -> impl Iterator<Item = &Action> {
        self.keys.iter().flat_map(|keys| keys.iter()).filter_map(|key| match &key.value {
            Some(Mapped::Verdict(action)) => Some(action),
            _ => None,
        })
    }
}

/// The field whose numbers one of native mode's sets holds.
pub fn set_field(set: &Set) -> Field {
    match set.bits {
        16 => Field::DestinationPort,
        32 => Field::Destination(Family::V4),
        _ => Field::Destination(Family::V6),
    }
}

/// The kernel's kind of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// As intervals, in a tree that has both ends of each (nft_set_rbtree.c).
    Intervals,
    /// As single numbers; 16 bits are looked up in a bitmap (nft_set_bitmap.c).
    Numbers,
    /// As single numbers in a hash table (nft_set_hash.c), which the kernel chooses for a set whose elements may expire,
    /// though none does here. Adding a number to a bitmap takes longer the more it holds (`nft_bitmap_insert`); a hash table
    /// is faster from some 300 on.
    Hashed,
}

impl Shape {
    /// The fastest shape to fill for the numbers of one of native mode's sets. It doesn't change the set's meaning, so
    /// a set of another shape is as good.
    pub fn of(set: &Set) -> Self {
        /// Filling a bitmap with more numbers takes longer than a hash table.
        const BITMAP: u128 = 128;
        if set_field(set) != Field::DestinationPort {
            return Self::Intervals;
        }
        // An interval has two elements.
        match set_size(set) {
            numbers if numbers > 2 * set.intervals().len() as u128 => Self::Intervals,
            ..=BITMAP => Self::Numbers,
            _ => Self::Hashed,
        }
    }
}

pub fn set_size(set: &Set) -> u128 {
    set.elements.as_ref().map_or(0, Intervals::size)
}

/// The elements that a set of native mode's has in its [`Shape`], each with both of its ends.
pub fn set_elements(set: &Set) -> Vec<(u128, u128)> {
    match Shape::of(set) {
        Shape::Intervals => set.intervals().to_vec(),
        Shape::Numbers | Shape::Hashed => {
            let numbers = set.elements.iter().flat_map(Intervals::numbers);
            numbers.map(|number| (number, number)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn native_modes_sets_are_known_by_their_bits() {
        let of = |bits| Set { bits, ..testing::ports("set", &[]) };
        assert_eq!(set_field(&of(16)), Field::DestinationPort);
        assert_eq!(set_field(&of(32)), Field::Destination(Family::V4));
        assert_eq!(set_field(&of(128)), Field::Destination(Family::V6));
    }

    #[test]
    fn a_sets_numbers_are_turned_round_for_fields_in_host_order() {
        let ports = testing::ports("set", &[(80, 90)]);
        let elements = Some(Intervals::new([(80, 90)]));
        assert_eq!(ports.numbers_of(Field::DestinationPort), elements);
        assert_eq!(ports.numbers_of(Field::Uid), None, "no interval any more");
        let uid = u32::from_ne_bytes(80u32.to_be_bytes());
        let uids = testing::ports("set", &[(80, 80)]).numbers_of(Field::Uid);
        assert_eq!(uids, Some(Intervals::one(uid.into())));
        let unknown = Set { elements: None, ..ports };
        assert_eq!(unknown.numbers_of(Field::DestinationPort), None);
    }

    #[test]
    fn a_set_has_the_shape_with_the_fewest_elements() {
        let singles = |count: u128| -> Vec<_> { (0..count).map(|port| (2 * port, 2 * port)).collect() };
        for (ports, shape) in [
            (vec![], Shape::Numbers),
            (singles(1), Shape::Numbers),
            (singles(128), Shape::Numbers),
            (singles(129), Shape::Hashed),
            // Two numbers take two elements either way.
            (vec![(80, 81)], Shape::Numbers),
            (vec![(80, 82)], Shape::Intervals),
            (vec![(80, 82), (90, 90)], Shape::Numbers),
            (vec![(80, 83), (90, 90)], Shape::Intervals),
        ] {
            assert_eq!(Shape::of(&testing::ports("set", &ports)), shape, "{ports:?}");
        }
        let addresses = Set { bits: 32, ..testing::ports("set", &[(1, 1)]) };
        assert_eq!(Shape::of(&addresses), Shape::Intervals);
    }
}
