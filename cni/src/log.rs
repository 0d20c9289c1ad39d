//! The log on standard error, as logrus writes it; standard output is for the result.

use std::fmt;
use std::io::{self, Write as _};

use proxy_init::log::{Format, Level, escaped_json};
use serde_json::{Map, Value};

/// Writes lines about one command.
#[derive(Debug)]
pub struct Log {
    /// The least important lines that it takes.
    pub level: Level,
    /// The form in which a line is written.
    pub format: Format,
    /// The command's subject: keys and values at the end of each line.
    pub about: Vec<(&'static str, String)>,
}

impl Log {
    /// Plain text, about nothing so far.
    pub fn new(level: Level) -> Self {
        Self { level, format: Format::Plain, about: Vec::new() }
    }

    /// Writes a line, if it is important enough. If stderr is closed it is lost.
    pub fn add(&self, level: Level, message: impl fmt::Display) {
        if level <= self.level {
            let message = format!("linkerd-cni: {message}");
            let _ = writeln!(io::stderr(), "{}", self.line(level, &message));
        }
    }

    fn line(&self, level: Level, message: &str) -> String {
        let about = self.about.iter().map(|(key, value)| (*key, value.as_str()));
        let pairs = [("level", level.as_str()), ("msg", message)].into_iter().chain(about);
        match self.format {
            Format::Json => {
                let object: Map<_, _> = pairs.map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
                escaped_json(&Value::from(object).to_string()).into_owned()
            }
            Format::Plain => {
                let mut line = String::new();
                for (key, value) in pairs {
                    let space = if line.is_empty() { "" } else { " " };
                    // Values that others chose may hold hidden characters.
                    let is_word = value.bytes().all(|byte| byte.is_ascii_alphabetic());
                    let shown = if is_word { value.to_owned() } else { format!("{value:?}") };
                    line += &format!("{space}{key}={shown}");
                }
                line
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_others_chose_stays_one_line_in_either_format() {
        let mut log = Log::new(Level::Info);
        log.about = vec![("command", "ADD".to_owned()), ("pod", "shop/\"a\nb".to_owned())];
        assert_eq!(
            log.line(Level::Warning, "x: \u{1b}[1m\n\"y\""),
            r#"level=warning msg="x: \u{1b}[1m\n\"y\"" command=ADD pod="shop/\"a\nb""#
        );
        let message = "x: \u{1b}[1m\n\u{202e}\"y\"";
        log.format = Format::Json;
        let line = log.line(Level::Warning, message);
        assert!(!line.contains(['\n', '\u{1b}', '\u{202e}']), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "level": "warning", "msg": message, "command": "ADD", "pod": "shop/\"a\nb"
        });
        assert_eq!(read, expected);
    }
}
