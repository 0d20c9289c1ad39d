//! The program's exit codes.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    /// The command line is invalid.
    BadInput = 2,
    /// `verify` found other rules than those that the flags describe, or `explain` another answer than the expected
    /// one.
    Differs = 3,
    /// `validate` found that connections do not get to the proxy, or was ended by a signal; the number is
    /// linkerd-network-validator's.
    NotValidated = 95,
}

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }
}
