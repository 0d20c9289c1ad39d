//! All tables of a network namespace, and the subsystems that couldn't be read.

use crate::{Condition, Context, NAT, Rule, Subsystem, Table, TableFamily};

/// The tables of a network namespace that decide where a TCP connection goes; neither routes nor BPF programs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset<R = Rule> {
    /// The tables of nf_tables, in the order in which they were made, then the legacy tables.
    pub tables: Vec<Table<R>>,
    /// The parts that could not be seen, and may hold more tables.
    pub not_known: Vec<Unseen>,
}

/// A part that could not be seen, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unseen {
    pub subsystem: Subsystem,
    /// The process lacks the privilege to see it.
    pub not_permitted: bool,
    pub reason: String,
}

impl Ruleset {
    /// The contexts on which conditions depend.
    pub fn contexts(&self) -> impl Iterator<Item = &Context> {
        let conditions = self.tables.iter().flat_map(Table::rules).flat_map(Rule::all_conditions);
        conditions.filter_map(|condition| match condition {
            Condition::Context(context) => Some(context),
            _ => None,
        })
    }
}

impl<R> Ruleset<R> {
    pub fn tables_of(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table<R>> {
        self.tables.iter().filter(move |table| table.subsystem == subsystem)
    }

    pub fn table(&self, subsystem: Subsystem, family: TableFamily, name: &str) -> Option<&Table<R>> {
        self.tables_of(subsystem).find(|table| table.family == family && table.name == *name)
    }

    /// The `ip nat` and `ip6 nat` tables of a subsystem.
    pub fn nat_tables(&self, subsystem: Subsystem) -> impl Iterator<Item = &Table<R>> {
        self.tables_of(subsystem).filter(|table| matches!(table.family, TableFamily::Ip(_)) && table.name == *NAT)
    }

    /// Counts the rules of these tables, as iptables-save would print them.
    pub fn nat_rules(&self, subsystem: Subsystem) -> usize {
        self.nat_tables(subsystem).flat_map(Table::rules).count()
    }

    pub fn unseen_subsystems(&self) -> Vec<Subsystem> {
        self.not_known.iter().map(|unseen| unseen.subsystem).collect()
    }

    /// The reason why a subsystem could not be seen; none if it could.
    pub fn unseen(&self, subsystem: Subsystem) -> Option<&Unseen> {
        self.not_known.iter().find(|unseen| unseen.subsystem == subsystem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{chain, ports, rule, table};
    use crate::{Action, Bound, Family, Name};

    #[test]
    fn a_table_is_found_by_all_of_its_name() {
        let mut nat = table("ip nat", vec![chain("A", vec![]), chain("B", vec![])]);
        nat.sets = vec![ports("a", &[]), ports("b", &[(1, 2)])];
        assert_eq!(nat.chain(&Name::from("B")), Some(&nat.chains[1]));
        assert_eq!(nat.chain(&Name::from("b")), None);
        assert_eq!(nat.set(&Name::from("b")), Some(&nat.sets[1]));
        assert_eq!(nat.set(&Name::from("B")), None);

        let names = ["legacy ip nat", "ip filter", "ip6 nat", "ip nat", "inet nat"];
        let ruleset = Ruleset { tables: names.map(|name| table(name, vec![])).into(), not_known: vec![] };
        let v4 = TableFamily::Ip(Family::V4);
        for (subsystem, family, name, want) in [
            (Subsystem::NfTables, v4, "nat", Some("ip nat")),
            (Subsystem::NfTables, TableFamily::Ip(Family::V6), "nat", Some("ip6 nat")),
            (Subsystem::NfTables, TableFamily::Inet, "nat", Some("inet nat")),
            (Subsystem::NfTables, TableFamily::Inet, "filter", None),
            (Subsystem::Legacy, v4, "nat", Some("legacy ip nat")),
            (Subsystem::Legacy, v4, "filter", None),
        ] {
            let got = ruleset.table(subsystem, family, name).map(ToString::to_string);
            assert_eq!(got.as_deref(), want);
        }
        assert_eq!(ruleset.tables_of(Subsystem::NfTables).count(), 4);
        assert_eq!(ruleset.tables_of(Subsystem::Legacy).count(), 1);
    }

    #[test]
    fn contexts_are_those_of_all_rules() {
        let limit = Context::Limit { holds_below: true, of: Bound::Bytes(9) };
        let rules = vec![rule([], Action::Drop), rule([Condition::Context(limit.clone())], Action::Accept)];
        let ruleset = Ruleset { tables: vec![table("ip nat", vec![chain("A", rules)])], not_known: vec![] };
        assert_eq!(ruleset.contexts().collect::<Vec<_>>(), [&limit]);
    }

    #[test]
    fn nat_rules_are_counted_in_both_families() {
        let rules = |count| vec![chain("A", vec![rule([], Action::Accept); count])];
        let ruleset = Ruleset {
            tables: vec![
                table("ip nat", rules(2)),
                table("ip6 nat", rules(3)),
                table("ip filter", rules(1)),
                table("inet nat", rules(1)),
            ],
            not_known: vec![Unseen { subsystem: Subsystem::Legacy, not_permitted: true, reason: "EPERM".to_owned() }],
        };
        assert_eq!(ruleset.nat_rules(Subsystem::NfTables), 5);
        assert_eq!(ruleset.nat_rules(Subsystem::Legacy), 0);
        assert_eq!(ruleset.unseen(Subsystem::Legacy).map(|unseen| unseen.reason.as_str()), Some("EPERM"));
        assert_eq!(ruleset.unseen(Subsystem::NfTables), None);
        assert_eq!(ruleset.unseen_subsystems(), [Subsystem::Legacy]);
    }
}
