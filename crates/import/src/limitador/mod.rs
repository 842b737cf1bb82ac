//! Converts limits of Limitador (Kuadrant/limitador).
//!
//! A limit applies to requests of its namespace for which all its conditions hold and all its variables
//! have a value. Each combination of these values has its own count. As with rules of Tollgate, a
//! request counts only if all limits that apply admit it.
//!
//! So a namespace becomes a `domain`, and variables become a `per`. A condition `entry == 'value'`
//! becomes a `match`, and other conditions become a `when`.

mod condition;
mod tokens;

use std::collections::{BTreeSet, HashMap};

use tollgate_core::MAX_AMOUNT;
use tollgate_rules::document::{Node, Place, Problems, Value, entries, parse_document, wanted};
use tollgate_rules::{ConfigError, is_attribute_name};

use crate::emit::{Rule, config, rejection, too_many};
use crate::ids::Ids;
use crate::note::{ADDRESS, Kind, Note};
use crate::write::literal_pattern;
use crate::{Imported, MAX_LIMITS, Source, read};
use condition::{Conditions, Names};

/// A limit as written in the file.
#[derive(Debug)]
struct Limit {
    place: Place,
    namespace: String,
    max_value: u64,
    seconds: u64,
    name: Option<String>,
    id: Option<String>,
    conditions: Vec<(String, Place)>,
    variables: Vec<(String, Place)>,
}

/// The parts by which Limitador identifies a limit.
type Identity = (String, u64, BTreeSet<String>, BTreeSet<String>);

/// Converts a limits file of Limitador into a config.
///
/// # Errors
/// All problems of the file, if Limitador would reject it.
pub fn limitador(source: &Source<'_>) -> Result<Imported, Vec<ConfigError>> {
    let mut converter = Converter {
        file: source.name,
        problems: Problems::new(source.text),
        notes: Vec::new(),
        ids: Ids::default(),
        seen: HashMap::new(),
        bare: false,
        address: false,
    };
    let limits = converter.limits();
    let Some(limits) = limits.filter(|_| converter.problems.is_empty()) else {
        return Err(vec![converter.problems.into_error(source.name)]);
    };
    let rules = limits.iter().filter_map(|limit| converter.rule(limit));
    let rules: Vec<Rule> = rules.collect();
    let place = |note: &Note| note.position.as_ref().map(|it| (it.line, it.column));
    converter.notes.sort_by_key(place);
    converter.note_whole(!rules.is_empty());
    let title = format!("Imported from Limitador: {}", source.name);
    config(&title, &rules, converter.notes).map_err(|error| vec![error])
}

/// Reads the file, and makes the rules of all limits.
struct Converter<'s> {
    file: &'s str,
    problems: Problems<'s>,
    notes: Vec<Note>,
    ids: Ids,
    /// The limits so far, each with its place.
    seen: HashMap<Identity, Place>,
    /// Whether a limit uses the syntax before Limitador 2.
    bare: bool,
    /// Whether a limit counts by `ip`, which Tollgate reads as an address.
    address: bool,
}

