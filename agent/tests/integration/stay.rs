//! Installing, and staying installed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;

use crate::node::{CALICO, CERTIFICATE, ENTRY, KUBECONFIG, Node, types, until};

const CONF: &str = r#"{"cniVersion": "0.3.1", "type": "bridge", "bridge": "cni0"}"#;

#[test]
fn it_installs_as_upstreams_installer_does() {
    let node = Node::with_calico();
    node.write("99-bridge.conf", CONF);
    let agent = node.agent(&[]);
    node.until_installed("99-bridge.conflist");
    assert_eq!(node.types("10-calico.conflist").unwrap(), ["calico", "linkerd-cni"]);
    assert_eq!(node.types("99-bridge.conflist").unwrap(), ["bridge", "linkerd-cni"]);
    until("the .conf is gone", || !node.net("99-bridge.conf").exists());
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), fs::read(node.path().join("image/linkerd-cni")).unwrap());
    assert_eq!(fs::metadata(node.bin("linkerd-cni")).unwrap().permissions().mode() & 0o7777, 0o755);
    let kubeconfig = fs::read_to_string(node.net(KUBECONFIG)).unwrap();
    assert!(kubeconfig.contains("\"https://[fd00::1]:443\""), "{kubeconfig}");
    assert!(kubeconfig.contains("\"token-1\""), "{kubeconfig}");
    let authority = STANDARD.encode(CERTIFICATE.trim());
    assert!(kubeconfig.contains(&format!("\"certificate-authority-data\": \"{authority}\"")), "{kubeconfig}");
    assert_eq!(fs::metadata(node.net(KUBECONFIG)).unwrap().permissions().mode() & 0o7777, 0o600);
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    assert!(list.contains(r#""kubeconfig": "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig""#), "{list}");
    let memory = agent.memory();
    assert!(memory < 24 << 10, "{memory} KiB");
    agent.terminate();
}

/// Its token may read every pod.
#[test]
fn a_kubeconfig_that_no_entry_needs_any_more_is_removed() {
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: "));
    assert!(node.net(KUBECONFIG).exists());
    agent.terminate();
    let entry = ENTRY.replace(r#""iptables-mode""#, r#""pod-info": "annotations", "iptables-mode""#);
    let agent = node.agent_with(&[("CNI_NETWORK_CONFIG", &entry)]);
    until("the kubeconfig is gone", || !node.net(KUBECONFIG).exists());
    let list = fs::read_to_string(node.net("10-calico.conflist")).unwrap();
    assert!(list.contains("annotations"), "{list}");
    agent.terminate();
}

#[test]
fn whatever_others_change_is_answered_within_a_second() {
    let node = Node::with_calico();
    let agent = node.installed(&[]);
    let program = fs::read(node.bin("linkerd-cni")).unwrap();
    let is_installed = || fs::read(node.bin("linkerd-cni")).is_ok_and(|now| now == program);
    let mut slowest = Duration::ZERO;
    let mut took = |time: Duration| slowest = slowest.max(time);
    for _ in 0..5 {
        // As Calico's install-cni does, in one step; and as a shell does, in two.
        node.write("10-calico.conflist", CALICO);
        took(until("the entry is back", || node.types("10-calico.conflist").is_some_and(|it| it.len() == 2)));
        fs::write(node.net("10-calico.conflist"), CALICO).unwrap();
        took(until("the entry is back", || node.types("10-calico.conflist").is_some_and(|it| it.len() == 2)));
    }
    node.write("20-other.conflist", &CALICO.replace("calico", "other"));
    took(until("a new file has the entry", || node.types("20-other.conflist").is_some_and(|it| it.len() == 2)));
    fs::remove_file(node.bin("linkerd-cni")).unwrap();
    took(until("the program is back", is_installed));
    fs::write(node.bin("linkerd-cni"), "something else").unwrap();
    took(until("the program is ours", is_installed));
    fs::set_permissions(node.bin("linkerd-cni"), fs::Permissions::from_mode(0o600)).unwrap();
    took(until("the program can be executed", || {
        fs::metadata(node.bin("linkerd-cni")).is_ok_and(|file| file.permissions().mode() & 0o777 == 0o755)
    }));
    fs::remove_file(node.net(KUBECONFIG)).unwrap();
    took(until("the kubeconfig is back", || node.net(KUBECONFIG).exists()));
    fs::set_permissions(node.net(KUBECONFIG), fs::Permissions::from_mode(0o644)).unwrap();
    took(until("nobody else can read it", || {
        fs::metadata(node.net(KUBECONFIG)).is_ok_and(|file| file.permissions().mode() & 0o777 == 0o600)
    }));
    node.rotate("token-2");
    took(until("the new token is there", || {
        fs::read_to_string(node.net(KUBECONFIG)).is_ok_and(|text| text.contains("\"token-2\""))
    }));
    println!("the slowest answer took {slowest:?}");
    agent.terminate();
}

#[test]
fn what_is_no_configuration_is_skipped_and_taken_once_it_is_whole() {
    let node = Node::new();
    let (half, rest) = CALICO.split_at(40);
    fs::write(node.net("05-half.conflist"), half).unwrap();
    fs::write(node.net("06-empty.conflist"), "").unwrap();
    fs::write(node.net("07-none.conf"), "{}").unwrap();
    fs::write(node.net("08-bytes.conf"), [0xff, 0xfe]).unwrap();
    nix::unistd::mkfifo(&node.net("09-fifo.conf"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.write("10-calico.conflist", CALICO);
    let agent = node.installed(&[]);
    assert_eq!(fs::read_to_string(node.net("05-half.conflist")).unwrap(), half);
    until("it says why", || agent.says("05-half.conflist is left as it is"));
    // In one step: between two, it would be empty, which is another reason.
    node.write("05-half.conflist", &format!("{half}{rest}"));
    node.until_installed("05-half.conflist");
    let said = agent.terminate();
    for name in ["05-half.conflist", "06-empty.conflist", "07-none.conf", "08-bytes.conf", "09-fifo.conf"] {
        let lines = said
            .lines()
            .filter(|line| line.contains(name) && line.contains("WARN") && line.contains("is left as it is"));
        assert_eq!(lines.count(), 1, "{name}: {said}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_holds_up_no_other() {
    let node = Node::new();
    // A device on a mount that has none: not even root may open it.
    let mounts = "mount -t tmpfs -o nodev tmpfs $NET; mknod $NET/20-device.conflist c 1 3; \
                  mknod $NET/ZZZ-linkerd-cni-kubeconfig c 1 3; echo '{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"calico\"}]}' > $NET/10-calico.conflist";
    let agent = node.agent_in_mounts(mounts, &[]);
    until("the list beside has the entry", || {
        fs::read_to_string(agent.net(&node, "10-calico.conflist"))
            .is_ok_and(|text| types(&text).is_some_and(|types| types == ["calico", "linkerd-cni"]))
    });
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    let said = agent.terminate();
    let line = said.lines().find(|line| line.contains("20-device.conflist")).unwrap();
    assert!(line.contains("is left as it is: it cannot be opened: Permission denied"), "{said}");
}

/// Runtimes take the first configuration by name. containerd starts no pod where it can't use that one.
#[test]
fn ready_is_said_only_if_what_runtimes_take_first_has_the_plugin() {
    type Put = fn(&Node);
    let first: [(&str, Put); 7] = [
        (".a.conflist", |node| {
            // Runtimes follow it.
            let other = node.path().join("other.conflist");
            fs::write(&other, CALICO).unwrap();
            symlink(other, node.net(".a.conflist")).unwrap();
        }),
        ("05-half.conflist", |node| node.write("05-half.conflist", "{")),
        ("05-none.json", |node| node.write("05-none.json", "{}")),
        ("05-long.conf", |node| {
            node.write("05-long.conf", &format!("{CONF}{}", " ".repeat(1 << 20)));
        }),
        ("05-fifo.conflist", |node| {
            nix::unistd::mkfifo(&node.net("05-fifo.conflist"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("05-nameless.conflist", |node| {
            node.write("05-nameless.conflist", r#"{"cniVersion": "1.0.0", "plugins": [{"type": "calico"}]}"#);
        }),
        ("05-old.conflist", |node| {
            // For a runtime, it is fine; the plugin would fail.
            node.write("05-old.conflist", r#"{"name": "n", "plugins": [{"type": "calico"}]}"#);
        }),
    ];
    for (name, put) in first {
        let node = Node::with_calico();
        put(&node);
        let agent = node.installed(&[]);
        until("it says what comes first", || agent.says(&format!("{name} comes first by name")));
        sleep(Duration::from_millis(500));
        assert!(!agent.says("ready: "), "{name}");
        fs::remove_file(node.net(name)).unwrap();
        until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
        agent.terminate();
    }
    // A later file is nobody's, and runtimes pass over folders.
    let node = Node::with_calico();
    node.write("20-half.conflist", "{");
    fs::create_dir(node.net("05-folder.conflist")).unwrap();
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    assert!(!agent.terminate().contains("05-folder"));
}

#[test]
fn a_list_that_cannot_be_written_holds_up_no_other_and_does_not_count() {
    let node = Node::new();
    node.write("20-other.conflist", CALICO);
    // In the way of the file that takes the list's place.
    let in_the_way = node.net(".20-other.conflist.linkerd-cni-unfinished");
    fs::create_dir(&in_the_way).unwrap();
    let agent = node.agent(&[]);
    let failure = "20-other.conflist cannot be changed";
    until("it says what is wrong", || agent.says(failure));
    sleep(Duration::from_millis(500));
    assert!(!agent.says("ready: "));
    node.write("10-calico.conflist", CALICO);
    node.until_installed("10-calico.conflist");
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    fs::remove_dir(in_the_way).unwrap();
    node.until_installed("20-other.conflist");
    until("the failure is over", || agent.says(&format!("no longer: {}", node.net("20-other.conflist").display())));
    let said = agent.terminate();
    assert_eq!(said.matches(failure).count(), 2, "{said}");
}

/// A failure isn't another program's, and what the agent itself leaves in the folder meanwhile doesn't wake it.
#[test]
fn what_cannot_be_written_is_named_and_tried_again_at_growing_pauses() {
    let node = Node::new();
    let calls = node.path().join("calls");
    let list = "{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"calico\"}]}";
    let mounts = format!(
        "mount -t tmpfs tmpfs $NET; echo '{list}' | tee $NET/10-calico.conflist > $NET/20-immutable.conflist; \
         chattr +i $NET/20-immutable.conflist; \
         set -- strace -D -f -qq -e trace=renameat,renameat2 -o {} \"$@\"",
        calls.display()
    );
    let agent = node.agent_in_mounts(&mounts, &[]);
    until("it says what is wrong", || agent.says("20-immutable.conflist cannot be changed"));
    sleep(Duration::from_secs(6));
    let is_try = |line: &&str| line.contains("20-immutable.conflist") && line.contains("EPERM");
    let tries = fs::read_to_string(calls).unwrap().lines().filter(is_try).count();
    assert!((4..=8).contains(&tries), "{tries} tries");
    let text = fs::read_to_string(agent.net(&node, "10-calico.conflist")).unwrap();
    assert_eq!(types(&text).unwrap(), ["calico", "linkerd-cni"]);
    assert!(agent.says("ready: the plugin is in 1 network configurations"));
    let said = agent.terminate();
    assert!(!said.contains("again and again"), "{said}");
    assert_eq!(said.matches("cannot be changed: Operation not permitted").count(), 1, "{said}");
}

#[test]
fn a_full_disk_is_named_and_waited_for() {
    let node = Node::new();
    let mounts = "mount -t tmpfs -o size=64k tmpfs $NET; echo '{\"name\": \"n\", \"cniVersion\": \"1.0.0\", \"plugins\": [{\"type\": \"calico\"}]}' > $NET/10-calico.conflist; \
                  dd if=/dev/zero of=$NET/full bs=4k status=none || true";
    let agent = node.agent_in_mounts(mounts, &[]);
    until("it says what is wrong", || agent.says("No space left on device"));
    sleep(Duration::from_secs(2));
    fs::remove_file(agent.net(&node, "full")).unwrap();
    until("the entry is in the list", || {
        fs::read_to_string(agent.net(&node, "10-calico.conflist"))
            .is_ok_and(|text| types(&text).is_some_and(|types| types.len() == 2))
    });
    until("it is ready", || agent.says("ready: the plugin is in 1 network configurations"));
    let said = agent.terminate();
    assert!(!said.contains("again and again"), "{said}");
}

#[test]
fn a_list_may_have_the_longest_name() {
    let node = Node::new();
    let name = format!("10-{}.conflist", "x".repeat(255 - 3 - 9));
    node.write(&name, CALICO);
    let before = node.tree();
    let agent = node.agent(&["--on-exit", "remove"]);
    node.until_installed(&name);
    until("it is ready", || agent.says("ready: "));
    agent.terminate();
    assert_eq!(node.tree(), before);
}

/// A node's programs share the kernel's limits, and some of them take all.
#[test]
fn where_the_kernel_does_not_tell_of_changes_it_looks_itself() {
    // The C libraries have words of their own for errors.
    for (call, error, number) in
        [("inotify_init1", "EMFILE", "(os error 24)"), ("inotify_add_watch", "ENOSPC", "(os error 28)")]
    {
        let node = Node::with_calico();
        let agent = node.agent_failing(call, error);
        node.until_installed("10-calico.conflist");
        node.write("10-calico.conflist", CALICO);
        node.until_installed("10-calico.conflist");
        let said = agent.terminate();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("every second instead")).collect();
        assert!(lines.len() == 1 && lines[0].contains(number), "{call}: {said}");
    }
}

#[test]
fn a_node_without_a_network_yet_is_waited_for() {
    let node = Node::new();
    let agent = node.agent(&[]);
    until("the program is installed", || node.bin("linkerd-cni").exists());
    node.write("10-calico.conflist", CALICO);
    node.until_installed("10-calico.conflist");
    // Even the folder may go and come back.
    // The agent writes to it until it is gone.
    until("the folder is gone", || fs::remove_dir_all(node.net("")).is_ok());
    sleep(Duration::from_millis(300));
    fs::create_dir_all(node.net("")).unwrap();
    node.write("10-calico.conflist", CALICO);
    node.until_installed("10-calico.conflist");
    until("the kubeconfig is back", || node.net(KUBECONFIG).exists());
    agent.terminate();
}

#[test]
fn a_war_of_rewrites_ends_with_an_error_that_says_how_to_end_it() {
    let node = Node::new();
    let cilium = CALICO.replace("calico", "cilium-cni");
    node.write("05-cilium.conflist", &cilium);
    let agent = node.agent(&[]);
    let rewrites = at_war(
        || node.types("05-cilium.conflist").is_some_and(|types| types.len() == 2),
        || node.write("05-cilium.conflist", &cilium),
        || {
            until("the agent gives up", || agent.says("again and again"));
            // And it stays so.
            sleep(Duration::from_secs(1));
        },
    );
    assert!((5..=7).contains(&rewrites), "{rewrites}");
    let said = agent.terminate();
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("again and again")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].contains("05-cilium.conflist") && errors[0].contains("cni.exclusive=false"), "{said}");
}

/// Runs `work` while another program takes back at once whatever the agent writes; how often it did.
fn at_war(is_agents: impl Fn() -> bool + Sync, take_back: impl Fn() + Sync, work: impl FnOnce()) -> usize {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut times = 0;
            while !over.load(Ordering::Relaxed) {
                if is_agents() {
                    take_back();
                    times += 1;
                }
                sleep(Duration::from_millis(1));
            }
            times
        });
        work();
        over.store(true, Ordering::Relaxed);
        other.join().unwrap()
    })
}

#[test]
fn after_a_war_of_rewrites_the_entry_is_back_within_seconds() {
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    let is_chained = || node.types("10-calico.conflist").is_some_and(|types| types.len() == 2);
    at_war(
        is_chained,
        || node.write("10-calico.conflist", CALICO),
        || {
            until("the agent gives up", || agent.says("again and again"));
            sleep(Duration::from_secs(5));
        },
    );
    let took = until("the entry is back", is_chained);
    assert!(took < Duration::from_secs(10), "{took:?}");
    until("it is over", || agent.says("no longer: ") && agent.says("ready: "));
    let said = agent.terminate();
    // It is one war, although a rewrite was let through now and then.
    let lines = said
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("again and again") && !line.contains("no longer"));
    assert_eq!(lines.count(), 1, "{said}");
}

#[test]
fn a_war_over_the_program_is_fought_no_longer_than_one_over_a_list() {
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    let program = fs::read(node.path().join("image/linkerd-cni")).unwrap();
    let other = node.path().join("other-program");
    let rewrites = at_war(
        || fs::read(node.bin("linkerd-cni")).is_ok_and(|now| now == program),
        || {
            fs::write(&other, "#!/bin/sh\nexit 0\n").unwrap();
            fs::rename(&other, node.bin("linkerd-cni")).unwrap();
        },
        || {
            until("the agent gives up", || agent.says("linkerd-cni is rewritten again and again"));
            sleep(Duration::from_secs(3));
        },
    );
    assert!((5..=8).contains(&rewrites), "{rewrites}");
    // The lists are kept meanwhile: there is a program.
    assert_eq!(node.types("10-calico.conflist").unwrap(), ["calico", "linkerd-cni"]);
    agent.terminate();
}

#[test]
fn idle_it_takes_no_processor_time() {
    let node = Node::with_calico();
    let agent = node.agent(&[]);
    until("it is ready", || agent.says("ready: "));
    sleep(Duration::from_secs(1));
    let before = agent.processor_time();
    // A runtime reads the files, and that is no change.
    for _ in 0..1000 {
        fs::read(node.net("10-calico.conflist")).unwrap();
        fs::read(node.bin("linkerd-cni")).unwrap();
    }
    sleep(Duration::from_secs(2));
    let used = agent.processor_time() - before;
    assert!(used <= Duration::from_millis(10), "{used:?}");
    agent.terminate();
}

#[test]
fn links_are_not_followed_out_of_the_folders() {
    let node = Node::new();
    let outside = node.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for name in ["list", "kubeconfig", "program", "unfinished", "lock"] {
        fs::write(outside.join(name), CALICO).unwrap();
    }
    symlink(outside.join("list"), node.net("05-link.conflist")).unwrap();
    symlink(outside.join("kubeconfig"), node.net(KUBECONFIG)).unwrap();
    symlink(outside.join("program"), node.bin("linkerd-cni")).unwrap();
    symlink(outside.join("unfinished"), node.net(".10-calico.conflist.linkerd-cni-unfinished")).unwrap();
    symlink(outside.join("unfinished"), node.bin(".linkerd-cni.linkerd-cni-unfinished")).unwrap();
    node.write("10-calico.conflist", CALICO);
    let agent = node.installed(&["--on-exit", "remove"]);
    assert!(!fs::symlink_metadata(node.net(KUBECONFIG)).unwrap().is_symlink());
    assert!(!fs::symlink_metadata(node.bin("linkerd-cni")).unwrap().is_symlink());
    let said = agent.terminate();
    assert!(said.contains("05-link.conflist") && said.contains("a symbolic link"), "{said}");
    for file in outside.read_dir().unwrap() {
        assert_eq!(fs::read_to_string(file.unwrap().path()).unwrap(), CALICO);
    }
    // A link in the place of the file by which agents share the folder is an error, and nothing is written through it.
    symlink(outside.join("lock"), node.net(".linkerd-cni-agent")).unwrap();
    let agent = node.agent(&[]);
    until("it says what is wrong", || agent.says(".linkerd-cni-agent cannot be locked"));
    agent.terminate();
    assert_eq!(fs::read_to_string(outside.join("lock")).unwrap(), CALICO);
}

/// As many updates as LINKERD_CNI_KILLS says, or 40.
#[test]
fn killed_at_any_moment_it_leaves_whole_files_and_the_next_one_finishes() {
    let kills = std::env::var("LINKERD_CNI_KILLS").map_or(40, |number| number.parse().unwrap());
    let node = Node::new();
    let mut random = lab::network::seed();
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    for round in 0..kills {
        node.image(&format!("version {round}"));
        if below(2) == 0 {
            node.write("10-calico.conflist", CALICO);
        }
        if below(4) == 0 {
            node.write("99-bridge.conf", CONF);
        }
        let agent = node.agent(&["--on-exit", if below(2) == 0 { "remove" } else { "keep" }]);
        sleep(Duration::from_micros(below(30_000)));
        if below(3) == 0 {
            agent.signal(Signal::SIGTERM);
            sleep(Duration::from_micros(below(5_000)));
        }
        drop(agent);
        let mut named = false;
        for file in node.net("").read_dir().unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".conflist") {
                let text = fs::read_to_string(&path).unwrap();
                let types = types(&text).unwrap_or_else(|| panic!("round {round}: {name} is {text:?}"));
                named |= types.iter().any(|kind| kind == "linkerd-cni");
            }
        }
        if named {
            let program = fs::read_to_string(node.bin("linkerd-cni")).unwrap();
            assert!(program.ends_with("# end\n"), "round {round}: half a program");
            assert!(fs::read_to_string(node.net(KUBECONFIG)).unwrap().ends_with("}\n"));
        }
    }
    node.write("10-calico.conflist", CALICO);
    let agent = node.installed(&["--on-exit", "remove"]);
    until("nothing is unfinished", || {
        let tree = node.tree();
        tree.iter().all(|(name, _)| !name.contains("unfinished"))
            && tree.iter().any(|(name, bytes)| name.ends_with("bin/linkerd-cni") && bytes.ends_with(b"# end\n"))
    });
    agent.terminate();
    let left: Vec<String> = node.tree().into_iter().map(|(name, _)| name).collect();
    assert!(
        left.iter().all(|name| name.ends_with("10-calico.conflist") || name.ends_with("99-bridge.conf")),
        "{left:?}"
    );
}
