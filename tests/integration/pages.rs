//! The pages of docs/: where their links lead, and that their commands print what they say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::connections::{self, Client};
use lab::linkerd::{CHARTS, Flags, commands as linkerd_inits_commands};
use lab::network::{Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, Reached, Server, connect};
use lab::recording::{FILE, picture, record};
use lab::shell::target;

use crate::show::connections;
use crate::support::{PROXY_INIT, Run, chart_in, install};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs every command of the page with output below it, one after the other, and compares what each prints with what
/// the page says. `…` is any text.
fn each_command_prints_it(page: &str, at_least: usize, run: impl Fn(&str) -> String) {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let mut commands = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("    $ ") else {
            continue;
        };
        let mut command = command.to_owned();
        // A shell reads on after a backslash, after a pipe, and within quotes.
        while command.ends_with(['|', '\\']) || command.matches('\'').count() % 2 == 1 {
            let more = lines.next().unwrap();
            command = format!("{} {}", command.trim_end_matches('\\').trim_end(), more.trim_start());
        }
        let is_output = |line: &&str| line.is_empty() || (line.starts_with("    ") && !line.starts_with("    $ "));
        let said: Vec<&str> = std::iter::from_fn(|| lines.next_if(is_output)).collect();
        let said = said.join("\n");
        let said: Vec<&str> = said.trim_end().lines().map(|line| line.trim()).collect();
        let printed = run(&command);
        // Programs indent by tabs, and the page by spaces.
        let is_same = printed.trim_end().lines().count() == said.len()
            && printed.lines().zip(&said).all(|(printed, said)| matches(printed.trim(), said));
        assert!(is_same, "{page}: {command} prints\n{printed}\nand not\n{}", said.join("\n"));
        commands += 1;
    }
    assert!(commands >= at_least, "{page} has only {commands} such commands");
}

/// Returns true if a line consists of the pieces that an expected one has between its `…`, in their order.
fn matches(printed: &str, expected: &str) -> bool {
    let mut pieces = expected.split('…');
    let mut rest = printed.strip_prefix(pieces.next().unwrap_or_default());
    let mut last = None;
    for piece in pieces {
        rest = rest.and_then(|rest| Some(rest.split_once(piece)?.1));
        last = Some(piece);
    }
    match last {
        // The page's line ends in `…`.
        Some("") => rest.is_some(),
        _ => rest == Some(""),
    }
}

/// Runs a shell command that finds the program under test, and returns its output.
fn shell(namespace: &Namespace, command: &str) -> String {
    let folder = PROXY_INIT.trim_end_matches("proxy-init");
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).env("PATH", format!("{folder}:/usr/sbin:/usr/bin:/sbin:/bin"));
    String::from_utf8(namespace.output(&mut shell).stdout).unwrap()
}

/// A pod with Linkerd's rules in nft mode.
fn meshed() -> Lab {
    let lab = Lab::new();
    install(&lab.pod, &chart_in("nft"));
    lab
}

#[test]
fn rollout() {
    let lab = Lab::new();
    Flags::default().add_with_iptables(&lab.pod, "legacy");
    each_command_prints_it("rollout.md", 7, |command| shell(&lab.pod, command));
}

#[test]
fn modes() {
    let namespace = Namespace::new();
    each_command_prints_it("modes.md", 4, |command| shell(&namespace, command));
}

#[test]
fn commands_that_answer_questions() {
    let lab = meshed();
    connections(&lab);
    let _proxy = Server::start(&lab.pod, &[4143, 4140]);
    each_command_prints_it("commands.md", 5, |command| shell(&lab.pod, command));
}

/// The commands that `kubectl debug` runs in three pods, with the privileges of its profiles: `cargo xtask pods` proves
/// that such a container has these.
#[test]
fn debugging() {
    // Each with the address that the page has.
    let pods =
        [("web", "10.88.7.7", meshed()), ("shadowed", "10.88.7.9", meshed()), ("unmeshed", "10.88.7.8", Lab::new())];
    let mut servers = Vec::new();
    for (name, _, lab) in &pods {
        servers.push(Server::start(&lab.pod, &[4143, 4140, 4191, 8080]));
        servers.push(Server::start(&lab.outside, &[8080, 4567]));
        if *name != "unmeshed" {
            really_connect(lab);
        }
        if *name == "shadowed" {
            lab.pod.sh("iptables-nft -t nat -I PREROUTING -p tcp --dport 8080 -j ACCEPT");
        }
    }
    each_command_prints_it("debugging.md", 10, |line| {
        let (kubectl, command) = line.split_once(" -- ").unwrap();
        let (_, address, lab) = pods.iter().find(|(name, ..)| kubectl.contains(&format!(" {name} "))).unwrap();
        let run = Run::new(&command.trim_start().replace("proxy-init", "").replace(address, &POD[0].to_string()));
        let user = if kubectl.contains("--custom=root.json") { 0 } else { 65534 };
        let capabilities = if kubectl.contains("--profile=netadmin") { "-all,+net_admin,+net_raw" } else { "-all" };
        // The image names no group, so the runtime takes 0.
        let run = run.under(["setpriv", &format!("--reuid={user}"), "--regid=0", "--clear-groups"]);
        let run = run.under(["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}={capabilities}")));
        let printed = run.output(&lab.pod).stdout();
        printed.replace(&POD[0].to_string(), address)
    });
}

