//! `verify`, `show` and `explain` say what they could not see, and never that it is absent.

use lab::network::Namespace;
use serde_json::Value;

use crate::support::{Folder, PROXY_INIT, Run, chart_in, install, saved};

#[test]
fn without_proc_nothing_is_said_about_legacy_tables() {
    let root = Folder::new("no-proc");
    std::fs::copy(PROXY_INIT.as_str(), root.join("proxy-init")).unwrap();
    // The test's binary is linked dynamically.
    let hide = format!("mount -t tmpfs tmpfs {root}; mount -t tmpfs tmpfs /proc", root = root.path());
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let before = saved(&namespace, "legacy");
    let line = Run::new("uninstall").after_mounting(&hide).output(&namespace).last_line();
    assert!(line.contains("cannot list legacy tables in /proc/self/net: ENOENT"), "{line}");
    assert_eq!(saved(&namespace, "legacy"), before);
    let detected = Run::new("detect").after_mounting(&hide).output(&namespace).success();
    let kernel = format!("kernel      {}", namespace.sh("uname -r"));
    assert!(detected.contains(kernel.trim_end()), "{detected}");
    let log = Run::new(&chart_in("nft")).after_mounting(&hide).output(&namespace).success();
    assert_eq!(log.matches("level=warning").count(), 1, "{log}");
    assert!(log.contains("not known: whether legacy tables hold proxy-init's rules too"), "{log}");
}

#[test]
fn a_list_that_cannot_be_opened_is_not_an_empty_one() {
    for error in ["EMFILE", "ENFILE", "ENOMEM"] {
        let namespace = Namespace::new();
        install(&namespace, &chart_in("legacy"));
        let lists = |run: Run| {
            run.under([
                "strace",
                "--output=/dev/null",
                "--trace=?open,openat",
                "--trace-path=/proc/self/net/ip_tables_names",
                "--trace-path=/proc/self/net/ip6_tables_names",
                "--trace-path=/proc/thread-self/net/ip_tables_names",
                "--trace-path=/proc/thread-self/net/ip6_tables_names",
                &format!("--inject=?open,openat:error={error}"),
            ])
        };
        let line = lists(Run::new("uninstall")).output(&namespace).last_line();
        assert!(line.contains(error), "{line}");
        let verified = lists(Run::new(&format!("verify --output json {}", chart_in("nft")))).output(&namespace);
        let report: Value = serde_json::from_str(&verified.stdout()).unwrap();
        assert_eq!(report["not_known"][0], "legacy", "{report}");
    }
}

#[test]
fn a_sysctl_that_cannot_be_opened_is_not_a_missing_one() {
    let text = Run::new("detect")
        .under(["strace", "--output=/dev/null", "--trace=?open,openat"])
        .under(["--trace-path=/proc/sys/user/max_user_namespaces"])
        .under(["--inject=?open,openat:error=EMFILE"])
        .output(&Namespace::new())
        .success();
    assert!(text.contains("users       it is not known whether"), "{text}");
}

#[test]
fn a_sandbox_without_netlink_is_not_a_kernel_without_nf_tables() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    let sandboxed = |line: &str| Run::new(line).failing("socket", "EAFNOSUPPORT").output(&namespace);
    for line in ["uninstall".to_owned(), chart_in("auto"), chart_in("legacy")] {
        let said = sandboxed(&line).last_line();
        assert!(said.contains("EAFNOSUPPORT"), "{line}: {said}");
    }
    // Nor is one with too many files.
    for (error, is_limit) in [("EMFILE", true), ("ENFILE", true), ("EPERM", false)] {
        let said = Run::new(&chart_in("nft")).failing("socket", error).output(&namespace).last_line();
        assert!(said.contains(&format!("failed: {error}")), "{said}");
        assert_eq!(said.contains("raise the limit on open files"), is_limit, "{said}");
        assert_eq!(said.contains("seccomp"), !is_limit, "{said}");
    }
    assert!(!namespace.sh("iptables-legacy-save -t nat").contains("PROXY_INIT"));
    install(&namespace, &format!("verify {}", chart_in("nft")));
}

/// As under systemd's `RestrictAddressFamilies=`: the kernel lists IPv6's tables, so they may hold rules.
#[test]
fn a_sandbox_without_ipv6_is_not_a_kernel_without_its_tables() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    let trace = Run::new("show").calls(&namespace).0;
    let mut sockets = trace.lines().filter(|line| line.contains(" socket("));
    let number = 1 + sockets.position(|line| line.contains("AF_INET6")).expect("it asks");
    let without_ipv6 = format!("error=EAFNOSUPPORT:when={number}+");
    for line in ["show", "verify", "uninstall"] {
        let said = Run::new(line).inject("socket", &without_ipv6).output(&namespace).stderr();
        assert!(said.contains("cannot read the IPv6 legacy nat table: EAFNOSUPPORT"), "{line}: {said}");
    }
    assert_eq!(namespace.sh("ip6tables-legacy-save -t nat").matches("-j PROXY_INIT").count(), 2);
}

/// The first socket that explain opens asks for the route, or for the device.
#[test]
fn explain_says_where_routing_cannot_be_asked() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("nft"));
    for connection in ["outbound --to 127.0.0.1:80", "inbound --to 127.0.0.1:80 --in eth7", "inbound --to 192.0.2.1:80"]
    {
        let said = Run::new(&format!("explain {connection}"))
            .inject("socket", "error=EMFILE:when=1..4")
            .output(&namespace)
            .success();
        assert!(said.contains("not known: the kernel's routing cannot be asked (EMFILE"), "{connection}: {said}");
    }
}

#[test]
fn an_unprivileged_user_is_told_what_is_not_known() {
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    // The kernel's modules and nfnetlink_hook would tell, where this machine has them: the kernel is not to be told
    // from one that is too old. `cargo xtask kernels` tries the ones that tell.
    let nobody = |line: &str| Run::new(line).without_signs_of_legacy().nobody(&["net_admin"]).output(&namespace);
    let log = nobody(&chart_in("nft")).success();
    // To nf_tables, it looks like a new pod.
    assert_eq!(log.matches("level=warning").count(), 0, "{log}");
    assert!(log.contains("only root and group 0 can list legacy tables"), "{log}");
    let text = nobody(&format!("verify {}", chart_in("nft"))).success();
    assert!(text.contains("not known: whether legacy tables hold"), "{text}");
    let report: Value =
        serde_json::from_str(&nobody(&format!("verify --output json {}", chart_in("nft"))).success()).unwrap();
    assert_eq!(report["not_known"], serde_json::json!(["legacy"]));
    assert_eq!(report["in_place"], true);

    // In legacy mode the nat table can be asked for, and no other.
    let namespace = Namespace::new();
    install(&namespace, &chart_in("legacy"));
    namespace.sh("iptables-legacy -t raw -A PREROUTING -p tcp -j DROP");
    let nobody =
        |line: &str| Run::new(line).without_signs_of_legacy().nobody(&["net_admin", "net_raw"]).output(&namespace);
    let text = nobody(&format!("verify {}", chart_in("legacy"))).success();
    assert!(text.contains("not known: what legacy tables other than nat hold"), "{text}");
    let json = nobody(&format!("verify --output json {}", chart_in("legacy"))).success();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["not_known"], serde_json::json!(["legacy"]), "{report}");
}
