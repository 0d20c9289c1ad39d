//! `cargo xtask bench`: runs the benchmarks and makes one table and one chart of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use xtask::lab::Namespace;
use xtask::linkerd;

use crate::build;
use xtask::shell::{Result, Run as _, cargo, need_root, root, target};

/// One benchmark's single runs, in microseconds, sorted.
struct Samples {
    name: String,
    microseconds: Vec<f64>,
}

impl Samples {
    fn percentile(&self, percent: usize) -> f64 {
        let last = self.microseconds.len().saturating_sub(1);
        self.microseconds.get(last * percent / 100).copied().unwrap_or(f64::NAN)
    }

    fn p50(&self) -> f64 {
        self.percentile(50)
    }
}

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
        let samples = read(group)?;
        let Some(reference) = samples
            .iter()
            .find(|samples| samples.name == reference)
            .map(Samples::p50)
        else {
            continue;
        };
        let _ = writeln!(text, "\n## {title}\n");
        text += &table(&samples, reference);
        if group == "process" {
            fs::write(root().join("docs/benchmarks.svg"), chart(&samples, reference))?;
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
        text += &by_ports(&read(group)?);
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

/// A group's benchmarks, as criterion left them: one sample is one run or, where they are short, several.
fn read(group: &str) -> Result<Vec<Samples>> {
    let folder = target("criterion").join(group);
    let mut all = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let new = folder.join("new");
        if new.exists() {
            all.push(read_one(&new)?);
        } else {
            folders.extend(
                fs::read_dir(&folder)?
                    .flatten()
                    .map(|entry| entry.path())
                    .filter(|path| path.is_dir()),
            );
        }
    }
    all.sort_by(|a, b| a.p50().total_cmp(&b.p50()));
    Ok(all)
}

fn read_one(folder: &Path) -> Result<Samples> {
    let json = |name: &str| -> Result<Value> { Ok(serde_json::from_str(&fs::read_to_string(folder.join(name))?)?) };
    let sample = json("sample.json")?;
    let numbers = |key: &str| -> Vec<f64> {
        let list = sample.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let mut microseconds: Vec<f64> = numbers("times")
        .iter()
        .zip(numbers("iters"))
        .map(|(nanoseconds, iterations)| nanoseconds / iterations / 1000.0)
        .collect();
    microseconds.sort_by(f64::total_cmp);
    let benchmark = json("benchmark.json")?;
    let text = |key: &str| {
        benchmark
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let value = text("value_str");
    let function = text("function_id");
    Ok(Samples {
        name: if value.is_empty() {
            function
        } else {
            format!("{function}/{value}")
        },
        microseconds,
    })
}

fn table(samples: &[Samples], reference: f64) -> String {
    let mut text = String::from("| | p50 | p10 – p90 | p99 | × |\n|---|--:|--:|--:|--:|\n");
    for samples in samples {
        let _ = writeln!(
            text,
            "| {} | {} | {} – {} | {} | {:.2} |",
            samples.name,
            time(samples.p50()),
            time(samples.percentile(10)),
            time(samples.percentile(90)),
            time(samples.percentile(99)),
            samples.p50() / reference
        );
    }
    text
}

/// Names are `WHAT/PORTS`: a row a number of ports, a column a contender.
fn by_ports(samples: &[Samples]) -> String {
    let split = |samples: &Samples| {
        let (name, ports) = samples.name.rsplit_once('/')?;
        Some((name.to_owned(), ports.parse::<u32>().ok()?, samples.p50()))
    };
    let cells: Vec<_> = samples.iter().filter_map(split).collect();
    let mut names: Vec<_> = cells.iter().map(|(name, _, _)| name).collect();
    let mut ports: Vec<_> = cells.iter().map(|(_, ports, _)| *ports).collect();
    names.sort();
    names.dedup();
    ports.sort_unstable();
    ports.dedup();
    let mut text = format!(
        "| ports |{}\n|--:|",
        names.iter().fold(String::new(), |text, name| text + " " + name + " |")
    );
    text += &"--:|".repeat(names.len());
    for ports in ports {
        let _ = write!(text, "\n| {ports} |");
        for name in &names {
            let cell = cells.iter().find(|cell| cell.0 == **name && cell.1 == ports);
            let _ = write!(text, " {} |", cell.map_or_else(|| "–".to_owned(), |cell| time(cell.2)));
        }
    }
    text + "\n"
}

fn time(microseconds: f64) -> String {
    if microseconds < 1000.0 {
        format!("{microseconds:.0} µs")
    } else {
        format!("{:.2} ms", microseconds / 1000.0)
    }
}

/// Bars on a logarithmic scale: the slowest takes a hundred times as long as the fastest.
fn chart(samples: &[Samples], reference: f64) -> String {
    const LEFT: f64 = 380.0;
    const WIDTH: f64 = 330.0;
    const ROW: f64 = 26.0;
    let bounds = |pick: fn(f64, f64) -> f64| samples.iter().map(Samples::p50).fold(f64::NAN, pick);
    let (low, high) = (bounds(f64::min) / 2.0, bounds(f64::max));
    let mut rows = String::new();
    for (index, samples) in samples.iter().enumerate() {
        let y = 40.0 + ROW * index as f64;
        let width = WIDTH * (samples.p50() / low).ln() / (high / low).ln();
        let colour = match samples.name.as_str() {
            name if name.starts_with("proxy-init") => "#1f6feb",
            name if name.starts_with("floor") => "#8b949e",
            _ => "#d29922",
        };
        let name = samples.name.replace('&', "&amp;").replace('<', "&lt;");
        let _ = write!(
            rows,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{name}</text><rect x=\"{LEFT}\" y=\"{:.0}\" \
             width=\"{width:.0}\" height=\"16\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{:.0}\">{} (×{:.1})</text>",
            LEFT - 8.0,
            y + 13.0,
            y,
            LEFT + width + 6.0,
            y + 13.0,
            time(samples.p50()),
            samples.p50() / reference
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {:.0}\" font-family=\"sans-serif\" \
         font-size=\"13\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/><text x=\"{LEFT}\" y=\"22\" \
         font-weight=\"bold\">Whole process, fresh namespace, IPv4 and IPv6: median, logarithmic</text>{rows}</svg>\n",
        52.0 + ROW * samples.len() as f64
    )
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
