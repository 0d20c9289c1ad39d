//! Answers about a network namespace: what redirects connections, whether the rules are complete, and where a connection
//! goes. A folder for each question, from the question to the printed answer.

pub mod detect;
pub mod explain;
mod json;
pub mod other_programs;
pub mod proxy;
pub mod recognize;
pub mod show;
pub mod snapshot;
mod style;
#[cfg(feature = "cli")]
pub mod validate;
pub mod verify;
mod words;
