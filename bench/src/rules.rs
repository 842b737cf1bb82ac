//! The cost of more rules and tenants: the same request under 5, 50 and 500 rules, with and without 50,000
//! tenants. Three of the rules match. The time to load the rules is measured too.

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;

use tollgate::{Attributes, Limiter, RuleSet};
use tollgate_bench::process::resident_bytes;
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_config::{RequestLimits, parse};
use tollgate_core::Keyring;
use tollgate_rig::Stopwatch;

use crate::length::Length;

const RULES: [usize; 3] = [5, 50, 500];
pub(crate) const TENANTS: usize = 50_000;
/// The most that a request may cost under 500 rules, relative to five.
const MOST_OF_RULES: f64 = 1.5;
/// The most that a check may cost under 500 rules with 50,000 tenants, relative to five rules without tenants.
const MOST_OF_ALL: f64 = 1.3;

struct Effort {
    rounds: usize,
    requests: usize,
}

/// One set of rules.
struct Side {
    name: String,
    rules: RuleSet,
    limiter: Limiter,
    load_millis: f64,
    memory: f64,
}

pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, requests) = length.pick((3, 20_000), (7, 300_000), (15, 300_000));
    let effort = Effort { rounds, requests };
    let mut sides = Vec::new();
    for tenants in [0, TENANTS] {
        for rules in RULES {
            sides.push(Side::new(rules, tenants)?);
        }
    }
    let tenants: Vec<String> = (0..TENANTS).map(tenant).collect();
    let mut times: Vec<[Vec<f64>; 2]> = sides.iter().map(|_| Default::default()).collect();
    for round in 0..=effort.rounds {
        for (side, times) in sides.iter().zip(&mut times) {
            let resolved = side.resolve(&tenants, &effort)?;
            let checked = side.check(&tenants, &effort);
            // The first round is a warm-up.
            if round > 0 {
                times[0].push(resolved);
                times[1].push(checked);
            }
        }
    }
    let (rounds, requests) = (effort.rounds, effort.requests);
    let mut report = Report::new("rules");
    let columns = [
        "rules", "resolve", "ratio", "bar", "", "check", "ratio", "bar", "",
    ];
    let mut table = Table::new(columns);
    let medians: Vec<[f64; 2]> = times.into_iter().map(|it| it.map(median)).collect();
    let base = medians[0];
    for (index, (side, [resolved, checked])) in sides.iter().zip(&medians).enumerate() {
        let (resolve_ratio, check_ratio) = (resolved / base[0], checked / base[1]);
        let last = index + 1 == sides.len();
        let resolve_bar = match index {
            2 => Bar::AtMost(MOST_OF_RULES),
            _ => Bar::None,
        };
        let check_bar = match (index, last) {
            (2, _) => Bar::AtMost(MOST_OF_RULES),
            (_, true) => Bar::AtMost(MOST_OF_ALL),
            _ => Bar::None,
        };
        table.row([
            side.name.clone(),
            format!("{resolved:.0}"),
            format!("{resolve_ratio:.2}"),
            resolve_bar.to_string(),
            resolve_bar.verdict(resolve_ratio),
            format!("{checked:.0}"),
            format!("{check_ratio:.2}"),
            check_bar.to_string(),
            check_bar.verdict(check_ratio),
        ]);
    }
    report.section(
        &format!(
            "Nanoseconds per request, medians of {rounds} alternating rounds of {requests}; three rules match. \
             `resolve` is from\nattributes to charges, `check` from attributes to the decision."
        ),
        &[table],
    );
    let mut loading = Table::new(["rules", "milliseconds", "resident MB"]);
    for side in &sides {
        let memory = side.memory / 1e6;
        let millis = format!("{:.1}", side.load_millis);
        loading.row([side.name.clone(), millis, format!("{memory:.1}")]);
    }
    report.section("Loading, from the text to rules in force.", &[loading]);
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

