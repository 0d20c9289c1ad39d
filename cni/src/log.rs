//! The log on standard error, as logrus writes it; standard output is for the result.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use serde_json::{Map, Value};

use crate::configuration::{LogFormat, LogLevel};

/// Writes lines about one command.
#[derive(Debug)]
pub struct Log {
    /// The least important lines that it takes.
    pub level: LogLevel,
    /// How a line is written.
    pub format: LogFormat,
    /// What the command is about: keys and values at the end of each line.
    pub about: Vec<(&'static str, String)>,
}

impl Log {
    /// Plain text, about nothing so far.
    pub fn new(level: LogLevel) -> Self {
        Self {
            level,
            format: LogFormat::Plain,
            about: Vec::new(),
        }
    }

    /// Writes a line. If stderr is closed it is lost.
    pub fn add(&self, level: LogLevel, message: impl fmt::Display) {
        if level <= self.level {
            let line = self.line(level, &format!("linkerd-cni: {message}"));
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn line(&self, level: LogLevel, message: &str) -> String {
        let level = match level {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        };
        let about = self.about.iter().map(|(key, value)| (*key, value.as_str()));
        let pairs = [("level", level), ("msg", message)].into_iter().chain(about);
        match self.format {
            LogFormat::Json => {
                let object: Map<_, _> = pairs.map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
                Value::from(object).to_string()
            }
            LogFormat::Plain => {
                let mut line = String::new();
                for (key, value) in pairs {
                    let space = if line.is_empty() { "" } else { " " };
                    // What others chose may hold control characters. Writing to a String can't fail.
                    let _ = match value.bytes().all(|byte| byte.is_ascii_alphabetic()) {
                        true => write!(line, "{space}{key}={value}"),
                        false => write!(line, "{space}{key}={value:?}"),
                    };
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
        let mut log = Log::new(LogLevel::Info);
        log.about = vec![("command", "ADD".to_owned()), ("pod", "shop/\"a\nb".to_owned())];
        assert_eq!(
            log.line(LogLevel::Warning, "x: \u{1b}[1m\n\"y\""),
            r#"level=warning msg="x: \u{1b}[1m\n\"y\"" command=ADD pod="shop/\"a\nb""#
        );
        log.format = LogFormat::Json;
        let line = log.line(LogLevel::Warning, "x: \u{1b}[1m\n\"y\"");
        assert!(!line.contains('\n') && !line.contains('\u{1b}'), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "level": "warning", "msg": "x: \u{1b}[1m\n\"y\"", "command": "ADD", "pod": "shop/\"a\nb"
        });
        assert_eq!(read, expected);
    }
}
