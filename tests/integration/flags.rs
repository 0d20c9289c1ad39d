//! The promises of the flags: the flags of each subcommand, refusals and their words, completion, and the output of
//! --simulate.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use lab::network::Namespace;
use lab::settings::VALUES;
use lab::shell::root;
use proxy_init::SETTINGS;
use serde_json::Value;

use crate::support::{Finished, Folder, Run, feed, install, saved};

const PORTS: &str = "-p 4143 -o 4140 -u 2102";

/// The output of a run that needs no namespace.
fn stdout(arguments: &[&str]) -> String {
    Finished(Run::new("").arguments(arguments).command().output().unwrap()).success()
}

/// The refusal of a run with these arguments; nothing may be touched.
fn refusal(namespace: &Namespace, arguments: &[&str]) -> String {
    let before = namespace.sh("nft list ruleset");
    let finished = Run::new("").arguments(arguments).output(namespace);
    let text = finished.stderr();
    assert_eq!(finished.code(), Some(2), "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(finished.stdout(), "", "{arguments:?}");
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
        ("detect", &["-p 4143", "--iptables-mode nft", "--log-level info", "--simulate"]),
        ("man", &["--netns /"]),
    ] {
        for flags in flags {
            let arguments: Vec<_> = std::iter::once(subcommand).chain(flags.split(' ')).collect();
            let text = refusal(&namespace, &arguments);
            let flag = flags.split([' ', '=']).next().unwrap();
            assert!(text.contains(&format!("{subcommand} does not take {flag}: ")), "{arguments:?}: {text}");
        }
    }
    let text = refusal(&namespace, &["--output", "json", "-p", "1", "-o", "2"]);
    assert!(text.contains("does not take --output"), "{text}");

    // The flags that they do take.
    let verified = "verify --iptables-mode nft --netns=/proc/self/ns/net --firewall-bin-path iptables-nft --firewall-save-bin-path x";
    install(&namespace, &format!("{verified} --output text {PORTS}"));
    install(&namespace, "detect --netns=/proc/self/ns/net --output json");
    install(
        &namespace,
        "uninstall -w --netns=/proc/self/ns/net --firewall-bin-path iptables-nft --log-format json --log-level info",
    );
    assert_eq!(namespace.sh("nft list ruleset").matches("PROXY_INIT").count(), 0);
}

