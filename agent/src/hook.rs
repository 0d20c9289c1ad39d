//! The preStop hook in Linkerd's chart, in an image without a shell.
//!
//! The hook runs `/bin/sh -c "kill -15 1; sleep 15s"`. Without that program, kubelet reports FailedPreStopHook for each
//! agent that ends, and sends SIGTERM at once (killContainer in
//! kubernetes/pkg/kubelet/kuberuntime/kuberuntime_container.go). Under that name, the agent does what the hook is for,
//! and nothing else.

use std::ffi::OsString;
use std::process::ExitCode;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What the chart's templates have in charts/linkerd2-cni/templates/cni-plugin.yaml.
const HOOK: &str = "kill -15 1; sleep 15s";

/// Does what the hook asks for. It doesn't sleep: kubelet waits for the agent to end in any case.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if let [flag, command] = &arguments[..]
        && flag == "-c"
        && command == HOOK
    {
        return match kill(Pid::from_raw(1), Signal::SIGTERM) {
            Ok(()) => ExitCode::SUCCESS,
            Err(errno) => {
                eprintln!("kill: {errno}");
                ExitCode::FAILURE
            }
        };
    }
    eprintln!("there is no shell in this image: this is linkerd-cni-agent, which knows the chart's preStop hook alone");
    ExitCode::from(127)
}
