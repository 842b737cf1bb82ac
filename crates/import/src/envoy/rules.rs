//! Trees of descriptors to rules.

use std::collections::{BTreeSet, HashMap, HashSet};

use tollgate_rules::document::{Place, Problems};

use super::tree::{Descriptor, File, RateLimit, shortened};
use super::way::{DOMAIN, Way};
use super::wildcard::{Values, Wildcard};
use crate::emit::{MAX_WHEN, Rule};
use crate::ids::Ids;
use crate::note::{Kind, Note};
use crate::write::{cel_attribute, double_quoted, literal_pattern};

/// The attribute that is read as an address.
const ADDRESS: &str = "ip";

/// A file that was read.
pub(super) struct Loaded<'s> {
    pub(super) name: &'s str,
    pub(super) problems: Problems<'s>,
    pub(super) file: Option<File>,
}

/// A level of a tree: descriptors, and the files they stand in.
type Level<'t> = Vec<(usize, &'t Descriptor)>;

/// Makes rules of trees.
pub(super) struct Rules<'t> {
    files: &'t [Loaded<'t>],
    domain: &'t str,
    /// The names of limits in the domain.
    names: HashSet<&'t str>,
    rules: Vec<Rule>,
    /// The way to each rule, and where it stands.
    ways: Vec<(Way<'t>, usize, Place)>,
    ids: Ids,
    notes: Vec<Note>,
}

