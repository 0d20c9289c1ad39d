//! The modes by name, and how to choose one.

use derive_more::Display;
use ruleset::{Family, NAT, Subsystem, Table, TableFamily};

/// The table in which native mode keeps the rules of both families.
pub const NATIVE: &str = "proxy-init";

/// A backend, as `--iptables-mode` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[non_exhaustive]
#[display("{}", self.as_str())]
pub enum Mode {
    /// xtables-compatible nat chains in nf_tables.
    Nft,
    /// ip_tables, by way of iptables-legacy-restore.
    Legacy,
    /// One inet table with sets in nf_tables.
    Native,
}

impl Mode {
    /// Every mode.
    pub const ALL: &'static [Self] = &[Self::Nft, Self::Native, Self::Legacy];

    /// The iptables command that shows a family's rules in this mode. None shows native mode's rules; for those, this is the
    /// command that would make corresponding rules.
    pub fn iptables(self, family: Family) -> String {
        let variant = match self {
            Mode::Nft => "-nft",
            Mode::Legacy => "-legacy",
            Mode::Native => "",
        };
        format!("{}{variant}", family.iptables())
    }

    /// The mode to fall back to where this one can't be used: nft mode needs no iptables, native mode no xtables.
    pub(crate) fn fallback(self) -> Option<Self> {
        match self {
            Mode::Legacy => Some(Mode::Nft),
            Mode::Nft => Some(Mode::Native),
            Mode::Native => None,
        }
    }

    /// The subsystem that holds the mode's rules.
    pub fn subsystem(self) -> Subsystem {
        match self {
            Mode::Nft | Mode::Native => Subsystem::NfTables,
            Mode::Legacy => Subsystem::Legacy,
        }
    }

    /// The table that holds the mode's rules for packets of a family, if it is among these.
    pub(crate) fn table_among<R>(self, tables: &[Table<R>], family: Family) -> Option<&Table<R>> {
        let (family, name) = self.table(family);
        let mut tables = tables.iter().filter(|table| table.subsystem == self.subsystem());
        tables.find(|table| table.family == family && table.name == *name)
    }

    /// The family and the name of the table that holds the mode's rules for packets of a family.
    pub(crate) fn table(self, family: Family) -> (TableFamily, &'static str) {
        match self {
            Mode::Native => (TableFamily::Inet, NATIVE),
            Mode::Nft | Mode::Legacy => (TableFamily::Ip(family), NAT),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Mode::Nft => "nft",
            Mode::Legacy => "legacy",
            Mode::Native => "native",
        }
    }
}

/// The request of `--iptables-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[non_exhaustive]
#[display("{}", self.name().unwrap_or("default"))]
pub enum ModeChoice {
    /// No mode was named, so it is linkerd-init's default, legacy.
    Default,
    /// This mode.
    Mode(Mode),
    /// Legacy or nft, whichever `iptables-restore` on PATH works with.
    Plain,
    /// The mode that fits the kernel and the namespace's content.
    Auto,
}

impl ModeChoice {
    /// The flag that names it, without dashes.
    pub const FLAG: &'static str = "iptables-mode";

    /// Every choice that can be named, by its name.
    pub const NAMED: &'static [(&'static str, Self)] = &[
        (Mode::Legacy.as_str(), ModeChoice::Mode(Mode::Legacy)),
        (Mode::Nft.as_str(), ModeChoice::Mode(Mode::Nft)),
        (Mode::Native.as_str(), ModeChoice::Mode(Mode::Native)),
        ("auto", ModeChoice::Auto),
        ("plain", ModeChoice::Plain),
    ];

    /// Its name, as `--iptables-mode` takes it; the default has none.
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().find_map(|&(name, choice)| (choice == self).then_some(name))
    }

    /// The choice of this name. Linkerd's documentation calls legacy mode `iptables`, so that name is accepted too.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "iptables" { "legacy" } else { name };
        Self::NAMED.iter().find_map(|&(own, choice)| (own == name).then_some(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for &(name, choice) in ModeChoice::NAMED {
            assert_eq!(ModeChoice::from_name(name), Some(choice));
            assert_eq!(choice.name(), Some(name));
            if let ModeChoice::Mode(mode) = choice {
                assert_eq!(mode.to_string(), name);
            }
        }
        assert_eq!(ModeChoice::Default.name(), None);
        assert_eq!(ModeChoice::from_name("iptables"), Some(ModeChoice::Mode(Mode::Legacy)));
        assert_eq!(ModeChoice::from_name("default"), None);
    }

    #[test]
    fn each_mode_has_its_iptables() {
        for (mode, commands) in [
            (Mode::Nft, ["iptables-nft", "ip6tables-nft"]),
            (Mode::Legacy, ["iptables-legacy", "ip6tables-legacy"]),
            (Mode::Native, ["iptables", "ip6tables"]),
        ] {
            assert_eq!(Family::ALL.map(|family| mode.iptables(family)), commands);
        }
        assert_eq!(ModeChoice::Default.to_string(), "default");
    }
}
