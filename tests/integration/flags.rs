//! What the flags promise: which subcommand takes which, what is refused and in which words, what completes, and what
//! --simulate prints.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use xtask::lab::Namespace;

use crate::legacy::Folder;
use crate::{assert_success, install, last_line, proxy_init, run, run_without_privileges, saved, saved_by_nft};

const PORTS: &str = "-p 4143 -o 4140 -u 2102";

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = proxy_init().args(arguments).output().unwrap();
    assert_success(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// What a run with these arguments is refused with; nothing may be touched.
fn refusal(namespace: &Namespace, arguments: &[&str]) -> String {
    let before = namespace.sh("nft list ruleset");
    let output = namespace.output(proxy_init().env_remove("IPTABLES_MODE").args(arguments));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    assert_eq!(namespace.sh("nft list ruleset"), before, "{arguments:?}");
    text
}

#[test]
fn a_subcommand_takes_only_what_means_something_to_it() {
    let namespace = Namespace::new();
    install(&namespace, &format!("--iptables-mode nft {PORTS}"));
    for (subcommand, flags) in [
        (
            "uninstall",
            &[
                "--simulate",
                "--simulate=ipv4",
                "--iptables-mode nft",
                "--iptables-mode bogus",
                "--replace-other-backend",
                "--timeout-close-wait-secs 9",
                "--firewall-save-bin-path x",
                "--output json",
                "--ipv6=false",
                "-p 4143",
            ][..],
        ),
        (
            "verify",
            &[
                "--simulate",
                "--replace-other-backend",
                "--log-level loud",
                "--log-level info",
                "--log-format json",
                "--use-wait-flag",
                "-w",
                "--timeout-close-wait-secs 9",
            ],
        ),
        (
            "detect",
            &["-p 4143", "--iptables-mode nft", "--log-level info", "--simulate"],
        ),
        ("man", &["--netns /"]),
    ] {
        for flags in flags {
            let arguments: Vec<_> = std::iter::once(subcommand).chain(flags.split(' ')).collect();
            let text = refusal(&namespace, &arguments);
            let flag = flags.split([' ', '=']).next().unwrap();
            assert!(
                text.contains(&format!("{subcommand} does not take {flag}: ")),
                "{arguments:?}: {text}"
            );
        }
    }
    let text = refusal(&namespace, &["--output", "json", "-p", "1", "-o", "2"]);
    assert!(text.contains("does not take --output"), "{text}");

    // What they do take.
    let verified = "verify --iptables-mode nft --netns= --firewall-bin-path iptables-nft --firewall-save-bin-path x";
    install(&namespace, &format!("{verified} --output text {PORTS}"));
    install(&namespace, "detect --netns= --output json");
    install(
        &namespace,
        "uninstall -w --netns= --firewall-bin-path iptables-nft --log-format json --log-level info",
    );
    assert_eq!(namespace.sh("nft list ruleset").matches("PROXY_INIT").count(), 0);
}

#[test]
fn a_mistake_is_named_with_what_to_write_instead() {
    let namespace = Namespace::new();
    for (arguments, words) in [
        (
            &["--ipv6", "false"][..],
            "--ipv6 false: a boolean takes its value behind \"=\": write --ipv6=false",
        ),
        (&["-w", "false"], "write -w=false"),
        (&["--simulate", "ipv4"], "write --simulate=ipv4"),
        (&["--inbound-ports-to-ignore", "4190,", "4191"], "write 4190,4191"),
        (
            &["--outbound-ports-to-ignore=4190", ",4191"],
            "write --outbound-ports-to-ignore=4190,4191",
        ),
        (&["80"], "unexpected argument \"80\": a value follows its flag"),
        (&["verify"], "proxy-init verify ..."),
        (&["-r", ","], "--ports-to-redirect \",\" names no port"),
        (&["-r", ""], "--ports-to-redirect \"\" names no port"),
        (
            &["-r", "80", "--ports-to-redirect="],
            "--ports-to-redirect \"\" names no port",
        ),
        (
            &["--inbound-ports-to-ignore", "-5"],
            "--inbound-ports-to-ignore \"-5\" is not",
        ),
        (&["--inbound-ports-to-ignore", "80,-5-7"], "\"-5-7\""),
        (&["--ports-to-redirect", "-5"], "--ports-to-redirect \"-5\" is not"),
        (
            &["--subnets-to-ignore", "010.0.0.0/8"],
            "010.0.0.0/8 is not a valid CIDR address",
        ),
        (
            &["--outbound-subnets-to-ignore", "10.0.0.0/08"],
            "10.0.0.0/08 is not a valid CIDR address",
        ),
        (
            &["--subnets-to-ignore", "::ffff:10.0.0.0/104"],
            "::ffff:10.0.0.0/104 is an IPv4-mapped subnet, which is never on the wire: write the IPv4 subnet itself, \
             10.0.0.0/8",
        ),
        (
            &["--simulate=ipv5"],
            "--simulate \"ipv5\" is not ipv4, ipv6, true or false",
        ),
        (
            &["--simulate=ipv4", "--iptables-mode", "native"],
            "write --simulate alone",
        ),
        (&["--simulate=ipv6", "--ipv6=false"], "no rules for IPv6"),
        (
            &["--proxy-udi", "7"],
            "unknown flag --proxy-udi, did you mean --proxy-uid?",
        ),
    ] {
        let arguments: Vec<_> = PORTS.split(' ').chain(arguments.iter().copied()).collect();
        let text = refusal(&namespace, &arguments);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    for (arguments, words) in [
        (&["verfiy"][..], "unknown subcommand \"verfiy\", did you mean verify?"),
        (
            &["-p", "-5", "-o", "1"],
            "--incoming-proxy-port must be a valid TCP port number (1-65535), not \"-5\"",
        ),
        (&["verify", "-o", "-5", "-p", "1"], "--outgoing-proxy-port"),
        (&["help", "verfiy"], "\"verfiy\" is invalid: use verify, uninstall"),
        (&["completions"], "the name of a shell"),
        (&["completions", "cmd.exe"], "\"cmd.exe\" is invalid: use bash"),
    ] {
        let text = refusal(&namespace, arguments);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn a_value_that_is_not_text_names_its_flag_and_cannot_steer_a_terminal() {
    let namespace = Namespace::new();
    for (joined, flag) in [(false, "--proxy-uid"), (true, "--inbound-ports-to-ignore")] {
        let mut command = proxy_init();
        command.args(PORTS.split(' '));
        let bytes = std::ffi::OsStr::from_bytes(b"\xff\x1b[31m\n7");
        if joined {
            let mut argument = std::ffi::OsString::from(format!("{flag}="));
            argument.push(bytes);
            command.arg(argument);
        } else {
            command.arg(flag).arg(bytes);
        }
        let output = namespace.output(&mut command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(flag) && text.contains("is not UTF-8 text"), "{text}");
        assert!(text.contains("\\u{1b}[31m\\n7") && text.lines().count() == 1, "{text}");
    }
    // A path need not be text.
    let output = namespace.output(
        proxy_init()
            .args(["detect", "--netns"])
            .arg(std::ffi::OsStr::from_bytes(b"/run/\xff")),
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("ENOENT"), "{output:?}");
    let path = "/run/\u{1b}]0;title\u{7}\nsecond line";
    let output = namespace.output(proxy_init().args(["verify", "-p", "1", "-o", "2", "--netns", path]));
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}\\nsecond line"), "{text}");
    assert_eq!(
        text.trim_end().chars().filter(|it| it.is_control()).count(),
        0,
        "{text}"
    );
}

#[test]
fn linkerds_word_for_legacy_mode_is_understood() {
    for (environment, arguments) in [("", "--iptables-mode iptables"), ("iptables", "")] {
        let namespace = Namespace::new();
        let mut command = proxy_init();
        command
            .env("IPTABLES_MODE", environment)
            .args(PORTS.split(' '))
            .args(arguments.split_whitespace());
        assert_success(&namespace.output(&mut command));
        assert!(saved(&namespace, "iptables-legacy-save").contains("-j PROXY_INIT_OUTPUT"));
    }
}

#[test]
fn what_is_probably_a_mistake_is_one_warning_each() {
    let warnings = |arguments: &str| -> Vec<String> {
        let log = install(&Namespace::new(), &format!("--iptables-mode nft {arguments}"));
        let lines = log.lines().filter(|line| line.contains("level=warning"));
        lines.map(ToOwned::to_owned).collect()
    };
    assert_eq!(warnings(PORTS), [""; 0]);
    assert_eq!(warnings(&format!("{PORTS} --subnets-to-ignore fd00::/8")), [""; 0]);
    for (arguments, words) in [
        (
            "-p 4143 -o 4140 -u 0 -g -1",
            "neither --proxy-uid nor --proxy-gid is given",
        ),
        (
            "-p 4143 -o 4143 -g 7",
            "--incoming-proxy-port and --outgoing-proxy-port are both 4143",
        ),
        (
            "-p 4143 -o 4140 -u 7 --ipv6=false --subnets-to-ignore 10.0.0.0/8 --outbound-subnets-to-ignore fd00::/8",
            "subnet fd00::/8 has no effect: with --ipv6=false there are no rules for IPv6",
        ),
    ] {
        let lines = warnings(arguments);
        assert_eq!(lines.len(), 1, "{arguments}: {lines:?}");
        assert!(lines[0].contains(words), "{lines:?}");
    }
}

/// Runs a command in a namespace and feeds it a text.
fn feed(namespace: &Namespace, command: &str, text: &str) -> Output {
    let mut words = command.split_whitespace();
    namespace.run(|| {
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that stops reading early has an error to tell, which is looked at.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        child.wait_with_output().unwrap()
    })
}

fn saved_by(namespace: &Namespace, variant: &str) -> [String; 2] {
    ["iptables", "ip6tables"].map(|family| saved(namespace, &format!("{family}-{variant}-save")))
}

#[test]
fn one_familys_text_restores_to_what_installing_makes() {
    let flags = "-p 4143 -o 4140 -u 2102 -g 7 -r 80 --inbound-ports-to-ignore 1-9,25 --subnets-to-ignore \
                 10.1.2.3/8,fd00::/8 --outbound-subnets-to-ignore 192.0.2.0/24,2001:db8::/32";
    let nowhere = Namespace::new();
    let text = |family: &str| {
        let output = run_without_privileges(&nowhere, &format!("--simulate={family} {flags}"));
        assert_success(&output);
        String::from_utf8(output.stdout).unwrap()
    };
    let (v4, v6) = (text("ipv4"), text("ipv6"));
    assert_eq!(nowhere.sh("nft list ruleset"), "");
    for variant in ["nft", "legacy"] {
        let (restored, installed) = (Namespace::new(), Namespace::new());
        for (command, text) in [("iptables", &v4), ("ip6tables", &v6)] {
            let output = feed(&restored, &format!("{command}-{variant}-restore --noflush"), text);
            assert!(output.status.success(), "{command}-{variant}: {output:?}");
        }
        install(&installed, &format!("--iptables-mode {variant} {flags}"));
        let saved = saved_by(&restored, variant);
        assert!(
            saved.iter().all(|text| text.contains("-j PROXY_INIT_OUTPUT")),
            "{saved:?}"
        );
        assert_eq!(saved, saved_by(&installed, variant), "{variant}");
    }
    // A rule on a subnet is not passed over by the other family's command.
    let output = feed(&nowhere, "iptables-nft-restore --noflush", &v6);
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn the_text_of_both_families_is_refused_as_a_whole() {
    let nowhere = Namespace::new();
    for simulate in ["--simulate", "--simulate=true"] {
        let output = run_without_privileges(&nowhere, &format!("{simulate} {PORTS}"));
        assert_success(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("# IPv4: iptables-restore --noflush") && text.contains("# IPv6: ip6tables-restore"));
        for variant in ["nft", "legacy"] {
            for family in ["iptables", "ip6tables"] {
                for options in [
                    "--noflush",
                    "",
                    "--noflush --table nat",
                    "--test",
                    "--noflush --counters",
                ] {
                    let namespace = Namespace::new();
                    let command = format!("{family}-{variant}-restore {options}");
                    let output = feed(&namespace, &command, &text);
                    assert!(!output.status.success(), "{command}: {output:?}");
                    assert!(
                        stderr(&output).contains("text-of-both-families"),
                        "{command}: {output:?}"
                    );
                    for saved in saved_by(&namespace, variant) {
                        assert!(!saved.contains("PROXY_INIT"), "{command}: {saved}");
                    }
                }
            }
        }
        // Its parts are each family's text.
        for (family, heading) in [("ipv4", "# IPv4"), ("ipv6", "# IPv6")] {
            let part = &text[text.find(heading).unwrap()..];
            let part = &part[..part.find("COMMIT\n").unwrap() + "COMMIT\n".len()];
            let output = run_without_privileges(&nowhere, &format!("--simulate={family} {PORTS}"));
            assert_eq!(String::from_utf8(output.stdout).unwrap(), part);
        }
    }
    // One family's rules are nothing that could be mixed up.
    let only = install(&nowhere, &format!("--simulate --ipv6=false {PORTS}"));
    assert!(
        feed(&Namespace::new(), "iptables-nft-restore --noflush", &only)
            .status
            .success()
    );
    install(&nowhere, &format!("--simulate=false --iptables-mode nft {PORTS}"));
    assert!(saved_by_nft(&nowhere).contains("PROXY_INIT_OUTPUT"));
}

#[test]
fn help_is_the_same_by_both_ways_and_has_an_example_and_exit_codes() {
    assert_eq!(stdout(&["help"]), stdout(&["--help"]));
    for subcommand in ["verify", "uninstall", "detect", "help", "man", "completions"] {
        let help = stdout(&["help", subcommand]);
        assert_eq!(help, stdout(&[subcommand, "--help"]));
        for words in ["Example: ", &format!("proxy-init {subcommand}"), "Exit codes:\n  0  "] {
            assert!(help.contains(words), "{words} in {help}");
        }
        assert_eq!(help.contains("\n  3  "), subcommand == "verify");
        assert!(stdout(&["--help"]).contains(&format!("\n  {subcommand} ")));
    }
    for code in 0..=3 {
        assert!(stdout(&["--help"]).contains(&format!("\n  {code}  ")), "{code}");
    }
}

/// What man(1) makes of a page, in plain text; nothing in the page may be amiss.
fn formatted(page: &str) -> String {
    let command = "groff -man -Tascii -ww -rLL=200n -P-c -P-b -P-u";
    let output = feed(&Namespace::new(), command, page);
    assert_success(&output);
    assert_eq!(stderr(&output), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_subcommand_has_a_man_page() {
    let page = formatted(&stdout(&["man"]));
    for words in [
        "NAME\n",
        "SYNOPSIS\n",
        "EXIT STATUS\n",
        "EXAMPLES\n",
        "IPTABLES_MODE",
        "--subnets-to-ignore",
    ] {
        assert!(page.contains(words), "{words} in {page}");
    }
    for code in 0..=3 {
        assert!(page.contains(&format!("\n       {code}      ")), "{code} in {page}");
    }
    for subcommand in ["verify", "uninstall", "detect", "help", "man", "completions"] {
        assert!(
            page.contains(&format!("\n       {subcommand}")),
            "{subcommand} in {page}"
        );
        let own = formatted(&stdout(&["man", subcommand]));
        assert!(own.contains(&format!("proxy-init-{subcommand} - ")), "{own}");
        assert!(
            own.contains("EXIT STATUS\n") && own.contains(&format!("proxy-init {subcommand}")),
            "{own}"
        );
    }
    assert!(formatted(&stdout(&["man", "verify"])).contains("--output <FORMAT>"));
}

/// What bash offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let folder = Folder::new("completions");
    let script = format!("{}/script", folder.path());
    std::fs::write(&script, stdout(&["completions", "bash"])).unwrap();
    // The function is found as bash would find it: it is the one registered for the program.
    let bash = r#"
        source "$1"; shift
        function=$(complete -p proxy-init | sed -E 's/.* -F ([^ ]+) .*/\1/')
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-c", bash, "bash", &script, "proxy-init"])
        .args(words);
    let output = command.output().unwrap();
    let offered = String::from_utf8(output.stdout).unwrap();
    offered
        .lines()
        .filter(|line| !line.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn bash_completes_subcommands_their_flags_and_words() {
    assert!(completed(&["ver"]).contains(&"verify".to_owned()));
    for (words, offered) in [
        (
            &["uninstall", "--"][..],
            &[
                "--netns",
                "--use-wait-flag",
                "--log-format",
                "--log-level",
                "--firewall-bin-path",
                "--help",
            ][..],
        ),
        (&["detect", "--"], &["--netns", "--output", "--help"]),
        (
            &["verify", "--out"],
            &[
                "--output",
                "--outgoing-proxy-port",
                "--outbound-ports-to-ignore",
                "--outbound-subnets-to-ignore",
            ],
        ),
        (&["--iptables-mode", ""], &["legacy", "nft", "native", "auto", "plain"]),
        (&["-p", "1", "--iptables-mode", "n"], &["nft", "native"]),
        (&["verify", "-p", "1", "--iptables-mode", "n"], &["nft", "native"]),
        (&["verify", "--output", ""], &["text", "json"]),
        (&["detect", "--output", "j"], &["json"]),
        (&["--log-format", ""], &["plain", "json"]),
        (&["--log-level", ""], &["error", "warning", "info", "debug"]),
        (&["uninstall", "--log-level", "w"], &["warning"]),
        (&["uninstall", "--log-format", ""], &["plain", "json"]),
        (&["help", "ver"], &["verify"]),
        (&["man", "un"], &["uninstall"]),
        (&["completions", "z"], &["zsh"]),
        // A boolean takes no value behind a blank.
        (&["--ipv6", "--sim"], &["--simulate"]),
        (&["--ipv6", "fal"], &[]),
    ] {
        let mut got = completed(words);
        let mut want: Vec<_> = offered.iter().map(ToString::to_string).collect();
        got.sort();
        want.sort();
        assert_eq!(got, want, "{words:?}");
    }
}

#[test]
fn other_shells_know_the_flags_and_words_too() {
    for shell in ["zsh", "fish"] {
        let script = stdout(&["completions", shell]);
        for words in ["uninstall", "subnets-to-ignore", "native", "warning", "use-wait-flag"] {
            assert!(script.contains(words), "{shell}: {words}");
        }
    }
    assert!(stdout(&["completions", "zsh"]).contains(":MODE:(legacy nft native auto plain)"));
}

#[test]
fn errors_are_json_where_that_is_asked_for() {
    let namespace = Namespace::new();
    for (arguments, code) in [
        ("verify --output json -p 4143 -o 4140 --netns /nonexistent", 1),
        ("detect --netns /nonexistent --output=json", 1),
        ("verify --output json -p 70000 -o 4140", 2),
        ("verify --output json --simulate -p 4143", 2),
        ("detect --output=json stray", 2),
    ] {
        let output = run(&namespace, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema"], 1);
        assert_eq!(report["error"]["exit_code"], code);
        let message = report["error"]["message"].as_str().unwrap();
        assert_eq!(stderr(&output), format!("error: {message}\n"));
    }
    let output = run(&namespace, "detect --output text stray");
    assert_eq!(output.stdout, b"");
}

#[test]
fn an_error_of_a_run_is_in_the_log_and_on_stderr() {
    let namespace = Namespace::new();
    for arguments in [
        format!("{PORTS} --iptables-mode nft --netns /nonexistent"),
        "uninstall --netns /nonexistent".to_owned(),
    ] {
        let output = run(&namespace, &arguments);
        assert!(last_line(&output).contains("cannot enter the network namespace /nonexistent"));
        let text = stderr(&output);
        assert!(
            text.starts_with("error: ") && text.contains("cannot enter the network namespace /nonexistent"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// Where a command is waited for, its line is there before, and each line has its own time.
#[test]
fn the_log_does_not_wait_for_what_the_run_waits_for() {
    let folder = Folder::new("slow");
    let gate = format!("{}/gate", folder.path());
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    // It starts by reading a line from the test.
    let real = "PATH=/usr/sbin:/usr/bin:/sbin:/bin; exec iptables-legacy-restore \"$@\"";
    folder.script("iptables-legacy-restore", &format!("read line <{gate}; {real}"));
    let path = format!("{}:{}", folder.path(), std::env::var("PATH").unwrap());
    let namespace = Namespace::new();
    let mut child = namespace.run(|| {
        let mut command = proxy_init();
        let lock = format!("{}/lock", folder.path());
        command
            .env("PATH", &path)
            .env("XTABLES_LOCKFILE", lock)
            .stdout(Stdio::piped());
        command
            .args(["--ipv6=false", "-w"])
            .args(PORTS.split(' '))
            .spawn()
            .unwrap()
    });
    let mut log = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    log.read_line(&mut first).unwrap();
    assert!(first.contains("waiting for the xtables lock"), "{first}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    std::fs::write(&gate, "go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let lines: Vec<_> = log.lines().map(Result::unwrap).collect();
    let time = |line: &str| line.split('"').nth(1).unwrap().to_owned();
    let last = lines.last().unwrap();
    assert!(
        last.contains("installed ") && time(last) > time(&first),
        "{first}{last}"
    );
}
