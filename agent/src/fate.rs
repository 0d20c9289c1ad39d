//! Whether the plugin goes with the agent, when that is told to end.
//!
//! In doubt it stays: pods then go on getting their rules, and another agent may follow within seconds. It goes only if
//! the API server has said for certain that none will. A refusal isn't that, nor is an answer that isn't about the
//! agent's own objects.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::pending;
use std::time::Duration;

use ::pod::Metadata;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Status;
use kube::{Api, Error, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::debug;

use crate::api::{self, Server};
use crate::follow::{News, Which, follow};
use crate::stream::Object;

/// How long all answers together may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What becomes of the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Another agent follows.
    Wanted,
    /// None does, and this is how that shows.
    Unwanted(String),
    /// Neither is certain, and this is why.
    Unknown(String),
}

/// A namespace, as far as it is watched.
#[derive(Deserialize)]
struct Watched {
    metadata: Metadata,
}

impl Object for Watched {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The agent's own objects.
pub struct Own<'a> {
    server: &'a Server,
    namespace_ends: Cell<bool>,
}

impl<'a> Own<'a> {
    /// As this API server has them.
    pub fn new(server: &'a Server) -> Self {
        Self { server, namespace_ends: Cell::new(false) }
    }

    /// Watches the agent's namespace. Whoever deletes it may delete the agent's account and role a moment later, as
    /// `kubectl delete --kustomize` does, and then nothing can be asked any more. A watch that there is goes on.
    pub async fn watch(&self) -> Infallible {
        let name = &self.server.namespace;
        let which = Which { path: "/api/v1/namespaces", label: None, fields: format!("metadata.name={name}") };
        let mut news = follow(self.server.client.clone(), which);
        while let Some(news) = news.recv().await {
            match news {
                // Another one of the same name may follow, or the first word came from a server that was behind.
                News::Listed(Watched { metadata }) | News::Changed(Watched { metadata }) => {
                    if metadata.name == *name {
                        self.namespace_ends.set(metadata.is_going());
                    }
                }
                News::Gone(Watched { metadata }) if metadata.name == *name => self.namespace_ends.set(true),
                News::Gone(_) | News::Begins => {}
                News::Complete => debug!("its namespace is watched"),
                News::Failed(reason) => debug!("its namespace cannot be watched: {reason}"),
            }
        }
        pending().await
    }

    /// What becomes of the plugin, as far as can be found out within some seconds. The watch has to go on meanwhile.
    pub async fn fate(&self) -> Fate {
        let asked = timeout(PATIENCE, self.fetch_fate()).await;
        if self.namespace_ends.get() {
            return Fate::Unwanted("its namespace is being deleted".to_owned());
        }
        match asked {
            Ok(Ok(fate)) => fate,
            Ok(Err(reason)) => Fate::Unknown(reason),
            Err(_) => Fate::Unknown(format!("the API server did not answer within {} s", PATIENCE.as_secs())),
        }
    }

    async fn fetch_fate(&self) -> Result<Fate, String> {
        let Server { client, namespace, pod } = self.server;
        let unwanted = |reason: &str| Ok(Fate::Unwanted(reason.to_owned()));
        // Where the role allows to ask about the one alone, the other may still tell.
        match get::<Namespace>(Api::all(client.clone()), namespace).await {
            Ok(None) => return unwanted("its namespace is gone"),
            // Newer than all that the watch has told: this may be another one of the same name.
            Ok(Some(namespace)) => {
                self.namespace_ends.set(namespace.metadata.deletion_timestamp.is_some());
            }
            Err(_) => {}
        }
        let pod = get::<Pod>(Api::namespaced(client.clone(), namespace), pod).await?;
        // The set is there, for all that is known, or its pods would be going, too.
        let pod = pod.ok_or("the API server doesn't know the agent's pod")?;
        let owners = pod.metadata.owner_references.unwrap_or_default();
        // Others have a kind of this name too, such as OpenKruise's.
        let owner = owners.into_iter().find(|owner| {
            owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/") && owner.controller == Some(true)
        });
        let owner = owner.ok_or("no DaemonSet of Kubernetes has made the agent's pod")?;
        // One of the same name that is another one is there to stay, too.
        let set = get::<DaemonSet>(Api::namespaced(client.clone(), namespace), &owner.name).await?;
        let Some(set) = set else {
            return unwanted("its DaemonSet is gone");
        };
        if set.metadata.deletion_timestamp.is_some() {
            return unwanted("its DaemonSet is being deleted");
        }
        let node = pod.spec.and_then(|pod| pod.node_name);
        let node = node.ok_or("the agent's pod names no node")?;
        let node = get::<Node>(Api::all(client.clone()), &node).await?;
        let node = node.ok_or("the API server doesn't know the agent's node")?;
        let pods = set.spec.template.spec;
        let pods = pods.ok_or("the agent's DaemonSet doesn't say what its pods are")?;
        Ok(excluded(&pods, &node.metadata).map_or(Fate::Wanted, Fate::Unwanted))
    }
}

