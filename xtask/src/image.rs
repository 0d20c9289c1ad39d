//! `cargo xtask image`: the Dockerfile's scratch image, without pulling anything, and runs of it as Kubernetes would.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::linkerd;
use lab::network::Namespace;
use lab::shell::{Result, Run as _, need_root, root, target};
use serde_json::{Value, json};

use crate::build;
use crate::commit::Commit;
use crate::licences;
use lab::architecture::Architecture;
use lab::install;
use lab::rootfs::Origin;

/// Where Linkerd's charts have looked for the program, and where they look for the network validator.
const PATHS: [&str; 3] = [
    "/usr/local/bin/proxy-init",
    "/usr/lib/linkerd/linkerd2-proxy-init",
    "/usr/lib/linkerd/linkerd2-network-validator",
];

/// The program's file capabilities, as setcap(8) writes them. Permitted, not effective: proxy-init takes them up
/// itself, and can say so where they have been dropped. NET_RAW is for iptables-legacy, which may be beside it: under
/// no_new_privs, a command gets no more than proxy-init has.
const CAPABILITIES: &str = "cap_net_admin,cap_net_raw=p";

/// The default seccomp profile of CRI-O and podman, of a package that buildah needs.
const SECCOMP: &str = "/usr/share/containers/seccomp.json";

/// Where Linkerd's installer looks for the CNI plugin in its image (CONTAINER_CNI_BIN_DIR in install-cni.sh).
const PLUGIN: &str = "/opt/cni/bin/linkerd-cni";

/// The node's agent.
const AGENT: &str = "/usr/lib/linkerd/linkerd-cni-agent";

/// The stages of the Dockerfile that need no pulled base.
pub(crate) const STAGES: [Stage; 2] = [INIT, CNI];

const INIT: Stage = Stage {
    name: "init",
    image: "proxy-init",
    programs: &[("proxy-init", PATHS[0])],
    user: Some("65534"),
    entry_point: Some(PATHS[0]),
    capabilities: Some(CAPABILITIES),
};

/// In the place of Linkerd's cni-plugin image: as root, for it writes to the node's folders.
const CNI: Stage = Stage {
    name: "cni",
    image: "proxy-init-cni",
    programs: &[("linkerd-cni", PLUGIN), ("linkerd-cni-agent", AGENT)],
    user: None,
    entry_point: Some(AGENT),
    capabilities: None,
};

/// A stage of the Dockerfile.
pub(crate) struct Stage {
    name: &'static str,
    pub(crate) image: &'static str,
    /// The static programs that it holds, and where.
    pub(crate) programs: &'static [(&'static str, &'static str)],
    pub(crate) user: Option<&'static str>,
    pub(crate) entry_point: Option<&'static str>,
    pub(crate) capabilities: Option<&'static str>,
}

/// `cargo xtask image --layout FOLDER`: what the Dockerfile's stages copy, each in a folder of its name.
pub(crate) fn lay_out(folder: &Path, architecture: Architecture) -> Result<()> {
    install::programs(&[("setcap", "libcap2-bin")])?;
    let binary = build::program("proxy-init", architecture)?;
    let components = licences::components("proxy-init", architecture)?;
    for stage in ["scratch", "legacy"] {
        let root = folder.join(stage);
        let [path, init, validator] = PATHS.map(|path| root.join(path.trim_start_matches('/')));
        for path in [&path, &init, &validator] {
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
        }
        fs::copy(&binary, &path)?;
        symlink(PATHS[0], init)?;
        symlink(PATHS[0], validator)?;
        Command::new("setcap").arg(CAPABILITIES).arg(&path).run()?;
        licences::write(&components, &root.join("licenses"))?;
    }
    let root = folder.join("cni");
    let within = |path: &str| root.join(path.trim_start_matches('/'));
    for (program, path) in CNI.programs {
        let path = within(path);
        fs::create_dir_all(path.parent().unwrap_or(&root))?;
        fs::copy(build::program(program, architecture)?, path)?;
    }
    licences::write(&CNI.components(architecture)?, &root.join("licenses"))
}

