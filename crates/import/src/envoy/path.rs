//! The path from the root of a tree to one of its nodes.

use tollgate_rules::is_attribute_name;

use super::tree::shortened;
use super::wildcard::Values;

/// The attribute that holds the domain.
pub(super) const DOMAIN: &str = "domain";

/// The path to a node, and the conditions of requests that reach the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Path<'t> {
    pub(super) steps: Vec<(&'t str, &'t Values)>,
    pub(super) composite: String,
    pub(super) matches: Vec<(String, Vec<String>)>,
    pub(super) per: Vec<String>,
    /// Conditions, each with its key. They exclude the values of other nodes.
    pub(super) when: Vec<(String, &'t str)>,
}

impl Path<'_> {
    /// Returns why no request in Tollgate can have this key in addition to the keys of this path;
    /// `None` if a request can.
    pub(super) fn why_unreachable(&self, key: &str) -> Option<String> {
        if key == DOMAIN {
            Some(
                "Tollgate uses the name `domain` for the domain of a request. Rename the entry, here and \
                 in Envoy"
                    .to_owned(),
            )
        } else if !is_attribute_name(key) {
            Some(format!(
                "`{}` cannot be the key of an entry. Use at most 64 letters, digits, `_`, `.` and `-`, \
                 beginning with a letter or `_`, here and in Envoy",
                shortened(key)
            ))
        } else if self.steps.iter().any(|(known, _)| *known == key) {
            Some(format!(
                "`{key}` occurs twice on this path of descriptors, and Tollgate accepts each key once. Give \
                 one of the two another `descriptor_key`, here and in Envoy"
            ))
        } else {
            None
        }
    }

    /// Whether a request may match both paths, which have the same keys in a different order.
    pub(super) fn is_reordered(&self, other: &Path<'_>) -> bool {
        let same = self.steps.iter().zip(&other.steps);
        let reordered = same.into_iter().any(|((a, _), (b, _))| a != b);
        reordered
            && self.steps.iter().all(|(key, values)| {
                let theirs = other.steps.iter().find(|(theirs, _)| theirs == key);
                theirs.is_some_and(|(_, theirs)| values.may_meet(theirs))
            })
    }
}
