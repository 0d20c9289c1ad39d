use proptest::prelude::*;

use ruleset::testing::random;

use super::*;
use crate::config::settings::{SETTINGS, arguments};
use crate::config::testing::{any_config, of_every_setting};
use crate::config::{Config, Mode, ModeChoice, Port};
use crate::flags::given::variable;

fn read_back(arguments: Vec<String>) -> Config {
    let all = std::iter::once("proxy-init".to_owned()).chain(arguments);
    match parse(all.map(OsString::from), |_| None) {
        Ok(Command::Install(install, _)) => install.config,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(random(256))]

    #[test]
    fn a_configs_flags_install_just_that_config(config in any_config()) {
        prop_assert_eq!(read_back(arguments(&config)), config);
    }
}

fn try_parse(line: &str, iptables_mode: Option<&str>) -> Result<Command, String> {
    let arguments = line.split_whitespace().map(OsString::from);
    let environment = |name: &str| iptables_mode.filter(|_| name == "IPTABLES_MODE").map(OsString::from);
    parse(arguments, environment).map_err(|error| error.to_string())
}

#[test]
fn the_flag_beats_the_environment_beats_the_binarys_name() {
    for (flags, environment, want) in [
        ("", None, ModeChoice::Default),
        ("", Some(""), ModeChoice::Default),
        ("--firewall-bin-path /usr/sbin/iptables-nft", None, ModeChoice::Mode(Mode::Nft)),
        ("--firewall-bin-path iptables-legacy", None, ModeChoice::Mode(Mode::Legacy)),
        ("--firewall-bin-path iptables", None, ModeChoice::Plain),
        ("--firewall-bin-path iptables-nft", Some("auto"), ModeChoice::Auto),
        ("--iptables-mode native", Some("auto"), ModeChoice::Mode(Mode::Native)),
        ("--iptables-mode=native --iptables-mode=", Some("auto"), ModeChoice::Auto),
        ("--iptables-mode nft --firewall-bin-path x", Some("bogus"), ModeChoice::Mode(Mode::Nft)),
    ] {
        match try_parse(&format!("proxy-init -p 1 -o 2 {flags}"), environment) {
            Ok(Command::Install(install, _)) => assert_eq!(install.mode, want, "{flags} {environment:?}"),
            other => panic!("{flags}: {other:?}"),
        }
    }
    let error = try_parse("proxy-init -p 1 -o 2", Some("bogus")).unwrap_err();
    assert!(error.starts_with("IPTABLES_MODE in the environment must be one of legacy, "), "{error}");
    assert!(try_parse("proxy-init uninstall", Some("bogus")).is_ok());
}

