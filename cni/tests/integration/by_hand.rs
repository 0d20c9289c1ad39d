//! Every verb in every version of the specification.

use std::process::Command;

use lab::linkerd::Flags;
use lab::network::Namespace;
use serde_json::{Value, json};

use crate::support::{Finished, Folder, PLUGIN, Run, assert_untouched, by_annotations, linkerds, meshed, saved};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The result of bridge and host-local in this version.
fn previous(version: &str) -> Value {
    let mut ip = json!({"address": "10.88.0.5/16", "gateway": "10.88.0.1", "interface": 2});
    let mut ip_of_6 = json!({"address": "fd00:88::5/64", "interface": 2});
    if version < "1" {
        (ip["version"], ip_of_6["version"]) = ("4".into(), "6".into());
    }
    json!({
        "cniVersion": version,
        "interfaces": [{"name": "cni0", "mac": "a6:8b:7d:2f:11:01"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [ip, ip_of_6],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {},
        "unknown": {"kept": [1.5, 18_446_744_073_709_551_615_u64, null]},
    })
}

fn in_version(version: &str) -> Value {
    let mut configuration = meshed();
    configuration["cniVersion"] = version.into();
    configuration
}

#[test]
fn every_version_has_its_verbs() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for version in VERSIONS {
        let configuration = in_version(version);
        let run = |verb: &str| Run::new(verb, &configuration, pod.path()).output(&node);
        for (verb, since) in
            [("ADD", "0.3.0"), ("CHECK", "0.4.0"), ("STATUS", "1.1.0"), ("GC", "0.3.0"), ("DEL", "0.3.0")]
        {
            if version < since {
                let message = run(verb).error(1);
                assert!(message.contains(verb) && message.contains(since), "{message}");
            } else {
                let printed = run(verb).success();
                assert_eq!(printed.is_empty(), verb != "ADD", "{verb}: {printed}");
            }
        }
        let supported = run("VERSION").result();
        assert_eq!(supported, json!({"cniVersion": version, "supportedVersions": VERSIONS}));
    }
    assert_untouched(&node);
}

#[test]
fn the_program_names_its_version_and_libraries() {
    let output = Command::new(PLUGIN.as_str()).arg("--version").output().unwrap();
    let said = Finished(output).success();
    assert!(
        said.starts_with(concat!("linkerd-cni ", env!("CARGO_PKG_VERSION"), " (commit "))
            && said.contains("libnftnl 1."),
        "{said}"
    );
}

/// And reads no configuration, which a terminal would never end.
#[test]
fn the_program_explains_itself() {
    for flag in ["--help", "-h", "help"] {
        let said = Finished(Command::new(PLUGIN.as_str()).arg(flag).output().unwrap()).success();
        assert!(said.contains("CNI_COMMAND") && said.contains("docs/cni.md"), "{said}");
        assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    }
}

#[test]
fn other_versions_are_refused_with_code_1() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for version in [json!("0.1.0"), json!("0.2.0"), json!("1.2.0"), json!(""), json!("1"), Value::Null] {
        for verb in ["ADD", "CHECK"] {
            let mut configuration = meshed();
            configuration["cniVersion"] = version.clone();
            let message = Run::new(verb, &configuration, pod.path()).output(&node).error(1);
            assert!(message.contains("0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{message}");
        }
    }
    assert_untouched(&pod);
}

#[test]
fn the_previous_result_passes_unchanged() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    for version in VERSIONS {
        let mut configuration = in_version(version);
        let add = |configuration: &Value| Run::new("ADD", configuration, pod.path()).output(&node).result();
        assert_eq!(add(&configuration), json!({"cniVersion": version}), "an empty result");
        configuration["prevResult"] = previous(version);
        assert_eq!(add(&configuration), previous(version));
        // Where the pod is none of the plugin's business too.
        configuration["runtimeConfig"] = json!({crate::support::POD_ANNOTATIONS: {}});
        assert_eq!(add(&configuration), previous(version));
        // In the version asked for.
        for other in VERSIONS {
            configuration["prevResult"] = previous(other);
            assert_eq!(add(&configuration), previous(version), "{other} in {version}");
        }
    }
}

