//! The preStop hook in Linkerd's chart, in an image without a shell.
//!
//! The hook runs `/bin/sh -c "kill -15 1; sleep 15s"`. Without that program, kubelet reports FailedPreStopHook for each
//! agent that ends, and sends SIGTERM at once (killContainer in
//! kubernetes/pkg/kubelet/kuberuntime/kuberuntime_container.go). Under that name, the agent does what the hook is for,
//! and nothing else.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{self, ExitCode};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What the chart's templates have in charts/linkerd2-cni/templates/cni-plugin.yaml.
const HOOK: &str = "kill -15 1; sleep 15s";

/// Does what the hook asks for. It doesn't sleep: kubelet waits for the agent to end in any case.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let is_hook = matches!(&arguments[..], [flag, command] if flag == "-c" && command == HOOK);
    if !is_hook {
        eprintln!(
            "there is no shell in this image: this is linkerd-cni-agent, which knows the chart's preStop hook alone"
        );
        return ExitCode::from(127);
    }
    match end_agent() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("the agent is not ended by this hook, but by kubelet's signal: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Sends SIGTERM to process 1, if that is the agent: with hostPID it is the node's init, and where a pod's containers
/// share their processes, the pod's sandbox.
fn end_agent() -> Result<(), String> {
    if !is_first_process_agent().map_err(|error| format!("process 1 cannot be looked at: {error}"))? {
        return Err("process 1 is not linkerd-cni-agent".to_owned());
    }
    kill(Pid::from_raw(1), Signal::SIGTERM).map_err(|errno| format!("kill: {errno}"))
}

/// Whether process 1 runs the same program as this one.
fn is_first_process_agent() -> io::Result<bool> {
    // Another PID namespace's /proc numbers processes otherwise than kill does.
    if fs::read_link("/proc/self")? != Path::new(&process::id().to_string()) {
        return Ok(false);
    }
    let (first, own) = (fs::metadata("/proc/1/exe")?, fs::metadata("/proc/self/exe")?);
    Ok((first.dev(), first.ino()) == (own.dev(), own.ino()))
}
