//! Edits as text that `iptables-restore` reads.

use std::io::{self, Write as _};
use std::slice;

use netfilter::nf_tables::edit::Edit;
use ruleset::xtables::{IptablesRule, escaped};
use ruleset::{Table, TableFamily};

use crate::config::Mode;
use crate::modes::nat::install_edits;

/// The edits of a nat table as input for `iptables-restore --noflush`: one transaction. Names of chains are others' bytes, so
/// it need not be UTF-8.
pub(super) fn input(edits: &[Edit<'_>]) -> Vec<u8> {
    let mut input = b"*nat\n".to_vec();
    let (deletions, others): (Vec<_>, Vec<_>) = edits.iter().partition(|edit| matches!(edit, Edit::DeleteRule(..)));
    // If a chain loses several rules, the last must go first: later ones move up.
    for edit in deletions.into_iter().rev().chain(others) {
        // Writing to a Vec can't fail.
        let _ = write_line(&mut input, edit);
    }
    input.extend(b"COMMIT\n");
    input
}

fn write_line(input: &mut Vec<u8>, edit: &Edit<'_>) -> io::Result<()> {
    match edit {
        // This line makes a chain, or deletes the rules of one that is there.
        Edit::AddChain(_, chain) | Edit::FlushChain(_, chain) if chain.hook.is_none() => {
            writeln!(input, ":{chain} - [0:0]")
        }
        Edit::AddRule(new) => writeln!(input, "-A {} {}", new.chain, IptablesRule(new.rule)),
        Edit::DeleteRule(_, chain, number) => {
            input.extend(b"-D \"");
            input.extend(escaped(chain).as_bytes());
            writeln!(input, "\" {number}")
        }
        Edit::DeleteChain(_, chain) => writeln!(input, "-X {chain}"),
        // The kernel makes the table and its base chains, and there are no sets.
        _ => Ok(()),
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
    for table in planned {
        // Where nothing is held, nothing can be in the way.
        if let TableFamily::Ip(family) = table.family
            && let Ok(edits) = install_edits(Mode::Nft, &[], slice::from_ref(table))
        {
            let (command, lines) = (family.iptables(), input(&edits));
            text += &format!("# {family}: {command}-restore --noflush\n{}", String::from_utf8_lossy(&lines));
        }
    }
    text
}