#[test]
fn a_mistake_is_named_with_what_to_write_instead() {
    let namespace = Namespace::new();
    for (arguments, words) in [
        (
            &["--ipv6", "false"][..],
            "unexpected argument \"false\": a boolean takes its value after \"=\", as in --ipv6=false",
        ),
        (&["-w", "false"], "a boolean takes its value after"),
        (&["--simulate", "ipv4"], "unexpected argument \"ipv4\""),
        (&["--inbound-ports-to-ignore", "4190,", "4191"], "unexpected argument \"4191\""),
        (&["--outbound-ports-to-ignore=4190", ",4191"], "and a list has no blanks"),
        (&["80"], "unexpected argument \"80\""),
        (&["verify"], "proxy-init verify ..."),
        (&["-r", ","], "--ports-to-redirect \",\" names nothing: name at least one"),
        (&["-r", ""], "--ports-to-redirect \"\" names nothing: name at least one"),
        (&["-r", "80", "--ports-to-redirect="], "--ports-to-redirect \"\" names nothing: name at least one"),
        (&["--inbound-ports-to-ignore", "-5"], "--inbound-ports-to-ignore \"-5\" is not"),
        (&["--inbound-ports-to-ignore", "80,-5-7"], "\"-5-7\""),
        (&["--ports-to-redirect", "-5"], "--ports-to-redirect \"-5\" is not"),
        (&["--subnets-to-ignore", "010.0.0.0/8"], "010.0.0.0/8 is not a valid CIDR address"),
        (&["--outbound-subnets-to-ignore", "10.0.0.0/08"], "10.0.0.0/08 is not a valid CIDR address"),
        (
            &["--subnets-to-ignore", "::ffff:10.0.0.0/104"],
            "::ffff:10.0.0.0/104 is an IPv4-mapped subnet, which is never on the wire: write the IPv4 subnet itself, \
             10.0.0.0/8",
        ),
        (&["--simulate=ipv5"], "--simulate must be one of ipv4, ipv6, true, false, not \"ipv5\""),
        (&["--simulate=ipv4", "--iptables-mode", "native"], "write --simulate alone"),
        (&["--simulate=ipv6", "--ipv6=false"], "no rules for IPv6"),
        (&["--proxy-udi", "7"], "unknown flag --proxy-udi, did you mean --proxy-uid?"),
    ] {
        let arguments: Vec<_> = PORTS.split(' ').chain(arguments.iter().copied()).collect();
        let text = refusal(&namespace, &arguments);
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
    for (arguments, words) in [
        (&["verfiy"][..], "unknown subcommand \"verfiy\", did you mean verify?"),
        (&["-p", "-5", "-o", "1"], "--incoming-proxy-port \"-5\" is not a valid TCP port (1-65535)"),
        (&["verify", "-o", "-5", "-p", "1"], "--outgoing-proxy-port"),
        (&["help", "verfiy"], "\"verfiy\" is invalid: use show, explain, verify, uninstall"),
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
        let bytes = OsStr::from_bytes(b"\xff\x1b[31m\n7");
        let arguments = if joined {
            let mut argument = OsString::from(format!("{flag}="));
            argument.push(bytes);
            vec![argument]
        } else {
            vec![flag.into(), bytes.to_owned()]
        };
        let finished = Run::new(PORTS).arguments(arguments).output(&namespace);
        let text = finished.stderr();
        assert_eq!(finished.code(), Some(2), "{text}");
        assert!(text.contains(flag) && text.contains("is not UTF-8 text"), "{text}");
        assert!(text.contains("\\u{1b}[31m\\n7") && text.lines().count() == 1, "{text}");
    }
    // A path need not be text.
    let finished = Run::new("detect --netns").arguments([OsStr::from_bytes(b"/run/\xff")]).output(&namespace);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr().contains("ENOENT"), "{finished:?}");
    let path = "/run/\u{1b}]0;title\u{7}\nsecond line";
    let finished = Run::new("verify -p 1 -o 2 --netns").arguments([path]).output(&namespace);
    let text = finished.stderr();
    assert_eq!(finished.code(), Some(1), "{text}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}\\nsecond line"), "{text}");
    assert_eq!(text.trim_end().chars().filter(|it| it.is_control()).count(), 0, "{text}");
}

#[test]
fn linkerds_word_for_legacy_mode_is_understood() {
    for (environment, arguments) in [("", "--iptables-mode iptables"), ("iptables", "")] {
        let namespace = Namespace::new();
        Run::new(&format!("{PORTS} {arguments}"))
            .environment("IPTABLES_MODE", environment)
            .output(&namespace)
            .success();
        assert!(saved(&namespace, "legacy").contains("-j PROXY_INIT_OUTPUT"));
    }
}

#[test]
fn a_variable_of_the_environment_makes_the_rules_that_its_flag_makes() {
    let rules = |run: Run| {
        let namespace = Namespace::new();
        run.output(&namespace).success();
        saved(&namespace, "nft")
    };
    // All settings but the two ports, which come last.
    assert_eq!(VALUES.len() + 1, SETTINGS.len() - 2);
    for (flag, value) in VALUES.into_iter().chain([("ipv6", "false")]) {
        let setting = SETTINGS.iter().find(|setting| setting.flag == flag).unwrap();
        let line = "--iptables-mode nft -p 4143 -o 4140";
        let by_flag = rules(Run::new(&format!("{line} --{flag}={value}")));
        assert_ne!(by_flag, rules(Run::new(line)), "{flag}");
        assert_eq!(by_flag, rules(Run::new(line).environment(setting.variable, value)), "{flag}");
    }
    // The ports too.
    let by_variables = Run::new("--iptables-mode nft -u 2102")
        .environment("PROXY_INIT_INCOMING_PROXY_PORT", "4143")
        .environment("PROXY_INIT_OUTGOING_PROXY_PORT", "4140");
    assert_eq!(rules(by_variables), rules(Run::new(&format!("--iptables-mode nft {PORTS}"))));
}

