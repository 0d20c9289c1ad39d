//! Folders that stand for a node's, and agents that run on them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::network::Namespace;
use lab::shell::program_to_test;
use lab::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::Cluster;

/// As the agent writes it, so that it is the same once the entry was put in and taken out.
pub(crate) const CALICO: &str = "{
  \"cniVersion\": \"0.3.1\",
  \"name\": \"k8s-pod-network\",
  \"plugins\": [
    {
      \"mtu\": 1440,
      \"type\": \"calico\"
    }
  ]
}
";
pub(crate) const ENTRY: &str = r#"{"name": "linkerd-cni", "type": "linkerd-cni", "log_level": "info",
    "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}, "linkerd": {"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140,
    "iptables-mode": "nft"}}"#;
pub(crate) const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";

/// An authority's certificate, good for a century.
pub(crate) const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBjzCCATWgAwIBAgIUe7/AeKFWU6rm4DFi2YFlP9bYdZswCgYIKoZIzj0EAwIw\n\
FDESMBAGA1UEAwwJYXV0aG9yaXR5MCAXDTI2MTEyODIxMzIwMFoYDzIxMjYxMTA0\n\
MjEzMjAwWjAUMRIwEAYDVQQDDAlhdXRob3JpdHkwWTATBgcqhkjOPQIBBggqhkjO\n\
PQMBBwNCAAR/UMr8vn5Yb78msmJoMJZZKo04tE32euluSY3h4x+VRS0zd9b80/sS\n\
aTdw7oGJwWZNrJ0XRHbe1mJtR+EVVAO+o2MwYTAdBgNVHQ4EFgQUR2nJ6tuB+0al\n\
e36t5xJrzJaC1scwHwYDVR0jBBgwFoAUR2nJ6tuB+0ale36t5xJrzJaC1scwDgYD\n\
VR0PAQH/BAQDAgIEMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIh\n\
ANZlyKl8BBlZAlMOHaQ9dUYhEGkM+S4oQ1VLqe12IUoOAiBPQXmqeM2a7mQ0oWCk\n\
dOs+uS1aq50QXwXYvKzLcg1qoA==\n\
-----END CERTIFICATE-----\n\n";

/// The time that a test waits for what is to happen at once, before it fails: others use the machine too.
const SOON: Duration = Duration::from_secs(60);

/// A node: its folders in a folder that is gone afterwards, and a network of its own.
pub(crate) struct Node {
    path: PathBuf,
    pub(crate) network: Namespace,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Node {
    /// With a plugin in the image, a token, and no configuration.
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("linkerd-cni-agent-{}-{number}", std::process::id()));
        for folder in ["host/opt/cni/bin", "host/etc/cni/net.d", "image", "account/..1"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        let node = Self { path, network: Namespace::new() };
        node.image("first");
        fs::write(node.path.join("account/..1/token"), "token-1").unwrap();
        fs::write(node.path.join("account/..1/ca.crt"), CERTIFICATE).unwrap();
        symlink("..1", node.path.join("account/..data")).unwrap();
        for name in ["token", "ca.crt"] {
            symlink(Path::new("..data").join(name), node.path.join("account").join(name)).unwrap();
        }
        node
    }

    /// The same with a configuration of Calico's.
    pub(crate) fn with_calico() -> Self {
        let node = Self::new();
        node.write("10-calico.conflist", CALICO);
        node
    }

    /// Another plugin in the image.
    pub(crate) fn image(&self, version: &str) {
        let other = self.path.join("image-linkerd-cni");
        fs::write(&other, format!("# {version}\n{}\n# end\n", "#".repeat(200_000))).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(other, self.path.join("image/linkerd-cni")).unwrap();
    }

