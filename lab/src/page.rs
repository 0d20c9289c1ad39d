//! Pages of docs/ that show commands and what they print.

/// The pods of docs/debugging.md, each with the addresses that the page has, and whether it is meshed.
pub const PODS: [(&str, [&str; 2], bool); 3] = [
    ("web", ["10.88.7.7", "fd88::707"], true),
    ("unmeshed", ["10.88.7.8", "fd88::708"], false),
    // In which another program has added the rule of SHADOW.
    ("shadowed", ["10.88.7.9", "fd88::709"], true),
];

/// The command that adds that rule.
pub const SHADOW: &str = "iptables-nft -t nat -I PREROUTING -p tcp --dport 8080 -j ACCEPT";

/// Whether a line of a page is a command's output: it goes on to the end of the indented block, or the next command.
pub fn is_output(line: &str) -> bool {
    line.is_empty() || (line.starts_with("    ") && !line.starts_with("    $ "))
}

/// A line as it is printed where there is no terminal, at a time that doesn't change.
pub fn plain(line: &str) -> String {
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
