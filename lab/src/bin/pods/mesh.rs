//! The parts of a pod of a mesh, and the connections from and to it.

use lab::connections::{self, Client, Connection};
use lab::containerd::Image;
use lab::shell::Result;
use serde_json::Value;

use crate::pod::{Container, Ended, Meta, Pod, Running};
use crate::scenario::World;

/// A container with the security context that Linkerd's chart gives init containers, all capabilities dropped.
fn restricted<'a>(name: &'a str, image: &'a Image) -> Container<'a> {
    Container {
        user: Some(65534),
        drop: &["ALL"],
        no_new_privs: true,
        read_only_root: true,
        ..Container::new(name, image)
    }
}

/// proxy-init, with the capabilities, the limits and the volume of Linkerd's chart.
pub(crate) fn init<'a>(image: &'a Image, args: &'a [&'a str]) -> Container<'a> {
    Container {
        args,
        add: &["NET_ADMIN", "NET_RAW"],
        limits: Some((100, 20 << 20)),
        empty_dirs: &["/run"],
        ..restricted("linkerd-init", image)
    }
}

/// proxy-init in the place of Linkerd's network validator, which needs no capabilities.
pub(crate) fn validator<'a>(image: &'a Image, args: &'a [&'a str]) -> Container<'a> {
    Container {
        command: &["/usr/lib/linkerd/linkerd2-network-validator"],
        args,
        ..restricted("linkerd-network-validator", image)
    }
}

/// The container that `kubectl debug --profile=netadmin -- COMMAND` adds to a running pod: an ephemeral container with
/// these two capabilities, the image's user, and the command in place of the image's entry point (kubectl's
/// pkg/cmd/debug/profiles.go, `allowNetadminCapability`).
pub(crate) fn debugger<'a>(image: &'a Image, command: &'a [&'a str]) -> Container<'a> {
    Container {
        command,
        add: &["NET_ADMIN", "NET_RAW"],
        // A pod that names no profile gets none, unless kubelet's seccompDefault is set.
        seccomp: false,
        ..Container::new("debugger", image)
    }
}

/// A pod such as a deployment's, without containers.
pub(crate) fn pod<'a>(world: &World<'a>, network: &str) -> Result<Pod<'a>> {
    Pod::start(world.node, network, &meta())
}

/// The metadata of such a pod.
pub(crate) fn meta() -> Meta {
    Meta { name: "web".to_owned(), namespace: "emojivoto".to_owned(), ..Meta::default() }
}

/// The containers of a pod's that run on.
pub(crate) struct Containers<'a> {
    /// Stands in for the proxy: of its user, on its ports. It takes connections, and says where they were sent.
    proxy: Running<'a>,
    /// Listens on port 8080.
    app: Running<'a>,
}

/// The connections of a pod's, as [`connections::of`] has them, to and from the neighbour.
pub(crate) fn connections(world: &World<'_>, pod: &Pod<'_>, meshed: bool) -> Vec<Connection> {
    connections::of(&pod.addresses, &world.neighbour.addresses, meshed)
}

impl<'a> Containers<'a> {
    pub(crate) fn start(world: &World<'_>, pod: &Pod<'a>) -> Result<Self> {
        let peer = &world.images.peer;
        let proxy = pod.start_container(&Container {
            args: &["serve", "4143", "4140", "4191"],
            user: Client::Proxy.user(),
            ..Container::new("linkerd-proxy", peer)
        })?;
        let app = pod.start_container(&Container {
            args: &["serve", "8080"],
            user: Client::App.user(),
            ..Container::new("app", peer)
        })?;
        Ok(Self { proxy, app })
    }

    /// Really makes these connections.
    pub(crate) fn try_connections(&self, world: &World<'_>, connections: &[Connection]) -> Result<()> {
        connections::really_make(connections, |client, command| {
            let from = match client {
                Client::Neighbour => &world.client,
                Client::App => &self.app,
                Client::Proxy => &self.proxy,
            };
            Ok(from.exec(command)?.succeeded()?.stdout)
        })
    }
}

/// Runs proxy-init in a debug container of the pod, as this user or as the image's.
pub(crate) fn debug(world: &World<'_>, pod: &Pod<'_>, user: Option<u32>, arguments: &[&str]) -> Result<Ended> {
    let command = [&["proxy-init"][..], arguments].concat();
    pod.run(&Container { user, ..debugger(&world.images.scratch, &command) })
}

/// The number of connections that the rules of `show`'s JSON have sent to this port.
pub(crate) fn counted(show: &Value, port: u16) -> u64 {
    let lists = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    lists(show, "backends")
        .iter()
        .flat_map(|backend| lists(backend, "chains"))
        .flat_map(|chain| lists(&chain, "rules"))
        .filter(|rule| rule.get("port").and_then(Value::as_u64) == Some(port.into()))
        .filter_map(|rule| rule.get("packets")?.as_u64())
        .sum()
}
