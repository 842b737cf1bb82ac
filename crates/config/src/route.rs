//! Routes: they give a request its action at doors that see only method, host and path. At the gateway they
//! also choose the upstream, and read attributes from the request.

use std::cell::LazyCell;
use std::sync::Arc;

use tollgate_rules::document::{
    At, BadValue, Field, Flag, List, Named, Place, Problems, Short, Text, Texts, section,
    suggestion,
};
use tollgate_rules::{Pattern, is_attribute_name};

use crate::path::{MAX_PATH, normal_path, strict_path};
use crate::upstream::Upstreams;

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
/// assert_eq!(routes.action("POST", None, b"/login"), Some("login"));
/// assert_eq!(routes.action("POST", None, b"/login/;a=b"), Some("login"));
/// assert_eq!(routes.action("GET", Some("api.example.com"), b"/search/all"), Some("search"));
/// assert_eq!(routes.action("GET", None, b"/login"), None);
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(pub(crate) Vec<Route>);

/// One route: its conditions and its action. A condition without values matches every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub(crate) methods: Vec<String>,
    /// In lower case.
    pub(crate) hosts: Vec<Pattern>,
    pub(crate) paths: Vec<Pattern>,
    /// Whether paths are compared in their strict form.
    pub(crate) strict: bool,
    pub(crate) action: Arc<str>,
    pub(crate) upstream: Option<Arc<str>>,
    pub(crate) attributes: Vec<(Arc<str>, RequestField)>,
}

/// A part of a request that the gateway reads an attribute from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// A header, in lower case.
    Header(String),
    /// A parameter of the query.
    Query(String),
    /// A field of the JSON body: the names on the way to it.
    Body(Vec<String>),
}

impl Routes {
    /// Returns the action of a request. Pass the host in lower case and without its port. Pass the path
    /// as the client wrote it, without its query.
    #[must_use]
    pub fn action(&self, method: &str, host: Option<&str>, path: &[u8]) -> Option<&str> {
        self.find(method, host, path).map(Route::action)
    }

    /// Returns the route of a request, as [`action`](Self::action) finds it.
    #[must_use]
    pub fn find(&self, method: &str, host: Option<&str>, path: &[u8]) -> Option<&Route> {
        let normal = LazyCell::new(|| normal_path(path));
        let strict = LazyCell::new(|| strict_path(path));
        let mut routes = self.0.iter();
        routes.find(|route| {
            route.concerns(method, host)
                && (route.paths.is_empty() || {
                    let path = match route.strict {
                        true => strict.as_deref(),
                        false => normal.as_deref(),
                    };
                    path.is_some_and(|path| one_of(&route.paths, path))
                })
        })
    }

    /// The action of each route, in order. Several routes may have the same action.
    pub fn actions(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|route| &route.action)
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
    /// Returns the action of the route.
    #[must_use]
    pub fn action(&self) -> &str {
        &self.action
    }

    /// Returns the name of the upstream that the gateway passes requests to; `None` for the only upstream.
    #[must_use]
    pub fn upstream(&self) -> Option<&str> {
        self.upstream.as_deref()
    }

    /// Returns the attributes that the gateway reads from a request, by name.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &RequestField)> {
        self.attributes.iter().map(|(name, field)| (&**name, field))
    }

    /// Whether the gateway reads an attribute from the body.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        let mut fields = self.attributes.iter();
        fields.any(|(_, field)| matches!(field, RequestField::Body(_)))
    }

    /// Whether the route is for requests with this method and host.
    fn concerns(&self, method: &str, host: Option<&str>) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|it| it == method))
            && (self.hosts.is_empty() || host.is_some_and(|host| one_of(&self.hosts, host)))
    }

    /// Whether the route matches every request.
    pub(crate) fn matches_all(&self) -> bool {
        self.methods.is_empty() && self.hosts.is_empty() && self.paths.is_empty()
    }
}

fn one_of(patterns: &[Pattern], value: &str) -> bool {
    patterns.iter().any(|it| it.matches(value))
}

