//! Arguments and environment: Linkerd's own variables, and the agent's.

#![allow(missing_docs, reason = "clap makes help of comments")]

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::conflist::Entry;

const AFTER_HELP: &str = "\
Example: watch the pods of this node, and report those with other rules
  linkerd-cni-agent --node-name \"$NODE\" --repair nothing --on-exit keep

Exit codes:
  0  a signal ended the agent
  1  the agent cannot run; the log says why
  2  the command line or the environment is invalid

docs/node.md describes the agent, and what Linkerd's variables mean to it.";

/// Keeps the CNI plugin linkerd-cni on a node, and heals the pods that it sets up
#[derive(Debug, Clone, Parser)]
#[command(name = "linkerd-cni-agent", version = proxy_init::BUILD, next_line_help = true, term_width = 80)]
#[command(after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Settings {
    /// error, warn, info, debug or trace; or TARGET=LEVEL,…
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL", value_name = "LEVEL")]
    #[arg(default_value = "info", value_parser = log_filter)]
    pub log_level: Targets,
    /// The form of each line of the log
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT", value_name = "FORMAT")]
    #[arg(value_enum, default_value_t = LogFormat::Plain)]
    pub log_format: LogFormat,
    /// Where /metrics, /readyz and /livez are served
    #[arg(long = "admin-addr", env = "LINKERD_CNI_AGENT_ADMIN_ADDR", value_name = "ADDRESS:PORT")]
    pub admin: Option<SocketAddr>,
    /// Where /readyz and /livez alone are served, such as 127.0.0.1:9991 for kubelet
    #[arg(long = "probe-addr", env = "LINKERD_CNI_AGENT_PROBE_ADDR", value_name = "ADDRESS:PORT")]
    pub probes: Option<SocketAddr>,
    /// The node that the agent runs on (spec.nodeName)
    #[arg(long = "node-name", env = "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", value_name = "NAME")]
    pub node: Option<String>,
    #[command(flatten)]
    pub installation: Installation,
    /// auto: remove the plugin if it is being uninstalled; keep: never; remove: always, as Linkerd's installer does
    #[arg(long, env = "LINKERD_CNI_AGENT_ON_EXIT", value_enum, default_value_t = OnExit::Auto, value_name = "WHAT")]
    pub on_exit: OnExit,
    /// What is put right in running pods: nothing; missing rules; or all, also where somebody changed rules or added some
    #[arg(long, env = "LINKERD_CNI_AGENT_REPAIR", value_enum, default_value_t = Repair::Missing, value_name = "WHAT")]
    pub repair: Repair,
    /// How often every meshed pod's rules are compared with what they should be; 0: never
    #[arg(long, env = "LINKERD_CNI_AGENT_VERIFY_EVERY", value_name = "SECONDS", default_value_t = 30)]
    verify_every: u32,
    /// A taint on the node, such as linkerd.io/cni-not-ready, that is removed once pods can be set up
    #[arg(long, env = "LINKERD_CNI_AGENT_REMOVE_TAINT", value_name = "KEY", requires = "node")]
    pub remove_taint: Option<String>,
    /// No plugin: the runtime itself tells of each pod, by NRI (containerd 2, CRI-O 1.30)
    #[arg(long, env = "LINKERD_CNI_AGENT_NRI", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    nri: bool,
    /// Where the runtime waits for NRI plugins
    #[arg(long, env = "LINKERD_CNI_AGENT_NRI_SOCKET", value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Verb {
    /// Removes the plugin from the node, by hand: its entry, kubeconfig and program, and the agents' own file. The
    /// agent's folders are those that flags before this word and the environment name
    Uninstall,
}

