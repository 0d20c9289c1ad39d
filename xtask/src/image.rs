//! `cargo xtask image`: the scratch image, without pulling anything, and runs of it as Kubernetes would.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use xtask::lab::Namespace;
use xtask::linkerd;

use crate::{build, setup};
use xtask::shell::{Result, Run as _, need_root, target};

/// Where Linkerd's charts have looked for the program.
const PATHS: [&str; 2] = ["usr/local/bin/proxy-init", "usr/lib/linkerd/linkerd2-proxy-init"];

/// Builds the image, and runs it in every mode and with too few capabilities.
pub(crate) fn run() -> Result<()> {
    need_root("cargo xtask image")?;
    for (program, package) in [("buildah", "buildah"), ("runc", "runc"), ("setcap", "libcap2-bin")] {
        if !setup::find(program) {
            setup::apt(package)?;
        }
    }
    let binary = build::run()?;
    let folder = target("image");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let scratch = folder.join("scratch");
    let legacy = folder.join("legacy");
    root_file_system(&scratch, &binary, "cap_net_admin=p")?;
    root_file_system(&legacy, &binary, "cap_net_admin,cap_net_raw=p")?;
    add_iptables_legacy(&legacy)?;
    let size = assemble(&scratch)?;
    println!("image: {} KiB", size / 1024);

    let mut failed = Vec::new();
    for (name, root, mode, capabilities, wanted) in [
        ("nft, NET_ADMIN", &scratch, "nft", &["CAP_NET_ADMIN"][..], Ok(())),
        ("native, NET_ADMIN", &scratch, "native", &["CAP_NET_ADMIN"], Ok(())),
        ("auto, NET_ADMIN", &scratch, "auto", &["CAP_NET_ADMIN"], Ok(())),
        (
            "legacy, NET_ADMIN and NET_RAW",
            &legacy,
            "legacy",
            &["CAP_NET_ADMIN", "CAP_NET_RAW"],
            Ok(()),
        ),
        (
            "plain, NET_ADMIN and NET_RAW",
            &legacy,
            "plain",
            &["CAP_NET_ADMIN", "CAP_NET_RAW"],
            Ok(()),
        ),
        ("nft, nothing", &scratch, "nft", &[], Err("CAP_NET_ADMIN")),
        ("native, nothing", &scratch, "native", &[], Err("CAP_NET_ADMIN")),
    ] {
        let namespace = Namespace::new();
        let bundle = folder.join("bundle");
        let flags = [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat();
        let program = if mode == "native" { PATHS[1] } else { PATHS[0] };
        let installed = container(
            &bundle,
            root,
            &namespace,
            capabilities,
            &[&[format!("/{program}").as_str()], &flags[..]].concat(),
        )?;
        let said = String::from_utf8_lossy(&installed.stdout) + String::from_utf8_lossy(&installed.stderr);
        let last = said.lines().last().unwrap_or_default().to_owned();
        let verified = namespace
            .output(Command::new(&binary).arg("verify").args(&flags))
            .status
            .success();
        let good = match wanted {
            Ok(()) => installed.status.success() && verified,
            Err(words) => installed.status.code() == Some(1) && !verified && last.contains(words),
        };
        println!("{} {name}: {last}", if good { "ok    " } else { "FAILED" });
        if !good {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join("; ")).into())
    }
}

/// What the Dockerfile's stages copy.
fn root_file_system(root: &Path, binary: &Path, capabilities: &str) -> Result<()> {
    let [path, other] = PATHS.map(|path| root.join(path));
    for path in [&path, &other] {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
    }
    fs::copy(binary, &path)?;
    symlink("/usr/local/bin/proxy-init", other)?;
    Command::new("setcap").arg(capabilities).arg(&path).run()
}

