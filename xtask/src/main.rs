//! `cargo xtask`: everything a person does with the checkout.

use std::process::ExitCode;

mod bench;
mod build;
mod c_libraries;
mod cluster;
mod commit;
mod demo;
mod image;
mod kernels;
mod licences;
mod mutants;
mod node;
mod order;
mod pods;
mod release;
mod rootfs;
mod rust;
mod setup;
mod test;

use lab::architecture::Architecture;
use lab::shell::{self, Result, Run as _, cargo};

const HELP: &str = "\
Usage: cargo xtask COMMAND

To try it:
  demo         Show what proxy-init says of real connections in a throwaway pod
               (needs root)
  test         Check formatting and lints, and run the unit tests and the
               integration tests (needs root)
                 --slow  the checks that take longer: documentation, the
                         integration tests on the programs that ship, packages
                         of other releases, valgrind, each benchmark once, pods
                         by containerd, and kernels under qemu
  setup        Install what the build and the tests need. The other commands do
               it when something of theirs is missing

To build:
  build        Build proxy-init, proxy-init-bench, linkerd-cni and
               linkerd-cni-agent in target/dist, linked statically with musl.
                 --arch ARCH  without proxy-init-bench, for amd64 or arm64
  image        Put what the Dockerfile's stages copy into a folder:
                 --layout FOLDER
  release      Make target/release-VERSION: static programs and images for amd64
               and arm64, completions, licences, SBOMs, checksums
               and notes (needs root).
                 --check      make it twice, and compare
  order        List the functions that run at a pod's start in
               xtask/src/order.ld, for the linker to lay them side by side
               (needs root)

To test more:
  pods         Run pods by Debian sid's containerd, with proxy-init as the init
               container, with linkerd-cni as a CNI plugin and with its agent by
               NRI, make connections, and look at them from debug containers
               (needs root).
                 --only WORD...  the scenarios whose name has all words
                 --release       the image from cargo xtask release
  cluster      Run a Kubernetes cluster of one node, and pods with proxy-init on
               it, looked at with kubectl (needs root).
                 --kubernetes FOLDER  kube-apiserver, kube-controller-manager,
                                 kube-scheduler, kube-proxy and kubelet, of
                                 1.32 or later; the rest is Debian sid's
                 --only WORD...  the scenarios whose name has all words; those
                                 with kubelet measure
                 --keep          leave the cluster running until Ctrl-C, and say
                                 how to reach it
  kernels      Boot Debian's kernels under qemu, whole and with modules missing,
               try every mode, and print the table of docs/kernels.md.
                 --only WORD...  those whose name has all words, and write
                                 nothing: --only 6.12 nft_compat
                 --arch ARCH     those of amd64 or arm64
  fuzz         Fuzz what reads the kernel's answers, iptables-save's text, flags
               and the CNI plugin's input, for 10 minutes (needs a nightly
               toolchain).
                 --seconds N     for N seconds instead
  mutants      Make deliberate mistakes in the code, one at a time, and
               fail where the tests that need no root miss more than one in
               twenty.
                 FILES           only in these
  audit        Check the dependencies' licences, duplicate versions, sources
               and, where they can be had, advisories

To measure, and to keep lists up to date:
  bench        Measure whole processes by proxy-init-bench, which takes the
               other arguments: its table, its JSON and its chart go to
               target/bench (needs root).
                 --plugin     the CNI plugin's ADD
                 --inside     what happens inside the process, by criterion,
                              which takes the other arguments

Example: cargo xtask demo

Exit codes:
  0  done
  1  failed; the error says why";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match (command.as_str(), rest.as_slice()) {
        ("setup", []) => setup::run(),
        ("build", arguments) => setup::for_build().and_then(|()| build_all(arguments)),
        ("test", []) => setup::for_tests().and_then(|()| test::quick()),
        ("test", [flag]) if flag == "--slow" => setup::for_tests().and_then(|()| test::slow()),
        ("demo", []) => setup::for_tests().and_then(|()| demo::run()),
        ("audit", []) => audit(),
        ("image", [flag, folder]) if flag == "--layout" => {
            setup::for_build().and_then(|()| image::lay_out(folder.as_ref(), Architecture::here()?))
        }
        ("kernels", arguments) => setup::for_tests().and_then(|()| kernels::run(arguments)),
        ("cluster", arguments) => setup::for_tests().and_then(|()| cluster::run(arguments)),
        ("pods", arguments) => setup::for_tests().and_then(|()| pods::run(arguments)),
        ("mutants", files) => setup::for_build().and_then(|()| mutants::run(files)),
        ("order", []) => setup::for_tests().and_then(|()| order::run()),
        ("fuzz", arguments) => setup::for_tests().and_then(|()| fuzz(arguments)),
        ("release", []) => setup::for_build().and_then(|()| release::run()),
        ("release", [flag]) if flag == "--check" => setup::for_build().and_then(|()| release::check()),
        ("bench", arguments) => setup::for_tests().and_then(|()| bench::run(arguments)),
        ("" | "help" | "-h" | "--help", _) => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown command: cargo xtask {command} {}\n\n{HELP}", rest.join(" ")).into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn build_all(arguments: &[String]) -> Result<()> {
    let architecture = match arguments {
        [] => None,
        [flag, name] if flag == "--arch" => Some(Architecture::named(name)?),
        _ => return Err("usage: cargo xtask build [--arch ARCH]".into()),
    };
    for program in build::SHIPPED {
        let built = match architecture {
            Some(architecture) => build::program(program, architecture)?,
            None => build::to_dist(program)?,
        };
        println!("{}", built.display());
    }
    if architecture.is_none() {
        println!("{}", build::to_dist("proxy-init-bench")?.display());
    }
    Ok(())
}

/// The corpus is read, and what is found goes to target/.
fn fuzz(arguments: &[String]) -> Result<()> {
    let seconds = match arguments {
        [] => 600,
        [flag, seconds] if flag == "--seconds" => seconds.parse::<u32>()?,
        _ => return Err("usage: cargo xtask fuzz [--seconds N]".into()),
    };
    setup::cargo_tool("cargo-fuzz")?;
    // Half of the time each.
    for target in ["read_all", "cni"] {
        let found = shell::target("fuzz-corpus").join(target);
        std::fs::create_dir_all(&found)?;
        let mut command = std::process::Command::new("rustup");
        command.args(["run", "nightly", "cargo", "fuzz", "run", target]).arg(&found);
        command.arg(format!("fuzz/corpus/{target}")).args(["--", &format!("-max_total_time={}", seconds.div_ceil(2))]);
        command.current_dir(shell::root()).run()?;
    }
    Ok(())
}

/// cargo-deny's checks; advisories need a database from the network, and missing it is said, not passed.
fn audit() -> Result<()> {
    setup::cargo_tool("cargo-deny")?;
    cargo(&["deny", "--workspace", "check", "licenses", "bans", "sources"]).run()?;
    if cargo(&["deny", "--workspace", "check", "advisories"]).run().is_err() {
        println!("NOT CHECKED, or not passed: advisories; see above");
    }
    Ok(())
}
