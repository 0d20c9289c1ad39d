//! The errors when something fails after rules have changed, or while they are changed back.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::linkerd::Flags;
use lab::network::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Calls, Finished, Folder, Run, chart_in, install, saved};

/// The program's own calls of this name, without those of the commands that it starts: which of them, counted from 1,
/// have these words.
fn numbers(calls: &Calls, name: &str, words: &str) -> Vec<usize> {
    let process = calls.0.split_whitespace().next().unwrap();
    let is_own = |line: &&str| line.split_whitespace().next() == Some(process);
    let calls = calls.0.lines().filter(is_own);
    let calls = calls.filter(|line| line.contains(&format!(" {name}(")));
    let numbered = calls.zip(1..).filter(|(line, _)| line.contains(words));
    numbered.map(|(_, number)| number).collect()
}

/// A folder in which IPv6's restore command does its work and then fails.
fn failing_after_its_work(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.wrap("ip6tables-legacy-restore", "REAL \"$@\"; exit 3");
    folder
}

#[test]
fn a_table_that_cannot_be_written_back_is_not_said_to_be_unreadable() {
    let folder = failing_after_its_work("write-back");
    let run = Run::new(&chart_in("legacy")).commands_of(&folder);
    let line = run.failing("setsockopt", "ENOMEM").output(&Namespace::new()).last_line();
    assert!(
        line.contains("could NOT be rolled back") && line.contains("cannot write the IPv4 legacy nat table: ENOMEM"),
        "{line}"
    );
    assert!(!line.contains("cannot read") && !line.contains("CAP_NET_ADMIN"), "{line}");
    assert!(!line.contains("nothing was changed"), "{line}");
}

#[test]
fn rules_that_are_back_without_their_counters_are_not_said_to_be_unchanged() {
    let folder = failing_after_its_work("counters");
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    namespace.sh("iptables-legacy -t nat -A OUTPUT -p udp -j ACCEPT -c 7 77");
    let rules = saved(&namespace, "legacy");
    let run = Run::new(&format!("{} -r 80", chart_in("legacy"))).commands_of(&folder);
    let trace = run.clone().under(["strace", "--output=/dev/stderr", "--trace=setsockopt"]).output(&namespace).stderr();
    let is_call = |line: &&str| line.starts_with("setsockopt(");
    let numbered = trace.lines().filter(is_call).zip(1..);
    let counters: Vec<u32> =
        numbered.filter(|(line, _)| line.contains("ADD_COUNTERS")).map(|(_, number)| number).collect();
    let [first, second] = counters[..] else {
        panic!("{trace}");
    };
    assert_eq!(saved(&namespace, "legacy"), rules);
    for (call, family) in [(first, "IPv4"), (second, "IPv6")] {
        let line =
            run.clone().inject("setsockopt", &format!("error=ENOMEM:when={call}")).output(&namespace).last_line();
        assert!(line.contains(&format!("the {family} rules may be left changed")), "{line}");
        assert!(line.contains(&format!("cannot write the {family} legacy nat table: ENOMEM")), "{line}");
        assert_eq!(saved(&namespace, "legacy"), rules);
    }
}

#[test]
fn a_garbled_legacy_table_is_not_said_to_be_forbidden() {
    let namespace = Namespace::new();
    Flags::default().add_with_iptables(&namespace, "legacy");
    // The second of the two calls for a table gives its entries; the first entry loses its length.
    let garbled = format!("poke_exit=@arg4={}:when=2", "00".repeat(140));
    for arguments in ["show", "uninstall"] {
        let finished = Run::new(arguments).inject("getsockopt", &garbled).output(&namespace);
        let said = finished.stderr();
        assert_eq!(finished.code(), Some(1), "{said}");
        assert!(said.contains("cut off or garbled") && said.contains("uname -r"), "{said}");
        assert!(!said.contains("CAP_NET_ADMIN"), "{said}");
    }
}

#[test]
fn a_lack_of_memory_or_files_is_not_said_to_be_one_of_privilege() {
    let namespace = Namespace::new();
    Flags::default().add_with_iptables(&namespace, "legacy");
    for (call, error) in [("getsockopt", "ENOMEM"), ("socket", "EMFILE")] {
        let finished = Run::new("show").inject(call, &format!("error={error}")).output(&namespace);
        let said = finished.said();
        assert!(said.contains(error), "{said}");
        assert!(!said.contains("CAP_NET_ADMIN") && !said.contains("root"), "{said}");
    }
}

#[test]
fn uninstalling_says_what_it_removed_before_it_failed() {
    let empty = Folder::new("half-uninstalled");
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        Flags::default().add_with_iptables(&namespace, "legacy");
        let line = Run::new("uninstall").only_commands_of(&empty).output(&namespace).last_line();
        assert!(
            line.contains(&format!("the rules of {mode} mode were removed"))
                && line.contains("iptables-legacy-restore is not on PATH"),
            "{line}"
        );
        assert!(!line.contains("nothing was changed"), "{line}");
        assert!(!namespace.sh("nft list ruleset").contains("4143"));
        assert!(saved(&namespace, "legacy").contains("PROXY_INIT_OUTPUT"));
    }
}

