//! A limit on processor time, as a container runtime sets it: one cgroup a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lab::cgroups::hierarchies;
use lab::shell::Result;

/// The beginning of our cgroups' names.
const PREFIX: &str = "proxy-init-bench-";

/// A limit of 100m, in microseconds of processor time in each so many microseconds: Kubernetes' form of the limit
/// (`MilliCPUToQuota`, pkg/kubelet/cm/helpers_linux.go).
const QUOTA: u32 = 10_000;
const PERIOD: u32 = 100_000;

/// Where this machine has the cpu controller.
#[derive(Debug, Clone)]
pub(crate) struct Controller {
    folder: PathBuf,
    /// Of cgroup v2; else of v1.
    v2: bool,
}

impl Controller {
    /// Looks for the folder, and removes the leftovers of an earlier run that was killed.
    pub(crate) fn find() -> Result<Self> {
        let controller = Self::look()?;
        for entry in fs::read_dir(&controller.folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                // One that is in use stays: the kernel refuses to remove it.
                let _ = fs::remove_dir(entry.path());
            }
        }
        Ok(controller)
    }

    fn look() -> Result<Self> {
        let mut reason = "no hierarchy of cgroups in /sys/fs/cgroup has the cpu controller".to_owned();
        for folder in hierarchies() {
            // Version 1's has it at its root; in version 2, it is handed down.
            if folder.join("cpu.shares").exists() {
                return Ok(Self { folder, v2: false });
            }
            let children = folder.join("cgroup.subtree_control");
            match fs::read_to_string(&children) {
                Ok(has) if has.split_whitespace().any(|controller| controller == "cpu") => {
                    return Ok(Self { folder, v2: true });
                }
                Ok(_) => reason = format!("the cpu controller is not enabled in {}", children.display()),
                Err(_) => {}
            }
        }
        Err(reason.into())
    }

    /// Makes a cgroup with the limit.
    pub(crate) fn limited(&self) -> Result<Cgroup> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
        let set = |file: &str, value: String| {
            let file = folder.join(file);
            fs::write(&file, value).map_err(|error| format!("{}: {error}", file.display()))
        };
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let cgroup = Cgroup(folder.clone());
        if self.v2 {
            set("cpu.max", format!("{QUOTA} {PERIOD}"))?;
        } else {
            set("cpu.cfs_period_us", PERIOD.to_string())?;
            set("cpu.cfs_quota_us", QUOTA.to_string())?;
        }
        Ok(cgroup)
    }
}

/// Removed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// The file that takes the processes' ids.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has ended may still count for a moment.
        for _ in 0..200 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(5));
                }
                _ => break,
            }
        }
        if Path::exists(&self.0) {
            eprintln!("proxy-init-bench: cannot remove {}", self.0.display());
        }
    }
}
