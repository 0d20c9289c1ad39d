//! Reads and writes NRI's socket: messages of ttrpc, in frames that tell two connections apart.
//!
//! A frame is a connection's number, a length and so many bytes (pkg/net/multiplex in containerd/nri). A message is a
//! length, the number of its stream, its type and its flags, and so many bytes (PROTOCOL.md in containerd/ttrpc). All
//! numbers are in network order.
//!
//! The crate `ttrpc` would take a pair of pipes in memory and a task for each of the two connections, brings another
//! protobuf library, and bounds neither the time of a message nor that of an answer.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The longest that a message may be, in bytes: ttrpc's own limit.
const LONGEST: usize = 4 << 20;
/// The length of a message's header.
const HEADER: usize = 10;
/// The longest frame that the agent sends, in bytes. The runtime reads through a buffer of this size, and takes no frame
/// that doesn't fit into it (`conn.Read` in pkg/net/multiplex).
const FRAME: usize = 4096;
/// The time limit of a message from its first byte to its last, and of the runtime to read one of the agent's.
const PATIENCE: Duration = Duration::from_secs(2);

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    /// The runtime asks, and the agent answers.
    Plugin = 1,
    /// The agent asks, and the runtime answers.
    Runtime = 2,
}

/// The kind of a message: a request is answered on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request = 1,
    Response = 2,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) connection: Connection,
    /// A request's number, and its answer's.
    pub(crate) stream: u32,
    pub(crate) kind: Kind,
    /// A [`super::message::Request`] or [`super::message::Response`].
    pub(crate) body: Vec<u8>,
}

/// A socket, and the parts of each connection's messages that aren't whole yet. An error says why the socket can't be used
/// any longer.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: UnixStream,
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

impl Wire {
    /// On a socket of which nothing was read yet.
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, plugin: Vec::new(), runtime: Vec::new() }
    }

    /// The next request or answer. It may take for ever to begin.
    pub(crate) async fn receive(&mut self) -> Result<Message, String> {
        let (mut header, mut begun) = ([0; 8], 0);
        if self.plugin.is_empty() && self.runtime.is_empty() {
            begun = self.socket.read(&mut header).await.map_err(broken)?;
        }
        timeout(PATIENCE, self.read(header, begun)).await.map_err(|_| slow())?
    }

    /// Reads frames until a message is whole; of the first one's header, so many bytes are there. A message is taken as soon
    /// as it is whole, and a frame that is longer than any message is refused, so no more is kept than the longest ones
    /// have.
    async fn read(&mut self, mut header: [u8; 8], mut begun: usize) -> Result<Message, String> {
        loop {
            if let Some(message) = taken(Connection::Plugin, &mut self.plugin)? {
                return Ok(message);
            }
            if let Some(message) = taken(Connection::Runtime, &mut self.runtime)? {
                return Ok(message);
            }
            self.socket.read_exact(header.get_mut(begun..).unwrap_or_default()).await.map_err(broken)?;
            begun = 0;
            let [a, b, c, d, length @ ..] = header;
            let length = checked(length, HEADER + LONGEST)?;
            let messages = match u32::from_be_bytes([a, b, c, d]) {
                1 => &mut self.plugin,
                2 => &mut self.runtime,
                other => {
                    return Err(format!(
                        "the runtime sends a frame of connection {other}, and NRI has the connections 1 and 2"
                    ));
                }
            };
            let read = (&mut self.socket).take(length as u64).read_to_end(messages).await.map_err(broken)?;
            if read < length {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &Message) -> Result<(), String> {
        let bytes = frames(message);
        let sent = timeout(PATIENCE, self.socket.write_all(&bytes)).await;
        sent.map_err(|_| slow())?.map_err(broken)
    }
}

fn slow() -> String {
    format!("the runtime began a message, or was sent one, and {PATIENCE:?} later it wasn't through")
}

fn broken(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            "the runtime closed the connection".to_owned()
        }
        _ => format!("the socket: {error}"),
    }
}

/// A length that was received, unless that is more than the longest that there may be.
fn checked(length: [u8; 4], longest: usize) -> Result<usize, String> {
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > longest {
        return Err(format!("the runtime sends a message of {length} bytes, more than the 4 MiB that ttrpc allows"));
    }
    Ok(length)
}

/// Takes the first request or answer out of what came on a connection; none while it isn't whole.
fn taken(connection: Connection, rest: &mut Vec<u8>) -> Result<Option<Message>, String> {
    while let Some((header, body)) = rest.split_first_chunk::<HEADER>() {
        let [a, b, c, d, e, f, g, h, kind, _flags] = *header;
        let length = checked([a, b, c, d], LONGEST)?;
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let kind = match kind {
            1 => Some(Kind::Request),
            2 => Some(Kind::Response),
            // Parts of streams, which NRI doesn't have, and what later versions bring: not to be answered.
            _ => None,
        };
        let stream = u32::from_be_bytes([e, f, g, h]);
        let message = kind.map(|kind| Message { connection, stream, kind, body: body.to_vec() });
        *rest = rest.split_off(HEADER + length);
        if message.is_some() {
            return Ok(message);
        }
    }
    Ok(None)
}

