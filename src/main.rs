//! Parse, run, exit code.

#![no_main] // see crates/start-up
#![allow(unsafe_code)] // for C's main to be found by its name, and for ioctl(2)

use std::env;
use std::ffi::{c_char, c_int};

use proxy_init::cli::{self, report};

// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: C's start-up passes these to main.
    let arguments = unsafe { start_up::start(count, arguments) };
    let exit = match cli::parse(arguments, |name| env::var_os(name)) {
        Ok(command) => report::run(command, columns()),
        Err(error) => report::refuse(error),
    };
    exit.code().into()
}

/// The columns of the terminal that is stdout.
fn columns() -> Option<u16> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes a `winsize` there, or nothing.
    let answer = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0 && size.ws_col > 0).then_some(size.ws_col)
}
