//! The release binaries.
//!
//! Static, because dynamic linking costs more start-up time than all of the program's own work, and because the image
//! then holds nothing else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::shell::{Result, Run as _, cargo, root, target};

use crate::c_libraries::{self, Libraries};
use crate::rust::Rust;
use lab::architecture::Architecture;

/// The linker's script that `cargo xtask order` makes, from the checkout.
pub(crate) const ORDER: &str = "xtask/src/order.ld";

/// The programs that run on nodes and in pods.
pub(crate) const SHIPPED: [&str; 3] = ["proxy-init", "linkerd-cni", "linkerd-cni-agent"];

/// The program that another one carries in its file.
pub(crate) fn carried_by(name: &str) -> Option<&'static str> {
    (name == "proxy-init-bench").then_some("proxy-init")
}

/// Builds the program of a package of this name for this machine, and returns where it is: `target/dist/NAME`.
pub(crate) fn to_dist(name: &str) -> Result<PathBuf> {
    let built = program(name, Architecture::here()?)?;
    let dist = target("dist");
    fs::create_dir_all(&dist)?;
    let binary = dist.join(name);
    // One that runs can't be written to.
    if fs::read(&binary).ok() != Some(fs::read(&built)?) {
        fs::copy(&built, &binary).map_err(|error| format!("{} to {}: {error}", built.display(), binary.display()))?;
    }
    Ok(binary)
}

/// Builds the program of a package of this name, and returns where it is. Each package is built by a cargo of its own: built
/// together, packages share the features of the crates that they use, and proxy-init would carry what only the CNI plugin
/// needs.
pub(crate) fn program(name: &str, architecture: Architecture) -> Result<PathBuf> {
    let carried = carried_by(name).map(|carried| program(carried, architecture));
    let (mut build, built) = compile(name, name, architecture)?;
    build.envs(carried.transpose()?.map(|path| ("PROXY_INIT", path))).run()?;
    // SECURITY.md promises it.
    if is_of_a_node(name) && !has_no_address(&fs::read(&built)?) {
        return Err(format!("{} is linked to a fixed address", built.display()).into());
    }
    stripped(&built, architecture)
}

/// Returns true if a program can be loaded at any address: `e_type` is `ET_DYN` (elf(5)).
fn has_no_address(program: &[u8]) -> bool {
    program.get(16..18) == Some(&[3, 0])
}

/// Builds the program of a package of this name with its functions' names.
pub(crate) fn with_symbols(name: &str, architecture: Architecture) -> Result<PathBuf> {
    let (mut build, built) = compile(name, name, architecture)?;
    build.run()?;
    Ok(built)
}

/// A program without its functions' names, in a folder beside it.
fn stripped(built: &Path, architecture: Architecture) -> Result<PathBuf> {
    let folder = built.with_file_name("stripped");
    fs::create_dir_all(&folder)?;
    let stripped = folder.join(built.file_name().unwrap_or_default());
    let new = stripped.with_extension("new");
    let mut strip = Command::new(c_libraries::strip(architecture));
    strip.arg("--strip-all").arg("-o").args([&new, built]).run()?;
    // The program that carries this one is built again when this one has changed.
    if fs::read(&stripped).ok() == Some(fs::read(&new)?) {
        fs::remove_file(new)?;
    } else {
        fs::rename(new, &stripped)?;
    }
    Ok(stripped)
}

/// Builds a program of the laboratory's for where there are no libraries, guests and containers, and returns where it is.
pub(crate) fn of_lab(program: &str, architecture: Architecture) -> Result<PathBuf> {
    let (mut build, built) = compile("lab", program, architecture)?;
    build.run()?;
    stripped(&built, architecture)
}

