//! Help, completions, and the pages that list settings.

use std::fs;
use std::process::Command;

use lab::network::Namespace;
use lab::shell::root;
use proxy_init::SETTINGS;

use super::stdout;
use crate::support::{Folder, Run};

/// Every subcommand that has a name.
const SUBCOMMANDS: [&str; 8] = ["show", "explain", "verify", "uninstall", "detect", "validate", "help", "completions"];

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
        (&["detect", "--"], &["--netns", "--output", "--color", "--help"]),
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
        (&["check", "--color", ""], &["auto", "always", "never"]),
        (&["explain", "i"], &["inbound"]),
        (&["explain", "inbound", "--expect", ""], &["proxy", "bypass"]),
        (&["--log-format", ""], &["plain", "json"]),
        (&["--log-level", ""], &["error", "warning", "info", "debug"]),
        (&["uninstall", "--log-level", "w"], &["warning"]),
        (&["uninstall", "--log-format", ""], &["plain", "json"]),
        (&["help", "ver"], &["verify"]),
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
    assert_eq!(Run::new("completions cmd.exe").output(&Namespace::new()).code(), Some(2));
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
    let (cni, differences) = (page("cni.md"), page("differences.md"));
    for setting in SETTINGS {
        let key = format!("- `linkerd.{}`", setting.key());
        let key_beside_another = format!(", `linkerd.{}`", setting.key());
        assert!(cni.contains(&key) || cni.contains(&key_beside_another), "{key}");
        for annotation in setting.annotations {
            assert!(cni.contains(&format!("`{annotation}`")), "{annotation}");
        }
        if !LINKERDS.contains(&setting.flag) {
            assert!(differences.contains(&format!("`--{}`", setting.flag)), "{}", setting.flag);
        }
    }
}

#[test]
fn help_names_the_flags_and_the_version_the_libraries() {
    let help = stdout(&["--help"]);
    let others = ["simulate", "netns", "use-wait-flag", "timeout-close-wait-secs", "log-format", "log-level"];
    for flag in SETTINGS.iter().map(|setting| setting.flag).chain(others) {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
    let version = stdout(&["--version"]);
    assert!(version.contains("libnftnl 1.") && version.contains("libmnl 1."), "{version}");
}
