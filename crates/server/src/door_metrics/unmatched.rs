//! Requests that no rule applied to, by action.
//!
//! Clients choose actions, so not every action can be a label. The actions of the config's routes are
//! labels, up to a bound. All other actions are counted together.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::Striped;
use tollgate_config::Routes;

/// The most actions with a count of their own, over all reloads together.
const MAX_ACTIONS: usize = 50;
/// The place of requests without an action.
const NONE: usize = 0;
/// The place of requests with any other action.
const OTHER: usize = 1;
/// The place of the first action of a route.
const FIRST: usize = 2;

/// The label of any other action. A route may have an action of this name; it is then counted here too.
const OTHER_NAME: &str = "other";

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Unmatched {
    counts: Striped<{ FIRST + MAX_ACTIONS }>,
    /// The actions of routes so far, by their places after [`FIRST`]. An action keeps its place over
    /// reloads, so that its count never falls.
    names: Mutex<Vec<Arc<str>>>,
}

/// The places of the actions of a config.
#[derive(Debug, Default)]
pub(crate) struct Actions(HashMap<Arc<str>, usize>);

impl Unmatched {
    /// Returns the places of the actions of `routes`.
    pub(crate) fn actions(&self, routes: &Routes) -> Actions {
        let mut names = self.names.lock();
        let mut places = HashMap::new();
        for action in routes.actions() {
            if **action == *OTHER_NAME || places.contains_key(action) {
                continue;
            }
            let known = names.iter().position(|name| name == action);
            let place = match known {
                Some(place) => place,
                None if names.len() < MAX_ACTIONS => {
                    names.push(Arc::clone(action));
                    names.len() - 1
                }
                None => continue,
            };
            places.insert(Arc::clone(action), FIRST + place);
        }
        Actions(places)
    }

    /// Counts a request with this action.
    pub(crate) fn count(&self, actions: &Actions, action: Option<&str>) {
        let place = match action {
            None => NONE,
            Some(action) => actions.0.get(action).copied().unwrap_or(OTHER),
        };
        self.counts.add(place, 1);
    }

    /// Returns the counts by action. The action is empty for requests without an action. Requests without
    /// an action are always shown, other actions only if they occurred.
    pub(crate) fn counts(&self) -> Vec<(Arc<str>, u64)> {
        let names = self.names.lock();
        let special = ["", OTHER_NAME].into_iter().map(Arc::from);
        let labels = special.chain(names.iter().cloned());
        let counts = labels.zip(self.counts.sums());
        counts
            .filter(|(action, count)| *count > 0 || action.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn routes(actions: &[&str]) -> Routes {
        let mut yaml = "version: 1\nrules: []\nroutes:\n".to_owned();
        for action in actions {
            let _ = writeln!(yaml, "  - {{ path: /{action}, action: {action} }}");
        }
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        config.routes
    }

    fn shown(unmatched: &Unmatched) -> Vec<(String, u64)> {
        let counts = unmatched.counts().into_iter();
        counts
            .map(|(name, count)| (name.to_string(), count))
            .collect()
    }

    #[test]
    fn only_actions_of_routes_are_labels() {
        let unmatched = Unmatched::default();
        let actions = unmatched.actions(&routes(&["login", "search", "other"]));
        for action in [Some("login"), Some("login"), Some("x"), Some("other"), None] {
            unmatched.count(&actions, action);
        }
        let expected = [("", 1), ("other", 2), ("login", 2)];
        assert_eq!(
            shown(&unmatched),
            expected.map(|(name, count)| (name.to_owned(), count))
        );
    }

    #[test]
    fn action_keeps_its_count_over_reloads() {
        let unmatched = Unmatched::default();
        let before = unmatched.actions(&routes(&["login"]));
        unmatched.count(&before, Some("login"));
        let after = unmatched.actions(&routes(&["search", "login"]));
        unmatched.count(&after, Some("login"));
        assert!(shown(&unmatched).contains(&("login".to_owned(), 2)));
    }

    #[test]
    fn actions_beyond_the_bound_are_counted_together() {
        let unmatched = Unmatched::default();
        let names: Vec<String> = (0..MAX_ACTIONS + 9).map(|i| format!("a{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let actions = unmatched.actions(&routes(&names));
        for name in &names {
            unmatched.count(&actions, Some(name));
        }
        let shown = shown(&unmatched);
        // The actions, `other`, and requests without an action.
        assert_eq!(shown.len(), MAX_ACTIONS + 2);
        assert!(shown.contains(&("other".to_owned(), 9)));
    }
}
