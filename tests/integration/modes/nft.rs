//! nft mode: what it leaves in the kernel, as iptables-nft and nft see it.

use std::process::{Command, Stdio};

use lab::network::Namespace;

use super::changed_and_fresh;
use crate::support::{Finished, Folder, PORTS, Run, chart_in, install, saved};

fn chart() -> String {
    chart_in("nft")
}

#[test]
fn strangers_keep_their_rules_and_their_places() {
    let namespace = Namespace::new();
    namespace.all([
        "iptables-nft -t nat -N KUBE-SERVICES",
        "iptables-nft -t nat -A PREROUTING -m comment --comment portals -j KUBE-SERVICES",
        "iptables-nft -t nat -A OUTPUT -p udp --dport 53 -j ACCEPT",
        "ip6tables-nft -t nat -A PREROUTING -s fd00::1 -j ACCEPT",
        "ip6tables-nft -t filter -A INPUT -p tcp --dport 22 -j ACCEPT",
        "nft add table inet own",
        "nft add chain inet own input { type filter hook input priority 0 ; }",
        "nft add rule inet own input meta nfproto ipv4 tcp dport 80 accept",
    ]);
    let rules_of_strangers = |namespace: &Namespace| -> Vec<String> {
        let all = namespace.sh("iptables-nft-save") + &namespace.sh("ip6tables-nft-save");
        let all = all + &namespace.sh("nft list table inet own");
        let strange = all.lines().filter(|line| !line.contains("PROXY_INIT") && !line.starts_with('#'));
        strange.map(|line| line.split(" [").next().unwrap().to_owned()).collect()
    };
    let before = rules_of_strangers(&namespace);
    install(&namespace, &chart());
    // Between ours, now, as somebody would who comes later.
    namespace.sh("iptables-nft -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    namespace.sh("iptables-nft -t nat -D PREROUTING -s 192.0.2.9 -j ACCEPT");
    install(&namespace, &chart());
    let after: Vec<String> = rules_of_strangers(&namespace);
    let missing: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "{after:#?}");
    let prerouting = namespace.sh("iptables-nft -t nat -S PREROUTING");
    let jumps: Vec<_> = prerouting.lines().skip(1).map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(jumps, ["KUBE-SERVICES", "PROXY_INIT_REDIRECT"]);
}

#[test]
fn a_base_chain_keeps_its_policy() {
    let namespace = Namespace::new();
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat OUTPUT { type nat hook output priority -100 ; policy drop ; }");
    install(&namespace, &chart());
    assert!(namespace.sh("iptables-nft -t nat -S OUTPUT").starts_with("-P OUTPUT DROP\n"));
}

#[test]
fn a_base_chain_of_another_kind_is_an_error_that_names_it() {
    let namespace = Namespace::new();
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat PREROUTING { type filter hook prerouting priority 0 ; }");
    let before = namespace.sh("nft list ruleset");
    let line = Run::new(&chart()).output(&namespace).last_line();
    assert!(line.contains("chain PREROUTING") && line.contains("nft list chain ip nat PREROUTING"), "{line}");
    assert!(!line.contains("legacy mode"), "no other mode mends it: {line}");
    assert_eq!(namespace.sh("nft list ruleset"), before);
}

#[test]
fn thirty_two_at_once_beside_a_busy_iptables_leave_one_set_of_rules() {
    let namespace = Namespace::new();
    let folder = Folder::new("busy");
    let stop = folder.join("stop");
    let mut busy = namespace.run(|| {
        // It ends by itself: killed, it might leave an iptables behind that adds its rule afterwards.
        let script = "until [ -e \"$STOP\" ]; do iptables-nft -t nat -A POSTROUTING -s 192.0.2.1 -j ACCEPT; \
                      iptables-nft -t nat -D POSTROUTING -s 192.0.2.1 -j ACCEPT; done";
        Command::new("sh").args(["-c", script]).env("STOP", &stop).stderr(Stdio::null()).spawn().unwrap()
    });
    let run = Run::new(&chart());
    let children: Vec<_> = (0..32).map(|_| run.spawn(&namespace, Stdio::piped())).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| Finished(child.wait_with_output().unwrap())).collect();
    std::fs::write(&stop, "").unwrap();
    busy.wait().unwrap();
    for output in outputs {
        output.success();
    }
    namespace.sh("iptables-nft -t nat -F POSTROUTING");
    let alone = Namespace::new();
    install(&alone, &chart());
    assert_eq!(saved(&namespace, "nft"), saved(&alone, "nft"));
}

