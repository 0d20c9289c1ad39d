//! show and verify without flags: what they say is what iptables and nft say, in every mode.

use std::net::SocketAddr;

use lab::network::{DISTANT, Lab, Namespace, Owner, POD, ROOT, Reached, Server, connect};
use serde_json::Value;

use crate::support::{Folder, PROXY_INIT, Run, chart, chart_in, install, nft, unfolded};

fn show(namespace: &Namespace) -> Value {
    serde_json::from_str(&install(namespace, "show --output json")).unwrap()
}

/// The chain of this name and family in the only backend.
fn chain<'a>(shown: &'a Value, family: &str, name: &str) -> &'a Value {
    let chains = shown["backends"][0]["chains"].as_array().unwrap();
    let is_it = |chain: &&Value| chain["family"] == family && chain["chain"] == name;
    chains.iter().find(is_it).unwrap_or_else(|| panic!("{family} {name}: {shown:#}"))
}

/// Packets and bytes of a chain's rules, as shown.
fn shown_counters(shown: &Value, family: &str, name: &str) -> Vec<(u64, u64)> {
    let rules = chain(shown, family, name)["rules"].as_array().unwrap();
    rules.iter().map(|rule| (rule["packets"].as_u64().unwrap(), rule["bytes"].as_u64().unwrap())).collect()
}

/// Packets and bytes of a chain's rules, as iptables lists them.
fn iptables_counters(namespace: &Namespace, command: &str, chain: &str) -> Vec<(u64, u64)> {
    let text = namespace.sh(&format!("{command} -t nat -L {chain} -n -v -x"));
    // A line that names the chain, then one that names the columns.
    let rules = text.lines().skip(2).filter(|line| !line.is_empty());
    let read = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
        (words.next().unwrap(), words.next().unwrap())
    };
    rules.map(read).collect()
}

/// Packets and bytes of a chain's rules, as nft lists them.
fn nft_counters(namespace: &Namespace, chain: &str) -> Vec<(u64, u64)> {
    let text = namespace.sh("nft list ruleset");
    let (_, body) = text.split_once(&format!("chain {chain} {{\n")).unwrap();
    let (body, _) = body.split_once("\n\t}").unwrap();
    let number_after = |line: &str, word: &str| -> u64 {
        let (_, rest) = line.split_once(&format!("{word} ")).unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    let counting = body.lines().filter(|line| line.contains("counter packets"));
    counting.map(|line| (number_after(line, "packets"), number_after(line, "bytes"))).collect()
}

const CHAINS: [&str; 4] = ["PREROUTING", "PROXY_INIT_REDIRECT", "OUTPUT", "PROXY_INIT_OUTPUT"];

/// Connections of each kind, a different number of each, over both families.
pub(crate) fn connections(lab: &Lab) {
    let _servers = [Server::start(&lab.pod, &[4143, 4140, 8080, 4190]), Server::start(&lab.outside, &[80, 4567])];
    let proxy = Owner { uid: 2102, gid: 2102 };
    for (family, times) in [(0, 1), (1, 2)] {
        for _ in 0..times {
            connect(&lab.outside, ROOT, SocketAddr::new(POD[family], 8080));
            connect(&lab.outside, ROOT, SocketAddr::new(POD[family], 4190));
            connect(&lab.pod, ROOT, SocketAddr::new(DISTANT[family], 80));
            connect(&lab.pod, ROOT, SocketAddr::new(DISTANT[family], 4567));
            connect(&lab.pod, ROOT, SocketAddr::new(POD[family], 8080));
            connect(&lab.pod, proxy, SocketAddr::new(DISTANT[family], 80));
        }
        connect(&lab.outside, ROOT, SocketAddr::new(POD[family], 8080));
    }
}

#[test]
fn counters_agree_with_iptables_after_real_connections() {
    for mode in ["nft", "legacy"] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in(mode));
        connections(&lab);
        let shown = show(&lab.pod);
        assert_eq!(shown["backends"].as_array().unwrap().len(), 1, "{shown:#}");
        for (family, command, redirected) in [("IPv4", "iptables", 2), ("IPv6", "ip6tables", 3)] {
            for name in CHAINS {
                let listed = iptables_counters(&lab.pod, &format!("{command}-{mode}"), name);
                assert_eq!(shown_counters(&shown, family, name), listed, "{mode} {family} {name}");
            }
            // They count something at all.
            let inbound = shown_counters(&shown, family, "PROXY_INIT_REDIRECT");
            let packets: Vec<_> = inbound.iter().map(|&(packets, _)| packets).collect();
            assert_eq!(packets, [redirected - 1, redirected], "{mode} {family}");
        }
        let text = install(&lab.pod, "show");
        let words = ["IPv4", "IPv6"].map(|family| {
            let (packets, _bytes) = shown_counters(&shown, family, "PROXY_INIT_REDIRECT")[1];
            packets.to_string()
        });
        let rows = text.lines().filter(|line| line.contains("to the proxy, port 4143"));
        assert_eq!(rows.filter_map(|row| row.split_whitespace().nth(1)).collect::<Vec<_>>(), words, "{text}");
    }
}