section! {
    /// A route of forward-auth and of the gateway: conditions on a request, and the action that matching requests get. All conditions must hold.
    pub(crate) struct RawRoute is "a route" {
        /// Methods, such as GET or [GET, HEAD]. Default: any.
        method: Texts = "method",
        /// Hosts without their ports, as globs. Default: any.
        host: Texts = "host",
        /// Paths without their queries, as globs. Default: any.
        path: Texts = "path",
        /// Whether a slash at the end, parameters after a semicolon, backslashes and escaped slashes make another path (default false).
        strict: Flag = "strict",
        /// The value of the attribute action.
        action (required): Text = "action",
        /// The upstream that the gateway passes matching requests to (default: the only upstream).
        upstream: Text = "upstream",
        /// Attributes that the gateway reads from the request, such as { model: body.model, page: query.page, version: header.x-version }.
        attributes: Named<Text> = "attributes",
    }
}

const MAX_ROUTES: usize = 1000;
const MAX_ACTION: usize = 64;

pub(crate) fn routes(
    raw: Option<&List<RawRoute>>,
    upstreams: &Upstreams,
    problems: &mut Problems<'_>,
) -> Routes {
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
        if let Some(route) = route(at, upstreams, problems) {
            if route.matches_all() {
                all = Some(at.place);
            }
            routes.push(route);
        }
    }
    Routes(routes)
}

fn route(at: &At<RawRoute>, upstreams: &Upstreams, problems: &mut Problems<'_>) -> Option<Route> {
    let raw = &at.value;
    if raw.action.is_absent() {
        let start = Place::new(at.place.start, at.place.start);
        let help = "add the action that rules match, such as `action: search`";
        problems.report(start, "this route has no `action`", help);
    }
    // All fields are read, so that all problems are reported.
    let methods = values("method", &raw.method, method, problems);
    let hosts = values("host", &raw.host, host, problems);
    let is_strict = raw.strict.value().is_some_and(|flag| flag.0);
    let read = if is_strict { strict_pattern } else { path };
    let paths = values("path", &raw.path, read, problems);
    if let (Some(key), true) = (raw.strict.key(), raw.path.is_absent()) {
        let message = "`strict` without `path` has no effect";
        problems.report(
            key,
            message,
            "add the `path` to compare, or remove `strict`",
        );
    }
    let upstream = upstream(&raw.upstream, upstreams, problems);
    let attributes = attributes(&raw.attributes, problems);
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
        strict: is_strict,
        action: Arc::from(name),
        upstream,
        attributes,
    })
}

fn upstream(
    field: &Field<Text>,
    upstreams: &Upstreams,
    problems: &mut Problems<'_>,
) -> Option<Arc<str>> {
    let at = field.get()?;
    let name = at.value.0.as_str();
    if upstreams.get(name).is_none() {
        let names = || upstreams.iter().map(|(name, _)| &**name);
        let help = match upstreams.is_empty() {
            true => "add it to `upstreams`".to_owned(),
            false => suggestion(name, names(), "name one of `upstreams`"),
        };
        let message = format!("there is no upstream `{}`", Short(name));
        problems.report(at.place, message, help);
    }
    Some(Arc::from(name))
}

/// The most attributes that a route reads from a request.
const MAX_ATTRIBUTES: usize = 8;
/// Attributes that the gateway finds by itself.
const FOUND: [&str; 15] = [
    "action",
    "api_key",
    "host",
    "ip",
    "method",
    "path",
    "plan",
    "scheme",
    "service_account",
    "size",
    "subject",
    "subject_type",
    "tenant",
    "traffic",
    "user",
];

fn attributes(
    field: &Field<Named<Text>>,
    problems: &mut Problems<'_>,
) -> Vec<(Arc<str>, RequestField)> {
    let given = field.value().map_or(&[][..], |named| &named.0);
    if let Some((name, _)) = given.get(MAX_ATTRIBUTES) {
        let message = format!("there are more than {MAX_ATTRIBUTES} attributes");
        problems.report(name.place, message, "keep those that rules use");
    }
    let mut attributes = Vec::new();
    for (name, at) in given.iter().take(MAX_ATTRIBUTES) {
        let shown = Short(&name.value);
        if FOUND.contains(&name.value.as_str()) {
            let help = "choose another name: clients could set this one as they like";
            problems.report(
                name.place,
                format!("the gateway finds `{shown}` itself"),
                help,
            );
        } else if !is_attribute_name(&name.value) {
            let help = "write a letter or _, then letters, digits, _, . or -, at most 64 in all";
            problems.report(
                name.place,
                format!("`{shown}` is not an attribute name"),
                help,
            );
        }
        if let Some(field) = problems.accept(at.place, request_field(&at.value.0)) {
            attributes.push((Arc::from(name.value.as_str()), field));
        }
    }
    attributes
}

