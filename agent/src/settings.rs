//! Arguments and environment: Linkerd's own, and the agent's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::conflist::Entry;
use crate::plan::Place;

/// The socket's name in its folder.
pub const LOG_SOCKET: &str = "log.sock";

/// As which of the programs in Linkerd's image it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `linkerd2-cni-install`: puts the plugin on the node and keeps it there.
    Install,
    /// `linkerd-cni-repair-controller`: heals pods that started without rules.
    Repair,
    /// `linkerd-cni-agent`: all of it in one process.
    Agent,
}

impl Program {
    /// What a name (`argv[0]`) stands for.
    pub fn named(path: &Path) -> Self {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("linkerd2-cni-install") => Self::Install,
            Some("linkerd-cni-repair-controller") => Self::Repair,
            _ => Self::Agent,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Install => "linkerd2-cni-install",
            Self::Repair => "linkerd-cni-repair-controller",
            Self::Agent => "linkerd-cni-agent",
        }
    }

    /// Whether it installs the plugin.
    pub fn installs(self) -> bool {
        self != Self::Repair
    }

    /// Whether it watches pods.
    pub fn watches(self) -> bool {
        self != Self::Install
    }
}

/// A flag, its variable in the environment, the word for its value, its default, and its help.
struct Flag(&'static str, &'static str, &'static str, Option<&'static str>, &'static str);

/// Every flag. Those that Linkerd's programs have keep their variable.
const FLAGS: [Flag; 17] = [
    Flag(
        "log-level",
        "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL",
        "LEVEL",
        Some("info"),
        "error, warn, info, debug or trace; or TARGET=LEVEL,…",
    ),
    Flag("log-format", "LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT", "FORMAT", Some("plain"), "plain or json"),
    Flag(
        "admin-addr",
        "LINKERD_CNI_AGENT_ADMIN_ADDR",
        "ADDRESS:PORT",
        None,
        "Where /metrics, /readyz and /livez are served",
    ),
    Flag(
        "probe-addr",
        "LINKERD_CNI_AGENT_PROBE_ADDR",
        "ADDRESS:PORT",
        None,
        "Where /readyz and /livez alone are served, such as 127.0.0.1:9991 for\n\
         kubelet",
    ),
    Flag(
        "node-name",
        "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME",
        "NAME",
        None,
        "The node that it runs on (spec.nodeName)",
    ),
    Flag(
        "controller-pod-name",
        "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME",
        "NAME",
        None,
        "The pod that it runs in; without it, the host's name",
    ),
    Flag(
        "service-account",
        "LINKERD_CNI_AGENT_SERVICE_ACCOUNT",
        "FOLDER",
        Some("/var/run/secrets/kubernetes.io/serviceaccount"),
        "Where token, ca.crt and namespace are",
    ),
    Flag(
        "own-file",
        "LINKERD_CNI_AGENT_OWN_FILE",
        "NAME",
        None,
        "A list of the agent's own instead of an entry in each list: a copy of\n\
         the first one, to be read before it",
    ),
    Flag(
        "plugin-log",
        "LINKERD_CNI_AGENT_PLUGIN_LOG",
        "FOLDER",
        None,
        "A folder of the node, such as /run/linkerd-cni, in which the plugin\n\
         finds a socket for what it logs",
    ),
    Flag(
        "on-exit",
        "LINKERD_CNI_AGENT_ON_EXIT",
        "WHAT",
        Some("auto"),
        "auto: remove the plugin if it is being uninstalled; keep: never;\n\
         remove: always, as Linkerd's installer does",
    ),
    Flag(
        "rewrites-per-minute",
        "LINKERD_CNI_AGENT_REWRITES_PER_MINUTE",
        "NUMBER",
        Some("20"),
        "How often it puts the entry back into one file that another program\n\
         rewrites",
    ),
    Flag(
        "mode",
        "LINKERD_CNI_AGENT_MODE",
        "MODE",
        Some("in-place"),
        "What happens to a pod that lacks rules, or some of them: in-place,\n\
         delete or off",
    ),
    Flag(
        "on-drift",
        "LINKERD_CNI_AGENT_ON_DRIFT",
        "WHAT",
        Some("report"),
        "What happens to a running pod in which somebody changed rules, or\n\
         added some: report or repair",
    ),
    Flag(
        "verify-every",
        "LINKERD_CNI_AGENT_VERIFY_EVERY",
        "SECONDS",
        Some("30"),
        "How often every meshed pod's rules are compared with what they should\n\
         be; 0: never",
    ),
    Flag(
        "remove-taint",
        "LINKERD_CNI_AGENT_REMOVE_TAINT",
        "KEY",
        None,
        "A taint of the node's, such as linkerd.io/cni-not-ready, that is\n\
         removed once pods can be set up",
    ),
    Flag(
        "nri",
        "LINKERD_CNI_AGENT_NRI",
        SWITCH,
        Some("false"),
        "No plugin and no files: the runtime itself tells of each pod, by NRI\n\
         (containerd 2, CRI-O 1.30)",
    ),
    Flag(
        "nri-socket",
        "LINKERD_CNI_AGENT_NRI_SOCKET",
        "PATH",
        Some("/var/run/nri/nri.sock"),
        "Where the runtime waits for NRI plugins",
    ),
];

/// The word for the value of a flag that takes none: it is false, or true where the flag is there.
const SWITCH: &str = "";

/// What the repair controller takes no flags for: it deletes pods as upstream's does, and looks at no rules.
const NOT_OF_REPAIR: [(&str, &str); 5] =
    [("mode", "delete"), ("on-drift", "report"), ("verify-every", "0"), ("nri", "false"), ("nri-socket", "")];

/// What happens on SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// Whatever the API server says is happening.
    Auto,
    /// The plugin stays.
    Keep,
    /// The plugin goes, as with upstream's installer.
    Remove,
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The node's folder of plugins, as this container sees it.
    pub bin: PathBuf,
    /// The node's folder of network configurations, as this container sees it.
    pub net: PathBuf,
    /// The plugins in the image.
    pub source: PathBuf,
    /// The kubeconfig's name in `net`.
    pub kubeconfig: String,
    /// The kubeconfig as the plugin sees it.
    pub kubeconfig_on_node: PathBuf,
    /// The folder of the service account.
    pub service_account: PathBuf,
    /// The API server's authority.
    pub authority: PathBuf,
    /// The folder of the socket for what the plugin logs, if there is to be one.
    pub log: Option<LogFolder>,
}

