//! The log on standard error, as logrus writes it; standard output is for the result.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use crate::configuration::LogLevel;

/// Writes lines about one command.
#[derive(Debug)]
pub struct Log {
    /// The least important lines that it takes.
    pub level: LogLevel,
    /// What the command is about, at the end of each line: `KEY=VALUE` pairs.
    pub about: String,
}

impl Log {
    /// Writes a line. If stderr is closed it is lost.
    pub fn add(&self, level: LogLevel, message: impl fmt::Display) {
        if level > self.level {
            return;
        }
        let name = match level {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        };
        let mut line = format!("level={name} msg=");
        // What others chose may hold control characters. Writing to a String can't fail.
        let _ = write!(line, "{:?}{}", format!("linkerd-cni: {message}"), self.about);
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
