//! `cargo xtask mutants`: how many deliberate mistakes in the pure code the tests that need no root notice.

use std::fs;
use std::path::Path;

use lab::shell::{Result, cargo, root, target};
use serde_json::Value;

use crate::setup;

/// The pure code: what the unit tests alone can hold to its word. These rooms import nothing but each other (see
/// tests/rooms.rs), so that they can be compiled as a package of their own, which takes a fraction of the time.
const ROOMS: [&str; 5] = ["rules", "wanted", "found", "walk", "findings"];

/// The dependencies of that code, with their lines in Cargo.toml.
const DEPENDENCIES: [&str; 3] = ["ipnet", "thiserror", "proptest"];

/// Of this many viable mutants, one may survive.
const VIABLE_FOR_A_SURVIVOR: u64 = 20;

/// Has cargo-mutants make its mutants of these files, or of all the pure code, and fails where too many survive.
pub(crate) fn run(files: &[String]) -> Result<()> {
    setup::cargo_tool("cargo-mutants")?;
    let folder = target("mutants");
    let package = folder.join("pure");
    make_package(&package)?;
    let mut command = cargo(&[
        "mutants",
        // Examples in the documentation name the library.
        "--cargo-test-arg=--lib",
        "--in-place",
        "--output",
    ]);
    command.arg(&folder).current_dir(&package);
    for file in files {
        command.args(["--file", file]);
    }
    // Nobody debugs them, and they link faster so.
    command.env("CARGO_PROFILE_DEV_DEBUG", "none");
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    // 2: some survived; 3: some ran into the time limit, which notices them too (cargo-mutants, "Exit codes").
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("{command:?}: {status}").into());
    }
    let outcomes = fs::read_to_string(folder.join("mutants.out/outcomes.json"))?;
    let outcomes: Value = serde_json::from_str(&outcomes)?;
    let count = |what: &str| -> Result<u64> {
        let count = outcomes.get(what).and_then(Value::as_u64);
        count.ok_or_else(|| format!("cargo-mutants' outcomes.json has no {what:?}").into())
    };
    let survived = count("missed")?;
    let viable = survived + count("caught")? + count("timeout")?;
    println!("{survived} of {viable} viable mutants survived");
    if viable == 0 {
        return Err("no mutant was viable: nothing was measured".into());
    }
    if survived * VIABLE_FOR_A_SURVIVOR > viable {
        return Err(format!(
            "more than one in {VIABLE_FOR_A_SURVIVOR} survived: see mutants.out/missed.txt in {}",
            folder.display()
        )
        .into());
    }
    Ok(())
}

/// A package with the pure code and nothing else. What was there is replaced, but for what has been compiled.
fn make_package(package: &Path) -> Result<()> {
    let source = package.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    for room in ROOMS {
        copy(&root().join("src").join(room), &source.join(room))?;
    }
    let library: String = ROOMS.iter().map(|room| format!("pub mod {room};\n")).collect();
    fs::write(source.join("lib.rs"), library)?;
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let mut dependencies = String::new();
    for name in DEPENDENCIES {
        let is_dependency = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" = "));
        let line = manifest.lines().find(is_dependency);
        let line = line.ok_or_else(|| format!("Cargo.toml has no dependency {name}"))?;
        dependencies += &format!("{line}\n");
    }
    let package_manifest = format!(
        "[package]\nname = \"pure\"\nedition = \"2024\"\n\n[dependencies]\n{dependencies}\n\
         [workspace]\n"
    );
    fs::write(package.join("Cargo.toml"), package_manifest)?;
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock"))?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied)?;
        } else {
            fs::copy(&path, &copied)?;
        }
    }
    Ok(())
}
