//! Prints answers: for people in words, lines and colours, for programs as JSON.

mod conclusion;
pub(super) mod json;
pub(super) mod page;
pub(super) mod words;

pub use self::conclusion::Conclusion;
pub use self::page::Page;

/// The readers of an answer: people, scripts or programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    #[default]
    Text,
    /// `check` and `explain` print the answer alone, on one line.
    Short,
    Json,
}

impl Output {
    /// Text for people, or JSON on a line of its own.
    pub(super) fn form(self, text: impl FnOnce() -> String, json: impl FnOnce() -> String) -> String {
        if self == Self::Json { json() + "\n" } else { text() }
    }
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

/// An error as JSON on a line of its own; docs/errors.md has the schema.
pub fn error_json(message: &str, exit_code: u8) -> String {
    let report = serde_json::json!({"schema": 1, "error": {"message": message, "exit_code": exit_code}});
    format!("{report}\n")
}
