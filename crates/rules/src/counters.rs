//! Finds a counter by the name of its allowance, for callers that know a key but not a request.

use tollgate_core::{Key, Limit, Mode, StoreId, Tag};

use crate::RuleSet;
use crate::ruleset::TagFrom;

/// Where a counter is stored, and its limit.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'r> {
    /// The key that unknown subjects share when the store is full.
    pub overflow: Key,
    /// The tag that places the keys in a cluster.
    pub tag: Tag,
    /// The store that keeps the counter.
    pub store: StoreId,
    /// The limit of the tenant.
    pub limit: &'r Limit,
    /// The mode of the rule: where requests are decided.
    pub mode: Mode,
}

impl RuleSet {
    /// Returns the counter of `allowance`, the name of a rule or a budget. `key` is the counter's key
    /// and belongs to `tenant`. `None` if the allowance does not exist any more.
    #[must_use]
    pub fn counter(&self, allowance: &str, tenant: &str, key: Key) -> Option<Counter<'_>> {
        let rule = self.compiled.iter().find(|it| *it.name == *allowance)?;
        let tier = self.tenant.map(|_| self.tables.tier(Some(tenant)));
        let subject = key.subject(rule.salt);
        let tag = match &rule.tag {
            TagFrom::Nothing => Tag::default(),
            TagFrom::Subject => subject.tag(),
            // In a placement by tenant, only the tenant attribute of a subject places its keys.
            TagFrom::Part(part) => self.subjects.get(*part)?.kind.subject([tenant]).tag(),
            TagFrom::Rule(tag) => *tag,
        };
        let resolved = self.resolved(rule, tier);
        Some(Counter {
            overflow: rule.overflow,
            tag,
            store: rule.store,
            limit: &resolved.limit,
            mode: resolved.mode,
        })
    }
}
