//! `tollgate advise`: ten questions lead to a rule, with reasons, its cost and its promise. A log gives the numbers.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;
use tollgate::{Config, Span, parse, wait_in_words};
use tollgate_rules::document::duration;
use tollgate_rules::is_attribute_name;
use tollgate_simulate::advise::{
    Advice, AdviceError, Answers, Bursts, CostKind, Failure, What, advise,
};
use tollgate_simulate::demand::{Demand, DemandFigures};
use tollgate_simulate::log::{Fields, Format, Progress, Replay, Source};
use tollgate_simulate::report::Report;
use tollgate_simulate::{Simulation, offline};

use crate::connect::ConnectArgs;
use crate::live_demand::{self, LiveRule};
use crate::request::attribute;
use crate::{CommandResult, config};

/// Asks ten questions, and proposes a rule, with the reasons for it, its cost and its promise. A flag answers each
/// question in advance. Without a terminal, flags that are not given have their defaults.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to limit: requests per time, an amount in a calendar period, or work at the same time
    #[arg(long, value_enum)]
    what: Option<WhatArg>,

    /// Whether no window may ever exceed the limit
    #[arg(long, value_enum)]
    exact: Option<Answer>,

    /// Bursts: allow them, smooth them over the window, or let requests wait for their turn
    #[arg(long, value_enum)]
    bursts: Option<BurstsArg>,

    /// What requests cost: all the same, an attribute says it, or it is known later
    #[arg(long, value_enum)]
    cost: Option<CostArg>,

    /// How many subjects there are in a window
    #[arg(long, value_name = "N")]
    subjects: Option<u64>,

    /// Whether memory is scarce
    #[arg(long, value_enum)]
    small_memory: Option<Answer>,

    /// While the store is down: allow, deny, or count in each instance
    #[arg(long, value_enum)]
    failure: Option<FailureArg>,

    /// Whether the usage is billed
    #[arg(long, value_enum)]
    billing: Option<Answer>,

    /// Whether several instances share the limit
    #[arg(long, value_enum)]
    fleet: Option<Answer>,

    /// Whether several rules of a request must be decided together
    #[arg(long, value_enum)]
    together: Option<Answer>,

    /// The attribute of the subject, such as user, tenant or ip
    #[arg(long, value_name = "ATTRIBUTE", default_value = "user", value_parser = name)]
    per: String,

    /// The limit [default: 100, or proposed from the log]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    limit: Option<u64>,

    /// The time that the limit is for [default: 1m, or a month for a quota]
    #[arg(long, value_name = "DURATION", value_parser = window)]
    window: Option<Span>,

    /// Propose the limit from access logs, as `simulate` reads them, and show who would be denied
    #[arg(long, short, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,

    /// Take an attribute from a field of the log
    #[arg(long, value_name = "ATTRIBUTE=FIELD", value_parser = attribute, requires = "log")]
    map: Vec<(String, String)>,

    /// The format of the logs [default: guessed from the first lines]
    #[arg(long, value_name = "FORMAT", value_parser = ["combined", "json", "envoy", "alb"], requires = "log")]
    format: Option<String>,

    /// Give all requests of the log an attribute, such as tenant=acme
    #[arg(long, value_name = "ATTRIBUTE=VALUE", value_parser = attribute, requires = "log")]
    set: Vec<(String, String)>,

    /// Propose the limit from the counts of the instance with this admin door: what --rule denies there, or would deny in
    /// shadow
    #[arg(long, value_name = "URL", requires = "rule", conflicts_with = "log")]
    live: Option<String>,

    /// The rule whose counts --live reads
    #[arg(long, value_name = "ID", requires = "live")]
    rule: Option<String>,

    /// Print only the config
    #[arg(long, conflicts_with = "json")]
    only_config: bool,

    /// Print the advice as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// The window of a quota, if none is given.
const MONTH: Span = Span::from_secs(30 * 86_400);

#[derive(Clone, Copy, ValueEnum)]
enum WhatArg {
    Rate,
    Quota,
    Concurrency,
}