/// /proc is needed for nothing but the list of legacy tables.
#[test]
fn uninstalling_without_proc_removes_what_it_can_and_says_so() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let line = Run::new("uninstall").after_mounting("mount -t tmpfs tmpfs /proc").output(&namespace).last_line();
    assert!(
        line.contains("the rules of nft mode were removed")
            && line.contains("cannot list legacy tables in /proc/self/net: ENOENT"),
        "{line}"
    );
    assert!(!line.contains("CAP_NET_ADMIN"), "{line}");
    assert_eq!(namespace.sh("nft list ruleset"), "");
}

#[test]
fn a_look_that_fails_after_the_commit_does_not_hide_that_the_rules_are_in() {
    for (mode, call, error) in [
        ("nft", "getsockopt", "ENOMEM"),
        ("native", "getsockopt", "ENOMEM"),
        ("auto", "getsockopt", "ENOMEM"),
        ("legacy", "socket", "EMFILE"),
    ] {
        let before = |namespace: &Namespace| {
            // auto goes by this line.
            let holder = if mode == "legacy" { "legacy" } else { "nft" };
            for holder in [holder, "legacy"] {
                namespace.sh(&format!("iptables-{holder} -t nat -A POSTROUTING -j ACCEPT"));
            }
        };
        let namespace = Namespace::new();
        before(&namespace);
        let calls = Run::new(&chart_in(mode)).calls(&namespace);
        let last = *numbers(&calls, call, "").last().unwrap();
        let namespace = Namespace::new();
        before(&namespace);
        let line = Run::new(&chart_in(mode))
            .inject(call, &format!("error={error}:when={last}"))
            .output(&namespace)
            .last_line();
        assert!(line.contains("mode: the rules are installed, but") && line.contains(error), "{mode}: {line}");
        assert!(!line.contains("CAP_NET_ADMIN") && !line.contains("nothing was changed"), "{mode}: {line}");
        let rules = namespace.sh("nft list ruleset") + &saved(&namespace, "legacy");
        assert!(rules.contains("4143") && rules.contains("4140"), "{mode}: {rules}");
    }
}

/// As under a seccomp filter that allows netlink, but not this.
#[test]
fn legacy_tables_that_cannot_be_read_are_not_taken_for_empty() {
    for mode in ["nft", "native"] {
        let namespace = Namespace::new();
        Flags::default().add_with_iptables(&namespace, "legacy");
        let line = Run::new(&chart_in(mode)).failing("getsockopt", "EPERM").output(&namespace).last_line();
        let unknown = "the rules are installed, but it is not known whether another mode holds";
        assert!(line.contains(unknown) && line.contains("EPERM"), "{mode}: {line}");
        let rules = namespace.sh("nft list ruleset");
        assert!(rules.contains("4143") && rules.contains("4140"), "{mode}: {rules}");
    }
}

/// The kernel commits while it is sent the rules; what it answers is received later.
#[test]
fn rules_whose_commit_is_not_answered_are_not_said_to_be_absent() {
    // Auto asks for the generation first.
    for (mode, answers) in [("nft", 1), ("native", 1), ("auto", 3)] {
        let namespace = Namespace::new();
        let run = Run::new(&chart_in(mode)).inject("recvfrom", &format!("error=ENOMEM:when={answers}+"));
        let line = run.output(&namespace).last_line();
        assert!(
            line.contains("so it is not known whether the rules are installed")
                && line.contains("ENOMEM")
                && !line.contains("nothing was changed"),
            "{mode}: {line}"
        );
        let rules = namespace.sh("nft list ruleset");
        assert!(rules.contains("4143") && rules.contains("4140"), "{mode}: {rules}");
    }
}

/// flock(2) may be interrupted by a signal, even as it unlocks.
#[test]
fn a_lock_that_cannot_be_given_back_is_no_failure() {
    let namespace = Namespace::new();
    Run::new(&chart_in("legacy")).inject("flock", "error=EINTR:when=2+").output(&namespace).success();
    assert_eq!(saved(&namespace, "legacy").matches("-j PROXY_INIT").count(), 4);
}

#[test]
fn a_command_that_succeeds_without_doing_its_work_is_found_out() {
    for (command, script) in [
        ("iptables-legacy-restore", "cat >/dev/null"),
        ("ip6tables-legacy-restore", "cat >/dev/null"),
        ("iptables-legacy-restore", "grep -v redirect-all-incoming | REAL --noflush"),
    ] {
        let folder = Folder::new(&format!("idle-{}-{}", command.len(), script.len()));
        folder.wrap(command, script);
        let family = if command.starts_with("ip6") { "IPv6" } else { "IPv4" };
        for before in [None, Some("-r 80")] {
            let namespace = Namespace::new();
            if let Some(more) = before {
                install(&namespace, &format!("{} {more}", chart_in("legacy")));
            }
            let rules = saved(&namespace, "legacy");
            let run = |line: &str| {
                let run = Run::new(line).commands_of(&folder);
                run.output(&namespace).last_line()
            };
            for line in [&chart_in("legacy"), "uninstall"] {
                if line == "uninstall" && (before.is_none() || script.starts_with("grep")) {
                    continue;
                }
                let said = run(line);
                assert!(
                    said.contains(command) && said.contains(&format!("the {family} nat table is not as it should be")),
                    "{line}: {said}"
                );
                let now = saved(&namespace, "legacy");
                assert_eq!(now.replace("*nat\n", ""), rules.replace("*nat\n", ""), "{line}: {said}");
            }
        }
    }
}

