//! Types that the crate nftnl lacks: libnftnl's expressions that our rules need beside nftnl's own, and sets
//! whose type only a run knows, with their elements.

use std::ffi::{CStr, c_void};
use std::process::abort;
use std::ptr::{self, NonNull};

use nftnl::Rule;
use nftnl::expr::{Expression, Register};
use nftnl::nftnl_sys as sys;
use nftnl::set::{Set, SetKey};

/// The register that every expression of ours loads into and compares, as the crate nftnl's do.
const REGISTER: u32 = Register::Reg1 as u32;

/// The value of an expression's attribute.
enum Value<'a> {
    Number(u32),
    Text(&'a CStr),
    /// The value that a register is compared with.
    Data(&'a [u8]),
}

/// Makes an expression of this name; its attributes have libnftnl's numbers (`NFTNL_EXPR_*`), and the kinds of values that
/// libnftnl has for them.
fn make(name: &CStr, attributes: &[(u32, Value<'_>)]) -> NonNull<sys::nftnl_expr> {
    // SAFETY: the name is a string.
    let made = unsafe { sys::nftnl_expr_alloc(name.as_ptr()) };
    // As the crate nftnl does without memory, and Rust's own library.
    let Some(expression) = NonNull::new(made) else { abort() };
    for (attribute, value) in attributes {
        let number;
        let bytes = match value {
            Value::Number(value) => {
                number = value.to_ne_bytes();
                &number
            }
            Value::Text(text) => text.to_bytes_with_nul(),
            Value::Data(bytes) => bytes,
        };
        let (data, length) = (bytes.as_ptr().cast::<c_void>(), bytes.len() as u32);
        // SAFETY: libnftnl copies as many bytes as it is told, or as the attribute's type has: the same, as `make` is called.
        let set = unsafe { sys::nftnl_expr_set(expression.as_ptr(), *attribute as u16, data, length) };
        if set < 0 {
            abort();
        }
    }
    expression
}

/// `[ lookup reg 1 set SET ]`, of a set that is known by its name alone. nftnl's needs the set itself, and can't be
/// inverted.
pub(crate) struct Lookup<'a> {
    pub(crate) set: &'a CStr,
    pub(crate) inverted: bool,
}

impl Expression for Lookup<'_> {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let flags = if self.inverted { libc::NFT_LOOKUP_F_INV as u32 } else { 0 };
        make(
            c"lookup",
            &[
                (sys::NFTNL_EXPR_LOOKUP_SREG, Value::Number(REGISTER)),
                (sys::NFTNL_EXPR_LOOKUP_SET, Value::Text(self.set)),
                (sys::NFTNL_EXPR_LOOKUP_FLAGS, Value::Number(flags)),
            ],
        )
    }
}

/// `[ redir proto_min reg 1 ]`: to the port in the register.
pub(crate) struct Redirect {
    /// `NF_NAT_RANGE_*`
    pub(crate) flags: u32,
}

impl Expression for Redirect {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        make(
            c"redir",
            &[
                (sys::NFTNL_EXPR_REDIR_REG_PROTO_MIN, Value::Number(REGISTER)),
                (sys::NFTNL_EXPR_REDIR_FLAGS, Value::Number(self.flags)),
            ],
        )
    }
}

/// `[ byteorder reg 1 = hton(reg 1, 4, 4) ]`
pub(crate) struct ToNetworkOrder {
    pub(crate) bytes: u32,
}

impl Expression for ToNetworkOrder {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        make(
            c"byteorder",
            &[
                (sys::NFTNL_EXPR_BYTEORDER_SREG, Value::Number(REGISTER)),
                (sys::NFTNL_EXPR_BYTEORDER_DREG, Value::Number(REGISTER)),
                (sys::NFTNL_EXPR_BYTEORDER_OP, Value::Number(libc::NFT_BYTEORDER_HTON as u32)),
                (sys::NFTNL_EXPR_BYTEORDER_LEN, Value::Number(self.bytes)),
                (sys::NFTNL_EXPR_BYTEORDER_SIZE, Value::Number(self.bytes)),
            ],
        )
    }
}

/// `[ range eq reg 1 FIRST LAST ]`, or `neq`.
pub(crate) struct Range<'a> {
    pub(crate) negated: bool,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
}

impl Expression for Range<'_> {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let operation = if self.negated { libc::NFT_RANGE_NEQ } else { libc::NFT_RANGE_EQ };
        make(
            c"range",
            &[
                (sys::NFTNL_EXPR_RANGE_SREG, Value::Number(REGISTER)),
                (sys::NFTNL_EXPR_RANGE_OP, Value::Number(operation as u32)),
                (sys::NFTNL_EXPR_RANGE_FROM_DATA, Value::Data(self.first)),
                (sys::NFTNL_EXPR_RANGE_TO_DATA, Value::Data(self.last)),
            ],
        )
    }
}

/// An xt match or target, through nft_compat.
pub(crate) struct XtEntry<'a> {
    pub(crate) is_target: bool,
    pub(crate) name: &'static CStr,
    pub(crate) revision: u32,
    /// The extension's own structure.
    pub(crate) info: &'a [u8],
}

impl Expression for XtEntry<'_> {
    fn to_expr(&self, _: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        let (kind, [name, revision, info]) = if self.is_target {
            (c"target", [sys::NFTNL_EXPR_TG_NAME, sys::NFTNL_EXPR_TG_REV, sys::NFTNL_EXPR_TG_INFO])
        } else {
            (c"match", [sys::NFTNL_EXPR_MT_NAME, sys::NFTNL_EXPR_MT_REV, sys::NFTNL_EXPR_MT_INFO])
        };
        let expression = make(kind, &[(name, Value::Text(self.name)), (revision, Value::Number(self.revision))]);
        // libnftnl reads it up to a multiple of 8 (`XT_ALIGN`).
        let length = self.info.len().next_multiple_of(8);
        // SAFETY: it takes any size.
        let Some(copy) = NonNull::new(unsafe { libc::calloc(1, length) }) else { abort() };
        // SAFETY: the copy is new, and has room for the whole structure.
        unsafe { ptr::copy_nonoverlapping(self.info.as_ptr(), copy.as_ptr().cast(), self.info.len()) };
        // SAFETY: of this attribute alone, libnftnl takes C's memory over, and frees it with the expression.
        unsafe { sys::nftnl_expr_set(expression.as_ptr(), info as u16, copy.as_ptr(), length as u32) };
        expression
    }
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

/// The attributes of a set that are numbers.
#[derive(Default)]
pub(crate) struct SetAttributes {
    /// nft's number for the type of its elements.
    pub(crate) key_type: u32,
    /// In bytes.
    pub(crate) key_length: u32,
    /// `NFT_SET_*`
    pub(crate) flags: u32,
    /// In milliseconds.
    pub(crate) collects_every: Option<u32>,
    pub(crate) size: Option<u32>,
}

pub(crate) fn describe_set(set: &mut Set<'_, AnyKey>, shape: &SetAttributes, user_data: &[u8]) {
    let numbers = [
        (sys::NFTNL_SET_KEY_TYPE, Some(shape.key_type)),
        (sys::NFTNL_SET_KEY_LEN, Some(shape.key_length)),
        (sys::NFTNL_SET_FLAGS, Some(shape.flags)),
        (sys::NFTNL_SET_GC_INTERVAL, shape.collects_every),
        (sys::NFTNL_SET_DESC_SIZE, shape.size),
    ];
    for (attribute, number) in numbers {
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
