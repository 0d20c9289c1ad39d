//! The images of a release: for each stage of the Dockerfile that needs no pulled base, an OCI layout with an index of
//! both architectures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::shell::{Result, Run as _, target};
use serde_json::{Value, json};

use crate::build;
use crate::commit::Commit;
use crate::image::{self, STAGES, Stage, buildah};
use lab::architecture::Architecture;
use lab::install;

/// Where the layouts are in a release.
pub(super) const FOLDER: &str = "images";

/// Builds all images, and writes each as an OCI layout to images/NAME.
pub(super) fn add_all(commit: &Commit, folder: &Path) -> Result<()> {
    install::programs(&[("buildah", "buildah")])?;
    let work = target("image");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let build_stage = |architecture: Architecture| work.join("build-stage").join(architecture.name());
    for architecture in Architecture::ALL {
        image::lay_out(&build_stage(architecture).join("out"), architecture)?;
    }
    for stage in &STAGES {
        let list = format!("localhost/{}", stage.image);
        buildah("manifest create").arg(&list).read()?;
        for architecture in Architecture::ALL {
            let name = format!("{list}:{}", architecture.name());
            image::build(stage, &build_stage(architecture), architecture, commit, &name)?;
            buildah("manifest add").args([&list, &name]).read()?;
        }
        let layout = folder.join(FOLDER).join(stage.image);
        fs::create_dir_all(&layout)?;
        buildah("manifest push --all --format oci --quiet")
            .arg(&list)
            .arg(format!("oci:{}:{}", layout.display(), env!("CARGO_PKG_VERSION")))
            .run()?;
        check(stage, commit, &layout)?;
    }
    Ok(())
}

/// Fails unless a layout's index has each architecture's image, with its user, entry point, labels and file
/// capabilities.
fn check(stage: &Stage, commit: &Commit, layout: &Path) -> Result<()> {
    let read = |file: PathBuf| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    let blob = |descriptor: &Value| -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().ok_or("a descriptor without a digest")?;
        Ok(layout.join("blobs").join(digest.replace(':', "/")))
    };
    let top = read(layout.join("index.json"))?;
    let index = read(blob(&top["manifests"][0])?)?;
    for (number, architecture) in Architecture::ALL.into_iter().enumerate() {
        let expect = |what: &str, found: &Value, expected: Value| {
            if *found == expected {
                return Ok(());
            }
            let name = architecture.name();
            Err(format!("{} for {name}: {what}: {found}, not {expected}", stage.image))
        };
        let descriptor = &index["manifests"][number];
        let platform = json!({"architecture": architecture.name(), "os": "linux"});
        expect("platform", &descriptor["platform"], platform)?;
        let manifest = read(blob(descriptor)?)?;
        let config = read(blob(&manifest["config"])?)?;
        expect("architecture", &config["architecture"], json!(architecture.name()))?;
        expect("user", &config["config"]["User"], json!(stage.user))?;
        expect("entry point", &config["config"]["Entrypoint"], json!(stage.entry_point.map(|word| [word])))?;
        for (label, value) in image::labels(commit) {
            let name = format!("org.opencontainers.image.{label}");
            expect(label, &config["config"]["Labels"][name], json!(value))?;
        }
        let root = target("image/unpacked").join(architecture.name());
        fs::create_dir_all(&root)?;
        Command::new("tar")
            .args(["--extract", "--gzip", "--xattrs", "--xattrs-include=security.capability"])
            .arg("--directory")
            .arg(&root)
            .arg("--file")
            .arg(blob(&manifest["layers"][0])?)
            .run()?;
        for (program, path) in stage.programs {
            let file = root.join(path.trim_start_matches('/'));
            let capabilities = Command::new("getcap").arg(&file).read()?;
            let capabilities = capabilities.split_whitespace().nth(1);
            expect("file capabilities", &json!(capabilities), json!(stage.capabilities))?;
            let expected = fs::read(build::program(program, architecture)?)?;
            expect("the program is that of the release", &json!(fs::read(file)? == expected), json!(true))?;
        }
    }
    Ok(())
}

/// Prints the commands that publish a release, which this program runs none of. What is signed is named by its digest:
/// a tag may name something else by then.
pub(super) fn print_how_to_push(folder: &Path) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    println!("\nTo push the images, and sign them and the checksums:\n\n  cd {}", folder.display());
    for Stage { image, .. } in &STAGES {
        let top: Value = serde_json::from_slice(&fs::read(folder.join(FOLDER).join(image).join("index.json"))?)?;
        let digest = top["manifests"][0]["digest"].as_str().ok_or("a layout without an index")?;
        println!(
            "  skopeo copy --all --preserve-digests oci:{FOLDER}/{image}:{version} docker://REGISTRY/{image}:{version}\n  \
             cosign sign --recursive REGISTRY/{image}@{digest}"
        );
    }
    println!("  cosign sign-blob --bundle SHA256SUMS.sigstore.json SHA256SUMS\n");
    Ok(())
}
