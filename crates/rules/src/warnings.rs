//! Warnings about rules that are valid, but may not limit what their author expects.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tollgate_core::Limit;

use crate::mode::ModeName;
use crate::policy::Policy;
use crate::rule::{Condition, Cost, Missing, Rule, RuleState};

/// A rule that may not limit what its author expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The rule.
    pub rule: Arc<str>,
    /// The problem, in words.
    pub message: String,
    /// The remedy.
    pub help: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule `{}`: {}", self.rule, self.message)
    }
}

impl Policy {
    /// Returns the rules that may not limit what their author expects.
    ///
    /// ```
    /// # use tollgate_rules::Policy;
    /// let policy = Policy::parse("rules.yaml", "
    /// version: 1
    /// rules: [{ id: tokens, algorithm: fixed-window, limit: 5, window: 1m, cost: int(tokens) }]
    /// ")?;
    /// let warnings = policy.warnings();
    /// assert!(warnings[0].to_string().starts_with("rule `tokens`: `cost` reads `tokens`"));
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let rules = self.rules.iter();
        let enabled = rules.filter(|rule| rule.state != RuleState::Disabled);
        // With `missing: deny`, a request without the attribute is denied.
        let skipping = enabled.clone().filter(|rule| rule.missing == Missing::Skip);
        let unpriced = skipping.flat_map(unpriced);
        unpriced.chain(enabled.filter_map(without_room)).collect()
    }
}

/// Returns a warning for a leased rule whose numbers leave no room for slices of the configured time.
fn without_room(rule: &Rule) -> Option<Warning> {
    let (limit, modes) = (&rule.counting.limit, rule.counting.modes);
    let is_leased = modes.name == ModeName::Leased && !matches!(limit, Limit::Unlimited(_));
    let message = modes.shortened(limit).filter(|_| is_leased)?;
    Some(Warning {
        rule: Arc::clone(&rule.id),
        message,
        help: "raise the burst or capacity, lengthen the window, or shorten `slice`".to_owned(),
    })
}

/// Returns a warning for each attribute that the cost needs. A request without the attribute has no
/// cost, so the rule does not limit it.
fn unpriced(rule: &Rule) -> Vec<Warning> {
    let mut absent = BTreeSet::new();
    let mut sure: Vec<&str> = rule.per.iter().map(String::as_str).collect();
    sure.extend(attributes(&rule.conditions));
    collect(&rule.cost, &sure, &mut absent);
    let warning = |name: String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let given = match name.chars().all(is_plain) {
            true => format!("has(attributes.{name})"),
            false => format!("\"{name}\" in attributes"),
        };
        Warning {
            rule: Arc::clone(&rule.id),
            message: format!(
                "`cost` reads `{name}`, and the rule does not limit requests without that attribute"
            ),
            help: format!(
                "write a cost for such requests, such as '{given} ? … : 1', or `missing: deny`"
            ),
        }
    };
    absent.into_iter().map(warning).collect()
}

/// Collects the attributes that a cost needs and a request may lack. The attributes `sure` are
/// never missing, because the rule does not apply to requests without them.
fn collect(cost: &Cost, sure: &[&str], absent: &mut BTreeSet<String>) {
    match cost {
        Cost::Fixed(_) => {}
        Cost::Expr(expr) => {
            let needed = expr.needs().iter();
            let needed = needed.filter(|name| !sure.contains(&name.as_str()));
            absent.extend(needed.cloned());
        }
        Cost::Table(table) => {
            for (conditions, cost) in &table.rows {
                let mut sure = sure.to_vec();
                sure.extend(attributes(conditions));
                collect(cost, &sure, absent);
            }
            collect(&table.otherwise, sure, absent);
        }
    }
}

fn attributes(conditions: &[Condition]) -> impl Iterator<Item = &str> {
    conditions.iter().map(|it| it.attribute.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(fields: &str) -> Vec<String> {
        let text = format!(
            "version: 1\nattributes: {{ size: int }}\nrules:\n  - {{ id: r, algorithm: fixed-window, limit: 9, window: 1m, {fields} }}\n"
        );
        let policy = Policy::parse("rules.yaml", &text).unwrap();
        let names = policy.warnings();
        let names = names
            .iter()
            .map(|it| it.message.split('`').nth(3).unwrap().to_owned());
        names.collect()
    }

    #[test]
    fn leased_rule_without_room_for_its_slice_is_warned_of() {
        let warned = |numbers: &str| {
            let rule = format!("algorithm: gcra, mode: leased, {numbers}");
            let text = format!("version: 1\nrules: [{{ id: r, {rule} }}]\n");
            let warnings = Policy::parse("rules.yaml", &text).unwrap().warnings();
            warnings.into_iter().next().map(|it| it.message)
        };
        assert_eq!(warned("rate: 100/s, burst: 100"), None);
        let exact = warned("rate: 100/s, burst: 1").unwrap();
        assert!(exact.contains("the rule is exact"), "{exact}");
        let shorter = warned("rate: 100/s, burst: 10").unwrap();
        assert!(shorter.contains("50ms instead of 100ms"), "{shorter}");
    }

    #[test]
    fn cost_that_needs_an_attribute_is_warned_of() {
        assert_eq!(warned("cost: int(tokens)"), ["tokens"]);
        assert_eq!(warned("cost: size * 2"), ["size"]);
        assert_eq!(warned("cost: 'int(a) + int(b.c)'"), ["a", "b.c"]);
        let table =
            "cost: { table: [{ match: { a: x }, cost: 'int(a) + int(t)' }], otherwise: int(u) }";
        assert_eq!(warned(table), ["t", "u"]);
        assert_eq!(
            warned("cost: 'plan == \"free\" ? int(tokens) : 1'"),
            ["plan", "tokens"]
        );
        assert_eq!(warned("cost: '\"a\" in attributes ? int(b) : 1'"), ["b"]);
        assert_eq!(
            warned("cost: 'int(attributes[\"x-size\"]) + int(attributes.t)'"),
            ["t", "x-size"]
        );
    }

    #[test]
    fn cost_that_always_has_a_value_is_not_warned_of() {
        assert_eq!(warned("cost: 5"), [""; 0]);
        assert_eq!(warned("cost: int(tokens), missing: deny"), [""; 0]);
        assert_eq!(warned("cost: int(tokens), state: disabled"), [""; 0]);
        assert_eq!(warned("cost: int(tokens), per: [tokens]"), [""; 0]);
        assert_eq!(warned("cost: int(tokens), match: { tokens: '*' }"), [""; 0]);
        for default in [
            "'has(attributes.tokens) ? int(attributes.tokens) : 1'",
            "'has(attributes.tokens) ? int(tokens) : 1'",
            "'\"tokens\" in attributes ? int(tokens) : 1'",
            "'\"size\" in attributes ? size : 1'",
        ] {
            assert_eq!(warned(&format!("cost: {default}")), [""; 0], "{default}");
        }
    }
}