#[test]
fn the_rules_are_linkerd_inits_and_a_second_add_leaves_the_same() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let want = linkerds(&Flags::default());
    for _ in 0..2 {
        Run::new("ADD", &meshed(), pod.path()).output(&node).success();
        assert_eq!(saved(&pod, "nft"), want);
        Run::new("CHECK", &meshed(), pod.path()).output(&node).success();
    }
    // Another configuration keeps the meaning of this one.
    let mut configuration = meshed();
    configuration["linkerd"]["proxy-uid"] = 7.into();
    configuration["linkerd"]["ipv6"] = false.into();
    Run::new("ADD", &configuration, pod.path()).output(&node).success();
    let flags = Flags { uid: Some(7), ipv6: false, ..Flags::default() };
    let saved = saved(&pod, "nft");
    assert_eq!(saved.matches("-A ").count(), linkerds(&flags).matches("-A ").count());
    assert!(saved.contains("--uid-owner 7 "), "{saved}");
    assert_untouched(&node);
}

#[test]
fn a_pod_that_is_not_the_meshs_is_left_alone() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let add = |configuration: &Value, arguments: &str| {
        let run = Run::new("ADD", configuration, pod.path()).with("CNI_ARGS", arguments);
        run.output(&node).result()
    };
    // No pod at all: the caller is not Kubernetes, and needs neither annotations nor the proxy's ports.
    for arguments in ["", "IgnoreUnknown=1", "IgnoreUnknown=1;K8S_POD_UID=6", "K8S_POD_NAMESPACE=shop"] {
        let bare = json!({"cniVersion": "1.0.0", "name": "net", "type": "linkerd-cni"});
        assert_eq!(add(&bare, arguments), json!({"cniVersion": "1.0.0"}));
        assert_eq!(add(&meshed(), arguments), json!({"cniVersion": "1.1.0"}));
    }
    for annotations in [json!({}), Value::Null, json!({"config.linkerd.io/proxy-uid": "not read"})] {
        add(&by_annotations(annotations), crate::support::ARGS);
    }
    assert_untouched(&pod);
}

#[test]
fn del_and_gc_succeed_whatever_there_is() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    Run::new("ADD", &meshed(), pod.path()).output(&node).success();
    let before = saved(&pod, "nft");
    for verb in ["DEL", "GC"] {
        let run = Run::new(verb, &meshed(), pod.path());
        let runs = [
            run.clone(),
            run.clone(),
            run.clone().with("CNI_NETNS", ""),
            run.clone().without("CNI_NETNS"),
            run.clone().with("CNI_NETNS", "/run/netns/gone"),
            run.clone().with("CNI_NETNS", "/proc/self/ns/net"),
            run.clone().stdin(""),
            run.clone().stdin("no JSON"),
            run.clone().stdin(json!({"cniVersion": "0.2.0", "linkerd": 7}).to_string()),
            run.clone().with("CNI_ARGS", "nonsense"),
            run.without("CNI_CONTAINERID").without("CNI_IFNAME"),
        ];
        for run in runs {
            let finished = run.output(&node);
            assert_eq!((finished.success(), finished.stderr()), (String::new(), String::new()), "{run:?}");
        }
    }
    assert_eq!(saved(&pod, "nft"), before);
    assert_untouched(&node);
}

/// On a node without iptables.
#[test]
fn no_fallback_is_a_key_of_the_configuration() {
    let node = Namespace::new();
    let mut configuration = meshed();
    configuration["linkerd"]["iptables-mode"] = "legacy".into();
    let add = |configuration: &Value, pod: &Namespace| {
        let run = Run::new("ADD", configuration, pod.path());
        run.under(&["env", "PATH=/nonexistent"]).output(&node)
    };
    let pod = Namespace::new();
    let added = add(&configuration, &pod);
    added.success();
    let words = "iptables-legacy-restore is not on PATH";
    assert!(added.stderr().contains(words), "{}", added.stderr());
    assert!(saved(&pod, "nft").contains("PROXY_INIT_OUTPUT"));

    configuration["linkerd"]["no-fallback"] = true.into();
    let pod = Namespace::new();
    let message = add(&configuration, &pod).error(100);
    assert!(message.contains(words), "{message}");
    assert_untouched(&pod);
}

