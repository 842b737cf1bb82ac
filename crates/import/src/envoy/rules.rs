//! Makes rules from the trees of descriptors.

use std::collections::{BTreeSet, HashMap, HashSet};

use tollgate_rules::document::{Place, Problems};

use super::path::{DOMAIN, Path};
use super::tree::{Descriptor, File, RateLimit, shortened};
use super::wildcard::{Values, Wildcard};
use crate::emit::{MAX_WHEN, Rule};
use crate::ids::Ids;
use crate::note::{ADDRESS, Kind, Note};
use crate::write::{cel_attribute, double_quoted, literal_pattern};

/// A file that was read.
pub(super) struct Loaded<'s> {
    pub(super) name: &'s str,
    pub(super) problems: Problems<'s>,
    pub(super) file: Option<File>,
}

/// A level of a tree: descriptors, each with the index of its file.
type Level<'t> = Vec<(usize, &'t Descriptor)>;

/// Makes the rules of all domains.
pub(super) struct Converter<'t> {
    files: &'t [Loaded<'t>],
    domain: &'t str,
    /// The names of limits in the domain.
    names: HashSet<&'t str>,
    rules: Vec<Rule>,
    /// The path to each rule, the index of its file, and its position in the file.
    paths: Vec<(Path<'t>, usize, Place)>,
    ids: Ids,
    notes: Vec<Note>,
}

