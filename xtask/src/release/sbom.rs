//! A program's SBOM, in CycloneDX: its crates as cargo-cyclonedx lists them, and what else is linked in.

use std::fs;
use std::path::Path;

use lab::shell::{Result, Run as _, cargo, root};
use serde_json::{Value, json};

use super::files;
use crate::build;
use crate::commit::Commit;
use crate::licences::{self, Component, Origin};
use crate::setup;
use crate::target;
use lab::architecture::Architecture;

/// The SBOM of a program's file. Its time is the commit's.
pub(super) fn of(
    program: &str,
    architecture: Architecture,
    components: &[Component],
    commit: &Commit,
    file: &Path,
) -> Result<String> {
    let mut sbom = crates(program, architecture, commit)?;
    if let Some(carried) = build::carried_by(program) {
        let mut other = crates(carried, architecture, commit)?;
        let component = other.pointer("/metadata/component").cloned().unwrap_or_default();
        array(&mut other, "/components")?.push(component);
        for (list, key) in [("/components", "bom-ref"), ("/dependencies", "ref")] {
            let known = array(&mut sbom, list)?;
            for entry in array(&mut other, list)? {
                if known.iter().all(|one| one[key] != entry[key]) {
                    known.push(entry.clone());
                }
            }
        }
    }
    let [vendor, name, version] = target::of(architecture)?.rust.maker()?;
    array(&mut sbom, "/metadata/tools")?.push(json!({"vendor": vendor, "name": name, "version": version}));
    let described = sbom.pointer_mut("/metadata/component").and_then(Value::as_object_mut);
    let described = described.ok_or("the SBOM describes no component")?;
    described.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": files::sum(file)?}]));
    described.insert("licenses".to_owned(), json!([{"expression": licences::expression(components)?}]));
    let reference = described.get("bom-ref").cloned().unwrap_or_default();
    let others: Vec<Value> = components.iter().filter_map(|one| entry(one, architecture)).collect();
    let references: Vec<Value> = others.iter().filter_map(|one| one.get("bom-ref").cloned()).collect();
    array(&mut sbom, "/components")?.extend(others);
    let dependencies = array(&mut sbom, "/dependencies")?;
    let own = dependencies.iter_mut().find(|entry| entry.get("ref") == Some(&reference));
    let own = own.and_then(|entry| entry.get_mut("dependsOn")).and_then(Value::as_array_mut);
    own.ok_or("the SBOM lists no dependencies of the program")?.extend(references.iter().cloned());
    dependencies.extend(references.into_iter().map(|reference| json!({"ref": reference})));
    Ok(format!("{sbom:#}\n"))
}

/// cargo-cyclonedx's components of a program.
fn crates(program: &str, architecture: Architecture, commit: &Commit) -> Result<Value> {
    setup::cargo_tool("cargo-cyclonedx")?;
    cargo(&["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"])
        .args(["--describe", "binaries", "--no-build-deps", "--target", &target::of(architecture)?.triple()])
        .env("SOURCE_DATE_EPOCH", &commit.seconds)
        .run()?;
    // It writes a file for each program of the workspace, beside the manifest of its package.
    let metadata = cargo(&["metadata", "--locked", "--no-deps", "--format-version", "1"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let mut found = None;
    for manifest in packages.into_iter().flatten().filter_map(|package| package["manifest_path"].as_str()) {
        for file in fs::read_dir(Path::new(manifest).parent().unwrap_or(root()))?.flatten() {
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name == format!("{program}_bin.cdx.json") {
                found = Some(fs::read_to_string(file.path())?);
            }
            if name.ends_with("_bin.cdx.json") {
                fs::remove_file(file.path())?;
            }
        }
    }
    let text = found.ok_or_else(|| format!("cargo-cyclonedx wrote nothing about {program}"))?;
    // It names packages by where they are.
    let text = text.replace(&format!("file://{}", root().display()), "file:///proxy-init");
    Ok(serde_json::from_str(&text)?)
}

/// A component that isn't a crate.
fn entry(component: &Component, architecture: Architecture) -> Option<Value> {
    let Component { name, version, .. } = component;
    let reference = match &component.origin {
        Origin::Crate => return None,
        Origin::CrateOfStandardLibrary => format!("pkg:cargo/{name}@{version}"),
        Origin::Debian(package, version) => {
            // The cross compiler's libraries are of no architecture, for apt.
            let architecture = if package.ends_with("-cross") { "all" } else { architecture.name() };
            // A package URL has these in the version encoded: 2:2.36-9+deb12u14.
            let version = version.replace(':', "%3A").replace('+', "%2B");
            format!("pkg:deb/debian/{package}@{version}?arch={architecture}")
        }
        Origin::RustToolchain => format!("pkg:generic/{name}@{version}"),
    };
    Some(json!({
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "description": "linked statically",
        "scope": "required",
        "licenses": [{"expression": component.licence}],
        "purl": reference
    }))
}

fn array<'a>(value: &'a mut Value, pointer: &str) -> Result<&'a mut Vec<Value>> {
    let array = value.pointer_mut(pointer).and_then(Value::as_array_mut);
    array.ok_or_else(|| format!("the SBOM has no list {pointer}").into())
}