#[test]
fn counters_agree_with_nft_after_real_connections() {
    for (mode, families) in [("native", &["inet"][..]), ("nft", &["IPv4"])] {
        let lab = Lab::new();
        let flags = if mode == "nft" { "--ipv6=false" } else { "" };
        install(&lab.pod, &format!("{} {flags}", chart_in(mode)));
        connections(&lab);
        let shown = show(&lab.pod);
        for family in families {
            for name in CHAINS {
                assert_eq!(shown_counters(&shown, family, name), nft_counters(&lab.pod, name), "{mode} {name}");
            }
        }
        let inbound = shown_counters(&shown, families[0], "PROXY_INIT_REDIRECT");
        let packets: Vec<_> = inbound.iter().map(|&(packets, _)| packets).collect();
        let want = if mode == "native" { [3, 5] } else { [1, 2] };
        assert_eq!(packets, want, "{mode}");
    }
}

/// Flags of every kind, in lists that are neither sorted nor disjoint.
const MANY_FLAGS: &str = "-p 4143 -o 4140 -u 2102 -g 7 -r 443,80,81 --inbound-ports-to-ignore 4191,4190,8000-8100,8050 \
                          --outbound-ports-to-ignore 25 --subnets-to-ignore 10.1.2.3/8,fd00::/8,11.0.0.0/8 \
                          --outbound-subnets-to-ignore 169.254.169.254/32";

/// The flags that show tells install the same, and verify without flags agrees.
#[test]
fn the_flags_that_are_shown_install_exactly_this() {
    let many_ports: Vec<_> = (1..300).map(|port| (port * 7 % 1000).to_string()).collect();
    let long = format!("-p 1 -o 2 --inbound-ports-to-ignore {}", many_ports.join(","));
    for mode in ["nft", "legacy", "native"] {
        for flags in [&chart(), MANY_FLAGS, "-p 1 -o 2 --ipv6=false", &long] {
            let namespace = Namespace::new();
            install(&namespace, &format!("--iptables-mode {mode} {flags}"));
            let ruleset = || {
                namespace.sh("nft list ruleset")
                    + &namespace.sh("iptables-legacy-save")
                    + &namespace.sh("ip6tables-legacy-save")
            };
            let without_comments = |text: String| -> Vec<String> {
                text.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect()
            };
            let before = without_comments(ruleset());
            let shown = show(&namespace);
            let told: Vec<String> = serde_json::from_value(shown["backends"][0]["flags"].clone()).unwrap();
            assert_eq!(told[..2], ["--iptables-mode", mode]);

            let verified = Run::new("verify --output json").output(&namespace).success();
            let verified: Value = serde_json::from_str(&verified).unwrap();
            assert_eq!(verified["in_place"], true, "{verified:#}");
            assert_eq!(verified["mode"], mode);
            assert_eq!(verified["flags"], shown["backends"][0]["flags"]);
            Run::new("verify").arguments(&told).output(&namespace).success();

            let again = Namespace::new();
            Run::new("").arguments(&told).output(&again).success();
            install(&again, &format!("verify --iptables-mode {mode} {flags}"));
            install(&namespace, "uninstall");
            Run::new("").arguments(&told).output(&namespace).success();
            assert_eq!(without_comments(ruleset()), before, "{mode} {flags}");
        }
    }
}

#[test]
fn what_listens_is_asked_for_once() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let calls = Run::new("show").calls(&namespace);
    assert_eq!(calls.0.matches("NETLINK_SOCK_DIAG").count(), 1, "{}", calls.0);
}

