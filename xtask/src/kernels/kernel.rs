//! One of Debian's kernels: its packages, an initramfs for it, and a boot under qemu.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::apt;
use lab::architecture::Architecture;
use lab::shell::{Result, Run as _, target};
use lab::variant::{HOOK_LISTS, PARAMETER, RESULT, Variant};

use crate::rootfs;

/// Modules that the modes may ask for; those that they depend on come with them.
const MODULES: [&str; 18] = [
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nft_redir",
    "nft_nat",
    "nft_counter",
    "nf_conntrack",
    HOOK_LISTS,
    "xt_owner",
    "xt_multiport",
    "xt_REDIRECT",
    "xt_tcpudp",
    "xt_comment",
    "iptable_nat",
    "ip6table_nat",
    "ip_tables",
    "ip6_tables",
    "veth",
];

/// The beginning of the names of kernels' packages.
const PACKAGE: &str = "linux-image-";

/// The version of a release's cloud kernel, which its metapackage names.
pub(crate) fn version(release: &str, architecture: Architecture) -> Result<String> {
    let package = architecture.package(&format!("{PACKAGE}cloud-{}", architecture.name()));
    let package = apt::dependency(release, &package, PACKAGE)?;
    Ok(package.trim_start_matches(PACKAGE).to_owned())
}

/// The programs that run in a guest, which are linked statically.
pub(crate) struct Guest {
    pub(crate) architecture: Architecture,
    pub(crate) proxy_init: PathBuf,
    /// The laboratory's program of that name.
    pub(crate) guest: PathBuf,
}

pub(crate) struct Kernel {
    architecture: Architecture,
    /// The unpacked package, or, since Debian has split it, packages.
    folders: Vec<PathBuf>,
    pub(crate) version: String,
    /// It has the module [`HOOK_LISTS`].
    pub(crate) has_hook_lists: bool,
    /// The guest's files, an archive for cpio.
    initramfs: PathBuf,
}

impl Kernel {
    /// Its version without what all kernels of an architecture share.
    pub(crate) fn name(&self) -> &str {
        self.version.trim_end_matches(self.architecture.name()).trim_end_matches("-cloud-")
    }

    /// Unpacks a release's kernel of this version, and makes what it boots with.
    pub(crate) fn prepare(release: &str, version: String, guest: &Guest) -> Result<Self> {
        let architecture = guest.architecture;
        let package = architecture.package(&format!("{PACKAGE}{version}"));
        let mut folders = vec![apt::unpack(release, &package)?];
        for part in ["linux-binary-", "linux-modules-"] {
            if let Ok(part) = apt::dependency(release, &package, part) {
                folders.push(apt::unpack(release, &architecture.package(&part))?);
            }
        }
        let initramfs = target("kernels").join(&version).join("root.cpio");
        let mut kernel = Self { architecture, folders, version, has_hook_lists: false, initramfs };
        kernel.has_hook_lists = kernel.make_initramfs(guest)?.contains(HOOK_LISTS);
        Ok(kernel)
    }

    /// A path of the packages', of these the one that there is.
    fn find(&self, paths: &[String]) -> Result<PathBuf> {
        let in_all = |path: &String| self.folders.iter().map(|folder| folder.join(path)).find(|path| path.exists());
        let found = paths.iter().find_map(in_all);
        found.ok_or_else(|| format!("{}: none of {paths:?}", self.version).into())
    }

