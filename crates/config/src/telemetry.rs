//! Traces and logs that a server writes about its decisions: plain data, validated.

use std::fmt;

use tollgate_rules::document::{BadValue, Percent, Problems, Text, Whole, section};

use crate::fields::{Env, expand, number_in};
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
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            otlp: None,
            sample: 100,
            rejections_per_second: 10,
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
        /// How many denials are logged in a second at most, up to 10000 (default 10); 0 logs none.
        rejections_per_second: Whole = "rejections_per_second",
    }
}

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
    telemetry
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
        return Err(BadValue::new(message, "remove that: Tollgate adds it"));
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