fn is_of(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.name.as_deref() == Some(name)
}

/// An object; none if the API server says for certain that there is no such one.
async fn get<K>(api: Api<K>, name: &str) -> Result<Option<K>, String>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let kind = K::plural(&());
    match api.get(name).await {
        Ok(object) if is_of(object.meta(), name) => Ok(Some(object)),
        Ok(_) => Err(format!("{kind} {name}: the answer is about something else")),
        Err(Error::Api(status)) if is_gone(&status, &K::group(&()), &kind, name) => Ok(None),
        Err(Error::Api(status)) => Err(format!("{kind} {name}: {} {}", status.code, status.reason)),
        Err(error) => Err(format!("{kind} {name}: {}", api::words(&error))),
    }
}

/// Whether that is the API server's word that it has no such object (`NewNotFound` in
/// apimachinery/pkg/api/errors/errors.go). For a path that it doesn't serve, it names none, and a proxy's 404 is no
/// `Status` at all.
fn is_gone(status: &Status, group: &str, kind: &str, name: &str) -> bool {
    let is_about_it = status.details.as_ref().is_some_and(|details| {
        (details.group.as_str(), details.kind.as_str(), details.name.as_str()) == (group, kind, name)
    });
    status.code == 404 && status.reason == "NotFound" && is_about_it
}

/// Why a DaemonSet makes none of its pods for a node, as its controller decides (`NodeShouldRunDaemonPod` in
/// kubernetes/pkg/controller/daemon/daemon_controller.go); none if it makes one, or if that isn't certain.
///
/// Taints don't count: they come and go with a node's troubles.
fn excluded(pods: &PodSpec, node: &ObjectMeta) -> Option<String> {
    let name = node.name.as_deref()?;
    if let Some(only) = pods.node_name.as_deref().filter(|only| !only.is_empty() && *only != name) {
        return Some(format!("its DaemonSet is for node {only} alone"));
    }
    // Each node has some, of kubelet's: an answer without any isn't a whole one.
    let labels = node.labels.as_ref().filter(|labels| !labels.is_empty())?;
    for (key, value) in pods.node_selector.iter().flatten() {
        if labels.get(key) != Some(value) {
            return Some(format!("its DaemonSet wants nodes with {key}={value}, which this one isn't"));
        }
    }
    let affinity = pods.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let terms = &required.node_selector_terms;
    let is_excluded = !terms.is_empty() && terms.iter().all(|term| misses(term, name, labels));
    is_excluded.then(|| "its DaemonSet's node affinity is to others than this node".to_owned())
}

/// Whether a term of a node affinity certainly doesn't match a node: one of its requirements doesn't.
fn misses(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let by_labels = term.match_expressions.iter().flatten();
    let by_fields = term.match_fields.iter().flatten();
    by_labels.into_iter().any(|it| is_unmet(it, labels.get(&it.key).map(String::as_str)))
        || by_fields.into_iter().any(|it| it.key == "metadata.name" && is_unmet(it, Some(name)))
}

