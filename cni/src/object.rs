//! The parts of Kubernetes' objects that the plugin looks at, read from JSON without keeping the rest: an object may be
//! as long as an API server that is somebody else's makes it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::annotations::Given;

/// The label of Linkerd's own pods.
pub const CONTROL_PLANE_COMPONENT: &str = "linkerd.io/control-plane-component";

/// An object of the kind whose spec this is.
#[derive(Debug, Deserialize)]
#[serde(bound = "S: Deserialize<'de>")]
pub struct Object<S> {
    /// Its kind, if it names one.
    pub kind: Option<String>,
    /// What it is called, and what is noted on it.
    pub metadata: Option<Map<Metadata>>,
    /// What it is meant to be.
    pub spec: Option<Map<S>>,
}

/// What an object is called, and what is noted on it.
#[derive(Debug, Default, Deserialize)]
pub struct Metadata {
    /// Its name.
    pub name: Option<String>,
    /// Its namespace, if its kind has one.
    pub namespace: Option<String>,
    /// The annotations that count.
    pub annotations: Option<Given>,
    /// The labels that count.
    pub labels: Option<Labels>,
}

/// A pod, and what counts of it.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The annotations that count.
    pub annotations: Given,
    /// The labels that count.
    pub labels: Labels,
    /// Its containers, of which there are some.
    pub containers: Containers,
    /// Its init containers.
    pub init_containers: Containers,
}

/// The labels of a pod that count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels {
    /// Whether the pod is a component of Linkerd's control plane.
    pub is_control_plane: bool,
}

/// What the plugin knows of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Its containers.
    pub containers: Option<Containers>,
    /// Those that run before, or beside as native sidecars.
    pub init_containers: Option<Containers>,
}

/// What the plugin knows of a namespace's spec: nothing.
#[derive(Debug, Default, Deserialize)]
pub struct NamespaceSpec {}

/// What the plugin knows of a service.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ServiceSpec {
    /// Its ports.
    pub ports: Option<ServicePorts>,
}

/// The containers of a pod, by what counts of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Containers {
    /// Whether there is one.
    pub is_any: bool,
    /// Whether one has no name.
    pub is_one_unnamed: bool,
    /// Whether one is linkerd-init.
    pub has_init: bool,
    /// The one that is linkerd-proxy.
    pub proxy: Option<Proxy>,
}

/// The container linkerd-proxy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Proxy {
    /// The user that it runs as, where its own spec says so.
    pub user: Option<i64>,
}

/// The ports of a service: each, and its target port if that is a number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePorts(pub Vec<u16>);

/// More ports than this no service of the API server's has.
const MOST_PORTS: usize = 64;

/// A JSON object. What is derived for a struct would take an array too, its values in the order of the fields.
#[derive(Debug, Default)]
pub struct Map<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Map<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Maps<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Maps<T> {
            type Value = Map<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Map<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Map)
            }
        }

        deserializer.deserialize_map(Maps(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == CONTROL_PLANE_COMPONENT {
                        labels.is_control_plane = !map.next_value::<String>()?.is_empty();
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(labels)
            }
        }

        deserializer.deserialize_map(Read)
    }
}

impl<'de> Deserialize<'de> for Containers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Container {
            name: Option<String>,
            security_context: Option<Map<SecurityContext>>,
        }

        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct SecurityContext {
            run_as_user: Option<i64>,
        }

        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Containers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of containers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut containers: A) -> Result<Containers, A::Error> {
                let mut read = Containers::default();
                while let Some(Map(container)) = containers.next_element::<Map<Container>>()? {
                    read.is_any = true;
                    match container.name.as_deref().unwrap_or_default() {
                        "" => read.is_one_unnamed = true,
                        "linkerd-init" => read.has_init = true,
                        "linkerd-proxy" => {
                            let user = container.security_context.and_then(|it| it.0.run_as_user);
                            read.proxy = Some(Proxy { user });
                        }
                        _ => {}
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_seq(Read)
    }
}

impl<'de> Deserialize<'de> for ServicePorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Port {
            #[serde(default)]
            port: i64,
            target_port: Option<Target>,
        }

        /// A port by its number; none if it is named, as a port of the server's own pods.
        struct Target(Option<i64>);

        impl<'de> Deserialize<'de> for Target {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ReadTarget)
            }
        }

        struct ReadTarget;

        impl Visitor<'_> for ReadTarget {
            type Value = Target;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number or the name of a port")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Target, E> {
                Ok(Target(Some(number)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Target, E> {
                Ok(Target(i64::try_from(number).ok()))
            }

            fn visit_str<E>(self, _: &str) -> Result<Target, E> {
                Ok(Target(None))
            }
        }

        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = ServicePorts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MOST_PORTS} ports of a service")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ports: A) -> Result<ServicePorts, A::Error> {
                let mut read = Vec::new();
                while let Some(Map(port)) = ports.next_element::<Map<Port>>()? {
                    let target = port.target_port.and_then(|target| target.0);
                    for number in [Some(port.port), target].into_iter().flatten() {
                        read.extend(u16::try_from(number).ok().filter(|&number| number > 0));
                    }
                    if read.len() > 2 * MOST_PORTS {
                        return Err(serde::de::Error::invalid_length(read.len(), &self));
                    }
                }
                Ok(ServicePorts(read))
            }
        }

        deserializer.deserialize_seq(Read)
    }
}
