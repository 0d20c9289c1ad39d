//! Bars that begin at zero, each with its time beside it, as SVG.

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
text{fill:#1f2328;font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\
.title{font-size:16px;font-weight:600}.quiet{fill:#59636e}.back{fill:#fff}.ours{fill:#0969da}.others{fill:#bf8700}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.quiet{fill:#9198a1}.back{fill:#0d1117}\
.ours{fill:#4493f8}.others{fill:#d29922}}";

/// The whole picture; `others` says what those are that aren't ours.
pub fn bars(title: &str, subtitle: &str, others: &str, rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.microseconds).fold(0.0, f64::max);
    let mut drawn = String::new();
    for (x, class, words) in [(LEFT, "ours", "proxy-init"), (LEFT + 130.0, "others", others)] {
        let _ = write!(
            drawn,
            "<rect class=\"{class}\" x=\"{x}\" y=\"60\" width=\"11\" height=\"11\"/>\
             <text class=\"quiet\" x=\"{}\" y=\"70\">{}</text>",
            x + 17.0,
            escaped(words)
        );
    }
    let mut y = TOP;
    for row in rows {
        let (middle, length) = (y + BAR / 2.0 + 4.5, LONGEST * row.microseconds / most);
        let _ = write!(
            drawn,
            "<text x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR:.1}\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{:.2} ms <tspan class=\"quiet\">{}</tspan></text>",
            LEFT - 10.0,
            escaped(&row.name),
            if row.is_ours { "ours" } else { "others" },
            length.max(1.5),
            LEFT + length + 7.0,
            row.microseconds / 1000.0,
            escaped(&row.after)
        );
        y += BAR + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">\
         <style>{STYLE}</style><rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\
         <text class=\"title\" x=\"20\" y=\"28\">{title}</text><text class=\"quiet\" x=\"20\" y=\"48\">{}</text>{drawn}</svg>\n",
        y + 12.0,
        escaped(subtitle),
        title = escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_linear() {
        let row = |name: &str, microseconds| Row {
            name: name.to_owned(),
            is_ours: false,
            microseconds,
            after: String::new(),
        };
        let chart = bars("a < b", "", "", &[row("x", 1_000.0), row("y", 4_000.0)]);
        assert!(chart.contains("width=\"97.5\"") && chart.contains(">1.00 ms "), "{chart}");
        assert!(chart.contains("width=\"390.0\"") && chart.contains(">4.00 ms "), "{chart}");
        assert!(chart.contains("a &lt; b"), "{chart}");
    }
}
