//! The subcommands that change nothing, with their flags, and the [`Question`] that arguments ask.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ruleset::{Direction, Name};

use crate::config::ModeChoice;
use crate::diagnose::explain::Expected;
use crate::diagnose::explain::answer::Connection;
use crate::diagnose::validate::Validate;
use crate::diagnose::{Colour, Output, Question};
use crate::flags::install::{
    BIN_PATH, LOG_FORMAT, LOG_LEVEL, MODE, NETNS, NO_FALLBACK, SAVE_BIN_PATH, install, named_mode, netns,
};
use crate::flags::values::{self, LOG_FORMATS, named};
use crate::flags::{Exit, FLAG, Flag, Given, SUBCOMMAND, Subcommand, ValueForm, Word};
use crate::log::Log;

pub static CHECK: Subcommand = Subcommand {
    name: "check",
    about: "Say what happens to each of the pod's ports, and what is wrong",
    details: "The first line is the summary. Then comes a line for each port on which something\n\
              listens, one for outbound connections, and each finding with its cure, under a\n\
              code that docs/debugging.md explains. It looks at the rules as verify does\n\
              without flags, and follows connections as explain does, from the proxy on too. It\n\
              makes no connection and changes nothing.",
    flags: || vec![NETNS, OUTPUT_WITH_SHORT, COLOUR],
    examples: &[
        ("proxy-init check", "check the pod in whose network namespace this runs"),
        ("proxy-init check --netns /proc/4321/ns/net --output short", "print the summary for another one"),
    ],
    exits: &[
        (Exit::Done, "connections go as the rules mean"),
        (Exit::Failed, "it is not known, or the rules cannot be read"),
        (Exit::BadInput, Exit::BAD_INPUT),
        (Exit::Differs, "connections are lost, or pass by the proxy unasked"),
    ],
    ..SUBCOMMAND
};

pub static SHOW: Subcommand = Subcommand {
    name: "show",
    about: "Show the rules that redirect connections, with packet counts",
    details: "It lists proxy-init's rules in every mode, and the rules of other programs that\n\
              run before them, in the order in which the kernel runs them: what each matches\n\
              and does, and what it has counted. Last come the flags that install the same.\n\
              It needs none of the flags that the rules were installed with. It changes\n\
              nothing, starts no process, and says what it cannot see. It prints colours only\n\
              on a terminal outside pods, unless NO_COLOR or --color says otherwise.",
    flags: || vec![NETNS, OUTPUT, COLOUR],
    examples: &[
        ("proxy-init show", "show what redirects connections in this namespace"),
        ("proxy-init show --netns /var/run/netns/pod --output json", "report on another namespace to a program"),
    ],
    exits: &[
        (Exit::Done, "shown, even if there are no rules"),
        (Exit::Failed, "the rules cannot be read, or not all that may hold them"),
        (Exit::BadInput, Exit::BAD_INPUT),
    ],
    ..SUBCOMMAND
};

pub static EXPLAIN: Subcommand = Subcommand {
    name: "explain",
    about: "Say whether a connection would go to the proxy, and by which rule",
    details: "It follows the connection's first packet, the reply and the ACK after it through\n\
              all chains of nf_tables and of legacy tables that the kernel runs, whichever\n\
              program made them, in the kernel's order; before them, where neighbours have to\n\
              find each other, the packets for that. The first line is the answer; then come\n\
              the rule that says so and each rule that was looked at, with why it did not\n\
              match. It makes no connection and changes nothing.\n\n\
              The kernel's routing gives an outbound connection its device and its source\n\
              address. Without --uid and --gid it is one from any user except the proxy's,\n\
              and without a source port one from those that the kernel gives. If the answer\n\
              depends on what was not given, or is not understood, it is \"not known\", with\n\
              the reason.",
    word: Some(Word {
        placeholder: "DIRECTION",
        words: || Direction::ALL.map(Direction::name).to_vec(),
        missing: Some(
            "explain needs a direction, inbound or outbound, as in proxy-init explain outbound --to 10.0.0.1:80",
        ),
        help: "inbound: a connection to this namespace;\n\
               outbound: one that a process in it makes",
    }),
    flags: || [NETNS, OUTPUT_WITH_SHORT, COLOUR].into_iter().chain(CONNECTING).collect(),
    examples: &[
        (
            "proxy-init explain outbound --to 10.96.0.10:443",
            "say what becomes of the application's connection to that address",
        ),
        ("proxy-init explain outbound --to 10.96.0.10:443 --output short", "print that answer alone, on one line"),
        (
            "proxy-init explain inbound --to 10.1.2.3:8080 --expect proxy",
            "exit 3 unless connections to that port of the pod go to the proxy",
        ),
    ],
    exits: &[
        (Exit::Done, "answered, and if --expect was given, as expected"),
        (Exit::Failed, "the rules cannot be read, or there is no route for the connection"),
        (Exit::BadInput, Exit::BAD_INPUT),
        (Exit::Differs, "the answer is not the one that --expect names"),
    ],
    ..SUBCOMMAND
};

