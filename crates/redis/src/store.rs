//! The store: turns charges into requests, puts them into the queue of a server, and waits for the answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::concurrency::Holder;
use tollgate_core::{Balance, Charge, HoldId, Limit, Span, Tag, Time, Token};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, BreakerState, Clock, Extended, Held, HoldRecord, NewHold,
    Reply, Settle, Settled, Store, StoreError, SystemClock, Usage,
};

use crate::census::{self, AnonymousRules, Census, Counting};
use crate::connect::ConnectError;
use crate::holds::{Creation, RecentHolds};
use crate::key_name::{KeyName, KeyNames, slot_of};
use crate::metrics::Metrics;
use crate::multi_slot;
use crate::node::{Node, Pending, Target};
use crate::options::{Address, ClockSource, Options, Servers};
use crate::reply;
use crate::request::{Operation, Request};
use crate::room::Room;
use crate::script::Family;
use crate::shared_states::SharedStates;
use crate::startup::{self, StartError};
use crate::topology::{self, Map};

/// How long to wait at the start before the next attempt to reach a server.
const RETRY_START: Duration = Duration::from_millis(200);

/// State in Redis, shared by all instances that use the same servers, namespace and secret.
///
/// Every decision is one call of one script. If the charges are in several slots of a cluster, there is one
/// call for each cluster slot. If one of these calls denies, the charges of the earlier calls are refunded.
///
/// A caller waits no longer than [`Options::timeout`]. If there is no answer by then, it gets a
/// [`StoreError`].
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) shared: Arc<Shared>,
}

/// State that workers and callers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<Options>,
    pub(crate) naming: KeyNames,
    pub(crate) metrics: Metrics,
    pub(crate) map: ArcSwap<Map>,
    /// The servers of the cluster, by address.
    pub(crate) nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// The address of the master at the last connection.
    pub(crate) master: Mutex<Option<Address>>,
    /// Wakes the task that reads the slots of the cluster.
    pub(crate) changed: Arc<Notify>,
    /// Holds that this process has made: their records need not be read from Redis.
    pub(crate) recent_holds: RecentHolds,
    /// The last count of keys.
    pub(crate) census: ArcSwap<Census>,
    pub(crate) shared_states: SharedStates,
    pub(crate) anonymous_rules: AnonymousRules,
    /// Whether shared states made decisions in the last second.
    pub(crate) shares: AtomicBool,
    in_flight: AtomicUsize,
    clock: SystemClock,
    /// Why this instance must not use the servers.
    pub(crate) refused: ArcSwapOption<String>,
}

impl RedisStore {
    /// Connects to the servers and checks that they are what `options` says.
    ///
    /// Must be called within a Tokio runtime, which then runs the workers of the store.
    ///
    /// # Errors
    /// If a check fails. The error names the setting to check.
    pub async fn connect(options: Options) -> Result<RedisStore, StartError> {
        RedisStore::connect_within(options, Duration::ZERO).await
    }

    /// Connects as [`connect`](RedisStore::connect) does. While a server cannot be reached, tries again for
    /// as long as `patience`.
    ///
    /// # Errors
    /// The error of the last check.
    pub async fn connect_within(
        options: Options,
        patience: Duration,
    ) -> Result<RedisStore, StartError> {
        let until = Instant::now() + patience;
        let store = RedisStore::unchecked(options);
        let mut attempts = 0;
        loop {
            let Err(error) = store.check().await else {
                // Count now, so that the bounds on keys hold from the first request on.
                Counting::default().count(&store.shared).await;
                return Ok(store);
            };
            attempts += 1;
            if !error.passing || Instant::now() + RETRY_START >= until {
                return Err(error);
            }
            if attempts == 1 {
                let problem = &error.what;
                tracing::warn!(
                    problem,
                    ?patience,
                    "the store cannot be reached yet; trying again"
                );
            }
            sleep(RETRY_START).await;
        }
    }

    /// Checks that the servers answer and match the settings.
    ///
    /// # Errors
    /// If a server does not answer or does not match. The error names the setting to check.
    pub async fn check(&self) -> Result<(), StartError> {
        startup::check_servers(&self.shared).await
    }

    /// Returns a store on servers that may not be there yet. Requests fail until the servers are there.
    #[must_use]
    pub fn unchecked(options: Options) -> RedisStore {
        let options = Arc::new(options);
        let shared = Arc::new(Shared {
            naming: KeyNames::new(&options.key_prefix),
            metrics: Metrics::new(),
            map: ArcSwap::default(),
            nodes: Mutex::default(),
            master: Mutex::default(),
            changed: Arc::default(),
            recent_holds: RecentHolds::default(),
            census: ArcSwap::default(),
            shared_states: SharedStates::default(),
            anonymous_rules: AnonymousRules::default(),
            shares: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            clock: SystemClock::new(),
            refused: ArcSwapOption::empty(),
            options,
        });
        let weak = Arc::downgrade(&shared);
        tokio::spawn(census::follow(weak.clone()));
        match &shared.options.servers {
            Servers::Standalone(address) => {
                let node = Node::start(&Target::At(address.clone()), &shared);
                shared.map.store(Arc::new(Map::single(node)));
            }
            Servers::Sentinel { .. } => {
                let node = Node::start(&Target::Master, &shared);
                shared.map.store(Arc::new(Map::single(node)));
                tokio::spawn(topology::follow_sentinels(weak));
            }
            Servers::Cluster(_) => {
                shared.changed.notify_one();
                tokio::spawn(topology::follow_cluster(weak));
            }
        }
        RedisStore { shared }
    }

