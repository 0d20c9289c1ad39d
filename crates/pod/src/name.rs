//! The name of the pod that a container belongs to.

use derive_more::Display;

/// How long the names of namespaces and of pods may be.
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
    /// The pod that `CNI_ARGS` name, such as `IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0`; none if it
    /// names none.
    ///
    /// As in libcni's plugins (`LoadArgs`), keys that the plugin doesn't know are refused unless `IgnoreUnknown` is
    /// true.
    ///
    /// # Errors
    /// The defect.
    pub fn in_arguments(arguments: &str) -> Result<Option<Self>, String> {
        let (mut namespace, mut name, mut ignores, mut unknown) = ("", "", false, Vec::new());
        if arguments.is_empty() {
            return Ok(None);
        }
        for pair in arguments.split(';') {
            let Some((key, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
                return Err(format!("has {pair:?}, which is not of the form KEY=VALUE"));
            };
            match key {
                "K8S_POD_NAMESPACE" => namespace = value,
                "K8S_POD_NAME" => name = value,
                "IgnoreUnknown" => {
                    ignores = match value.to_ascii_lowercase().as_str() {
                        "1" | "true" => true,
                        "0" | "false" => false,
                        _ => return Err(format!("has IgnoreUnknown={value:?}, which is neither true nor false")),
                    };
                }
                other => unknown.push(other),
            }
        }
        if !ignores && !unknown.is_empty() {
            return Err(format!("has unknown keys {unknown:?}, and no IgnoreUnknown=1"));
        }
        if namespace.is_empty() || name.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            namespace: checked(namespace, LONGEST_NAMESPACE).map_err(|what| format!("has K8S_POD_NAMESPACE={what}"))?,
            name: checked(name, LONGEST_NAME).map_err(|what| format!("has K8S_POD_NAME={what}"))?,
        }))
    }

    /// The pod of this name in this namespace.
    ///
    /// # Errors
    /// Says which of the two is no name.
    pub fn new(namespace: &str, name: &str) -> Result<Self, String> {
        Ok(Self {
            namespace: checked(namespace, LONGEST_NAMESPACE)
                .map_err(|what| format!("the pod's namespace is {what}"))?,
            name: checked(name, LONGEST_NAME).map_err(|what| format!("the pod is called {what}"))?,
        })
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

/// A name that is at most so long.
fn checked(text: &str, longest: usize) -> Result<String, String> {
    if is_kubernetes_name(text) && text.len() <= longest {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?}, which is no name in Kubernetes (lower-case letters, digits, dashes and dots)"))
}

/// A DNS subdomain (RFC 1123), as Kubernetes requires of names: labels of letters, digits and inner dashes.
fn is_kubernetes_name(text: &str) -> bool {
    text.split('.').all(|label| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_read_as_runtimes_write_it() {
        // containerd 1.6's.
        let arguments = "K8S_POD_INFRA_CONTAINER_ID=ab12;K8S_POD_UID=6e6f;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;\
                         K8S_POD_NAME=web-0.x";
        let pod = PodName::in_arguments(arguments).unwrap().unwrap();
        assert_eq!((pod.namespace(), pod.name()), ("shop", "web-0.x"));
        assert_eq!(pod.to_string(), "shop/web-0.x");
    }

    #[test]
    fn without_a_namespace_or_a_name_there_is_no_pod() {
        for arguments in [
            "",
            "IgnoreUnknown=true",
            "IgnoreUnknown=TRUE;FOO=bar",
            "K8S_POD_NAMESPACE=a",
            "K8S_POD_NAME=b",
            "K8S_POD_NAMESPACE=;K8S_POD_NAME=b",
        ] {
            assert_eq!(PodName::in_arguments(arguments), Ok(None), "{arguments}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, words) in [
            ("nonsense", "\"nonsense\""),
            ("K8S_POD_NAME=a;", "\"\""),
            ("K8S_POD_NAME=a=b", "\"K8S_POD_NAME=a=b\""),
            ("FOO=bar", "[\"FOO\"]"),
            ("FOO=bar;IgnoreUnknown=false", "[\"FOO\"]"),
            ("IgnoreUnknown=maybe", "IgnoreUnknown"),
            ("K8S_POD_NAMESPACE=a;K8S_POD_NAME=../../secrets/x", "\"../../secrets/x\""),
            ("K8S_POD_NAMESPACE=a;K8S_POD_NAME=b?x", "\"b?x\""),
            ("K8S_POD_NAMESPACE=A;K8S_POD_NAME=b", "\"A\""),
            ("K8S_POD_NAMESPACE=a;K8S_POD_NAME=-b", "\"-b\""),
            ("K8S_POD_NAMESPACE=a..b;K8S_POD_NAME=b", "\"a..b\""),
        ] {
            let error = PodName::in_arguments(arguments).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
        let long = format!("K8S_POD_NAMESPACE={};K8S_POD_NAME=b", "a".repeat(64));
        assert!(PodName::in_arguments(&long).is_err());
        assert_eq!(
            PodName::new("shop", "web-0"),
            Ok(PodName::in_arguments("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0").unwrap().unwrap())
        );
        for (namespace, name) in [("", "b"), ("a", ""), ("A", "b"), ("a", "../b"), (&"a".repeat(64), "b")] {
            assert!(PodName::new(namespace, name).unwrap_err().contains("no name in Kubernetes"));
        }
    }
}
