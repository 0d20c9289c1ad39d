//! `cargo xtask bench`: whole processes by proxy-init-bench, what happens inside them by criterion, and one document of
//! what a user asks of both.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::samples::{self, Samples};
use lab::shell::{Result, Run as _, cargo, need_root, root, target};
use serde_json::Value;

use crate::build;

/// What of criterion's goes into the document: its name in benches/.
const CONNECTIONS: &str = "connect by ports";

/// The first of the page's sections that have measurements of their own, and are its last.
const PODS: &str = "\n## What a pod waits for\n";

/// `--quick`, `--only WORD` and `--runs N` are for proxy-init-bench, and leave docs/ as it is; other arguments are for
/// criterion. Without any, everything is measured, and docs/ is made of it.
pub(crate) fn run(arguments: &[String], lay_out: fn(&Path) -> Result<()>) -> Result<()> {
    need_root("cargo xtask bench", "to make network namespaces")?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => whole(),
        ["--pods"] => pods(lay_out, None),
        ["--pods", "--upstream", folder] => pods(lay_out, Some(Path::new(folder))),
        ["--quick", rest @ ..] => processes(rest, &target("bench")),
        ["--only" | "--runs", ..] => processes(&[&["--full"], &words[..]].concat(), &target("bench")),
        _ => inside(&words),
    }
}

/// Every contender of every table once; no time decides anything. Returns what could not be run here, and why.
pub(crate) fn try_once() -> Result<Vec<String>> {
    let mut inside = cargo(&["test", "--locked", "--benches"]);
    inside.args(["--package", "proxy-init", "--package", "linkerd-cni"]);
    inside.env("PROXY_INIT", build::run()?).run()?;
    let output = target("bench");
    processes(&["--runs", "1"], &output)?;
    let text = fs::read_to_string(output.join("benchmarks.md"))?;
    let left_out = text.lines().filter_map(|line| line.strip_prefix("Left out: "));
    Ok(left_out.map(ToOwned::to_owned).collect())
}

fn whole() -> Result<()> {
    let docs = root().join("docs");
    let before = fs::read_to_string(docs.join("benchmarks.md"))?;
    processes(&["--full"], &docs)?;
    forget(&target("criterion"))?;
    inside(&[])?;
    let document = docs.join("benchmarks.md");
    let mut text = fs::read_to_string(&document)?;
    let _ = write!(
        text,
        "\n## The CNI plugin's ADD\n\nHow long a container runtime waits for the CNI plugin, which learns of the pod by its \
         annotations or from an API server on the same machine.\n\n{}\n\
         \n## One connection through the rules, by single ignored inbound ports\n\nWhat a TCP connection to a pod takes where \
         it passes that many ignored ports, none of which is its own: medians.\n\n{}",
        plugin()?,
        samples::by_ports(&read(CONNECTIONS)?)
    );
    if let Some((_, pods)) = before.split_once(PODS) {
        let _ = write!(text, "{PODS}{pods}");
    }
    fs::write(&document, text)?;
    println!("Written to {}", document.display());
    Ok(())
}

/// Measures what a pod waits for, and writes that section of the page alone. The folder has Linkerd's own programs, under the
/// names that its images give them, and a file `how` that says what they were made of, in a sentence.
fn pods(lay_out: fn(&Path) -> Result<()>, upstream: Option<&Path>) -> Result<()> {
    let docs = root().join("docs");
    let of_linkerd = match upstream {
        None => "Linkerd's plugin is left out, and a shell runs linkerd-init's commands. `cargo xtask bench --pods` measures this."
            .to_owned(),
        Some(folder) => format!(
            "linkerd-init and Linkerd's plugin are its own, in nft mode: {} That plugin asks the API server for the pod and \
             five times for its namespace, and ours, where it is said to, once for each. The API server is a double on the node, \
             whose processor time isn't counted. `cargo xtask bench --pods --upstream FOLDER` measures this.",
            fs::read_to_string(folder.join("how"))?.trim()
        ),
    };
    let table = lab::pods::waits(lay_out, upstream, &docs.join("waits.svg"))?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let document = docs.join("benchmarks.md");
    let page = fs::read_to_string(&document)?;
    let (before, old) = page.split_once(PODS).unwrap_or((&page, ""));
    let after = old.find("\n## ").and_then(|next| old.get(next..)).unwrap_or_default();
    let text = format!(
        "{before}{PODS}\nFrom RunPodSandbox to the first byte that a client on the node reads from the port that the rules lead \
         to, on Debian sid's containerd (Linux {}), alone and 60 at once, by turns; and the processor time of a pod, with the \
         runtime and the agent. kubelet and the proxy's own container are left out. Rules are for both families \
         unless IPv4 alone is said. The validator is ours. {of_linkerd}\n\n\
         ![How long a pod waits, by each way to its rules](waits.svg)\n\n{table}{after}",
        kernel.trim()
    );
    Ok(fs::write(&document, text)?)
}

fn processes(arguments: &[&str], output: &Path) -> Result<()> {
    let bench = build::bench()?;
    let mut command = Command::new(bench);
    command.args(arguments).arg("--output").arg(output).run()
}

/// Without the program's own features: nothing here runs it, and so it needs no building.
fn inside(arguments: &[&str]) -> Result<()> {
    let mut command = cargo(&["bench", "--locked", "--package", "proxy-init", "--benches"]);
    command.args(["--no-default-features", "--"]).args(arguments).run()
}

/// The CNI plugin's table.
fn plugin() -> Result<String> {
    // Not optimised: what it measures are programs, and it would take minutes to build.
    let mut command = cargo(&["test", "--locked", "--package", "linkerd-cni", "--bench", "add"]);
    command
        .args(["--", "--runs", "300"])
        .env("LINKERD_CNI", build::cni()?)
        .env("PROXY_INIT", build::run()?)
        .stderr(Stdio::inherit());
    let printed = command.read()?;
    let table: Vec<&str> = printed.lines().filter(|line| line.starts_with('|')).collect();
    Ok(table.join("\n"))
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

/// A group's benchmarks, as criterion left them, the fastest first: one sample is one run or, where they are short,
/// several.
fn read(group: &str) -> Result<Vec<Samples>> {
    let mut all = Vec::new();
    let mut folders: Vec<PathBuf> = vec![target("criterion").join(group)];
    while let Some(folder) = folders.pop() {
        let new = folder.join("new");
        if new.exists() {
            all.push(read_one(&new)?);
        } else {
            let inner = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
            folders.extend(inner.filter(|path| path.is_dir()));
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
    let times = numbers("times").into_iter().zip(numbers("iters"));
    let benchmark = json("benchmark.json")?;
    let text = |key: &str| benchmark.get(key).and_then(Value::as_str).unwrap_or_default();
    let (function, value) = (text("function_id"), text("value_str"));
    let name = if value.is_empty() { function.to_owned() } else { format!("{function}/{value}") };
    let microseconds = times.map(|(nanoseconds, iterations)| nanoseconds / iterations / 1000.0);
    Ok(Samples::new(name, microseconds.collect()))
}
