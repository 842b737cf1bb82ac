//! Reads the files of Envoy's rate limit service into trees of descriptors. Reports problems for which
//! the service itself rejects a file.

use std::collections::HashMap;

use tollgate_rules::document::{
    Node, Place, Problems, Value, entries, parse_document, unknown_field, wanted,
};

use super::wildcard::Values;
use crate::emit::too_many;
use crate::note::{Kind, Note};
use crate::{MAX_LIMITS, read};

/// The fields of a file, of a descriptor, of a rate limit, and of an entry of `replaces`.
const FILE_FIELDS: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR_FIELDS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const LIMIT_FIELDS: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACED_FIELDS: &[&str] = &["name"];

/// Whether any map of the format has a field of this name. The service ignores a known field in a wrong
/// place.
fn is_known(name: &str) -> bool {
    let all = [FILE_FIELDS, DESCRIPTOR_FIELDS, LIMIT_FIELDS];
    all.iter().any(|fields| fields.contains(&name))
}

/// What messages call a file.
const FILE: &str = "a file of the rate limit service";

/// The units, with the seconds that the service counts for them.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// One file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) domain: String,
    pub(super) domain_place: Place,
    pub(super) descriptors: Vec<Descriptor>,
}

/// A node of the tree: a key, perhaps a value, and a limit or more nodes.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) place: Place,
    pub(super) key: String,
    pub(super) values: Values,
    /// Key and value together; the service identifies descriptors of a level by this text.
    pub(super) composite: String,
    pub(super) limit: Option<RateLimit>,
    pub(super) shadow: bool,
    pub(super) quota: Option<Place>,
    pub(super) share: bool,
    pub(super) children: Vec<Descriptor>,
}

#[derive(Debug)]
pub(super) struct RateLimit {
    /// The amount and the window in seconds; `None` for unlimited.
    pub(super) numbers: Option<(u64, u64)>,
    pub(super) name: String,
    pub(super) replaces: Vec<(String, Place)>,
}

/// Reads one file.
pub(super) struct Reader<'r, 's> {
    pub(super) file: &'r str,
    pub(super) problems: &'r mut Problems<'s>,
    pub(super) notes: &'r mut Vec<Note>,
    /// Fields that only affect metrics and answers. For each field: how often it occurs, and its first place.
    pub(super) unused: HashMap<String, (usize, Place)>,
    pub(super) count: usize,
}

impl Reader<'_, '_> {
    pub(super) fn file(&mut self) -> Option<File> {
        let help = "start with a `domain` and its `descriptors`";
        let root = parse_document(help, self.problems)?;
        let (mut domain, mut place, mut descriptors) = (None, None, Vec::new());
        for (name, at, node) in self.fields(&root, FILE, FILE_FIELDS)? {
            match name {
                "domain" => {
                    place = Some(node.place);
                    domain = read::text(node, "a domain", self.problems);
                }
                "descriptors" => descriptors = self.descriptors(node),
                _ => self.misplaced(name, at, FILE),
            }
        }
        self.note_unused();
        match (domain, place) {
            (Some(domain), Some(domain_place)) if !domain.is_empty() => Some(File {
                domain,
                domain_place,
                descriptors,
            }),
            (None, Some(_)) => None,
            (_, place) => {
                let place = place.unwrap_or_else(|| Place::new(root.place.start, root.place.start));
                let help = "add `domain: name`, with the domain that Envoy's filter sends";
                self.problems
                    .report(place, "the file has no `domain`", help);
                None
            }
        }
    }

    fn descriptors(&mut self, node: &Node) -> Vec<Descriptor> {
        let help = "write one descriptor per line, each after a dash";
        let items = self.items(node, "a list of descriptors", help).iter();
        items.filter_map(|item| self.descriptor(item)).collect()
    }

