//! Kubernetes' programs, built from Debian's source archive by Debian's compiler.
//!
//! 1.20.2 is the last version of which Debian's archive has more than kubectl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::apt;
use crate::shell::{Result, Run as _};

/// The version, its archive in Debian's pool, and the compiler's package.
const VERSION: &str = "1.20.2";
const ARCHIVE: &str = "main/k/kubernetes/kubernetes_1.20.5+really1.20.2.orig.tar.gz";
const RELEASE: &str = "bookworm";
const COMPILER: &str = "golang-1.19-go";
const COMPILERS_ROOT: &str = "usr/lib/go-1.19";

const PROGRAMS: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"];

/// What is changed in it, and why.
const PATCH: &str = include_str!("kubernetes.patch");

/// The programs, which are built unless they are there, below this folder.
pub(crate) fn programs(folder: &Path) -> Result<Vec<PathBuf>> {
    let folder = folder.join(format!("kubernetes-{VERSION}"));
    let built = PROGRAMS.map(|name| folder.join("bin").join(name)).to_vec();
    // The patch that they were built with.
    let done = folder.join("patch");
    if fs::read_to_string(&done).is_ok_and(|patch| patch == PATCH) {
        return Ok(built);
    }
    let begun = Instant::now();
    eprintln!(
        "xtask: building Kubernetes {VERSION}, once: it downloads 115 MB of Debian's source and compiler, takes 8 minutes of \
         processor time and 3 GB of disk, of which 0.9 GB stay"
    );
    let work = folder.join("work");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    build(&work, &folder.join("bin"))?;
    fs::remove_dir_all(&work)?;
    fs::write(&done, PATCH)?;
    eprintln!("xtask: built Kubernetes in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(built)
}

/// Unpacks, patches and compiles it in a folder, and puts the programs into another one.
fn build(work: &Path, programs: &Path) -> Result<()> {
    // Where a compiler without modules looks for it.
    let source = work.join("src/k8s.io/kubernetes");
    fs::create_dir_all(&source)?;
    let archive = apt::download(ARCHIVE, work)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).arg("-C").arg(&source).arg("--strip-components=1");
    unpack.run()?;
    let patch = work.join("kubernetes.patch");
    fs::write(&patch, PATCH)?;
    let mut apply = Command::new("patch");
    apply.args(["--strip=1", "--quiet", "--directory"]).arg(&source);
    apply.arg("--input").arg(&patch).run()?;
    let root = apt::unpack_all(RELEASE, "go", &[COMPILER])?.join(COMPILERS_ROOT);
    let go = |arguments: &[&str]| {
        let mut go = Command::new(root.join("bin/go"));
        go.current_dir(&source)
            .env("GOROOT", &root)
            .env("GOPATH", work)
            .env("GOCACHE", work.join("cache"))
            .env("GO111MODULE", "off")
            .env("CGO_ENABLED", "0")
            .args(arguments);
        go
    };
    describe_api(&source, &go)?;
    let mut compile = go(&["build", "-trimpath", "-ldflags=-s -w", "-o"]);
    fs::create_dir_all(programs)?;
    compile.arg(programs.join("")).args(PROGRAMS.map(|name| format!("./cmd/{name}")));
    compile.run()
}

/// Makes the description of the API that the archive lacks, by which kubectl checks what it is given, as
/// build/root/Makefile.generated_files does.
fn describe_api(source: &Path, go: &dyn Fn(&[&str]) -> Command) -> Result<()> {
    let mut folders = Vec::new();
    for (at, name) in [("vendor/k8s.io", "k8s.io/kubernetes/vendor/k8s.io"), ("pkg", "k8s.io/kubernetes/pkg")] {
        find_described(&source.join(at), name, &mut folders)?;
    }
    folders.retain(|folder| !NOT_SERVED.iter().any(|other| folder.contains(other)));
    folders.sort();
    let generator = "./vendor/k8s.io/kube-openapi/cmd/openapi-gen";
    let header = source.join("hack/boilerplate/boilerplate.generatego.txt");
    let mut generate = go(&["run", generator, "-O", "zz_generated.openapi"]);
    generate.args(["-p", "k8s.io/kubernetes/pkg/generated/openapi", "-r", "/dev/null"]);
    generate.arg("-h").arg(header).arg("-i").arg(folders.join(","));
    // It says which names don't follow the rules.
    generate.read()?;
    Ok(())
}

/// Packages with such types that the API server doesn't serve.
const NOT_SERVED: [&str; 4] =
    ["k8s.io/code-generator", "k8s.io/sample-apiserver", "k8s.io/gengo", "k8s.io/kube-openapi"];

/// The packages below a folder, whose own name is this, in which a file asks for descriptions.
fn find_described(folder: &Path, name: &str, found: &mut Vec<String>) -> Result<()> {
    let mut described = false;
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        let file = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            find_described(&path, &format!("{name}/{file}"), found)?;
        } else if file.ends_with(".go") {
            described |= String::from_utf8_lossy(&fs::read(path)?).contains("+k8s:openapi-gen=");
        }
    }
    if described {
        found.push(name.to_owned());
    }
    Ok(())
}
