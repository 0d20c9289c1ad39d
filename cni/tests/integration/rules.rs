//! Any configuration and any annotations against the rules of linkerd-init's commands and of the init program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lab::network::{Namespace, seed};
use lab::shell::PROGRAMS_TO_TEST;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proxy_init::{Form, SETTINGS};
use serde_json::{Value, json};

use crate::support::{PLUGIN, Run, by_annotations, saved};

/// A value, which isn't the default, of each setting but for the proxy's ports and IPv6, as the setting's flag has it.
const VALUES: [(&str, &str); 13] = [
    ("proxy-uid", "2103"),
    ("proxy-gid", "2104"),
    ("ports-to-redirect", "80,443"),
    ("inbound-ports-to-ignore", "4190,8000-8100"),
    ("outbound-ports-to-ignore", "443"),
    ("inbound-subnets-to-ignore", "10.0.0.0/8,fd00::/8"),
    ("outbound-subnets-to-ignore", "169.254.169.254/32,2001:db8::/32"),
    ("outbound-ports-to-redirect", "80,8000-8100"),
    ("outbound-subnets-to-redirect", "10.0.0.0/8"),
    ("skip-uid", "0,1000-1999"),
    ("skip-gid", "7"),
    ("inbound-interfaces-to-ignore", "net1,k6t-eth0"),
    ("outbound-interfaces-to-ignore", "tun0"),
];

/// The init program, built like the plugin: of the checkout as it is now.
fn proxy_init() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = std::env::var_os(PROGRAMS_TO_TEST) {
            return PathBuf::from(folder).join("proxy-init");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--package", "proxy-init", "--bin", "proxy-init"]);
        let status = cargo.current_dir(root).status().unwrap();
        assert!(status.success(), "{cargo:?}: {status}");
        Path::new(PLUGIN.as_str()).with_file_name("proxy-init")
    })
}

/// A list as a person might write it.
fn any_list(item: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
    let separator = prop_oneof![Just(","), Just(", "), Just(" ,"), Just(",,")];
    (proptest::collection::vec(item, 0..20), separator).prop_map(|(items, separator)| items.join(separator))
}

fn any_range() -> impl Strategy<Value = String> {
    (0..=u16::MAX, 0..200_u16, any::<bool>()).prop_map(|(first, more, single)| {
        if single { first.to_string() } else { format!("{first}-{}", first.saturating_add(more)) }
    })
}

fn any_subnet() -> impl Strategy<Value = String> {
    prop_oneof![
        (any::<[u8; 4]>(), 0..=32)
            .prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv4Addr::from(address))),
        (any::<[u16; 8]>(), 0..=128)
            .prop_map(|(address, prefix)| format!("{}/{prefix}", std::net::Ipv6Addr::from(address))),
    ]
}

/// The settings of a network configuration and of a pod's annotations.
#[derive(Debug, Clone)]
struct Case {
    inbound_port: u16,
    outbound_port: u16,
    uid: i64,
    gid: i64,
    redirect: Vec<u16>,
    inbound: Vec<String>,
    outbound: Vec<String>,
    subnets: Vec<String>,
    outbound_subnets: Vec<String>,
    ipv6: bool,
    native: bool,
    skip_outbound: Option<String>,
    skip_inbound: Option<String>,
    skip_subnets: Option<String>,
    annotated_uid: Option<u32>,
    annotated_gid: Option<u32>,
    uids: Vec<String>,
    gids: Vec<String>,
    skip_uid: Option<String>,
    skip_gid: Option<String>,
    chosen_ports: Vec<String>,
    chosen_subnets: Vec<String>,
    annotated_ports: Option<String>,
    inbound_interfaces: Vec<String>,
    outbound_interfaces: Vec<String>,
    annotated_interfaces: Option<String>,
}

