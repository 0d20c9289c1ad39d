//! The kubectl plugin: its script as it is, and a kubectl in the cluster's place that runs the debug container's
//! command in a namespace here.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use lab::cgroups::hierarchies;
use lab::network::Namespace;

use crate::support::{Finished, Folder, PORTS, PROXY_INIT, Run, install};

const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubectl/kubectl-proxy_init");
const KREW: &str = include_str!("../../deploy/kubectl/krew.yaml");

/// Notes its arguments, then does what a cluster would; a container is not ready at once.
const KUBECTL: &str = r#"
cd "$FOLDER"
printf '%s\n' "$*" >>calls
case "$*" in
"debug "* | *" debug "*)
    [ -z "$REFUSED" ] || { echo "$REFUSED" >&2; exit 1; }
    echo 'Creating debugging pod node-debugger-node-7-abcde with container proxy-init on node node-7.'
    while [ "$1" != proxy-init ]; do
        case $1 in --custom=*) cat "${1#*=}" >custom ;; esac
        shift
    done
    shift
    "$PROGRAM" "$@" >log 2>&1
    echo "$?" >code ;;
*" exec "*)
    while [ "$1" != /usr/local/bin/proxy-init ]; do shift; done
    shift
    code=0
    "$PROGRAM" "$@" || code=$?
    [ "$code" -eq 0 ] || echo "command terminated with exit code $code" >&2
    exit "$code" ;;
*"k8s-app in"*) printf 'node-6 mesh linkerd-cni-x linkerd-cni\nnode-7 mesh agent-7 %s\n' "$AGENT" ;;
*"linkerd.io/proxy-version"*) printf 'shop web %s node-7 10.42.0.7\nshop db %s node-9 10.42.0.9\n' "$POD_UID" "$POD_UID" ;;
*"{.metadata.uid} {.spec.nodeName}"*) printf '%s node-7 10.42.0.7' "$POD_UID" ;;
*hostNetwork*) printf %s "${POD:-|10.42.0.7|Running}" ;;
*"get events"*) printf 'FailedMount: an old one\nFailedCreatePodSandBox: plugin type="linkerd-cni" failed (add)\n' ;;
*go-template*) printf 'app=web,tier=front,' ;;
*"get replicasets"*) printf 'set-1\nset-2\n' ;;
*"get pods"*) printf 'set-1 web-1\nother lookalike\n none\nset-2 web-2\nown db-0\n' ;;
*'.metadata.uid'*) printf %s "${POD_UID:-own}" ;;
*nodeName*) printf node-7 ;;
*"get pod "*)
    if [ -n "$STATE" ]; then
        printf %s "$STATE"
    elif [ -e asked ]; then
        printf '%s||' "$(cat code)"
    else
        touch asked
        printf '|ContainerCreating|'
    fi ;;
*logs*) [ -n "$STATE" ] || cat log ;;
esac
"#;

/// The outcome of a line of arguments, and the calls of kubectl, of a cluster about which these variables of KUBECTL's say more.
fn run(namespace: &Namespace, arguments: &[&str], cluster: &[(&str, &str)]) -> (Finished, Vec<String>, Folder) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let folder = Folder::new(&format!("kubectl-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    folder.script("kubectl", KUBECTL);
    let mut plugin = Command::new(PLUGIN);
    plugin
        .args(arguments)
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.path()))
        .env("FOLDER", folder.path())
        .env("TMPDIR", folder.path())
        .env("PROGRAM", PROXY_INIT.as_str())
        .envs(cluster.iter().copied())
        .env("PROXY_INIT_IMAGE", "registry.example/proxy-init:1");
    let finished = Finished(namespace.output(&mut plugin));
    let calls = fs::read_to_string(folder.join("calls")).unwrap_or_default();
    // Each call asks if the pod has a network of its own.
    let calls = calls.lines().filter(|call| !call.contains("hostNetwork"));
    (finished, calls.map(str::to_owned).collect(), folder)
}

