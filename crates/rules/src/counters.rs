//! Counters by the name of their allowance, for callers that know a key but not a request.

use tollgate_core::{Key, Limit, Tag};

use crate::RuleSet;
use crate::ruleset::TagFrom;

/// The place and the limit of a counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'r> {
    /// The key that unknown subjects share when the store is full.
    pub overflow: Key,
    /// The tag that places its keys in a cluster.
    pub tag: Tag,
    /// The limit of the tenant.
    pub limit: &'r Limit,
}

impl RuleSet {
    /// Returns the counter of `allowance` (the name of a rule or a budget) with this key, which belongs to
    /// `tenant`; `None` if there is no such allowance any more.
    #[must_use]
    pub fn counter(&self, allowance: &str, tenant: &str, key: Key) -> Option<Counter<'_>> {
        let rule = self.compiled.iter().find(|it| *it.name == *allowance)?;
        let tier = self.tenant.map(|_| self.tables.tier(Some(tenant)));
        let subject = key.subject(rule.salt);
        let tag = match &rule.tag {
            TagFrom::Nothing => Tag::default(),
            TagFrom::Subject => subject.tag(),
            // The tenant is the only part of a subject that places keys.
            TagFrom::Part(part) => self.subjects.get(*part)?.1.subject([tenant]).tag(),
            TagFrom::Rule(tag) => *tag,
            TagFrom::Group(tag, groups) => tag.group(subject.draw(*groups)),
        };
        Some(Counter {
            overflow: rule.overflow,
            tag,
            limit: &self.resolved(rule, tier).limit,
        })
    }
}
