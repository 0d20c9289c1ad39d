//! `verify`: which rules drifted.

mod other_rules;
pub(crate) mod proxy;
mod unseen;
mod verdict;

use lab::linkerd::Flags;
use lab::network::Namespace;
use serde_json::Value;

use crate::support::{Run, chart, chart_in, install, saved, saved_by};

pub(crate) fn verify(namespace: &Namespace, flags: &str) -> (i32, String) {
    let output = Run::new(&format!("verify {flags}")).output(namespace);
    (output.code().unwrap(), output.said())
}

/// The kinds of findings, in order.
fn findings(namespace: &Namespace, flags: &str) -> Vec<String> {
    let (_, text) = verify(namespace, &format!("{flags} --output json"));
    let report: Value = serde_json::from_str(&text).unwrap();
    let list = report["findings"].as_array().unwrap();
    list.iter().map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_was_installed_is_in_place() {
    for mode in ["nft", "legacy"] {
        let namespace = Namespace::new();
        let flags = chart_in(mode);
        let (code, text) = verify(&namespace, &flags);
        assert_eq!(code, 3, "nothing is there yet: {text}");
        install(&namespace, &flags);
        for flags in [flags, chart(), chart_in("auto")] {
            let (code, text) = verify(&namespace, &flags);
            assert_eq!(
                (code, text),
                (
                    0,
                    format!(
                        "in place in {mode} mode: rules complete, nothing before or after them drops\n  connections to the proxy or from it; the proxy \
                         does not listen\nwarning: nothing listens on port 4143\nwarning: nothing listens on port 4140\n"
                    )
                ),
                "{flags}"
            );
        }
        assert_eq!(verify(&namespace, &format!("{} -r 80", chart())).0, 3);
        assert_eq!(findings(&namespace, &format!("{} --ipv6=false", chart())), ["unexpected"; 8]);
    }
}

#[test]
fn what_iptables_made_is_in_place() {
    for backend in ["nft", "legacy"] {
        let namespace = Namespace::new();
        let flags = Flags {
            redirect: vec![80, 443],
            gid: Some(7),
            inbound_subnets: vec!["10.1.2.3/8".into(), "0.0.0.0/0".into(), "fd00:1::/45".into()],
            outbound_subnets: vec!["192.0.2.1/32".into()],
            ..Flags::default()
        };
        flags.add_with_iptables(&namespace, backend);
        let (code, text) = verify(&namespace, &flags.line());
        assert_eq!(code, 0, "{text}");
        // Without flags, the rules are recognized.
        let text = Run::new("verify").output(&namespace).success();
        assert!(text.contains(&format!("--iptables-mode {backend} --incoming-proxy-port 4143")), "{text}");
        assert!(text.contains("--inbound-subnets-to-ignore 10.1.2.3/8,0.0.0.0/0,fd00:1::/45"), "{text}");
    }
}

/// Installs in a mode, runs these commands, and compares the kinds of findings. verify without flags agrees.
fn drifts(mode: &str, commands: &[impl AsRef<str>], want: &[&str]) {
    let what: Vec<&str> = commands.iter().map(AsRef::as_ref).collect();
    let namespace = Namespace::new();
    let flags = chart_in(mode);
    install(&namespace, &flags);
    namespace.all(&what);
    assert_eq!(findings(&namespace, &flags), want, "{what:?}");
    for flags in [flags.as_str(), ""] {
        let (code, text) = verify(&namespace, flags);
        assert_eq!(code, if want.is_empty() { 0 } else { 3 }, "{what:?}: {flags}: {text}");
        assert_eq!(text.starts_with("not in place: "), !want.is_empty(), "{what:?}: {flags}: {text}");
    }
}

#[test]
fn each_way_to_drift_is_reported_as_itself() {
    let replaced = "-R PROXY_INIT_REDIRECT 2 -p tcp -m comment --comment proxy-init/redirect-all-incoming-to-proxy-port \
                    -j REDIRECT --to-ports 4444";
    let user = "-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment proxy-init/ignore-proxy-user-id \
                -j RETURN";
    let loopback = "-A PROXY_INIT_OUTPUT -o lo -m comment --comment proxy-init/ignore-loopback -j RETURN";
    let jump = "-A OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT";
    for mode in ["nft", "legacy"] {
        for (rules, want) in [
            (&["-D PROXY_INIT_OUTPUT 2"][..], &["missing"][..]),
            (&[replaced], &["different"]),
            // One rule twice is one too many, and a rule without its comment isn't the one that is missing.
            (&[loopback], &["unexpected"]),
            (&["-R PROXY_INIT_OUTPUT 2 -o lo -j RETURN"], &["missing", "unexpected"]),
            (&["-D PROXY_INIT_OUTPUT 1", user], &["out-of-order"]),
            (&["-A PROXY_INIT_REDIRECT -p udp -j ACCEPT"], &["unexpected"]),
            (&["-I PROXY_INIT_OUTPUT -d 192.0.2.1 -j DNAT --to-destination 192.0.2.2"], &["unexpected"]),
            (&["-F PREROUTING"], &["missing"]),
            (&[jump], &["doubled"]),
            (&["-A OUTPUT -p tcp -j PROXY_INIT_OUTPUT"], &["unexpected"]),
            (&["-A PREROUTING -p tcp --dport 80 -g PROXY_INIT_REDIRECT"], &["unexpected"]),
            (&["-N MINE", "-A MINE -p tcp -j PROXY_INIT_REDIRECT"], &["unexpected"]),
            // Without a jump nothing gets past the accept's rule either.
            (&["-R PREROUTING 1 -p tcp --dport 80 -j ACCEPT"], &["missing"]),
            (&["-I OUTPUT -d 192.0.2.1 -j ACCEPT"], &["shadowed"]),
            (&["-I OUTPUT -p udp -j ACCEPT"], &[]),
            (&["-A OUTPUT -d 192.0.2.1 -j ACCEPT"], &[]),
            (&["-F PROXY_INIT_REDIRECT"], &["missing", "missing"]),
            (&["-F PREROUTING", "-F PROXY_INIT_REDIRECT", "-X PROXY_INIT_REDIRECT"], &["no-chain", "missing"]),
        ] {
            let commands: Vec<_> = rules.iter().map(|rule| format!("iptables-{mode} -t nat {rule}")).collect();
            drifts(mode, &commands, want);
        }
    }
    for (mode, command, want) in [
        ("nft", "nft flush chain ip6 nat PROXY_INIT_OUTPUT", &["missing"; 4][..]),
        ("nft", "nft insert rule ip nat OUTPUT tcp dport 80 accept", &["shadowed"]),
        ("nft", "nft insert rule ip nat PREROUTING tcp dport 80 redirect to :9999", &["shadowed"]),
        ("nft", "nft add rule ip nat PROXY_INIT_OUTPUT ct mark 7 return", &["unexpected"]),
        ("nft", "nft add table ip nat { flags dormant ; }", &["dormant"]),
        ("native", "nft add element inet proxy-init inbound-ports { 9090 }", &["unexpected"]),
        ("native", "nft delete element inet proxy-init inbound-ports { 4190, 4191 }", &["missing"]),
        ("native", "nft add set inet proxy-init other { type inet_service ; }", &["unexpected"]),
        ("native", "nft flush chain inet proxy-init OUTPUT", &["missing"]),
        ("native", "nft flush chain inet proxy-init PROXY_INIT_REDIRECT", &["missing", "missing"]),
    ] {
        drifts(mode, &[command], want);
    }
    // Without flags, rules for IPv4 alone are whole.
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    namespace.sh("nft delete table ip6 nat");
    assert_eq!(findings(&namespace, &chart_in("nft")), ["no-rules"]);
    assert_eq!(verify(&namespace, "").0, 0);
    let (code, text) = verify(&Namespace::new(), "");
    assert_eq!((code, text.as_str()), (3, "not in place: no proxy-init rules were found\n"));
}

#[test]
fn a_family_without_rules_is_one_finding() {
    for (mode, table) in [("nft", "table ip6 nat"), ("legacy", "table legacy ip6 nat")] {
        let namespace = Namespace::new();
        let flags = chart_in(mode);
        install(&namespace, &format!("{flags} --ipv6=false"));
        let (code, text) = verify(&namespace, &flags);
        assert_eq!(code, 3, "{text}");
        let want = format!(
            "not in place: in {mode} mode, - is expected and + was found\n\nIPv6, {table}: all 8 rules are missing\n\
             IPv4 is complete\nwarning: nothing listens on port 4143\nwarning: nothing listens on port 4140\n"
        );
        assert_eq!(text, want);
        // IPv4's own findings are not covered up.
        namespace.sh(&format!("iptables-{mode} -t nat -F PROXY_INIT_OUTPUT"));
        let (_, text) = verify(&namespace, &flags);
        assert!(text.contains("all 8 rules are missing") && !text.contains("IPv4 is complete"), "{text}");
    }
}

#[test]
fn the_difference_is_shown_in_iptables_syntax() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let (code, text) = verify(&namespace, &format!("{} -u 2103", chart_in("nft")));
    assert_eq!(code, 3);
    let owner = |sign: &str, uid: u32| {
        format!(
            "  {sign} -A PROXY_INIT_OUTPUT -m owner --uid-owner {uid} -m comment --comment\n    \
             \"proxy-init/ignore-proxy-user-id\" -j RETURN\n"
        )
    };
    let want = format!("IPv4, PROXY_INIT_OUTPUT: different\n{}{}", owner("-", 2103), owner("+", 2102));
    assert!(text.contains(&want), "{text}");
}

