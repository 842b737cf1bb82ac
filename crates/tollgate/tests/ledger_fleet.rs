//! The ledger with real servers: Redis loses its data, PostgreSQL has an outage.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that tells what it saw"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::{
    Ask, Attributes, Engine, HoldError, PostError, Posted, Posting, Reason, Repair, Reserve,
    ReserveOutcome, Span,
};
use tollgate_ledger::{EntryQuery, Kind, UsageQuery};
use tollgate_rig::{Postgres, Redis, Stopwatch};
use tollgate_store::HoldState;

const LIMIT: u64 = 2000;

fn acme() -> Attributes<'static> {
    Attributes::from([("tenant", "acme"), ("action", "chat")])
}

async fn start(store: &str, ledger: &str) -> Engine {
    let text = format!(
        "
version: 1
{store}
ledger: {ledger}
subjects: {{ hash_secret: a secret of sixteen bytes }}
rules:
  - id: monthly
    per: [tenant]
    algorithm: quota
    limit: {LIMIT}
    period: year
    on_store_failure: fail-closed
"
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    // Redis may accept connections before it answers.
    for _ in 0..100 {
        match Engine::start(&config).await {
            Ok(engine) => return engine,
            Err(error) if error.is_passing() => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the engine does not start");
}

fn on(redis: &Redis) -> String {
    format!(
        "store: {{ redis: {{ urls: [\"{}\"], timeout: 5s, \
         circuit_breaker: {{ consecutive_failures: 1000 }} }} }}",
        redis.url()
    )
}

/// Returns the usage in the ledger.
async fn used(engine: &Engine) -> u64 {
    let query = UsageQuery {
        to: tollgate::Time::MAX,
        ..UsageQuery::default()
    };
    let rows = engine.accounts().unwrap().usage(&query).await.unwrap();
    rows.iter()
        .map(|row| u64::try_from(row.used).unwrap())
        .sum()
}

/// The longest wait for an expected change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the condition holds.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = Stopwatch::start();
    while !is_so().await {
        assert!(waited.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flushing_redis_does_not_reset_a_period() {
    lose_redis_under_load(|redis| {
        redis.cli(&["FLUSHALL"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarting_redis_does_not_reset_a_period() {
    lose_redis_under_load(Redis::restart).await;
}

/// Uses up a period with many tasks, while Redis loses everything three times.
async fn lose_redis_under_load(lose: impl Fn(&Redis)) {
    const TASKS: u64 = 8;
    const LOSSES: [u64; 3] = [300, 800, 1500];
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ledger.db");
    let ledger = format!("{{ sqlite: {} }}", file.display());
    let engine = Arc::new(start(&on(&redis), &ledger).await);
    let (stopping, admitted) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let asking = (0..TASKS).map(|_| {
        let (engine, stopping) = (Arc::clone(&engine), Arc::clone(&stopping));
        let admitted = Arc::clone(&admitted);
        tokio::spawn(async move {
            while !stopping.load(Ordering::Relaxed) {
                match engine.ask(&acme(), Ask::Exactly(1)).await.is_allowed() {
                    true => _ = admitted.fetch_add(1, Ordering::Relaxed),
                    false => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        })
    });
    let asking: Vec<_> = asking.collect();
    for wanted in LOSSES {
        until("so many are admitted", async || {
            admitted.load(Ordering::Relaxed) >= wanted
        })
        .await;
        lose(&redis);
    }
    until("the period is used up", async || {
        let answer = engine.peek(&acme(), Ask::Exactly(1)).await;
        answer.rule().unwrap().reason() == Some(Reason::Exceeded)
    })
    .await;
    // The tasks continue to ask for a while.
    tokio::time::sleep(Duration::from_millis(200)).await;
    stopping.store(true, Ordering::Relaxed);
    for task in asking {
        task.await.unwrap();
    }
    let admitted = admitted.load(Ordering::Relaxed);
    // A count may be lost before an admitted request is recorded: at most one request of each other task.
    let most = LIMIT + (TASKS - 1) * LOSSES.len() as u64;
    println!("{admitted} of {LIMIT} in one period, {most} at most");
    assert!(admitted <= most, "{admitted} of {LIMIT} in one period");
    assert_eq!(used(&engine).await, admitted);
    lose(&redis);
    let more = LIMIT.saturating_sub(admitted) + 1;
    let mut last = None;
    until("Redis answers", async || {
        let answer = engine.ask(&acme(), Ask::Exactly(more)).await;
        let is_told = answer.fallback().is_none();
        last = Some(answer);
        is_told
    })
    .await;
    assert!(!last.unwrap().is_allowed());
    let accounts = engine.accounts().unwrap();
    let mut drifts = None;
    // Broken connections are replaced one by one.
    until("it is reconciled", async || {
        let reconciled = accounts.reconcile(None, Repair::Nothing, "test").await;
        drifts = reconciled.ok().map(|it| it.drifts);
        drifts.is_some()
    })
    .await;
    assert_eq!(drifts.unwrap(), []);
}

/// Starts two instances on one ledger. The second writes nothing by itself, as if it had crashed.
async fn quick_and_slow(redis: &Redis, postgres: &Postgres, spill: &TempDir) -> [Engine; 2] {
    let quick = in_postgres(postgres, spill, "");
    let slow = in_postgres(postgres, spill, ", flush_interval: 1m");
    [
        start(&on(redis), &quick).await,
        start(&on(redis), &slow).await,
    ]
}

/// Returns the section of a ledger that several instances share.
fn in_postgres(postgres: &Postgres, spill: &TempDir, more: &str) -> String {
    let (url, spill) = (postgres.url(), spill.path().join("ledger.spill"));
    format!(
        "{{ postgres: \"{url}\", spill: {}{more} }}",
        spill.display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn second_engine_on_a_sqlite_ledger_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ledger.db");
    let text = format!(
        "version: 1\nledger: {{ sqlite: {} }}\nsubjects: {{ hash_secret: 0123456789abcdef }}\nrules: []\n",
        file.display()
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let first = Engine::start(&config).await.unwrap();
    for refused in [
        Engine::start(&config).await,
        Engine::start_unchecked(&config),
    ] {
        let error = refused.unwrap_err();
        let said = error.to_string();
        assert!(said.contains("is in use by another server"), "{said}");
        assert!(!error.is_passing(), "{said}");
    }
    first.close().await;
    Engine::start(&config).await.unwrap().close().await;

    // A start that failed for another reason leaves no lock behind.
    let nowhere = "store: { redis: { url: \"redis://127.0.0.1:1\" } }\nrules: []";
    let text = text.replace("rules: []", nowhere);
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    assert!(Engine::start(&config).await.unwrap_err().is_passing());
    Engine::start_unchecked(&config).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_redis_admits_at_most_the_unwritten_usage_again() {
    let redis = Redis::start();
    let (postgres, directory) = (Postgres::start(), tempfile::tempdir().unwrap());
    let [one, other] = quick_and_slow(&redis, &postgres, &directory).await;
    let ask = async |engine: &Engine, units| {
        let answer = engine.ask(&acme(), Ask::Exactly(units)).await;
        assert_eq!(answer.fallback(), None);
        answer.is_allowed()
    };
    assert!(ask(&one, 1000).await && ask(&other, 300).await);
    other.accounts().unwrap().ledger().flush().await.unwrap();
    let unwritten = 150;
    assert!(ask(&other, unwritten).await);
    redis.cli(&["FLUSHALL"]);
    let mut admitted = 1000 + 300 + unwritten;
    for _ in 0..LIMIT / 10 {
        for engine in [&one, &other] {
            if ask(engine, 10).await {
                admitted += 10;
            }
        }
        if admitted > LIMIT + unwritten {
            break;
        }
    }
    println!("{admitted} of {LIMIT}, with {unwritten} that the other had not written");
    assert!(
        (LIMIT..=LIMIT + unwritten).contains(&admitted),
        "{admitted} of {LIMIT}"
    );
    // After everything is written, nothing more is admitted.
    other.accounts().unwrap().ledger().flush().await.unwrap();
    assert_eq!(used(&one).await, admitted);
    for _ in 0..3 {
        redis.cli(&["FLUSHALL"]);
        assert!(!ask(&other, 1).await && !ask(&one, 1).await);
    }
    assert_eq!(used(&one).await, admitted);
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_survive_the_loss_of_redis() {
    let redis = Redis::start();
    let (postgres, directory) = (Postgres::start(), tempfile::tempdir().unwrap());
    let ledger = in_postgres(&postgres, &directory, "");
    let one = start(&on(&redis), &ledger).await;
    let other = start(&on(&redis), &ledger).await;
    let request = Reserve {
        units: 500,
        ttl: Some(Span::HOUR),
        idempotency_key: Some("call-1"),
    };
    let reserve = async |engine: &Engine| match engine.reserve(&acme(), &request).await.unwrap() {
        ReserveOutcome::Held { hold, .. } => hold,
        ReserveOutcome::Denied(decision) => panic!("{decision:?}"),
    };
    let hold = reserve(&one).await;
    assert_eq!(reserve(&other).await.id, hold.id, "one for both");
    redis.cli(&["FLUSHALL"]);
    one.accounts().unwrap().ledger().flush().await.unwrap();
    assert_eq!(
        reserve(&other).await.id,
        hold.id,
        "and after everything was lost"
    );
    let settled = other.commit(&hold.id, 120).await.unwrap();
    assert_eq!(
        (settled.state, settled.actual),
        (HoldState::Consumed, Some(120))
    );
    one.commit(&hold.id, 120).await.unwrap();
    let error = one.commit(&hold.id, 7).await.unwrap_err();
    assert!(matches!(error, HoldError::Ended(_)), "{error}");
    assert_eq!(used(&other).await, 120);
    assert_eq!(
        one.peek(&acme(), Ask::Exactly(1))
            .await
            .rule()
            .unwrap()
            .remaining(),
        Some(LIMIT - 120)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_reservation_records_its_missing_beginning() {
    let redis = Redis::start();
    let (postgres, directory) = (Postgres::start(), tempfile::tempdir().unwrap());
    let [other, one] = quick_and_slow(&redis, &postgres, &directory).await;
    // The count is in the store, so that no request has to read the ledger.
    other.ask(&acme(), Ask::Exactly(1)).await;
    let request = Reserve {
        units: 500,
        ttl: Some(Span::HOUR),
        idempotency_key: None,
    };
    for (actual, expected) in [
        (Some(120), 121),
        (Some(0), 121),
        (Some(700), 821),
        (None, 821),
    ] {
        let ReserveOutcome::Held { hold, .. } = one.reserve(&acme(), &request).await.unwrap()
        else {
            panic!("denied");
        };
        match actual {
            Some(actual) => other.commit(&hold.id, actual).await.unwrap(),
            None => other.release(&hold.id).await.unwrap(),
        };
        assert_eq!(used(&other).await, expected, "{actual:?}");
    }
    // The slow instance writes now, but the ledger has these entries already.
    one.accounts().unwrap().ledger().flush().await.unwrap();
    assert_eq!(used(&other).await, 821);
    let reconciled = other.accounts().unwrap();
    let reconciled = reconciled.reconcile(None, Repair::Nothing, "test").await;
    assert_eq!(reconciled.unwrap().drifts, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_on_redis_keeps_reservations() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ledger.db");
    let ledger = format!("{{ sqlite: {} }}", file.display());
    let engine = start(&on(&redis), &ledger).await;
    for (actual, expected) in [(Some(120), 120), (Some(800), 800), (None, 0)] {
        engine.ask(&acme(), Ask::Exactly(100)).await;
        let request = Reserve {
            units: 500,
            ..Reserve::default()
        };
        let ReserveOutcome::Held { hold, .. } = engine.reserve(&acme(), &request).await.unwrap()
        else {
            panic!("denied");
        };
        engine.reset(&acme()).await.unwrap();
        assert_eq!(used(&engine).await, 500);
        match actual {
            Some(actual) => engine.commit(&hold.id, actual).await.unwrap(),
            None => engine.release(&hold.id).await.unwrap(),
        };
        assert_eq!(used(&engine).await, expected);
        let answer = engine.peek(&acme(), Ask::Exactly(1)).await;
        let remaining = answer.rule().unwrap().remaining();
        assert_eq!(remaining, Some(LIMIT - expected));
        engine.reset(&acme()).await.unwrap();
    }
}

/// Makes the same posting in two engines at the same time, many times.
async fn post_together(ledger: &str) {
    let redis = Redis::start();
    let one = start(&on(&redis), ledger).await;
    let other = start(&on(&redis), ledger).await;
    let accounts = [one.accounts().unwrap(), other.accounts().unwrap()];
    for number in 1..=20_u64 {
        let key = format!("ticket-{number}");
        let posting = |amount| Posting {
            rule: "monthly",
            what: Posted::Correction(amount),
            who: "ann",
            why: "a test",
            idempotency_key: Some(&key),
        };
        let (same, attributes) = (posting(10), acme());
        let (first, second) = tokio::join!(
            accounts[0].post(&attributes, &same),
            accounts[1].post(&attributes, &same)
        );
        assert!(first.unwrap().repeated ^ second.unwrap().repeated);
        let standing = accounts[0].post(&attributes, &same).await;
        assert_eq!(standing.unwrap().used, 10 * number, "the counter");
        assert_eq!(used(&one).await, 10 * number, "the ledger");
        let differs = accounts[1].post(&attributes, &posting(11)).await;
        assert!(
            matches!(differs, Err(PostError::Conflict { .. })),
            "{differs:?}"
        );
    }
    let posting = |amount| Posting {
        rule: "monthly",
        what: Posted::Correction(amount),
        who: "ann",
        why: "a test",
        idempotency_key: Some("another"),
    };
    let (ten, eleven, attributes) = (posting(10), posting(11), acme());
    let (first, second) = tokio::join!(
        accounts[0].post(&attributes, &ten),
        accounts[1].post(&attributes, &eleven)
    );
    assert!(first.is_ok() ^ second.is_ok(), "{first:?}, {second:?}");
    let answer = one.peek(&attributes, Ask::Exactly(1)).await;
    let left = answer.rule().unwrap().remaining();
    assert_eq!(left, Some(LIMIT - used(&other).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_postings_of_two_instances_are_done_once_with_postgresql() {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let spill = directory.path().join("ledger.spill");
    let url = postgres.url();
    post_together(&format!(
        "{{ postgres: \"{url}\", spill: {} }}",
        spill.display()
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_of_postgresql_under_load_loses_nothing() {
    let outage = match std::env::var_os("TOLLGATE_PROOF_CASES") {
        Some(_) => Duration::from_secs(60),
        None => Duration::from_secs(3),
    };
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let spill = directory.path().join("ledger.spill");
    let ledger = format!(
        "{{ postgres: \"{}\", spill: {} }}",
        postgres.url(),
        spill.display()
    );
    let engine = Arc::new(start("store: memory", &ledger).await);
    let (stopping, admitted) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    // The tenants have counts before the outage, so that none has to be restored during it.
    let tenants: Vec<String> = (0..20).map(|it| format!("tenant-{it}")).collect();
    for tenant in &tenants {
        let attributes = Attributes::from([("tenant", tenant.as_str())]);
        assert!(engine.ask(&attributes, Ask::Exactly(1)).await.is_allowed());
        admitted.fetch_add(1, Ordering::Relaxed);
    }
    let load = {
        let (engine, stopping, admitted) = (
            Arc::clone(&engine),
            Arc::clone(&stopping),
            Arc::clone(&admitted),
        );
        tokio::spawn(async move {
            let mut place = 0;
            let mut denied = 0_u64;
            while !stopping.load(Ordering::Relaxed) {
                place += 1;
                let tenant = &tenants[place % tenants.len()];
                let attributes =
                    Attributes::from([("tenant", tenant.as_str()), ("action", "chat")]);
                match engine.ask(&attributes, Ask::Exactly(1)).await.is_allowed() {
                    true => admitted.fetch_add(1, Ordering::Relaxed),
                    false => {
                        denied += 1;
                        0
                    }
                };
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            denied
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    postgres.stop();
    let before = admitted.load(Ordering::Relaxed);
    tokio::time::sleep(outage).await;
    let during = admitted.load(Ordering::Relaxed) - before;
    let status = engine.accounts().unwrap().ledger().status();
    assert!(
        during > 0 && status.spilled > 0,
        "{during} decided, {status:?}"
    );
    postgres.start_again();
    // Requests continue while the spill file is written to the database.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stopping.store(true, Ordering::Relaxed);
    assert_eq!(load.await.unwrap(), 0, "no request was denied");
    let accounts = engine.accounts().unwrap();
    // A flush writes the spill file and then the queue.
    until("everything is written", async || {
        accounts.ledger().flush().await.is_ok()
    })
    .await;
    assert_eq!(used(&engine).await, admitted.load(Ordering::Relaxed));
    let mut query = EntryQuery {
        to: tollgate::Time::MAX,
        ..EntryQuery::default()
    };
    let mut times = Vec::new();
    loop {
        let page = accounts.entries(&query).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        query.after = *last;
        let uses = page.iter().filter(|(_, entry)| entry.kind == Kind::Use);
        times.extend(uses.map(|(_, entry)| entry.at));
    }
    assert!(times.is_sorted(), "in the order in which they happened");
    println!(
        "outage of {outage:?}: {during} decided meanwhile, {} in all, none lost",
        admitted.load(Ordering::Relaxed)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_ledger_delays_requests_only_briefly() {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let ledger = format!(
        "{{ postgres: \"{}\", spill: {} }}",
        postgres.url(),
        directory.path().join("ledger.spill").display()
    );
    let engine = start("store: memory", &ledger).await;
    assert!(engine.ask(&acme(), Ask::Exactly(1)).await.is_allowed());
    let accounts = engine.accounts().unwrap();
    accounts.ledger().flush().await.unwrap();
    postgres.pause();
    let strangers: Vec<String> = (0..640).map(|it| format!("tenant-{it}")).collect();
    let asking = strangers.iter().map(|tenant| {
        let attributes = Attributes::from([("tenant", tenant.as_str())]);
        let engine = &engine;
        async move { engine.ask(&attributes, Ask::Exactly(1)).await.is_allowed() }
    });
    let began = tokio::time::Instant::now();
    let answer = futures_util::future::join_all(asking).await;
    let took = began.elapsed();
    assert!(answer.iter().all(|allowed| !allowed), "by their policy");
    // If each waited for the timeout of the database in turn, this would take most of a minute.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let known = engine.ask(&acme(), Ask::Exactly(1)).await;
    assert!(known.is_allowed(), "a known count needs no ledger");
    postgres.resume();
    let stranger = Attributes::from([("tenant", "tenant-0")]);
    for _ in 0..200 {
        if engine.ask(&stranger, Ask::Exactly(1)).await.is_allowed() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the ledger is not asked again");
}
