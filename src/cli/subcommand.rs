//! The subcommands, and what help and the man page say of each.

use ruleset::Direction;

use super::exit::Exit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Subcommand {
    /// Without a subcommand: install the rules.
    #[default]
    Install,
    Show,
    Explain,
    Verify,
    Uninstall,
    Detect,
    Validate,
    Help,
    Man,
    Completions,
}

/// The word that a subcommand takes beside flags.
pub(super) struct Word {
    pub(super) placeholder: &'static str,
    pub(super) words: Vec<&'static str>,
    /// What to say if it is missing; none if it need not be there.
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
    pub(super) const NAMED: [(&'static str, Self); 9] = [
        ("show", Self::Show),
        ("explain", Self::Explain),
        ("verify", Self::Verify),
        ("uninstall", Self::Uninstall),
        ("detect", Self::Detect),
        ("validate", Self::Validate),
        ("help", Self::Help),
        ("man", Self::Man),
        ("completions", Self::Completions),
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find_map(|&(own, subcommand)| (own == name).then_some(subcommand))
    }

    /// The name on the command line; installing is the program itself.
    pub(super) fn name(self) -> &'static str {
        Self::NAMED.iter().find_map(|&(name, own)| (own == self).then_some(name)).unwrap_or("proxy-init")
    }

    /// Those that are programs by themselves take --version.
    pub(super) fn has_version(self) -> bool {
        matches!(self, Self::Install | Self::Validate)
    }

    pub(super) fn word(self) -> Option<Word> {
        match self {
            Self::Explain => Some(Word {
                placeholder: "DIRECTION",
                words: Direction::ALL.map(Direction::name).to_vec(),
                missing: Some(
                    "explain needs a direction, inbound or outbound, as in proxy-init explain outbound --to 10.0.0.1:80",
                ),
                help: "inbound: a connection to this namespace;\n\
                       outbound: one that a process in it makes",
            }),
            Self::Help | Self::Man => Some(Word {
                placeholder: "SUBCOMMAND",
                words: Self::NAMED.map(|(name, _)| name).to_vec(),
                missing: None,
                help: "The subcommand [default: the program itself]",
            }),
            Self::Completions => Some(Word {
                placeholder: "SHELL",
                words: vec!["bash", "fish", "zsh"],
                missing: Some("completions needs the name of a shell, as in proxy-init completions bash"),
                help: "The shell",
            }),
            Self::Install | Self::Show | Self::Verify | Self::Uninstall | Self::Detect | Self::Validate => None,
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Install => "Redirects a pod's TCP connections through its sidecar proxy",
            Self::Show => "Show the rules that redirect connections, with packet counts",
            Self::Explain => "Say whether a connection would go to the proxy, and by which rule",
            Self::Verify => "Compare the rules with what the same flags would install",
            Self::Uninstall => "Remove proxy-init's rules from every backend that has them",
            Self::Detect => "Show what the kernel supports, and what auto mode would choose",
            Self::Validate => "Make a connection, and see whether it comes to the proxy's port",
            Self::Help => "Print help for the program or for a subcommand",
            Self::Man => "Print the manual page of the program or of a subcommand",
            Self::Completions => "Print a shell's completion script",
        }
    }