pub static VERIFY: Subcommand = Subcommand {
    name: "verify",
    about: "Compare the rules with what the same flags would install",
    details: "It takes the flags that say which rules should be there and where to look for\n\
              them. Without any flag about rules, it checks whether what is installed is one\n\
              complete, untouched installation, whatever its flags were, and prints those.\n\
              With any of them, -p and -o are needed as well. Flags that only steer an\n\
              installation are refused. Where no mode is named, it checks the backend that\n\
              holds proxy-init's rules, or else the one that an installation would choose. It\n\
              exits 0 if they match, 3 if they differ, and prints the difference.",
    usages: &[
        "proxy-init verify [--netns PATH] [--iptables-mode MODE] [--output FORMAT]",
        "proxy-init verify -p PORT -o PORT [OPTIONS]",
    ],
    flags: || {
        let rules = Flag::about_rules().map(|flag| Flag { is_required: false, ..flag });
        rules.chain([MODE, NO_FALLBACK, NETNS, BIN_PATH, SAVE_BIN_PATH, OUTPUT, COLOUR, STRICT]).collect()
    },
    examples: &[
        ("proxy-init verify", "check that what is installed is complete and untouched"),
        ("proxy-init verify -p 4143 -o 4140 -u 2102", "compare, and print any difference"),
        (
            "proxy-init verify --netns /var/run/netns/pod --output json \\\n    \
             -p 4143 -o 4140 -u 2102",
            "compare another namespace's rules, for a program",
        ),
    ],
    exits: &[
        (Exit::Done, "the rules are in place"),
        (Exit::Failed, "the rules cannot be read, or not all that may hold them"),
        (Exit::BadInput, Exit::BAD_INPUT),
        (Exit::Differs, "the rules differ from what the flags describe, or connections are lost"),
    ],
    ..SUBCOMMAND
};

pub static DETECT: Subcommand = Subcommand {
    name: "detect",
    about: "Show what the kernel supports, and what auto mode would choose",
    details: "It changes nothing: what the kernel supports is found with transactions that are\n\
              never committed. It reports what it cannot read without privileges.",
    flags: || vec![NETNS, OUTPUT, COLOUR],
    examples: &[
        ("proxy-init detect", "say what fits this node, and why"),
        ("proxy-init detect --output json", "report to a program"),
    ],
    exits: &[
        (Exit::Done, "reported"),
        (Exit::Failed, "the namespace cannot be entered"),
        (Exit::BadInput, Exit::BAD_INPUT),
    ],
    ..SUBCOMMAND
};

pub static VALIDATE: Subcommand = Subcommand {
    name: "validate",
    about: "Make a connection, and see whether it comes to the proxy's port",
    details: "It does what linkerd-network-validator does, with its flags: it listens where\n\
              the proxy will, connects to an address that no host needs to have, and expects\n\
              its own answer, a random token. It changes nothing, needs no privileges, and has\n\
              to run as another user than the proxy's. If it may read the rules, which takes\n\
              CAP_NET_ADMIN, it says why a connection did not arrive.\n\n\
              A program of the name linkerd2-network-validator, a link or a copy, takes these\n\
              flags directly. Where --log-format or --log-level is missing, the environment\n\
              has it in LINKERD_NETWORK_VALIDATOR_LOG_FORMAT or ..._LOG_LEVEL.",
    has_version: true,
    flags: || VALIDATING.to_vec(),
    examples: &[(
        "proxy-init validate --connect-addr '[fd00::1]:20001' --listen-addr '[::]:4140'",
        "validate the rules for IPv6",
    )],
    exits: &[
        (Exit::Done, "validated: the connection came to the proxy's port"),
        (Exit::BadInput, "the command line is invalid"),
        (Exit::NotValidated, "the connection did not arrive, or a signal ended the run"),
    ],
    ..SUBCOMMAND
};

