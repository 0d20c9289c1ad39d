//! Whole processes, from spawn to exit, each in a fresh network namespace made outside the timed part: ours, each
//! competitor at its best invocation, and the floor.
//!
//! The binary is that of `cargo xtask build` when PROXY_INIT names it, as `cargo xtask bench` does.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use proxy_init::Ruleset;
use proxy_init::backend::native;
use proxy_init::backend::nft;
use proxy_init::rules::xtables;
use xtask::lab::Namespace;
use xtask::linkerd;

mod support;
#[path = "support/turns.rs"]
mod turns;

use support::{config, rulesets, single_runs};
use turns::{Contender, in_turns};

/// One command of a competitor.
struct Step {
    program: PathBuf,
    arguments: Vec<String>,
    stdin: Option<PathBuf>,
}

impl Step {
    fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            stdin: None,
        }
    }

    fn stdin(mut self, path: &Path) -> Self {
        self.stdin = Some(path.to_owned());
        self
    }

    fn run(&self) {
        let stdin = match &self.stdin {
            Some(path) => Stdio::from(File::open(path).unwrap()),
            None => Stdio::null(),
        };
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(stdin).stdout(Stdio::null());
        let status = command.status().unwrap();
        assert!(status.success(), "{command:?}: {status}");
    }
}

/// A row of the table: a name, and the commands that it takes, one after another.
struct Row {
    name: String,
    steps: Vec<Step>,
}

/// Where the benchmarks keep what they make.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn proxy_init(arguments: &[&str]) -> Step {
    let binary = std::env::var("PROXY_INIT").unwrap_or_else(|_| env!("CARGO_BIN_EXE_proxy-init").to_owned());
    Step::new(binary, arguments.iter().copied())
}

/// The C program of replay.c, static; nothing without a C compiler.
fn floor(name: &str, batch: Option<&[u8]>) -> Option<Step> {
    let program = folder().join(name);
    let mut command = Command::new("cc");
    command.args(["-O2", "-static", "-o"]).arg(&program);
    match batch {
        Some(batch) => {
            let bytes = folder().join(format!("{name}.h"));
            let array = batch.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte},");
                text
            });
            fs::write(&bytes, array).unwrap();
            command.arg(format!("-DBATCH_FILE=\"{}\"", bytes.display()));
        }
        None => {
            command.arg("-DEMPTY");
        }
    }
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/replay.c"));
    match command.status() {
        Ok(status) if status.success() => Some(Step::new(program, [""; 0])),
        _ => {
            eprintln!("skipped: {name}: no C compiler that links statically");
            None
        }
    }
}

/// A competitor that is installed.
fn installed(name: &str, steps: Vec<Step>) -> Option<Row> {
    let missing = steps
        .iter()
        .find(|step| Command::new(&step.program).arg("--version").output().is_err());
    if let Some(step) = missing {
        eprintln!("skipped: {name}: {} is not installed", step.program.display());
        return None;
    }
    Some(Row {
        name: name.to_owned(),
        steps,
    })
}

/// Both families' rules as one restore process each: iptables' best invocation.
fn restore(mode: &str, label: &str, rulesets: &[Ruleset]) -> Option<Row> {
    let steps: Vec<Step> = rulesets
        .iter()
        .zip(["iptables", "ip6tables"])
        .map(|(ruleset, family)| {
            let input = folder().join(format!("{family}-{label}"));
            fs::write(&input, xtables::simulation(std::slice::from_ref(ruleset))).unwrap();
            Step::new(format!("{family}-{mode}-restore"), ["--noflush"]).stdin(&input)
        })
        .collect();
    installed(&format!("iptables-{mode}-restore + ip6tables-{mode}-restore"), steps)
}

/// What linkerd-init runs.
fn linkerd_init(mode: &str) -> Option<Row> {
    let steps = linkerd::commands(mode)
        .into_iter()
        .map(|mut words| Step::new(words.remove(0), words))
        .collect();
    installed(&format!("linkerd-init's 24 iptables-{mode} commands"), steps)
}

