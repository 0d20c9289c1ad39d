//! `cargo xtask kernels`: every mode on Debian's kernels, whole and with modules removed.
//!
//! Each kernel boots under qemu with an initramfs of the static binary, what legacy mode needs, that kernel's netfilter
//! modules, and the program `guest` as init: bin/guest.rs is what happens in there. Downloads are kept in target/.

mod kernel;
pub mod variant;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::thread;

use crate::architecture::Architecture;
use crate::rootfs::Origin;
use crate::scenario::each;
use crate::shell::Result;
use crate::{Outcome, apt, install};
pub use kernel::Programs;
use kernel::{Guest, Kernel};
use variant::Expected::{Fails, FallsBack};
use variant::{MODES, VARIANTS, Variant};

/// Debian's releases with the kernels that they have: 5.10, 6.1, 6.12, and the newest.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// Builds them.
pub type Build = fn(Architecture) -> Result<Programs>;

/// `cargo xtask kernels [--arch amd64|arm64] [--only WORD...]`, on this machine's architecture unless another is named:
/// tries everything, and prints the table of docs/kernels.md; or the kernels and variants whose name has all of these words.
pub fn run(arguments: &[String], build: Build) -> Result<()> {
    let (architecture, rest) = match arguments {
        [flag, name, rest @ ..] if flag == "--arch" => (Architecture::named(name)?, rest),
        rest => (Architecture::here()?, rest),
    };
    let words = match rest {
        [] => &[],
        [flag, words @ ..] if flag == "--only" && !words.is_empty() => words,
        _ => return Err("usage: cargo xtask kernels [--arch amd64|arm64] [--only WORD...]".into()),
    };
    match check(architecture, words, build)? {
        Outcome::AsExpected(table) => {
            if words.is_empty() {
                println!("\nThe table of docs/kernels.md:\n\n{}", grouped(architecture, &table));
            }
            Ok(())
        }
        Outcome::Skipped(reason) => Err(format!("nothing was tried: {reason}").into()),
    }
}

/// The table by what the kernels did: those that did the same have a row together.
fn grouped(architecture: Architecture, table: &str) -> String {
    let suffix = format!("-cloud-{}", architecture.name());
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut kernels = BTreeSet::new();
    for line in table.lines().skip(2) {
        let Some((kernel, did)) = line.trim_start_matches("| ").split_once(" | ") else {
            continue;
        };
        let kernel = kernel.trim_end_matches(&suffix);
        kernels.insert(kernel);
        match rows.iter_mut().find(|(other, _)| *other == did) {
            Some((_, of)) => of.push(kernel),
            None => {
                let last = rows.iter().rposition(|(other, _)| without(other) == without(did));
                rows.insert(last.map_or(rows.len(), |last| last + 1), (did, vec![kernel]));
            }
        }
    }
    let mut text = String::from(
        "| kernels | without | nft | native | legacy | auto | legacy rules, to uid 65534 |\n|---|---|---|---|---|---|---|\n",
    );
    for (did, of) in rows {
        let of = if of.len() == kernels.len() { "all".to_owned() } else { of.join(", ") };
        let _ = writeln!(text, "| {of} | {did}");
    }
    let all: Vec<&str> = kernels.into_iter().collect();
    format!("Kernels: {}.\n\n{text}", all.join(", "))
}

/// Boots everything whose name has all of these words, and makes the table of what each kernel did in each mode.
pub fn check(architecture: Architecture, words: &[impl AsRef<str>], build: Build) -> Result<Outcome<String>> {
    if let Err(error) = apt::mirror() {
        return Ok(Outcome::Skipped(format!("the kernels are Debian's packages, and {error}")));
    }
    let qemu = match architecture {
        Architecture::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Architecture::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    };
    install::programs(&[
        qemu,
        ("busybox", "busybox-static"),
        ("readelf", "binutils"),
        ("depmod", "kmod"),
        ("cpio", "cpio"),
        ("xz", "xz-utils"),
    ])?;
    let guest = guest(architecture, build(architecture)?)?;
    let is_wanted = |version: &str, variant: &Variant| {
        let name = name(version, variant);
        words.iter().all(|word| name.contains(word.as_ref()))
    };
    let mut kernels = Vec::new();
    for release in RELEASES {
        let version = kernel::version(release, architecture)?;
        if VARIANTS.iter().any(|variant| is_wanted(&version, variant)) {
            kernels.push(Kernel::prepare(release, version, &guest)?);
        }
    }
    let mut trials = Vec::new();
    for kernel in &kernels {
        let variants = VARIANTS.iter().filter(|variant| is_wanted(&kernel.version, variant));
        trials.extend(variants.map(|variant| Trial { kernel, variant }));
    }
    if trials.is_empty() {
        return Err(format!(
            "no kernel's name has {}",
            words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" and ")
        )
        .into());
    }
    println!("Booting {} guests", trials.len());
    let results = try_all(&trials);
    let mut table = String::from(
        "| kernel | without | nft | native | legacy | auto | legacy rules, to uid 65534 |\n|---|---|---|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    for (trial, results) in trials.iter().zip(&results) {
        let _ = writeln!(table, "| {} |", trial.row(results).join(" | "));
        if !trial.is_as_expected(results) {
            wrong.push(format!("{}: {}", trial.name(), results.join(" | ")));
        }
    }
    println!("\n{table}\n{} passed, {} failed", trials.len() - wrong.len(), wrong.len());
    if wrong.is_empty() {
        Ok(Outcome::AsExpected(table))
    } else {
        Err(format!("not as expected:\n{}", wrong.join("\n")).into())
    }
}

