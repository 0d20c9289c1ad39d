//! The static libraries of C that the programs that ship are linked with. With musl, an empty program starts in a third of
//! the time that it takes with glibc, and a static glibc loads the node's own modules to look a name up.
//!
//! libnftnl and libmnl are the system's or Debian's, which are compiled for glibc. musl has every symbol that they need but
//! two, which are added to libmnl. With it, on x86-64, comes what copies memory, which musl's own does too slowly there. musl
//! itself is Debian's, whose security team watches it, unpacked and not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use lab::apt;
use lab::shell::{Result, Run as _, root};

use lab::architecture::Architecture;
use lab::install;

/// The release of Debian for what isn't the system's: the first one with a libmnl.a, and one with security updates of musl.
pub(crate) const RELEASE: &str = "trixie";

/// Debian's package of musl: the library, what a program starts with, and the headers.
const MUSL: &str = "musl-dev";

/// Static libraries, and the folder that has copies of libnftnl and libmnl and nothing to be linked dynamically; a path from
/// the checkout, which is part of what rustc makes names of, and so of the bytes.
pub(crate) struct Libraries {
    pub(crate) folder: PathBuf,
    pub(crate) nftnl: Library,
    pub(crate) mnl: Library,
    /// libc.a.
    pub(crate) libc: PathBuf,
    /// The compiler's own library.
    pub(crate) libgcc: PathBuf,
}

/// A static library.
pub(crate) struct Library {
    /// Where it comes from.
    pub(crate) file: PathBuf,
    pub(crate) version: String,
}

/// The compiler of C, which links too.
pub(crate) fn compiler(architecture: Architecture) -> String {
    if architecture.is_here() {
        return "cc".to_owned();
    }
    format!("{}-linux-gnu-gcc", architecture.machine())
}

/// The program that takes functions' names off programs, which comes with the compiler.
pub(crate) fn strip(architecture: Architecture) -> String {
    if architecture.is_here() {
        return "strip".to_owned();
    }
    format!("{}-linux-gnu-strip", architecture.machine())
}

impl Libraries {
    /// Fetches those for an architecture, once in each process.
    pub(crate) fn of(architecture: Architecture) -> Result<&'static Self> {
        static FETCHED: Mutex<Vec<(Architecture, &Libraries)>> = Mutex::new(Vec::new());
        let mut fetched = FETCHED.lock().map_err(|error| error.to_string())?;
        if let Some((_, libraries)) = fetched.iter().find(|(known, _)| *known == architecture) {
            return Ok(libraries);
        }
        let libraries = Box::leak(Box::new(Self::fetch(architecture)?));
        fetched.push((architecture, libraries));
        Ok(libraries)
    }

    fn fetch(architecture: Architecture) -> Result<Self> {
        let nftnl = if architecture.is_here() {
            Library::of_system("libnftnl")?
        } else {
            let packages = format!(
                "gcc-{}-linux-gnu libc6-dev-{}-cross",
                architecture.machine().replace('_', "-"),
                architecture.name()
            );
            install::programs(&[(&compiler(architecture), &packages)])?;
            Library::of_debian(&debian_release()?, "libnftnl-dev", "libnftnl.a", architecture)?
        };
        let musl = apt::unpack(RELEASE, &architecture.package(MUSL))?;
        let libraries = Self {
            folder: Path::new("target/static/musl").join(architecture.name()),
            nftnl,
            mnl: Library::mnl(architecture)?,
            libc: apt::find(&musl, "libc.a").ok_or("musl-dev has no libc.a")?,
            libgcc: of_compiler(architecture, "libgcc.a")?,
        };
        libraries.copy()?;
        let path = |name: &str| libraries.folder.join(name);
        // The package's own, for where it was unpacked.
        let specs = apt::find(&musl, "musl-gcc.specs").ok_or("musl-dev has no musl-gcc.specs")?;
        let specs = fs::read_to_string(specs)?.replace("/usr/", &format!("{}/usr/", musl.display()));
        fs::write(root().join(libraries.specs()), specs)?;
        Command::new(compiler(architecture))
            .current_dir(root())
            .args(["-specs".as_ref(), libraries.specs().as_os_str()])
            .args(["-O2", "-Wall", "-c", "xtask/src/fortified.c", "-o"])
            .arg(path("fortified.o"))
            .run()?;
        let add = |library: &str, objects: &[&str]| {
            let mut ar = Command::new("ar");
            ar.current_dir(root().join(&libraries.folder)).arg("rcsD").arg(library);
            ar.args(objects).run()
        };
        add("libmnl.a", &["fortified.o"])?;
        // Rust's standard library asks for it, and needs nothing of it where a panic ends the process.
        add("libunwind.a", &[])?;
        Ok(libraries)
    }

    /// The file that tells gcc of musl.
    pub(crate) fn specs(&self) -> PathBuf {
        self.folder.join("gcc.specs")
    }

    fn copy(&self) -> Result<()> {
        let folder = root().join(&self.folder);
        fs::create_dir_all(&folder)?;
        for library in [&self.nftnl, &self.mnl] {
            let name = library.file.file_name().ok_or("a library without a name")?;
            fs::copy(&library.file, folder.join(name))?;
        }
        Ok(())
    }
}

impl Library {
    fn mnl(architecture: Architecture) -> Result<Self> {
        if architecture.is_here()
            && let Ok(library) = Self::of_system("libmnl")
        {
            return Ok(library);
        }
        Self::of_debian(RELEASE, "libmnl-dev", "libmnl.a", architecture)
    }

    /// The library that pkg-config finds.
    fn of_system(name: &str) -> Result<Self> {
        let ask = |what: &str| Command::new("pkg-config").args([what, name]).read();
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

/// glibc's libc.a, which programs of C that the benchmark carries are linked with.
pub(crate) fn glibc(architecture: Architecture) -> Result<PathBuf> {
    of_compiler(architecture, "libc.a")
}

/// Where the compiler finds a file.
fn of_compiler(architecture: Architecture, name: &str) -> Result<PathBuf> {
    let compiler = compiler(architecture);
    let path = Command::new(&compiler).arg(format!("-print-file-name={name}")).read()?;
    Ok(fs::canonicalize(path.trim()).map_err(|error| format!("{compiler} has no {name}: {error}"))?)
}

/// The name of this machine's release of Debian.
fn debian_release() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(codename.ok_or("/etc/os-release has no VERSION_CODENAME")?.to_owned())
}
