//! Every command once under valgrind: what goes to the kernel is initialised, and no memory is misused.

use lab::network::Namespace;

use crate::support::{Run, chart, chart_in};

/// valgrind's exit code when it has found something, whatever the program's own would be.
const FOUND: &str = "--error-exitcode=99";

/// Runs it under valgrind, which must find nothing, and checks the program's own exit code.
fn check(namespace: &Namespace, line: &str) {
    // Without a proxy, nothing is well.
    let code = if line == "check" { 3 } else { 0 };
    let finished =
        Run::new(line).of_this_build().under(["valgrind", "--quiet", "--track-origins=no", FOUND]).output(namespace);
    let stderr = finished.stderr();
    assert!(!stderr.contains("uninitialised byte(s)"), "{line}: {stderr}");
    assert_eq!(finished.code(), Some(code), "{line}: {stderr}");
}

/// Installs, installs something else, verifies and shows that, and removes it.
fn check_mode(mode: &str) {
    let namespace = Namespace::new();
    let chart = chart_in(mode);
    let other = format!("{chart} -r 80,443 -g 7 --subnets-to-ignore 10.0.0.0/8,fd00::/8");
    for line in [
        &chart,
        &format!("{other} --timeout-close-wait-secs 99"),
        &format!("verify {other}"),
        "verify",
        "show",
        "check",
        "explain inbound --to 127.0.0.1:80",
        "explain outbound --to 127.0.0.1:80 --uid 7",
        "uninstall",
    ] {
        check(&namespace, line);
    }
}

#[test]
fn nft() {
    check_mode("nft");
}

#[test]
fn native() {
    check_mode("native");
}

#[test]
fn legacy() {
    check_mode("legacy");
}

#[test]
fn plain() {
    check_mode("plain");
}

#[test]
fn auto() {
    check_mode("auto");
}

#[test]
fn what_changes_nothing() {
    let namespace = Namespace::new();
    for mode in ["nft", "native"] {
        check(&namespace, &format!("{} --simulate", chart_in(mode)));
    }
    for line in [
        "detect",
        "detect --output json",
        "show",
        "check",
        "show --output json",
        "explain outbound --to [::1]:80 --output json",
        "--help",
        "--version",
        "completions bash",
    ] {
        check(&namespace, line);
    }
}

#[test]
fn another_namespace() {
    let (here, there) = (Namespace::new(), Namespace::new());
    check(&here, &format!("--iptables-mode nft --netns {} {}", there.path().display(), chart()));
}