/// The folder of the socket for what the plugin logs.
#[derive(Debug, Clone)]
pub struct LogFolder {
    /// As this container sees it.
    pub here: PathBuf,
    /// As the plugin sees it.
    pub on_node: String,
}

/// What to install.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Where.
    pub paths: Paths,
    /// The name of the agent's own pod.
    pub pod: String,
    /// `CNI_NETWORK_CONFIG`
    pub text: Option<String>,
    /// `CNI_NETWORK_CONFIG_FILE`
    pub file: Option<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST`
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`
    pub port: String,
    /// Into which files.
    pub place: Place,
    /// How often one file is rewritten in a minute.
    pub rewrites_per_minute: usize,
}

impl Installation {
    /// The plugin's entry: of `CNI_NETWORK_CONFIG` or, if that is empty, the file that `CNI_NETWORK_CONFIG_FILE` names.
    ///
    /// # Errors
    /// Why there is none.
    pub fn entry(&self) -> Result<Entry, String> {
        let entry = self.plain_entry()?;
        let path = self.paths.service_account.join("namespace");
        // Without a namespace it isn't in a pod.
        let namespace = std::fs::read_to_string(path).unwrap_or_default();
        let entry = match &self.paths.log {
            Some(folder) => entry.logging_to(&format!("{}/{}", folder.on_node, LOG_SOCKET)),
            None => entry,
        };
        match (namespace.trim(), self.pod.rsplit_once('-')) {
            ("", _) | (_, None) => Ok(entry),
            (namespace, Some((set, _))) => Ok(entry.of_agent(&format!("{namespace}/{set}"))),
        }
    }

