//! ADD from spawn to exit, each in a fresh network namespace made outside the timed part: with annotations, and with an
//! API server on the same machine; beside an empty static program, the init program and linkerd-init's commands. All
//! take turns, one run each a round, in another order each round.
//!
//!     LINKERD_CNI=target/dist/linkerd-cni PROXY_INIT=target/dist/proxy-init cargo bench -p linkerd-cni
//!
//! Without these variables it measures cargo's own builds, which are dynamic. `-- --runs N` makes N rounds. Without
//! cargo's `--bench`, as in a test, each runs once.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::linkerd;
use lab::network::Namespace;
use lab::samples::{self, Samples};
use serde_json::{Value, json};

use lab::api_double::{ApiServer, Pod};

/// Rounds, unless `--runs` says otherwise.
const ROUNDS: usize = 200;

/// Commands that run one after another: their input, their words, and their environment.
struct Contender {
    name: String,
    steps: Vec<Vec<String>>,
    stdin: PathBuf,
    /// True if the program works in the namespace of `CNI_NETNS`, and runs on the node; otherwise it runs in the pod's
    /// namespace.
    is_plugin: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runs = arguments.iter().skip_while(|argument| *argument != "--runs").nth(1);
    let rounds = match runs {
        Some(number) => number.parse().unwrap(),
        None if arguments.iter().any(|argument| argument == "--bench") => ROUNDS,
        None => 1,
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [run, empty] = ["run", "empty"].map(|program| compile(program, folder));
    let node = Namespace::new();
    let server = ApiServer::start(node.run(|| TcpListener::bind("127.0.0.1:0").unwrap()));
    server.add_pod("shop", "web", &Pod { containers: &["app", "linkerd-proxy"], ..Pod::default() });
    let kubeconfig = server.kubeconfig(folder, "good-token");

    let plugin = binary("LINKERD_CNI", env!("CARGO_BIN_EXE_linkerd-cni"));
    let add = |name: &str, pod_info: &str| {
        let stdin = folder.join(format!("{pod_info}.json"));
        fs::write(&stdin, configuration(&kubeconfig, pod_info).to_string()).unwrap();
        Contender {
            name: format!("linkerd-cni, ADD with {name}"),
            steps: vec![vec![plugin.clone()]],
            stdin,
            is_plugin: true,
        }
    };
    let in_pod = |name: &str, steps: Vec<Vec<String>>| Contender {
        name: name.to_owned(),
        steps,
        stdin: "/dev/null".into(),
        is_plugin: false,
    };
    let mut contenders = vec![
        in_pod("floor: an empty static C program", vec![vec![empty.display().to_string()]]),
        add("annotations", "annotations"),
        add("the API server", "api"),
        in_pod("linkerd-init's 12 iptables-nft commands", linkerd::commands("nft", false)),
    ];
    match std::env::var("PROXY_INIT") {
        Ok(program) => {
            let program = fs::canonicalize(program).unwrap().display().to_string();
            let words =
                [&[program.as_str(), "--iptables-mode", "nft", "--ipv6=false"], &linkerd::CHART_ARGUMENTS[..]].concat();
            let words = words.into_iter().map(str::to_owned).collect();
            contenders.push(in_pod("proxy-init --iptables-mode nft", vec![words]));
        }
        Err(_) => println!("LEFT OUT: proxy-init, because PROXY_INIT doesn't say where it is"),
    }

    let mut wall = vec![Vec::new(); contenders.len()];
    let mut busy = wall.clone();
    let mut memory = vec![0; contenders.len()];
    let random = RandomState::new();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by_cached_key(|contender| random.hash_one((round, contender)));
        for index in order {
            let (microseconds, processor, kib) = once(&run, &node, &contenders[index], folder);
            wall[index].push(microseconds);
            busy[index].push(processor);
            memory[index] = memory[index].max(kib);
        }
    }
    let of_each = |times: Vec<Vec<f64>>| -> Vec<Samples> {
        let named = contenders.iter().zip(times);
        named.map(|(contender, times)| Samples::new(&contender.name, times)).collect()
    };
    let (wall, busy) = (of_each(wall), of_each(busy));
    let init = wall.iter().find(|it| it.name.starts_with("proxy-init"));
    let reference = init.unwrap_or(&wall[0]).p50();
    let table = samples::table(wall.iter().map(|it| (it, reference)));
    let mut rows = table.lines();
    println!("{} processor | memory |", rows.next().unwrap_or_default());
    println!("{}--:|--:|", rows.next().unwrap_or_default());
    for (row, (busy, kib)) in rows.zip(busy.iter().zip(memory)) {
        println!("{row} {} | {kib} KiB |", samples::time(busy.p50()));
    }
    println!("{plugin}: {} bytes", fs::metadata(&plugin).unwrap().len());
}

