//! The programs that make a node, and their logs. They end with the process namespace.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::NODE;
use crate::shell::Result;

/// Those that run.
#[derive(Debug)]
pub struct Services {
    /// The folder that was filled for scenarios.
    pub folder: PathBuf,
    running: Mutex<Vec<(&'static str, Child)>>,
}

impl Services {
    /// None yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), running: Mutex::default() }
    }

    /// Starts one: of the folder `bin`, or of this machine's.
    pub fn start(&self, name: &'static str, arguments: &[String]) -> Result<()> {
        let logs = Path::new(NODE).join("logs");
        fs::create_dir_all(&logs)?;
        let log = File::options().create(true).append(true).open(logs.join(name))?;
        let own = self.folder.join("bin").join(name);
        let program = if own.exists() { own } else { name.into() };
        let child = Command::new(program)
            .args(arguments)
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        self.running().push((name, child));
        Ok(())
    }

    /// Kills one as the kernel does when it is out of memory.
    pub fn kill(&self, name: &str) -> Result<()> {
        let mut running = self.running();
        let position = running.iter().position(|(running, _)| *running == name);
        let (_, mut child) = running.remove(position.ok_or_else(|| format!("{name} does not run"))?);
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// The numbers of their processes.
    pub fn processes(&self) -> Vec<u32> {
        self.running().iter().map(|(_, child)| child.id()).collect()
    }

    /// Copies their logs to where they outlast the run.
    pub fn keep_logs(&self) -> Result<()> {
        let to = self.folder.join("logs");
        fs::create_dir_all(&to)?;
        for log in fs::read_dir(Path::new(NODE).join("logs"))?.flatten() {
            fs::copy(log.path(), to.join(log.file_name()))?;
        }
        eprintln!("The logs of the node's programs are in {}", to.display());
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, Vec<(&'static str, Child)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
