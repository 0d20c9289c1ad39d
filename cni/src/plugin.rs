//! The plugin's actions for each verb.

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::fstat;
use pod::{Configuration, Decision, PodInfo, PodName};
use proxy_init::error::Errno;
use proxy_init::log::{Format, Level};
use proxy_init::{Install, Installed, ModeChoice, Namespace, OperationNotice, Simulate, user_namespaces, verify};

use crate::api::Client;
use crate::command::{Container, Environment, verb};
use crate::error::Error;
use crate::kubeconfig::Kubeconfig;
use crate::log::Log;
use crate::verb::Verb;
use crate::version::{self, Version};

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandResult {
    /// The text for standard output: a result, an error object, or nothing.
    pub stdout: String,
    /// The exit code.
    pub code: u8,
}

/// Runs one command of the runtime, and logs to standard error. Errors are in the outcome, as the specification wants them.
///
/// The calling thread may be in the pod's network namespace afterwards: it is for a process that then ends.
pub fn run(environment: Environment<'_>, stdin: impl FnOnce() -> io::Result<Vec<u8>>) -> CommandResult {
    let mut command = Command { log: Log::new(Level::Warning), version: Version::V1_1_0 };
    match command.run(environment, stdin) {
        Ok(stdout) => {
            command.log.add(Level::Debug, "done");
            CommandResult { stdout, code: 0 }
        }
        Err(error) => {
            let details = error.details().map_or(String::new(), |details| format!(": {details}"));
            let message = format_args!("{}{details}", error.message());
            command.log.about.push(("code", error.code().to_string()));
            command.log.add(Level::Error, message);
            CommandResult { stdout: error.json(command.version), code: 1 }
        }
    }
}

/// A command, and the known facts about it so far.
struct Command {
    log: Log,
    /// The field that has its answer.
    version: Version,
}

