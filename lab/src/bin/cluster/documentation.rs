//! Pages of docs/ with commands: each of kubectl's, or of a page about the node each, is really run, and what it prints has to be
//! what the page says.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::page::{self, PODS, Page, matches};
use lab::shell::{Result, Run as _, root};
use serde_json::{Value, json};

use crate::cni::{self, Agent};
use crate::images;
use crate::machine::NODE;
use crate::pod::{self, INIT, Pod};
use crate::rollout;
use crate::services::wait_for;
use crate::world::{Scenario, World};

/// A page whose commands that begin so are run here, and what makes its pods.
type PodsPage = (&'static str, &'static str, fn(&World<'_>) -> Result<()>);
const PAGES: [PodsPage; 2] = [
    ("docs/debugging.md", "", debugged),
    // proxy-init's own are run by tests/integration/pages.rs, and no others are there.
    ("docs/rollout.md", "kubectl ", rolled_out),
];

/// A page about the node, of which every command is run here, there; what happens before them, and what does after each.
type NodesPage = (&'static str, fn(&Agent<'_>, &World<'_>) -> Result<()>, fn(&str, &World<'_>) -> Result<()>);
const NODES_PAGES: [NodesPage; 2] =
    [("docs/cni.md", set_up, |_, _| Ok(())), ("docs/node.md", started_early, start_when_rolled)];

/// The pages' other blocks, by their first lines: none of their commands is run as it stands there.
const NOT_RUN: [&str; 25] = [
    // The scenario of the plugin runs these commands, and tests/integration proxy-init with --netns.
    "install -m 755 deploy/kubectl/kubectl-proxy_init /usr/local/bin/",
    "proxy-init show --netns /proc/PID/ns/net",
    // These take Linkerd's own program, or a registry.
    "linkerd upgrade --set proxyInit.image.name=REGISTRY/proxy-init --set proxyInit.image.version=VERSION \\",
    "linkerd upgrade --set proxy.image.name=REGISTRY/proxy | kubectl apply -f -",
    "docker buildx build --platform linux/amd64,linux/arm64 --build-arg REVISION=$(git rev-parse HEAD) \\",
    "FROM REGISTRY/proxy-init:VERSION",
    "FROM cr.l5d.io/linkerd/proxy:LINKERD_VERSION",
    "ARG CNI_VERSION=v1.6.2",
    // There is no release yet.
    "sha256sum --check --ignore-missing SHA256SUMS",
    "cosign verify-blob --bundle SHA256SUMS.sigstore.json \\",
    // A scenario of the agent's runs it on the node that there is.
    "kubectl debug node/NAME --profile=sysadmin --image=REGISTRY/proxy-init-cni:VERSION -- \\",
    // That is for many nodes.
    "kubectl patch daemonset -n linkerd-cni linkerd-cni \\",
    // The page runs it for one platform.
    "kubectl apply -k deploy/cni/overlays/NAME",
    // Readers are told the meaning of their output.
    r#"kubectl get pods,namespaces -A -o jsonpath='{range .items[*]}{.metadata.namespace}/{.metadata.name}{" "}{.metadata.annotations}{"\n"}{end}' |"#,
    r#"kubectl get pod emoji -n emojivoto -o jsonpath='{range .spec.initContainers[*]}{.name}{" "}{.image}{" "}{.command}{"\n"}{end}'"#,
    r#"kubectl get pods -A -o jsonpath='{range .items[*]}{range .spec.initContainers[?(@.name=="linkerd-init")]}{.image}{"\n"}{end}{end}' |"#,
    r#"kubectl patch deployment web -n emojivoto --type merge -p '{"spec": {"template": {"metadata": {"annotations": {"#,
    r#"kubectl rollout restart deployment,statefulset,daemonset -n emojivoto"#,
    r#"kubectl get pods -A -o jsonpath='{range .items[*]}{.metadata.namespace}/{.metadata.name}{" "}{.spec.initContainers[*].name}{" "}{.spec.containers[*].name}{"\n"}{end}' |"#,
    r#"kubectl logs -n emojivoto web -c linkerd-init | tail -1"#,
    r#"kubectl get secret linkerd-config-overrides -n linkerd \"#,
    r#"/opt/cni/bin/linkerd-cni --version"#,
    r#"kubectl rollout status -n linkerd-cni daemonset/linkerd-cni"#,
    // These are no commands.
    "- alert: MeshedPodsDoNotStart",
    "{",
];

/// What the pages call the namespace and the registry.
const NAMESPACE: &str = "emojivoto";
const REGISTRY: &str = "REGISTRY/";

/// What they call the image in whose place a substitute for linkerd-init runs here.
const LINKERDS: &str = "cr.l5d.io/linkerd/proxy-init";
const LINKERDS_VERSION: &str = "v2.4.3";

/// How often a command is repeated, at most, of whose output nothing was kept.
const MOST_REPEATS: u32 = 2;

/// The pages' scenarios; what is really said goes into this folder, for whoever has to bring a page up to date.
pub(crate) fn scenarios(folder: &Path) -> Vec<Scenario> {
    let name = |page| format!("what {page} says");
    let mut scenarios: Vec<_> = PAGES
        .map(|(page, begin, make_pods)| {
            let folder = folder.to_owned();
            Scenario::new(name(page), move |world| {
                make_pods(world)?;
                check(world, page, &folder, begin, |_| Ok(()))
            })
        })
        .into();
    scenarios.extend(NODES_PAGES.map(|(page, before, after)| {
        let folder = folder.to_owned();
        let try_it = move |world: &World<'_>| {
            cni::with_manifest(world, |agent| {
                before(agent, world)?;
                check(world, page, &folder, "", |command| after(command, world))
            })
        };
        Scenario::new(name(page), try_it).alone()
    }));
    scenarios
}

