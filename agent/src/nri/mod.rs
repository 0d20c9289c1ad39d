//! The node without a CNI plugin: the Node Resource Interface, by which a container runtime itself tells of each pod.
//!
//! The runtime listens on a socket. The agent registers there as one of its plugins, and from then on the runtime waits
//! for its answer in three places: when a pod's network is set up and none of its containers is made yet
//! (RunPodSandbox), before each container (CreateContainer), and when the agent registers (Synchronize, with all pods
//! that there are). An error fails the sandbox or the container. It calls one plugin after another, for one pod at a
//! time, and disconnects one that takes longer than two seconds, *without* failing the pod (`isFatalError` in
//! pkg/adaptation/plugin.go). So the agent answers sooner than that, if need be with an error; what takes long is done
//! after the answer.
//!
//! [`wire`] is what goes over the socket, [`message`] what it says, and [`sandboxes`] what becomes of a pod.

pub mod message;
mod sandboxes;
mod wire;

use std::cell::Cell;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use self::message::{
    ConfigureRequest, ConfigureResponse, Event, PodRequest, RegisterPluginRequest, Request, Response, StateChangeEvent,
    Status, SynchronizeRequest, SynchronizeResponse,
};
use self::sandboxes::Sandboxes;
use self::wire::{Connection, Kind, Message, Wire};
use crate::admin::Health;
use crate::api::Server;
use crate::keeper;
use crate::repeat::repeat;
use crate::settings::Settings;
use crate::status;
use crate::tell::Teller;

/// The agent's name among the runtime's plugins.
const NAME: &str = "linkerd-proxy-init";
/// It is called before those that only watch.
const INDEX: &str = "10";
/// The time that a runtime waits that doesn't say (`DefaultPluginRequestTimeout`).
const DEADLINE: Duration = Duration::from_secs(2);
/// An answer that takes longer is worth a line in the log.
const SLOW: Duration = Duration::from_millis(100);
/// The pauses before the agent connects again: the first, the longest while nobody listens, which costs next to nothing,
/// and the longest after something else went wrong.
const PAUSES: [Duration; 3] = [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(30)];
/// A connection that was of use for so long ends a row of failures.
const CALM: Duration = Duration::from_secs(60);
/// How often the rules are tried out in a network namespace that is nobody's.
const TRIALS: Duration = Duration::from_secs(60);
/// How often the agent looks for a plugin that was left on the node.
const LEFT: Duration = Duration::from_secs(5);

/// gRPC's codes, which ttrpc has.
const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const UNIMPLEMENTED: i32 = 12;

/// Serves the runtime on this socket for ever.
pub(crate) async fn run(
    settings: &Settings,
    socket: &Path,
    server: Option<&Server>,
    health: &Arc<Health>,
) -> Result<Infallible, String> {
    sandboxes::configuration(&settings.installation).map_err(|error| error.message())?;
    let teller = Teller::new(server, "linkerd-cni-agent", health);
    let agent = Agent {
        settings,
        health,
        sandboxes: Sandboxes::new(settings, health, teller),
        is_registered: Cell::new(false),
        can_set_up: Cell::new(false),
        patience: Cell::new(DEADLINE),
    };
    health.metrics.begin_sandboxes();
    Ok(tokio::select! {
        never = agent.serve(socket) => never,
        never = agent.sandboxes.watch() => never,
        never = agent.try_rules() => never,
        never = agent.remove_plugin() => never,
    })
}

struct Agent<'a> {
    settings: &'a Settings,
    health: &'a Health,
    sandboxes: Sandboxes<'a>,
    /// True once the runtime has listed its pods: it waits for the agent's answers since.
    is_registered: Cell<bool>,
    /// True if the rules could be installed when that was tried last.
    can_set_up: Cell<bool>,
    /// The time that the runtime waits for an answer.
    patience: Cell<Duration>,
}

