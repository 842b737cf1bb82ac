//! The configs of Envoy's rate limit service (envoyproxy/ratelimit).
//!
//! The service walks down a tree: each entry of a request's descriptor chooses one node of a level,
//! by key and value, else by the first wildcard that matches, else by key alone. There is no way
//! back, and a limit counts only if the entries end at its node. So one node with a limit is one
//! rule: the values on its way are its `match`, the keys without a value its `per`, and its `when`
//! says that there is nothing else, and nothing that another node of a level would have taken.
//!
//! `tree` reads the files, `wildcard` says what `*` matches, `way` is how requests come to a node, and
//! `rules` makes the rules.

mod rules;
mod tree;
mod way;
mod wildcard;

use std::collections::HashMap;

use tollgate_rules::ConfigError;
use tollgate_rules::document::Problems;

use crate::emit::config;
use crate::note::Note;
use crate::{Imported, Source};
use rules::{Loaded, Rules};
use tree::{Descriptor, Reader, shortened};

/// Whether files may share a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    /// Each domain has one file, as the service wants it unless told otherwise.
    Once,
    /// Files of a domain are taken together, as with the service's `MERGE_DOMAIN_CONFIG`.
    Merged,
}

/// The files of Envoy's rate limit service as one config.
///
/// # Errors
/// If the service would refuse a file, or cannot be understood here: all problems of all files.
pub fn envoy_ratelimit(
    sources: &[Source<'_>],
    domains: Domains,
) -> Result<Imported, Vec<ConfigError>> {
    let mut notes = Vec::new();
    let mut files: Vec<Loaded<'_>> = sources
        .iter()
        .map(|source| {
            let mut problems = Problems::new(source.text);
            let mut reader = Reader {
                file: source.name,
                problems: &mut problems,
                notes: &mut notes,
                unused: HashMap::new(),
                count: 0,
            };
            let file = reader.file();
            Loaded {
                name: source.name,
                problems,
                file,
            }
        })
        .collect();
    report_duplicates(&mut files, domains);
    if files.iter().any(|file| !file.problems.is_empty()) {
        let wrong = files.into_iter().filter(|file| !file.problems.is_empty());
        let errors = wrong.map(|file| file.problems.into_error(file.name));
        return Err(errors.collect());
    }
    let (rules, more) = Rules::of(&files);
    notes.extend(more);
    let names: Vec<&str> = sources.iter().map(|source| source.name).collect();
    sort(&mut notes, &names);
    let title = format!("Imported from envoy-ratelimit: {}", names.join(", "));
    config(&title, &rules, notes).map_err(|error| vec![error])
}

/// Notes in the order of the files; those on the whole come last.
fn sort(notes: &mut [Note], names: &[&str]) {
    notes.sort_by_key(|note| {
        note.position.as_ref().map_or((usize::MAX, 0, 0), |it| {
            let file = names.iter().position(|name| *name == it.file);
            (file.unwrap_or(usize::MAX), it.line, it.column)
        })
    });
}

/// Reports domains and descriptors that are there twice, as the service does.
fn report_duplicates(files: &mut [Loaded<'_>], domains: Domains) {
    let mut found = Vec::new();
    let mut owners: HashMap<&str, usize> = HashMap::new();
    let mut tops: HashMap<(&str, &str), (usize, &Descriptor)> = HashMap::new();
    for (index, loaded) in files.iter().enumerate() {
        let Some(file) = &loaded.file else {
            continue;
        };
        if let Some(owner) = owners.get(file.domain.as_str()) {
            if domains == Domains::Once {
                let message = format!("the domain `{}` has two files", shortened(&file.domain));
                let help = format!(
                    "{} has it already: rename one, or merge them with --merge-domains as \
                     MERGE_DOMAIN_CONFIG does",
                    files[*owner].name
                );
                found.push((index, file.domain_place, message, help));
                continue;
            }
        } else {
            owners.insert(&file.domain, index);
        }
        for it in &file.descriptors {
            let key = (file.domain.as_str(), it.composite.as_str());
            if let Some((owner, first)) = tops.get(&key) {
                let line = files[*owner].problems.position(first.place).0;
                let first = format!("{}:{line}", files[*owner].name);
                found.push((
                    index,
                    it.place,
                    duplicate(&file.domain, it),
                    keep_one(&first),
                ));
            } else {
                tops.insert(key, (index, it));
            }
            let parent = format!("{}.{}", file.domain, it.composite);
            duplicates_below(it, &parent, &mut |parent, first, it| {
                let line = loaded.problems.position(first.place).0;
                let help = keep_one(&format!("line {line}"));
                found.push((index, it.place, duplicate(parent, it), help));
            });
        }
    }
    for (index, place, message, help) in found {
        files[index].problems.report(place, message, help);
    }
}

fn duplicates_below(
    parent: &Descriptor,
    path: &str,
    report: &mut impl FnMut(&str, &Descriptor, &Descriptor),
) {
    let mut seen: HashMap<&str, &Descriptor> = HashMap::new();
    for it in &parent.children {
        if let Some(first) = seen.get(it.composite.as_str()) {
            report(path, first, it);
        } else {
            seen.insert(&it.composite, it);
        }
        duplicates_below(it, &format!("{path}.{}", it.composite), report);
    }
}

fn duplicate(parent: &str, it: &Descriptor) -> String {
    let path = format!("{parent}.{}", it.composite);
    format!("the descriptor `{}` is there twice", shortened(&path))
}

fn keep_one(first: &str) -> String {
    format!("the first stands at {first}: keep one of the two")
}
