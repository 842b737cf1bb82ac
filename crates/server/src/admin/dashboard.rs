//! The dashboard: static files in the binary, under `/ui/`. They need no token: what they show comes from the
//! API of this door, with the token that the operator types in.
//!
//! The policy of the pages permits nothing but these files and this door: no script of another place, no inline
//! script or style, no frame. So text of a rule or of a client that reaches a page cannot become a program.

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, IF_NONE_MATCH,
    LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::Answer;
use crate::respond::RequestError;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The name, the type and the content of each file.
const FILES: [(&str, &str, &[u8]); 14] = [
    ("", HTML, include_bytes!("dashboard/index.html")),
    ("style.css", STYLE, include_bytes!("dashboard/style.css")),
    ("icon.svg", SVG, include_bytes!("dashboard/icon.svg")),
    ("app.js", SCRIPT, include_bytes!("dashboard/app.js")),
    ("api.js", SCRIPT, include_bytes!("dashboard/api.js")),
    ("dom.js", SCRIPT, include_bytes!("dashboard/dom.js")),
    ("history.js", SCRIPT, include_bytes!("dashboard/history.js")),
    (
        "overview.js",
        SCRIPT,
        include_bytes!("dashboard/overview.js"),
    ),
    (
        "subjects.js",
        SCRIPT,
        include_bytes!("dashboard/subjects.js"),
    ),
    ("acting.js", SCRIPT, include_bytes!("dashboard/acting.js")),
    ("changes.js", SCRIPT, include_bytes!("dashboard/changes.js")),
    ("quotas.js", SCRIPT, include_bytes!("dashboard/quotas.js")),
    ("fleet.js", SCRIPT, include_bytes!("dashboard/fleet.js")),
    ("advise.js", SCRIPT, include_bytes!("dashboard/advise.js")),
];

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// The files change only with the program, so the version of the program identifies them.
const TAG: HeaderValue = HeaderValue::from_static(concat!("\"", env!("CARGO_PKG_VERSION"), "\""));
const ETAG: HeaderName = axum::http::header::ETAG;

/// Leads to the first page.
pub(super) async fn redirect() -> Response {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "/ui/")]).into_response()
}

pub(super) async fn index(headers: HeaderMap) -> Answer {
    file("", &headers)
}

pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Answer {
    file(&name, &headers)
}

fn file(name: &str, headers: &HeaderMap) -> Answer {
    let mut files = FILES.iter();
    let found = files.find(|(known, ..)| *known == name);
    let (_, kind, content) = found.ok_or(RequestError::NoSuchAdminPath)?;
    let common = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (ETAG, TAG),
    ];
    // A development build changes its files without a new version.
    if !cfg!(debug_assertions) && headers.get(IF_NONE_MATCH) == Some(&TAG) {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    let kind = HeaderValue::from_static(kind);
    Ok((common, [(CONTENT_TYPE, kind)], *content).into_response())
}
