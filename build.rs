//! Finds out which libnftnl and libmnl the program is linked with, for `--version`. Neither library can tell at run
//! time. `cargo xtask build` names them itself, because its static libraries need not be the system's.

use std::process::Command;

fn main() {
    for (library, variable) in [("libnftnl", "LIBNFTNL_VERSION"), ("libmnl", "LIBMNL_VERSION")] {
        println!("cargo::rerun-if-env-changed={variable}");
        let version = std::env::var(variable)
            .ok()
            .or_else(|| installed(library))
            .unwrap_or_else(|| "of unknown version".to_owned());
        println!("cargo::rustc-env=PROXY_INIT_{variable}={version}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// What pkg-config says of the system's library.
fn installed(library: &str) -> Option<String> {
    let output = Command::new("pkg-config")
        .args(["--modversion", library])
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    (output.status.success()).then(|| version.trim().to_owned())
}