impl Agent<'_> {
    /// Connects, again and again.
    async fn serve(&self, socket: &Path) -> Infallible {
        let (mut pause, mut said) = (PAUSES[0], String::new());
        loop {
            let begun = Instant::now();
            let (reason, longest) = match UnixStream::connect(socket).await {
                Ok(stream) => {
                    let Err(reason) = self.converse(Wire::new(stream)).await;
                    (reason, PAUSES[2])
                }
                Err(error) => (error.to_string(), PAUSES[1]),
            };
            if self.is_registered.replace(false) {
                said.clear();
                if begun.elapsed() >= CALM {
                    pause = PAUSES[0];
                }
            }
            self.tell();
            let reason = format!("the runtime's socket {}: {reason}", socket.display());
            if reason == said {
                debug!("{reason}");
            } else {
                warn!("{reason}; the agent tries again");
                said = reason;
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Registers, and answers until something goes wrong.
    async fn converse(&self, mut wire: Wire) -> Result<Infallible, String> {
        let registration = RegisterPluginRequest { plugin_name: NAME.to_owned(), plugin_idx: INDEX.to_owned() };
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: registration.encode_to_vec().into(),
        };
        let message =
            Message { connection: Connection::Runtime, stream: 1, kind: Kind::Request, body: request.encode_to_vec() };
        wire.send(&message).await?;
        self.sandboxes.care.list();
        loop {
            // It may take long to list its pods: containerd first waits for whatever is under way, such as containers
            // that take as long to stop as their pods allow, and lets nothing else begin meanwhile (`BlockPluginSync`;
            // containerd's issue 14083). To connect again would have it do so twice.
            let message = wire.receive().await?;
            match (message.connection, message.kind) {
                (Connection::Plugin, Kind::Request) => {
                    let answer = self.answer(message.body.into()).await;
                    let (status, payload) =
                        answer.map_or_else(|status| (Some(status), Vec::new()), |payload| (None, payload));
                    let answer =
                        Message { kind: Kind::Response, body: Response { status, payload }.encode_to_vec(), ..message };
                    wire.send(&answer).await?;
                    self.tell();
                }
                (Connection::Runtime, Kind::Response) => {
                    let answer = Response::decode(message.body.as_slice());
                    let status = answer.map_err(|error| error.to_string())?.status.unwrap_or_default();
                    if status.code != 0 {
                        return Err(format!("the runtime refuses the agent: {}", status.message));
                    }
                }
                // Nobody asked, and nobody waits.
                (Connection::Plugin, Kind::Response) | (Connection::Runtime, Kind::Request) => {}
            }
        }
    }

    async fn answer(&self, body: Bytes) -> Result<Vec<u8>, Status> {
        let start = Instant::now();
        let request: Request = decoded(body)?;
        if request.service != "nri.pkg.api.v1alpha1.Plugin" {
            return Err(failure(UNIMPLEMENTED, format!("there is no service {:?}", request.service)));
        }
        let answer = self.perform(&request.method, request.payload).await;
        let took = start.elapsed();
        if took > SLOW {
            warn!("the runtime waited {took:.1?} for the answer to {}", request.method);
        }
        answer
    }

    async fn perform(&self, method: &str, payload: Bytes) -> Result<Vec<u8>, Status> {
        // The rest is for the way there and back, and for a runtime that is slow itself.
        let patience = self.patience.get() * 3 / 4;
        let (event, pod) = match method {
            "Configure" => {
                let configuration: ConfigureRequest = decoded(payload)?;
                let ConfigureRequest { runtime_name, runtime_version, request_timeout } = configuration;
                let told = u64::try_from(request_timeout).ok().filter(|&told| told > 0);
                let patience = told.map_or(DEADLINE, Duration::from_millis);
                self.patience.set(patience);
                info!("registered with {runtime_name} {runtime_version}, which waits {patience:?} for each answer");
                let bit = |event: Event| 1 << (event as i32 - 1);
                let events = bit(Event::RunPodSandbox) | bit(Event::RemovePodSandbox) | bit(Event::CreateContainer);
                return Ok(ConfigureResponse { events }.encode_to_vec());
            }
            "Synchronize" => {
                let SynchronizeRequest { pods, more } = decoded(payload)?;
                pods.into_iter().for_each(|pod| self.sandboxes.list(pod));
                if !more {
                    self.sandboxes.care.end_list();
                    self.is_registered.set(true);
                }
                return Ok(SynchronizeResponse { more }.encode_to_vec());
            }
            // The answers to all others are messages whose fields have their defaults.
            "Shutdown" => return Ok(Vec::new()),
            "StateChange" => {
                let change: StateChangeEvent = decoded(payload)?;
                (change.event(), change.pod)
            }
            "RunPodSandbox" => (Event::RunPodSandbox, decoded::<PodRequest>(payload)?.pod),
            "CreateContainer" => (Event::CreateContainer, decoded::<PodRequest>(payload)?.pod),
            "RemovePodSandbox" => (Event::RemovePodSandbox, decoded::<PodRequest>(payload)?.pod),
            other => return Err(failure(UNIMPLEMENTED, format!("the agent has no {other:?}"))),
        };
        let pod = pod.ok_or_else(|| failure(INVALID_ARGUMENT, "the request names no pod".to_owned()))?;
        let heeded = match event {
            Event::RunPodSandbox => self.sandboxes.run(pod, patience).await,
            Event::CreateContainer => self.sandboxes.create(pod, patience).await,
            Event::RemovePodSandbox => {
                self.sandboxes.care.remove(&pod.id);
                Ok(())
            }
            Event::Unknown => Ok(()),
        };
        heeded.map_err(|reason| failure(UNKNOWN, format!("linkerd-cni-agent: {reason}")))?;
        Ok(Vec::new())
    }

    /// Tries the rules out in a network namespace that is nobody's, again and again.
    async fn try_rules(&self) -> Infallible {
        let work = async || {
            let installation = self.settings.installation.clone();
            let tried = status::status(move || sandboxes::configuration(&installation)).await;
            self.can_set_up.set(tried.is_ok());
            self.tell();
            tried.map_err(|reason| format!("no pod can be set up on this node: {reason}"))
        };
        repeat(TRIALS, work).await
    }

    /// Removes a CNI plugin that no agent keeps any more. Until the runtime asks this agent, pods need the plugin.
    async fn remove_plugin(&self) -> Infallible {
        let work = async || {
            if !self.is_registered.get() {
                return Ok(());
            }
            let installation = self.settings.installation.clone();
            let removed = spawn_blocking(move || keeper::remove_left_behind(&installation)).await;
            removed.map_err(|error| error.to_string())?
        };
        repeat(LEFT, work).await
    }

    fn tell(&self) {
        let ready = self.is_registered.get() && self.can_set_up.get();
        self.health.tell(ready, || "the runtime asks the agent about each pod".to_owned());
    }
}

fn failure(code: i32, message: String) -> Status {
    Status { code, message }
}

fn decoded<T: prost::Message + Default>(bytes: Bytes) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| failure(INVALID_ARGUMENT, format!("the agent cannot read the request: {error}")))
}
