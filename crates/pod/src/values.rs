//! The values of annotations and of the plugin's configuration, each read as the flag of its setting is.

use std::str::FromStr;

use proxy_init::{InvalidValue, ModeChoice, OwnerId};
use serde::Deserialize;

/// A user or group; 0 and negative numbers stand for none, as upstream has it (`ProxyUID > 0` in pkg/iptables/iptables.go).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner(pub(crate) Option<OwnerId>);

impl FromStr for Owner {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let digits = text.strip_prefix('-').unwrap_or_default();
        let is_negative = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if text == "0" || is_negative {
            return Ok(Self(None));
        }
        text.parse().map(|id| Self(Some(id)))
    }
}

/// The items of a list. Blanks around items are ignored, and so are empty items.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String", bound = "T: FromStr<Err = InvalidValue>")]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T: FromStr<Err = InvalidValue>> FromStr for List<T> {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl<T: FromStr<Err = InvalidValue>> TryFrom<String> for List<T> {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

/// A JSON number, checked as the flag's text is.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "i64", bound = "T: FromStr<Err = InvalidValue>")]
pub(crate) struct Number<T>(pub(crate) T);

impl<T: FromStr<Err = InvalidValue>> TryFrom<i64> for Number<T> {
    type Error = InvalidValue;

    fn try_from(number: i64) -> Result<Self, InvalidValue> {
        number.to_string().parse().map(Self)
    }
}

/// A mode by its name, as `--iptables-mode` takes it. An empty one is none.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Mode(pub(crate) ModeChoice);

impl TryFrom<String> for Mode {
    type Error = InvalidValue;

    fn try_from(name: String) -> Result<Self, InvalidValue> {
        match name.trim() {
            "" => Ok(Self(ModeChoice::Default)),
            name => ModeChoice::from_name(name).map(Self).ok_or_else(|| InvalidValue::ModeChoice(name.to_owned())),
        }
    }
}
