//! Values of the plugin's configuration that are no settings of rules, read as flags are.

use std::str::FromStr;

use proxy_init::{InvalidValue, ModeChoice, list_items};
use serde::Deserialize;

/// The items of a list. Blanks around items are ignored, and so are empty items.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String", bound = "T: FromStr<Err = InvalidValue>")]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T: FromStr<Err = InvalidValue>> FromStr for List<T> {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        list_items(text).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl<T: FromStr<Err = InvalidValue>> TryFrom<String> for List<T> {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
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
