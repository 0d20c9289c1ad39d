//! The subcommands that change nothing: their words, their flags, and what is asked by them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ruleset::{Direction, Name};

use super::exit::Exit;
use super::flags::{FLAG, Flag, LOG_FORMAT, LOG_LEVEL, RULES, Value, set};
use super::parse::Given;
use super::subcommand::{Subcommand, Word};
use super::values::{self, LOG_FORMATS, named};
use super::{Command, Variables, install, log, see_help};
use crate::config::ModeChoice;
use crate::diagnose::explain::Expected;
use crate::diagnose::explain::answer::Connection;
use crate::diagnose::validate::Validate;
use crate::diagnose::{Output, Question};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Diagnosis {
    Show,
    Explain,
    Verify,
    Detect,
    Validate,
}

impl Diagnosis {
    /// Returns true if the subcommand takes an installation's flag too.
    pub(super) fn shares(self, flag: &Flag) -> bool {
        match flag.name {
            "netns" => self != Self::Validate,
            ModeChoice::FLAG | "no-fallback" | "firewall-bin-path" | "firewall-save-bin-path" => self == Self::Verify,
            _ => self == Self::Verify && flag.heading == RULES,
        }
    }

    pub(super) fn word(self) -> Option<Word> {
        (self == Self::Explain).then(|| Word {
            placeholder: "DIRECTION",
            words: Direction::ALL.map(Direction::name).to_vec(),
            missing: Some(
                "explain needs a direction, inbound or outbound, as in proxy-init explain outbound --to 10.0.0.1:80",
            ),
            help: "inbound: a connection to this namespace;\n\
                   outbound: one that a process in it makes",
        })
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Show => "Show the rules that redirect connections, with packet counts",
            Self::Explain => "Say whether a connection would go to the proxy, and by which rule",
            Self::Verify => "Compare the rules with what the same flags would install",
            Self::Detect => "Show what the kernel supports, and what auto mode would choose",
            Self::Validate => "Make a connection, and see whether it comes to the proxy's port",
        }
    }

    /// More than that, in lines that fit a terminal.
    pub(super) fn details(self) -> &'static str {
        match self {
            Self::Show => {
                "It lists proxy-init's rules in every mode, and the rules of other programs that\n\
                 run before them, in the order in which the kernel runs them: what each matches\n\
                 and does, and what it has counted. Last come the flags that install the same.\n\
                 It needs none of the flags that the rules were installed with. It changes\n\
                 nothing, starts no process, and says what it cannot see. It prints colours only\n\
                 on a terminal outside pods, and never if NO_COLOR is set or TERM is dumb."
            }
            Self::Explain => {
                "It follows the connection's first packet, the reply and the ACK after it through\n\
                 all chains of nf_tables and of legacy tables that the kernel runs, whichever\n\
                 program made them, in the kernel's order; before them, where neighbours have to\n\
                 find each other, the packets for that. The first line is the answer; then come\n\
                 the rule that says so and each rule that was looked at, with why it did not\n\
                 match. It makes no connection and changes nothing.\n\n\
                 The kernel's routing gives an outbound connection its device and its source\n\
                 address. Without --uid and --gid it is one from any user except the proxy's. If\n\
                 the answer depends on what was not given, or is not understood, it is \"not\n\
                 known\", with the reason."
            }
            Self::Verify => {
                "It takes the flags that say which rules should be there and where to look for\n\
                 them. Without any flag about rules, it checks whether what is installed is one\n\
                 complete, untouched installation, whatever its flags were, and prints those.\n\
                 With any of them, -p and -o are needed as well. Flags that only steer an\n\
                 installation are refused. Where no mode is named, it checks the backend that\n\
                 holds proxy-init's rules, or else the one that an installation would choose. It\n\
                 exits 0 if they match, 3 if they differ, and prints the difference."
            }
            Self::Detect => {
                "It changes nothing: what the kernel supports is found with transactions that are\n\
                 never committed. It reports what it cannot read without privileges."
            }
            Self::Validate => {
                "It does what linkerd-network-validator does, with its flags: it listens where\n\
                 the proxy will, connects to an address that no host needs to have, and expects\n\
                 its own answer, a random token. It changes nothing, needs no privileges, and has\n\
                 to run as another user than the proxy's. If it may read the rules, which takes\n\
                 CAP_NET_ADMIN, it says why a connection did not arrive.\n\n\
                 A program of the name linkerd2-network-validator, a link or a copy, takes these\n\
                 flags directly. Where --log-format or --log-level is missing, the environment\n\
                 has it in LINKERD_NETWORK_VALIDATOR_LOG_FORMAT or ..._LOG_LEVEL."
            }
        }
    }

    pub(super) fn examples(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Show => &[
                ("proxy-init show", "show what redirects connections in this namespace"),
                (
                    "proxy-init show --netns /var/run/netns/pod --output json",
                    "report on another namespace to a program",
                ),
            ],
            Self::Explain => &[
                (
                    "proxy-init explain outbound --to 10.96.0.10:443",
                    "say what becomes of the application's connection to that address",
                ),
                (
                    "proxy-init explain outbound --to 10.96.0.10:443 --output short",
                    "print that answer alone, on one line",
                ),
                (
                    "proxy-init explain inbound --to 10.1.2.3:8080 --expect proxy",
                    "exit 3 unless connections to that port of the pod go to the proxy",
                ),
            ],
            Self::Verify => &[
                ("proxy-init verify", "check that what is installed is complete and untouched"),
                ("proxy-init verify -p 4143 -o 4140 -u 2102", "compare, and print any difference"),
                (
                    "proxy-init verify --netns /var/run/netns/pod --output json \\\n    \
                     -p 4143 -o 4140 -u 2102",
                    "compare another namespace's rules, for a program",
                ),
            ],
            Self::Detect => &[
                ("proxy-init detect", "say what fits this node, and why"),
                ("proxy-init detect --output json", "report to a program"),
            ],
            Self::Validate => &[(
                "proxy-init validate --connect-addr '[fd00::1]:20001' --listen-addr '[::]:4140'",
                "validate the rules for IPv6",
            )],
        }
    }

    pub(super) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Show | Self::Explain => &[
                ("NO_COLOR", "If it is set, no colours are printed."),
                ("TERM", "If it is dumb, no colours are printed."),
            ],
            Self::Verify | Self::Detect | Self::Validate => &[],
        }
    }

    pub(super) fn exits(self) -> Vec<(Exit, &'static str)> {
        let (done, failed, differs) = match self {
            Self::Show => ("shown, even if there are no rules", "the rules cannot be read", None),
            Self::Explain => (
                "answered, and if --expect was given, as expected",
                "the rules cannot be read, or there is no route for the connection",
                Some("the answer is not the one that --expect names"),
            ),
            Self::Verify => (
                "the rules are in place",
                "the rules cannot be read",
                Some("the rules differ from what the flags describe"),
            ),
            Self::Detect => ("reported", "the namespace cannot be entered", None),
            Self::Validate => {
                return vec![
                    (Exit::Done, "validated: the connection came to the proxy's port"),
                    (Exit::BadInput, "the command line is invalid"),
                    (Exit::NotValidated, "the connection did not arrive, or a signal ended the run"),
                ];
            }
        };
        let mut exits = vec![(Exit::Done, done), (Exit::Failed, failed), (Exit::BadInput, Exit::BAD_INPUT)];
        exits.extend(differs.map(|differs| (Exit::Differs, differs)));
        exits
    }
}

