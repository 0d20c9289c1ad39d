//! The init of a guest of `cargo xtask kernels`: every mode once, in network namespaces of its own.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use lab::linkerd;
use lab::network::{Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, Reached, Server, connect, families};
use lab::variant::{ExpectedView, LEFT_BEHIND, MODES, PARAMETER, REFUSED, RESULT, VARIANTS};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use serde_json::{Value, json};

/// Does it all, and switches the machine off.
fn main() {
    // Otherwise, this would power off somebody's own machine.
    if std::process::id() != 1 {
        eprintln!("this is the first process of a kernel that cargo xtask kernels boots");
        return;
    }
    for (kind, path) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        if let Err(errno) = mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>) {
            println!("{RESULT} cannot mount {path}: {errno}");
        }
    }
    let parameters = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let variant = parameters.split_whitespace().find_map(|word| word.strip_prefix(PARAMETER)?.strip_prefix('='));
    let variant = VARIANTS.iter().find(|known| variant == Some(known.parameter().as_str()));
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
    // Here legacy mode is the first to need xt extensions; elsewhere it would only take longer.
    if variant.modules == ["nft_compat"]
        && let Err(error) = use_slow_modprobe()
    {
        println!("{RESULT} cannot set the kernel's modprobe: {error}");
    }
    let (unloaded, _) = verify(&Namespace::new());
    for mode in MODES {
        println!("{RESULT} {}", try_mode(mode, variant.modules.is_empty()));
    }
    println!("{RESULT} {}", told_of_legacy_rules(&unloaded).unwrap_or_else(|otherwise| otherwise));
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

fn use_slow_modprobe() -> std::io::Result<()> {
    const PATH: &str = "/bin/slow-modprobe";
    fs::write(PATH, include_str!("slow-modprobe.sh"))?;
    fs::set_permissions(PATH, fs::Permissions::from_mode(0o755))?;
    fs::write("/proc/sys/kernel/modprobe", PATH)
}

/// Deletes a module's file, so that it can't be loaded.
fn remove(folder: &Path, module: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove(&path, module);
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().split('.').next() == Some(module)) {
            let _ = fs::remove_file(path);
        }
    }
}

fn proxy_init(lab: &Lab, before: &[&str], arguments: &[&str]) -> Output {
    lab.pod.output(&mut in_a_pod(before, arguments))
}