#[derive(Clone, Copy, ValueEnum)]
enum Answer {
    Yes,
    No,
}

#[derive(Clone, Copy, ValueEnum)]
enum BurstsArg {
    Allow,
    Smooth,
    Wait,
}

#[derive(Clone, Copy, ValueEnum)]
enum CostArg {
    Same,
    Varies,
    Later,
}

#[derive(Clone, Copy, ValueEnum)]
enum FailureArg {
    Open,
    Closed,
    Local,
}

fn name(text: &str) -> Result<String, String> {
    match is_attribute_name(text) {
        true => Ok(text.to_owned()),
        false => Err("write a letter or _, then letters, digits, _, . or -".to_owned()),
    }
}

fn window(text: &str) -> Result<Span, String> {
    match duration(text)? {
        Span::ZERO => Err("the window is 0".to_owned()),
        window => Ok(window),
    }
}

/// Returns a flag, or asks for it on a terminal, or takes the default.
fn answer<T: ValueEnum + Copy>(
    flag: Option<T>,
    question: &str,
    usual: T,
    asks: bool,
) -> Result<T, String> {
    if let Some(flag) = flag {
        return Ok(flag);
    }
    if !asks {
        return Ok(usual);
    }
    let word = |value: &T| {
        let value = value.to_possible_value();
        value.map(|it| it.get_name().to_owned()).unwrap_or_default()
    };
    let words: Vec<String> = T::value_variants().iter().map(word).collect();
    loop {
        eprint!("{question} ({}) [{}] ", words.join("/"), word(&usual));
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.map_err(crate::failed)? == 0 || line.trim().is_empty() {
            return Ok(usual);
        }
        if let Ok(value) = T::from_str(line.trim(), true) {
            return Ok(value);
        }
    }
}

/// Returns a number that is known, or asks for it on a terminal, or takes the default.
fn number(known: Option<u64>, question: &str, usual: u64, asks: bool) -> Result<u64, String> {
    if let Some(known) = known {
        return Ok(known);
    }
    if !asks {
        return Ok(usual);
    }
    loop {
        eprint!("{question} [{usual}] ");
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.map_err(crate::failed)? == 0 || line.trim().is_empty() {
            return Ok(usual);
        }
        if let Ok(number) = line.trim().parse() {
            return Ok(number);
        }
    }
}

fn is_yes(answer: Answer) -> bool {
    matches!(answer, Answer::Yes)
}

pub(crate) fn run(args: &Args) -> CommandResult {
    if args.log.iter().any(|path| path == Path::new("-")) {
        return Err("error: `advise` reads a log twice, so it cannot read the standard input: write the log to a file first".to_owned());
    }
    let asks = std::io::stdin().is_terminal() && !args.json && !args.only_config;
    let what = answer(args.what, "What is limited?", WhatArg::Rate, asks)?;
    let window = args.window.unwrap_or(match what {
        WhatArg::Quota => MONTH,
        WhatArg::Rate | WhatArg::Concurrency => Span::MINUTE,
    });
    let demand = match args.log.is_empty() {
        true => None,
        false => Some(demand(args, window)?),
    };
    let live = match args.live.as_deref().zip(args.rule.as_deref()) {
        Some((live, rule)) => Some(live_demand::read(live, rule, &args.connect)?),
        None => None,
    };
    let proposed = demand
        .map(|it| it.proposed())
        .or(live.as_ref().map(|it| it.counts.proposed(window)));
    let subjects = demand.map(|it| it.subjects);
    let answers = answers(args, what, window, (proposed, subjects), asks)?;
    let advice = advise(&answers).map_err(|error| match error {
        AdviceError::Invalid(error) => config::render(&error),
        error => format!("error: {error}"),
    })?;
    let replayed = match args.log.is_empty() {
        true => None,
        false => Some(replay(args, &advice)?),
    };
    if args.only_config {
        print!("{}", advice.config);
    } else if args.json {
        let all = json!({ "advice": advice, "demand": demand, "log": replayed.as_ref().map(denied), "live": live.as_ref().map(|live| counted(live, window)) });
        println!(
            "{}",
            serde_json::to_string_pretty(&all).map_err(crate::failed)?
        );
    } else {
        print!("{}", text(&advice, &answers, demand, replayed.as_ref()));
        if let Some(live) = &live {
            print!("{}", live_text(live, window));
        }
    }
    Ok(true)
}