/// Whether a requirement certainly isn't met (`Requirement.Matches` in apimachinery/pkg/labels/selector.go).
fn is_unmet(requirement: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = found.is_some_and(|found| values.iter().any(|value| value == found));
    match requirement.operator.as_str() {
        "In" => !is_listed,
        "NotIn" => is_listed,
        "Exists" => found.is_none(),
        "DoesNotExist" => found.is_some(),
        "Gt" | "Lt" => {
            let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
            match (found, number(found), number(values.first().map(String::as_str))) {
                (None, ..) => true,
                (_, Some(found), Some(bound)) if requirement.operator == "Gt" => found <= bound,
                (_, Some(found), Some(bound)) => found >= bound,
                _ => false,
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> ObjectMeta {
        let labels = json!({"kubernetes.io/os": "linux", "cores": "8"});
        serde_json::from_value(json!({"name": "node-1", "labels": labels})).unwrap()
    }

    fn pods(spec: &Value) -> PodSpec {
        serde_json::from_value(spec.clone()).unwrap()
    }

    /// Whether pods with these terms in their affinity are certainly none for the node.
    fn excludes(terms: &Value) -> bool {
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        excluded(&pods(&json!({"containers": [], "affinity": {"nodeAffinity": required}})), &node()).is_some()
    }

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
    fn a_daemonset_without_conditions_or_with_those_that_are_met_is_for_the_node() {
        for spec in [
            json!({"containers": []}),
            json!({"containers": [], "nodeName": "node-1", "nodeSelector": {"cores": "8"}}),
            json!({"containers": [], "nodeName": ""}),
            json!({"containers": [], "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "cores", "operator": "DoesNotExist"}]}}]}}}),
        ] {
            assert_eq!(excluded(&pods(&spec), &node()), None, "{spec}");
        }
        for spec in [
            json!({"containers": [], "nodeName": "node-2"}),
            json!({"containers": [], "nodeSelector": {"kubernetes.io/os": "linux", "cores": "4"}}),
            json!({"containers": [], "nodeSelector": {"non-existing": ""}}),
        ] {
            assert!(excluded(&pods(&spec), &node()).is_some(), "{spec}");
        }
    }

    #[test]
    fn without_its_labels_nothing_is_known_of_a_node() {
        let spec = pods(&json!({"containers": [], "nodeSelector": {"non-existing": ""}}));
        for labels in [json!({}), Value::Null] {
            let node = serde_json::from_value(json!({"name": "node-1", "labels": labels})).unwrap();
            assert_eq!(excluded(&spec, &node), None);
        }
    }

    #[test]
    fn each_operator_is_as_kubernetes_has_it_and_others_exclude_nothing() {
        for (key, operator, values, is_excluded) in [
            ("cores", "In", &["4", "8"][..], false),
            ("cores", "In", &["4"], true),
            ("none", "In", &["4"], true),
            ("cores", "NotIn", &["4"], false),
            ("cores", "NotIn", &["8"], true),
            ("none", "NotIn", &["8"], false),
            ("cores", "Exists", &[], false),
            ("none", "Exists", &[], true),
            ("cores", "DoesNotExist", &[], true),
            ("none", "DoesNotExist", &[], false),
            ("cores", "Gt", &["7"], false),
            ("cores", "Gt", &["8"], true),
            ("cores", "Lt", &["9"], false),
            ("cores", "Lt", &["8"], true),
            ("none", "Gt", &["7"], true),
            ("kubernetes.io/os", "Gt", &["7"], false),
            ("cores", "Lt", &["many"], false),
            ("cores", "Matches", &["4"], false),
        ] {
            let one = json!({"key": key, "operator": operator, "values": values});
            assert_eq!(excludes(&json!([{"matchExpressions": [one]}])), is_excluded, "{one}");
            // A term is all of its requirements, and one term is enough.
            let met = json!({"key": "cores", "operator": "Exists"});
            assert_eq!(excludes(&json!([{"matchExpressions": [met, one]}])), is_excluded, "{one}");
            assert!(!excludes(&json!([{"matchExpressions": [one]}, {"matchExpressions": [met]}])), "{one}");
        }
        let named = |operator: &str, name: &str| {
            let field = json!({"key": "metadata.name", "operator": operator, "values": [name]});
            excludes(&json!([{"matchFields": [field]}]))
        };
        assert!(!named("In", "node-1") && named("In", "node-2"));
        assert!(named("NotIn", "node-1") && !named("NotIn", "node-2"));
        let unknown_field = json!({"key": "metadata.uid", "operator": "In", "values": ["x"]});
        assert!(!excludes(&json!([{"matchFields": [unknown_field]}])));
        // What the API server refuses is not decided on.
        assert!(!excludes(&json!([])) && !excludes(&json!([{}])));
    }
}