impl<'t> Rules<'t> {
    /// The rules of these files, and what to say about them.
    pub(super) fn of(files: &'t [Loaded<'t>]) -> (Vec<Rule>, Vec<Note>) {
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
        let mut this = Rules {
            files,
            domain: "",
            names: HashSet::new(),
            rules: Vec::new(),
            ways: Vec::new(),
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
            let way = Way {
                matches: vec![(DOMAIN.to_owned(), vec![literal_pattern(domain)])],
                ..Way::default()
            };
            let first = this.ways.len();
            this.walk(level, &way);
            this.note_orders(first);
        }
        this.note_whole();
        (this.rules, this.notes)
    }

    fn walk(&mut self, level: &Level<'t>, way: &Way<'t>) {
        for (index, (file, it)) in level.iter().enumerate() {
            let limits = limits_below(it);
            if let Some(why) = way.cannot_have(&it.key) {
                if limits > 0 {
                    let lost = match limits {
                        1 => "a limit".to_owned(),
                        many => format!("{many} limits"),
                    };
                    self.note(Kind::LeftOut, *file, it.place, format!("{lost}: {why}"));
                }
                continue;
            }
            let Some(next) = self.step(level, index, way) else {
                continue;
            };
            if let Some(limit) = &it.limit {
                self.rule(*file, it, limit, &next);
            }
            let children: Level<'t> = it.children.iter().map(|child| (*file, child)).collect();
            self.walk(&children, &next);
        }
    }

    /// The way to one node of a level; `None` if no request takes it.
    fn step(&mut self, level: &Level<'t>, index: usize, way: &Way<'t>) -> Option<Way<'t>> {
        let (file, it) = level[index];
        let mut next = way.clone();
        next.steps.push((&it.key, &it.values));
        next.composite = format!("{}.{}", way.composite, it.composite);
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
                    exact.push(wildcard.text());
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
                // Of wildcards the first wins, but a value that reads like one is no wildcard.
                wild.retain(|(at, _)| *at < index);
                if let Some((_, all)) = wild.iter().find(|(_, other)| other.is_all()) {
                    let message = format!(
                        "the original never gets here but for the value `{}` itself: `{}` \
                         stands before it and matches every value",
                        own.text(),
                        all.text()
                    );
                    self.note(Kind::Odd, file, it.place, message);
                    next.matches
                        .push((it.key.clone(), vec![literal_pattern(own.text())]));
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
                        "the original never gets here: the value `{}` of `{}` matches everything",
                        all.text(),
                        it.key
                    );
                    self.note(Kind::NoEffect, file, it.place, message);
                    return None;
                }
                next.per.push(it.key.clone());
                let said = self.exclude_wild(file, it, &wild, None, &name, &mut next);
                exact.retain(|value| !said.iter().any(|other| other.matches(value)));
            }
        }
        match exact.as_slice() {
            [] => {}
            [one] => {
                let condition = format!("{name} != {}", double_quoted(one));
                next.when.push((condition, &it.key));
            }
            many => {
                let many: Vec<String> = many.iter().map(|value| double_quoted(value)).collect();
                let condition = format!("!({name} in [{}])", many.join(", "));
                next.when.push((condition, &it.key));
            }
        }
        Some(next)
    }

    /// Conditions that what these match is somebody else's. Gives those that could be said.
    fn exclude_wild<'w>(
        &mut self,
        file: usize,
        it: &'t Descriptor,
        wild: &[(usize, &'w Wildcard)],
        own: Option<&Wildcard>,
        name: &str,
        way: &mut Way<'t>,
    ) -> Vec<&'w Wildcard> {
        let mut said = Vec::new();
        for (_, other) in wild {
            let Some(condition) = other.condition(name) else {
                let message = format!(
                    "a value of `{}` that matches `{}` counts here too, which the original counts \
                     there only: no expression says so many stars",
                    it.key,
                    other.text()
                );
                self.note(Kind::Differs, file, it.place, message);
                continue;
            };
            let condition = match own {
                Some(own) if other.matches(own.text()) => {
                    format!(
                        "({name} == {} || !({condition}))",
                        double_quoted(own.text())
                    )
                }
                _ => format!("!({condition})"),
            };
            way.when.push((condition, &it.key));
            said.push(*other);
        }
        said
    }

    fn rule(&mut self, file: usize, it: &'t Descriptor, limit: &'t RateLimit, way: &Way<'t>) {
        let mut parts = vec![self.domain.to_owned()];
        if limit.name.is_empty() {
            parts.extend(way.steps.iter().map(|(key, values)| match values {
                Values::Any => (*key).to_owned(),
                Values::One(value) => format!("{key}-{value}"),
                Values::Wild(wildcard) => format!("{key}-{}", wildcard.text()),
            }));
        } else {
            parts.push(limit.name.clone());
        }
        let id = self
            .ids
            .id(&parts, &format!("{}{}", self.domain, way.composite));
        self.note_limit(file, it, limit);
        let when = self.when(file, it, way);
        let (line, _) = self.files[file].problems.position(it.place);
        self.rules.push(Rule {
            id,
            origin: format!("{}:{line}", self.files[file].name),
            matches: way.matches.clone(),
            when: Some(when),
            per: way.per.clone(),
            limit: limit.numbers.map(|(amount, _)| amount),
            seconds: limit.numbers.map_or(1, |(_, seconds)| seconds),
            charge_denied: limit.numbers.is_some(),
            shadow: it.shadow,
        });
        self.ways.push((way.clone(), file, it.place));
    }

    /// That there are these entries and no others, and whose values are somebody else's.
    fn when(&mut self, file: usize, it: &Descriptor, way: &Way<'t>) -> String {
        const AND: &str = " && ";
        let count = format!("size(attributes) == {}", way.steps.len() + 1);
        // The shortest first: as many as fit. What does not is said once of each key.
        let mut shortest: Vec<usize> = (0..way.when.len()).collect();
        shortest.sort_by_key(|index| way.when[*index].0.len());
        let mut length = count.len();
        let (mut kept, mut dropped) = (BTreeSet::new(), BTreeSet::new());
        for index in shortest {
            let (text, key) = &way.when[index];
            length += AND.len() + text.len();
            if length <= MAX_WHEN {
                kept.insert(index);
            } else {
                dropped.insert(*key);
            }
        }
        for key in dropped {
            let message = format!(
                "values of `{key}` that the original counts elsewhere count here too: they are \
                 more than the {MAX_WHEN} bytes of an expression can exclude"
            );
            self.note(Kind::Differs, file, it.place, message);
        }
        let kept = kept.iter().map(|index| way.when[*index].0.as_str());
        let parts: Vec<&str> = std::iter::once(count.as_str()).chain(kept).collect();
        parts.join(AND)
    }

    fn note_limit(&mut self, file: usize, it: &Descriptor, limit: &RateLimit) {
        if let Some(place) = it.quota {
            let message = "`quota_mode`: the original refuses a request of several such \
                           descriptors when all are used up, Tollgate when one is";
            self.note(Kind::Differs, file, place, message);
        }
        for (name, place) in &limit.replaces {
            let shown = shortened(name);
            let (kind, message) = if self.names.contains(name.as_str()) {
                let message = format!(
                    "`replaces`: in a request that this applies to, the original does not count \
                     `{shown}`. Tollgate decides each descriptor on its own: both count"
                );
                (Kind::Differs, message)
            } else {
                let message = format!(
                    "`replaces`: no limit of the domain is called `{shown}`, so there is nothing \
                     to replace"
                );
                (Kind::NoEffect, message)
            };
            self.note(kind, file, *place, message);
        }
    }

    /// Notes limits, from `first` on, that the same entries in another order lead to.
    fn note_orders(&mut self, first: usize) {
        let mut groups: HashMap<Vec<&str>, Vec<usize>> = HashMap::new();
        for (index, (way, ..)) in self.ways.iter().enumerate().skip(first) {
            if way.steps.len() > 1 {
                let mut keys: Vec<&str> = way.steps.iter().map(|(key, _)| *key).collect();
                keys.sort_unstable();
                groups.entry(keys).or_default().push(index);
            }
        }
        let mut found = Vec::new();
        for group in groups.into_values() {
            for (at, later) in group.iter().enumerate() {
                let meets =
                    |earlier: &&usize| self.ways[**earlier].0.is_reordered(&self.ways[*later].0);
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
                "it has the entries of `{}`{more} in another order. The original tells them apart \
                 by the order; here a request that fits both counts in both",
                self.rules[earlier].id
            );
            let (_, file, place) = self.ways[later];
            self.note(Kind::Differs, file, place, message);
        }
    }

    fn note_whole(&mut self) {
        if self.ways.iter().any(|(way, ..)| way.steps.len() > 1) {
            let message = "the entries of a descriptor may come in any order; the original wants \
                           the order of its config, and ignores others";
            self.notes.push(Note::general(Kind::Differs, message));
        }
        if self
            .rules
            .iter()
            .any(|rule| rule.per.iter().any(|it| it == ADDRESS))
        {
            let message = "`ip` is read as an address: IPv6 clients are limited by their /64. \
                           `subjects: { ipv6_prefix: 128 }` limits them one by one";
            self.notes.push(Note::general(Kind::Differs, message));
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
