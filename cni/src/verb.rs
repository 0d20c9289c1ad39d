//! The verbs of the CNI specification.

use derive_more::Display;

use crate::version::Version;

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[display(rename_all = "UPPERCASE")]
pub enum Verb {
    /// Set a container's network up.
    Add,
    /// Undo that.
    Del,
    /// Is a container's network as ADD left it?
    Check,
    /// Undo the leftovers of containers that are gone.
    Gc,
    /// Can the plugin serve an ADD?
    Status,
    /// The supported versions of the specification.
    Version,
}

impl Verb {
    /// Every one.
    pub const ALL: [Self; 6] = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    /// The first version of the specification that has it.
    pub fn since(self) -> Version {
        match self {
            Verb::Add | Verb::Del | Verb::Version => Version::V0_3_0,
            Verb::Check => Version::V0_4_0,
            Verb::Gc | Verb::Status => Version::V1_1_0,
        }
    }
}
