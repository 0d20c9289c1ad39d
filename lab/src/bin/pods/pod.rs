//! Pods and their containers, as kubelet asks the runtime for them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, mem};

use lab::cgroups;
use lab::containerd::Image;
use lab::shell::Result;
use lab::wait;
use serde_json::Value;

use crate::cri::{
    Capability, ContainerConfig, ContainerMetadata, ContainerState, ContainerStatusRequest, CreateContainerRequest,
    ExecSyncRequest, IdMapping, ImageSpec, Int64Value, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata, PodSandboxStatusRequest, ProfileType,
    RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, SecurityProfile, StartContainerRequest,
    StopPodSandboxRequest, UserNamespace,
};
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
    config: PodSandboxConfig,
    /// Of the pod's ids on the node, if it has users of its own.
    users: Option<IdMapping>,
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
    pub(crate) code: i32,
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

/// How long a container that ends by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl<'a> Pod<'a> {
    /// Makes a sandbox on one of the node's networks.
    pub(crate) fn start(node: &'a Node, network: &str, meta: &Meta) -> Result<Self> {
        let number = node.next();
        let name = format!("{}-{number}", meta.name);
        let folder = node.pod_folder(&name)?;
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        // As kubelet gives them: as many ids as 16 bits have, and to each pod others.
        let users = meta.own_users.then(|| IdMapping { host_id: (number + 1) << 16, container_id: 0, length: 1 << 16 });
        // As kubelet names it.
        let cgroup = format!("{}/pod{uid}", node.cgroup);
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.clone(),
                uid: uid.clone(),
                namespace: meta.namespace.clone(),
            }),
            hostname: name.clone(),
            log_directory: folder.display().to_string(),
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/{cgroup}"),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces(users.as_ref())),
                    seccomp: Some(runtime_default()),
                }),
            }),
        };
        let made = node
            .client
            .call(RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: network.to_owned() })?;
        let mut pod = Self {
            node,
            name,
            uid,
            cgroup,
            id: made.pod_sandbox_id,
            config,
            users,
            folder,
            addresses: Vec::new(),
            netns: PathBuf::new(),
            containers: Mutex::default(),
            gone: false,
        };
        let status = node.client.call(PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: true })?;
        let network = status.status.and_then(|status| status.network).unwrap_or_default();
        for address in [network.ip].into_iter().chain(network.additional_ips.into_iter().map(|ip| ip.ip)) {
            pod.addresses.push(address.parse()?);
        }
        let info: Value = serde_json::from_str(status.info.get("info").map_or("null", String::as_str))?;
        let namespaces = info.pointer("/runtimeSpec/linux/namespaces").and_then(Value::as_array);
        pod.netns = namespaces
            .into_iter()
            .flatten()
            .find(|namespace| namespace.get("type").and_then(Value::as_str) == Some("network"))
            .and_then(|namespace| namespace.get("path")?.as_str())
            .ok_or("containerd does not say where the sandbox's network namespace is")?
            .into();
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
            mounts.push(Mount {
                container_path: (*path).to_owned(),
                host_path: folder.display().to_string(),
                uid_mappings: self.users.iter().cloned().collect(),
                gid_mappings: self.users.iter().cloned().collect(),
            });
        }
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: container.name.to_owned(), attempt: self.node.next() }),
            image: Some(ImageSpec { image: container.image.reference().to_owned() }),
            command: owned(container.command),
            args: owned(container.args),
            mounts,
            log_path: log.clone(),
            linux: Some(container.linux(self.users.as_ref())),
        };
        let made = self.node.client.call(CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(config),
            sandbox_config: Some(self.config.clone()),
        })?;
        let mut containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        containers.push(made.container_id.clone());
        drop(containers);
        self.node.client.call(StartContainerRequest { container_id: made.container_id.clone() })?;
        Ok(Running {
            node: self.node,
            cgroup: self.cgroup.clone(),
            id: made.container_id,
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
        self.node.client.call(StopPodSandboxRequest { pod_sandbox_id: self.id.clone() })?;
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
        for container_id in mem::take(&mut *self.containers.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.node.client.call(RemoveContainerRequest { container_id })?;
        }
        self.node.client.call(RemovePodSandboxRequest { pod_sandbox_id: self.id.clone() })?;
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

    fn linux(&self, users: Option<&IdMapping>) -> LinuxContainerConfig {
        let resources = self.limits.map(|(thousandths, memory)| LinuxContainerResources {
            cpu_period: 100_000,
            cpu_quota: i64::from(thousandths) * 100,
            memory_limit_in_bytes: memory.into(),
            oom_score_adj: 1000,
        });
        LinuxContainerConfig {
            resources,
            security_context: Some(LinuxContainerSecurityContext {
                capabilities: Some(Capability {
                    add_capabilities: owned(self.add),
                    drop_capabilities: owned(self.drop),
                }),
                namespace_options: Some(namespaces(users)),
                run_as_user: self.user.map(|user| Int64Value { value: user.into() }),
                readonly_rootfs: self.read_only_root,
                no_new_privs: self.no_new_privs,
                masked_paths: owned(&MASKED),
                readonly_paths: owned(&READ_ONLY),
                seccomp: Some(if self.seccomp {
                    runtime_default()
                } else {
                    SecurityProfile { profile_type: ProfileType::Unconfined.into() }
                }),
            }),
        }
    }
}

impl Running<'_> {
    /// Waits for its end.
    pub(crate) fn wait(&self) -> Result<Ended> {
        let ended = || -> Result<_> {
            let status = self.node.client.call(ContainerStatusRequest { container_id: self.id.clone() })?;
            let status = status.status.unwrap_or_default();
            Ok((status.state == i32::from(ContainerState::Exited)).then_some(status))
        };
        let too_late = || Err(format!("container {} does not end", self.name).into());
        let status = wait::until(PATIENCE, || ended().transpose()).unwrap_or_else(too_late)?;
        let (stdout, mut stderr) = read_log(&fs::read_to_string(&self.log).unwrap_or_default());
        if status.reason == "OOMKilled" {
            stderr += "OOMKilled";
        }
        Ok(Ended { code: status.exit_code, stdout, stderr })
    }

    /// Its limits, if they are the chart's.
    pub(crate) fn limits_of_chart(&self) -> Result<String> {
        cgroups::limits_of_chart(&self.cgroup, &self.id)
    }

    /// Runs a command in it, as its user.
    pub(crate) fn exec(&self, command: &[&str]) -> Result<Ended> {
        let answer = self.node.client.call(ExecSyncRequest {
            container_id: self.id.clone(),
            cmd: owned(command),
            timeout: 30,
        })?;
        Ok(Ended {
            code: answer.exit_code,
            stdout: String::from_utf8(answer.stdout)?,
            stderr: String::from_utf8(answer.stderr)?,
        })
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

fn namespaces(users: Option<&IdMapping>) -> NamespaceOption {
    NamespaceOption {
        pid: NamespaceMode::Container.into(),
        userns_options: users.map(|users| UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: vec![users.clone()],
            gids: vec![users.clone()],
        }),
    }
}

fn runtime_default() -> SecurityProfile {
    SecurityProfile { profile_type: ProfileType::RuntimeDefault.into() }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
