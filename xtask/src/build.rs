//! The static release binaries.
//!
//! Static, because dynamic linking costs more start-up time than all of the program's own work, and because the image
//! then holds nothing else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::apt;
use xtask::shell::{Result, Run as _, cargo, root, target};

use crate::architecture::Architecture;
use crate::rust::Rust;
use crate::setup;

/// The flags for a static binary. Not position-independent: nothing to relocate at start-up.
const STATIC: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Builds proxy-init for this machine and returns where it is: `target/dist/proxy-init`.
pub(crate) fn run() -> Result<PathBuf> {
    for_here("proxy-init", None)
}

/// Builds the CNI plugin for this machine and returns where it is: `target/dist/linkerd-cni`.
pub(crate) fn cni() -> Result<PathBuf> {
    for_here("linkerd-cni", None)
}

/// Builds the benchmark, which carries this proxy-init: `target/dist/proxy-init-bench`.
pub(crate) fn bench(proxy_init: &Path) -> Result<PathBuf> {
    for_here("proxy-init-bench", Some(proxy_init))
}

/// The program that another one carries in its file.
pub(crate) fn carried_by(name: &str) -> Option<&'static str> {
    (name == "proxy-init-bench").then_some("proxy-init")
}

/// Builds the program of a package of this name for this machine, and copies it to `target/dist`. Each package is built by a
/// cargo of its own: built together, packages share the features of the crates that they use, and proxy-init would carry what
/// only the CNI plugin needs.
fn for_here(name: &str, carried: Option<&Path>) -> Result<PathBuf> {
    let dist = target("dist");
    fs::create_dir_all(&dist)?;
    let binary = dist.join(name);
    let here = Architecture::here()?;
    let (mut build, built) = match Libraries::of(here) {
        Ok(libraries) => statically(name, &here.triple(), &folder(here), &libraries)?,
        Err(reason) => {
            eprintln!("xtask: no static libraries ({reason}); building a dynamic binary, which starts more slowly");
            dynamically(name)
        }
    };
    build.envs(carried.map(|path| ("PROXY_INIT", path))).run()?;
    // What hasn't changed keeps its time, so that cargo doesn't build again what carries it.
    if fs::read(&binary).ok() != Some(fs::read(&built)?) {
        fs::copy(&built, &binary).map_err(|error| format!("{} to {}: {error}", built.display(), binary.display()))?;
    }
    Ok(binary)
}

/// Builds the program of a package of this name, static, and returns where it is.
pub(crate) fn program(name: &str, architecture: Architecture) -> Result<PathBuf> {
    set_up(architecture)?;
    let carried = carried_by(name).map(|carried| program(carried, architecture));
    let (mut build, built) = statically(
        name,
        &architecture.triple(),
        &folder(architecture),
        &Libraries::of(architecture)?,
    )?;
    tell(&mut build, architecture)?
        .envs(carried.transpose()?.map(|path| ("PROXY_INIT", path)))
        .run()?;
    Ok(built)
}

/// Builds proxy-init for a target of rustc's, such as x86_64-unknown-linux-musl, with the static libraries that
/// PKG_CONFIG_PATH names, and returns where it is.
pub(crate) fn for_target(triple: &str) -> Result<PathBuf> {
    let path = env::var("PKG_CONFIG_PATH").unwrap_or_default();
    if path.is_empty() {
        let reason = "PKG_CONFIG_PATH must name the folders with libmnl.pc and libnftnl.pc of static libraries for";
        return Err(format!("{reason} {triple}").into());
    }
    // Nowhere else: the system's own libraries are for another libc.
    let library = |name| Library::of_system(name, Some(&path));
    let libraries = Libraries::in_folder(triple, library("libnftnl")?, library("libmnl")?, None)?;
    let (mut build, built) = statically("proxy-init", triple, &target(triple), &libraries)?;
    build.run()?;
    Ok(built)
}

/// Builds a program of xtask's for where there are no libraries, guests and containers, and returns where it is.
pub(crate) fn of_xtask(program: &str, architecture: Architecture) -> Result<PathBuf> {
    set_up(architecture)?;
    let (mut build, built) = compile("xtask", program, &architecture.triple(), &target("guest"), STATIC);
    tell(&mut build, architecture)?.run()?;
    Ok(built)
}