/// The connections to and from a meshed pod, each of which has to arrive where its rules say.
fn really_connect(lab: &Lab) {
    for connection in connections::of(&POD, &NEIGHBOUR, true) {
        let from = if connection.client == Client::Neighbour { &lab.outside } else { &lab.pod };
        let owner = connection.client.user().map_or(ROOT, |id| Owner { uid: id, gid: id });
        let reached = match connect(from, owner, connection.to) {
            Reached::Server { port, .. } => Some(port),
            Reached::Refused => None,
        };
        assert_eq!(reached, connection.port, "{connection:?}");
    }
}

/// Each version of Linkerd, as the pages and as its charts have it.
#[test]
fn the_versions_of_linkerd_have_what_their_charts_have() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    // As one line: where a line ends is of no matter.
    let folded = |path: &str| read(path).split_whitespace().collect::<Vec<_>>().join(" ");
    let (readme, modes) = (folded("README.md"), folded("docs/modes.md"));
    let rollout = read("docs/rollout.md");
    let table: Vec<&str> = rollout.lines().filter(|line| line.starts_with("| 2.")).collect();
    let charts = CHARTS.iter().map(|charts| {
        let place = if charts.is_in_proxy_image { ", in the proxy's image" } else { "" };
        let (version, mode) = (charts.version, charts.iptables_mode);
        format!("| {version} | {mode} | {}{place} | {} |", charts.proxy_init, charts.cni_plugin)
    });
    assert_eq!(table, charts.collect::<Vec<_>>());
    let rollout = folded("docs/rollout.md");
    assert!(CHARTS.iter().all(|charts| charts.disables_ipv6), "no page knows of others");
    let first = CHARTS[0].version;
    let nft = CHARTS.iter().find(|charts| charts.iptables_mode == "nft").unwrap().version;
    let root = CHARTS.iter().find(|charts| charts.demands_root_for_close_wait).unwrap().version;
    assert_eq!([false, true].map(|ipv6| linkerd_inits_commands("nft", ipv6).len()), [12, 24]);
    let last = CHARTS.iter().rfind(|charts| !charts.is_in_proxy_image).unwrap().version;
    let next = CHARTS.iter().find(|charts| charts.is_in_proxy_image).unwrap().version;
    for (page, sentence) in [
        (&readme, format!("With Linkerd {first} to {last}, whose charts give linkerd-init an image of its own")),
        (&readme, format!("From Linkerd {next} on, the init program is part of the proxy's image")),
        (&rollout, format!("| up to {last} | [init image](#init-image) |")),
        (&rollout, format!("| {next} and later | [proxy image](#proxy-image) |")),
        (
            &readme,
            "linkerd-init runs a dozen iptables commands instead, one after the other, and a dozen more for IPv6"
                .to_owned(),
        ),
        (&rollout, "All of them have `disableIPv6: true` and pass `--ipv6=false`, so only IPv4".to_owned()),
        (&rollout, format!("since {root} demands `proxyInit.runAsRoot`")),
        (&modes, format!("Linkerd's chart takes `nft`, the default since {nft}, and `legacy`")),
    ] {
        assert!(page.contains(&sentence), "{sentence}");
    }
}

/// Each link to a file leads to one, and to a heading of it where it names one; each page of docs/ is in the index.
#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let mut indexed = BTreeSet::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap_or(root()).join(path),
            };
            let leads = match heading {
                "" => target.exists(),
                heading => fs::read_to_string(&target).is_ok_and(|text| headings(&text).contains(heading)),
            };
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
            if page.ends_with("docs/README.md") {
                indexed.extend(target.canonicalize());
            }
            count += 1;
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count > 100, "only {count} links were found");
    let unknown: Vec<_> = pages()
        .into_iter()
        .filter(|page| page.parent().is_some_and(|folder| folder.ends_with("docs")))
        .filter(|page| !page.ends_with("README.md") && !indexed.contains(&page.canonicalize().unwrap()))
        .collect();
    assert!(unknown.is_empty(), "not in docs/README.md: {unknown:?}");
}

/// The documents: those beside the README, docs/, and the pages of a crate and of the chart.
fn pages() -> Vec<PathBuf> {
    ["", "docs", "crates/start-up", "deploy/helm"]
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// Where the links of a page lead, but for those to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)).filter(|link| !link.contains("://"))
}

/// The anchors that GitHub makes of a page's headings.
fn headings(text: &str) -> BTreeSet<String> {
    let mut made = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let letters = heading.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            letter => letter.is_alphanumeric().then_some(letter),
        });
        made.insert(letters.collect());
    }
    made
}

/// The recording is what the program prints today.
#[test]
fn the_recording_is_of_this_program() {
    let recorded = picture(&record(Path::new(PROXY_INIT.as_str())));
    let shown = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap_or_default();
    if recorded != shown {
        let made = target("recording.svg");
        fs::write(&made, recorded).unwrap();
        panic!("{FILE} is out of date: cp {} {FILE}", made.display());
    }
}
