//! This process's privileges. The file is in this module because it needs `unsafe`.

/// Returns true if the kernel gave the program privileges at its start that the starting user need not have: by file
/// capabilities, or by a set-user-ID or set-group-ID bit (`AT_SECURE` in getauxval(3); `bprm->secureexec` in
/// security/commoncap.c). What that user wrote into the environment is not to be trusted then.
pub fn is_borrowed() -> bool {
    // SAFETY: getauxval takes any number, and reads what the kernel wrote onto this process's stack.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    /// Lent privileges are tried with the whole program.
    #[test]
    fn whoever_runs_tests_borrows_none() {
        assert!(!super::is_borrowed());
    }
}