fn answers(
    args: &Args,
    what: WhatArg,
    window: Span,
    (proposed, subjects): (Option<u64>, Option<u64>),
    asks: bool,
) -> Result<Answers, String> {
    let exact = answer(
        args.exact,
        "Must no window ever exceed the limit?",
        Answer::No,
        asks,
    )?;
    let bursts = answer(args.bursts, "What about bursts?", BurstsArg::Allow, asks)?;
    let cost = answer(args.cost, "What does a request cost?", CostArg::Same, asks)?;
    let subjects = number(
        args.subjects.or(subjects),
        "How many subjects are there in a window?",
        10_000,
        asks,
    )?;
    let memory = answer(args.small_memory, "Is memory scarce?", Answer::No, asks)?;
    let failure = answer(
        args.failure,
        "What happens while the store is down?",
        FailureArg::Local,
        asks,
    )?;
    let billing = answer(args.billing, "Is the usage billed?", Answer::No, asks)?;
    let fleet = answer(
        args.fleet,
        "Do several instances share the limit?",
        Answer::No,
        asks,
    )?;
    let together = answer(
        args.together,
        "Must several rules be decided together?",
        Answer::No,
        asks,
    )?;
    Ok(Answers {
        what: match what {
            WhatArg::Rate => What::Rate,
            WhatArg::Quota => What::Quota,
            WhatArg::Concurrency => What::Concurrency,
        },
        exact: is_yes(exact),
        bursts: match bursts {
            BurstsArg::Allow => Bursts::Allow,
            BurstsArg::Smooth => Bursts::Smooth,
            BurstsArg::Wait => Bursts::Wait,
        },
        cost: match cost {
            CostArg::Same => CostKind::Same,
            CostArg::Varies => CostKind::Varies,
            CostArg::Later => CostKind::Later,
        },
        subjects,
        small_memory: is_yes(memory),
        failure: match failure {
            FailureArg::Open => Failure::Open,
            FailureArg::Closed => Failure::Closed,
            FailureArg::Local => Failure::Local,
        },
        billing: is_yes(billing),
        fleet: is_yes(fleet),
        together: is_yes(together),
        per: args.per.clone(),
        limit: args.limit.or(proposed).unwrap_or(100),
        window,
    })
}

