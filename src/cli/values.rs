//! What a flag's value means. linkerd-init's flags are read as Go reads them. An error says what is wrong with the value
//! and reads on from the flag's name.

use std::str::FromStr;

use crate::log::{Format, Level};
use crate::operate::install::Simulate;
use crate::rules::config::{Family, Invalid, OwnerId, Port};
use crate::rules::mode::Choice;

/// Whom the output is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// People.
    #[default]
    Text,
    /// Programs.
    Json,
}

/// A port of the proxy; the words are linkerd-init's.
pub(super) fn proxy_port(text: &str) -> Result<Port, String> {
    integer(text)
        .and_then(|number| Port::new(u16::try_from(number).ok()?))
        .ok_or_else(|| format!("must be a valid TCP port number (1-65535), not \"{text}\""))
}

/// A user or group; -1 and 0 stand for none.
pub(super) fn owner(text: &str) -> Result<Option<OwnerId>, String> {
    match integer(text) {
        Some(-1 | 0) => Ok(None),
        number => number
            .and_then(|number| OwnerId::new(u32::try_from(number).ok()?))
            .map(Some)
            .ok_or_else(|| Invalid::OwnerId(text.to_owned()).to_string()),
    }
}

/// A number of seconds; 0 stands for none.
pub(super) fn seconds(text: &str) -> Result<Option<u32>, String> {
    match integer(text).map(i32::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(seconds @ 1..)) => Ok(Some(seconds.unsigned_abs())),
        _ => Err(format!(
            "\"{text}\" is not a number of seconds (1-2147483647, or 0 to leave the timeout as it is)"
        )),
    }
}

/// The items of a list. Blanks around items are ignored, and so are empty items.
pub(super) fn list<T: FromStr<Err = Invalid>>(text: &str) -> Result<Vec<T>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| item.parse().map_err(|error: Invalid| error.to_string()))
        .collect()
}

/// A list that has at least one item: an empty list would mean all ports, not none.
pub(super) fn ports_to_redirect(text: &str) -> Result<Vec<Port>, String> {
    let ports = list(text)?;
    if ports.is_empty() {
        return Err(format!(
            "\"{text}\" names no port: name at least one, or leave the flag out to redirect all ports"
        ));
    }
    Ok(ports)
}

/// A whole number as Go's flags read it: decimal, or with 0x, 0o (or just 0) or 0b in front (strconv.ParseInt with
/// base 0).
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if let Some(digits) = lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        (digits, 8)
    } else {
        (lower.as_str(), 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    Some(sign * i64::from_str_radix(digits, radix).ok()?)
}

/// A boolean as Go's flags read it (strconv.ParseBool).
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    boolean_word(text).ok_or_else(|| format!("\"{text}\" is not true or false"))
}

fn boolean_word(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A boolean, or the family to print.
pub(super) fn simulate(text: &str) -> Result<Option<Simulate>, String> {
    match (text, boolean_word(text)) {
        (_, Some(true)) => Ok(Some(Simulate::AllFamilies)),
        (_, Some(false)) => Ok(None),
        ("ipv4", _) => Ok(Some(Simulate::Only(Family::V4))),
        ("ipv6", _) => Ok(Some(Simulate::Only(Family::V6))),
        _ => Err(format!("\"{text}\" is not ipv4, ipv6, true or false")),
    }
}

/// A mode by name, none if it is empty; the words are linkerd-init's.
pub(super) fn mode(text: &str) -> Result<Option<Choice>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    Choice::from_name(text).map(Some).ok_or_else(|| {
        let names: Vec<_> = Choice::NAMED.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        format!("valid values are only {}, not \"{text}\"", names.join(", "))
    })
}

/// `--output`
pub(super) fn output(text: &str) -> Result<Output, String> {
    match text {
        "text" => Ok(Output::Text),
        "json" => Ok(Output::Json),
        _ => Err(format!("\"{text}\" is not a format: use text or json")),
    }
}

/// `--log-format`
pub(super) fn log_format(text: &str) -> Result<Format, String> {
    match text {
        "plain" => Ok(Format::Plain),
        "json" => Ok(Format::Json),
        _ => Err(format!("\"{text}\" is not a format: use plain or json")),
    }
}

/// logrus' levels; those that the log has no lines of mean the nearest one.
pub(super) fn log_level(text: &str) -> Result<Level, String> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok(Level::Error),
        "warn" | "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        "debug" | "trace" => Ok(Level::Debug),
        _ => Err(format!(
            "\"{text}\" is not a valid logrus Level (use error, warning, info or debug)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        // strconv.ParseInt(text, 0, 64)
        for (text, number) in [
            ("4143", Some(4143)),
            ("+7", Some(7)),
            ("-1", Some(-1)),
            ("0", Some(0)),
            ("0x102C", Some(4140)),
            ("0b101", Some(5)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("-0x10", Some(-16)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("08", None),
            ("", None),
            ("-", None),
            ("--1", None),
            ("-+1", None),
            ("0x", None),
            ("0x-1", None),
            (" 1", None),
            ("1.0", None),
        ] {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }

    #[test]
    fn the_ends_of_ranges_are_kept() {
        assert_eq!(proxy_port("65535"), Ok(Port::new(65535).unwrap()));
        assert!(proxy_port("0").is_err() && proxy_port("65536").is_err() && proxy_port("-1").is_err());
        assert_eq!(owner("4294967294"), Ok(OwnerId::new(4_294_967_294)));
        assert!(owner("4294967295").is_err() && owner("-2").is_err());
        assert_eq!((owner("0"), owner("-1")), (Ok(None), Ok(None)));
        assert_eq!(seconds("2147483647"), Ok(Some(i32::MAX.unsigned_abs())));
        assert!(seconds("2147483648").is_err() && seconds("-1").is_err());
        assert_eq!(seconds("0"), Ok(None));
    }

    #[test]
    fn words_mean_what_linkerd_init_means_by_them() {
        for (text, meaning) in [
            ("1", true),
            ("t", true),
            ("TRUE", true),
            ("0", false),
            ("F", false),
            ("False", false),
        ] {
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
        assert!(
            error.ends_with("\"legacy\", \"nft\", \"native\", \"auto\", \"plain\", not \"ebtables\""),
            "{error}"
        );
    }

    #[test]
    fn blanks_and_empty_items_of_a_list_do_not_count() {
        assert_eq!(list::<Port>(" 80 , ,443,"), ports_to_redirect("80,443"));
        assert_eq!(list::<Port>(" , "), Ok(vec![]));
        assert!(ports_to_redirect(" , ").is_err() && ports_to_redirect("").is_err());
        assert!(list::<Port>("80 443").is_err());
    }
}
