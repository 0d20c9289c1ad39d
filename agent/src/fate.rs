//! Decides whether the plugin goes with the agent, when the agent is told to end.
//!
//! In doubt the plugin stays: pods then go on getting their rules, and another agent may follow within seconds. The plugin
//! goes only if the API server has said for certain that no agent follows. A refusal isn't that, nor is an answer that
//! isn't about the agent's own objects.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::GetParams;
use kube::core::{PartialObjectMeta, Request, Status};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Error, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tracing::debug;

use crate::api::{self, Server};

/// The time limit of all answers together.
const PATIENCE: Duration = Duration::from_secs(3);
/// Where objects of the core group are served.
const CORE: &str = "/api/v1";
/// The pause after a failure, before the agent asks again which DaemonSet has made its pod.
const PAUSE: Duration = Duration::from_secs(30);

/// The plugin's fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Another agent follows.
    Wanted,
    /// No agent follows, and this is how that shows.
    Unwanted(String),
    /// Neither is certain, and this is why.
    Unknown(String),
}

/// The agent's own objects, and which of them the watches saw being deleted.
pub(crate) struct Own<'a> {
    server: &'a Server,
    namespace_ends: Cell<bool>,
    set_ends: Cell<bool>,
}

impl<'a> Own<'a> {
    /// As this API server has them.
    pub(crate) fn new(server: &'a Server) -> Self {
        Self { server, namespace_ends: Cell::new(false), set_ends: Cell::new(false) }
    }

    /// Watches the agent's namespace and its DaemonSet. Whoever deletes one of them may delete the agent's account and
    /// role a moment later, as `kubectl delete --kustomize` and Helm do, and then nothing can be asked any more. A watch
    /// that has begun goes on.
    pub(crate) async fn watch(&self) -> Infallible {
        let (client, name) = (self.server.watching.clone(), &self.server.namespace);
        tokio::select! {
            never = self.watch_one("its namespace", Api::<PartialObjectMeta<Namespace>>::all(client), name, &self.namespace_ends) => never,
            never = self.watch_set() => never,
        }
    }

    async fn watch_set(&self) -> Infallible {
        let name = loop {
            match self.fetch_set_name().await {
                Ok((set, _)) => break set,
                Err(reason) => debug!("its DaemonSet is not known: {reason}"),
            }
            sleep(PAUSE).await;
        };
        let sets =
            Api::<PartialObjectMeta<DaemonSet>>::namespaced(self.server.watching.clone(), &self.server.namespace);
        self.watch_one("its DaemonSet", sets, &name, &self.set_ends).await
    }

