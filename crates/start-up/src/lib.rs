//! The start of a process of half a millisecond. README.md has the worth of each piece.
//!
//! A program that uses this crate, and is linked with musl, gets its allocator.

#[cfg(any(test, target_env = "musl"))]
mod allocator;
#[cfg(any(test, target_env = "musl"))]
mod c;
mod prepare;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;

#[cfg(target_env = "musl")]
static FIRST: allocator::First = allocator::First::new();

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator::new(&FIRST);

/// Prepares a process whose `main` is C's, and returns its arguments: without Rust's own start-up, std::env::args_os knows
/// them with glibc only. That start-up takes 3 % of a run, and puts /dev/null in the place of a closed stdout: what can't
/// be printed would be no error.
///
/// # Safety
/// `arguments` points to `count` strings that live as long as the process: what C's start-up passes to main.
#[allow(unsafe_code)] // for what C's start-up passes to main
pub unsafe fn start(count: c_int, arguments: *const *const c_char) -> impl Iterator<Item = OsString> {
    prepare::prepare();
    let count = usize::try_from(count).unwrap_or_default();
    // SAFETY: there are `count` of them, and they stay where they are.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, count) };
    arguments.iter().map(|&argument| {
        // SAFETY: each is a string that lives as long as the process.
        let argument = unsafe { CStr::from_ptr(argument) };
        OsStr::from_bytes(argument.to_bytes()).to_owned()
    })
}