#[test]
fn killed_at_any_call_it_leaves_all_rules_or_none() {
    // Enough ports that most of the run is spent around the commit.
    let ports: Vec<String> = (1..3000).map(|port| (port * 2).to_string()).collect();
    let arguments = format!("{} --inbound-ports-to-ignore {}", chart(), ports.join(","));
    let whole = Namespace::new();
    install(&whole, &arguments);
    let want = saved(&whole, "nft");
    let mut killed = 0;
    for call in ["openat", "socket", "bind", "sendto", "recvfrom", "munmap", "write", "close", "exit_group"] {
        for when in 1..=4 {
            let namespace = Namespace::new();
            let finished = Run::new(&arguments).inject(call, &format!("signal=KILL:when={when}")).output(&namespace);
            let saved = saved(&namespace, "nft");
            // The whole is too long to be printed.
            let (none, all) = (!saved.contains("PROXY_INIT"), saved == want);
            assert!(none || all, "half a firewall: {call} {when}");
            // It is killed before the call. The kernel has committed when the batch has been sent.
            match (call, when) {
                ("sendto", 1) => assert!(none),
                ("recvfrom", 1) => assert!(all),
                _ => (),
            }
            killed += usize::from(finished.code() != Some(0));
        }
    }
    assert!(killed >= 6, "{killed}: most calls are made at least once");
}

#[test]
fn twenty_thousand_ports_are_one_batch() {
    let namespace = Namespace::new();
    let ports: Vec<String> = (1..=20_000).map(|index| (index * 3).to_string()).collect();
    let arguments = format!("{} --inbound-ports-to-ignore {}", chart(), ports.join(","));
    let calls = Run::new(&arguments).calls(&namespace);
    assert_eq!(calls.count(&["sendmsg", "sendto", "sendmmsg"]), 1);
    // 4 + 20,000 ports at 15 a rule.
    assert_eq!(namespace.sh("iptables-nft -t nat -S PROXY_INIT_REDIRECT").matches("multiport").count(), 1334);
    assert_eq!(namespace.sh("ip6tables-nft -t nat -S PROXY_INIT_REDIRECT").matches("multiport").count(), 1334);
}

#[test]
fn it_needs_net_admin_and_nothing_else() {
    let namespace = Namespace::new();
    let line = Run::new(&chart()).nobody(&[]).output(&namespace).last_line();
    assert!(line.contains("CAP_NET_ADMIN") && line.contains("securityContext.capabilities"), "{line}");
    assert_eq!(namespace.sh("nft list ruleset"), "");

    Run::new(&chart()).nobody(&["net_admin"]).output(&namespace).success();
    assert!(namespace.sh("iptables-nft-save -t nat").contains("-j PROXY_INIT_OUTPUT"));
}

/// gVisor's has no modules.
#[test]
fn a_sandboxs_kernel_is_told_from_one_that_lacks_a_module() {
    let namespace = Namespace::new();
    let version = "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016";
    let mounting = format!("echo '{version}' > /run/version; mount --bind /run/version /proc/version");
    let run = Run::new(&chart()).after_mounting(&mounting).failing("socket", "EPROTONOSUPPORT");
    let line = run.output(&namespace).last_line();
    assert!(line.contains("this kernel is gVisor's, a sandbox that has no nf_tables"), "{line}");
    assert!(line.contains("run the pod without gVisor") && !line.contains("load the module"), "{line}");
}

/// Chains whose rules other flags share with the earlier ones stay, and the result is as in a fresh namespace.
#[test]
fn other_flags_replace_only_the_chains_that_differ() {
    let base = format!("--iptables-mode nft {PORTS} -u 2102 -g 2103");
    for (before, after, stay) in [
        // An exception before the redirection; and gone again.
        ("", "--inbound-ports-to-ignore 9090", 12),
        ("--inbound-ports-to-ignore 9090", "", 12),
        // Another in the middle of three, with one after all of them.
        (
            "--subnets-to-ignore 10.0.0.0/8,192.0.2.0/24,198.51.100.0/24",
            "--subnets-to-ignore 10.0.0.0/8,203.0.113.0/24,198.51.100.0/24 --outbound-ports-to-ignore 443",
            5,
        ),
        // In another order.
        ("--subnets-to-ignore 10.0.0.0/8,192.0.2.0/24", "--subnets-to-ignore 192.0.2.0/24,10.0.0.0/8", 13),
        ("-r 80", "-r 81", 12),
        // Both families' rules, and then one's.
        ("", "--ipv6=false", 7),
    ] {
        let [namespace, fresh] = changed_and_fresh(&base, before, after, stay);
        if !after.contains("ipv6") {
            assert_eq!(saved(&namespace, "nft"), saved(&fresh, "nft"), "{before} to {after}");
        }
    }
}
