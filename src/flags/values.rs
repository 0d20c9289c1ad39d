//! Reads flags' values. linkerd-init's flags are read as Go reads them. An error reads on from the flag's name.

use ruleset::Family;

use crate::config::ModeChoice;
use crate::config::settings;
use crate::install::Simulate;
use crate::log::{Format, Level};

pub(crate) const LOG_FORMATS: [(&str, Format); 2] = [("plain", Format::Plain), ("json", Format::Json)];

/// A number of seconds; 0 stands for none.
pub(crate) fn seconds(text: &str) -> Result<Option<u32>, String> {
    match settings::integer(text).map(i32::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(seconds @ 1..)) => Ok(Some(seconds.unsigned_abs())),
        _ => Err(format!("\"{text}\" is not a number of seconds (1-2147483647, or 0 to leave the timeout as it is)")),
    }
}

pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    settings::boolean(text).map_err(|invalid| invalid.to_string())
}

pub(crate) fn simulate(text: &str) -> Result<Option<Simulate>, String> {
    let [v4, v6] = Family::ALL.map(|family| Some(Simulate::Only(family)));
    boolean(text)
        .map(|is_asked| is_asked.then_some(Simulate::AllFamilies))
        .or_else(|_| named(text, &[("ipv4", v4), ("ipv6", v6), ("true", Some(Simulate::AllFamilies)), ("false", None)]))
}

pub(crate) fn mode(text: &str) -> Result<Option<ModeChoice>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    ModeChoice::from_name(text).map(Some).ok_or_else(|| not_one_of(text, ModeChoice::NAMED))
}

pub(crate) fn named<T: Copy>(text: &str, named: &[(&str, T)]) -> Result<T, String> {
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
pub(crate) fn log_level(text: &str) -> Result<Level, String> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" | "off" => Ok(Level::Error),
        "warn" | "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        "debug" | "trace" => Ok(Level::Debug),
        _ => Err(format!("\"{text}\" is not a valid logrus Level (use error, warning, info or debug)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
