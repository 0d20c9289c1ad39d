//! The library as a program that embeds it uses it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use lab::network::Namespace;
use proxy_init::error::ModeError;
use proxy_init::{
    Config, Error, Install, Mode, ModeChoice, Namespace as Target, OwnerId, Reason, Uninstall, Uninstalled, detect,
    verify,
};

#[expect(dead_code, reason = "its main, which the tests do not call")]
#[path = "../../examples/embed.rs"]
mod embed;

use crate::support::{Folder, PORTS, Run};

/// The network namespace of the calling thread, as the kernel names it.
fn here() -> String {
    let link = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    link.into_os_string().into_string().unwrap()
}

#[test]
fn whatever_happens_in_a_namespace_the_caller_stays_where_it_was() {
    let namespace = Namespace::new();
    let there = namespace.run(here);
    let target = Target::open(namespace.path()).unwrap();
    let home = here();
    assert_ne!(home, there);

    assert_eq!(target.run(here).unwrap(), there);
    assert_eq!(here(), home, "after success");

    let failed = target.run(|| -> Result<(), String> { Err(here()) }).unwrap();
    assert_eq!(failed, Err(there.clone()));
    assert_eq!(here(), home, "after an error");

    let panicked = catch_unwind(AssertUnwindSafe(|| target.run(|| panic!("{}", here()))));
    assert_eq!(panicked.unwrap_err().downcast::<String>().unwrap(), there.into());
    assert_eq!(here(), home, "after a panic");

    // A process that is started inside is inside.
    let output = target.run(|| Command::new("readlink").arg("/proc/self/ns/net").output().unwrap());
    assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap().trim(), namespace.run(here));
}

#[test]
fn a_namespace_outlives_its_name() {
    let namespace = Namespace::new();
    let there = namespace.run(here);
    let target = Target::open(namespace.path()).unwrap();
    drop(namespace);
    assert_eq!(target.run(here).unwrap(), there);
}

#[test]
fn what_is_not_a_network_namespace_is_an_error_at_once() {
    let folder = Folder::new("netns");
    let safe = Namespace::new();
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, name) in [
        (fifo.to_str().unwrap(), "EINVAL"),
        ("/proc/self/stat", "EINVAL"),
        ("/dev/null", "EINVAL"),
        (folder.path(), "EINVAL"),
        ("/proc/self/ns/mnt", "EINVAL"),
        ("/nonexistent", "ENOENT"),
    ] {
        let result = Target::open(Path::new(path)).and_then(|target| target.run(|| panic!("it was entered")));
        let Err(Error::Netns { errno, .. }) = result else {
            panic!("{path}: {result:?}");
        };
        assert!(errno.to_string().starts_with(&format!("{name}: ")), "{path}: {errno}");

        for arguments in ["-p 4143 -o 4140", "uninstall", "verify -p 4143 -o 4140", "detect"] {
            let finished = Run::new(arguments).arguments(["--netns", path]).under(["timeout", "10"]).output(&safe);
            let said = finished.said();
            assert_eq!(finished.code(), Some(1), "{arguments}: {said}");
            assert!(said.contains(path) && said.contains("/var/run/netns"), "{arguments}: {said}");
        }
    }
    assert!(Target::open("").is_err_and(|error| error.to_string().contains("ENOENT")));
}

#[test]
fn where_no_thread_can_be_started_it_says_so() {
    let (here, there) = (Namespace::new(), Namespace::new());
    // The kernel's answer at the limit on processes (clone(2)).
    let line = Run::new(&format!("--iptables-mode nft {PORTS} --netns"))
        .arguments([there.path()])
        .failing("clone,clone3", "EAGAIN")
        .output(&here)
        .last_line();
    assert!(line.contains("EAGAIN") && line.contains("no thread can be started"), "{line}");
    for namespace in [&here, &there] {
        assert_eq!(namespace.sh("nft list ruleset"), "");
    }
}

#[test]
fn a_report_has_every_mode() {
    let namespace = Namespace::new();
    let report = detect(Some(&namespace.path())).unwrap();
    let names: Vec<_> = report.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names, ["nft mode for IPv4", "nft mode for IPv6", "native mode"]);
    assert!(report.features.iter().all(|feature| feature.works.is_ok()), "{report}");
}

/// Without a privilege, each feature is tried and refused.
#[test]
fn a_feature_that_cannot_be_tried_does_not_pass_for_one_that_works() {
    let namespace = Namespace::new();
    let finished = Run::new("detect --output json").nobody(&[]).output(&namespace);
    let report: serde_json::Value = serde_json::from_str(&finished.stdout()).unwrap();
    let features = report["features"].as_array().unwrap();
    assert_eq!(features.len(), 3);
    for feature in features {
        assert_eq!(feature["works"], false);
        assert!(feature["reason"].as_str().unwrap().contains("EPERM"), "{feature}");
    }
}