#[test]
fn a_flag_goes_before_its_variable_and_a_bad_value_is_refused_with_its_name() {
    const VARIABLE: &str = "PROXY_INIT_OUTBOUND_SUBNETS_TO_IGNORE";
    let namespace = Namespace::new();
    let run = |arguments: &str, value: &str| {
        Run::new(&format!("--iptables-mode nft {PORTS} {arguments}")).environment(VARIABLE, value).output(&namespace)
    };
    let output_rules = || -> Vec<String> {
        let saved = namespace.sh("iptables-nft-save -t nat");
        saved.lines().filter(|line| line.contains("-d ")).map(ToOwned::to_owned).collect()
    };
    run("", "10.0.0.0/8").success();
    let rule =
        "-A PROXY_INIT_OUTPUT -d 10.0.0.0/8 -m comment --comment \"proxy-init/ignore-subnet-10.0.0.0/8\" -j RETURN";
    assert_eq!(output_rules(), [rule]);
    let verified = Run::new(&format!("verify {PORTS}")).environment(VARIABLE, "10.0.0.0/8").output(&namespace);
    assert!(verified.success().starts_with("in place"));

    run("--outbound-subnets-to-ignore 192.0.2.0/24", "10.0.0.0/8").success();
    assert_eq!(output_rules(), [rule.replace("10.0.0.0/8", "192.0.2.0/24")]);

    let before = saved(&namespace, "nft");
    let finished = run("", "10.0.0.0/33");
    assert_eq!(finished.code(), Some(2));
    assert_eq!(
        finished.stderr(),
        format!(
            "error: {VARIABLE} in the environment 10.0.0.0/33 is not a valid CIDR address (such as 10.0.0.0/8 or fd00::/8)\n"
        )
    );
    assert_eq!(saved(&namespace, "nft"), before);
    // A service's variables, which kubelet makes, are nobody's.
    let service = Run::new(&format!("--iptables-mode nft {PORTS}"));
    let service =
        service.environment("PROXY_INIT_PORT", "tcp://10.0.0.1:80").environment("PROXY_INIT_SERVICE_HOST", "x");
    service.output(&namespace).success();
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
        ("-p 4143 -o 4140 -u 0 -g -1", "proxy-uid and proxy-gid are 0 or not given"),
        ("-p 4143 -o 4143 -g 7", "incoming-proxy-port and outgoing-proxy-port are both 4143"),
        (
            "-p 4143 -o 4140 -u 7 --subnets-to-ignore 0.0.0.0/0",
            "inbound-subnets-to-ignore 0.0.0.0/0: inbound IPv6 connections bypass the proxy too, as with linkerd-init",
        ),
        (
            "-p 4143 -o 4140 -u 7 --ipv6=false --subnets-to-ignore 10.0.0.0/8 --outbound-subnets-to-ignore fd00::/8",
            "subnet fd00::/8 has no effect: with ipv6=false there are no rules for IPv6",
        ),
    ] {
        let lines = warnings(arguments);
        assert_eq!(lines.len(), 1, "{arguments}: {lines:?}");
        assert!(lines[0].contains(words), "{lines:?}");
    }
}

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
        let text = Run::new(&format!("{simulate} {PORTS}")).nobody(&[]).output(&nowhere).success();
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
            let one = Run::new(&format!("--simulate={family} {PORTS}")).nobody(&[]).output(&nowhere);
            assert_eq!(one.success(), part);
        }
    }
    // One family's rules are nothing that could be mixed up.
    let only = install(&nowhere, &format!("--simulate --ipv6=false {PORTS}"));
    feed(&Namespace::new(), "iptables-nft-restore --noflush", &only).success();
    install(&nowhere, &format!("--simulate=false --iptables-mode nft {PORTS}"));
    assert!(saved(&nowhere, "nft").contains("PROXY_INIT_OUTPUT"));
}

