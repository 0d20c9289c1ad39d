//! C's malloc, from the program's allocator.
//!
//! libnftnl allocates its objects, libmnl a few bytes for a socket, and musl itself for posix_spawn(3) and whatever Rust's
//! library has it do.
//! For the first of them, musl's own malloc makes five system calls and touches two new pages.

// C calls them, by their names.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc as resize};
use std::ffi::c_void;
use std::ptr;

/// Before each block is its size. C's blocks are aligned to this, in bytes.
const BEFORE: usize = 16;

/// The layout of a block with the bytes before it.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(BEFORE)?, BEFORE).ok()
}

/// Notes the size before a block, and returns the block; null if there is none.
///
/// # Safety
/// It is null, or was allocated with this layout.
unsafe fn noted(whole: *mut u8, layout: Layout) -> *mut c_void {
    if whole.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: there is room for it, and it is aligned.
    unsafe { whole.cast::<usize>().write(layout.size()) };
    whole.wrapping_add(BEFORE).cast()
}

/// Recovers the allocation of a block that `noted` made.
///
/// # Safety
/// The block is of `noted`, and in use.
unsafe fn whole(block: *mut c_void) -> (*mut u8, Layout) {
    let whole = block.cast::<u8>().wrapping_sub(BEFORE);
    // SAFETY: `noted` wrote it there.
    let size = unsafe { whole.cast::<usize>().read() };
    // SAFETY: it was one when the block was allocated.
    (whole, unsafe { Layout::from_size_align_unchecked(size, BEFORE) })
}

// SAFETY: it is C's malloc in every way that counts: null if there is no memory.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    let Some(layout) = layout(size) else {
        return ptr::null_mut();
    };
    // SAFETY: its size isn't 0.
    let whole = unsafe { alloc(layout) };
    // SAFETY: that was allocated with it.
    unsafe { noted(whole, layout) }
}

// SAFETY: it is C's calloc.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(layout) = count.checked_mul(size).and_then(layout) else {
        return ptr::null_mut();
    };
    // SAFETY: its size isn't 0.
    let whole = unsafe { alloc_zeroed(layout) };
    // SAFETY: that was allocated with it.
    unsafe { noted(whole, layout) }
}

// SAFETY: it is C's realloc.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        // SAFETY: it takes any size.
        return unsafe { malloc(size) };
    }
    let Some(new) = layout(size) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller has it of one of these functions.
    let (old, layout) = unsafe { whole(block) };
    // SAFETY: it was allocated with this layout, and the new size is one that a layout can have.
    let whole = unsafe { resize(old, layout, new.size()) };
    // SAFETY: now it is of the new layout.
    unsafe { noted(whole, new) }
}

// SAFETY: it is C's free.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller has it of one of these functions.
    let (whole, layout) = unsafe { whole(block) };
    // SAFETY: it was allocated with this layout, and nobody uses it any more.
    unsafe { dealloc(whole, layout) };
}

// SAFETY: musl itself calls this instead of malloc.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    // SAFETY: it takes any size.
    unsafe { malloc(size) }
}

// SAFETY: musl itself calls this instead of free.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __libc_free(block: *mut c_void) {
    // SAFETY: the caller has it of one of these functions.
    unsafe { free(block) }
}
