//! What an instance does now, as one JSON document: once (`GET /v1/overview`), or every second as server-sent
//! events (`GET /v1/live`). The dashboard reads both.
//!
//! Counts are totals since the start. A reader subtracts two documents to get a rate. They are those of the metrics.
//! Beside them, the busiest subjects of each rule are found by sampling, whether or not somebody reads them. Unlike a
//! scrape of the metrics, reading changes nothing.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::stream;
use serde::Serialize;
use tollgate::algorithms::fair::WHOLE;
use tollgate::{FairRule, HotKey, Outcome, Reason, Rule, RuleCounts, RuleSet, Span};
use tollgate_redis::HistogramCounts;
use utoipa::ToSchema;
use utoipa::openapi::path::OperationBuilder;

use super::preview::rule_parameter;
use super::{Admin, Answer, Operator};
use crate::describe::{Describe, looking};
use crate::door_metrics::RequestCounts;
use crate::process::Process;
use crate::respond::{self, RequestError};

/// How often a live reader gets a document.
const EVERY: Duration = Duration::from_secs(1);
/// How many live readers an instance serves. Further ones get an error.
pub(super) const MAX_READERS: usize = 16;
/// How many busy subjects a document has.
const HOT_KEYS: usize = 10;
/// How many rules are listed with the count of their keys in Redis.
const COUNTED_RULES: usize = 20;

/// What an instance does now. Counts are totals since its start.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overview {
    /// The time of this document, in milliseconds since the epoch.
    at_epoch_millis: u64,
    /// The name of the reader's token, and its role.
    #[schema(value_type = String)]
    who: Arc<str>,
    role: &'static str,
    /// The version of the program.
    version: &'static str,
    /// The version of the config in force, and when it was put in force.
    config_version: String,
    config_loaded_at_epoch_millis: u64,
    /// Why the current config file was rejected; null if it is in force.
    #[schema(required = true)]
    config_rejected: Option<String>,
    namespace: String,
    /// The requests at all doors. A request is counted once, however many rules apply to it.
    requests: RequestFigures,
    /// Each rule with its counts, in the order of the file. A request is counted under each rule that applies to it.
    rules: Vec<RuleFigures>,
    /// Checks of blocked subjects, denied before any rule.
    blocked: u64,
    /// Requests that a failure policy decided, by policy.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    fallbacks: BTreeMap<&'static str, u64>,
    doors: Vec<DoorFigures>,
    store: StoreFigures,
    /// The busiest subjects, as the first digits of their hashes.
    hot_keys: Vec<HotKeyFigures>,
    /// Null without a ledger.
    #[schema(required = true)]
    ledger: Option<LedgerFigures>,
    /// Whether the instance keeps a journal of denials.
    journal: bool,
    process: ProcessFigures,
}

/// Requests by what was decided. Each check of a batch is a request; clients that wait for a lease are not counted.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestFigures {
    allowed: u64,
    /// Denied by rules, or blocked.
    denied: u64,
    /// The store failed: a failure policy decided, or nothing did.
    store_failed: u64,
}

impl From<RequestCounts> for RequestFigures {
    fn from(counts: RequestCounts) -> RequestFigures {
        RequestFigures {
            allowed: counts.allowed,
            denied: counts.denied,
            store_failed: counts.store_failed,
        }
    }
}

/// The counts of one rule.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleFigures {
    rule_id: String,
    algorithm: &'static str,
    state: &'static str,
    /// The rule that this rule is a candidate for.
    #[schema(required = true)]
    candidate_of: Option<String>,
    /// Null if the rule is unlimited.
    #[schema(required = true)]
    limit: Option<u64>,
    allowed: u64,
    denied: u64,
    /// Denials by reason, without those that never happened.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    reasons: BTreeMap<&'static str, u64>,
    /// What a shadow rule or a candidate would have denied.
    shadow_denied: u64,
    /// Allowed with less than a fifth of the limit left.
    near_limit: u64,
    /// What clients of a fair rule got; null for other rules.
    #[schema(required = true)]
    fair: Option<FairFigures>,
}

/// What clients of a fair rule got.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FairFigures {
    lanes: Vec<LaneFigures>,
}