/// The results of each, in their order. A guest has one processor and half a GiB: as many run at a time as there are
/// processors, up to eight.
fn try_all(trials: &[Trial<'_>]) -> Vec<Vec<String>> {
    let at_a_time = thread::available_parallelism().map_or(1, usize::from).min(8);
    each(at_a_time, trials, |trial| {
        let results = trial.results();
        println!("{}", trial.row(&results).join(" | "));
        results
    })
}

/// The name of a kernel without something.
fn name(version: &str, variant: &Variant) -> String {
    format!("{version} without {}", variant.without)
}

/// One boot.
struct Trial<'a> {
    kernel: &'a Kernel,
    variant: &'static Variant,
}

impl Trial<'_> {
    fn name(&self) -> String {
        name(&self.kernel.version, self.variant)
    }

    /// The result of each mode; or, alone, the reason why there is none. A guest that doesn't get to its end, of which qemu's
    /// emulation may be the reason, is booted again, and that is said.
    fn results(&self) -> Vec<String> {
        let mut reason = String::new();
        for _ in 0..3 {
            reason = match self.kernel.boot(self.variant) {
                Ok(results) if results.len() == MODES.len() + 1 => return results,
                Ok(results) => format!("the guest got no further than: {}", results.join(" | ")),
                Err(error) => error.to_string(),
            };
            println!("{}: {reason}", self.name());
        }
        vec![reason]
    }

    fn is_as_expected(&self, results: &[String]) -> bool {
        let expected = self.variant.expected;
        let told = self.variant.expected_view(self.kernel.has_hook_lists);
        results.len() == expected.len() + 1
            && results.last().is_some_and(|result| result == told.word())
            && results.iter().zip(expected).all(|(result, expected)| expected.is(result))
    }

    /// The cells of the table: an error that was expected in short, what wasn't in full.
    fn row(&self, results: &[String]) -> Vec<String> {
        let cells = results.iter().zip(self.variant.expected).map(|(result, expected)| match expected {
            Fails(words) if expected.is(result) => format!("error: {words}"),
            FallsBack(mode, words) if expected.is(result) => format!("{mode} ({words})"),
            _ => result.clone(),
        });
        [self.kernel.version.clone(), self.variant.without.to_owned()]
            .into_iter()
            .chain(cells)
            .chain(results.get(MODES.len()).cloned())
            .collect()
    }
}

/// These programs, and where the rest comes from.
fn guest(architecture: Architecture, programs: Programs) -> Result<Guest> {
    let origin = if architecture.is_here() {
        Origin::here()?
    } else {
        let packages = ["iproute2", "iptables", "util-linux", "busybox-static"];
        let packages = packages.map(|package| architecture.package(package));
        let folder = apt::unpack_all("bookworm", "guest", &packages.each_ref().map(String::as_str))?;
        Origin::unpacked(folder, architecture)
    };
    Ok(Guest { architecture, programs, origin })
}

/// A row's first cell.
fn without(row: &str) -> &str {
    row.split(" | ").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_do_the_same_have_a_row_together() {
        let table = "| kernel | without | nft |\n|---|---|---|\n\
                     | 5.10-cloud-arm64 | nothing | ok |\n| 5.10-cloud-arm64 | xtables | native |\n\
                     | 6.1-cloud-arm64 | xtables | ok |\n| 6.1-cloud-arm64 | nothing | ok |\n\
                     | 6.1-cloud-arm64 | IPv6 | ok |\n";
        let grouped = grouped(Architecture::Arm64, table);
        let rows: Vec<&str> = grouped.lines().skip(4).collect();
        assert_eq!(
            rows,
            ["| all | nothing | ok |", "| 5.10 | xtables | native |", "| 6.1 | xtables | ok |", "| 6.1 | IPv6 | ok |"]
        );
    }
}