/// nft with native mode's script, without its first lines, which delete an earlier table: in a fresh namespace nobody
/// needs them, and deleting makes nft wait for the kernel.
fn nft_f() -> Option<Row> {
    let script = folder().join("native.nft");
    let mut command = Command::new(proxy_init(&[]).program);
    command
        .args(["--iptables-mode", "native", "--simulate"])
        .args(linkerd::CHART_ARGUMENTS);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let table = text.split_once("delete table inet proxy-init\n").unwrap().1;
    fs::write(&script, table).unwrap();
    let step = Step::new("nft", ["-f", script.to_str().unwrap()]);
    installed("nft -f native mode's script", vec![step])
}

fn rows() -> Vec<Row> {
    let chart = linkerd::CHART_ARGUMENTS;
    let rulesets = rulesets(&config(true, 0));
    let ours = |mode: &str| Row {
        name: format!("proxy-init --iptables-mode {mode}"),
        steps: vec![proxy_init(&[&["--iptables-mode", mode], &chart[..]].concat())],
    };
    let floor_of = |name: &str, file: &str, batch| {
        floor(file, batch).map(|step| Row {
            name: name.to_owned(),
            steps: vec![step],
        })
    };
    [
        floor_of("floor: an empty static C program", "empty", None),
        floor_of(
            "floor: static C, replays nft mode's batch",
            "replay",
            Some(&nft::batch(&rulesets)),
        ),
        floor_of(
            "floor: static C, replays native mode's batch",
            "replay-native",
            Some(&native::batch(&rulesets)),
        ),
        Some(ours("nft")),
        Some(ours("native")),
        Some(ours("auto")),
        nft_f(),
        restore("nft", "default", &rulesets),
        linkerd_init("nft"),
        Some(ours("legacy")),
        restore("legacy", "default", &rulesets),
        linkerd_init("legacy"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// From the first command's spawn to the last one's exit.
fn time(steps: &[Step]) -> Duration {
    Namespace::new().run(|| {
        let start = Instant::now();
        for step in steps {
            step.run();
        }
        start.elapsed()
    })
}

fn compare(criterion: &mut Criterion, group: &str, rows: Vec<Row>) {
    let contenders: Vec<Contender<'_>> = rows
        .into_iter()
        .map(|row| {
            (
                row.name,
                Box::new(move || time(&row.steps)) as Box<dyn Fn() -> Duration>,
            )
        })
        .collect();
    let mut group = criterion.benchmark_group(group);
    in_turns(&mut group, &contenders);
    group.finish();
}

fn process(criterion: &mut Criterion) {
    compare(criterion, "process", rows());
}

fn process_ports(criterion: &mut Criterion) {
    for ports in [10, 100, 1_000, 10_000] {
        let config = config(true, ports);
        let list: Vec<String> = config.ignored_inbound_ports.iter().map(ToString::to_string).collect();
        let list = format!("--inbound-ports-to-ignore={}", list.join(","));
        let ours = |mode: &str| {
            let mut arguments = vec!["--iptables-mode", mode];
            arguments.extend(&linkerd::CHART_ARGUMENTS[..6]);
            arguments.extend(["--outbound-ports-to-ignore", "4567,4568", list.as_str()]);
            Some(Row {
                name: format!("proxy-init --iptables-mode {mode}/{ports}"),
                steps: vec![proxy_init(&arguments)],
            })
        };
        let restore = restore("nft", &ports.to_string(), &rulesets(&config)).map(|mut row| {
            row.name += &format!("/{ports}");
            row
        });
        let rows = [ours("nft"), ours("native"), restore].into_iter().flatten().collect();
        compare(criterion, "process by ports", rows);
    }
}

criterion_group!(name = processes; config = single_runs(); targets = process, process_ports);
criterion_main!(processes);