/// The plugin's installation: its content and its places.
#[derive(Debug, Clone, Args)]
pub struct Installation {
    /// Where the node's folders are mounted
    #[arg(long, env = "CONTAINER_MOUNT_PREFIX", value_name = "FOLDER", default_value = "/host")]
    mount_prefix: PathBuf,
    /// The node's folder of plugins
    #[arg(long = "cni-bin-dir", env = "DEST_CNI_BIN_DIR", value_name = "FOLDER", default_value = "/opt/cni/bin")]
    bin_on_node: PathBuf,
    /// The node's folder of network configurations
    #[arg(long = "cni-net-dir", env = "DEST_CNI_NET_DIR", value_name = "FOLDER", default_value = "/etc/cni/net.d")]
    net_on_node: PathBuf,
    /// The image's folder of plugins
    #[arg(long = "source-dir", env = "CONTAINER_CNI_BIN_DIR", value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub source: PathBuf,
    /// The kubeconfig's name, in the folder of network configurations
    #[arg(long = "kubeconfig-name", env = "KUBECONFIG_FILE_NAME", value_name = "NAME", value_parser = file_name)]
    #[arg(default_value = "ZZZ-linkerd-cni-kubeconfig")]
    pub kubeconfig: String,
    /// Where the service account's token, ca.crt and namespace are
    #[arg(long, env = "LINKERD_CNI_AGENT_SERVICE_ACCOUNT", value_name = "FOLDER")]
    #[arg(default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    pub service_account: PathBuf,
    /// The API server's authority, unless that is the service account's
    #[arg(long = "ca-file", env = "KUBE_CA_FILE", value_name = "FILE")]
    authority: Option<PathBuf>,
    /// The pod that the agent runs in; without it, the host's name
    #[arg(long = "controller-pod-name", env = "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", value_name = "NAME")]
    #[arg(default_value_t = host_name(), hide_default_value = true)]
    pub pod: String,
    /// The plugin's configuration
    #[arg(long = "network-config", env = "CNI_NETWORK_CONFIG", value_name = "JSON")]
    text: Option<String>,
    /// A file with the plugin's configuration
    #[arg(long = "network-config-file", env = "CNI_NETWORK_CONFIG_FILE", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The API server's host
    #[arg(long = "api-server-host", env = "KUBERNETES_SERVICE_HOST", value_name = "HOST")]
    #[arg(default_value = "", hide_default_value = true)]
    pub host: String,
    /// The API server's port
    #[arg(long = "api-server-port", env = "KUBERNETES_SERVICE_PORT", value_name = "PORT")]
    #[arg(default_value = "", hide_default_value = true)]
    pub port: String,
}

/// The form of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Plain,
    Json,
}

/// The plugin's fate when the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnExit {
    Auto,
    Keep,
    Remove,
}

/// The repair of running pods whose rules aren't those that they should have; the rest is only reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Repair {
    Nothing,
    Missing,
    All,
}

impl Settings {
    /// Reads the arguments, `argv[0]` first, and the environment. An empty variable counts as none.
    ///
    /// # Errors
    /// clap's, which prints itself; `--help` and `--version` are among them.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&command().try_get_matches_from(arguments)?)
    }

    /// Returns true if the agent only removes the plugin from the node.
    pub fn uninstalls(&self) -> bool {
        matches!(self.verb, Some(Verb::Uninstall))
    }

    /// The interval between two verifications of a pod; none if there are none.
    pub fn verify_every(&self) -> Option<Duration> {
        (self.verify_every > 0).then(|| Duration::from_secs(self.verify_every.into()))
    }

    /// The runtime's socket, if the runtime tells of pods and nothing is installed.
    pub fn nri_socket(&self) -> Option<&Path> {
        self.nri.then_some(self.nri_socket.as_path())
    }
}

impl Installation {
    /// The node's folder of plugins, as this container sees it.
    pub fn bin(&self) -> PathBuf {
        under(&self.mount_prefix, &self.bin_on_node)
    }

    /// The node's folder of network configurations, as this container sees it.
    pub fn net(&self) -> PathBuf {
        under(&self.mount_prefix, &self.net_on_node)
    }

    /// The certificate of the API server's authority.
    pub fn authority(&self) -> PathBuf {
        self.authority.clone().unwrap_or_else(|| self.service_account.join("ca.crt"))
    }

    /// Where the API server is, with brackets around an IPv6 address.
    pub(crate) fn api_server(&self) -> String {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("https://{host}:{}", self.port)
    }

