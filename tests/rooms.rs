//! The order of the rooms: which folder of a crate imports from which, and that no two files of a crate import each
//! other, directly or in a loop. What a crate imports, the compiler sees to.
//!
//! docs/architecture.md has the order; this reads it there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A module's path in its crate.
type Module = Vec<String>;

/// A crate's modules, each with its text.
#[derive(Debug, Default)]
struct Crate {
    name: String,
    modules: BTreeMap<Module, String>,
}

/// Which modules each module imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

impl Crate {
    /// All files below a folder.
    fn read(name: &str, src: &Path) -> Self {
        let mut made = Self { name: name.replace('-', "_"), modules: BTreeMap::new() };
        made.read_folder(src, &[], src.join("lib.rs").exists());
        made
    }

    fn read_folder(&mut self, folder: &Path, module: &[String], has_library: bool) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let mut of = module.to_vec();
            if path.is_dir() {
                of.push(name);
                self.read_folder(&path, &of, has_library);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_root = matches!(name.as_str(), "lib" | "mod") || (name == "main" && !has_library);
                if !is_root {
                    of.push(name);
                }
                self.modules.insert(of, fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn imports(&self) -> Imports {
        let modules = self.modules.iter();
        modules
            .map(|(module, text)| {
                let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{module:?}: {error}"));
                let mut found = Paths { within: self, module: module.clone(), imports: BTreeSet::new() };
                found.visit_file(&file);
                found.imports.remove(module);
                (module.clone(), found.imports)
            })
            .collect()
    }
}

/// Finds the paths in a file, but not in its tests.
struct Paths<'a> {
    within: &'a Crate,
    /// The module in which it is looked, which may be one within a file.
    module: Module,
    imports: BTreeSet<Module>,
}

impl Paths<'_> {
    /// Notes the module that a path leads to, if it leads into this crate.
    fn note(&mut self, path: &[String]) {
        let (Some(first), rest) = (path.first(), path.get(1..).unwrap_or_default()) else {
            return;
        };
        let mut from = self.module.clone();
        let mut whole: Module = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from,
            "super" => {
                from.pop();
                from
            }
            name if *name == self.within.name => Vec::new(),
            // A module of this one.
            name => {
                from.push(name.to_owned());
                if !self.within.modules.contains_key(&from) {
                    return;
                }
                from
            }
        };
        for name in rest {
            match name.as_str() {
                "super" => drop(whole.pop()),
                "self" => (),
                name => whole.push(name.to_owned()),
            }
        }
        // What follows the module's name is something in it.
        while !self.within.modules.contains_key(&whole) {
            if whole.pop().is_none() {
                return;
            }
        }
        self.imports.insert(whole);
    }

    fn note_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| -> Vec<String> { before.iter().cloned().chain([name.to_string()]).collect() };
        match tree {
            syn::UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.note(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(before, tree)),
        }
    }
}

/// Whether these are the attributes of something that is compiled for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |attribute: &&syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attributes.iter().any(|attribute| is_test(&attribute))
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.note_tree(&[], &item.tree);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names);
        }
        visit::visit_path(self, path);
    }

    /// What a macro is given need not be Rust, but a path in it looks like one.
    fn visit_macro(&mut self, given: &'ast syn::Macro) {
        let text = given.tokens.to_string();
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let mut path = vec![word.to_owned()];
            while words.next_if_eq(&"::").is_some() {
                path.extend(words.next().map(ToOwned::to_owned));
            }
            if path.len() > 1 {
                self.note(&path);
            }
        }
        visit::visit_macro(self, given);
    }
}

/// The shortest way from a module back to itself, for each module that is on one; a loop is named once.
fn loops(imports: &Imports) -> Vec<Vec<Module>> {
    let mut found: Vec<Vec<Module>> = Vec::new();
    for start in imports.keys() {
        if found.iter().flatten().any(|module| module == start) {
            continue;
        }
        let mut came_from: BTreeMap<&Module, &Module> = BTreeMap::new();
        let mut reached = vec![start];
        let mut next = 0;
        while let Some(&module) = reached.get(next) {
            next += 1;
            for to in imports.get(module).into_iter().flatten() {
                if !came_from.contains_key(to) {
                    came_from.insert(to, module);
                    reached.push(to);
                }
            }
        }
        let Some(mut at) = came_from.get(start).copied() else {
            continue;
        };
        let mut way = vec![start.clone()];
        while at != start {
            way.push(at.clone());
            at = came_from[at];
        }
        way.push(start.clone());
        way.reverse();
        found.push(way);
    }
    found
}

/// Imports that run against the order of rooms, or from a room that has no place in it.
fn upwards(imports: &Imports, order: &[&str]) -> Vec<String> {
    let place = |module: &Module| {
        let room = module.first()?;
        order.iter().position(|name| name == room)
    };
    let mut found = Vec::new();
    for (module, imported) in imports {
        // The crate's root is the library's front page, and names all rooms.
        if module.is_empty() {
            continue;
        }
        let Some(own) = place(module) else {
            found.push(format!("{} has no place in the order of rooms", name(module)));
            continue;
        };
        let others = imported.iter().filter(|to| place(to).is_some_and(|to| to < own));
        found.extend(others.map(|to| format!("{} imports from {}", name(module), name(to))));
    }
    found
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
}

