//! Modules of a crate form no circles: of two neighbours at most one uses the other, also through others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree};

use crate::report;
use crate::tree::{Source, module_dir, only_in_tests, sources};

/// Circles that are left, as `crate: module, module, ...`; this list only shrinks.
const CIRCLES: &[&str] = &[];

/// Path of a module inside its crate; the crate's root is empty.
type Module = Vec<String>;

#[test]
fn modules_form_no_circles() {
    let all = sources(&["crates"]);
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in all
        .iter()
        .filter(|s| !s.is_test && s.path.contains("/src/"))
    {
        crates.entry(source.krate()).or_default().push(source);
    }
    let mut found = Vec::new();
    for (name, files) in crates {
        for circle in circles(&files) {
            found.push(format!("{name}: {}", circle.join(", ")));
        }
    }
    let known = |circle: &String| CIRCLES.contains(&circle.as_str());
    let gone: Vec<_> = CIRCLES
        .iter()
        .filter(|known| !found.iter().any(|circle| circle == *known))
        .map(ToString::to_string)
        .collect();
    report(
        "a circle that the list names and that is gone",
        "the list only shrinks: delete the line",
        &gone,
    );
    found.retain(|circle| !known(circle));
    report(
        "modules that use each other in a circle",
        "neither can be read, tested or moved alone; move what both need below them",
        &found,
    );
}

fn module_of(source: &Source) -> Module {
    let dir = module_dir(Path::new(&source.path));
    let below = dir.components().skip_while(|c| c.as_os_str() != "src");
    below
        .skip(1)
        .map(|c| c.as_os_str().to_str().unwrap().to_owned())
        .collect()
}

/// What the files of one crate say of its modules.
struct Crate {
    modules: BTreeSet<Module>,
    /// Names that a module hands on from another one (`pub use`).
    handed_on: BTreeMap<(Module, String), Module>,
}

fn circles(files: &[&Source]) -> Vec<Vec<String>> {
    let mut krate = Crate {
        modules: files.iter().map(|file| module_of(file)).collect(),
        handed_on: BTreeMap::new(),
    };
    for file in files {
        let here = module_of(file);
        for item in &file.parsed().items {
            let Item::Use(item) = item else { continue };
            if matches!(item.vis, syn::Visibility::Inherited) || only_in_tests(&item.attrs) {
                continue;
            }
            for (path, name) in leaves(&item.tree) {
                let at = krate.resolve(&here, &path, 0);
                krate.handed_on.insert((here.clone(), name), at);
            }
        }
    }
    // Users of each module, among its neighbours.
    let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for file in files {
        let here = module_of(file);
        let mut paths = Paths(Vec::new());
        paths.visit_file(&file.parsed());
        for path in paths.0 {
            let there = krate.resolve(&here, &path, 0);
            let same = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
            if same < here.len() && same < there.len() {
                let user = here[..=same].to_vec();
                uses.entry(user)
                    .or_default()
                    .insert(there[..=same].to_vec());
            }
        }
    }
    strongly_connected(&uses)
}

impl Crate {
    /// The module that a path leads to, or the one it starts from when it leaves the crate.
    fn resolve(&self, here: &Module, path: &[String], depth: usize) -> Module {
        let mut at = here.clone();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => {
                at.clear();
                rest = &rest[1..];
            }
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            Some(word) => {
                at.push(word.to_owned());
                let known = self.modules.contains(&at);
                at.pop();
                if !known && !self.handed_on.contains_key(&(at.clone(), word.to_owned())) {
                    return here.clone();
                }
            }
            None => return at,
        }
        for word in rest {
            at.push(word.clone());
            if self.modules.contains(&at) {
                continue;
            }
            at.pop();
            if let Some(origin) = self.handed_on.get(&(at.clone(), word.clone()))
                && depth < 5
            {
                return origin.clone();
            }
            break;
        }
        at
    }
}

/// All paths of the code that goes into a program.
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attrs = match item {
            Item::Fn(i) => &i.attrs,
            Item::Impl(i) => &i.attrs,
            Item::Mod(i) => &i.attrs,
            Item::Use(i) => &i.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !only_in_tests(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let found = leaves(&item.tree).into_iter().map(|(path, _)| path);
        self.0.extend(found);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path.segments.iter().map(|s| s.ident.to_string());
        if path.segments.len() > 1 {
            self.0.push(words.collect());
        }
        visit::visit_path(self, path);
    }

    /// Arguments of macros are not parsed: words joined by `::` are taken for paths.
    fn visit_macro(&mut self, mac: &'ast Macro) {
        let text = mac.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        for word in words.filter(|word| word.contains("::")) {
            self.0.push(word.split("::").map(str::to_owned).collect());
        }
    }
}

/// The paths of a `use`, each with the name it gives.
fn leaves(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    match tree {
        UseTree::Path(path) => leaves(&path.tree)
            .into_iter()
            .map(|(mut rest, name)| {
                rest.insert(0, path.ident.to_string());
                (rest, name)
            })
            .collect(),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(name) => vec![(vec![name.ident.to_string()], name.rename.to_string())],
        UseTree::Glob(_) => vec![(Vec::new(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// Sets of modules that reach each other, by a walk from each (the graphs are small).
fn strongly_connected(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<String>> {
    let reach = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = open.pop() {
            for next in uses.get(&at).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        uses.keys().map(|from| (from, reach(from))).collect();
    let mut circles = BTreeSet::new();
    for (from, seen) in &reached {
        let both = seen
            .iter()
            .filter(|to| reached.get(to).is_some_and(|back| back.contains(*from)));
        let circle: Vec<String> = both.map(|module| module.join("::")).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[test]
fn a_circle_is_found_and_a_chain_is_not() {
    let edge =
        |from: &str, to: &str| (vec![from.to_owned()], BTreeSet::from([vec![to.to_owned()]]));
    let chain = BTreeMap::from([edge("a", "b"), edge("b", "c")]);
    assert!(strongly_connected(&chain).is_empty());
    let circle = BTreeMap::from([edge("a", "b"), edge("b", "c"), edge("c", "a")]);
    assert_eq!(strongly_connected(&circle), [["a", "b", "c"]]);
}
