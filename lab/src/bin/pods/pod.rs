//! Pods and their containers, as kubelet asks the runtime for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, mem};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::cgroups;
use lab::containerd::Image;
use lab::shell::Result;
use lab::wait;
use serde_json::{Value, json};

use crate::node::Node;

/// A pod's metadata.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta {
    /// A number is added.
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) labels: HashMap<String, String>,
    pub(crate) annotations: HashMap<String, String>,
    /// `hostUsers: false`
    pub(crate) own_users: bool,
}

/// A sandbox; it is removed with this.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    node: &'a Node,
    pub(crate) name: String,
    pub(crate) uid: String,
    cgroup: String,
    id: String,
    config: Value,
    /// The mappings of the pod's ids to those of the node, if it has users of its own.
    users: Vec<Value>,
    folder: PathBuf,
    /// IPv4's, then IPv6's.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where its network namespace can be opened.
    pub(crate) netns: PathBuf,
    /// The ids of its containers.
    containers: Mutex<Vec<String>>,
    gone: bool,
}

/// A container, as a pod's manifest has it.
#[derive(Debug, Clone)]
pub(crate) struct Container<'a> {
    pub(crate) name: &'a str,
    pub(crate) image: &'a Image,
    /// In place of the image's entry point, if not empty.
    pub(crate) command: &'a [&'a str],
    pub(crate) args: &'a [&'a str],
    /// Else the image's.
    pub(crate) user: Option<u32>,
    pub(crate) add: &'a [&'a str],
    pub(crate) drop: &'a [&'a str],
    /// `allowPrivilegeEscalation: false`
    pub(crate) no_new_privs: bool,
    pub(crate) read_only_root: bool,
    /// `seccompProfile: {type: RuntimeDefault}`
    pub(crate) seccomp: bool,
    /// Of a processor's time, in thousandths, and of memory, in bytes.
    pub(crate) limits: Option<(u32, u32)>,
    /// Where emptyDir volumes are mounted. Containers share those of the same path.
    pub(crate) empty_dirs: &'a [&'a str],
}

/// The exit code and the output of a container or command that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Itself, unless the exit code isn't 0.
    pub(crate) fn succeeded(self) -> Result<Self> {
        if self.code == 0 { Ok(self) } else { Err(self.said().into()) }
    }

    /// All of it, for errors.
    pub(crate) fn said(&self) -> String {
        format!("exit code {}: {}{}", self.code, self.stdout, self.stderr)
    }
}

/// A container that has been started.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    node: &'a Node,
    /// Its pod's.
    cgroup: String,
    id: String,
    log: PathBuf,
    name: String,
}

/// The paths that kubelet has masked in each container that isn't privileged (pkg/securitycontext/util.go).
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// And those that it has made read-only.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The time limit of a container that ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);

