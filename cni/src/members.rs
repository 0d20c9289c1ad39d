//! The members of a JSON object as they are written: other programs' keys keep their order, and their numbers their form.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;

/// The members of an object in their order: each key, and the text of its value.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(String, Cow<'a, str>)>);

impl Members<'_> {
    /// The value of a key; as for most readers, the last one.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_ref())
    }

    /// Replaces the value of a key, or adds the key at the end.
    pub(crate) fn set(&mut self, key: &str, value: String) {
        match self.0.iter_mut().rev().find(|(name, _)| name == key) {
            Some(member) => member.1 = value.into(),
            None => self.0.push((key.to_owned(), value.into())),
        }
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }

    /// The object, in a line.
    pub(crate) fn text(&self) -> String {
        let members = self.0.iter().map(|(key, value)| format!("{}:{value}", json!(key)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    members.push((key, value.get().into()));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Read)
    }
}
