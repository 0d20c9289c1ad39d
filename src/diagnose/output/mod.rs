//! Prints answers: for people in words, lines and colours, for programs as JSON.

mod conclusion;
pub(super) mod json;
pub(super) mod style;
pub(super) mod words;

use std::fmt::Display;

pub use self::conclusion::Conclusion;
pub use self::words::set_width;

/// The readers of an answer: people, scripts or programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    #[default]
    Text,
    /// `explain` prints the answer alone, on one line.
    Short,
    Json,
}

/// When text for people is in colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Colour {
    /// On a terminal outside pods.
    #[default]
    Auto,
    Always,
    Never,
}

pub(super) struct Printer {
    pub(super) output: Output,
    pub(super) has_colour: bool,
}

impl Printer {
    /// Text for people, or JSON on a line of its own.
    pub(super) fn form<T: Display>(&self, answer: &T, json: impl FnOnce(&T) -> String) -> String {
        match self.output {
            Output::Json => json(answer) + "\n",
            Output::Text | Output::Short if self.has_colour => format!("{answer:#}"),
            Output::Text | Output::Short => answer.to_string(),
        }
    }
}

/// An error as JSON on a line of its own; docs/errors.md has the schema.
pub fn error_json(message: &str, exit_code: u8) -> String {
    let report = serde_json::json!({"schema": 1, "error": {"message": message, "exit_code": exit_code}});
    format!("{report}\n")
}
