//! Looking the API server's name up, by C's getaddrinfo.
//!
//! With musl, that reads /etc/hosts and /etc/resolv.conf and nothing else. glibc's loads the modules that the node's
//! nsswitch.conf names into the plugin: of another version than a static glibc, they end it.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
compile_error!("linkerd-cni isn't linked with a static glibc, see cni/src/names.rs: `cargo xtask build` has musl");

/// The port of https.
const PORT: u16 = 443;

/// The most addresses of a name that are tried: ureq keeps no more.
const MOST_ADDRESSES: usize = 16;

/// Looks the name of an agent's one server up, once for all of its requests.
#[derive(Debug, Default)]
pub(crate) struct Names(OnceLock<Vec<SocketAddr>>);

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let authority = uri.authority().ok_or(ureq::Error::HostNotFound)?;
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(PORT));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let found = match self.0.get() {
            Some(found) => found,
            None => {
                let found = match bare.unwrap_or(host).parse::<IpAddr>() {
                    Ok(address) => vec![SocketAddr::new(address, port)],
                    Err(_) => look_up(host, port, *timeout.after)?,
                };
                self.0.get_or_init(|| found)
            }
        };
        let mut addresses = self.empty();
        for address in found.iter().take(MOST_ADDRESSES) {
            addresses.push(*address);
        }
        Ok(addresses)
    }
}

/// The addresses of a name. IPv4 addresses come first: a node without IPv4 knows that at once of each, while a
/// connection by an IPv6 that leads nowhere takes its time.
///
/// resolv.conf decides how long getaddrinfo takes. So a thread waits for it, which is left behind when `patience` ends.
fn look_up(name: &str, port: u16, patience: Duration) -> io::Result<Vec<SocketAddr>> {
    let (sender, receiver) = mpsc::channel();
    let asked = (name.to_owned(), port);
    thread::Builder::new().spawn(move || {
        // The thread doesn't care if anybody still waits.
        let _ = sender.send(asked.to_socket_addrs());
    })?;
    let mut found: Vec<SocketAddr> = match receiver.recv_timeout(patience) {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(not_found(name, error)),
        Err(RecvTimeoutError::Timeout) => return Err(not_found(name, ErrorKind::TimedOut)),
        Err(RecvTimeoutError::Disconnected) => return Err(not_found(name, "the thread that asks has ended")),
    };
    if found.is_empty() {
        return Err(not_found(name, "it has no address"));
    }
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}

fn not_found(name: &str, reason: impl Display) -> io::Error {
    io::Error::other(format!(
        "{name} cannot be looked up by /etc/hosts and the name servers of /etc/resolv.conf: {reason}"
    ))
}
