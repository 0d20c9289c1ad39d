//! The reason why no rules can be told for a pod.

use proxy_init::log::escaped;
use serde_json::error::Category;
use thiserror::Error;

/// The most bytes of a text of others that an error repeats.
const LONGEST: usize = 200;

/// The reason why no rules can be told for a pod.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the text of an error says what each of its fields is")]
pub enum Error {
    /// The plugin's configuration is not JSON.
    #[error("the network configuration is not JSON: {0}")]
    NotJson(serde_json::Error),

    /// A key of the plugin's configuration is missing or has an invalid value.
    #[error("network configuration: {key}: {reason}")]
    Configuration { key: String, reason: String },

    /// An annotation has an invalid value.
    #[error("annotation {key} of {holder} has the invalid value {}: {}", shortened(.value), one_line(.reason))]
    Annotation { key: &'static str, value: String, holder: String, reason: String },

    /// The annotations that change rules are too long.
    #[error(
        "the annotations of {holder} that change rules have more than {most} bytes together: shorten them, with ranges \
             such as 8000-8100"
    )]
    LongAnnotations { holder: String, most: usize },
}

/// The start of a text that is longer than so many bytes.
pub fn bounded(mut text: String, longest: usize) -> String {
    let rest = text.len().saturating_sub(longest);
    if rest > 0 {
        text.truncate(text.floor_char_boundary(longest));
        text.push_str(&format!("… (and {rest} bytes more)"));
    }
    text
}

/// A value in quotes, its hidden characters escaped: others chose it, and an annotation may be 256 KiB long.
pub fn shortened(value: &str) -> String {
    bounded(format!("{value:?}"), LONGEST)
}

/// A reason, which may repeat a value that others chose, with its hidden characters escaped.
pub fn one_line(reason: &str) -> String {
    bounded(escaped(reason).into_owned(), LONGEST)
}

/// The kind and the place of a mistake in JSON, without a word of the JSON: that may be somebody's secret.
pub fn wrong_in_json(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        Category::Data => "a value of another kind was expected",
        Category::Eof => "the JSON ends too early",
        Category::Io | Category::Syntax => "it is not JSON",
    };
    format!("{kind}, at line {} and column {}", error.line(), error.column())
}
