//! The text that --simulate prints.

use lab::network::Namespace;

use super::CHART_PORTS;
use crate::support::{Run, feed, install, saved};

#[test]
fn one_familys_text_restores_to_what_installing_makes() {
    let flags = "-p 4143 -o 4140 -u 2102 -g 7 -r 80 --inbound-ports-to-ignore 1-9,25 --subnets-to-ignore \
                 10.1.2.3/8,fd00::/8 --outbound-subnets-to-ignore 192.0.2.0/24,2001:db8::/32";
    let nowhere = Namespace::new();
    let text = |family: &str| Run::new(&format!("--simulate={family} {flags}")).nobody(&[]).output(&nowhere).success();
    let (v4, v6) = (text("ipv4"), text("ipv6"));
    assert_eq!(nowhere.sh("nft list ruleset"), "");
    for variant in ["nft", "legacy"] {
        let (restored, installed) = (Namespace::new(), Namespace::new());
        for (command, text) in [("iptables", &v4), ("ip6tables", &v6)] {
            feed(&restored, &format!("{command}-{variant}-restore --noflush"), text).success();
        }
        install(&installed, &format!("--iptables-mode {variant} {flags}"));
        let restored = saved(&restored, variant);
        assert_eq!(restored.matches("-j PROXY_INIT_OUTPUT").count(), 2, "{restored}");
        assert_eq!(restored, saved(&installed, variant), "{variant}");
    }
    // A rule on a subnet is not passed over by the other family's command.
    let finished = feed(&nowhere, "iptables-nft-restore --noflush", &v6);
    assert_ne!(finished.code(), Some(0), "{finished:?}");
}

#[test]
fn the_text_of_both_families_is_refused_as_a_whole() {
    let nowhere = Namespace::new();
    for simulate in ["--simulate", "--simulate=true"] {
        let text = Run::new(&format!("{simulate} {CHART_PORTS}")).nobody(&[]).output(&nowhere).success();
        assert!(text.contains("# IPv4: iptables-restore --noflush") && text.contains("# IPv6: ip6tables-restore"));
        for variant in ["nft", "legacy"] {
            for family in ["iptables", "ip6tables"] {
                for options in ["--noflush", "", "--noflush --table nat", "--test", "--noflush --counters"] {
                    let namespace = Namespace::new();
                    let command = format!("{family}-{variant}-restore {options}");
                    let finished = feed(&namespace, &command, &text);
                    assert_ne!(finished.code(), Some(0), "{command}: {finished:?}");
                    assert!(finished.stderr().contains("text-of-both-families"), "{command}: {finished:?}");
                    let saved = saved(&namespace, variant);
                    assert!(!saved.contains("PROXY_INIT"), "{command}: {saved}");
                }
            }
        }
        // Its parts are each family's text.
        for (family, heading) in [("ipv4", "# IPv4"), ("ipv6", "# IPv6")] {
            let part = &text[text.find(heading).unwrap()..];
            let part = &part[..part.find("COMMIT\n").unwrap() + "COMMIT\n".len()];
            let one = Run::new(&format!("--simulate={family} {CHART_PORTS}")).nobody(&[]).output(&nowhere);
            assert_eq!(one.success(), part);
        }
    }
    // One family's rules are nothing that could be mixed up.
    let only = install(&nowhere, &format!("--simulate --ipv6=false {CHART_PORTS}"));
    feed(&Namespace::new(), "iptables-nft-restore --noflush", &only).success();
    install(&nowhere, &format!("--simulate=false --iptables-mode nft {CHART_PORTS}"));
    assert!(saved(&nowhere, "nft").contains("PROXY_INIT_OUTPUT"));
}
