//! `tollgate simulate`: an access log or described traffic through rules, on a virtual clock.

mod progress;
mod text;

use std::path::{Path, PathBuf};

use tollgate::{Config, Span, Time};
use tollgate_rules::document::percent;
use tollgate_simulate::Simulation;
use tollgate_simulate::log::{Fields, Format, Progress, Replay, Source};
use tollgate_simulate::report::{Report, html};
use tollgate_simulate::traffic::{Stream, Traffic};

use crate::request::attribute;
use crate::{CommandResult, config};

use self::progress::Bar;

/// Sends an access log or described traffic through rules on a virtual clock. The production limiter decides, in
/// memory: the store and the ledger of the config are not used, and a `${VAR}` need not be set.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("requests").required(true).multiple(true).args(["log", "traffic"]))]
pub(crate) struct Args {
    /// The config to try
    #[arg(long, short, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: PathBuf,

    /// Compare with this config: who would be denied more, and who less
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,

    /// Access logs, plain or gzip; - reads the standard input. Several logs are merged by time
    #[arg(long, short, value_name = "FILE", num_args = 1.., conflicts_with = "traffic")]
    log: Vec<PathBuf>,

    /// The format of the logs [default: guessed from the first lines]
    #[arg(long, value_name = "FORMAT", value_parser = ["combined", "json", "envoy", "alb"], requires = "log")]
    format: Option<String>,

    /// Take an attribute from a field of the log, such as tenant=user or api_key=headers.x-api-key
    #[arg(long, value_name = "ATTRIBUTE=FIELD", value_parser = attribute, requires = "log")]
    map: Vec<(String, String)>,

    /// Give all requests of the log an attribute, such as action=search
    #[arg(long, value_name = "ATTRIBUTE=VALUE", value_parser = attribute, requires = "log")]
    set: Vec<(String, String)>,

    /// Described traffic, such as "poisson rate=200/s subjects=1000 zipf=1.1 duration=1h". Kinds: steady, poisson,
    /// bursts, diurnal, surge, attack. Give it several times for streams that run together
    #[arg(long, short, value_name = "TEXT", value_parser = stream)]
    traffic: Vec<Stream>,

    /// Picks the random numbers of described traffic
    #[arg(long, value_name = "N", default_value_t = 1, requires = "traffic")]
    seed: u64,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Also write the report as a page with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Show denied subjects in plain text, not as hashes
    #[arg(long)]
    subjects: bool,

    /// Exit with 1 if a larger share is denied, such as 0.5%; with --against, if a larger share is newly denied
    #[arg(long, value_name = "PERCENT", value_parser = hundredths)]
    max_denied: Option<u32>,
}

fn stream(text: &str) -> Result<Stream, String> {
    text.parse()
        .map_err(|error: tollgate_simulate::traffic::BadStream| error.to_string())
}

fn hundredths(text: &str) -> Result<u32, String> {
    percent(text, 100).map_err(|bad| format!("{}: {}", bad.message, bad.help))
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let new = load(&args.config)?;
    let old = args.against.as_deref().map(load).transpose()?;
    let mut simulation = Simulation::new(&new, old.as_ref(), args.subjects);
    let report = match args.log.is_empty() {
        true => described(args, simulation),
        false => {
            let summary = replay(args, &new, old.as_ref(), &mut simulation)?;
            simulation.finish().with_log(&summary)
        }
    };
    if let Some(path) = &args.report {
        let title = format!("Simulation of {}", args.config.display());
        std::fs::write(path, html(&report, &title))
            .map_err(|error| format!("error: failed to write {}: {error}", path.display()))?;
    }
    match args.json {
        true => println!("{}", report.json().map_err(crate::failed)?),
        false => print!("{}", text::text(&report)),
    }
    Ok(is_within(&report, args.max_denied))
}

/// Whether the denied share is within `--max-denied`.
fn is_within(report: &Report, most: Option<u32>) -> bool {
    let denied = match report.changes {
        Some(changes) => changes.newly_denied,
        None => report.new.denied,
    };
    most.is_none_or(|most| {
        u128::from(denied) * 10_000 <= u128::from(most) * u128::from(report.requests)
    })
}

fn load(path: impl AsRef<Path>) -> Result<Config, String> {
    tollgate_config::load_offline(path.as_ref()).map_err(|error| config::render(&error))
}

/// Runs described traffic. It starts at 2026-01-01T00:00:00Z, a Thursday.
fn described(args: &Args, mut simulation: Simulation) -> Report {
    const START: Time = Time::from_micros(1_767_225_600_000_000);
    let traffic = Traffic::new(args.traffic.clone(), START, args.seed);
    let bar = Bar::of_time(Span::from_micros(traffic.lasts()));
    let mut requests = 0_u64;
    traffic.run(&mut |time, attributes, units| {
        simulation.decide(time, attributes, units);
        requests += 1;
        if requests.is_multiple_of(8192) {
            bar.at(time.since(START).as_micros(), requests);
        }
    });
    bar.end();
    simulation.finish()
}

fn replay(
    args: &Args,
    config: &Config,
    old: Option<&Config>,
    simulation: &mut Simulation,
) -> Result<tollgate_simulate::log::LogSummary, String> {
    let progress = Progress::default();
    let (mut sources, mut size) = (Vec::new(), Some(0_u64));
    for path in &args.log {
        let failed = |error| format!("error: failed to read {}: {error}", path.display());
        sources.push(Source::open(path, &progress).map_err(failed)?);
        let length = std::fs::metadata(path)
            .ok()
            .filter(std::fs::Metadata::is_file);
        size = size.zip(length).map(|(size, it)| size + it.len());
    }
    let format = args.format.as_deref();
    let fields = Fields {
        format: format.and_then(Format::named),
        mapped: args.map.clone(),
        fixed: args.set.clone(),
    };
    let bar = Bar::of_bytes(size);
    let mut requests = 0_u64;
    let replay = Replay::new(config, fields, sources);
    let replay = match old {
        Some(old) => replay.against(old),
        None => replay,
    };
    let summary = replay.run_both(&mut |time, attributes, of_old| {
        simulation.decide_both(time, attributes, of_old, 1);
        requests += 1;
        if requests.is_multiple_of(8192) {
            bar.at(progress.bytes(), requests);
        }
    });
    bar.end();
    let summary = summary.map_err(|error| format!("error: {error}"))?;
    if summary.requests == 0 {
        let first = summary.first_malformed.first();
        let first = first.map(|it| format!(" {}:{}: {}.", it.log, it.line, it.problem));
        return Err(format!(
            "error: no line of the log could be read as a request.{} Check the format with --format",
            first.unwrap_or_default()
        ));
    }
    Ok(summary)
}