impl Command {
    fn run(
        &mut self,
        environment: Environment<'_>,
        stdin: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> Result<String, Error> {
        let verb = verb(environment)?;
        self.log.about.push(("command", verb.to_string()));
        match verb {
            // The rules go with the pod's network namespace, so there is nothing to undo, and nothing that could be in the
            // way of it: not a namespace that is gone, nor whatever made ADD fail.
            Verb::Del | Verb::Gc => Ok(String::new()),
            Verb::Version => Ok(version::supported(&stdin().map_err(Error::Stdin)?)),
            Verb::Add => {
                let configuration = self.configuration(verb, stdin)?;
                let container = Container::read(environment)?;
                // A result that can't be printed should not be installed.
                let result = version::result(self.version, configuration.previous.as_deref());
                let result = result.map_err(|error| pod::Error::Configuration {
                    key: "prevResult".to_owned(),
                    reason: format!("a result, which is a JSON object, was expected: {error}"),
                })?;
                self.add(&configuration, &container)?;
                Ok(result)
            }
            Verb::Check => {
                let configuration = self.configuration(verb, stdin)?;
                let container = Container::read(environment)?;
                self.check(&configuration, &container)?;
                Ok(String::new())
            }
            Verb::Status => {
                let configuration = self.configuration(verb, stdin).map_err(unavailable)?;
                let installed = status(&configuration).map_err(unavailable)?;
                let (rules, mode) = (installed.rules(), installed.mode);
                self.log.add(
                    Level::Info,
                    format_args!("ADD can install {rules} rules in {mode} mode; {}", user_namespaces()),
                );
                Ok(String::new())
            }
        }
    }

    /// The network configuration, in a version that has the verb.
    fn configuration(
        &mut self,
        verb: Verb,
        stdin: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> Result<Configuration, Error> {
        let stdin = stdin().map_err(Error::Stdin)?;
        let configuration = Configuration::read(&stdin).inspect_err(|_| {
            let asked = version::asked(&stdin);
            self.version = asked.and_then(|name| Version::named(&name)).unwrap_or(self.version);
        })?;
        // As upstream's.
        self.log.level = match configuration.log_level.as_deref().unwrap_or_default().to_ascii_lowercase().as_str() {
            "debug" => Level::Debug,
            "info" => Level::Info,
            _ => Level::Warning,
        };
        if configuration.log_format.as_ref().is_some_and(|word| word.eq_ignore_ascii_case("json")) {
            self.log.format = Format::Json;
        }
        let asked = configuration.version.as_deref().unwrap_or_default();
        self.version = Version::named(asked).ok_or_else(|| Error::Version { asked: asked.to_owned() })?;
        if self.version < verb.since() {
            return Err(Error::NoSuchVerb { verb, asked: self.version, since: verb.since() });
        }
        check_name(configuration.name.as_deref().unwrap_or_default())?;
        Ok(configuration)
    }

    /// The installation that a container needs, and its network namespace; none if it needs none.
    fn needed<'a>(
        &mut self,
        configuration: &Configuration,
        container: &'a Container,
    ) -> Result<Option<(Install, PodNamespace<'a>)>, Error> {
        self.log.about.push(("containerID", container.id.to_string()));
        let Some(pod) = &container.pod else {
            self.log.add(Level::Debug, "CNI_ARGS name no pod: nothing to do");
            return Ok(None);
        };
        self.log.about.push(("pod", pod.to_string()));
        let namespace = PodNamespace::open(&container.netns)?;
        if configuration.is_agent(pod) {
            self.log.add(Level::Debug, "the pod is the node's agent: nothing to do");
            return Ok(None);
        }
        let decision = match configuration.linkerd.pod_info {
            PodInfo::Annotations => {
                let given = configuration.annotations().cloned();
                let given = given.ok_or_else(|| Error::NoAnnotations { pod: pod.clone() })?;
                pod::by_annotations(configuration, pod, given)?
            }
            PodInfo::Api => self.by_api(configuration, pod)?,
        };
        match decision {
            Decision::Redirect(config) => Ok(Some((configuration.install(*config), namespace))),
            Decision::Leave(reason) => {
                self.log.add(Level::Debug, format_args!("{reason}: nothing to do"));
                Ok(None)
            }
        }
    }

    /// Asks the API server about a pod.
    fn by_api(&self, configuration: &Configuration, name: &PodName) -> Result<Decision, Error> {
        let client = Client::new(kubeconfig(configuration)?);
        let pod = client.pod(name)?;
        if let Err(reason) = pod.proxy() {
            return Ok(Decision::Leave(reason));
        }
        let namespace = client.namespace(name)?;
        let mut ports = Vec::new();
        if pod.is_control_plane() {
            ports = client.ports_of_api_server().unwrap_or_else(|error| {
                self.log.add(Level::Warning, format_args!("{error}; linkerd.api-server-ports are skipped instead"));
                configuration.api_server_ports()
            });
        }
        Ok(pod::by_pod(configuration, name, &pod, namespace, ports)?)
    }

    fn add(&mut self, configuration: &Configuration, container: &Container) -> Result<(), Error> {
        let Some((install, namespace)) = self.needed(configuration, container)? else {
            return Ok(());
        };
        if configuration.linkerd.simulate {
            for line in install.simulate(Simulate::AllFamilies).lines() {
                self.log.add(Level::Info, line);
            }
            return Ok(());
        }
        let log = &self.log;
        let tell = |notice: OperationNotice<'_>| {
            if let OperationNotice::Warning(warning) = notice {
                log.add(Level::Warning, warning);
            }
        };
        let installed = namespace.run(|| install.run_with(tell))?;
        let (rules, mode, reason) = (installed.rules(), installed.mode, &installed.reason);
        log.add(Level::Info, format_args!("{rules} rules are in place in {mode} mode, because {reason}"));
        Ok(())
    }

    fn check(&mut self, configuration: &Configuration, container: &Container) -> Result<(), Error> {
        let Some((mut install, namespace)) = self.needed(configuration, container)? else {
            return Ok(());
        };
        if configuration.linkerd.simulate {
            return Ok(());
        }
        // Whichever mode holds the rules: an older configuration, or upstream's plugin, may have set the pod up.
        install.mode = ModeChoice::Auto;
        let verdict = namespace.run(|| verify(&install))?;
        if verdict.is_in_place() {
            return Ok(());
        }
        Err(Error::NotInPlace(Box::new(verdict)))
    }
}