/// With `hostUsers: false`, by the node's user: native mode, and nothing of the plugin's is in the pod's user namespace,
/// where the pod could look into it.
#[test]
fn a_pod_with_users_of_its_own_gets_native_mode_from_outside() {
    let folder = Folder::new();
    let trace = folder.path().join("trace");
    let output = format!("--output={}", trace.display());
    let strace = ["strace", "--follow-forks", "--trace=%process,setns", &output];
    for mode in ["nft", "legacy", "native", "auto"] {
        let (node, pod) = (Namespace::new(), Namespace::of_user_namespace(200_000));
        let mut configuration = meshed();
        configuration["linkerd"]["iptables-mode"] = mode.into();
        for verb in ["ADD", "ADD", "CHECK"] {
            let done = Run::new(verb, &configuration, pod.path()).under(&strace).output(&node);
            done.success();
            let reason = "the network namespace belongs to another user namespace";
            let says_why = mode == "native" || done.stderr().contains(reason);
            // Auto mode goes by the rules that are there.
            assert!(says_why || verb == "CHECK" || mode == "auto", "{mode}: {}", done.stderr());
            let calls = std::fs::read_to_string(&trace).unwrap();
            assert!(calls.contains("CLONE_NEWNET"), "{calls}");
            assert!(!calls.contains("CLONE_NEWUSER"), "{mode} {verb}: {calls}");
            let is_made = |line: &&str| ["clone(", "clone3(", "fork("].iter().any(|call| line.contains(call));
            assert_eq!(calls.lines().filter(is_made).count(), 0, "{mode} {verb}: {calls}");
        }
        // The pod's own id.
        let rules = pod.sh("nft list ruleset");
        assert!(rules.contains("meta skuid 2102 counter"), "{mode}: {rules}");
        assert!(!saved(&pod, "legacy").contains("PROXY_INIT"), "{mode}");
    }
    let mut configuration = meshed();
    configuration["linkerd"]["no-fallback"] = true.into();
    let (node, pod) = (Namespace::new(), Namespace::of_user_namespace(200_000));
    let message = Run::new("ADD", &configuration, pod.path()).output(&node).error(100);
    assert!(message.contains("use native mode"), "{message}");
    assert_untouched(&pod);
}

#[test]
fn check_says_what_differs() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let check = || Run::new("CHECK", &meshed(), pod.path()).output(&node);
    let message = check().error(101);
    assert!(message.contains("all 8 rules are missing"), "{message}");

    Run::new("ADD", &meshed(), pod.path()).output(&node).success();
    check().success();
    pod.sh("ip6tables-nft -t nat -D PROXY_INIT_OUTPUT 1");
    let message = check().error(101);
    assert!(message.contains("--uid-owner 2102") && message.contains("IPv6"), "{message}");
    Run::new("ADD", &meshed(), pod.path()).output(&node).success();
    check().success();

    // Rules ahead of the plugin's own take connections away.
    pod.sh("iptables-nft -t nat -I OUTPUT -p tcp --dport 80 -j ACCEPT");
    let message = check().error(101);
    assert!(message.contains("dport 80"), "{message}");
}

/// Of a pod that upstream's plugin has set up, by iptables commands.
#[test]
fn check_passes_after_an_upgrade_from_upstreams_plugin() {
    let node = Namespace::new();
    for mode in ["nft", "legacy"] {
        let pod = Namespace::new();
        Flags::default().add_with_iptables(&pod, mode);
        for configured in [mode, "auto"] {
            let mut configuration = meshed();
            configuration["linkerd"]["iptables-mode"] = configured.into();
            Run::new("CHECK", &configuration, pod.path()).output(&node).success();
        }
        // Its configuration may have changed since.
        Run::new("CHECK", &meshed(), pod.path()).output(&node).success();
    }
}

#[test]
fn every_mode_installs_in_its_place() {
    let node = Namespace::new();
    for (mode, place) in [
        (json!("nft"), "nft"),
        (json!("auto"), "nft"),
        (json!("native"), "native"),
        (json!("legacy"), "legacy"),
        (json!("iptables"), "legacy"),
        (json!(""), "legacy"),
        (Value::Null, "legacy"),
    ] {
        let pod = Namespace::new();
        let mut configuration = meshed();
        configuration["linkerd"]["iptables-mode"] = mode.clone();
        Run::new("ADD", &configuration, pod.path()).output(&node).success();
        Run::new("CHECK", &configuration, pod.path()).output(&node).success();
        let native = pod.sh("nft list tables").contains("inet proxy-init");
        assert_eq!(native, place == "native", "{mode}");
        if place != "native" {
            let rules = pod.stdout(&format!("iptables-{place}-save"), ["-t", "nat"]);
            assert!(rules.contains("proxy-init/redirect-all-outgoing-to-proxy-port"), "{mode}: {rules}");
        }
    }
}

