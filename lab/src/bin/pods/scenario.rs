//! What scenarios are, and what they share.

use std::error::Error;

use lab::containerd::Image;
use lab::shell::Result;

use crate::node::Node;
use crate::pod::{Container, Meta, Pod, Running};

/// One thing that is tried: it makes its pods, on whichever network.
pub(crate) type Scenario = lab::scenario::Scenario<World<'static>>;

/// What all scenarios have.
pub(crate) struct World<'a> {
    pub(crate) node: &'a Node,
    pub(crate) images: &'a Images,
    /// A pod without a mesh, which listens on ports 8080 and 4567.
    pub(crate) neighbour: Pod<'a>,
    /// Its container.
    pub(crate) client: Running<'a>,
}

/// The images that there are.
#[derive(Debug)]
pub(crate) struct Images([Image; 5]);

impl Images {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self([
            Image::new("peer", "/peer"),
            Image::of_dockerfile("scratch")?,
            Image::of_dockerfile("legacy")?,
            Image::of_dockerfile("file-capabilities")?,
            Image::running("commands", &[]),
        ]))
    }

    pub(crate) fn all(&self) -> &[Image] {
        &self.0
    }

    /// Of peer.rs: clients, servers, and the sandbox's own.
    pub(crate) fn peer(&self) -> &Image {
        &self.0[0]
    }

    /// The Dockerfile's last target: proxy-init alone.
    pub(crate) fn scratch(&self) -> &Image {
        &self.0[1]
    }

    /// The Dockerfile's target `legacy`: iptables-legacy beside it.
    pub(crate) fn legacy(&self) -> &Image {
        &self.0[2]
    }

    /// The same, where iptables-legacy has file capabilities, as in linkerd-init's image.
    pub(crate) fn file_capabilities(&self) -> &Image {
        &self.0[3]
    }

    /// linkerd-init's iptables commands, in scripts for a shell, and linkerd-init itself, if it was given.
    pub(crate) fn commands(&self) -> &Image {
        &self.0[4]
    }
}

impl<'a> World<'a> {
    pub(crate) fn new(node: &'a Node, images: &'a Images, network: &str) -> Result<Self> {
        let meta = Meta { name: "neighbour".to_owned(), ..Meta::default() };
        let (neighbour, client) = with_living_shims("the neighbour", || {
            let neighbour = Pod::start(node, network, &meta)?;
            let client = neighbour.start_container(&Container {
                args: &["serve", "8080", "4567"],
                ..Container::new("client", images.peer())
            })?;
            Ok((neighbour, client))
        })?;
        Ok(Self { node, images, neighbour, client })
    }
}

/// Does this again, twice at most, where a sandbox's shim died of itself: the part of containerd that starts its
/// containers. That was seen on a machine under load; it says nothing of what runs in the containers, which hadn't
/// begun.
pub(crate) fn with_living_shims<T>(what: &str, work: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..2 {
        match work() {
            Err(error) if is_dead_shim(error.as_ref()) => println!("again  {what}: {error}"),
            outcome => return outcome,
        }
    }
    work()
}

/// Whether containerd lost the shim that it had asked to start a container.
fn is_dead_shim(error: &dyn Error) -> bool {
    error.to_string().ends_with("failed to create shim task: ttrpc: closed: unknown")
}
