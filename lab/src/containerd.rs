//! containerd: how it is configured and started, and images for it from folders that hold their files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::architecture::Architecture;
use crate::confined::mount_on;
use crate::machine::{BRIDGE, NETWORKS, NODE, PLUGINS, SUBNETS};
use crate::services::Services;
use crate::shell::{Result, Run as _, root, target};
use crate::wait::wait_for;
use crate::{LayOut, apt, images, rootfs};

/// The programs of a node, and the release of Debian that has a containerd by which pods have users of their own (2.0 or
/// later).
const PROGRAMS: [&str; 3] = ["containerd", "runc", "containernetworking-plugins"];
pub(crate) const RELEASE: &str = "sid";

/// A link to the /usr of the node's programs, with their C library, in the folder that is filled for scenarios.
const USR: &str = "node-usr";

/// The socket of containerd.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The network configuration of all pods for which no other one is chosen.
pub const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

/// Fills a folder for scenarios: a node's programs, for [`lay_over_usr`], and in `images` each image's files in a folder of its
/// name.
pub(crate) fn fill(name: &str, lay_out: LayOut) -> Result<PathBuf> {
    let folder = target(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    let images = folder.join("images");
    lay_out(&images)?;
    let [legacy, file_capabilities] = ["legacy", "file-capabilities"].map(|name| images.join(name));
    rootfs::add("iptables", &["iptables"], &legacy)?;
    Command::new("cp").arg("--archive").arg(&legacy).arg(&file_capabilities).run()?;
    let program = file_capabilities.join("usr/sbin/xtables-legacy-multi");
    Command::new("setcap").arg("cap_net_admin,cap_net_raw+eip").arg(program).run()?;
    symlink(apt::unpack_all(RELEASE, "node", &PROGRAMS)?.join("usr"), folder.join(USR))?;
    Ok(folder)
}

/// Lays the node's programs over this mount namespace's /usr, after [`cover`](crate::confined::cover). All programs in here
/// use their C library, which runs programs that were built for older ones too.
pub(crate) fn lay_over_usr(folder: &Path) -> Result<()> {
    // This link's name has no colon, which would end it in the option.
    symlink(folder.join(USR), "/run/newer")?;
    mount_on("overlay", "/usr", Some("lowerdir=/run/newer:/usr"))
}

/// A container runs one of these.
#[derive(Debug)]
pub(crate) struct Image {
    reference: &'static str,
    /// The name of the folder with its files.
    name: &'static str,
    user: String,
    entry_point: Vec<String>,
}

impl Image {
    /// An image whose entry point is this command; of no user in particular.
    pub(crate) fn running(reference: &'static str, name: &'static str, command: &[&str]) -> Self {
        let entry_point = command.iter().map(|&word| word.to_owned()).collect();
        Self { reference, name, user: String::new(), entry_point }
    }

    /// An image with the user and the entry point that the Dockerfile gives both of its targets.
    pub(crate) fn of_dockerfile(reference: &'static str, name: &'static str) -> Result<Self> {
        let dockerfile = fs::read_to_string(root().join("Dockerfile"))?;
        let last = |instruction: &str| {
            let lines = dockerfile.lines().rev();
            let mut arguments = lines.filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
            arguments.next().ok_or_else(|| format!("the Dockerfile has no {instruction}"))
        };
        Ok(Self {
            reference,
            name,
            user: last("USER")?.to_owned(),
            entry_point: serde_json::from_str(last("ENTRYPOINT")?)?,
        })
    }

    /// Gives the image to containerd, from the folder of its name in this one, if there is such: that of a release where there
    /// is an archive of its layout, or else one that is made from the files.
    fn import(&self, folder: &Path) -> Result<()> {
        let files = folder.join(self.name);
        let layout = folder.join(format!("{}.oci.tar", self.name));
        if layout.exists() {
            self.import_layout(&layout)
        } else if files.exists() {
            self.import_files(&files)
        } else {
            Ok(())
        }
    }

    /// containerd takes this machine's architecture from the layout's index.
    fn import_layout(&self, layout: &Path) -> Result<()> {
        let name = format!("localhost/{}", self.name);
        let imported = ctr().args(["images", "import", "--base-name", &name]).arg(layout).read()?;
        // unpacking localhost/scratch:0.2.0 (sha256:...)...done
        let tagged = imported.split_whitespace().find(|word| word.starts_with(&name));
        let tagged = tagged.ok_or_else(|| format!("ctr names no {name}: {imported}"))?;
        ctr().args(["images", "tag", tagged, self.reference]).stdout(Stdio::null()).run()
    }

    /// One layer, with file capabilities, as in a docker-archive.
    fn import_files(&self, files: &Path) -> Result<()> {
        let folder = Path::new(NODE).join(self.name);
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
        let archive = folder.with_extension("tar");
        Command::new("tar")
            .arg("-C")
            .arg(&folder)
            .arg("-cf")
            .arg(&archive)
            .args(["config.json", "layer.tar", "manifest.json"])
            .run()?;
        ctr().args(["images", "import", "-"]).stdin(File::open(&archive)?).stdout(Stdio::null()).run()?;
        fs::remove_file(archive)?;
        Ok(fs::remove_dir_all(folder)?)
    }
}

/// containerd's own client, in the CRI's namespace.
fn ctr() -> Command {
    let mut command = Command::new("ctr");
    command.args(["--address", SOCKET, "--namespace", "k8s.io"]);
    command
}

/// Links the plugins that [`network`] names, of Debian's containernetworking-plugins, to where they are looked for.
pub(crate) fn link_plugins() -> Result<()> {
    for plugin in ["bridge", "host-local", "loopback"] {
        symlink(Path::new("/usr/lib/cni").join(plugin), Path::new(PLUGINS).join(plugin))?;
    }
    Ok(())
}

/// A list of network configurations: the node's bridge, and what is chained after it.
pub fn network(chained: &[Value]) -> Value {
    let bridge = json!({
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            // It keeps the addresses that it has given here.
            "dataDir": format!("{NODE}/addresses"),
            "ranges": SUBNETS.map(|subnet| json!([{"subnet": subnet}])),
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        }
    });
    let plugins: Vec<&Value> = [&bridge].into_iter().chain(chained).collect();
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
}

/// Writes the network of all pods and containerd's configuration, with what is added to it, starts containerd and gives it all
/// images that there are.
pub fn begin(services: &Services, more: &str) -> Result<()> {
    fs::write(NETWORK, network(&[]).to_string())?;
    // The optimisation plugin makes folders in /opt, and an AppArmor profile would stay in the kernel. An OOM score
    // below the parent's takes CAP_SYS_RESOURCE, which is not there everywhere.
    let configuration = format!(
        r#"version = 2
root = "{NODE}/root"
state = "{NODE}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{NETWORKS}"
{more}"#,
        pause = images::PAUSE,
    );
    fs::write(Path::new(NODE).join("containerd.toml"), configuration)?;
    start(services)?;
    for image in images::all()? {
        image.import(&services.folder.join("images"))?;
    }
    Ok(())
}

/// Starts containerd, and waits until it has a socket.
pub fn start(services: &Services) -> Result<()> {
    services.start("containerd", &[format!("--config={NODE}/containerd.toml")])?;
    wait_for("containerd", || Path::new(SOCKET).exists())
}
