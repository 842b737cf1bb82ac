//! A limiter with a ledger in SQLite, in a process that can crash at any moment. A crash loses
//! everything in memory, including queued entries: each process has its own runtime, which ends without
//! a shutdown.

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

/// How long the threads of a crashed process may take to end.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// The store of a limiter.
pub(crate) trait StoreKind {
    type Store: Store + 'static;

    /// Whether counts and holds survive a crash of the process.
    const SURVIVES_CRASH: bool;

    /// Makes the store of a process, on its runtime.
    async fn store(&self, runtime: &Runtime, clock: &ManualClock) -> Self::Store;

    /// Makes the store lose at least these counts.
    async fn lose(&self, store: &Self::Store, charges: &[Charge<'_>]);
}

/// A store in the memory of the process.
pub(crate) struct Memory;

impl StoreKind for Memory {
    type Store = MemoryStore<ManualClock>;
    const SURVIVES_CRASH: bool = false;

    async fn store(&self, _runtime: &Runtime, clock: &ManualClock) -> Self::Store {
        MemoryStore::with_clock(10_000, clock.clone())
    }

    async fn lose(&self, store: &Self::Store, charges: &[Charge<'_>]) {
        store.reset(charges);
    }
}

impl StoreKind for Redis {
    type Store = RedisStore;
    const SURVIVES_CRASH: bool = true;

    async fn store(&self, runtime: &Runtime, clock: &ManualClock) -> Self::Store {
        let address = Address {
            host: "127.0.0.1".to_owned(),
            port: self.port(),
        };
        let mut options = tollgate_redis::Options::new(Servers::Standalone(address));
        options.timeout = Duration::from_secs(10);
        options.connect_timeout = Duration::from_secs(10);
        options.clock = ClockSource::Caller(Arc::new(clock.clone()) as Arc<dyn Clock>);
        // The clock of the test runs ahead of the clock of the server.
        options.margin = Span::HOUR;
        let connected = runtime.spawn(RedisStore::connect(options)).await;
        connected.unwrap().unwrap()
    }

    async fn lose(&self, _store: &Self::Store, _charges: &[Charge<'_>]) {
        self.connect().command(&["FLUSHALL"]);
    }
}

/// A process with a limiter. It can crash and start again.
pub(crate) struct Process<H: StoreKind> {
    pub(crate) kind: H,
    pub(crate) clock: ManualClock,
    config: Config,
    directory: TempDir,
    running: Option<(WithLedger<H::Store>, Runtime)>,
}

impl<H: StoreKind> Process<H> {
    pub(crate) async fn new(kind: H, rules: &str) -> Process<H> {
        let mut process = Process {
            kind,
            clock: ManualClock::at(START),
            config: parse(rules),
            directory: tempfile::tempdir().unwrap(),
            running: None,
        };
        process.begin().await;
        process
    }

    async fn begin(&mut self) {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let file = self.directory.path().join("ledger.db");
        let options = Options {
            // Only explicit flushes and strict rules write.
            flush_interval: Duration::from_secs(3600),
            ..Options::new(Database::Sqlite(file))
        };
        let ledger = runtime.spawn(Ledger::open(options)).await;
        let store = self.kind.store(&runtime, &self.clock).await;
        let ledger = ledger.unwrap().unwrap();
        let limiter = WithLedger::new(&self.config, store, ledger, self.clock.clone());
        self.running = Some((limiter, runtime));
    }

    /// Ends the process at once, and starts another.
    pub(crate) async fn crash(&mut self) {
        self.end().await;
        self.begin().await;
    }

    pub(crate) async fn end(&mut self) {
        if let Some((limiter, runtime)) = self.running.take() {
            // The runtime ends first, so that dropping the ledger writes nothing.
            let ending = tokio::task::spawn_blocking(|| runtime.shutdown_timeout(SHUTDOWN));
            ending.await.unwrap();
            drop(limiter);
        }
    }

    pub(crate) fn limiter(&self) -> &WithLedger<H::Store> {
        &self.running.as_ref().unwrap().0
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
        self.kind.lose(store, &resolution.charges).await;
    }

    pub(crate) async fn sweep(&self) {
        self.limiter().sweep_holds().await.unwrap();
        self.limiter().sweep_ledger().await.unwrap();
    }

    /// Returns the usage of the ledgered rules in the counters, in order; `None` without a counter.
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

    /// Returns the usage of the ledgered rules in the ledger, in order.
    pub(crate) async fn recorded(&self) -> Vec<u64> {
        let (request_limits, rules) = (RequestLimits::default(), self.limiter().rules());
        let resolution = rules.resolve(&acme(), &request_limits);
        let mut recorded = Vec::new();
        for charge in resolution.charges.iter().filter(|it| it.recorded.is_some()) {
            let Limit::Quota(quota) = charge.limit else {
                panic!("{charge:?}");
            };
            let start = quota.period_at(self.now()).start;
            let ledger = self.limiter().ledger();
            let balance = ledger.balance(charge.key.bits(), start).await.unwrap();
            recorded.push(u64::try_from(balance.used).unwrap());
        }
        recorded
    }
}