/// The config of a line, where the environment has one variable.
fn with_variable(line: &str, variable: &str, value: &str) -> Result<Config, String> {
    let environment = |name: &str| (name == variable).then(|| OsString::from(value));
    match parse(line.split_whitespace().map(OsString::from), environment) {
        Ok(Command::Install(install, _) | Command::Ask(Question::Verify { install, .. }, ..)) => Ok(install.config),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn the_environment_has_each_setting_whose_flag_is_not_given() {
    let spelled = arguments(&Config { ipv6: false, ..of_every_setting() });
    for setting in SETTINGS {
        let flag = setting.flag;
        let at = spelled.iter().position(|argument| *argument == format!("--{flag}"));
        let value = at.map_or("false", |at| spelled[at + 1].as_str());
        let needed = ["incoming-proxy-port", "outgoing-proxy-port"].iter().filter(|needed| **needed != flag);
        let needed = needed.map(|needed| format!(" --{needed}=1")).collect::<String>();
        for command in ["proxy-init", "proxy-init verify --netns /x"] {
            let line = format!("{command}{needed}");
            let by_flag = with_variable(&format!("{line} --{flag}={value}"), "", "").unwrap();
            assert_eq!(with_variable(&line, &variable(flag), value), Ok(by_flag.clone()), "{flag}");
            // The flag goes before it, and nobody reads it then.
            let both = with_variable(&format!("{line} --{flag}={value}"), &variable(flag), "x y");
            assert_eq!(both, Ok(by_flag), "{flag}");
            let refused = with_variable(&line, &variable(flag), "x y").unwrap_err();
            assert!(refused.starts_with(&format!("{} in the environment ", variable(flag))), "{refused}");
            assert!(refused.contains("x y"), "{refused}");
        }
        if !setting.is_required {
            let line = format!("proxy-init{needed}");
            assert_eq!(with_variable(&line, &variable(flag), ""), with_variable(&line, "", ""), "{flag}");
        }
        // Other subcommands, and verify without flags about rules, don't read it.
        for line in ["proxy-init verify", "proxy-init show", "proxy-init uninstall"] {
            let environment = |name: &str| (name == variable(flag)).then(|| OsString::from("x y"));
            assert!(parse(line.split(' ').map(OsString::from), environment).is_ok(), "{line}");
        }
    }
    // An empty list is a list.
    let line = "proxy-init -p 1 -o 2 --outbound-subnets-to-ignore=";
    let config = with_variable(line, "PROXY_INIT_OUTBOUND_SUBNETS_TO_IGNORE", "10.0.0.0/8").unwrap();
    assert_eq!(config.ignored_outbound_subnets, []);
}

#[test]
fn a_mistake_is_explained_and_says_where_help_is() {
    for (line, want) in [
        ("uninstall --simulate=true", "uninstall does not take --simulate: leave it out"),
        ("verify -w", "verify does not take -w: leave it out"),
        ("verify --netnss x", "unknown flag --netnss, did you mean --netns?"),
        ("uninstall -x", "unknown flag -x"),
        ("uninstall --use-wait-flag false", "unexpected argument \"false\": a boolean takes its value after \"=\""),
        ("verify -r 80, 81", "unexpected argument \"81\": "),
        ("verify -r 80 ,81", "and a list has no blanks"),
        ("verify -r 80 81", "unexpected argument \"81\""),
        ("uninstall -- -w", "unexpected argument \"-w\""),
        ("detect verify", "unexpected argument \"verify\""),
        ("detect --output", "--output <FORMAT>: a value is missing"),
        ("show -p 4143", "show does not take -p: leave it out"),
        ("help detcet", "\"detcet\" is invalid: use check, show, explain, verify, uninstall, detect"),
        ("completions", "completions needs the name of a shell"),
    ] {
        let error = try_parse(&format!("proxy-init {line}"), None).unwrap_err();
        let subcommand = line.split(' ').next().unwrap();
        assert!(error.contains(want), "{line}: {error}");
        assert!(error.ends_with(&format!(" (see proxy-init {subcommand} --help)")), "{error}");
    }
    for (line, want) in [
        ("detcet", "unknown subcommand \"detcet\", did you mean detect? (see proxy-init --help)"),
        (
            "80",
            "unknown subcommand \"80\": there are check, show, explain, verify, uninstall, detect, validate, help, completions",
        ),
        ("-p 1 -o 2 --output json", "proxy-init does not take --output: leave it out (see proxy-init --help)"),
        (
            "-p 1 -o 2 verify",
            "verify: a subcommand comes first, before all flags: proxy-init verify ... (see proxy-init --help)",
        ),
        ("install", "proxy-init installs when given its flags"),
        ("--ipv6=false", "--incoming-proxy-port and --outgoing-proxy-port are required: the proxy's ports"),
        ("version", "write --version"),
        ("status", "did you mean check?"),
        ("--skip-inbound-ports 80", "unknown flag --skip-inbound-ports: write --inbound-ports-to-ignore"),
        ("check -o json", "check does not take -o: write --output json"),
        ("show --json", "unknown flag --json: write --output json"),
        ("explain outbound 1.2.3.4:80", "write --to 1.2.3.4:80"),
        ("-o 2", "--incoming-proxy-port is required: a port of the proxy (see proxy-init --help)"),
        ("-p 1", "--outgoing-proxy-port is required: a port of the proxy (see proxy-init --help)"),
        ("-p 1 -o 2 --simulate=ipv6 --ipv6=false", "there are no rules for IPv6"),
        ("-p 1 -o 2 --simulate=ipv4 --iptables-mode native", "write --simulate alone"),
        ("-p 1 -o 2 --firewall-bin-path /bin/x", "--firewall-bin-path \"/bin/x\" stands for no mode"),
    ] {
        let error = try_parse(&format!("proxy-init {line}"), None).unwrap_err();
        assert!(error.contains(want), "{line}: {error}");
    }
}

#[test]
fn verify_needs_no_flags_about_rules_or_the_ports() {
    for (flags, netns, mode) in [
        ("", None, None),
        ("--netns /run/pod --output text", Some("/run/pod"), None),
        ("--iptables-mode native", None, Some(Mode::Native)),
        ("--iptables-mode auto --firewall-bin-path iptables", None, None),
    ] {
        // The environment's mode is about installing.
        match try_parse(&format!("proxy-init verify {flags}"), Some("legacy")) {
            Ok(Command::Ask(Question::Recognize { netns: path, mode: named, is_strict: false }, Output::Text, _)) => {
                assert_eq!((path.as_deref(), named), (netns.map(Path::new), mode), "{flags}");
            }
            other => panic!("{flags}: {other:?}"),
        }
    }
    for flags in ["-u 2102", "--ipv6=false", "-p 1", "--inbound-ports-to-ignore 80"] {
        let error = try_parse(&format!("proxy-init verify {flags}"), None).unwrap_err();
        assert!(error.contains(" required: "), "{flags}: {error}");
        assert!(error.ends_with(" (see proxy-init verify --help)"), "{flags}: {error}");
    }
}

#[test]
fn a_list_that_is_too_long_for_an_argument_is_cut() {
    let mut config = Config::new(Port::new(1).unwrap(), Port::new(2).unwrap());
    config.ignored_inbound_subnets = vec!["1111:2222:3333:4444:5555:6666:7777:8888/128".parse().unwrap(); 3001];
    let spelled = arguments(&config);
    // MAX_ARG_STRLEN (linux/binfmts.h)
    assert!(spelled.iter().all(|argument| argument.len() < 128 * 1024));
    assert_eq!(read_back(spelled), config);
}

#[test]
fn every_word_that_is_offered_is_accepted() {
    for subcommand in all() {
        let needed: &[&str] = match subcommand.name {
            "proxy-init" => &["-p", "1", "-o", "2"],
            "explain" => &["outbound", "--to", "192.0.2.1:80"],
            _ => &[],
        };
        let name = (!subcommand.is_program()).then_some(subcommand.name);
        for flag in (subcommand.flags)() {
            for word in (flag.words)() {
                let line = ["proxy-init"].into_iter().chain(name).chain(needed.iter().copied());
                let line = line.map(ToOwned::to_owned).chain([format!("--{}={word}", flag.name)]);
                assert!(
                    parse(line.map(OsString::from), |_| None).is_ok(),
                    "{} --{}={word}",
                    subcommand.name,
                    flag.name
                );
            }
        }
    }
}

#[test]
fn a_flag_has_help_and_a_name_of_its_own() {
    for subcommand in all() {
        let flags = (subcommand.flags)();
        for flag in &flags {
            let texts = [flag.name, flag.placeholder, flag.heading, flag.help];
            assert!(texts.iter().all(|text| !text.is_empty()), "{texts:?}");
        }
        let mut names: Vec<_> = flags.iter().flat_map(|flag| flag.spellings().collect::<Vec<_>>()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[test]
fn exit_codes_are_those_of_the_documents() {
    let codes = INSTALL.exits.iter().map(|(exit, _)| exit.code());
    assert_eq!(codes.collect::<Vec<_>>(), [0, 1, 2, 3, 95]);
    let codes = questions::VALIDATE.exits.iter().map(|(exit, _)| exit.code());
    assert_eq!(codes.collect::<Vec<_>>(), [0, 2, 95]);
}
