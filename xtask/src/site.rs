//! The documents as a site: mdbook makes it from docs/, and every link of its pages must lead somewhere in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cmd::{self, Cmd};
use crate::files;
use crate::task::{Args, Failure, Outcome};

/// What to do when mdbook is not there.
const INSTALL: &str = "run scripts/setup.sh, which installs it in target/tools";

pub fn site(_: &Args) -> Outcome {
    cmd::require(&["mdbook"], INSTALL)?;
    let dir = files::target().join("site");
    // mdbook warns of what it drops (unknown chapters, tags that do not end) and goes on.
    let log = files::scratch("site")?;
    let log = log.path().join("log");
    let built = Cmd::new("mdbook")
        .args(["build", "--dest-dir"])
        .arg(&dir)
        .log(&log)?
        .run();
    let said = files::read(&log)?;
    built.map_err(|failure| Failure(format!("{failure}\n{said}")))?;
    let complaints: Vec<_> = said.lines().filter(|line| is_complaint(line)).collect();
    if !complaints.is_empty() {
        let complaints = complaints.join("\n");
        return Err(Failure(format!(
            "mdbook does not take the pages as they are:\n{complaints}"
        )));
    }
    let (pages, dead) = dead_links(&dir)?;
    if !dead.is_empty() {
        let dead = dead.join("\n");
        return Err(Failure(format!(
            "links of the site lead nowhere; link pages of docs/ and their headings, and name other files without a link:\n{dead}"
        )));
    }
    println!(
        "{pages} pages; begin at {}",
        dir.join("index.html").display()
    );
    Ok(())
}

fn is_complaint(line: &str) -> bool {
    ["WARN", "ERROR"].iter().any(|level| line.contains(level))
}

/// How many pages a site has, and the links that lead to no file of it, or to no heading of a page.
fn dead_links(dir: &Path) -> Outcome<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    for path in files::below(dir, ".html")? {
        let html = files::read(&path)?;
        pages.insert(path, html);
    }
    // Once for each page: some have thousands of links and headings.
    let headings = |(path, html): (&PathBuf, &String)| {
        let ids = values(html, "id").into_iter().map(str::to_owned);
        (path.canonicalize().ok(), ids.collect::<BTreeSet<_>>())
    };
    let headings: BTreeMap<_, _> = pages.iter().map(headings).collect();
    let mut dead = Vec::new();
    for (page, html) in &pages {
        for link in ["href", "src"].iter().flat_map(|name| values(html, name)) {
            if !leads_somewhere(page, link, &headings) {
                let page = page.strip_prefix(dir).unwrap_or(page);
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok((pages.len(), dead))
}

/// The values of an attribute. Text and code cannot look like one: their quotes are escaped or stand outside of tags.
fn values<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let tags = html.split('<').skip(1).filter_map(|rest| {
        let (tag, _) = rest.split_once('>')?;
        let (_, value) = tag.split_once(&format!(" {name}=\""))?;
        value.split('"').next()
    });
    tags.collect()
}

fn leads_somewhere(
    page: &Path,
    link: &str,
    headings: &BTreeMap<Option<PathBuf>, BTreeSet<String>>,
) -> bool {
    let is_outside = ["http:", "https:", "mailto:", "data:"]
        .iter()
        .any(|scheme| link.starts_with(scheme));
    if is_outside {
        return true;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let to = match file {
        "" => page.to_owned(),
        file => page.with_file_name("").join(file),
    };
    let has_heading = || {
        let found = headings.get(&to.canonicalize().ok());
        found.is_some_and(|ids| ids.contains(heading))
    };
    to.is_file() && (heading.is_empty() || has_heading())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let dir = files::scratch("site-test").unwrap();
        let page = |name: &str, text: &str| files::write(&dir.path().join(name), text).unwrap();
        files::create_dir(&dir.path().join("sub")).unwrap();
        page(
            "index.html",
            r#"<a class="x" href="sub/a.html#there">a</a><img src="no.png">"#,
        );
        page(
            "sub/a.html",
            r##"<h2 id="there">x</h2><a href="#there">1</a><a href="#gone">2</a><a href="../index.html">3</a>
            <a href="../b.html">4</a><a href="..">5</a><a href="https://example.org/">6</a>
            <code>&lt;a href=&quot;none&quot;&gt;</code>"##,
        );
        let (pages, dead) = dead_links(dir.path()).unwrap();
        assert_eq!(pages, 2);
        let expected = [
            "index.html: no.png",
            "sub/a.html: #gone",
            "sub/a.html: ../b.html",
            "sub/a.html: ..",
        ];
        assert_eq!(dead, expected);
    }

    #[test]
    fn warnings_of_mdbook_count() {
        assert!(is_complaint(" WARN unclosed HTML tag `<service>` found"));
        assert!(!is_complaint(" INFO Book building has started"));
    }
}
