//! `cargo xtask mutants`: how many deliberate mistakes the tests that need no root notice.

use std::fs;

use lab::shell::{Result, cargo, target};
use serde_json::Value;

use crate::setup;

/// The files that the unit tests alone can judge.
const FILES: [&str; 5] = ["crates/*/src/**", "src/config/**", "src/diagnose/**", "src/ownership.rs", "src/plan/**"];

/// Of this many viable mutants, one may survive.
const VIABLE_FOR_A_SURVIVOR: u64 = 20;

/// Has cargo-mutants make its mutants of these files, or of all that code, and fails where too many survive.
pub(crate) fn run(files: &[String]) -> Result<()> {
    setup::cargo_tool("cargo-mutants")?;
    let folder = target("mutants");
    // Examples in the documentation name the library, and integration tests need root.
    let mut command = cargo(&["mutants", "--workspace", "--cargo-test-arg=--lib", "--output"]);
    command.arg(&folder);
    let all = FILES.map(str::to_owned);
    for file in if files.is_empty() { &all } else { files } {
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
