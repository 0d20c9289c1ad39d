//! Log lines as linkerd-init writes them: logfmt or JSON, with time, level and message. They are written in one write
//! when the run ends or is about to wait: a run that waits for nothing is over sooner than several writes.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// The last line's time, in seconds since 1970 and as text: most lines of a run are added in the same second.
    time: Option<(u64, String)>,
    lines: String,
}

/// Room for the lines of a usual run (3 KB for Linkerd's rules in both families), so that they are not moved as they grow.
const USUAL: usize = 4096;

impl Log {
    /// An empty log that takes lines of this level and of more important ones.
    pub fn new(format: Format, level: Level) -> Self {
        Self { format, level, time: None, lines: String::with_capacity(USUAL) }
    }

    /// Adds a line, which carries the present time.
    pub fn add(&mut self, level: Level, message: impl fmt::Display) {
        if level > self.level {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = now.as_secs();
        let (name, lines) = (level.as_str(), &mut self.lines);
        let (_, time) = match &mut self.time {
            Some(time) if time.0 == now => time,
            time => time.insert((now, timestamp(now))),
        };
        // Writing to a String can't fail.
        match self.format {
            Format::Plain => {
                // Sooner done than with write!.
                for part in ["time=\"", time, "\" level=", name, " msg=\""] {
                    lines.push_str(part);
                }
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

/// Seconds since 1970 as RFC 3339 in UTC, as logrus writes it. A date library would cost more of the start.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the Gregorian calendar, in years that begin on 1 March, so that the leap day is the last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_what_date_says() {
        // date -u -d @SECONDS +%FT%TZ
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), want);
        }
    }

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