/// Runs a page's commands that begin so, and this after each, and compares what they print with the page.
fn check(
    world: &World<'_>,
    path: &str,
    folder: &Path,
    begin: &str,
    after: impl Fn(&str) -> Result<()>,
) -> Result<String> {
    all_are_run(&fs::read_to_string(root().join(path))?, begin)?;
    let page = Page {
        path,
        is_run: &|command| command.starts_with(begin),
        at_least: 1,
        is_same: |printed, said| matches(&words(printed), &words(said)),
    };
    let names = Names::of(world)?;
    page.check(folder, |command| {
        let printed = names.to_page(&names.run(world, &names.to_cluster(command))?);
        after(command)?;
        Ok(printed)
    })
}

/// Fails where a page has a block that is neither run nor among [`NOT_RUN`]. Commands that begin otherwise are run elsewhere.
fn all_are_run(page: &str, begin: &str) -> Result<()> {
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with("    ") {
            continue;
        }
        let rest = std::iter::from_fn(|| lines.next_if(|line| line.is_empty() || line.starts_with("    ")));
        let block: Vec<_> = [line].into_iter().chain(rest).map(str::trim_start).collect();
        let is_run_elsewhere = |command: &str| !command.starts_with(begin);
        let is_run = line.starts_with("    $ ") || block[0].strip_prefix("$ ").is_some_and(is_run_elsewhere);
        if !is_run && !NOT_RUN.contains(&block[0]) {
            return Err(format!("a block that no test runs begins with {:?}", block[0]).into());
        }
    }
    Ok(())
}

/// The pods of docs/debugging.md, after the same connections as in `cargo xtask pods`.
fn debugged(world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    for (name, _, meshed) in PODS {
        let mut object = pod::meshed(name, &pod::init(images::PROXY_INIT, &["--iptables-mode", "nft"]));
        if !meshed {
            object["spec"]["initContainers"] = json!([]);
        }
        let pod = Pod::create(kubectl, namespace, &object)?;
        pod.ready()?;
        pod.try_injected(&world.neighbour, meshed)?;
        if name == "shadowed" {
            pod.look(page::SHADOW)?;
        }
    }
    Ok(())
}

