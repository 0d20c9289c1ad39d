//! The conclusion of an answer, which becomes the exit code.

use serde_json::Value;

/// An answer's conclusion for scripts, which read the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    AsExpected,
    Differs,
    /// Something decides that could not be seen.
    NotKnown,
}

impl Conclusion {
    pub(in crate::diagnose) fn of(is_as_expected: bool) -> Self {
        if is_as_expected { Self::AsExpected } else { Self::Differs }
    }

    /// The same, where warnings count as differences.
    pub(in crate::diagnose) fn strictly(self, warns: bool) -> Self {
        if self == Self::AsExpected && warns { Self::Differs } else { self }
    }

    /// Null if it isn't known.
    pub(in crate::diagnose) fn in_json(self) -> Value {
        match self {
            Self::AsExpected => true.into(),
            Self::Differs => false.into(),
            Self::NotKnown => Value::Null,
        }
    }
}
