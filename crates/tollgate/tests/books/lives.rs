//! A limiter with a ledger in SQLite whose process may end at any moment. What it has in memory is lost then,
//! entries that wait to be written among it: each life has a runtime of its own, which ends without a word.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Ask, Attributes, Clock, Decision, ManualClock, MemoryStore, Span, Time};
use tollgate_config::{Config, RequestLimits};
use tollgate_core::{Charge, Limit};
use tollgate_ledger::{Database, Ledger, Options};
use tollgate_redis::{Address, ClockSource, RedisStore, Servers};
use tollgate_rig::Redis;
use tollgate_store::Store;

use super::setup::{START, acme, parse};
use super::with_ledger::WithLedger;

/// How long the threads of a process that has ended may take to notice.
const LAST_BREATH: Duration = Duration::from_secs(10);

/// Where a limiter has its counts and holds.
pub(crate) trait Home {
    type Store: Store + 'static;

    /// Whether they are there in the next life.
    const OUTLIVES: bool;

    /// The store of a life, made on its runtime.
    async fn store(&self, process: &Runtime, clock: &ManualClock) -> Self::Store;

    /// Makes the store forget: these counts at least.
    async fn lose(&self, store: &Self::Store, charges: &[Charge<'_>]);
}

/// In the process.
pub(crate) struct Memory;

impl Home for Memory {
    type Store = MemoryStore<ManualClock>;
    const OUTLIVES: bool = false;

    async fn store(&self, _process: &Runtime, clock: &ManualClock) -> Self::Store {
        MemoryStore::with_clock(10_000, clock.clone())
    }

    async fn lose(&self, store: &Self::Store, charges: &[Charge<'_>]) {
        store.reset(charges);
    }
}

impl Home for Redis {
    type Store = RedisStore;
    const OUTLIVES: bool = true;

    async fn store(&self, process: &Runtime, clock: &ManualClock) -> Self::Store {
        let address = Address {
            host: "127.0.0.1".to_owned(),
            port: self.port(),
        };
        let mut options = tollgate_redis::Options::new(Servers::Standalone(address));
        options.timeout = Duration::from_secs(10);
        options.connect_timeout = Duration::from_secs(10);
        options.clock = ClockSource::Caller(Arc::new(clock.clone()) as Arc<dyn Clock>);
        // What has expired by the clock of the test has not by that of the server.
        options.margin = Span::HOUR;
        let connected = process.spawn(RedisStore::connect(options)).await;
        connected.unwrap().unwrap()
    }

    async fn lose(&self, _store: &Self::Store, _charges: &[Charge<'_>]) {
        self.connect().command(&["FLUSHALL"]);
    }
}

/// One life after the other.
pub(crate) struct Lives<H: Home> {
    pub(crate) home: H,
    pub(crate) clock: ManualClock,
    config: Config,
    directory: TempDir,
    life: Option<(WithLedger<H::Store>, Runtime)>,
}

impl<H: Home> Lives<H> {
    pub(crate) async fn new(home: H, rules: &str) -> Lives<H> {
        let mut lives = Lives {
            home,
            clock: ManualClock::at(START),
            config: parse(rules),
            directory: tempfile::tempdir().unwrap(),
            life: None,
        };
        lives.begin().await;
        lives
    }

    async fn begin(&mut self) {
        let process = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let file = self.directory.path().join("books.db");
        let options = Options {
            // Nothing is written but what somebody waits for.
            flush_interval: Duration::from_secs(3600),
            ..Options::new(Database::Sqlite(file))
        };
        let ledger = process.spawn(Ledger::open(options)).await;
        let store = self.home.store(&process, &self.clock).await;
        let ledger = ledger.unwrap().unwrap();
        let limiter = WithLedger::new(&self.config, store, ledger, self.clock.clone());
        self.life = Some((limiter, process));
    }

    /// Ends the process where it stands, and starts another.
    pub(crate) async fn crash(&mut self) {
        self.end().await;
        self.begin().await;
    }

    pub(crate) async fn end(&mut self) {
        if let Some((limiter, process)) = self.life.take() {
            // First, so that nobody is left who would write what is pending when the ledger is dropped.
            let ending = tokio::task::spawn_blocking(|| process.shutdown_timeout(LAST_BREATH));
            ending.await.unwrap();
            drop(limiter);
        }
    }

    pub(crate) fn limiter(&self) -> &WithLedger<H::Store> {
        &self.life.as_ref().unwrap().0
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) async fn flush(&self) {
        self.limiter().ledger().flush().await.unwrap();
    }

    pub(crate) async fn ask(&self, attributes: &Attributes<'_>, units: u64) -> Decision {
        self.limiter().ask(attributes, Ask::Exactly(units)).await
    }

    pub(crate) async fn lose_counts(&self) {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter().rules());
        let resolution = rules.resolve(&acme(), &request_limits);
        let store = self.limiter().inner();
        self.home.lose(store, &resolution.charges).await;
    }

    pub(crate) async fn sweep(&self) {
        self.limiter().sweep_holds().await.unwrap();
        self.limiter().sweep_ledger().await.unwrap();
    }

    /// What the counters of the ledgered rules say, in order; none where there is no count.
    pub(crate) async fn counted(&self) -> Vec<Option<u64>> {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter().rules());
        let resolution = rules.resolve(&acme(), &request_limits);
        let mut counted = Vec::new();
        for charge in resolution.charges.iter().filter(|it| it.recorded.is_some()) {
            let balance = self.limiter().store().balance(charge).await.unwrap();
            counted.push(balance.map(|it| it.used));
        }
        counted
    }

    /// What the books say of the same.
    pub(crate) async fn booked(&self) -> Vec<u64> {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter().rules());
        let resolution = rules.resolve(&acme(), &request_limits);
        let mut booked = Vec::new();
        for charge in resolution.charges.iter().filter(|it| it.recorded.is_some()) {
            let Limit::Quota(quota) = charge.limit else {
                panic!("{charge:?}");
            };
            let start = quota.period_at(self.now()).start;
            let ledger = self.limiter().ledger();
            let balance = ledger.balance(charge.key.bits(), start).await.unwrap();
            booked.push(u64::try_from(balance.used).unwrap());
        }
        booked
    }
}
