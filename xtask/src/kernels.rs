//! `cargo xtask kernels`: every mode on Debian's kernels, whole and with modules taken out.
//!
//! Each kernel boots under qemu with an initramfs of the static binary, what legacy mode needs, that kernel's netfilter
//! modules, and this program as init; see guest.rs for what happens in there. Downloads are kept in target/.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use xtask::apt;
use xtask::shell::{Result, Run as _, cargo, root, target};

use crate::{build, guest, rootfs, setup};

use Expected::{Fails, Works};

/// Debian's releases with the kernels that they have: 5.10, 6.1, 6.12, and the newest.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// How many results a guest gives: one a mode.
const MODES: usize = 4;

/// A kernel with something taken out, and what is expected of it.
pub(crate) struct Variant {
    pub(crate) without: &'static str,
    /// The modules that are deleted.
    pub(crate) modules: &'static [&'static str],
    /// What each of nft, native, legacy and auto does.
    expected: [Expected; MODES],
}

/// What a mode does.
#[derive(Clone, Copy)]
enum Expected {
    /// It works; auto by the mode of this name.
    Works(&'static str),
    /// It fails and leaves nothing, and the error says these words.
    Fails(&'static str),
}

const OK: Expected = Expected::Works("ok");

impl Expected {
    fn is(self, result: &str) -> bool {
        match self {
            Self::Works(word) => result == word,
            Self::Fails(words) => result.contains(words) && !result.contains(guest::LEFT_BEHIND),
        }
    }
}

impl Variant {
    /// Its name, as a word of a kernel's command line.
    pub(crate) fn parameter(&self) -> String {
        self.without.replace(' ', "_")
    }
}

pub(crate) const VARIANTS: [Variant; 8] = [
    Variant {
        without: "nothing",
        modules: &[],
        expected: [OK, OK, OK, Works("nft")],
    },
    Variant {
        without: "nft_compat",
        modules: &["nft_compat"],
        expected: [Fails("nft_compat"), OK, OK, Works("native")],
    },
    Variant {
        without: "xt_owner",
        modules: &["xt_owner"],
        expected: [Fails("xt_owner"), OK, Fails("xt_owner"), Works("native")],
    },
    Variant {
        without: "xt_multiport",
        modules: &["xt_multiport"],
        expected: [Fails("xt_multiport"), OK, Fails("xt_multiport"), Works("native")],
    },
    Variant {
        without: "xt_REDIRECT",
        modules: &["xt_REDIRECT"],
        expected: [Fails("xt_REDIRECT"), OK, Fails("xt_REDIRECT"), Works("native")],
    },
    Variant {
        without: "nf_tables",
        modules: &["nf_tables"],
        expected: [Fails("no nf_tables"), Fails("no nf_tables"), OK, Works("legacy")],
    },
    Variant {
        without: "ip6 nat",
        modules: &["ip6table_nat"],
        expected: [OK, OK, Fails("no legacy nat table"), Works("nft")],
    },
    Variant {
        without: "legacy tables",
        modules: &["ip_tables", "ip6_tables"],
        expected: [OK, OK, Fails("no legacy nat table"), Works("nft")],
    },
];

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

/// What trying all of it came to.
pub(crate) enum Outcome {
    /// Each kernel did in each mode what was expected. With the table of what that was.
    AsExpected(String),
    /// Nothing was tried, because of this.
    Skipped(String),
}

/// `cargo xtask kernels`: tries everything, and makes docs/kernels.md.
pub(crate) fn run() -> Result<()> {
    match check()? {
        Outcome::AsExpected(table) => Ok(fs::write(
            root().join("docs/kernels.md"),
            format!(
                "# Kernels\n\nMade by `cargo xtask kernels`: Debian's cloud kernels under qemu, whole and with modules \
                 taken out. `ok`: installed, verified, and an inbound and an outbound connection went to the proxy, over \
                 IPv4 and IPv6. Otherwise what the error names; nothing was left behind. auto: the mode that it took, \
                 which then worked.\n\n{table}"
            ),
        )?),
        Outcome::Skipped(reason) => Err(format!("nothing was tried: {reason}").into()),
    }
}

/// Boots everything. An error names what went otherwise than expected.
pub(crate) fn check() -> Result<Outcome> {
    if env::consts::ARCH != "x86_64" {
        return Ok(Outcome::Skipped(format!(
            "the kernels are x86_64's, and this machine is {}",
            env::consts::ARCH
        )));
    }
    if let Err(error) = apt::mirror() {
        return Ok(Outcome::Skipped(format!(
            "the kernels are Debian's packages, and {error}"
        )));
    }
    setup::programs(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
        ("cpio", "cpio"),
        ("xz", "xz-utils"),
    ])?;
    let binary = build::run()?;
    let init = guest_binary()?;
    let kernels = RELEASES
        .iter()
        .map(|release| Kernel::prepare(release, &binary, &init))
        .collect::<Result<Vec<_>>>()?;
    let trials: Vec<_> = kernels
        .iter()
        .flat_map(|kernel| VARIANTS.iter().map(move |variant| Trial { kernel, variant }))
        .collect();
    println!("Booting {} guests", trials.len());
    let results = try_all(&trials);
    let mut table = String::from("| kernel | without | nft | native | legacy | auto |\n|---|---|---|---|---|---|\n");
    let mut wrong = Vec::new();
    for (trial, results) in trials.iter().zip(&results) {
        let _ = writeln!(table, "| {} |", trial.row(results).join(" | "));
        if !trial.is_as_expected(results) {
            wrong.push(format!("{}: {}", trial.name(), results.join(" | ")));
        }
    }
    println!(
        "\n{table}\n{} passed, {} failed",
        trials.len() - wrong.len(),
        wrong.len()
    );
    if wrong.is_empty() {
        Ok(Outcome::AsExpected(table))
    } else {
        Err(format!("not as expected:\n{}", wrong.join("\n")).into())
    }
}

/// What each came to, in their order. A guest has one processor and half a GiB: as many run at a time as there are
/// processors, up to eight.
fn try_all(trials: &[Trial<'_>]) -> Vec<Vec<String>> {
    let queue = Mutex::new(trials.iter().enumerate());
    let worker = || {
        let mut done = Vec::new();
        while let Some((number, trial)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            let results = trial.results();
            println!("{}", trial.row(&results).join(" | "));
            done.push((number, results));
        }
        done
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from).min(8);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        workers.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, results)| results).collect()
}

