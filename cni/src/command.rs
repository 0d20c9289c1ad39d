//! The runtime's request, from the environment.

use std::ffi::OsString;
use std::path::PathBuf;

use pod::PodName;

use crate::error::Error;
use crate::verb::Verb;

/// Reads a variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The verb in `CNI_COMMAND`.
///
/// # Errors
/// [`Error::Environment`]: it is missing, or the specification knows no such verb.
pub fn verb(environment: Environment<'_>) -> Result<Verb, Error> {
    let text = required(environment, "CNI_COMMAND")?;
    let found = Verb::ALL.into_iter().find(|verb| verb.to_string() == text);
    found.ok_or_else(|| Error::Environment {
        variable: "CNI_COMMAND",
        reason: format!("is {text:?}, which is none of ADD, DEL, CHECK, GC, STATUS and VERSION"),
    })
}

/// The container that ADD and CHECK are about. `CNI_PATH`, which is for plugins that call others, is not needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// `CNI_CONTAINERID`
    pub id: String,
    /// `CNI_NETNS`
    pub netns: PathBuf,
    /// The pod in `CNI_ARGS`; none if the runtime names none, and so isn't Kubernetes'.
    pub pod: Option<PodName>,
}

impl Container {
    /// Reads it from the environment.
    ///
    /// # Errors
    /// [`Error::Environment`]: a variable that the specification requires is missing, or one is invalid.
    pub fn read(environment: Environment<'_>) -> Result<Self, Error> {
        let id = required(environment, "CNI_CONTAINERID")?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !id.bytes().all(is_plain) || !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            return Err(invalid(
                "CNI_CONTAINERID",
                &id,
                "a letter or digit, then letters, digits, dots, dashes and underscores, was expected",
            ));
        }
        let netns = required(environment, "CNI_NETNS")?.into();
        let interface = required(environment, "CNI_IFNAME")?;
        // The kernel's own rules: dev_valid_name, net/core/dev.c.
        if interface.len() > 15
            || [".", ".."].contains(&interface.as_str())
            || interface.contains(['/', ':'])
            || interface.contains(char::is_whitespace)
        {
            return Err(invalid(
                "CNI_IFNAME",
                &interface,
                "the name of an interface, of at most 15 bytes, was expected",
            ));
        }
        let arguments = text(environment, "CNI_ARGS")?.unwrap_or_default();
        let pod = pod_in(&arguments).map_err(|reason| Error::Environment { variable: "CNI_ARGS", reason })?;
        Ok(Self { id, netns, pod })
    }
}

/// The pod that `CNI_ARGS` name, such as `IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0`; none if they name none.
///
/// As in libcni's plugins (`LoadArgs`), keys that the plugin doesn't know are refused unless `IgnoreUnknown` is true.
///
/// # Errors
/// The fault in them.
pub(crate) fn pod_in(arguments: &str) -> Result<Option<PodName>, String> {
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
    PodName::new(namespace, name).map(Some).map_err(|reason| format!("names a pod, and {reason}"))
}

fn invalid(variable: &'static str, value: &str, reason: &str) -> Error {
    Error::Environment { variable, reason: format!("is {value:?}: {reason}") }
}

/// The value of a variable. An empty one is none, as libcni's plugins have it.
fn required(environment: Environment<'_>, variable: &'static str) -> Result<String, Error> {
    text(environment, variable)?
        .ok_or_else(|| Error::Environment { variable, reason: "is missing from the environment".to_owned() })
}

fn text(environment: Environment<'_>, variable: &'static str) -> Result<Option<String>, Error> {
    match environment(variable).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(Err(bytes)) => Err(Error::Environment { variable, reason: format!("is {bytes:?}, which is not UTF-8") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_read_as_runtimes_write_it() {
        // containerd 1.6's.
        let arguments = "K8S_POD_INFRA_CONTAINER_ID=ab12;K8S_POD_UID=6e6f;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;\
                         K8S_POD_NAME=web-0.x";
        let pod = pod_in(arguments).unwrap().unwrap();
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
            assert_eq!(pod_in(arguments), Ok(None), "{arguments}");
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
            let error = pod_in(arguments).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
        let long = format!("K8S_POD_NAMESPACE={};K8S_POD_NAME=b", "a".repeat(64));
        assert!(pod_in(&long).is_err());
        assert_eq!(
            PodName::new("shop", "web-0"),
            Ok(pod_in("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0").unwrap().unwrap())
        );
        for (namespace, name) in [("", "b"), ("a", ""), ("A", "b"), ("a", "../b"), (&"a".repeat(64), "b")] {
            assert!(PodName::new(namespace, name).unwrap_err().contains("no name in Kubernetes"));
        }
    }
}
