//! Shows the plugin's log in the agent's own log, where `kubectl logs` finds it.
//!
//! The plugin is another process of the node, which a runtime starts and whose standard error the runtime keeps. So it
//! sends each line to a socket as well, without waiting: a line that no agent takes at once is in the runtime's log
//! alone.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linkerd_cni::verb::Verb;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::sys::stat::{Mode, fchmod};
use serde::Deserialize;
use tokio::net::UnixDatagram;
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

use crate::admin::Health;
use crate::metrics::Metrics;
use crate::settings::LOG_SOCKET;

/// The longest datagram that is taken: the plugin sends 4,096 characters and little else, of each of which JSON makes
/// twelve bytes at most.
const LONGEST: usize = 64 << 10;

/// The codes that are counted: the specification's are below 100, and the plugin's own from there. Another version of
/// it may have more of them.
const CODES: u32 = 200;

/// The socket, and who reads it.
#[derive(Debug)]
pub(crate) struct PluginLog {
    path: PathBuf,
    health: Arc<Health>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    identity: (u64, u64),
    reader: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// One of the plugin's lines.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    level: String,
    msg: String,
    command: String,
    pod: String,
    #[serde(rename = "containerID")]
    container: String,
    /// With which a command ended, in the last line of it.
    code: Option<String>,
}

impl PluginLog {
    /// Nobody listens yet.
    pub(crate) fn new(folder: &Path, health: &Arc<Health>) -> Self {
        Self { path: folder.join(LOG_SOCKET), health: Arc::clone(health), open: None }
    }

    /// Listens, unless it does already by the name that the plugin knows: another agent may have taken that, or
    /// somebody may have removed it. Must be called in tokio's runtime.
    pub(crate) fn keep(&mut self) -> Result<(), String> {
        if self.is_open() {
            return Ok(());
        }
        self.open = None;
        let open = open(&self.path, &self.health).map_err(|error| {
            let path = self.path.display();
            format!("what the plugin logs can't be shown here: {path}: {error}: is the node's folder mounted there?")
        })?;
        self.open = Some(open);
        self.health.metrics.begin_commands();
        Ok(())
    }

    /// Removes the name, unless it has become another agent's.
    pub(crate) fn remove(self) {
        if self.is_open() {
            // It is as good as gone: nobody will listen.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn is_open(&self) -> bool {
        let is_ours = |open: &Open| identity(&self.path).is_ok_and(|here| here == open.identity);
        self.open.as_ref().is_some_and(|open| is_ours(open) && !open.reader.is_finished())
    }
}

/// The identity of the file with this name; a symbolic link is a file of its own.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn open(path: &Path, health: &Arc<Health>) -> io::Result<Open> {
    // Binding follows no symbolic link, and takes nothing's place.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    // The name gets the socket's permissions (unix_bind_bsd in net/unix/af_unix.c): from the start, only root can send
    // to it.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let identity = identity(path)?;
    let socket = UnixDatagram::from_std(socket.into())?;
    let health = Arc::clone(health);
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; LONGEST];
        loop {
            match socket.recv(&mut buffer).await {
                Ok(length) => tell(buffer.get(..length).unwrap_or_default(), &health.metrics),
                // The next pass listens anew.
                Err(error) => return warn!("what the plugin logs can't be read: {error}"),
            }
        }
    });
    Ok(Open { identity, reader })
}

/// Puts a line into the agent's log, and counts it if it ends a command.
fn tell(datagram: &[u8], metrics: &Metrics) {
    let Ok(line) = serde_json::from_slice::<Line>(datagram) else {
        return debug!("a datagram of {} bytes isn't one of the plugin's lines", datagram.len());
    };
    let Line { level, msg, command, pod, container, code } = line;
    match level.as_str() {
        "error" => error!(target: "plugin", command, pod, container, code, "{msg}"),
        "warning" => warn!(target: "plugin", command, pod, container, code, "{msg}"),
        "info" => info!(target: "plugin", command, pod, container, code, "{msg}"),
        _ => debug!(target: "plugin", command, pod, container, code, "{msg}"),
    }
    // Each pair of them is a series of Prometheus' for ever.
    let is_command = Verb::ALL.iter().any(|verb| verb.to_string() == command);
    if let Some(code) = code.and_then(|code| code.parse().ok()).filter(|code| *code < CODES)
        && is_command
    {
        metrics.ended(command, code);
    }
}
