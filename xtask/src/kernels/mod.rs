//! `cargo xtask kernels`: every mode on Debian's kernels, whole and with modules removed.
//!
//! Each kernel boots under qemu with an initramfs of the static binary, what legacy mode needs, that kernel's netfilter
//! modules, and the program `guest` as init: bin/guest.rs is what happens in there. Downloads are kept in target/.

mod kernel;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::thread;

use lab::architecture::Architecture;
use lab::install;
use lab::scenario::{each, only};
use lab::shell::Result;
use lab::variant::Expected::{Fails, FallsBack};
use lab::variant::{MODES, VARIANTS, Variant};

use crate::build;
use kernel::{Guest, Kernel};

/// Debian's releases with the kernels that they have: 5.10, 6.1, 6.12, and the newest.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];

/// `cargo xtask kernels [--arch amd64|arm64] [--only WORD...]`, on this machine's architecture unless another is named:
/// tries everything, and prints the table of docs/kernels.md; or the kernels and variants whose name has all of these words.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (architecture, rest) = match arguments {
        [flag, name, rest @ ..] if flag == "--arch" => (Architecture::named(name)?, rest),
        rest => (Architecture::here()?, rest),
    };
    let words = only(rest, "usage: cargo xtask kernels [--arch amd64|arm64] [--only WORD...]")?;
    check(architecture, words)
}

/// The table of docs/kernels.md: kernels that did the same have a row together.
fn table(trials: &[Trial<'_>], results: &[Vec<String>]) -> String {
    let kernels: BTreeSet<&str> = trials.iter().map(|trial| trial.kernel.name()).collect();
    let mut rows: Vec<(Vec<String>, Vec<&str>)> = Vec::new();
    for (trial, results) in trials.iter().zip(results) {
        let did = trial.row(results);
        match rows.iter_mut().find(|(other, _)| *other == did) {
            Some((_, of)) => of.push(trial.kernel.name()),
            None => {
                let last = rows.iter().rposition(|(other, _)| other[0] == did[0]);
                rows.insert(last.map_or(rows.len(), |last| last + 1), (did, vec![trial.kernel.name()]));
            }
        }
    }
    let mut text = String::from(
        "| kernels | without | nft | native | legacy | auto | legacy rules, to uid 65534 |\n|---|---|---|---|---|---|---|\n",
    );
    for (did, of) in rows {
        let of = if of.len() == kernels.len() { "all".to_owned() } else { of.join(", ") };
        let _ = writeln!(text, "| {of} | {} |", did.join(" | "));
    }
    let all: Vec<&str> = kernels.into_iter().collect();
    format!("Kernels: {}.\n\n{text}", all.join(", "))
}

/// Boots everything whose name has all of these words, and prints the table of what each kernel did in each mode.
pub(crate) fn check(architecture: Architecture, words: &[impl AsRef<str>]) -> Result<()> {
    let qemu = match architecture {
        Architecture::Amd64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Architecture::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
    };
    install::programs(&[
        qemu,
        ("busybox", "busybox-static"),
        ("depmod", "kmod"),
        ("cpio", "cpio"),
        ("xz", "xz-utils"),
    ])?;
    let guest = Guest {
        architecture,
        proxy_init: build::program("proxy-init", architecture)?,
        guest: build::of_lab("guest", architecture)?,
    };
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
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        return Err(format!("no kernel's name has {}", words.join(" and ")).into());
    }
    println!("Booting {} guests", trials.len());
    let results = try_all(&trials);
    let mut wrong = Vec::new();
    for (trial, results) in trials.iter().zip(&results) {
        if !trial.is_as_expected(results) {
            wrong.push(format!("{}: {}", trial.name(), results.join(" | ")));
        }
    }
    println!("\n{}\n{} passed, {} failed", table(&trials, &results), trials.len() - wrong.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(format!("not as expected:\n{}", wrong.join("\n")).into()) }
}

/// The results of each, in their order. A guest has one processor and half a GiB: as many run at a time as there are
/// processors, up to eight.
fn try_all(trials: &[Trial<'_>]) -> Vec<Vec<String>> {
    let at_a_time = thread::available_parallelism().map_or(1, usize::from).min(8);
    each(at_a_time, trials, |trial| {
        let results = trial.results();
        println!("{} | {}", trial.kernel.name(), trial.row(&results).join(" | "));
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

    /// The cells of the table, but for the kernel: an error that was expected in short, what wasn't in full.
    fn row(&self, results: &[String]) -> Vec<String> {
        let cells = results.iter().zip(self.variant.expected).map(|(result, expected)| match expected {
            Fails(words) if expected.is(result) => format!("error: {words}"),
            FallsBack(mode, words) if expected.is(result) => format!("{mode} ({words})"),
            _ => result.clone(),
        });
        let without = self.variant.without.to_owned();
        [without].into_iter().chain(cells).chain(results.get(MODES.len()).cloned()).collect()
    }
}
