//! The name of the pod that a container belongs to.

use derive_more::Display;

/// The longest that the names of namespaces and of pods may be.
const LONGEST_NAMESPACE: usize = 63;
const LONGEST_NAME: usize = 253;

/// A pod's namespace and name, as Kubernetes allows them: they can be put into a path as they are.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
#[display("{namespace}/{name}")]
pub struct PodName {
    namespace: String,
    name: String,
}

impl PodName {
    /// The pod of this name in this namespace.
    ///
    /// # Errors
    /// The one of the two that is no name.
    pub fn new(namespace: &str, name: &str) -> Result<Self, String> {
        for (text, longest) in [(namespace, LONGEST_NAMESPACE), (name, LONGEST_NAME)] {
            if !is_kubernetes_name(text) || text.len() > longest {
                return Err(format!("{text:?} is no name in Kubernetes (lower-case letters, digits, dashes and dots)"));
            }
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name in that namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A DNS subdomain (RFC 1123), as Kubernetes requires of names: labels of letters, digits and inner dashes.
fn is_kubernetes_name(text: &str) -> bool {
    text.split('.').all(|label| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    })
}
