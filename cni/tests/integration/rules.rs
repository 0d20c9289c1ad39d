//! Any configuration and any annotations against the rules of linkerd-init's commands and of the init program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lab::network::{Namespace, seed};
use lab::shell::PROGRAMS_TO_TEST;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proxy_init::{Form, SETTINGS, Setting};
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
fn any_list(item: impl Strategy<Value = String> + 'static, most: usize) -> impl Strategy<Value = String> {
    let separator = prop_oneof![Just(","), Just(", "), Just(" ,"), Just(",,")];
    (proptest::collection::vec(item, 1..=most), separator).prop_map(|(items, separator)| items.join(separator))
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

/// Any value of a setting, as its flag has it.
fn any_value(setting: &Setting) -> BoxedStrategy<String> {
    match (setting.form, setting.placeholder) {
        (Form::Number, _) if setting.is_required => (1..=u16::MAX).prop_map(|port| port.to_string()).boxed(),
        (Form::Number, _) => {
            prop_oneof![Just(-1), Just(0), 1..i64::from(u32::MAX)].prop_map(|id| id.to_string()).boxed()
        }
        (Form::Switch, _) => any::<bool>().prop_map(|is_on| is_on.to_string()).boxed(),
        (Form::Numbers, _) => any_list((1..=u16::MAX).prop_map(|port| port.to_string()), 4).boxed(),
        // Without rules for IPv6, one of IPv4 has to be among those outside of which nothing is redirected.
        (Form::Texts, "SUBNETS") => any_list(any_subnet(), 4).prop_map(|list| format!("192.0.2.0/24,{list}")).boxed(),
        (Form::Texts, "NAMES") => any_list("[a-z][a-z0-9._@-]{0,14}", 3).boxed(),
        (Form::Texts, _) => any_list(any_range(), 20).boxed(),
    }
}

/// The value in the plugin's configuration of one that a flag has.
fn in_json(setting: &Setting, value: &str) -> Value {
    let number = |text: &str| json!(text.parse::<i64>().unwrap());
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    match setting.form {
        Form::Number => number(value),
        Form::Switch => json!(value == "true"),
        Form::Numbers => items.map(number).collect(),
        Form::Texts => value.split(',').collect(),
    }
}

/// A setting, where it is made: in the network configuration, and by an annotation of the pod, with that one's name.
#[derive(Debug, Clone)]
struct Given {
    setting: &'static Setting,
    configured: Option<String>,
    annotated: Option<(&'static str, String)>,
}

impl Given {
    /// The injector's flag for the init container: the annotation in the place of what it replaces, or added to it.
    fn flag(&self) -> Option<String> {
        let Self { setting, configured, annotated } = self;
        let value = match (configured, annotated) {
            (Some(configured), Some((_, annotated))) if setting.adds => format!("{configured},{annotated}"),
            (_, Some((_, value))) | (Some(value), None) => value.clone(),
            (None, None) => return None,
        };
        Some(format!("--{}={value}", setting.flag))
    }
}

fn any_given(setting: &'static Setting) -> impl Strategy<Value = Given> {
    let configured = (any::<bool>(), any_value(setting));
    let annotated = proptest::option::of((proptest::sample::select(setting.annotations), any_value(setting)));
    (configured, annotated).prop_map(move |((is_configured, value), annotated)| Given {
        setting,
        configured: (is_configured || setting.is_required).then_some(value),
        annotated,
    })
}

/// The configuration of the plugin for a pod with these settings, in this mode.
fn configuration(all: &[Given], mode: &str) -> Value {
    let mut annotations = json!({"linkerd.io/proxy-version": "edge-1"});
    let mut linkerd = json!({"pod-info": "annotations", "iptables-mode": mode});
    for Given { setting, configured, annotated } in all {
        if let Some(value) = configured {
            linkerd[setting.key()] = in_json(setting, value);
        }
        if let Some((name, value)) = annotated {
            annotations[*name] = value.as_str().into();
        }
    }
    let mut configuration = by_annotations(annotations);
    configuration["linkerd"] = linkerd;
    configuration
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
    let all: Vec<_> = SETTINGS.iter().map(any_given).collect();
    let checked = runner.run(&(all, prop::bool::weighted(0.2)), |(all, is_native)| {
        let mode = if is_native { "native" } else { "nft" };
        let configuration = configuration(&all, mode);
        let [by_plugin, by_init] = [Namespace::new(), Namespace::new()];
        Run::new("ADD", &configuration, by_plugin.path()).output(&node).success();
        let mut init = Command::new(proxy_init());
        // The plugin makes rules for IPv6 only where it is told to.
        init.args([&format!("--iptables-mode={mode}"), "--ipv6=false"]).args(all.iter().filter_map(Given::flag));
        let output = by_init.output(init.env_remove("IPTABLES_MODE"));
        prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prop_assert_eq!(everything(&by_plugin), everything(&by_init));
        Run::new("CHECK", &configuration, by_plugin.path()).output(&node).success();
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
        let mut with_key = linkerd.clone();
        with_key[setting.key()] = in_json(setting, value);
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