/// Installs what compiling for an architecture takes, beside what [`setup::for_build`] does.
pub(crate) fn set_up(architecture: Architecture) -> Result<()> {
    if architecture.is_here() {
        return Ok(());
    }
    let packages = format!(
        "gcc-{}-linux-gnu libc6-dev-{}-cross",
        architecture.machine().replace('_', "-"),
        architecture.name()
    );
    setup::programs(&[(&linker(architecture), &packages)])?;
    Rust::of(architecture).map(|_| ())
}

/// The folder of cargo's for an architecture. A build script of nftnl is linked with libnftnl too, so that builds for two
/// architectures in one folder would undo each other's.
fn folder(architecture: Architecture) -> PathBuf {
    target(if architecture.is_here() {
        ""
    } else {
        architecture.name()
    })
}

/// Tells cargo the compiler and the linker for an architecture.
fn tell(build: &mut Command, architecture: Architecture) -> Result<&mut Command> {
    if !architecture.is_here() {
        let triple = architecture.triple().to_uppercase().replace('-', "_");
        build.env(format!("CARGO_TARGET_{triple}_LINKER"), linker(architecture));
        Rust::of(architecture)?.compile(build);
    }
    Ok(build)
}

/// The compiler of C, which links too.
fn linker(architecture: Architecture) -> String {
    if architecture.is_here() {
        return "cc".to_owned();
    }
    format!("{}-linux-gnu-gcc", architecture.machine())
}

/// How a static program is compiled, and where it will be.
fn statically(name: &str, triple: &str, folder: &Path, libraries: &Libraries) -> Result<(Command, PathBuf)> {
    // nftnl-sys doesn't tell rustc that libnftnl needs libmnl, and a static linker takes what it needs in order: so once
    // more, last.
    // Paths from the checkout, where rustc links: flags are part of what cargo and rustc make names of, and so of the bytes.
    let mut flags = format!(
        "{STATIC} -C link-arg=-lmnl -C link-arg=-Wl,-T,xtask/src/no-unwind-tables.ld {}",
        remapped_paths()?
    );
    if let Some(libc) = &libraries.libc {
        let folder = libc.file.strip_prefix(root()).unwrap_or(&libc.file).parent();
        let folder = folder.ok_or("libc.a is in no folder")?;
        flags += &format!(" -L native={}", folder.display());
    }
    let (mut build, built) = compile(name, name, triple, folder, &flags);
    // For the C programs that the benchmark carries.
    build.envs(
        libraries
            .libc
            .iter()
            .filter_map(|libc| Some(("LIBC_LIB_DIR", libc.file.parent()?))),
    );
    build
        .env("LIBMNL_LIB_DIR", &libraries.folder)
        .env("LIBNFTNL_LIB_DIR", &libraries.folder)
        .env("LIBMNL_VERSION", &libraries.mnl.version)
        .env("LIBNFTNL_VERSION", &libraries.nftnl.version);
    Ok((build, built))
}

/// The command that compiles a package's program in release mode with these flags, and where it will be. Static glibc needs
/// an explicit target: else the flags would hit build scripts and procedural macros too.
fn compile(package: &str, program: &str, triple: &str, folder: &Path, flags: &str) -> (Command, PathBuf) {
    let mut build = cargo(&["build", "--release", "--locked"]);
    build.args(["--package", package, "--bin", program, "--target", triple]);
    build.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", folder);
    (build, folder.join(triple).join("release").join(program))
}

fn dynamically(name: &str) -> (Command, PathBuf) {
    let mut build = cargo(&["build", "--release", "--locked", "--package", name]);
    build.env("CARGO_TARGET_DIR", target(""));
    (build, target("release").join(name))
}

/// rustc's flags that keep this machine's folders out of a binary, whose bytes are then those of any other checkout.
fn remapped_paths() -> Result<String> {
    let home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().ok_or("the home folder is not known")?.join(".cargo"),
    };
    Ok(format!(
        "--remap-path-prefix={}=/proxy-init --remap-path-prefix={}=/cargo",
        root().display(),
        home.display()
    ))
}

