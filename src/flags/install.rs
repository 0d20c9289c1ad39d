//! The subcommands that change something, with their flags, and the [`Install`] or [`Uninstall`] that arguments ask for.

use std::path::{Path, PathBuf};

use ruleset::Family;

use super::pod_namespace::{path_of_address, path_of_pod};
use super::values::{self, LOG_FORMATS, named};
use super::{Exit, FLAG, Flag, Given, PROGRAM, SUBCOMMAND, Subcommand, ValueForm};
use crate::config::settings::OUTBOUND_SUBNETS_TO_REDIRECT;
use crate::config::{Mode, ModeChoice};
use crate::install::host_network::HostNetwork;
use crate::install::{Install, Simulate};
use crate::log::{Level, Log};
use crate::uninstall::Uninstall;

pub static INSTALL: Subcommand = Subcommand {
    name: PROGRAM,
    about: "Redirects a pod's TCP connections through its sidecar proxy",
    details: "It installs linkerd-init's rules for IPv4 and IPv6 in the network namespace that\n\
              it runs in, or in that of --netns, and takes linkerd-init's flags. All of them\n\
              are installed or none: in one transaction or, in legacy mode, in one for IPv4\n\
              and one for IPv6. It needs root or CAP_NET_ADMIN. Running it again replaces its\n\
              own rules and leaves all others alone.\n\n\
              Lists are separated by commas, and the flag of a list may be repeated. A boolean\n\
              takes a value only after an equals sign, as in --ipv6=false.\n\n\
              For each flag about rules that is not given, the environment may have a variable\n\
              of that name, such as PROXY_INIT_SKIP_UID for --skip-uid.",
    has_version: true,
    flags: || Flag::about_rules().chain(INSTALLING).collect(),
    examples: &[
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
    exits: &[
        (Exit::Done, "done: the rules are installed; verify: they are in place"),
        (Exit::Failed, FAILED),
        (Exit::BadInput, Exit::BAD_INPUT),
        (Exit::Differs, "verify: the rules differ; explain: the answer is not what --expect names"),
        (Exit::NotValidated, "validate: the connection did not arrive, or a signal ended the run"),
    ],
    ..SUBCOMMAND
};

pub static UNINSTALL: Subcommand = Subcommand {
    name: "uninstall",
    about: "Remove proxy-init's rules from every backend that has them",
    details: "All other rules and chains stay as they are. It needs none of the flags that the\n\
              rules were installed with.",
    flags: || vec![NETNS, WAIT, LOG_FORMAT, LOG_LEVEL, BIN_PATH],
    examples: &[("proxy-init uninstall --netns /var/run/netns/pod", "remove the rules from that namespace")],
    exits: &[
        (Exit::Done, "no rules of proxy-init are left"),
        (Exit::Failed, FAILED),
        (Exit::BadInput, Exit::BAD_INPUT),
    ],
    ..SUBCOMMAND
};

const FAILED: &str = "failed; the error says why, what to do, and whether anything was changed";

const PLACE: &str = "Where and how";
const LOG: &str = "Log";
const COMPATIBILITY: &str = "Compatibility";

const PLACING: Flag = Flag { heading: PLACE, ..FLAG };
const SWITCH: Flag = Flag { form: ValueForm::Switch, placeholder: "BOOL", ..PLACING };

pub(crate) const MODE: Flag = Flag {
    name: ModeChoice::FLAG,
    // As in kube-proxy's images.
    variable: Some("IPTABLES_MODE"),
    placeholder: "MODE",
    words: || ModeChoice::NAMED.iter().map(|(name, _)| *name).collect(),
    help: "How the rules reach the kernel: nft (nf_tables over netlink, as\n\
           iptables-nft does it), native (nf_tables without xtables), legacy\n\
           (iptables-legacy-restore), plain (whatever iptables is on PATH) or\n\
           auto (what fits the kernel and the namespace)\n\
           [default: legacy, or IPTABLES_MODE from the environment]",
    ..PLACING
};

pub(crate) const NO_FALLBACK: Flag = Flag {
    name: "no-fallback",
    variable: Some("PROXY_INIT_NO_FALLBACK"),
    help: "Fail where the mode can't be used, instead of falling back: legacy\n\
           mode to nft mode where iptables or its tables are missing, nft mode to\n\
           native mode where the kernel lacks xtables\n\
           [default: false, or PROXY_INIT_NO_FALLBACK from the environment]",
    ..SWITCH
};

pub(crate) const NETNS: Flag = Flag {
    name: "netns",
    form: ValueForm::Path,
    placeholder: "PATH",
    help: "Network namespace to work in, e.g. /var/run/netns/pod, or on a node\n\
           pod:UID or address:IP [default: the current one]",
    ..PLACING
};

const WAIT: Flag = Flag {
    name: "use-wait-flag",
    short: Some('w'),
    help: "Wait for the xtables lock (legacy mode; the other modes need no lock)",
    ..SWITCH
};

pub(crate) const LOG_FORMAT: Flag = Flag {
    name: "log-format",
    placeholder: "FORMAT",
    words: || LOG_FORMATS.map(|(name, _)| name).to_vec(),
    heading: LOG,
    help: "Format of the log on stdout: plain (logfmt) or json [default: plain]",
    ..FLAG
};

pub(crate) const LOG_LEVEL: Flag = Flag {
    name: "log-level",
    placeholder: "LEVEL",
    words: || vec!["error", "warning", "info", "debug"],
    heading: LOG,
    help: "Least important lines to log: error, warning, info or debug\n\
           [default: info]",
    ..FLAG
};

pub(crate) const BIN_PATH: Flag = Flag {
    name: "firewall-bin-path",
    placeholder: "NAME",
    heading: COMPATIBILITY,
    help: "iptables-nft, iptables-legacy or iptables: linkerd-init's older way to\n\
           choose the mode. The folder of a path is where iptables commands are\n\
           looked for first",
    ..FLAG
};

pub(crate) const SAVE_BIN_PATH: Flag = Flag {
    name: "firewall-save-bin-path",
    placeholder: "NAME",
    heading: COMPATIBILITY,
    help: "Accepted for compatibility; ignored",
    ..FLAG
};

const INSTALLING: [Flag; 12] = [
    MODE,
    NO_FALLBACK,
    NETNS,
    Flag {
        name: "allow-host-network",
        help: "Install the rules even in the machine's own network namespace, which a\n\
               pod with hostNetwork is in: there, the rules redirect the node's own\n\
               connections and stay when the pod is gone. Without it, that is an\n\
               error in a pod, and a warning elsewhere",
        ..SWITCH
    },
    Flag {
        name: "simulate",
        placeholder: "BOOL|ipv4|ipv6",
        words: || vec!["ipv4", "ipv6", "true", "false"],
        help: "Print the rules and change nothing; needs no privileges.\n\
               --simulate=ipv4 is input for iptables-restore --noflush,\n\
               --simulate=ipv6 for ip6tables-restore --noflush; the combined output\n\
               of both cannot be restored. In native mode it is input for nft -f -",
        ..SWITCH
    },
    Flag {
        name: "replace-other-backend",
        help: "Remove the rules that proxy-init installed in another mode; without it\n\
               they are an error, because connections would be redirected twice",
        ..SWITCH
    },
    Flag {
        name: "timeout-close-wait-secs",
        form: ValueForm::Number,
        placeholder: "SECONDS",
        help: "Set the namespace's nf_conntrack_tcp_timeout_close_wait\n\
               [default: 0, leave it]",
        ..PLACING
    },
    WAIT,
    LOG_FORMAT,
    LOG_LEVEL,
    BIN_PATH,
    SAVE_BIN_PATH,
];

/// The installation that is asked for.
pub fn install(given: &Given<'_>) -> Result<Install, String> {
    let firewall_bin_path = firewall_bin_path(given)?;
    let mode = choice(given, &firewall_bin_path)?;
    let config = given.rules()?.finish();
    let config = config.map_err(|missing| {
        given.subcommand.see_help(&match missing {
            [flag] => format!("--{flag} is required: a port of the proxy"),
            all => format!("--{} are required: the proxy's ports", all.join(" and --")),
        })
    })?;
    let chosen = &config.redirected_outbound_subnets;
    if !chosen.is_empty() && !chosen.iter().any(|subnet| config.families().contains(&subnet.family())) {
        return Err(format!(
            "--{OUTBOUND_SUBNETS_TO_REDIRECT} names IPv6 subnets only: with --ipv6=false there are no rules for IPv6, so no \
             outbound connection would be redirected"
        ));
    }
    Ok(Install {
        config,
        mode,
        iptables_dir: iptables_dir(&firewall_bin_path),
        wait_for_lock: given.is_on(WAIT.name)?,
        replace_other_backend: given.is_on("replace-other-backend")?,
        no_fallback: given.is_on(NO_FALLBACK.name)?,
        netns: netns(given)?,
        close_wait_timeout: given.value("timeout-close-wait-secs", values::seconds)?.flatten(),
        host_network: match (given.is_on("allow-host-network")?, (given.environment)(IN_A_POD)) {
            (true, _) => HostNetwork::Allow,
            (false, Some(_)) => HostNetwork::Refuse,
            (false, None) => HostNetwork::Warn,
        },
    })
}

/// kubelet sets this variable in every container of a pod.
pub const IN_A_POD: &str = "KUBERNETES_SERVICE_HOST";

/// The rules that are only to be printed, if that is asked for.
pub fn simulate(given: &Given<'_>, install: &Install) -> Result<Option<Simulate>, String> {
    let simulate = given.value("simulate", values::simulate)?.flatten();
    match simulate {
        Some(Simulate::Only(_)) if install.mode == ModeChoice::Mode(Mode::Native) => {
            Err("--simulate: native mode has one table for both families: write --simulate alone".to_owned())
        }
        Some(Simulate::Only(Family::V6)) if !install.config.ipv6 => {
            Err("--simulate=ipv6: with --ipv6=false there are no rules for IPv6".to_owned())
        }
        _ => Ok(simulate),
    }
}

/// The removal that is asked for.
pub fn uninstall(given: &Given<'_>) -> Result<Uninstall, String> {
    Ok(Uninstall {
        iptables_dir: iptables_dir(&firewall_bin_path(given)?),
        wait_for_lock: given.is_on(WAIT.name)?,
        netns: netns(given)?,
    })
}

/// The log of an installation or a removal. Of an unknown format it is plain, as linkerd-init has it: a log is no reason to
/// stop a pod.
pub fn log(given: &Given<'_>) -> Result<Log, String> {
    let mut unknown = None;
    let format = given.value(LOG_FORMAT.name, |text| {
        let format = named(text, &LOG_FORMATS);
        unknown = format.is_err().then(|| text.to_owned());
        Ok(format.unwrap_or_default())
    })?;
    let level = given.value(LOG_LEVEL.name, values::log_level)?;
    let mut log = Log::new(format.unwrap_or_default(), level.unwrap_or_default());
    if let Some(text) = unknown {
        log.add(Level::Warning, format_args!("log format \"{text}\" is neither plain nor json: this log is plain"));
    }
    Ok(log)
}

/// The network namespace to work in; none for the current one.
pub fn netns(given: &Given<'_>) -> Result<Option<PathBuf>, String> {
    let path = given.path(NETNS.name, "a network namespace, or leave it out for the current one")?;
    let found = match path.as_ref().and_then(|path| path.to_str()?.split_once(':')) {
        Some(("pod", uid)) => path_of_pod(uid),
        Some(("address", address)) => path_of_address(address),
        _ => return Ok(path),
    };
    found.map(Some).map_err(|reason| format!("--netns: {reason}"))
}

/// The mode that the flag or the environment names.
pub fn named_mode(given: &Given<'_>) -> Result<Option<ModeChoice>, String> {
    Ok(given.value(MODE.name, values::mode)?.flatten())
}

fn firewall_bin_path(given: &Given<'_>) -> Result<String, String> {
    Ok(given.value(BIN_PATH.name, |path| Ok(path.to_owned()))?.unwrap_or_default())
}

fn iptables_dir(path: &str) -> Option<PathBuf> {
    Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned)
}

/// The mode of the flag or of the environment, or else of the iptables binary's name, or else linkerd-init's.
fn choice(given: &Given<'_>, firewall_bin_path: &str) -> Result<ModeChoice, String> {
    if let Some(choice) = named_mode(given)? {
        return Ok(choice);
    }
    // Wherever the binary is, its name stands for a mode.
    match firewall_bin_path.rsplit('/').next().unwrap_or_default() {
        "iptables-nft" => Ok(ModeChoice::Mode(Mode::Nft)),
        "" => Ok(ModeChoice::Default),
        "iptables-legacy" => Ok(ModeChoice::Mode(Mode::Legacy)),
        "iptables" => Ok(ModeChoice::Plain),
        _ => Err(format!(
            "--firewall-bin-path \"{firewall_bin_path}\" stands for no mode: name iptables-nft, iptables-legacy or \
             iptables, or use --iptables-mode"
        )),
    }
}
