//! The parts of Kubernetes' objects that decide about rules, read from JSON without keeping the rest: an object is as long as
//! whoever may create it makes it.

use std::fmt;
use std::marker::PhantomData;

use proxy_init::PortRange;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::annotations::Given;

/// An object with this spec and this status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, bound = "S: Default + Deserialize<'de>, T: Default + Deserialize<'de>")]
#[allow(missing_docs, reason = "the API of Kubernetes says what each field is")]
pub struct Object<S = IgnoredAny, T = IgnoredAny> {
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: S,
    #[serde(deserialize_with = "or_default")]
    pub status: T,
}

/// A pod, with as much of its status as the reader needs.
pub type Pod<T = IgnoredAny> = Object<PodSpec, T>;

impl<T> Pod<T> {
    /// Checks that this is a pod at all. Kubernetes has no pod without containers and no container without a name; such a pod
    /// would be taken for one without a proxy.
    ///
    /// # Errors
    /// The part that is missing.
    pub fn check(&self) -> Result<(), &'static str> {
        if !self.spec.containers.is_any {
            return Err("the pod has no containers");
        }
        if self.spec.containers.is_one_unnamed {
            return Err("the pod has a container without a name");
        }
        Ok(())
    }

    /// The pod's proxy.
    ///
    /// # Errors
    /// Nothing failed: the pod stays as it is, for this reason.
    pub fn proxy(&self) -> Result<Proxy, &'static str> {
        if self.spec.init_containers.has_init {
            return Err("the pod has an init container linkerd-init");
        }
        // A native sidecar is among the init containers.
        let proxy = self.spec.containers.proxy.or(self.spec.init_containers.proxy);
        proxy.ok_or("the pod has no container linkerd-proxy")
    }

    /// Returns true if the pod is one of Linkerd's control plane.
    pub fn is_control_plane(&self) -> bool {
        !self.metadata.labels.control_plane_component.is_empty()
    }
}

/// The names of an object, and the notes on it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the API of Kubernetes says what each field is")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub deletion_timestamp: Option<IgnoredAny>,
    /// The annotations that count.
    #[serde(deserialize_with = "or_default")]
    pub annotations: Given,
    /// The labels that count.
    #[serde(deserialize_with = "or_default")]
    pub labels: Labels,
}

/// The labels of a pod that count.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// The pod's part in Linkerd's control plane; empty if the pod has none.
    #[serde(rename = "linkerd.io/control-plane-component")]
    pub control_plane_component: String,
}

/// The desired state of a pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the API of Kubernetes says what each field is")]
pub struct PodSpec {
    pub host_network: bool,
    /// True if the pod has the node's users; none means the same.
    pub host_users: Option<bool>,
    #[serde(deserialize_with = "gather")]
    pub containers: Containers,
    /// The containers that run before those, or beside them as native sidecars.
    #[serde(deserialize_with = "gather")]
    pub init_containers: Containers,
}

/// The facts that count about several containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Containers {
    /// True if there is a container.
    pub is_any: bool,
    /// True if a container has no name.
    pub is_one_unnamed: bool,
    /// True if a container is linkerd-init.
    pub has_init: bool,
    /// The one that is linkerd-proxy.
    pub proxy: Option<Proxy>,
}

/// The container linkerd-proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proxy {
    /// The user that it runs as, where its own spec says so.
    pub user: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    #[serde(deserialize_with = "or_default")]
    security_context: SecurityContext,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SecurityContext {
    run_as_user: Option<i64>,
}

impl Extend<Container> for Containers {
    fn extend<I: IntoIterator<Item = Container>>(&mut self, containers: I) {
        for container in containers {
            self.is_any = true;
            match container.name.as_str() {
                "" => self.is_one_unnamed = true,
                "linkerd-init" => self.has_init = true,
                "linkerd-proxy" => self.proxy = Some(Proxy { user: container.security_context.run_as_user }),
                _ => {}
            }
        }
    }
}

/// The desired state of a service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    #[serde(deserialize_with = "or_default")]
    ports: Vec<Map<String, Value>>,
}

impl ServiceSpec {
    /// The ports, and the target ports that are numbers: others are names. No service of the API server's has more than
    /// these.
    pub fn ports(&self) -> Vec<PortRange> {
        let ports = self.ports.iter().flat_map(|port| [port.get("port"), port.get("targetPort")]);
        let numbers = ports.filter_map(|port| u16::try_from(port?.as_u64()?).ok());
        numbers.filter_map(|number| PortRange::new(number, number)).take(128).collect()
    }
}

/// Reads a value; Go writes an empty one as `null`.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a list item by item into the facts that count about all of them. A list of all items could take twenty times as much
/// memory as its JSON.
///
/// # Errors
/// The JSON is neither a list of such items nor `null`.
pub fn gather<'de, D, T, F>(deserializer: D) -> Result<F, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
    F: Default + Extend<T>,
{
    struct Gather<T, F>(PhantomData<(T, F)>);

    impl<'de, T: Deserialize<'de>, F: Default + Extend<T>> Visitor<'de> for Gather<T, F> {
        type Value = F;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<F, E> {
            Ok(F::default())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<F, A::Error> {
            let mut facts = F::default();
            while let Some(item) = items.next_element::<T>()? {
                facts.extend([item]);
            }
            Ok(facts)
        }
    }

    deserializer.deserialize_any(Gather(PhantomData))
}