/// The order in docs/architecture.md, whose line has the rooms' names with arrows between.
fn order(page: &str) -> Vec<&str> {
    let line = page.lines().find(|line| line.starts_with("    main → "));
    let line = line.expect("docs/architecture.md has the order of rooms, from main on");
    line.split('→').map(str::trim).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every crate of the project: each folder with a Cargo.toml and a src beside it.
fn crates() -> Vec<(PathBuf, Crate)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        if let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml"))
            && folder.join("src").exists()
        {
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
            let name = name.expect("a package has a name").trim_matches('"');
            found.push((folder.clone(), Crate::read(name, &folder.join("src"))));
        }
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        let folders_in = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        folders.extend(folders_in.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            !matches!(name, "target" | "src" | "tests") && !name.starts_with('.')
        }));
    }
    found
}

#[test]
fn no_files_import_each_other() {
    let crates = crates();
    assert!(crates.len() > 3, "{}", crates.len());
    for (folder, one) in crates {
        let found = loops(&one.imports());
        let named: Vec<String> = found.iter().map(|way| way.iter().map(name).collect::<Vec<_>>().join(" → ")).collect();
        assert_eq!(named, [""; 0], "in {}", folder.display());
    }
}

#[test]
fn rooms_import_from_rooms_to_their_right() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for (name, folder) in
        [("proxy-init", "src"), ("netfilter", "crates/netfilter/src"), ("packets", "crates/packets/src")]
    {
        let imports = Crate::read(name, &root().join(folder)).imports();
        assert!(imports.len() > 10, "{folder}");
        assert_eq!(upwards(&imports, &order(&page)), [""; 0], "{folder}");
    }
}

/// A crate of these modules, each with its text.
fn made_of(modules: &[(&str, &str)]) -> Imports {
    let modules = modules.iter().map(|&(path, text)| {
        let path = path.split("::").filter(|name| !name.is_empty());
        (path.map(ToOwned::to_owned).collect(), text.to_owned())
    });
    Crate { name: "made".to_owned(), modules: modules.collect() }.imports()
}

fn loops_in(modules: &[(&str, &str)]) -> Vec<String> {
    let found = loops(&made_of(modules));
    let named = found.iter().map(|way| way.iter().map(name).collect::<Vec<_>>().join(" → "));
    named.collect()
}

#[test]
fn a_loop_is_found_however_it_is_written() {
    let back = ("b", "use crate::a::Thing;");
    for text in [
        "use crate::b::{self, Other};",
        "use made::b::Other;",
        "use super::b;",
        "pub use crate::b::Other as Another;",
        "fn f() { crate::b::f() }",
        "fn f(other: &super::b::Other) {}",
        "fn f() { println!(\"{}\", crate::b::NUMBER) }",
        "mod inner { use super::super::b::Other; }",
        "impl crate::b::Other for Thing {}",
    ] {
        assert_eq!(loops_in(&[("a", text), back]), ["a → b → a"], "{text}");
    }
    // By a third file, and between a module and one of its own.
    let third = [("a", "use crate::b::c::f;"), ("b::c", "use super::d;"), ("b::d", "use crate::a;"), ("b", "")];
    assert_eq!(loops_in(&third), ["a → b::c → b::d → a"]);
    assert_eq!(loops_in(&[("a", "mod b; use b::f;"), ("a::b", "use super::g;")]), ["a → a::b → a"]);
}

#[test]
fn what_is_no_loop_is_not_taken_for_one() {
    let back = ("b", "use crate::a::Thing;");
    for text in [
        "mod b;",
        "use other::b::Thing;",
        "#[cfg(test)] mod tests { use crate::b::Other; }",
        "#[cfg(test)] impl Thing { fn f() { crate::b::f() } }",
        "mod inner { use super::b::Other; }",
        "use self::b::Thing; mod b { pub struct Thing; }",
        "// use crate::b;\nconst TEXT: &str = \"crate::b::f\";",
    ] {
        assert_eq!(loops_in(&[("a", text), back]), [""; 0], "{text}");
    }
}

#[test]
fn an_import_against_the_order_is_found() {
    let order = ["left", "middle", "right"];
    let modules = [
        ("", "pub use left::Thing;"),
        ("left", "use crate::right::Thing;"),
        ("middle::one", "use crate::left; use super::two;"),
        ("middle::two", "use crate::right::Thing;"),
        ("right", ""),
        ("beside", ""),
    ];
    assert_eq!(
        upwards(&made_of(&modules), &order),
        ["beside has no place in the order of rooms", "middle::one imports from left"]
    );
}
