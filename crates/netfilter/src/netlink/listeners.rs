//! Asks the kernel for listeners: sock_diag(7). No privileges are needed.

use mnl::Bus;
use nix::errno::Errno;
use ruleset::{Listener, Queue};

use super::message::{Malformed, Message, Request, address, put, u8_at, u16_at, u32_at};
use super::sockopt::has_ipv6;
use super::user_namespace::owns_network;
use super::{ReadError, Socket};

/// In linux/sock_diag.h, linux/inet_diag.h and, a state, net/tcp_states.h.
const SOCK_DIAG_BY_FAMILY: i32 = 20;
const INET_DIAG_SKV6ONLY: u16 = 11;
/// `struct inet_diag_sockopt`, of whose bits the sixth is `transparent`.
const INET_DIAG_SOCKOPT: u16 = 22;
const TRANSPARENT: u8 = if cfg!(target_endian = "little") { 1 << 5 } else { 1 << 2 };
const TCP_LISTEN: u32 = 10;

/// Lengths of `struct inet_diag_req_v2` and `struct inet_diag_msg` (linux/inet_diag.h).
const REQUEST: usize = 56;
const ANSWER: usize = 72;

/// The TCP sockets that listen in the thread's network namespace. The kernel may have no sock_diag for TCP (ENOENT;
/// CONFIG_INET_DIAG), or a sandbox may forbid it.
pub fn listeners() -> Result<Vec<Listener>, ReadError> {
    let socket = Socket::open_bus(Bus::SockDiag)?;
    let mut listeners = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut subheader = [0; REQUEST];
        // `sdiag_family`, `sdiag_protocol`; `idiag_states` is the second number.
        subheader[0] = family as u8;
        subheader[1] = libc::IPPROTO_TCP as u8;
        put(&mut subheader, 4, &(1u32 << TCP_LISTEN).to_ne_bytes());
        let request = Request::new(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, &subheader);
        match socket.list(request, |message| listener(message).map(Some)) {
            Err(ReadError::Socket(Errno::ENOENT)) if family == libc::AF_INET6 && !has_ipv6() => {}
            entries => listeners.extend(entries?),
        }
    }
    // Users of a namespace that belongs to another user namespace have other numbers there, which the rules compare
    // with.
    if owns_network() == Some(false) {
        for listener in &mut listeners {
            listener.uid = Listener::UNMAPPED;
        }
    }
    Ok(listeners)
}

pub(crate) fn listener(message: &Message<'_>) -> Result<Listener, Malformed> {
    let bytes = message.payload;
    let length = match u8_at(bytes, 0)?.into() {
        libc::AF_INET => 4,
        libc::AF_INET6 => 16,
        _ => return Err(Malformed),
    };
    let attributes = message.attributes_after(ANSWER)?;
    let is_ipv6_only = attributes.find(INET_DIAG_SKV6ONLY)?;
    let options = attributes.find(INET_DIAG_SOCKOPT)?;
    Ok(Listener {
        address: address(bytes.get(8..8 + length).ok_or(Malformed)?)?,
        // `idiag_sport`, in network byte order; `idiag_if`, `idiag_uid`, `idiag_rqueue`, `idiag_wqueue`.
        port: u16::from_be(u16_at(bytes, 4)?),
        device: u32_at(bytes, 40)?,
        is_ipv6_only: is_ipv6_only.is_some_and(|value| value != [0]),
        uid: u32_at(bytes, 64)?,
        queue: Queue { waiting: u32_at(bytes, 56)?, limit: u32_at(bytes, 60)? },
        is_transparent: options.map(|options| Ok(u8_at(options, 0)? & TRANSPARENT != 0)).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruleset::testing::random;

    use super::*;

    /// `struct inet_diag_msg` of a listener, and its attributes.
    fn answer(family: i32, address: &[u8], attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ANSWER];
        bytes[0] = family as u8;
        bytes[4..6].copy_from_slice(&4143u16.to_be_bytes());
        bytes[8..8 + address.len()].copy_from_slice(address);
        bytes[40..44].copy_from_slice(&7u32.to_ne_bytes());
        bytes[56..60].copy_from_slice(&3u32.to_ne_bytes());
        bytes[60..64].copy_from_slice(&2u32.to_ne_bytes());
        bytes[64..68].copy_from_slice(&2102u32.to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    fn read(payload: &[u8]) -> Result<Listener, Malformed> {
        listener(&Message { kind: 0, flags: 0, sequence: 0, payload })
    }

    #[test]
    fn a_listener_has_an_address_a_port_a_user_and_a_queue() {
        let queue = Queue { waiting: 3, limit: 2 };
        let address = [127, 0, 0, 1].into();
        let want =
            Listener { address, port: 4143, device: 7, is_ipv6_only: false, uid: 2102, queue, is_transparent: None };
        assert_eq!(read(&answer(libc::AF_INET, &[127, 0, 0, 1], &[])), Ok(want));
        // struct nlattr: a length of 5, the type, and a byte with its padding.
        let mut v6_only = 5u16.to_ne_bytes().to_vec();
        v6_only.extend(INET_DIAG_SKV6ONLY.to_ne_bytes());
        v6_only.extend([1, 0, 0, 0]);
        let want = Listener { address: [0; 16].into(), is_ipv6_only: true, ..want };
        assert_eq!(read(&answer(libc::AF_INET6, &[0; 16], &v6_only)), Ok(want));
        for (options, is_transparent) in [(TRANSPARENT, true), (!TRANSPARENT, false)] {
            let mut attributes = v6_only.clone();
            attributes.extend(6u16.to_ne_bytes());
            attributes.extend(INET_DIAG_SOCKOPT.to_ne_bytes());
            attributes.extend([options, 0, 0, 0]);
            let want = Listener { is_transparent: Some(is_transparent), ..want };
            assert_eq!(read(&answer(libc::AF_INET6, &[0; 16], &attributes)), Ok(want));
        }
    }

    #[test]
    fn what_is_cut_off_is_malformed() {
        let whole = answer(libc::AF_INET, &[127, 0, 0, 1], &[]);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), Err(Malformed), "{length}");
        }
        assert_eq!(read(&answer(libc::AF_UNIX, &[], &[])), Err(Malformed));
    }

    proptest! {
        #![proptest_config(random(256))]

        #[test]
        fn no_bytes_make_it_panic(payload: Vec<u8>) {
            let _ = read(&payload);
        }
    }
}