/// Two questions.
pub(super) const VERIFY: [&str; 2] = [
    "proxy-init verify [--netns PATH] [--iptables-mode MODE] [--output FORMAT]",
    "proxy-init verify -p PORT -o PORT [OPTIONS]",
];

/// The values of these subcommands' flags, each checked by itself.
#[derive(Debug, Default)]
pub(super) struct Asked {
    validate: Validate,
    to: Option<SocketAddr>,
    from: Option<(IpAddr, Option<u16>)>,
    in_device: Option<Name>,
    out_device: Option<Name>,
    uid: Option<u32>,
    gid: Option<u32>,
    expect: Option<Expected>,
    output: Output,
}

const CONNECTION: &str = "Connection";
const OUTPUT: &str = "Output";

const EXPLAINING: &[Subcommand] = &[Subcommand::Diagnose(Diagnosis::Explain)];

/// Those that print an answer.
const ANSWERING: &[Subcommand] = &[
    Subcommand::Diagnose(Diagnosis::Show),
    Subcommand::Diagnose(Diagnosis::Explain),
    Subcommand::Diagnose(Diagnosis::Verify),
    Subcommand::Diagnose(Diagnosis::Detect),
];

const CONNECTING: Flag = Flag { heading: CONNECTION, taken_by: EXPLAINING, ..FLAG };
const VALIDATING: Flag = Flag { heading: CONNECTION, taken_by: &[Subcommand::Diagnose(Diagnosis::Validate)], ..FLAG };

