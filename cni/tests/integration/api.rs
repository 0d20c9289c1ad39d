//! The plugin's questions to the API server, and its reactions to bad answers.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use lab::api_double::{ApiServer, Plan, Pod};
use lab::linkerd::Flags;
use lab::network::Namespace;

use crate::support::{Finished, Folder, Run, assert_untouched, by_api, linkerds, saved};

/// A node with an API server, and a container.
struct Lab {
    node: Namespace,
    pod: Namespace,
    server: ApiServer,
    folder: Folder,
}

const POD: &str = "/api/v1/namespaces/shop/pods/web";
const NAMESPACE: &str = "/api/v1/namespaces/shop";
const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";

const MESHED: Pod<'_> = Pod {
    annotations: &[],
    labels: &[],
    containers: &["app", "linkerd-proxy"],
    init_containers: &["migrate"],
    namespace: &[],
};

impl Lab {
    fn new(pod: &Pod<'_>) -> Self {
        let node = Namespace::new();
        let server = ApiServer::start(node.run(|| TcpListener::bind("127.0.0.1:0").unwrap()));
        server.add_pod("shop", "web", pod);
        let lab = Self { server, pod: Namespace::new(), node, folder: Folder::new() };
        lab.server.kubeconfig(lab.folder.path(), "good-token");
        lab
    }

    fn run(&self, verb: &str) -> Run {
        let kubeconfig = self.folder.path().join("ZZZ-linkerd-cni-kubeconfig");
        Run::new(verb, &by_api(&kubeconfig), self.pod.path())
    }

    fn add(&self) -> Finished {
        self.run("ADD").output(&self.node)
    }

    fn saved(&self) -> String {
        saved(&self.pod, "nft")
    }
}

/// An address on which nothing listens: nothing else is in the namespace.
fn free_address(node: &Namespace, address: &str) -> SocketAddr {
    let address: IpAddr = address.parse().unwrap();
    node.run(|| TcpListener::bind((address, 0)).unwrap().local_addr().unwrap())
}

#[test]
fn the_nodes_agent_starts_whatever_the_api_server_says() {
    let lab = Lab::new(&MESHED);
    lab.server.plan_for_ever(Some(Plan::Answer(401, "")));
    let mut configuration = by_api(&lab.folder.path().join("ZZZ-linkerd-cni-kubeconfig"));
    configuration["linkerd"]["agent"] = "linkerd-cni/linkerd-cni".into();
    for (namespace, name, is_agent) in [
        ("linkerd-cni", "linkerd-cni-x2z9q", true),
        ("linkerd-cni", "linkerd-cni", false),
        ("linkerd-cni", "linkerd-cni-other-x2z9q", false),
        ("linkerd-cni", "linkerd-cni-x2z9qq", false),
        ("shop", "linkerd-cni-x2z9q", false),
    ] {
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        let run = Run::new("ADD", &configuration, lab.pod.path()).with("CNI_ARGS", arguments);
        let finished = run.output(&lab.node);
        if is_agent {
            finished.success();
            assert_eq!(lab.server.requests().len(), 0);
        } else {
            finished.error(104);
        }
        assert_untouched(&lab.pod);
    }
}

#[test]
fn a_pod_is_meshed_by_its_containers() {
    let redirected = linkerds(&Flags::default());
    for (containers, init_containers, meshed) in [
        (&["app", "linkerd-proxy"][..], &[][..], true),
        // A native sidecar.
        (&["app"], &["linkerd-network-validator", "linkerd-proxy"], true),
        (&["app"], &[], false),
        (&["linkerd-init"], &["proxy"], false),
        (&["app", "linkerd-proxy"], &["linkerd-init"], false),
        (&["app"], &["linkerd-init", "linkerd-proxy"], false),
    ] {
        let lab = Lab::new(&Pod { containers, init_containers, ..MESHED });
        lab.add().success();
        if meshed {
            assert_eq!(lab.saved(), redirected);
            assert_eq!(lab.server.requests(), [POD, NAMESPACE], "one namespace request, and no other");
            assert_eq!(lab.server.connections(), 1);
        } else {
            assert_untouched(&lab.pod);
            assert_eq!(lab.server.requests(), [POD]);
        }
        lab.run("CHECK").output(&lab.node).success();
    }
}

