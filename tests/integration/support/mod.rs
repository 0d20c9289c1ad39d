//! The tests' common parts: a run of the program, a scratch folder, and iptables' listing afterwards.

pub(crate) mod any_flags;

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use lab::linkerd::CHART_ARGUMENTS;
use lab::network::Namespace;
use lab::shell::program_to_test;

/// The program under test: this build's, or the one that `cargo xtask test --slow` names, which is what a release has.
pub(crate) static PROXY_INIT: LazyLock<String> =
    LazyLock::new(|| program_to_test("proxy-init", env!("CARGO_BIN_EXE_proxy-init")));

/// The flags that must be given, and nothing else.
pub(crate) const PORTS: &str = "-p 4143 -o 4140";

/// Where this machine's own commands are.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The default arguments of Linkerd's chart, without a mode.
pub(crate) fn chart() -> String {
    CHART_ARGUMENTS.join(" ")
}

/// The default arguments of Linkerd's chart, with this mode.
pub(crate) fn chart_in(mode: &str) -> String {
    format!("--iptables-mode {mode} {}", chart())
}

/// A run of the program that is yet to start.
///
/// Methods that change who runs it, or under what, nest in the order in which they are called: the first is outermost.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Programs that each start the next one, with their arguments.
    wrappers: Vec<OsString>,
    environment: Vec<OsString>,
    program: &'static str,
    arguments: Vec<OsString>,
}

impl Run {
    /// With the words of this line as arguments, as root, and with the test's own environment but for what picks a
    /// mode.
    pub(crate) fn new(line: &str) -> Self {
        Self {
            wrappers: vec![],
            environment: vec![],
            program: &PROXY_INIT,
            arguments: line.split_whitespace().map(Into::into).collect(),
        }
    }

    /// With further arguments, which may hold spaces.
    pub(crate) fn arguments(mut self, more: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(more.into_iter().map(Into::into));
        self
    }

    /// By this build's own program, whatever is under test: valgrind takes a jump that optimised code may make early
    /// for a mistake.
    pub(crate) fn of_this_build(mut self) -> Self {
        self.program = env!("CARGO_BIN_EXE_proxy-init");
        self
    }

    /// With this variable in the environment.
    pub(crate) fn environment(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        let mut assignment = OsString::from(format!("{name}="));
        assignment.push(value.as_ref());
        self.environment.push(assignment);
        self
    }

    /// With no commands on PATH but those of this folder.
    pub(crate) fn only_commands_of(self, folder: &Folder) -> Self {
        self.environment("PATH", folder.path())
    }

    /// With this folder's commands before the machine's own.
    pub(crate) fn commands_of(self, folder: &Folder) -> Self {
        let path = format!("{}:{SYSTEM_PATH}", folder.path());
        self.environment("PATH", path)
    }

    /// Started by another program, which is given these arguments, then the program and its own.
    pub(crate) fn under(mut self, wrapper: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.wrappers.extend(wrapper.into_iter().map(Into::into));
        self
    }

    /// As uid and gid 65534 with these capabilities: bounding, inheritable and ambient, and therefore effective.
    pub(crate) fn nobody(self, capabilities: &[&str]) -> Self {
        let set = capabilities.iter().fold("-all".to_owned(), |set, name| set + ",+" + name);
        self.under(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).under([
            format!("--inh-caps={set}"),
            format!("--ambient-caps={set}"),
            format!("--bounding-set={set}"),
        ])
    }

    /// As root without this capability.
    pub(crate) fn root_without(self, capability: &str) -> Self {
        self.under(["setpriv".to_owned(), format!("--bounding-set=-{capability}")])
    }

    /// In a mount namespace of its own, in which this shell command has run.
    pub(crate) fn after_mounting(self, command: &str) -> Self {
        self.under(["unshare", "--mount", "sh", "-ec"]).under([format!("{command}; exec \"$@\"").as_str(), "sh"])
    }

    /// On a kernel that tells only root and group 0 of legacy tables: without /sys, and of no known version.
    pub(crate) fn without_signs_of_legacy(self) -> Self {
        self.after_mounting("mount -t tmpfs tmpfs /sys").failing("uname", "EPERM")
    }

