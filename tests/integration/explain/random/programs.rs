//! Beside other programs in a pod: firewalls, container networks, VPNs, other meshes, and what they leave.
//!
//! Each is a script in programs/, whose first lines say where its rules come from. Those of [`DEBIANS`] run the program
//! itself, in a root file system of Debian's packages; the others are written as the programs document their rules.
//! Each makes its rules before an installation of ours, and after one, in every mode; real connections decide.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use lab::apt;
use lab::linkerd::Flags;
use lab::network::{Namespace, families, seed};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::pod::{self, Pod};
use super::{Commands, Installed, MOST_NOT_KNOWN, arguments, compare};
use crate::support::Folder;

/// Programs that Debian has, which make their rules themselves.
const DEBIANS: [&str; 4] = ["firewalld", "netavark", "shorewall", "ufw"];

/// The packages that the programs and their scripts need.
const PACKAGES: &str = "firewalld netavark shorewall ufw bsdutils coreutils dash dbus-daemon findutils grep iproute2 iptables mawk \
                        nftables procps sed util-linux";

/// Runs `$3` in the root file system `$1`, which stays as it is; iptables there is of the variant `$2`. Whatever the
/// program has started ends with it.
const IN_ROOT: &str = "
mkdir /run/over && mount -t tmpfs tmpfs /run/over && cd /run/over && mkdir upper work root
mount -t overlay overlay -o lowerdir=$1,upperdir=upper,workdir=work root && cd root
mkdir -p proc sys dev run tmp
for folder in proc sys dev; do mount --rbind /$folder $folder; done
for folder in run tmp; do mount -t tmpfs tmpfs $folder; done
echo root:x:0:0::/root:/bin/sh > etc/passwd
for program in iptables ip6tables; do
  for command in $program $program-save $program-restore; do ln -sf xtables-$2-multi usr/sbin/$command; done
done
cp $3 tmp/rules.sh
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh -e /tmp/rules.sh
";

/// So many connections are made beside each program's rules.
const EACH: usize = 24;

/// Runs a program's script in a pod.
fn run(pod: &Namespace, script: &Path, mode: &str) {
    let variant = if mode == "legacy" { "legacy" } else { "nft" };
    let name = script.file_stem().unwrap().to_str().unwrap();
    let mut command;
    let folder;
    if DEBIANS.contains(&name) {
        let packages: Vec<&str> = PACKAGES.split(' ').collect();
        let root = apt::unpack_all("bookworm", "programs", &packages).unwrap_or_else(|error| panic!("{error}"));
        command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-ec", IN_ROOT, "sh"]);
        command.args([root.as_path(), variant.as_ref(), script]);
    } else {
        folder = Folder::new(&format!("programs-{mode}"));
        folder.link_plain(variant);
        command = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", folder.path()));
        command.arg("-e").arg(script);
    }
    let output = pod.output(command.stdin(Stdio::null()));
    assert!(
        output.status.success(),
        "{name} with {variant}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/explain/random/programs");
    let entries = fs::read_dir(folder).unwrap();
    let mut scripts: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    scripts
}

/// Judges in each mode beside the programs of Debian's packages, or beside the others. Half of that time is waited for
/// connections that are lost, so the modes do it together.
pub(super) fn judge_each_mode(of_debian: bool) {
    thread::scope(|scope| {
        for mode in ["nft", "native", "legacy"] {
            scope.spawn(move || judge(mode, of_debian));
        }
    });
}

fn judge(mode: &str, of_debian: bool) {
    if families() < 2 {
        return;
    }
    let mut runner = TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed()), ..Config::default() });
    let flags = Flags::default();
    let (mut wrong, mut tried, mut not_known) = (Vec::new(), 0, 0);
    for script in scripts() {
        let name = script.file_stem().unwrap().to_str().unwrap();
        if DEBIANS.contains(&name) != of_debian {
            continue;
        }
        for is_first in [true, false] {
            let pod = Pod::new();
            let mut commands = Commands::new(&pod.inside);
            if is_first {
                run(&pod.inside, &script, mode);
            }
            commands.run(&format!("-w {}", arguments(mode, &flags))).unwrap();
            if !is_first {
                run(&pod.inside, &script, mode);
            }
            let when = if is_first { "before" } else { "after" };
            let done = format!("# {name}, {when} this\n{}", commands.done);
            let installed = Installed { pod: &pod, done: &done, mode, flags: &flags, loses: true };
            let cases = pod::any_cases(EACH).new_tree(&mut runner).unwrap().current();
            let count = RefCell::default();
            if let Err(error) = compare(&installed, &cases, &count) {
                wrong.push(error.to_string());
            }
            let count = count.into_inner();
            println!("{mode}, {name}, {when}: {count:?}");
            tried += count.tried;
            not_known += count.not_known - count.tied;
        }
    }
    println!("{mode}: {tried} tried, {not_known} not known");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(100 * not_known <= MOST_NOT_KNOWN * tried, "more than {MOST_NOT_KNOWN} % not known");
}