    /// Returns the items of a list. Null is the empty list.
    fn items<'n>(&mut self, node: &'n Node, what: &str, help: &str) -> &'n [Node] {
        match &node.value {
            Value::List(items) => return items,
            _ if node.is_null() => {}
            _ => wanted(what, help, node, self.problems),
        }
        &[]
    }

    fn descriptor(&mut self, node: &Node) -> Option<Descriptor> {
        self.count += 1;
        if self.count > MAX_LIMITS {
            if self.count == MAX_LIMITS + 1 {
                let (message, help) = too_many();
                self.problems.report(node.place, message, help);
            }
            return None;
        }
        let start = Place::new(node.place.start, node.place.start);
        let (mut key, mut value) = (String::new(), String::new());
        let (mut limit, mut children) = (None, Vec::new());
        let (mut shadow, mut quota, mut share) = (false, None, None);
        let mut is_broken = false;
        for (name, at, node) in self.fields(node, "a descriptor", DESCRIPTOR_FIELDS)? {
            match name {
                "key" => match read::text(node, "a key", self.problems) {
                    Some(text) => key = text,
                    None => is_broken = true,
                },
                "value" => match read::text(node, "a value", self.problems) {
                    Some(text) => value = text,
                    None => is_broken = true,
                },
                "rate_limit" if !node.is_null() => limit = self.rate_limit(node),
                "rate_limit" => {}
                "descriptors" => children = self.descriptors(node),
                "shadow_mode" => shadow = read::flag(node, self.problems)?,
                "quota_mode" => quota = read::flag(node, self.problems)?.then_some(at),
                "share_threshold" => share = read::flag(node, self.problems)?.then_some(at),
                "detailed_metric" | "value_to_metric" => {
                    if read::flag(node, self.problems)? {
                        self.unused(name, at);
                    }
                }
                "metadata" => self.unused(name, at),
                _ => self.misplaced(name, at, "a descriptor"),
            }
        }
        if is_broken {
            return None;
        }
        if key.is_empty() {
            let help = "add `key: name`, with the key of the entry that Envoy sends";
            self.problems
                .report(start, "this descriptor has no `key`", help);
            return None;
        }
        let composite = match value.as_str() {
            "" => key.clone(),
            value => format!("{key}_{value}"),
        };
        if let (Some(at), false) = (share, composite.contains('*')) {
            let help = "remove it, or write a value such as `files/*`";
            let message = "`share_threshold` has no effect without a `*` in the value";
            self.problems.report(at, message, help);
        }
        Some(Descriptor {
            place: start,
            values: Values::of(&value),
            key,
            composite,
            limit,
            shadow,
            quota,
            share: share.is_some(),
            children,
        })
    }

    fn rate_limit(&mut self, node: &Node) -> Option<RateLimit> {
        let start = Place::new(node.place.start, node.place.start);
        let (mut unit, mut amount, mut unlimited) = (None, None, false);
        let (mut name, mut replaces) = (String::new(), Vec::new());
        for (field, at, node) in self.fields(node, "a rate limit", LIMIT_FIELDS)? {
            match field {
                "unit" => unit = Some((read::text(node, "a unit", self.problems)?, node.place)),
                "requests_per_unit" if !node.is_null() => {
                    amount = Some(read::whole(node, u64::from(u32::MAX), self.problems)?);
                }
                "requests_per_unit" => {}
                "unlimited" => unlimited = read::flag(node, self.problems)?,
                "name" => name = read::text(node, "a name", self.problems)?,
                "replaces" => replaces = self.replaces(node),
                _ => self.misplaced(field, at, "a rate limit"),
            }
        }
        for (replaced, at) in &replaces {
            if replaced.is_empty() {
                let help = "write `- name: other_limit`, the `name` of another rate limit";
                let message = "this entry of `replaces` has no `name`";
                self.problems.report(*at, message, help);
            } else if *replaced == name {
                let help = "name another limit, or remove the entry";
                self.problems
                    .report(*at, "this limit replaces itself", help);
            }
        }
        let known = unit.as_ref().and_then(|(unit, _)| {
            let lower = unit.to_ascii_lowercase();
            UNITS.iter().find(|(word, _)| *word == lower)
        });
        let place = unit.as_ref().map_or(start, |(_, place)| *place);
        let numbers = match (unlimited, known) {
            (true, None) => None,
            (true, Some(_)) => {
                let help = "keep one of the two";
                let message = "a limit cannot be `unlimited` and have a `unit`";
                self.problems.report(place, message, help);
                return None;
            }
            (false, None) => {
                let message = match &unit {
                    Some((unit, _)) => format!("unknown unit `{}`", shortened(unit)),
                    None => "this limit has no `unit`".to_owned(),
                };
                let words: Vec<&str> = UNITS.iter().map(|(word, _)| *word).collect();
                let help = format!("write `unit:` and one of {}", words.join(", "));
                self.problems.report(place, message, help);
                return None;
            }
            (false, Some((_, seconds))) => {
                if amount.is_none() {
                    let message =
                        "`requests_per_unit` is missing and counts as 0: everything is denied";
                    self.note(Kind::Odd, start, message);
                }
                Some((amount.unwrap_or(0), *seconds))
            }
        };
        Some(RateLimit {
            numbers,
            name,
            replaces,
        })
    }

    fn replaces(&mut self, node: &Node) -> Vec<(String, Place)> {
        let help = "write `- name: other_limit`, one per line";
        let items = self.items(node, "a list of names", help);
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            let Some(fields) = self.fields(item, "an entry of `replaces`", REPLACED_FIELDS) else {
                continue;
            };
            let mut replaced = String::new();
            for (field, at, node) in fields {
                if field == "name" {
                    let text = read::text(node, "a name", self.problems);
                    replaced = text.unwrap_or_default();
                } else {
                    self.misplaced(field, at, "an entry of `replaces`");
                }
            }
            names.push((replaced, item.place));
        }
        names
    }

    /// Returns the fields of a map. Reports unknown and duplicate fields.
    fn fields<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        fields: &[&str],
    ) -> Option<Vec<(&'n str, Place, &'n Node)>> {
        let all = entries(node, what, self.problems)?;
        let mut seen: HashMap<&str, Place> = HashMap::new();
        for (name, place, _) in &all {
            if !is_known(name) {
                unknown_field(name, *place, what, fields, self.problems);
            } else if let Some(first) = seen.insert(name, *place) {
                read::duplicate(name, *place, first, self.problems);
            }
        }
        Some(all)
    }

    /// Adds a note about a field in a wrong place. Unknown fields were reported already.
    fn misplaced(&mut self, name: &str, place: Place, what: &str) {
        if is_known(name) {
            let message =
                format!("`{name}` has no meaning in {what}; envoyproxy/ratelimit ignores it");
            self.note(Kind::NoEffect, place, message);
        }
    }

    fn unused(&mut self, name: &str, place: Place) {
        self.unused.entry(name.to_owned()).or_insert((0, place)).0 += 1;
    }

    fn note_unused(&mut self) {
        let mut unused: Vec<_> = self.unused.drain().collect();
        unused.sort_unstable_by_key(|(_, (_, place))| place.start);
        for (name, (count, place)) in unused {
            let why = if name == "metadata" {
                "Tollgate's answers have no metadata"
            } else {
                "Tollgate's metrics are per rule"
            };
            let times = match count {
                1 => String::new(),
                count => format!(" ({count} times, first here)"),
            };
            self.note(Kind::NoEffect, place, format!("`{name}`{times}: {why}"));
        }
    }

    pub(super) fn note(&mut self, kind: Kind, place: Place, message: impl Into<String>) {
        let note = Note::at(kind, self.file, self.problems, place, message);
        self.notes.push(note);
    }
}

/// Cuts a text from a file to a length that fits into a message.
pub(super) fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
