//! Installs rules in a named network namespace, as a CNI plugin or a node's agent would:
//!
//!     ip netns add pod && cargo run --example install pod; ip netns exec pod nft list ruleset; ip netns delete pod

use std::path::Path;

use proxy_init::backend::Backend as _;
use proxy_init::backend::native::Native;
use proxy_init::namespace::Namespace;
use proxy_init::{Config, OwnerId, plan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: install NAMESPACE")?;
    let mut config = Config::new("4143".parse()?, "4140".parse()?);
    config.proxy_uid = OwnerId::new(2102);
    config.ignored_inbound_ports = vec!["4190".parse()?, "4191".parse()?];
    let rulesets = plan(&config);

    Namespace::open(Path::new("/var/run/netns").join(name))?.run(|| Native.install(&rulesets))??;
    println!("installed");
    Ok(())
}
