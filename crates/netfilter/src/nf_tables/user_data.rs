//! User data, which the kernel keeps with a rule, a chain or a table, and doesn't interpret: a list of type (1 byte),
//! length (1 byte) and value (`struct nftnl_udata` in libnftnl). Type 0 is a comment, a C string that nft shows
//! (`NFTNL_UDATA_RULE_COMMENT`, and the same of chains and tables).

use ruleset::Name;
use ruleset::nftables::LONGEST_COMMENT;

use crate::netlink::message::{Unwritable, string};

const COMMENT: u8 = 0;

/// A comment as user data.
pub(crate) fn of_comment(text: &[u8]) -> Result<Vec<u8>, Unwritable> {
    match u8::try_from(text.len() + 1) {
        Ok(length) if text.len() <= LONGEST_COMMENT && !text.contains(&0) => {
            Ok([&[COMMENT, length][..], text, &[0]].concat())
        }
        _ => Err(Unwritable(format!(
            "a comment of {} bytes, of which nft reads {LONGEST_COMMENT} up to the first NUL",
            text.len()
        ))),
    }
}

pub(crate) fn read_comment(mut data: &[u8]) -> Option<Name> {
    while let &[kind, length, ref rest @ ..] = data {
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        if kind == COMMENT {
            return string(value).ok().map(Name::from);
        }
        data = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_back_or_refused() {
        let longest = "x".repeat(LONGEST_COMMENT);
        for text in ["why", "", &longest] {
            assert_eq!(read_comment(&of_comment(text.as_bytes()).unwrap()).unwrap(), *text);
        }
        for text in [format!("{longest}x"), "x".repeat(300), "wh\0y".to_owned()] {
            assert!(of_comment(text.as_bytes()).is_err(), "{text:?}");
        }
        // A comment after something else, and one that is cut off.
        let after = [&[7, 1, 9][..], &of_comment(b"why").unwrap()].concat();
        assert_eq!(read_comment(&after).unwrap(), *"why");
        assert_eq!(read_comment(&after[..6]), None);
    }
}
