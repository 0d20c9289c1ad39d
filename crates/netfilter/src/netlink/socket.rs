//! The socket to nfnetlink: sends a batch or a request, and receives the kernel's answer.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, RawFd};
use std::ptr::NonNull;

use mnl::{Bus, mnl_sys};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};
use thiserror::Error;

use super::batch::FinishedBatch;
use super::message::{Attributes, Malformed, Message, Messages, Request, string, u32_at};
use super::sockopt::get_option;

/// Room for any datagram of a dump: the kernel makes them at most 32 KiB long (netlink_recvmsg() and netlink_dump() in
/// net/netlink/af_netlink.c).
const ANSWER: usize = 32 * 1024;

sockopt_impl!(CapAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, bool);
sockopt_impl!(ExtAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool);

/// In linux/netlink.h.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A netlink socket in the network namespace of the thread that opened it.
pub struct Socket {
    socket: MnlSocket,
    /// The buffer for answers to requests; made with the first one.
    answer: RefCell<Vec<u8>>,
}

/// libmnl's socket. The crate mnl would open it without SOCK_CLOEXEC: every program that an embedding program starts
/// meanwhile would inherit it.
struct MnlSocket(NonNull<mnl_sys::mnl_socket>);

impl MnlSocket {
    fn open(bus: Bus) -> Result<Self, Errno> {
        // SAFETY: the call takes numbers only.
        let socket = unsafe { mnl_sys::mnl_socket_open2(bus as libc::c_int, libc::SOCK_CLOEXEC) };
        NonNull::new(socket).map(Self).ok_or_else(Errno::last)
    }
}

impl AsFd for MnlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open until it is dropped.
        let descriptor = unsafe { mnl_sys::mnl_socket_get_fd(self.0.as_ptr()) };
        // SAFETY: the same.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}

impl Drop for MnlSocket {
    fn drop(&mut self) {
        // SAFETY: the socket is open, and nothing uses it after this. An error, which it frees the socket on as well,
        // would be about closing alone.
        unsafe { mnl_sys::mnl_socket_close(self.0.as_ptr()) };
    }
}

#[derive(Debug, Clone)]
pub enum CommitError {
    /// The batch could not be sent: nothing has changed.
    NotSent(Errno),
    /// The batch was sent, but the kernel's answer could not be received: the batch may be committed or not.
    Unanswered(Errno),
    /// The batch was sent, but the kernel's answer makes no sense: the batch may be committed or not.
    Malformed(Malformed),
    /// The ruleset is not at the generation that the batch is for.
    OtherGeneration,
    /// The kernel refused the batch as a whole: no privilege, no nf_tables, or the commit itself failed.
    Refused(Errno, String),
    /// These messages are bad; there is at least one.
    Messages(Vec<Failure>),
}

#[derive(Debug, Error)]
pub enum ReadError {
    /// The kernel's answer is this error, or it can't be received.
    #[error("{0}")]
    Socket(#[from] Errno),
    /// The request could not be sent, perhaps because of a security module or a seccomp filter. As the kernel's answer, the
    /// errno would mean something else.
    #[error("{0}")]
    NotAsked(Errno),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Another program changed the rules during a dump, which may lack some rules and have others twice (`NLM_F_DUMP_INTR`).
    #[error("the rules changed while they were read")]
    Interrupted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The message's number, from 1.
    pub sequence: u32,
    pub errno: Errno,
    /// The kernel's explanation (its extended acknowledgement); often empty.
    pub text: String,
}

impl Socket {
    /// Opens a socket. It isn't bound to an address: the kernel does that when the first message is sent.
    pub fn open() -> Result<Self, Errno> {
        Self::open_bus(Bus::Netfilter)
    }