    /// The agent's own namespace.
    ///
    /// # Errors
    /// As of read(2); outside a pod there is no such file.
    pub fn namespace(&self) -> std::io::Result<String> {
        let text = std::fs::read_to_string(self.service_account.join("namespace"))?;
        Ok(text.trim().to_owned())
    }

    /// The plugin's entry: of `CNI_NETWORK_CONFIG` or, if that is empty, the file that `CNI_NETWORK_CONFIG_FILE` names.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn entry(&self) -> Result<Entry, String> {
        let mut entry = self.plain_entry()?;
        let namespace = self.namespace().unwrap_or_default();
        // The plugin doesn't ask about the pods of the agents' DaemonSet: the token that it asks with is worth nothing
        // once the agent's pod is gone, and the next agent has to start first.
        if let (false, Some((set, _))) = (namespace.is_empty(), self.pod.rsplit_once('-')) {
            entry.set("agent", &format!("{namespace}/{set}"));
        }
        Ok(entry)
    }

    fn plain_entry(&self) -> Result<Entry, String> {
        let kubeconfig = self.net_on_node.join(&self.kubeconfig);
        match (&self.text, &self.file) {
            (Some(text), _) => Entry::new(text, &kubeconfig).map_err(|error| format!("CNI_NETWORK_CONFIG: {error}")),
            (None, Some(path)) => {
                let unusable = |error: String| format!("CNI_NETWORK_CONFIG_FILE: {}: {error}", path.display());
                let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
                Entry::new(&text, &kubeconfig).map_err(unusable)
            }
            (None, None) => {
                Err("neither CNI_NETWORK_CONFIG nor CNI_NETWORK_CONFIG_FILE has the plugin's configuration".to_owned())
            }
        }
    }
}

/// The command line. Charts set variables that have no value to the empty text: these name nothing.
fn command() -> Command {
    Settings::command().mut_args(|argument| {
        let value = argument.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) {
            return argument.env(None::<&'static str>);
        }
        argument.hide_env_values(true)
    })
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_default()
}

/// A path of the node below the folder under which the container has it mounted, as Go's `path.Join` puts them together.
fn under(prefix: &Path, path: &Path) -> PathBuf {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    prefix.components().chain(parts).collect()
}

fn file_name(name: &str) -> Result<String, String> {
    if name.contains('/') || [".", ".."].contains(&name) {
        return Err("it is not the name of a file".to_owned());
    }
    Ok(name.to_owned())
}