fn any_case() -> impl Strategy<Value = Case> {
    let port = || 1..=u16::MAX;
    let id = || prop_oneof![Just(-1), Just(0), 1..i64::from(u32::MAX)];
    let list = |length: usize| proptest::collection::vec(any_range(), 0..length);
    let subnets = || proptest::collection::vec(any_subnet(), 0..4);
    let names = || proptest::collection::vec("[a-z][a-z0-9._@-]{0,14}", 0..3);
    let id_text = || proptest::option::of(0..u32::MAX);
    (
        (port(), port(), id(), id(), proptest::collection::vec(port(), 0..4)),
        (list(30), list(30), subnets(), subnets()),
        (any::<bool>(), prop::bool::weighted(0.2)),
        (
            proptest::option::of(any_list(any_range())),
            proptest::option::of(any_list(any_range())),
            proptest::option::of(any_list(any_subnet())),
            id_text(),
            id_text(),
        ),
        (list(4), list(4)),
        (list(20), subnets(), proptest::option::of(any_range())),
        (names(), names(), proptest::option::of("net[0-9]{1,5}")),
        (proptest::option::of(any_list(any_range())), proptest::option::of(any_list(any_range()))),
    )
        .prop_map(|(numbers, lists, (ipv6, native), annotations, ids, chosen, names, skip)| Case {
            inbound_port: numbers.0,
            outbound_port: numbers.1,
            uid: numbers.2,
            gid: numbers.3,
            redirect: numbers.4,
            inbound: lists.0,
            outbound: lists.1,
            subnets: lists.2,
            outbound_subnets: lists.3,
            ipv6,
            native,
            skip_outbound: annotations.0,
            skip_inbound: annotations.1,
            skip_subnets: annotations.2,
            annotated_uid: annotations.3,
            annotated_gid: annotations.4,
            uids: ids.0,
            gids: ids.1,
            skip_uid: skip.0,
            skip_gid: skip.1,
            chosen_ports: chosen.0,
            chosen_subnets: chosen.1.into_iter().filter(|it| ipv6 || !it.contains(':')).collect(),
            annotated_ports: chosen.2,
            inbound_interfaces: names.0,
            outbound_interfaces: names.1,
            annotated_interfaces: names.2,
        })
}

impl Case {
    fn mode(&self) -> &'static str {
        if self.native { "native" } else { "nft" }
    }

    fn configuration(&self) -> Value {
        let mut annotations = json!({"linkerd.io/proxy-version": "edge-1"});
        let ids = [self.annotated_uid, self.annotated_gid].map(|id| id.map(|id| id.to_string()));
        let [uid, gid] = &ids;
        for (key, value) in [
            ("skip-outbound-ports", &self.skip_outbound),
            ("skip-inbound-ports", &self.skip_inbound),
            ("skip-subnets", &self.skip_subnets),
            ("proxy-uid", uid),
            ("proxy-gid", gid),
        ] {
            if let Some(value) = value {
                annotations[format!("config.linkerd.io/{key}")] = value.as_str().into();
            }
        }
        for (key, value) in [
            ("skip-uid", &self.skip_uid),
            ("skip-gid", &self.skip_gid),
            ("outbound-ports-to-redirect", &self.annotated_ports),
            ("inbound-interfaces-to-ignore", &self.annotated_interfaces),
        ] {
            if let Some(value) = value {
                annotations[format!("proxy-init.io/{key}")] = value.as_str().into();
            }
        }
        let mut configuration = by_annotations(annotations);
        configuration["linkerd"] = json!({
            "pod-info": "annotations",
            "incoming-proxy-port": self.inbound_port,
            "outgoing-proxy-port": self.outbound_port,
            "proxy-uid": self.uid,
            "proxy-gid": self.gid,
            "ports-to-redirect": self.redirect,
            "inbound-ports-to-ignore": self.inbound,
            "outbound-ports-to-ignore": self.outbound,
            "subnets-to-ignore": self.subnets,
            "outbound-subnets-to-ignore": self.outbound_subnets,
            "outbound-ports-to-redirect": self.chosen_ports,
            "outbound-subnets-to-redirect": self.chosen_subnets,
            "inbound-interfaces-to-ignore": self.inbound_interfaces,
            "outbound-interfaces-to-ignore": self.outbound_interfaces,
            "skip-uid": self.uids,
            "skip-gid": self.gids,
            "iptables-mode": self.mode(),
            "ipv6": self.ipv6,
        });
        configuration
    }

    /// The injector's flags for the init container: each annotation in the place of the setting that it replaces.
    fn flags(&self) -> Vec<String> {
        let or = |annotation: &Option<String>, configured: &[String]| match annotation {
            Some(text) if !text.is_empty() => text.clone(),
            _ => configured.join(","),
        };
        let id = |annotated: Option<u32>, configured: i64| annotated.map_or(configured, i64::from);
        let inbound = [self.inbound.join(","), self.skip_inbound.clone().unwrap_or_default()].join(",");
        let mut flags = vec![
            format!("--incoming-proxy-port={}", self.inbound_port),
            format!("--outgoing-proxy-port={}", self.outbound_port),
            format!("--proxy-uid={}", id(self.annotated_uid, self.uid)),
            format!("--proxy-gid={}", id(self.annotated_gid, self.gid)),
            format!("--inbound-ports-to-ignore={inbound}"),
            format!("--outbound-ports-to-ignore={}", or(&self.skip_outbound, &self.outbound)),
            format!("--subnets-to-ignore={}", or(&self.skip_subnets, &self.subnets)),
            format!("--outbound-subnets-to-ignore={}", self.outbound_subnets.join(",")),
            format!("--skip-uid={}", or(&self.skip_uid, &self.uids)),
            format!("--skip-gid={}", or(&self.skip_gid, &self.gids)),
            format!("--iptables-mode={}", self.mode()),
            format!("--ipv6={}", self.ipv6),
        ];
        for (flag, list) in [
            ("outbound-ports-to-redirect", or(&self.annotated_ports, &self.chosen_ports)),
            ("outbound-subnets-to-redirect", self.chosen_subnets.join(",")),
            ("inbound-interfaces-to-ignore", or(&self.annotated_interfaces, &self.inbound_interfaces)),
            ("outbound-interfaces-to-ignore", self.outbound_interfaces.join(",")),
        ] {
            flags.extend((!list.is_empty()).then(|| format!("--{flag}={list}")));
        }
        flags.extend(self.redirect.iter().map(|port| format!("--ports-to-redirect={port}")));
        flags
    }
}