/// Static libraries, in a folder with nothing else, so that the linker can't find shared ones there.
struct Libraries {
    folder: PathBuf,
    nftnl: Library,
    mnl: Library,
    /// For another architecture, from Debian's package for it: the cross compiler's own lags behind its security updates.
    /// It is where the package has it: in the folder, build scripts for this machine would be linked with it.
    libc: Option<Library>,
}

/// A static library.
struct Library {
    /// Where it comes from.
    file: PathBuf,
    version: String,
}

impl Libraries {
    fn of(architecture: Architecture) -> Result<Self> {
        // Debian has libmnl.a since release 13.
        let mnl_of_debian = || Library::of_debian("trixie", "libmnl-dev", "libmnl.a", architecture);
        let (nftnl, mnl, libc) = if architecture.is_here() {
            let mnl = Library::of_system("libmnl", None).or_else(|_| mnl_of_debian())?;
            (Library::of_system("libnftnl", None)?, mnl, None)
        } else {
            // A static library fits the libc of its own release, or a newer one.
            let release = debian_release()?;
            let nftnl = Library::of_debian(&release, "libnftnl-dev", "libnftnl.a", architecture)?;
            let libc = Library::of_debian(&release, "libc6-dev", "libc.a", architecture)?;
            (nftnl, mnl_of_debian()?, Some(libc))
        };
        Self::in_folder(architecture.name(), nftnl, mnl, libc)
    }

    /// Copied into a folder of this name.
    fn in_folder(folder: &str, nftnl: Library, mnl: Library, libc: Option<Library>) -> Result<Self> {
        let folder = target("static").join(folder);
        fs::create_dir_all(&folder)?;
        for library in [&nftnl, &mnl] {
            let name = library.file.file_name().ok_or("a library without a name")?;
            fs::copy(&library.file, folder.join(name))?;
        }
        Ok(Self {
            folder,
            nftnl,
            mnl,
            libc,
        })
    }
}

impl Library {
    /// That pkg-config finds, in these folders or in the system's.
    fn of_system(name: &str, folders: Option<&str>) -> Result<Self> {
        let ask = |what: &str| {
            let mut command = Command::new("pkg-config");
            command.envs(folders.map(|folders| ("PKG_CONFIG_LIBDIR", folders)));
            command.args([what, name]).read()
        };
        let file = Path::new(ask("--variable=libdir")?.trim()).join(format!("{name}.a"));
        if !file.exists() {
            return Err(format!("no {}", file.display()).into());
        }
        let version = ask("--modversion")?.trim().to_owned();
        Ok(Self { file, version })
    }

    /// Out of a Debian release's package.
    fn of_debian(release: &str, package: &str, file: &str, architecture: Architecture) -> Result<Self> {
        let package = architecture.package(package);
        let unpacked = apt::unpack(release, &package)?;
        let file = apt::find(&unpacked, file).ok_or_else(|| format!("{package} of {release} has no {file}"))?;
        // 1.0.5-3 is libmnl 1.0.5.
        let version = apt::version(&unpacked)?;
        let version = version.split('-').next().unwrap_or_default().to_owned();
        Ok(Self { file, version })
    }
}

/// Where the static libraries come from that are linked in: libnftnl's, libmnl's, libc's and libgcc's.
pub(crate) fn static_libraries(architecture: Architecture) -> Result<[PathBuf; 4]> {
    set_up(architecture)?;
    let Libraries { nftnl, mnl, libc, .. } = Libraries::of(architecture)?;
    let linker = linker(architecture);
    let of_linker = |name: &str| -> Result<PathBuf> {
        let path = Command::new(&linker).arg(format!("-print-file-name={name}")).read()?;
        Ok(fs::canonicalize(path.trim()).map_err(|error| format!("{linker} has no {name}: {error}"))?)
    };
    let libc = libc.map_or_else(|| of_linker("libc.a"), |libc| Ok(libc.file))?;
    Ok([nftnl.file, mnl.file, libc, of_linker("libgcc_eh.a")?])
}

/// What this machine's release of Debian is called.
fn debian_release() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(codename.ok_or("/etc/os-release has no VERSION_CODENAME")?.to_owned())
}