/// One boot.
struct Trial<'a> {
    kernel: &'a Kernel,
    variant: &'static Variant,
}

impl Trial<'_> {
    fn name(&self) -> String {
        format!("{} without {}", self.kernel.version, self.variant.without)
    }

    /// What each mode did; or, alone, why there is nothing to tell. A guest that doesn't get to its end, of which qemu's
    /// emulation may be the reason, is booted again, and that is said.
    fn results(&self) -> Vec<String> {
        let mut reason = String::new();
        for _ in 0..3 {
            reason = match self.kernel.boot(self.variant) {
                Ok(results) if results.len() == MODES => return results,
                Ok(results) => format!("the guest got no further than: {}", results.join(" | ")),
                Err(error) => error.to_string(),
            };
            println!("{}: {reason}", self.name());
        }
        vec![reason]
    }

    fn is_as_expected(&self, results: &[String]) -> bool {
        let expected = self.variant.expected;
        results.len() == expected.len()
            && results
                .iter()
                .zip(expected)
                .all(|(result, expected)| expected.is(result))
    }

    /// The cells of the table: an error that was expected in short, what wasn't in full.
    fn row(&self, results: &[String]) -> Vec<String> {
        let cells = results
            .iter()
            .zip(self.variant.expected)
            .map(|(result, expected)| match expected {
                Fails(words) if expected.is(result) => format!("error: {words}"),
                _ => result.clone(),
            });
        [self.kernel.version.clone(), self.variant.without.to_owned()]
            .into_iter()
            .chain(cells)
            .collect()
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
    .env("RUSTFLAGS", build::STATIC)
    .env("CARGO_TARGET_DIR", target("guest"))
    .run()?;
    Ok(target("guest").join(triple).join("release/xtask"))
}

struct Kernel {
    /// The unpacked package, or, since Debian has split it, packages.
    folders: Vec<PathBuf>,
    version: String,
    /// What the guest runs, an archive for cpio.
    initramfs: PathBuf,
}

impl Kernel {
    /// The release's cloud kernel, which its metapackage names.
    fn prepare(release: &str, binary: &Path, init: &Path) -> Result<Self> {
        let package = apt::dependency(release, "linux-image-cloud-amd64", "linux-image-")?;
        let version = package.trim_start_matches("linux-image-").to_owned();
        let mut folders = vec![apt::unpack(release, &package)?];
        for part in ["linux-binary-", "linux-modules-"] {
            if let Ok(part) = apt::dependency(release, &package, part) {
                folders.push(apt::unpack(release, &part)?);
            }
        }
        let initramfs = target("kernels").join(&version).join("root.cpio");
        let kernel = Self {
            folders,
            version,
            initramfs,
        };
        kernel.make_initramfs(binary, init)?;
        Ok(kernel)
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

    fn make_initramfs(&self, binary: &Path, init: &Path) -> Result<()> {
        let root = self.initramfs.with_extension("");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        for folder in ["bin", "sbin", "proc", "sys", "dev", "run", "tmp", "etc"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::copy(binary, root.join("bin/proxy-init"))?;
        fs::copy(init, root.join("init"))?;
        fs::copy(rootfs::which("busybox")?, root.join("bin/busybox"))?;
        for applet in ["sh", "cat", "modprobe"] {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
        symlink("/bin/busybox", root.join("sbin/modprobe"))?;
        let ip = rootfs::which("ip")?;
        rootfs::copy_with_libraries(&ip, &root)?;
        symlink(&ip, root.join("bin/ip"))?;
        rootfs::add_iptables_legacy(&root)?;
        self.copy_modules(&root)?;
        let script = format!("find . | cpio --quiet -o -H newc > {}", self.initramfs.display());
        Command::new("sh").current_dir(&root).args(["-c", &script]).run()
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
            // It warns of lists that the split packages have elsewhere.
            Command::new("depmod")
                .arg("-b")
                .arg(base)
                .arg(version)
                .stderr(Stdio::null())
                .run()?;
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

    /// Boots it, and returns what the guest said of each mode.
    fn boot(&self, variant: &Variant) -> Result<Vec<String>> {
        let version = &self.version;
        let image = self.find(&[
            format!("boot/vmlinuz-{version}"),
            format!("usr/lib/modules/{version}/vmlinuz"),
            format!("usr/lib/linux/vmlinuz-{version}"),
        ])?;
        // Plain emulation: where /dev/kvm is there but nested, it may not work. Without cmpxchg16b: qemu 7.2 loses the
        // flags at it now and then, and the guest panics.
        let output = Command::new("timeout")
            .args("180 qemu-system-x86_64 -accel tcg -cpu max,cx16=off -m 512".split(' '))
            .args("-nographic -no-reboot -nodefaults -serial stdio".split(' '))
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(&self.initramfs)
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet panic=-1 {}={}",
                guest::PARAMETER,
                variant.parameter()
            ))
            .stdin(Stdio::null())
            .output()?;
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