#[test]
fn the_answer_and_its_exit_code_are_proxy_inits() {
    let namespace = Namespace::new();
    install(&namespace, &format!("--iptables-mode nft {PORTS} -u 2102"));
    let (shown, calls, _folder) = run(&namespace, &["show", "web", "-n", "emojivoto"], &[]);
    assert_eq!(shown.success(), Run::new("show").output(&namespace).success());
    assert!(calls[0].starts_with("--namespace=emojivoto debug web --attach=false"), "{calls:?}");
    assert!(calls[0].contains("--image=registry.example/proxy-init:1 --profile=netadmin -- proxy-init show"));
    let last = calls.last().unwrap();
    assert!(last.starts_with("--namespace=emojivoto logs web --container=proxy-init-"), "{calls:?}");
    let different = ["verify", "web", "-p", "4143", "-o", "4444", "-u", "2102", "--output=json"];
    let (different, ..) = run(&namespace, &different, &[]);
    assert_eq!(different.code(), Some(3), "{}", different.said());
    assert!(different.stdout().starts_with('{'), "{}", different.said());
}

#[test]
fn arguments_keep_their_order_and_their_spaces() {
    let namespace = Namespace::new();
    let arguments =
        ["explain", "-n", "a", "web", "inbound", "--to", "[fd00::1]:80", "--netns", "/no such", "--context", "c"];
    let (asked, calls, _folder) = run(&namespace, &arguments, &[]);
    assert_eq!(asked.code(), Some(1), "{}", asked.said());
    assert!(asked.said().contains("/no such"), "{}", asked.said());
    assert!(calls[0].starts_with("--context=c --namespace=a debug web "), "{calls:?}");
    assert!(calls[0].ends_with("proxy-init explain inbound --to [fd00::1]:80 --netns /no such"), "{calls:?}");
}

/// Pods of others may have the same labels.
#[test]
fn of_a_workload_the_first_running_pod_that_it_owns_is_asked_and_named() {
    let namespace = Namespace::new();
    let (shown, calls, _folder) = run(&namespace, &["-n", "shop", "show", "deploy/web"], &[]);
    assert!(calls.iter().any(|call| call.contains("-l app=web,tier=front --field-selector=status.phase=Running")));
    assert!(calls.iter().any(|call| call.starts_with("--namespace=shop debug web-1 ")), "{calls:?}");
    assert!(shown.stderr().starts_with("asking web-1, one of 2 running pods of deploy/web\n"), "{}", shown.said());
    let (_, calls, _folder) = run(&namespace, &["show", "statefulset/db"], &[]);
    assert!(calls.iter().any(|call| call.starts_with("debug db-0 ")), "{calls:?}");
    let (_, calls, _folder) = run(&namespace, &["show", "pod/web"], &[]);
    assert!(calls[0].starts_with("debug web "), "{calls:?}");
}

#[test]
fn where_pod_security_refuses_the_container_the_way_from_the_node_is_said() {
    let refused = r#"pods "web" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities"#;
    let (asked, ..) = run(&Namespace::new(), &["verify", "web"], &[("REFUSED", refused)]);
    assert_eq!(asked.code(), Some(1));
    for words in [refused, "add --node"] {
        assert!(asked.stderr().contains(words), "{}", asked.said());
    }
}

/// By the UID that kubelet gives the cgroup of a pod's processes.
#[test]
fn from_the_node_a_pod_is_found_by_its_processes() {
    const UID: &str = "0c1a9a1e-90d5-4c3e-8e1f-3a5f6d2b7c48";
    let (node, pod) = (Namespace::new(), Namespace::new());
    install(&pod, &format!("--iptables-mode nft {PORTS} -u 2102"));
    let ask = || run(&node, &["verify", "web", "-n", "shop", "--node"], &[("POD_UID", UID)]);
    let (unseen, ..) = ask();
    assert_eq!(unseen.code(), Some(2), "{}", unseen.said());
    assert!(unseen.said().contains("on the pod's node"), "{}", unseen.said());
    let longer = InCgroup::start(&pod, &format!("pod{UID}0"));
    let (unseen, ..) = ask();
    assert_eq!(unseen.code(), Some(2), "another pod: {}", unseen.said());
    drop(longer);
    let process = InCgroup::start(&pod, &format!("pod{UID}"));
    let (verified, calls, folder) = ask();
    // A pod may make a network namespace without rules, or with them, and put a process there.
    process.add(&Namespace::new());
    let (several, ..) = ask();
    drop(process);
    assert_eq!(several.code(), Some(2), "{}", several.said());
    assert!(several.said().contains("in several network namespaces"), "{}", several.said());
    assert!(verified.success().starts_with("in place"));
    let debug = calls.iter().find(|call| call.contains("debug node/")).unwrap();
    assert!(debug.starts_with("--namespace=kube-system debug node/node-7 "), "{calls:?}");
    assert!(debug.contains("--profile=sysadmin") && folder.join("custom").exists(), "{calls:?}");
    assert_eq!(calls.last().unwrap(), "--namespace=kube-system delete pod node-debugger-node-7-abcde --wait=false");
}