    /// Opens a socket to another part of the kernel.
    pub(super) fn open_bus(bus: Bus) -> Result<Self, Errno> {
        let socket = MnlSocket::open(bus)?;
        // Asks for errors without a copy of the message that caused them, but with the kernel's explanation. Kernels
        // that are too old for these options (before 4.12) answer in the old form.
        let _ = setsockopt(&socket, CapAck, &true);
        let _ = setsockopt(&socket, ExtAck, &true);
        Ok(Self { socket, answer: RefCell::default() })
    }

    /// The number of the network namespace that the socket is in, which no other gets until the next boot. `ENOPROTOOPT`: the
    /// kernel has no such numbers, as before 5.14.
    pub fn namespace(&self) -> Result<u64, Errno> {
        let mut number = [0; 8];
        get_option(&self.socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut number)?;
        Ok(u64::from_ne_bytes(number))
    }

    /// Sends a batch whose last message asks for an acknowledgement, and receives the outcome.
    ///
    /// The kernel has answered by the time `sendmsg` returns: with an error for each bad message, in their order, and
    /// the acknowledgement last. So if the first answer is the acknowledgement, the batch is committed.
    pub fn send_batch(&self, batch: &FinishedBatch) -> Result<(), CommitError> {
        let (descriptor, bytes) = (self.socket.as_fd().as_raw_fd(), batch.bytes());
        let mut sent = send(descriptor, bytes, MsgFlags::empty());
        if sent == Err(Errno::EMSGSIZE) {
            // It doesn't fit into the send buffer. The kernel doubles the given size. SO_SNDBUFFORCE may go beyond
            // net.core.wmem_max, but is refused in a user namespace. If neither is enough, sendmsg fails again.
            if setsockopt(&self.socket, sockopt::SndBufForce, &bytes.len()).is_err() {
                let _ = setsockopt(&self.socket, sockopt::SndBuf, &bytes.len());
            }
            sent = send(descriptor, bytes, MsgFlags::empty());
        }
        sent.map_err(CommitError::NotSent)?;
        let mut failures = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let answer = match recv(descriptor, &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => buffer.get(..length).unwrap_or_default(),
                // ENOBUFS: there were more errors than the socket's buffer can hold; those that fit follow.
                Err(Errno::ENOBUFS | Errno::EINTR) => continue,
                Err(Errno::EAGAIN) if !failures.is_empty() => return Err(CommitError::Messages(failures)),
                Err(errno) => return Err(CommitError::Unanswered(errno)),
            };
            for message in Messages(answer) {
                match message.and_then(|message| failure(&message)).map_err(CommitError::Malformed)? {
                    None if failures.is_empty() => return Ok(()),
                    None => return Err(CommitError::Messages(failures)),
                    Some(Failure { sequence: 0, errno: Errno::ERESTART, .. }) => {
                        return Err(CommitError::OtherGeneration);
                    }
                    Some(Failure { sequence: 0, errno, text }) => return Err(CommitError::Refused(errno, text)),
                    Some(failure) => failures.push(failure),
                }
            }
        }
    }