/// Checks the network's name, which the specification requires and this plugin has no use for.
fn check_name(name: &str) -> Result<(), pod::Error> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let expected =
        "the network's name was expected: a letter or digit, then letters, digits, dots, dashes and underscores";
    Err(pod::Error::Configuration { key: "name".to_owned(), reason: expected.to_owned() })
}

/// Reads the kubeconfig that the configuration names.
fn kubeconfig(configuration: &Configuration) -> Result<Kubeconfig, Error> {
    let path = configuration.kubeconfig().ok_or_else(|| pod::Error::Configuration {
        key: "kubernetes.kubeconfig".to_owned(),
        reason: "the path of a kubeconfig was expected".to_owned(),
    })?;
    Kubeconfig::read(path)
}

/// For STATUS, whatever stands in ADD's way makes the plugin unavailable; a version of the specification that has no STATUS
/// says nothing about that.
fn unavailable(error: Error) -> Error {
    match error {
        Error::Version { .. } | Error::NoSuchVerb { .. } => error,
        other => Error::Unavailable(Box::new(other)),
    }
}

/// The network namespace of a container.
struct PodNamespace<'a> {
    path: &'a Path,
    /// Held from the start, so that removing its name meanwhile doesn't lead to another namespace.
    namespace: Namespace,
}

impl<'a> PodNamespace<'a> {
    /// Opens the namespace of this path, before the API server is asked about the pod.
    fn open(path: &'a Path) -> Result<Self, Error> {
        let own = "that is the network namespace of the plugin itself, whose rules are the node's: nothing was changed";
        let namespace = open_another(path).map_err(|reason| invalid(path, reason))?;
        let namespace = namespace.ok_or_else(|| invalid(path, own))?;
        Ok(Self { path, namespace })
    }

    /// Runs `work` in it. The calling thread stays there: a thread of its own for `work` would wait for its turn on a busy
    /// node, and nothing but printing is left to do.
    fn run<T>(&self, work: impl FnOnce() -> Result<T, proxy_init::Error>) -> Result<T, Error> {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            let advice = "entering a pod's network namespace takes CAP_SYS_ADMIN";
            invalid(self.path, format_args!("setns: {errno}: {advice}"))
        })?;
        Ok(work()?)
    }
}

/// Opens the network namespace at this path; none if that is the one of this process.
///
/// # Errors
/// The obstacle, in words.
pub fn open_another(path: &Path) -> Result<Option<Namespace>, String> {
    let namespace = Namespace::open(path).map_err(|error| error.to_string())?;
    // A namespace is a file on nsfs, known by its device and inode (namespaces(7)). A process is found sooner than a
    // thread: the kernel makes each folder of /proc as it is looked up.
    let here = fs::metadata("/proc/self/ns/net").map(|file| (file.dev(), file.ino()));
    let here = here.map_err(|error| {
        format!("whether it is another than this process' own cannot be told: /proc/self/ns/net: {error}")
    })?;
    let there = fstat(&namespace).map_err(|errno| format!("fstat: {errno}"))?;
    Ok((here != (there.st_dev, there.st_ino)).then_some(namespace))
}

fn invalid(netns: &Path, reason: impl Display) -> Error {
    Error::Environment { variable: "CNI_NETNS", reason: format!("is {}: {reason}", netns.display()) }
}

/// Checks that an ADD could be served: the configuration and the kubeconfig can be used, and the kernel takes the
/// rules. That is tried out in a network namespace of its own, which is gone afterwards.
///
/// # Errors
/// The error of an ADD.
pub fn status(configuration: &Configuration) -> Result<Installed, Error> {
    let install = configuration.install(configuration.config()?);
    if configuration.linkerd.pod_info == PodInfo::Api {
        kubeconfig(configuration)?;
    }
    let installed = thread::scope(|scope| {
        let work = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(install.run())
        };
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let installed = installed.map_err(|error: io::Error| proxy_init::Error::Netns {
        path: "(a new one)".into(),
        errno: Errno::from_raw(error.raw_os_error().unwrap_or_default()),
        advice: "STATUS tries the rules in a network namespace of its own, which takes CAP_SYS_ADMIN",
    })?;
    Ok(installed?)
}
