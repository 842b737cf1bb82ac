//! The way from the root of a tree to one of its nodes.

use tollgate_rules::is_attribute_name;

use super::tree::shortened;
use super::wildcard::Values;

/// The attribute that holds the domain.
pub(super) const DOMAIN: &str = "domain";

/// The way to a node: what requests that come there are like.
#[derive(Clone, Debug, Default)]
pub(super) struct Way<'t> {
    pub(super) steps: Vec<(&'t str, &'t Values)>,
    pub(super) composite: String,
    pub(super) matches: Vec<(String, Vec<String>)>,
    pub(super) per: Vec<String>,
    /// What must not be, as conditions; and of whose values.
    pub(super) when: Vec<(String, &'t str)>,
}

impl Way<'_> {
    /// Why a request with this entry too cannot come to Tollgate, if so.
    pub(super) fn cannot_have(&self, key: &str) -> Option<String> {
        if key == DOMAIN {
            Some(
                "Tollgate keeps the name `domain` for the domain of a request. Call the entry \
                 otherwise, in Envoy too"
                    .to_owned(),
            )
        } else if !is_attribute_name(key) {
            Some(format!(
                "`{}` cannot be the key of an entry: write letters, digits, `_`, `.` and `-`, a \
                 letter or `_` first, 64 at most. Call it otherwise, in Envoy too",
                shortened(key)
            ))
        } else if self.steps.iter().any(|(known, _)| *known == key) {
            Some(format!(
                "`{key}` is there twice on the way to it, and Tollgate takes a key once. Give one of \
                 the two a `descriptor_key` of its own, in Envoy too"
            ))
        } else {
            None
        }
    }

    /// Whether a request may fit both, and the keys come in another order.
    pub(super) fn is_reordered(&self, other: &Way<'_>) -> bool {
        let same = self.steps.iter().zip(&other.steps);
        let reordered = same.into_iter().any(|((a, _), (b, _))| a != b);
        reordered
            && self.steps.iter().all(|(key, values)| {
                let theirs = other.steps.iter().find(|(theirs, _)| theirs == key);
                theirs.is_some_and(|(_, theirs)| values.may_meet(theirs))
            })
    }
}
