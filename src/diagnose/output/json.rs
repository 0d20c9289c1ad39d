//! JSON objects.

use serde_json::{Map, Value};

/// A list of these as text.
pub(in crate::diagnose) fn strings(list: &[impl ToString]) -> Value {
    list.iter().map(ToString::to_string).collect()
}

/// As `json!`, whose code is many times as large; so is that of collecting a map.
pub(in crate::diagnose) fn object(pairs: Vec<(&str, Value)>) -> Value {
    let mut map = Map::new();
    for (key, value) in pairs {
        map.insert(key.to_owned(), value);
    }
    Value::Object(map)
}
