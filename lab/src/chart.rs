//! Bars on one linear axis that begins at zero, as SVG.

use std::fmt::Write as _;

/// One of those that are compared.
#[derive(Debug)]
pub struct Row {
    /// Beside the bar.
    pub name: String,
    /// Its colour says whether it is ours.
    pub is_ours: bool,
    /// The bar's length.
    pub microseconds: f64,
    /// The words after the time.
    pub after: String,
}

const WIDTH: f64 = 860.0;
/// Where the bars begin, and how long the longest may be: the numbers come after it.
const LEFT: f64 = 290.0;
const LONGEST: f64 = 390.0;
const TOP: f64 = 86.0;
const BAR: f64 = 18.0;
const GAP: f64 = 10.0;

/// Colours for both of GitHub's modes. The chart brings its own background, so that it can be read even where the
/// browser and the page disagree on which mode it is.
const STYLE: &str = "\
text{fill:#1f2328;font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;\
stroke:#fff;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}\
.title{font-size:16px;font-weight:600}.quiet,.axis text{fill:#59636e}.back{fill:#fff}\
.axis line{stroke:#d1d9e0}.ours{fill:#0969da}.others{fill:#bf8700}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc;stroke:#0d1117}.quiet,.axis text{fill:#9198a1}.back{fill:#0d1117}\
.axis line{stroke:#3d444d}.ours{fill:#4493f8}.others{fill:#d29922}}";

/// The whole picture; `others` says what those are that aren't ours.
pub fn bars(title: &str, subtitle: &str, others: &str, rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.microseconds).fold(0.0, f64::max);
    let (step, unit) = (step(most), Unit::of(most));
    let place = |microseconds: f64| LEFT + LONGEST * microseconds / most;
    let mut drawn = legend(others, rows);
    let mut y = TOP;
    for row in rows {
        let middle = y + BAR / 2.0 + 4.5;
        let _ = write!(
            drawn,
            "<text x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{} <tspan class=\"quiet\">{}</tspan></text>",
            LEFT - 10.0,
            escaped(&row.name),
            class(row.is_ours),
            y + 0.5,
            (place(row.microseconds) - LEFT).max(1.5),
            BAR - 1.0,
            place(row.microseconds) + 7.0,
            unit.number(row.microseconds),
            escaped(&row.after)
        );
        y += BAR + GAP;
    }
    let mut axis = String::new();
    for tick in (0..).map(|tick| step * f64::from(tick)).take_while(|tick| *tick <= most) {
        let x = place(tick);
        let _ = write!(
            axis,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            TOP - 4.0,
            y + 16.0,
            unit.tick(tick)
        );
    }
    let height = y + 32.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\
         <style>{STYLE}</style><rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\
         <text class=\"title\" x=\"20\" y=\"28\">{}</text><text class=\"quiet\" x=\"20\" y=\"48\">{}</text>\
         <g class=\"axis\">{axis}</g>{drawn}</svg>\n",
        escaped(title),
        escaped(title),
        escaped(subtitle)
    )
}

/// The name of a colour.
fn class(is_ours: bool) -> &'static str {
    if is_ours { "ours" } else { "others" }
}

/// The meanings of these rows' colours.
fn legend(others: &str, rows: &[Row]) -> String {
    /// Room for the first words, and for the square before them.
    const COLUMN: f64 = 130.0;
    let mut drawn = String::new();
    let mut x = LEFT;
    for (is_ours, words) in [(true, "proxy-init"), (false, others)] {
        if !rows.iter().any(|row| row.is_ours == is_ours) {
            continue;
        }
        let _ = write!(
            drawn,
            "<rect class=\"{}\" x=\"{x}\" y=\"60\" width=\"11\" height=\"11\" rx=\"1.5\"/>\
             <text class=\"quiet\" x=\"{}\" y=\"70\">{}</text>",
            class(is_ours),
            x + 17.0,
            escaped(words)
        );
        x += COLUMN;
    }
    drawn
}

/// The distance between two lines of the axis: 1, 2 or 5 times a power of ten, so that there are three to seven.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most.max(1.0) / 7.0).log10().ceil());
    let fits = [5.0, 2.0].map(|part| power / part);
    fits.into_iter().find(|step| most / step <= 7.0).unwrap_or(power)
}

/// The one unit of all numbers in a chart, so that they compare at a glance.
#[derive(Debug, Clone, Copy)]
struct Unit {
    name: &'static str,
    microseconds: f64,
}

impl Unit {
    /// For a chart whose longest bar is this long.
    fn of(most: f64) -> Self {
        let (name, microseconds) = match most {
            most if most >= 1_000_000.0 => ("s", 1_000_000.0),
            most if most >= 1_000.0 => ("ms", 1_000.0),
            _ => ("µs", 1.0),
        };
        Self { name, microseconds }
    }

    /// With two or three digits that count.
    fn number(self, microseconds: f64) -> String {
        let number = microseconds / self.microseconds;
        let decimals = match number {
            number if number < 9.995 => 2,
            number if number < 99.95 => 1,
            _ => 0,
        };
        format!("{number:.decimals$} {}", self.name)
    }

    fn tick(self, microseconds: f64) -> String {
        if microseconds == 0.0 {
            return "0".to_owned();
        }
        format!("{} {}", microseconds / self.microseconds, self.name)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_few_round_steps() {
        for (most, expected) in [(31_800.0, 5_000.0), (7.0, 1.0), (3_200_000.0, 500_000.0), (900.0, 200.0)] {
            assert_eq!(step(most), expected, "{most}");
        }
    }

    fn row(name: &str, microseconds: f64) -> Row {
        Row { name: name.to_owned(), is_ours: name.starts_with("proxy-init"), microseconds, after: String::new() }
    }

    #[test]
    fn a_legend_names_the_colours_that_are_there() {
        let chart = bars("", "", "iptables and nft", &[row("proxy-init, nft mode", 1.0)]);
        assert!(chart.contains(">proxy-init</text>"), "{chart}");
        assert!(!chart.contains("iptables and nft"), "{chart}");
    }

    #[test]
    fn lengths_are_linear() {
        let chart = bars("a < b", "", "", &[row("x", 1_000.0), row("y", 4_000.0)]);
        assert!(chart.contains("width=\"97.5\""), "{chart}");
        assert!(chart.contains("width=\"390.0\""), "{chart}");
        assert!(chart.contains("a &lt; b"), "{chart}");
    }
}
