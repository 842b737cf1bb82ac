//! The gateway door: what it lets pass without limits, its bounds and its access log.

use std::path::PathBuf;

use tollgate_rules::Pattern;
use tollgate_rules::document::{
    Field, Node, Problems, Read, Size, Text, Texts, Value, schema, section, wanted, words,
};

use super::Listen;
use super::raw::TlsOrOff;
use crate::fields::{Env, text};
use crate::path::normal_path;
use crate::route;

/// The gateway: it passes the requests of clients on to upstreams, within limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gateway {
    /// Where the door listens.
    pub listen: Listen,
    /// The paths that are passed on without limits.
    pub exempt: ExemptPaths,
    /// The largest body of a request, in bytes (default 100 MiB).
    pub max_body: u64,
    /// The largest body that attributes are read from, in bytes (default 64 KiB).
    pub max_inspected_body: usize,
    /// The access log; `None` if it is off.
    pub access_log: Option<AccessLog>,
}

/// Paths that are passed on without limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExemptPaths(Vec<Pattern>);

/// Where requests are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessLog {
    /// The form of a line.
    pub format: AccessLogFormat,
    /// The file; `None` for standard output.
    pub file: Option<PathBuf>,
}

words! {
    /// The form of a line of the access log.
    pub enum AccessLogFormat is "a form of the access log" {
        /// A JSON object.
        Json = "json",
        /// The combined log format of other servers.
        Combined = "combined",
    }
}

impl Gateway {
    /// Makes a gateway with defaults.
    #[must_use]
    pub fn new(listen: Listen) -> Gateway {
        Gateway {
            listen,
            exempt: ExemptPaths::default(),
            max_body: 100 * 1024 * 1024,
            max_inspected_body: 64 * 1024,
            access_log: None,
        }
    }
}

impl ExemptPaths {
    /// Whether requests for `path` have no limits. Pass the path as the client wrote it, without its query.
    /// A path that is not in its normal form is never exempt: a server may read it as another path.
    ///
    /// ```
    /// let config = tollgate_config::parse("rules.yaml", r#"
    /// version: 1
    /// server: { gateway: { address: "127.0.0.1:8000", exempt: [/healthz, "/assets/*"] } }
    /// upstreams: { api: { servers: ["http://127.0.0.1:9000"] } }
    /// rules: []
    /// "#, &|_| None)?;
    /// let exempt = &config.server.gateway.as_ref().unwrap().exempt;
    /// assert!(exempt.contains("/healthz") && exempt.contains("/assets/a.css"));
    /// assert!(!exempt.contains("/login") && !exempt.contains("/assets/../login"));
    /// # Ok::<(), tollgate_config::ConfigError>(())
    /// ```
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(path))
            && normal_path(path.as_bytes()).is_some_and(|normal| normal == path)
    }
}

section! {
    /// The gateway: passes the requests of clients on to upstreams, within limits.
    pub(crate) struct RawGateway is "`gateway`" {
        /// Address and port, such as 127.0.0.1:8000.
        address (required): Text = "address",
        /// The TLS files, or off (default: the tls field of the server).
        tls: TlsOrOff = "tls",
        /// Paths that are passed on without limits, as globs, such as /healthz.
        exempt: Texts = "exempt",
        /// The largest body of a request, 1KB to 1TB (default 100MiB).
        max_body: Size = "max_body",
        /// The largest body that attributes of a route are read from, 1KB to 1MiB (default 64KiB). A larger body gets 413.
        max_inspected_body: Size = "max_inspected_body",
        /// The access log: json or combined on standard output, or a map with a file (default: off).
        access_log: AccessLogField = "access_log",
    }
}

section! {
    /// The access log.
    pub(crate) struct RawAccessLog is "`access_log`" {
        /// The form of a line: json (default) or combined.
        format: AccessLogFormat = "format",
        /// The file that lines are appended to (default: standard output). `${VAR}` reads the environment.
        file: Text = "file",
    }
}

/// The access log: its format alone, a map with more, or `off`.
#[derive(Debug)]
pub(crate) enum AccessLogField {
    Off,
    Format(AccessLogFormat),
    More(RawAccessLog),
}

impl Read for AccessLogField {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<AccessLogField> {
        match &node.value {
            Value::Map(_) => RawAccessLog::read(node, problems).map(AccessLogField::More),
            Value::Scalar { text, .. } if &**text == "off" => Some(AccessLogField::Off),
            Value::Scalar { .. } if !node.is_null() => {
                AccessLogFormat::read(node, problems).map(AccessLogField::Format)
            }
            _ => {
                let help = "write json, combined, off, or { format: json, file: FILE }";
                wanted("an access log", help, node, problems);
                None
            }
        }
    }
}

schema!(AccessLogField, "AccessLogField", generator => { "anyOf": [
    { "enum": ["off"] },
    generator.subschema_for::<AccessLogFormat>(),
    generator.subschema_for::<RawAccessLog>(),
] });

const MAX_EXEMPT: usize = 100;

/// Fills in the settings of a gateway that are not about its listener.
pub(super) fn gateway(
    gateway: &mut Gateway,
    raw: &RawGateway,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) {
    if let Some(at) = raw.exempt.get() {
        if let Some(at) = at.value.0.get(MAX_EXEMPT) {
            let message = format!("there are more than {MAX_EXEMPT} exempt paths");
            problems.report(at.place, message, "use globs");
        }
        let paths = at.value.0.iter().take(MAX_EXEMPT);
        let paths = paths.filter_map(|at| problems.accept(at.place, route::path(&at.value.0)));
        gateway.exempt = ExemptPaths(paths.collect());
    }
    size_in(
        "max_body",
        &raw.max_body,
        &mut gateway.max_body,
        1 << 40,
        problems,
    );
    let mut inspected = gateway.max_inspected_body as u64;
    let field = &raw.max_inspected_body;
    size_in(
        "max_inspected_body",
        field,
        &mut inspected,
        1 << 20,
        problems,
    );
    gateway.max_inspected_body = usize::try_from(inspected).unwrap_or(usize::MAX);
    gateway.access_log = match raw.access_log.value() {
        None | Some(AccessLogField::Off) => None,
        Some(AccessLogField::Format(format)) => Some(AccessLog {
            format: *format,
            file: None,
        }),
        Some(AccessLogField::More(more)) => Some(AccessLog {
            format: more
                .format
                .value()
                .copied()
                .unwrap_or(AccessLogFormat::Json),
            file: text("file", &more.file, env, problems).map(PathBuf::from),
        }),
    };
}

/// Replaces `value` by the size of a field, if the field is given. Reports a size below 1 kB or above `most`.
fn size_in(
    name: &str,
    field: &Field<Size>,
    value: &mut u64,
    most: u64,
    problems: &mut Problems<'_>,
) {
    let Some(at) = field.get() else { return };
    *value = at.value.0;
    if !(1000..=most).contains(value) {
        let shown = if most == 1 << 20 { "1MiB" } else { "1TiB" };
        let message = format!("`{name}` is not between 1KB and {shown}");
        problems.report(at.place, message, "write a size such as 64KiB");
    }
}