#[test]
fn simulating_prints_the_rules_and_installs_none() {
    let (node, pod) = (Namespace::new(), Namespace::new());
    let mut configuration = meshed();
    configuration["linkerd"]["simulate"] = true.into();
    let finished = Run::new("ADD", &configuration, pod.path()).output(&node);
    assert_eq!(finished.result(), json!({"cniVersion": "1.1.0"}));
    assert!(finished.stderr().contains("--uid-owner 2102"), "{}", finished.stderr());
    Run::new("CHECK", &configuration, pod.path()).output(&node).success();
    assert_untouched(&pod);
}

#[test]
fn the_control_plane_does_not_redirect_its_way_to_the_api_server() {
    let node = Namespace::new();
    let in_namespace = "IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=";
    let rules = |configuration: &Value, namespace: &str| {
        let pod = Namespace::new();
        let run = Run::new("ADD", configuration, pod.path());
        run.with("CNI_ARGS", format!("{in_namespace}{namespace}")).output(&node).success();
        saved(&pod, "nft")
    };
    let skipping = |outbound: &[(u16, u16)]| linkerds(&Flags { outbound: outbound.to_vec(), ..Flags::default() });
    let own = [(4567, 4567), (4568, 4568)];
    let with = |more: &[(u16, u16)]| skipping(&[&own, more].concat());
    let configuration = meshed();
    assert_eq!(rules(&configuration, "shop"), with(&[]));
    assert_eq!(rules(&configuration, "linkerd"), with(&[(443, 443), (6443, 6443)]));

    let mut configuration = meshed();
    configuration["linkerd"]["control-plane-namespace"] = "mesh".into();
    configuration["linkerd"]["api-server-ports"] = json!(["16443", "9000-9010"]);
    assert_eq!(rules(&configuration, "linkerd"), with(&[]));
    assert_eq!(rules(&configuration, "mesh"), with(&[(16443, 16443), (9000, 9010)]));
}

#[test]
fn status_is_about_the_configuration_the_kubeconfig_and_the_kernel() {
    let node = Namespace::new();
    let status = |configuration: &Value| Run::new("STATUS", configuration, "").output(&node);
    status(&meshed()).success();
    for mode in ["native", "legacy", "auto"] {
        let mut configuration = meshed();
        configuration["linkerd"]["iptables-mode"] = mode.into();
        status(&configuration).success();
    }

    let mut talkative = meshed();
    talkative["log_level"] = "info".into();
    let line = status(&talkative).stderr();
    for words in ["rules in nft mode", "hostUsers: false gets native mode from outside"] {
        assert!(line.contains(words), "{line}");
    }

    let mut broken = meshed();
    broken["linkerd"]["proxy-uid"] = "root".into();
    let message = status(&broken).error(50);
    assert!(message.contains("linkerd.proxy-uid"), "{message}");
    let mut without_port = meshed();
    without_port["linkerd"] = json!({"pod-info": "annotations"});
    assert!(status(&without_port).error(50).contains("incoming-proxy-port"));

    let folder = Folder::new();
    let kubeconfig = folder.path().join("kubeconfig");
    let by_api = crate::support::by_api(&kubeconfig);
    let message = status(&by_api).error(50);
    assert!(message.contains(kubeconfig.to_str().unwrap()), "{message}");
    std::fs::write(&kubeconfig, "clusters: []").unwrap();
    assert!(status(&by_api).error(50).contains("context"));

    // A node that lets it make no namespace.
    let message = Run::new("STATUS", &meshed(), "")
        .under(&["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
        .output(&node)
        .error(50);
    assert!(message.contains("EPERM"), "{message}");
    assert_untouched(&node);
}

/// A kernel without nf_tables answers a netlink socket of netfilter's with EPROTONOSUPPORT.
#[test]
fn status_says_that_the_kernel_has_no_backend() {
    let node = Namespace::new();
    let mut configuration = meshed();
    configuration["linkerd"]["iptables-mode"] = "native".into();
    let message = Run::new("STATUS", &configuration, "")
        .under(&[
            "strace",
            "--follow-forks",
            "--output=/dev/null",
            "--trace=socket",
            "--inject=socket:error=EPROTONOSUPPORT",
        ])
        .output(&node)
        .error(50);
    assert!(message.contains("EPROTONOSUPPORT"), "{message}");
}
