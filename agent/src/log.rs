//! The agent's log: a line for each event, in which everything can be seen. tracing-subscriber escapes control characters of
//! terminals alone, so the lines are escaped here, as the plugin escapes its own.

use std::io::{self, Write};

use proxy_init::log::{escaped, escaped_json};
use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::{fmt, registry};

use crate::settings::{LogFormat, Settings};

/// Logs to standard error from here on.
pub(crate) fn start(settings: &Settings) {
    let is_json = settings.log_format == LogFormat::Json;
    let lines = fmt::layer()
        .with_writer(move || Lines { to: io::stderr(), is_json })
        .with_ansi(false)
        // It would escape some of the characters, and in another way.
        .with_ansi_sanitization(false);
    let filter = settings.log_level.clone().and(filter_fn(holds_no_answer));
    // A subscriber can be set once, and none was.
    let _ = if is_json {
        let lines = lines.json().flatten_event(true).with_filter(filter);
        tracing::subscriber::set_global_default(registry().with(lines))
    } else {
        tracing::subscriber::set_global_default(registry().with(lines.with_filter(filter)))
    };
}

/// kube's crates log whole answers of the API server, with the values of pods' environments in them.
fn holds_no_answer(event: &Metadata<'_>) -> bool {
    !event.target().starts_with("kube_")
}

/// Writes events, each in a line: whatever others chose of it, a pod's name or a rule's comment, is escaped here and
/// nowhere else.
struct Lines<W> {
    to: W,
    is_json: bool,
}

impl<W: Write> Write for Lines<W> {
    /// Takes an event at a time, which is how tracing writes them.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.trim_end_matches('\n');
        let text = if self.is_json { escaped_json(text) } else { escaped(text) };
        self.to.write_all(format!("{text}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_in_which_everything_can_be_seen() {
        for (is_json, event, line) in [
            (false, "a\n\u{202e}\u{1b}[1m\"é\"\\\n", "a\\n\\u{202e}\\u{1b}[1m\"é\"\\\n"),
            (true, "{\"a\": \"\u{202e}\\n\"}\n", "{\"a\": \"\\u202e\\n\"}\n"),
        ] {
            let mut lines = Lines { to: Vec::new(), is_json };
            lines.write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(lines.to).unwrap(), line);
        }
    }
}
