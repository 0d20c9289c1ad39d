//! A recording of a terminal, as SVG: what the README shows, from real connections in a lab:
//! which rules redirect a pod, why one connection bypasses the proxy, and that it doesn't without the rule in its way.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::linkerd;
use crate::network::{DISTANT, Lab, Owner, POD, ROOT, Server, connect};

/// Where the README's is, from the checkout's root.
pub const FILE: &str = "docs/recording.svg";

/// The pod's application connects to a database past the proxy, because of a rule that somebody has left; without that
/// rule, to the proxy.
const COMMANDS: [&str; 4] = [
    "proxy-init show",
    "proxy-init explain outbound --to 192.0.2.1:5432",
    "iptables-nft -t nat -D OUTPUT -p tcp --dport 5432 -m comment --comment debugging -j ACCEPT",
    "proxy-init explain outbound --to 192.0.2.1:5432 --output short",
];

/// Makes connections through the rules of this proxy-init and through a stranger's, and records what it says of them
/// on a terminal.
///
/// # Panics
/// When a command fails.
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
    let screens: Vec<_> = COMMANDS
        .iter()
        .map(|line| {
            let mut command = Command::new("script");
            command
                .args(["-q", "-e", "-c", line, "/dev/null"])
                .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()))
                .env("TERM", "xterm")
                .env_remove("NO_COLOR")
                .env_remove("KUBERNETES_SERVICE_HOST");
            let output = lab.pod.output(&mut command);
            assert!(output.status.success(), "{line}: {output:?}");
            (*line, String::from_utf8_lossy(&output.stdout).replace('\r', ""))
        })
        .collect();
    svg(&screens)
}

/// Commands with what they print, in both of GitHub's modes.
fn svg(screens: &[(&str, String)]) -> String {
    const LINE: usize = 17;
    const CHARACTER: f64 = 7.83;
    const STYLE: &str = "\
text{fill:#1f2328;font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}\
.bold{font-weight:700}.dim{fill:#59636e}.green{fill:#1a7f37}.yellow{fill:#9a6700}.red{fill:#cf222e;font-weight:700}\
.back{fill:#f6f8fa}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.dim{fill:#9198a1}.green{fill:#3fb950}.yellow{fill:#d29922}\
.red{fill:#f85149}.back{fill:#151b23}}";
    let mut lines: Vec<Vec<Part<'_>>> = Vec::new();
    for (command, printed) in screens {
        if !lines.is_empty() {
            lines.push(Vec::new());
        }
        lines.push(vec![("", "$ "), ("bold", command)]);
        lines.extend(printed.lines().map(parts));
    }
    let columns = lines.iter().map(|parts| parts.iter().map(|(_, text)| text.chars().count()).sum());
    let columns: usize = columns.max().unwrap_or(0);
    let (width, height) = (columns as f64 * CHARACTER + 32.0, lines.len() * LINE + 28);
    let mut drawn = String::new();
    for (index, parts) in lines.iter().enumerate() {
        let y = 26 + index * LINE;
        let _ = write!(drawn, "<text x=\"16\" y=\"{y}\" xml:space=\"preserve\">");
        for (class, text) in parts {
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
            drawn += &match *class {
                "" => escaped,
                class => format!("<tspan class=\"{class}\">{escaped}</tspan>"),
            };
        }
        drawn += "</text>\n";
    }
    let label = COMMANDS.join(", then ");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" role=\"img\" \
         aria-label=\"What a terminal shows for {label}\">\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{drawn}</svg>\n"
    )
}

/// Text of one colour, with the name of that.
type Part<'a> = (&'static str, &'a str);

/// The parts of a line from a terminal (SGR, ECMA-48).
fn parts(line: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut class = "";
    let mut rest = line;
    while let Some((text, after)) = rest.split_once("\x1b[") {
        parts.push((class, text));
        let (code, after) = after.split_once('m').unwrap_or((after, ""));
        class = match code {
            "0" => "",
            "1" => "bold",
            "2" => "dim",
            "32" => "green",
            "33" => "yellow",
            "1;31" => "red",
            other => panic!("no colour is known for {other:?} in {line:?}"),
        };
        rest = after;
    }
    parts.push((class, rest));
    parts.retain(|(_, text)| !text.is_empty());
    parts
}
