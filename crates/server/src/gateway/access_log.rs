//! The access log: a line for each request, as JSON or in the combined log format.
//!
//! Requests never wait for the log: a thread writes the lines. If it falls behind, lines are dropped and
//! counted. A line has the address of the client and the path without its query, because queries often
//! carry secrets.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};

use http::header::{REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, StatusCode, Version};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;
use tollgate_config::{AccessLog as AccessLogConfig, AccessLogFormat};

use super::bounds::MAX_LOG_LINES;

/// Longer texts of clients are cut.
const MAX_TEXT: usize = 1024;
/// The status of a request whose client went away before its answer began. No client sees it. nginx and others log
/// the same.
const CLIENT_GONE: u16 = 499;

/// Writes lines.
#[derive(Debug)]
pub(crate) struct AccessLog {
    format: AccessLogFormat,
    lines: SyncSender<String>,
    dropped: AtomicU64,
}

/// A request, until it has ended.
pub(crate) struct Line {
    log: Arc<AccessLog>,
    started: Instant,
    time: Timestamp,
    request: Request,
    pub(super) answer: Answered,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    client: IpAddr,
    method: String,
    host: Option<String>,
    path: String,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

/// What became of a request.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answered {
    pub(super) status: u16,
    bytes: u64,
    /// Whether the answer ended early.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    broken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) action: Option<String>,
    /// `allowed`, `denied`, `exempt` or `shed`; absent if the request was not decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) decision: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) upstream: Option<Arc<str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLine<'a> {
    time: String,
    #[serde(flatten)]
    request: &'a Request,
    #[serde(flatten)]
    answer: &'a Answered,
    duration_micros: u64,
}

impl AccessLog {
    /// Opens the log of a config.
    pub(crate) fn open(config: &AccessLogConfig) -> io::Result<Arc<AccessLog>> {
        let mut output: Box<dyn Write + Send> = match &config.file {
            None => Box::new(io::stdout()),
            Some(path) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (lines, waiting) = mpsc::sync_channel::<String>(MAX_LOG_LINES);
        let write = move || {
            // Lines that wait are written together.
            while let Ok(first) = waiting.recv() {
                let mut buffered = BufWriter::new(&mut output);
                let more = waiting.try_iter();
                for line in std::iter::once(first).chain(more) {
                    // A full disk must not stop the server.
                    let _ = buffered.write_all(line.as_bytes());
                }
                let _ = buffered.flush();
            }
        };
        let named = std::thread::Builder::new().name("access-log".to_owned());
        named.spawn(write)?;
        Ok(Arc::new(AccessLog {
            format: config.format,
            lines,
            dropped: AtomicU64::new(0),
        }))
    }

    /// Returns how many lines were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Starts the line of a request.
    pub(super) fn start(
        self: &Arc<AccessLog>,
        client: IpAddr,
        host: Option<&str>,
        parts: &Parts,
    ) -> Box<Line> {
        let text = |name: &HeaderName| {
            let value = parts.headers.get(name)?;
            Some(cut(&String::from_utf8_lossy(value.as_bytes())))
        };
        Box::new(Line {
            log: Arc::clone(self),
            started: Instant::now(),
            time: Timestamp::now(),
            request: Request {
                client,
                method: parts.method.to_string(),
                host: host.map(cut),
                path: cut(parts.uri.path()),
                protocol: protocol(parts.version),
                referer: text(&REFERER),
                user_agent: text(&USER_AGENT),
                trace_id: crate::trace::trace_id(&parts.headers).map(|id| format!("{id:032x}")),
            },
            answer: Answered::default(),
        })
    }
}

impl Line {
    pub(super) fn status(&mut self, status: StatusCode) {
        self.answer.status = status.as_u16();
    }

    /// Counts bytes of the answer's body.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.answer.bytes += bytes;
    }

    /// Notes that the answer ended early.
    pub(super) fn broken(&mut self) {
        self.answer.broken = true;
    }

    fn json(&self) -> String {
        let micros = self.started.elapsed().as_micros();
        let line = JsonLine {
            time: format!("{:.6}", self.time),
            request: &self.request,
            answer: &self.answer,
            duration_micros: u64::try_from(micros).unwrap_or(u64::MAX),
        };
        // Every field becomes JSON.
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        line
    }

    fn combined(&self) -> String {
        let (request, answer) = (&self.request, &self.answer);
        let time = self.time.strftime("%d/%b/%Y:%H:%M:%S +0000");
        let optional = |text: &Option<String>| match text {
            Some(text) => quoted(text),
            None => "-".to_owned(),
        };
        let mut line = String::with_capacity(256);
        // Writing to a text does not fail.
        let _ = writeln!(
            line,
            "{} - - [{time}] \"{} {} {}\" {} {} \"{}\" \"{}\"",
            request.client,
            quoted(&request.method),
            quoted(&request.path),
            request.protocol,
            answer.status,
            answer.bytes,
            optional(&request.referer),
            optional(&request.user_agent),
        );
        line
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.answer.status == 0 {
            self.answer.status = CLIENT_GONE;
            self.answer.broken = true;
        }
        let line = match self.log.format {
            AccessLogFormat::Json => self.json(),
            AccessLogFormat::Combined => self.combined(),
        };
        if self.log.lines.try_send(line).is_err() {
            self.log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Cuts a long text.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Escapes what would end a quoted text, or a line.
fn quoted(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() || !c.is_ascii() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(escaped, "\\x{byte:02X}");
                }
            }
            c => escaped.push(c),
        }
    }
    escaped
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_line_breaks_cannot_forge_a_line() {
        let forged = "a\" 200 1 \"-\" \"\n127.0.0.1";
        assert_eq!(quoted(forged), "a\\\" 200 1 \\\"-\\\" \\\"\\x0A127.0.0.1");
        assert_eq!(quoted("caf\u{e9}"), "caf\\xC3\\xA9");
    }
}
