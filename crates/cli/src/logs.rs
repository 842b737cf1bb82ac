//! The output to standard error: logs, and the log of denied requests.
//!
//! Denials are always lines of JSON, whatever the level and the format of the other logs;
//! `telemetry.rejections_per_second` in the config limits how many denials are logged. Spans of
//! decisions are not logged: they go to a trace collector, if the config names one.

use crate::failed;
use tollgate::{REJECTIONS, TRACES};
use tollgate_config::Telemetry;
use tollgate_server::trace::{self, Exporter};
use tracing::Subscriber;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

#[derive(clap::Args)]
pub(crate) struct LogArgs {
    /// The level of the log on standard error: error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        env = "TOLLGATE_LOG",
        default_value = "info",
        value_parser = parse_levels
    )]
    log: Targets,

    /// The format of the log: text, or json for one object per line. Denials are always json
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TOLLGATE_LOG_FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Starts logging and, if the config names a collector, the export of traces. Call this on a Tokio
/// runtime. Stop the returned exporter before the process ends.
pub(crate) fn start(args: &LogArgs, telemetry: &Telemetry) -> Result<Option<Exporter>, String> {
    let is_separate = |target: &str| target == REJECTIONS || target == TRACES;
    let level = args.log.clone();
    let level = level.and(filter_fn(move |it| !is_separate(it.target())));
    let logs = match args.log_format {
        LogFormat::Json => json_lines().with_filter(level).boxed(),
        LogFormat::Text => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(crate::terminal::has_colour(&std::io::stderr()))
            .with_filter(level)
            .boxed(),
    };
    let denials = json_lines().with_filter(filter_fn(|it| it.target() == REJECTIONS));
    let traces = trace::export(telemetry).map_err(failed)?;
    let registry = tracing_subscriber::registry().with(logs).with(denials);
    // The layer of traces is not an `Option`: a layer that is `None` enables every span, so each
    // decision would create a span.
    let Some((traces, exporter)) = traces else {
        registry.init();
        return Ok(None);
    };
    registry.with(traces).init();
    Ok(Some(exporter))
}

/// Reads a level, or a list of levels and `TARGET=LEVEL`. The parser of [`Targets`] takes a wrong level for the
/// name of a target, and so would log nothing.
fn parse_levels(text: &str) -> Result<Targets, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for part in text.split(',') {
        let level = part.rsplit('=').next().unwrap_or_default();
        if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return Err(format!(
                "`{level}` is not a level: write {}, or a list such as info,tollgate_server=debug",
                LEVELS.join(", ")
            ));
        }
    }
    text.parse().map_err(|error| format!("{error}"))
}

type JsonLines<S> = fmt::Layer<S, JsonFields, Format<Json>, fn() -> std::io::Stderr>;

/// Writes one JSON object per line.
fn json_lines<S: Subscriber + for<'a> LookupSpan<'a>>() -> JsonLines<S> {
    let stderr: fn() -> std::io::Stderr = std::io::stderr;
    fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_collector_decisions_have_no_spans() {
        let args = LogArgs {
            log: parse_levels("info").unwrap(),
            log_format: LogFormat::Text,
        };
        start(&args, &Telemetry::default()).unwrap();
        assert!(!tracing::span_enabled!(target: TRACES, tracing::Level::INFO));
        assert!(tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO));
        assert!(tracing::event_enabled!(tracing::Level::INFO));
        assert!(!tracing::event_enabled!(tracing::Level::DEBUG));
    }

    #[test]
    fn wrong_level_is_rejected() {
        for text in [
            "WARN",
            "off",
            "info,tollgate_server=debug",
            "tollgate=Trace",
        ] {
            assert!(parse_levels(text).is_ok(), "{text}");
        }
        for text in [
            "WARNING",
            "",
            "verbose",
            "info,",
            "tollgate=loud",
            "tollgate_server",
        ] {
            let error = parse_levels(text).unwrap_err();
            assert!(error.contains("is not a level"), "{text}: {error}");
        }
    }
}
