//! nft mode: what it leaves in the kernel, as iptables-nft and nft see it.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use xtask::lab::Namespace;

use crate::linkerd::{Flags, for_any_flags};
use crate::{Calls, assert_success, install, last_line, proxy_init, run, run_with_failing, saved_by_nft};

const CHART: &str = "--iptables-mode nft -p 4143 -o 4140 -u 2102 --inbound-ports-to-ignore 4190,4191,4567,4568 \
                     --outbound-ports-to-ignore 4567,4568";

/// Installs in one namespace with proxy-init and in another with iptables-nft, and compares.
fn check_against_iptables(flags: &Flags) {
    let ours = Namespace::new();
    let output = ours.output(proxy_init().arg("--iptables-mode=nft").args(flags.arguments()));
    assert_success(&output);
    let theirs = Namespace::new();
    flags.add_with_iptables(&theirs, "nft");
    assert_eq!(saved_by_nft(&ours), saved_by_nft(&theirs));

    let ruleset = ours.sh("nft list ruleset");
    for (program, command) in flags.commands_of("nft") {
        if let Some(rule) = command.strip_prefix("-A ") {
            ours.sh(&format!("{program} -t nat -C {rule}"));
            let comment = rule.rsplit_once("--comment ").unwrap().1.split(' ').next().unwrap();
            assert!(
                ruleset.contains(&format!("comment \"{comment}\"")),
                "{comment} in {ruleset}"
            );
        }
    }
}

#[test]
fn the_rules_are_those_that_iptables_nft_writes() {
    let subnets = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    for flags in [
        Flags::default(),
        Flags {
            ipv6: false,
            ..Flags::default()
        },
        Flags {
            uid: None,
            inbound: vec![],
            outbound: vec![],
            ..Flags::default()
        },
        Flags {
            gid: Some(2103),
            redirect: vec![80, 443, 80],
            inbound_subnets: subnets(&["10.0.0.0/8", "10.1.2.3/30", "0.0.0.0/0", "fd00::/8", "fd77:1::/45"]),
            outbound_subnets: subnets(&["192.0.2.7/32", "2001:db8::1/128", "::/0"]),
            ..Flags::default()
        },
    ] {
        check_against_iptables(&flags);
    }
}

#[test]
fn any_rules_are_those_that_iptables_nft_writes() {
    for_any_flags(16, check_against_iptables);
}

#[test]
fn a_second_run_leaves_the_same_rules_once() {
    let namespace = Namespace::new();
    install(&namespace, CHART);
    let first = saved_by_nft(&namespace);
    install(&namespace, CHART);
    assert_eq!(saved_by_nft(&namespace), first);
}

#[test]
fn other_flags_replace_the_rules() {
    let namespace = Namespace::new();
    install(&namespace, CHART);
    for flags in [
        Flags {
            redirect: vec![80],
            gid: Some(7),
            ..Flags::default()
        },
        Flags {
            inbound: vec![],
            ..Flags::default()
        },
    ] {
        let arguments = flags.arguments().join(" ");
        install(&namespace, &format!("--iptables-mode nft {arguments}"));
        let theirs = Namespace::new();
        flags.add_with_iptables(&theirs, "nft");
        assert_eq!(saved_by_nft(&namespace), saved_by_nft(&theirs));
    }
}

#[test]
fn without_ipv6_an_earlier_runs_ipv6_rules_go() {
    let namespace = Namespace::new();
    install(&namespace, CHART);
    install(&namespace, &format!("{CHART} --ipv6=false"));
    assert!(!namespace.sh("ip6tables-nft-save -t nat").contains("PROXY_INIT"));
    assert!(
        namespace
            .sh("iptables-nft-save -t nat")
            .contains("-j PROXY_INIT_OUTPUT")
    );
}