    fn plain_entry(&self) -> Result<Entry, String> {
        let kubeconfig = &self.paths.kubeconfig_on_node;
        match (&self.text, &self.file) {
            (Some(text), _) => Entry::new(text, kubeconfig).map_err(|error| format!("CNI_NETWORK_CONFIG: {error}")),
            (None, Some(path)) => {
                let unusable = |error: String| format!("CNI_NETWORK_CONFIG_FILE: {}: {error}", path.display());
                let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
                Entry::new(&text, kubeconfig).map_err(unusable)
            }
            (None, None) => {
                Err("neither CNI_NETWORK_CONFIG nor CNI_NETWORK_CONFIG_FILE has the plugin's configuration".to_owned())
            }
        }
    }
}

/// What is done about a running pod whose rules aren't as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrift {
    /// What is gone is put back, and what somebody made or changed is told.
    Report,
    /// What somebody made or changed is undone, too.
    Repair,
}

/// All settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// As what it runs.
    pub program: Program,
    /// Whether it only removes the plugin from the node.
    pub uninstalls: bool,
    /// Which lines are logged.
    pub log: Targets,
    /// Whether they are JSON.
    pub log_json: bool,
    /// Where the admin server listens.
    pub admin: Option<SocketAddr>,
    /// Where it listens for probes alone.
    pub probes: Option<SocketAddr>,
    /// The node's name.
    pub node: Option<String>,
    /// What to install.
    pub installation: Installation,
    /// What happens on SIGTERM.
    pub on_exit: OnExit,
    /// What happens to pods without rules.
    pub mode: Mode,
    /// What happens to pods with other rules.
    pub on_drift: OnDrift,
    /// The key of the taint that is removed from the node, and the node's name.
    pub taint: Option<(String, String)>,
    /// How often pods are verified.
    pub verify_every: Option<Duration>,
    /// The runtime's socket, if the runtime tells of pods and nothing is installed.
    pub nri: Option<PathBuf>,
}

/// What happens to a pod that started without rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The rules are installed in the running pod.
    InPlace,
    /// The pod is deleted, as upstream does.
    Delete,
    /// Nothing.
    Off,
}

/// The subcommand.
const UNINSTALL: &str = "uninstall";

const EXIT_CODES: &str = "\
Exit codes:
  0  a signal ended it
  1  it cannot run; the log says why
  2  the command line or the environment is invalid

docs/node.md says what it does, and what Linkerd's variables mean to it.";

/// The command line of one of the programs.
pub fn command(program: Program) -> Command {
    let (about, example) = if program == Program::Repair {
        (
            "Deletes pods that started without rules, as Linkerd's repair controller does",
            "delete those of this node\n  linkerd-cni-repair-controller --node-name \"$NODE\"",
        )
    } else {
        (
            "Keeps the CNI plugin linkerd-cni on a node, and heals the pods that it sets up",
            "watch the pods of this node, and say which have other rules\n  \
             linkerd-cni-agent --node-name \"$NODE\" --mode off --on-exit keep",
        )
    };
    let mut command = Command::new(program.name())
        .about(about)
        .version(proxy_init::BUILD)
        .next_line_help(true)
        .after_help(format!("Example: {example}\n\n{EXIT_CODES}"));
    for Flag(name, variable, value, default, help) in FLAGS {
        let default = default.map(|default| format!("\n[default: {default}]")).unwrap_or_default();
        let help = format!("{help}{default}\n[env: {variable}]");
        let is_meant = program != Program::Repair || NOT_OF_REPAIR.iter().all(|(other, _)| *other != name);
        let argument = Arg::new(name).long(name).help(help).hide(!is_meant);
        command = command.arg(if value == SWITCH {
            argument.num_args(0..=1).require_equals(true).default_missing_value("true")
        } else {
            argument.value_name(value)
        });
    }
    if program == Program::Agent {
        let uninstall = Command::new(UNINSTALL).about(
            "Removes the plugin from the node, by hand: its entry, kubeconfig and\n\
             program, and the agents' own file. It takes the agent's folders, which\n\
             flags before it and the environment name",
        );
        command = command.subcommand(uninstall).disable_help_subcommand(true);
    }
    command
}

/// Go's flags may have one dash.
fn two_dashes(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.starts_with('-') && !text.starts_with("--") && text.len() > 2 => format!("-{text}").into(),
        _ => argument,
    }
}

