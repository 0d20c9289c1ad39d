//! Reading files that others wrote.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

/// A regular file of at most so many bytes: anything else is a mistake, and could be waited for, or read, for ever.
///
/// # Errors
/// It is something else, is longer, or can't be read.
pub fn read(path: &Path, longest: usize) -> io::Result<Vec<u8>> {
    // A pipe would be waited for.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(longest as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > longest {
        return Err(io::Error::other(format!("it is longer than {longest} bytes")));
    }
    Ok(bytes)
}
