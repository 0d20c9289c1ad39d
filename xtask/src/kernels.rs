//! `cargo xtask kernels`: every mode on Debian's kernels, whole and with modules taken out.
//!
//! Each kernel boots under qemu with an initramfs of the static binary, what legacy mode needs, that kernel's netfilter
//! modules, and this program as init; see guest.rs for what happens in there. Downloads are kept in target/.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xtask::shell::{Result, Run as _, cargo, target};

use crate::{build, guest, setup};
use xtask::apt;

/// Debian's releases with the kernels that they have: 5.10, 6.1, 6.12, and the newest.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// What is taken out, and the modules that this takes.
pub(crate) const VARIANTS: [(&str, &[&str]); 8] = [
    ("whole", &[]),
    ("nft_compat", &["nft_compat"]),
    ("xt_owner", &["xt_owner"]),
    ("xt_multiport", &["xt_multiport"]),
    ("xt_REDIRECT", &["xt_REDIRECT"]),
    ("nf_tables", &["nf_tables"]),
    ("ip6 nat", &["ip6table_nat"]),
    ("legacy tables", &["ip_tables", "ip6_tables"]),
];

/// How many results a guest gives: one a mode.
const MODES: usize = 4;

/// Modules that the modes may ask for; those that they depend on come with them.
const MODULES: [&str; 17] = [
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nft_redir",
    "nft_nat",
    "nft_counter",
    "nf_conntrack",
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

/// The expectation: for each variant, what each of nft, native, legacy and auto does: `ok`, the mode that auto takes,
/// or a word of the error.
const EXPECTED: [(&str, [&str; 4]); 8] = [
    ("whole", ["ok", "ok", "ok", "nft"]),
    ("nft_compat", ["nft_compat", "ok", "ok", "native"]),
    ("xt_owner", ["xt_owner", "ok", "xt_owner", "native"]),
    ("xt_multiport", ["xt_multiport", "ok", "xt_multiport", "native"]),
    ("xt_REDIRECT", ["xt_REDIRECT", "ok", "xt_REDIRECT", "native"]),
    ("nf_tables", ["no nf_tables", "no nf_tables", "ok", "legacy"]),
    ("ip6 nat", ["ok", "ok", "no legacy nat table", "nft"]),
    ("legacy tables", ["ok", "ok", "no legacy nat table", "nft"]),
];

/// Boots everything. An error names what went otherwise than expected.
pub(crate) fn run() -> Result<()> {
    if env::consts::ARCH != "x86_64" {
        println!("SKIPPED, and so not passed: the kernels are x86_64's, and this machine is not");
        return Ok(());
    }
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
        ("cpio", "cpio"),
        ("xz", "xz-utils"),
    ] {
        if !setup::find(program) {
            setup::apt(package)?;
        }
    }
    let binary = build::run()?;
    let init = guest_binary()?;
    let mut table = String::from("| kernel | taken out | nft | native | legacy | auto |\n|---|---|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for release in RELEASES {
        let kernel = Kernel::unpack(release)?;
        let initramfs = kernel.initramfs(&binary, &init)?;
        for chunk in VARIANTS.chunks(2) {
            // Two at a time: as many as there are cores where this usually runs.
            let boots: Vec<_> = chunk
                .iter()
                .map(|(variant, _)| kernel.boot(&initramfs, variant))
                .collect();
            for ((variant, _), boot) in chunk.iter().zip(boots) {
                let mut results = boot.and_then(Boot::results);
                // What a guest said that panicked is no result. Two more tries.
                for _ in 0..2 {
                    if !matches!(&results, Ok(results) if results.len() == MODES) {
                        println!(
                            "{} {variant}: the guest did not get to its end; booting it again",
                            kernel.version
                        );
                        results = kernel.boot(&initramfs, variant).and_then(Boot::results);
                    }
                }
                let results = results?;
                let expected = EXPECTED
                    .iter()
                    .find(|(name, _)| name == variant)
                    .map(|(_, expected)| expected);
                // What was expected in short, what wasn't in full.
                let cell = |(result, word): (&String, &&str)| match result.as_str() {
                    "ok" => "ok".to_owned(),
                    result if result == *word => result.to_owned(),
                    result if result.contains(*word) => format!("error: {word}"),
                    result => result.to_owned(),
                };
                let cells: Vec<_> = results.iter().zip(expected.into_iter().flatten()).map(cell).collect();
                let _ = writeln!(table, "| {} | {variant} | {} |", kernel.version, cells.join(" | "));
                println!("{:<28} {variant:<14} {}", kernel.version, cells.join(" | "));
                let as_expected = expected.is_some_and(|expected| {
                    results.len() == expected.len()
                        && results
                            .iter()
                            .zip(expected)
                            .all(|(result, word)| result.contains(word) && !result.contains("LEFT"))
                });
                if !as_expected {
                    wrong.push(format!("{} without {variant}: {}", kernel.version, results.join(" | ")));
                }
            }
        }
    }
    fs::create_dir_all(xtask::shell::root().join("docs"))?;
    fs::write(
        xtask::shell::root().join("docs/kernels.md"),
        format!(
            "# Kernels\n\nMade by `cargo xtask kernels`: Debian's cloud kernels under qemu, whole and with modules taken \
             out. `ok`: installed, verified, and an inbound and an outbound connection went to the proxy, over IPv4 and \
             IPv6. Otherwise what the error names; nothing was left behind. auto: the mode that it took, which then \
             worked.\n\n{table}"
        ),
    )?;
    println!("\n{table}");
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("not as expected:\n{}", wrong.join("\n")).into())
    }
}