/// Reads where an attribute comes from: `header.name`, `query.name` or `body.name.name`.
fn request_field(text: &str) -> Result<RequestField, BadValue> {
    let help = "write header.x-version, query.page or body.model";
    let Some((place, name)) = text.split_once('.') else {
        return wrong(
            format!("`{}` is not a part of a request", Short(text)),
            help,
        );
    };
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_name = |name: &str| !name.is_empty() && name.len() <= 64 && name.bytes().all(is_token);
    match place {
        "header" if is_name(name) => Ok(RequestField::Header(name.to_ascii_lowercase())),
        "query" if is_name(name) => Ok(RequestField::Query(name.to_owned())),
        "body" if name.split('.').all(is_name) && name.split('.').count() <= 8 => {
            let names = name.split('.').map(ToOwned::to_owned);
            Ok(RequestField::Body(names.collect()))
        }
        _ => wrong(
            format!("`{}` is not a part of a request", Short(text)),
            help,
        ),
    }
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

/// Reads a glob of paths in their normal form. A slash at the end makes no difference.
pub(crate) fn path(text: &str) -> Result<Pattern, BadValue> {
    let pattern = Pattern::path(text)?;
    let normal = normal_glob(text, normal_path);
    let bare = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
    match normal {
        Some(normal) if bare(&normal) == bare(text) => Ok(pattern),
        normal => unmatched(text, normal, normal_glob(text, strict_path)),
    }
}

/// Reads a glob of paths in their strict form.
fn strict_pattern(text: &str) -> Result<Pattern, BadValue> {
    let pattern = Pattern::parse(text)?;
    match normal_glob(text, strict_path) {
        Some(normal) if normal == text => Ok(pattern),
        normal => unmatched(text, normal, None),
    }
}

/// Returns the error for a glob `text` that no path can match. The remedy is its `normal` form. If `text`
/// is in its `strict` form, `strict: true` is a remedy too.
fn unmatched(
    text: &str,
    normal: Option<String>,
    strict: Option<String>,
) -> Result<Pattern, BadValue> {
    let shown = Short(text);
    if !text.starts_with(['/', '*']) {
        let help = format!("paths start with a slash: write \"/{shown}\"");
        return wrong(format!("`{shown}` is not a path"), help);
    }
    let Some(normal) = normal else {
        let help = format!("write at most {MAX_PATH} bytes");
        return wrong(format!("`{shown}` is too long"), help);
    };
    let or = match strict {
        Some(strict) if strict == text => ", or add `strict: true` to the route",
        _ => "",
    };
    let normal = Short(&normal);
    let help = format!("paths are compared in their normal form: write \"{normal}\"{or}");
    wrong(format!("no path would match `{shown}`"), help)
}

/// Converts a glob of paths with `form`. Wildcards and their escapes stay as they are.
fn normal_glob(text: &str, form: fn(&[u8]) -> Option<String>) -> Option<String> {
    // `form` would change these texts, so placeholders stand in for them.
    const KEPT: [(&str, &str); 3] = [(r"\*", "%02"), (r"\?", "%03"), ("?", "%01")];
    let mut glob = text.to_owned();
    for (written, placeholder) in KEPT {
        glob = glob.replace(written, placeholder);
    }
    let mut normal = form(glob.as_bytes())?;
    for (written, placeholder) in KEPT {
        normal = normal.replace(placeholder, written);
    }
    // A leading `*` may match the slash itself.
    match text.starts_with('*') {
        true => Some(normal.strip_prefix('/').unwrap_or(&normal).to_owned()),
        false => Some(normal),
    }
}