    /// Returns the counters of the store.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Returns how many requests wait for an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the state of the breaker of each server.
    #[must_use]
    pub fn breakers(&self) -> Vec<(String, BreakerState)> {
        let map = self.shared.map.load();
        let nodes = map.nodes.iter();
        nodes
            .map(|node| (node.name(), node.breaker_state()))
            .collect()
    }

    /// Returns the last count of keys, memory and clocks. It is empty before the first count, and if the servers do not
    /// allow one.
    #[must_use]
    pub fn census(&self) -> Arc<Census> {
        self.shared.census.load_full()
    }

    /// Returns how many requests of new subjects were decided by shared states, because there was no room.
    #[must_use]
    pub fn shared_decisions(&self) -> u64 {
        self.shared.shared_states.decisions()
    }

    /// Returns the settings of the store.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    async fn run(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        ask: Ask,
        charged_at: Time,
    ) -> Result<Applied, StoreError> {
        for charge in charges.iter().filter(|charge| charge.anonymous) {
            self.shared.anonymous_rules.note(charge.rule);
        }
        let mut request = Request::new(&self.shared.naming, operation, charges, ask);
        request.charged_at = charged_at;
        let mut applied = if request.charges.is_empty() {
            let refunds = operation == Operation::Refund;
            Applied {
                now: self.shared.now(),
                allowed: true,
                granted: if refunds { 0 } else { ask.units() },
                ..Applied::default()
            }
        } else {
            self.execute(request).await?
        };
        reply::fill(&mut applied, charges);
        Ok(applied)
    }

    async fn execute(&self, request: Request) -> Result<Applied, StoreError> {
        if self.shared.is_cluster() {
            return multi_slot::run(&self.shared, request).await;
        }
        let deadline = self.shared.deadline();
        self.shared.execute(0, request, None, deadline).await
    }

    /// Restores, adjusts or reads the quotas among `charges`. Returns `None` if no charge is a quota.
    async fn quota_state(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        numbers: &[[i64; 3]],
    ) -> Result<Option<Applied>, StoreError> {
        let both = charges.iter().zip(numbers);
        let quotas = both.filter(|(charge, _)| matches!(charge.limit, Limit::Quota(_)));
        let (quotas, numbers): (Vec<_>, Vec<_>) = quotas.unzip();
        if quotas.is_empty() {
            return Ok(None);
        }
        let naming = &self.shared.naming;
        let mut request = Request::new(naming, operation, &quotas, Ask::Exactly(0));
        for (item, numbers) in request.charges.iter_mut().zip(numbers) {
            item.numbers = numbers;
        }
        self.execute(request).await.map(Some)
    }

    /// Runs `work`. In a cluster, runs it on a separate task, so that it is finished even if the caller stops
    /// waiting.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.shared.is_cluster() {
            return detached(work).await;
        }
        work.await
    }
}

/// Runs `work` on a separate task, so that it is finished even if the caller stops waiting.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |error: JoinError| StoreError::Unavailable(error.to_string().into());
    tokio::spawn(work).await.map_err(failed).flatten()
}

