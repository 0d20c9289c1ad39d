//! The modes by name, and how to choose one.

use std::fmt;
use std::str::FromStr;

use crate::rules::config::Invalid;

/// A backend, as `--iptables-mode` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// xtables-compatible nat chains in nf_tables.
    Nft,
    /// ip_tables, by way of iptables-legacy-restore.
    Legacy,
    /// One inet table with sets in nf_tables.
    Native,
}

impl Mode {
    /// All of them.
    const ALL: [Self; 3] = [Self::Nft, Self::Legacy, Self::Native];

    fn as_str(self) -> &'static str {
        match self {
            Mode::Nft => "nft",
            Mode::Legacy => "legacy",
            Mode::Native => "native",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| Invalid::Mode(text.to_owned()))
    }
}

/// What `--iptables-mode` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// None was named: linkerd-init's default, legacy.
    Default,
    /// This mode.
    Mode(Mode),
    /// What `iptables-restore` on PATH is.
    Plain,
    /// What fits the kernel and the namespace.
    Auto,
}

/// As [`FromStr`] reads it; [`Choice::Default`] is `default`.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Default => f.write_str("default"),
            Choice::Mode(mode) => mode.fmt(f),
            Choice::Plain => f.write_str("plain"),
            Choice::Auto => f.write_str("auto"),
        }
    }
}

/// The name of a mode, `plain`, `auto`, `default`, or `iptables`, which is what Linkerd's documentation calls legacy.
impl FromStr for Choice {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "default" => Ok(Choice::Default),
            "plain" => Ok(Choice::Plain),
            "auto" => Ok(Choice::Auto),
            "iptables" => Ok(Choice::Mode(Mode::Legacy)),
            mode => mode
                .parse()
                .map(Choice::Mode)
                .map_err(|_| Invalid::Choice(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_is_read_again() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(Choice::Mode(mode).to_string().parse(), Ok(Choice::Mode(mode)));
        }
        for choice in [Choice::Default, Choice::Plain, Choice::Auto] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("iptables".parse(), Ok(Choice::Mode(Mode::Legacy)));
    }

    #[test]
    fn what_is_no_mode_is_named() {
        for text in ["", "NFT", "nft ", "auto"] {
            assert_eq!(text.parse::<Mode>(), Err(Invalid::Mode(text.to_owned())));
        }
        let error = "nftables".parse::<Choice>().unwrap_err().to_string();
        assert!(error.contains("\"nftables\"") && error.contains("auto"), "{error}");
    }
}
