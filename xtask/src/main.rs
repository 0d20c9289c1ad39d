//! `cargo xtask`: everything a person does with the checkout.

use std::process::ExitCode;

mod bench;
mod build;
mod demo;
mod guest;
mod image;
mod kernels;
mod setup;

use xtask::shell::{self, Result, Run as _, cargo};

const HELP: &str = "\
Usage: cargo xtask COMMAND

Commands:
  setup   Install what the build and the tests need (the others do it when something is missing)
  build   Build the static release binary, target/dist/proxy-init
  test    Check formatting and lints, run all tests (needs root)
  bench   Run the benchmarks, make docs/benchmarks.md and .svg (needs root); --quick takes a minute,
          --save-baseline NAME and --baseline NAME keep results and compare with them
  audit   Check licences, duplicate versions, sources and, where they can be had, advisories of dependencies
  image   Assemble the scratch image and run it with runc as Kubernetes would (needs root)
  kernels Boot Debian's kernels under qemu, whole and with modules missing, and try every mode; makes
          docs/kernels.md
  fuzz    Fuzz the readers of kernel answers, iptables-save text and flags, for 10 minutes or for
          --seconds N (needs a nightly toolchain)
  demo    Show real connections through the rules, in throwaway namespaces (needs root)

Example: cargo xtask demo";

fn main() -> ExitCode {
    if guest::is_guest() {
        guest::run();
        return ExitCode::SUCCESS;
    }
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match (command.as_str(), rest.as_slice()) {
        ("setup", []) => setup::run(),
        ("build", []) => setup::ensure().and_then(|()| build::run()).map(|binary| {
            println!("{}", binary.display());
        }),
        ("test", []) => setup::ensure().and_then(|()| test()),
        ("demo", []) => setup::ensure().and_then(|()| demo::run()),
        ("audit", []) => audit(),
        ("image", []) => setup::ensure().and_then(|()| image::run()),
        ("kernels", []) => setup::ensure().and_then(|()| kernels::run()),
        ("fuzz", arguments) => setup::ensure().and_then(|()| fuzz(arguments)),
        ("bench", arguments) => setup::ensure().and_then(|()| bench::run(arguments)),
        ("" | "help" | "-h" | "--help", _) => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown command: cargo xtask {command} {}\n\n{HELP}", rest.join(" ")).into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<()> {
    shell::need_root("cargo xtask test")?;
    cargo(&["fmt", "--all", "--check"]).run()?;
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])
    .run()?;
    // Unit, integration and doc tests.
    cargo(&["test", "--workspace", "--locked"]).run()?;
    // Each benchmark once; no time decides anything.
    cargo(&["test", "--locked", "--benches"]).run()
}

/// The corpus is read, and what is found goes to target/.
fn fuzz(arguments: &[String]) -> Result<()> {
    let seconds = match arguments {
        [] => 600,
        [flag, seconds] if flag == "--seconds" => seconds.parse::<u32>()?,
        _ => return Err("usage: cargo xtask fuzz [--seconds N]".into()),
    };
    if !setup::find("cargo-fuzz") {
        cargo(&["install", "--locked", "cargo-fuzz"]).run()?;
    }
    let found = shell::target("fuzz-corpus");
    std::fs::create_dir_all(&found)?;
    let mut command = std::process::Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "fuzz", "run", "read_all"])
        .arg(&found);
    command
        .arg("fuzz/corpus/read_all")
        .args(["--", &format!("-max_total_time={seconds}")]);
    command.current_dir(shell::root()).run()
}

/// cargo-deny's checks; advisories need a database from the network, and missing it is said, not passed.
fn audit() -> Result<()> {
    if !setup::find("cargo-deny") {
        cargo(&["install", "--locked", "cargo-deny"]).run()?;
    }
    cargo(&["deny", "check", "licenses", "bans", "sources"]).run()?;
    if cargo(&["deny", "check", "advisories"]).run().is_err() {
        println!("NOT CHECKED, or not passed: advisories; see above");
    }
    Ok(())
}
