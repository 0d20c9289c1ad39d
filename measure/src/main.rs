//! `proxy-init-bench`: measures proxy-init against the iptables and nft of the machine it runs on.
//!
//! It is one static file that carries proxy-init and all else that it needs, so that it runs on hosts without Rust or a
//! checkout; `cargo xtask bench` runs it too.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nix::unistd::Uid;

mod cgroup;
mod contenders;
mod group;
mod groups;
mod interrupt;
mod report;
mod result;
mod tools;

use contenders::Rules;
use group::Measured;
use result::Result;
use tools::Tools;

const HELP: &str = "\
Usage: proxy-init-bench [OPTIONS]

Measures proxy-init against the iptables and nft of this host, in throwaway
network namespaces. It needs root, changes nothing in the host's own namespace,
and leaves nothing behind. It takes about a minute, prints its table, and
writes benchmarks.md, benchmarks.json and benchmarks.svg.

Options:
  --full             Many more runs, for narrower percentiles: about 6 minutes
  --only WORD        Only rows with this word in their first column, such as
                     limit; can be repeated
  --runs N           N runs of everything
  --output FOLDER    Where to write the files (default: the current folder)
  --proxy-init PATH  Measure this binary instead of the one inside
  --help, --version

Example: measure under a CPU limit
  sudo ./proxy-init-bench --only limit --output /tmp

Exit codes:
  0  measured
  1  failed; the error says why
  2  the command line is invalid";

/// The request of the command line.
#[derive(Debug, Default)]
struct Options {
    full: bool,
    only: Vec<String>,
    runs: Option<usize>,
    output: PathBuf,
    proxy_init: Option<PathBuf>,
}

impl Options {
    /// None for help or the version, which has been printed then.
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut options = Self { output: ".".into(), ..Self::default() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--full" => options.full = true,
                "--only" => options.only.push(value()?.to_lowercase()),
                "--runs" => {
                    let number = value()?;
                    let runs = number.parse().ok().filter(|runs| *runs > 0);
                    options.runs = Some(runs.ok_or_else(|| format!("--runs: {number} is no number of runs"))?);
                }
                "--output" => options.output = value()?.into(),
                "--proxy-init" => options.proxy_init = Some(value()?.into()),
                "--help" | "-h" => {
                    print(HELP)?;
                    return Ok(None);
                }
                "--version" | "-V" => {
                    print(&format!("proxy-init-bench {}", proxy_init::BUILD))?;
                    return Ok(None);
                }
                _ => return Err(format!("unknown argument: {argument}\n\n{HELP}").into()),
            }
        }
        Ok(Some(options))
    }

    fn wants(&self, title: &str) -> bool {
        let title = title.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| title.contains(word))
    }
}

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy-init-bench: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy-init-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    if !Uid::effective().is_root() {
        return Err("this needs root, to make network namespaces: run it with sudo".into());
    }
    interrupt::watch()?;
    let start = Instant::now();
    let folder = &options.output;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let tools = Tools::unpack(options.proxy_init.clone())?;
    let rules = Rules::chart(false);
    let groups = groups::all(&rules, &tools)?;
    if !groups.iter().any(|group| options.wants(group.title)) {
        let titles: Vec<&str> = groups.iter().map(|group| group.title).collect();
        let (words, titles) = (options.only.join(", "), titles.join("\n  "));
        return Err(format!("--only: no row has {words} in its first column; there are\n\n  {titles}").into());
    }
    let mut measured = Measured::default();
    for group in groups {
        if !options.wants(group.title) {
            continue;
        }
        let usual = if options.full { group.rounds.full } else { group.rounds.quick };
        let rounds = options.runs.unwrap_or(usual);
        eprintln!("{}: {rounds} runs each", group.title);
        group.measure(&tools, rounds, &mut measured)?;
    }
    let machine = report::machine(&tools)?;
    let table = report::table(&machine, &measured);
    for (name, text) in [
        ("benchmarks.md", &table),
        ("benchmarks.json", &format!("{:#}\n", report::json(&machine, &measured))),
        ("benchmarks.svg", &report::install_chart(&rules, &measured)),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    eprintln!("Took {:.0} s; written to {}", start.elapsed().as_secs_f64(), folder.display());
    print(&table)
}

/// Writes a line to standard output, which may be closed.
fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("stdout: {error}").into())
}
