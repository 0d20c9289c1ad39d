//! The log, answers and errors: where they go, and as text or JSON.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use lab::network::Namespace;
use serde_json::Value;

use super::CHART_PORTS;
use crate::support::{Folder, PORTS, Run, chart_in, install};

#[test]
fn the_log_is_what_was_done() {
    let plain = install(&Namespace::new(), &chart_in("nft"));
    for line in plain.lines() {
        assert!(line.starts_with("time=\"20") && line.contains("Z\" level=info msg=\""), "{line}");
    }
    // A line a chain, however many rules it has; the commands that iptables would have run are for whoever asks.
    assert!(plain.contains("msg=\"ip nat PROXY_INIT_REDIRECT: 2 rules\""), "{plain}");
    assert!(plain.lines().count() == 9 && !plain.contains("iptables"), "{plain}");
    let whole = install(&Namespace::new(), &format!("{} --log-level debug", chart_in("nft")));
    let rule = "iptables-nft -t nat -A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -m comment --comment \
                proxy-init/ignore-proxy-user-id -j RETURN";
    assert!(whole.contains(&format!("level=debug msg=\"{rule}\"")), "{whole}");
    assert!(whole.contains(&format!("msg=\"ip6tables{}\"", rule.strip_prefix("iptables").unwrap())));
    let summary = plain.lines().last().unwrap();
    assert!(summary.contains("installed 16 rules in nft mode for IPv4 and IPv6 in "), "{summary}");

    let json = install(&Namespace::new(), &format!("{} --log-format json", chart_in("nft")));
    for line in json.lines() {
        assert!(line.starts_with("{\"level\":\"info\",\"msg\":\"") && line.ends_with("Z\"}"), "{line}");
    }
    let other = install(&Namespace::new(), &format!("{} --log-format text", chart_in("nft")));
    let mut lines = other.lines();
    let warning = "level=warning msg=\"log format \\\"text\\\" is neither plain nor json: this log is plain\"";
    assert!(lines.next().unwrap().ends_with(warning), "{other}");
    assert_eq!(lines.count(), plain.lines().count());
    let quiet = install(&Namespace::new(), &format!("{} --log-level error", chart_in("nft")));
    assert_eq!(quiet, "");
}

/// A question without an answer is an error; an installation's log is not an answer.
#[test]
fn an_answer_that_cannot_be_printed_is_an_error() {
    let namespace = Namespace::new();
    namespace.sh("ip link set lo up");
    install(&namespace, &format!("{PORTS} --iptables-mode nft"));
    for (redirection, words) in [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")] {
        let run = |line: &str| {
            let script = format!("exec \"$@\" {redirection}");
            Run::new(line).under(["sh", "-c", &script, "sh"]).output(&namespace)
        };
        for line in [
            "show",
            "show --output json",
            "detect",
            "explain outbound --to 127.0.0.1:80",
            &format!("verify {PORTS}"),
            &format!("{PORTS} --simulate"),
            "--help",
        ] {
            let finished = run(line);
            assert_eq!(finished.code(), Some(1), "{line} {redirection}: {}", finished.stderr());
            let want = format!("error: cannot write to stdout: {words}");
            assert!(finished.stderr().starts_with(&want), "{line} {redirection}: {}", finished.stderr());
        }
        run(&format!("{PORTS} --iptables-mode nft")).success();
    }
}

#[test]
fn errors_are_json_where_that_is_asked_for() {
    let namespace = Namespace::new();
    for (arguments, code) in [
        ("verify --output json -p 4143 -o 4140 --netns /nonexistent", 1),
        ("detect --netns /nonexistent --output=json", 1),
        ("explain inbound --to 10.0.0.1:80 --netns /nonexistent --output json", 1),
        ("explain inbound --to 10.0.0.1 --output json", 2),
        ("verify --output json -p 70000 -o 4140", 2),
        ("verify --output json --simulate -p 4143", 2),
        ("detect --output=json stray", 2),
    ] {
        let finished = Run::new(arguments).output(&namespace);
        assert_eq!(finished.code(), Some(code), "{arguments}");
        let report: Value = serde_json::from_str(&finished.stdout()).unwrap();
        assert_eq!(report["schema"], 1);
        assert_eq!(report["error"]["exit_code"], code);
        let message = report["error"]["message"].as_str().unwrap();
        assert_eq!(finished.stderr(), format!("error: {message}\n"));
    }
    let finished = Run::new("detect --output text stray").output(&namespace);
    assert_eq!(finished.stdout(), "");
}