/// Everything in a namespace, as nft and iptables list it.
fn everything(namespace: &Namespace) -> String {
    namespace.sh("nft --stateless list ruleset") + &saved(namespace, "nft")
}

#[test]
fn any_configuration_installs_what_the_init_program_installs() {
    let node = Namespace::new();
    let mut runner = TestRunner::new(Config {
        cases: 60,
        // A case takes several processes.
        max_shrink_iters: 20,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    });
    let checked = runner.run(&any_case(), |case| {
        let [by_plugin, by_init] = [Namespace::new(), Namespace::new()];
        Run::new("ADD", &case.configuration(), by_plugin.path()).output(&node).success();
        let mut init = Command::new(proxy_init());
        let output = by_init.output(init.args(case.flags()).env_remove("IPTABLES_MODE"));
        prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prop_assert_eq!(everything(&by_plugin), everything(&by_init));
        Run::new("CHECK", &case.configuration(), by_plugin.path()).output(&node).success();
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn each_settings_key_and_annotations_make_the_rules_that_its_flag_makes() {
    let node = Namespace::new();
    let by_plugin = |annotations: &Value, linkerd: &Value| {
        let pod = Namespace::new();
        let mut configuration = by_annotations(annotations.clone());
        configuration["linkerd"] = linkerd.clone();
        Run::new("ADD", &configuration, pod.path()).output(&node).success();
        everything(&pod)
    };
    let others = [("incoming-proxy-port", "5143"), ("outgoing-proxy-port", "5140"), ("ipv6", "true")];
    assert_eq!(SETTINGS.len(), VALUES.len() + others.len());
    for (flag, value) in VALUES.into_iter().chain(others) {
        let setting = SETTINGS.iter().find(|setting| setting.flag == flag).unwrap();
        let pod = Namespace::new();
        let mut init = Command::new(proxy_init());
        init.args(["--iptables-mode=nft", "-p=4143", "-o=4140", "--ipv6=false"]).env_remove("IPTABLES_MODE");
        let output = pod.output(init.arg(format!("--{flag}={value}")));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let by_flag = everything(&pod);

        let mut annotations = json!({"linkerd.io/proxy-version": "edge-1"});
        let mut linkerd = json!({
            "pod-info": "annotations",
            "incoming-proxy-port": 4143,
            "outgoing-proxy-port": 4140,
            "iptables-mode": "nft",
        });
        assert_ne!(by_plugin(&annotations, &linkerd), by_flag, "{flag}");
        let number = |text: &str| json!(text.parse::<u32>().unwrap());
        let in_json = match setting.form {
            Form::Number => number(value),
            Form::Switch => json!(value == "true"),
            Form::Numbers => value.split(',').map(number).collect(),
            Form::Texts => value.split(',').collect(),
        };
        let mut with_key = linkerd.clone();
        with_key[setting.key()] = in_json;
        assert_eq!(by_plugin(&annotations, &with_key), by_flag, "{flag}");

        annotations[setting.annotations[0]] = value.into();
        assert_eq!(by_plugin(&annotations, &linkerd), by_flag, "{flag}");
        // The annotation replaces the configuration's value, or adds to it.
        if setting.form == Form::Texts && !setting.adds {
            linkerd[setting.key()] = json!(["1"]);
            if ["inbound-subnets-to-ignore", "outbound-subnets-to-ignore", "outbound-subnets-to-redirect"]
                .contains(&flag)
            {
                linkerd[setting.key()] = json!(["192.0.2.0/24"]);
            }
            assert_eq!(by_plugin(&annotations, &linkerd), by_flag, "{flag}");
        }
    }
}