#[test]
fn annotations_of_the_pod_come_before_its_namespaces() {
    let lab = Lab::new(&Pod {
        annotations: &[("config.linkerd.io/skip-outbound-ports", "3306, 5000"), ("config.linkerd.io/proxy-uid", "")],
        namespace: &[
            ("config.linkerd.io/skip-outbound-ports", "not read"),
            ("config.linkerd.io/skip-inbound-ports", "8000-8100"),
            ("config.linkerd.io/skip-subnets", "10.0.0.0/8,fd00::/8"),
            ("config.linkerd.io/proxy-uid", "7"),
            ("config.linkerd.io/proxy-gid", "8"),
        ],
        ..MESHED
    });
    lab.add().success();
    let mut flags = Flags {
        uid: Some(7),
        gid: Some(8),
        outbound: vec![(3306, 3306), (5000, 5000)],
        inbound_subnets: vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()],
        ..Flags::default()
    };
    flags.inbound.push((8000, 8100));
    assert_eq!(lab.saved(), linkerds(&flags));
    lab.run("CHECK").output(&lab.node).success();
}

#[test]
fn a_bad_annotation_of_the_namespace_is_the_namespaces() {
    let lab = Lab::new(&Pod { namespace: &[("config.linkerd.io/skip-inbound-ports", "80;443")], ..MESHED });
    let message = lab.add().error(102);
    assert!(message.contains("namespace shop") && message.contains("\"80;443\""), "{message}");
    assert_untouched(&lab.pod);
}

#[test]
fn the_control_plane_skips_the_ports_of_the_api_servers_service() {
    let component = Pod { labels: &[("linkerd.io/control-plane-component", "destination")], ..MESHED };
    let outbound = |more: &[u16]| {
        let ports = [4567, 4568].into_iter().chain(more.iter().copied());
        linkerds(&Flags { outbound: ports.map(|port| (port, port)).collect(), ..Flags::default() })
    };
    let lab = Lab::new(&component);
    // By name, by number, and without a target port: upstream's plugin ignores port 0 then.
    let service = serde_json::json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"ports": [
            {"port": 443, "targetPort": 16443},
            {"port": 8132, "targetPort": "konnectivity"},
            {"port": 9443},
        ]},
    });
    lab.server.add("namespaces/default/services/kubernetes", service);
    lab.add().success();
    assert_eq!(lab.server.requests(), [POD, NAMESPACE, SERVICE]);
    assert_eq!(lab.saved(), outbound(&[443, 16443, 8132, 9443]));

    // This object can't be read.
    let lab = Lab::new(&component);
    let finished = lab.add();
    finished.success();
    assert!(finished.stderr().contains("linkerd.api-server-ports are skipped instead"), "{}", finished.stderr());
    assert_eq!(lab.saved(), outbound(&[443, 6443]));
}

