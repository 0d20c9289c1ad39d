//! `cargo xtask bench`: whole processes by proxy-init-bench, and the inside of processes by criterion.

use std::fs;
use std::process::Command;

use lab::shell::{Result, Run as _, cargo, need_root, target};

use crate::build;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    need_root("cargo xtask bench", "to make network namespaces")?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--plugin"] => plugin(),
        ["--inside", rest @ ..] => {
            // Without the program's own features: no benchmark runs it, and so it needs no building.
            let mut command = cargo(&["bench", "--locked", "--package", "proxy-init", "--benches"]);
            command.args(["--no-default-features", "--features", "diagnose", "--"]).args(rest).run()
        }
        rest => processes(rest),
    }
}

/// Every contender of every table once; no time decides anything. Returns what could not be run here, and why.
pub(crate) fn try_once() -> Result<Vec<String>> {
    let mut inside = cargo(&["test", "--locked", "--benches"]);
    inside.args(["--package", "proxy-init", "--package", "linkerd-cni"]);
    inside.env("PROXY_INIT", build::to_dist("proxy-init")?).run()?;
    processes(&["--runs", "1"])?;
    let text = fs::read_to_string(target("bench/benchmarks.md"))?;
    let left_out = text.lines().filter_map(|line| line.strip_prefix("Left out: "));
    Ok(left_out.map(ToOwned::to_owned).collect())
}

fn processes(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(build::to_dist("proxy-init-bench")?);
    command.args(arguments).arg("--output").arg(target("bench")).run()
}

fn plugin() -> Result<()> {
    // Not optimised: it measures programs, and it would take minutes to build.
    let mut command = cargo(&["test", "--locked", "--package", "linkerd-cni", "--bench", "add"]);
    command
        .args(["--", "--runs", "300"])
        .env("LINKERD_CNI", build::to_dist("linkerd-cni")?)
        .env("PROXY_INIT", build::to_dist("proxy-init")?)
        .run()
}
