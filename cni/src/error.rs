//! The errors of the runtime's commands: the CNI specification's error objects, with its codes and this plugin's own.

use std::io;
use std::path::PathBuf;

use pod::{PodName, bounded};
use proxy_init::Verification;
use proxy_init::error::chain;
use serde_json::json;
use thiserror::Error;

use crate::verb::Verb;
use crate::version::Version;

/// The capability by which a runtime hands a plugin the pod's annotations, and the key in `runtimeConfig` under which
/// they come (containerd's pkg/cri/server/sandbox_run.go; CRI-O has the same).
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The reason why a command failed. docs/cni.md has every code and its cure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration or the annotations stand in the way.
    #[error(transparent)]
    Pod(#[from] pod::Error),

    /// The configuration is for a version of the specification that the plugin doesn't know.
    #[error("cniVersion {asked:?} is not supported: use one of {}", Version::ALL.map(|version| version.to_string()).join(", "))]
    Version {
        /// The version in the network configuration.
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
        /// The defect.
        reason: String,
    },

    /// Standard input could not be read.
    #[error("the network configuration on stdin cannot be read: {0}")]
    Stdin(io::Error),

    /// The API server cannot be reached, or asks to be left alone, until the time was up.
    #[error("{request}: {reason}; try again later")]
    TryAgainLater {
        /// The requested object.
        request: String,
        /// The last failure, and the reason why the plugin did not wait longer.
        reason: String,
    },

    /// The plugin could not serve an ADD now.
    #[error("the plugin cannot redirect pods on this node: {0}")]
    Unavailable(Box<Error>),

    /// The rules could not be installed or read.
    #[error("{}", chain(.0))]
    Rules(#[from] proxy_init::Error),

    /// CHECK found other rules than ADD would install.
    #[error("the rules in the pod's network namespace are not those of its configuration")]
    NotInPlace(Box<Verification>),

    /// The API server knows no such pod, namespace or service.
    #[error("{request}: the API server has no such object (404)")]
    NotFound {
        /// The requested object.
        request: String,
    },

    /// The API server refuses, or its answer makes no sense.
    #[error("{request}: {reason}")]
    Api {
        /// The requested object.
        request: String,
        /// The API server's words, and the cure.
        reason: String,
    },

    /// The kubeconfig cannot be used.
    #[error("kubeconfig {}: {reason}", .path.display())]
    Kubeconfig {
        /// Where it is.
        path: PathBuf,
        /// The defect.
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
        /// The pod's name.
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
            Error::Pod(pod::Error::NotJson(_)) => 6,
            Error::Pod(pod::Error::Configuration { .. }) => 7,
            Error::TryAgainLater { .. } => 11,
            Error::Unavailable(_) => 50,
            Error::Rules(_) => 100,
            Error::NotInPlace(_) => 101,
            Error::Pod(pod::Error::Annotation { .. } | pod::Error::LongAnnotations { .. }) => 102,
            Error::NotFound { .. } => 103,
            Error::Api { .. } => 104,
            Error::Kubeconfig { .. } => 105,
            Error::NoAnnotations { .. } => 106,
        }
    }

    /// The error in a line that is not too long for kubelet's events and for logs, whatever others wrote into it.
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
            "cniVersion": version.to_string(),
            "code": self.code(),
            "msg": self.message(),
        });
        if let (Some(details), Some(object)) = (self.details(), object.as_object_mut()) {
            object.insert("details".to_owned(), details.into());
        }
        object.to_string()
    }
}
