//! From linkerd-init to proxy-init and back: what docs/rollout.md shows.

use std::net::SocketAddr;
use std::process::Command;

use xtask::lab::{Lab, Namespace, POD};
use xtask::linkerd::Flags;
use xtask::page::matches;

use crate::support::{PROXY_INIT, Run, chart_in, install, saved};

const PAGE: &str = include_str!("../../docs/rollout.md");

/// Every command after a `$` and what the page says that it prints, one after the other in one namespace, which
/// linkerd-init has set up. `…` is any text.
#[test]
fn the_page_shows_what_is_printed() {
    let lab = Lab::new();
    let namespace = &lab.pod;
    Flags::default().add_with_iptables(namespace, "legacy");
    let lines = PAGE.lines().map(str::trim_start).collect::<Vec<_>>();
    let mut commands = 0;
    for (number, line) in lines.iter().enumerate() {
        let Some(command) = line.strip_prefix("$ ") else {
            continue;
        };
        // cargo xtask cluster runs these.
        if command.starts_with("kubectl ") {
            continue;
        }
        let expected = lines[number + 1..]
            .iter()
            .take_while(|line| !line.is_empty() && !line.starts_with("$ "));
        let printed = shell(namespace, command);
        let printed: Vec<_> = printed.lines().map(str::trim_start).collect();
        let expected: Vec<_> = expected.collect();
        assert_eq!(printed.len(), expected.len(), "{command}: {printed:#?}");
        for (printed, expected) in printed.iter().zip(expected) {
            assert!(matches(printed, expected), "{command}\n{printed}\n{expected}");
        }
        commands += 1;
    }
    assert!(commands > 8, "the page has only {commands} commands");
}

/// What a shell command prints that finds the program under test.
fn shell(namespace: &Namespace, command: &str) -> String {
    let program = PROXY_INIT;
    let folder = program.trim_end_matches("proxy-init");
    let mut shell = Command::new("bash");
    shell
        .args(["-c", command])
        .env("PATH", format!("{folder}:/usr/sbin:/usr/bin:/sbin:/bin"));
    String::from_utf8(namespace.output(&mut shell).stdout).unwrap()
}

#[test]
fn rules_of_linkerd_init_are_taken_over_in_the_same_mode_and_can_be_made_again() {
    for mode in ["nft", "legacy"] {
        let namespace = Namespace::new();
        Flags::default().add_with_iptables(&namespace, mode);
        let before = saved(&namespace, mode);
        install(&namespace, &chart_in(mode));
        assert_eq!(saved(&namespace, mode), before, "{mode}");
        // linkerd-init fails where it finds its chains half made; after uninstall it finds none.
        Run::new("uninstall").output(&namespace).success();
        Flags::default().add_with_iptables(&namespace, mode);
        assert_eq!(saved(&namespace, mode), before, "{mode}");
        Run::new("verify").output(&namespace).success();
    }
}

/// linkerd-init gives its list of subnets to both families, whose iptables ignore the address before /0.
#[test]
fn a_subnet_of_all_addresses_is_linkerd_inits() {
    let flags = Flags {
        inbound_subnets: vec!["0.0.0.0/0".to_owned()],
        ..Flags::default()
    };
    for mode in ["nft", "legacy"] {
        let (theirs, ours) = (Namespace::new(), Namespace::new());
        flags.add_with_iptables(&theirs, mode);
        let rule = "-A PROXY_INIT_REDIRECT -m comment --comment \"proxy-init/ignore-subnet-0.0.0.0/0\" -j RETURN";
        assert_eq!(
            saved(&theirs, mode).matches(rule).count(),
            2,
            "{}",
            saved(&theirs, mode)
        );
        install(&ours, &format!("--iptables-mode {mode} {}", flags.line()));
        assert_eq!(saved(&ours, mode), saved(&theirs, mode));
        for verify in [
            "verify".to_owned(),
            format!("verify --iptables-mode {mode} {}", flags.line()),
        ] {
            install(&theirs, &verify);
        }
    }
    // In native mode, connections of both families bypass the proxy too.
    let lab = Lab::new();
    install(&lab.pod, &format!("--iptables-mode native {}", flags.line()));
    install(&lab.pod, "verify");
    for pod in POD {
        let to = SocketAddr::new(pod, 80);
        let answer = install(&lab.pod, &format!("explain inbound --to {to} --expect bypass"));
        assert!(answer.contains("ignore-subnet-0.0.0.0/0"), "{answer}");
    }
}