/// Those of docs/rollout.md: a pod and a Deployment that linkerd-init has set up, one that proxy-init has, and one that doesn't
/// start; and what Linkerd's CLI keeps of the values that it was given.
fn rolled_out(world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    let linkerd = rollout::linkerd_init();
    Pod::create(kubectl, namespace, &pod::meshed("emoji", &linkerd))?.ready()?;
    kubectl.create(namespace, &rollout::workload("Deployment", 1, &linkerd))?;
    rollout::wait_until_rolled(world, "deployment/web")?;
    let values = format!(
        "identity:\n  issuer: {{}}\nproxyInit:\n  image:\n    name: {LINKERDS}\n    version: {LINKERDS_VERSION}\n  iptablesMode: nft\n"
    );
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "linkerd-config-overrides"},
        "stringData": {"linkerd-config-overrides": values}});
    kubectl.create(namespace, &secret)?;
    let web = pod::meshed("web", &pod::init(images::PROXY_INIT, &["--iptables-mode", "nft"]));
    let mut voting = pod::meshed("voting", &web["spec"]["initContainers"][0]);
    let args = voting["spec"]["initContainers"][0]["args"].as_array_mut();
    args.ok_or("no arguments")?.push(json!("--inbound-ports-to-ignore=80s"));
    Pod::create(kubectl, namespace, &web)?.ready()?;
    let voting = Pod::create(kubectl, namespace, &voting)?;
    voting.ended(INIT)?;
    voting.warned("BackOff")
}

/// Those of docs/cni.md: one that works, one with an annotation of its own, and one whose annotation is wrong.
fn set_up(agent: &Agent<'_>, world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    let kubectl = &world.cluster.kubectl;
    agent.install()?;
    let annotated = |name: &str, ports: &str| {
        let mut pod = cni::injected(name);
        pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] = json!(ports);
        Pod::create(kubectl, namespace, &pod)
    };
    Pod::create(kubectl, namespace, &cni::injected("web"))?.ready()?;
    annotated("skipping", "8080")?.ready()?;
    annotated("voting", "80s")?.warned("FailedCreatePodSandBox")
}

/// The pod of docs/node.md that starts before the plugin is there, which the page installs.
fn started_early(_: &Agent<'_>, world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    let mut early = cni::injected("early");
    early["spec"]["initContainers"] = json!([cni::validator()]);
    Pod::create(&world.cluster.kubectl, namespace, &early)?.ended("linkerd-network-validator")?;
    Ok(())
}

