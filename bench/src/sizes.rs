//! The memory of Redis for each subject and each hold, by kind of rule. The figures do not depend on the speed of
//! the machine: the server counts its own bytes.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::{Acquire, AcquireOutcome, Attributes, Engine, Reserve, ReserveOutcome, Span};
use tollgate_bench::report::Report;
use tollgate_bench::table::Table;
use tollgate_rig::Redis;

use crate::length::Length;

/// Tasks that ask at the same time.
const CALLERS: usize = 64;

/// What each subject does.
#[derive(Clone, Copy)]
enum Work {
    /// So many checks.
    Checks(usize),
    /// One reservation, which stays open.
    Reserve,
    /// One reservation, which is committed.
    Commit,
    /// One lease, which stays open.
    Lease,
}

/// A row of the table.
struct Row {
    name: &'static str,
    /// The fields of the rule besides `id` and `per`.
    rule: &'static str,
    work: Work,
    /// The number of subjects is divided by this.
    fewer: usize,
}

const fn row(name: &'static str, rule: &'static str, work: Work) -> Row {
    Row {
        name,
        rule,
        work,
        fewer: 1,
    }
}

const fn log(name: &'static str, entries: usize) -> Row {
    Row {
        name,
        rule: "algorithm: sliding-log, limit: 1000000, window: 1d",
        work: Work::Checks(entries),
        fewer: entries,
    }
}

const QUOTA: &str = "algorithm: quota, limit: 1000000, period: month";
const ROWS: [Row; 15] = [
    row(
        "`gcra`, `token-bucket`, `leaky-bucket`",
        "algorithm: gcra, rate: 1/m, burst: 1000000",
        Work::Checks(1),
    ),
    row(
        "`fixed-window`",
        "algorithm: fixed-window, limit: 1000000, window: 1d",
        Work::Checks(1),
    ),
    row(
        "`sliding-counter`, two windows",
        "algorithm: sliding-counter, limit: 1000000, window: 1d, estimate: two-window",
        Work::Checks(1),
    ),
    row(
        "`sliding-counter`, 10 sub-buckets",
        "algorithm: sliding-counter, limit: 1000000, window: 1d, buckets: 10",
        Work::Checks(1),
    ),
    row(
        "`sliding-counter`, 60 sub-buckets",
        "algorithm: sliding-counter, limit: 1000000, window: 1d, buckets: 60",
        Work::Checks(1),
    ),
    log("`sliding-log`, 1 entry", 1),
    log("`sliding-log`, 10 entries", 10),
    log("`sliding-log`, 100 entries", 100),
    log("`sliding-log`, 1,000 entries", 1_000),
    row("`quota`", QUOTA, Work::Checks(1)),
    row(
        "`gcra` with `backoff`, never denied",
        "algorithm: gcra, rate: 1/m, burst: 1000000, backoff: { base: 1h }",
        Work::Checks(1),
    ),
    row(
        "`gcra` with `backoff`, blocked",
        "algorithm: gcra, rate: 1/d, burst: 1, backoff: { base: 1h }",
        Work::Checks(2),
    ),
    row(
        "`concurrency`, one lease",
        "algorithm: concurrency, limit: 5, lease: 1h",
        Work::Lease,
    ),
    row("`quota`, one open reservation", QUOTA, Work::Reserve),
    row("`quota`, one ended reservation", QUOTA, Work::Commit),
];

pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let subjects = length.pick(1_000, 100_000, 100_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut report = Report::new("sizes");
    let mut table = Table::new(["rule", "keys a subject", "bytes a subject"]);
    let mut version = String::new();
    for row in &ROWS {
        let redis = Redis::start();
        version.clone_from(&redis.info("server")["redis_version"]);
        // Enough subjects, so that the server's own memory hardly counts.
        let subjects = (subjects / row.fewer).max(subjects / 200);
        let (keys, bytes) = runtime.block_on(measure(&redis, row, subjects))?;
        table.row([
            row.name.to_owned(),
            format!("{keys:.0}"),
            format!("{bytes:.0}"),
        ]);
    }
    report.section(
        &format!(
            "Redis {version}, a standalone server. Names of states have 63 bytes: the rule's id has 11. {subjects} \
             subjects,\nfewer for long logs."
        ),
        &[table],
    );
    match write {
        Some(file) => report.write(file),
        None => Ok(()),
    }
}

/// Returns the keys and the bytes of one subject.
async fn measure(redis: &Redis, row: &Row, subjects: usize) -> Result<(f64, f64), Box<dyn Error>> {
    // A request that times out would be missing from the figures.
    let config = format!(
        "
version: 1
store: {{ redis: {{ url: \"{}\", timeout: 10s }} }}
subjects: {{ hash_secret: a secret of a benchmark }}
rules:
  - {{ id: per-api-key, per: [tenant], {} }}
",
        redis.url(),
        row.rule
    );
    let config = tollgate_config::parse("rules.yaml", &config, &|_| None)?;
    let engine = Arc::new(Engine::start(&config).await?);
    // Open all connections and load the scripts first.
    ask(&engine, row.work, "warm-up", 2 * CALLERS).await?;
    let keys = || redis.connect().command(&["DBSIZE"]).int();
    let (keys_before, bytes_before) = (keys(), redis.used_memory());
    ask(&engine, row.work, "subject", subjects).await?;
    let (keys_after, bytes_after) = (keys(), redis.used_memory());
    engine.close().await;
    let each = |more: f64| more / subjects as f64;
    Ok((
        each((keys_after - keys_before) as f64),
        each(bytes_after as f64 - bytes_before as f64),
    ))
}

/// Lets each subject do its work.
async fn ask(
    engine: &Arc<Engine>,
    work: Work,
    prefix: &'static str,
    subjects: usize,
) -> Result<(), Box<dyn Error>> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let engine = Arc::clone(engine);
        callers.spawn(async move {
            for subject in (caller..subjects).step_by(CALLERS) {
                let tenant = format!("{prefix}-{subject}");
                let attributes = Attributes::from([("tenant", tenant.as_str())]);
                one(&engine, work, &attributes).await?;
            }
            Ok::<(), String>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    Ok(())
}

async fn one(engine: &Engine, work: Work, attributes: &Attributes<'_>) -> Result<(), String> {
    let reserve = Reserve {
        units: 10,
        ttl: Some(Span::HOUR),
        ..Reserve::default()
    };
    match work {
        Work::Checks(count) => {
            for _ in 0..count {
                let decision = engine.check(attributes).await;
                if decision.fallback().is_some() {
                    return Err("Redis did not decide a check".to_owned());
                }
            }
        }
        Work::Reserve | Work::Commit => {
            let outcome = engine.reserve(attributes, &reserve).await;
            let ReserveOutcome::Held { hold, .. } = outcome.map_err(|it| it.to_string())? else {
                return Err("a reservation was denied".to_owned());
            };
            if let Work::Commit = work {
                let ended = engine.commit(&hold.id, 7).await;
                ended.map_err(|it| it.to_string())?;
            }
        }
        Work::Lease => {
            let outcome = engine.acquire(attributes, &Acquire::default()).await;
            let AcquireOutcome::Granted { .. } = outcome.map_err(|it| it.to_string())? else {
                return Err("a lease was denied".to_owned());
            };
        }
    }
    Ok(())
}
