//! The static release binary.
//!
//! Static, because dynamic linking costs more start-up time than all of the program's own work, and because the image
//! then holds nothing else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::shell::{Result, Run as _, cargo, target};

/// The flags for a static binary. Not position-independent: nothing to relocate at start-up.
pub(crate) const STATIC: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Builds it and returns where it is: `target/dist/proxy-init`.
pub(crate) fn run() -> Result<PathBuf> {
    let dist = target("dist");
    fs::create_dir_all(&dist)?;
    let binary = dist.join("proxy-init");
    let built = match static_libraries() {
        Ok(libraries) => build_static(&libraries)?,
        Err(reason) => {
            eprintln!("xtask: no static libraries ({reason}); building a dynamic binary, which starts more slowly");
            build_dynamic()?
        }
    };
    fs::copy(&built, &binary).map_err(|error| format!("{} to {}: {error}", built.display(), binary.display()))?;
    Ok(binary)
}

/// Where libmnl.a and libnftnl.a are, and their versions.
struct Libraries {
    folder: PathBuf,
    mnl: String,
    nftnl: String,
}

/// Static glibc needs an explicit target: else the flags would hit build scripts and procedural macros too.
fn build_static(libraries: &Libraries) -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    cargo(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "proxy-init",
        "--target",
        &triple,
    ])
    // nftnl-sys doesn't tell rustc that libnftnl needs libmnl, and a static linker takes what it needs in order: so once
    // more, last.
    .env("RUSTFLAGS", format!("{STATIC} -C link-arg=-lmnl"))
    .env("LIBMNL_LIB_DIR", &libraries.folder)
    .env("LIBNFTNL_LIB_DIR", &libraries.folder)
    .env("LIBMNL_VERSION", &libraries.mnl)
    .env("LIBNFTNL_VERSION", &libraries.nftnl)
    .env("CARGO_TARGET_DIR", target(""))
    .run()?;
    Ok(target(&triple).join("release/proxy-init"))
}

fn build_dynamic() -> Result<PathBuf> {
    cargo(&["build", "--release", "--locked", "--package", "proxy-init"])
        .env("CARGO_TARGET_DIR", target(""))
        .run()?;
    Ok(target("release/proxy-init"))
}

/// A folder with the static libraries and nothing else, so that the linker can't find shared ones there.
fn static_libraries() -> Result<Libraries> {
    let folder = target("static");
    fs::create_dir_all(&folder)?;
    let nftnl = copy_archive(&system_folder("libnftnl")?, "libnftnl.a", &folder);
    nftnl.map_err(|error| format!("libnftnl.a: {error}"))?;
    let mnl = match copy_archive(&system_folder("libmnl")?, "libmnl.a", &folder) {
        Ok(()) => version("libmnl")?,
        // Debian has it since release 13.
        Err(_) => libmnl_of_debian_13(&folder)?,
    };
    Ok(Libraries {
        folder,
        mnl,
        nftnl: version("libnftnl")?,
    })
}

fn copy_archive(from: &Path, name: &str, to: &Path) -> Result<()> {
    fs::copy(from.join(name), to.join(name))?;
    Ok(())
}

fn system_folder(library: &str) -> Result<PathBuf> {
    let folder = Command::new("pkg-config").args(["--variable=libdir", library]).read()?;
    Ok(folder.trim().into())
}

fn version(library: &str) -> Result<String> {
    let version = Command::new("pkg-config").args(["--modversion", library]).read()?;
    Ok(version.trim().to_owned())
}

/// Takes libmnl.a out of Debian 13's package. Returns its version.
fn libmnl_of_debian_13(folder: &Path) -> Result<String> {
    let stamp = folder.join("libmnl.version");
    if let Ok(version) = fs::read_to_string(&stamp)
        && folder.join("libmnl.a").exists()
    {
        return Ok(version);
    }
    println!("Taking libmnl.a from Debian 13's libmnl-dev into {}", folder.display());
    let unpacked = xtask::apt::unpack("trixie", "libmnl-dev")?;
    let libraries = xtask::apt::find(&unpacked, "libmnl.a").ok_or("Debian 13's libmnl-dev has no libmnl.a")?;
    fs::copy(&libraries, folder.join("libmnl.a"))?;
    let package = xtask::apt::version(&unpacked)?;
    // 1.0.5-3 is libmnl 1.0.5.
    let version = package.split('-').next().unwrap_or_default().to_owned();
    fs::write(&stamp, &version)?;
    Ok(version)
}
