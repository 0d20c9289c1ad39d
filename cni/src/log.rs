//! The log on standard error, as logrus writes it, and to the node's agent; standard output is for the result.

use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use proxy_init::log::{Format, Level, escaped_json};
use serde_json::{Map, Value};

/// The most characters of a message that the agent gets: enough for any that the plugin makes by itself, and not for a
/// pod's annotations of 256 KiB, which errors may quote.
const LONGEST: usize = 4096;

/// Writes lines about one command.
#[derive(Debug)]
pub struct Log {
    /// The least important lines that it takes.
    pub level: Level,
    /// The form in which a line is written.
    pub format: Format,
    /// The command's subject: keys and values at the end of each line.
    pub about: Vec<(&'static str, String)>,
    /// The socket of the node's agent, which gets each line too.
    pub agent: Option<PathBuf>,
}

impl Log {
    /// Plain text, about nothing so far.
    pub fn new(level: Level) -> Self {
        Self { level, format: Format::Plain, about: Vec::new(), agent: None }
    }

    /// Writes a line, if it is important enough. If stderr is closed it is lost there, and if the agent doesn't take it at
    /// once, to the agent.
    pub fn add(&self, level: Level, message: impl fmt::Display) {
        if level <= self.level {
            let message = format!("linkerd-cni: {message}");
            self.print(level, &message);
            self.tell(level, &message);
        }
    }

    /// Writes the last line of a command, with its code, 0 if it has succeeded. The agent gets it however unimportant it
    /// is, and counts commands by it.
    pub fn end(&mut self, level: Level, code: u32, message: impl fmt::Display) {
        self.about.push(("code", code.to_string()));
        let message = format!("linkerd-cni: {message}");
        if level <= self.level {
            self.print(level, &message);
        }
        self.tell(level, &message);
    }

    fn print(&self, level: Level, message: &str) {
        let _ = writeln!(io::stderr(), "{}", self.line(self.format, level, message));
    }

    fn tell(&self, level: Level, message: &str) {
        if let Some(agent) = &self.agent {
            let message: String = message.chars().take(LONGEST).collect();
            let _ = send(agent, &self.line(Format::Json, level, &message));
        }
    }

    fn line(&self, format: Format, level: Level, message: &str) -> String {
        let about = self.about.iter().map(|(key, value)| (*key, value.as_str()));
        let pairs = [("level", level.as_str()), ("msg", message)].into_iter().chain(about);
        match format {
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

/// Sends a line without ever waiting: neither for an agent that doesn't read, nor for one that isn't there.
fn send(agent: &Path, line: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(line.as_bytes(), agent)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_others_chose_stays_one_line_in_either_format() {
        let mut log = Log::new(Level::Info);
        log.about = vec![("command", "ADD".to_owned()), ("pod", "shop/\"a\nb".to_owned())];
        assert_eq!(
            log.line(Format::Plain, Level::Warning, "x: \u{1b}[1m\n\"y\""),
            r#"level=warning msg="x: \u{1b}[1m\n\"y\"" command=ADD pod="shop/\"a\nb""#
        );
        let message = "x: \u{1b}[1m\n\u{202e}\"y\"";
        let line = log.line(Format::Json, Level::Warning, message);
        assert!(!line.contains(['\n', '\u{1b}', '\u{202e}']), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "level": "warning", "msg": message, "command": "ADD", "pod": "shop/\"a\nb"
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn the_agent_gets_each_line_and_one_that_does_not_read_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("linkerd-cni-log-{}", std::process::id()));
        let mut log = Log::new(Level::Info);
        log.about = vec![("command", "ADD".to_owned())];
        log.agent = Some(path.clone());
        log.add(Level::Info, "nobody is there");
        let agent = UnixDatagram::bind(&path).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let mut next = || {
            let length = agent.recv(&mut buffer).unwrap();
            serde_json::from_slice::<Value>(&buffer[..length]).unwrap()
        };
        log.add(Level::Debug, "too unimportant");
        log.add(Level::Warning, "x");
        let expected = serde_json::json!({"level": "warning", "msg": "linkerd-cni: x", "command": "ADD"});
        assert_eq!(next(), expected);
        // Control characters are the longest in JSON.
        log.add(Level::Info, "\u{1b}".repeat(100_000));
        assert_eq!(next()["msg"].as_str().unwrap().chars().count(), LONGEST);
        // A command's end is logged at any level.
        log.end(Level::Debug, 0, "done");
        let expected = serde_json::json!({"level": "debug", "msg": "linkerd-cni: done", "command": "ADD", "code": "0"});
        assert_eq!(next(), expected);
        // More than any queue takes (net.unix.max_dgram_qlen): were it waited for, this would never end.
        for _ in 0..10_000 {
            log.add(Level::Info, "x");
        }
        std::fs::remove_file(path).unwrap();
    }
}
