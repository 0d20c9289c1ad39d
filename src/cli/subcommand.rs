//! The subcommands, and what help and the man page say of each.

use std::path::Path;

#[cfg(feature = "diagnose")]
use super::diagnosis::{Diagnosis, VERIFY};
use super::exit::Exit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Subcommand {
    /// Without a subcommand: install the rules.
    #[default]
    Install,
    Uninstall,
    /// One that changes nothing.
    #[cfg(feature = "diagnose")]
    Diagnose(Diagnosis),
    Help,
    Man,
    Completions,
}

/// The word that a subcommand takes beside flags.
pub(super) struct Word {
    pub(super) placeholder: &'static str,
    pub(super) words: Vec<&'static str>,
    /// The error if the word is missing; none if it may be missing.
    pub(super) missing: Option<&'static str>,
    pub(super) help: &'static str,
}

impl Word {
    /// The placeholder as help shows it.
    pub(super) fn what(&self) -> String {
        match self.missing {
            Some(_) => format!("<{}>", self.placeholder),
            None => format!("[{}]", self.placeholder),
        }
    }
}

impl Subcommand {
    /// Those that are named, in the order in which help lists them.
    pub(super) const NAMED: &[(&'static str, Self)] = &[
        #[cfg(feature = "diagnose")]
        ("show", Self::Diagnose(Diagnosis::Show)),
        #[cfg(feature = "diagnose")]
        ("explain", Self::Diagnose(Diagnosis::Explain)),
        #[cfg(feature = "diagnose")]
        ("verify", Self::Diagnose(Diagnosis::Verify)),
        ("uninstall", Self::Uninstall),
        #[cfg(feature = "diagnose")]
        ("detect", Self::Diagnose(Diagnosis::Detect)),
        #[cfg(feature = "diagnose")]
        ("validate", Self::Diagnose(Diagnosis::Validate)),
        ("help", Self::Help),
        ("man", Self::Man),
        ("completions", Self::Completions),
    ];

    /// Installing, and those that are named.
    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Install).chain(Self::NAMED.iter().map(|(_, named)| *named))
    }

    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMED.iter().map(|(name, _)| *name)
    }

    /// The subcommand that a program of this name is.
    pub(super) fn of_program(path: &Path) -> Option<Self> {
        match path.file_name()?.to_str()? {
            #[cfg(feature = "diagnose")]
            "linkerd2-network-validator" => Some(Self::Diagnose(Diagnosis::Validate)),
            _ => None,
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find_map(|&(own, subcommand)| (own == name).then_some(subcommand))
    }

    /// The name on the command line; installing is the program itself.
    pub(super) fn name(self) -> &'static str {
        Self::NAMED.iter().find_map(|&(name, own)| (own == self).then_some(name)).unwrap_or("proxy-init")
    }

    /// Those that are programs by themselves take --version.
    pub(super) fn has_version(self) -> bool {
        match self {
            Self::Install => true,
            #[cfg(feature = "diagnose")]
            Self::Diagnose(Diagnosis::Validate) => true,
            _ => false,
        }
    }

    pub(super) fn word(self) -> Option<Word> {
        match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => diagnosis.word(),
            Self::Help | Self::Man => Some(Word {
                placeholder: "SUBCOMMAND",
                words: Self::names().collect(),
                missing: None,
                help: "The subcommand [default: the program itself]",
            }),
            Self::Completions => Some(Word {
                placeholder: "SHELL",
                words: vec!["bash", "fish", "zsh"],
                missing: Some("completions needs the name of a shell, as in proxy-init completions bash"),
                help: "The shell",
            }),
            Self::Install | Self::Uninstall => None,
        }
    }

    /// The command lines that it is called by, where it has several; clap would show one.
    pub(super) fn usages(self) -> Option<[&'static str; 2]> {
        match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(Diagnosis::Verify) => Some(VERIFY),
            _ => None,
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => diagnosis.about(),
            Self::Install => "Redirects a pod's TCP connections through its sidecar proxy",
            Self::Uninstall => "Remove proxy-init's rules from every backend that has them",
            Self::Help => "Print help for the program or for a subcommand",
            Self::Man => "Print the manual page of the program or of a subcommand",
            Self::Completions => "Print a shell's completion script",
        }
    }

    /// More than that, in lines that fit a terminal.
    pub(super) fn details(self) -> &'static str {
        match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => diagnosis.details(),
            Self::Install => {
                "It installs linkerd-init's rules for IPv4 and IPv6 in the network namespace that\n\
                 it runs in, or in that of --netns, and takes linkerd-init's flags. All of them\n\
                 are installed or none: in one transaction or, in legacy mode, in one for IPv4\n\
                 and one for IPv6. It needs root or CAP_NET_ADMIN. Running it again replaces its\n\
                 own rules and leaves all others alone.\n\n\
                 Lists are separated by commas, and the flag of a list may be repeated. A boolean\n\
                 takes a value only after an equals sign, as in --ipv6=false.\n\n\
                 For each flag about rules that is not given, the environment may have a variable\n\
                 of that name, such as PROXY_INIT_SKIP_UID for --skip-uid."
            }
            Self::Uninstall => {
                "All other rules and chains stay as they are. It needs none of the flags that the\n\
                 rules were installed with."
            }
            Self::Help => "It is the same text as that of --help after the subcommand.",
            Self::Man => "The page is written in roff, which man(1) formats.",
            Self::Completions => "The script completes subcommands, flags, and values that are words.",
        }
    }

    pub(super) fn examples(self) -> &'static [(&'static str, &'static str)] {
        match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => diagnosis.examples(),
            Self::Install => &[
                (
                    "proxy-init --iptables-mode nft -p 4143 -o 4140 -u 2102 \\\n    \
                     --inbound-ports-to-ignore 4190,4191,4567,4568 \\\n    \
                     --outbound-ports-to-ignore 4567,4568 --ipv6=false",
                    "install what Linkerd's chart asks for",
                ),
                (
                    "proxy-init --simulate=ipv4 -p 4143 -o 4140 -u 2102 \\\n    | iptables-restore --noflush",
                    "install the IPv4 rules with iptables itself",
                ),
            ],
            Self::Uninstall => {
                &[("proxy-init uninstall --netns /var/run/netns/pod", "remove the rules from that namespace")]
            }
            Self::Help => &[("proxy-init help verify", "explain verify")],
            Self::Man => &[("proxy-init man verify | man -l -", "read the page of verify")],
            Self::Completions => {
                &[("proxy-init completions bash > /etc/bash_completion.d/proxy-init", "complete in every new bash")]
            }
        }
    }

    /// The variables of the environment that stand for no flag.
    pub(super) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Install => &[
                (
                    "PATH",
                    "Where legacy and plain mode look for iptables commands, unless proxy-init has more privileges than \
                     the user who started it. They look in /usr/sbin, /usr/bin, /sbin and /bin then.",
                ),
                (
                    "XTABLES_LOCKFILE",
                    "The file of the xtables lock, which legacy mode takes; /run/xtables.lock if it is not set.",
                ),
                ("XTABLES_LIBDIR", "Where iptables commands look for their extensions, in legacy mode."),
                ("NO_COLOR", "If it is set, show and explain print no colours."),
            ],
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => diagnosis.environment(),
            _ => &[],
        }
    }

    pub(super) fn exits(self) -> Vec<(Exit, &'static str)> {
        let (done, failed) = match self {
            #[cfg(feature = "diagnose")]
            Self::Diagnose(diagnosis) => return diagnosis.exits(),
            Self::Install => (
                "done: the rules are installed; verify: they are in place",
                "failed; the error says why, what to do, and whether anything was changed",
            ),
            Self::Uninstall => (
                "no rules of proxy-init are left",
                "failed; the error says why, what to do, and whether anything was changed",
            ),
            Self::Help | Self::Man | Self::Completions => ("printed", "cannot write to stdout"),
        };
        let mut exits = vec![(Exit::Done, done), (Exit::Failed, failed), (Exit::BadInput, Exit::BAD_INPUT)];
        if self == Self::Install {
            exits.extend([
                (Exit::Differs, "verify: the rules differ; explain: the answer is not what --expect names"),
                (Exit::NotValidated, "validate: the connection did not arrive, or a signal ended the run"),
            ]);
        }
        exits
    }
}