impl Shared {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options.servers, Servers::Cluster(_))
    }

    /// Returns the cluster slot of a tag; 0 outside a cluster.
    pub(crate) fn slot(&self, tag: Tag) -> u16 {
        if self.is_cluster() { slot_of(tag) } else { 0 }
    }

    /// Returns the address of a server. If the server is the master, asks the Sentinels for its address.
    pub(crate) async fn address(&self, target: &Target) -> Result<Address, ConnectError> {
        match target {
            Target::At(address) => Ok(address.clone()),
            Target::Master => self.options.master().await,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Returns the approximate current time, for decisions that need no server.
    pub(crate) fn now(&self) -> Time {
        match &self.options.clock {
            ClockSource::Store => self.clock.now(),
            ClockSource::Caller(clock) => clock.now(),
        }
    }

    /// Returns the approximate time by which a server decides.
    pub(crate) fn time_of(&self, room: &Room) -> Time {
        match &self.options.clock {
            ClockSource::Store => room.time_there(self.clock.now()),
            ClockSource::Caller(clock) => clock.now(),
        }
    }

    /// Makes the store read the slots of the cluster again.
    pub(crate) fn topology_may_have_changed(&self) {
        if self.is_cluster() {
            self.changed.notify_one();
        }
    }

    pub(crate) fn connected_to_master(&self, address: &Address) {
        let mut master = self.master.lock();
        if master.as_ref() != Some(address) {
            tracing::info!(%address, "connected to the master");
            *master = Some(address.clone());
        }
    }

    /// Sends a request whose keys are all in the cluster slot `slot`, and waits for its answer until `deadline`.
    pub(crate) async fn execute(
        &self,
        slot: u16,
        request: Request,
        once: Option<KeyName>,
        deadline: Instant,
    ) -> Result<Applied, StoreError> {
        let map = self.map.load_full();
        let script = request.script();
        let failed = |error: StoreError| {
            self.metrics.failed(script.name, error.kind());
            error
        };
        if let Some(reason) = &*self.refused.load() {
            return Err(failed(StoreError::Unavailable(reason.as_str().into())));
        }
        let node = map.node(slot).map_err(|error| {
            self.topology_may_have_changed();
            failed(error)
        })?;
        let permit = node.breaker.permit(Instant::now().into_std());
        let permit = permit.ok_or(StoreError::BreakerOpen).map_err(failed)?;
        if permit.is_first_probe() {
            tracing::info!(
                server = node.name(),
                "the circuit breaker is half open: a few requests try the store again"
            );
        }
        let _in_flight = InFlight(&self.in_flight);
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= self.options.max_in_flight {
            return Err(failed(StoreError::Overloaded));
        }
        let (reply, answer) = oneshot::channel();
        node.send(Pending {
            request,
            slot,
            once,
            redirects: 0,
            asking: false,
            reply,
        });
        let answer = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                let why = "the store is shutting down";
                Err(failed(StoreError::Unavailable(why.into())))
            }
            Err(_) => Err(failed(StoreError::Timeout)),
        };
        match &answer {
            // These errors are answers, so the server works.
            Ok(_) | Err(StoreError::Foreign(_) | StoreError::Script(_) | StoreError::Full) => {
                if permit.succeeded() {
                    tracing::info!(
                        server = node.name(),
                        "the store is back: its circuit breaker is closed"
                    );
                }
            }
            Err(error) => {
                if permit.failed(Instant::now().into_std()) {
                    tracing::warn!(
                        server = node.name(),
                        %error,
                        retry_in = ?self.options.breaker.timeout_duration,
                        "the store fails: its circuit breaker is open, and failure policies decide; run `tollgate doctor`"
                    );
                }
            }
        }
        answer
    }
}

/// Counts a request among those that wait, until it is dropped.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(self.run(Operation::Apply, charges, ask, Time::default()))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(self.run(Operation::Peek, charges, ask, Time::default()))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(self.run(Operation::Refund, charges, Ask::Exactly(units), charged_at))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Answer::later(async move {
            let bounded = charges.iter().filter(|it| Family::of(it.limit).is_some());
            let bounded: Vec<_> = bounded.copied().collect();
            let (ask, never) = (Ask::Exactly(0), Time::default());
            let reset = self.run(Operation::Reset, &bounded, ask, never).await;
            reset.map(|_| ())
        })
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        let numbers = balances
            .iter()
            .map(|it| [it.ends_at.as_micros(), it.used, it.extra].map(signed));
        let numbers: Vec<_> = numbers.collect();
        Answer::later(async move {
            let restored = self.quota_state(Operation::Restore, charges, &numbers);
            restored.await.map(|_| ())
        })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        Answer::later(async move {
            let (charges, numbers) = (std::slice::from_ref(charge), [[used, extra, 0]]);
            let answer = self.quota_state(Operation::Adjust, charges, &numbers);
            Ok(answer.await?.as_ref().and_then(reply::balance_in))
        })
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        Answer::later(async move {
            if !charge.limit.has_amount() || Family::of(charge.limit).is_none() {
                return Ok(None);
            }
            let (charges, ask) = (std::slice::from_ref(charge), Ask::Exactly(units));
            let never = Time::default();
            let answer = self.run(Operation::Report, charges, ask, never).await?;
            Ok(reply::level_in(&answer))
        })
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        Answer::later(async move {
            let charges = std::slice::from_ref(charge);
            let answer = self.quota_state(Operation::Balance, charges, &[[0; 3]]);
            Ok(answer.await?.as_ref().and_then(reply::balance_in))
        })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        Answer::later(async move {
            let creation = Creation::new(&self.shared, charges, units, new)?;
            self.to_its_end(creation.run()).await
        })
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        Answer::later(self.to_its_end(Arc::clone(&self.shared).settle(id, how)))
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        Answer::later(self.to_its_end(Arc::clone(&self.shared).extend(id, ttl, token)))
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        Answer::later(self.shared.find_hold(id))
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        Answer::later(self.shared.put_hold(record))
    }

    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        Answer::later(self.shared.due_holds(most))
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        Answer::later(self.shared.holders(charge, most))
    }

    fn usage(&self) -> Reply<'_, Usage> {
        Answer::later(startup::usage(&self.shared))
    }
}
