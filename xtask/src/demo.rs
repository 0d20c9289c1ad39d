//! `cargo xtask demo`: proxy-init at work, on real connections.

use std::fs;

use lab::recording::{FILE, picture, record};
use lab::shell::{Result, need_root, target};

use crate::build;

pub(crate) fn run() -> Result<()> {
    need_root("cargo xtask demo", "to make network namespaces")?;
    println!("Building proxy-init ...");
    let binary = build::to_dist("proxy-init")?;
    println!("In a pod with Linkerd's rules, which has made eight connections:\n");
    let terminal = record(&binary);
    println!("{terminal}");
    let file = target("recording.svg");
    fs::write(&file, picture(&terminal))?;
    println!("\nThe same as a picture, as the README shows it ({FILE}): {}", file.display());
    Ok(())
}