const OUTPUT: Flag = Flag {
    name: "output",
    placeholder: "FORMAT",
    words: || vec!["text", "json"],
    heading: "Output",
    help: "text for people, short for one line of check or explain, or json for\n\
           programs, errors included [default: text]",
    ..FLAG
};

const COLOUR: Flag = Flag {
    name: "color",
    placeholder: "WHEN",
    words: || COLOURS.map(|(name, _)| name).to_vec(),
    heading: OUTPUT.heading,
    help: "auto, always or never; auto is on a terminal outside pods\n\
           [default: auto]",
    ..FLAG
};

const STRICT: Flag = Flag {
    name: "strict",
    form: ValueForm::Switch,
    placeholder: "BOOL",
    heading: OUTPUT.heading,
    help: "Exit 3 if there is any warning",
    ..FLAG
};

const OUTPUT_WITH_SHORT: Flag = Flag { words: || OUTPUTS.map(|(name, _)| name).to_vec(), ..OUTPUT };

const CONNECTION: Flag = Flag { heading: "Connection", ..FLAG };

const CONNECTING: [Flag; 7] = [
    Flag {
        name: "to",
        placeholder: "ADDRESS:PORT",
        is_required: true,
        help: "Where the connection goes, e.g. 10.0.0.1:80 or [fd00::1]:80;\n\
               :8080 is the pod's own address",
        ..CONNECTION
    },
    Flag {
        name: "from",
        placeholder: "ADDRESS[:PORT]",
        help: "Where it comes from, e.g. 10.0.0.2 or [fd00::2]:40000\n\
               [default: inbound, any address; outbound, the one that routing\n\
               chooses]",
        ..CONNECTION
    },
    Flag {
        name: "in",
        placeholder: "INTERFACE",
        help: "By which interface an inbound connection comes in\n\
               [default: any but lo]",
        ..CONNECTION
    },
    Flag {
        name: "out",
        placeholder: "INTERFACE",
        help: "The interface to which an outbound connection's socket is bound\n\
               [default: none; routing says by which one it leaves]",
        ..CONNECTION
    },
    Flag {
        name: "uid",
        form: ValueForm::Number,
        placeholder: "UID",
        help: "User id of the process that makes an outbound connection\n\
               [default: any but the proxy's]",
        ..CONNECTION
    },
    Flag {
        name: "gid",
        form: ValueForm::Number,
        placeholder: "GID",
        help: "Group id of that process [default: any but the proxy's]",
        ..CONNECTION
    },
    Flag {
        name: "expect",
        placeholder: "ANSWER",
        words: || EXPECTED.map(|(name, _)| name).to_vec(),
        heading: OUTPUT.heading,
        help: "Exit 3 if the answer is another: proxy or bypass",
        ..FLAG
    },
];

const VALIDATING: [Flag; 5] = [
    Flag {
        name: "listen-addr",
        placeholder: "ADDRESS",
        help: "Where the proxy listens for outbound connections\n\
               [default: 0.0.0.0:4140]",
        ..CONNECTION
    },
    Flag {
        name: "connect-addr",
        placeholder: "ADDRESS",
        help: "Where to connect to; it needs a route, but no host\n\
               [default: 192.0.2.2:1404]",
        ..CONNECTION
    },
    Flag {
        name: "timeout",
        placeholder: "DURATION",
        help: "How long the connection may take, e.g. 500ms or 2m [default: 10s]",
        ..CONNECTION
    },
    Flag { variable: Some("LINKERD_NETWORK_VALIDATOR_LOG_FORMAT"), ..LOG_FORMAT },
    Flag { variable: Some("LINKERD_NETWORK_VALIDATOR_LOG_LEVEL"), ..LOG_LEVEL },
];

pub fn check(given: &Given<'_>) -> Result<Question, String> {
    Ok(Question::Check { netns: netns(given)? })
}

pub fn show(given: &Given<'_>) -> Result<Question, String> {
    Ok(Question::Show { netns: netns(given)? })
}

pub fn detect(given: &Given<'_>) -> Result<Question, String> {
    Ok(Question::Detect { netns: netns(given)? })
}

pub fn explain(given: &Given<'_>) -> Result<Question, String> {
    let expected = given.value("expect", |text| named(text, &EXPECTED))?;
    Ok(Question::Explain { netns: netns(given)?, connection: connection(given)?, expected })
}