/// Their flags, in the order in which help shows them.
pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "output",
        value: Value::Word("FORMAT", |to, text| set(&mut to.asked.output, output(text))),
        words: |subcommand| {
            let is_taken = |(_, output): &&(_, _)| *output != Output::Short || EXPLAINING.contains(&subcommand);
            OUTPUTS.iter().filter(is_taken).map(|(name, _)| *name).collect()
        },
        taken_by: ANSWERING,
        heading: OUTPUT,
        help: "text for people, short for the answer of explain alone, or json for\n\
               programs, errors included [default: text]",
        ..FLAG
    },
    Flag {
        name: "to",
        value: Value::Word("ADDRESS:PORT", |to, text| set(&mut to.asked.to, destination(text).map(Some))),
        required_by: EXPLAINING,
        help: "Where the connection goes, e.g. 10.0.0.1:80 or [fd00::1]:80",
        ..CONNECTING
    },
    Flag {
        name: "from",
        value: Value::Word("ADDRESS[:PORT]", |to, text| set(&mut to.asked.from, source(text).map(Some))),
        help: "Where it comes from, e.g. 10.0.0.2 or [fd00::2]:40000\n\
               [default: inbound, any address; outbound, the one that routing\n\
               chooses]",
        ..CONNECTING
    },
    Flag {
        name: "in",
        value: Value::Word("INTERFACE", |to, text| set(&mut to.asked.in_device, device(text).map(Some))),
        help: "By which interface an inbound connection comes in\n\
               [default: any but lo]",
        ..CONNECTING
    },
    Flag {
        name: "out",
        value: Value::Word("INTERFACE", |to, text| set(&mut to.asked.out_device, device(text).map(Some))),
        help: "The interface to which an outbound connection's socket is bound\n\
               [default: none; routing says by which one it leaves]",
        ..CONNECTING
    },
    Flag {
        name: "uid",
        value: Value::Number("UID", |to, text| set(&mut to.asked.uid, id(text).map(Some))),
        help: "User id of the process that makes an outbound connection\n\
               [default: any but the proxy's]",
        ..CONNECTING
    },
    Flag {
        name: "gid",
        value: Value::Number("GID", |to, text| set(&mut to.asked.gid, id(text).map(Some))),
        help: "Group id of that process [default: any but the proxy's]",
        ..CONNECTING
    },
    Flag {
        name: "expect",
        value: Value::Word("ANSWER", |to, text| set(&mut to.asked.expect, named(text, &EXPECTED).map(Some))),
        words: |_| EXPECTED.map(|(name, _)| name).to_vec(),
        taken_by: EXPLAINING,
        heading: OUTPUT,
        help: "Exit 3 if the answer is another: proxy or bypass",
        ..FLAG
    },
    Flag {
        name: "listen-addr",
        value: Value::Word("ADDRESS", |to, text| set(&mut to.asked.validate.listen, address(text))),
        help: "Where the proxy listens for outbound connections\n\
               [default: 0.0.0.0:4140]",
        ..VALIDATING
    },
    Flag {
        name: "connect-addr",
        value: Value::Word("ADDRESS", |to, text| set(&mut to.asked.validate.connect, address(text))),
        help: "Where to connect to; it needs a route, but no host\n\
               [default: 192.0.2.2:1404]",
        ..VALIDATING
    },
    Flag {
        name: "timeout",
        value: Value::Word("DURATION", |to, text| set(&mut to.asked.validate.timeout, duration(text))),
        help: "How long the connection may take, e.g. 500ms or 2m [default: 10s]",
        ..VALIDATING
    },
    // linkerd-network-validator refuses an unknown format, takes any word for a level, and has variables for both.
    Flag {
        variable: Some("LINKERD_NETWORK_VALIDATOR_LOG_FORMAT"),
        value: Value::Word("FORMAT", |to, text| set(&mut to.log_format, named(text, &LOG_FORMATS))),
        taken_by: VALIDATING.taken_by,
        ..LOG_FORMAT
    },
    Flag {
        variable: Some("LINKERD_NETWORK_VALIDATOR_LOG_LEVEL"),
        value: Value::Word("LEVEL", |to, text| set(&mut to.log_level, Ok(values::log_level(text).unwrap_or_default()))),
        taken_by: VALIDATING.taken_by,
        ..LOG_LEVEL
    },
];

