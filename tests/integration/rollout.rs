//! From linkerd-init to proxy-init and back.

use std::net::SocketAddr;

use lab::linkerd::Flags;
use lab::network::{Lab, Namespace, POD};

use crate::support::{Run, chart_in, install, saved};

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
    let flags = Flags { inbound_subnets: vec!["0.0.0.0/0".to_owned()], ..Flags::default() };
    for mode in ["nft", "legacy"] {
        let (theirs, ours) = (Namespace::new(), Namespace::new());
        flags.add_with_iptables(&theirs, mode);
        let rule = "-A PROXY_INIT_REDIRECT -m comment --comment \"proxy-init/ignore-subnet-0.0.0.0/0\" -j RETURN";
        assert_eq!(saved(&theirs, mode).matches(rule).count(), 2, "{}", saved(&theirs, mode));
        install(&ours, &format!("--iptables-mode {mode} {}", flags.line()));
        assert_eq!(saved(&ours, mode), saved(&theirs, mode));
        for verify in ["verify".to_owned(), format!("verify --iptables-mode {mode} {}", flags.line())] {
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
