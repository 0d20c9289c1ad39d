//! Makes the table, the JSON and the chart of the measurements.

use std::fmt::Write as _;
use std::fs;

use lab::chart;
use lab::samples::time;
use serde_json::{Value, json};

use crate::contenders::{Rules, linkerds, ours};
use crate::group::Measured;
use crate::groups::INSTALL;
use crate::tools::{Step, Tools};
use lab::shell::Result;

/// The one table, below its subject, and above the contenders that are left out.
pub(crate) fn table(machine: &str, measured: &Measured) -> String {
    let mut text = format!(
        "{machine}\n\nTimes are from the first process' start to the last one's end, each run in a fresh network namespace \
         with the arguments of Linkerd's charts; contenders took turns in another order each round. × is the median \
         divided by that of the row it is compared with.\n\n\
         | | | p50 | p10 | p90 | p99 | × | processor | memory |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for row in &measured.rows {
        let [p50, p10, p90, p99] = [50, 10, 90, 99].map(|percent| time(row.samples.percentile(percent)));
        let _ = writeln!(
            text,
            "| {} | {} | {p50} | {p10} | {p90} | {p99} | {:.2} | {} | {:.1} MiB |",
            row.group,
            row.samples.name,
            row.times,
            time(row.processor),
            row.memory as f64 / 1024.0
        );
    }
    for what in &measured.left_out {
        let _ = writeln!(text, "\nLeft out: {}", what.replace('\n', " "));
    }
    text
}

/// The same for programs; times in microseconds.
pub(crate) fn json(machine: &str, measured: &Measured) -> Value {
    let rows = measured.rows.iter().map(|row| {
        json!({
            "group": row.group,
            "name": row.samples.name,
            "p50": row.samples.p50(),
            "p10": row.samples.percentile(10),
            "p90": row.samples.percentile(90),
            "p99": row.samples.percentile(99),
            "times": row.times,
            "processor": row.processor,
            "memory_kib": row.memory,
        })
    });
    json!({"machine": machine, "rows": rows.collect::<Vec<_>>(), "left_out": measured.left_out})
}

/// Kernel, processor and versions, and the host's missing tools.
pub(crate) fn machine(tools: &Tools) -> Result<String> {
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
pub(crate) fn install_chart(rules: &Rules, measured: &Measured) -> String {
    let install = measured.rows.iter().filter(|row| row.group == INSTALL && !row.samples.name.starts_with("floor"));
    let mut rows: Vec<chart::Row> = install
        .map(|row| chart::Row {
            name: short(rules, &row.samples.name),
            is_ours: row.samples.name.starts_with("proxy-init"),
            microseconds: row.samples.p50(),
            after: match row.times {
                times if times >= 1.5 => format!("{times:.0} ×"),
                _ => String::new(),
            },
        })
        .collect();
    rows.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
    let says = format!(
        "Median from the first process' start to the last one's end; {}; ×: times as long as nft mode",
        rules.families()
    );
    chart::bars("How long a pod waits for its rules", &says, "iptables and nft", &rows)
}
