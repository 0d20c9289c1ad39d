//! The flags: each is one entry of [`SETTINGS`], if it is about rules, or of [`FLAGS`]. It holds the flag's name, its help,
//! which subcommands take it, and what its value does. The reader of arguments (parse.rs), help, the man page and
//! completions all go by these tables.

use std::ffi::OsStr;
use std::path::PathBuf;

#[cfg(feature = "diagnose")]
use super::diagnosis;
use super::subcommand::Subcommand;
use super::values::{self, LOG_FORMATS, named};
use crate::config::ModeChoice;
use crate::config::settings::{Draft, Form, SETTINGS, Setting};
use crate::install::Simulate;
use crate::log::{Format, Level};

/// The values of the given flags, each checked by itself.
#[derive(Debug, Default)]
pub(super) struct Options {
    pub(super) rules: Draft,
    pub(super) iptables_mode: Option<ModeChoice>,
    pub(super) firewall_bin_path: String,
    pub(super) no_fallback: bool,
    pub(super) replace_other_backend: bool,
    pub(super) simulate: Option<Simulate>,
    pub(super) netns: Option<PathBuf>,
    pub(super) allow_host_network: bool,
    pub(super) use_wait_flag: bool,
    pub(super) timeout_close_wait_secs: Option<u32>,
    pub(super) log_format: Format,
    /// Another word than a format's, for which the log is plain.
    pub(super) unknown_log_format: Option<String>,
    pub(super) log_level: Level,
    #[cfg(feature = "diagnose")]
    pub(super) asked: diagnosis::Asked,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Flag {
    /// The long name; names are without dashes.
    pub(super) name: &'static str,
    pub(super) alias: Option<&'static str>,
    pub(super) short: Option<char>,
    /// The variable of the environment that counts where the flag isn't given.
    pub(super) variable: Option<&'static str>,
    pub(super) value: Value,
    /// Words that its value may be for a subcommand, for help and completions; none where it is something else.
    pub(super) words: fn(Subcommand) -> Vec<&'static str>,
    /// Beside those of diagnosis, which say themselves which of the others' flags they take.
    pub(super) taken_by: &'static [Subcommand],
    pub(super) required_by: &'static [Subcommand],
    pub(super) heading: &'static str,
    pub(super) help: &'static str,
}

/// How a flag's value is given, what help calls it, and the function that reads it. Of a flag that is given more than once,
/// each value is read, so that the last counts, or all items of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// As the setting has it.
    Setting(&'static Setting),
    /// `--flag WORD` or `--flag=WORD`.
    Word(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// The same; it may begin with a dash.
    Number(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// The same as a word; it need not be UTF-8.
    Path(&'static str, fn(&mut Options, PathBuf) -> Result<(), String>),
    /// `--flag`, which is true, or `--flag=VALUE`.
    Switch(&'static str, fn(&mut Options, &str) -> Result<(), String>),
}

/// Every flag, in the order in which help shows them.
pub(super) fn flags() -> impl Iterator<Item = Flag> {
    #[cfg(feature = "diagnose")]
    let asking = diagnosis::FLAGS;
    #[cfg(not(feature = "diagnose"))]
    let asking = &[];
    SETTINGS.iter().map(Flag::of).chain(FLAGS.iter().chain(asking).copied())
}

/// The flags that a subcommand takes.
pub(super) fn taken_by(subcommand: Subcommand) -> impl Iterator<Item = Flag> {
    flags().filter(move |flag| flag.is_taken_by(subcommand))
}

impl Flag {
    fn of(setting: &'static Setting) -> Self {
        Self {
            name: setting.flag,
            alias: setting.alias,
            short: setting.short,
            variable: Some(setting.variable),
            value: Value::Setting(setting),
            required_by: if setting.is_required { &[Subcommand::Install] } else { &[] },
            heading: RULES,
            help: setting.help,
            ..FLAG
        }
    }

    pub(super) fn is_taken_by(&self, subcommand: Subcommand) -> bool {
        match subcommand {
            #[cfg(feature = "diagnose")]
            Subcommand::Diagnose(diagnosis) if diagnosis.shares(self) => true,
            _ => self.taken_by.contains(&subcommand),
        }
    }

    pub(super) fn placeholder(&self) -> &'static str {
        match self.value {
            Value::Setting(setting) => setting.placeholder,
            Value::Word(name, _) | Value::Number(name, _) | Value::Path(name, _) | Value::Switch(name, _) => name,
        }
    }

    /// Returns true if the flag's value is after an equals sign, or true.
    pub(super) fn is_switch(&self) -> bool {
        match self.value {
            Value::Setting(setting) => setting.form == Form::Switch,
            value => matches!(value, Value::Switch(..)),
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

    /// Reads one value. An error reads on from the flag's name.
    pub(super) fn read(&self, options: &mut Options, value: &OsStr) -> Result<(), String> {
        match (self.value, value.to_str()) {
            (Value::Path(_, set), _) => set(options, PathBuf::from(value)),
            (Value::Setting(setting), Some(text)) => {
                setting.read(&mut options.rules, text).map_err(|invalid| invalid.to_string())
            }
            (Value::Word(_, set) | Value::Number(_, set) | Value::Switch(_, set), Some(text)) => set(options, text),
            (_, None) => Err(format!("\"{}\" is not UTF-8 text", value.display())),
        }
    }
}

/// The heading of the flags that say which rules to install.
pub(super) const RULES: &str = "Rules";
const PLACE: &str = "Where and how";
const LOG: &str = "Log";
const COMPATIBILITY: &str = "Compatibility";

/// The common parts of most flags and, below, of flags with one purpose.
pub(super) const FLAG: Flag = Flag {
    name: "",
    alias: None,
    short: None,
    variable: None,
    value: Value::Path("", |_, _| Ok(())),
    words: |_| Vec::new(),
    taken_by: &[Subcommand::Install],
    required_by: &[],
    heading: RULES,
    help: "",
};

const PLACING: Flag = Flag { heading: PLACE, taken_by: &[Subcommand::Install], ..FLAG };

pub(super) const LOG_FORMAT: Flag = Flag {
    name: "log-format",
    words: |_| LOG_FORMATS.map(|(name, _)| name).to_vec(),
    taken_by: &[Subcommand::Install, Subcommand::Uninstall],
    heading: LOG,
    help: "Format of the log on stdout: plain (logfmt) or json [default: plain]",
    ..FLAG
};

pub(super) const LOG_LEVEL: Flag = Flag {
    name: "log-level",
    words: |_| vec!["error", "warning", "info", "debug"],
    taken_by: &[Subcommand::Install, Subcommand::Uninstall],
    heading: LOG,
    help: "Least important lines to log: error, warning, info or debug\n\
           [default: info]",
    ..FLAG
};

pub(super) fn set<T>(option: &mut T, value: Result<T, String>) -> Result<(), String> {
    *option = value?;
    Ok(())
}

/// The flags of installing and uninstalling that aren't about rules.
const FLAGS: &[Flag] = &[
    Flag {
        name: ModeChoice::FLAG,
        // As in kube-proxy's images.
        variable: Some("IPTABLES_MODE"),
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
        variable: Some("PROXY_INIT_NO_FALLBACK"),
        value: Value::Switch("BOOL", |to, text| set(&mut to.no_fallback, values::boolean(text))),
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
        taken_by: &[Subcommand::Install, Subcommand::Uninstall],
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
        // An unknown format is plain, as linkerd-init has it: a log is no reason to stop a pod.
        value: Value::Word("FORMAT", |to, text| {
            let format = named(text, &LOG_FORMATS);
            to.unknown_log_format = format.is_err().then(|| text.to_owned());
            set(&mut to.log_format, Ok(format.unwrap_or_default()))
        }),
        ..LOG_FORMAT
    },
    Flag { value: Value::Word("LEVEL", |to, text| set(&mut to.log_level, values::log_level(text))), ..LOG_LEVEL },
    Flag {
        name: "firewall-bin-path",
        value: Value::Word("NAME", |to, text| set(&mut to.firewall_bin_path, Ok(text.to_owned()))),
        taken_by: &[Subcommand::Install, Subcommand::Uninstall],
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
        for subcommand in Subcommand::all() {
            let words =
                taken_by(subcommand).flat_map(|flag| (flag.words)(subcommand).into_iter().map(move |it| (flag, it)));
            for (flag, word) in words {
                let mut options = Options::default();
                assert_eq!(flag.read(&mut options, word.as_ref()), Ok(()), "{} {word}", flag.name);
            }
        }
    }

    #[test]
    fn help_has_something_to_say_of_each_flag() {
        for flag in flags() {
            let texts = [flag.name, flag.placeholder(), flag.heading, flag.help];
            assert!(texts.iter().all(|text| !text.is_empty()), "{texts:?}");
        }
    }

    #[test]
    fn a_name_means_one_flag() {
        for subcommand in Subcommand::all() {
            let mut names: Vec<_> =
                taken_by(subcommand).flat_map(|flag| flag.spellings().collect::<Vec<_>>()).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
