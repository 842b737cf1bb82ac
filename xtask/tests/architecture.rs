//! ARCHITECTURE.md is true: each file and name of its walks exists, and its glossary is short.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const MAX_WORDS: usize = 30;
/// The most files that a check in memory passes, and the most that a check on Redis passes in
/// addition. On Redis, each wrapper of the stack is one file.
const MAX_FILES: [usize; 2] = [22, 17];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// Returns the texts in backquotes.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Returns the sections whose heading begins with `heading`, up to the next heading.
fn sections<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let mut sections = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with(heading) {
            let mut section = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                section.push(line);
            }
            sections.push(section);
        }
    }
    sections
}

/// Whether `source` defines a function, type, macro, constant or module with this name.
fn defines(source: &str, name: &str) -> bool {
    let name = name.trim_end_matches(['(', ')', '!']);
    let name = name.rsplit(['.', ':']).next().unwrap_or(name);
    let keywords = [
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "macro_rules!",
        "mod",
        "function",
        "local function",
    ];
    keywords.iter().any(|keyword| {
        let definition = format!("{keyword} {name}");
        source.match_indices(&definition).any(|(at, _)| {
            let next = source[at + definition.len()..].chars().next();
            !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

#[test]
fn walks_name_files_and_functions_that_exist() {
    let text = architecture();
    let walks = sections(&text, "### Walk");
    assert!(walks.len() >= 3, "there are {} walks", walks.len());
    for walk in walks {
        let mut steps = 0;
        for line in walk {
            // A name is defined in the file whose path comes last before the name.
            let mut file = None;
            for name in quoted(line) {
                if name.ends_with(".rs") || name.ends_with(".lua") {
                    let source = fs::read_to_string(root().join(name));
                    let source = source.unwrap_or_else(|error| panic!("{name}: {error}"));
                    file = Some((name, source));
                } else if let Some((path, source)) = &file {
                    assert!(defines(source, name), "{path} has no `{name}`");
                    steps += 1;
                }
            }
        }
        assert!(steps > 3, "a walk has {steps} steps");
    }
}

#[test]
fn walks_of_a_check_pass_few_files() {
    let text = architecture();
    let mut seen = HashSet::new();
    for (walk, most) in sections(&text, "### Walk").iter().zip(MAX_FILES) {
        let names = walk.iter().flat_map(|line| quoted(line));
        let files = names.filter(|name| name.ends_with(".rs") || name.ends_with(".lua"));
        let new = files.filter(|file| seen.insert(*file)).count();
        assert!(new <= most, "{new} files in the walk: {walk:?}");
    }
}

#[test]
fn glossary_has_at_most_thirty_words() {
    let text = architecture();
    let glossaries = sections(&text, "## Glossary");
    let [glossary] = glossaries.as_slice() else {
        panic!("there are {} glossaries", glossaries.len());
    };
    // Count list items, and rows of tables. The first two rows are the heading and the line below it.
    let items = glossary.iter().filter(|line| line.starts_with(['-', '*']));
    let rows = glossary.iter().filter(|line| line.starts_with('|')).skip(2);
    let words = items.count() + rows.count();
    assert!((1..=MAX_WORDS).contains(&words), "{words} words");
}