#[test]
fn a_pod_that_is_not_there_is_an_error_at_once() {
    let lab = Lab::new(&MESHED);
    let start = Instant::now();
    let run = lab.run("ADD").with("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=gone");
    let message = run.output(&lab.node).error(103);
    assert!(message.contains("pod shop/gone") && message.contains("404"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(lab.server.requests(), ["/api/v1/namespaces/shop/pods/gone"]);
    assert_untouched(&lab.pod);
}

#[test]
fn what_may_pass_is_tried_again() {
    for plans in [
        vec![Plan::Answer(500, ""), Plan::Answer(503, ""), Plan::Answer(504, "")],
        vec![Plan::Answer(429, "Retry-After: 1\r\n")],
        vec![Plan::Answer(429, ""), Plan::Drop],
        vec![Plan::Drop, Plan::Drop],
        vec![Plan::Half],
        vec![Plan::Late(Duration::from_secs(2))],
    ] {
        let lab = Lab::new(&MESHED);
        lab.server.plan(plans.clone());
        let start = Instant::now();
        lab.add().success();
        assert_eq!(lab.saved(), linkerds(&Flags::default()), "{plans:?}");
        if matches!(plans.first(), Some(Plan::Answer(429, header)) if !header.is_empty()) {
            assert!(start.elapsed() >= Duration::from_secs(1), "Retry-After counts");
        }
    }
}

#[test]
fn what_does_not_pass_is_an_error_at_once() {
    for (plan, words) in [
        (Plan::Answer(400, ""), "the double's words for 400"),
        (Plan::Answer(403, ""), "service account"),
        (Plan::Answer(302, "Location: https://127.0.0.1:1/\r\n"), "302"),
        (Plan::Body(200, "{\"metadata\": 7}".to_owned()), "makes no sense"),
        (Plan::Body(200, "no JSON".to_owned()), "makes no sense"),
        (Plan::Body(200, String::new()), "makes no sense"),
    ] {
        let lab = Lab::new(&MESHED);
        lab.server.plan_for_ever(Some(plan.clone()));
        let message = lab.add().error(104);
        assert!(message.contains(words) && message.contains("pod shop/web"), "{plan:?}: {message}");
        assert_eq!(lab.server.requests().len(), 1, "{plan:?}");
        assert_untouched(&lab.pod);
    }
}

/// Otherwise it would be a pod without linkerd-proxy, and would start without its mesh.
#[test]
fn an_answer_that_is_not_the_pod_is_an_error() {
    let metadata = |more: &str| format!("{{\"metadata\": {{\"namespace\": \"shop\", \"name\": \"web\"}}{more}}}");
    let spec = r#""spec": {"containers": [{"name": "linkerd-proxy"}]}"#;
    for (body, words) in [
        ("{}".to_owned(), "metadata.name null"),
        (format!("{{\"metadata\": null, {spec}}}"), "metadata"),
        (format!("{{\"metadata\": {{\"name\": \"web\"}}, {spec}}}"), "metadata.namespace null"),
        (metadata(&format!(", {spec}")).replace("web", "other"), "metadata.name \"other\""),
        (metadata(&format!(", {spec}")).replace("shop", "other"), "metadata.namespace \"other\""),
        (metadata(&format!(", \"kind\": \"Secret\", {spec}")), "Secret"),
        (metadata(""), "no containers"),
        (metadata(", \"spec\": null"), "no containers"),
        (metadata(", \"spec\": {}"), "no containers"),
        (metadata(", \"spec\": {\"containers\": null}"), "no containers"),
        (metadata(", \"spec\": {\"containers\": []}"), "no containers"),
        (metadata(", \"spec\": {\"containers\": [{}]}"), "without a name"),
        (
            metadata(", \"spec\": {\"containers\": \"hunter2\"}"),
            "a value of another kind was expected, at line 1 and column",
        ),
    ] {
        let lab = Lab::new(&MESHED);
        lab.server.plan_for_ever(Some(Plan::Body(200, body.clone())));
        let message = lab.add().error(104);
        assert!(
            message.starts_with("pod shop/web: the API server's answer makes no sense: ") && message.contains(words),
            "{body}: {message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
        assert_untouched(&lab.pod);
    }
    // The namespace's answer.
    let lab = Lab::new(&MESHED);
    lab.server.add("namespaces/shop", serde_json::json!({"metadata": {"name": "other"}}));
    let message = lab.add().error(104);
    assert!(message.starts_with("namespace shop: ") && message.contains("metadata.name \"other\""), "{message}");
    assert_untouched(&lab.pod);
    // The service's answer is not needed.
    let lab = Lab::new(&Pod { labels: &[("linkerd.io/control-plane-component", "destination")], ..MESHED });
    let service = serde_json::json!({"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {}});
    lab.server.add("namespaces/default/services/kubernetes", service);
    let finished = lab.add();
    finished.success();
    let stderr = finished.stderr();
    assert!(stderr.contains("no ports; linkerd.api-server-ports"), "{stderr}");
}

#[test]
fn the_token_is_read_each_time() {
    let lab = Lab::new(&MESHED);
    lab.add().success();
    // It expires, and the kubeconfig has the old one for a while.
    lab.server.expect_token("next-token");
    let message = lab.add().error(104);
    assert!(message.contains("401") && message.contains("expired"), "{message}");
    let advice = "is the agent running on this node? kubectl get pods -n linkerd-cni -o wide";
    assert!(message.contains(advice), "{message}");
    assert!(!message.contains("good-token"), "{message}");
    lab.server.kubeconfig(lab.folder.path(), "next-token");
    lab.add().success();
}

/// Each way in which the API server can be away takes ten seconds, so they are away at the same time.
#[test]
fn the_api_server_has_ten_seconds_in_all() {
    let plans = [
        Some(Plan::Hang),
        Some(Plan::Drop),
        Some(Plan::Answer(503, "")),
        Some(Plan::Late(Duration::from_secs(30))),
        Some(Plan::Drip),
        None,
    ];
    let labs = plans.map(|plan| {
        let refused = plan.is_none();
        let lab = Lab::new(&MESHED);
        lab.server.plan_for_ever(plan);
        if refused {
            let silent = ApiServer::new(free_address(&lab.node, "127.0.0.1"));
            silent.kubeconfig(lab.folder.path(), "good-token");
        }
        let start = Instant::now();
        let child = lab.run("ADD").spawn(&lab.node);
        (lab, child, start)
    });
    for (lab, child, start) in labs {
        let message = Finished(child.wait_with_output().unwrap()).error(11);
        assert!(message.contains("no usable answer within 10 s: ") && message.contains("try again later"), "{message}");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(12), "{took:?}: {message}");
        assert_untouched(&lab.pod);
        lab.run("DEL").output(&lab.node).success();
    }
}

#[test]
fn a_server_that_asks_for_more_time_than_there_is_gets_it_by_the_runtime() {
    let lab = Lab::new(&MESHED);
    lab.server.plan_for_ever(Some(Plan::Answer(429, "Retry-After: 60\r\n")));
    let start = Instant::now();
    let message = lab.add().error(11);
    let want = "the API server answered 429 Too Many Requests: the double's words for 429, and asks for 60 s of rest";
    assert!(message.contains(want) && !message.contains("within"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_server_that_comes_back_is_found() {
    let node = Namespace::new();
    let server = ApiServer::new(free_address(&node, "127.0.0.1"));
    server.add_pod("shop", "web", &MESHED);
    let folder = Folder::new();
    let pod = Namespace::new();
    let kubeconfig = server.kubeconfig(folder.path(), "good-token");
    let child = Run::new("ADD", &by_api(&kubeconfig), pod.path()).spawn(&node);
    std::thread::sleep(Duration::from_secs(2));
    server.listen(node.run(|| TcpListener::bind(server.address()).unwrap()));
    Finished(child.wait_with_output().unwrap()).success();
    assert_eq!(saved(&pod, "nft"), linkerds(&Flags::default()));
}

#[test]
fn the_server_proves_who_it_is_unless_the_kubeconfig_says_otherwise() {
    let lab = Lab::new(&MESHED);
    let port = lab.server.address().port();
    let other = ApiServer::new(free_address(&lab.node, "127.0.0.1"));
    let authority = lab.folder.path().join("ca.crt");
    std::fs::write(&authority, other.authority()).unwrap();
    let write = |host: &str, tls: &str| {
        let server = format!("{host}:{port}");
        lab.server.kubeconfig_with(lab.folder.path(), "good-token", &server, tls);
    };
    // Another authority's certificate.
    write("127.0.0.1", "certificate-authority: ca.crt");
    let message = lab.add().error(104);
    assert!(message.contains("ertificate"), "{message}");
    assert_eq!(lab.server.requests().len(), 0, "the token went to a server that proved nothing");
    // Its own certificate, for another name.
    std::fs::write(&authority, lab.server.authority()).unwrap();
    lab.node.sh("ip address add 127.0.0.2/8 dev lo");
    lab.add().success();
    // An address in brackets, as the installer wrote it for a while.
    write("[127.0.0.1]", "certificate-authority: ca.crt");
    lab.add().success();
    write("127.0.0.1", "insecure-skip-tls-verify: true");
    lab.add().success();
    write("127.0.0.1", "proxy-url: http://nowhere");
    let message = lab.add().error(105);
    assert!(message.contains("has proxy-url, which"), "{message}");
    write("127.0.0.1", "disable-compression: true");
    let message = lab.add().error(105);
    assert!(message.contains("certificate-authority-data"), "{message}");
}

/// As for upstream's plugin, by Go's crypto/x509.
#[test]
fn an_authority_that_may_not_sign_is_not_trusted() {
    let lab = Lab::new(&MESHED);
    for (authority, words) in
        [(ApiServer::expired as fn(SocketAddr) -> ApiServer, "expired"), (ApiServer::signed_by_a_leaf, "CA:TRUE")]
    {
        let server = authority(free_address(&lab.node, "127.0.0.1"));
        server.add_pod("shop", "web", &MESHED);
        server.listen(lab.node.run(|| TcpListener::bind(server.address()).unwrap()));
        server.kubeconfig(lab.folder.path(), "good-token");
        let message = lab.add().error(105);
        assert!(message.contains("certificate-authority-data") && message.contains(words), "{message}");
        assert!(lab.run("STATUS").output(&lab.node).error(50).contains(words));
        assert_eq!(server.connections(), 0);
    }
}

/// 12 MiB of memory, whatever the answer is.
#[test]
fn an_answer_takes_little_memory() {
    let spec = |spec: &str| format!(r#"{{"metadata": {{"namespace": "shop", "name": "web"}}, "spec": {spec}}}"#);
    let most = (2 << 20) - 300;
    let filled = |start: &str, piece: &str, end: &str| {
        let times = (most - start.len() - end.len()) / piece.len();
        format!("{start}{}{end}", piece.repeat(times))
    };
    let proxy = r#""containers": [{"name": "linkerd-proxy"}"#;
    let metadata = |key: &str, piece: &str| {
        let start = format!(r#"{{"spec": {{{proxy}]}}, "metadata": {{"namespace": "shop", "name": "web", "{key}": {{"#);
        filled(&start, piece, r#""z": ""}}}"#)
    };
    let in_spec = |start: &str, piece: &str, end: &str| {
        let (before, after) = (r#"{"metadata": {"namespace": "shop", "name": "web"}, "spec": {"#, "}}");
        filled(&format!("{before}{start}"), piece, &format!("{end}{after}"))
    };
    let volumes = format!(r#"{proxy}], "volumes": [{{}}"#);
    for (body, redirected) in [
        (in_spec(&volumes, r#", {"name": "v12345", "emptyDir": {}}"#, "]"), true),
        (in_spec(proxy, r#", {"name": "a", "env": []}"#, "]"), true),
        (in_spec(&format!("{volumes}, [[["), "{},", "{}]]]]"), true),
        (in_spec(&format!("{volumes}, "), "[],", "[]]"), true),
        (in_spec(&format!("{proxy}, {{\"name\": \""), "\\u0061", "\"}]"), true),
        (metadata("annotations", r#""a": "", "#), true),
        (metadata("annotations", r#""config.linkerd.io/proxy-gid": "", "#), true),
        (metadata("labels", r#""a": "", "#), true),
        // These are no pods.
        (in_spec(r#""containers": [{}"#, ",{}", "]"), false),
        (in_spec(r#""containers": [{}"#, ", [", "]"), false),
        (in_spec(r#""containers": "#, "[", ""), false),
        (in_spec("", r#""containers": [], "#, ""), false),
        (metadata("annotations", r#""config.linkerd.io/skip-subnets": ["#), false),
        (filled("", "{}", ""), false),
        (filled("", r#"{"metadata":"#, ""), false),
        (filled("\"", "x", "\""), false),
        // Longer than any object of Kubernetes'.
        (format!("{}{}", spec(&format!("{{{proxy}]}}")), " ".repeat(8 << 20)), false),
    ] {
        let lab = Lab::new(&MESHED);
        lab.server.plan([Plan::Body(200, body.clone())]);
        let start = Instant::now();
        let run = lab.run("ADD").under(&["prlimit", "--data=12582912"]);
        let finished = run.output(&lab.node);
        let (took, head) = (start.elapsed(), body.get(..200).unwrap());
        if redirected {
            finished.success();
            assert!(lab.saved().contains("PROXY_INIT"), "{head}");
        } else {
            let message = finished.error(104);
            assert!(message.len() < 4500, "{head}: {message}");
            assert_untouched(&lab.pod);
        }
        assert!(took < Duration::from_secs(5), "{took:?}: {head}");
    }
}

/// Kubernetes takes 256 KiB.
#[test]
fn annotations_are_installed_up_to_a_length() {
    let longest = vec!["1"; 2 << 10].join(",");
    let longer = vec!["1"; 128 << 10].join(",");
    for (list, is_installed) in [(&longest, true), (&longer, false)] {
        let annotations = [("config.linkerd.io/skip-inbound-ports", list.as_str())];
        let lab = Lab::new(&Pod { annotations: &annotations, ..MESHED });
        if is_installed {
            lab.add().success();
            assert!(lab.saved().matches("--dports 1,1,1").count() > 270);
        } else {
            let message = lab.add().error(102);
            assert!(message.contains("have more than 4096 bytes together: shorten them"), "{message}");
            assert_untouched(&lab.pod);
        }
    }
}

#[test]
fn what_a_failure_says_is_cut() {
    let long = "x".repeat(7 << 20);
    let status = |message: &str| serde_json::json!({"kind": "Status", "message": message}).to_string();
    for (body, shown) in [
        (status(&long), "the API server answered 403 Forbidden: the token's service account"),
        (long.clone(), "the API server answered 403 Forbidden: the token's service account"),
        (status(&long[..60_000]), "the API server answered 403 Forbidden: xxxx"),
        (
            status("no\u{1b}[31m\nway"),
            "the API server answered 403 Forbidden: no\\u{1b}[31m\\nway: the token's service account",
        ),
    ] {
        let lab = Lab::new(&MESHED);
        lab.server.plan_for_ever(Some(Plan::Body(403, body)));
        let finished = lab.add();
        let message = finished.error(104);
        assert!(message.contains(shown), "{message:.1000}");
        assert!(message.len() < 4500 && finished.stderr().len() < 9000, "{} bytes", message.len());
    }
}

/// The proxy runs as another user than the configuration has, and no annotation says so.
#[test]
fn the_proxys_user_is_that_of_its_container() {
    for (user, annotation, uid) in [
        (serde_json::json!(7), "", 7),
        (serde_json::json!(7), "9", 9),
        (serde_json::Value::Null, "", 2102),
        (serde_json::json!(0), "", 2102),
        (serde_json::json!(-1), "", 2102),
        (serde_json::json!(4_294_967_295_u64), "", 2102),
        (serde_json::json!(i64::MAX), "", 2102),
    ] {
        for init in [false, true] {
            let lab = Lab::new(&MESHED);
            let proxy = serde_json::json!([{"name": "linkerd-proxy", "securityContext": {"runAsUser": user}}]);
            let app = serde_json::json!([{"name": "app", "securityContext": {"runAsUser": 1000}}]);
            let (containers, init_containers) = if init { (app, proxy) } else { (proxy, app) };
            let pod = serde_json::json!({
                "metadata": {
                    "namespace": "shop", "name": "web",
                    "annotations": {"config.linkerd.io/proxy-uid": annotation},
                },
                "spec": {
                    "securityContext": {"runAsUser": 1000},
                    "containers": containers,
                    "initContainers": init_containers,
                },
            });
            lab.server.add("namespaces/shop/pods/web", pod);
            lab.add().success();
            let flags = Flags { uid: Some(uid), ..Flags::default() };
            assert_eq!(lab.saved(), linkerds(&flags), "{user}");
            lab.run("CHECK").output(&lab.node).success();
        }
    }
}

/// A pod on the node's network, for which no runtime calls a plugin.
#[test]
fn the_nodes_own_namespace_is_refused_without_a_request() {
    let lab = Lab::new(&MESHED);
    for verb in ["ADD", "CHECK"] {
        let run = lab.run(verb).with("CNI_NETNS", "/proc/self/ns/net");
        let message = run.output(&lab.node).error(4);
        assert!(message.contains("the plugin itself"), "{message}");
    }
    assert_eq!(lab.server.requests().len(), 0);
    assert_untouched(&lab.node);
}

#[test]
fn a_server_on_ipv6_is_reached_with_and_without_brackets() {
    let node = Namespace::new();
    let server = ApiServer::start(node.run(|| TcpListener::bind("[::1]:0").unwrap()));
    server.add_pod("shop", "web", &MESHED);
    let folder = Folder::new();
    let authority = folder.path().join("ca.crt");
    std::fs::write(&authority, server.authority()).unwrap();
    for host in ["[::1]", "::1"] {
        let address = format!("{host}:{}", server.address().port());
        let kubeconfig = server.kubeconfig_with(folder.path(), "good-token", &address, "certificate-authority: ca.crt");
        let pod = Namespace::new();
        Run::new("ADD", &by_api(&kubeconfig), pod.path()).output(&node).success();
        assert_eq!(saved(&pod, "nft"), linkerds(&Flags::default()));
    }
}

#[test]
fn a_name_is_looked_up() {
    let lab = Lab::new(&MESHED);
    let authority = lab.folder.path().join("ca.crt");
    std::fs::write(&authority, lab.server.authority()).unwrap();
    let address = format!("api.test:{}", lab.server.address().port());
    lab.server.kubeconfig_with(lab.folder.path(), "good-token", &address, "certificate-authority: ca.crt");
    let hosts = lab.folder.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 api.test\n").unwrap();
    let mount = format!("mount --bind {} /etc/hosts; exec \"$@\"", hosts.display());
    let run = lab.run("ADD").under(&["unshare", "--mount", "sh", "-ec", &mount, "sh"]);
    run.output(&lab.node).success();
    assert_eq!(lab.saved(), linkerds(&Flags::default()));
}

#[test]
fn a_proxy_of_the_environments_is_not_for_the_api_server() {
    let lab = Lab::new(&MESHED);
    let run = lab.run("ADD").with("HTTPS_PROXY", "http://127.0.0.1:9").with("https_proxy", "http://127.0.0.1:9");
    run.output(&lab.node).success();
}

/// The container is removed meanwhile: the plugin holds the namespace, so that the rules end with it.
#[test]
fn a_namespace_that_loses_its_name_during_add_is_no_other_then() {
    let lab = Lab::new(&MESHED);
    lab.server.plan([Plan::Late(Duration::from_secs(1))]);
    let name = lab.folder.path().join("netns");
    std::fs::write(&name, "").unwrap();
    let pod = lab.pod.path();
    let mount = format!(
        "mount --bind {} {name}; (sleep 0.3; umount {name}; mount --bind /proc/self/ns/net {name}) & exec \"$@\"",
        pod.display(),
        name = name.display()
    );
    let run = lab.run("ADD").with("CNI_NETNS", name.as_os_str());
    let finished = run.under(&["unshare", "--mount", "sh", "-ec", &mount, "sh"]).output(&lab.node);
    finished.success();
    assert_untouched(&lab.node);
    assert_eq!(lab.saved(), linkerds(&Flags::default()));
}

/// A namespace that is gone before the plugin starts.
#[test]
fn a_namespace_that_is_gone_is_an_error_without_a_request() {
    let lab = Lab::new(&MESHED);
    lab.run("ADD").with("CNI_NETNS", "/run/netns/gone").output(&lab.node).error(4);
    assert_eq!(lab.server.requests().len(), 0);
}

#[test]
fn without_a_kubeconfig_it_says_so() {
    let lab = Lab::new(&MESHED);
    std::fs::remove_file(lab.folder.path().join("ZZZ-linkerd-cni-kubeconfig")).unwrap();
    let message = lab.add().error(105);
    assert!(message.contains("No such file"), "{message}");
    let mut configuration = by_api("/x".as_ref());
    configuration.as_object_mut().unwrap().remove("kubernetes");
    let message = Run::new("ADD", &configuration, lab.pod.path()).output(&lab.node).error(7);
    assert!(message.contains("kubernetes.kubeconfig"), "{message}");
    assert_untouched(&lab.pod);
}
