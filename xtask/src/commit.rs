//! The commit that is checked out: what a release is made of, and the only time in it.

use std::process::Command;

use lab::shell::{Result, Run as _, root};

pub(crate) struct Commit {
    /// All forty digits.
    pub(crate) hash: String,
    /// When it was made, in seconds since 1970.
    pub(crate) seconds: String,
    /// The same, by ISO 8601.
    pub(crate) time: String,
    /// The checkout differs from it.
    pub(crate) is_modified: bool,
}

impl Commit {
    pub(crate) fn of_checkout() -> Result<Self> {
        let say = |format: &str| -> Result<String> { Ok(git(&["log", "-1", format]).read()?.trim().to_owned()) };
        Ok(Self {
            hash: say("--format=%H")?,
            seconds: say("--format=%ct")?,
            time: say("--format=%cI")?,
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
