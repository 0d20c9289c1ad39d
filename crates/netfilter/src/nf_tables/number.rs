//! The numbers that the bytes of registers stand for.

use packets::rules::{Field, interface};

use crate::netlink::message::number;

/// The number that these bytes of a whole field are.
pub(super) fn bits_of(field: Field, bytes: &[u8]) -> Option<u128> {
    let host_order = field.is_in_host_order();
    let (first, last) = interval(field, (field.bits() / 8) as usize, host_order, bytes)?;
    (first == last).then_some(first)
}

/// The numbers of a field whose first bytes are these: a single number or, if only part of an address or a name is
/// given, an interval.
pub(super) fn interval(field: Field, loaded: usize, host_order: bool, value: &[u8]) -> Option<(u128, u128)> {
    let bytes = (field.bits() / 8) as usize;
    if matches!(field, Field::InInterface | Field::OutInterface) {
        // For a whole name, nft compares all 16 bytes and iptables-nft the name with its NUL. A prefix has no NUL.
        if value.len() > bytes {
            return None;
        }
        let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
        if value.iter().skip(name.len()).any(|&byte| byte != 0) {
            return None; // no device has such a name
        }
        let first = interface(name);
        return Some(if name.len() < value.len() || value.len() == bytes {
            (first, first)
        } else {
            (first, first | u128::MAX.checked_shr(8 * name.len() as u32).unwrap_or(0))
        });
    }
    if value.len() != loaded || loaded > bytes {
        return None;
    }
    if host_order && cfg!(target_endian = "little") {
        let swapped: Vec<u8> = value.iter().rev().copied().collect();
        return Some((number(&swapped), number(&swapped)));
    }
    let rest = 8 * (bytes - loaded) as u32;
    let first = number(value).checked_shl(rest).unwrap_or(0);
    Some((first, first | (1u128.checked_shl(rest).unwrap_or(0).wrapping_sub(1))))
}

/// The addresses that equal this one under a mask, both as long as what was loaded; none if the mask has holes.
pub(super) fn network(field: Field, address: &[u8], mask: &[u8]) -> Option<(u128, u128)> {
    if address.len() != mask.len() {
        return None;
    }
    let bits = field.bits();
    let number = |bytes: &[u8]| number(bytes).checked_shl(bits - 8 * bytes.len() as u32);
    let (address, mask) = (number(address)?, number(mask)?);
    let hosts = field.largest() & !mask;
    // The bits outside the mask must be the last ones, and those of the address must be zero, or nothing would be
    // equal.
    let contiguous = hosts & hosts.wrapping_add(1) == 0;
    (contiguous && address & hosts == 0).then_some((address, address | hosts))
}