/// A lane of a fair rule.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaneFigures {
    /// Empty if the rule has no lanes.
    #[schema(value_type = String)]
    lane: Arc<str>,
    /// The guaranteed part, from 0 to 1.
    share: f64,
    /// The clients of each weight.
    weights: Vec<WeightFigures>,
}

/// What clients of one weight got in a lane.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WeightFigures {
    weight: u32,
    allowed: u64,
    denied: u64,
    /// Units that were taken.
    units: u64,
    /// About how many clients asked this instance in the last 30 to 60 seconds.
    clients: u64,
}

impl FairFigures {
    fn new(fair: &FairRule) -> FairFigures {
        let lanes = fair.lanes.iter().map(|(lane, share)| LaneFigures {
            lane: Arc::clone(lane),
            share: f64::from(*share) / f64::from(WHOLE),
            weights: fair
                .classes
                .iter()
                .filter(|class| class.lane == *lane)
                .map(|class| WeightFigures {
                    weight: class.weight,
                    allowed: class.allowed,
                    denied: class.denied,
                    units: class.units,
                    clients: class.clients,
                })
                .collect(),
        });
        FairFigures {
            lanes: lanes.collect(),
        }
    }
}

impl RuleFigures {
    fn new(rule: &Rule, counts: &RuleCounts, fair: Option<&FairRule>) -> RuleFigures {
        let capacity = rule.limit().capacity();
        let reasons = Reason::ALL.into_iter().zip(counts.denied);
        let reasons = reasons.filter(|(_, count)| *count > 0);
        RuleFigures {
            rule_id: rule.id().to_owned(),
            algorithm: rule.algorithm().name(),
            state: rule.state().name(),
            candidate_of: rule.candidate_of().map(str::to_owned),
            limit: (capacity != Outcome::UNLIMITED).then_some(capacity),
            allowed: counts.allowed,
            denied: counts.denied.iter().sum(),
            reasons: reasons.map(|(it, count)| (it.name(), count)).collect(),
            shadow_denied: counts.shadow_denied,
            near_limit: counts.near_limit,
            fair: fair.map(FairFigures::new),
        }
    }
}

/// The counts of one door.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DoorFigures {
    door: &'static str,
    requests: RequestFigures,
    /// Answered requests by status.
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    statuses: BTreeMap<&'static str, u64>,
    bad_requests: u64,
    /// Requests that no rule applied to.
    unmatched: u64,
    open_connections: usize,
    /// The time of all decisions, in nanoseconds.
    decisions: Histogram,
}

/// How many values were at most as large as each bound.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Histogram {
    /// Pairs of an upper bound and a count.
    up_to: Vec<(u64, u64)>,
    count: u64,
    sum: u64,
}

impl Histogram {
    fn add(&mut self, counts: &HistogramCounts) {
        if self.up_to.is_empty() {
            self.up_to.clone_from(&counts.up_to);
        } else {
            for (own, other) in self.up_to.iter_mut().zip(&counts.up_to) {
                own.1 += other.1;
            }
        }
        self.count += counts.count;
        self.sum += counts.sum;
    }
}

/// The store.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreFigures {
    /// `memory` or `redis`.
    kind: &'static str,
    /// Why the store cannot be used; null if it works.
    #[schema(required = true)]
    problem: Option<String>,
    keys: u64,
    max_keys: usize,
    bytes: u64,
    /// Checks of new subjects that shared a state.
    shared_decisions: u64,
    /// Requests that were denied from known denials.
    known_denials: u64,
    in_flight: usize,
    /// The circuit breakers, by server.
    breakers: BTreeMap<String, &'static str>,
    /// The time of answered calls, in microseconds.
    latency: Histogram,
    /// Calls without an answer.
    failed_calls: u64,
    /// The rules with the most keys.
    rule_keys: Vec<RuleKeys>,
}

/// The keys of a rule in Redis, estimated.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleKeys {
    rule: String,
    keys: u64,
    bytes: u64,
}

/// A busy subject.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HotKeyFigures {
    rule: String,
    /// The first digits of the hash.
    subject: String,
    /// About how many recent checks.
    checks: u64,
    /// The approximate share of all recent decisions of rules, from 0 to 1.
    share: f64,
}

