//! Installing in each mode, again, with other flags and beside what is there already, as iptables and nft see it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lab::linkerd::Flags;
use lab::network::{Lab, Namespace, POD};

use crate::support::any_flags::for_any_flags;
use crate::support::{PORTS, Run, chart_in, install, saved, saved_by, unfolded};

/// Linkerd's flags, the same again, others twice, fewer, and then uninstalling.
#[test]
fn each_mode_holds_the_rules_of_the_last_run_and_none_after_uninstalling() {
    let chart = Flags::default();
    let other = Flags { redirect: vec![80], gid: Some(7), ..Flags::default() };
    let fewer = Flags { inbound: vec![], ..Flags::default() };
    for mode in ["nft", "legacy", "native"] {
        let namespace = Namespace::new();
        for (flags, again) in [(&chart, false), (&chart, true), (&other, false), (&other, true), (&fewer, false)] {
            let said = install(&namespace, &format!("--iptables-mode {mode} {}", flags.line()));
            assert_eq!(said.contains("nothing was changed"), again, "{mode}: {said}");
            let fresh = Namespace::new();
            if mode == "native" {
                install(&fresh, &format!("--iptables-mode native {}", flags.line()));
                // Sets that were replaced are listed after those that stayed.
                assert_eq!(sorted_lines(&namespace), sorted_lines(&fresh));
                assert!(!saved(&namespace, "nft").contains("PROXY_INIT"));
            } else {
                flags.add_with_iptables(&fresh, mode);
                assert_eq!(saved(&namespace, mode), saved(&fresh, mode), "{mode}");
            }
        }
        install(&namespace, "uninstall");
        assert_eq!(namespace.sh("nft list ruleset"), "", "{mode}");
        assert!(!saved(&namespace, "legacy").contains("-A "), "{mode}");
    }
}