/// Once the page's agent is there: the early pod is healed, another one starts, and somebody adds a rule to a third one's.
fn start_when_rolled(command: &str, world: &World<'_>) -> Result<()> {
    let namespace = world.namespace.as_str();
    if !command.starts_with("kubectl rollout status ") {
        return Ok(());
    }
    let kubectl = &world.cluster.kubectl;
    let early = Pod::new(kubectl, namespace, "early");
    early.ready()?;
    early.has_event("LinkerdCNIRepaired")?;
    for name in ["web", "changed"] {
        Pod::create(kubectl, namespace, &cni::injected(name))?.ready()?;
    }
    let changed = Pod::new(kubectl, namespace, "changed");
    changed.look("nft insert rule ip nat PROXY_INIT_OUTPUT tcp dport 5432 return")?;
    changed.warned("LinkerdCNIDrifted")?;
    wait_for("a look at each pod", || cni::metric(r#"linkerd_cni_agent_pods{standing="in_place"}"#) == Some(2))
}

/// A line's words: columns are as wide as addresses are long.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What has another name on the pages than here: the page's first, then the one here.
struct Names {
    namespace: String,
    pairs: Vec<(String, String)>,
}

impl Names {
    fn of(world: &World<'_>) -> Result<Self> {
        let namespace = world.namespace.as_str();
        let kubectl = &world.cluster.kubectl;
        let mut pairs = vec![
            (NAMESPACE.to_owned(), namespace.to_owned()),
            // Others run scenarios in this cluster, and it has no control plane of Linkerd's.
            ("get pods -A ".to_owned(), format!("get pods -n {namespace} ")),
            ("-n linkerd ".to_owned(), format!("-n {namespace} ")),
            (format!("{LINKERDS}:{LINKERDS_VERSION}"), images::LINKERD_INIT.to_owned()),
            (REGISTRY.to_owned(), "registry.example/".to_owned()),
            // As the scenarios change it; what this version of Kubernetes doesn't know of it, it leaves out.
            ("apply -k deploy/cni/".to_owned(), format!("apply --validate=false -k {}/", cni::CHANGED)),
            ("delete -k deploy/cni/".to_owned(), format!("delete -k {}/", cni::CHANGED)),
        ];
        let found = kubectl.json(&["get", "pods", "--namespace", namespace])?;
        let found = found["items"].as_array().cloned().unwrap_or_default();
        for (name, addresses, _) in PODS {
            if found.iter().any(|pod| pod["metadata"]["name"] == name) {
                let real = Pod::new(kubectl, namespace, name).addresses()?;
                pairs.extend(addresses.iter().zip(real).map(|(page, real)| (page.to_string(), real.to_string())));
            }
        }
        Ok(Self { namespace: namespace.to_owned(), pairs })
    }

    fn to_cluster(&self, text: &str) -> String {
        let replace = |text: String, (page, here): &(String, String)| text.replace(page, here);
        self.pairs.iter().fold(text.to_owned(), replace)
    }

    fn to_page(&self, text: &str) -> String {
        let replace = |text: String, (page, here): &(String, String)| text.replace(here, page);
        self.pairs.iter().fold(text.to_owned(), replace)
    }

    /// What a command line prints at a terminal. What a debug container has written is taken from its log: it may have ended
    /// before kubectl could attach.
    fn run(&self, world: &World<'_>, line: &str) -> Result<String> {
        let home = Path::new(NODE).join(&self.namespace);
        fs::create_dir_all(&home)?;
        let root = json!({"securityContext": {"runAsUser": 0, "runAsNonRoot": false}});
        fs::write(home.join("root.json"), root.to_string())?;
        let kubectl = &world.cluster.kubectl;
        let Some(debug) = line.strip_prefix("kubectl debug ") else {
            let mut shell = Command::new("sh");
            return shell.args(["-c", line]).envs(kubectl.environment()).read();
        };
        let words: Vec<_> = debug.split_whitespace().collect();
        let name = words.iter().skip_while(|word| **word != "-n").nth(2);
        let pod = Pod::new(kubectl, &self.namespace, name.ok_or("a command names no pod")?);
        let mut log = debug_output(world, line, &home, &pod)?;
        // Where a container ends at once, containerd 1.6 may close its terminal without having read it, and nothing is in the
        // pod's log ("Failed to pipe stdout of container …: file already closed" in containerd's).
        for _ in 0..MOST_REPEATS {
            if !log.is_empty() {
                break;
            }
            println!("again, because containerd kept nothing of what it wrote: {line}");
            log = debug_output(world, line, &home, &pod)?;
        }
        Ok(log)
    }
}

/// What is written by a command that `kubectl debug` runs in a debug container.
fn debug_output(world: &World<'_>, line: &str, home: &Path, pod: &Pod<'_>) -> Result<String> {
    // -it, from the page, needs a terminal. Its input stays open: an end that comes before kubectl has set the terminal up is read
    // as a zero byte, which the container's terminal echoes.
    let mut debugging = Command::new("script")
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .current_dir(home)
        .envs(world.cluster.kubectl.environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let input = debugging.stdin.take();
    debugging.wait_with_output()?;
    drop(input);
    let debugger = pod.until("has no debug container that ends", |pod| {
        let last = pod.pointer("/spec/ephemeralContainers")?.as_array()?.last()?;
        let statuses = pod.pointer("/status/ephemeralContainerStatuses")?.as_array()?;
        let ended = |status: &&Value| status["name"] == last["name"] && status.pointer("/state/terminated").is_some();
        Some(statuses.iter().find(ended)?["name"].as_str()?.to_owned())
    })?;
    let log = pod.logs(&debugger)?;
    // It has had a terminal, but what it writes is kept as the pod's log.
    if log.contains("\x1b[") {
        return Err(format!("{line} writes colours into the pod's log: {log:?}").into());
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_pages_is_run_or_known_not_to_be() {
        let pages = PAGES.map(|(page, begin, _)| (page, begin)).into_iter();
        let pages = pages.chain(NODES_PAGES.map(|(page, ..)| (page, "")));
        let pages: Vec<_> =
            pages.map(|(page, begin)| (fs::read_to_string(root().join(page)).unwrap(), begin)).collect();
        for (page, begin) in &pages {
            all_are_run(page, begin).unwrap();
            // In a list, a command is indented by more than those that are run.
            for new in ["    kubectl get nodes", "    proxy-init show", "      $ kubectl get pods"] {
                let with_new = format!("{page}\nFor example:\n\n{new}\n");
                let said = all_are_run(&with_new, begin).unwrap_err().to_string();
                assert!(said.contains(new.trim_start()), "{said}");
            }
        }
        for block in NOT_RUN {
            assert!(pages.iter().any(|(page, _)| page.contains(block)), "no page has {block}");
        }
    }
}
