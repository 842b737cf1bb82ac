//! Counters by the name of their allowance: for those who know a key and no request.

use tollgate_core::{Key, Limit, Tag};

use crate::RuleSet;
use crate::ruleset::TagFrom;

/// Where a counter is kept, and by which numbers.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'r> {
    /// What strangers share when the store is full.
    pub overflow: Key,
    /// What its keys are placed by.
    pub tag: Tag,
    /// The numbers that hold for the tenant.
    pub limit: &'r Limit,
}

impl RuleSet {
    /// The counter of `allowance`, a rule's id or a budget's, that has this key and belongs to `tenant`;
    /// `None` if there is no such allowance any more.
    #[must_use]
    pub fn counter(&self, allowance: &str, tenant: &str, key: Key) -> Option<Counter<'_>> {
        let rule = self.compiled.iter().find(|it| *it.name == *allowance)?;
        let tier = self.tenant.map(|_| self.tables.tier(Some(tenant)));
        let subject = key.subject(rule.salt);
        let tag = match &rule.tag {
            TagFrom::Nothing => Tag::default(),
            TagFrom::Subject => subject.tag(),
            // The only part of a subject that places keys is the tenant.
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