/// Without flags about rules, nothing is compared with them, and the environment doesn't count: it says how to install, not
/// what is asked.
pub fn verify(given: &Given<'_>) -> Result<Question, String> {
    let is_strict = given.is_on(STRICT.name)?;
    if given.values.iter().any(|(name, _)| Flag::about_rules().any(|flag| flag.name == *name)) {
        return Ok(Question::Verify { install: Box::new(install(given)?), is_strict });
    }
    let given = Given { environment: &|_| None, ..given.clone() };
    given.is_on(NO_FALLBACK.name)?;
    let mode = match named_mode(&given)? {
        Some(ModeChoice::Mode(mode)) => Some(mode),
        _ => None,
    };
    Ok(Question::Recognize { netns: netns(&given)?, mode, is_strict })
}

pub fn validate(given: &Given<'_>) -> Result<Validate, String> {
    let default = Validate::default();
    Ok(Validate {
        listen: given.value("listen-addr", address)?.unwrap_or(default.listen),
        connect: given.value("connect-addr", address)?.unwrap_or(default.connect),
        timeout: given.value("timeout", duration)?.unwrap_or(default.timeout),
    })
}

/// The log of a validation. linkerd-network-validator refuses an unknown format, and takes any word for a level.
pub fn log(given: &Given<'_>) -> Result<Log, String> {
    let format = given.value(LOG_FORMAT.name, |text| named(text, &LOG_FORMATS))?;
    let level = given.value(LOG_LEVEL.name, |text| Ok(values::log_level(text).unwrap_or_default()))?;
    Ok(Log::new(format.unwrap_or_default(), level.unwrap_or_default()))
}

/// The connection of `explain`.
fn connection(given: &Given<'_>) -> Result<Connection, String> {
    let direction = if given.word == Direction::Inbound.name() { Direction::Inbound } else { Direction::Outbound };
    let to = given.value("to", destination)?;
    let (from, from_port) = given.value("from", source)?.unzip();
    let (in_device, out_device) = (given.value("in", device)?, given.value("out", device)?);
    let (uid, gid) = (given.value("uid", id)?, given.value("gid", id)?);
    let to = to.ok_or("--to is required: where the connection goes, as in --to 10.0.0.1:80")?;
    if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err("--from and --to must be both IPv4 or both IPv6".to_owned());
    }
    let device = match (direction, in_device, out_device) {
        (Direction::Inbound, device, None) => device,
        (Direction::Outbound, None, device) => device,
        (Direction::Inbound, _, Some(_)) => return Err("--out is for outbound connections: use --in".to_owned()),
        (Direction::Outbound, Some(_), _) => return Err("--in is for inbound connections: use --out".to_owned()),
    };
    if direction == Direction::Inbound {
        if uid.or(gid).is_some() {
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
    Ok(Connection { from, from_port: from_port.flatten(), uid, gid, device, ..Connection::new(direction, to) })
}

const EXPECTED: [(&str, Expected); 2] = [("proxy", Expected::Proxy), ("bypass", Expected::Bypass)];

const OUTPUTS: [(&str, Output); 3] = [("text", Output::Text), ("short", Output::Short), ("json", Output::Json)];

const COLOURS: [(&str, Colour); 3] = [("auto", Colour::Auto), ("always", Colour::Always), ("never", Colour::Never)];

pub fn colour(given: &Given<'_>) -> Result<Colour, String> {
    let read = |text: &str| named(text, &COLOURS).map_err(|_| format!("must be auto, always or never, not \"{text}\""));
    Ok(given.value(COLOUR.name, read)?.unwrap_or_default())
}

pub fn output(given: &Given<'_>) -> Result<Output, String> {
    let read = |text: &str| {
        named(text, &OUTPUTS)
            .map_err(|_| format!("must be text or json, or short for check and explain, not \"{text}\""))
    };
    let output = given.value(OUTPUT.name, read)?.unwrap_or_default();
    if output == Output::Short && ![CHECK.name, EXPLAIN.name].contains(&given.subcommand.name) {
        return Err("--output short is for check and explain: use text or json".to_owned());
    }
    Ok(output)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is not an IP address with a port, such as 192.0.2.2:1404 or [fd00::1]:20001"))
}

/// An IP address with a port, where an IPv4 address that is mapped into IPv6 is that IPv4 address. `:PORT` is the pod's own
/// first address, which the unspecified address stands for.
fn destination(text: &str) -> Result<SocketAddr, String> {
    without_scope(text)?;
    if let Some(Ok(port)) = text.strip_prefix(':').map(str::parse) {
        return Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    }
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