#[test]
fn rules_that_iptables_nft_made_are_taken_over() {
    let namespace = Namespace::new();
    Flags::default().add_with_iptables(&namespace, "nft");
    let before = saved_by_nft(&namespace);
    install(
        &namespace,
        &format!("--iptables-mode nft {}", Flags::default().arguments().join(" ")),
    );
    assert_eq!(saved_by_nft(&namespace), before);
}

#[test]
fn strangers_keep_their_rules_and_their_places() {
    let namespace = Namespace::new();
    for line in [
        "iptables-nft -t nat -N KUBE-SERVICES",
        "iptables-nft -t nat -A PREROUTING -m comment --comment portals -j KUBE-SERVICES",
        "iptables-nft -t nat -A OUTPUT -p udp --dport 53 -j ACCEPT",
        "ip6tables-nft -t nat -A PREROUTING -s fd00::1 -j ACCEPT",
        "ip6tables-nft -t filter -A INPUT -p tcp --dport 22 -j ACCEPT",
        "nft add table inet own",
        "nft add chain inet own input { type filter hook input priority 0 ; }",
        "nft add rule inet own input meta nfproto ipv4 tcp dport 80 accept",
    ] {
        namespace.sh(line);
    }
    let rules_of_strangers = |namespace: &Namespace| -> Vec<String> {
        let all = namespace.sh("iptables-nft-save") + &namespace.sh("ip6tables-nft-save");
        let all = all + &namespace.sh("nft list table inet own");
        let strange = all
            .lines()
            .filter(|line| !line.contains("PROXY_INIT") && !line.starts_with('#'));
        strange
            .map(|line| line.split(" [").next().unwrap().to_owned())
            .collect()
    };
    let before = rules_of_strangers(&namespace);
    install(&namespace, CHART);
    // Between ours, now, as somebody would who comes later.
    namespace.sh("iptables-nft -t nat -A PREROUTING -s 192.0.2.9 -j ACCEPT");
    namespace.sh("iptables-nft -t nat -D PREROUTING -s 192.0.2.9 -j ACCEPT");
    install(&namespace, CHART);
    let after: Vec<String> = rules_of_strangers(&namespace);
    let missing: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "{after:#?}");
    let prerouting = namespace.sh("iptables-nft -t nat -S PREROUTING");
    let jumps: Vec<_> = prerouting
        .lines()
        .skip(1)
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(jumps, ["KUBE-SERVICES", "PROXY_INIT_REDIRECT"]);
}

#[test]
fn a_base_chain_keeps_its_policy() {
    let namespace = Namespace::new();
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat OUTPUT { type nat hook output priority -100 ; policy drop ; }");
    install(&namespace, CHART);
    assert!(
        namespace
            .sh("iptables-nft -t nat -S OUTPUT")
            .starts_with("-P OUTPUT DROP\n")
    );
}

#[test]
fn what_somebody_broke_is_put_right() {
    let whole = Namespace::new();
    install(&whole, CHART);
    let want = saved_by_nft(&whole);
    for damage in [
        &["iptables-nft -t nat -F PREROUTING"][..],
        &["iptables-nft -t nat -A OUTPUT -j PROXY_INIT_OUTPUT"],
        &["iptables-nft -t nat -A PREROUTING -p tcp -i eth0 -j PROXY_INIT_REDIRECT"],
        &[
            "iptables-nft -t nat -F PROXY_INIT_OUTPUT",
            "ip6tables-nft -t nat -D PROXY_INIT_REDIRECT 1",
        ],
        &[
            "ip6tables-nft -t nat -F OUTPUT",
            "ip6tables-nft -t nat -F PROXY_INIT_OUTPUT",
            "ip6tables-nft -t nat -X PROXY_INIT_OUTPUT",
        ],
        &["nft delete table ip6 nat"],
        &["nft add rule ip nat PROXY_INIT_OUTPUT tcp dport 80 accept"],
    ] {
        let namespace = Namespace::new();
        install(&namespace, CHART);
        for line in damage {
            namespace.sh(line);
        }
        install(&namespace, CHART);
        assert_eq!(saved_by_nft(&namespace), want, "{damage:?}");
    }
}

