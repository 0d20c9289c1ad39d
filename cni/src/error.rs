//! Why a command of the runtime failed: the CNI specification's error objects, with its codes and this plugin's own.

use std::io;
use std::path::PathBuf;

use proxy_init::Verification;
use proxy_init::error::chain;
use proxy_init::log::escaped;
use serde_json::error::Category;
use serde_json::json;
use thiserror::Error;

use crate::pod::PodName;
use crate::verb::Verb;
use crate::version::Version;

/// The capability by which a runtime hands a plugin the pod's annotations, and the key in `runtimeConfig` under which
/// they come (containerd's pkg/cri/server/sandbox_run.go; CRI-O has the same).
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Why a command failed. docs/cni.md has every code and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The network configuration is for a version of the specification that the plugin doesn't know.
    #[error(
        "cniVersion {asked:?} is not supported: use one of {}",
        Version::ALL.map(Version::as_str).join(", ")
    )]
    Version {
        /// The version in the network configuration; empty if it names none.
        asked: String,
    },

    /// The verb doesn't exist in that version of the specification.
    #[error("cniVersion {asked} has no {verb}: it came with {since}")]
    NoSuchVerb {
        /// The verb.
        verb: Verb,
        /// The version in the network configuration.
        asked: Version,
        /// The version that brought it.
        since: Version,
    },

    /// A variable of the environment is missing or invalid.
    #[error("{variable} {reason}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// Standard input could not be read.
    #[error("the network configuration on stdin cannot be read: {0}")]
    Stdin(io::Error),

    /// Standard input is not JSON.
    #[error("the network configuration on stdin is not JSON: {0}")]
    NotJson(serde_json::Error),

    /// A key of the network configuration is missing or has an invalid value.
    #[error("network configuration: {key}: {reason}")]
    Configuration {
        /// The path of the key, such as `linkerd.proxy-uid`.
        key: String,
        /// What is wrong with it, and where.
        reason: String,
    },

    /// The API server cannot be reached, or asks to be left alone, until the time was up.
    #[error("{request}: {reason}; try again later")]
    TryAgainLater {
        /// What was asked for.
        request: String,
        /// What happened last, and why the plugin did not wait longer.
        reason: String,
    },

    /// The plugin could not serve an ADD now.
    #[error("the plugin cannot redirect pods on this node: {0}")]
    Unavailable(Box<Error>),

    /// The rules could not be installed or read.
    #[error("{}", chain(.0))]
    Rules(#[from] proxy_init::Error),

    /// CHECK found something else than what ADD would install.
    #[error("the rules in the pod's network namespace are not those of its configuration")]
    NotInPlace(Box<Verification>),

    /// An annotation has an invalid value.
    #[error("annotation {key} of {holder} has the invalid value {}: {}", shortened(.value), one_line(.reason))]
    Annotation {
        /// Its key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Which object carries it: `pod NAMESPACE/NAME` or `namespace NAME`.
        holder: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The annotations that change rules are too long.
    #[error(
        "the annotations of {holder} that change rules have more than {most} bytes together: shorten them, with ranges \
             such as 8000-8100"
    )]
    LongAnnotations {
        /// Which object carries them: `pod NAMESPACE/NAME` or `namespace NAME`.
        holder: String,
        /// How many bytes they may have.
        most: usize,
    },

    /// The API server knows no such pod, namespace or service.
    #[error("{request}: the API server has no such object (404)")]
    NotFound {
        /// What was asked for.
        request: String,
    },

    /// The API server refuses, or its answer makes no sense.
    #[error("{request}: {reason}")]
    Api {
        /// What was asked for.
        request: String,
        /// What it said, and what to do about it.
        reason: String,
    },

    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {reason}", .path.display())]
    Kubeconfig {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The runtime was told to hand over the pod's annotations, and did not.
    #[error(
        "pod {pod}: the runtime handed over no annotations (runtimeConfig has no {key:?}): add \
         \"capabilities\": {{\"{key}\": true}} to the plugin's entry in the network configuration list, use a runtime \
         that knows this capability (containerd, CRI-O), or set linkerd.pod-info to \"api\"",
        key = POD_ANNOTATIONS
    )]
    NoAnnotations {
        /// Which pod.
        pod: PodName,
    },
}

impl Error {
    /// The code in the error object: below 100 as the CNI specification defines it (1.1.0, "Error"), from 100 this
    /// plugin's own.
    pub fn code(&self) -> u32 {
        match self {
            Error::Version { .. } | Error::NoSuchVerb { .. } => 1,
            Error::Environment { .. } => 4,
            Error::Stdin(_) => 5,
            Error::NotJson(_) => 6,
            Error::Configuration { .. } => 7,
            Error::TryAgainLater { .. } => 11,
            Error::Unavailable(_) => 50,
            Error::Rules(_) => 100,
            Error::NotInPlace(_) => 101,
            Error::Annotation { .. } | Error::LongAnnotations { .. } => 102,
            Error::NotFound { .. } => 103,
            Error::Api { .. } => 104,
            Error::Kubeconfig { .. } => 105,
            Error::NoAnnotations { .. } => 106,
        }
    }

    /// What is wrong, in a line that is not too long for kubelet's events and for logs, whatever others chose is in it.
    pub fn message(&self) -> String {
        bounded(self.to_string(), 4 << 10)
    }

    /// For CHECK: how the rules differ.
    pub fn details(&self) -> Option<String> {
        match self {
            Error::NotInPlace(verdict) => Some(bounded(verdict.to_string(), 64 << 10)),
            _ => None,
        }
    }

    /// The specification's error object, in this version of it.
    pub fn json(&self, version: Version) -> String {
        let mut object = json!({
            "cniVersion": version.as_str(),
            "code": self.code(),
            "msg": self.message(),
        });
        if let (Some(details), Some(object)) = (self.details(), object.as_object_mut()) {
            object.insert("details".to_owned(), details.into());
        }
        object.to_string()
    }
}

/// The start of a text that is longer than so many bytes.
fn bounded(mut text: String, longest: usize) -> String {
    let rest = text.len().saturating_sub(longest);
    if rest > 0 {
        let end = (0..=longest).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or_default());
        text.push_str(&format!("… (and {rest} bytes more)"));
    }
    text
}

/// A value in quotes, its hidden characters escaped: others chose it, and an annotation may be 256 KiB long.
pub(crate) fn shortened(value: &str) -> String {
    const LONGEST: usize = 200;
    let start: String = value.chars().take(LONGEST).collect();
    match value.len() - start.len() {
        0 => format!("{start:?}"),
        rest => format!("{start:?} (and {rest} bytes more)"),
    }
}

/// A reason, which may repeat that value, with its hidden characters escaped, and of at most as many characters.
pub(crate) fn one_line(reason: &str) -> String {
    const LONGEST: usize = 200;
    let start: String = reason.chars().take(LONGEST).collect();
    escaped(&start).into_owned()
}

/// What is wrong with JSON, and where, without what is there: that may be somebody's secret.
pub fn wrong_in_json(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Data => "a value of another kind was expected",
        Category::Eof => "the JSON ends too early",
        Category::Io | Category::Syntax => "it is not JSON",
    };
    format!("{what}, at line {} and column {}", error.line(), error.column())
}
