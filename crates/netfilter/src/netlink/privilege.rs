//! What this process may do. It is in this module because it needs `unsafe`.

use nix::errno::Errno;

/// Whether the kernel gave the program privileges when it started it, which the user who did so need not have: by file
/// capabilities, or by a set-user-ID or set-group-ID bit (`AT_SECURE` in getauxval(3); `bprm->secureexec` in
/// security/commoncap.c). What that user wrote into the environment is not to be trusted then.
pub fn is_borrowed() -> bool {
    // SAFETY: getauxval takes any number, and reads what the kernel wrote onto this process's stack.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Leaves the calling thread, and the programs that it executes, with these capabilities alone (capset(2)): a bit each,
/// by their numbers in linux/capability.h. All of them must be permitted.
pub fn keep(capabilities: u32) -> Result<(), Errno> {
    const VERSION_3: u32 = 0x2008_0522;
    // struct __user_cap_header_struct: version and thread, 0 for the calling one. Two of struct __user_cap_data_struct,
    // of 32 capabilities each: effective, permitted, inheritable.
    let header: [u32; 2] = [VERSION_3, 0];
    let data: [u32; 6] = [capabilities, capabilities, capabilities, 0, 0, 0];
    // SAFETY: the kernel reads the two structures, and writes only the header's version if it doesn't know that.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    for number in (0..u32::BITS).filter(|number| capabilities & (1 << number) != 0) {
        let (raise, number) = (libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, libc::c_ulong::from(number));
        // What anybody but root executes gets only what is ambient, or what its file capabilities say. Where this is
        // refused, the program says what it lacks.
        // SAFETY: the call takes numbers only.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, number, 0, 0) };
    }
    Ok(())
}
