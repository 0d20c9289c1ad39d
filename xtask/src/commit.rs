//! The commit that is checked out: what a release is made of, and the only time in it.

use std::process::Command;

use lab::shell::{Result, Run as _, root};

pub(crate) struct Commit {
    /// All forty digits.
    pub(crate) hash: String,
    /// When it was made, in seconds since 1970.
    pub(crate) seconds: String,
    /// The checkout differs from it.
    pub(crate) is_modified: bool,
}

impl Commit {
    pub(crate) fn of_checkout() -> Result<Self> {
        let said = git(&["log", "-1", "--format=%H %ct"]).read()?;
        let (hash, seconds) = said.trim().split_once(' ').ok_or("git log names no commit")?;
        Ok(Self {
            hash: hash.to_owned(),
            seconds: seconds.to_owned(),
            is_modified: !git(&["status", "--porcelain"]).read()?.is_empty(),
        })
    }
}

/// git in the checkout.
pub(crate) fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(root()).args(arguments);
    command
}
