//! A limiter with a ledger in SQLite and a manual clock. It can be restarted.

use std::time::Duration;

use tempfile::TempDir;
use tollgate::{
    Ask, Attributes, Hold, ManualClock, MemoryStore, Posting, Reconciled, Repair, Reserve,
    ReserveOutcome, Standing, Time,
};
use tollgate_config::{Config, RequestLimits};
use tollgate_core::{Balance, Charge, Limit};
use tollgate_ledger::{Database, EntryQuery, Kind, Ledger, Options};

use super::with_ledger::WithLedger;

/// In the middle of a month.
pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);

pub(crate) type LedgerLimiter = WithLedger<MemoryStore<ManualClock>>;

pub(crate) struct LedgerSetup {
    pub(crate) limiter: LedgerLimiter,
    pub(crate) clock: ManualClock,
    config: Config,
    directory: TempDir,
    interval: Duration,
}

pub(crate) fn acme() -> Attributes<'static> {
    Attributes::from([("tenant", "acme"), ("action", "chat")])
}

pub(crate) async fn reserve(setup: &LedgerSetup, units: u64, key: Option<&str>) -> Hold {
    let request = Reserve {
        units,
        idempotency_key: key,
        ..Reserve::default()
    };
    match setup.limiter.reserve(&acme(), &request).await.unwrap() {
        ReserveOutcome::Held { hold, .. } => hold,
        ReserveOutcome::Denied(decision) => panic!("{decision:?}"),
    }
}

impl LedgerSetup {
    pub(crate) async fn new(rules: &str) -> LedgerSetup {
        LedgerSetup::flushed_every(Duration::from_millis(10), rules).await
    }

    pub(crate) async fn flushed_every(interval: Duration, rules: &str) -> LedgerSetup {
        let directory = tempfile::tempdir().unwrap();
        let config = parse(rules);
        let clock = ManualClock::at(START);
        let ledger = open(&directory, interval).await;
        let limiter = start(&config, ledger, &clock);
        LedgerSetup {
            limiter,
            clock,
            config,
            directory,
            interval,
        }
    }

    /// Restarts with other rules.
    pub(crate) async fn restart_with(&mut self, rules: &str) {
        self.config = parse(rules);
        self.restart().await;
    }

    /// Restarts: the ledger is flushed, and everything in memory is lost.
    pub(crate) async fn restart(&mut self) {
        self.ledger().flush().await.unwrap();
        let ledger = open(&self.directory, self.interval).await;
        self.limiter = start(&self.config, ledger, &self.clock);
    }

    /// Asks for `units`. Returns the amount that is left; `None` if the request is denied.
    pub(crate) async fn ask(&self, units: u64) -> Option<u64> {
        let decision = self.limiter.ask(&acme(), Ask::Exactly(units)).await;
        let rule = decision.rules().next().unwrap();
        decision.is_allowed().then(|| rule.remaining().unwrap())
    }

    pub(crate) fn clock_now(&self) -> Time {
        tollgate::Clock::now(&self.clock)
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.limiter.ledger()
    }

    fn with_charge<T>(&self, run: impl FnOnce(&Charge<'_>) -> T) -> T {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter.rules());
        run(&rules.resolve(&acme(), &request_limits).charges[0])
    }

    pub(crate) fn lose_counts(&self) {
        self.with_charge(|charge| self.limiter.inner().reset(&[*charge]));
    }

    pub(crate) async fn distort(&self, used: i64, extra: i64) {
        self.with_charge(|charge| self.limiter.inner().adjust(charge, used, extra))
            .unwrap();
    }

    /// Lowers the counters of these tenants.
    pub(crate) async fn forget(&self, tenants: &[String], used: i64) {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter.rules());
        for tenant in tenants {
            let attributes = Attributes::from([("tenant", tenant.as_str())]);
            let resolution = rules.resolve(&attributes, &request_limits);
            let store = self.limiter.inner();
            store.adjust(&resolution.charges[0], -used, 0).unwrap();
        }
    }

    pub(crate) async fn counter(&self) -> Balance {
        self.with_charge(|charge| self.limiter.inner().balance(charge))
            .unwrap()
    }

    pub(crate) fn period(&self) -> Time {
        self.with_charge(|charge| match charge.limit {
            Limit::Quota(quota) => quota.period_at(self.clock_now()).start,
            other => panic!("{other:?}"),
        })
    }

    pub(crate) async fn balance(&self, start: Time) -> tollgate_ledger::Balance {
        let key = self.with_charge(|charge| charge.key.bits());
        self.ledger().balance(key, start).await.unwrap()
    }

    /// Returns the units in addition to the limit, according to the ledger.
    pub(crate) async fn extra(&self) -> u64 {
        let (key, limit) = self.with_charge(|charge| (charge.key.bits(), charge.limit.clone()));
        let Limit::Quota(quota) = limit else {
            panic!("the limit is a quota");
        };
        let accounts = self.limiter.accounts();
        accounts.extra(key, &quota, self.clock_now()).await.unwrap()
    }

    /// Returns the usage in the ledger.
    pub(crate) async fn used(&self) -> i64 {
        self.balance(self.period()).await.used
    }

    /// Returns the sums of the ledger, by kind.
    pub(crate) async fn kinds(&self) -> Vec<(Kind, i64)> {
        let query = EntryQuery {
            namespace: "default".into(),
            to: Time::MAX,
            ..EntryQuery::default()
        };
        let entries = self.ledger().entries(&query).await.unwrap();
        let sum = |kind| {
            let amounts = entries.iter().filter(|(_, entry)| entry.kind == kind);
            amounts.map(|(_, entry)| entry.amount).sum()
        };
        let kinds = Kind::ALL.map(|kind| (kind, sum(kind)));
        kinds.into_iter().filter(|(_, sum)| *sum != 0).collect()
    }

    /// Returns the usage in the database, without a flush by this process.
    pub(crate) async fn used_in_database(&self) -> i64 {
        let key = self.with_charge(|charge| charge.key.bits());
        let other = open(&self.directory, self.interval).await;
        other.balance(key, self.period()).await.unwrap().used
    }

    pub(crate) async fn post(
        &self,
        posting: &Posting<'_>,
    ) -> Result<Standing, tollgate::PostError> {
        self.limiter.post(&acme(), posting).await
    }

    pub(crate) async fn reconcile(&self, repair: Repair) -> Reconciled {
        self.limiter.reconcile(None, repair, "test").await.unwrap()
    }

    pub(crate) async fn sweep(&self) {
        self.limiter.sweep_holds().await.unwrap();
        self.limiter.sweep_ledger().await.unwrap();
    }
}

pub(crate) fn parse(rules: &str) -> Config {
    let text = format!(
        "version: 1\nledger: {{ sqlite: ./ledger.db }}\n\
         subjects: {{ hash_secret: a secret of sixteen bytes }}\nrules:{rules}"
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn start(config: &Config, ledger: Ledger, clock: &ManualClock) -> LedgerLimiter {
    let store = MemoryStore::with_clock(10_000, clock.clone());
    WithLedger::new(config, store, ledger, clock.clone())
}

async fn open(directory: &TempDir, flush_interval: Duration) -> Ledger {
    let file = directory.path().join("ledger.db");
    let options = Options {
        flush_interval,
        ..Options::new(Database::Sqlite(file))
    };
    Ledger::open(options).await.unwrap()
}