impl HotKeyFigures {
    fn new(rules: &RuleSet, hot: &HotKey) -> HotKeyFigures {
        let mut subject = hot.subject.to_string();
        subject.truncate(8);
        HotKeyFigures {
            rule: rules.rules()[hot.rule].id().to_owned(),
            subject,
            checks: hot.requests,
            share: hot.requests as f64 / hot.of.max(1) as f64,
        }
    }
}

/// The subjects that ask most under one rule.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleSubjects {
    /// The busiest first, found by sampling. `share` is of the recent checks under this rule.
    subjects: Vec<HotKeyFigures>,
}

/// How far the ledger is behind.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerFigures {
    connected: bool,
    lag_millis: u64,
    waiting: u64,
}

/// The process. A number that the system does not report is null.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessFigures {
    #[schema(required = true)]
    cpu_millis: Option<u64>,
    #[schema(required = true)]
    resident_bytes: Option<u64>,
    #[schema(required = true)]
    started_at_epoch_millis: Option<u64>,
}

impl Overview {
    fn new(admin: &Admin, who: &Operator) -> Overview {
        let control = &admin.control;
        let engine = control.engine();
        let live = engine.active();
        let (rules, status) = (live.rules(), control.status());
        let counts = live.metrics().counts();
        let fair = live.metrics().fair(control.now());
        let hot_keys = live.metrics().hot_keys(rules, HOT_KEYS).into_iter();
        let hot_keys = hot_keys.map(|hot| HotKeyFigures::new(rules, &hot));
        let process = Process::read();
        Overview {
            at_epoch_millis: control.now().as_micros() / 1000,
            who: Arc::clone(&who.name),
            role: who.role.name(),
            version: env!("CARGO_PKG_VERSION"),
            config_version: rules.version().to_owned(),
            config_loaded_at_epoch_millis: status.loaded_at.as_micros() / 1000,
            config_rejected: status.refused,
            namespace: live.config().namespace.clone(),
            requests: control.requests().into(),
            rules: rules
                .rules()
                .iter()
                .zip(&counts)
                .enumerate()
                .map(|(place, (rule, counts))| {
                    let fair = fair.iter().find(|it| it.rule == place);
                    RuleFigures::new(rule, counts, fair)
                })
                .collect(),
            blocked: engine.blocked().map(|(_, count)| count).sum(),
            fallbacks: engine.fallbacks().filter(|(_, count)| *count > 0).collect(),
            doors: doors(admin),
            store: store(admin),
            hot_keys: hot_keys.collect(),
            ledger: engine.accounts().map(|accounts| {
                let status = accounts.ledger().status();
                let lag = status.lag(control.now()).map_or(0, Span::as_micros);
                LedgerFigures {
                    connected: status.is_connected,
                    lag_millis: lag / 1000,
                    waiting: status.queued as u64 + status.spilled,
                }
            }),
            journal: control.journal().is_some(),
            process: ProcessFigures {
                cpu_millis: process.cpu_ticks.map(|ticks| ticks * 10),
                resident_bytes: process.resident_bytes,
                started_at_epoch_millis: process.started_ticks.map(|ticks| ticks * 10),
            },
        }
    }
}

fn doors(admin: &Admin) -> Vec<DoorFigures> {
    let doors = admin.control.doors().iter().map(|door| {
        let metrics = &door.metrics;
        let mut decisions = Histogram::default();
        for (_, counts) in metrics.decisions() {
            decisions.add(&counts);
        }
        DoorFigures {
            door: door.name,
            requests: metrics.requests().into(),
            statuses: metrics.statuses(door.statuses).collect(),
            bad_requests: metrics.bad_requests().map(|(_, count)| count).sum(),
            unmatched: metrics
                .unmatched
                .counts()
                .iter()
                .map(|(_, count)| count)
                .sum(),
            open_connections: metrics.open_connections(),
            decisions,
        }
    });
    doors.collect()
}