/// This program again, static, as the guest's init.
fn guest_binary() -> Result<PathBuf> {
    let triple = "x86_64-unknown-linux-gnu";
    cargo(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "xtask",
        "--bin",
        "xtask",
        "--target",
        triple,
    ])
    .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
    .env("CARGO_TARGET_DIR", target("guest"))
    .run()?;
    Ok(target("guest").join(triple).join("release/xtask"))
}

struct Kernel {
    /// The unpacked package, or, since Debian has split it, packages.
    folders: Vec<PathBuf>,
    version: String,
}

impl Kernel {
    /// The release's cloud kernel, which its metapackage names.
    fn unpack(release: &str) -> Result<Self> {
        let package = apt::dependency(release, "linux-image-cloud-amd64", "linux-image-")?;
        let version = package.trim_start_matches("linux-image-").to_owned();
        let mut folders = vec![apt::unpack(release, &package)?];
        for part in ["linux-binary-", "linux-modules-"] {
            if let Ok(part) = apt::dependency(release, &package, part) {
                folders.push(apt::unpack(release, &part)?);
            }
        }
        Ok(Self { folders, version })
    }

    /// A path of the packages', of these the one that there is.
    fn find(&self, paths: &[String]) -> Result<PathBuf> {
        let in_all = |path: &String| {
            self.folders
                .iter()
                .map(|folder| folder.join(path))
                .find(|path| path.exists())
        };
        let found = paths.iter().find_map(in_all);
        found.ok_or_else(|| format!("{}: none of {paths:?}", self.version).into())
    }