    /// As kubelet rotates it.
    pub(crate) fn rotate(&self, token: &str) {
        let account = self.path.join("account");
        fs::create_dir_all(account.join("..2")).unwrap();
        fs::write(account.join("..2/token"), token).unwrap();
        fs::write(account.join("..2/ca.crt"), CERTIFICATE).unwrap();
        symlink("..2", account.join("..data_tmp")).unwrap();
        fs::rename(account.join("..data_tmp"), account.join("..data")).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn net(&self, name: &str) -> PathBuf {
        self.path.join("host/etc/cni/net.d").join(name)
    }

    pub(crate) fn bin(&self, name: &str) -> PathBuf {
        self.path.join("host/opt/cni/bin").join(name)
    }

    /// Every file of both folders with its content, hidden ones too.
    pub(crate) fn tree(&self) -> Vec<(String, Vec<u8>)> {
        let mut tree = Vec::new();
        for folder in [self.net(""), self.bin("")] {
            for file in folder.read_dir().unwrap() {
                let path = file.unwrap().path();
                tree.push((path.display().to_string(), fs::read(&path).unwrap_or_default()));
            }
        }
        tree.sort();
        tree
    }

    /// As another program writes it: in one step.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let other = self.path.join("other-program's");
        fs::write(&other, text).unwrap();
        fs::rename(other, self.net(name)).unwrap();
    }

    /// The types in a list; none if it is not there or no list.
    pub(crate) fn types(&self, name: &str) -> Option<Vec<String>> {
        types(&fs::read_to_string(self.net(name)).ok()?)
    }

    pub(crate) fn agent(&self, arguments: &[&str]) -> Agent {
        self.start(self.command(arguments))
    }

    /// One that has put the plugin into Calico's configuration.
    pub(crate) fn installed(&self, arguments: &[&str]) -> Agent {
        let agent = self.agent(arguments);
        self.until_installed("10-calico.conflist");
        agent
    }

    pub(crate) fn start(&self, mut command: Command) -> Agent {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = self.path.join(format!("log-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        command.stderr(fs::File::create(&log).unwrap());
        let process = self.network.run_here(|| command.spawn()).unwrap();
        Agent { process, log }
    }

    /// One with these variables in its environment, some of them instead of the usual ones.
    pub(crate) fn agent_with(&self, variables: &[(&str, &str)]) -> Agent {
        let mut command = self.command(&[]);
        command.envs(variables.iter().copied());
        self.start(command)
    }

    /// One that asks an API server.
    pub(crate) fn agent_of(&self, cluster: &Cluster, arguments: &[&str]) -> Agent {
        self.start(self.command_of(cluster, arguments))
    }

    /// The same, for another plugin entry.
    pub(crate) fn agent_with_entry(&self, cluster: &Cluster, arguments: &[&str], entry: &str) -> Agent {
        let mut command = self.command_of(cluster, arguments);
        command.env("CNI_NETWORK_CONFIG", entry);
        self.start(command)
    }

    pub(crate) fn command_of(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        name_api_server(cluster, &mut command);
        command
    }

    /// One of which each system call of this name takes some milliseconds.
    pub(crate) fn slow_agent_of(&self, cluster: &Cluster, call: &str, arguments: &[&str]) -> Agent {
        let mut command = traced(call, "delay_enter=3000");
        command.args(arguments);
        self.prepare(&mut command);
        name_api_server(cluster, &mut command);
        self.start(command)
    }

    /// One of which a system call fails each time.
    pub(crate) fn agent_failing(&self, call: &str, error: &str) -> Agent {
        let mut command = traced(call, &format!("error={error}"));
        self.prepare(&mut command);
        self.start(command)
    }

    /// One that has mounts of its own, which a shell's script makes first, with the node's folder of configurations as
    /// `$NET`. What it has there is at [`Agent::net`].
    pub(crate) fn agent_in_mounts(&self, script: &str, arguments: &[&str]) -> Agent {
        let mut command = Command::new("unshare");
        // The process stays the same throughout.
        let script = format!("set -e; {script}; unset NET; exec \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(program()).args(arguments);
        self.prepare(&mut command);
        command.env("NET", self.net("")).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        self.start(command)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments);
        self.prepare(&mut command);
        command
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        command
            .env_clear()
            .env("CONTAINER_MOUNT_PREFIX", self.path.join("host"))
            .env("CONTAINER_CNI_BIN_DIR", self.path.join("image"))
            .env("LINKERD_CNI_AGENT_SERVICE_ACCOUNT", self.path.join("account"))
            .env("KUBERNETES_SERVICE_HOST", "fd00::1")
            .env("KUBERNETES_SERVICE_PORT", "443")
            .env("CNI_NETWORK_CONFIG", ENTRY)
            .env("SLEEP", "true")
            // As in the image, which has none of the Internet's authorities.
            .env("SSL_CERT_FILE", "/dev/null")
            .env("SSL_CERT_DIR", "/nonexistent")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
    }

    /// Reads a path of the agent's admin server.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", &format!("http://127.0.0.1:9990{path}")]);
        String::from_utf8(self.network.output(&mut curl).stdout).unwrap()
    }

    /// The metrics, as Prometheus reads them.
    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        let text = self.get("/metrics");
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned))
    }

    /// The number of pods in this state, by its metric.
    pub(crate) fn pods(&self, standing: &str) -> Option<String> {
        self.metric(&format!(r#"linkerd_cni_agent_pods{{standing="{standing}"}}"#))
    }

    /// Waits until the plugin is in place.
    pub(crate) fn until_installed(&self, name: &str) {
        until("the entry is in the list", || {
            self.types(name).is_some_and(|types| types.last().is_some_and(|last| last == "linkerd-cni"))
        });
    }
}

/// The program under test: this build's, or the one that `cargo xtask test --slow` names, which is what a release has.
pub(crate) static AGENT: LazyLock<String> =
    LazyLock::new(|| program_to_test("linkerd-cni-agent", env!("CARGO_BIN_EXE_linkerd-cni-agent")));

/// Has an agent ask this API server.
fn name_api_server(cluster: &Cluster, command: &mut Command) {
    command
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", cluster.port.to_string())
        .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node-1")
        .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "agent");
}

