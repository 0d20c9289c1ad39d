//! Pods and their containers, as kubelet asks the runtime for them.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, mem};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::machine::NODE;
use lab::manifests::validator;
use lab::shell::{Result, Run as _};
use lab::wait::{PATIENCE, until};
use serde_json::{Value, json};

use crate::node::Node;

/// A sandbox; it is removed with this.
#[derive(Debug)]
pub(crate) struct Pod {
    node: &'static Node,
    /// Kubernetes' object.
    object: Value,
    pub(crate) cgroup: String,
    id: String,
    config: Value,
    /// The mappings of the pod's ids to those of the node, if it has users of its own.
    users: Vec<Value>,
    /// For its logs and volumes.
    folder: PathBuf,
    /// IPv4's, then IPv6's.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where its network namespace can be opened.
    pub(crate) netns: PathBuf,
    containers: Mutex<Vec<Container>>,
    gone: bool,
}

/// A container that has been started.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) id: String,
    name: String,
    log: PathBuf,
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

impl Pod {
    /// Makes the sandbox of a pod on one of the node's networks. A number is added to its name.
    pub(crate) fn start(node: &'static Node, network: &str, object: &Value) -> Result<Self> {
        let number = node.next();
        let name = format!("{}-{number}", text(object, "/metadata/name")?);
        let folder = Path::new(NODE).join("pods").join(&name);
        fs::create_dir_all(&folder)?;
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        // As kubelet gives them: as many ids as 16 bits have, and to each pod others.
        let mapping = json!({"host_id": (number + 1) << 16, "container_id": 0, "length": 1 << 16});
        let users = if object["spec"]["hostUsers"] == false { vec![mapping] } else { vec![] };
        // As kubelet names it.
        let cgroup = format!("{}/pod{uid}", node.cgroup);
        let mut config = json!({
            "metadata": {"name": name, "uid": uid, "namespace": "shop"},
            "hostname": name,
            "log_directory": folder,
            "labels": object["metadata"]["labels"],
            // kubelet's own.
            "annotations": {"kubernetes.io/config.source": "api"},
            "linux": {
                "cgroup_parent": format!("/{cgroup}"),
                "security_context": {"namespace_options": namespaces(&users), "seccomp": {"profile_type": "RuntimeDefault"}},
            },
        });
        for (key, value) in object["metadata"]["annotations"].as_object().into_iter().flatten() {
            config["annotations"][key] = value.clone();
        }
        let made = node.client.call("RunPodSandbox", json!({"config": config, "runtime_handler": network}))?;
        let mut pod = Self {
            node,
            object: object.clone(),
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

    /// Starts those of the pod's containers that run on.
    pub(crate) fn start_containers(&self) -> Result<()> {
        for container in self.object["spec"]["containers"].as_array().into_iter().flatten() {
            self.start_container(container)?;
        }
        Ok(())
    }

    /// Starts a container, as a manifest has it.
    pub(crate) fn start_container(&self, container: &Value) -> Result<Container> {
        let (name, number) = (text(container, "/name")?, self.node.next());
        let log = format!("{name}-{number}.log");
        let config = json!({
            "metadata": {"name": name, "attempt": number},
            "image": {"image": container["image"]},
            "command": container["command"],
            "args": container["args"],
            "mounts": self.mounts(container)?,
            "log_path": log,
            "linux": self.linux(container),
        });
        let request = json!({"pod_sandbox_id": self.id, "config": config, "sandbox_config": self.config});
        let id = text(&self.node.client.call("CreateContainer", request)?, "/container_id")?;
        let started = Container { id, name, log: self.folder.join(log) };
        self.containers().push(started.clone());
        self.node.client.call("StartContainer", json!({"container_id": started.id}))?;
        Ok(started)
    }

    /// The mounts of a container, each of which is an empty directory. Containers share those of the same path.
    fn mounts(&self, container: &Value) -> Result<Vec<Value>> {
        let mut mounts = Vec::new();
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let path = text(mount, "/mountPath")?;
            let folder = self.folder.join("volumes").join(path.trim_start_matches('/'));
            fs::create_dir_all(&folder)?;
            // As kubelet makes them.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
            mounts.push(json!({
                "container_path": path, "host_path": folder, "uidMappings": self.users, "gidMappings": self.users,
            }));
        }
        Ok(mounts)
    }

    fn linux(&self, container: &Value) -> Value {
        let context = &container["securityContext"];
        // Linkerd's chart has no others: 100m and 20Mi.
        let resources = container["resources"]["limits"].is_object().then(|| {
            json!({"cpu_period": 100_000, "cpu_quota": 10_000, "memory_limit_in_bytes": 20 << 20, "oom_score_adj": 1000})
        });
        let capabilities = &context["capabilities"];
        let is_confined = context["seccompProfile"]["type"] == "RuntimeDefault";
        json!({
            "resources": resources,
            "security_context": {
                "capabilities": {"add_capabilities": capabilities["add"], "drop_capabilities": capabilities["drop"]},
                "namespace_options": namespaces(&self.users),
                "run_as_user": context["runAsUser"].as_u64().map(|user| json!({"value": user})),
                "readonly_rootfs": context["readOnlyRootFilesystem"],
                "no_new_privs": context["allowPrivilegeEscalation"] == false,
                "masked_paths": MASKED,
                "readonly_paths": READ_ONLY,
                "seccomp": {"profile_type": if is_confined { "RuntimeDefault" } else { "Unconfined" }},
            },
        })
    }

    /// Runs a container to its end.
    pub(crate) fn run(&self, container: &Value) -> Result<Ended> {
        let Container { id, name, log } = self.start_container(container)?;
        let ended = || -> Result<_> {
            let answer = self.node.client.call("ContainerStatus", json!({"container_id": id}))?;
            let status = &answer["status"];
            Ok((status["state"] == "CONTAINER_EXITED").then(|| status.clone()))
        };
        let too_late = || Err(format!("container {name} does not end").into());
        let status = until(PATIENCE, || ended().transpose()).unwrap_or_else(too_late)?;
        let (stdout, mut stderr) = read_log(&fs::read_to_string(&log).unwrap_or_default());
        if status["reason"] == "OOMKilled" {
            stderr += "OOMKilled";
        }
        Ok(Ended { code: status["exit_code"].as_i64().unwrap_or(0), stdout, stderr })
    }

    /// Runs the network validator, which takes connections here, connects there and waits so long.
    pub(crate) fn validate(&self, listen: &str, connect: &str, timeout: &str) -> Result<Ended> {
        let mut validator = validator();
        validator["args"] = json!(["--listen-addr", listen, "--connect-addr", connect, "--timeout", timeout]);
        self.run(&validator)
    }

    /// Runs a command in the container of this name, as its user.
    pub(crate) fn exec(&self, container: &str, command: &[&str]) -> Result<Ended> {
        let id = self.containers().iter().find(|running| running.name == container).map(|running| running.id.clone());
        let request = json!({"container_id": id, "cmd": command, "timeout": 30});
        let answer = self.node.client.call("ExecSync", request)?;
        let said = |stream: &str| -> Result<String> {
            Ok(String::from_utf8(STANDARD.decode(answer[stream].as_str().unwrap_or_default())?)?)
        };
        let code = answer["exit_code"].as_i64().unwrap_or(0);
        Ok(Ended { code, stdout: said("stdout")?, stderr: said("stderr")? })
    }

    /// Lists all rules in its network namespace.
    pub(crate) fn rules(&self, options: &[&str]) -> Result<String> {
        let mut nft = Command::new("nsenter");
        nft.arg(format!("--net={}", self.netns.display())).arg("nft").args(options).args(["list", "ruleset"]);
        nft.read()
    }

    pub(crate) fn has_no_rules(&self) -> Result<()> {
        let rules = self.rules(&[])?;
        if rules.is_empty() { Ok(()) } else { Err(format!("it has rules: {rules}").into()) }
    }

    /// Stops the sandbox, as often as kubelet may: the CNI plugins get a DEL each time.
    pub(crate) fn stop(&self) -> Result<()> {
        self.node.client.call("StopPodSandbox", json!({"pod_sandbox_id": self.id})).map(drop)
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
        for container in mem::take(&mut *self.containers()) {
            self.node.client.call("RemoveContainer", json!({"container_id": container.id}))?;
        }
        self.node.client.call("RemovePodSandbox", json!({"pod_sandbox_id": self.id})).map(drop)
    }

    fn containers(&self) -> MutexGuard<'_, Vec<Container>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Of a scenario that has failed.
        if !self.gone
            && let Err(error) = self.try_remove()
        {
            eprintln!("{error}");
        }
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

/// A text in an object or an answer of the runtime.
fn text(answer: &Value, pointer: &str) -> Result<String> {
    let text = answer.pointer(pointer).and_then(Value::as_str);
    Ok(text.ok_or_else(|| format!("{pointer} is missing in {answer}"))?.to_owned())
}
