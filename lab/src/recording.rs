//! A recording of a terminal, as SVG: what the README shows of `show` and `explain`, from real connections in a lab.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::linkerd;
use crate::network::{DISTANT, Lab, Owner, POD, ROOT, Server, connect};

/// Where the README's is, from the checkout's root.
pub const FILE: &str = "docs/recording.svg";

const COMMANDS: [&str; 2] = ["show", "explain outbound --to 192.0.2.1:4567"];

/// Makes connections through the rules of this proxy-init, and records what it then says of them.
///
/// # Panics
/// When a command fails.
pub fn record(proxy_init: &Path) -> String {
    let lab = Lab::new();
    let run = |arguments: &[&str]| {
        let output = lab.pod.output(Command::new(proxy_init).args(arguments));
        assert!(output.status.success(), "proxy-init {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&[&["--iptables-mode", "nft"], linkerd::CHART_ARGUMENTS.as_slice()].concat());
    let _servers = [
        Server::start(&lab.pod, &[4143, 4140, 4191]),
        Server::start(&lab.outside, &[80, 4567]),
    ];
    let app = Owner { uid: 1000, gid: 1000 };
    let proxy = Owner { uid: 2102, gid: 2102 };
    for (pod, distant) in POD.into_iter().zip(DISTANT) {
        for port in [8080, 8080, 4191] {
            connect(&lab.outside, ROOT, SocketAddr::new(pod, port));
        }
        for (owner, port) in [(app, 80), (app, 80), (app, 4567), (proxy, 80)] {
            connect(&lab.pod, owner, SocketAddr::new(distant, port));
        }
    }
    let screens: Vec<_> = COMMANDS
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (format!("proxy-init {line}"), run(&words))
        })
        .collect();
    svg(&screens)
}

/// Commands with what they print, in both of GitHub's modes.
fn svg(screens: &[(String, String)]) -> String {
    const LINE: usize = 17;
    const CHARACTER: f64 = 7.83;
    const STYLE: &str = "\
text{fill:#1f2328;font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}\
.typed{font-weight:700}.back{fill:#f6f8fa}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.back{fill:#151b23}}";
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (command, printed) in screens {
        if !lines.is_empty() {
            lines.push(("", String::new()));
        }
        lines.push((" class=\"typed\"", format!("$ {command}")));
        lines.extend(printed.lines().map(|line| ("", line.to_owned())));
    }
    let columns = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
    let (width, height) = (columns as f64 * CHARACTER + 32.0, lines.len() * LINE + 28);
    let mut drawn = String::new();
    for (index, (class, line)) in lines.iter().enumerate() {
        let escaped = line.replace('&', "&amp;").replace('<', "&lt;");
        let y = 26 + index * LINE;
        let _ = writeln!(
            drawn,
            "<text{class} x=\"16\" y=\"{y}\" xml:space=\"preserve\">{escaped}</text>"
        );
    }
    let label = COMMANDS.map(|line| format!("proxy-init {line}")).join(", then ");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" role=\"img\" \
         aria-label=\"What a terminal shows for {label}\">\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{drawn}</svg>\n"
    )
}