impl<'a> Pod<'a> {
    /// Makes a sandbox on one of the node's networks.
    pub(crate) fn start(node: &'a Node, network: &str, meta: &Meta) -> Result<Self> {
        let number = node.next();
        let name = format!("{}-{number}", meta.name);
        let folder = node.pod_folder(&name)?;
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        // As kubelet gives them: as many ids as 16 bits have, and to each pod others.
        let mapping = json!({"host_id": (number + 1) << 16, "container_id": 0, "length": 1 << 16});
        let users = if meta.own_users { vec![mapping] } else { vec![] };
        // As kubelet names it.
        let cgroup = format!("{}/pod{uid}", node.cgroup);
        let config = json!({
            "metadata": {"name": name, "uid": uid, "namespace": meta.namespace},
            "hostname": name,
            "log_directory": folder,
            "labels": meta.labels,
            "annotations": meta.annotations,
            "linux": {
                "cgroup_parent": format!("/{cgroup}"),
                "security_context": {"namespace_options": namespaces(&users), "seccomp": {"profile_type": "RuntimeDefault"}},
            },
        });
        let made = node.client.call("RunPodSandbox", json!({"config": config, "runtime_handler": network}))?;
        let mut pod = Self {
            node,
            name,
            uid,
            cgroup,
            id: text(&made, "/pod_sandbox_id")?,
            config,
            users,
            folder,
            addresses: Vec::new(),
            netns: PathBuf::new(),
            containers: Mutex::default(),
            gone: false,
        };
        let status = node.client.call("PodSandboxStatus", json!({"pod_sandbox_id": pod.id, "verbose": true}))?;
        let network = &status["status"]["network"];
        let others = network["additional_ips"].as_array().into_iter().flatten().map(|other| &other["ip"]);
        for address in [&network["ip"]].into_iter().chain(others) {
            pod.addresses.push(address.as_str().unwrap_or_default().parse()?);
        }
        let info: Value = serde_json::from_str(&text(&status, "/info/info")?)?;
        let namespaces = info.pointer("/runtimeSpec/linux/namespaces").and_then(Value::as_array);
        let network = namespaces.into_iter().flatten().find(|namespace| namespace["type"] == "network");
        let network = network.ok_or("containerd does not say where the sandbox's network namespace is")?;
        pod.netns = text(network, "/path")?.into();
        Ok(pod)
    }

    /// Starts a container.
    pub(crate) fn start_container(&self, container: &Container<'_>) -> Result<Running<'a>> {
        let log = format!("{}-{}.log", container.name, self.node.next());
        let mut mounts = Vec::new();
        for path in container.empty_dirs {
            let folder = self.folder.join("volumes").join(path.trim_start_matches('/'));
            fs::create_dir_all(&folder)?;
            // As kubelet makes them.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
            mounts.push(json!({
                "container_path": path, "host_path": folder, "uidMappings": self.users, "gidMappings": self.users,
            }));
        }
        let config = json!({
            "metadata": {"name": container.name, "attempt": self.node.next()},
            "image": {"image": container.image.reference()},
            "command": container.command,
            "args": container.args,
            "mounts": mounts,
            "log_path": log,
            "linux": container.linux(&self.users),
        });
        let sandbox = json!({"pod_sandbox_id": self.id, "config": config, "sandbox_config": self.config});
        let id = text(&self.node.client.call("CreateContainer", sandbox)?, "/container_id")?;
        let mut containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        containers.push(id.clone());
        drop(containers);
        self.node.client.call("StartContainer", json!({"container_id": id}))?;
        Ok(Running {
            node: self.node,
            cgroup: self.cgroup.clone(),
            id,
            log: self.folder.join(log),
            name: container.name.to_owned(),
        })
    }

    /// Runs a container to its end.
    pub(crate) fn run(&self, container: &Container<'_>) -> Result<Ended> {
        self.start_container(container)?.wait()
    }

    /// Stops the sandbox, as often as kubelet may: the CNI plugins get a DEL each time.
    pub(crate) fn stop(&self) -> Result<()> {
        self.node.client.call("StopPodSandbox", json!({"pod_sandbox_id": self.id}))?;
        Ok(())
    }

    /// Removes the sandbox and its containers, in kubelet's order. containerd would remove the containers with the sandbox,
    /// but up to 2.3 it then takes the lock twice for which an NRI plugin waits that registers (`BlockPluginSync` in
    /// RemovePodSandbox and RemoveContainer), and neither goes on.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.gone = true;
        self.try_remove()
    }

    fn try_remove(&self) -> Result<()> {
        self.stop()?;
        for id in mem::take(&mut *self.containers.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.node.client.call("RemoveContainer", json!({"container_id": id}))?;
        }
        self.node.client.call("RemovePodSandbox", json!({"pod_sandbox_id": self.id}))?;
        Ok(())
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // Of a scenario that has failed.
        if !self.gone
            && let Err(error) = self.try_remove()
        {
            eprintln!("{error}");
        }
    }
}