impl Settings {
    /// Reads the arguments, `argv[0]` first, and the environment.
    ///
    /// # Errors
    /// clap's, which prints itself; `--help` and `--version` are among them.
    pub fn read(
        arguments: impl Iterator<Item = OsString>,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, clap::Error> {
        let mut arguments = arguments;
        let name = arguments.next().unwrap_or_default();
        let program = Program::named(Path::new(&name));
        let mut command = command(program);
        let rest = arguments.map(two_dashes);
        let matches = command.try_get_matches_from_mut(std::iter::once(name.clone()).chain(rest))?;
        Self::from_matches(program, &matches, environment)
            .map_err(|reason| command.error(clap::error::ErrorKind::ValueValidation, reason))
    }

    fn from_matches(
        program: Program,
        matches: &ArgMatches,
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let variable = |name: &str| match environment(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value).filter(|value| !value.is_empty())),
            Some(Err(bytes)) => Err(format!("{name} is {bytes:?}, which is not UTF-8")),
        };
        let mut values = BTreeMap::new();
        for Flag(name, env, _, default, _) in FLAGS {
            let given = match matches.get_one::<String>(name) {
                Some(given) => Some(given.clone()),
                None => variable(env)?,
            };
            let fixed = NOT_OF_REPAIR.iter().find(|(fixed, _)| *fixed == name && program == Program::Repair);
            let default = match (&given, fixed) {
                (Some(_), Some(_)) => {
                    return Err(format!(
                        "--{name} (or {env}) means nothing to {}, which deletes pods as Linkerd's does and looks at no \
                         rules: {} does more",
                        program.name(),
                        Program::Agent.name()
                    ));
                }
                (_, Some((_, fixed))) => Some(*fixed),
                (_, None) => default,
            };
            let value = given.or_else(|| default.map(str::to_owned));
            if let Some(value) = value {
                values.insert(name, value);
            }
        }
        let value = |name: &str| values.get(name).map(String::as_str);
        let or =
            |name: &'static str, default: &str| Ok::<_, String>(variable(name)?.unwrap_or_else(|| default.to_owned()));

