//! The program's exit codes.

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The user's request is done.
    Done = 0,
    /// The error says why.
    Failed = 1,
    /// The command line is invalid.
    BadInput = 2,
    /// `verify` found other rules than those that the flags describe, or `explain` not the expected answer.
    Differs = 3,
    /// `validate` saw no connection get to the proxy, or a signal: linkerd-network-validator's number.
    NotValidated = 95,
}

impl Exit {
    /// The meaning of [`Exit::BadInput`], in help.
    pub(crate) const BAD_INPUT: &str = "the command line is invalid; nothing was changed";

    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }
}
