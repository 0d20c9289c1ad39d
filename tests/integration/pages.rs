//! The pages of docs/: where their links lead, and that their commands print what they say. (Those of kubectl's are run by
//! `cargo xtask cluster`.)

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::linkerd::{CHARTS, Flags, commands as linkerd_inits_commands};
use lab::network::{Lab, Namespace, Server};
use lab::page::{Page, matches};
use lab::recording::{FILE, record};
use lab::shell::target;

use crate::show::connections;
use crate::support::{Folder, PROXY_INIT, chart_in, install};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs every command of proxy-init's, one after the other in this namespace, and compares what each prints with what the
/// page says. `…` is any text.
fn each_command_prints_it(page: &str, namespace: &Namespace, at_least: usize) {
    let folder = Folder::new(&format!("page-{page}"));
    let page = Page {
        path: &format!("docs/{page}"),
        is_run: &|command| !command.starts_with("kubectl "),
        at_least,
        // Programs indent by tabs, and the page by spaces.
        is_same: |printed, said| matches(printed.trim_start(), said.trim_start()),
    };
    if let Err(error) = page.check(Path::new(folder.path()), |command| Ok(shell(namespace, command))) {
        panic!("{}: {error}", page.path);
    }
}

/// What a shell command prints that finds the program under test.
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
    each_command_prints_it("rollout.md", &lab.pod, 7);
}

#[test]
fn modes() {
    each_command_prints_it("modes.md", &Namespace::new(), 4);
}

#[test]
fn commands_that_answer_questions() {
    let lab = meshed();
    connections(&lab);
    let _proxy = Server::start(&lab.pod, &[4143, 4140]);
    each_command_prints_it("commands.md", &lab.pod, 5);
}

/// What the pages say of each version of Linkerd, beside what its charts have.
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

/// What GitHub makes of a page's headings, for links to name.
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
    let recorded = record(Path::new(PROXY_INIT.as_str()));
    let shown = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap_or_default();
    if recorded != shown {
        let made = target("recording.svg");
        fs::write(&made, recorded).unwrap();
        panic!("{FILE} is out of date: cp {} {FILE}", made.display());
    }
}
