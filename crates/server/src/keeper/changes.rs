//! What is new about the rules of a config.

use std::collections::HashMap;

use serde::Serialize;
use tollgate::Rule;
use utoipa::ToSchema;

use crate::audit::MAX_NAMED;

/// What is new about rules, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RuleChanges)]
#[non_exhaustive]
pub struct Changes {
    /// Those that were not there before.
    pub added: Named,
    /// Those that are not there any more.
    pub removed: Named,
    /// Those that are not what they were.
    pub changed: Named,
}

/// How many, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = NamedRules)]
#[non_exhaustive]
pub struct Named {
    /// How many there are.
    pub count: usize,
    /// Their ids; of many, the first 50.
    #[schema(max_items = 50)]
    pub ids: Vec<String>,
}

impl Named {
    fn add(&mut self, rule: &Rule) {
        self.count += 1;
        if self.ids.len() < MAX_NAMED {
            self.ids.push(rule.id().to_owned());
        }
    }
}

impl Changes {
    /// What is new about `after`.
    pub(super) fn between(before: &[Rule], after: &[Rule]) -> Changes {
        let mut known: HashMap<&str, &Rule> = before.iter().map(|it| (it.id(), it)).collect();
        let mut changes = Changes::default();
        for rule in after {
            match known.remove(rule.id()) {
                None => changes.added.add(rule),
                Some(was) if !is_same(was, rule) => changes.changed.add(rule),
                Some(_) => {}
            }
        }
        for rule in before.iter().filter(|it| known.contains_key(it.id())) {
            changes.removed.add(rule);
        }
        changes
    }
}

/// Whether two rules say the same. Everything that a rule has is told for debugging, and expressions
/// cannot be compared otherwise.
fn is_same(one: &Rule, other: &Rule) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(lines: &[&str]) -> Vec<Rule> {
        let more = "algorithm: fixed-window, window: 1s";
        let lines = lines.iter().map(|it| format!("- {{ {it}, {more} }}\n"));
        let yaml = format!("version: 1\nrules:\n{}", lines.collect::<String>());
        tollgate_config::parse("rules.yaml", &yaml, &|_| None)
            .unwrap()
            .policy
            .rules
    }

    #[test]
    fn rules_are_compared_by_id_whatever_their_order() {
        let before = rules(&[
            "id: a, limit: 1",
            "id: b, limit: 1, when: 'x == \"1\"'",
            "id: c, limit: 1",
            "id: d, limit: 1, when: 'x == \"1\"'",
        ]);
        let after = rules(&[
            "id: e, limit: 1",
            "id: d, limit: 1, when: 'x == \"1\"'",
            "id: b, limit: 1, when: 'x == \"2\"'",
            "id: a, limit: 2",
        ]);
        let changes = Changes::between(&before, &after);
        assert_eq!(changes.added.ids, ["e"]);
        assert_eq!(changes.removed.ids, ["c"]);
        assert_eq!(changes.changed.ids, ["b", "a"]);
        assert_eq!(Changes::between(&after, &after), Changes::default());
    }

    #[test]
    fn of_many_the_first_are_named() {
        let lines: Vec<String> = (0..80).map(|it| format!("id: r{it}, limit: 1")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let added = Changes::between(&[], &rules(&lines)).added;
        assert_eq!((added.count, added.ids.len()), (80, MAX_NAMED));
    }
}
