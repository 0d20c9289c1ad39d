//! What proxy-init and linkerd-cni have in common as processes that live for a millisecond: how they start, and with
//! musl the allocator and the clock.
//!
//! Without Rust's own start-up, `main` is C's. With glibc, that takes 85 µs: it reads /proc/self/maps to tell a stack
//! overflow from other crashes. With musl, it takes a dozen system calls.

#![allow(unsafe_code)] // for what C's start-up passes to main

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;

use proxy_init::start_up;

#[cfg(target_env = "musl")]
mod allocator;
#[cfg(target_env = "musl")]
mod c;

#[cfg(target_env = "musl")]
static FIRST: allocator::First = allocator::First::new();

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new(&FIRST);

/// Prepares the process, and returns its arguments. Without Rust's own start-up, std::env::args_os knows them with
/// glibc only, which passes them to a program's constructors too.
///
/// # Safety
/// `arguments` points to `count` strings that live as long as the process: what C's start-up passes to main.
pub(crate) unsafe fn start(count: c_int, arguments: *const *const c_char) -> impl Iterator<Item = OsString> {
    start_up::prepare();
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: there are `count` of them, and they stay where they are.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count) };
    arguments.iter().map(|&argument| {
        // SAFETY: each is a string that lives as long as the process.
        let argument = unsafe { CStr::from_ptr(argument) };
        OsStr::from_bytes(argument.to_bytes()).to_owned()
    })
}
