//! Reads what the API server says of pods as it comes, and keeps none of it: however long an answer is, no more of it is
//! in memory than one pod, of which [`Meshed`] has what counts.

use std::fmt;
use std::io::Read;

use linkerd_cni::error::wrong_in_json;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Error;

use crate::pod::{Meshed, Metadata, Spec, Status};

/// How many characters of the API server's own words are shown.
const LONGEST_MESSAGE: usize = 300;

/// Nobody takes pods any more.
#[derive(Debug)]
pub struct Unheard;

/// Reads a list, and hands over each pod as it is read.
///
/// # Errors
/// What was read is no list of pods, or not a whole one, or the pods were not taken.
pub fn read_list(from: impl Read, take: impl FnMut(Meshed) -> Result<(), Unheard>) -> Result<String, Error> {
    let mut json = serde_json::Deserializer::from_reader(from);
    let version = List(take).deserialize(&mut json)?;
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

/// What happened to a pod.
#[derive(Debug)]
pub enum Change {
    /// It is new, or not what it was.
    Changed(Meshed),
    /// It is gone, or none of those that were asked for any more.
    Gone(Meshed),
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
pub fn read_changes(from: impl Read, version: &mut String, mut take: impl FnMut(Change) -> Result<(), Unheard>) -> End {
    for line in serde_json::Deserializer::from_reader(from).into_iter::<Line>() {
        let Line { kind, object } = match line {
            Ok(line) => line,
            Err(error) => return End::Failed(words(&error)),
        };
        if kind == "ERROR" {
            let Object { code, message, .. } = object;
            let message: String = message.chars().take(LONGEST_MESSAGE).collect();
            return match code {
                410 => End::Expired,
                _ => End::Failed(format!("{code}: {message}")),
            };
        }
        let Object {
            metadata, spec, status, ..
        } = object;
        version.clone_from(&metadata.resource_version);
        let ObjectStatus::OfPod(status) = status else {
            return End::Failed(format!("{kind} of something that is no pod"));
        };
        let pod = Meshed { metadata, spec, status };
        let taken = match kind.as_str() {
            "ADDED" | "MODIFIED" => take(Change::Changed(pod)),
            "DELETED" => take(Change::Gone(pod)),
            // BOOKMARK: nothing happened up to this version.
            _ => Ok(()),
        };
        if taken.is_err() {
            return End::Over;
        }
    }
    End::Over
}

/// One line of a watch.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

/// A pod, or a Status that says what went wrong: which of the two isn't known before it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Spec,
    status: ObjectStatus,
    code: u16,
    message: String,
}

/// An object with a pod's status, or one word.
enum ObjectStatus {
    OfPod(Status),
    Word,
}

impl Default for ObjectStatus {
    fn default() -> Self {
        Self::OfPod(Status::default())
    }
}

impl<'de> Deserialize<'de> for ObjectStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = ObjectStatus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status")
            }

            fn visit_str<E>(self, _: &str) -> Result<ObjectStatus, E> {
                Ok(ObjectStatus::Word)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ObjectStatus, A::Error> {
                Status::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(ObjectStatus::OfPod)
            }
        }

        deserializer.deserialize_any(Read)
    }
}

/// A list, whose pods are handed over; its version is what stays.
struct List<F>(F);

impl<'de, F: FnMut(Meshed) -> Result<(), Unheard>> DeserializeSeed<'de> for List<F> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Meshed) -> Result<(), Unheard>> Visitor<'de> for List<F> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of pods")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<String, A::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ListMetadata {
            resource_version: String,
        }

        let (mut version, mut has_items) = (None, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => version = Some(map.next_value::<ListMetadata>()?.resource_version),
                "items" => {
                    has_items = true;
                    map.next_value_seed(Items(&mut self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if !has_items {
            return Err(A::Error::missing_field("items"));
        }
        version.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

struct Items<'a, F>(&'a mut F);

impl<'de, F: FnMut(Meshed) -> Result<(), Unheard>> DeserializeSeed<'de> for Items<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Go's null is an empty list.
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Meshed) -> Result<(), Unheard>> Visitor<'de> for Items<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pods")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pods: A) -> Result<(), A::Error> {
        while let Some(pod) = pods.next_element()? {
            (self.0)(pod).map_err(|Unheard| A::Error::custom("nobody takes pods any more"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": version}, "spec": {"containers": []}, "status": {"phase": "Running"}})
    }

    fn listed(text: &str) -> Result<(String, Vec<String>), Error> {
        let mut names = Vec::new();
        let version = read_list(text.as_bytes(), |pod| {
            names.push(pod.metadata.name);
            Ok(())
        })?;
        Ok((version, names))
    }

    fn watched(text: &str) -> (End, String, Vec<String>) {
        let (mut version, mut names) = ("1".to_owned(), Vec::new());
        let end = read_changes(text.as_bytes(), &mut version, |change| {
            names.push(match change {
                Change::Changed(pod) => pod.metadata.name,
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
        assert_eq!(
            listed(&format!(r#"{{"metadata": {metadata}, "items": null}}"#)).unwrap(),
            none
        );
    }

    #[test]
    fn what_is_no_whole_list_is_an_error() {
        let whole = format!(
            r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{}]}}"#,
            pod("a", "1")
        );
        for length in 0..whole.len() {
            assert!(listed(&whole[..length]).is_err(), "{}", &whole[..length]);
        }
        for text in [
            "[]",
            r#"{"items": []}"#,
            r#"{"metadata": {"resourceVersion": "7"}}"#,
            r#"{"metadata": {}, "items": []}"#,
        ] {
            assert!(listed(text).is_err(), "{text}");
        }
        assert!(listed(&format!("{whole} {whole}")).is_err());
        let unheard = read_list(whole.as_bytes(), |_| Err(Unheard));
        assert!(unheard.is_err());
    }

    #[test]
    fn a_watch_is_its_changes_and_the_last_version() {
        let line = |kind: &str, object: Value| format!("{}\n", json!({"type": kind, "object": object}));
        let text = [
            line("ADDED", pod("a", "2")),
            line("MODIFIED", pod("a", "3")),
            line("DELETED", pod("a", "5")),
            line(
                "BOOKMARK",
                json!({"kind": "Pod", "metadata": {"resourceVersion": "9"}, "spec": {"containers": null}, "status": {}}),
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
            watched(&json!({"object": status, "type": "ERROR"}).to_string()).0
        };
        assert_eq!(failed(410), End::Expired);
        assert_eq!(
            failed(500),
            End::Failed(format!("500: {}", "x".repeat(LONGEST_MESSAGE)))
        );
        let word = json!({"type": "ADDED", "object": {"metadata": {}, "status": "Success"}});
        assert_eq!(
            watched(&word.to_string()).0,
            End::Failed("ADDED of something that is no pod".to_owned())
        );
    }
}
