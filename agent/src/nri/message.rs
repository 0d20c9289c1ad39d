//! The messages of NRI, and of ttrpc, which carries them: of each, the fields that the agent has a use for. Names and
//! numbers are those of pkg/api/api.proto in containerd/nri, and of request.proto in containerd/ttrpc.

#![allow(missing_docs, reason = "api.proto and request.proto say what each message and field is")]

use prost::Message;
use prost::bytes::Bytes;

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// None, or code 0, if all went well.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Two digits: plugins are called in this order.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// The time that the runtime waits for an answer, in milliseconds; 0 from runtimes that don't say.
    #[prost(int64, tag = "5")]
    pub request_timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureResponse {
    /// Bit n-1 stands for event n.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeRequest {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    /// True if others follow, in a request of their own.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// The common part of RunPodSandbox, RemovePodSandbox and CreateContainer.
#[derive(Clone, PartialEq, Message)]
pub struct PodRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
}

/// RunPodSandbox and RemovePodSandbox, as runtimes with NRI before 0.12 tell of them.
#[derive(Clone, PartialEq, Message)]
pub struct StateChangeEvent {
    #[prost(enumeration = "Event", tag = "1")]
    pub event: i32,
    #[prost(message, optional, tag = "2")]
    pub pod: Option<PodSandbox>,
}

/// The events that the agent wants to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Event {
    Unknown = 0,
    RunPodSandbox = 1,
    RemovePodSandbox = 3,
    CreateContainer = 4,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    /// The sandbox's: a pod gets another when that ends.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// [`Annotation`]s that aren't decoded yet: whoever makes a pod may give it 80,000, of which few count.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub annotations: Vec<Bytes>,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Annotation {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandbox {
    /// The namespaces that the pod doesn't share with the node.
    #[prost(message, repeated, tag = "5")]
    pub namespaces: Vec<LinuxNamespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxNamespace {
    /// `network` for one; the others' names don't matter here.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Where it can be opened, on the node.
    #[prost(string, tag = "2")]
    pub path: String,
}
