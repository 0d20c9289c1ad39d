//! Types that the crate nftnl lacks: libnftnl's expressions that our rules need beside nftnl's own, and sets
//! whose type only a run knows, with their elements.

use std::ffi::CStr;
use std::process::abort;
use std::ptr::{self, NonNull};

use nftnl::Rule;
use nftnl::expr::{Expression, Register};
use nftnl::nftnl_sys as sys;
use nftnl::set::{Set, SetKey};

use self::Value::{Data, Number, Structure, Text};
use crate::xt::Extension;

/// The register that every expression of ours loads into and compares, as the crate nftnl's do.
const REGISTER: u32 = Register::Reg1 as u32;

/// The value of an expression's attribute.
enum Value<'a> {
    Number(u32),
    Text(&'a CStr),
    /// The value that a register is compared with.
    Data(&'a [u8]),
    /// The structure of an xt match or target.
    Structure(&'a [u8]),
}

/// An expression of this name; its attributes have libnftnl's numbers (`NFTNL_EXPR_*`), and the kinds of values that libnftnl
/// has for them.
struct Made<'a>(&'static CStr, &'a [(u32, Value<'a>)]);

impl Expression for Made<'_> {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let Self(name, attributes) = self;
        // SAFETY: the name is a string.
        let made = unsafe { sys::nftnl_expr_alloc(name.as_ptr()) };
        // As the crate nftnl does without memory, and Rust's own library.
        let Some(expression) = NonNull::new(made) else { abort() };
        for (attribute, value) in *attributes {
            let number;
            let (data, length) = match value {
                Number(value) => {
                    number = value.to_ne_bytes();
                    (number.as_ptr(), number.len())
                }
                Text(text) => (text.as_ptr().cast(), text.to_bytes_with_nul().len()),
                Data(bytes) => (bytes.as_ptr(), bytes.len()),
                Structure(bytes) => {
                    // libnftnl reads it up to a multiple of 8 (`XT_ALIGN`).
                    let length = bytes.len().next_multiple_of(8);
                    // SAFETY: it takes any size.
                    let Some(copy) = NonNull::new(unsafe { libc::calloc(1, length) }) else { abort() };
                    // SAFETY: the copy is new, and has room for the whole structure.
                    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_ptr().cast(), bytes.len()) };
                    (copy.as_ptr().cast_const().cast(), length)
                }
            };
            // SAFETY: libnftnl copies as many bytes as it is told, or as the attribute's type has: the same, as this is
            // made. Of a structure alone, it takes C's memory over, and frees it with the expression.
            let set =
                unsafe { sys::nftnl_expr_set(expression.as_ptr(), *attribute as u16, data.cast(), length as u32) };
            if set < 0 {
                abort();
            }
        }
        expression
    }
}

/// Adds `[ lookup reg 1 set SET ]`, of a set that is known by its name alone. nftnl's needs the set itself, and can't be
/// inverted.
pub(crate) fn add_lookup(to: &mut Rule<'_>, set: &CStr, inverted: bool) {
    let flags = if inverted { libc::NFT_LOOKUP_F_INV as u32 } else { 0 };
    let attributes = [
        (sys::NFTNL_EXPR_LOOKUP_SREG, Number(REGISTER)),
        (sys::NFTNL_EXPR_LOOKUP_SET, Text(set)),
        (sys::NFTNL_EXPR_LOOKUP_FLAGS, Number(flags)),
    ];
    to.add_expr(&Made(c"lookup", &attributes));
}

/// Adds `[ redir proto_min reg 1 ]`: to the port in the register, with these `NF_NAT_RANGE_*`.
pub(crate) fn add_redirect(to: &mut Rule<'_>, flags: u32) {
    let attributes =
        [(sys::NFTNL_EXPR_REDIR_REG_PROTO_MIN, Number(REGISTER)), (sys::NFTNL_EXPR_REDIR_FLAGS, Number(flags))];
    to.add_expr(&Made(c"redir", &attributes));
}

