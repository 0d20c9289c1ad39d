//! The programs that take part: those that the benchmark carries, and those of the host.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::install::find;

use lab::shell::Result;

const EMPTY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/empty"));
const REPLAY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/replay"));
/// The C library of both floors.
pub(crate) const LIBC: &str = env!("FLOORS_LIBC");
const RUN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/run"));
/// None where it was built without.
const PROXY_INIT: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/proxy-init.rs"));

/// As in c/replay.c.
const MARK: &[u8; 16] = b"batch goes here\0";
const ROOM: usize = 16_384;

/// One command.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    program: PathBuf,
    arguments: Vec<String>,
    stdin: PathBuf,
}

impl Step {
    /// This program with these arguments, and with nothing on stdin.
    pub(crate) fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            stdin: "/dev/null".into(),
        }
    }

    /// With this file on stdin.
    pub(crate) fn stdin(mut self, path: PathBuf) -> Self {
        self.stdin = path;
        self
    }
}

/// The cost of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// From the first command's spawn to the last one's exit, in microseconds.
    pub(crate) wall: f64,
    /// Processor time of all its commands, in microseconds.
    pub(crate) processor: f64,
    /// Memory of the largest command, at its peak, in KiB.
    pub(crate) memory: u64,
}

/// Everything that can be run. Its files vanish with it.
#[derive(Debug)]
pub(crate) struct Tools {
    scratch: PathBuf,
    proxy_init: PathBuf,
}

impl Tools {
    /// Unpacks the programs that the benchmark carries; `proxy_init` takes the place of its own proxy-init.
    pub(crate) fn unpack(proxy_init: Option<PathBuf>) -> Result<Self> {
        let scratch = env::temp_dir().join(format!("proxy-init-bench-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&scratch);
        made.map_err(|error| format!("{}: {error}", scratch.display()))?;
        let mut tools = Self { proxy_init: scratch.join("proxy-init"), scratch };
        tools.program("run", RUN)?;
        match (proxy_init, PROXY_INIT) {
            (Some(path), _) => {
                tools.proxy_init = fs::canonicalize(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            (None, Some(binary)) => _ = tools.program("proxy-init", binary)?,
            (None, None) => {
                return Err("this proxy-init-bench carries no proxy-init: name one with --proxy-init".into());
            }
        }
        tools.launch(None, 0, &[tools.empty()?]).map_err(|error| {
            format!(
                "cannot run programs in {}: {error}; set TMPDIR to a folder where that is allowed",
                tools.scratch.display()
            )
        })?;
        // Whatever ends with 0 could be measured.
        let said = tools.read(&tools.proxy_init(["--version"]))?;
        if !said.starts_with("proxy-init ") {
            return Err(format!("{} is not proxy-init", tools.proxy_init.display()).into());
        }
        Ok(tools)
    }

    /// Writes a file that a step reads, and returns where it is.
    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    fn program(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.file(name, bytes)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
        Ok(path)
    }

    /// The static program that does nothing.
    pub(crate) fn empty(&self) -> Result<Step> {
        Ok(Step::new(self.program("empty", EMPTY)?, [""; 0]))
    }

    /// proxy-init with these arguments.
    pub(crate) fn proxy_init(&self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Step {
        Step::new(&self.proxy_init, arguments)
    }

    /// A static C program that sends these bytes to nf_tables and reads the answers.
    pub(crate) fn replay(&self, name: &str, batch: &[u8]) -> Result<Step> {
        let mut program = REPLAY.to_vec();
        let mark = program.windows(MARK.len()).position(|window| window == MARK);
        let place = mark.and_then(|mark| program.get_mut(mark + MARK.len()..mark + MARK.len() + 4 + ROOM));
        let (Some(place), true) = (place, batch.len() <= ROOM) else {
            return Err(
                format!("a batch of {} bytes does not fit into the program that replays it", batch.len()).into()
            );
        };
        let (length, bytes) = place.split_at_mut(4);
        length.copy_from_slice(&u32::try_from(batch.len())?.to_ne_bytes());
        bytes[..batch.len()].copy_from_slice(batch);
        Ok(Step::new(self.program(name, program)?, [""; 0]))
    }

    /// The host's command of this name.
    pub(crate) fn host(&self, name: &str) -> Result<PathBuf> {
        find(name).ok_or_else(|| format!("{name} is not installed").into())
    }

    /// A program's output, in the network namespace of the thread.
    pub(crate) fn read(&self, step: &Step) -> Result<String> {
        let mut command = Command::new(&step.program);
        let output = command.args(&step.arguments).stdin(File::open(&step.stdin)?).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}: {}", step.program.display(), output.status, stderr.trim()).into())
    }

    /// Runs the steps one after another, in the network namespace of the thread, and in a cgroup if its cgroup.procs is
    /// given. Steps under different `lock`s don't wait for each other's xtables lock, as pods don't.
    pub(crate) fn launch(&self, cgroup: Option<&Path>, lock: usize, steps: &[Step]) -> Result<Sample> {
        let mut command = Command::new(self.scratch.join("run"));
        command.arg(cgroup.unwrap_or(Path::new("-")));
        for (index, step) in steps.iter().enumerate() {
            if index > 0 {
                command.arg(";");
            }
            command.arg(&step.stdin).arg(&step.program).args(&step.arguments);
        }
        command
            .env_clear()
            .env("PATH", search_path())
            .env("XTABLES_LOCKFILE", self.scratch.join(format!("lock-{lock}")));
        let output = command.output()?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let mut numbers = stdout.split_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(wall)), Some(Ok(processor)), Some(Ok(memory))) if output.status.success() => {
                Ok(Sample { wall: wall as f64 / 1000.0, processor: processor as f64, memory })
            }
            _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into()),
        }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.scratch) {
            eprintln!("proxy-init-bench: cannot remove {}: {error}", self.scratch.display());
        }
    }
}

/// The caller's, and where the superuser's commands are.
fn search_path() -> String {
    let own = env::var("PATH").unwrap_or_default();
    format!("{own}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}