#[test]
fn an_error_of_a_run_is_in_the_log_and_on_stderr() {
    let namespace = Namespace::new();
    for arguments in
        [format!("{CHART_PORTS} --iptables-mode nft --netns /nonexistent"), "uninstall --netns /nonexistent".to_owned()]
    {
        let finished = Run::new(&arguments).output(&namespace);
        assert!(finished.last_line().contains("cannot enter the network namespace /nonexistent"));
        let text = finished.stderr();
        assert!(
            text.starts_with("error: ") && text.contains("cannot enter the network namespace /nonexistent"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn an_invalid_command_line_is_json_in_a_log_that_is() {
    let namespace = Namespace::new();
    for arguments in [
        "--log-format json -p 70000 -o 4140",
        "--log-format=json --bogus",
        "uninstall --log-format json stray",
        "validate --timeout 1 --log-format=json",
    ] {
        let finished = Run::new(arguments).output(&namespace);
        assert_eq!(finished.code(), Some(2), "{arguments}");
        let line: Value = serde_json::from_str(&finished.stdout()).unwrap();
        assert_eq!(line["level"], "error");
        assert_eq!(finished.stderr(), format!("error: {}\n", line["msg"].as_str().unwrap()));
    }
}

/// Runs it with a file where kubelet looks for a message, and returns what it has then.
fn message(line: &str, capabilities: &[&str]) -> String {
    let dev = "mount -t tmpfs tmpfs /dev; mknod -m 666 /dev/full c 1 7; umask 0; : >/dev/termination-log";
    let kept = "\"$@\" >/dev/full 2>&1; cat /dev/termination-log";
    let run = Run::new(line).after_mounting(dev).nobody(capabilities);
    run.under(["sh", "-c", kept, "sh"]).output(&Namespace::new()).success()
}

#[test]
fn an_error_is_the_containers_termination_message() {
    for (arguments, words) in [
        ("-p 4143 -o", "--outgoing-proxy-port <PORT>: a value is missing"),
        ("--iptables-mode nft -p 4143 -o 4140", "CAP_NET_ADMIN"),
        ("uninstall --netns /nonexistent\u{1b}[1m", "network namespace /nonexistent\\u{1b}[1m: ENOENT"),
        ("validate --timeout 100ms", "this namespace has no route to it"),
        ("validate --listen-addr 4140", "--listen-addr \"4140\" is not"),
    ] {
        let text = message(arguments, &[]);
        assert!(text.contains(words) && text.lines().count() == 1, "{arguments}: {text}");
    }
    // Those may run in any container, for a user who reads the answer.
    for arguments in ["verify -p 1", "show --netns /nonexistent", "detect --netns=/nonexistent"] {
        assert_eq!(message(arguments, &[]), "", "{arguments}");
    }
    assert_eq!(message(&format!("--iptables-mode nft {CHART_PORTS}"), &["net_admin"]), "");
}

/// Where a command is waited for, its line is there before, and each line has its own time.
#[test]
fn the_log_does_not_wait_for_what_the_run_waits_for() {
    let folder = Folder::new("slow");
    let gate = folder.join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    // It starts by reading a line from the test.
    let real = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; exec iptables-legacy-restore \"$@\"";
    folder.script("iptables-legacy-restore", &format!("read line <{}; {real}", gate.display()));
    let namespace = Namespace::new();
    let mut child =
        Run::new(&format!("--ipv6=false -w {CHART_PORTS}")).commands_of(&folder).spawn(&namespace, Stdio::piped());
    let mut log = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    log.read_line(&mut first).unwrap();
    assert!(first.contains("waiting for the xtables lock"), "{first}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // For reading too: opening it doesn't wait, whether the command still reads or was killed for taking too long.
    let mut gate = File::options().read(true).write(true).open(&gate).unwrap();
    gate.write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let lines: Vec<_> = log.lines().map(Result::unwrap).collect();
    let time = |line: &str| line.split('"').nth(1).unwrap().to_owned();
    let last = lines.last().unwrap();
    assert!(last.contains("installed ") && time(last) > time(&first), "{first}{last}");
}
