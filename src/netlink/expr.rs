//! nf_tables expressions, the pieces that a rule is made of. Each constructor is one line of
//! `nft --debug=netlink list ruleset`.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

/// The register that every expression here loads into and compares.
const REGISTER: u32 = libc::NFT_REG_1 as u32;

/// An expression on its way into a rule.
pub(crate) struct Expr(NonNull<sys::nftnl_expr>);

/// Which header a payload expression reads from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Header {
    /// `NFT_PAYLOAD_NETWORK_HEADER`
    Network,
}

/// Where evaluation goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict<'a> {
    /// Back to the calling chain.
    Return,
    /// On to this chain, and back from it.
    Jump(&'a CStr),
}

impl Expr {
    /// `[ meta load KEY => reg 1 ]`; the key is one of `NFT_META_*`.
    pub(crate) fn meta(key: i32) -> Self {
        Self::new(c"meta")
            .u32(sys::NFTNL_EXPR_META_KEY, key as u32)
            .u32(sys::NFTNL_EXPR_META_DREG, REGISTER)
    }

    /// `[ cmp eq reg 1 DATA ]`
    pub(crate) fn equals(data: &[u8]) -> Self {
        Self::new(c"cmp")
            .u32(sys::NFTNL_EXPR_CMP_SREG, REGISTER)
            .u32(sys::NFTNL_EXPR_CMP_OP, libc::NFT_CMP_EQ as u32)
            .bytes(sys::NFTNL_EXPR_CMP_DATA, data)
    }

    /// `[ payload load LENGTH @ HEADER + OFFSET => reg 1 ]`
    pub(crate) fn payload(header: Header, offset: u32, length: u32) -> Self {
        let base = match header {
            Header::Network => libc::NFT_PAYLOAD_NETWORK_HEADER,
        };
        Self::new(c"payload")
            .u32(sys::NFTNL_EXPR_PAYLOAD_DREG, REGISTER)
            .u32(sys::NFTNL_EXPR_PAYLOAD_BASE, base as u32)
            .u32(sys::NFTNL_EXPR_PAYLOAD_OFFSET, offset)
            .u32(sys::NFTNL_EXPR_PAYLOAD_LEN, length)
    }

    /// `[ bitwise reg 1 = ( reg 1 & MASK ) ^ 0 ]`
    pub(crate) fn mask(mask: &[u8]) -> Self {
        Self::new(c"bitwise")
            .u32(sys::NFTNL_EXPR_BITWISE_SREG, REGISTER)
            .u32(sys::NFTNL_EXPR_BITWISE_DREG, REGISTER)
            .u32(sys::NFTNL_EXPR_BITWISE_LEN, mask.len() as u32)
            .bytes(sys::NFTNL_EXPR_BITWISE_MASK, mask)
            .bytes(sys::NFTNL_EXPR_BITWISE_XOR, &vec![0; mask.len()])
    }

    /// `[ counter pkts 0 bytes 0 ]`
    pub(crate) fn counter() -> Self {
        Self::new(c"counter")
    }

    /// `[ immediate reg 0 VERDICT ]`
    pub(crate) fn verdict(verdict: Verdict<'_>) -> Self {
        let expr = Self::new(c"immediate").u32(sys::NFTNL_EXPR_IMM_DREG, libc::NFT_REG_VERDICT as u32);
        match verdict {
            Verdict::Return => expr.u32(sys::NFTNL_EXPR_IMM_VERDICT, libc::NFT_RETURN as u32),
            Verdict::Jump(chain) => expr
                .u32(sys::NFTNL_EXPR_IMM_VERDICT, libc::NFT_JUMP as u32)
                .string(sys::NFTNL_EXPR_IMM_CHAIN, chain),
        }
    }

    /// `[ match name NAME rev REVISION ]`: an xt match, through nft_compat.
    pub(crate) fn xt_match(name: &CStr, revision: u32, info: &[u8]) -> Self {
        Self::new(c"match")
            .string(sys::NFTNL_EXPR_MT_NAME, name)
            .u32(sys::NFTNL_EXPR_MT_REV, revision)
            .xt_info(sys::NFTNL_EXPR_MT_INFO, info)
    }

    /// `[ target name NAME rev REVISION ]`: an xt target, through nft_compat.
    pub(crate) fn xt_target(name: &CStr, revision: u32, info: &[u8]) -> Self {
        Self::new(c"target")
            .string(sys::NFTNL_EXPR_TG_NAME, name)
            .u32(sys::NFTNL_EXPR_TG_REV, revision)
            .xt_info(sys::NFTNL_EXPR_TG_INFO, info)
    }

    fn new(name: &CStr) -> Self {
        // SAFETY: `name` is a C string. The result is null when memory is short or libnftnl doesn't know the name; it
        // has known all of those above since 1.0.6, the oldest that nftnl-sys accepts.
        Self(allocated(unsafe { sys::nftnl_expr_alloc(name.as_ptr()) }))
    }

    fn u32(self, attribute: u32, value: u32) -> Self {
        // SAFETY: the expression is live.
        unsafe { sys::nftnl_expr_set_u32(self.0.as_ptr(), attribute as u16, value) };
        self
    }

    fn string(self, attribute: u32, value: &CStr) -> Self {
        // SAFETY: the expression is live, `value` is a C string, and libnftnl copies it.
        let result = unsafe { sys::nftnl_expr_set_str(self.0.as_ptr(), attribute as u16, value.as_ptr()) };
        if result < 0 {
            out_of_memory();
        }
        self
    }

    fn bytes(self, attribute: u32, value: &[u8]) -> Self {
        // SAFETY: the expression is live and libnftnl copies as many bytes as it is told, up to a register's size.
        let result = unsafe {
            sys::nftnl_expr_set(
                self.0.as_ptr(),
                attribute as u16,
                value.as_ptr().cast::<c_void>(),
                value.len() as u32,
            )
        };
        if result < 0 {
            out_of_memory();
        }
        self
    }

    /// An xt extension's own structure. libnftnl does not copy this one: it keeps the pointer and frees it with the
    /// expression (nftnl_expr_match_set, nftnl_expr_target_set), so it must come from malloc.
    fn xt_info(self, attribute: u32, info: &[u8]) -> Self {
        // SAFETY: plain allocation.
        let copy = allocated(unsafe { libc::malloc(info.len()) });
        // SAFETY: `copy` was just allocated with info's length.
        unsafe { copy.cast::<u8>().copy_from(NonNull::from(info).cast(), info.len()) };
        // SAFETY: the expression is live and takes the ownership of `copy`.
        let result = unsafe {
            sys::nftnl_expr_set(
                self.0.as_ptr(),
                attribute as u16,
                copy.as_ptr().cast_const(),
                info.len() as u32,
            )
        };
        if result < 0 {
            out_of_memory();
        }
        self
    }

    /// Gives the expression to a rule, which frees it.
    pub(super) fn into_raw(self) -> NonNull<sys::nftnl_expr> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Expr {
    fn drop(&mut self) {
        // SAFETY: the expression is live and in no rule: into_raw() forgets it.
        unsafe { sys::nftnl_expr_free(self.0.as_ptr()) };
    }
}

/// A pointer from malloc or from libnftnl's allocators, which return null only when memory is short.
pub(super) fn allocated<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).unwrap_or_else(|| out_of_memory())
}

/// What Rust's own allocations do when memory is short.
pub(super) fn out_of_memory() -> ! {
    handle_alloc_error(Layout::new::<usize>())
}
