//! Routes: they give a request its action at doors that see only method, host and path.

use std::sync::Arc;

use tollgate_rules::Pattern;
use tollgate_rules::document::{
    At, BadValue, Field, List, Place, Problems, Short, Text, Texts, section,
};

use crate::path::normal_path;

/// The routes of a config, in order: the first route that matches names the action.
///
/// ```
/// let config = tollgate_config::parse("rules.yaml", r#"
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
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(pub(crate) Vec<Route>);

/// One route: its conditions and its action. A condition without values matches every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) methods: Vec<String>,
    /// In lower case.
    pub(crate) hosts: Vec<Pattern>,
    pub(crate) paths: Vec<Pattern>,
    pub(crate) action: Arc<str>,
}

impl Routes {
    /// Returns the action of a request. Pass the host in lower case and without its port. Pass the path
    /// in its [normal form](crate::normal_path) and without its query.
    #[must_use]
    pub fn action(&self, method: &str, host: Option<&str>, path: &str) -> Option<&str> {
        let mut routes = self.0.iter();
        let route = routes.find(|route| route.matches(method, host, path))?;
        Some(&route.action)
    }

    /// Whether there are no routes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of routes.
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

    /// Whether the route matches every request.
    pub(crate) fn matches_all(&self) -> bool {
        self.methods.is_empty() && self.hosts.is_empty() && self.paths.is_empty()
    }
}

section! {
    /// A route of forward-auth: conditions on a request, and the action that matching requests get. All conditions must hold.
    pub(crate) struct RawRoute is "a route" {
        /// Methods, such as GET or [GET, HEAD]. Default: any.
        method: Texts = "method",
        /// Hosts without their ports, as globs. Default: any.
        host: Texts = "host",
        /// Paths without their queries, as globs. Default: any.
        path: Texts = "path",
        /// The value of the attribute action.
        action (required): Text = "action",
    }
}

const MAX_ROUTES: usize = 1000;
const MAX_ACTION: usize = 64;

pub(crate) fn routes(raw: Option<&List<RawRoute>>, problems: &mut Problems<'_>) -> Routes {
    let given = raw.map_or(&[][..], |list| &list.0);
    if let Some(at) = given.get(MAX_ROUTES) {
        let message = format!("there are more than {MAX_ROUTES} routes");
        problems.report(at.place, message, "use globs, and match paths in the rules");
    }
    let mut routes = Vec::new();
    let mut all: Option<Place> = None;
    for at in given.iter().take(MAX_ROUTES) {
        if let Some(first) = all {
            let line = problems.line_of(first);
            let place = Place::new(at.place.start, at.place.start);
            let help = format!("the route on line {line} matches everything: move it to the end");
            problems.report(place, "this route is never reached", help);
            break;
        }
        if let Some(route) = route(at, problems) {
            if route.matches_all() {
                all = Some(at.place);
            }
            routes.push(route);
        }
    }
    Routes(routes)
}

fn route(at: &At<RawRoute>, problems: &mut Problems<'_>) -> Option<Route> {
    let raw = &at.value;
    if raw.action.is_absent() {
        let start = Place::new(at.place.start, at.place.start);
        let help = "add the action that rules match, such as `action: search`";
        problems.report(start, "this route has no `action`", help);
    }
    // All fields are read, so that all problems are reported.
    let methods = values("method", &raw.method, method, problems);
    let hosts = values("host", &raw.host, host, problems);
    let paths = values("path", &raw.path, path, problems);
    let action = raw.action.get()?;
    let name = action.value.0.as_str();
    let is_plain = |byte: u8| byte.is_ascii_graphic();
    if name.is_empty() || name.len() > MAX_ACTION || !name.bytes().all(is_plain) {
        let message = format!("`{}` cannot be an action", Short(name));
        let help = format!(
            "use ASCII letters, digits and punctuation, no spaces, {MAX_ACTION} characters at most"
        );
        problems.report(action.place, message, help);
    }
    Some(Route {
        methods: methods?,
        hosts: hosts?,
        paths: paths?,
        action: Arc::from(name),
    })
}

/// Returns the values of a condition: empty if the condition was not given, `None` if a value is wrong.
fn values<T>(
    name: &str,
    field: &Field<Texts>,
    read: fn(&str) -> Result<T, BadValue>,
    problems: &mut Problems<'_>,
) -> Option<Vec<T>> {
    let given = match field {
        Field::Absent => return Some(Vec::new()),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => at,
    };
    if given.value.0.is_empty() {
        let help = format!("list at least one, or leave `{name}` out to match any");
        problems.report(given.place, format!("no {name} would match"), help);
    }
    let values = given.value.0.iter();
    let values = values.filter_map(|at| problems.accept(at.place, read(&at.value.0)));
    let values: Vec<T> = values.collect();
    (values.len() == given.value.0.len() && !values.is_empty()).then_some(values)
}

fn wrong<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, BadValue> {
    Err(BadValue::new(message, help))
}

fn method(text: &str) -> Result<String, BadValue> {
    let is_method = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if text.is_empty() || text.len() > 32 || !text.bytes().all(is_method) {
        let help = "write one such as GET; leave `method` out to match any";
        return wrong(format!("`{}` is not a method", Short(text)), help);
    }
    let upper = text.to_ascii_uppercase();
    if upper != text {
        let help = format!("methods are in capital letters: write {upper}");
        return wrong(format!("`{text}` is not a method"), help);
    }
    Ok(upper)
}

fn host(text: &str) -> Result<Pattern, BadValue> {
    let shown = Short(text);
    if !text.is_ascii() {
        let help = "clients send hosts in ASCII: write other letters in the xn-- form";
        return wrong(format!("`{shown}` is not ASCII"), help);
    }
    let is_host = |byte: u8| byte != b'/' && byte.is_ascii_graphic();
    if text.is_empty() || !text.bytes().all(is_host) {
        let help = "write a host such as api.example.com, or a glob such as *.example.com";
        return wrong(format!("`{shown}` is not a host"), help);
    }
    let after = text.rsplit_once(']').map_or(text, |(_, after)| after);
    if after.contains(':') {
        let help = "remove the port: hosts are compared without it";
        return wrong(format!("`{shown}` has a port"), help);
    }
    Ok(Pattern::parse(&text.to_ascii_lowercase())?)
}

fn path(text: &str) -> Result<Pattern, BadValue> {
    let shown = Short(text);
    if !text.starts_with(['/', '*']) {
        let help = format!("paths start with a slash: write \"/{shown}\"");
        return wrong(format!("`{shown}` is not a path"), help);
    }
    let normal = normal_pattern(text);
    if normal != text {
        let normal = Short(&normal);
        let help = format!("paths are compared in their normal form: write \"{normal}\"");
        return wrong(format!("no path would match `{shown}`"), help);
    }
    Ok(Pattern::parse(text)?)
}

/// Brings a glob of paths into the normal form of paths. Wildcards stay as they are.
fn normal_pattern(text: &str) -> String {
    // `?` is the only wildcard that the normal form would escape. A placeholder protects it.
    const ONE: &str = "%01";
    let normal = normal_path(text.replace('?', ONE).as_bytes());
    let normal = normal.map(|normal| normal.replace(ONE, "?"));
    match normal {
        // A leading `*` may match the slash itself.
        Some(normal) if text.starts_with('*') => normal[1..].to_owned(),
        Some(normal) => normal,
        None => text.to_owned(),
    }
}
