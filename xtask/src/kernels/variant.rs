//! What a kernel goes without, what is expected then, and the words by which host and guest tell each other.

use Expected::{Fails, Works};

/// The kernel's parameter that tells the guest which variant this is.
pub(crate) const PARAMETER: &str = "proxy_init_without";
/// What stands before a result on the guest's console.
pub(crate) const RESULT: &str = "RESULT:";
/// What a result says when a failed run has left something.
pub(crate) const LEFT_BEHIND: &str = "LEFT BEHIND";

/// The module that lists what is hooked, and by which others than root see legacy tables.
pub(crate) const HOOK_LISTS: &str = "nfnetlink_hook";

/// The modes that a guest tries, in the order of its results, before that of [`Told`].
pub(crate) const MODES: [&str; 4] = ["nft", "native", "legacy", "auto"];

/// A kernel with something removed, and what is expected of it.
pub(crate) struct Variant {
    pub(crate) without: &'static str,
    /// What its command line has besides.
    pub(crate) parameters: &'static str,
    /// The modules that are deleted, if there are such.
    pub(crate) modules: &'static [&'static str],
    /// What each of [`MODES`] does.
    pub(crate) expected: [Expected; MODES.len()],
}

/// What a mode does.
#[derive(Clone, Copy)]
pub(crate) enum Expected {
    /// It works; auto by the mode of this name.
    Works(&'static str),
    /// It fails and leaves nothing, and the error says these words.
    Fails(&'static str),
}

/// What uid 65534 with NET_ADMIN is told of proxy-init's rules in legacy mode.
#[derive(Clone, Copy)]
pub(crate) enum Told {
    /// That they are there; and, in a namespace without any, that there are none.
    Seen,
    /// That it is not known whether there are any.
    NotKnown,
    /// Nothing, for there are none: legacy mode fails.
    Untried,
}

impl Told {
    /// The word for it, in results and in the table.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::NotKnown => "not known",
            Self::Untried => "-",
        }
    }
}

const OK: Expected = Expected::Works("ok");

impl Expected {
    /// Whether a result is this.
    pub(crate) fn is(self, result: &str) -> bool {
        match self {
            Self::Works(word) => result == word,
            Self::Fails(words) => result.contains(words) && !result.contains(LEFT_BEHIND),
        }
    }
}

impl Variant {
    /// Its name, as a word of a kernel's command line.
    pub(crate) fn parameter(&self) -> String {
        self.without.replace(' ', "_")
    }

    /// What uid 65534 is told on a kernel that, but for the variant, has nfnetlink_hook or not.
    pub(crate) fn told(&self, has_hook_lists: bool) -> Told {
        let legacy = MODES.iter().zip(self.expected).find(|(mode, _)| **mode == "legacy");
        match legacy {
            Some((_, Fails(_))) => Told::Untried,
            _ if has_hook_lists && !self.modules.contains(&HOOK_LISTS) => Told::Seen,
            _ => Told::NotKnown,
        }
    }
}

/// The kernel as it is.
const WHOLE: Variant = Variant {
    without: "nothing",
    parameters: "",
    modules: &[],
    expected: [OK, OK, OK, Works("nft")],
};

pub(crate) const VARIANTS: [Variant; 10] = [
    WHOLE,
    Variant {
        without: "nft_compat",
        modules: &["nft_compat"],
        expected: [Fails("nft_compat"), OK, OK, Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_owner",
        modules: &["xt_owner"],
        expected: [Fails("xt_owner"), OK, Fails("xt_owner"), Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_multiport",
        modules: &["xt_multiport"],
        expected: [Fails("xt_multiport"), OK, Fails("xt_multiport"), Works("native")],
        ..WHOLE
    },
    Variant {
        without: "xt_REDIRECT",
        modules: &["xt_REDIRECT"],
        expected: [Fails("xt_REDIRECT"), OK, Fails("xt_REDIRECT"), Works("native")],
        ..WHOLE
    },
    Variant {
        without: "nf_tables",
        modules: &["nf_tables"],
        expected: [Fails("no nf_tables"), Fails("no nf_tables"), OK, Works("legacy")],
        ..WHOLE
    },
    Variant {
        without: "nfnetlink_hook",
        modules: &[HOOK_LISTS],
        ..WHOLE
    },
    Variant {
        without: "ip6 nat",
        modules: &["ip6table_nat"],
        expected: [OK, OK, Fails("no legacy nat table"), Works("nft")],
        ..WHOLE
    },
    Variant {
        without: "legacy tables",
        modules: &["ip_tables", "ip6_tables"],
        expected: [OK, OK, Fails("no legacy nat table"), Works("nft")],
        ..WHOLE
    },
    Variant {
        without: "IPv6",
        parameters: "ipv6.disable=1",
        ..WHOLE
    },
];