/// The node's agent finds a pod by its processes or, where it sees none, by its address among the runtime's namespaces.
#[test]
fn an_agent_answers_about_its_nodes_pods_and_leaves_nothing_in_them() {
    const UID: &str = "5d2f7a0e-1b7c-4f0e-9a55-6a1de4c1f0b3";
    let (node, pod) = (Namespace::new(), Namespace::new());
    pod.sh("ip address add 10.42.0.7/24 dev lo");
    install(&pod, &format!("--iptables-mode nft {PORTS} -u 2102"));
    let _process = InCgroup::start(&pod, &format!("pod{UID}"));
    node.sh("mkdir /run/netns");
    let name = |of: &Namespace, name: &str| {
        node.sh(&format!("touch /run/netns/{name}"));
        node.sh(&format!("mount --bind {} /run/netns/{name}", of.path().display()));
    };
    for (agent, place) in [("linkerd-cni", format!("pod:{UID}")), ("linkerd-nri", "address:10.42.0.7".to_owned())] {
        let cluster = [("POD_UID", UID), ("AGENT", agent)];
        if agent == "linkerd-nri" {
            let (unseen, ..) = run(&node, &["verify", "web", "--agent"], &cluster);
            assert_eq!(unseen.code(), Some(2), "{}", unseen.said());
            assert!(unseen.said().contains("has this address"), "{}", unseen.said());
            name(&Namespace::new(), "other");
            name(&pod, "pod");
        }
        let (verified, calls, _folder) = run(&node, &["verify", "web", "-n", "shop", "--agent"], &cluster);
        assert!(verified.success().starts_with("in place"), "{}", verified.said());
        assert_eq!(verified.stderr(), "");
        let asked = format!(
            "--namespace=mesh exec agent-7 --container=agent -- /usr/local/bin/proxy-init verify --netns {place}"
        );
        assert_eq!(*calls.last().unwrap(), asked);
        let (checked, calls, _folder) = run(&node, &["check", "-A"], &cluster);
        assert_eq!(checked.code(), Some(3), "{}", checked.said());
        let lines: Vec<_> = checked.stdout().lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("shop/web: not well: proxy-not-listening"), "{lines:?}");
        assert_eq!(lines[1..], ["shop/db: not known: no agent runs on node node-9"]);
        assert!(!calls.iter().any(|call| call.contains("debug")), "{calls:?}");
    }
    // A pod gives itself another's address.
    let deceiver = Namespace::new();
    deceiver.sh("ip address add 10.42.0.7/24 dev lo");
    name(&deceiver, "deceiver");
    let (several, ..) = run(&node, &["verify", "web", "--agent"], &[("POD_UID", UID), ("AGENT", "linkerd-nri")]);
    assert_eq!(several.code(), Some(2), "{}", several.said());
    assert!(several.said().contains("several network namespaces"), "{}", several.said());
    let (misused, ..) = run(&node, &["show", "-A"], &[]);
    assert_eq!(misused.code(), Some(2), "{}", misused.said());
}

/// A cgroup of this name with processes, until the end of the test.
struct InCgroup {
    cgroup: PathBuf,
    processes: RefCell<Vec<Child>>,
}

impl InCgroup {
    fn start(namespace: &Namespace, name: &str) -> Self {
        // A new cpuset takes no process.
        let hierarchy = hierarchies().into_iter().find(|hierarchy| !hierarchy.ends_with("cpuset"));
        let cgroup = hierarchy.unwrap().join(name);
        fs::create_dir(&cgroup).unwrap();
        let processes = Self { cgroup, processes: RefCell::default() };
        processes.add(namespace);
        processes
    }

    /// Starts a process in a namespace, and puts it into the cgroup.
    fn add(&self, namespace: &Namespace) {
        let process = namespace.run_here(|| Command::new("sleep").arg("60").spawn()).unwrap();
        fs::write(self.cgroup.join("cgroup.procs"), process.id().to_string()).unwrap();
        self.processes.borrow_mut().push(process);
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        for process in self.processes.get_mut() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir(&self.cgroup);
    }
}