        let prefix = PathBuf::from(or("CONTAINER_MOUNT_PREFIX", "/host")?);
        let net_on_node = PathBuf::from(or("DEST_CNI_NET_DIR", "/etc/cni/net.d")?);
        let kubeconfig = or("KUBECONFIG_FILE_NAME", "ZZZ-linkerd-cni-kubeconfig")?;
        file_name("KUBECONFIG_FILE_NAME", &kubeconfig)?;
        let service_account = PathBuf::from(value("service-account").unwrap_or_default());
        let authority = variable("KUBE_CA_FILE")?.map_or_else(|| service_account.join("ca.crt"), PathBuf::from);
        let own = value("own-file").map(str::to_owned);
        if let Some(own) = &own {
            file_name("--own-file", own)?;
            if !own.ends_with(".conflist") || own.starts_with('.') {
                return Err(format!("--own-file is {own:?}; runtimes read names that end with .conflist"));
            }
        }
        let log = value("plugin-log")
            .map(|folder| LogFolder { here: under(&prefix, Path::new(folder)), on_node: folder.to_owned() });
        let number = |name: &str| {
            let text = value(name).unwrap_or_default();
            text.parse::<u32>().map_err(|_| format!("--{name} is {text:?}, which is no number"))
        };
        let hostname = || nix::unistd::gethostname().ok()?.into_string().ok();
        let seconds = number("verify-every")?;
        let pod = value("controller-pod-name").map(str::to_owned).or_else(hostname);
        let pod = pod.unwrap_or_default();
        let node = value("node-name").map(str::to_owned);
        let taint = match (value("remove-taint"), &node) {
            (Some(key), Some(node)) => Some((key.to_owned(), node.clone())),
            (Some(_), None) => return Err("--remove-taint takes --node-name, too".to_owned()),
            (None, _) => None,
        };
        let mode = one_of(
            "mode",
            value("mode"),
            &[("in-place", Mode::InPlace), ("delete", Mode::Delete), ("off", Mode::Off)],
        )?;
        let is_nri = one_of("nri", value("nri"), &[("false", false), ("true", true)])?;
        let nri = value("nri-socket").map(PathBuf::from).filter(|_| is_nri);
        if nri.is_some() && program != Program::Agent {
            return Err(format!("--nri is a flag of {} alone", Program::Agent.name()));
        }
        if nri.is_some() && mode == Mode::Delete {
            return Err("--mode delete takes the API server, which --nri never asks: in-place or off".to_owned());
        }
        Ok(Self {
            program,
            nri,
            uninstalls: matches.subcommand_name() == Some(UNINSTALL),
            log: filter(value("log-level").unwrap_or_default())?,
            log_json: one_of("log-format", value("log-format"), &[("plain", false), ("json", true)])?,
            admin: match address("admin-addr", value("admin-addr"))? {
                // The chart's repair controller is asked for its health there (kubert's default).
                None if program == Program::Repair => Some(SocketAddr::from(([0, 0, 0, 0], 8080))),
                admin => admin,
            },
            probes: address("probe-addr", value("probe-addr"))?,
            node,
            taint,
            installation: Installation {
                pod,
                paths: Paths {
                    bin: under(&prefix, Path::new(&or("DEST_CNI_BIN_DIR", "/opt/cni/bin")?)),
                    net: under(&prefix, &net_on_node),
                    source: or("CONTAINER_CNI_BIN_DIR", "/opt/cni/bin")?.into(),
                    kubeconfig_on_node: net_on_node.join(&kubeconfig),
                    kubeconfig,
                    service_account,
                    authority,
                    log,
                },
                text: variable("CNI_NETWORK_CONFIG")?,
                file: variable("CNI_NETWORK_CONFIG_FILE")?.map(PathBuf::from),
                host: or("KUBERNETES_SERVICE_HOST", "")?,
                port: or("KUBERNETES_SERVICE_PORT", "")?,
                place: own.map_or(Place::Chained, Place::Own),
                rewrites_per_minute: usize::try_from(number("rewrites-per-minute")?.max(1)).unwrap_or(usize::MAX),
            },
            on_exit: one_of(
                "on-exit",
                value("on-exit"),
                &[("auto", OnExit::Auto), ("keep", OnExit::Keep), ("remove", OnExit::Remove)],
            )?,
            mode,
            on_drift: one_of(
                "on-drift",
                value("on-drift"),
                &[("report", OnDrift::Report), ("repair", OnDrift::Repair)],
            )?,
            verify_every: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        })
    }
}

fn one_of<T: Copy>(name: &str, value: Option<&str>, choices: &[(&str, T)]) -> Result<T, String> {
    let value = value.unwrap_or_default();
    let found = choices.iter().find(|(word, _)| *word == value).map(|(_, choice)| *choice);
    found.ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        format!("--{name} is {value:?}, where one of {} was expected", words.join(", "))
    })
}

fn address(name: &str, value: Option<&str>) -> Result<Option<SocketAddr>, String> {
    let parse =
        |text: &str| text.parse().map_err(|_| format!("--{name} is {text:?}, which is not of the form ADDRESS:PORT"));
    value.map(parse).transpose()
}

/// A path of the node below the folder under which the container has it mounted, as Go's `path.Join` puts them together.
fn under(prefix: &Path, path: &Path) -> PathBuf {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    prefix.components().chain(parts).collect()
}

fn file_name(what: &str, name: &str) -> Result<(), String> {
    if name.contains('/') || [".", ".."].contains(&name) {
        return Err(format!("{what} is {name:?}, which is not the name of a file"));
    }
    Ok(())
}

