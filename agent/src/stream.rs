//! Reads lists and watches of the API server's as they come, and keeps none of them: however long an answer is, no more
//! of it is in memory than what counts of one object.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use pod::wrong_in_json;
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Error;

/// How many characters of the API server's own words are shown.
const LONGEST_MESSAGE: usize = 300;

/// What counts of an object.
pub trait Object: DeserializeOwned {
    /// Which version of it this is: its resourceVersion.
    fn version(&self) -> &str;
}

/// Nobody takes objects any more.
#[derive(Debug)]
pub struct Unheard;

/// Reads a list, and hands over each object as it is read.
///
/// # Errors
/// What was read is no list, or not a whole one, or the objects were not taken.
pub fn read_list<T: Object>(from: impl Read, mut take: impl FnMut(T) -> Result<(), Unheard>) -> Result<String, Error> {
    let mut json = serde_json::Deserializer::from_reader(from);
    let items = Items { take: &mut take, object: PhantomData };
    let version = List(items).deserialize(&mut json)?;
    json.end()?;
    Ok(version)
}

/// What went wrong, in words that hold nothing of the answer: there may be secrets in it.
pub fn words(error: &Error) -> String {
    if error.is_io() {
        return error.to_string();
    }
    format!("the API server's answer makes no sense: {}", wrong_in_json(error))
}

/// What happened to an object.
#[derive(Debug)]
pub enum Change<T> {
    /// It is new, or not what it was.
    Changed(T),
    /// It is gone, or none of those that were asked for any more.
    Gone(T),
}

/// Why a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It was time.
    Over,
    /// The server doesn't know any more what happened since the version that was asked for.
    Expired,
    /// This went wrong.
    Failed(String),
}

/// Reads a watch to its end, and hands over each change as it is read. The version is that of the last one.
pub fn read_changes<T: Object>(
    from: impl Read,
    version: &mut String,
    mut take: impl FnMut(Change<T>) -> Result<(), Unheard>,
) -> End {
    for line in serde_json::Deserializer::from_reader(from).into_iter::<Line<T>>() {
        let change = match line {
            Ok(Line::Change(change)) => change,
            Ok(Line::Bookmark(object)) => {
                version.clear();
                version.push_str(object.version());
                continue;
            }
            Ok(Line::Error(Status { code: 410, .. })) => return End::Expired,
            Ok(Line::Error(Status { code, message })) => {
                let message: String = message.chars().take(LONGEST_MESSAGE).collect();
                return End::Failed(format!("{code}: {message}"));
            }
            Err(error) => return End::Failed(words(&error)),
        };
        let (Change::Changed(object) | Change::Gone(object)) = &change;
        version.clear();
        version.push_str(object.version());
        if take(change).is_err() {
            return End::Over;
        }
    }
    End::Over
}

/// A line of a watch.
enum Line<T> {
    Change(Change<T>),
    /// Nothing happened up to the version of this object, which has nothing else.
    Bookmark(T),
    Error(Status),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

impl<'de, T: Object> Deserialize<'de> for Line<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);

        impl<'de, T: Object> Visitor<'de> for Read<T> {
            type Value = Line<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a line of a watch")
            }

            /// The type comes first, as Go writes `WatchEvent` (meta/v1/watch.go in apimachinery): the object would have
            /// to be kept until it is known.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line<T>, A::Error> {
                if map.next_key::<String>()?.as_deref() != Some("type") {
                    return Err(A::Error::missing_field("type"));
                }
                let kind = map.next_value::<String>()?;
                if map.next_key::<String>()?.as_deref() != Some("object") {
                    return Err(A::Error::missing_field("object"));
                }
                let line = match kind.as_str() {
                    "ADDED" | "MODIFIED" => Line::Change(Change::Changed(map.next_value()?)),
                    "DELETED" => Line::Change(Change::Gone(map.next_value()?)),
                    "BOOKMARK" => Line::Bookmark(map.next_value()?),
                    "ERROR" => Line::Error(map.next_value()?),
                    _ => {
                        return Err(A::Error::unknown_variant(
                            &kind,
                            &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"],
                        ));
                    }
                };
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(line)
            }
        }

        deserializer.deserialize_map(Read(PhantomData))
    }
}

/// A list, of which only the version stays.
struct List<I>(I);

impl<'de, I: DeserializeSeed<'de, Value = ()>> DeserializeSeed<'de> for List<I> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, I: DeserializeSeed<'de, Value = ()>> Visitor<'de> for List<I> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            resource_version: String,
        }

        let (mut version, mut items) = (None, Some(self.0));
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => version = Some(map.next_value::<Metadata>()?.resource_version),
                "items" => {
                    let items = items.take().ok_or_else(|| A::Error::duplicate_field("items"))?;
                    map.next_value_seed(items)?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if items.is_some() {
            return Err(A::Error::missing_field("items"));
        }
        version.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

/// Its objects, each handed over.
struct Items<'a, T, F> {
    take: &'a mut F,
    object: PhantomData<T>,
}