impl Stage {
    /// What is linked into its programs.
    fn components(&self, architecture: Architecture) -> Result<Vec<licences::Component>> {
        let mut components = Vec::new();
        for (program, _) in self.programs {
            components.extend(licences::components(program, architecture)?);
        }
        Ok(components)
    }
}

/// Builds a stage's image and gives it a name; `build_stage` stands in for the stage `build`, whose base would be
/// pulled. Nothing in it is younger than the commit.
pub(crate) fn build(
    stage: &Stage,
    build_stage: &Path,
    architecture: Architecture,
    commit: &Commit,
    name: &str,
) -> Result<()> {
    let mut build = buildah("bud --quiet --isolation chroot --pull-never --skip-unused-stages --identity-label=false");
    build.args(["--target", stage.name, "--tag", name, "--timestamp", &commit.seconds]);
    build.args(["--platform", &format!("linux/{}", architecture.name())]);
    for (label, value) in labels(stage, architecture, commit)? {
        let argument = label.to_uppercase();
        build.args(["--build-arg", &format!("{argument}={value}")]);
    }
    build.arg("--build-context").arg(format!("build={}", build_stage.display())).arg(root()).read()?;
    Ok(())
}

/// What the labels org.opencontainers.image.* say; the Dockerfile takes each as an argument of its name.
pub(crate) fn labels(
    stage: &Stage,
    architecture: Architecture,
    commit: &Commit,
) -> Result<[(&'static str, String); 4]> {
    let components = stage.components(architecture)?;
    Ok([
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("revision", commit.hash.clone()),
        ("source", env!("CARGO_PKG_REPOSITORY").to_owned()),
        ("licenses", licences::expression(&components)?),
    ])
}

/// Builds the image, and runs it in every mode and with too few capabilities.
pub(crate) fn run() -> Result<()> {
    need_root("cargo xtask image", "to make network namespaces")?;
    install::programs(&[("buildah", "buildah"), ("runc", "runc")])?;
    let folder = target("image");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let build_stage = folder.join("build-stage");
    let architecture = Architecture::here()?;
    lay_out(&build_stage.join("out"), architecture)?;
    let commit = Commit::of_checkout()?;
    build(&INIT, &build_stage, architecture, &commit, Image::NAME)?;
    let image = Image::read()?;
    let program = fs::metadata(image.root.join(PATHS[0].trim_start_matches('/')))?.len();
    println!("image: {} KiB; the program in it: {} KiB", image.size / 1024, program / 1024);
    image.check_labels(&labels(&INIT, architecture, &commit)?)?;
    // The target `legacy` is on Debian's image, which can't be pulled: this machine's iptables-legacy stands in for it.
    let legacy = build_stage.join("out/legacy");
    Origin::here()?.add_iptables("legacy", &legacy)?;

    let net_admin = &["CAP_NET_ADMIN"][..];
    let net_raw_too = &["CAP_NET_ADMIN", "CAP_NET_RAW"][..];
    let mut failed = Vec::new();
    for (mode, root, capabilities) in [
        ("nft", &image.root, net_admin),
        ("native", &image.root, net_admin),
        ("auto", &image.root, net_admin),
        ("nft", &image.root, net_raw_too),
        ("legacy", &legacy, net_raw_too),
        ("plain", &legacy, net_raw_too),
        ("nft", &image.root, &[]),
        ("native", &image.root, &[]),
        ("legacy", &legacy, &[]),
    ] {
        let pod = Pod { namespace: Namespace::new(), bundle: folder.join("bundle"), image: &image, root, capabilities };
        let name = format!(
            "{mode} with {}",
            if capabilities.is_empty() { "nothing".to_owned() } else { capabilities.join(" and ") }
        );
        match pod.try_mode(mode) {
            Ok(said) => println!("ok     {name}: {said}"),
            Err(error) => {
                println!("FAILED {name}: {error}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        return Err(format!("failed: {}", failed.join("; ")).into());
    }
    println!("\nThe image is in {}, an OCI archive. To push it:", archive().display());
    let mut push = buildah("push");
    push.args([Image::NAME, concat!("docker://REGISTRY/proxy-init:", env!("CARGO_PKG_VERSION"))]);
    println!("\n  {}\n", shell_line(&push));
    Ok(())
}

/// Where the image's archive is.
fn archive() -> PathBuf {
    target("image/proxy-init.tar")
}

/// A command as a shell takes it, given that none of its words needs quoting but for spaces.
pub(crate) fn shell_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| match word.to_string_lossy() {
        word if word.contains(' ') => format!("'{word}'"),
        word => word.into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// An image in a store of our own.
struct Image {
    /// Its configuration, as in the OCI image specification.
    config: Value,
    /// Where its files are.
    root: PathBuf,
    /// Of its archive, compressed as registries keep it, in bytes.
    size: u64,
}

impl Image {
    const NAME: &str = "localhost/proxy-init";

    /// What was built under this name.
    fn read() -> Result<Self> {
        let archive = archive();
        buildah("push --quiet").arg(Self::NAME).arg(format!("oci-archive:{}", archive.display())).run()?;
        let description = buildah("inspect --type image").arg(Self::NAME).read()?;
        let description: Value = serde_json::from_str(&description)?;
        let container = buildah("from --pull-never").arg(Self::NAME).read()?;
        let root = buildah("mount").arg(container.trim()).read()?;
        Ok(Self {
            config: description.pointer("/OCIv1/config").cloned().unwrap_or_default(),
            root: root.trim().into(),
            size: fs::metadata(archive)?.len(),
        })
    }

    /// That it says these of itself.
    fn check_labels(&self, labels: &[(&str, String)]) -> Result<()> {
        for (name, value) in labels {
            let label = self.config.pointer(&format!("/Labels/org.opencontainers.image.{name}"));
            if label != Some(&json!(value)) {
                return Err(format!("the label {name} is {label:?}, not {value:?}").into());
            }
        }
        Ok(())
    }

    /// The words of its entry point.
    fn entry_point(&self) -> Vec<&str> {
        let words = self.config.pointer("/Entrypoint").and_then(Value::as_array);
        words.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The number of its user.
    fn user(&self) -> Result<u32> {
        let user = self.config.pointer("/User").and_then(Value::as_str);
        Ok(user.unwrap_or_default().parse()?)
    }
}

/// buildah with a store that is ours alone, and a folder: no overlays inside of other people's.
pub(crate) fn buildah(arguments: &str) -> Command {
    let mut command = Command::new("buildah");
    command
        .arg("--root")
        .arg(target("image/store"))
        .arg("--runroot")
        .arg(target("image/run"))
        .args(["--storage-driver", "vfs"])
        .args(arguments.split(' '));
    command
}

/// A network namespace, and the containers that run in it as in a pod with Linkerd's chart.
struct Pod<'a> {
    namespace: Namespace,
    bundle: PathBuf,
    image: &'a Image,
    root: &'a Path,
    /// The bounding set.
    capabilities: &'a [&'a str],
}

impl Pod<'_> {
    /// Installs in this mode and verifies; without capabilities, sees that it fails, says so, and leaves nothing.
    /// Returns what it said last.
    fn try_mode(&self, mode: &str) -> Result<String> {
        let flags = [&["--iptables-mode", mode][..], &linkerd::CHART_ARGUMENTS].concat();
        let entry_point = self.image.entry_point();
        let installed = self.run(&[&entry_point, &flags[..]].concat())?;
        let said = String::from_utf8_lossy(&installed.stdout) + String::from_utf8_lossy(&installed.stderr);
        let last = said.lines().last().unwrap_or_default().to_owned();
        if self.capabilities.is_empty() {
            let left = self.namespace.stdout("nft", ["list", "ruleset"]);
            let clear = installed.status.code() == Some(1) && last.contains("CAP_NET_ADMIN");
            return if clear && left.is_empty() {
                Ok(last)
            } else {
                Err(format!("{}: {last}\n{left}", installed.status).into())
            };
        }
        if !installed.status.success() {
            return Err(format!("{}: {last}", installed.status).into());
        }
        // The chart's other path.
        let verified = self.run(&[&[PATHS[1], "verify"], &flags[..]].concat())?;
        if !verified.status.success() {
            let verdict = String::from_utf8_lossy(&verified.stdout) + String::from_utf8_lossy(&verified.stderr);
            return Err(format!("installed, but {verdict}").into());
        }
        Ok(format!("{last} {}", String::from_utf8_lossy(&verified.stdout).trim()))
    }

    /// Runs a container with runc: the image's user, no new privileges, read-only root, /run as an emptyDir, the
    /// default seccomp profile.
    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let user = self.image.user()?;
        let run = self.bundle.join("run");
        fs::create_dir_all(&run)?;
        fs::set_permissions(&run, fs::Permissions::from_mode(0o1777))?;
        // The runtime's mounts need somewhere to be.
        for folder in ["proc", "dev", "run"] {
            fs::create_dir_all(self.root.join(folder))?;
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": user},
                "args": arguments,
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                // As containerd does for a user that isn't root: permitted by the bounding set, nothing ambient.
                "capabilities": {
                    "bounding": self.capabilities,
                    "permitted": self.capabilities,
                    "effective": self.capabilities
                },
                "noNewPrivileges": true
            },
            "root": {"path": self.root, "readonly": true},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/run", "type": "bind", "source": run, "options": ["bind", "rw"]}
            ],
            "linux": {
                "namespaces": [
                    {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                    {"type": "network", "path": self.namespace.path()}
                ],
                "readonlyPaths": ["/proc/sys"],
                "seccomp": seccomp(self.capabilities)?
            }
        });
        fs::write(self.bundle.join("config.json"), config.to_string())?;
        let name = format!("proxy-init-{}", std::process::id());
        let mut command = Command::new("runc");
        command.arg("--root").arg(target("image/runc"));
        Ok(command.args(["run", "--bundle"]).arg(&self.bundle).arg(name).output()?)
    }
}

