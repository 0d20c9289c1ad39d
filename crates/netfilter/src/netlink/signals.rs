//! Handles signals while another thread, or commands that the program has started, work for it.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};

/// While this lives, signals to the calling thread wait, but for those that nobody can hold back (SIGKILL, SIGSTOP). A
/// signal to the whole process waits too, unless another thread of it takes it.
#[derive(Debug)]
pub struct Held(Option<SigSet>);

pub fn hold() -> Held {
    Held(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok())
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = before.thread_set_mask();
        }
    }
}

/// Has the kernel keep how a child of this process ended until it is asked. It doesn't where SIGCHLD is ignored, as a
/// program inherits it from whoever started it, or where its handler has SA_NOCLDWAIT (sigaction(2)).
pub fn keep_ended_children() -> Result<(), Errno> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set, and the kernel's answer is of this type.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, std::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so that it is filled in.
    let mut action = unsafe { action.assume_init() };
    let is_ignored = action.sa_sigaction == libc::SIG_IGN;
    if is_ignored {
        action.sa_sigaction = libc::SIG_DFL;
    } else if action.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: the action is the default one, or the handler that was there.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, null_mut()) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, Signal, sigaction};

    use super::*;
    use crate::tests::namespace::CHILDREN;

    #[test]
    fn how_a_child_ended_is_known_whatever_was_inherited() {
        let _alone = CHILDREN.lock();
        let forgetting = [
            SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty()),
            SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDWAIT, SigSet::empty()),
        ];
        for action in forgetting {
            // SAFETY: it has no handler.
            unsafe { sigaction(Signal::SIGCHLD, &action) }.unwrap();
            assert!(Command::new("true").status().is_err());
            keep_ended_children().unwrap();
            assert!(Command::new("true").status().unwrap().success());
        }
        extern "C" fn handler(_: libc::c_int) {}
        let kept = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGCHLD, &kept) }.unwrap();
        keep_ended_children().unwrap();
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: it has no handler.
        let action = unsafe { sigaction(Signal::SIGCHLD, &default) }.unwrap();
        assert!(matches!(action.handler(), SigHandler::Handler(_)));
    }

    #[test]
    fn signals_wait_as_long_as_they_are_held() {
        let held = hold();
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
        drop(held);
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
    }
}
