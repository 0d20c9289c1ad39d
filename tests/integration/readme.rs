//! The pictures in the README.

use std::fs;
use std::path::Path;

use lab::recording::{FILE, record};
use lab::shell::target;

use crate::support::PROXY_INIT;

/// The recording is what the program prints today.
#[test]
fn the_recording_is_of_this_program() {
    let recorded = record(Path::new(PROXY_INIT.as_str()));
    let shown = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap_or_default();
    if recorded != shown {
        let made = target("recording.svg");
        fs::write(&made, recorded).unwrap();
        panic!("{FILE} is out of date: cp {} {FILE}", made.display());
    }
}