impl Side {
    fn new(rules: usize, tenants: usize) -> Result<Side, Box<dyn Error>> {
        let text = config(rules, tenants);
        let before = resident_bytes(std::process::id())?;
        let stopwatch = Stopwatch::start();
        let config = parse("rules.yaml", &text, &|_| None)?;
        let keyring = Keyring::new(b"a secret of a benchmark", "bench");
        let compiled = config.compile(keyring, &[]);
        let load_millis = stopwatch.elapsed().as_secs_f64() * 1e3;
        let memory = resident_bytes(std::process::id())? - before;
        let name = match tenants {
            0 => format!("{rules} rules"),
            _ => format!("{rules} rules, {tenants} tenants"),
        };
        Ok(Side {
            name,
            rules: compiled,
            limiter: Limiter::new(&config)?,
            load_millis,
            memory,
        })
    }

    /// Measures the nanoseconds from the attributes of a request to its charges.
    fn resolve(&self, tenants: &[String], effort: &Effort) -> Result<f64, Box<dyn Error>> {
        let mut charges = 0;
        let stopwatch = Stopwatch::start();
        for request in 0..effort.requests {
            let request_limits = RequestLimits::default();
            let attributes = attributes(&tenants[request * 7919 % tenants.len()]);
            let resolution = self.rules.resolve(&attributes, &request_limits);
            charges += black_box(&resolution).charges.len();
        }
        let nanos = stopwatch.elapsed().as_secs_f64() * 1e9 / effort.requests as f64;
        if charges != 3 * effort.requests {
            return Err(format!("{charges} charges of {} requests", effort.requests).into());
        }
        Ok(nanos)
    }

    /// Measures the nanoseconds from the attributes of a request to the decision.
    fn check(&self, tenants: &[String], effort: &Effort) -> f64 {
        let stopwatch = Stopwatch::start();
        for request in 0..effort.requests {
            let attributes = attributes(&tenants[request * 7919 % tenants.len()]);
            black_box(self.limiter.check_now(&attributes));
        }
        stopwatch.elapsed().as_secs_f64() * 1e9 / effort.requests as f64
    }
}

fn attributes(tenant: &str) -> Attributes<'_> {
    Attributes::from([
        ("tenant", tenant),
        ("api_key", "k1"),
        ("action", "search"),
        ("method", "GET"),
        ("route", "/v1/items"),
    ])
}

pub(crate) fn tenant(number: usize) -> String {
    format!("tenant-{number}")
}

/// Makes a config with three rules that match the requests. The other rules match other actions and routes.
pub(crate) fn config(rules: usize, tenants: usize) -> String {
    let mut text = "version: 1\n".to_owned();
    if tenants > 0 {
        text += "plans:\n";
        for plan in 0..5 {
            let rate = 1_000_000 * (plan + 1);
            let _ = writeln!(
                text,
                "  plan-{plan}: {{ all: {{ rate: {rate}/s }}, search: {{ rate: {rate}/s }} }}"
            );
        }
        text += "tenants:\n";
        for number in 0..tenants {
            let (name, plan) = (tenant(number), number % 5);
            let own = match number % 10 {
                0 => ", overrides: { search: { burst: 500000 } }",
                _ => "",
            };
            let _ = writeln!(text, "  {name}: {{ plan: plan-{plan}{own} }}");
        }
    }
    text += "rules:
  - { id: all, per: [tenant], algorithm: gcra, rate: 1000000/s }
  - { id: search, match: { action: search }, per: [tenant, api_key], algorithm: gcra, rate: 1000000/s }
  - { id: reads, match: { method: GET, route: '/v1/*' }, per: [tenant], algorithm: gcra, rate: 1000000/s }
";
    for number in 3..rules {
        let condition = match number % 4 {
            0 => format!("method: GET, route: /v2/{number}"),
            _ => format!("action: action-{number}"),
        };
        let _ = writeln!(
            text,
            "  - {{ id: rule-{number}, match: {{ {condition} }}, per: [tenant], algorithm: gcra, rate: 1000000/s }}"
        );
    }
    text
}