fn config() -> Config {
    let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
    config.proxy_uid = OwnerId::new(2102);
    config
}

fn install(namespace: &Namespace, choice: ModeChoice) -> Install {
    let mut install = Install::new(config());
    install.mode = choice;
    install.netns = Some(namespace.path());
    install
}

fn uninstall(namespace: &Namespace) -> Uninstalled {
    let mut uninstall = Uninstall::default();
    uninstall.netns = Some(namespace.path());
    uninstall.run().unwrap()
}

#[test]
fn results_are_values() {
    let namespace = Namespace::new();
    let home = here();
    let auto = install(&namespace, ModeChoice::Auto);
    assert!(!verify(&auto).unwrap().is_in_place());

    let installed = auto.run().unwrap();
    assert_eq!(installed.mode, Mode::Nft);
    assert!(matches!(installed.reason, Reason::Supported { legacy_hidden: false }), "{installed:?}");
    let rules = namespace.sh("iptables-nft-save -t nat") + &namespace.sh("ip6tables-nft-save -t nat");
    assert_eq!(installed.rules(), rules.lines().filter(|line| line.starts_with("-A")).count());
    assert!(installed.replaced.is_empty() && installed.warnings.is_empty());
    assert!(verify(&auto).unwrap().is_in_place());
    assert!(matches!(auto.run().unwrap().reason, Reason::Holds));

    let mut native = install(&namespace, ModeChoice::Mode(Mode::Native));
    let refused = native.run().unwrap_err();
    assert!(matches!(refused, Error::InMode(Mode::Native, ModeError::OtherBackend(Mode::Nft))), "{refused:?}");
    native.replace_other_backend = true;
    let mut told = Vec::new();
    let installed = native.run_with(|notice| told.push(format!("{notice:?}"))).unwrap();
    assert_eq!((installed.mode, &installed.replaced[..]), (Mode::Native, &[Mode::Nft][..]));
    assert!(matches!(installed.reason, Reason::Named));
    assert_eq!(told, ["Removed(Nft)"]);

    assert_eq!(uninstall(&namespace).removed, [Mode::Native]);
    assert_eq!(uninstall(&namespace).removed, []);
    assert_eq!(namespace.sh("nft list ruleset"), "");
    assert_eq!(here(), home);
}

/// All that the example does, for three namespaces from one process.
#[test]
fn the_example_adds_checks_and_deletes_in_three_namespaces() {
    let safe = Namespace::new();
    let pods = [Namespace::new(), Namespace::new(), Namespace::new()];
    let paths = || pods.iter().map(Namespace::path);
    let config = embed::config().unwrap();
    // On a thread that is in neither the machine's namespace nor a pod's.
    safe.run(|| {
        let home = here();
        for path in paths() {
            embed::check(&path, &config).unwrap_err();
            embed::add(&path, &config).unwrap();
        }
        for (path, pod) in paths().zip(&pods) {
            embed::check(&path, &config).unwrap();
            for save in ["iptables-nft-save", "ip6tables-nft-save"] {
                let rules = pod.sh(save);
                assert!(rules.contains("--uid-owner 2102") && rules.contains("--dports 4190,4191"), "{rules}");
            }
        }
        pods[1].sh("iptables-nft -t nat -F PROXY_INIT_OUTPUT");
        for (index, path) in paths().enumerate() {
            assert_eq!(embed::check(&path, &config).is_err(), index == 1);
        }
        // A DEL comes twice.
        for path in paths().chain(paths()) {
            embed::delete(&path).unwrap();
        }
        assert_eq!(here(), home);
    });
    for namespace in pods.iter().chain([&safe]) {
        assert_eq!(namespace.sh("nft list ruleset"), "");
    }
}

#[test]
fn that_commands_are_about_to_run_is_told_before_they_do() {
    let namespace = Namespace::new();
    let mut legacy = install(&namespace, ModeChoice::Mode(Mode::Legacy));
    legacy.wait_for_lock = true;
    let mut told = Vec::new();
    let tables = "cat /proc/thread-self/net/ip_tables_names";
    let installed = legacy.run_with(|notice| told.push((format!("{notice:?}"), namespace.sh(tables)))).unwrap();
    assert_eq!(installed.mode, Mode::Legacy);
    assert_eq!(told, [("RunningCommands { waits: true }".to_owned(), String::new())]);
    assert_eq!(namespace.sh(tables), "nat\n");
}
