//! The settings of rules in the plugin's configuration.

use std::fmt;

use proxy_init::{Draft, Form, SETTINGS, Setting, list_items};
use serde::de::{DeserializeSeed, Error, IntoDeserializer as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The members of an object that are no settings of rules. Those that are go to `rules` on the way.
pub(crate) struct WithoutSettings<'a, A> {
    map: A,
    rules: &'a mut Draft,
    /// The keys of settings so far.
    seen: Vec<&'static str>,
}

impl<'a, A> WithoutSettings<'a, A> {
    pub(crate) fn new(map: A, rules: &'a mut Draft) -> Self {
        Self { map, rules, seen: Vec::new() }
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for WithoutSettings<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key() == key) else {
                return seed.deserialize(key.into_deserializer()).map(Some);
            };
            if self.seen.contains(&setting.key()) {
                return Err(A::Error::duplicate_field(setting.key()));
            }
            self.seen.push(setting.key());
            self.map.next_value_seed(Value { setting, rules: self.rules })?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The value of a setting; `null` is none.
struct Value<'a> {
    setting: &'static Setting,
    rules: &'a mut Draft,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.setting.form {
            Form::Numbers | Form::Texts => deserializer.deserialize_seq(self),
            Form::Number | Form::Switch => Item { setting: self.setting, rules: self.rules }.deserialize(deserializer),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Item { setting: self.setting, rules: self.rules })?.is_some() {}
        Ok(())
    }
}

/// An item of a list, or the value of a setting that is none. An item without text doesn't count.
struct Item<'a> {
    setting: &'static Setting,
    rules: &'a mut Draft,
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let text = match self.setting.form {
            Form::Number | Form::Numbers => i64::deserialize(deserializer)?.to_string(),
            Form::Switch => bool::deserialize(deserializer)?.to_string(),
            Form::Texts => String::deserialize(deserializer)?,
        };
        if list_items(&text).next().is_none() {
            return Ok(());
        }
        self.setting.read(self.rules, &text).map_err(D::Error::custom)
    }
}