/// iptables-legacy from this machine, with its libraries, as Debian's package has it.
fn add_iptables_legacy(root: &Path) -> Result<()> {
    let multi = PathBuf::from(
        Command::new("sh")
            .args(["-c", "command -v xtables-legacy-multi"])
            .read()?
            .trim(),
    );
    crate::kernels::copy_with_libraries(&multi, root)?;
    for plugin in fs::read_dir("/usr/lib/x86_64-linux-gnu/xtables")?.flatten() {
        crate::kernels::copy_with_libraries(&plugin.path(), root)?;
    }
    for family in ["iptables", "ip6tables"] {
        for name in ["-legacy-restore", "-legacy-save", "-restore", "-save"] {
            symlink(&multi, root.join("usr/sbin").join(format!("{family}{name}")))?;
        }
    }
    Ok(())
}

/// Makes an OCI image of the folder with buildah, from scratch. Returns the size of what it holds.
fn assemble(root: &Path) -> Result<u64> {
    let buildah = |arguments: &[&str]| {
        let mut command = Command::new("buildah");
        // Its store is ours alone, and a folder: no overlays inside of other people's.
        command.args(["--root", &target("image/store").display().to_string()]);
        command.args([
            "--runroot",
            &target("image/run").display().to_string(),
            "--storage-driver",
            "vfs",
        ]);
        command.args(arguments);
        command
    };
    let container = buildah(&["from", "scratch"]).read()?;
    let container = container.trim();
    buildah(&["copy", "--quiet", container, &root.display().to_string(), "/"]).read()?;
    buildah(&[
        "config",
        "--user=65534",
        "--entrypoint=[\"/usr/local/bin/proxy-init\"]",
        "--label=org.opencontainers.image.title=proxy-init",
        "--label=org.opencontainers.image.licenses=Apache-2.0",
        container,
    ])
    .run()?;
    let archive = target("image/proxy-init.tar");
    buildah(&[
        "commit",
        "--quiet",
        container,
        &format!("oci-archive:{}", archive.display()),
    ])
    .read()?;
    buildah(&["rm", container]).read()?;
    Ok(fs::metadata(archive)?.len())
}

/// Runs the image with runc: uid 65534, no new privileges, read-only root, /run as an emptyDir, the default seccomp
/// profile's spirit (what it forbids, this program doesn't call), and these capabilities in the bounding set alone.
fn container(
    bundle: &Path,
    root: &Path,
    namespace: &Namespace,
    capabilities: &[&str],
    arguments: &[&str],
) -> Result<Output> {
    fs::create_dir_all(bundle)?;
    for folder in ["proc", "dev", "run", "sys"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let run = bundle.join("run");
    fs::create_dir_all(&run)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o1777))?;
    let sets: Vec<Value> = capabilities.iter().map(|name| json!(name)).collect();
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65534, "gid": 65534},
            "args": arguments,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            // As containerd does for a user that isn't root: permitted by the bounding set, nothing ambient.
            "capabilities": {"bounding": sets, "permitted": sets, "effective": sets},
            "noNewPrivileges": true
        },
        "root": {"path": root, "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/run", "type": "bind", "source": run, "options": ["bind", "rw"]}
        ],
        "linux": {
            "namespaces": [
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                {"type": "network", "path": namespace.path()}
            ],
            "readonlyPaths": ["/proc/sys"],
            "seccomp": seccomp()
        }
    });
    fs::write(bundle.join("config.json"), config.to_string())?;
    let name = format!("proxy-init-{}", std::process::id());
    let mut command = Command::new("runc");
    command.args(["--root", &target("image/runc").display().to_string(), "run", "--bundle"]);
    let output = command.arg(bundle).arg(name).output()?;
    Ok(output)
}

/// What container runtimes' default profile forbids a container without further capabilities, of all that a program
/// might try in its place.
fn seccomp() -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [{
            "names": [
                "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module",
                "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter",
                "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl",
                "lookup_dcookie", "mount", "mount_setattr", "move_mount", "nfsservctl", "open_by_handle_at", "open_tree",
                "perf_event_open", "pivot_root", "quotactl", "reboot", "request_key", "setdomainname", "sethostname",
                "setns", "settimeofday", "swapoff", "swapon", "umount", "umount2", "unshare", "userfaultfd", "vhangup"
            ],
            "action": "SCMP_ACT_ERRNO"
        }]
    })
}