fn store(admin: &Admin) -> StoreFigures {
    let engine = admin.control.engine();
    let max_keys = engine.active().config().subjects.max_keys;
    let mut figures = StoreFigures {
        kind: "memory",
        problem: engine.store_problem(),
        keys: 0,
        max_keys,
        bytes: 0,
        shared_decisions: 0,
        known_denials: engine.redis_stores().map(|(_, _, known)| known).sum(),
        in_flight: 0,
        breakers: BTreeMap::new(),
        latency: Histogram::default(),
        failed_calls: 0,
        rule_keys: Vec::new(),
    };
    if let Some(usage) = engine.memory_usage() {
        (figures.keys, figures.bytes) = (usage.keys, usage.bytes);
        figures.shared_decisions = usage.shared;
    }
    for (name, redis, _) in engine.redis_stores() {
        figures.in_flight += redis.in_flight();
        for (server, state) in redis.breakers() {
            let server = match name {
                Some(name) => format!("{name}: {server}"),
                None => server,
            };
            figures.breakers.insert(server, state.name());
        }
        for (_, answered, counts) in redis.metrics().latency() {
            match answered {
                true => figures.latency.add(&counts),
                false => figures.failed_calls += counts.count,
            }
        }
    }
    if let Some(redis) = engine.redis() {
        let census = redis.census();
        figures.kind = "redis";
        (figures.keys, figures.bytes) = (census.keys(), census.bytes());
        figures.shared_decisions = redis.shared_decisions();
        let rules = census.rules.iter().map(|(rule, counted)| RuleKeys {
            rule: rule.to_string(),
            keys: counted.keys,
            bytes: counted.bytes,
        });
        figures.rule_keys = rules.collect();
        figures
            .rule_keys
            .sort_by_key(|it| std::cmp::Reverse(it.keys));
        figures.rule_keys.truncate(COUNTED_RULES);
    }
    figures
}

pub(super) async fn once(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
) -> Response {
    respond::report(&Overview::new(&admin, &who))
}

/// Returns the subjects that ask most under one rule.
pub(super) async fn subjects(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Answer {
    let live = admin.control.engine().active();
    let rules = live.rules();
    let place = rules.rules().iter().position(|it| it.id() == id);
    let place = place.ok_or(RequestError::NoSuchRule(id))?;
    let hot_keys = live.metrics().hot_keys_of(rules, place, HOT_KEYS);
    let subjects = hot_keys.iter().map(|hot| HotKeyFigures::new(rules, hot));
    Ok(respond::report(&RuleSubjects {
        subjects: subjects.collect(),
    }))
}

/// Sends a document every second until the client leaves, or the server drains.
pub(super) async fn live(
    State(admin): State<Arc<Admin>>,
    Extension(who): Extension<Operator>,
) -> Answer {
    let readers = Arc::clone(&admin.live_readers);
    let place = readers
        .try_acquire_owned()
        .map_err(|_| RequestError::TooManyReaders)?;
    let ticks = tokio::time::interval(EVERY);
    let start = (admin, who, ticks, place);
    let events = stream::unfold(start, |(admin, who, mut ticks, place)| async move {
        ticks.tick().await;
        if admin.is_draining() {
            return None;
        }
        // A token that was removed meanwhile must not read on.
        if !admin.is_known(&who) {
            return None;
        }
        let event = event(&Overview::new(&admin, &who));
        Some((Ok::<_, Infallible>(event), (admin, who, ticks, place)))
    });
    Ok(respond::events(Body::from_stream(events)))
}

/// Returns a document as a server-sent event.
fn event(overview: &Overview) -> Bytes {
    let mut event = b"data: ".to_vec();
    // The document has only text and numbers, so it can be written.
    if serde_json::to_writer(&mut event, overview).is_err() {
        event.truncate(b"data: ".len());
    }
    event.extend_from_slice(b"\n\n");
    event.into()
}

pub(super) fn describe() -> OperationBuilder {
    looking("overview")
        .summary(Some("What this instance does now."))
        .ok::<Overview>("Counts since the start, and the state of store, doors and ledger.")
}

pub(super) fn describe_subjects() -> OperationBuilder {
    looking("ruleSubjects")
        .summary(Some("The subjects that ask most under a rule."))
        .parameter(rule_parameter())
        .ok::<RuleSubjects>("At most 10 subjects, as the first digits of their hashes.")
        .fails("404", "NO_SUCH_RULE", "No such rule is in force.")
}

pub(super) fn describe_live() -> OperationBuilder {
    let many = "Too many clients follow this instance.";
    looking("live")
        .summary(Some("The same every second, as server-sent events (text/event-stream), until the client leaves."))
        .ok::<Overview>("Each event is one document.")
        .fails("503", "TOO_MANY_READERS", many)
}