/// Reads a level as logrus names it, or as tracing's filters do.
fn log_filter(text: &str) -> Result<Targets, String> {
    // The target of Linkerd's repair controller is its crate's name.
    let text = text.replace("linkerd_cni_repair_controller", env!("CARGO_CRATE_NAME"));
    let text = match text.as_str() {
        "panic" | "fatal" => "error",
        "warning" => "warn",
        other => other,
    };
    let is_level = |word: &str| word.contains('=') || word.parse::<LevelFilter>().is_ok();
    let filter = text.split(',').all(is_level).then(|| text.parse().ok()).flatten();
    filter.ok_or_else(|| "it is none of error, warn, info, debug and trace".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Settings, String> {
        let words = std::iter::once("linkerd-cni-agent").chain(arguments.iter().copied());
        Settings::read(words.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_word_it_is_as_upstreams() {
        let settings = read(&[]).unwrap();
        let installation = &settings.installation;
        assert_eq!(installation.bin(), Path::new("/host/opt/cni/bin"));
        assert_eq!(installation.net(), Path::new("/host/etc/cni/net.d"));
        assert_eq!(installation.source, Path::new("/opt/cni/bin"));
        assert_eq!(installation.authority(), Path::new("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"));
        assert!(installation.entry().unwrap_err().contains("CNI_NETWORK_CONFIG"));
        assert_eq!((settings.on_exit, settings.repair), (OnExit::Auto, Repair::Missing));
        assert_eq!(settings.verify_every(), Some(Duration::from_secs(30)));
        assert!(!settings.uninstalls() && read(&["uninstall"]).unwrap().uninstalls());
    }

    #[test]
    fn each_flag_has_its_variable() {
        let command = command();
        let variable = |flag: &str| command.get_arguments().find(|it| it.get_long() == Some(flag))?.get_env()?.to_str();
        for (flag, name) in [
            ("log-level", "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL"),
            ("log-format", "LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT"),
            ("node-name", "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME"),
            ("controller-pod-name", "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME"),
            ("mount-prefix", "CONTAINER_MOUNT_PREFIX"),
            ("cni-bin-dir", "DEST_CNI_BIN_DIR"),
            ("cni-net-dir", "DEST_CNI_NET_DIR"),
            ("source-dir", "CONTAINER_CNI_BIN_DIR"),
            ("kubeconfig-name", "KUBECONFIG_FILE_NAME"),
            ("ca-file", "KUBE_CA_FILE"),
            ("network-config", "CNI_NETWORK_CONFIG"),
            ("network-config-file", "CNI_NETWORK_CONFIG_FILE"),
            ("api-server-host", "KUBERNETES_SERVICE_HOST"),
            ("api-server-port", "KUBERNETES_SERVICE_PORT"),
        ] {
            assert_eq!(variable(flag), Some(name));
        }
        for flag in [
            "admin-addr",
            "probe-addr",
            "service-account",
            "on-exit",
            "repair",
            "verify-every",
            "remove-taint",
            "nri",
            "nri-socket",
        ] {
            let name = flag.to_uppercase().replace('-', "_");
            assert_eq!(variable(flag), Some(format!("LINKERD_CNI_AGENT_{name}").as_str()));
        }
    }

    #[test]
    fn folders_and_the_entry_are_the_nodes() {
        let flags = ["--mount-prefix=/node", "--cni-net-dir=/etc/cni/other.d", "--kubeconfig-name=k"];
        let entry = r#"--network-config={"type": "linkerd-cni", "k": "__KUBECONFIG_FILEPATH__"}"#;
        let installation = read(&[&flags[..], &[entry]].concat()).unwrap().installation;
        assert_eq!(installation.net(), Path::new("/node/etc/cni/other.d"));
        let entry = installation.entry().unwrap();
        assert!(format!("{entry:?}").contains("\"k\": String(\"/etc/cni/other.d/k\")"), "{entry:?}");
    }

    #[test]
    fn log_levels_are_logrus_and_tracings() {
        for level in ["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"] {
            read(&["--log-level", level]).unwrap();
        }
        let upstreams = read(&["--log-level", "linkerd_cni_repair_controller=info,warn"]).unwrap();
        assert_eq!(upstreams.log_level, "linkerd_cni_agent=info,warn".parse().unwrap());
    }

    #[test]
    fn nri_has_the_runtimes_usual_socket() {
        let nri = |arguments: &[&str]| read(arguments).unwrap().nri_socket().map(Path::to_owned);
        assert_eq!(nri(&[]), None);
        assert_eq!(nri(&["--nri-socket", "/s"]), None);
        assert_eq!(nri(&["--nri"]), Some("/var/run/nri/nri.sock".into()));
        assert_eq!(nri(&["--nri", "--nri-socket=/s"]), Some("/s".into()));
    }

    #[test]
    fn help_fits_a_terminal() {
        let help = command().render_long_help().to_string();
        let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
        assert!(help.contains("\nExample: ") && help.contains("\nExit codes:"), "{help}");
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (arguments, words) in [
            (["--log-level", "loud"], "'loud' for '--log-level <LEVEL>'"),
            (["--log-format", "xml"], "plain, json"),
            (["--admin-addr", "here"], "'here' for '--admin-addr <ADDRESS:PORT>'"),
            (["--probe-addr", "9991"], "'9991' for '--probe-addr <ADDRESS:PORT>'"),
            (["--on-exit", "never"], "auto, keep, remove"),
            (["--repair", "x"], "nothing, missing, all"),
            (["--verify-every", "soon"], "'soon' for '--verify-every <SECONDS>'"),
            (["--remove-taint", "linkerd.io/cni-not-ready"], "--node-name"),
            (["--kubeconfig-name", "a/b"], "not the name of a file"),
        ] {
            let error = read(&arguments).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