/// Adds `[ byteorder reg 1 = hton(reg 1, 4, 4) ]`, for a number of so many bytes.
pub(crate) fn add_to_network_order(to: &mut Rule<'_>, bytes: u32) {
    let attributes = [
        (sys::NFTNL_EXPR_BYTEORDER_SREG, Number(REGISTER)),
        (sys::NFTNL_EXPR_BYTEORDER_DREG, Number(REGISTER)),
        (sys::NFTNL_EXPR_BYTEORDER_OP, Number(libc::NFT_BYTEORDER_HTON as u32)),
        (sys::NFTNL_EXPR_BYTEORDER_LEN, Number(bytes)),
        (sys::NFTNL_EXPR_BYTEORDER_SIZE, Number(bytes)),
    ];
    to.add_expr(&Made(c"byteorder", &attributes));
}

/// Adds `[ range eq reg 1 FIRST LAST ]`, or `neq`.
pub(crate) fn add_range(to: &mut Rule<'_>, negated: bool, first: &[u8], last: &[u8]) {
    let operation = if negated { libc::NFT_RANGE_NEQ } else { libc::NFT_RANGE_EQ };
    let attributes = [
        (sys::NFTNL_EXPR_RANGE_SREG, Number(REGISTER)),
        (sys::NFTNL_EXPR_RANGE_OP, Number(operation as u32)),
        (sys::NFTNL_EXPR_RANGE_FROM_DATA, Data(first)),
        (sys::NFTNL_EXPR_RANGE_TO_DATA, Data(last)),
    ];
    to.add_expr(&Made(c"range", &attributes));
}

/// Adds an xt match or target, through nft_compat, with the extension's own structure.
pub(crate) fn add_extension(to: &mut Rule<'_>, extension: Extension, info: &[u8]) {
    let (kind, [name, revision, structure]) = if extension.is_target() {
        (c"target", [sys::NFTNL_EXPR_TG_NAME, sys::NFTNL_EXPR_TG_REV, sys::NFTNL_EXPR_TG_INFO])
    } else {
        (c"match", [sys::NFTNL_EXPR_MT_NAME, sys::NFTNL_EXPR_MT_REV, sys::NFTNL_EXPR_MT_INFO])
    };
    let attributes =
        [(name, Text(extension.name())), (revision, Number(extension.revision().into())), (structure, Structure(info))];
    to.add_expr(&Made(kind, &attributes));
}

/// The key of a set whose type and length are set later, because only a run knows them.
pub(crate) enum AnyKey {}

impl SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        match *self {}
    }
}

/// Sets those of these attributes of a set (`NFTNL_SET_*`) that it has, which are numbers, and its user data.
pub(crate) fn describe_set(set: &mut Set<'_, AnyKey>, numbers: &[(u32, Option<u32>)], user_data: &[u8]) {
    for &(attribute, number) in numbers {
        if let Some(number) = number {
            // SAFETY: the set is there, and each of these attributes is a number of 32 bits.
            unsafe { sys::nftnl_set_set_u32(set.as_ptr().as_ptr(), attribute as u16, number) };
        }
    }
    let (data, length) = (user_data.as_ptr().cast(), user_data.len() as u32);
    // SAFETY: libnftnl copies so many bytes.
    unsafe { sys::nftnl_set_set_data(set.as_ptr().as_ptr(), sys::NFTNL_SET_USERDATA as u16, data, length) };
}

/// Adds an element to a set: its key, of at most 16 bytes; `is_end` for the end of an interval.
pub(crate) fn add_element(set: &mut Set<'_, AnyKey>, key: &[u8], is_end: bool) {
    // SAFETY: it takes nothing.
    let Some(element) = NonNull::new(unsafe { sys::nftnl_set_elem_alloc() }) else { abort() };
    let (data, length) = (key.as_ptr().cast(), key.len() as u32);
    // SAFETY: libnftnl copies so many bytes, and has room for 64.
    unsafe { sys::nftnl_set_elem_set(element.as_ptr(), sys::NFTNL_SET_ELEM_KEY as u16, data, length) };
    if is_end {
        let (attribute, flag) = (sys::NFTNL_SET_ELEM_FLAGS as u16, libc::NFT_SET_ELEM_INTERVAL_END as u32);
        // SAFETY: the attribute is a number of 32 bits.
        unsafe { sys::nftnl_set_elem_set_u32(element.as_ptr(), attribute, flag) };
    }
    // SAFETY: both are there, and the element, which is in no other set, is the set's from here on.
    unsafe { sys::nftnl_set_elem_add(set.as_ptr().as_ptr(), element.as_ptr()) };
}
