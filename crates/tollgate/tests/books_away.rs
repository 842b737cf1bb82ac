//! Books that cannot be written, or not in time: ledgered rules answer by their failure policy, others do not
//! notice, and what was admitted is in the books when they are back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/with_ledger.rs"]
mod with_ledger;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tollgate::{
    Ask, Attributes, Decision, FailurePolicy, ManualClock, MemoryStore, Reason, Reserve,
    ReserveOutcome, Span, SystemClock, Time,
};
use tollgate_config::{Config, RequestLimits};
use tollgate_core::Limit;
use tollgate_ledger::{Database, Ledger, Options};
use tollgate_redis::{Address, RedisStore, Servers};
use tollgate_rig::{Postgres, Redis, Stopwatch};
use with_ledger::WithLedger;

/// In the middle of a month.
const START: Time = Time::from_micros(1_700_000_000_000_000);
const LIMIT: u64 = 1000;
/// How long anything may take that has to come about.
const PATIENCE: Duration = Duration::from_secs(60);

fn rules(more: &str) -> Config {
    let text = format!(
        "
version: 1
ledger: {{ sqlite: ./not-this-one.db }}
subjects: {{ hash_secret: a secret of sixteen bytes }}
rules:
  - {{ id: monthly, per: [tenant], algorithm: quota, limit: {LIMIT}, period: month{more} }}
"
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn tenant(name: &str) -> Attributes<'_> {
    Attributes::from([("tenant", name), ("action", "chat")])
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = Stopwatch::start();
    while !is_so().await {
        assert!(waited.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Books in PostgreSQL, with little patience.
async fn open(
    postgres: &Postgres,
    directory: &TempDir,
    bounds: impl FnOnce(&mut Options),
) -> Ledger {
    let mut options = Options {
        flush_interval: Duration::from_millis(10),
        write_timeout: Duration::from_millis(500),
        connect_timeout: Duration::from_millis(500),
        spill: Some(directory.path().join("spill")),
        ..Options::new(Database::Postgres(postgres.url()))
    };
    bounds(&mut options);
    // To make the tables may take longer than to write to them.
    let waited = Stopwatch::start();
    loop {
        match Ledger::open(options.clone()).await {
            Ok(ledger) => return ledger,
            Err(error) => assert!(waited.elapsed() < PATIENCE, "{error}"),
        }
    }
}

/// A limiter whose counts are here and whose books are in PostgreSQL.
struct Away {
    postgres: Postgres,
    clock: ManualClock,
    limiter: WithLedger<MemoryStore<ManualClock>>,
    _directory: TempDir,
}

impl Away {
    async fn new(config: &Config, bounds: impl FnOnce(&mut Options)) -> Away {
        let (postgres, directory) = (Postgres::start(), tempfile::tempdir().unwrap());
        let ledger = open(&postgres, &directory, bounds).await;
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock(10_000, clock.clone());
        let limiter = WithLedger::new(config, store, ledger, clock.clone());
        Away {
            postgres,
            clock,
            limiter,
            _directory: directory,
        }
    }

    fn ledger(&self) -> &Ledger {
        self.limiter.ledger()
    }

    async fn ask(&self, attributes: &Attributes<'_>, units: u64) -> Decision {
        self.limiter.ask(attributes, Ask::Exactly(units)).await
    }

    /// Until the ledger has given a tenant its count.
    async fn meet(&self, name: &str) {
        until("a count is there", async || {
            self.ask(&tenant(name), 0).await.fallback().is_none()
        })
        .await;
    }

    fn key_of(&self, name: &str) -> (u128, Time) {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter.rules());
        let attributes = tenant(name);
        let resolution = rules.resolve(&attributes, &request_limits);
        let charge = &resolution.charges[0];
        let Limit::Quota(quota) = charge.limit else {
            panic!("{charge:?}");
        };
        (charge.key.bits(), quota.period_at(START).start)
    }

    /// What the counter says of a tenant.
    fn counted(&self, name: &str) -> u64 {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter.rules());
        let attributes = tenant(name);
        let resolution = rules.resolve(&attributes, &request_limits);
        let balance = self.limiter.inner().balance(&resolution.charges[0]);
        balance.unwrap().used
    }

    /// What the books say, if they do.
    async fn booked(&self, name: &str) -> Option<u64> {
        let (key, start) = self.key_of(name);
        let balance = self.ledger().balance(key, start).await.ok()?;
        Some(u64::try_from(balance.used).unwrap())
    }

    async fn until_booked(&self, name: &str, used: u64) {
        let what = format!("{used} of {name} in the books");
        until(&what, async || self.booked(name).await == Some(used)).await;
    }

    /// Makes PostgreSQL commit entries later than anybody waits for, and commit them all the same.
    fn commit_late(&self) {
        self.postgres.sql(
            "CREATE FUNCTION patient() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM set_config('statement_timeout', '0', true); RETURN NEW; END $$; \
             CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM pg_sleep(1.5); RETURN NULL; END $$; \
             CREATE TRIGGER patient BEFORE INSERT ON entries \
             FOR EACH ROW EXECUTE FUNCTION patient(); \
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON entries \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()",
        );
    }

    fn commit_in_time(&self) {
        // After what is on its way: it holds the table.
        self.postgres
            .sql("DROP TRIGGER late ON entries; DROP TRIGGER patient ON entries");
    }
}

/// Fills memory and the spill file while the database is away, and says who was admitted how often.
async fn fill(away: &Away, policy: FailurePolicy) -> BTreeMap<String, u64> {
    let tenants: Vec<String> = (0..4).map(|it| format!("tenant-{it}")).collect();
    for name in &tenants {
        away.meet(name).await;
    }
    away.postgres.stop();
    let mut admitted = BTreeMap::new();
    let (mut fell_back, mut number) = (0, 0);
    let waited = Stopwatch::start();
    // So often that it is not for a moment.
    while fell_back < 100 {
        assert!(waited.elapsed() < PATIENCE, "{:?}", away.ledger().status());
        number += 1;
        let name = &tenants[number % tenants.len()];
        // Another each time, so that none is added to one that waits.
        let action = format!("action-{number}");
        let attributes = Attributes::from([("tenant", name.as_str()), ("action", &action)]);
        let decision = away.ask(&attributes, 1).await;
        match decision.fallback() {
            None => {
                assert!(decision.is_allowed(), "{decision:?}");
                *admitted.entry(name.clone()).or_insert(0) += 1;
            }
            Some(said) => {
                assert_eq!(said, policy);
                assert_eq!(decision.is_allowed(), policy == FailurePolicy::FailOpen);
                fell_back += 1;
            }
        }
        if number % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let status = away.ledger().status();
    assert!(status.queued > 0 && status.spilled > 0, "{status:?}");
    assert_eq!(status.dropped, 0);
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_room_is_answered_by_the_policy_and_not_taken() {
    for (name, policy) in [
        ("fail-closed", FailurePolicy::FailClosed),
        ("fail-open", FailurePolicy::FailOpen),
    ] {
        let config = rules(&format!(", on_store_failure: {name}"));
        let away = Away::new(&config, |options| {
            options.max_queued = 20;
            options.max_spill_bytes = 8_000;
        })
        .await;
        let admitted = fill(&away, policy).await;
        for (tenant, admitted) in &admitted {
            assert_eq!(away.counted(tenant), *admitted, "{name}: {tenant}");
        }
        // And what is reserved: nothing stays taken of what cannot be noted.
        let wish = Reserve {
            units: 100,
            ..Reserve::default()
        };
        let told = away.limiter.reserve(&tenant("tenant-0"), &wish).await;
        match told.unwrap() {
            ReserveOutcome::Denied(_) if name == "fail-closed" => {}
            ReserveOutcome::Held { decision, .. } if name == "fail-open" => {
                assert_eq!(decision.unwrap().fallback(), Some(policy));
            }
            told => panic!("{told:?}"),
        }
        assert_eq!(away.counted("tenant-0"), admitted["tenant-0"], "{name}");

        away.postgres.start_again();
        until("everything is written", async || {
            away.ledger().flush().await.is_ok()
        })
        .await;
        for (tenant, admitted) in &admitted {
            assert_eq!(away.booked(tenant).await, Some(*admitted), "{name}");
        }
        let again = away.ask(&tenant("tenant-0"), 1).await;
        assert!(again.is_allowed() && again.fallback().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_is_lost_while_the_books_are_away_waits_for_them() {
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "
version: 1
ledger: {{ sqlite: ./not-this-one.db }}
subjects: {{ hash_secret: a secret of sixteen bytes }}
rules:
  - id: yearly
    match: {{ action: [chat, both] }}
    per: [tenant]
    algorithm: quota
    limit: {LIMIT}
    period: year
    on_store_failure: fail-closed
  - id: rate
    match: {{ action: [ping, both] }}
    per: [tenant]
    algorithm: fixed-window
    limit: 100
    window: 30d
    on_store_failure: fail-closed
"
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let address = Address {
        host: "127.0.0.1".to_owned(),
        port: redis.port(),
    };
    let mut options = tollgate_redis::Options::new(Servers::Standalone(address));
    options.timeout = Duration::from_secs(10);
    let store = RedisStore::connect(options).await.unwrap();
    let ledger = open(&postgres, &directory, |_| {}).await;
    let clock = Arc::new(SystemClock::new());
    let limiter = WithLedger::new(&config, store, ledger, clock);
    let of = |action| Attributes::from([("tenant", "acme"), ("action", action)]);
    until("the first is written", async || {
        limiter
            .ask(&of("chat"), Ask::Exactly(300))
            .await
            .is_allowed()
    })
    .await;
    limiter.ledger().flush().await.unwrap();
    postgres.stop();
    redis.cli(&["FLUSHALL"]);

    for left in (97..100).rev() {
        for action in ["chat", "both"] {
            let told = limiter.ask(&of(action), Ask::Exactly(1)).await;
            assert!(!told.is_allowed(), "{action}: {told:?}");
            assert_eq!(told.fallback(), Some(FailurePolicy::FailClosed));
            let rule = told.rules().find(|it| it.rule().id() == "yearly").unwrap();
            assert_eq!(rule.reason(), Some(Reason::StoreFailed));
        }
        let wish = Reserve {
            units: 1,
            ..Reserve::default()
        };
        let told = limiter.reserve(&of("chat"), &wish).await.unwrap();
        assert!(matches!(told, ReserveOutcome::Denied(_)), "{told:?}");
        // Who has nothing to do with the books does not notice, and nobody took anything from it.
        let told = limiter.ask(&of("ping"), Ask::Exactly(1)).await;
        assert_eq!((told.is_allowed(), told.fallback()), (true, None));
        assert_eq!(told.rule().unwrap().remaining(), Some(left));
    }

    postgres.start_again();
    until("the count is back", async || {
        let told = limiter.peek(&of("chat"), Ask::Exactly(1)).await;
        told.fallback().is_none()
    })
    .await;
    let told = limiter.ask(&of("chat"), Ask::Exactly(1)).await;
    let left = told.rule().unwrap().remaining();
    assert_eq!(left, Some(LIMIT - 301), "and it is no second year");
}

/// A strict rule, and a tenant that has used 1.
async fn strict() -> Away {
    let config = rules(", durability: strict, on_store_failure: fail-closed");
    let away = Away::new(&config, |_| {}).await;
    away.meet("acme").await;
    until("the first is written", async || {
        away.ask(&tenant("acme"), 1).await.is_allowed()
    })
    .await;
    away.until_booked("acme", 1).await;
    away
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_use_that_is_not_confirmed_in_time_stays_taken() {
    let away = strict().await;
    away.commit_late();
    let told = away.ask(&tenant("acme"), 7).await;
    assert_eq!(told.fallback(), Some(FailurePolicy::FailClosed), "{told:?}");
    assert!(!told.is_allowed());
    assert_eq!(away.counted("acme"), 8, "it may be written");
    away.commit_in_time();
    away.until_booked("acme", 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_use_that_was_not_tried_is_given_back() {
    let away = strict().await;
    away.postgres.pause();
    let told = away.ask(&tenant("acme"), 7).await;
    assert_eq!(told.fallback(), Some(FailurePolicy::FailClosed), "{told:?}");
    assert_eq!(away.counted("acme"), 1, "it was never asked to commit");
    away.postgres.resume();
    until("it is written again", async || {
        away.ask(&tenant("acme"), 2).await.is_allowed()
    })
    .await;
    away.until_booked("acme", 3).await;
    assert_eq!(away.counted("acme"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_reservation_that_is_not_confirmed_in_time_is_ended_in_the_books_too() {
    for is_late in [true, false] {
        let away = strict().await;
        match is_late {
            true => away.commit_late(),
            false => away.postgres.pause(),
        }
        let wish = Reserve {
            units: 500,
            idempotency_key: Some("call-1"),
            ..Reserve::default()
        };
        let told = away.limiter.reserve(&tenant("acme"), &wish).await.unwrap();
        assert!(matches!(told, ReserveOutcome::Denied(_)), "{told:?}");
        assert_eq!(away.counted("acme"), 1, "nobody holds it");
        match is_late {
            true => away.commit_in_time(),
            false => away.postgres.resume(),
        }
        if is_late {
            // Its beginning at least has come to be written; its end may have, too.
            until("the books are there", async || {
                away.booked("acme").await.is_some()
            })
            .await;
        }
        away.clock.advance(Span::from_secs(200));
        until("its end is written", async || {
            let swept = away.limiter.sweep_ledger().await.is_ok();
            swept && away.booked("acme").await == Some(1)
        })
        .await;
        assert_eq!(away.counted("acme"), 1);
        let told = away.ask(&tenant("acme"), 0).await;
        assert_eq!(told.rule().unwrap().remaining(), Some(LIMIT - 1));
    }
}
