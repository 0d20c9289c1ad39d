//! Answers about a network namespace: the rules that redirect connections, their completeness, and the way a connection
//! goes. A folder for each question, from the question to the printed answer.
//!
//! Nothing outside of this folder imports from it but the command line: without the feature `diagnose`, there is no
//! such folder.

pub mod check;
pub mod detect;
pub mod explain;
pub mod other_programs;
mod output;
mod ownership;
pub mod proxy;
#[cfg(feature = "cli")]
pub mod questions;
pub mod recognize;
pub mod show;
pub mod snapshot;
mod trial;
#[cfg(feature = "cli")]
pub mod validate;
pub mod verify;

use std::path::PathBuf;

use serde_json::Value;

use self::check::{Checked, check};
use self::detect::{Detected, detect};
use self::explain::answer::Connection;
use self::explain::{Expected, Explained, explain};
use self::output::Printer;
pub use self::output::{Output, error_json};
use self::recognize::{Recognized, recognize};
use self::show::{Shown, show};
use self::verify::{Verification, verify};
use crate::config::Mode;
use crate::error::Error;
use crate::install::Install;

/// A question about the network namespace at a path, or about the calling thread's.
#[derive(Debug)]
pub enum Question {
    Check {
        netns: Option<PathBuf>,
    },
    Show {
        netns: Option<PathBuf>,
    },
    /// The fate of a connection, perhaps compared with an expected one.
    Explain {
        netns: Option<PathBuf>,
        connection: Connection,
        expected: Option<Expected>,
    },
    /// Compare the rules with those that this would install; `is_strict`: warnings count.
    Verify {
        install: Box<Install>,
        is_strict: bool,
    },
    /// Compare the rules, of this mode if one is named, with one complete installation.
    Recognize {
        netns: Option<PathBuf>,
        mode: Option<Mode>,
        is_strict: bool,
    },
    Detect {
        netns: Option<PathBuf>,
    },
}

/// An answer as it is printed.
#[derive(Debug)]
pub struct Printed {
    pub text: String,
    pub outcome: Outcome,
}

/// An answer for scripts, which read the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    AsExpected,
    Differs,
    /// Something decides that could not be seen.
    NotKnown,
}

impl Outcome {
    fn of(is_as_expected: bool) -> Self {
        if is_as_expected { Self::AsExpected } else { Self::Differs }
    }

    /// The same, where warnings count as differences.
    fn strictly(self, warns: bool) -> Self {
        if self == Self::AsExpected && warns { Self::Differs } else { self }
    }

    /// Null if it isn't known.
    fn in_json(self) -> Value {
        match self {
            Self::AsExpected => true.into(),
            Self::Differs => false.into(),
            Self::NotKnown => Value::Null,
        }
    }
}

impl Question {
    /// Answers it; text for people is in colours if `has_colour` is set.
    ///
    /// # Errors
    /// The namespace can't be entered, or the kernel can't be asked.
    pub fn answer(&self, output: Output, has_colour: bool) -> Result<Printed, Error> {
        let print = Printer { output, has_colour };
        match self {
            Self::Check { netns } => {
                let checked = check(netns.as_deref())?;
                let text = match output {
                    Output::Short => format!("{}\n", checked.answer()),
                    Output::Text | Output::Json => print.form(&checked, Checked::json),
                };
                Ok(Printed { text, outcome: checked.outcome() })
            }
            Self::Show { netns } => show(netns.as_deref(), |shown| Printed {
                text: print.form(shown, Shown::json),
                outcome: shown.outcome(),
            }),
            Self::Explain { netns, connection, expected } => explain(netns.as_deref(), connection, |explained| {
                let text = match output {
                    Output::Short => format!("{}\n", explained.answer()),
                    Output::Text | Output::Json => print.form(explained, Explained::json),
                };
                let outcome = Outcome::of(expected.is_none_or(|expected| explained.is(expected)));
                Printed { text, outcome }
            }),
            Self::Verify { install, is_strict } => {
                let verified = verify(install)?;
                let outcome = verified.outcome().strictly(*is_strict && verified.warns());
                Ok(Printed { text: print.form(&verified, Verification::json), outcome })
            }
            Self::Recognize { netns, mode, is_strict } => {
                let recognized = recognize(netns.as_deref(), *mode)?;
                let outcome = recognized.outcome().strictly(*is_strict && recognized.warns());
                Ok(Printed { text: print.form(&recognized, Recognized::json), outcome })
            }
            Self::Detect { netns } => {
                let text = print.form(&detect(netns.as_deref())?, Detected::json);
                Ok(Printed { text, outcome: Outcome::AsExpected })
            }
        }
    }
}
