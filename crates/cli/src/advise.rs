//! `tollgate advise`: ten questions lead to a rule, with reasons, its cost and its promise. A log gives the numbers.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::json;
use tollgate::{Config, Span, parse};
use tollgate_rules::document::duration;
use tollgate_rules::is_attribute_name;
use tollgate_simulate::advise::{Advice, Answers, Bursts, CostKind, Failure, What, advise};
use tollgate_simulate::demand::{Demand, DemandFigures};
use tollgate_simulate::log::{Fields, Progress, Replay, Source};
use tollgate_simulate::report::Report;
use tollgate_simulate::{Simulation, offline};

use crate::request::attribute;
use crate::{CommandResult, config};

/// Asks ten questions, and answers with a rule, the reasons, what it costs and what it promises. Each question is
/// a flag too. Without a terminal, flags that are not given have their defaults.
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

    /// The time that the limit is for
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = window)]
    window: Span,

    /// Propose the limit from access logs, as `simulate` reads them, and show who would be denied
    #[arg(long, short, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,

    /// Take an attribute from a field of the log
    #[arg(long, value_name = "ATTRIBUTE=FIELD", value_parser = attribute, requires = "log")]
    map: Vec<(String, String)>,

    /// Print only the config
    #[arg(long, conflicts_with = "json")]
    only_config: bool,

    /// Print the advice as JSON
    #[arg(long)]
    json: bool,
}

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

fn is_yes(answer: Answer) -> bool {
    matches!(answer, Answer::Yes)
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let asks = std::io::stdin().is_terminal() && !args.json && !args.only_config;
    let demand = match args.log.is_empty() {
        true => None,
        false => Some(demand(args)?),
    };
    let answers = answers(args, demand, asks)?;
    let advice = advise(&answers).map_err(|error| config::render(&error))?;
    let replayed = match args.log.is_empty() {
        true => None,
        false => Some(replay(args, &advice)?),
    };
    if args.only_config {
        print!("{}", advice.config);
    } else if args.json {
        let all =
            json!({ "advice": advice, "demand": demand, "log": replayed.as_ref().map(denied) });
        println!(
            "{}",
            serde_json::to_string_pretty(&all).map_err(crate::failed)?
        );
    } else {
        print!("{}", text(&advice, &answers, demand, replayed.as_ref()));
    }
    Ok(true)
}

fn answers(args: &Args, demand: Option<DemandFigures>, asks: bool) -> Result<Answers, String> {
    let what = answer(args.what, "What is limited?", WhatArg::Rate, asks)?;
    let exact = answer(
        args.exact,
        "Must no window ever exceed the limit?",
        Answer::No,
        asks,
    )?;
    let bursts = answer(args.bursts, "What about bursts?", BurstsArg::Allow, asks)?;
    let cost = answer(args.cost, "What does a request cost?", CostArg::Same, asks)?;
    let memory = answer(args.small_memory, "Is memory scarce?", Answer::No, asks)?;
    let failure = answer(
        args.failure,
        "While the store is down?",
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
        subjects: args
            .subjects
            .or(demand.map(|it| it.subjects))
            .unwrap_or(10_000),
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
        limit: args.limit.or(demand.map(|it| it.proposed())).unwrap_or(100),
        window: args.window,
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
    let fields = Fields {
        format: None,
        mapped: args.map.clone(),
        fixed: Vec::new(),
    };
    let sources = sources.collect::<Result<Vec<Source>, String>>()?;
    let replayed = Replay::new(config, fields, sources).run(each);
    replayed
        .map(|_| ())
        .map_err(|error| format!("error: {error}"))
}

/// Counts the demand of the subjects in the logs.
fn demand(args: &Args) -> Result<DemandFigures, String> {
    let empty = parse("rules", "{ version: 1, rules: [] }", &|_| None);
    let empty = empty.map_err(|error| config::render(&error))?;
    let mut demand = Demand::new(args.window);
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
    let mebibytes = advice.bytes as f64 / f64::from(1 << 20);
    text += &match answers.fleet {
        true => format!(
            "cost     {} bytes of Redis for a subject, {mebibytes:.1} MiB for {}; {} us of Redis CPU for a check\n",
            advice.bytes_per_subject, answers.subjects, advice.redis_micros
        ),
        false => "cost     no Redis: the state is in memory\n".to_owned(),
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