/// Reads the question of one of these subcommands.
pub(super) fn read(diagnosis: Diagnosis, given: &Given<'_>, environment: Variables<'_>) -> Result<Command, String> {
    let subcommand = Subcommand::Diagnose(diagnosis);
    let with_help = |text: String| match diagnosis {
        Diagnosis::Explain => see_help(&text, subcommand),
        _ => text,
    };
    let options = given.read(environment).map_err(with_help)?;
    let output = options.asked.output;
    if output == Output::Short && diagnosis != Diagnosis::Explain {
        return Err("--output short is for explain: use text or json".to_owned());
    }
    let question = match diagnosis {
        Diagnosis::Show => Question::Show { netns: options.netns },
        Diagnosis::Detect => Question::Detect { netns: options.netns },
        // --iptables-mode is heeded if it names a mode.
        Diagnosis::Verify if given.is_about_no_rules() => {
            let mode = match options.iptables_mode {
                Some(ModeChoice::Mode(mode)) => Some(mode),
                _ => None,
            };
            Question::Recognize { netns: options.netns, mode }
        }
        Diagnosis::Verify => Question::Verify(Box::new(install(subcommand, options, environment)?)),
        Diagnosis::Explain => {
            let connection = connection(given.word.unwrap_or_default(), &options.asked).map_err(with_help)?;
            Question::Explain { netns: options.netns, connection, expected: options.asked.expect }
        }
        Diagnosis::Validate => return Ok(Command::Validate(options.asked.validate, log(&options))),
    };
    Ok(Command::Ask(question, output))
}

/// The connection of `explain`.
fn connection(direction: &str, asked: &Asked) -> Result<Connection, String> {
    let direction = if direction == Direction::Inbound.name() { Direction::Inbound } else { Direction::Outbound };
    let to = asked.to.ok_or("--to is required: where the connection goes, as in --to 10.0.0.1:80")?;
    let (from, from_port) = asked.from.unzip();
    if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err("--from and --to must be both IPv4 or both IPv6".to_owned());
    }
    let device = match (direction, asked.in_device.clone(), asked.out_device.clone()) {
        (Direction::Inbound, device, None) => device,
        (Direction::Outbound, None, device) => device,
        (Direction::Inbound, _, Some(_)) => return Err("--out is for outbound connections: use --in".to_owned()),
        (Direction::Outbound, Some(_), _) => return Err("--in is for inbound connections: use --out".to_owned()),
    };
    if direction == Direction::Inbound {
        if asked.uid.or(asked.gid).is_some() {
            return Err("--uid and --gid are for outbound connections: leave them out".to_owned());
        }
        if device.as_ref().is_some_and(|device| *device == *"lo") {
            return Err(
                "--in lo: what comes in by lo was made in this namespace, and is redirected as it leaves: use \
                 proxy-init explain outbound"
                    .to_owned(),
            );
        }
    }
    Ok(Connection {
        from,
        from_port: from_port.flatten(),
        uid: asked.uid,
        gid: asked.gid,
        device,
        ..Connection::new(direction, to)
    })
}