    fn initramfs(&self, binary: &Path, init: &Path) -> Result<PathBuf> {
        let root = target("kernels").join(&self.version).join("root");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        for folder in ["bin", "sbin", "proc", "sys", "dev", "run", "tmp", "etc"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::copy(binary, root.join("bin/proxy-init"))?;
        fs::copy(init, root.join("init"))?;
        fs::copy(which("busybox")?, root.join("bin/busybox"))?;
        for applet in ["sh", "cat", "modprobe"] {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
        symlink("/bin/busybox", root.join("sbin/modprobe"))?;
        for program in ["xtables-legacy-multi", "ip"] {
            let program = which(program)?;
            copy_with_libraries(&program, &root)?;
            symlink(&program, root.join("bin").join(program.file_name().unwrap_or_default()))?;
        }
        let plugins = Path::new("/usr/lib/x86_64-linux-gnu/xtables");
        for plugin in fs::read_dir(plugins)?.flatten() {
            copy_with_libraries(&plugin.path(), &root)?;
        }
        for name in ["iptables", "ip6tables"] {
            for suffix in ["", "-restore", "-save"] {
                let multi = root.join(which("xtables-legacy-multi")?.strip_prefix("/")?);
                let multi = Path::new("/").join(multi.strip_prefix(&root)?);
                symlink(multi, root.join("sbin").join(format!("{name}-legacy{suffix}")))?;
            }
        }
        self.copy_modules(&root)?;
        let archive = root.with_extension("cpio");
        let script = format!("find . | cpio --quiet -o -H newc > {}", archive.display());
        Command::new("sh").current_dir(&root).args(["-c", &script]).run()?;
        Ok(archive)
    }

    /// The modules and what they need, uncompressed, for busybox's modprobe.
    fn copy_modules(&self, root: &Path) -> Result<()> {
        let version = &self.version;
        let from = self.find(&[
            format!("lib/modules/{version}/kernel"),
            format!("usr/lib/modules/{version}/kernel"),
        ])?;
        let from = from.parent().unwrap_or(&from);
        // Newer packages leave this to their installation.
        if !from.join("modules.dep").exists() {
            let base = from.ancestors().nth(3).unwrap_or(from);
            Command::new("depmod").arg("-b").arg(base).arg(version).run()?;
        }
        let dependencies = fs::read_to_string(from.join("modules.dep"))?;
        let mut files = BTreeSet::new();
        for line in dependencies.lines() {
            let (file, needs) = line.split_once(':').unwrap_or_default();
            if MODULES.contains(&module_name(file).as_str()) {
                files.insert(file);
                files.extend(needs.split_whitespace());
            }
        }
        // What the kernel asks for by checksum, not by name.
        files.extend(
            dependencies
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(file, _)| file)
                .filter(|file| {
                    let name = module_name(file);
                    name.contains("crc32c")
                }),
        );
        let to = root.join("lib/modules").join(&self.version);
        for file in files {
            let target = to.join(file.trim_end_matches(".xz"));
            fs::create_dir_all(target.parent().unwrap_or(&to))?;
            if file.ends_with(".xz") {
                let unpacked = Command::new("xz")
                    .arg("--decompress")
                    .arg("--stdout")
                    .arg(from.join(file))
                    .output()?;
                fs::write(&target, unpacked.stdout)?;
            } else {
                fs::copy(from.join(file), &target)?;
            }
        }
        for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            // Without them depmod only warns.
            let _ = fs::copy(from.join(list), to.join(list));
        }
        Command::new("depmod")
            .arg("-b")
            .arg(root)
            .arg(&self.version)
            .stderr(Stdio::null())
            .run()
    }

    fn boot(&self, initramfs: &Path, variant: &str) -> Result<Boot> {
        let version = &self.version;
        let image = self.find(&[
            format!("boot/vmlinuz-{version}"),
            format!("usr/lib/modules/{version}/vmlinuz"),
            format!("usr/lib/linux/vmlinuz-{version}"),
        ])?;
        let variant = variant.replace(' ', "_");
        // Plain emulation: where /dev/kvm is there but nested, it may not work. Without cmpxchg16b: qemu 7.2 loses the
        // flags at it now and then, and the guest panics.
        let child = Command::new("timeout")
            .args([
                "180",
                "qemu-system-x86_64",
                "-accel",
                "tcg",
                "-cpu",
                "max,cx16=off",
                "-m",
                "512",
            ])
            .args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"])
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(initramfs)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 {}={variant}", guest::PARAMETER))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Boot(child))
    }
}

/// A guest that runs.
struct Boot(std::process::Child);

impl Boot {
    /// What it said of each mode.
    fn results(self) -> Result<Vec<String>> {
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let results: Vec<String> = text
            .lines()
            .filter_map(|line| line.split_once(guest::RESULT))
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

fn which(program: &str) -> Result<PathBuf> {
    let found = Command::new("sh")
        .args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}")])
        .read()?;
    Ok(fs::canonicalize(found.trim())?)
}

/// Copies a dynamic program or plugin, and the libraries that ldd names, to the same places.
pub(crate) fn copy_with_libraries(file: &Path, root: &Path) -> Result<()> {
    let copy = |file: &Path| -> Result<()> {
        let to = root.join(file.strip_prefix("/")?);
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap_or(root))?;
            fs::copy(file, to)?;
        }
        Ok(())
    };
    copy(file)?;
    let libraries = Command::new("ldd").arg(file).output()?;
    for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
        if word.starts_with('/') {
            copy(Path::new(word))?;
        }
    }
    Ok(())
}