/// Runs the commands once, and checks their result. Microseconds, those of processor time, and KiB of memory.
fn once(run: &Path, node: &Namespace, contender: &Contender, folder: &Path) -> (f64, f64, u64) {
    let pod = Namespace::untouched().unwrap();
    let mut command = Command::new(run);
    command.arg("-");
    for (number, step) in contender.steps.iter().enumerate() {
        if number > 0 {
            command.arg(";");
        }
        // Looked up here, so that only the command itself is timed.
        command.arg(&contender.stdin).arg(which(&step[0])).args(&step[1..]);
    }
    command.env_remove("IPTABLES_MODE").current_dir(folder);
    if contender.is_plugin {
        command.envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "sandbox-1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        command.env("CNI_NETNS", pod.path());
    }
    let output = if contender.is_plugin { node.output(&mut command) } else { pod.output(&mut command) };
    assert!(output.status.success(), "{}: {output:?}", contender.name);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.split_whitespace();
    let nanoseconds: f64 = numbers.next().unwrap().parse().unwrap();
    let processor: f64 = numbers.next().unwrap().parse().unwrap();
    let kib = numbers.next().unwrap().parse().unwrap();
    if !contender.name.starts_with("floor") {
        let rules = pod.sh("iptables-nft-save -t nat");
        assert!(rules.contains("install-proxy-init-output"), "{}: {rules}", contender.name);
    }
    (nanoseconds / 1000.0, processor, kib)
}

/// A program's path, as the shell finds it.
fn which(program: &str) -> PathBuf {
    if program.contains('/') {
        return program.into();
    }
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|folder| Path::new(folder).join(program));
    let found = folders.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{program} is not installed"))
}

fn binary(variable: &str, own: &str) -> String {
    let path = std::env::var(variable).unwrap_or_else(|_| own.to_owned());
    fs::canonicalize(&path).unwrap_or_else(|error| panic!("{path}: {error}")).display().to_string()
}

/// One of the benchmark's small C programs.
fn compile(program: &str, folder: &Path) -> PathBuf {
    let built = folder.join(program);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../measure/c/{program}.c"));
    let mut command = Command::new("cc");
    let status = command.args(["-O2", "-static", "-s", "-o"]).arg(&built).arg(source).status();
    assert!(status.unwrap().success(), "{command:?}");
    built
}

/// Linkerd's default arguments in nft mode for IPv4 alone, as the other contenders have them.
fn configuration(kubeconfig: &Path, pod_info: &str) -> Value {
    let mut section = linkerd::cni_section(pod_info);
    section["ipv6"] = false.into();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "linkerd-cni",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "cni0", "mac": "a6:8b:7d:2f:11:01"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.88.0.5/16", "gateway": "10.88.0.1", "interface": 1}],
            "dns": {},
        },
        "kubernetes": {"kubeconfig": kubeconfig},
        "linkerd": section,
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {
            "kubernetes.io/config.seen": "2026-11-21T14:00:00Z",
            "kubernetes.io/config.source": "api",
            "linkerd.io/created-by": "linkerd/proxy-injector edge-1",
            "linkerd.io/proxy-version": "edge-1",
            "linkerd.io/trust-root-sha256": "8e9b0f33d7c4ce1cb9ab3f1d9dfeb0f1a4f2d7f3f9b2a9f3e7b6a7f1c6b5d4e3",
        }},
    })
}