/// Reads a level as logrus names it, or as tracing's filters do.
fn filter(text: &str) -> Result<Targets, String> {
    // Upstream's target is its crate's name.
    let text = text.replace("linkerd_cni_repair_controller", env!("CARGO_CRATE_NAME"));
    let text = match text.as_str() {
        "panic" | "fatal" => "error",
        "warning" => "warn",
        other => other,
    };
    let is_level = |word: &str| word.contains('=') || word.parse::<LevelFilter>().is_ok();
    let filter = text.split(',').all(is_level).then(|| text.parse().ok()).flatten();
    filter.ok_or_else(|| format!("--log-level is {text:?}, which is none of error, warn, info, debug and trace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, String> {
        let environment: BTreeMap<_, _> = environment.iter().copied().collect();
        let variable = |name: &str| environment.get(name).map(OsString::from);
        Settings::read(arguments.iter().map(OsString::from), &variable).map_err(|error| error.to_string())
    }

    #[test]
    fn the_name_decides_what_it_is() {
        for (name, program) in [
            ("/usr/bin/linkerd2-cni-install", Program::Install),
            ("/usr/lib/linkerd/linkerd-cni-repair-controller", Program::Repair),
            ("linkerd-cni-agent", Program::Agent),
            ("", Program::Agent),
        ] {
            assert_eq!(read(&[name], &[]).unwrap().program, program);
        }
    }

    #[test]
    fn without_a_word_it_is_as_upstreams() {
        let settings = read(&["linkerd2-cni-install"], &[]).unwrap();
        let paths = &settings.installation.paths;
        assert_eq!(paths.bin, Path::new("/host/opt/cni/bin"));
        assert_eq!(paths.net, Path::new("/host/etc/cni/net.d"));
        assert_eq!(paths.source, Path::new("/opt/cni/bin"));
        assert_eq!(paths.kubeconfig_on_node, Path::new("/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig"));
        assert_eq!(paths.authority, Path::new("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"));
        assert!(settings.installation.entry().unwrap_err().contains("CNI_NETWORK_CONFIG"));
        assert_eq!((settings.on_exit, settings.mode), (OnExit::Auto, Mode::InPlace));
        assert_eq!(settings.verify_every, Some(Duration::from_secs(30)));
    }

    #[test]
    fn each_variable_arrives() {
        let settings = read(
            &["linkerd2-cni-install"],
            &[
                ("DEST_CNI_BIN_DIR", "/home/kubernetes/bin"),
                ("DEST_CNI_NET_DIR", "/etc/cni/other.d"),
                ("CONTAINER_MOUNT_PREFIX", "/node"),
                ("CONTAINER_CNI_BIN_DIR", "/plugins"),
                ("KUBE_CA_FILE", "/ca"),
                ("KUBECONFIG_FILE_NAME", "k"),
                ("KUBERNETES_SERVICE_HOST", "h"),
                ("KUBERNETES_SERVICE_PORT", "1"),
                ("CNI_NETWORK_CONFIG", r#"{"type": "linkerd-cni", "k": "__KUBECONFIG_FILEPATH__"}"#),
                ("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node"),
                ("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "pod"),
                ("LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT", "json"),
                ("LINKERD_CNI_AGENT_ON_EXIT", "remove"),
            ],
        )
        .unwrap();
        let installation = &settings.installation;
        assert_eq!(installation.paths.bin, Path::new("/node/home/kubernetes/bin"));
        assert_eq!(installation.paths.net, Path::new("/node/etc/cni/other.d"));
        assert_eq!(installation.paths.source, Path::new("/plugins"));
        assert_eq!(installation.paths.authority, Path::new("/ca"));
        assert_eq!((installation.host.as_str(), installation.port.as_str()), ("h", "1"));
        assert_eq!(installation.entry().unwrap().configuration("1.0.0")["k"], "/etc/cni/other.d/k");
        assert_eq!((settings.node.as_deref(), settings.installation.pod.as_str()), (Some("node"), "pod"));
        assert!(settings.log_json);
        assert_eq!(settings.on_exit, OnExit::Remove);
    }

    #[test]
    fn arguments_are_read_as_upstreams_programs_read_them() {
        for arguments in [["-log-level=debug"].as_slice(), &["--log-level", "debug"], &["-log-level", "debug"]] {
            let arguments = [&["linkerd2-cni-install"], arguments].concat();
            assert_eq!(read(&arguments, &[]).unwrap().log, "debug".parse().unwrap());
        }
        let chart = [
            "linkerd-cni-repair-controller",
            "--admin-addr",
            "[::]:9990",
            "--log-format",
            "plain",
            "--log-level",
            "info",
        ];
        assert_eq!(read(&chart, &[]).unwrap().admin.unwrap().port(), 9990);
        let upstreams = read(&["a", "--log-level", "linkerd_cni_repair_controller=info,warn"], &[]).unwrap();
        assert_eq!(upstreams.log, "linkerd_cni_agent=info,warn".parse().unwrap());
        for level in ["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"] {
            read(&["a", "--log-level", level], &[]).unwrap();
        }
    }

    #[test]
    fn the_repair_controller_deletes_pods_whatever_else_is_asked_for() {
        let settings = read(&["linkerd-cni-repair-controller"], &[]).unwrap();
        assert_eq!((settings.mode, settings.verify_every), (Mode::Delete, None));
        assert_eq!(settings.on_drift, OnDrift::Report);
        for (arguments, environment) in [
            (&["--mode", "off"][..], ("UNUSED", "")),
            (&["--verify-every=30"], ("UNUSED", "")),
            (&[], ("LINKERD_CNI_AGENT_ON_DRIFT", "repair")),
        ] {
            let arguments = [&["linkerd-cni-repair-controller"], arguments].concat();
            let error = read(&arguments, &[environment]).unwrap_err();
            assert!(error.contains("means nothing to linkerd-cni-repair-controller"), "{error}");
        }
        let help = command(Program::Repair).render_long_help().to_string();
        assert!(!help.contains("--mode") && help.contains("--node-name"), "{help}");
    }

    #[test]
    fn nri_is_the_agents_own_and_has_the_runtimes_usual_socket() {
        let nri = |arguments: &[&str], environment: &[(&str, &str)]| read(arguments, environment).unwrap().nri;
        let usual = Some(PathBuf::from("/var/run/nri/nri.sock"));
        assert_eq!(nri(&["linkerd-cni-agent"], &[]), None);
        assert_eq!(nri(&["linkerd-cni-agent", "--nri-socket", "/s"], &[]), None);
        assert_eq!(nri(&["linkerd-cni-agent", "--nri"], &[]), usual);
        assert_eq!(nri(&["linkerd-cni-agent"], &[("LINKERD_CNI_AGENT_NRI", "true")]), usual);
        assert_eq!(nri(&["linkerd-cni-agent", "--nri", "--nri-socket=/s"], &[]), Some("/s".into()));
        for program in ["linkerd2-cni-install", "linkerd-cni-repair-controller"] {
            assert!(read(&[program, "--nri"], &[]).unwrap_err().contains("linkerd-cni-agent"));
        }
    }

    #[test]
    fn only_the_agent_itself_uninstalls_by_hand() {
        for arguments in [&["uninstall"][..], &["--own-file", "00.conflist", "uninstall"]] {
            let settings = read(&[&["linkerd-cni-agent"], arguments].concat(), &[]).unwrap();
            assert!(settings.uninstalls);
        }
        assert!(!read(&["linkerd-cni-agent"], &[]).unwrap().uninstalls);
        for name in ["linkerd2-cni-install", "linkerd-cni-repair-controller"] {
            assert!(read(&[name, "uninstall"], &[]).unwrap_err().contains("uninstall"));
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        for program in [Program::Agent, Program::Install, Program::Repair] {
            let help = command(program).render_long_help().to_string();
            let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{long:#?}");
            assert!(help.contains("\nExample: ") && help.contains("\nExit codes:"), "{help}");
        }
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (arguments, words) in [
            (["--log-level", "loud"], "loud"),
            (["--log-format", "xml"], "plain, json"),
            (["--admin-addr", "here"], "--admin-addr is \"here\", which is not of the form ADDRESS:PORT"),
            (["--probe-addr", "9991"], "--probe-addr is \"9991\", which is not of the form ADDRESS:PORT"),
            (["--own-file", "../x.conflist"], "name of a file"),
            (["--own-file", "x.conf"], ".conflist"),
            (["--on-exit", "never"], "auto, keep, remove"),
            (["--mode", "x"], "in-place"),
            (["--verify-every", "soon"], "no number"),
            (["--nri", "--mode=delete"], "in-place or off"),
            (["--remove-taint", "linkerd.io/cni-not-ready"], "--node-name"),
        ] {
            let error = read(&[&["a"], &arguments[..]].concat(), &[]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(read(&["a"], &[("KUBECONFIG_FILE_NAME", "a/b")]).unwrap_err().contains("name of a file"));
    }
}