    /// Watches the object with this name, and notes whether it is being deleted.
    async fn watch_one<K>(
        &self,
        what: &str,
        api: Api<PartialObjectMeta<K>>,
        name: &str,
        ends: &Cell<bool>,
    ) -> Infallible
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let which = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let is_meant = |object: &PartialObjectMeta<K>| object.metadata.name.as_deref() == Some(name);
        let take = |event| match event {
            // Another object of the same name may follow, or the first word came from a server that was behind.
            Event::InitApply(object) | Event::Apply(object) if is_meant(&object) => {
                ends.set(object.metadata.deletion_timestamp.is_some());
            }
            Event::Delete(object) if is_meant(&object) => ends.set(true),
            _ => {}
        };
        api::follow(api, which, what, take).await
    }

    /// Finds out the plugin's fate within some seconds. The watch has to go on meanwhile.
    pub(crate) async fn fate(&self) -> Fate {
        let asked = timeout(PATIENCE, self.fetch_fate()).await;
        if self.namespace_ends.get() {
            return Fate::Unwanted("its namespace is being deleted".to_owned());
        }
        if self.set_ends.get() {
            return Fate::Unwanted("its DaemonSet is being deleted".to_owned());
        }
        match asked {
            Ok(Ok(fate)) => fate,
            Ok(Err(reason)) => Fate::Unknown(reason),
            Err(_) => Fate::Unknown(format!("the API server did not answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// Asks about each of the agent's objects. An answer is newer than all that the watches have told: it may be about
    /// another object of the same name.
    async fn fetch_fate(&self) -> Result<Fate, String> {
        let unwanted = |reason: &str| Ok(Fate::Unwanted(reason.to_owned()));
        let Server { client, namespace, .. } = self.server;
        // Where the role allows to ask about the one alone, the other may still tell.
        match get(client, CORE, "namespaces", namespace).await {
            Ok(None) => return unwanted("its namespace is gone"),
            Ok(Some(namespace)) => self.namespace_ends.set(ends(&namespace)),
            Err(_) => {}
        }
        let (set, node) = self.fetch_set_name().await?;
        let apps = format!("/apis/apps/v1/namespaces/{namespace}");
        // One of the same name that is another one is there to stay, too.
        let Some(set) = get(client, &apps, "daemonsets", &set).await? else {
            return unwanted("its DaemonSet is gone");
        };
        self.set_ends.set(ends(&set));
        let node = node.ok_or("the agent's pod names no node")?;
        let node = get(client, CORE, "nodes", &node).await?.ok_or("the API server doesn't know the agent's node")?;
        let (selector, labels) = (set.pointer("/spec/template/spec/nodeSelector"), node.pointer("/metadata/labels"));
        let excluded = selector.zip(labels).and_then(|(selector, labels)| excluded(selector, labels));
        Ok(excluded.map_or(Fate::Wanted, Fate::Unwanted))
    }

    /// The name of the DaemonSet that has made the agent's pod, and the pod's node.
    async fn fetch_set_name(&self) -> Result<(String, Option<String>), String> {
        let Server { client, namespace, pod, .. } = self.server;
        let path = format!("{CORE}/namespaces/{namespace}");
        // The set is there, for all that is known, or its pods would be going, too.
        let pod = get(client, &path, "pods", pod).await?.ok_or("the API server doesn't know the agent's pod")?;
        // Others have a kind of this name too, such as OpenKruise's.
        let is_set = |owner: &&Value| {
            text(owner, "/apiVersion").is_some_and(|version| version.starts_with("apps/"))
                && text(owner, "/kind") == Some("DaemonSet")
                && owner.get("controller") == Some(&Value::Bool(true))
        };
        let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let name = owners.into_iter().flatten().find(is_set).and_then(|owner| text(owner, "/name"));
        let name = name.ok_or("no DaemonSet of Kubernetes has made the agent's pod")?;
        Ok((name.to_owned(), text(&pod, "/spec/nodeName").map(str::to_owned)))
    }
}

fn text<'a>(object: &'a Value, path: &str) -> Option<&'a str> {
    object.pointer(path)?.as_str()
}

/// Returns true if an object is being deleted.
fn ends(object: &Value) -> bool {
    text(object, "/metadata/deletionTimestamp").is_some()
}

/// An object of the kind that is served below a path; none if the API server says for certain that there is no such one.
async fn get(client: &Client, path: &str, kind: &str, name: &str) -> Result<Option<Value>, String> {
    let request = Request::new(format!("{path}/{kind}")).get(name, &GetParams::default());
    let request = request.map_err(|error| format!("{kind} {name}: {error}"))?;
    let group = path.strip_prefix("/apis/").and_then(|path| path.split('/').next()).unwrap_or_default();
    match client.request::<Value>(request).await {
        Ok(object) if text(&object, "/metadata/name") == Some(name) => Ok(Some(object)),
        Ok(_) => Err(format!("{kind} {name}: the answer is about something else")),
        Err(Error::Api(status)) if is_gone(&status, group, kind, name) => Ok(None),
        Err(Error::Api(status)) => Err(format!("{kind} {name}: {} {}", status.code, status.reason)),
        Err(error) => Err(format!("{kind} {name}: {}", api::words(&error))),
    }
}

/// Returns true if that is the API server's word that it has no such object (`NewNotFound` in
/// apimachinery/pkg/api/errors/errors.go). For a path that it doesn't serve, it names none, and a proxy's 404 is no
/// `Status` at all.
fn is_gone(status: &Status, group: &str, kind: &str, name: &str) -> bool {
    let is_about_it = status.details.as_ref().is_some_and(|details| {
        (details.group.as_str(), details.kind.as_str(), details.name.as_str()) == (group, kind, name)
    });
    status.code == 404 && status.reason == "NotFound" && is_about_it
}

/// The reason why a DaemonSet with this selector makes none of its pods for a node with these labels; none if that
/// isn't certain. Only its nodeSelector counts here, which is how a node is taken out of a set: taints, say, come and
/// go with a node's troubles.
fn excluded(selector: &Value, labels: &Value) -> Option<String> {
    // Each node has some labels, of kubelet's: an answer without any isn't a whole one.
    let labels = labels.as_object().filter(|labels| !labels.is_empty())?;
    let (key, value) = selector.as_object()?.iter().find(|(key, value)| labels.get(*key) != Some(value))?;
    Some(format!("its DaemonSet wants nodes with {key}={}, which this one isn't", value.as_str()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_words_of_the_api_server_about_that_object_say_that_it_is_gone() {
        let gone =
            json!({"code": 404, "reason": "NotFound", "details": {"group": "apps", "kind": "daemonsets", "name": "a"}});
        let is_gone = |status: &Value| {
            let status: Status = serde_json::from_value(status.clone()).unwrap();
            is_gone(&status, "apps", "daemonsets", "a")
        };
        assert!(is_gone(&gone));
        for (path, value) in [
            ("/code", json!(410)),
            ("/reason", json!("Failed to parse error data")),
            ("/details", json!({})),
            ("/details", Value::Null),
            ("/details/group", json!("")),
            ("/details/kind", json!("pods")),
            ("/details/name", json!("b")),
        ] {
            let mut other = gone.clone();
            *other.pointer_mut(path).unwrap() = value;
            assert!(!is_gone(&other), "{other}");
        }
    }

    #[test]
    fn a_node_is_excluded_by_a_label_that_it_lacks_if_its_labels_are_known() {
        let is_excluded = |selector: &Value, labels: &Value| excluded(selector, labels).is_some();
        let labels = json!({"kubernetes.io/os": "linux", "cores": "8"});
        assert!(!is_excluded(&json!({}), &labels));
        assert!(!is_excluded(&json!({"cores": "8"}), &labels));
        assert!(is_excluded(&json!({"kubernetes.io/os": "linux", "cores": "4"}), &labels));
        assert!(is_excluded(&json!({"non-existing": ""}), &labels));
        for unknown in [json!({}), Value::Null] {
            assert!(!is_excluded(&json!({"non-existing": ""}), &unknown));
        }
    }
}