impl<'de, T: Object, F: FnMut(T) -> Result<(), Unheard>> DeserializeSeed<'de> for Items<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Go's null is an empty list.
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Object, F: FnMut(T) -> Result<(), Unheard>> Visitor<'de> for Items<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut objects: A) -> Result<(), A::Error> {
        while let Some(object) = objects.next_element()? {
            (self.take)(object).map_err(|Unheard| A::Error::custom("nobody takes objects any more"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::Meshed;

    fn pod(name: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": version}, "spec": {"containers": []}, "status": {"phase": "Running"}})
    }

    fn line(kind: &str, object: &Value) -> String {
        format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
    }

    fn listed(text: &str) -> Result<(String, Vec<String>), Error> {
        let mut names = Vec::new();
        let version = read_list(text.as_bytes(), |pod: Meshed| {
            names.push(pod.metadata.name.clone());
            Ok(())
        })?;
        Ok((version, names))
    }

    fn watched(text: &str) -> (End, String, Vec<String>) {
        let (mut version, mut names) = ("1".to_owned(), Vec::new());
        let end = read_changes(text.as_bytes(), &mut version, |change: Change<Meshed>| {
            names.push(match change {
                Change::Changed(pod) => pod.metadata.name.clone(),
                Change::Gone(pod) => format!("no {}", pod.metadata.name),
            });
            Ok(())
        });
        (end, version, names)
    }

    #[test]
    fn a_list_is_its_pods_and_its_version_in_whatever_order() {
        let (metadata, items) = (json!({"resourceVersion": "7"}), json!([pod("a", "1"), pod("b", "2")]));
        let expected = ("7".to_owned(), vec!["a".to_owned(), "b".to_owned()]);
        for text in [
            format!(r#"{{"kind": "PodList", "metadata": {metadata}, "items": {items}}}"#),
            format!(r#"{{"items": {items}, "metadata": {metadata}}}"#),
        ] {
            assert_eq!(listed(&text).unwrap(), expected);
        }
        let none = ("7".to_owned(), vec![]);
        assert_eq!(listed(&format!(r#"{{"metadata": {metadata}, "items": null}}"#)).unwrap(), none);
    }

    #[test]
    fn what_is_no_whole_list_is_an_error() {
        let whole = format!(r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{}]}}"#, pod("a", "1"));
        for length in 0..whole.len() {
            assert!(listed(&whole[..length]).is_err(), "{}", &whole[..length]);
        }
        for text in
            ["[]", r#"{"items": []}"#, r#"{"metadata": {"resourceVersion": "7"}}"#, r#"{"metadata": {}, "items": []}"#]
        {
            assert!(listed(text).is_err(), "{text}");
        }
        assert!(listed(&format!("{whole} {whole}")).is_err());
        let unheard = read_list(whole.as_bytes(), |_: Meshed| Err(Unheard));
        assert!(unheard.is_err());
    }

    #[test]
    fn a_watch_is_its_changes_and_the_last_version() {
        let text = [
            line("ADDED", &pod("a", "2")),
            line("MODIFIED", &pod("a", "3")),
            line("DELETED", &pod("a", "5")),
            line(
                "BOOKMARK",
                &json!({"metadata": {"resourceVersion": "9"}, "spec": {"containers": null}, "status": {}}),
            ),
        ];
        let names = ["a", "a", "no a"].map(str::to_owned).to_vec();
        assert_eq!(watched(&text.concat()), (End::Over, "9".to_owned(), names));
        assert_eq!(watched(""), (End::Over, "1".to_owned(), vec![]));
        // What was there before it broke off counts.
        let half = format!("{}{}", text[0], &text[1][..30]);
        let (end, version, names) = watched(&half);
        assert!(matches!(end, End::Failed(_)), "{end:?}");
        assert_eq!((version.as_str(), names), ("2", vec!["a".to_owned()]));
    }

    #[test]
    fn a_watch_that_fails_says_why() {
        let failed = |code: u16| {
            let status = json!({"kind": "Status", "metadata": {}, "status": "Failure", "message": "x".repeat(1000), "code": code});
            watched(&line("ERROR", &status)).0
        };
        assert_eq!(failed(410), End::Expired);
        assert_eq!(failed(500), End::Failed(format!("500: {}", "x".repeat(LONGEST_MESSAGE))));
        for text in [
            line("RENAMED", &pod("a", "2")),
            line("ADDED", &json!({"metadata": {}, "status": "a secret"})),
            r#"{"object": {}, "type": "ADDED"}"#.to_owned(),
            r#"{"type": "ADDED"}"#.to_owned(),
            "[]".to_owned(),
        ] {
            let (end, _, names) = watched(&text);
            let End::Failed(reason) = end else { panic!("{text}: {end:?}") };
            assert!(reason.contains("makes no sense") && !reason.contains("secret"), "{reason}");
            assert!(names.is_empty());
        }
    }
}
