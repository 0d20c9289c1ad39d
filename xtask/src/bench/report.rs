//! What criterion measured, as tables and a chart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use xtask::shell::{Result, target};

/// One benchmark's single runs, in microseconds, sorted.
pub(super) struct Samples {
    pub(super) name: String,
    microseconds: Vec<f64>,
}

impl Samples {
    fn percentile(&self, percent: usize) -> f64 {
        let last = self.microseconds.len().saturating_sub(1);
        self.microseconds.get(last * percent / 100).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn p50(&self) -> f64 {
        self.percentile(50)
    }
}

/// A group's benchmarks, as criterion left them: one sample is one run or, where they are short, several.
pub(super) fn read(group: &str) -> Result<Vec<Samples>> {
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

/// A row a benchmark, compared with the median of one of them.
pub(super) fn table(samples: &[Samples], reference: f64) -> String {
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
pub(super) fn by_ports(samples: &[Samples]) -> String {
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
pub(super) fn chart(samples: &[Samples], reference: f64) -> String {
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