    /// As a pod's security context runs it: [`Run::nobody`] without new privileges, in a read-only root whose /run
    /// everybody may write.
    pub(crate) fn in_pod(self, capabilities: &[&str]) -> Self {
        self.after_mounting("mount -t tmpfs -o mode=1777 tmpfs /run; mount -o remount,bind,ro /")
            .under(["setpriv", "--no-new-privs"])
            .nobody(capabilities)
    }

    /// As root of a user namespace that maps no other user, with a network namespace of its own.
    pub(crate) fn in_user_namespace(self) -> Self {
        self.under(["unshare", "-Urn"])
    }

    /// With a system call that strace tampers with, in the words of its `--inject`.
    pub(crate) fn inject(self, call: &str, what: &str) -> Self {
        self.under([
            "strace".to_owned(),
            "--output=/dev/null".to_owned(),
            format!("--trace={call}"),
            format!("--inject={call}:{what}"),
        ])
    }

    /// With a system call that fails each time.
    pub(crate) fn failing(self, call: &str, error: &str) -> Self {
        self.inject(call, &format!("error={error}"))
    }

    /// The command line of it all.
    pub(crate) fn command(&self) -> Command {
        // Right before the program, so that the wrappers are looked up and run as ever.
        let environment = (!self.environment.is_empty()).then_some("/usr/bin/env".into());
        let program = OsString::from(self.program);
        let mut words =
            self.wrappers.iter().chain(&environment).chain(&self.environment).chain([&program]).chain(&self.arguments);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env_remove("IPTABLES_MODE");
        command
    }

    /// Runs it in a namespace to its end.
    pub(crate) fn output(&self, namespace: &Namespace) -> Finished {
        Finished(namespace.output(&mut self.command()))
    }

    /// Starts it in a namespace.
    pub(crate) fn spawn(&self, namespace: &Namespace, stdout: Stdio) -> Child {
        namespace.run(|| self.command().stdout(stdout).spawn().unwrap())
    }

    /// Runs it under strace, and it must succeed.
    pub(crate) fn calls(&self, namespace: &Namespace) -> Calls {
        static TRACES: AtomicU32 = AtomicU32::new(0);
        let folder = Folder::new(&format!("trace-{}", TRACES.fetch_add(1, Ordering::Relaxed)));
        let file = folder.join("trace");
        // Of what a call is given, only the first bytes.
        self.clone()
            .under(["strace", "--follow-forks", "--string-limit=32", "--output"])
            .under([&file])
            .output(namespace)
            .success();
        Calls(fs::read_to_string(file).unwrap())
    }
}

