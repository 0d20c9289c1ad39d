//! The tests' common parts: a run of the plugin as a runtime would start it, and iptables' listing afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lab::linkerd::Flags;
use lab::network::Namespace;
use lab::shell::program_to_test;
use serde_json::{Value, json};

/// The program under test: this build's, or the one that `cargo xtask test --slow` names, which is what a release has.
pub(crate) static PLUGIN: LazyLock<String> =
    LazyLock::new(|| program_to_test("linkerd-cni", env!("CARGO_BIN_EXE_linkerd-cni")));

/// The capability by which annotations come.
pub(crate) const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The pod of the tests, as containerd 1.6 names it.
pub(crate) const ARGS: &str =
    "K8S_POD_INFRA_CONTAINER_ID=ab12;K8S_POD_UID=6e6f;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";

/// A command of a runtime that is yet to be given.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    environment: BTreeMap<String, OsString>,
    stdin: Vec<u8>,
    wrapper: Vec<String>,
}

impl Run {
    /// For a container in this network namespace.
    pub(crate) fn new(verb: &str, configuration: &Value, netns: impl Into<OsString>) -> Self {
        let variables = [
            ("CNI_COMMAND", verb.into()),
            ("CNI_CONTAINERID", "sandbox-1".into()),
            ("CNI_NETNS", netns.into()),
            ("CNI_IFNAME", "eth0".into()),
            ("CNI_ARGS", ARGS.into()),
            ("CNI_PATH", "/opt/cni/bin".into()),
        ];
        Self {
            environment: variables.map(|(name, value)| (name.to_owned(), value)).into(),
            stdin: configuration.to_string().into(),
            wrapper: vec![],
        }
    }

    /// With another value of this variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Without this variable.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// With something else on standard input.
    pub(crate) fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Started by another program.
    pub(crate) fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Starts it on the node.
    pub(crate) fn spawn(&self, node: &Namespace) -> Child {
        let mut words = self.wrapper.iter().map(String::as_str).chain([PLUGIN.as_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(&self.environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = node.run(|| command.spawn().unwrap());
        // A program that doesn't read all of its input has an answer nevertheless.
        let _ = child.stdin.take().unwrap().write_all(&self.stdin);
        child
    }

    /// Runs it on the node to its end.
    pub(crate) fn output(&self, node: &Namespace) -> Finished {
        Finished(self.spawn(node).wait_with_output().unwrap())
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Finished(pub(crate) Output);

impl Finished {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// The output of the run, which must have succeeded.
    pub(crate) fn success(&self) -> String {
        assert!(self.0.status.success(), "{}{}", self.stdout(), self.stderr());
        self.stdout()
    }

    /// Its result; it must have succeeded.
    pub(crate) fn result(&self) -> Value {
        serde_json::from_str(&self.success()).unwrap()
    }

    /// The message of the error object with this code, and one line on stderr; it must have failed.
    pub(crate) fn error(&self, code: u64) -> String {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        assert_eq!(self.0.status.code(), Some(1), "{stdout}{stderr}");
        let object: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
        assert_eq!(object["code"], code, "{object}");
        let errors = stderr.lines().filter(|line| line.starts_with("level=error "));
        assert_eq!(errors.count(), 1, "{stderr}");
        assert!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].contains(&object["cniVersion"].as_str().unwrap()));
        let details = object.get("details").and_then(Value::as_str).unwrap_or_default();
        format!("{}\n{details}", object["msg"].as_str().unwrap())
    }
}

/// The network configuration of Linkerd's chart (linkerd2-cni) with its default values, IPv6 and nft mode, in the last
/// version; the plugin knows pods by these annotations.
pub(crate) fn by_annotations(annotations: Value) -> Value {
    let mut configuration = by_api(Path::new("/nonexistent"));
    configuration["linkerd"]["pod-info"] = "annotations".into();
    configuration["runtimeConfig"] = json!({POD_ANNOTATIONS: annotations});
    configuration
}

/// The same for a meshed pod without further annotations.
pub(crate) fn meshed() -> Value {
    by_annotations(json!({"linkerd.io/proxy-version": "edge-1"}))
}

/// The same, but the plugin knows pods by the API server.
pub(crate) fn by_api(kubeconfig: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "k8s-pod-network",
        "type": "linkerd-cni",
        "log_level": "info",
        "policy": {"type": "k8s"},
        "kubernetes": {"kubeconfig": kubeconfig},
        "linkerd": {
            "incoming-proxy-port": 4143,
            "outgoing-proxy-port": 4140,
            "proxy-uid": 2102,
            "ports-to-redirect": [],
            "inbound-ports-to-ignore": ["4190", "4191", "4567", "4568"],
            "outbound-ports-to-ignore": ["4567", "4568"],
            "simulate": false,
            "use-wait-flag": false,
            "iptables-mode": "nft",
            "ipv6": true,
        },
    })
}

/// Both families' nat rules as iptables of this mode saves them, without the parts that differ from run to run.
pub(crate) fn saved(namespace: &Namespace, mode: &str) -> String {
    let mut text = String::new();
    for family in ["iptables", "ip6tables"] {
        let saved = namespace.stdout(&format!("{family}-{mode}-save"), ["-t", "nat"]);
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        text.extend(lines.map(|line| format!("{}\n", line.split(" [").next().unwrap_or_default())));
    }
    text
}

/// The rules that linkerd-init's commands leave in a namespace for these flags.
pub(crate) fn linkerds(flags: &Flags) -> String {
    let namespace = Namespace::new();
    flags.add_with_iptables(&namespace, "nft");
    saved(&namespace, "nft")
}

/// Fails unless there is nothing at all in a namespace.
pub(crate) fn assert_untouched(namespace: &Namespace) {
    assert_eq!(namespace.sh("nft list ruleset"), "");
    assert_eq!(namespace.sh("cat /proc/thread-self/net/ip_tables_names"), "");
}

/// A scratch folder, gone when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("linkerd-cni-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
