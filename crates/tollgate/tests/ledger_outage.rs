//! Outages of the ledger: the failure policies of ledgered rules decide, and other rules are not affected. All
//! admitted usage is in the ledger after the outage.

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
/// The longest wait for an expected change.
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

/// Waits until the condition holds.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = Stopwatch::start();
    while !is_so().await {
        assert!(waited.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Opens a ledger in PostgreSQL, with short timeouts.
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
    // Creating the tables may take longer than the timeout of a write.
    let waited = Stopwatch::start();
    loop {
        match Ledger::open(options.clone()).await {
            Ok(ledger) => return ledger,
            Err(error) => assert!(waited.elapsed() < PATIENCE, "{error}"),
        }
    }
}

/// A limiter with counts in memory and a ledger in PostgreSQL.
struct Outage {
    postgres: Postgres,
    clock: ManualClock,
    limiter: WithLedger<MemoryStore<ManualClock>>,
    _directory: TempDir,
}

impl Outage {
    async fn new(config: &Config, bounds: impl FnOnce(&mut Options)) -> Outage {
        let (postgres, directory) = (Postgres::start(), tempfile::tempdir().unwrap());
        let ledger = open(&postgres, &directory, bounds).await;
        let clock = ManualClock::at(START);
        let store = MemoryStore::with_clock(10_000, clock.clone());
        let limiter = WithLedger::new(config, store, ledger, clock.clone());
        Outage {
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

    /// Waits until the count of a tenant is restored from the ledger.
    async fn restore(&self, name: &str) {
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

    /// Returns the usage of a tenant in the counter.
    fn counted(&self, name: &str) -> u64 {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter.rules());
        let attributes = tenant(name);
        let resolution = rules.resolve(&attributes, &request_limits);
        let balance = self.limiter.inner().balance(&resolution.charges[0]);
        balance.unwrap().used
    }

    /// Returns the usage of a tenant in the ledger, if the ledger answers.
    async fn recorded(&self, name: &str) -> Option<u64> {
        let (key, start) = self.key_of(name);
        let balance = self.ledger().balance(key, start).await.ok()?;
        Some(u64::try_from(balance.used).unwrap())
    }

    async fn until_recorded(&self, name: &str, used: u64) {
        let what = format!("{used} of {name} in the ledger");
        until(&what, async || self.recorded(name).await == Some(used)).await;
    }

    /// Makes PostgreSQL commit entries only after the client has stopped waiting.
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
        // This waits for the open transactions, because they lock the table.
        self.postgres
            .sql("DROP TRIGGER late ON entries; DROP TRIGGER patient ON entries");
    }
}

/// Fills memory and the spill file while the database is down. Returns the admitted requests by tenant.
async fn fill(outage: &Outage, policy: FailurePolicy) -> BTreeMap<String, u64> {
    let tenants: Vec<String> = (0..4).map(|it| format!("tenant-{it}")).collect();
    for name in &tenants {
        outage.restore(name).await;
    }
    outage.postgres.stop();
    let mut admitted = BTreeMap::new();
    let (mut fell_back, mut number) = (0, 0);
    let waited = Stopwatch::start();
    // On a busy machine, the queue may be full before the writer has begun to fill the spill file.
    let is_full = || {
        let error = outage.ledger().status().last_error;
        error.is_some_and(|it| it.contains("spill file"))
    };
    // Many fallbacks after the spill file is full, so that the queue certainly stays full.
    while fell_back < 100 {
        assert!(
            waited.elapsed() < PATIENCE,
            "{:?}",
            outage.ledger().status()
        );
        number += 1;
        let name = &tenants[number % tenants.len()];
        // A different action each time, so that no entry is merged into a queued entry.
        let action = format!("action-{number}");
        let attributes = Attributes::from([("tenant", name.as_str()), ("action", &action)]);
        let decision = outage.ask(&attributes, 1).await;
        match decision.fallback() {
            None => {
                assert!(decision.is_allowed(), "{decision:?}");
                *admitted.entry(name.clone()).or_insert(0) += 1;
            }
            Some(said) => {
                assert_eq!(said, policy);
                assert_eq!(decision.is_allowed(), policy == FailurePolicy::FailOpen);
                fell_back += u32::from(is_full());
            }
        }
        if number % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let status = outage.ledger().status();
    assert!(status.queued > 0 && status.spilled > 0, "{status:?}");
    assert_eq!(status.dropped, 0);
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_beyond_the_queue_and_spill_is_decided_by_the_policy() {
    for (name, policy) in [
        ("fail-closed", FailurePolicy::FailClosed),
        ("fail-open", FailurePolicy::FailOpen),
    ] {
        let config = rules(&format!(", on_store_failure: {name}"));
        let outage = Outage::new(&config, |options| {
            options.max_queued = 20;
            options.max_spill_bytes = 8_000;
        })
        .await;
        let admitted = fill(&outage, policy).await;
        for (tenant, admitted) in &admitted {
            assert_eq!(outage.counted(tenant), *admitted, "{name}: {tenant}");
        }
        // A reservation that cannot be recorded takes nothing.
        let request = Reserve {
            units: 100,
            ..Reserve::default()
        };
        let answer = outage.limiter.reserve(&tenant("tenant-0"), &request).await;
        match answer.unwrap() {
            ReserveOutcome::Denied(_) if name == "fail-closed" => {}
            ReserveOutcome::Held { decision, .. } if name == "fail-open" => {
                assert_eq!(decision.unwrap().fallback(), Some(policy));
            }
            answer => panic!("{answer:?}"),
        }
        assert_eq!(outage.counted("tenant-0"), admitted["tenant-0"], "{name}");

        outage.postgres.start_again();
        until("everything is written", async || {
            outage.ledger().flush().await.is_ok()
        })
        .await;
        for (tenant, admitted) in &admitted {
            assert_eq!(outage.recorded(tenant).await, Some(*admitted), "{name}");
        }
        let again = outage.ask(&tenant("tenant-0"), 1).await;
        assert!(again.is_allowed() && again.fallback().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn count_lost_during_a_ledger_outage_is_restored_after_it() {
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
            let answer = limiter.ask(&of(action), Ask::Exactly(1)).await;
            assert!(!answer.is_allowed(), "{action}: {answer:?}");
            assert_eq!(answer.fallback(), Some(FailurePolicy::FailClosed));
            let rule = answer
                .rules()
                .find(|it| it.rule().id() == "yearly")
                .unwrap();
            assert_eq!(rule.reason(), Some(Reason::StoreFailed));
        }
        let request = Reserve {
            units: 1,
            ..Reserve::default()
        };
        let answer = limiter.reserve(&of("chat"), &request).await.unwrap();
        assert!(matches!(answer, ReserveOutcome::Denied(_)), "{answer:?}");
        // A rule without a ledger is not affected, and the denied requests took nothing from it.
        let answer = limiter.ask(&of("ping"), Ask::Exactly(1)).await;
        assert_eq!((answer.is_allowed(), answer.fallback()), (true, None));
        assert_eq!(answer.rule().unwrap().remaining(), Some(left));
    }

    postgres.start_again();
    until("the count is back", async || {
        let answer = limiter.peek(&of("chat"), Ask::Exactly(1)).await;
        answer.fallback().is_none()
    })
    .await;
    let answer = limiter.ask(&of("chat"), Ask::Exactly(1)).await;
    let left = answer.rule().unwrap().remaining();
    assert_eq!(left, Some(LIMIT - 301), "the year does not start again");
}

/// Sets up an outage with a strict rule, and a tenant with a usage of 1.
async fn strict() -> Outage {
    let config = rules(", durability: strict, on_store_failure: fail-closed");
    let outage = Outage::new(&config, |_| {}).await;
    outage.restore("acme").await;
    until("the first is written", async || {
        outage.ask(&tenant("acme"), 1).await.is_allowed()
    })
    .await;
    outage.until_recorded("acme", 1).await;
    outage
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_usage_with_an_unknown_commit_stays_taken() {
    let outage = strict().await;
    outage.commit_late();
    let answer = outage.ask(&tenant("acme"), 7).await;
    assert_eq!(
        answer.fallback(),
        Some(FailurePolicy::FailClosed),
        "{answer:?}"
    );
    assert!(!answer.is_allowed());
    assert_eq!(outage.counted("acme"), 8, "it may be written");
    outage.commit_in_time();
    outage.until_recorded("acme", 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_usage_that_was_never_sent_is_given_back() {
    let outage = strict().await;
    outage.postgres.pause();
    let answer = outage.ask(&tenant("acme"), 7).await;
    assert_eq!(
        answer.fallback(),
        Some(FailurePolicy::FailClosed),
        "{answer:?}"
    );
    assert_eq!(outage.counted("acme"), 1, "it was never asked to commit");
    outage.postgres.resume();
    until("it is written again", async || {
        outage.ask(&tenant("acme"), 2).await.is_allowed()
    })
    .await;
    outage.until_recorded("acme", 3).await;
    assert_eq!(outage.counted("acme"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_strict_reservation_ends_in_the_ledger() {
    for is_late in [true, false] {
        let outage = strict().await;
        match is_late {
            true => outage.commit_late(),
            false => outage.postgres.pause(),
        }
        let request = Reserve {
            units: 500,
            idempotency_key: Some("call-1"),
            ..Reserve::default()
        };
        let answer = outage
            .limiter
            .reserve(&tenant("acme"), &request)
            .await
            .unwrap();
        assert!(matches!(answer, ReserveOutcome::Denied(_)), "{answer:?}");
        assert_eq!(outage.counted("acme"), 1, "nothing is held");
        match is_late {
            true => outage.commit_in_time(),
            false => outage.postgres.resume(),
        }
        if is_late {
            // When the ledger answers, the beginning of the reservation is written, and perhaps its
            // end.
            until("the ledger answers", async || {
                outage.recorded("acme").await.is_some()
            })
            .await;
        }
        outage.clock.advance(Span::from_secs(200));
        until("its end is written", async || {
            let swept = outage.limiter.sweep_ledger().await.is_ok();
            swept && outage.recorded("acme").await == Some(1)
        })
        .await;
        assert_eq!(outage.counted("acme"), 1);
        let answer = outage.ask(&tenant("acme"), 0).await;
        assert_eq!(answer.rule().unwrap().remaining(), Some(LIMIT - 1));
    }
}
