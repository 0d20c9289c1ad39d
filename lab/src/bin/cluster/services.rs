//! The programs that make a node and its cluster, from etcd to kubelet, and their logs.

use std::fs;
use std::path::Path;

use lab::cgroups;
use lab::confined;
use lab::containerd::{self, SOCKET};
use lab::machine::{ADDRESS, NODE};
use lab::services::Services;
use lab::shell::Result;
use lab::wait::wait_for;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::keys;
use crate::kubectl::Kubectl;

/// A cluster of one node.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) services: Services,
    cgroup: String,
    pub(crate) kubectl: Kubectl,
}

impl Cluster {
    /// Starts all of it, and waits until the node is ready.
    pub(crate) fn start(folder: &Path, cgroup: &str) -> Result<Self> {
        let node = Path::new(NODE);
        keys::make(&node.join("keys"))?;
        fs::write(node.join("kubelet.json"), kubelet_configuration(cgroup).to_string())?;
        let cluster = Self {
            services: Services::new(folder),
            cgroup: cgroup.to_owned(),
            kubectl: Kubectl(folder.join("bin/kubectl")),
        };
        for service in ["etcd", "kube-apiserver"] {
            cluster.start_service(service)?;
        }
        // While the API server starts.
        containerd::begin(&cluster.services, "")?;
        cluster.wait_for_api()?;
        for service in ["kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"] {
            cluster.start_service(service)?;
        }
        wait_for("the node", || cluster.kubectl.run(&["get", "nodes"]).is_ok_and(|nodes| nodes.contains(" Ready")))?;
        Ok(cluster)
    }

    /// Waits until the API server answers.
    pub(crate) fn wait_for_api(&self) -> Result<()> {
        wait_for("the API server", || self.kubectl.run(&["get", "--raw", "/readyz"]).is_ok())
    }

    /// Starts one of the programs but containerd.
    pub(crate) fn start_service(&self, name: &'static str) -> Result<()> {
        self.services.start(name, &arguments(name))
    }

    /// Reboots the node as if its power had failed. Its programs and all processes of its pods are killed, and what is
    /// in memory goes with them: network namespaces, mounts and sockets. What is on disks stays, and so does the
    /// control plane, which is elsewhere in other clusters. Then the node's programs start again.
    pub(crate) fn reboot(&self) -> Result<()> {
        const NODES: [&str; 3] = ["kubelet", "kube-proxy", "containerd"];
        for service in NODES {
            self.services.kill(service)?;
        }
        // All that this process namespace has else: containers and their shims, whose ends let new ones begin.
        wait_for("the node's end", || self.kill_others().is_ok_and(|killed| killed == 0))?;
        // kubelet asks the runtime for seconds about each container of whose cgroup it finds a rest.
        for hierarchy in cgroups::hierarchies() {
            let pods = hierarchy.join(&self.cgroup).join("kubepods");
            wait_for("the pods' empty cgroups", || !pods.exists() || confined::remove_cgroup(&pods).is_ok())?;
        }
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let state = [
            "/run/netns/".to_owned(),
            "/run/containerd/".to_owned(),
            format!("{NODE}/state/"),
            format!("{NODE}/kubelet/pods/"),
        ];
        // The last mounts are above the others.
        for point in points.rev().filter(|point| state.iter().any(|folder| point.starts_with(folder))) {
            umount2(point, MntFlags::MNT_DETACH)?;
        }
        for folder in &state[..3] {
            fs::remove_dir_all(folder)?;
            fs::create_dir(folder)?;
        }
        // kubelet ends where there is no runtime.
        containerd::start(&self.services)?;
        self.start_service("kube-proxy")?;
        self.start_service("kubelet")
    }

