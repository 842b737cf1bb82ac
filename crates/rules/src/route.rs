//! Routes: which action a request is, by its method, host and path.

use std::sync::Arc;

use crate::pattern::Pattern;

/// The routes of a config, in its order: the first that matches names the action.
///
/// ```
/// let config = tollgate_rules::parse("rules.yaml", r#"
/// version: 1
/// routes:
///   - { method: POST, path: /login, action: login }
///   - { host: "api.*", path: "/search*", action: search }
/// rules: []
/// "#, &|_| None)?;
/// let routes = &config.routes;
/// assert_eq!(routes.action("POST", None, "/login"), Some("login"));
/// assert_eq!(routes.action("GET", Some("api.example.com"), "/search/all"), Some("search"));
/// assert_eq!(routes.action("GET", None, "/login"), None);
/// # Ok::<(), tollgate_rules::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(pub(crate) Vec<Route>);

/// One route: what it matches, and what that is. A condition without values always holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) methods: Vec<String>,
    /// In small letters.
    pub(crate) hosts: Vec<Pattern>,
    pub(crate) paths: Vec<Pattern>,
    pub(crate) action: Arc<str>,
}

impl Routes {
    /// The action of a request. The host is in small letters and without its port, the path in its
    /// [normal form](crate::normal_path) and without its query.
    #[must_use]
    pub fn action(&self, method: &str, host: Option<&str>, path: &str) -> Option<&str> {
        let route = self
            .0
            .iter()
            .find(|route| route.matches(method, host, path))?;
        Some(&route.action)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Route {
    fn matches(&self, method: &str, host: Option<&str>, path: &str) -> bool {
        let one_of = |patterns: &[Pattern], value: &str| {
            patterns.is_empty() || patterns.iter().any(|it| it.matches(value))
        };
        (self.methods.is_empty() || self.methods.iter().any(|it| it == method))
            && host.map_or(self.hosts.is_empty(), |host| one_of(&self.hosts, host))
            && one_of(&self.paths, path)
    }

    /// Whether it matches every request.
    pub(crate) fn matches_all(&self) -> bool {
        self.methods.is_empty() && self.hosts.is_empty() && self.paths.is_empty()
    }
}