/// Replays the logs.
fn each_request(
    args: &Args,
    config: &Config,
    each: &mut dyn FnMut(tollgate::Time, &tollgate::Attributes<'_>),
) -> Result<(), String> {
    let progress = Progress::default();
    let sources = args.log.iter().map(|path| {
        let failed = |error| format!("error: failed to read {}: {error}", path.display());
        Source::open(path, &progress).map_err(failed)
    });
    let format = args.format.as_deref();
    let fields = Fields {
        format: format.and_then(Format::named),
        mapped: args.map.clone(),
        fixed: args.set.clone(),
    };
    let sources = sources.collect::<Result<Vec<Source>, String>>()?;
    let replayed = Replay::new(config, fields, sources).run(each);
    replayed
        .map(|_| ())
        .map_err(|error| format!("error: {error}"))
}

/// Counts the demand of the subjects in the logs.
fn demand(args: &Args, window: Span) -> Result<DemandFigures, String> {
    let empty = parse("rules", "{ version: 1, rules: [] }", &|_| None);
    let empty = empty.map_err(|error| config::render(&error))?;
    let mut demand = Demand::new(window);
    each_request(args, &empty, &mut |time, attributes| {
        if let Some(subject) = attributes.get(&args.per) {
            demand.add(subject, time);
        }
    })?;
    demand.figures().ok_or_else(|| {
        format!(
            "error: no request of the log has the attribute {}: choose another --per, or --map {}=FIELD",
            args.per, args.per
        )
    })
}

/// Sends the logs through the rule.
fn replay(args: &Args, advice: &Advice) -> Result<Report, String> {
    let text = advice
        .config
        .replace("${TOLLGATE_SECRET}", "a secret of an advice");
    let parsed = parse("advice", &text, &|_| None).map_err(|error| config::render(&error))?;
    let parsed = offline(&parsed);
    let mut simulation = Simulation::new(&parsed, None, true);
    each_request(args, &parsed, &mut |time, attributes| {
        simulation.decide(time, attributes, 1);
    })?;
    Ok(simulation.finish())
}

fn counted(live: &LiveRule, window: Span) -> serde_json::Value {
    let counts = live.counts;
    json!({
        "rule": live.id,
        "state": live.state,
        "checks": counts.checks,
        "denied": counts.denied,
        "busiestInWindow": counts.busiest_in(window),
    })
}

/// Writes what the instance counts. It knows its busiest subjects only, so there are no percentiles.
fn live_text(live: &LiveRule, window: Span) -> String {
    let (counts, is_shadow) = (live.counts, live.state == "shadow");
    let verb = if is_shadow { "would deny" } else { "denied" };
    let busiest = match counts.busiest_in(window) {
        0 => "not known yet, because an instance looks at a sample of its checks".to_owned(),
        most => format!("about {most} requests in {window}"),
    };
    format!(
        "live     {} ({}, limit {}) {verb} {} of {} checks in {}\n\
        \x20        busiest subject: {busiest}\n\
        \x20        an instance does not know the demand of all subjects: a log does\n",
        live.id,
        live.state,
        counts.limit,
        counts.denied,
        counts.checks,
        wait_in_words(counts.counted_for)
    )
}

fn denied(report: &Report) -> serde_json::Value {
    let rule = report.new.rules.first();
    let rows = rule.map(|rule| &rule.most_denied);
    json!({ "requests": report.requests, "denied": report.new.denied, "mostDenied": rows })
}

fn text(
    advice: &Advice,
    answers: &Answers,
    demand: Option<DemandFigures>,
    report: Option<&Report>,
) -> String {
    let mut text = advice.config.clone() + "\n";
    for reason in &advice.reasons {
        text += &format!("why      {reason}\n");
    }
    text += &format!("promise  {}\n", advice.promise);
    let in_words = |bytes: u64| match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    };
    text += &match answers.fleet {
        true => format!(
            "cost     {} bytes of Redis for a subject, {} for {}; {} us of Redis CPU for a check\n",
            advice.bytes_per_subject,
            in_words(advice.bytes),
            answers.subjects,
            advice.redis_micros
        ),
        false => format!(
            "cost     no Redis: {} of memory for {} subjects\n",
            in_words(advice.memory_bytes),
            answers.subjects
        ),
    };
    if let Some(check) = advice.simulation {
        text += &format!(
            "tried    nine subjects at half of the limit: {} of {} requests denied. One at ten times the limit: {} of {} allowed",
            check.quiet_denied, check.quiet_requests, check.loud_allowed, check.loud_requests
        );
        text += &match check.most_in_window.zip(check.window_millis) {
            Some((most, millis)) => format!(", at most {most} in {}\n", Span::from_millis(millis)),
            None => "\n".to_owned(),
        };
        if check.scale < 1.0 {
            text += &format!("         simulated at {} of the limit\n", check.scale);
        }
    }
    if let Some(demand) = demand {
        text += &format!(
            "demand   of {} subjects in {}: half need {}, 90% {}, 99% {}, the busiest {}\n",
            demand.subjects, answers.window, demand.p50, demand.p90, demand.p99, demand.most
        );
    }
    if let Some(report) = report {
        text += &format!(
            "log      {} of {} requests would be denied\n",
            report.new.denied, report.requests
        );
        let rule = report.new.rules.first();
        for row in rule
            .map_or(&[][..], |rule| &rule.most_denied)
            .iter()
            .take(5)
        {
            let (name, counts) = (crate::terminal::printable(&row.name), row.counts);
            text += &format!(
                "         {name}: {} of {} denied\n",
                counts.denied,
                counts.requests()
            );
        }
    }
    text
}