/// A message as it is sent.
fn frames(message: &Message) -> Vec<u8> {
    let mut whole = length_of(&message.body).to_vec();
    whole.extend(message.stream.to_be_bytes());
    whole.extend([message.kind as u8, 0]);
    whole.extend(&message.body);
    let mut frames = Vec::new();
    for part in whole.chunks(FRAME) {
        frames.extend((message.connection as u32).to_be_bytes());
        frames.extend(length_of(part));
        frames.extend(part);
    }
    frames
}

fn length_of(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(connection: Connection, stream: u32, kind: Kind, length: usize) -> Message {
        Message { connection, stream, kind, body: (0..=u8::MAX).cycle().take(length).collect() }
    }

    /// The messages in these bytes, which arrive in pieces of this size, and the reason why there are no more.
    fn received(bytes: &[u8], piece: usize) -> (Vec<Message>, String) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            let send = async move {
                for piece in bytes.chunks(piece) {
                    if sender.write_all(piece).await.is_err() {
                        break;
                    }
                }
            };
            let receive = async move {
                let (mut wire, mut messages) = (Wire::new(receiver), Vec::new());
                loop {
                    match wire.receive().await {
                        Ok(message) => messages.push(message),
                        Err(broken) => return (messages, broken),
                    }
                }
            };
            tokio::join!(send, receive).1
        })
    }

    #[test]
    fn messages_arrive_as_they_were_sent_however_they_were_cut() {
        let sent = [
            message(Connection::Plugin, 1, Kind::Request, 0),
            message(Connection::Runtime, 7, Kind::Response, 5000),
            message(Connection::Plugin, 3, Kind::Request, LONGEST),
            message(Connection::Plugin, u32::MAX, Kind::Response, 4086),
        ];
        for (piece, sent) in [(FRAME, &sent[..]), (4095, &sent[..]), (7, &sent[..2]), (1, &sent[..2])] {
            let bytes: Vec<u8> = sent.iter().flat_map(frames).collect();
            let (messages, end) = received(&bytes, piece);
            assert!(messages == sent, "{piece}: {end}");
            assert_eq!(end, "the runtime closed the connection");
        }
        // Frames that end where no message does, of both connections in turn.
        let whole = [0, 1].map(|number| {
            let frames = frames(&sent[number]);
            frames.chunks(8 + FRAME).flat_map(|frame| frame[8..].to_vec()).collect::<Vec<u8>>()
        });
        let mut mixed = Vec::new();
        for at in 0..whole[1].len() {
            for (number, bytes) in (1_u32..).zip(&whole) {
                if let Some(byte) = bytes.get(at) {
                    mixed.extend(number.to_be_bytes());
                    mixed.extend([0, 0, 0, 1, *byte]);
                }
            }
        }
        assert_eq!(received(&mixed, FRAME).0, sent[..2]);
    }

    #[test]
    fn a_message_may_take_for_ever_to_begin() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            let mut wire = Wire::new(receiver);
            let sent = message(Connection::Plugin, 1, Kind::Request, 9);
            for _ in 0..2 {
                let send = async {
                    tokio::time::sleep(PATIENCE + Duration::from_millis(100)).await;
                    sender.write_all(&frames(&sent)).await.unwrap();
                };
                assert_eq!(tokio::join!(send, wire.receive()).1, Ok(sent.clone()));
            }
        });
    }

    #[test]
    fn no_frame_is_longer_than_the_runtimes_buffer() {
        let frames = frames(&message(Connection::Plugin, 1, Kind::Response, 3 * FRAME));
        let mut rest = frames.as_slice();
        while let Some((header, others)) = rest.split_first_chunk::<8>() {
            let length = usize::try_from(u32::from_be_bytes(header[4..].try_into().unwrap())).unwrap();
            assert!((1..=FRAME).contains(&length), "{length}");
            rest = &others[length..];
        }
    }

    #[test]
    fn what_no_runtime_sends_ends_the_connection_and_takes_no_memory() {
        let broken = |bytes: &[u8]| received(bytes, FRAME).1;
        assert!(broken(&[0, 0, 0, 9, 0, 0, 0, 0]).contains("connection 9"));
        // However long the frame is that it comes in.
        for (frame, length) in [(0, 10), (255, 10)] {
            let bytes = [0, 0, 0, 1, frame, 0, 0, length, 0, 64, 0, 1, 0, 0, 0, 1, 1, 0];
            assert!(broken(&bytes).contains("more than the 4 MiB that ttrpc allows"));
        }
        // Kinds that NRI doesn't use are passed over.
        let mut data = frames(&message(Connection::Plugin, 1, Kind::Request, 9));
        data[16] = 3;
        let request = message(Connection::Plugin, 3, Kind::Request, 2);
        data.extend(frames(&request));
        assert_eq!(received(&data, FRAME).0, [request]);
    }
}