/// As in a pod, where the machine's own network namespace is refused.
fn in_a_pod(before: &[&str], arguments: &[&str]) -> Command {
    let mut command = Command::new("/bin/proxy-init");
    command
        .env("PATH", "/usr/sbin:/sbin:/bin")
        .env("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        .args(before)
        .args(arguments);
    command
}

/// Checks that these flags are refused in the machine's own network namespace, which is the guest's: kernels differ in how
/// it can be told.
fn refuses_the_machines_namespace(flags: &[&str]) -> Result<(), String> {
    let output = in_a_pod(&[], flags).output().map_err(|error| error.to_string())?;
    let log = String::from_utf8_lossy(&output.stdout);
    match log.lines().last() {
        Some(line) if !output.status.success() && line.contains("the node's own network namespace") => Ok(()),
        line => Err(format!("not refused in the machine's own network namespace: {line:?}")),
    }
}

/// `ok`, or the mode that was taken if it is another than this; else what the error says. On a whole kernel, other
/// flags are tried too.
fn try_mode(mode: &str, is_whole: bool) -> String {
    let lab = Lab::new();
    let flags = [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat();
    if let Err(otherwise) = refuses_the_machines_namespace(&flags) {
        return otherwise;
    }
    let output = proxy_init(&lab, &[], &flags);
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = log.lines().last().unwrap_or_default();
    if !output.status.success() {
        let left = if holds_rules(&lab) { LEFT_BEHIND } else { "" };
        return format!("{} {left}", essence(last));
    }
    // As Kubernetes runs an init container again.
    let again = proxy_init(&lab, &[], &flags);
    if !again.status.success() {
        return format!("installed, but not again: {}", essence(&String::from_utf8_lossy(&again.stdout)));
    }
    // Another list, and the same flags once more: sets and rules go and come.
    let other = [&flags[..], &["--inbound-ports-to-ignore", "90"]].concat();
    let runs = if is_whole { 3 } else { 1 };
    for (index, flags) in [&flags, &other, &flags].into_iter().take(runs).enumerate() {
        let changed = (index > 0).then(|| proxy_init(&lab, &[], flags));
        let verified = proxy_init(&lab, &["verify"], flags);
        let failed = changed.filter(|output| !output.status.success());
        let failed = failed.or_else(|| (!verified.status.success()).then_some(verified));
        if let Some(failed) = failed {
            let said = String::from_utf8_lossy(&failed.stdout).replace('\n', "; ");
            return format!("installed {} times, but {said}", index + 1);
        }
    }
    if families() < 2 && !log.lines().any(|line| line.contains("level=warning") && line.contains("IPv6")) {
        return "installed, but without a warning that this kernel has no IPv6".to_owned();
    }
    let _servers = [Server::start(&lab.pod, &[4143, 4140]), Server::start(&lab.outside, &[80])];
    for (pod, outside) in POD.into_iter().zip(NEIGHBOUR).take(families()) {
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
    let uninstalled = proxy_init(&lab, &["uninstall"], &[]);
    if !uninstalled.status.success() || holds_rules(&lab) {
        let log = String::from_utf8_lossy(&uninstalled.stdout).into_owned();
        return format!("uninstalled: {} {LEFT_BEHIND}", log.replace('\n', "; "));
    }
    // "installed N rules in M mode for ..."
    let taken = last.split_once(" rules in ").and_then(|(_, rest)| rest.split(' ').next());
    match taken.unwrap_or(last) {
        taken if taken == mode => "ok".to_owned(),
        taken if mode == "auto" => taken.to_owned(),
        taken => format!("{taken}{REFUSED}{}", refused(&flags)),
    }
}

/// The error where another mode may not be used instead.
fn refused(flags: &[&str]) -> String {
    let lab = Lab::new();
    let output = proxy_init(&lab, &[], &[flags, &["--no-fallback"]].concat());
    let log = String::from_utf8_lossy(&output.stdout);
    match log.lines().last() {
        Some(line) if !output.status.success() && !holds_rules(&lab) => essence(line),
        _ => format!("{LEFT_BEHIND}: {log}"),
    }
}

/// True if detect sees a table of nf_tables, or a legacy table with rules, or can't see the tables.
fn holds_rules(lab: &Lab) -> bool {
    let output = proxy_init(lab, &["detect", "--output", "json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let tables = |backend: &str| {
        let tables = report.pointer(&format!("/{backend}/tables"));
        tables.and_then(Value::as_array).cloned()
    };
    // Legacy tables are made by the kernel as soon as somebody asks for them, empty.
    let has_rules = |table: &Value| table.get("rules").and_then(Value::as_u64) != Some(0);
    !output.status.success()
        || tables("nf_tables").is_none_or(|tables| !tables.is_empty())
        || tables("legacy").is_none_or(|tables| tables.iter().any(has_rules))
}

/// Runs proxy-init in nft mode with these arguments before its flags, as uid 65534 with NET_ADMIN.
fn nobody(namespace: &Namespace, before: &[&str]) -> Output {
    let mut command = Command::new("/usr/bin/setpriv");
    command
        .args("--reuid=65534 --regid=65534 --clear-groups --no-new-privs".split(' '))
        .args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}=-all,+net_admin")))
        .arg("/bin/proxy-init")
        .args(before)
        .args(["--iptables-mode", "nft", "--no-fallback"])
        .args(linkerd::CHART_ARGUMENTS);
    namespace.output(&mut command)
}

/// verify's answers to uid 65534: the other backends, and the unknown ones.
fn verify(namespace: &Namespace) -> ([Value; 2], Output) {
    let output = nobody(namespace, &["verify", "--output", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let told = [report["other_backends"].clone(), report["not_known"].clone()];
    (told, output)
}

/// proxy-init's answer to uid 65534 about its rules in legacy mode; an error is another answer. `unloaded` is what
/// it told before the modules of legacy nat tables were loaded.
fn told_of_legacy_rules(unloaded: &[Value; 2]) -> Result<String, String> {
    const UNSEEN: &str = "not known: whether legacy tables hold proxy-init's rules too";
    let (nothing, legacy) = (json!([]), json!(["legacy"]));
    let none = [nothing.clone(), nothing.clone()];
    if *unloaded != none {
        return Err(format!("told without modules: {unloaded:?}"));
    }
    let (with_rules, fresh) = (Namespace::new(), Namespace::new());
    let mut install = Command::new("/bin/proxy-init");
    install.env("PATH", "/usr/sbin:/sbin:/bin").args(["--iptables-mode", "legacy", "--no-fallback"]);
    install.args(linkerd::CHART_ARGUMENTS);
    if !with_rules.output(&mut install).status.success() {
        return Ok(ExpectedView::Untried.word().to_owned());
    }
    let (of_none, _) = verify(&fresh);
    let (of_rules, verified) = verify(&with_rules);
    let installed = nobody(&with_rules, &[]);
    let log = String::from_utf8_lossy(&installed.stdout);
    let warnings = log.lines().filter(|line| line.contains("level=warning"));
    let made = fresh.run(|| fs::read_to_string("/proc/thread-self/net/ip_tables_names"));
    let told = if of_rules == [legacy.clone(), nothing.clone()]
        && of_none == none
        && verified.status.code() == Some(3)
        && log.contains("legacy mode holds proxy-init's rules already")
    {
        ExpectedView::Seen
    } else if of_rules == [nothing, legacy]
        && of_none == of_rules
        // No warning, as nothing was committed to nf_tables here before.
        && log.lines().filter(|line| line.contains(UNSEEN) && line.contains("level=info")).count() == 1
        // A warning is of a kernel without IPv6.
        && warnings.count() <= 2 - families()
        // Where nft mode works here, verify then finds it in place.
        && (!installed.status.success() || verify(&with_rules).1.status.success())
    {
        ExpectedView::NotKnown
    } else {
        return Err(format!("told of none: {of_none:?}, of rules: {of_rules:?}, {:?}", log.lines().last()));
    };
    match made {
        Ok(names) if names.is_empty() => Ok(told.word().to_owned()),
        names => Err(format!("{}, but asking made tables: {names:?}", told.word())),
    }
}

/// The missing part that an error names, without the advice.
fn essence(line: &str) -> String {
    let text = line.split("msg=\"").nth(1).unwrap_or(line).replace(['|', '\n'], " ");
    let text = text.replace("nothing was changed: ", "");
    text.chars().take(400).collect()
}