impl Converter<'_> {
    fn limits(&mut self) -> Option<Vec<Limit>> {
        let root = parse_document("write a list of limits", &mut self.problems)?;
        let Value::List(items) = &root.value else {
            let help = "a limits file is a list: write `- namespace: …` for each limit";
            wanted("a list of limits", help, &root, &mut self.problems);
            return None;
        };
        if let Some(item) = items.get(MAX_LIMITS) {
            let (message, help) = too_many();
            self.problems.report(item.place, message, help);
            return None;
        }
        Some(items.iter().filter_map(|item| self.limit(item)).collect())
    }

    fn limit(&mut self, node: &Node) -> Option<Limit> {
        let start = Place::new(node.place.start, node.place.start);
        let mut fields: HashMap<&str, (Place, &Node)> = HashMap::new();
        for (name, place, value) in entries(node, "a limit", &mut self.problems)? {
            const FIELDS: [&str; 7] = [
                "namespace",
                "max_value",
                "seconds",
                "conditions",
                "variables",
                "name",
                "id",
            ];
            if !FIELDS.contains(&name) {
                let message =
                    format!("`{name}` is not a field of a limit; it is ignored, as by Limitador");
                self.note(Kind::NoEffect, place, message);
            } else if let Some((first, _)) = fields.insert(name, (place, value)) {
                read::duplicate(name, place, first, &mut self.problems);
            }
        }
        let mut required = |name: &str, sample: &str| {
            let found = fields.get(name).map(|(_, node)| *node);
            if found.is_none() {
                let help = format!("add `{name}: {sample}`");
                self.problems
                    .report(start, format!("this limit has no `{name}`"), help);
            }
            found
        };
        let namespace = required("namespace", "example.org");
        let seconds = required("seconds", "60");
        let conditions = required("conditions", "[]");
        let variables = required("variables", "[]");
        let namespace =
            namespace.and_then(|node| read::text(node, "a namespace", &mut self.problems));
        let seconds = seconds.and_then(|node| read::whole(node, u64::MAX, &mut self.problems));
        let conditions = conditions.and_then(|node| self.texts(node, "a condition"));
        let variables = variables.and_then(|node| self.texts(node, "a variable"));
        let max_value = match fields.get("max_value") {
            Some((_, node)) => read::whole(node, u64::MAX, &mut self.problems),
            None => {
                let message = "`max_value` is missing and counts as 0: everything is denied";
                self.note(Kind::Odd, start, message);
                Some(0)
            }
        };
        let mut optional = |name: &str| {
            let (_, node) = fields.get(name)?;
            let text = read::text(node, &format!("a text as `{name}`"), &mut self.problems)?;
            (!text.is_empty()).then_some(text)
        };
        let (name, id) = (optional("name"), optional("id"));
        Some(Limit {
            place: start,
            namespace: namespace?,
            max_value: max_value?,
            seconds: seconds?,
            name,
            id,
            conditions: conditions?,
            variables: variables?,
        })
    }

    fn texts(&mut self, node: &Node, what: &str) -> Option<Vec<(String, Place)>> {
        match &node.value {
            Value::List(items) => items
                .iter()
                .map(|item| Some((read::text(item, what, &mut self.problems)?, item.place)))
                .collect(),
            _ if node.is_null() => Some(Vec::new()),
            _ => {
                let help = "write a list, one per line after a dash, or [] for none";
                wanted("a list", help, node, &mut self.problems);
                None
            }
        }
    }

    fn rule(&mut self, limit: &Limit) -> Option<Rule> {
        let texts = |list: &[(String, Place)]| list.iter().map(|(text, _)| text.clone()).collect();
        let identity = (
            limit.namespace.clone(),
            limit.seconds,
            texts(&limit.conditions),
            texts(&limit.variables),
        );
        if let Some(first) = self.seen.get(&identity) {
            let line = self.problems.position(*first).0;
            let message = format!(
                "this limit differs from the one on line {line} only in its number and names. Limitador \
                 treats them as one limit and uses the first"
            );
            self.note(Kind::LeftOut, limit.place, message);
            return None;
        }
        self.seen.insert(identity, limit.place);
        if limit.seconds == 0 {
            let message = "a window of 0 seconds limits nothing";
            self.note(Kind::LeftOut, limit.place, message);
            return None;
        }
        let (conditions, per) = self.convert_conditions(limit)?;
        if !self.reads_one_descriptor(limit, &conditions) {
            return None;
        }
        let rule = self.make_rule(limit, &conditions, per);
        if let Some(why) = rejection(&rule) {
            let message = format!("Tollgate rejects the rule: {why}");
            self.note(Kind::LeftOut, limit.place, message);
            return None;
        }
        self.bare |= conditions.bare;
        self.address |= rule.per.iter().any(|name| name == "ip");
        Some(rule)
    }

    /// Converts the conditions and the variables. If a part cannot be converted, the limit is left out:
    /// without that part, the limit would apply to other requests.
    fn convert_conditions(&mut self, limit: &Limit) -> Option<(Conditions, Vec<String>)> {
        let mut conditions = Conditions::default();
        let names = Names {
            name: limit.name.as_deref(),
            id: limit.id.as_deref(),
        };
        for (text, place) in &limit.conditions {
            if let Err(why) = conditions.add(text, names) {
                let message = format!("the limit with this condition: {why}");
                self.note(Kind::LeftOut, *place, message);
                return None;
            }
        }
        let mut per: Vec<String> = Vec::new();
        for (text, place) in &limit.variables {
            match conditions.variable(text) {
                Ok(key) if per.contains(&key) => {}
                Ok(key) => per.push(key),
                Err(why) => {
                    let message = format!("the limit with this variable: {why}");
                    self.note(Kind::LeftOut, *place, message);
                    return None;
                }
            }
        }
        let bad = |key: &&String| key.as_str() == "domain" || !is_attribute_name(key);
        if let Some(key) = conditions.keys.iter().find(bad) {
            let shown: String = key.chars().take(60).collect();
            let message = format!(
                "`{shown}` cannot be the key of an entry. Use at most 64 letters, digits, `_`, `.` and `-`, \
                 beginning with a letter or `_`, and not `domain`, here and in Envoy"
            );
            self.note(Kind::LeftOut, limit.place, message);
            return None;
        }
        Some((conditions, per))
    }

    /// Whether the limit reads only one descriptor, as rules do. Otherwise a note says why the limit is
    /// left out.
    fn reads_one_descriptor(&mut self, limit: &Limit, conditions: &Conditions) -> bool {
        let mut descriptors = conditions.descriptors.iter();
        match (descriptors.next(), descriptors.next()) {
            (Some(_), Some(_)) => {
                let message = "this limit reads several descriptors of a request; Tollgate decides \
                               each on its own. Send their entries in one descriptor";
                self.note(Kind::LeftOut, limit.place, message);
                false
            }
            (Some(&number @ 1..), None) => {
                let message = format!(
                    "this limit reads only `descriptors[{number}]`; Tollgate applies it to every descriptor \
                     that matches"
                );
                self.note(Kind::Differs, limit.place, message);
                true
            }
            _ => true,
        }
    }

    fn make_rule(&mut self, limit: &Limit, conditions: &Conditions, per: Vec<String>) -> Rule {
        let mut parts = vec![limit.namespace.clone()];
        match limit.id.as_ref().or(limit.name.as_ref()) {
            Some(name) => parts.push(name.clone()),
            None => {
                let matched = conditions.matches.iter();
                parts.extend(matched.map(|(key, values)| format!("{key}-{}", values.join("-"))));
                parts.extend(per.iter().cloned());
                parts.push(format!("{}s", limit.seconds));
            }
        }
        let whole = format!("{:?} {:?}", limit.conditions, limit.variables);
        let whole = format!("{} {} {whole}", limit.namespace, limit.seconds);
        let mut matches = vec![("domain".to_owned(), vec![literal_pattern(&limit.namespace)])];
        matches.extend(conditions.matches.iter().cloned());
        let when = conditions.when.join(" && ");
        if limit.max_value > MAX_AMOUNT {
            let message = format!(
                "a `max_value` above {MAX_AMOUNT} is too large for Tollgate: written as `unlimited`"
            );
            self.note(Kind::Differs, limit.place, message);
        }
        let (line, _) = self.problems.position(limit.place);
        Rule {
            id: self.ids.id(&parts, &whole),
            origin: format!("{}:{line}", self.file),
            matches,
            when: (!when.is_empty()).then_some(when),
            per,
            limit: Some(limit.max_value).filter(|max| *max <= MAX_AMOUNT),
            seconds: limit.seconds,
            charge_denied: false,
            shadow: false,
        }
    }

    fn note_whole(&mut self, any: bool) {
        if !any {
            return;
        }
        let mut general = |message: &str| self.notes.push(Note::general(Kind::Differs, message));
        general(
            "windows follow the clock (`1m` starts on the minute); those of Limitador start with the first \
             request",
        );
        general(
            "each descriptor of a request counts on its own; Limitador counts a request once, by the \
             descriptors that the limit reads, mostly `descriptors[0]`",
        );
        if self.bare {
            general(
                "names without `descriptors[0]` are read as entries, as before Limitador 2; newer versions \
                 never apply such limits",
            );
        }
        if self.address {
            general(ADDRESS);
        }
    }

    fn note(&mut self, kind: Kind, place: Place, message: impl Into<String>) {
        let note = Note::at(kind, self.file, &self.problems, place, message);
        self.notes.push(note);
    }
}
