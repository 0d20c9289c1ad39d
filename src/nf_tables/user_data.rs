//! User data: bytes that a program attaches to a rule, a chain or a table. The kernel keeps them and doesn't interpret
//! them.
//!
//! It is a list of type (1 byte), length (1 byte) and value (`struct nftnl_udata` in libnftnl). In rules, chains and tables
//! alike, type 0 is a comment, a C string that nft shows (`NFTNL_UDATA_RULE_COMMENT`, `NFTNL_UDATA_CHAIN_COMMENT`,
//! `NFTNL_UDATA_TABLE_COMMENT`).

use crate::netlink::message::string;
use crate::rules::name::Name;

const COMMENT: u8 = 0;

/// A comment as user data, cut off at `limit` bytes, at most 254.
pub(crate) fn comment(text: &[u8], limit: usize) -> Vec<u8> {
    let text = text.get(..limit.min(254)).unwrap_or(text);
    [&[COMMENT, text.len() as u8 + 1], text, &[0]].concat()
}

/// The comment in user data, if there is one.
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
    fn a_comment_is_read_back_and_cut_off_where_it_is_too_long() {
        let long = "x".repeat(300);
        for (text, limit, want) in [
            ("why", 127, "why"),
            ("", 127, ""),
            (&long, 3, "xxx"),
            (&long, 999, &long[..254]),
        ] {
            assert_eq!(read_comment(&comment(text.as_bytes(), limit)).unwrap(), *want);
        }
        // A comment after something else, and one that is cut off.
        let behind = [&[7, 1, 9][..], &comment(b"why", 127)].concat();
        assert_eq!(read_comment(&behind).unwrap(), *"why");
        assert_eq!(read_comment(&behind[..6]), None);
    }
}
