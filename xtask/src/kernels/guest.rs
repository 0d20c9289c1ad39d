//! What runs in a guest of `cargo xtask kernels`, as its init: every mode once, in network namespaces of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use xtask::lab::{Lab, NEIGHBOUR, Owner, POD, ROOT, Reached, Server, connect};
use xtask::linkerd;

use super::variant::{LEFT_BEHIND, MODES, PARAMETER, RESULT, VARIANTS};

/// Whether this is a guest: the first process of a kernel that was started for it.
pub(crate) fn is_guest() -> bool {
    std::process::id() == 1
}

/// Does it all, and switches the machine off.
pub(crate) fn run() {
    for (kind, path) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        if let Err(errno) = mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>) {
            println!("{RESULT} cannot mount {path}: {errno}");
        }
    }
    let parameters = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let variant = parameters
        .split_whitespace()
        .find_map(|word| word.strip_prefix(PARAMETER)?.strip_prefix('='));
    let variant = VARIANTS
        .iter()
        .find(|known| variant == Some(known.parameter().as_str()));
    let Some(variant) = variant else {
        println!("{RESULT} the kernel's command line names no variant: {parameters}");
        let _ = reboot(RebootMode::RB_POWER_OFF);
        return;
    };
    for module in variant.modules {
        remove(Path::new("/lib/modules"), module);
    }
    // As hosts with legacy tables have them: iptables can load these itself only with CAP_SYS_MODULE, which proxy-init
    // does not give it. The kernel loads the rest.
    for module in ["ip_tables", "ip6_tables"] {
        let _ = Command::new("/sbin/modprobe").arg(module).output();
    }
    for mode in MODES {
        println!("{RESULT} {}", try_mode(mode));
    }
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

/// Deletes a module's file, so that it can't be loaded.
fn remove(folder: &Path, module: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove(&path, module);
        } else if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().split('.').next() == Some(module))
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn proxy_init(lab: &Lab, before: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new("/bin/proxy-init");
    command.env("PATH", "/usr/sbin:/sbin:/bin").args(before).args(arguments);
    lab.pod.output(&mut command)
}

/// `ok`, or the mode that was taken if it is another than this; else what the error says.
fn try_mode(mode: &str) -> String {
    let lab = Lab::new();
    let flags = [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat();
    let output = proxy_init(&lab, &[], &flags);
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = log.lines().last().unwrap_or_default();
    if !output.status.success() {
        let report = proxy_init(&lab, &["detect", "--output", "json"], &[]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap_or_default();
        // How many rules each table has.
        let tables = |backend: &str| -> Vec<u64> {
            let tables = report.pointer(&format!("/{backend}/tables"));
            let tables = tables.and_then(|tables| tables.as_array()).into_iter().flatten();
            tables.filter_map(|table| table.get("rules")?.as_u64()).collect()
        };
        // Legacy tables are made by the kernel as soon as somebody asks for them, empty.
        let left = if !tables("nf_tables").is_empty() || tables("legacy").iter().any(|&rules| rules > 0) {
            LEFT_BEHIND
        } else {
            ""
        };
        return format!("{} {left}", essence(last));
    }
    let verified = proxy_init(&lab, &["verify"], &flags);
    if !verified.status.success() {
        return format!(
            "installed, but {}",
            String::from_utf8_lossy(&verified.stdout).replace('\n', "; ")
        );
    }
    let _servers = [
        Server::start(&lab.pod, &[4143, 4140]),
        Server::start(&lab.outside, &[80]),
    ];
    for (pod, outside) in POD.into_iter().zip(NEIGHBOUR) {
        let app = Owner { uid: 1000, gid: 1000 };
        for (from, owner, to, port) in [
            (&lab.outside, ROOT, SocketAddr::new(pod, 8080), 4143),
            (&lab.pod, app, SocketAddr::new(outside, 80), 4140),
        ] {
            let reached = connect(from, owner, to);
            if reached != (Reached::Server { port, original: to }) {
                return format!("installed, but a connection to {to} came to {reached:?}");
            }
        }
    }
    // "installed N rules in M mode for ..."
    let taken = last
        .split_once(" rules in ")
        .and_then(|(_, rest)| rest.split(' ').next());
    match taken.unwrap_or(last) {
        taken if taken == mode => "ok".to_owned(),
        taken => taken.to_owned(),
    }
}

/// What an error says is missing, without what to do about it.
fn essence(line: &str) -> String {
    let text = line.split("msg=\"").nth(1).unwrap_or(line).replace(['|', '\n'], " ");
    let text = text.replace("nothing was changed: ", "");
    text.chars().take(400).collect()
}