#[test]
fn rules_in_another_backend_are_reported() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    Flags::default().add_with_iptables(&namespace, "legacy");
    let (code, text) = verify(&namespace, &chart_in("nft"));
    assert_eq!(code, 3);
    assert!(text.contains("proxy-init's rules are in legacy mode too"), "{text}");
    assert_eq!(verify(&namespace, "").0, 3);
    let shown = install(&namespace, "show");
    let parts = ["several modes at once", "\n\nnft mode\n", "\n\nlegacy mode\n"];
    assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");

    install(&namespace, "uninstall");
    assert!(!saved(&namespace, "nft").contains("PROXY_INIT"));
    assert!(!saved_by(&namespace, "iptables-legacy-save").contains("PROXY_INIT"));
    assert!(!saved_by(&namespace, "ip6tables-legacy-save").contains("PROXY_INIT"));
}

#[test]
fn all_three_work_in_another_namespace() {
    let (here, there) = (Namespace::new(), Namespace::new());
    let netns = format!("--netns {}", there.path().display());
    install(&there, &chart_in("nft"));
    assert_eq!(verify(&here, &format!("{} {netns}", chart())).0, 0);
    assert!(install(&here, &format!("detect {netns}")).contains("ip nat 8, ip6 nat 8"));
    install(&here, &format!("uninstall {netns}"));
    assert_eq!(there.sh("nft list ruleset"), "");
}

#[test]
fn without_privileges_they_say_what_they_cannot_see() {
    let namespace = Namespace::new();
    namespace.sh("iptables-legacy -t nat -A OUTPUT -j ACCEPT");
    let text = Run::new("detect").nobody(&[]).output(&namespace).success();
    assert!(text.contains("nft rules   cannot be read") && text.contains("legacy      cannot be read"), "{text}");
    assert!(text.contains("auto        cannot choose"), "{text}");
    for arguments in [
        format!("verify {}", chart()),
        format!("verify {}", chart_in("nft")),
        format!("verify {}", chart_in("legacy")),
        "uninstall".to_owned(),
    ] {
        let output = Run::new(&arguments).nobody(&[]).output(&namespace);
        assert_eq!(output.code(), Some(1), "{output:?}");
        let said = output.said();
        assert!(said.contains("CAP_NET_ADMIN"), "{said}");
    }
}
