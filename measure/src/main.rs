//! `proxy-init-bench`: measures proxy-init against the iptables and nft of the machine it runs on.
//!
//! It is one static file that carries proxy-init and all else that it needs, so that it runs on hosts without Rust or a
//! checkout; `cargo xtask bench` runs it too.

use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use lab::shell::Result;
use nix::unistd::Uid;

mod cgroup;
mod contenders;
mod group;
mod groups;
mod interrupt;
mod report;
mod tools;

use contenders::Rules;
use group::Measured;
use tools::Tools;

/// Measures proxy-init against the iptables and nft of this host, in throwaway network namespaces.
///
/// It needs root, changes nothing in the host's own namespace, and leaves nothing behind. It takes about a minute, prints
/// its table, and writes benchmarks.md, benchmarks.json and benchmarks.svg.
#[derive(Debug, Parser)]
#[command(name = "proxy-init-bench", version = proxy_init::BUILD, max_term_width = 80)]
#[command(after_help = "Example: measure under a CPU limit\n  sudo ./proxy-init-bench --only limit --output /tmp")]
struct Options {
    /// Many more runs, for narrower percentiles: about 6 minutes
    #[arg(long)]
    full: bool,
    /// Only rows with this word in their first column, such as limit; can be repeated
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// So many runs of everything
    #[arg(long, value_name = "N")]
    runs: Option<NonZeroUsize>,
    /// Where to write the files
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    output: PathBuf,
    /// Measure this binary instead of the one inside
    #[arg(long, value_name = "PATH")]
    proxy_init: Option<PathBuf>,
}

impl Options {
    fn wants(&self, title: &str) -> bool {
        let title = title.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| title.contains(&word.to_lowercase()))
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
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
        let usual = if options.full { group.full_rounds } else { group.rounds };
        let rounds = options.runs.map_or(usual, NonZeroUsize::get);
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
    // Standard output may be closed.
    writeln!(io::stdout(), "{table}").map_err(|error| format!("stdout: {error}").into())
}
