//! Pages of docs/ that show commands and what they print.

use std::fs;
use std::path::Path;

use crate::shell::{Result, root};

/// The pods of docs/debugging.md, each with the addresses that the page has, and whether it is meshed.
pub const PODS: [(&str, [&str; 2], bool); 3] = [
    ("web", ["10.88.7.7", "fd88::707"], true),
    ("unmeshed", ["10.88.7.8", "fd88::708"], false),
    // In which another program has added the rule of SHADOW.
    ("shadowed", ["10.88.7.9", "fd88::709"], true),
];

/// The command that adds that rule.
pub const SHADOW: &str = "iptables-nft -t nat -I PREROUTING -p tcp --dport 8080 -j ACCEPT";

/// A page of docs/ whose commands are run.
pub struct Page<'a> {
    /// From the checkout.
    pub path: &'a str,
    /// Whether a command is to be run.
    pub is_run: &'a dyn Fn(&str) -> bool,
    /// How many such commands it has, at least.
    pub at_least: usize,
    /// Whether a line that was printed, the first, is what the page says, the second.
    pub is_same: fn(&str, &str) -> bool,
}

impl Page<'_> {
    /// Runs the page's commands, and compares what they print with the page. The page as it should be goes into this
    /// folder, for whoever has to bring it up to date.
    ///
    /// # Errors
    /// A line that is another one, or what a command ends with.
    pub fn check(&self, folder: &Path, run: impl FnMut(&str) -> Result<String>) -> Result<String> {
        let page = fs::read_to_string(root().join(self.path))?;
        let (really, commands) = self.rewrite(&page, run)?;
        if commands < self.at_least {
            return Err(format!("the page has only {commands} such commands").into());
        }
        if really == page {
            return Ok(format!("all {commands} commands print it"));
        }
        let file = Path::new(self.path).file_name().unwrap_or_default();
        let written = folder.join(file);
        fs::write(&written, &really)?;
        let mut lines = really.lines().zip(page.lines());
        let (really, page) = lines.find(|(really, page)| really != page).unwrap_or(("more", "less"));
        Err(format!("{page:?} should be {really:?}; {} is the page as it should be", written.display()).into())
    }

    /// The page with what its commands really print, and how many these are. A line of the page that is right stays.
    fn rewrite(&self, page: &str, mut run: impl FnMut(&str) -> Result<String>) -> Result<(String, usize)> {
        let mut text = String::new();
        let mut commands = 0;
        let mut lines = page.lines().peekable();
        while let Some(line) = lines.next() {
            text += &format!("{line}\n");
            let trimmed = line.trim_start();
            let (indentation, _) = line.split_at(line.len() - trimmed.len());
            let command = trimmed.strip_prefix("$ ").filter(|_| !indentation.is_empty());
            let Some(command) = command.filter(|command| (self.is_run)(command)) else {
                continue;
            };
            let mut command = command.to_owned();
            // A shell reads on after a backslash, after a pipe, and within quotes.
            while command.ends_with(['|', '\\']) || command.matches('\'').count() % 2 == 1 {
                let more = lines.next().ok_or("a command goes on, and the page ends")?;
                text += &format!("{more}\n");
                command = format!("{} {}", command.trim_end_matches('\\').trim_end(), more.trim_start());
            }
            let is_output = |line: &&str| {
                line.is_empty() || line.strip_prefix(indentation).is_some_and(|line| !line.starts_with("$ "))
            };
            let mut said = Vec::new();
            while let Some(line) = lines.next_if(is_output) {
                said.push(line);
            }
            let blank = said.iter().rev().take_while(|line| line.is_empty()).count();
            said.truncate(said.len() - blank);
            let printed = run(&command)?;
            let printed = printed.trim_end().lines();
            let printed: Vec<_> = printed.map(|line| format!("{indentation}{}", plain(line))).collect();
            let same = |(printed, said): (&String, &&str)| (self.is_same)(printed.trim_end(), said);
            let is_same = printed.len() == said.len() && printed.iter().zip(&said).all(same);
            if !is_same {
                said = printed.iter().map(|line| line.trim_end()).collect();
            }
            for line in said {
                text += &format!("{line}\n");
            }
            text += &"\n".repeat(blank);
            commands += 1;
        }
        Ok((text, commands))
    }
}

/// A line as it is printed where there is no terminal, at a time that doesn't change.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_end_matches('\r');
    while let Some((before, escape)) = rest.split_once("\x1b[") {
        text += before;
        rest = escape.split_once('m').map_or("", |(_, after)| after);
    }
    text += rest;
    match text.strip_prefix("time=\"").and_then(|rest| rest.split_once('"')) {
        Some((_, after)) => format!("time=\"2026-11-21T12:00:00Z\"{after}"),
        None => text,
    }
}

/// Whether a line consists of the pieces that an expected one has between its `…`, in their order.
pub fn matches(printed: &str, expected: &str) -> bool {
    let mut pieces = expected.split('…');
    let mut rest = printed.strip_prefix(pieces.next().unwrap_or_default());
    let mut last = None;
    for piece in pieces {
        rest = rest.and_then(|rest| Some(rest.split_once(piece)?.1));
        last = Some(piece);
    }
    match last {
        // The page's line ends in `…`.
        Some("") => rest.is_some(),
        _ => rest == Some(""),
    }
}
