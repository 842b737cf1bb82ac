//! Checks the fields of a [`RawPolicy`], reports every problem, and turns them into a [`Policy`].

mod allowance;
mod formula;
mod rule;
pub(crate) mod tiers;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use self::rule::check_attribute;

use crate::document::{Field, Place, Problems, Short};
use crate::expr::Declared;
use crate::policy::Policy;
use crate::raw::RawPolicy;
use crate::tiers::Tiers;
use crate::validate::tiers::Allowances;

/// The names that attributes may have, as a regular expression for the schema.
#[cfg(feature = "schema")]
pub(crate) const ATTRIBUTE_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";

/// How to write the id of a rule, a budget, a plan or a namespace.
pub const ID_HELP: &str =
    "use letters, digits, `.`, `_` and `-`, start with a letter or digit, 64 characters at most";

/// Whether `name` may be the name of an attribute.
#[must_use]
pub fn is_attribute_name(name: &str) -> bool {
    is_name(name, |first| first.is_ascii_alphabetic() || first == b'_')
}

/// Whether `id` may be the id of a rule, a budget, a plan or a namespace.
#[must_use]
pub fn is_id(id: &str) -> bool {
    is_name(id, |first| first.is_ascii_alphanumeric())
}

fn is_name(name: &str, may_start: impl Fn(u8) -> bool) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(may_start)
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// The parts of a config outside its policy that rules depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outside<'c> {
    /// Whether there is a ledger.
    pub ledger: bool,
    /// The names of the stores beside the default store.
    pub stores: &'c [Arc<str>],
}

impl RawPolicy {
    /// Turns the fields into a policy. If problems were reported, the result must not be used.
    ///
    /// `start` is where the map of the fields starts.
    pub fn validate(
        &self,
        start: Place,
        outside: Outside<'_>,
        problems: &mut Problems<'_>,
    ) -> Policy {
        let help = "this Tollgate reads version 1: write `version: 1`";
        match &self.version {
            Field::Absent => problems.report(start, "the config has no `version`", help),
            Field::Given { at, .. } if at.value.0 != 1 => {
                let message = format!("version {} is not supported", at.value.0);
                problems.report(at.place, message, help);
            }
            Field::Broken { .. } | Field::Given { .. } => {}
        }
        if self.rules.is_absent() {
            let help = "add `rules`; write `rules: []` to allow everything";
            problems.report(start, "the config has no `rules`", help);
        }
        let mut declared = Declared::new();
        for (name, at) in self.attributes.value().map_or(&[][..], |named| &named.0) {
            rule::check_attribute(&name.value, name.place, problems);
            if declared.insert(name.value.clone(), at.value).is_some() {
                let message = format!("`{}` is declared twice", Short(&name.value));
                problems.report(name.place, message, "keep one of the two");
            }
        }
        let budgets = tiers::budgets(self.budgets.value(), outside, problems);
        let scope = rule::Scope {
            budgets: &budgets,
            declared: &declared,
            outside,
        };
        let list = self.rules.value().map_or(&[][..], |list| &list.0);
        let rules = rule::rules(list, &scope, problems);
        let mut tiers = Tiers::default();
        // Plans and tenants are checked only if nothing was reported so far. Otherwise each plan or
        // tenant that names a broken rule would report that rule again, as missing.
        if problems.is_empty() {
            let allowances = Allowances::new(&rules, &budgets);
            tiers = tiers::plans(self, &allowances, problems);
            if let Some(named) = self.tenants.value() {
                let mut tenants = HashMap::new();
                tiers::tenants(named, &tiers, &allowances, &mut tenants, problems);
                tiers.tenants = Arc::new(tenants);
            }
        }
        let hash = blake3::hash(problems.source().as_bytes()).to_hex();
        Policy {
            rules,
            tiers,
            budgets,
            version: hash[..12].to_owned(),
        }
    }
}
