//! What the README and the other pages show, and where they lead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use xtask::recording::{FILE, record};
use xtask::shell::target;

use crate::support::PROXY_INIT;

/// The recording is what the program prints today.
#[test]
fn the_recording_is_of_this_program() {
    let recorded = record(Path::new(PROXY_INIT));
    let shown = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap_or_default();
    if recorded != shown {
        let made = target("recording.svg");
        fs::write(&made, recorded).unwrap();
        panic!("{FILE} is out of date: cp {} {FILE}", made.display());
    }
}

/// Each link to a file leads to one, and to a heading of it where it names one; each page of docs/ is in the index.
#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut broken = Vec::new();
    let mut indexed = BTreeSet::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap_or(root).join(path),
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

/// A stranger reads it in minutes.
#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let words = text.split_whitespace().count();
    assert!(words <= 900, "{words} words");
}

/// The documents: those beside the README, and docs/.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [root.to_owned(), root.join("docs")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// Where the links of a page lead, but for those to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .filter(|link| !link.contains("://"))
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