    /// Kills every process that is neither this one, nor the first, nor one of the programs,
    /// and says how many there were.
    fn kill_others(&self) -> Result<usize> {
        let mut spared = self.services.processes();
        spared.extend([1, std::process::id()]);
        let mut killed = 0;
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process that ends meanwhile needs no killing, and the parent of an ended one waits for it.
            let status = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if !spared.contains(&process) && !status.is_empty() && !status.contains(") Z ") {
                let _ = kill(Pid::from_raw(process.try_into()?), Signal::SIGKILL);
                killed += 1;
            }
        }
        Ok(killed)
    }

    /// The way for somebody at a shell to get at the cluster.
    pub(crate) fn how_to_reach(&self) -> String {
        format!(
            "Images are registry.example/{{proxy-init:VERSION, proxy-init:legacy, proxy:1, app:1}}, as in deploy/pod.yaml. In another \
             shell, as root:\n\n    node=$(pgrep --newest --full 'cluster .* {cgroup} --keep$')\n    alias kubectl='nsenter \
             --target $node --net --mount --pid env HOME={NODE} KUBECONFIG={NODE}/keys/admin.conf {kubectl}'\n    kubectl apply -f \
             {checkout}/deploy/pod.yaml\n    kubectl get pods\n\nCtrl-C ends it, and nothing is left.",
            cgroup = self.cgroup,
            kubectl = self.services.folder.join("bin/kubectl").display(),
            checkout = lab::shell::root().display(),
        )
    }
}

/// The words after a program's name.
fn arguments(service: &str) -> Vec<String> {
    let keys = format!("{NODE}/keys");
    let own = format!("{NODE}/{service}");
    let kubeconfig = format!("--kubeconfig={keys}/admin.conf");
    match service {
        "etcd" => vec![
            format!("--data-dir={own}"),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ],
        "kube-apiserver" => vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--secure-port=443".to_owned(),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--advertise-address={ADDRESS}"),
            format!("--service-cluster-ip-range={}", keys::SERVICES),
            format!("--client-ca-file={keys}/ca.crt"),
            format!("--tls-cert-file={keys}/apiserver.crt"),
            format!("--tls-private-key-file={keys}/apiserver.key"),
            format!("--kubelet-client-certificate={keys}/kubelet-client.crt"),
            format!("--kubelet-client-key={keys}/kubelet-client.key"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={keys}/sa.key"),
            format!("--service-account-key-file={keys}/sa.pub"),
            "--service-account-extend-token-expiration=false".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged".to_owned(),
            format!("--cert-dir={own}"),
        ],
        "kube-controller-manager" => vec![
            kubeconfig,
            format!("--service-account-private-key-file={keys}/sa.key"),
            format!("--root-ca-file={keys}/ca.crt"),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            format!("--cluster-signing-cert-file={keys}/ca.crt"),
            format!("--cluster-signing-key-file={keys}/ca.key"),
            format!("--flex-volume-plugin-dir={own}/volumes"),
            format!("--cert-dir={own}"),
        ],
        "kube-scheduler" => vec![kubeconfig, "--leader-elect=false".to_owned(), format!("--cert-dir={own}")],
        "kube-proxy" => vec![
            kubeconfig,
            "--proxy-mode=iptables".to_owned(),
            // Pods are on one bridge, where an answer would not come back through the node otherwise.
            "--masquerade-all".to_owned(),
            "--hostname-override=node".to_owned(),
            // Its settings of conntrack are the whole machine's.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ],
        _ => vec![
            kubeconfig,
            format!("--config={NODE}/kubelet.json"),
            format!("--root-dir={own}"),
            format!("--cert-dir={own}/keys"),
            "--hostname-override=node".to_owned(),
            format!("--node-ip={ADDRESS}"),
        ],
    }
}

/// kubelet's configuration.
fn kubelet_configuration(cgroup: &str) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // This machine may have version 1 of cgroups alone.
        "failCgroupV1": false,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "volumePluginDir": format!("{NODE}/kubelet/volume-plugins"),
        "authentication": {
            "x509": {"clientCAFile": format!("{NODE}/keys/ca.crt")},
            "anonymous": {"enabled": true},
            "webhook": {"enabled": false},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 0,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "enforceNodeAllocatable": ["none"],
        "oomScoreAdj": 0,
        "resolvConf": "",
        // There is no name server; kubelet warns of each pod unless it is told one.
        "clusterDNS": [keys::DNS],
        "clusterDomain": "cluster.local",
        "failSwapOn": false,
        // However full the machine is: it is not ours.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
    })
}
