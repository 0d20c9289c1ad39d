//! What this process may do. It is in this module because it needs `unsafe`.

/// Whether the kernel gave the program privileges when it started it, which the user who did so need not have: by file
/// capabilities, or by a set-user-ID or set-group-ID bit (`AT_SECURE` in getauxval(3); `bprm->secureexec` in
/// security/commoncap.c). What that user wrote into the environment is not to be trusted then.
pub fn is_borrowed() -> bool {
    // SAFETY: getauxval takes any number, and reads what the kernel wrote onto this process's stack.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    /// What lends some is tried with the whole program.
    #[test]
    fn whoever_runs_tests_borrows_none() {
        assert!(!super::is_borrowed());
    }
}
