//! The backends by name, and how to choose one.

use std::fmt;

/// A backend, as `--iptables-mode` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// xtables-compatible nat chains in nf_tables.
    Nft,
    /// ip_tables, by way of iptables-legacy-restore.
    Legacy,
    /// One inet table with sets in nf_tables.
    Native,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nft => "nft",
            Mode::Legacy => "legacy",
            Mode::Native => "native",
        })
    }
}

/// What `--iptables-mode` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Nobody said: linkerd-init's default, legacy.
    Default,
    /// This backend.
    Mode(Mode),
    /// What `iptables-restore` on PATH is.
    Plain,
    /// What fits the kernel and the namespace.
    Auto,
}

impl Choice {
    /// Every choice that can be named, by its name.
    pub const NAMED: [(&str, Choice); 5] = [
        ("legacy", Choice::Mode(Mode::Legacy)),
        ("nft", Choice::Mode(Mode::Nft)),
        ("native", Choice::Mode(Mode::Native)),
        ("auto", Choice::Auto),
        ("plain", Choice::Plain),
    ];

    /// Its name, as `--iptables-mode` takes it; the default has none.
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED
            .iter()
            .find_map(|&(name, choice)| (choice == self).then_some(name))
    }

    /// The choice of this name. Linkerd's documentation calls legacy mode `iptables`, so that is understood too.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "iptables" { "legacy" } else { name };
        Self::NAMED
            .iter()
            .find_map(|&(own, choice)| (own == name).then_some(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for (name, choice) in Choice::NAMED {
            assert_eq!(Choice::from_name(name), Some(choice));
            assert_eq!(choice.name(), Some(name));
            if let Choice::Mode(mode) = choice {
                assert_eq!(mode.to_string(), name);
            }
        }
        assert_eq!(Choice::Default.name(), None);
        assert_eq!(Choice::from_name("iptables"), Some(Choice::Mode(Mode::Legacy)));
        assert_eq!(Choice::from_name("default"), None);
    }
}
