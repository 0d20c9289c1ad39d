//! Prints answers: for people in words, lines and colours, for programs as JSON.

pub(super) mod json;
pub(super) mod page;
pub(super) mod words;

use serde_json::Value;

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

/// An answer's conclusion for scripts, which read it as the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    AsExpected,
    Differs,
    /// Something decides that could not be seen.
    NotKnown,
}

impl Conclusion {
    pub(super) fn of(is_as_expected: bool) -> Self {
        if is_as_expected { Self::AsExpected } else { Self::Differs }
    }

    /// The same, where warnings count as differences.
    pub(super) fn strictly(self, warns: bool) -> Self {
        if self == Self::AsExpected && warns { Self::Differs } else { self }
    }

    /// Null if it isn't known.
    pub(super) fn in_json(self) -> Value {
        match self {
            Self::AsExpected => true.into(),
            Self::Differs => false.into(),
            Self::NotKnown => Value::Null,
        }
    }
}

/// An error as JSON on a line of its own; docs/errors.md has the schema.
pub fn error_json(message: &str, exit_code: u8) -> String {
    let report = serde_json::json!({"schema": 1, "error": {"message": message, "exit_code": exit_code}});
    format!("{report}\n")
}