/// Runs the program as root, and it must succeed. Returns what it printed.
pub(crate) fn install(namespace: &Namespace, line: &str) -> String {
    Run::new(line).output(namespace).success()
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Finished(pub(crate) Output);

impl Finished {
    pub(crate) fn code(&self) -> Option<i32> {
        self.0.status.code()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    /// On both.
    pub(crate) fn said(&self) -> String {
        self.stdout() + &self.stderr()
    }

    /// The output of the run, which must have succeeded.
    pub(crate) fn success(&self) -> String {
        self.assert_code(0);
        self.stdout()
    }

    /// The last line of the log, which is all that Kubernetes may show; it must have failed.
    pub(crate) fn last_line(&self) -> String {
        self.assert_code(1);
        self.stdout().lines().last().unwrap_or_default().to_owned()
    }

    /// Fails with what the program said last: all that it said may be a line for each of thousands of rules.
    fn assert_code(&self, code: i32) {
        let stdout = self.stdout();
        let last = stdout.lines().last().unwrap_or_default();
        assert_eq!(self.code(), Some(code), "{}: {last} {}", self.0.status, self.stderr());
    }
}

/// The system calls of a run.
pub(crate) struct Calls(pub(crate) String);

impl Calls {
    /// The number of these that didn't fail.
    pub(crate) fn count(&self, names: &[&str]) -> usize {
        let is_call =
            |line: &&str| names.iter().any(|name| line.contains(&format!(" {name}("))) && !line.contains("= -1 ");
        self.0.lines().filter(is_call).count()
    }
}

impl Calls {
    /// The number of batches that were sent to be checked and discarded: they begin without a generation (20 bytes, not
    /// 28).
    pub(crate) fn trials(&self) -> usize {
        self.batches(20)
    }

    /// The number of batches that were sent to be committed.
    pub(crate) fn commits(&self) -> usize {
        self.batches(28)
    }

    /// The number of batches whose first message is so long.
    fn batches(&self, length: usize) -> usize {
        // strace names the type once it knows the socket's protocol.
        let begins = ["0x10 ", "NFNL_MSG_BATCH_BEGIN,"].map(|kind| format!("nlmsg_len={length}, nlmsg_type={kind}"));
        let is_batch = |line: &&str| line.contains(" sendto(") && begins.iter().any(|begin| line.contains(begin));
        self.0.lines().filter(is_batch).count()
    }
}

/// A scratch folder for commands and files of the test's own making, gone when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The name must be one that no other test takes.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("proxy-init-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A path in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A link to one of the machine's commands, under this name.
    pub(crate) fn link(&self, name: &str, command: &str) {
        let which = Command::new("sh").args(["-c", &format!("command -v {command}")]).output().unwrap();
        let original = String::from_utf8(which.stdout).unwrap();
        assert!(!original.is_empty(), "{command} is not installed");
        symlink(original.trim(), self.join(name)).unwrap();
    }

    /// The commands that plain mode looks for, of `nft` or `legacy`.
    pub(crate) fn link_plain(&self, variant: &str) {
        for family in ["iptables", "ip6tables"] {
            for suffix in ["", "-restore", "-save"] {
                self.link(&format!("{family}{suffix}"), &format!("{family}-{variant}{suffix}"));
            }
        }
    }

    /// A shell script instead of one of the machine's commands, in which `REAL` stands for that command.
    pub(crate) fn wrap(&self, command: &str, script: &str) {
        // iptables' commands are one program, which goes by the name that it is called by.
        let real = self.join("real");
        fs::create_dir_all(&real).unwrap();
        self.link(&format!("real/{command}"), command);
        let real = real.join(command);
        self.script(command, &script.replace("REAL", real.to_str().unwrap()));
    }

    /// A shell script of this name. Another process writes it: what a program has open for writing is open for a moment
    /// in each process that another of its threads starts, and until then the script can't be executed (ETXTBSY).
    pub(crate) fn script(&self, name: &str, text: &str) {
        let mut install = Command::new("install");
        install.args(["-m", "755", "/dev/stdin"]).arg(self.join(name));
        let mut install = install.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = install.stdin.take().unwrap();
        input.write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        drop(input);
        assert!(install.wait().unwrap().success());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Runs another program in a namespace, with this on its standard input.
pub(crate) fn feed(namespace: &Namespace, line: &str, input: &str) -> Finished {
    let output = namespace.run(|| {
        let mut words = line.split_whitespace();
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that stops reading early has an error to tell.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    });
    Finished(output)
}

/// Has nft run a script in a namespace, and it must succeed.
pub(crate) fn nft(namespace: &Namespace, script: &str) {
    feed(namespace, "nft -f -", script).success();
}

/// The nat table as printed by a command like `iptables-nft-save`, without the parts that differ from run to run:
/// comments and counters.
pub(crate) fn saved_by(namespace: &Namespace, save: &str) -> String {
    let text = namespace.stdout(save, ["-t", "nat"]);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(" [").next().unwrap_or_default())
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Both families' nat rules, one after the other, as iptables of this mode, `nft` or `legacy`, saves them.
pub(crate) fn saved(namespace: &Namespace, mode: &str) -> String {
    saved_by(namespace, &format!("iptables-{mode}-save")) + &saved_by(namespace, &format!("ip6tables-{mode}-save"))
}

/// The handles of rules and the comments by which they are told apart, in the order of our chains.
pub(crate) fn handles(namespace: &Namespace) -> Vec<(String, String)> {
    let listed = namespace.sh("nft -a list ruleset");
    let rule = |line: &str| {
        let comment = line.split("comment \"").nth(1)?.split('"').next()?;
        Some((comment.to_owned(), line.split("# handle ").nth(1)?.to_owned()))
    };
    listed.lines().filter_map(rule).collect()
}

/// A text whose lines are folded where a terminal ends, with one space between its words.
pub(crate) fn unfolded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
