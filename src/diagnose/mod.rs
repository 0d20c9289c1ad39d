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

use self::check::check;
use self::detect::detect;
use self::explain::answer::Connection;
use self::explain::{Expected, explain};
pub use self::output::{Colour, Conclusion, Output, Page, error_json};
use self::show::show;
use self::verify::{Verification, recognize, verify};
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
    pub conclusion: Conclusion,
}

impl Question {
    /// Answers it; text for people is for this page.
    ///
    /// # Errors
    /// The namespace can't be entered, or the kernel can't be asked.
    pub fn answer(&self, output: Output, page: &Page) -> Result<Printed, Error> {
        match self {
            Self::Check { netns } => {
                let checked = check(netns.as_deref())?;
                let text = match output {
                    Output::Text => checked.text(page),
                    Output::Short => checked.answer() + "\n",
                    Output::Json => checked.json() + "\n",
                };
                Ok(Printed { text, conclusion: checked.conclusion() })
            }
            Self::Show { netns } => show(netns.as_deref(), |shown| Printed {
                text: output.form(|| shown.text(page), || shown.json()),
                conclusion: shown.conclusion(),
            }),
            Self::Explain { netns, connection, expected } => explain(netns.as_deref(), connection, |explained| {
                let text = match output {
                    Output::Text => explained.text(page),
                    Output::Short => explained.answer() + "\n",
                    Output::Json => explained.json() + "\n",
                };
                let conclusion = Conclusion::of(expected.is_none_or(|expected| explained.is(expected)));
                Printed { text, conclusion }
            }),
            Self::Verify { install, is_strict } => Ok(print_verification(&verify(install)?, *is_strict, output, page)),
            Self::Recognize { netns, mode, is_strict } => {
                Ok(print_verification(&recognize(netns.as_deref(), *mode)?, *is_strict, output, page))
            }
            Self::Detect { netns } => {
                let detected = detect(netns.as_deref())?;
                let text = output.form(|| detected.text(page), || detected.json());
                Ok(Printed { text, conclusion: Conclusion::AsExpected })
            }
        }
    }
}

fn print_verification(verified: &Verification, is_strict: bool, output: Output, page: &Page) -> Printed {
    let conclusion = verified.conclusion().strictly(is_strict && verified.warns());
    Printed { text: output.form(|| verified.text(page), || verified.json()), conclusion }
}
