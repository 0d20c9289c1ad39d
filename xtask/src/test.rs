//! `cargo xtask test`: the checks before each commit; and `cargo xtask test --slow`: those that take longer.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use lab::architecture::Architecture;
use lab::install::find;
use lab::shell::{PROGRAMS_TO_TEST, Result, Run as _, cargo, need_root, target};

use crate::{bench, build, kernels, pods};

/// Random tests read the seed of their cases from this variable.
const SEED_NAME: &str = "PROPTEST_RNG_SEED";

/// The same cases each time: that a commit passes must not depend on chance. `cargo test` makes new ones each time.
const SEED: &str = "20261124";

/// Integration tests with packages of other Debian releases, which are downloaded.
const OF_DEBIANS_PACKAGES: [&str; 2] = ["versions::", "beside_debians_programs"];

/// Integration tests that take minutes; the last ones measure the agent that ships.
const SLOW: [&str; 5] = [
    OF_DEBIANS_PACKAGES[0],
    OF_DEBIANS_PACKAGES[1],
    "valgrind::",
    "take_no_more_memory_than_the_agent_may_have",
    "a_full_node_costs_little",
];

/// Runs tests of several programs side by side, each test in a process of its own.
const NEXTEST: &str = "cargo-nextest";

/// Many tests wait, so this many of them share a core.
const TESTS_A_CORE: usize = 2;

/// Formatting, lints, unit tests, and the integration tests on the programs that cargo builds with them.
pub(crate) fn quick() -> Result<()> {
    need_root("cargo xtask test", "to make network namespaces")?;
    cargo(&["fmt", "--all", "--check"]).run()?;
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"]).run()?;
    // The library as programs embed it, and the program without diagnosis.
    for features in ["", "cli"] {
        cargo(&["clippy", "--package", "proxy-init", "--locked", "--no-default-features", "--features", features])
            .args(["--", "-D", "warnings"])
            .run()?;
    }
    let mut tests = tests(&target("debug"))?;
    tests.arg("--");
    for test in SLOW {
        tests.args(["--skip", test]);
    }
    tests.run()?;
    if find(NEXTEST).is_some() {
        // nextest runs no examples in documentation.
        cargo(&["test", "--locked", "--workspace", "--all-features", "--doc"]).run()?;
    }
    Ok(())
}

/// Documentation, the integration tests on the programs that ship, each benchmark once, pods, and kernels.
pub(crate) fn slow() -> Result<()> {
    need_root("cargo xtask test --slow", "to make network namespaces")?;
    cargo(&["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings").run()?;
    // The fuzz targets are no members of the workspace: this sees that their lock file keeps up, and builds nothing.
    cargo(&["metadata", "--locked", "--format-version", "1", "--manifest-path", "fuzz/Cargo.toml"])
        .stdout(Stdio::null())
        .run()?;
    let mut skipped = Vec::new();
    for program in build::SHIPPED {
        build::to_dist(program)?;
    }
    let mut tests = tests(&target("dist"))?;
    tests.args(["--test", "integration", "--", "--include-ignored"]);
    let mirror = lab::apt::mirror();
    if let Err(reason) = &mirror {
        skipped.push(format!(
            "other versions of iptables and nft, firewalls beside the rules, pods and kernels: they are of Debian's packages, \
             and {reason}"
        ));
        for test in OF_DEBIANS_PACKAGES {
            tests.args(["--skip", test]);
        }
    }
    tests.run()?;
    // Each benchmark once; no time decides anything.
    skipped.extend(bench::try_once()?);
    if mirror.is_ok() {
        pods::check(None, &[])?;
        // Each kernel whole, and one with each module missing. All of them, and those of another architecture, take minutes
        // more: see CONTRIBUTING.md.
        for word in ["nothing", "6.12"] {
            kernels::check(Architecture::here()?, &[word])?;
        }
    }
    tell(&skipped)
}

/// A command that runs the workspace's tests on the programs in this folder.
fn tests(programs: &Path) -> Result<Command> {
    let runner: &[&str] = if find(NEXTEST).is_some() { &["nextest", "run"] } else { &["test"] };
    let mut tests = cargo(runner);
    tests.args(["--locked", "--workspace", "--all-features"]).env(PROGRAMS_TO_TEST, programs);
    let threads = thread::available_parallelism()?.get() * TESTS_A_CORE;
    tests.env("NEXTEST_TEST_THREADS", threads.to_string());
    if env::var_os(SEED_NAME).is_none() {
        tests.env(SEED_NAME, SEED);
    }
    Ok(tests)
}

/// Says last what was skipped: nobody shall take it for passed. In CI, that is a failure.
fn tell(skipped: &[String]) -> Result<()> {
    for what in skipped {
        println!("SKIPPED, and so not passed: {what}");
    }
    if !skipped.is_empty() && env::var("CI").is_ok_and(|value| value == "true") {
        return Err("CI skips nothing: see above".into());
    }
    Ok(())
}