/// The lines of nft's listing, without counters.
fn sorted_lines(namespace: &Namespace) -> Vec<String> {
    let ruleset = namespace.sh("nft -s list ruleset");
    let mut lines: Vec<String> = ruleset.lines().map(ToOwned::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// The modes whose rules iptables reads and writes too, as the names of its commands have them.
const MODES: [&str; 2] = ["nft", "legacy"];

/// Installs in one namespace with proxy-init and in another with iptables, and compares.
fn check_against_iptables(mode: &str, flags: &Flags) {
    let ours = Namespace::new();
    install(&ours, &format!("--iptables-mode {mode} -w {}", flags.line()));
    let theirs = Namespace::new();
    flags.add_with_iptables(&theirs, mode);
    assert_eq!(saved(&ours, mode), saved(&theirs, mode), "{mode}");

    let ruleset = ours.sh("nft list ruleset");
    if mode == "legacy" {
        assert_eq!(ruleset, "");
    }
    for (program, command) in flags.commands(mode) {
        let Some(rule) = command.strip_prefix("-A ") else {
            continue;
        };
        let check = match mode {
            // It tells `-p all` from no -p at all, by a flag that it neither saves nor lists.
            "legacy" => rule.replace("-p all ", ""),
            _ => rule.to_owned(),
        };
        ours.sh(&format!("{program} -t nat -C {check}"));
        let comment = rule.rsplit_once("--comment ").unwrap().1;
        assert!(mode == "legacy" || ruleset.contains(&format!("comment \"{comment}\"")), "{comment} in {ruleset}");
    }
}

#[test]
fn the_rules_are_those_that_iptables_makes() {
    let subnets = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    for mode in MODES {
        for flags in [
            Flags::default(),
            Flags { inbound: vec![(4190, 4190), (4191, 4191), (4567, 4568)], ipv6: false, ..Flags::default() },
            Flags { uid: None, inbound: vec![], outbound: vec![], ..Flags::default() },
            Flags {
                gid: Some(2103),
                redirect: vec![80, 443, 80],
                inbound_subnets: subnets(&["10.0.0.0/8", "10.1.2.3/30", "0.0.0.0/0", "fd00::/8", "fd77:1::/45"]),
                outbound_subnets: subnets(&["192.0.2.7/32", "2001:db8::1/128", "::/0"]),
                ..Flags::default()
            },
        ] {
            check_against_iptables(mode, &flags);
        }
    }
}

#[test]
fn any_rules_are_those_that_iptables_makes() {
    for_any_flags(16, |flags| {
        for mode in MODES {
            check_against_iptables(mode, flags);
        }
    });
}

/// linkerd-init 2.2.4 and 2.3.x, as in Linkerd 2.15, end each comment with the time.
#[test]
fn rules_of_linkerd_init_before_2_4_are_known_and_replaced() {
    for mode in MODES {
        let namespace = Namespace::new();
        for (program, rule) in Flags::default().commands(mode) {
            let time = if rule.contains(" --comment ") { "/1700000000" } else { "" };
            namespace.sh(&format!("{program} -t nat {rule}{time}"));
        }
        let told = "linkerd-init before 2.4.0 made rules here";
        let flags = chart_in(mode);
        for line in ["verify".to_owned(), format!("verify {flags}")] {
            let text = unfolded(&install(&namespace, &line));
            assert!(text.contains(told), "{mode}: {text}");
        }
        install(&namespace, &flags);
        let fresh = Namespace::new();
        install(&fresh, &flags);
        assert_eq!(saved(&namespace, mode), saved(&fresh, mode), "{mode}");
        let text = unfolded(&install(&namespace, "verify"));
        assert!(!text.contains(told), "{mode}: {text}");
    }
}

#[test]
fn running_again_beside_other_peoples_rules_leaves_them() {
    for mode in MODES {
        let namespace = Namespace::new();
        for rule in [
            "-A PREROUTING -s 192.0.2.9 -j ACCEPT",
            "-N OTHER",
            "-A OUTPUT -p udp -m comment --comment it's\"mine\" -j OTHER",
        ] {
            namespace.sh(&format!("iptables-{mode} -t nat {rule}"));
        }
        let foreign = saved(&namespace, mode);
        // First iptables' own rules, then other flags, twice.
        Flags::default().add_with_iptables(&namespace, mode);
        let other = Flags { redirect: vec![80], gid: Some(7), ..Flags::default() };
        for flags in [Flags::default(), other.clone(), other] {
            install(&namespace, &format!("--iptables-mode {mode} {}", flags.line()));
            let theirs = Namespace::new();
            flags.add_with_iptables(&theirs, mode);
            let ours = saved(&namespace, mode);
            for line in saved(&theirs, mode).lines().chain(foreign.lines()) {
                assert!(ours.contains(line), "{mode}: {line} in {ours}");
            }
            // IPv6 has no foreign rules: it holds what was installed, once each.
            let save = format!("ip6tables-{mode}-save");
            assert_eq!(saved_by(&namespace, &save), saved_by(&theirs, &save), "{mode}");
            assert_eq!(ours.matches("-A PREROUTING").count(), 3, "{mode}: {ours}");
        }
    }
}

#[test]
fn what_somebody_broke_is_put_right() {
    for mode in MODES {
        let iptables = |rest: &str| format!("iptables-{mode} -t nat {rest}");
        let ip6tables = |rest: &str| format!("ip6tables-{mode} -t nat {rest}");
        let mut damages = vec![
            vec![iptables("-F PREROUTING")],
            // A second copy of the jump.
            vec![iptables("-A OUTPUT -m comment --comment proxy-init/install-proxy-init-output -j PROXY_INIT_OUTPUT")],
            vec![iptables("-F PROXY_INIT_OUTPUT"), ip6tables("-D PROXY_INIT_REDIRECT 1")],
            vec![ip6tables("-F PROXY_INIT_OUTPUT")],
            vec![ip6tables("-F OUTPUT"), ip6tables("-F PROXY_INIT_OUTPUT"), ip6tables("-X PROXY_INIT_OUTPUT")],
            vec![ip6tables("-A PROXY_INIT_OUTPUT -j ACCEPT")],
        ];
        if mode == "nft" {
            damages.push(vec!["nft delete table ip6 nat".to_owned()]);
            damages.push(vec!["nft add rule ip nat PROXY_INIT_OUTPUT tcp dport 80 accept".to_owned()]);
        }
        let chart = chart_in(mode);
        let whole = Namespace::new();
        install(&whole, &chart);
        for damage in damages {
            let namespace = Namespace::new();
            install(&namespace, &chart);
            namespace.all(&damage);
            install(&namespace, &chart);
            assert_eq!(saved(&namespace, mode), saved(&whole, mode), "{damage:?}");
        }
    }
}

#[test]
fn without_ipv6_an_earlier_runs_ipv6_rules_go() {
    for mode in MODES {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        install(&namespace, &format!("{} --ipv6=false", chart_in(mode)));
        let left = saved_by(&namespace, &format!("ip6tables-{mode}-save"));
        assert!(!left.contains("PROXY_INIT"), "{mode}: {left}");
        let kept = saved_by(&namespace, &format!("iptables-{mode}-save"));
        assert!(kept.contains("-j PROXY_INIT_OUTPUT"), "{mode}: {kept}");
    }
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
    let flags = Flags { inbound_subnets: vec!["0.0.0.0/0".to_owned()], ..Flags::default() };
    let all = ["0.0.0.0/0", "::/0", "0.0.0.0/0,1.2.3.4/0", "0.0.0.0/0,::/0", "0.0.0.0/0,10.0.0.0/8", "::/0,10.0.0.0/8"];
    for (mode, list) in all.iter().flat_map(|list| ["nft", "legacy"].map(|mode| (mode, list))) {
        let flags = Flags { inbound_subnets: list.split(',').map(str::to_owned).collect(), ..Flags::default() };
        let (theirs, ours) = (Namespace::new(), Namespace::new());
        flags.add_with_iptables(&theirs, mode);
        let rule = "-A PROXY_INIT_REDIRECT -m comment --comment \"proxy-init/ignore-subnet-0.0.0.0/0\" -j RETURN";
        if *list == "0.0.0.0/0" {
            assert_eq!(saved(&theirs, mode).matches(rule).count(), 2, "{}", saved(&theirs, mode));
        }
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

#[test]
fn a_dormant_table_is_not_woken_up() {
    for (mode, table) in [("nft", "ip nat"), ("nft", "ip6 nat"), ("native", "inet proxy-init")] {
        let namespace = Namespace::new();
        namespace.sh(&format!("nft add table {table} {{ flags dormant; }}"));
        namespace.sh(&format!("nft add chain {table} theirs {{ type filter hook input priority 0; policy drop; }}"));
        let before = namespace.sh("nft list ruleset");
        let line = Run::new(&chart_in(mode)).output(&namespace).last_line();
        assert!(line.contains("nothing was changed") && line.contains("dormant"), "{line}");
        assert!(line.contains(&format!("table {table}")), "{line}");
        assert_eq!(namespace.sh("nft list ruleset"), before);
    }
}

/// nft's monitor of the commits in a namespace.
struct Monitor<'a> {
    namespace: &'a Namespace,
    nft: Child,
    lines: mpsc::Receiver<String>,
    /// Each commit of the test's own makes another table.
    tables: u32,
}

impl<'a> Monitor<'a> {
    fn start(namespace: &'a Namespace) -> Self {
        let mut command = Command::new("nft");
        command.arg("monitor").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut nft = namespace.run(|| command.spawn().unwrap());
        let output = BufReader::new(nft.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // It ends with nft, or when the test wants no more.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut monitor = Self { namespace, nft, lines, tables: 0 };
        // At its start it misses commits: until it tells of one, others are made.
        while monitor.tables < 100 {
            monitor.commit();
            if monitor.lines.recv_timeout(Duration::from_millis(100)).is_ok() {
                monitor.told();
                return monitor;
            }
        }
        panic!("nft monitor tells nothing");
    }

    /// Makes a table, and returns the line that tells of it.
    fn commit(&mut self) -> String {
        self.tables += 1;
        let table = format!("add table ip test-{}", self.tables);
        self.namespace.sh(&format!("nft {table}"));
        table
    }

    /// The events since the last question.
    fn told(&mut self) -> Vec<String> {
        let last = self.commit();
        let next = || self.lines.recv_timeout(Duration::from_secs(10)).unwrap();
        let told = std::iter::repeat_with(next).take_while(|line| *line != last).collect();
        // The generation that this commit began.
        next();
        told
    }
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        self.nft.kill().unwrap();
        self.nft.wait().unwrap();
    }
}

#[test]
fn the_same_flags_again_commit_nothing() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        let flags = format!("--iptables-mode {mode} {PORTS} -u 2102");
        install(&namespace, &flags);
        let mut monitor = Monitor::start(&namespace);
        install(&namespace, &flags);
        assert_eq!(monitor.told(), [""; 0], "{mode}");
        install(&namespace, &format!("{flags} -r 80"));
        let told = monitor.told();
        let generations = told.iter().filter(|line| line.contains("new generation"));
        assert_eq!(generations.count(), 1, "{mode}: {told:?}");
    }
}
