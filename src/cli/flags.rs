//! The flags: each is one entry of [`FLAGS`], which holds its name, its help, which subcommands take it, and what its
//! value does. The reader of arguments (parse.rs), help, the man page and completions all go by that table.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ruleset::Name;

use super::draft::Draft;
use super::subcommand::Subcommand;
use super::values::{self, Expected, Output, list, named, to_redirect};
use crate::config::{ModeChoice, flags};
use crate::diagnose::validate::Validate;
use crate::install::Simulate;

/// What the flags that were given say, each value checked by itself.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) subcommand: Subcommand,
    pub(super) rules: Draft,
    pub(super) iptables_mode: Option<ModeChoice>,
    pub(super) firewall_bin_path: String,
    pub(super) no_fallback: Option<bool>,
    pub(super) replace_other_backend: bool,
    pub(super) simulate: Option<Simulate>,
    pub(super) netns: Option<PathBuf>,
    pub(super) allow_host_network: bool,
    pub(super) use_wait_flag: bool,
    pub(super) timeout_close_wait_secs: Option<u32>,
    pub(super) validate: Validate,
    pub(super) to: Option<SocketAddr>,
    pub(super) from: Option<(IpAddr, Option<u16>)>,
    pub(super) in_device: Option<Name>,
    pub(super) out_device: Option<Name>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) expect: Option<Expected>,
    pub(super) log_format: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) output: Output,
}

#[derive(Debug)]
pub(super) struct Flag {
    /// The long name; names are without dashes.
    pub(super) name: &'static str,
    pub(super) alias: Option<&'static str>,
    pub(super) short: Option<char>,
    pub(super) value: Value,
    /// Words that its value may be for a subcommand, for help and completions; none where it is something else.
    pub(super) words: fn(Subcommand) -> Vec<&'static str>,
    pub(super) taken_by: &'static [Subcommand],
    pub(super) required_by: &'static [Subcommand],
    pub(super) heading: &'static str,
    pub(super) help: &'static str,
}

/// How a flag's value is given, what help calls it, and the function that reads it: of one that is given more than
/// once, each value, so that the last counts, or of a list all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// `--flag WORD` or `--flag=WORD`.
    Word(&'static str, fn(&mut Settings, &str) -> Result<(), String>),
    /// The same; it may begin with a dash.
    Number(&'static str, fn(&mut Settings, &str) -> Result<(), String>),
    /// The same as a word; it need not be UTF-8.
    Path(&'static str, fn(&mut Settings, PathBuf) -> Result<(), String>),
    /// `--flag`, which is true, or `--flag=VALUE`.
    Switch(&'static str, fn(&mut Settings, &str) -> Result<(), String>),
}

/// The flags that a subcommand takes.
pub(super) fn taken_by(subcommand: Subcommand) -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().filter(move |flag| flag.taken_by.contains(&subcommand))
}

impl Flag {
    pub(super) fn placeholder(&self) -> &'static str {
        match self.value {
            Value::Word(name, _) | Value::Number(name, _) | Value::Path(name, _) | Value::Switch(name, _) => name,
        }
    }

    /// Its long names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.name), self.alias].into_iter().flatten()
    }

    /// Its long and short names as they are typed.
    pub(super) fn spellings(&self) -> impl Iterator<Item = String> {
        self.names().map(|name| format!("--{name}")).chain(self.short.map(|short| format!("-{short}")))
    }

    /// Reads one value. An error names the flag.
    pub(super) fn read(&self, settings: &mut Settings, value: &OsStr) -> Result<(), String> {
        let done = match (self.value, value.to_str()) {
            (Value::Path(_, set), _) => set(settings, PathBuf::from(value)),
            (Value::Word(_, set) | Value::Number(_, set) | Value::Switch(_, set), Some(text)) => set(settings, text),
            (_, None) => Err(format!("\"{}\" is not UTF-8 text", value.display())),
        };
        done.map_err(|reason| format!("--{} {reason}", self.name))
    }
}

/// The heading of the flags that say which rules to install.
pub(super) const RULES: &str = "Rules";
const PLACE: &str = "Where and how";
const CONNECTION: &str = "Connection";
const LOG: &str = "Log";
const OUTPUT: &str = "Output";
const COMPATIBILITY: &str = "Compatibility";

