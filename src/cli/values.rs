//! What a flag's value means. linkerd-init's flags are read as Go reads them. An error reads on from the flag's name.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ruleset::{Family, Name};

use super::subcommand::Subcommand;
use crate::config::ModeChoice;
use crate::config::settings;
use crate::diagnose::explain::answer::Verdict;
use crate::install::Simulate;
use crate::log::{Format, Level};

/// Whether the output is for people, scripts or programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    #[default]
    Text,
    /// `explain` prints the answer alone, on one line.
    Short,
    Json,
}

impl Output {
    pub(super) fn named(subcommand: Subcommand) -> Vec<(&'static str, Self)> {
        let mut named = vec![("text", Self::Text), ("short", Self::Short), ("json", Self::Json)];
        named.retain(|(_, output)| *output != Self::Short || subcommand == Subcommand::Explain);
        named
    }
}

pub(super) fn output(text: &str, subcommand: Subcommand) -> Result<Output, String> {
    named(text, &Output::named(subcommand)).map_err(|error| match text {
        "short" => "short is for explain: use text or json".to_owned(),
        _ => error,
    })
}

pub(super) const LOG_FORMATS: [(&str, Format); 2] = [("plain", Format::Plain), ("json", Format::Json)];

/// A number of seconds; 0 stands for none.
pub(super) fn seconds(text: &str) -> Result<Option<u32>, String> {
    match settings::integer(text).map(i32::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(seconds @ 1..)) => Ok(Some(seconds.unsigned_abs())),
        _ => Err(format!("\"{text}\" is not a number of seconds (1-2147483647, or 0 to leave the timeout as it is)")),
    }
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    settings::boolean(text).map_err(|invalid| invalid.to_string())
}

pub(super) fn simulate(text: &str) -> Result<Option<Simulate>, String> {
    match (text, boolean(text)) {
        ("ipv4", _) => Ok(Some(Simulate::Only(Family::V4))),
        ("ipv6", _) => Ok(Some(Simulate::Only(Family::V6))),
        (_, Ok(is_asked)) => Ok(is_asked.then_some(Simulate::AllFamilies)),
        (_, Err(_)) => Err(not_one_of(text, &["ipv4", "ipv6", "true", "false"].map(|name| (name, ())))),
    }
}

pub(super) fn mode(text: &str) -> Result<Option<ModeChoice>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    ModeChoice::from_name(text).map(Some).ok_or_else(|| not_one_of(text, ModeChoice::NAMED))
}

pub(super) fn named<T: Copy>(text: &str, named: &[(&str, T)]) -> Result<T, String> {
    if let Some(&(_, value)) = named.iter().find(|(name, _)| *name == text) {
        return Ok(value);
    }
    Err(not_one_of(text, named))
}

fn not_one_of<T>(text: &str, named: &[(&str, T)]) -> String {
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    format!("must be one of {}, not \"{text}\"", names.join(", "))
}

/// The levels of logrus and of Rust's tracing; those that the log has no lines of mean the nearest one.
pub(super) fn log_level(text: &str) -> Result<Level, String> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" | "off" => Ok(Level::Error),
        "warn" | "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        "debug" | "trace" => Ok(Level::Debug),
        _ => Err(format!("\"{text}\" is not a valid logrus Level (use error, warning, info or debug)")),
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("\"{text}\" is not an IP address with a port, such as 192.0.2.2:1404 or [fd00::1]:20001"))
}

/// An IP address with a port, where an IPv4 address that is mapped into IPv6 is that IPv4 address.
pub(super) fn destination(text: &str) -> Result<SocketAddr, String> {
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

pub(super) fn source(text: &str) -> Result<(IpAddr, Option<u16>), String> {
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
pub(super) fn id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number from 0 to 4294967295"))
}

/// The name of a network device (`dev_valid_name` in net/core/dev.c).
pub(super) fn device(text: &str) -> Result<Name, String> {
    let is_valid = (1..=15).contains(&text.len())
        && ![".", ".."].contains(&text)
        && !text.contains(|character: char| character == '/' || character == ':' || character.is_whitespace());
    if !is_valid {
        return Err(format!("\"{text}\" is not the name of a network device, such as eth0"));
    }
    Ok(Name::from(text))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Proxy,
    Bypass,
}

impl Expected {
    pub(super) const NAMED: [(&str, Self); 2] = [("proxy", Self::Proxy), ("bypass", Self::Bypass)];

    pub fn is(self, verdict: &Verdict) -> bool {
        match self {
            Self::Proxy => matches!(verdict, Verdict::Proxy(_)),
            Self::Bypass => *verdict == Verdict::Bypass,
        }
    }
}

/// A duration as linkerd-network-validator takes it: a whole number and a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
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

    #[test]
    fn seconds_are_those_of_the_kernel() {
        assert_eq!(seconds("2147483647"), Ok(Some(i32::MAX.unsigned_abs())));
        assert!(seconds("2147483648").is_err() && seconds("-1").is_err());
        assert_eq!(seconds("0"), Ok(None));
    }

    #[test]
    fn words_mean_what_linkerd_init_means_by_them() {
        for (text, meaning) in [("1", true), ("t", true), ("TRUE", true), ("0", false), ("F", false), ("False", false)]
        {
            assert_eq!(boolean(text), Ok(meaning));
            assert_eq!(simulate(text).map(|it| it.is_some()), Ok(meaning));
        }
        assert!(boolean("yes").is_err() && boolean("").is_err() && simulate("").is_err());
        assert_eq!(simulate("ipv6"), Ok(Some(Simulate::Only(Family::V6))));
        assert_eq!(log_level("Fatal"), Ok(Level::Error));
        assert_eq!(log_level("WARN"), Ok(Level::Warning));
        assert_eq!(log_level("trace"), Ok(Level::Debug));
        assert_eq!(mode(""), Ok(None));
        assert_eq!(mode("iptables"), mode("legacy"));
        let error = mode("ebtables").unwrap_err();
        assert!(error.ends_with("must be one of legacy, nft, native, auto, plain, not \"ebtables\""), "{error}");
    }
}
