//! Makes the document and the chart of the measurements.

use std::fmt::Write as _;
use std::fs;

use lab::chart::{self, Row};
use lab::samples::{self, Samples};

use crate::contenders::{Rules, linkerds, ours};
use crate::group::Measured;
use crate::result::Result;
use crate::storm::Storms;
use crate::tools::{Step, Tools};

/// benchmarks.md, as far as it has got.
#[derive(Debug)]
pub(crate) struct Report(String);

impl Report {
    /// Begins the document with the machine and the versions.
    ///
    /// # Errors
    /// proxy-init can't be run.
    pub(crate) fn new(ipv6: Option<bool>, tools: &Tools) -> Result<Self> {
        let families = match ipv6 {
            None => ", which leave IPv6 off by default; one table has both families",
            Some(false) => ", which leave IPv6 off by default",
            Some(true) => " with `disableIPv6: false`: rules for IPv4 and IPv6",
        };
        Ok(Self(format!(
            "# Benchmarks\n\n{}\n\n`proxy-init-bench` made this page; it is one static binary, which measures any node. Each run \
             has a fresh network namespace, made outside the timed part, and the arguments of Linkerd's \
             charts{families}. What a table compares took turns, in another order \
             each round. × is the median divided by that of the row it is compared with. Machines are noisy; the spread says how much.\n",
            machine(tools)?
        )))
    }

    /// All of it.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    fn heading(&mut self, title: &str, says: &str) {
        let _ = writeln!(self.0, "\n## {title}\n\n{says}\n");
    }

    fn left_out<'a>(&mut self, what: impl IntoIterator<Item = &'a String>) {
        for what in what {
            let _ = writeln!(self.0, "\nLeft out: {}", what.replace('\n', " "));
        }
    }

    /// A table of contenders.
    pub(crate) fn compared(&mut self, title: &str, says: &str, measured: &Measured) {
        self.heading(title, says);
        if !measured.rows.is_empty() {
            self.0 += &samples::table(measured.compared());
        }
        self.left_out(&measured.left_out);
    }

    /// A table of all groups, whose contenders' names end with their ports.
    pub(crate) fn by_ports(&mut self, title: &str, says: &str, measured: &[Measured]) {
        self.heading(title, says);
        let rows = measured.iter().flat_map(|measured| &measured.rows);
        let samples: Vec<Samples> = rows.map(|row| row.samples.clone()).collect();
        self.0 += &samples::by_ports(&samples);
        self.left_out(measured.iter().flat_map(|measured| &measured.left_out));
    }

    /// The storms.
    pub(crate) fn storms(&mut self, title: &str, storms: &Storms) {
        let _ = write!(self.0, "\n## {title}\n\n{}", storms.table());
        self.left_out(&storms.left_out);
    }

    /// How large the binary is, and how much memory it takes.
    ///
    /// # Errors
    /// The binary can't be read.
    pub(crate) fn size(&mut self, tools: &Tools, install: &Measured) -> Result<()> {
        const MIB: f64 = 1024.0 * 1024.0;
        let bytes = fs::metadata(tools.binary())?.len();
        let _ = write!(self.0, "\n## Size\n\nThe binary has {:.2} MiB", bytes as f64 / MIB);
        if let Some(row) = install.row(&ours("nft")) {
            let _ = write!(
                self.0,
                "; a run's memory peaks at {:.2} MiB (ru_maxrss, the most of all runs in nft mode)",
                row.memory as f64 / 1024.0
            );
        }
        self.0 += ".\n";
        Ok(())
    }
}

/// Kernel, processor and versions, and what the host hasn't.
fn machine(tools: &Tools) -> Result<String> {
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    let model = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism()?;
    let mut facts = vec![
        format!("Linux {}", fs::read_to_string("/proc/sys/kernel/osrelease")?.trim()),
        format!("{cores} cores, {}", model.map_or("unknown", |(_, model)| model)),
        tools.read(&tools.proxy_init(["--version"]))?.trim().to_owned(),
    ];
    for name in ["iptables-nft", "iptables-legacy", "nft"] {
        let version = tools.host(name).and_then(|path| tools.read(&Step::new(path, ["--version"])));
        facts.push(version.map_or_else(|_| format!("no {name}"), |version| version.trim().to_owned()));
    }
    Ok(facts.join("; ") + ".")
}

/// Short, for a chart.
fn short(rules: &Rules, name: &str) -> String {
    for mode in ["nft", "native", "auto", "legacy"] {
        if name == ours(mode) {
            return format!("proxy-init, {mode} mode");
        }
        if name == linkerds(rules, mode) {
            return name.replace(" iptables", " × iptables").replace(" commands", "");
        }
    }
    name.to_owned()
}

/// Who, how long. Without the floors, which install nothing or can't be had.
pub(crate) fn install_chart(rules: &Rules, install: &Measured) -> String {
    let reference = install.row(&ours("nft")).map(|row| row.samples.p50());
    let rows = install.rows.iter().map(|row| &row.samples);
    let mut rows: Vec<&Samples> = rows.filter(|samples| !samples.name.starts_with("floor")).collect();
    rows.sort_by(|a, b| a.p50().total_cmp(&b.p50()));
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|samples| Row {
            name: short(rules, &samples.name),
            is_ours: samples.name.starts_with("proxy-init"),
            microseconds: samples.p50(),
            after: times(samples.p50(), reference),
        })
        .collect();
    let says = format!(
        "Median from the first process' start to the last one's end; {}; ×: times as long as nft mode",
        rules.families()
    );
    chart::bars("How long a pod waits for its rules", &says, "iptables and nft", &rows)
}

/// As many times as long as the reference, where it is noticeably more.
fn times(microseconds: f64, reference: Option<f64>) -> String {
    match reference.map(|reference| microseconds / reference) {
        Some(times) if times >= 1.5 => format!("{times:.0} ×"),
        _ => String::new(),
    }
}