#[test]
fn foreign_rules_are_shown_where_they_run() {
    for mode in ["nft", "legacy"] {
        let namespace = Namespace::new();
        let iptables = |rest: &str| namespace.sh(&format!("iptables-{mode} -t nat {rest}"));
        iptables("-N DOCKER");
        iptables("-A DOCKER -p tcp --dport 80 -j DNAT --to-destination 192.0.2.7");
        iptables("-A PREROUTING -i eth9 -j DOCKER");
        install(&namespace, &chart_in(mode));
        iptables("-A PREROUTING -p tcp --dport 81 -j ACCEPT");
        iptables("-I PROXY_INIT_REDIRECT 2 -p tcp --dport 82 -m comment --comment mine -j RETURN");
        namespace.sh("nft add table inet early");
        namespace.sh("nft add chain inet early pre { type nat hook prerouting priority -150 ; }");
        namespace.sh("nft add rule inet early pre tcp dport 83 counter redirect to :9");
        let text = install(&namespace, "show");
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words:?} in {text}"));
        let order = [
            "inet early pre (prerouting, priority -150)",
            "to port 83: ",
            "PREROUTING (prerouting, priority -100)",
            "arriving on ",
            "DOCKER\n",
            "to port 80: ",
            "PROXY_INIT_REDIRECT\n",
            "to port 82: ",
            "port 4143",
            "outbound",
        ];
        assert!(order.map(place).is_sorted(), "{text}");
        assert!(!text.contains("to port 81"), "it comes after the jump: {text}");
        for (words, effect) in [
            ("to port 83: ", "to this host, port 9"),
            ("arriving on ", "to DOCKER"),
            ("to port 82: ", "bypasses the proxy"),
        ] {
            let line = text.lines().find(|line| line.contains(words)).unwrap();
            assert!(line.contains(effect) && line.contains("(foreign"), "{line}");
        }
        assert!(text.contains("(foreign: mine)\n"), "{text}");
        assert!(text.contains(&format!("{mode} mode\nnot one complete, untouched installation")), "{text}");

        let shown = show(&namespace);
        assert_eq!(shown["backends"][0]["flags"], Value::Null);
        let first = &shown["backends"][0]["chains"][0];
        assert_eq!(first["chain"], "inet early pre", "{shown:#}");
        assert_eq!((&first["hook"], &first["priority"]), (&"prerouting".into(), &(-150).into()));
        assert_eq!(first["rules"][0]["rule"], "tcp dport 83 counter redirect to :9");
        let ours = |name: &str| -> Vec<bool> {
            let rules = chain(&shown, "IPv4", name)["rules"].as_array().unwrap();
            rules.iter().map(|rule| rule["ours"].as_bool().unwrap()).collect()
        };
        assert_eq!(ours("PREROUTING"), [false, true, false]);
        assert_eq!(ours("PROXY_INIT_REDIRECT"), [true, false, true]);
        assert_eq!(ours("DOCKER"), [false]);
        let effects = chain(&shown, "IPv4", "PREROUTING")["rules"].as_array().unwrap().iter();
        let effects: Vec<_> = effects.map(|rule| rule["effect"].as_str().unwrap()).collect();
        assert_eq!(effects, ["jump", "jump", "bypass"]);
    }
}

#[test]
fn nothing_is_made_and_nothing_is_started() {
    for mode in ["nft", "native", ""] {
        let namespace = Namespace::new();
        if !mode.is_empty() {
            install(&namespace, &chart_in(mode));
        }
        for command in ["show", "show --output json", "explain outbound --to 127.0.0.1:80"] {
            let calls = Run::new(command).calls(&namespace);
            assert_eq!(calls.count(&["execve", "fork", "vfork", "clone", "clone3"]), 1, "{}", calls.0);
        }
        let before = namespace.sh("nft list ruleset");
        install(&namespace, "show");
        assert_eq!(namespace.sh("nft list ruleset"), before);
        for list in ["ip_tables_names", "ip6_tables_names"] {
            assert_eq!(namespace.sh(&format!("cat /proc/thread-self/net/{list}")), "", "{mode}");
        }
    }
    // Reading legacy tables starts no process either.
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let calls = Run::new("show").calls(&namespace);
    assert_eq!(calls.count(&["execve", "fork", "vfork", "clone", "clone3"]), 1, "{}", calls.0);
}

#[test]
fn an_unprivileged_user_sees_nf_tables_and_is_told_what_is_not_seen() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        let nobody = |line: &str| Run::new(line).nobody(&["net_admin"]).output(&namespace).success();
        let text = nobody("show");
        let unseen = "not known: what legacy tables hold, whether proxy-init's rules or others (only\n  root and group 0 can \
                      list legacy tables)\n";
        assert!(text.starts_with(&format!("{mode} mode\n")) && text.ends_with(unseen), "{text}");
        let text = text.replace(unseen, "").replace("programs that could be seen", "programs");
        assert_eq!(text, install(&namespace, "show"));
        let json: Value = serde_json::from_str(&nobody("show --output json")).unwrap();
        assert_eq!(json["not_known"], serde_json::json!(["legacy"]));
        assert!(nobody("verify").contains("--incoming-proxy-port 4143"));
    }
    let namespace = Namespace::new();
    let shown = Run::new("show").nobody(&[]).output(&namespace);
    assert_eq!(shown.code(), Some(1));
    assert!(shown.stdout().starts_with("not known: EPERM: run as root or with CAP_NET_ADMIN"), "{}", shown.said());
    let verified = Run::new("verify").nobody(&[]).output(&namespace);
    assert_eq!(verified.code(), Some(1), "{}", verified.said());
    assert!(verified.stderr().contains("cannot read this network namespace's rules"), "{}", verified.said());
}

