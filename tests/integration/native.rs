//! native mode: its table, as nft sees it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use xtask::lab::Namespace;

use crate::linkerd::{Flags, for_any_flags};
use crate::{Calls, assert_success, install, last_line, proxy_init, run, run_with_failing};

const CHART: &str = "--iptables-mode native -p 4143 -o 4140 -u 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 \
                     --outbound-ports-to-ignore 4567,4568";

fn json(namespace: &Namespace) -> serde_json::Value {
    let text = namespace.sh("nft -j list table inet proxy-init");
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    forget_handles(&mut value);
    value
}

/// Handles are numbers that the kernel gives in order.
fn forget_handles(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.remove("handle");
            map.values_mut().for_each(forget_handles);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(forget_handles),
        _ => {}
    }
}

fn nft_f(namespace: &Namespace, script: &str) {
    let output = namespace.run(|| {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{output:?}\n{script}");
}

/// What is installed, what the simulated script makes, what nft makes of its own listing, and what verify says.
fn check(flags: &Flags) {
    let arguments = flags.arguments();
    let with = |namespace: &Namespace, more: &str| {
        let mut command = proxy_init();
        command
            .args(more.split_whitespace())
            .arg("--iptables-mode=native")
            .args(&arguments);
        let output = namespace.output(&mut command);
        assert_success(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    let ours = Namespace::new();
    let script = with(&ours, "--simulate");
    assert_eq!(ours.sh("nft list ruleset"), "");
    with(&ours, "");
    let want = json(&ours);
    assert_eq!(
        with(&ours, "verify"),
        "in place: the rules in native mode are as asked\n"
    );

    let scripted = Namespace::new();
    for _ in 0..2 {
        nft_f(&scripted, &script);
        assert_eq!(json(&scripted), want);
    }
    let listed = Namespace::new();
    nft_f(&listed, &ours.sh("nft list ruleset"));
    assert_eq!(json(&listed), want);
    // Over an earlier table, whatever it was.
    with(&listed, "");
    assert_eq!(json(&listed), want);
}

#[test]
fn the_script_makes_the_same_table() {
    check(&Flags::default());
    for_any_flags(16, check);
}

#[test]
fn somebody_who_knows_linkerd_finds_the_rules() {
    let namespace = Namespace::new();
    install(&namespace, CHART);
    let table = namespace.sh("nft list table inet proxy-init");
    for words in [
        "chain PROXY_INIT_REDIRECT",
        "chain PROXY_INIT_OUTPUT",
        "elements = { 4190-4191, 4567-4568 }",
        "meta skuid 2102 counter packets 0 bytes 0 return comment \"proxy-init/ignore-proxy-user-id\"",
        "comment \"proxy-init/ignore-port-4190,4191,4567,4568\"",
        "redirect to :4140 comment \"proxy-init/redirect-all-outgoing-to-proxy-port\"",
    ] {
        assert!(table.contains(words), "{words} in {table}");
    }
}

#[test]
fn a_fresh_namespace_takes_one_process_and_one_send() {
    let namespace = Namespace::new();
    let calls = Calls::of(&namespace, CHART);
    for call in ["execve", "sendto", "recvfrom"] {
        assert_eq!(calls.count(&[call]), 1, "{}", calls.0);
    }
}

#[test]
fn all_ports_in_both_lists_work() {
    let namespace = Namespace::new();
    // Every other port first, so that nothing merges until the rest comes.
    let ports: Vec<String> = (1..=65_535u32)
        .step_by(2)
        .chain((2..=65_535).step_by(2))
        .map(|port| port.to_string())
        .collect();
    let list = ports.join(",");
    let odd = ports[..32_768].join(",");
    // The chart's 4568 makes one of 4567 and 4569.
    for (list, elements) in [(odd, 32_767), (list, 1)] {
        // Longer than one argument may be: in several.
        let mut command = proxy_init();
        command.args(CHART.split_whitespace());
        for chunk in list.split(',').collect::<Vec<_>>().chunks(10_000) {
            command.arg(format!("--inbound-ports-to-ignore={}", chunk.join(",")));
            command.arg(format!("--outbound-ports-to-ignore={}", chunk.join(",")));
        }
        assert_success(&namespace.output(&mut command));
        let set = namespace.sh("nft list set inet proxy-init outbound-ports");
        let found = set
            .split_once('{')
            .unwrap()
            .1
            .split("elements")
            .nth(1)
            .unwrap()
            .matches(',')
            .count()
            + 1;
        assert_eq!(found, elements, "{}", &set[..200]);
    }
}

#[test]
fn a_failed_replacement_leaves_the_old_table() {
    let namespace = Namespace::new();
    install(&namespace, CHART);
    let before = namespace.sh("nft list ruleset");
    let line = last_line(&run_with_failing(
        &namespace,
        "sendto",
        "ENOBUFS",
        &format!("{CHART} -r 80"),
    ));
    assert!(line.contains("native mode") && line.contains("ENOBUFS"), "{line}");
    assert_eq!(namespace.sh("nft list ruleset"), before);
}

#[test]
fn drift_is_reported() {
    for (drift, want) in [
        ("nft delete table inet proxy-init", "not there at all"),
        ("nft flush chain inet proxy-init OUTPUT", "missing"),
        (
            "nft add element inet proxy-init inbound-ports { 80 }",
            "unexpected\n  + 80",
        ),
        (
            "nft delete element inet proxy-init inbound-ports { 4190-4191 }",
            "missing\n  - 4190-4191",
        ),
        (
            "nft add rule inet proxy-init PROXY_INIT_OUTPUT ct mark 7 accept",
            "unexpected\n  + [ct] [cmp] accept",
        ),
        (
            "nft insert rule inet proxy-init PROXY_INIT_OUTPUT tcp dport != 80 return",
            "unexpected",
        ),
        (
            "nft add set inet proxy-init other { type mark ; }",
            "set other: unexpected",
        ),
    ] {
        let namespace = Namespace::new();
        install(&namespace, CHART);
        namespace.sh(drift);
        let output = run(&namespace, &format!("verify {CHART}"));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(3), "{drift}: {text}");
        assert!(text.contains(want), "{drift}: {text}");
    }
}

#[test]
fn it_gives_way_to_no_other_backend_unasked() {
    for other in ["nft", "legacy"] {
        let namespace = Namespace::new();
        let other = format!("--iptables-mode {other} -p 4143 -o 4140");
        install(&namespace, &other);
        let line = last_line(&run(&namespace, CHART));
        assert!(
            line.contains("holds proxy-init's rules already") && line.contains("proxy-init uninstall"),
            "{line}"
        );
        install(&namespace, &format!("{CHART} --replace-other-backend"));
        assert!(namespace.sh("nft list ruleset").starts_with("table inet proxy-init"));
        let line = last_line(&run(&namespace, &other));
        assert!(line.contains("native mode holds proxy-init's rules already"), "{line}");
        let log = install(&namespace, "--iptables-mode auto -p 4143 -o 4140");
        assert!(
            log.contains("auto: native mode, because it holds proxy-init's rules already"),
            "{log}"
        );
        install(&namespace, &format!("{other} --replace-other-backend"));
        assert!(!namespace.sh("nft list ruleset").contains("inet proxy-init"));
    }
    let namespace = Namespace::new();
    install(&namespace, CHART);
    install(&namespace, "uninstall");
    assert_eq!(namespace.sh("nft list ruleset"), "");
}
