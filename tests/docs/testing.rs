//! `docs/TESTING.md` names every script, task, test target, model and fuzz target; its tables of tasks are those of xtask.

use std::fs;

use ron_tests::workspace;

use crate::commands::targets;
use crate::regions;

/// Names of the files in a directory, without their ending.
fn stems(dir: &str, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(workspace().join(dir)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let stems = names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned));
    let mut stems: Vec<String> = stems.collect();
    stems.sort();
    assert!(!stems.is_empty(), "{dir}");
    stems
}

#[test]
fn tables_of_tasks_are_those_of_xtask() {
    let found = regions::check("TESTING.md", "generated", |part| {
        xtask::table(part.strip_prefix("tasks ")?)
    });
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn the_page_about_tests_names_every_task() {
    let page = fs::read_to_string(workspace().join("docs/TESTING.md")).unwrap();
    let tests = ["e2e", "crash"].iter().flat_map(|target| {
        let modules = stems(&format!("tests/{target}"), ".rs");
        modules.into_iter().filter(|name| name != "main")
    });
    let tests = targets().into_iter().chain(tests);
    let tests = tests.map(|name| format!("`{name}`"));
    let scripts = stems("scripts", ".sh").into_iter();
    let scripts = scripts.map(|name| format!("scripts/{name}.sh"));
    let fuzz = stems("fuzz/fuzz_targets", ".rs").into_iter();
    let fuzz = fuzz.map(|name| format!("`{name}`"));
    let models = fs::read_dir(workspace().join("models")).unwrap();
    let models = models.map(|entry| entry.unwrap().path());
    let models = models
        .filter(|path| path.join("tests").is_dir())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            format!("models/{name}")
        });
    let tasks = xtask::tasks().map(|task| format!("`cargo xtask {}", task.name));
    let all = tests.chain(scripts).chain(tasks).chain(fuzz).chain(models);
    let lost: Vec<_> = all.filter(|name| !page.contains(name)).collect();
    assert!(lost.is_empty(), "docs/TESTING.md does not name {lost:?}");
}

#[test]
fn the_page_about_tests_names_every_step_of_the_test_command() {
    let page = fs::read_to_string(workspace().join("docs/TESTING.md")).unwrap();
    let script = fs::read_to_string(workspace().join("scripts/test.sh")).unwrap();
    let steps = script
        .lines()
        .filter_map(|line| line.strip_prefix("step \""));
    let steps = steps.map(|rest| rest.trim_end_matches('"'));
    let lost: Vec<_> = steps
        .filter(|step| *step != "done" && !page.contains(&format!("| {step} |")))
        .collect();
    assert!(lost.is_empty(), "docs/TESTING.md has no row for {lost:?}");
}

/// Tests and models that the concurrency pages and the threat model name as evidence exist.
#[test]
fn evidence_that_pages_name_exists() {
    let root = workspace();
    let mut pages = ["SECURITY.md", "security-tests.md", "oauth-conformance.md"]
        .map(|page| root.join("docs").join(page))
        .to_vec();
    let folder = fs::read_dir(root.join("docs/concurrency")).unwrap();
    pages.extend(folder.map(|entry| entry.unwrap().path()));
    let mut lost = Vec::new();
    let mut seen = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            let file = word.split("::").next().unwrap();
            let is_path = [
                "tests/", "crates/", "models/", "bin/", "scripts/", "fuzz/", "docs/",
            ]
            .iter()
            .any(|start| file.starts_with(start));
            if !is_path || file.contains(['*', '<', ' ']) {
                continue;
            }
            seen += 1;
            let path = root.join(file);
            let test = word.split("::").nth(1);
            let there = match test {
                None => path.exists(),
                Some(test) => {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    text.contains(&format!("fn {test}("))
                }
            };
            if !there {
                lost.push(format!("{}: {word}", page.display()));
            }
        }
    }
    assert!(seen > 60, "only {seen} files are named");
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// Every figure in the README's section on speed is in the page of measurements.
#[test]
fn figures_of_the_readme_were_measured() {
    let root = workspace();
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let (readme, bench) = (read("README.md"), read("docs/bench/README.md"));
    let (_, section) = readme.split_once("## Figures\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let words = section.split(|c: char| c.is_whitespace() || c == ':' || c == ';');
    let figures = words.map(|word| word.trim_matches([',', '.', '(', ')']));
    let figures: Vec<_> = figures
        .filter(|word| word.len() > 1 && word.bytes().all(|b| b.is_ascii_digit() || b == b','))
        .collect();
    assert!(figures.len() > 3, "{figures:?}");
    let lost: Vec<_> = figures
        .iter()
        .filter(|figure| !bench.contains(**figure))
        .collect();
    assert!(
        lost.is_empty(),
        "README.md says {lost:?}, docs/bench/README.md does not"
    );
}
