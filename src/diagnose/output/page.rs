//! The page on which text for people is printed: its colours, and the width of its lines.

/// The looks of text on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::diagnose) enum Style {
    Plain,
    Bold,
    Dim,
    /// Connections to the proxy.
    Proxy,
    Bypass,
    /// Obstacles and defects.
    Trouble,
}

/// A terminal, or whatever else stdout is.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    has_colour: bool,
    /// Lines are no longer than this, where names allow.
    pub(in crate::diagnose) width: usize,
}

/// 80 columns without colours.
impl Default for Page {
    fn default() -> Self {
        Self { has_colour: false, width: 80 }
    }
}

impl Page {
    /// A page with lines as long as a terminal's, if people can read such lines.
    pub fn new(has_colour: bool, columns: Option<u16>) -> Self {
        let width = columns.map_or(Self::default().width, |columns| columns.clamp(60, 160).into());
        Self { has_colour, width }
    }

    /// Text with the codes of a style around it (SGR, ECMA-48), if colours are wanted.
    pub(in crate::diagnose) fn paint(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Proxy => "32",
            Style::Bypass => "33",
            Style::Trouble => "1;31",
            Style::Plain => "",
        };
        if !self.has_colour || code.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A paragraph in a style: a line, the rest of which stands below it with this indent where it doesn't fit.
    pub(in crate::diagnose) fn paragraph(&self, style: Style, line: &str, indent: usize) -> String {
        self.paint(style, &self.fold_line(line, indent)) + "\n"
    }

    /// Folds a text for people into lines that fit a terminal. The rest of a line is indented by two more.
    pub(in crate::diagnose) fn fill_lines(&self, text: &str) -> String {
        let mut filled = String::new();
        for line in text.lines() {
            let blanks = line.len() - line.trim_start_matches(' ').len();
            filled += &self.fold_line(line, blanks + 2);
            filled.push('\n');
        }
        filled
    }

    /// Folds a line into lines that fit a terminal, all but the first with this indent.
    pub(in crate::diagnose) fn fold_line(&self, line: &str, indent: usize) -> String {
        if line.len() <= self.width {
            return line.to_owned();
        }
        let body = line.trim_start_matches(' ');
        let (start, _) = line.split_at(line.len() - body.len());
        let words: Vec<String> = body.split_inclusive(' ').map(ToOwned::to_owned).collect();
        split_in_lines(&words, start, indent, self.width).join("\n")
    }

    /// Writes flags, each with its value, on indented lines that fit a terminal. Each line but the last ends with a backslash,
    /// so that a shell takes all of them together. The flag of a list that is longer than a line is repeated, so that the
    /// lines can be copied into a manifest too.
    pub(in crate::diagnose) fn wrap_flags(&self, flags: &[String]) -> String {
        let (start, end) = ("  ", " \\");
        let width = self.width - end.len();
        let mut parts: Vec<String> = Vec::new();
        for flag in flags.chunk_by(|_, next| !next.starts_with("--")) {
            let [name, list] = flag else {
                parts.push(flag.join(" "));
                continue;
            };
            for (index, item) in list.split(',').enumerate() {
                match parts.last_mut() {
                    Some(part) if index > 0 && start.len() + part.len() + 1 + item.len() <= width => {
                        *part += &format!(",{item}")
                    }
                    _ => parts.push(format!("{name} {item}")),
                }
            }
        }
        let parts: Vec<String> = parts.into_iter().map(|part| part + " ").collect();
        split_in_lines(&parts, start, start.len(), width).join(&format!("{end}\n"))
    }
}

/// Puts parts on lines of this width, the first one after `start`, all others with this indent. Parts end with the blanks
/// between them; lines don't.
fn split_in_lines(parts: &[String], start: &str, indent: usize, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if length(&format!("{line}{part}")) <= width => *line += part,
            Some(_) => lines.push(format!("{:indent$}{part}", "")),
            None => lines.push(format!("{start}{part}")),
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// The number of columns that a text takes, without blanks at its end.
fn length(text: &str) -> usize {
    text.trim_end().chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_a_thousand_ports_is_told_in_lines_that_can_be_copied() {
        let ports: Vec<String> = (1..=1000).map(|port| port.to_string()).collect();
        let flags = ["--proxy-uid", "2102", "--ports-to-redirect", &ports.join(","), "--ipv6=false"];
        let text = Page::default().wrap_flags(&flags.map(ToOwned::to_owned));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let arguments = text.replace(" \\\n", " ");
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let lists = arguments.windows(2).filter(|pair| pair[0] == "--ports-to-redirect").map(|pair| pair[1]);
        assert_eq!(lists.collect::<Vec<_>>().join(","), ports.join(","));
        assert_eq!(
            (arguments[..2].join(" "), arguments.last()),
            ("--proxy-uid 2102".to_owned(), Some(&"--ipv6=false"))
        );
    }

    #[test]
    fn what_is_left_of_a_line_stands_below_it() {
        let comment = "-m comment --comment \"proxy-init/install-proxy-init-output\"";
        let text = format!(
            "{0} word\n  - -A OUTPUT {comment} -j PROXY_INIT_OUTPUT\n  + -A OUTPUT -j ACCEPT\n\n{1}\n",
            "long ".repeat(16).trim_end(),
            "name".repeat(30),
        );
        let want = format!(
            "{0}\n  word\n  - -A OUTPUT {comment} -j\n    PROXY_INIT_OUTPUT\n  + -A OUTPUT -j ACCEPT\n\n{1}\n",
            "long ".repeat(16).trim_end(),
            "name".repeat(30),
        );
        assert_eq!(Page::default().fill_lines(&text), want);
    }
}
