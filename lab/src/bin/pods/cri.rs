//! The container runtime interface, over gRPC on containerd's socket. Requests and answers are JSON; Kubernetes' own
//! api.proto, which is in a package of Debian, says how they are encoded.

use std::fs;
use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use lab::shell::Result;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions, ServiceDescriptor};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// A connection to the runtime; threads share it.
#[derive(Debug)]
pub(crate) struct Client {
    /// A thread that waits for an answer drives all others' requests.
    runtime: Runtime,
    channel: Channel,
    service: ServiceDescriptor,
}

impl Client {
    /// The time limit of a request. A sandbox needs a second or two.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Connects to the socket, once there is one. The interface is as protoc describes it in a file.
    pub(crate) fn connect(socket: &Path, interface: &Path) -> Result<Self> {
        let pool = DescriptorPool::decode(fs::read(interface)?.as_slice())?;
        let service = pool.get_service_by_name("runtime.v1.RuntimeService").ok_or("api.proto has no RuntimeService")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(Self::PATIENCE);
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self { runtime, channel, service })
    }

    /// Sends a request and waits for the answer, in which fields have the names that api.proto gives them, and those with
    /// default values are missing.
    pub(crate) fn call(&self, name: &str, request: Value) -> Result<Value> {
        let method = self.service.methods().find(|method| method.name() == name);
        let method = method.ok_or_else(|| format!("the runtime has no method {name}"))?;
        let request = DynamicMessage::deserialize(method.input(), request)?;
        let path: PathAndQuery = format!("/{}/{name}", self.service.full_name()).parse()?;
        let answer = self.runtime.block_on(async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(Request::new(request), path, AnyMessage(method.output())).await
        });
        let answer = answer.map_err(|status| format!("{name}: {}", status.message()))?;
        let options = SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
        Ok(answer.into_inner().serialize_with_options(serde_json::value::Serializer, &options)?)
    }
}

/// Encodes requests, and decodes answers of this kind.
#[derive(Clone)]
struct AnyMessage(MessageDescriptor);

impl Codec for AnyMessage {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for AnyMessage {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, to: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        message.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for AnyMessage {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.0.clone(), from);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
