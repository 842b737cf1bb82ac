//! Every relative link in the Markdown files has a target, and every path in code quotes exists.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Top-level folders whose paths documents name in code quotes, such as `crates/core/src/gcra.rs`.
const FOLDERS: [&str; 9] = [
    "bench", "crates", "deploy", "docs", "examples", "faults", "fuzz", "rig", "xtask",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Adds the Markdown files below `folder`. Skips build output and hidden folders.
fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && !["target", "node_modules"].contains(&name) {
            collect(&path, pages);
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
}

/// Returns the text without fenced blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// Returns the anchors of the headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slug = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.replace(|c: char| !c.is_alphanumeric() && !" -_".contains(c), "");
        kept.replace(' ', "-")
    };
    headings.map(slug).collect()
}

/// Whether a link of `page` has no target.
fn broken(page: &Path, link: &str) -> bool {
    if link.contains("://") {
        return false;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap().join(file),
    };
    let has_anchor =
        || anchors(&prose(&fs::read_to_string(&target).unwrap())).contains(&anchor.to_owned());
    !target.exists() || !(anchor.is_empty() || has_anchor())
}

#[test]
fn links_and_named_paths_exist() {
    let mut pages = Vec::new();
    collect(&root(), &mut pages);
    assert!(pages.len() > 30, "only {} pages", pages.len());
    let mut problems = Vec::new();
    for page in pages {
        let text = prose(&fs::read_to_string(&page).unwrap());
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let named = text.split('`').skip(1).step_by(2).filter(|code| {
            let is_path = code
                .split_once('/')
                .is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            is_path && !code.contains(['*', '<', ' ', '{', '…'])
        });
        let links = links.filter(|link| broken(&page, link));
        let named = named.filter(|path| !root().join(path).exists());
        problems.extend(
            links
                .chain(named)
                .map(|it| format!("{}: {it}", page.display())),
        );
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
