//! `cargo xtask order`: which functions the programs run, for the linker to lay them side by side.
//!
//! A cold process maps the program's file 64 KB at a time (`do_fault_around` in mm/memory.c), and each piece is a page fault and
//! sixteen pages to map and to unmap. What a run executes is 150 KB in 270 functions, which were spread over the whole of the
//! text. Where the list is old, functions that it doesn't name lie after the others, and a start takes longer; nothing else
//! depends on it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use lab::linkerd;
use lab::network::Namespace;
use lab::shell::{Result, Run as _, need_root, root, target};
use serde_json::json;

use crate::build::{self, ORDER};
use lab::architecture::Architecture;

/// The code that runs before `main` and at the exit, or has no sections by its functions' names.
const START: &str = "*crt1.o(.text .text.*) *crtbegin*.o(.text) *libmnl.a:socket.o(.text) *libmnl.a:nlmsg.o(.text) *libmnl.a:attr.o(.text)
*libnftnl.a:common.o(.text) *libnftnl.a:table.o(.text) *libnftnl.a:chain.o(.text) *libnftnl.a:rule.o(.text)
*libnftnl.a:expr.o(.text) *libnftnl.a:expr_ops.o(.text) *libnftnl.a:meta.o(.text) *libnftnl.a:cmp.o(.text)
*libnftnl.a:match.o(.text) *libnftnl.a:target.o(.text) *libnftnl.a:counter.o(.text) *libnftnl.a:immediate.o(.text)
*libnftnl.a:data_reg.o(.text) *libnftnl.a:payload.o(.text) *libnftnl.a:bitwise.o(.text) *libnftnl.a:lookup.o(.text)
*libnftnl.a:redir.o(.text) *libnftnl.a:set.o(.text) *libnftnl.a:set_elem.o(.text) *libnftnl.a:utils.o(.text)
*libc.a:__libc_start_main.lo(.text.*) *libc.a:__init_tls.lo(.text.*)
*libc.a:__set_thread_area.lo(.text) *libc.a:_Exit.lo(.text.*) KEEP(*(.fini))
*libc.a:memcpy.lo(.text) *libc.a:memmove.lo(.text) *libc.a:memset.lo(.text) *libc.a:strcmp.lo(.text.*)";

/// The memory that the allocator cuts up first (crates/start-up/src/allocator.rs), after all other data: these pages
/// are the first that it uses.
const FIRST: &str = "SECTIONS { .bss.last (NOLOAD) : { *(.bss._RNv*8start_up5FIRST) } }\nINSERT AFTER .bss;\n";

/// Runs each mode and the plugin's ADD under callgrind, and lists what they execute.
pub(crate) fn run() -> Result<()> {
    need_root("cargo xtask order", "to make network namespaces")?;
    let folder = target("order");
    fs::create_dir_all(&folder)?;
    let here = Architecture::here()?;
    let [init, plugin] = ["proxy-init", "linkerd-cni"].map(|name| build::with_symbols(name, here));
    let (init, plugin) = (init?, plugin?);
    let configuration = folder.join("add.json");
    let content = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "linkerd-cni",
        "log_level": "info",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.88.0.5/16", "gateway": "10.88.0.1", "interface": 0}],
            "dns": {},
        },
        "kubernetes": {"kubeconfig": "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig"},
        "linkerd": linkerd::cni_section("annotations"),
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"linkerd.io/proxy-version": "edge-1"}},
    });
    fs::write(&configuration, content.to_string())?;
    let mut seen = BTreeSet::new();
    let mut script = format!(
        "/* Made by `cargo xtask order`: what runs at a pod's start lies side by side. */\nSECTIONS {{ .text.first : {{\n{START}\n"
    );
    // ADD is first: of what only the plugin has, the linker finds nothing in proxy-init.
    for mode in ["add", "nft", "native", "legacy"] {
        let pod = Namespace::new();
        let mut command = Command::new("valgrind");
        let profile = folder.join(mode);
        command.args(["--tool=callgrind", "--demangle=no", "--compress-strings=no"]);
        command.arg(format!("--callgrind-out-file={}", profile.display()));
        if mode == "add" {
            command.arg(&plugin).envs([
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "order"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"),
                ("CNI_PATH", "/"),
            ]);
            command.env("CNI_NETNS", pod.path());
            command.stdin(File::open(&configuration)?).stdout(Stdio::null()).run()?;
        } else {
            command.arg(&init).args(["--iptables-mode", mode]);
            command.args(linkerd::CHART_ARGUMENTS);
            pod.run(|| command.stdout(Stdio::null()).run().map_err(|error| error.to_string()))?;
        }
        for function in executed(&profile)? {
            if seen.insert(function.clone()) {
                // Functions have a section each: `.text.NAME`, or `.text.unlikely.NAME` for those that are marked as
                // cold. musl's may be called by another name than that.
                if function.starts_with("_R") {
                    writeln!(script, "*(.text.*{function})")?;
                } else {
                    writeln!(script, "*(.text.{function} .text.__{function})")?;
                }
            }
        }
    }
    script.push_str("} }\nINSERT BEFORE .text;\n");
    script.push_str(FIRST);
    fs::write(root().join(ORDER), script)?;
    println!("{ORDER} names {} functions", seen.len());
    Ok(())
}

/// The functions that callgrind has seen, as the linker's patterns.
fn executed(profile: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(profile)?;
    let names = text.lines().filter_map(|line| line.strip_prefix("fn="));
    // Not those that only an address is known of, or a place: "(below main)".
    Ok(names.filter(|name| !name.starts_with(['0', '('])).map(pattern).collect())
}

/// The pattern of a function's name, without what differs from build to build: of each crate its hash, and the number of one
/// that LLVM has copied; callgrind adds one to a function that calls itself.
fn pattern(name: &str) -> String {
    let name = name.split('\'').next().unwrap_or(name);
    let (name, copy) = name.split_once('.').map_or((name, ""), |(name, _)| (name, ".*"));
    let mut parts = name.split("Cs");
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        pattern.push_str("Cs");
        match part.split_once('_') {
            Some((hash, rest)) if name.starts_with("_R") && hash.chars().all(char::is_alphanumeric) => {
                pattern.push_str("*_");
                pattern.push_str(rest);
            }
            _ => pattern.push_str(part),
        }
    }
    pattern + copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_holds_for_other_builds() {
        let name = "_RNvMs_NtCs8XMH67ltRdb_10proxy_init3logNtB5_3Log3addNtNtCsc1ylSBhekvY_4core3fmt9ArgumentsEB7_";
        let expected = "_RNvMs_NtCs*_10proxy_init3logNtB5_3Log3addNtNtCs*_4core3fmt9ArgumentsEB7_";
        assert_eq!(pattern(name), expected);
        assert_eq!(pattern("_RNvNtNtCsc1ylSBhekvY_4core3fmt5write'2"), "_RNvNtNtCs*_4core3fmt5write");
        assert_eq!(pattern("memcpy"), "memcpy");
        assert_eq!(pattern("_RNvNtCs5alwJfJBvpo_5alloc3fmt6format.24"), "_RNvNtCs*_5alloc3fmt6format.*");
    }
}