    /// Sends a request, and returns `read`'s results for the messages of the answer.
    #[cfg(any(test, feature = "decode"))]
    pub(super) fn list<T>(
        &self,
        request: Request,
        read: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, ReadError> {
        let mut answers = Vec::new();
        self.ask(request, &mut |message| {
            answers.extend(read(message)?);
            Ok(())
        })?;
        Ok(answers)
    }
}

/// The side that answers requests: the kernel or, in tests, a recording of its answers.
pub trait Respondent {
    /// Sends a request, and passes each message of the answer to `read`. A request that can't be written is the kernel's error
    /// for one that is too long.
    fn ask(
        &self,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ReadError>;
}

impl Respondent for Socket {
    fn ask(
        &self,
        request: Request,
        read: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ReadError> {
        let (socket, request) = (self.socket.as_fd().as_raw_fd(), request.finish()?);
        send(socket, &request, MsgFlags::empty()).map_err(ReadError::NotAsked)?;
        let mut interrupted = false;
        // Reads a datagram; returns true if the answer ends with it.
        let mut ends = |datagram: &[u8]| -> Result<bool, ReadError> {
            for message in Messages(datagram) {
                let message = message?;
                interrupted |= i32::from(message.flags) & libc::NLM_F_DUMP_INTR != 0;
                match i32::from(message.kind) {
                    // The rest of an interrupted dump is still received, so that it isn't taken for the next answer.
                    libc::NLMSG_DONE if interrupted => return Err(ReadError::Interrupted),
                    libc::NLMSG_DONE => return Ok(true),
                    libc::NLMSG_ERROR => {
                        return failure(&message)?.map_or(Ok(true), |failure| Err(failure.errno.into()));
                    }
                    _ => read(&message)?,
                }
            }
            Ok(false)
        };
        let mut answer = self.answer.borrow_mut();
        if answer.is_empty() {
            // Memory that is new is zero: unlike `resize`, this touches none of it, and answers are mostly short.
            *answer = vec![0; ANSWER];
        }
        while !ends(receive(socket, &mut answer)?)? {}
        Ok(())
    }
}

/// Receives the next datagram of an answer, which the kernel makes now.
fn receive(socket: RawFd, buffer: &mut [u8]) -> Result<&[u8], Errno> {
    loop {
        match recv(socket, buffer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EINTR) => {}
            length => return Ok(buffer.get(..length?).unwrap_or_default()),
        }
    }
}

/// The content of an `NLMSG_ERROR` message; none: it is an acknowledgement.
pub(crate) fn failure(message: &Message<'_>) -> Result<Option<Failure>, Malformed> {
    if i32::from(message.kind) != libc::NLMSG_ERROR {
        return Err(Malformed);
    }
    let code = u32_at(message.payload, 0)? as i32;
    if code == 0 {
        return Ok(None);
    }
    // The error code is followed by the header of the message that it answers (20 bytes together) and, with
    // NETLINK_EXT_ACK, by attributes.
    let text = Attributes(message.payload.get(20..).unwrap_or_default())
        .find(NLMSGERR_ATTR_MSG)
        .ok()
        .flatten()
        .and_then(|text| string(text).ok())
        .unwrap_or_default();
    let (errno, text) = (Errno::from_raw(code.saturating_neg()), String::from_utf8_lossy(text).into_owned());
    Ok(Some(Failure { sequence: message.sequence, errno, text }))
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;
    use crate::tests::recorded;

    /// Linux 6.18's answers to batches, recorded in `unshare -n` from a socket with NETLINK_CAP_ACK and
    /// NETLINK_EXT_ACK.
    #[test]
    fn answers_are_read_as_the_kernel_gives_them() {
        for (answer, sequence, errno) in [
            // To NFT_MSG_NEWTABLE with NLM_F_ACK.
            ("24000000020000010100000022140000000000001c000000000a05040100000000000000", 1, None),
            // To NFT_MSG_NEWCHAIN in a table that isn't there. An attribute says which (NLMSGERR_ATTR_OFFS), not a
            // text.
            (
                "2c000000020000030100000022140000feffffff28000000030a010401000000000000000800020014000000",
                1,
                Some(Errno::ENOENT),
            ),
            // To a batch for generation 1, when the ruleset was at another: no message is named.
            ("24000000020000010000000022140000abffffff1c000000100001000000000000000000", 0, Some(Errno::ERESTART)),
        ] {
            let bytes = recorded(answer);
            let message = Messages(&bytes).next().unwrap().unwrap();
            assert_eq!(message.sequence, sequence);
            let want = errno.map(|errno| Failure { sequence, errno, text: String::new() });
            assert_eq!(failure(&message), Ok(want));
        }
    }

    #[test]
    fn no_program_that_is_started_inherits_it() {
        let socket = Socket::open().unwrap();
        let flags = FdFlag::from_bits_retain(fcntl(&socket.socket, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }
}