impl<'t> Converter<'t> {
    /// Returns the rules of these files, and notes on the differences from the original.
    pub(super) fn convert(files: &'t [Loaded<'t>]) -> (Vec<Rule>, Vec<Note>) {
        let mut domains: Vec<&str> = Vec::new();
        let mut levels: HashMap<&str, Level<'t>> = HashMap::new();
        for (index, loaded) in files.iter().enumerate() {
            let Some(file) = &loaded.file else {
                continue;
            };
            let level = levels.entry(&file.domain).or_insert_with(|| {
                domains.push(&file.domain);
                Vec::new()
            });
            level.extend(file.descriptors.iter().map(|it| (index, it)));
        }
        let mut this = Converter {
            files,
            domain: "",
            names: HashSet::new(),
            rules: Vec::new(),
            paths: Vec::new(),
            ids: Ids::default(),
            notes: Vec::new(),
        };
        for domain in domains {
            let level = &levels[domain];
            this.domain = domain;
            this.names.clear();
            for (_, it) in level {
                names_below(it, &mut this.names);
            }
            let path = Path {
                matches: vec![(DOMAIN.to_owned(), vec![literal_pattern(domain)])],
                ..Path::default()
            };
            let first = this.paths.len();
            this.walk(level, &path);
            this.note_orders(first);
        }
        this.note_whole();
        (this.rules, this.notes)
    }

    fn walk(&mut self, level: &Level<'t>, path: &Path<'t>) {
        for (index, (file, it)) in level.iter().enumerate() {
            let limits = limits_below(it);
            if let Some(why) = path.why_unreachable(&it.key) {
                if limits > 0 {
                    let lost = match limits {
                        1 => "a limit".to_owned(),
                        many => format!("{many} limits"),
                    };
                    self.note(Kind::LeftOut, *file, it.place, format!("{lost}: {why}"));
                }
                continue;
            }
            let Some(next) = self.step(level, index, path) else {
                continue;
            };
            if let Some(limit) = &it.limit {
                self.rule(*file, it, limit, &next);
            }
            let children: Level<'t> = it.children.iter().map(|child| (*file, child)).collect();
            self.walk(&children, &next);
        }
    }

    /// Extends the path by the node at `index` of a level; `None` if no request reaches the node.
    fn step(&mut self, level: &Level<'t>, index: usize, path: &Path<'t>) -> Option<Path<'t>> {
        let (file, it) = level[index];
        let mut next = path.clone();
        next.steps.push((&it.key, &it.values));
        next.composite = format!("{}.{}", path.composite, it.composite);
        let others = level
            .iter()
            .enumerate()
            .filter(|(at, (_, other))| *at != index && other.key == it.key);
        let name = cel_attribute(&it.key);
        let (mut exact, mut wild) = (Vec::new(), Vec::new());
        for (at, (_, other)) in others {
            match &other.values {
                Values::Any => {}
                Values::One(value) => exact.push(value.as_str()),
                Values::Wild(wildcard) => {
                    exact.push(&wildcard.text);
                    wild.push((at, wildcard));
                }
            }
        }
        match &it.values {
            Values::One(value) => {
                next.matches
                    .push((it.key.clone(), vec![literal_pattern(value)]));
                return Some(next);
            }
            Values::Wild(own) => {
                // The first wildcard that matches a value wins. But a value that is the text of a
                // wildcard selects that wildcard.
                wild.retain(|(at, _)| *at < index);
                if let Some((_, all)) = wild.iter().find(|(_, other)| other.is_all()) {
                    let message = format!(
                        "envoyproxy/ratelimit uses this descriptor only for the value `{}` itself: `{}` comes before \
                         it and matches every value",
                        own.text, all.text
                    );
                    self.note(Kind::Odd, file, it.place, message);
                    next.matches
                        .push((it.key.clone(), vec![literal_pattern(&own.text)]));
                    return Some(next);
                }
                next.matches.push((it.key.clone(), vec![own.pattern()]));
                if !it.share {
                    next.per.push(it.key.clone());
                }
                let own_values = Values::Wild(own.clone());
                wild.retain(|(_, other)| Values::Wild((*other).clone()).may_meet(&own_values));
                exact.retain(|value| own.matches(value));
                self.exclude_wild(file, it, &wild, Some(own), &name, &mut next);
            }
            Values::Any => {
                if let Some((_, all)) = wild.iter().find(|(_, other)| other.is_all()) {
                    let message = format!(
                        "envoyproxy/ratelimit never uses this descriptor: another one, with the value `{}` of `{}`, matches everything",
                        all.text, it.key
                    );
                    self.note(Kind::NoEffect, file, it.place, message);
                    return None;
                }
                next.per.push(it.key.clone());
                let excluded = self.exclude_wild(file, it, &wild, None, &name, &mut next);
                exact.retain(|value| !excluded.iter().any(|other| other.matches(value)));
            }
        }
        let exact: Vec<String> = exact.into_iter().map(double_quoted).collect();
        let condition = match exact.as_slice() {
            [] => return Some(next),
            [one] => format!("{name} != {one}"),
            many => format!("!({name} in [{}])", many.join(", ")),
        };
        next.when.push((condition, &it.key));
        Some(next)
    }

    /// Adds conditions that exclude values of other wildcards. Returns the wildcards that are excluded:
    /// CEL cannot express every wildcard.
    fn exclude_wild<'w>(
        &mut self,
        file: usize,
        it: &'t Descriptor,
        wild: &[(usize, &'w Wildcard)],
        own: Option<&Wildcard>,
        name: &str,
        path: &mut Path<'t>,
    ) -> Vec<&'w Wildcard> {
        let mut excluded = Vec::new();
        for (_, other) in wild {
            let Some(condition) = other.condition(name) else {
                let message = format!(
                    "a value of `{}` that matches `{}` counts under both descriptors; envoyproxy/ratelimit counts \
                     it only under `{1}`. An expression cannot match that many `*`",
                    it.key, other.text
                );
                self.note(Kind::Differs, file, it.place, message);
                continue;
            };
            let condition = match own {
                Some(own) if other.matches(&own.text) => {
                    let own = double_quoted(&own.text);
                    format!("({name} == {own} || !({condition}))")
                }
                _ => format!("!({condition})"),
            };
            path.when.push((condition, &it.key));
            excluded.push(*other);
        }
        excluded
    }

    fn rule(&mut self, file: usize, it: &'t Descriptor, limit: &'t RateLimit, path: &Path<'t>) {
        let mut parts = vec![self.domain.to_owned()];
        if limit.name.is_empty() {
            parts.extend(path.steps.iter().map(|(key, values)| match values {
                Values::Any => (*key).to_owned(),
                Values::One(value) => format!("{key}-{value}"),
                Values::Wild(wildcard) => format!("{key}-{}", wildcard.text),
            }));
        } else {
            parts.push(limit.name.clone());
        }
        let whole = format!("{}{}", self.domain, path.composite);
        let id = self.ids.id(&parts, &whole);
        self.note_limit(file, it, limit);
        let when = self.when(file, it, path);
        let (line, _) = self.files[file].problems.position(it.place);
        self.rules.push(Rule {
            id,
            origin: format!("{}:{line}", self.files[file].name),
            matches: path.matches.clone(),
            when: Some(when),
            per: path.per.clone(),
            limit: limit.numbers.map(|(amount, _)| amount),
            seconds: limit.numbers.map_or(1, |(_, seconds)| seconds),
            charge_denied: limit.numbers.is_some(),
            shadow: it.shadow,
        });
        self.paths.push((path.clone(), file, it.place));
    }

    /// Returns the condition of a rule: exactly the entries of the path, without values that select
    /// other nodes.
    fn when(&mut self, file: usize, it: &Descriptor, path: &Path<'t>) -> String {
        const AND: &str = " && ";
        let count = format!("size(attributes) == {}", path.steps.len() + 1);
        // Adds the shortest conditions first, so that as many as possible fit. A note names each key
        // with a condition that does not fit.
        let mut shortest: Vec<usize> = (0..path.when.len()).collect();
        shortest.sort_by_key(|index| path.when[*index].0.len());
        let mut length = count.len();
        let (mut kept, mut dropped) = (BTreeSet::new(), BTreeSet::new());
        for index in shortest {
            let (text, key) = &path.when[index];
            length += AND.len() + text.len();
            if length <= MAX_WHEN {
                kept.insert(index);
            } else {
                dropped.insert(*key);
            }
        }
        for key in dropped {
            let message = format!(
                "this rule also counts some values of `{key}` that envoyproxy/ratelimit counts under another \
                 descriptor: an expression that excludes them is longer than {MAX_WHEN} bytes"
            );
            self.note(Kind::Differs, file, it.place, message);
        }
        let kept = kept.iter().map(|index| path.when[*index].0.as_str());
        let parts: Vec<&str> = std::iter::once(count.as_str()).chain(kept).collect();
        parts.join(AND)
    }

    fn note_limit(&mut self, file: usize, it: &Descriptor, limit: &RateLimit) {
        if let Some(place) = it.quota {
            let message = "`quota_mode`: envoyproxy/ratelimit denies a request with several such \
                           descriptors when all limits are used up, Tollgate when one is";
            self.note(Kind::Differs, file, place, message);
        }
        for (name, place) in &limit.replaces {
            let shown = shortened(name);
            let (kind, message) = if self.names.contains(name.as_str()) {
                let message = format!(
                    "`replaces`: envoyproxy/ratelimit does not count `{shown}` in a request that this limit applies \
                     to. Tollgate decides each descriptor on its own, so both count"
                );
                (Kind::Differs, message)
            } else {
                let message =
                    format!("`replaces`: the domain has no limit with the name `{shown}`");
                (Kind::NoEffect, message)
            };
            self.note(kind, file, *place, message);
        }
    }

    /// Notes limits that the same entries reach in another order. Compares the limits from index
    /// `first` on.
    fn note_orders(&mut self, first: usize) {
        let mut groups: HashMap<Vec<&str>, Vec<usize>> = HashMap::new();
        for (index, (path, ..)) in self.paths.iter().enumerate().skip(first) {
            if path.steps.len() > 1 {
                let mut keys: Vec<&str> = path.steps.iter().map(|(key, _)| *key).collect();
                keys.sort_unstable();
                groups.entry(keys).or_default().push(index);
            }
        }
        let mut found = Vec::new();
        for group in groups.into_values() {
            for (at, later) in group.iter().enumerate() {
                let meets =
                    |earlier: &&usize| self.paths[**earlier].0.is_reordered(&self.paths[*later].0);
                let earlier: Vec<usize> = group[..at].iter().filter(meets).copied().collect();
                if let Some((first, more)) = earlier.split_first() {
                    found.push((*first, more.len(), *later));
                }
            }
        }
        for (earlier, more, later) in found {
            let more = match more {
                0 => String::new(),
                more => format!(", and of {more} more,"),
            };
            let message = format!(
                "this limit has the entries of `{}`{more} in another order. The original counts a request \
                 in one of them, by the order of its entries; Tollgate counts it in both",
                self.rules[earlier].id
            );
            let (_, file, place) = self.paths[later];
            self.note(Kind::Differs, file, place, message);
        }
    }

    fn note_whole(&mut self) {
        if self.paths.iter().any(|(path, ..)| path.steps.len() > 1) {
            let message = "the entries of a descriptor may come in any order; envoyproxy/ratelimit \
                           ignores descriptors whose entries are not in the order of its config";
            self.notes.push(Note::general(Kind::Differs, message));
        }
        if self
            .rules
            .iter()
            .any(|rule| rule.per.iter().any(|it| it == "ip"))
        {
            self.notes.push(Note::general(Kind::Differs, ADDRESS));
        }
    }

    fn note(&mut self, kind: Kind, file: usize, place: Place, message: impl Into<String>) {
        let loaded = &self.files[file];
        let note = Note::at(kind, loaded.name, &loaded.problems, place, message);
        self.notes.push(note);
    }
}

fn limits_below(it: &Descriptor) -> usize {
    let below: usize = it.children.iter().map(limits_below).sum();
    below + usize::from(it.limit.is_some())
}

fn names_below<'t>(it: &'t Descriptor, names: &mut HashSet<&'t str>) {
    names.extend(it.limit.iter().map(|limit| limit.name.as_str()));
    for child in &it.children {
        names_below(child, names);
    }
}