    /// Returns the names of the modules in it.
    fn make_initramfs(&self, guest: &Guest) -> Result<BTreeSet<String>> {
        let root = self.initramfs.with_extension("");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        let packages = ["iproute2", "iptables", "util-linux", "busybox-static"];
        let packages = packages.map(|package| guest.architecture.package(package));
        rootfs::add("guest", &packages.each_ref().map(String::as_str), &root)?;
        for folder in ["proc", "sys", "dev", "run", "tmp"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::copy(&guest.proxy_init, root.join("bin/proxy-init"))?;
        fs::copy(&guest.guest, root.join("init"))?;
        for link in ["bin/sh", "bin/cat", "bin/mkdir", "bin/sleep", "sbin/modprobe"] {
            let link = root.join(link);
            // Packages of the root have some of them.
            let _ = fs::remove_file(&link);
            symlink("/bin/busybox", link)?;
        }
        let modules = self.copy_modules(&root)?;
        let script = format!("find . | cpio --quiet -o -H newc > {}", self.initramfs.display());
        Command::new("sh").current_dir(&root).args(["-c", &script]).run()?;
        Ok(modules)
    }

    /// The modules and what they need, uncompressed, for busybox's modprobe. Returns their names.
    fn copy_modules(&self, root: &Path) -> Result<BTreeSet<String>> {
        let version = &self.version;
        let from =
            self.find(&[format!("lib/modules/{version}/kernel"), format!("usr/lib/modules/{version}/kernel")])?;
        let from = from.parent().unwrap_or(&from);
        // Newer packages leave this to their installation.
        if !from.join("modules.dep").exists() {
            let base = from.ancestors().nth(3).unwrap_or(from);
            // It warns of lists that the split packages have elsewhere.
            Command::new("depmod").arg("-b").arg(base).arg(version).stderr(Stdio::null()).run()?;
        }
        let dependencies = fs::read_to_string(from.join("modules.dep"))?;
        let mut files = BTreeSet::new();
        for line in dependencies.lines() {
            let (file, needs) = line.split_once(':').unwrap_or_default();
            let name = module_name(file);
            // The kernel asks for crc32c by checksum, not by name.
            if MODULES.contains(&name.as_str()) || name.contains("crc32c") {
                files.insert(file);
                files.extend(needs.split_whitespace());
            }
        }
        let to = root.join("lib/modules").join(&self.version);
        for file in &files {
            let target = to.join(file.trim_end_matches(".xz"));
            fs::create_dir_all(target.parent().unwrap_or(&to))?;
            if file.ends_with(".xz") {
                let unpacked = Command::new("xz").arg("--decompress").arg("--stdout").arg(from.join(file)).output()?;
                fs::write(&target, unpacked.stdout)?;
            } else {
                fs::copy(from.join(file), &target)?;
            }
        }
        for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            // Without them depmod only warns.
            let _ = fs::copy(from.join(list), to.join(list));
        }
        Command::new("depmod").arg("-b").arg(root).arg(&self.version).stderr(Stdio::null()).run()?;
        Ok(files.into_iter().map(module_name).collect())
    }

    /// Boots it, and returns what the guest said of each mode.
    pub(crate) fn boot(&self, variant: &Variant) -> Result<Vec<String>> {
        let version = &self.version;
        let image = self.find(&[
            format!("boot/vmlinuz-{version}"),
            format!("usr/lib/modules/{version}/vmlinuz"),
            format!("usr/lib/linux/vmlinuz-{version}"),
        ])?;
        // Plain emulation: where /dev/kvm is there but nested, it may not work. Without cmpxchg16b: qemu 7.2 loses the
        // flags at it now and then, and the guest panics.
        let (machine, console) = match self.architecture {
            Architecture::Amd64 => ("-cpu max,cx16=off", "ttyS0"),
            Architecture::Arm64 => ("-machine virt -cpu cortex-a72", "ttyAMA0"),
        };
        let output = Command::new("timeout")
            .arg("180")
            .arg(format!("qemu-system-{}", self.architecture.machine()))
            .args(machine.split(' '))
            .args("-accel tcg -m 512 -nographic -no-reboot -nodefaults -serial stdio".split(' '))
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!("console={console} quiet panic=-1 {PARAMETER}={} {}", variant.parameter(), variant.parameters))
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let results: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_once(RESULT))
            .map(|(_, result)| result.trim().to_owned())
            .collect();
        if results.is_empty() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the guest said nothing: {}\n{text}{stderr}", output.status).into());
        }
        Ok(results)
    }
}

fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}
