//! What the kernel holds: everything in one network namespace that decides where a TCP connection goes, as plain data.
//!
//! The same vocabulary says what a backend would install, so that [`difference`](crate::findings::difference) compares
//! like with like, and [`walk`](crate::walk) takes a connection through either.

mod device;
mod line;
mod listener;
mod ours;

pub use self::device::Device;
pub use self::line::Line;
pub use self::listener::Listener;
use crate::rules::{Subsystem, Table, TableFamily};

/// Everything in a network namespace that decides where a TCP connection goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The tables of nf_tables, in the order in which they were made, then the legacy tables.
    pub tables: Vec<Table>,
    /// What could not be seen. What is missing from `tables` may be there all the same.
    pub not_known: Vec<Unseen>,
}

/// Something that could not be seen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// What could not be seen.
    pub subsystem: Subsystem,
    /// The process lacks the privilege to see it.
    pub not_permitted: bool,
    /// Why, for people.
    pub reason: String,
}

impl Found {
    /// The tables of a subsystem.
    pub fn tables_of(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(move |table| table.subsystem == subsystem)
    }

    /// The table of this name.
    pub fn table(&self, subsystem: Subsystem, family: TableFamily, name: &str) -> Option<&Table> {
        self.tables_of(subsystem)
            .find(|table| table.family == family && table.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::examples::{chain, ports, table};
    use crate::rules::{Family, Name};

    #[test]
    fn a_table_is_found_by_all_of_its_name() {
        let mut nat = table("ip nat", vec![chain("A", vec![]), chain("B", vec![])]);
        nat.sets = vec![ports("a", &[]), ports("b", &[(1, 2)])];
        assert_eq!(nat.chain(&Name::from("B")), Some(&nat.chains[1]));
        assert_eq!(nat.chain(&Name::from("b")), None);
        assert_eq!(nat.set(&Name::from("b")), Some(&nat.sets[1]));
        assert_eq!(nat.set(&Name::from("B")), None);

        let names = ["legacy ip nat", "ip filter", "ip6 nat", "ip nat", "inet nat"];
        let found = Found {
            tables: names.map(|name| table(name, vec![])).into(),
            not_known: vec![],
        };
        let v4 = TableFamily::Ip(Family::V4);
        for (subsystem, family, name, want) in [
            (Subsystem::NfTables, v4, "nat", Some("ip nat")),
            (Subsystem::NfTables, TableFamily::Ip(Family::V6), "nat", Some("ip6 nat")),
            (Subsystem::NfTables, TableFamily::Inet, "nat", Some("inet nat")),
            (Subsystem::NfTables, TableFamily::Inet, "filter", None),
            (Subsystem::Legacy, v4, "nat", Some("legacy ip nat")),
            (Subsystem::Legacy, v4, "filter", None),
        ] {
            let got = found.table(subsystem, family, name).map(ToString::to_string);
            assert_eq!(got.as_deref(), want);
        }
        assert_eq!(found.tables_of(Subsystem::NfTables).count(), 4);
        assert_eq!(found.tables_of(Subsystem::Legacy).count(), 1);
    }
}
