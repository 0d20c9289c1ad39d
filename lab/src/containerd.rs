//! containerd: how it is configured, and images for it from folders that hold their files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::apt;
use crate::architecture::Architecture;
use crate::confined::mount_on;
use crate::shell::{Result, Run as _, root};

/// The programs of a node, and the release of Debian that has a containerd by which pods have users of their own (2.0 or
/// later).
const NODE: [&str; 3] = ["containerd", "runc", "containernetworking-plugins"];
pub const RELEASE: &str = "sid";

/// A link to the /usr of the node's programs, with their C library, in the folder that is filled for scenarios.
const USR: &str = "node-usr";

/// Unpacks a node's programs, for [`lay_over_usr`].
pub fn add_node(folder: &Path) -> Result<()> {
    let root = apt::unpack_all(RELEASE, "node", &NODE)?;
    Ok(symlink(root.join("usr"), folder.join(USR))?)
}

/// Lays the node's programs over this mount namespace's /usr, after [`cover`](crate::confined::cover). All programs in here
/// use their C library, which runs programs that were built for older ones too.
pub fn lay_over_usr(folder: &Path) -> Result<()> {
    // This link's name has no colon, which would end it in the option.
    symlink(folder.join(USR), "/run/newer")?;
    mount_on("overlay", "/usr", Some("lowerdir=/run/newer:/usr"))
}

/// A container runs one of these.
#[derive(Debug)]
pub struct Image {
    /// Of the folder with its files.
    name: String,
    reference: String,
    user: String,
    entry_point: Vec<String>,
}

impl Image {
    /// An image whose program has this path; of no user in particular.
    pub fn new(name: &str, program: &str) -> Self {
        Self::running(name, &[program])
    }

    /// An image whose entry point is this command; of no user in particular.
    pub fn running(name: &str, command: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            reference: format!("localhost/{name}:1"),
            user: String::new(),
            entry_point: command.iter().map(|&word| word.to_owned()).collect(),
        }
    }

    /// The same image under another name.
    pub fn named(self, reference: &str) -> Self {
        Self { reference: reference.to_owned(), ..self }
    }

    /// An image with the user and the entry point that the Dockerfile gives both of its targets.
    pub fn of_dockerfile(name: &str) -> Result<Self> {
        let dockerfile = fs::read_to_string(root().join("Dockerfile"))?;
        let last = |instruction: &str| {
            let lines = dockerfile.lines().rev();
            let mut arguments = lines.filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
            arguments.next().ok_or_else(|| format!("the Dockerfile has no {instruction}"))
        };
        let image = Self {
            user: last("USER")?.to_owned(),
            entry_point: serde_json::from_str(last("ENTRYPOINT")?)?,
            ..Self::running(name, &[])
        };
        Ok(image)
    }

    /// The image's name in a container's configuration.
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// Gives the image to containerd, from the folder of its name in this one: that of a release where there is an
    /// archive of its layout, or else one that is made from the files.
    pub fn import(&self, folder: &Path, socket: &Path, scratch: &Path) -> Result<()> {
        let files = folder.join(&self.name);
        let layout = folder.join(format!("{}.oci.tar", self.name));
        if layout.exists() { self.import_layout(&layout, socket) } else { self.import_files(&files, socket, scratch) }
    }

    /// containerd takes this machine's architecture from the layout's index.
    fn import_layout(&self, layout: &Path, socket: &Path) -> Result<()> {
        let name = format!("localhost/{}", self.name);
        let imported = ctr(socket).args(["images", "import", "--base-name", &name]).arg(layout).read()?;
        // unpacking localhost/scratch:0.2.0 (sha256:...)...done
        let tagged = imported.split_whitespace().find(|word| word.starts_with(&name));
        let tagged = tagged.ok_or_else(|| format!("ctr names no {name}: {imported}"))?;
        ctr(socket).args(["images", "tag", tagged, &self.reference]).stdout(Stdio::null()).run()
    }

    /// One layer, with file capabilities, as in a docker-archive.
    fn import_files(&self, files: &Path, socket: &Path, scratch: &Path) -> Result<()> {
        let folder = scratch.join(&self.name);
        fs::create_dir_all(&folder)?;
        Command::new("tar")
            .arg("-C")
            .arg(files)
            .args(["--xattrs", "--xattrs-include=security.capability", "--format=posix"])
            .arg("-cf")
            .arg(folder.join("layer.tar"))
            .arg(".")
            .run()?;
        let sum = Command::new("sha256sum").arg(folder.join("layer.tar")).read()?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        let config = json!({
            "architecture": Architecture::here()?.name(),
            "os": "linux",
            "config": {"User": self.user, "Entrypoint": self.entry_point},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]}
        });
        let manifest = json!([
            {"Config": "config.json", "RepoTags": [self.reference], "Layers": ["layer.tar"]}
        ]);
        fs::write(folder.join("config.json"), config.to_string())?;
        fs::write(folder.join("manifest.json"), manifest.to_string())?;
        let archive = scratch.join(format!("{}.tar", self.name));
        Command::new("tar")
            .arg("-C")
            .arg(&folder)
            .arg("-cf")
            .arg(&archive)
            .args(["config.json", "layer.tar", "manifest.json"])
            .run()?;
        ctr(socket).args(["images", "import", "-"]).stdin(File::open(&archive)?).stdout(Stdio::null()).run()?;
        fs::remove_file(archive)?;
        Ok(fs::remove_dir_all(folder)?)
    }
}

/// containerd's own client, in the CRI's namespace.
fn ctr(socket: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io"]);
    command
}

/// Where Debian's containernetworking-plugins has them.
const PLUGINS: &str = "/usr/lib/cni";

/// Links the plugins that [`network`] names into a folder.
pub fn link_plugins(folder: &Path) -> Result<()> {
    for plugin in ["bridge", "host-local", "loopback"] {
        symlink(Path::new(PLUGINS).join(plugin), folder.join(plugin))?;
    }
    Ok(())
}

/// A list of network configurations: a bridge that has these subnets' addresses, and what is chained after it. host-local
/// keeps the addresses that it has given in this folder.
pub fn network(bridge: &str, subnets: &[impl AsRef<str>], addresses: &Path, chained: &[Value]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet.as_ref()}])).collect();
    let bridge = json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            "dataDir": addresses,
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        }
    });
    let plugins: Vec<&Value> = [&bridge].into_iter().chain(chained).collect();
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
}

/// The part of containerd's configuration that is the same everywhere: its files below a folder, its socket, the image of
/// sandboxes, and the folders of network plugins and their configurations.
pub fn configuration(folder: &Path, socket: &Path, pause: &Image, plugins: &Path, networks: &Path) -> String {
    let folder = folder.display();
    // The optimisation plugin makes folders in /opt, and an AppArmor profile would stay in the kernel. An OOM score
    // below the parent's takes CAP_SYS_RESOURCE, which is not there everywhere.
    format!(
        r#"version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"
"#,
        socket = socket.display(),
        pause = pause.reference,
        plugins = plugins.display(),
        networks = networks.display(),
    )
}
