//! The node's machine: file systems, kernel settings, cgroups and a bridge that no other program sees, and which vanish
//! with the namespaces.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::cgroups::hierarchies;
use crate::confined::{cover, mount_on};
use crate::shell::{Result, Run as _};

/// Where the node's files are.
pub const NODE: &str = "/run/node";

/// Where the node is reached, and where its pods' addresses are.
pub const ADDRESS: &str = "10.88.0.1";
pub(crate) const SUBNETS: [&str; 2] = ["10.88.0.0/16", "fd88::/64"];

/// The bridge that all pods are on.
pub(crate) const BRIDGE: &str = "cni0";

/// A locally administered address, with the node's in it.
const BRIDGES_MAC: &str = "02:00:0a:58:00:01";

/// Where the node looks for network plugins and their configurations; whoever adds one does so there.
pub const PLUGINS: &str = "/opt/cni/bin";
pub const NETWORKS: &str = "/etc/cni/net.d";

/// A link to the /usr of the node's programs, with their C library, in the folder that is filled for scenarios.
pub const USR: &str = "node-usr";

/// The kernel's settings that kubelet writes unless they have these values already (setupKernelTunables in
/// pkg/kubelet/cm/container_manager_linux.go). They are the whole machine's, so kubelet gets files in their place.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Makes all of it, with the node's programs from this folder.
pub fn prepare(folder: &Path, cgroup: &str) -> Result<()> {
    // Files that are written there vanish with the mount namespace.
    cover(&["/etc", "/opt", "/var"])?;
    lay_over_usr(folder)?;
    for folder in [NODE, NETWORKS, PLUGINS, "/var/log/pods", "/run/settings", "/run/cgroup", "/run/netns", "/run/lock"]
    {
        fs::create_dir_all(folder)?;
    }
    // That of this network namespace, with the cgroups that the machine has there.
    bind("/sys/fs/cgroup", "/run/cgroup")?;
    mount_on("sysfs", "/sys", None)?;
    bind("/run/cgroup", "/sys/fs/cgroup")?;
    umount2("/run/cgroup", MntFlags::MNT_DETACH)?;
    for (setting, value) in SETTINGS {
        let file = Path::new("/run/settings").join(setting.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        bind(&file.to_string_lossy(), &format!("/proc/sys/{setting}"))?;
    }
    // The kernel gives user namespaces a /proc only where a whole one is mounted; the settings above cover parts of this one.
    fs::create_dir_all("/run/proc")?;
    mount_on("proc", "/run/proc", None)?;
    // kubelet mounts volumes where containers are to see them.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)?;
    for hierarchy in hierarchies() {
        let own = hierarchy.join(cgroup);
        fs::create_dir_all(&own)?;
        // A cpuset is empty at first, and then so are those in it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read(hierarchy.join(file)) {
                fs::write(own.join(file), all)?;
            }
        }
    }
    network()
}

/// The bridge, with the node's address on it, and routes to what is nowhere: a service's address is replaced after
/// routing.
fn network() -> Result<()> {
    link_plugins()?;
    // One that looks for multicast routers sends reports of its own, which the pods' rules would count. One without a MAC address
    // of its own takes the lowest of its pods', and other pods go on sending to a former one for a while.
    for line in [
        "link set lo up".to_owned(),
        format!("link add {BRIDGE} address {BRIDGES_MAC} type bridge mcast_snooping 0"),
        format!("addr add {ADDRESS}/16 dev {BRIDGE}"),
        format!("addr add fd88::1/64 dev {BRIDGE} nodad"),
        format!("link set {BRIDGE} up"),
        format!("route add default dev {BRIDGE}"),
    ] {
        Command::new("ip").args(line.split(' ')).run()?;
    }
    Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)
}

/// Lays the node's programs over this mount namespace's /usr, after [`cover`]. All programs in here
/// use their C library, which runs programs that were built for older ones too.
fn lay_over_usr(folder: &Path) -> Result<()> {
    // This link's name has no colon, which would end it in the option.
    symlink(folder.join(USR), "/run/newer")?;
    mount_on("overlay", "/usr", Some("lowerdir=/run/newer:/usr"))
}

/// Links the plugins that networks name, of Debian's containernetworking-plugins, to where they are looked for.
fn link_plugins() -> Result<()> {
    for plugin in ["bridge", "host-local", "loopback"] {
        symlink(Path::new("/usr/lib/cni").join(plugin), Path::new(PLUGINS).join(plugin))?;
    }
    Ok(())
}

fn bind(from: &str, to: &str) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|errno| format!("cannot mount {from} on {to}: {errno}").into())
}
