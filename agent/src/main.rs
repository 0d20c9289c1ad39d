//! The program; all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    linkerd_cni_agent::main()
}