const EXPECTED: [(&str, Expected); 2] = [("proxy", Expected::Proxy), ("bypass", Expected::Bypass)];

fn output(text: &str) -> Result<Output, String> {
    named(text, &OUTPUTS).map_err(|_| format!("must be text or json, or short for explain, not \"{text}\""))
}

const OUTPUTS: [(&str, Output); 3] = [("text", Output::Text), ("short", Output::Short), ("json", Output::Json)];

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is not an IP address with a port, such as 192.0.2.2:1404 or [fd00::1]:20001"))
}

/// An IP address with a port, where an IPv4 address that is mapped into IPv6 is that IPv4 address.
fn destination(text: &str) -> Result<SocketAddr, String> {
    without_scope(text)?;
    let address = address(text)?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// The device of a link-local address is named by a flag of its own.
fn without_scope(text: &str) -> Result<(), String> {
    if text.contains('%') {
        return Err(format!(
            "\"{text}\" has a scope id: leave out the % and what follows it, and name the device with --in or --out"
        ));
    }
    Ok(())
}

fn source(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    without_scope(text)?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match (bare.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
        (Ok(address), _) => Ok((address.to_canonical(), None)),
        (_, Ok(address)) => Ok((address.ip().to_canonical(), Some(address.port()))),
        _ => Err(format!(
            "\"{text}\" is not an IP address, with or without a port, such as 10.0.0.1, 10.0.0.1:5000 or [fd00::1]:5000"
        )),
    }
}

/// A user's or a group's number, 0 among them.
fn id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number from 0 to 4294967295"))
}

/// The name of a network device (`dev_valid_name` in net/core/dev.c).
fn device(text: &str) -> Result<Name, String> {
    let is_valid = (1..=15).contains(&text.len())
        && ![".", ".."].contains(&text)
        && !text.contains(|character: char| character == '/' || character == ':' || character.is_whitespace());
    if !is_valid {
        return Err(format!("\"{text}\" is not the name of a network device, such as eth0"));
    }
    Ok(Name::from(text))
}

/// A duration as linkerd-network-validator takes it: a whole number and a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let unit_at = trimmed.find(|character: char| !character.is_ascii_digit());
    let (number, unit) = trimmed.split_at(unit_at.unwrap_or(trimmed.len()));
    let number: Option<u64> = number.parse().ok();
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        "" if number == Some(0) => Some(0),
        _ => None,
    };
    let duration =
        number.zip(milliseconds).and_then(|(number, unit)| number.checked_mul(unit)).map(Duration::from_millis);
    duration.ok_or_else(|| format!("\"{text}\" is not a duration, such as 10s, 500ms or 2m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_validator() {
        for (text, want) in [
            ("0", 0),
            ("0ms", 0),
            ("0s", 0),
            ("0m", 0),
            ("500ms", 500),
            ("120s", 120_000),
            ("120000ms", 120_000),
            ("2m", 120_000),
            ("2h", 7_200_000),
            ("2d", 172_800_000),
            (" 10s ", 10_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(want)), "{text}");
        }
        for text in ["", "120", "s", "foobars", "18446744073709551615s", "-1s", ".5s", "1m30s", "1 s", "1x", "+5s"] {
            let error = duration(text).unwrap_err();
            assert!(error.starts_with(&format!("\"{text}\" is not a duration")), "{error}");
        }
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(address("[fd00::1]:20001").map(|it| it.is_ipv6()), Ok(true));
        assert_eq!(address("0.0.0.0:4140").map(|it| it.port()), Ok(4140));
        for text in ["", "4140", ":4140", "0.0.0.0", "localhost:80", "fd00::1:80", "1.2.3.4:65536"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
