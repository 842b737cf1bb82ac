//! Whether what a server tells of itself can be told.

use super::{Env, expand, ranged};
use crate::error::Problems;
use crate::raw::RawTelemetry;
use crate::store::{Parts, UrlError, address};
use crate::telemetry::{OtlpUrl, Telemetry};

const HELP: &str = "write the address of a collector, such as http://127.0.0.1:4318";

pub(super) fn telemetry(
    raw: Option<&RawTelemetry>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Telemetry {
    let default = Telemetry::default();
    let Some(raw) = raw else {
        return default;
    };
    let mut otlp = None;
    if let Some(at) = raw.otlp.get()
        && let Some(text) = expand(at, env, problems)
    {
        match url(&text) {
            Ok(url) => otlp = Some(url),
            Err((message, help)) => problems.report(at.place, message, help),
        }
    }
    Telemetry {
        otlp,
        sample: raw.sample.get().map_or(default.sample, |at| at.value.0),
        rejections_per_second: ranged(
            &raw.rejections_per_second,
            default.rejections_per_second,
            0..=10_000,
            problems,
        ),
    }
}

/// Nothing of the URL is quoted: it may hold a password where none belongs.
fn url(text: &str) -> Result<OtlpUrl, (String, &'static str)> {
    let wrong = |error: UrlError| match error {
        UrlError::NoScheme => ("the URL has no scheme".to_owned(), HELP),
        UrlError::Query => (error.to_string(), "end the URL after the port or the path"),
        error => (error.to_string(), HELP),
    };
    let parts = Parts::of(text).map_err(wrong)?;
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        "grpc" | "grpcs" => {
            let help = "traces are sent over HTTP: write http:// and the port for that, often 4318";
            return Err(("OTLP over gRPC is not spoken".to_owned(), help));
        }
        scheme => {
            let message = format!("`{scheme}` is not a scheme of OTLP");
            return Err((message, "use http://, or https:// for TLS"));
        }
    };
    if parts.has_login() {
        let message = "the URL has a user or a password".to_owned();
        return Err((message, "name the host alone, after `//`"));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    let path = parts.path.trim_end_matches('/');
    if path.ends_with("v1/traces") {
        let message = "the URL ends with `/v1/traces`".to_owned();
        return Err((message, "leave that out: it is added by itself"));
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = "the path of the URL is not one".to_owned();
        return Err((message, "write it without spaces and in ASCII"));
    }
    let path = if path.is_empty() {
        String::new()
    } else {
        format!("/{path}")
    };
    Ok(OtlpUrl {
        tls,
        host,
        port,
        path,
    })
}
