//! The variants of kernels, the outcome that each should have, and the words by which host and guest tell each other.

use Expected::{Fails, FallsBack, Works};

/// The kernel's parameter that tells the guest which variant this is.
pub const PARAMETER: &str = "proxy_init_without";
/// The mark before a result on the guest's console.
pub const RESULT: &str = "RESULT:";
/// The words of a result when a failed run has left rules or tables.
pub const LEFT_BEHIND: &str = "LEFT BEHIND";

/// The words between the mode that was used instead of another and the outcome of --no-fallback.
pub const REFUSED: &str = ", and with --no-fallback: ";

/// The module that lists what is hooked, and by which others than root see legacy tables.
pub const HOOK_LISTS: &str = "nfnetlink_hook";

/// The modes that a guest tries, in the order of its results, before that of [`ExpectedView`].
pub const MODES: [&str; 4] = ["nft", "native", "legacy", "auto"];

/// A kernel with something removed, and what is expected of it.
#[derive(Debug)]
pub struct Variant {
    /// The missing part, which is the variant's name.
    pub without: &'static str,
    /// Further parameters of its command line.
    pub parameters: &'static str,
    /// The modules that are deleted, if there are such.
    pub modules: &'static [&'static str],
    /// The outcome of each of [`MODES`].
    pub expected: [Expected; MODES.len()],
}

/// The outcome of a mode.
#[derive(Debug, Clone, Copy)]
pub enum Expected {
    /// It works; auto by the mode of this name.
    Works(&'static str),
    /// The mode of this name works instead; with --no-fallback the error says these words.
    FallsBack(&'static str, &'static str),
    /// It fails and leaves nothing, and the error says these words.
    Fails(&'static str),
}

/// The answer to uid 65534 with NET_ADMIN about our rules in legacy mode.
#[derive(Debug, Clone, Copy)]
pub enum ExpectedView {
    /// That they are there; and, in a namespace without any, that there are none.
    Seen,
    /// That it is not known whether there are any.
    NotKnown,
    /// Nothing, for there are none: legacy mode fails.
    Untried,
}

impl ExpectedView {
    /// The word for it, in results and in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::NotKnown => "not known",
            Self::Untried => "-",
        }
    }
}

const NO_OWNER: Expected = FallsBack("native", "xt_owner");
const NO_MULTIPORT: Expected = FallsBack("native", "xt_multiport");
const NO_REDIRECT: Expected = FallsBack("native", "xt_REDIRECT");
const NO_TABLE: &str = "no legacy nat table";

const OK: Expected = Expected::Works("ok");

impl Expected {
    /// Compares a result with this.
    pub fn is(self, result: &str) -> bool {
        match self {
            Self::Works(word) => result == word,
            Self::FallsBack(mode, words) => result
                .split_once(REFUSED)
                .is_some_and(|(taken, refusal)| taken == mode && Self::Fails(words).is(refusal)),
            Self::Fails(words) => result.contains(words) && !result.contains(LEFT_BEHIND),
        }
    }
}

impl Variant {
    /// Its name, as a word of a kernel's command line.
    pub fn parameter(&self) -> String {
        self.without.replace(' ', "_")
    }

    /// The answer to uid 65534 on a kernel that, but for the variant, has nfnetlink_hook or not.
    pub fn expected_view(&self, has_hook_lists: bool) -> ExpectedView {
        let legacy = MODES.iter().zip(self.expected).find(|(mode, _)| **mode == "legacy");
        match legacy {
            Some((_, Fails(_) | FallsBack(..))) => ExpectedView::Untried,
            _ if has_hook_lists && !self.modules.contains(&HOOK_LISTS) => ExpectedView::Seen,
            _ => ExpectedView::NotKnown,
        }
    }
}

/// The kernel as it is.
const WHOLE: Variant =
    Variant { without: "nothing", parameters: "", modules: &[], expected: [OK, OK, OK, Works("nft")] };

/// All of them.
pub const VARIANTS: [Variant; 11] = [
    WHOLE,
    Variant {
        without: "nft_compat",
        modules: &["nft_compat"],
        expected: [FallsBack("native", "nft_compat"), OK, OK, Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_owner",
        modules: &["xt_owner"],
        expected: [NO_OWNER, OK, NO_OWNER, Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_multiport",
        modules: &["xt_multiport"],
        expected: [NO_MULTIPORT, OK, NO_MULTIPORT, Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_REDIRECT",
        modules: &["xt_REDIRECT"],
        expected: [NO_REDIRECT, OK, NO_REDIRECT, Works("native")],
        ..WHOLE
    },
    Variant {
        without: "nf_tables",
        modules: &["nf_tables"],
        expected: [Fails("no nf_tables"), Fails("no nf_tables"), OK, Works("legacy")],
        ..WHOLE
    },
    Variant { without: "nfnetlink_hook", modules: &[HOOK_LISTS], ..WHOLE },
    Variant {
        without: "ip6 nat",
        modules: &["ip6table_nat"],
        expected: [OK, OK, FallsBack("nft", NO_TABLE), Works("nft")],
        ..WHOLE
    },
    Variant {
        without: "legacy tables",
        modules: &["ip_tables", "ip6_tables"],
        expected: [OK, OK, FallsBack("nft", NO_TABLE), Works("nft")],
        ..WHOLE
    },
    // ip_tables, nft_compat and the xt modules all need it.
    Variant {
        without: "xtables",
        modules: &["x_tables"],
        expected: [FallsBack("native", "nft_compat"), OK, FallsBack("native", NO_TABLE), Works("native")],
        ..WHOLE
    },
    Variant { without: "IPv6", parameters: "ipv6.disable=1", ..WHOLE },
];
