//! Planned rules as text that `iptables-restore` reads.

use std::fmt;
use std::io::Write as _;

use ruleset::xtables::{IptablesRule, escaped};
use ruleset::{Family, Name, Rule, Table};

use crate::config::Mode;
use crate::plan::{ChainName, rules_of};

/// Input for `iptables-restore --noflush`, being written: one transaction in the nat table. Names of chains are others'
/// bytes, so it need not be UTF-8.
pub(crate) struct Input(Vec<u8>);

impl Input {
    pub(crate) fn new() -> Self {
        Self(b"*nat\n".to_vec())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == Self::new().0
    }

    /// Makes a chain, or deletes its rules if it is there.
    pub(crate) fn make_or_flush(&mut self, chain: ChainName) {
        self.line(format_args!(":{chain} - [0:0]"));
    }

    pub(crate) fn append(&mut self, chain: ChainName, rule: &Rule) {
        self.line(format_args!("-A {chain} {}", IptablesRule(rule)));
    }

    /// Deletes the rule with this index. If a chain loses several, the last must go first: later ones move up.
    pub(crate) fn delete(&mut self, chain: &Name, index: usize) {
        self.0.extend(b"-D \"");
        self.0.extend(escaped(chain).as_bytes());
        self.line(format_args!("\" {}", index + 1));
    }

    pub(crate) fn delete_chain(&mut self, chain: ChainName) {
        self.line(format_args!("-X {chain}"));
    }

    /// The whole input, with its last line.
    pub(crate) fn committed(mut self) -> Vec<u8> {
        self.0.extend(b"COMMIT\n");
        self.0
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a Vec can't fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// Lines at which restore commands stop before they have committed anything. Without them, one command would accept the text
/// of both families, and the second part would flush the first one's chains and double its jumps. The invalid line stands
/// inside a table because `--table` makes some versions skip lines outside.
const NOT_FOR_ONE_COMMAND: &str = "\
*nat
text-of-both-families: for a restore command, ask for one with --simulate=ipv4 or --simulate=ipv6

";

/// The output of `--simulate`: for each family a comment that names its restore command, followed by that command's
/// input. The text of one family can be restored as it is; restore commands refuse the text of several.
pub fn simulation(planned: &[Table]) -> String {
    let mut text = String::new();
    if planned.len() > 1 {
        text += NOT_FOR_ONE_COMMAND;
    }
    for family in Family::ALL {
        let Some(table) = Mode::Nft.table_among(planned, family) else {
            continue;
        };
        let mut input = Input::new();
        for chain in ChainName::IN_ORDER.into_iter().filter(|chain| chain.is_ours()) {
            input.make_or_flush(chain);
        }
        for chain in ChainName::IN_ORDER {
            rules_of(table, chain).iter().for_each(|rule| input.append(chain, rule));
        }
        let lines = input.committed();
        let (command, lines) = (family.iptables(), String::from_utf8_lossy(&lines));
        text += &format!("# {family}: {command}-restore --noflush\n{lines}");
    }
    text
}

#[cfg(test)]
mod tests {
    use ruleset::Action;
    use ruleset::testing::{commented, rule};

    use super::*;
    use crate::config::{Config, Port};
    use crate::plan::tables::expected;

    #[test]
    fn what_a_restore_command_is_fed() {
        let port = |number| Port::new(number).unwrap();
        let jump =
            commented("proxy-init/install-proxy-init-output", rule([], Action::Jump(Name::from("PROXY_INIT_OUTPUT"))));
        let mut input = Input::new();
        assert!(input.is_empty());
        input.make_or_flush(ChainName::ProxyInitOutput);
        assert!(!input.is_empty());
        input.append(ChainName::Output, &jump);
        input.delete(&Name::from("a \\ \"b\""), 2);
        input.delete_chain(ChainName::ProxyInitRedirect);
        assert_eq!(
            String::from_utf8(input.committed()).unwrap(),
            "*nat\n:PROXY_INIT_OUTPUT - [0:0]\n-A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j \
             PROXY_INIT_OUTPUT\n-D \"a \\\\ \\\"b\\\"\" 3\n-X PROXY_INIT_REDIRECT\nCOMMIT\n"
        );

        let mut config = Config::new(port(4143), port(4140));
        config.ipv6 = false;
        let restore = "*nat\n:PROXY_INIT_REDIRECT - [0:0]\n:PROXY_INIT_OUTPUT - [0:0]\n\
            -A PROXY_INIT_REDIRECT -p tcp -m comment --comment \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143\n\
            -A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT\n\
            -A PROXY_INIT_OUTPUT -o lo -m comment --comment \"proxy-init/ignore-loopback\" -j RETURN\n\
            -A PROXY_INIT_OUTPUT -p tcp -m comment --comment \"proxy-init/redirect-all-outgoing-to-proxy-port\" -j REDIRECT --to-ports 4140\n\
            -A OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT\nCOMMIT\n";
        let v4 = format!("# IPv4: iptables-restore --noflush\n{restore}");
        assert_eq!(simulation(&expected(Mode::Nft, &config)), v4);
        config.ipv6 = true;
        let both = simulation(&expected(Mode::Nft, &config));
        let rest = both.strip_prefix(NOT_FOR_ONE_COMMAND).unwrap();
        assert_eq!(rest, format!("{v4}# IPv6: ip6tables-restore --noflush\n{restore}"));
    }
}