/// Every subcommand that has a name.
const SUBCOMMANDS: [&str; 9] =
    ["show", "explain", "verify", "uninstall", "detect", "validate", "help", "man", "completions"];

#[test]
fn help_is_the_same_by_both_ways_and_has_an_example_and_exit_codes() {
    assert_eq!(stdout(&["help"]), stdout(&["--help"]));
    for subcommand in SUBCOMMANDS {
        let help = stdout(&["help", subcommand]);
        assert_eq!(help, stdout(&[subcommand, "--help"]));
        for words in ["Example: ", &format!("proxy-init {subcommand}"), "Exit codes:\n  0  "] {
            assert!(help.contains(words), "{words} in {help}");
        }
        assert_eq!(help.contains("\n  3  "), ["explain", "verify"].contains(&subcommand));
        assert_eq!(help.contains("\n  95  "), subcommand == "validate");
        assert!(stdout(&["--help"]).contains(&format!("\n  {subcommand} ")));
    }
    // A terminal has 80 columns, and no wish to break lines.
    for subcommand in SUBCOMMANDS.iter().chain(&[""]) {
        for arguments in [["help", *subcommand], [*subcommand, "-h"]] {
            let help = stdout(&arguments.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>());
            let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{arguments:?}: {long:#?}");
        }
    }
    for line in ["0   done: ", "1   failed; ", "2   the command line is invalid", "3   verify: ", "95  validate: "] {
        assert!(stdout(&["--help"]).contains(&format!("\n  {line}")), "{line}");
    }
    // verify takes two forms, and needs the ports in one of them only.
    let (install, verify) = (stdout(&["--help"]), stdout(&["help", "verify"]));
    assert_eq!(install.matches("(required)").count(), 2);
    assert_eq!(verify.matches("(required)").count(), 0);
    for form in [" verify [--netns PATH] ", " verify -p PORT -o PORT "] {
        assert!(verify.contains(form), "{form} in {verify}");
    }
}

/// A page formatted by man(1) as plain text; nothing in the page may be amiss.
fn formatted(page: &str) -> String {
    let command = "groff -man -Tascii -ww -rLL=200n -P-c -P-b -P-u";
    let finished = feed(&Namespace::new(), command, page);
    assert_eq!(finished.stderr(), "");
    finished.success()
}

#[test]
fn every_subcommand_has_a_man_page() {
    let page = formatted(&stdout(&["man"]));
    for words in ["NAME\n", "SYNOPSIS\n", "EXIT STATUS\n", "EXAMPLES\n", "IPTABLES_MODE", "--subnets-to-ignore"] {
        assert!(page.contains(words), "{words} in {page}");
    }
    for code in 0..=3 {
        assert!(page.contains(&format!("\n       {code}      ")), "{code} in {page}");
    }
    for subcommand in SUBCOMMANDS {
        assert!(page.contains(&format!("\n       {subcommand}")), "{subcommand} in {page}");
        let own = formatted(&stdout(&["man", subcommand]));
        assert!(own.contains(&format!("proxy-init-{subcommand} - ")), "{own}");
        assert!(own.contains("EXIT STATUS\n") && own.contains(&format!("proxy-init {subcommand}")), "{own}");
    }
    let verify = formatted(&stdout(&["man", "verify"]));
    for words in ["--output <FORMAT>", "proxy-init verify -p PORT -o PORT [OPTIONS]"] {
        assert!(verify.contains(words), "{words} in {verify}");
    }
    for words in [" --incoming-proxy-port PORT ", "[--netns PATH]", "[--ipv6[=BOOL]]"] {
        assert!(page.contains(words), "{words} in {page}");
    }
    for variable in ["NO_COLOR", "XTABLES_LOCKFILE", "XTABLES_LIBDIR"] {
        assert!(page.contains(&format!("\n       {variable}\n")), "{variable} in {page}");
    }
}

/// bash's offers for the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let folder = Folder::new("completions");
    let script = folder.join("script");
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
    command.args(["--norc", "-c", bash, "bash"]).arg(&script).arg("proxy-init").args(words);
    let output = command.output().unwrap();
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.lines().filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_their_flags_and_words() {
    assert!(completed(&["ver"]).contains(&"verify".to_owned()));
    for (words, offered) in [
        (
            &["uninstall", "--"][..],
            &["--netns", "--use-wait-flag", "--log-format", "--log-level", "--firewall-bin-path", "--help"][..],
        ),
        (&["detect", "--"], &["--netns", "--output", "--help"]),
        (
            &["verify", "--out"],
            &[
                "--output",
                "--outgoing-proxy-port",
                "--outbound-interfaces-to-ignore",
                "--outbound-ports-to-ignore",
                "--outbound-ports-to-redirect",
                "--outbound-subnets-to-ignore",
                "--outbound-subnets-to-redirect",
            ],
        ),
        (&["--iptables-mode", ""], &["legacy", "nft", "native", "auto", "plain"]),
        (&["-p", "1", "--iptables-mode", "n"], &["nft", "native"]),
        (&["verify", "-p", "1", "--iptables-mode", "n"], &["nft", "native"]),
        (&["verify", "--output", ""], &["text", "json"]),
        (&["detect", "--output", "j"], &["json"]),
        (&["explain", "--output", ""], &["text", "short", "json"]),
        (&["explain", "i"], &["inbound"]),
        (&["explain", "inbound", "--expect", ""], &["proxy", "bypass"]),
        (&["--log-format", ""], &["plain", "json"]),
        (&["--log-level", ""], &["error", "warning", "info", "debug"]),
        (&["uninstall", "--log-level", "w"], &["warning"]),
        (&["uninstall", "--log-format", ""], &["plain", "json"]),
        (&["help", "ver"], &["verify"]),
        (&["man", "un"], &["uninstall"]),
        (&["completions", "z"], &["zsh"]),
        (&["--ipv6", "--sim"], &["--simulate"]),
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
        [format!("{PORTS} --iptables-mode nft --netns /nonexistent"), "uninstall --netns /nonexistent".to_owned()]
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
    assert_eq!(message(&format!("--iptables-mode nft {PORTS}"), &["net_admin"]), "");
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
        Run::new(&format!("--ipv6=false -w {PORTS}")).commands_of(&folder).spawn(&namespace, Stdio::piped());
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

/// linkerd-init's settings of the same names (linkerd2-proxy-init's cmd/root.go), which are no differences.
const LINKERDS: [&str; 9] = [
    "incoming-proxy-port",
    "outgoing-proxy-port",
    "proxy-uid",
    "proxy-gid",
    "ports-to-redirect",
    "inbound-ports-to-ignore",
    "outbound-ports-to-ignore",
    "inbound-subnets-to-ignore",
    "ipv6",
];

#[test]
fn the_pages_name_each_setting_as_the_table_does() {
    let page = |name: &str| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let (cni, differences, man) = (page("cni.md"), page("differences.md"), stdout(&["man"]));
    for setting in SETTINGS {
        let key = format!("- `linkerd.{}`", setting.key());
        let key_beside_another = format!(", `linkerd.{}`", setting.key());
        assert!(cni.contains(&key) || cni.contains(&key_beside_another), "{key}");
        for annotation in setting.annotations {
            assert!(cni.contains(&format!("`{annotation}`")), "{annotation}");
        }
        assert!(man.contains(setting.variable), "{}", setting.variable);
        if !LINKERDS.contains(&setting.flag) {
            assert!(differences.contains(&format!("`--{}`", setting.flag)), "{}", setting.flag);
        }
    }
}
