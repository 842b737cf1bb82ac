//! The differences between two policies, and the tenants they affect, in words.
//!
//! * `rules`: rules and budgets.
//! * `tiers`: plans and tenants.
//! * `numbers`: the numbers of limits, by plan.

mod numbers;
mod rules;
mod tiers;

use std::fmt;

use self::numbers::Numbered;
use crate::policy::Policy;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The subject of the change: a rule, a plan, tenants, a part of the config.
    pub about: String,
    /// The change, in words.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.what)
    }
}

/// Returns the changes from `old` to `new`, in this order: rules and budgets, plans, tenants.
///
/// ```
/// # use tollgate_rules::{Policy, diff};
/// # let rules = |rate: &str| Policy::parse("rules.yaml", &format!("
/// # version: 1
/// # rules: [{{ id: api, per: [tenant], algorithm: gcra, rate: {rate} }}]
/// # "));
/// let differences = diff(&rules("10/s")?, &rules("20/s")?);
/// assert_eq!(
///     differences[0].to_string(),
///     "rule api: rate 10/s becomes 20/s: more for tenants without a plan",
/// );
/// # Ok::<(), tollgate_rules::ConfigError>(())
/// ```
#[must_use]
pub fn diff(old: &Policy, new: &Policy) -> Vec<Difference> {
    let mut found = Found(Vec::new());
    let (before, after) = (Numbered::new(old), Numbered::new(new));
    rules::rules(&before, &after, &mut found);
    tiers::plans(&before, &after, &mut found);
    tiers::tenants(&before, &after, &mut found);
    found.0
}

struct Found(Vec<Difference>);

impl Found {
    fn note(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.0.push(Difference {
            about: about.into(),
            what: what.into(),
        });
    }
}
