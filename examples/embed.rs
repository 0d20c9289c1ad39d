//! Redirects the TCP of several pods from one process, as a CNI plugin or a node's agent would: for each namespace an
//! ADD (install), a CHECK (verify) and a DEL (uninstall).
//!
//!     for pod in a b c; do ip netns add $pod; done
//!     cargo run --example embed /var/run/netns/a /var/run/netns/b /var/run/netns/c
//!     for pod in a b c; do ip netns delete $pod; done

use std::error::Error;
use std::path::{Path, PathBuf};

use proxy_init::error::chain;
use proxy_init::{Config, Connection, Direction, Install, OwnerId, Uninstall, explain, verify};

fn main() -> Result<(), Box<dyn Error>> {
    let pods: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let config = config()?;
    for pod in &pods {
        add(pod, &config)?;
    }
    for pod in &pods {
        check(pod, &config)?;
    }
    for pod in &pods {
        delete(pod)?;
    }
    Ok(())
}

pub(crate) fn config() -> Result<Config, Box<dyn Error>> {
    let mut config = Config::new("4143".parse()?, "4140".parse()?);
    // Without it, what the proxy itself sends would be redirected to the proxy.
    config.proxy_uid = OwnerId::new(2102);
    config.ignored_inbound_ports = vec!["4190".parse()?, "4191".parse()?];
    Ok(config)
}

fn install(pod: &Path, config: &Config) -> Install {
    let mut install = Install::new(config.clone());
    install.netns = Some(pod.to_owned());
    install
}

pub(crate) fn add(pod: &Path, config: &Config) -> Result<(), Box<dyn Error>> {
    let installed = install(pod, config).run()?;
    for warning in &installed.warnings {
        eprintln!("ADD {}: {warning}", pod.display());
    }
    println!(
        "ADD {}: {} rules in {} mode, because {}",
        pod.display(),
        installed.rules(),
        installed.mode,
        installed.reason
    );
    Ok(())
}

pub(crate) fn check(pod: &Path, config: &Config) -> Result<(), Box<dyn Error>> {
    let verdict = verify(&install(pod, config))?;
    if !verdict.is_in_place() {
        return Err(format!("{}: {verdict}", pod.display()).into());
    }
    let connection = Connection::new(Direction::Outbound, "192.0.2.1:80".parse()?);
    match explain(Some(pod), &connection, |explained| explained.verdict.to_string()) {
        Ok(verdict) => println!("CHECK {}: in place; {}: {verdict}", pod.display(), connection.to),
        // A pod without a network yet has no route.
        Err(error) => println!("CHECK {}: in place; {}", pod.display(), chain(&error)),
    }
    Ok(())
}

/// A runtime may ask for this more than once.
pub(crate) fn delete(pod: &Path) -> Result<(), Box<dyn Error>> {
    let mut uninstall = Uninstall::default();
    uninstall.netns = Some(pod.to_owned());
    let uninstalled = uninstall.run()?;
    println!("DEL {}: removed the rules of {:?}", pod.display(), uninstalled.removed);
    Ok(())
}
