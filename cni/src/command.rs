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
        let pod =
            PodName::in_arguments(&arguments).map_err(|reason| Error::Environment { variable: "CNI_ARGS", reason })?;
        Ok(Self { id, netns, pod })
    }
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
