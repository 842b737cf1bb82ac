//! Which keys of a rule share a cluster slot.

use crate::document::{Node, Problems, Read, Short, no_such_word, schema, whole};
use std::num::NonZeroU16;

const MAX_SHARDS: u64 = 1024;

/// Which keys of a rule share a cluster slot: the source of a key's hash tag. The store decides keys
/// with the same tag in one step. These keys share the capacity of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// All keys of a tenant share a cluster slot, whatever the rule. So a request is decided in one
    /// step.
    #[default]
    Tenant,
    /// All keys of a subject share a cluster slot, whatever the rule.
    Subject,
    /// All keys of the rule share a cluster slot.
    Rule,
    /// The allowance of each subject is split over this many keys: 1 to 1024. The keys are in different
    /// cluster slots.
    Sharded(NonZeroU16),
}

impl Read for Placement {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Placement> {
        match node.text() {
            Some("tenant") => return Some(Placement::Tenant),
            Some("subject") => return Some(Placement::Subject),
            Some("rule") => return Some(Placement::Rule),
            Some("sharded") => {
                let help = "add the number, such as sharded(16)";
                problems.report(node.place, "`sharded` has no number of parts", help);
                return None;
            }
            _ => {}
        }
        let text = node.text().unwrap_or_default();
        let parts = text.strip_prefix("sharded(");
        let Some(parts) = parts.and_then(|parts| parts.strip_suffix(')')) else {
            let words = ["tenant", "subject", "rule", "sharded(16)"];
            no_such_word("a placement", &words, node, problems);
            return None;
        };
        let parts = whole(parts).ok().filter(|parts| *parts <= MAX_SHARDS);
        let parts = parts.and_then(|parts| NonZeroU16::new(u16::try_from(parts).ok()?));
        if parts.is_none() {
            let message = format!("`{}` has no usable number of parts", Short(text));
            let help = format!("write a number from 1 to {MAX_SHARDS}, such as sharded(16)");
            problems.report(node.place, message, help);
        }
        parts.map(Placement::Sharded)
    }
}

schema!(Placement, "Placement", _generator => {
    "type": "string",
    "pattern": r"^(tenant|subject|rule|sharded\([0-9]+(_[0-9]+)*\))$",
    "examples": ["tenant", "subject", "rule", "sharded(16)"],
});