/// The agent under strace, which does this to a system call.
pub(crate) fn traced(call: &str, injection: &str) -> Command {
    let mut command = Command::new("strace");
    // The process is the agent; strace is its grandchild.
    command
        .args(["-D", "-f", "-qq", "--output=/dev/null"])
        .args([format!("--trace={call}"), format!("--inject={call}:{injection}")])
        .arg(program());
    command
}

pub(crate) fn program() -> OsString {
    let program = std::env::var_os("LINKERD_CNI_AGENT");
    program.unwrap_or_else(|| AGENT.as_str().into())
}

pub(crate) fn types(text: &str) -> Option<Vec<String>> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let plugins = value.get("plugins")?.as_array()?.iter();
    plugins.map(|plugin| Some(plugin.get("type")?.as_str()?.to_owned())).collect()
}

/// Waits until something is so; how long it took.
///
/// # Panics
/// If it isn't soon.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) -> Duration {
    until_within(SOON, what, is_so)
}

/// The same, for what may take longer.
#[track_caller]
pub(crate) fn until_within(limit: Duration, what: &str, is_so: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    let is_so = wait::until(limit, || is_so().then_some(()));
    assert!(is_so.is_some(), "it never came to pass that {what}");
    start.elapsed()
}

/// A running agent, which is killed in the end.
pub(crate) struct Agent {
    process: Child,
    log: PathBuf,
}

impl Agent {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    /// Waits for it to end, and returns what it said.
    ///
    /// # Panics
    /// If it doesn't.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = wait::until(SOON, || self.process.try_wait().unwrap()).expect("the agent doesn't end");
        (status, fs::read_to_string(&self.log).unwrap())
    }

    /// Returns true if it has said so by now.
    pub(crate) fn says(&self, words: &str) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|said| said.contains(words))
    }

    /// Ends it as kubelet does.
    pub(crate) fn terminate(self) -> String {
        self.signal(Signal::SIGTERM);
        let (status, said) = self.wait();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// A file in the node's folder of configurations, as this agent sees it.
    pub(crate) fn net(&self, node: &Node, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.process.id(), node.net(name).display()))
    }

    /// The processor time that it has used so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// The most memory that it has had, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the agent said:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
