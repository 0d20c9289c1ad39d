//! The demo: a pod's application connects to a database past the proxy, because of a rule that somebody has left, and
//! proxy-init says so, from real connections in a lab. `cargo xtask demo` shows it, and the README as a picture.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anstyle_svg::{Term, WIN10_CONSOLE};

use crate::linkerd;
use crate::network::{DISTANT, Lab, Owner, POD, ROOT, Server, connect};

/// Where the README's picture is, from the checkout's root.
pub const FILE: &str = "docs/recording.svg";

/// Shows the rules that redirect a pod, the rule by which one connection bypasses the proxy, and that connection
/// without it.
const COMMANDS: [&str; 4] = [
    "proxy-init show",
    "proxy-init explain outbound --to 192.0.2.1:5432",
    "iptables-nft -t nat -D OUTPUT -p tcp --dport 5432 -m comment --comment debugging -j ACCEPT",
    "proxy-init explain outbound --to 192.0.2.1:5432 --output short",
];

/// Makes connections through the rules of this proxy-init and through a stranger's, and returns what a terminal shows of
/// the commands, with its escape codes.
pub fn record(proxy_init: &Path) -> String {
    let lab = Lab::new();
    let flags = ["--iptables-mode", "nft", "--ipv6=false"];
    let mut install = Command::new(proxy_init);
    let installed = lab.pod.output(install.args(flags).args(linkerd::CHART_ARGUMENTS));
    assert!(installed.status.success(), "{installed:?}");
    lab.pod.sh(&COMMANDS[2].replace("-D OUTPUT", "-I OUTPUT"));
    let _servers = [Server::start(&lab.pod, &[4143, 4140, 4191]), Server::start(&lab.outside, &[80, 4567, 5432])];
    let app = Owner { uid: 1000, gid: 1000 };
    let proxy = Owner { uid: 2102, gid: 2102 };
    let ([pod, _], [distant, _]) = (POD, DISTANT);
    for port in [8080, 8080, 4191] {
        connect(&lab.outside, ROOT, SocketAddr::new(pod, port));
    }
    for (owner, port) in [(app, 80), (app, 80), (app, 5432), (proxy, 80), (proxy, 8080)] {
        connect(&lab.pod, owner, SocketAddr::new(distant, port));
    }
    let folder = proxy_init.parent().unwrap_or(Path::new("."));
    let mut screens = Vec::new();
    for line in COMMANDS {
        let mut command = Command::new("script");
        command
            .args(["-q", "-e", "-c", line, "/dev/null"])
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()))
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env_remove("KUBERNETES_SERVICE_HOST");
        let output = lab.pod.output(&mut command);
        assert!(output.status.success(), "{line}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        screens.push(format!("$ \x1b[1m{line}\x1b[0m\n{printed}"));
    }
    screens.join("\n")
}

/// A picture of what a terminal shows.
pub fn picture(terminal: &str) -> String {
    Term::new().palette(WIN10_CONSOLE).render_svg(terminal)
}
