//! Traces and logs that a server writes about its decisions: plain data, validated.

use std::fmt;
use std::path::PathBuf;

use tollgate_core::Span;
use tollgate_rules::document::{BadValue, Duration, Percent, Problems, Size, Text, Whole, section};

use crate::fields::{Env, duration_in, expand, number_in, text};
use crate::store::{Parts, UrlError, address, host_port};

/// Traces and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Telemetry {
    /// Where traces are sent; `None` if they are not sent.
    pub otlp: Option<OtlpUrl>,
    /// The share of decisions that are traced if the caller sends no trace, in hundredths of a percent
    /// (default 1%).
    pub sample: u16,
    /// How many denials are logged in a second at most (default 10); 0 logs none.
    pub rejections_per_second: u32,
    /// The journal of denials.
    pub denials: Denials,
}

/// The journal of denials: which denials it records, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// The directory of the journal's files; `None` if the journal is in memory only.
    pub directory: Option<PathBuf>,
    /// The most bytes of all files together (default 256 MiB).
    pub max_size: u64,
    /// How long a denial is kept in a file (default 7 days).
    pub max_age: Span,
    /// How many denials are kept in memory (default 10,000).
    pub recent: usize,
    /// How many denials of a rule are recorded in a second at most (default 100); 0 records none.
    pub per_second: u32,
}

impl Default for Denials {
    fn default() -> Denials {
        Denials {
            directory: None,
            max_size: 256 << 20,
            max_age: Span::from_secs(7 * 24 * 60 * 60),
            recent: 10_000,
            per_second: 100,
        }
    }
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            otlp: None,
            sample: 100,
            rejections_per_second: 10,
            denials: Denials::default(),
        }
    }
}

/// The address of an OTLP collector that takes HTTP: `http://127.0.0.1:4318`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtlpUrl {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port (default 80, or 443 with TLS).
    pub port: u16,
    /// The path before `/v1/traces`: empty, or with a slash at the start and none at the end.
    pub path: String,
}

impl fmt::Display for OtlpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let address = host_port(&self.host, self.port);
        write!(f, "{scheme}://{address}{}", self.path)
    }
}

section! {
    /// Traces and logs.
    pub(crate) struct RawTelemetry is "`telemetry`" {
        /// Where traces are sent, a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; off by default. `${VAR}` reads the environment.
        otlp: Text = "otlp",
        /// The share of decisions that are traced if the caller sends no trace, up to 100% (default 1%). If the caller sends a trace, the caller's sampling applies.
        sample: Percent = "sample",
        /// How many denials are logged in a second at most, up to 10000 (default 10); 0 logs none. Rules with `log_denials: all` are not bounded.
        rejections_per_second: Whole = "rejections_per_second",
        /// The journal of denials.
        denials: RawDenials = "denials",
    }
}

section! {
    /// The journal of denials, for `tollgate why`.
    pub(crate) struct RawDenials is "`telemetry.denials`" {
        /// The directory of the journal's files, for this instance alone; in memory only by default. `${VAR}` reads the environment.
        directory: Text = "directory",
        /// The most bytes of all files together, from 1MiB to 1TiB (default 256MiB).
        max_size: Size = "max_size",
        /// How long a denial is kept in a file, from 1m to 366d (default 7d).
        max_age: Duration = "max_age",
        /// How many denials are kept in memory, from 100 to 1000000 (default 10000).
        recent: Whole = "recent",
        /// How many denials of a rule are recorded in a second at most, up to 10000 (default 100); 0 records none. Rules with `log_denials: all` are not bounded.
        per_second: Whole = "per_second",
    }
}

/// The bounds of `max_size`.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 40;

const HELP: &str = "write the address of a collector, such as http://127.0.0.1:4318";

pub(crate) fn telemetry(
    raw: Option<&RawTelemetry>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Telemetry {
    let mut telemetry = Telemetry::default();
    let Some(raw) = raw else {
        return telemetry;
    };
    if let Some(at) = raw.otlp.get()
        && let Some(text) = expand(at, env, problems)
    {
        telemetry.otlp = problems.accept(at.place, url(&text));
    }
    if let Some(sample) = raw.sample.value() {
        telemetry.sample = sample.0;
    }
    let rejections = &mut telemetry.rejections_per_second;
    number_in(&raw.rejections_per_second, rejections, 0..=10_000, problems);
    if let Some(raw) = raw.denials.value() {
        telemetry.denials = denials(raw, env, problems);
    }
    telemetry
}

fn denials(raw: &RawDenials, env: Env<'_>, problems: &mut Problems<'_>) -> Denials {
    let mut denials = Denials {
        directory: text("directory", &raw.directory, env, problems).map(PathBuf::from),
        ..Denials::default()
    };
    if let Some(at) = raw.max_size.get() {
        denials.max_size = at.value.0;
        if !SIZES.contains(&at.value.0) {
            let message = "`max_size` is not between 1MiB and 1TiB";
            problems.report(at.place, message, "write a size such as 256MiB");
        }
    }
    let most_millis = 366 * 24 * 60 * 60 * 1000;
    duration_in(
        &raw.max_age,
        &mut denials.max_age,
        60_000..=most_millis,
        problems,
    );
    number_in(&raw.recent, &mut denials.recent, 100..=1_000_000, problems);
    number_in(
        &raw.per_second,
        &mut denials.per_second,
        0..=10_000,
        problems,
    );
    if raw.directory.is_absent() {
        let sizes = [
            ("max_size", raw.max_size.key()),
            ("max_age", raw.max_age.key()),
        ];
        for (name, key) in sizes {
            if let Some(key) = key {
                let message = format!("`{name}` has no effect without `directory`");
                let help = "add `directory`, the place of the journal's files, or remove this";
                problems.report(key, message, help);
            }
        }
    }
    denials
}

/// Parses the URL of a collector. Errors never quote the URL, because it may hold a password.
fn url(text: &str) -> Result<OtlpUrl, BadValue> {
    let wrong = |error: UrlError| match error {
        UrlError::Query => {
            BadValue::new(error.to_string(), "end the URL after the port or the path")
        }
        error => BadValue::new(error.to_string(), HELP),
    };
    let parts = Parts::of(text).map_err(wrong)?;
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        "grpc" | "grpcs" => {
            let help = "traces are sent over HTTP: write http:// and the port for that, often 4318";
            return Err(BadValue::new("OTLP over gRPC is not supported", help));
        }
        scheme => {
            let message = format!("`{scheme}` is not a scheme of OTLP");
            return Err(BadValue::new(message, "use http://, or https:// for TLS"));
        }
    };
    if parts.has_login() {
        let message = "the URL has a user or a password";
        return Err(BadValue::new(message, "write only the host after `//`"));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    let path = parts.path.trim_end_matches('/');
    if path.ends_with("v1/traces") {
        let message = "the URL ends with `/v1/traces`";
        return Err(BadValue::new(
            message,
            "remove `/v1/traces`: Tollgate adds it",
        ));
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = "the path of the URL is malformed";
        return Err(BadValue::new(
            message,
            "write it without spaces and in ASCII",
        ));
    }
    let path = match path {
        "" => String::new(),
        path => format!("/{path}"),
    };
    Ok(OtlpUrl {
        tls,
        host,
        port,
        path,
    })
}
