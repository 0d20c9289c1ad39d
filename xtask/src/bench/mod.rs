//! `cargo xtask bench`: runs the benchmarks and makes one table and one chart of them.

mod report;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use xtask::lab::Namespace;
use xtask::linkerd;

use crate::build;
use report::Samples;
use xtask::shell::{Result, Run as _, cargo, need_root, root, target};

/// The groups that make a table of their own: their title, and the row that the others are compared with.
const TABLES: [(&str, &str, &str); 3] = [
    (
        "process",
        "Whole process, from spawn to exit",
        "proxy-init --iptables-mode nft",
    ),
    ("apply", "Apply, from socket to acknowledgement", "nft, dual stack"),
    ("plan and encode", "Plan and encode", "plan and encode"),
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    need_root("cargo xtask bench")?;
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let mut passed_on: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| *argument != "--quick")
        .collect();
    if quick {
        passed_on.extend(["--sample-size", "30", "--warm-up-time", "0.05"]);
    }
    // Part of a run may stand beside results of an earlier one; a whole run stands alone.
    if arguments.iter().all(|argument| argument == "--quick") {
        forget(&target("criterion"))?;
    }
    let binary = build::run()?;
    let mut command = cargo(&["bench", "--locked", "--package", "proxy-init", "--"]);
    command.args(&passed_on).env("PROXY_INIT", &binary).run()?;

    let mut text = format!(
        "# Benchmarks\n\n{}\n\nMade by `cargo xtask bench{}`. Each run has a fresh network namespace, made outside the \
         timed part, for IPv4 and IPv6 with Linkerd's default arguments. What a table compares took turns, one run each a \
         round, in another order each round. Ratios are of medians; machines are noisy, the spread says how much.\n",
        machine()?,
        if quick { " --quick" } else { "" }
    );
    for (group, title, reference) in TABLES {
        let samples = report::read(group)?;
        let Some(reference) = samples
            .iter()
            .find(|samples| samples.name == reference)
            .map(Samples::p50)
        else {
            continue;
        };
        let _ = writeln!(text, "\n## {title}\n");
        text += &report::table(&samples, reference);
        if group == "process" {
            fs::write(root().join("docs/benchmarks.svg"), report::chart(&samples, reference))?;
        }
    }
    for (group, title) in [
        ("process by ports", "Whole process, by single ignored inbound ports"),
        ("apply by ports", "Apply, by single ignored inbound ports"),
        (
            "connect by ports",
            "One connection through the rules, by single ignored inbound ports",
        ),
    ] {
        let _ = writeln!(text, "\n## {title}\n");
        text += &report::by_ports(&report::read(group)?);
    }
    let _ = writeln!(text, "\n## Size\n\n{}", size(&binary)?);
    println!("{text}");
    fs::create_dir_all(root().join("docs"))?;
    fs::write(root().join("docs/benchmarks.md"), text)?;
    println!("Written to docs/benchmarks.md and docs/benchmarks.svg");
    Ok(())
}

/// Deletes what criterion measured last, but for the baselines that were saved.
fn forget(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() == "new" {
            fs::remove_dir_all(path)?;
        } else if path.is_dir() {
            forget(&path)?;
        }
    }
    Ok(())
}

/// Kernel, CPU and versions.
fn machine() -> Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let mut facts = vec![
        format!("Linux {}", Command::new("uname").arg("-r").read()?.trim()),
        format!("{cores} cores, {}", model.map_or("unknown", |(_, model)| model)),
    ];
    for command in ["iptables-nft", "iptables-legacy", "nft", "rustc"] {
        facts.extend(
            Command::new(command)
                .arg("--version")
                .read()
                .ok()
                .map(|line| line.trim().to_owned()),
        );
    }
    Ok(facts.join("; ") + ".")
}

/// The binary's size, and the most memory that a run has.
fn size(binary: &Path) -> Result<String> {
    const MIB: f64 = 1024.0 * 1024.0;
    let bytes = fs::metadata(binary)?.len();
    let memory = match peak_memory(binary) {
        Ok(peak) => format!(
            "a run's memory peaks at {:.2} MiB (ru_maxrss, the most of {RUNS_FOR_MEMORY} runs)",
            peak as f64 / MIB
        ),
        Err(reason) => format!("a run's memory was not measured: {reason}"),
    };
    Ok(format!(
        "The static binary has {:.2} MiB; {memory}.",
        bytes as f64 / MIB
    ))
}

const RUNS_FOR_MEMORY: usize = 20;

/// The most memory, in bytes, that a run in a fresh namespace has at a time. benches/peak.c says why it takes a program.
fn peak_memory(binary: &Path) -> Result<u64> {
    let peak = target("peak");
    Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .args([&peak, &root().join("benches/peak.c")])
        .run()?;
    let mut most = 0;
    for _ in 0..RUNS_FOR_MEMORY {
        let mut command = Command::new(&peak);
        command
            .arg(binary)
            .args(["--iptables-mode", "nft"])
            .args(linkerd::CHART_ARGUMENTS);
        let output = Namespace::new().output(&mut command);
        let stderr = String::from_utf8(output.stderr)?;
        match stderr.lines().last().map(str::parse::<u64>) {
            Some(Ok(kib)) if output.status.success() => most = most.max(kib * 1024),
            _ => return Err(format!("{}: {}: {stderr}", peak.display(), output.status).into()),
        }
    }
    Ok(most)
}