    /// More than that, in lines that fit a terminal.
    pub(super) fn details(self) -> &'static str {
        match self {
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
            Self::Show => {
                "It lists proxy-init's rules in every mode, and the rules of other programs that\n\
                 run before them, in the order in which the kernel runs them: what each matches\n\
                 and does, and what it has counted. Last come the flags that install the same.\n\
                 It needs none of the flags that the rules were installed with. It changes\n\
                 nothing, starts no process, and says what it cannot see. It prints colours only\n\
                 on a terminal outside pods, and never if NO_COLOR is set or TERM is dumb."
            }
            Self::Explain => {
                "It follows the connection's first packet, the reply and the ACK after it through\n\
                 all chains of nf_tables and of legacy tables that the kernel runs, whichever\n\
                 program made them, in the kernel's order; before them, where neighbours have to\n\
                 find each other, the packets for that. The first line is the answer; then come\n\
                 the rule that says so and each rule that was looked at, with why it did not\n\
                 match. It makes no connection and changes nothing.\n\n\
                 The kernel's routing gives an outbound connection its device and its source\n\
                 address. Without --uid and --gid it is one from any user except the proxy's. If\n\
                 the answer depends on what was not given, or is not understood, it is \"not\n\
                 known\", with the reason."
            }
            Self::Verify => {
                "It takes the flags that say which rules should be there and where to look for\n\
                 them. Without any flag about rules, it checks whether what is installed is one\n\
                 complete, untouched installation, whatever its flags were, and prints those.\n\
                 With any of them, -p and -o are needed as well. Flags that only steer an\n\
                 installation are refused. Where no mode is named, it checks the backend that\n\
                 holds proxy-init's rules, or else the one that an installation would choose. It\n\
                 exits 0 if they match, 3 if they differ, and prints the difference."
            }
            Self::Uninstall => {
                "All other rules and chains stay as they are. It needs none of the flags that the\n\
                 rules were installed with."
            }
            Self::Detect => {
                "It changes nothing: what the kernel supports is found with transactions that are\n\
                 never committed. It reports what it cannot read without privileges."
            }
            Self::Validate => {
                "It does what linkerd-network-validator does, with its flags: it listens where\n\
                 the proxy will, connects to an address that no host needs to have, and expects\n\
                 its own answer, a random token. It changes nothing, needs no privileges, and has\n\
                 to run as another user than the proxy's. If it may read the rules, which takes\n\
                 CAP_NET_ADMIN, it says why a connection did not arrive.\n\n\
                 A program of the name linkerd2-network-validator, a link or a copy, takes these\n\
                 flags directly. Where --log-format or --log-level is missing, the environment\n\
                 has it in LINKERD_NETWORK_VALIDATOR_LOG_FORMAT or ..._LOG_LEVEL."
            }
            Self::Help => "It is the same text as that of --help after the subcommand.",
            Self::Man => "The page is written in roff, which man(1) formats.",
            Self::Completions => "The script completes subcommands, flags, and values that are words.",
        }
    }

    pub(super) fn examples(self) -> &'static [(&'static str, &'static str)] {
        match self {
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
            Self::Show => &[
                ("proxy-init show", "show what redirects connections in this namespace"),
                (
                    "proxy-init show --netns /var/run/netns/pod --output json",
                    "report on another namespace to a program",
                ),
            ],
            Self::Explain => &[
                (
                    "proxy-init explain outbound --to 10.96.0.10:443",
                    "say what becomes of the application's connection to that address",
                ),
                (
                    "proxy-init explain outbound --to 10.96.0.10:443 --output short",
                    "print that answer alone, on one line",
                ),
                (
                    "proxy-init explain inbound --to 10.1.2.3:8080 --expect proxy",
                    "exit 3 unless connections to that port of the pod go to the proxy",
                ),
            ],
            Self::Verify => &[
                ("proxy-init verify", "check that what is installed is complete and untouched"),
                ("proxy-init verify -p 4143 -o 4140 -u 2102", "compare, and print any difference"),
                (
                    "proxy-init verify --netns /var/run/netns/pod --output json \\\n    \
                     -p 4143 -o 4140 -u 2102",
                    "compare another namespace's rules, for a program",
                ),
            ],
            Self::Uninstall => {
                &[("proxy-init uninstall --netns /var/run/netns/pod", "remove the rules from that namespace")]
            }
            Self::Detect => &[
                ("proxy-init detect", "say what fits this node, and why"),
                ("proxy-init detect --output json", "report to a program"),
            ],
            Self::Validate => &[(
                "proxy-init validate --connect-addr '[fd00::1]:20001' --listen-addr '[::]:4140'",
                "validate the rules for IPv6",
            )],
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
            Self::Show | Self::Explain => &[
                ("NO_COLOR", "If it is set, no colours are printed."),
                ("TERM", "If it is dumb, no colours are printed."),
            ],
            _ => &[],
        }
    }

    pub(super) fn exits(self) -> Vec<(Exit, &'static str)> {
        let (done, failed) = match self {
            Self::Install => (
                "done: the rules are installed; verify: they are in place",
                "failed; the error says why, what to do, and whether anything was changed",
            ),
            Self::Show => ("shown, even if there are no rules", "the rules cannot be read"),
            Self::Explain => (
                "answered, and if --expect was given, as expected",
                "the rules cannot be read, or there is no route for the connection",
            ),
            Self::Verify => ("the rules are in place", "the rules cannot be read"),
            Self::Uninstall => (
                "no rules of proxy-init are left",
                "failed; the error says why, what to do, and whether anything was changed",
            ),
            Self::Detect => ("reported", "the namespace cannot be entered"),
            Self::Validate => {
                return vec![
                    (Exit::Done, "validated: the connection came to the proxy's port"),
                    (Exit::BadInput, "the command line is invalid"),
                    (Exit::NotValidated, "the connection did not arrive, or a signal ended the run"),
                ];
            }
            Self::Help | Self::Man | Self::Completions => ("printed", "cannot write to stdout"),
        };
        let mut exits = vec![
            (Exit::Done, done),
            (Exit::Failed, failed),
            (Exit::BadInput, "the command line is invalid; nothing was changed"),
        ];
        match self {
            Self::Install => exits.extend([
                (Exit::Differs, "verify: the rules differ; explain: the answer is not what --expect names"),
                (Exit::NotValidated, "validate: the connection did not arrive, or a signal ended the run"),
            ]),
            Self::Explain => exits.push((Exit::Differs, "the answer is not the one that --expect names")),
            Self::Verify => exits.push((Exit::Differs, "the rules differ from what the flags describe")),
            _ => {}
        }
        exits
    }
}
