//! Scenarios, and the world that they share.

use std::path::{Path, PathBuf};

use lab::containerd::Image;
use lab::shell::Result;

use crate::node::{Network, Node, Setup};
use crate::pod::{Container, Meta, Pod, Running};

/// One thing that is tried: it makes its pods, on whichever network.
pub(crate) type Scenario = lab::scenario::Scenario<World<'static>>;

/// The world of all scenarios.
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
pub(crate) struct Images {
    /// Of peer.rs: clients, servers, and the sandbox's own.
    pub(crate) peer: Image,
    /// The Dockerfile's last target: proxy-init alone.
    pub(crate) scratch: Image,
    /// The Dockerfile's target `legacy`: iptables-legacy beside it.
    pub(crate) legacy: Image,
    /// The same, where iptables-legacy has file capabilities, as in linkerd-init's image.
    file_capabilities: Image,
}

impl Images {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            peer: Image::new("peer", "/peer"),
            scratch: Image::of_dockerfile("scratch")?,
            legacy: Image::of_dockerfile("legacy")?,
            file_capabilities: Image::of_dockerfile("file-capabilities")?,
        })
    }

    pub(crate) fn all(&self) -> [&Image; 4] {
        [&self.peer, &self.scratch, &self.legacy, &self.file_capabilities]
    }

    /// One with proxy-init.
    pub(crate) fn named(&self, name: &str) -> &Image {
        match name {
            "legacy" => &self.legacy,
            "file-capabilities" => &self.file_capabilities,
            _ => &self.scratch,
        }
    }
}

impl World<'_> {
    /// Starts another node, with the images in this folder.
    pub(crate) fn node(&self, number: u8, networks: &[Network], plugins: &[PathBuf], images: &Path) -> Result<Node> {
        Node::start(&Setup {
            number,
            cgroup: &self.node.cgroup,
            networks,
            plugins,
            images: self.images,
            image_folder: images,
        })
    }
}

impl<'a> World<'a> {
    pub(crate) fn new(node: &'a Node, images: &'a Images, network: &str) -> Result<Self> {
        let meta = Meta { name: "neighbour".to_owned(), ..Meta::default() };
        let neighbour = Pod::start(node, network, &meta)?;
        let client = neighbour.start_container(&Container {
            args: &["serve", "8080", "4567"],
            ..Container::new("client", &images.peer)
        })?;
        Ok(Self { node, images, neighbour, client })
    }
}
