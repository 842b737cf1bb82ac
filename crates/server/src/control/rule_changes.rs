//! The differences between the rules of two configs.

use std::collections::HashMap;

use serde::Serialize;
use tollgate::Rule;
use utoipa::ToSchema;

use crate::audit::MAX_NAMED;

/// Rules that have changed, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RuleChanges)]
#[non_exhaustive]
pub struct Changes {
    /// Rules that are new.
    pub added: Named,
    /// Rules that are gone.
    pub removed: Named,
    /// Rules that have changed.
    pub changed: Named,
}

/// A number of rules, and their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = NamedRules)]
#[non_exhaustive]
pub struct Named {
    /// The number of rules.
    pub count: usize,
    /// The ids of the rules: at most the first 50.
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
    /// Compares two lists of rules.
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

/// Returns whether two rules are the same. Compares their debug output, which has every field, because
/// expressions cannot be compared.
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
    fn rules_are_compared_by_id_in_any_order() {
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
    fn only_the_first_ids_are_listed() {
        let lines: Vec<String> = (0..80).map(|it| format!("id: r{it}, limit: 1")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let added = Changes::between(&[], &rules(&lines)).added;
        assert_eq!((added.count, added.ids.len()), (80, MAX_NAMED));
    }
}
