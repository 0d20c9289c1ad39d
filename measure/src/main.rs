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
mod storm;
mod tools;

use contenders::Rules;
use group::{Group, Measured, Rounds};
use report::Report;
use result::Result;
use tools::Tools;

const HELP: &str = "\
Usage: proxy-init-bench [OPTIONS]

Measures proxy-init against the iptables and nft of this host, in throwaway
network namespaces. It needs root, changes nothing in the host's own namespace,
and leaves nothing behind. It takes about a minute, prints its tables, and
writes benchmarks.md and benchmarks.svg.

Options:
  --full             Many more runs, for narrower percentiles: about 6 minutes
  --only WORD        Only tables with this word in their heading, such as storm;
                     can be repeated
  --runs N           N runs of everything
  --ipv6[=BOOL]      In every table, rules for IPv6 as well as IPv4, or with
                     --ipv6=false for IPv4 alone (default: one table for both
                     families, the others for IPv4, as Linkerd's charts have it)
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
    /// True if every table's rules are for IPv6 too; none: only one table's.
    ipv6: Option<bool>,
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
                "--ipv6" | "--ipv6=true" => options.ipv6 = Some(true),
                "--ipv6=false" => options.ipv6 = Some(false),
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

    fn rules(&self) -> Rules {
        Rules::chart(self.ipv6.unwrap_or_default())
    }

    fn wants(&self, title: &str) -> bool {
        if title == groups::BOTH_FAMILIES && self.ipv6.is_some() {
            return false;
        }
        let title = title.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| title.contains(word))
    }

    fn rounds(&self, rounds: Rounds) -> usize {
        let usual = if self.full { rounds.full } else { rounds.quick };
        self.runs.unwrap_or(usual)
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

const BY_PORTS: &str = "Whole process, by single ignored inbound ports";
const STORM: &str = "A storm";
const STORM_ROUNDS: Rounds = Rounds { quick: 1, full: 7 };

fn run(options: &Options) -> Result<()> {
    if !Uid::effective().is_root() {
        return Err("this needs root, to make network namespaces: run it with sudo".into());
    }
    interrupt::watch()?;
    let start = Instant::now();
    let folder = &options.output;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let tools = Tools::unpack(options.proxy_init.clone())?;
    let rules = options.rules();
    let mut report = Report::new(options.ipv6, &tools)?;
    let mut install = None;
    let groups = groups::all(&rules, &tools)?;
    let titles: Vec<&str> = groups.iter().map(|group| group.title).chain([BY_PORTS, STORM]).collect();
    if !titles.iter().any(|title| options.wants(title)) {
        let (words, titles) = (options.only.join(", "), titles.join("\n  "));
        return Err(format!("--only: no table has {words} in its heading; there are\n\n  {titles}").into());
    }
    for group in groups {
        if !options.wants(group.title) {
            continue;
        }
        let (title, says) = (group.title, group.says.clone());
        let measured = measure(group, &tools, options)?;
        report.compared(title, &says, &measured);
        if title == groups::INSTALL {
            install = Some(measured);
        }
    }
    if options.wants(BY_PORTS) {
        let groups = groups::by_ports(&rules, &tools).into_iter();
        let measured: Result<Vec<Measured>> = groups.map(|group| measure(group, &tools, options)).collect();
        report.by_ports(BY_PORTS, groups::BY_PORTS_SAYS, &measured?);
    }
    if options.wants(STORM) {
        let rounds = options.rounds(STORM_ROUNDS);
        let measured =
            progress(&format!("{STORM}: {} pods, {rounds} x", storm::PODS), || storm::measure(&rules, &tools, rounds))?;
        report.storms(STORM, &measured);
    }
    if let Some(install) = &install {
        report.size(&tools, install)?;
    }
    let write = |name: &str, text: &str| {
        let path = options.output.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("benchmarks.md", report.text())?;
    if let Some(install) = &install {
        write("benchmarks.svg", &report::install_chart(&rules, install))?;
    }
    eprintln!("Took {:.0} s; written to {}", start.elapsed().as_secs_f64(), options.output.display());
    print(report.text())
}

/// Writes a line to standard output, which may be closed.
fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("stdout: {error}").into())
}

fn measure(group: Group, tools: &Tools, options: &Options) -> Result<Measured> {
    let rounds = options.rounds(group.rounds);
    progress(&format!("{}: {rounds} runs each", group.title), || group.measure(tools, rounds))
}

/// Says what is being done, and how long it took.
fn progress<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprint!("{what} … ");
    let start = Instant::now();
    let result = work()?;
    eprintln!("{:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Options> {
        let options = Options::read(words.iter().map(|&word| word.to_owned()))?;
        Ok(options.ok_or("help")?)
    }

    #[test]
    fn ipv6_is_proxy_inits_flag() {
        for (words, ipv6, has_both) in [
            (&[][..], None, true),
            (&["--ipv6=false"], Some(false), false),
            (&["--ipv6"], Some(true), false),
            (&["--ipv6=true"], Some(true), false),
            (&["--ipv6", "--ipv6=false"], Some(false), false),
        ] {
            let options = read(words).unwrap();
            assert_eq!(options.ipv6, ipv6, "{words:?}");
            assert_eq!(options.wants(groups::BOTH_FAMILIES), has_both, "{words:?}");
            let families = options.rules().families();
            assert_eq!(families.contains("IPv6, as"), ipv6 == Some(true), "{words:?}");
        }
        // As with proxy-init, the value comes after an equals sign only.
        assert!(read(&["--ipv6", "false"]).is_err());
        assert!(read(&["--ipv6=maybe"]).is_err());
    }
}
