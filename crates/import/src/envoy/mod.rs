//! Converts configs of Envoy's rate limit service (envoyproxy/ratelimit).
//!
//! The service walks down a tree. Each entry of a request's descriptor selects one node of a level. The
//! service first looks for a node with the same key and value, then for the first wildcard that
//! matches, then for a node with the key alone. The service never goes back up. A limit counts only if
//! the last entry selects the limit's node.
//!
//! So each node with a limit becomes a rule. The values on the path to the node become the rule's
//! `match`, and the keys without a value become its `per`. The rule's `when` excludes requests with
//! more entries, and values that select another node of the same level.
//!
//! `tree` reads the files, `wildcard` matches values with `*`, `path` is the path from the root to a node,
//! and `rules` makes the rules.

mod path;
mod rules;
mod tree;
mod wildcard;

use std::collections::HashMap;

use tollgate_rules::ConfigError;
use tollgate_rules::document::{Place, Problems};

use crate::emit::config;
use crate::note::Note;
use crate::{Imported, Source};
use rules::{Converter, Loaded};
use tree::{Descriptor, Reader, shortened};

/// Whether files may share a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    /// Each domain has one file, which is the default of the service.
    Once,
    /// Files of one domain are merged, as the service does with `MERGE_DOMAIN_CONFIG`.
    Merged,
}

/// Converts files of Envoy's rate limit service into one config.
///
/// # Errors
/// All problems of all files, if the service would reject a file or this crate cannot read it.
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
    let (rules, more) = Converter::convert(&files);
    notes.extend(more);
    let names: Vec<&str> = sources.iter().map(|source| source.name).collect();
    sort(&mut notes, &names);
    let title = format!("Imported from envoy-ratelimit: {}", names.join(", "));
    config(&title, &rules, notes).map_err(|error| vec![error])
}

/// Sorts notes by file, line and column. Notes without a place come last.
fn sort(notes: &mut [Note], names: &[&str]) {
    notes.sort_by_key(|note| {
        note.position.as_ref().map_or((usize::MAX, 0, 0), |it| {
            let file = names.iter().position(|name| *name == it.file);
            (file.unwrap_or(usize::MAX), it.line, it.column)
        })
    });
}

/// Reports duplicate domains and descriptors, as the service does.
fn report_duplicates(files: &mut [Loaded<'_>], domains: Domains) {
    let mut found = Vec::new();
    let mut owners: HashMap<&str, (usize, Place)> = HashMap::new();
    let mut tops: HashMap<(&str, &str), (usize, &Descriptor)> = HashMap::new();
    for (index, loaded) in files.iter().enumerate() {
        let Some(file) = &loaded.file else {
            continue;
        };
        if let Some((owner, first)) = owners.get(file.domain.as_str()) {
            if domains == Domains::Once {
                let message = format!("duplicate domain `{}`", shortened(&file.domain));
                let owner = &files[*owner];
                let line = owner.problems.position(*first).0;
                let help = format!(
                    "the first one is at {}:{line}, and the service rejects the second file: rename one, \
                     or merge the files with --merge-domains, as the service does with MERGE_DOMAIN_CONFIG",
                    owner.name
                );
                found.push((index, file.domain_place, message, help));
                continue;
            }
        } else {
            owners.insert(&file.domain, (index, file.domain_place));
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
    format!("duplicate descriptor `{}`", shortened(&path))
}

fn keep_one(first: &str) -> String {
    format!("the first one is at {first}: keep one of the two")
}