/// The outcomes of runs that were started together.
fn together(namespace: &Namespace, lines: &[String]) -> Vec<bool> {
    let start = |line: &String| Run::new(line).spawn(namespace, Stdio::null());
    let children: Vec<_> = lines.iter().map(start).collect();
    let ended = children.into_iter().map(|mut child| child.wait().unwrap().success());
    ended.collect()
}

/// The modes whose rules are complete: both families' jumps in both directions.
fn complete(namespace: &Namespace) -> Vec<&'static str> {
    let jumps = |mode| saved(namespace, mode).matches("-j PROXY_INIT").count();
    let ruleset = namespace.sh("nft list ruleset");
    let native = ruleset.contains("table inet proxy-init") && ruleset.contains("redirect to :4143");
    let held = [("nft", jumps("nft") == 4), ("legacy", jumps("legacy") == 4), ("native", native)];
    held.into_iter().filter(|&(_, is)| is).map(|(mode, _)| mode).collect()
}

/// The number of rounds of each race, of a tenth of a second: twelve, or as many as PROXY_INIT_ROUNDS says.
fn rounds() -> usize {
    std::env::var("PROXY_INIT_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap())
}

/// The last run replaces the others' rules, and stays.
#[test]
fn of_several_modes_that_replace_each_other_at_once_one_is_left() {
    for modes in [&["legacy", "nft"][..], &["legacy", "native"], &["legacy", "nft", "native", "legacy"]] {
        let lines: Vec<_> = modes.iter().map(|mode| format!("{} -w --replace-other-backend", chart_in(mode))).collect();
        for round in 0..rounds() {
            let namespace = Namespace::new();
            let done = together(&namespace, &lines);
            let left = complete(&namespace);
            assert!(left.len() <= 1, "{modes:?} {round}: {done:?} {left:?}");
            assert!(!left.is_empty() || !done.contains(&true), "{modes:?} {round}: {done:?}, and nothing is left");
        }
    }
}

/// Nobody who says that the rules are in is belied by another run that gives way.
#[test]
fn of_many_in_three_modes_at_once_none_succeeds_in_vain() {
    let modes = ["legacy", "nft", "nft", "native", "legacy", "nft", "native"];
    let lines: Vec<_> = modes.iter().map(|mode| chart_in(mode)).collect();
    for round in 0..rounds() {
        let namespace = Namespace::new();
        let done = together(&namespace, &lines);
        let left = complete(&namespace);
        assert_eq!(left.len(), usize::from(done.contains(&true)), "{round}: {done:?} {left:?}");
    }
}

/// After a batch has been sent, an error on receiving says nothing about the commit.
#[test]
fn a_lost_answer_is_looked_into() {
    let want = {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("nft"));
        saved(&namespace, "nft")
    };
    for error in ["ENOMEM", "EAGAIN", "EPERM"] {
        let namespace = Namespace::new();
        let once = format!("error={error}:when=1");
        Run::new(&chart_in("nft")).inject("recvfrom", &once).output(&namespace).success();
        assert_eq!(saved(&namespace, "nft"), want);
    }
}

/// Of several runs in two modes: one that finds its rules installed already leaves them to the run that installed them.
#[test]
fn a_run_that_changed_nothing_removes_nothing() {
    for mode in ["native", "nft"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in(mode));
        let before = namespace.sh("nft list ruleset");
        assert!(before.contains("4143"), "{before}");
        // It looks at legacy tables before it sends its first batch, and after it has committed: it stops in between.
        let folder = Folder::new(&format!("stopped-{mode}"));
        let trace = folder.join("trace");
        let stops = Run::new(&chart_in(mode))
            .under(["strace", "--trace=sendto", "--inject=sendto:signal=STOP:when=1", "--output"])
            .under([&trace]);
        let child = namespace.run(|| stops.command().stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
        let has_stopped = || std::fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("stopped by SIGSTOP"));
        let end = Instant::now() + Duration::from_secs(60);
        while !has_stopped() {
            assert!(Instant::now() < end, "{mode}: it sends no batch");
            std::thread::sleep(Duration::from_millis(5));
        }
        Flags::default().add_with_iptables(&namespace, "legacy");
        let traced = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        kill(Pid::from_raw(traced.trim().parse().unwrap()), Signal::SIGCONT).unwrap();
        let finished = Finished(child.wait_with_output().unwrap());
        let stderr = finished.stderr();
        assert_eq!(finished.code(), Some(1), "{stderr}");
        assert!(stderr.contains("legacy mode holds proxy-init's rules already"), "{stderr}");
        assert_eq!(namespace.sh("nft list ruleset"), before);
    }
}
