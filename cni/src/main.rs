//! Read, run, print, exit code.

use std::env;
use std::io::{self, Read as _};
use std::process::ExitCode;

use linkerd_cni::log::Log;
use linkerd_cni::plugin::{self, CommandResult};
use proxy_init::log::{Level, print};

/// The longest network configuration that is read. Runtimes send some kilobytes; annotations may have 256 KiB.
const LONGEST: u64 = 16 << 20;

const HELP: &str = "\
linkerd-cni is a CNI plugin: it redirects a pod's TCP connections through its
sidecar proxy. A container runtime starts it, and tells it what to do by
variables of the environment and the network configuration on standard input.

Example: what a runtime does for a new pod

  CNI_COMMAND=ADD CNI_NETNS=/var/run/netns/pod \\
  CNI_CONTAINERID=sandbox-1 CNI_IFNAME=eth0 \\
  CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0' \\
  linkerd-cni < configuration.json

Variables:
  CNI_COMMAND      ADD, CHECK, DEL, GC, STATUS or VERSION
  CNI_CONTAINERID  the container (ADD, CHECK)
  CNI_NETNS        the path of its network namespace (ADD, CHECK)
  CNI_IFNAME       the name of its interface (ADD, CHECK)
  CNI_ARGS         its pod; without one, nothing is redirected

Options:
  --version, -V    the version, commit and libraries
  --help, -h       this text

Exit codes:
  0  done
  1  failed; the error is an object on standard output

docs/cni.md lists the configuration's keys, the annotations that count, and the
errors.";

fn main() -> ExitCode {
    // For people: a runtime gives no arguments.
    let argument = env::args_os().nth(1).and_then(|argument| argument.into_string().ok());
    let said = |stdout| CommandResult { stdout, code: 0 };
    let outcome = match argument.as_deref() {
        Some("--version" | "-V") => said(format!("linkerd-cni {}", proxy_init::BUILD)),
        Some("--help" | "-h" | "help") => said(HELP.to_owned()),
        _ => plugin::run(&|name| env::var_os(name), stdin),
    };
    if !outcome.stdout.is_empty()
        && let Err(error) = print(&(outcome.stdout + "\n"))
    {
        // The specification's code for a failure of input or output, which no object can carry here.
        Log::new(Level::Error)
            .add(Level::Error, format_args!("the answer cannot be written to stdout: {error} (code 5)"));
        return ExitCode::FAILURE;
    }
    outcome.code.into()
}

fn stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes")));
    }
    Ok(bytes)
}
