//! A program with file capabilities has more privileges than the user who starts it, whose commands must not get them.

use std::process::Command;
use std::time::{Duration, Instant};

use lab::network::Namespace;

use crate::support::{Finished, Folder, PROXY_INIT, Run, chart, chart_in, saved};

/// The program with file capabilities, started by uid 65534 with none of its own in this environment, and with these
/// arguments. In the folder are this user's own commands.
fn started_by_a_user(namespace: &Namespace, folder: &Folder, environment: &str, arguments: &str) -> Finished {
    let root = folder.path();
    let script = format!(
        "mkdir -p {root}/image; mount -t tmpfs -o mode=755 tmpfs {root}/image; cp {} {root}/image/proxy-init; \
         setcap cap_net_admin,cap_net_raw=p {root}/image/proxy-init; mount -t tmpfs -o mode=1777 tmpfs /run; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --ambient-caps=-all \
         env {environment} {root}/image/proxy-init {arguments}",
        *PROXY_INIT
    );
    Finished(namespace.output(Command::new("unshare").args(["--mount", "sh", "-ec", &script])))
}

/// Commands that leave a trace in the folder.
fn traps(name: &str) -> Folder {
    let folder = Folder::new(name);
    for family in ["iptables", "ip6tables"] {
        for variant in ["", "-legacy"] {
            let trap = format!("grep CapEff /proc/self/status >> {}/trapped; exit 1", folder.path());
            folder.script(&format!("{family}{variant}-restore"), &trap);
        }
    }
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    folder
}

#[test]
fn commands_of_the_user_do_not_get_the_programs_privileges() {
    let traps = traps("privileges");
    let path = traps.path();
    let trapped = traps.join("trapped");
    for mode in ["legacy", "plain"] {
        for (environment, flag) in [
            (format!("PATH={path}:/usr/sbin:/usr/bin"), String::new()),
            (format!("PATH={path}"), String::new()),
            // There is no extension in it.
            (format!("XTABLES_LIBDIR={path}"), String::new()),
            ("PATH=/usr/sbin:/usr/bin".to_owned(), format!("--firewall-bin-path {path}/iptables")),
        ] {
            let namespace = Namespace::new();
            let arguments = format!("{} {flag}", chart_in(mode));
            let finished = started_by_a_user(&namespace, &traps, &environment, &arguments);
            let seen = std::fs::read_to_string(&trapped).unwrap_or_default();
            assert_eq!(seen, "", "{environment} {arguments}");
            finished.success();
            let rules = saved(&namespace, if mode == "plain" { "nft" } else { mode });
            assert_eq!(rules.matches("-j PROXY_INIT").count(), 4, "{environment} {arguments}: {rules}");
        }
    }
    // The traps work, and who has no more privileges than its user may use what it likes.
    let namespace = Namespace::new();
    let line = Run::new(&chart()).commands_of(&traps).output(&namespace).last_line();
    assert!(line.contains("level=error"), "{line}");
    assert!(trapped.exists());
}

#[test]
fn what_a_command_says_is_cut() {
    let namespace = Namespace::new();
    let folder = Folder::new("chatty");
    for family in ["iptables", "ip6tables"] {
        let script = "echo the cause >&2; head -c 20000000 /dev/zero | tr '\\0' x >&2; exit 3";
        folder.script(&format!("{family}-legacy-restore"), script);
    }
    let start = Instant::now();
    let finished = Run::new(&chart()).commands_of(&folder).output(&namespace);
    let said = finished.said();
    assert!(said.contains("the cause") && said.contains("x…"), "{said:.2000}");
    assert!(said.len() < 64 << 10, "{} bytes", said.len());
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}