/// What most flags have in common, and below, those with one purpose.
const FLAG: Flag = Flag {
    name: "",
    alias: None,
    short: None,
    value: Value::Path("", |_, _| Ok(())),
    words: |_| Vec::new(),
    taken_by: &[Subcommand::Install, Subcommand::Verify],
    required_by: &[],
    heading: RULES,
    help: "",
};

const PLACING: Flag = Flag { heading: PLACE, taken_by: &[Subcommand::Install], ..FLAG };
const CONNECTING: Flag = Flag { heading: CONNECTION, taken_by: &[Subcommand::Explain], ..FLAG };
const VALIDATING: Flag = Flag { heading: CONNECTION, taken_by: &[Subcommand::Validate], ..FLAG };

fn set<T>(setting: &mut T, value: Result<T, String>) -> Result<(), String> {
    *setting = value?;
    Ok(())
}

fn add<T>(setting: &mut Vec<T>, values: Result<Vec<T>, String>) -> Result<(), String> {
    setting.extend(values?);
    Ok(())
}

/// Every flag, in the order in which help shows them.
pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: flags::INCOMING_PROXY_PORT,
        short: Some('p'),
        value: Value::Number("PORT", |to, text| set(&mut to.rules.inbound_port, values::proxy_port(text).map(Some))),
        required_by: &[Subcommand::Install],
        help: "Port of the proxy for inbound connections",
        ..FLAG
    },
    Flag {
        name: flags::OUTGOING_PROXY_PORT,
        short: Some('o'),
        value: Value::Number("PORT", |to, text| set(&mut to.rules.outbound_port, values::proxy_port(text).map(Some))),
        required_by: &[Subcommand::Install],
        help: "Port of the proxy for outbound connections",
        ..FLAG
    },
    Flag {
        name: flags::PROXY_UID,
        short: Some('u'),
        value: Value::Number("UID", |to, text| set(&mut to.rules.config.proxy_uid, values::owner(text))),
        help: "User id of the proxy, whose own connections are not redirected\n\
               [default: -1, none]",
        ..FLAG
    },
    Flag {
        name: flags::PROXY_GID,
        short: Some('g'),
        value: Value::Number("GID", |to, text| set(&mut to.rules.config.proxy_gid, values::owner(text))),
        help: "Group id of the proxy, whose own connections are not redirected\n\
               [default: -1, none]",
        ..FLAG
    },
    Flag {
        name: flags::PORTS_TO_REDIRECT,
        short: Some('r'),
        value: Value::Number("PORTS", |to, text| add(&mut to.rules.config.redirected_ports, to_redirect(text, "port"))),
        help: "Redirect only these inbound ports, e.g. 80,443 [default: all]",
        ..FLAG
    },
    Flag {
        name: flags::INBOUND_PORTS_TO_IGNORE,
        value: Value::Number("PORTS", |to, text| add(&mut to.rules.config.ignored_inbound_ports, list(text))),
        help: "Inbound ports that bypass the proxy, e.g. 4190,8000-8100",
        ..FLAG
    },
    Flag {
        name: flags::OUTBOUND_PORTS_TO_IGNORE,
        value: Value::Number("PORTS", |to, text| add(&mut to.rules.config.ignored_outbound_ports, list(text))),
        help: "Outbound ports that bypass the proxy, e.g. 443,3306",
        ..FLAG
    },
    Flag {
        name: flags::INBOUND_SUBNETS_TO_IGNORE,
        alias: Some("subnets-to-ignore"),
        value: Value::Number("SUBNETS", |to, text| add(&mut to.rules.config.ignored_inbound_subnets, list(text))),
        help: "Connections from these subnets bypass the proxy,\n\
               e.g. 10.0.0.0/8,fd00::/8",
        ..FLAG
    },
    Flag {
        name: flags::OUTBOUND_SUBNETS_TO_IGNORE,
        value: Value::Number("SUBNETS", |to, text| add(&mut to.rules.config.ignored_outbound_subnets, list(text))),
        help: "Connections to these subnets bypass the proxy, e.g. 169.254.169.254/32",
        ..FLAG
    },
    Flag {
        name: flags::OUTBOUND_PORTS_TO_REDIRECT,
        value: Value::Number("PORTS", |to, text| {
            add(&mut to.rules.config.redirected_outbound_ports, to_redirect(text, "port"))
        }),
        help: "Redirect only these outbound ports, e.g. 80,8000-8100 [default: all]",
        ..FLAG
    },
    Flag {
        name: flags::OUTBOUND_SUBNETS_TO_REDIRECT,
        value: Value::Number("SUBNETS", |to, text| {
            add(&mut to.rules.config.redirected_outbound_subnets, to_redirect(text, "subnet"))
        }),
        help: "Redirect only connections to these subnets, e.g. 10.0.0.0/8,fd00::/8,\n\
               and, with --outbound-ports-to-redirect, only to those ports of them\n\
               [default: all]",
        ..FLAG
    },
    Flag {
        name: flags::SKIP_UID,
        value: Value::Number("UIDS", |to, text| add(&mut to.rules.config.ignored_uids, list(text))),
        help: "Other users whose connections bypass the proxy, e.g. 0,1000-1999",
        ..FLAG
    },
    Flag {
        name: flags::SKIP_GID,
        value: Value::Number("GIDS", |to, text| add(&mut to.rules.config.ignored_gids, list(text))),
        help: "Groups whose connections bypass the proxy, e.g. 7,1000-1999",
        ..FLAG
    },
    Flag {
        name: flags::INBOUND_INTERFACES_TO_IGNORE,
        value: Value::Word("NAMES", |to, text| add(&mut to.rules.config.ignored_inbound_interfaces, list(text))),
        help: "Connections that come in by these interfaces bypass the proxy,\n\
               e.g. net1,k6t-eth0",
        ..FLAG
    },
    Flag {
        name: flags::OUTBOUND_INTERFACES_TO_IGNORE,
        value: Value::Word("NAMES", |to, text| add(&mut to.rules.config.ignored_outbound_interfaces, list(text))),
        help: "Connections that leave by these interfaces bypass the proxy,\n\
               e.g. net1,tun0",
        ..FLAG
    },
    Flag {
        name: flags::IPV6,
        value: Value::Switch("BOOL", |to, text| set(&mut to.rules.config.ipv6, values::boolean(text))),
        help: "Redirect IPv6 as well as IPv4; --ipv6=false for IPv4 alone\n\
               [default: true]",
        ..FLAG
    },
    Flag {
        name: flags::IPTABLES_MODE,
        value: Value::Word("MODE", |to, text| set(&mut to.iptables_mode, values::mode(text))),
        words: |_| ModeChoice::NAMED.iter().map(|(name, _)| *name).collect(),
        heading: PLACE,
        help: "How the rules reach the kernel: nft (nf_tables over netlink, as\n\
               iptables-nft does it), native (nf_tables without xtables), legacy\n\
               (iptables-legacy-restore), plain (whatever iptables is on PATH) or\n\
               auto (what fits the kernel and the namespace)\n\
               [default: legacy, or IPTABLES_MODE from the environment]",
        ..FLAG
    },
    Flag {
        name: "no-fallback",
        value: Value::Switch("BOOL", |to, text| set(&mut to.no_fallback, values::boolean(text).map(Some))),
        heading: PLACE,
        help: "Fail where the mode can't be used, instead of falling back: legacy\n\
               mode to nft mode where iptables or its tables are missing, nft mode to\n\
               native mode where the kernel lacks xtables\n\
               [default: false, or PROXY_INIT_NO_FALLBACK from the environment]",
        ..FLAG
    },
    Flag {
        name: "netns",
        value: Value::Path("PATH", |to, path| {
            // Of a script whose variable is not set, most likely; the current namespace may be the node's.
            if path.as_os_str().is_empty() {
                return Err("is empty: name a network namespace, or leave it out for the current one".to_owned());
            }
            set(&mut to.netns, Ok(Some(path)))
        }),
        taken_by: &[
            Subcommand::Install,
            Subcommand::Show,
            Subcommand::Explain,
            Subcommand::Verify,
            Subcommand::Uninstall,
            Subcommand::Detect,
        ],
        help: "Network namespace to work in, e.g. /var/run/netns/pod\n\
               [default: the current one]",
        ..PLACING
    },
    Flag {
        name: "allow-host-network",
        value: Value::Switch("BOOL", |to, text| set(&mut to.allow_host_network, values::boolean(text))),
        help: "Install the rules even in the machine's own network namespace, which a\n\
               pod with hostNetwork is in: there, the rules redirect the node's own\n\
               connections and stay when the pod is gone. Without it, that is an\n\
               error in a pod, and a warning elsewhere",
        ..PLACING
    },
    Flag {
        name: "simulate",
        value: Value::Switch("BOOL|ipv4|ipv6", |to, text| set(&mut to.simulate, values::simulate(text))),
        words: |_| vec!["ipv4", "ipv6", "true", "false"],
        help: "Print the rules and change nothing; needs no privileges.\n\
               --simulate=ipv4 is input for iptables-restore --noflush,\n\
               --simulate=ipv6 for ip6tables-restore --noflush; the combined output\n\
               of both cannot be restored. In native mode it is input for nft -f -",
        ..PLACING
    },
    Flag {
        name: "replace-other-backend",
        value: Value::Switch("BOOL", |to, text| set(&mut to.replace_other_backend, values::boolean(text))),
        help: "Remove the rules that proxy-init installed in another mode; without it\n\
               they are an error, because connections would be redirected twice",
        ..PLACING
    },
    Flag {
        name: "timeout-close-wait-secs",
        value: Value::Number("SECONDS", |to, text| set(&mut to.timeout_close_wait_secs, values::seconds(text))),
        help: "Set the namespace's nf_conntrack_tcp_timeout_close_wait\n\
               [default: 0, leave it]",
        ..PLACING
    },
    Flag {
        name: "use-wait-flag",
        short: Some('w'),
        value: Value::Switch("BOOL", |to, text| set(&mut to.use_wait_flag, values::boolean(text))),
        taken_by: &[Subcommand::Install, Subcommand::Uninstall],
        help: "Wait for the xtables lock (legacy mode; the other modes need no lock)",
        ..PLACING
    },
    Flag {
        name: "output",
        value: Value::Word("FORMAT", |to, text| set(&mut to.output, values::output(text, to.subcommand))),
        words: |subcommand| Output::named(subcommand).into_iter().map(|(name, _)| name).collect(),
        taken_by: &[Subcommand::Show, Subcommand::Explain, Subcommand::Verify, Subcommand::Detect],
        heading: OUTPUT,
        help: "text for people, short for the answer of explain alone, or json for\n\
               programs, errors included [default: text]",
        ..FLAG
    },
    Flag {
        name: "to",
        value: Value::Word("ADDRESS:PORT", |to, text| set(&mut to.to, values::destination(text).map(Some))),
        required_by: &[Subcommand::Explain],
        help: "Where the connection goes, e.g. 10.0.0.1:80 or [fd00::1]:80",
        ..CONNECTING
    },
    Flag {
        name: "from",
        value: Value::Word("ADDRESS[:PORT]", |to, text| set(&mut to.from, values::source(text).map(Some))),
        help: "Where it comes from, e.g. 10.0.0.2 or [fd00::2]:40000\n\
               [default: inbound, any address; outbound, the one that routing\n\
               chooses]",
        ..CONNECTING
    },
    Flag {
        name: "in",
        value: Value::Word("INTERFACE", |to, text| set(&mut to.in_device, values::device(text).map(Some))),
        help: "By which interface an inbound connection comes in\n\
               [default: any but lo]",
        ..CONNECTING
    },
    Flag {
        name: "out",
        value: Value::Word("INTERFACE", |to, text| set(&mut to.out_device, values::device(text).map(Some))),
        help: "The interface to which an outbound connection's socket is bound\n\
               [default: none; routing says by which one it leaves]",
        ..CONNECTING
    },
    Flag {
        name: "uid",
        value: Value::Number("UID", |to, text| set(&mut to.uid, values::id(text).map(Some))),
        help: "User id of the process that makes an outbound connection\n\
               [default: any but the proxy's]",
        ..CONNECTING
    },
    Flag {
        name: "gid",
        value: Value::Number("GID", |to, text| set(&mut to.gid, values::id(text).map(Some))),
        help: "Group id of that process [default: any but the proxy's]",
        ..CONNECTING
    },
    Flag {
        name: "expect",
        value: Value::Word("ANSWER", |to, text| set(&mut to.expect, named(text, &Expected::NAMED).map(Some))),
        words: |_| Expected::NAMED.map(|(name, _)| name).to_vec(),
        taken_by: &[Subcommand::Explain],
        heading: OUTPUT,
        help: "Exit 3 if the answer is another: proxy or bypass",
        ..FLAG
    },
    Flag {
        name: "listen-addr",
        value: Value::Word("ADDRESS", |to, text| set(&mut to.validate.listen, values::address(text))),
        help: "Where the proxy listens for outbound connections\n\
               [default: 0.0.0.0:4140]",
        ..VALIDATING
    },
    Flag {
        name: "connect-addr",
        value: Value::Word("ADDRESS", |to, text| set(&mut to.validate.connect, values::address(text))),
        help: "Where to connect to; it needs a route, but no host\n\
               [default: 192.0.2.2:1404]",
        ..VALIDATING
    },
    Flag {
        name: "timeout",
        value: Value::Word("DURATION", |to, text| set(&mut to.validate.timeout, values::duration(text))),
        help: "How long the connection may take, e.g. 500ms or 2m [default: 10s]",
        ..VALIDATING
    },
    Flag {
        name: "log-format",
        value: Value::Word("FORMAT", |to, text| set(&mut to.log_format, Ok(Some(text.to_owned())))),
        words: |_| values::LOG_FORMATS.map(|(name, _)| name).to_vec(),
        taken_by: &[Subcommand::Install, Subcommand::Uninstall, Subcommand::Validate],
        heading: LOG,
        help: "Format of the log on stdout: plain (logfmt) or json [default: plain]",
        ..FLAG
    },
    Flag {
        name: "log-level",
        value: Value::Word("LEVEL", |to, text| set(&mut to.log_level, Ok(Some(text.to_owned())))),
        words: |_| vec!["error", "warning", "info", "debug"],
        taken_by: &[Subcommand::Install, Subcommand::Uninstall, Subcommand::Validate],
        heading: LOG,
        help: "Least important lines to log: error, warning, info or debug\n\
               [default: info]",
        ..FLAG
    },
    Flag {
        name: "firewall-bin-path",
        value: Value::Word("NAME", |to, text| set(&mut to.firewall_bin_path, Ok(text.to_owned()))),
        taken_by: &[Subcommand::Install, Subcommand::Verify, Subcommand::Uninstall],
        heading: COMPATIBILITY,
        help: "iptables-nft, iptables-legacy or iptables: linkerd-init's older way to\n\
               choose the mode. The folder of a path is where iptables commands are\n\
               looked for first",
        ..FLAG
    },
    Flag {
        name: "firewall-save-bin-path",
        value: Value::Word("NAME", |_, _| Ok(())),
        heading: COMPATIBILITY,
        help: "Accepted for compatibility; ignored",
        ..FLAG
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_that_is_offered_is_accepted() {
        for (flag, &subcommand) in FLAGS.iter().flat_map(|flag| flag.taken_by.iter().map(move |it| (flag, it))) {
            for word in (flag.words)(subcommand) {
                let mut settings = Settings { subcommand, ..Settings::default() };
                assert_eq!(flag.read(&mut settings, word.as_ref()), Ok(()), "{} {word}", flag.name);
            }
        }
    }

    #[test]
    fn help_has_something_to_say_of_each_flag() {
        for flag in FLAGS {
            let texts = [flag.name, flag.placeholder(), flag.heading, flag.help];
            assert!(texts.iter().all(|text| !text.is_empty()), "{texts:?}");
        }
    }

    #[test]
    fn a_name_means_one_flag() {
        let mut names: Vec<_> = FLAGS.iter().flat_map(Flag::spellings).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
