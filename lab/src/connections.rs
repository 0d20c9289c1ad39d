//! Connections from and to a pod of a mesh, and where each must arrive.

use std::net::{IpAddr, SocketAddr};

use crate::shell::Result;

/// The maker of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Another pod, without a mesh, that listens on ports 8080 and 4567.
    Neighbour,
    /// The pod's application.
    App,
    /// The pod's proxy.
    Proxy,
}

/// A connection, and where it must arrive.
#[derive(Debug)]
pub struct Connection {
    /// Its maker.
    pub client: Client,
    /// Where to.
    pub to: SocketAddr,
    /// The port at which it arrives; none where nothing listens.
    pub port: Option<u16>,
}

impl Client {
    const ALL: [Self; 3] = [Self::Neighbour, Self::App, Self::Proxy];

    /// The user of a client in the pod.
    pub fn user(self) -> Option<u32> {
        match self {
            Self::Neighbour => None,
            Self::App => Some(1000),
            Self::Proxy => Some(2102),
        }
    }

    /// The command that makes this client's connections, and what it prints if each arrives where it must.
    fn command(self, connections: &[Connection]) -> (Vec<String>, String) {
        let mut command = vec!["/peer".to_owned(), "connect".to_owned()];
        let mut expected = String::new();
        for connection in connections.iter().filter(|connection| connection.client == self) {
            let to = connection.to;
            command.push(to.to_string());
            expected += &match connection.port {
                Some(port) => format!("port {port}, sent to {to}\n"),
                None => format!("refused, sent to {to}\n"),
            };
        }
        (command, expected)
    }
}

/// The connections of a pod's that has, or hasn't, rules with the chart's flags: over IPv4 and IPv6, from and to the
/// neighbour, and within the pod. Both have an address of each family, in the same order.
pub fn of(pod: &[IpAddr], neighbour: &[IpAddr], meshed: bool) -> Vec<Connection> {
    let (inbound, outbound) = if meshed { (4143, 4140) } else { (8080, 8080) };
    let of_family = |(&own, &neighbour): (&IpAddr, &IpAddr)| {
        [
            (Client::Neighbour, own, 8080, Some(inbound)),
            // Nothing listens there.
            (Client::Neighbour, own, 9999, meshed.then_some(inbound)),
            // An ignored port.
            (Client::Neighbour, own, 4191, Some(4191)),
            (Client::App, neighbour, 8080, Some(outbound)),
            (Client::App, neighbour, 4567, Some(4567)),
            // Within the pod.
            (Client::App, own, 8080, Some(8080)),
            (Client::Proxy, neighbour, 8080, Some(8080)),
        ]
    };
    let families = pod.iter().zip(neighbour);
    families
        .flat_map(of_family)
        .map(|(client, address, port, arrives)| Connection {
            client,
            to: SocketAddr::new(address, port),
            port: arrives,
        })
        .collect()
}

/// Really makes these connections, by commands that `exec` runs where the client is, and which print what became of them.
pub fn really_make(connections: &[Connection], exec: impl Fn(Client, &[&str]) -> Result<String>) -> Result<()> {
    for client in Client::ALL {
        let (command, expected) = client.command(connections);
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let seen = exec(client, &command)?;
        if seen != expected {
            return Err(format!("{client:?} reached\n{seen}in place of\n{expected}").into());
        }
    }
    Ok(())
}