#[test]
fn where_nothing_is_installed_it_says_so() {
    let namespace = Namespace::new();
    assert_eq!(install(&namespace, "show"), "no proxy-init rules were found in this network namespace\n");
    assert_eq!(show(&namespace), serde_json::json!({"schema": 1, "backends": [], "not_known": [], "warnings": []}));
}

#[test]
fn colours_are_only_for_a_terminal() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let folder = Folder::new("show-terminal");
    let log = folder.join("typescript");
    // script(1) gives the program a terminal.
    let on_terminal = |environment: &str| {
        let command = format!("{environment} {} show", *PROXY_INIT);
        namespace.stdout("script", ["-q", "-e", "-c", &command, log.to_str().unwrap()])
    };
    let coloured = on_terminal("TERM=xterm");
    for part in ["[1mnft mode\u{1b}[0m", "[32m    2        0  tcp: to the proxy, port 4143 (all the rest)\u{1b}[0m"] {
        assert!(coloured.contains(&format!("\u{1b}{part}")), "{coloured}");
    }
    for columns in [70, 120] {
        let text = on_terminal(&format!("stty cols {columns}; TERM=dumb"));
        let longest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(longest <= columns && (columns == 70 || longest > 80), "{columns}: {text}");
    }
    // In a pod, the log keeps it for `kubectl logs`.
    for environment in ["NO_COLOR=1", "KUBERNETES_SERVICE_HOST=10.96.0.1", "TERM=dumb"] {
        let plain = on_terminal(&format!("TERM=xterm {environment}"));
        assert!(!plain.contains('\u{1b}'), "{environment}");
    }
    assert!(!install(&namespace, "show").contains('\u{1b}'));
    for question in ["show", "verify", "check", "explain outbound --to 127.0.0.1:80", "detect"] {
        for (colour, is_coloured) in [("always", question != "detect"), ("never", false), ("auto", false)] {
            let said = Run::new(&format!("{question} --color {colour}")).output(&namespace).stdout();
            assert_eq!(said.contains('\u{1b}'), is_coloured, "{question} {colour}: {said}");
        }
    }
    let refused = Run::new("show --color sometimes").output(&namespace);
    assert!(refused.stderr().contains("must be auto, always or never, not \"sometimes\""), "{}", refused.said());
}

/// A firewall that knows what was redirected, as firewalld, and a network policy of the pod's port, which sees the proxy's.
#[test]
fn a_filter_after_the_rules_interferes_if_connections_say_so() {
    for (admitted, port) in [("ct status dnat", Some(4143)), ("tcp dport 8080", None)] {
        let lab = Lab::new();
        install(&lab.pod, &chart_in("nft"));
        let chain = format!(
            "type filter hook input priority 10; ct state established accept; iifname lo accept; meta l4proto != tcp accept; \
             {admitted} accept; reject with tcp reset"
        );
        nft(&lab.pod, &format!("table inet guard {{ chain c {{ {chain}; }}; }}"));
        let _server = Server::start(&lab.pod, &[4143, 4140, 8080]);
        let reached = connect(&lab.outside, ROOT, SocketAddr::new(POD[0], 8080));
        let reached = match reached {
            Reached::Server { port, .. } => Some(port),
            Reached::Refused => None,
        };
        assert_eq!(reached, port, "{admitted}");
        let text = install(&lab.pod, "show");
        let interferes = "IPv4, inet guard c: a rule drops connections that were redirected: to port 4143";
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.contains(interferes), port.is_none(), "{text}");
    }
    // As fail2ban, which keeps a host out that it names.
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    let chain = "type filter hook prerouting priority -300; ip saddr 198.51.100.9 drop";
    nft(&lab.pod, &format!("table inet guard {{ chain c {{ {chain}; }}; }}"));
    let text = install(&lab.pod, "show");
    let told = "1 rule of another program runs before or among these rules of other programs may interfere (see proxy-init \
                verify) IPv4, inet guard c: a rule keeps out hosts that it names: from 198.51.100.9";
    assert!(unfolded(&text).contains(told), "{text}");
}

#[test]
fn the_flags_can_be_pasted_into_a_shell() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let text = install(&namespace, "show");
    let (_, flags) = text.split_once("flags that install proxy-init's rules as found\n").unwrap();
    let (flags, _) = flags.split_once("\n\n").unwrap();
    assert!(flags.lines().count() > 1, "{text}");
    let verified = namespace.stdout("sh", ["-c", &format!("{} verify {flags}", *PROXY_INIT)]);
    assert!(verified.starts_with("in place in nft mode"), "{verified}");
}