/// The default seccomp profile for a container with these capabilities, as runc takes it.
///
/// A profile's rules are for some architectures and capabilities only (containers-common's seccomp.json(5)).
fn seccomp(capabilities: &[&str]) -> Result<Value> {
    let profile: Value = serde_json::from_str(&fs::read_to_string(SECCOMP)?)?;
    let (architecture, name) = match env::consts::ARCH {
        "x86_64" => ("amd64", "SCMP_ARCH_X86_64"),
        "aarch64" => ("arm64", "SCMP_ARCH_AARCH64"),
        other => return Err(format!("what seccomp calls {other} is not known here").into()),
    };
    let names = |rule: &Value, pointer: &str| -> BTreeSet<String> {
        let list = rule.pointer(pointer).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let applies = |rule: &&Value| {
        let architectures = names(rule, "/includes/arches");
        (architectures.is_empty() || architectures.contains(architecture))
            && names(rule, "/includes/caps").iter().all(|capability| capabilities.contains(&capability.as_str()))
            && !names(rule, "/excludes/caps").iter().any(|capability| capabilities.contains(&capability.as_str()))
            && !names(rule, "/excludes/arches").contains(architecture)
    };
    let rules: Vec<Value> = profile
        .pointer("/syscalls")
        .and_then(Value::as_array)
        .ok_or_else(|| format!("{SECCOMP} has no syscalls"))?
        .iter()
        .filter(applies)
        .map(|rule| {
            let mut taken = serde_json::Map::new();
            for key in ["names", "action", "errnoRet", "args"] {
                if let Some(value) = rule.get(key).filter(|value| !value.is_null()) {
                    taken.insert(key.to_owned(), value.clone());
                }
            }
            taken.into()
        })
        .collect();
    Ok(json!({
        "defaultAction": profile.get("defaultAction"),
        "defaultErrnoRet": profile.get("defaultErrnoRet"),
        "architectures": [name],
        "syscalls": rules
    }))
}
