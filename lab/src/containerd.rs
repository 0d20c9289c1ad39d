//! containerd: how it is configured and started, and images for it from folders that hold their files.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::architecture::Architecture;
use crate::images;
use crate::machine::{BRIDGE, NETWORKS, NODE, PLUGINS, SUBNETS};
use crate::services::Services;
use crate::shell::{Result, Run as _, root};
use crate::wait::wait_for;

/// The socket of containerd.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The network configuration of all pods for which no other one is chosen.
pub const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

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

/// All images.
fn all_images() -> Result<Vec<Image>> {
    Ok(vec![
        Image::running(images::PAUSE, "peer", &["/peer"]),
        Image::running(images::CLIENT, "peer", &["/peer"]),
        Image::running(images::PROXY, "peer", &["/peer", "serve", "4143", "4140", "4191"]),
        Image::running(images::APP, "peer", &["/peer", "serve", "8080"]),
        Image::of_dockerfile(images::PROXY_INIT, "scratch")?,
        Image::of_dockerfile(images::LEGACY, "legacy")?,
        Image::of_dockerfile(images::FILE_CAPABILITIES, "file-capabilities")?,
        Image::running(images::AGENT, "cni", &["/usr/bin/linkerd2-cni-install"]),
        Image::running(images::LINKERD_INIT, "linkerd-init", &["/bin/busybox", "sh", "-e", "/commands"]),
    ])
}

/// containerd's own client, in the CRI's namespace.
fn ctr() -> Command {
    let mut command = Command::new("ctr");
    command.args(["--address", SOCKET, "--namespace", "k8s.io"]);
    command
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
    for image in all_images()? {
        image.import(&services.folder.join("images"))?;
    }
    Ok(())
}

/// Starts containerd, and waits until it has a socket.
pub fn start(services: &Services) -> Result<()> {
    services.start("containerd", &[format!("--config={NODE}/containerd.toml")])?;
    wait_for("containerd", || Path::new(SOCKET).exists())
}