/// The command that compiles a package's program in release mode, and where it will be.
fn compile(package: &str, program: &str, architecture: Architecture) -> Result<(Command, PathBuf)> {
    let mut build = cargo(&["build", "--release", "--locked"]);
    build.args(["--package", package, "--bin", program]);
    let folder = folder(package, architecture);
    build.env("CARGO_TARGET_DIR", &folder);
    // With functions' names, which `cargo xtask order` needs, and which are taken off afterwards. Were they left out
    // here, cargo would give crates other names, and LLVM would inline other functions than in the program that the
    // order is made of.
    build.env("CARGO_PROFILE_RELEASE_STRIP", "none");
    let triple = architecture.triple();
    let name = triple.replace('-', "_");
    let libraries = Libraries::of(architecture)?;
    let rust = Rust::get()?;
    rust.compile(&mut build);
    let specs = root().join(libraries.specs());
    // The C code of crates, by the crate cc, and the C programs that the benchmark carries.
    build.env(format!("CFLAGS_{name}"), format!("-specs={}", specs.display()));
    build.env("MUSL_SPECS", specs);
    let compiler = c_libraries::compiler(architecture);
    // nftnl-sys doesn't tell rustc that libnftnl needs libmnl, and a static linker takes what it needs in order: so once
    // more, last. rustc leaves the linker looking for shared libraries; the system's libmnl.so would make a program dynamic that
    // has no loader, and ends with SIGSEGV.
    // Paths from the checkout, where rustc links: flags are part of what cargo and rustc make names of, and so of the bytes.
    let flags = format!(
        "-C target-feature=+crt-static {} -L native={} -C link-arg=-Wl,-Bstatic -C link-arg=-lmnl \
         -C link-arg=-Wl,-T,xtask/src/no-unwind-tables.ld -C link-arg=-Wl,-T,{} {} {}",
        placed(package, architecture),
        libraries.folder.display(),
        ORDER,
        remapped_paths()?,
        with_musl(libraries, &rust.library()?)
    );
    // An explicit target: else the flags would hit build scripts and procedural macros too.
    build.args(["--target", &triple]);
    build
        .env("RUSTFLAGS", flags)
        .env(format!("CC_{name}"), &compiler)
        .env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), &compiler)
        .env("LIBMNL_LIB_DIR", root().join(&libraries.folder))
        .env("LIBNFTNL_LIB_DIR", root().join(&libraries.folder))
        .env("LIBMNL_VERSION", &libraries.mnl.version)
        .env("LIBNFTNL_VERSION", &libraries.nftnl.version);
    Ok((build, folder.join(triple).join("release").join(program)))
}

/// Where a program is in memory. What reads an API server's answers is at another address each time; the others always at the
/// same one: there is nothing to relocate at start-up. So musl has nothing to protect from writing after that, and what they
/// read may lie in the pages of what they execute. What musl has to
/// relocate, it reads of a list that takes a bit for most of the addresses (DT_RELR) and not 24 bytes, which GNU's linker writes
/// for x86-64 alone. There, C's functions are called where they are, and not where a table says whose entries would be addresses
/// too (`relax-elf-relocations`). For musl on aarch64, rustc asks the linker for a fixed address all the same
/// (`static_position_independent_executables` in rustc_target/src/spec): the later of the linker's flags wins.
fn placed(package: &str, architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 if is_of_a_node(package) => {
            "-C relocation-model=pic -Z relax-elf-relocations=yes -C link-arg=-Wl,-z,pack-relative-relocs \
             -C link-arg=-Wl,-T,xtask/src/constants-first.ld"
        }
        Architecture::Arm64 if is_of_a_node(package) => "-C relocation-model=pic -C link-arg=-static-pie",
        _ => "-C relocation-model=static -C relro-level=off -C link-arg=-Wl,-z,noseparate-code",
    }
}

/// Returns true if the program runs on nodes and not in pods: it reads from the network.
fn is_of_a_node(package: &str) -> bool {
    ["linkerd-cni", "linkerd-cni-agent"].contains(&package)
}

/// rustc's flags for musl: of Debian's package, not of rustc's own.
fn with_musl(libraries: &Libraries, source: &Path) -> String {
    // cargo names files of the checkout from there.
    let source = source.strip_prefix(root()).unwrap_or(source);
    format!(
        "-C link-self-contained=no -C link-arg=-specs={} --remap-path-prefix={}=/rust",
        libraries.specs().display(),
        source.display()
    )
}

/// The folder of cargo's for a package and an architecture. A build script of nftnl is linked with libnftnl too, so that builds
/// for two architectures in one folder would undo each other's; so would builds with two models of relocation, which cargo gives
/// the same names.
fn folder(package: &str, architecture: Architecture) -> PathBuf {
    let folder = target(if architecture.is_here() { "" } else { architecture.name() });
    if is_of_a_node(package) { folder.join("position-independent") } else { folder }
}

/// rustc's flags that keep this machine's folders out of a binary, whose bytes are then those of any other checkout.
fn remapped_paths() -> Result<String> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().ok_or("the home folder is not known")?.join(".cargo"),
    };
    Ok(format!("--remap-path-prefix={}=/proxy-init --remap-path-prefix={}=/cargo", root().display(), home.display()))
}
