//! Recognises our tables and rules in the kernel, beyond [`crate::ownership`].

use ruleset::{Direction, Family, Ruleset, Subsystem, Table};

use crate::config::Mode;
use crate::ownership::{holds_rules, own_lines};
use crate::plan::{ChainName, Purpose};

impl ChainName {
    /// proxy-init's chain that redirects connections of a direction.
    pub(crate) fn of(direction: Direction) -> Self {
        match direction {
            Direction::Inbound => Self::ProxyInitRedirect,
            Direction::Outbound => Self::ProxyInitOutput,
        }
    }
}

impl Purpose {
    /// The ports or subnets that a comment lists, with the text before and after them; none if it lists nothing.
    pub(crate) fn list(comment: &str) -> Option<(&str, &str, &str)> {
        let comment = Self::without_time(comment);
        Self::LISTING.into_iter().find_map(|(before, after, _)| {
            let rest = comment.strip_prefix(Self::PREFIX)?.strip_prefix(before)?;
            let names = rest.strip_suffix(after)?;
            let (before, _) = comment.split_at_checked(Self::PREFIX.len() + before.len())?;
            Some((before, names, after))
        })
    }

    /// The purpose of the first item that a comment lists.
    pub(crate) fn first_listed(comment: &str) -> Option<Self> {
        let (before, names, after) = Self::list(comment)?;
        Self::from_comment(&format!("{before}{}{after}", names.split(',').next()?))
    }

    /// Returns true if the comment is about other users or groups than the proxy's.
    pub(crate) fn is_about_others(&self) -> bool {
        matches!(self, Self::IgnoreUsers(_) | Self::IgnoreGroups(_))
    }
}

/// The mode whose rules a table holds, or would hold if there were any.
pub fn mode_of(table: &Table) -> Option<Mode> {
    let tables = std::slice::from_ref(table);
    let holds = |mode: &Mode| Family::ALL.iter().any(|&family| mode.table_among(tables, family).is_some());
    Mode::ALL.iter().copied().find(holds)
}

/// Returns true if any mode holds a rule of ours. Our empty chains, as `iptables -F` leaves them, don't count.
pub fn has_rules(ruleset: &Ruleset) -> bool {
    let subsystems = [Subsystem::NfTables, Subsystem::Legacy].into_iter();
    let mut lines = subsystems.flat_map(|subsystem| ruleset.nat_tables(subsystem)).flat_map(own_lines);
    holds_rules(ruleset, Mode::Native) || lines.next().is_some()
}

#[cfg(test)]
mod tests {
    use ruleset::{Action, testing};

    use super::*;
    use crate::config::Config;
    use crate::plan::tables::expected;

    #[test]
    fn a_mode_has_tables_by_subsystem_family_and_name() {
        for (table, mode) in [
            ("ip nat", Some(Mode::Nft)),
            ("ip6 nat", Some(Mode::Nft)),
            ("legacy ip nat", Some(Mode::Legacy)),
            ("legacy ip6 nat", Some(Mode::Legacy)),
            ("inet proxy-init", Some(Mode::Native)),
            ("ip proxy-init", None),
            ("inet nat", None),
            ("ip filter", None),
            ("legacy ip filter", None),
        ] {
            assert_eq!(mode_of(&testing::table(table, vec![])), mode, "{table}");
        }
    }

    #[test]
    fn flushed_chains_hold_no_rules_and_a_jump_to_one_is_a_rule() {
        let config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        let has_rules = |tables: Vec<Table>| {
            let not_known = vec![];
            has_rules(&Ruleset { tables, not_known })
        };
        assert!(!has_rules(vec![]));
        for mode in [Mode::Nft, Mode::Legacy] {
            let mut tables = expected(mode, &config);
            assert!(has_rules(tables.clone()));
            let chains = tables.iter_mut().flat_map(|table| &mut table.chains);
            let rules: Vec<_> = chains.map(|chain| std::mem::take(&mut chain.rules)).collect();
            assert!(!has_rules(tables.clone()), "{mode}");
            for (index, rules) in rules.into_iter().take(tables[0].chains.len()).enumerate() {
                let mut tables = tables.clone();
                tables[0].chains[index].rules = rules;
                assert!(has_rules(tables), "{mode} {index}");
            }
        }
        assert!(has_rules(expected(Mode::Native, &config)));
        let other = testing::rule([], Action::Accept);
        assert!(!has_rules(vec![testing::table("ip nat", vec![testing::chain("OUTPUT", vec![other])])]));
    }

    #[test]
    fn a_comments_list_is_between_its_other_words() {
        for (comment, parts) in [
            ("proxy-init/ignore-port-25,80:90", Some(("proxy-init/ignore-port-", "25,80:90", ""))),
            ("proxy-init/ignore-subnet-fd00::/8", Some(("proxy-init/ignore-subnet-", "fd00::/8", ""))),
            ("proxy-init/redirect-port-80-to-proxy-port", Some(("proxy-init/redirect-port-", "80", "-to-proxy-port"))),
            ("proxy-init/redirect-port-80", None),
            ("proxy-init/ignore-loopback", None),
            ("other/ignore-port-25", None),
        ] {
            assert_eq!(Purpose::list(comment), parts, "{comment}");
        }
    }
}