impl<'a> Container<'a> {
    /// A container that asks for nothing in particular.
    pub(crate) fn new(name: &'a str, image: &'a Image) -> Self {
        Self {
            name,
            image,
            command: &[],
            args: &[],
            user: None,
            add: &[],
            drop: &[],
            no_new_privs: false,
            read_only_root: false,
            seccomp: true,
            limits: None,
            empty_dirs: &[],
        }
    }

    fn linux(&self, users: &[Value]) -> Value {
        let resources = self.limits.map(|(thousandths, memory)| {
            json!({
                "cpu_period": 100_000, "cpu_quota": thousandths * 100, "memory_limit_in_bytes": memory, "oom_score_adj": 1000,
            })
        });
        json!({
            "resources": resources,
            "security_context": {
                "capabilities": {"add_capabilities": self.add, "drop_capabilities": self.drop},
                "namespace_options": namespaces(users),
                "run_as_user": self.user.map(|user| json!({"value": user})),
                "readonly_rootfs": self.read_only_root,
                "no_new_privs": self.no_new_privs,
                "masked_paths": MASKED,
                "readonly_paths": READ_ONLY,
                "seccomp": {"profile_type": if self.seccomp { "RuntimeDefault" } else { "Unconfined" }},
            },
        })
    }
}

impl Running<'_> {
    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<Ended> {
        let ended = || -> Result<_> {
            let answer = self.node.client.call("ContainerStatus", json!({"container_id": self.id}))?;
            let status = &answer["status"];
            Ok((status["state"] == "CONTAINER_EXITED").then(|| status.clone()))
        };
        let too_late = || Err(format!("container {} does not end", self.name).into());
        let status = wait::until(PATIENCE, || ended().transpose()).unwrap_or_else(too_late)?;
        let (stdout, mut stderr) = read_log(&fs::read_to_string(&self.log).unwrap_or_default());
        if status["reason"] == "OOMKilled" {
            stderr += "OOMKilled";
        }
        Ok(Ended { code: status["exit_code"].as_i64().unwrap_or(0), stdout, stderr })
    }

    /// Its limits, if they are the chart's.
    pub(crate) fn limits_of_chart(&self) -> Result<String> {
        cgroups::limits_of_chart(&self.cgroup, &self.id)
    }

    /// Runs a command in it, as its user.
    pub(crate) fn exec(&self, command: &[&str]) -> Result<Ended> {
        let request = json!({"container_id": self.id, "cmd": command, "timeout": 30});
        let answer = self.node.client.call("ExecSync", request)?;
        let said = |stream: &str| -> Result<String> {
            Ok(String::from_utf8(STANDARD.decode(answer[stream].as_str().unwrap_or_default())?)?)
        };
        let code = answer["exit_code"].as_i64().unwrap_or(0);
        Ok(Ended { code, stdout: said("stdout")?, stderr: said("stderr")? })
    }
}

/// A container's output, from the log that the runtime keeps for kubelet: a time, the stream, `F` for a whole line or
/// `P` for a part of one, and the text.
fn read_log(log: &str) -> (String, String) {
    let mut streams = (String::new(), String::new());
    for line in log.lines() {
        let mut parts = line.splitn(4, ' ').skip(1);
        let (Some(stream), Some(tag), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let to = if stream == "stderr" { &mut streams.1 } else { &mut streams.0 };
        to.push_str(text);
        if tag == "F" {
            to.push('\n');
        }
    }
    streams
}

fn namespaces(users: &[Value]) -> Value {
    let own = json!({"mode": "POD", "uids": users, "gids": users});
    json!({"pid": "CONTAINER", "userns_options": if users.is_empty() { Value::Null } else { own }})
}

/// A text in an answer of the runtime.
fn text(answer: &Value, pointer: &str) -> Result<String> {
    let text = answer.pointer(pointer).and_then(Value::as_str);
    Ok(text.ok_or_else(|| format!("{pointer} is missing in {answer}"))?.to_owned())
}
