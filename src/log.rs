//! Log lines as linkerd-init writes them: logfmt or JSON, with time, level and message. They are written in one write
//! when the run ends or is about to wait: a run that waits for nothing is over sooner than several writes.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use nix::errno::Errno;
use nix::unistd::write;
use ruleset::is_hidden;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `time="…" level=info msg="…"`
    #[default]
    Plain,
    /// `{"level":"info","msg":"…","time":"…"}`
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    Error,
    /// The run goes on, but something is probably not as meant.
    Warning,
    #[default]
    Info,
    Debug,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// The lines that are not written yet.
#[derive(Debug)]
pub struct Log {
    format: Format,
    level: Level,
    lines: String,
}

/// Room for the lines of a usual run (3 KB for Linkerd's rules in both families), so that they are not moved as they grow.
const USUAL: usize = 4096;

impl Log {
    /// An empty log that takes lines of this level and of more important ones.
    pub fn new(format: Format, level: Level) -> Self {
        Self { format, level, lines: String::with_capacity(USUAL) }
    }

    /// Adds a line, which carries the present time.
    pub fn add(&mut self, level: Level, message: impl fmt::Display) {
        if level > self.level {
            return;
        }
        let time = format_rfc3339_seconds(SystemTime::now().max(UNIX_EPOCH));
        let (name, lines) = (level.as_str(), &mut self.lines);
        // Writing to a String can't fail.
        match self.format {
            Format::Plain => {
                let _ = write!(lines, "time=\"{time}\" level={name} msg=\"");
                add_quoted(lines, message);
                lines.push_str("\"\n");
            }
            Format::Json => {
                let _ = write!(lines, "{{\"level\":\"{name}\",\"msg\":\"");
                add_quoted(lines, message);
                let _ = writeln!(lines, "\",\"time\":\"{time}\"}}");
            }
        }
    }

    /// Writes the lines to stdout, in one write. Those that could not be written are lost.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = print(&self.lines);
        self.lines.clear();
        written
    }
}

/// Writes to stdout, in one write if that takes it. To std's handle, writing to a closed file is no error.
pub fn print(text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match write(io::stdout(), rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Adds a text as JSON and logfmt have it between double quotes. Most texts need no escape, and are written once.
fn add_quoted(lines: &mut String, message: impl fmt::Display) {
    let start = lines.len();
    let _ = write!(lines, "{message}");
    let text = lines.as_bytes().get(start..).unwrap_or_default();
    // Hidden characters are below the space, or DEL and bytes beyond ASCII.
    if text.iter().all(|&byte| !matches!(byte, b'"' | b'\\') && (b' '..0x7f).contains(&byte)) {
        return;
    }
    let text = lines.split_off(start);
    *lines += &escape(
        &text,
        |character| matches!(character, '"' | '\\') || is_hidden(character),
        |escaped, special| match special {
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            '"' | '\\' => escaped.extend(['\\', special]),
            hidden => add_json_escape(escaped, hidden),
        },
    );
}

fn add_json_escape(text: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
}

/// A text with its hidden characters escaped, so that it stays one line, cannot steer a terminal and reads as it is
/// written: names and values that others chose may hold any.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, is_hidden, |escaped, hidden| escaped.extend(hidden.escape_default()))
}

/// The same for a text that is JSON, and stays the same JSON: there, only strings have such characters.
pub fn escaped_json(text: &str) -> Cow<'_, str> {
    escape(text, is_hidden, add_json_escape)
}

fn escape(text: &str, is_special: fn(char) -> bool, add: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_special) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_special(character) {
            add(&mut escaped, character);
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stays_one_line() {
        assert_eq!(escaped("/run/pod: ENOENT"), "/run/pod: ENOENT");
        assert_eq!(escaped("a\nb\t\u{1b}[31mé\u{9b}"), "a\\nb\\t\\u{1b}[31mé\\u{9b}");
        assert_eq!(escaped("say \"it's\" \\ \u{202e}!"), r#"say "it's" \ \u{202e}!"#);
    }

    #[test]
    fn a_message_cannot_break_out_of_its_line() {
        let mut log = Log::new(Format::Json, Level::Info);
        log.add(Level::Info, "a \"quote\",\na line and a bell\u{7}");
        log.add(Level::Debug, "left out");
        assert_eq!(log.lines.lines().count(), 1);
        assert!(log.lines.contains(r#""msg":"a \"quote\",\na line and a bell\u0007""#));
    }

    #[test]
    fn hidden_characters_are_the_same_ones_in_json() {
        let text = "a \u{202e} and \u{e0041}, \u{7f}\"é\"\\";
        let mut log = Log::new(Format::Json, Level::Info);
        log.add(Level::Info, text);
        let json = serde_json::json!({"msg": text}).to_string();
        assert!(json.contains('\u{202e}'));
        for json in [log.lines.trim_end(), &escaped_json(&json)] {
            assert!(!json.contains(is_hidden), "{json}");
            assert!(json.contains(r"\u202e and \udb40\udc41, \u007f"), "{json}");
            let read: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(read["msg"], text);
        }
    }
}
