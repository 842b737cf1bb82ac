//! What goes to standard error: logs for people or machines, and the rejection log for machines.
//!
//! Refusals are lines of JSON whatever the level and the format of the other logs: how many there are
//! is the config's affair (`telemetry.rejections_per_second`). Spans of decisions are no logs; they go
//! to a collector, or nowhere.

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

/// What to log, and how.
#[derive(clap::Args)]
pub(crate) struct LogArgs {
    /// What to log to standard error: error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "LEVEL",
        env = "TOLLGATE_LOG",
        default_value = "info"
    )]
    log: String,

    /// How to log: text, or json for one object a line. Refusals are always the latter
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

/// Logs, and sends traces where the config says. Within a Tokio runtime. What comes back is to be
/// stopped in the end; none if nothing is sent.
pub(crate) fn start(args: &LogArgs, telemetry: &Telemetry) -> Result<Option<Exporter>, String> {
    let level: Targets = args
        .log
        .parse()
        .map_err(|error| format!("error: --log {}: {error}", args.log))?;
    let apart = |target: &str| target == REJECTIONS || target == TRACES;
    let level = level.and(filter_fn(move |it| !apart(it.target())));
    let logs = match args.log_format {
        LogFormat::Json => lines().with_filter(level).boxed(),
        LogFormat::Text => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(crate::colour(&std::io::stderr()))
            .with_filter(level)
            .boxed(),
    };
    let refusals = lines().with_filter(filter_fn(|it| it.target() == REJECTIONS));
    let traces = trace::export(telemetry).map_err(|error| format!("error: {error}"))?;
    let registry = tracing_subscriber::registry().with(logs).with(refusals);
    // Not as an optional layer: one that is none is interested in everything, and every decision would
    // have a span.
    match traces {
        Some((traces, exporter)) => {
            registry.with(traces).init();
            Ok(Some(exporter))
        }
        None => {
            registry.init();
            Ok(None)
        }
    }
}

type Lines<S> = fmt::Layer<S, JsonFields, Format<Json>, fn() -> std::io::Stderr>;

/// One object a line.
fn lines<S: Subscriber + for<'a> LookupSpan<'a>>() -> Lines<S> {
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
    fn where_nobody_collects_decisions_have_no_spans() {
        let args = LogArgs {
            log: "info".to_owned(),
            log_format: LogFormat::Text,
        };
        start(&args, &Telemetry::default()).unwrap();
        assert!(!tracing::span_enabled!(target: TRACES, tracing::Level::INFO));
        assert!(tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO));
        assert!(tracing::event_enabled!(tracing::Level::INFO));
        assert!(!tracing::event_enabled!(tracing::Level::DEBUG));
    }
}