#[test]
fn a_base_chain_of_another_kind_is_an_error_that_names_it() {
    let namespace = Namespace::new();
    namespace.sh("nft add table ip nat");
    namespace.sh("nft add chain ip nat PREROUTING { type filter hook prerouting priority 0 ; }");
    let before = namespace.sh("nft list ruleset");
    let line = last_line(&run(&namespace, CHART));
    assert!(
        line.contains("chain PREROUTING") && line.contains("nft list chain ip nat PREROUTING"),
        "{line}"
    );
    assert_eq!(namespace.sh("nft list ruleset"), before);
}

#[test]
fn thirty_two_at_once_beside_a_busy_iptables_leave_one_set_of_rules() {
    let namespace = Namespace::new();
    let mut busy = namespace.run(|| {
        let script = "while :; do iptables-nft -t nat -A POSTROUTING -s 192.0.2.1 -j ACCEPT; \
                      iptables-nft -t nat -D POSTROUTING -s 192.0.2.1 -j ACCEPT; done";
        Command::new("sh")
            .args(["-c", script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    let children: Vec<_> = namespace.run(|| {
        let start = |_| {
            proxy_init()
                .args(CHART.split_whitespace())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        (0..32).map(start).collect()
    });
    let outputs: Vec<_> = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    busy.kill().unwrap();
    busy.wait().unwrap();
    for output in outputs {
        assert_success(&output);
    }
    namespace.sh("iptables-nft -t nat -F POSTROUTING");
    let alone = Namespace::new();
    install(&alone, CHART);
    assert_eq!(saved_by_nft(&namespace), saved_by_nft(&alone));
}

#[test]
fn killed_at_any_instant_it_leaves_all_rules_or_none() {
    // Enough ports that most of the run is spent around the commit.
    let ports: Vec<String> = (1..3000).map(|port| (port * 2).to_string()).collect();
    let arguments = format!("{CHART} --inbound-ports-to-ignore {}", ports.join(","));
    let whole = Namespace::new();
    install(&whole, &arguments);
    let want = saved_by_nft(&whole);
    let (mut killed, mut done) = (0, 0);
    for step in 0..60 {
        let namespace = Namespace::new();
        let mut child = namespace.run(|| {
            let mut command = proxy_init();
            command.args(arguments.split_whitespace()).stdout(Stdio::null());
            command.spawn().unwrap()
        });
        thread::sleep(Duration::from_micros(500 * step));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let saved = saved_by_nft(&namespace);
        if saved.contains("PROXY_INIT") {
            assert_eq!(saved, want, "half a firewall after {status}");
            done += 1;
        }
        killed += u32::from(status.signal().is_some());
    }
    assert!(killed > 0, "no run was killed in time");
    println!("{killed} of 60 killed, {done} with all rules");
}

#[test]
fn twenty_thousand_ports_are_one_batch() {
    let namespace = Namespace::new();
    let ports: Vec<String> = (1..=20_000).map(|index| (index * 3).to_string()).collect();
    let calls = Calls::of(
        &namespace,
        &format!("{CHART} --inbound-ports-to-ignore {}", ports.join(",")),
    );
    assert_eq!(calls.count(&["sendmsg", "sendto", "sendmmsg"]), 1);
    // 4 + 20,000 ports at 15 a rule.
    assert_eq!(
        namespace
            .sh("iptables-nft -t nat -S PROXY_INIT_REDIRECT")
            .matches("multiport")
            .count(),
        1334
    );
    assert_eq!(
        namespace
            .sh("ip6tables-nft -t nat -S PROXY_INIT_REDIRECT")
            .matches("multiport")
            .count(),
        1334
    );
}

/// What a trace of system calls says of a run in a fresh namespace.
#[test]
fn a_fresh_namespace_takes_one_process_one_send_and_few_receives() {
    let namespace = Namespace::new();
    let calls = Calls::of(&namespace, CHART);
    let trace = &calls.0;
    assert_eq!(calls.count(&["execve"]), 1, "{trace}");
    assert_eq!(calls.count(&["fork", "vfork", "clone", "clone3"]), 0, "{trace}");
    assert_eq!(calls.count(&["sendmsg", "sendto", "sendmmsg"]), 1, "{trace}");
    assert!((1..=3).contains(&calls.count(&["recvmsg", "recvfrom"])), "{trace}");
    let writes = trace.lines().filter(|line| line.contains(" write(1,")).count();
    assert_eq!(writes, 1, "the log is one write: {trace}");
}

#[test]
fn the_wait_flag_changes_nothing() {
    let namespace = Namespace::new();
    install(&namespace, &format!("{CHART} -w"));
    install(&namespace, &format!("{CHART} -w=true"));
}

#[test]
fn in_a_user_namespace_an_id_that_is_not_mapped_is_named() {
    let namespace = Namespace::new();
    let unshared = |arguments: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urn", env!("CARGO_BIN_EXE_proxy-init")]);
        namespace.output(command.args(arguments.split_whitespace()))
    };
    let output = unshared("--iptables-mode nft -p 4143 -o 4140 --inbound-ports-to-ignore 4190 -r 80");
    assert_success(&output);

    let line = last_line(&unshared(CHART));
    assert!(line.contains("id 2102 is not mapped in this user namespace"), "{line}");
    assert!(line.contains("--uid-owner 2102"), "{line}");
    let line = last_line(&unshared("--iptables-mode nft -p 4143 -o 4140 -g 7"));
    assert!(line.contains("id 7 is not mapped"), "{line}");
}

#[test]
fn a_batch_that_does_not_fit_says_so() {
    let namespace = Namespace::new();
    let line = last_line(&run_with_failing(&namespace, "sendto", "EMSGSIZE", CHART));
    assert!(
        line.contains("EMSGSIZE") && line.contains("net.core.wmem_max"),
        "{line}"
    );
}

/// Runs with these capabilities only, as somebody who isn't root.
fn run_with(namespace: &Namespace, capabilities: &str) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(format!("--inh-caps=-all{capabilities}"))
        .arg(format!("--ambient-caps=-all{capabilities}"))
        .arg(format!("--bounding-set=-all{capabilities}"))
        .arg(env!("CARGO_BIN_EXE_proxy-init"));
    namespace.output(command.args(CHART.split_whitespace()))
}

#[test]
fn it_needs_net_admin_and_nothing_else() {
    let namespace = Namespace::new();
    let line = last_line(&run_with(&namespace, ""));
    assert!(
        line.contains("CAP_NET_ADMIN") && line.contains("securityContext.capabilities"),
        "{line}"
    );
    assert_eq!(namespace.sh("nft list ruleset"), "");

    let output = run_with(&namespace, ",+net_admin");
    assert_success(&output);
    assert!(
        namespace
            .sh("iptables-nft-save -t nat")
            .contains("-j PROXY_INIT_OUTPUT")
    );
}

#[test]
fn a_kernel_without_netfilter_sockets_is_named() {
    let namespace = Namespace::new();
    let line = last_line(&run_with_failing(&namespace, "socket", "EPROTONOSUPPORT", CHART));
    assert!(
        line.contains("this kernel has no nf_tables") && line.contains("CONFIG_NF_TABLES"),
        "{line}"
    );
}

#[test]
fn a_failing_socket_is_named() {
    let namespace = Namespace::new();
    for (call, error) in [("sendto", "ENOMEM"), ("recvfrom", "EIO")] {
        let line = last_line(&run_with_failing(&namespace, call, error, CHART));
        assert!(line.contains(error), "{line}");
    }
}