#[test]
fn all_pods_of_a_workload_are_asked_and_named() {
    let (bare, meshed) = (Namespace::new(), Namespace::new());
    meshed.sh("ip link set lo up");
    install(&meshed, &format!("--iptables-mode nft {PORTS} -u 2102"));
    let explain = "explain deploy/web -n shop outbound --to 127.0.0.1:80";
    let not_well = "not well: no-rules: connections are lost, or pass by the proxy unasked";
    for (namespace, line, code, said) in [
        (&bare, "verify deploy/web", 3, "not in place: no proxy-init rules were found"),
        (&bare, "check deploy/web", 3, not_well),
        (&meshed, explain, 0, "bypasses the proxy"),
        (&meshed, &format!("{explain} --expect proxy"), 3, "bypasses the proxy"),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let (asked, calls, _folder) = run(namespace, &words, &[]);
        assert_eq!(asked.code(), Some(code), "{line}: {}", asked.said());
        assert_eq!(asked.stdout(), format!("web-1: {said}\nweb-2: {said}\n"), "{line}");
        for pod in ["web-1", "web-2"] {
            assert!(calls.iter().any(|call| call.contains(&format!("debug {pod} "))), "{calls:?}");
        }
    }
}

#[test]
fn root_is_asked_for_by_a_custom_container() {
    let (_, calls, folder) = run(&Namespace::new(), &["show", "web", "--root"], &[]);
    assert!(calls[0].contains("--custom="), "{calls:?}");
    let custom: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("custom")).unwrap()).unwrap();
    assert_eq!(custom["securityContext"]["runAsUser"], 0);
}

#[test]
fn what_never_starts_is_said() {
    let namespace = Namespace::new();
    let (pulled, ..) = run(&namespace, &["show", "web"], &[("STATE", "|ImagePullBackOff|Back-off pulling image")]);
    assert_eq!((pulled.code(), pulled.stdout().as_str()), (Some(1), ""));
    assert!(pulled.stderr().contains("ImagePullBackOff Back-off pulling image"), "{}", pulled.said());
    let (started, ..) = run(&namespace, &["show", "web"], &[("STATE", "128||exec: no such file")]);
    assert_eq!(started.code(), Some(128));
    assert_eq!(started.stderr(), "error: exec: no such file\n");
}

#[test]
fn a_pod_without_a_network_of_its_own_gets_no_debug_container() {
    let namespace = Namespace::new();
    for (pod, words) in [
        ("true|192.0.2.1|Running", "is on its node's network"),
        ("true||Pending", "is on its node's network"),
        ("||Pending", "has no sandbox yet, and so no network (Pending): FailedCreatePodSandBox: plugin"),
        ("||Failed", "has ended (Failed)"),
        ("|10.42.0.7|Succeeded", "has ended (Succeeded)"),
    ] {
        let (ended, calls, _folder) = run(&namespace, &["show", "web", "-n", "emojivoto"], &[("POD", pod)]);
        assert_eq!(ended.code(), Some(1), "{pod}: {}", ended.said());
        assert!(ended.stderr().starts_with("error: pod web ") && ended.stderr().contains(words), "{}", ended.said());
        assert!(calls.iter().all(|call| !call.contains("debug")), "{calls:?}");
    }
}

#[test]
fn a_wrong_line_asks_no_cluster() {
    let namespace = Namespace::new();
    for line in [&["shwo", "web"][..], &["show"], &["show", "--output", "json"], &["show", "web", "-n"]] {
        let (wrong, calls, _folder) = run(&namespace, line, &[]);
        assert_eq!(wrong.code(), Some(2), "{line:?}: {}", wrong.said());
        assert!(wrong.stderr().starts_with("error: ") && calls.is_empty(), "{line:?}: {}", wrong.said());
    }
    for line in [&[][..], &["help"], &["show", "--help"]] {
        let (help, ..) = run(&namespace, line, &[]);
        assert!(help.success().contains("Usage: kubectl proxy-init COMMAND"));
    }
}

/// krew's manifest, once the release has filled it in, installs the script under the name that kubectl looks for.
#[test]
fn krews_manifest_installs_the_script() {
    let manifest: serde_json::Value = yaml_serde::from_str(KREW).unwrap();
    assert_eq!(manifest["metadata"]["name"], "proxy-init");
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(platform["files"][0]["to"], platform["bin"]);
    let script = platform["files"][0]["from"].as_str().unwrap();
    assert!(PLUGIN.ends_with(&format!("/{script}")), "{script}");
}
