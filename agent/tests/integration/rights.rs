//! Compares the roles in deploy/cni with the requests of agent and plugin: they allow these, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use lab::api_double::Asked;
use lab::network::Namespace;
use linkerd_cni::api::Client;
use linkerd_cni::kubeconfig::Kubeconfig;
use pod::PodName;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Sandbox};
use crate::deploy;
use crate::node::{CALICO, KUBECONFIG, Node, until_within};
use crate::watch::{rules, running, uid};

/// A bound against hanging.
const LIMIT: Duration = Duration::from_secs(60);

/// A right on one kind of object: in one namespace, or in all; on one name, or on any.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: Option<String>,
    verb: String,
    group: String,
    resource: String,
    name: Option<String>,
}

impl Right {
    fn allows(&self, asked: &Asked) -> bool {
        let is = |wanted: &Option<String>, given: &str| wanted.as_ref().is_none_or(|wanted| wanted == given);
        is(&self.namespace, &asked.namespace)
            && is(&self.name, &asked.name)
            && (&self.verb, &self.group, &self.resource) == (&asked.verb, &asked.group, &asked.resource)
    }
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// The rights of the agent's account, by kustomize's objects. Every role has to be bound to the account.
fn rights(objects: &[Value]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for role in objects {
        let kind = role["kind"].as_str().unwrap();
        if !["Role", "ClusterRole"].contains(&kind) {
            continue;
        }
        let name = &role["metadata"]["name"];
        let is_binding = |object: &&Value| {
            object["kind"] == format!("{kind}Binding")
                && object["roleRef"]["kind"] == kind
                && object["roleRef"]["name"] == *name
        };
        let binding = objects.iter().find(is_binding).unwrap_or_else(|| panic!("{name} is not bound"));
        let account = json!({"kind": "ServiceAccount", "name": "linkerd-cni", "namespace": "linkerd-cni"});
        assert_eq!(binding["subjects"], json!([account]));
        for rule in role["rules"].as_array().unwrap() {
            let mut names: Vec<Option<String>> = texts(&rule["resourceNames"]).into_iter().map(Some).collect();
            if names.is_empty() {
                names.push(None);
            }
            for verb in texts(&rule["verbs"]) {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for name in &names {
                            rights.insert(Right {
                                namespace: (kind == "Role").then(|| "linkerd-cni".to_owned()),
                                verb: verb.clone(),
                                group: group.clone(),
                                resource: resource.clone(),
                                name: name.clone(),
                            });
                        }
                    }
                }
            }
        }
    }
    rights
}

/// Has agent and plugin do all that takes a right, as these objects have them; what they asked for.
fn asked(name: &str, objects: &[Value]) -> BTreeSet<Asked> {
    let node = Node::new();
    let cluster = Cluster::start(&node);
    node.write("10-calico.conflist", CALICO);
    cluster.taint(&json!([{"key": "linkerd.io/cni-not-ready", "effect": "NoSchedule"}]));
    let arguments = deploy::set(objects).spec.template.spec.unwrap().containers.remove(0).args;
    let arguments = arguments.unwrap();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = node.command_of(&cluster, &arguments);
    command.env("CNI_NETWORK_CONFIG", deploy::entry(objects).to_string()).env("LINKERD_CNI_AGENT_VERIFY_EVERY", "1");
    let agent = node.start(command);
    let has_noted = |reason: &str, times: usize| {
        let count = || cluster.notes().iter().filter(|(one, _)| one == reason).count();
        until_within(LIMIT, &format!("there is an event {reason}"), || count() >= times);
    };
    // Pods of the control plane and others: one is healed, and then another program takes a part of its rules away, and adds one.
    let (network, uid_of_pod) = (Namespace::new(), uid());
    let _sandbox = Sandbox::of(&uid_of_pod, &network);
    cluster.pod_with("web-0", &uid_of_pod, running(), |pod| {
        pod["metadata"]["labels"]["linkerd.io/control-plane-component"] = json!("destination");
        pod["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "edge"});
    });
    has_noted("LinkerdCNIRepaired", 1);
    network.sh("iptables-nft -t nat -F PROXY_INIT_OUTPUT");
    has_noted("LinkerdCNIRepaired", 2);
    network.sh("iptables-nft -t nat -I PREROUTING -p tcp --dport 80 -j ACCEPT");
    has_noted("LinkerdCNIDrifted", 1);
    assert!(rules(&network).contains("--to-ports 4140"));
    if name == "taint" {
        until_within(LIMIT, "the taint is gone", || cluster.node()["taints"] == json!([]));
    }
    if name == "api" {
        let kubeconfig = node.net(KUBECONFIG);
        until_within(LIMIT, "there is a kubeconfig", || kubeconfig.exists());
        let pod = PodName::new("shop", "web-0").unwrap();
        node.network.run_here(|| Client::new(Kubeconfig::read(&kubeconfig).unwrap()).pod(&pod)).unwrap();
    } else {
        assert!(!node.net(KUBECONFIG).exists());
    }
    agent.terminate();
    cluster.asked()
}

#[test]
fn every_right_is_used_and_none_is_missing() {
    std::thread::scope(|scope| {
        for name in ["base", "api", "taint"] {
            scope.spawn(move || {
                let objects = if name == "base" { deploy::base() } else { deploy::with_component(name) };
                let (rights, asked) = (rights(&objects), asked(name, &objects));
                let refused: Vec<&Asked> =
                    asked.iter().filter(|asked| !rights.iter().any(|it| it.allows(asked))).collect();
                assert!(refused.is_empty(), "{name}: no role allows {refused:#?}");
                let unused: Vec<&Right> =
                    rights.iter().filter(|it| !asked.iter().any(|asked| it.allows(asked))).collect();
                assert!(unused.is_empty(), "{name}: nothing needs {unused:#?}");
            });
        }
    });
}
