//! The simulated world: a store, a network, and instances that get traffic.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{
    Answer, Applied, Ask, Charge, Clock, Key, Limit, MemoryStore, Mode, Prepaid, Reply, Reported,
    Span, Store, StoreError, Time,
};
use tollgate_store::AllowanceLevel;

/// The start of every run, at the start of a window.
pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);
/// How long an instance waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(150);

/// A run: everything that happens is determined by these values.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) limit: Limit,
    /// How the fleet decides: leased or async.
    pub(crate) mode: Mode,
    pub(crate) instances: usize,
    pub(crate) length: Span,
    pub(crate) traffic: Traffic,
    pub(crate) faults: Faults,
}

/// The requests of a run.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(crate) per_second: u64,
    /// Whether few instances get most of the requests.
    pub(crate) skewed: bool,
    /// Whether requests come in bursts.
    pub(crate) bursty: bool,
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// The share of messages that are lost, each way.
    pub(crate) loss: f64,
    /// The longest delay of a message, each way.
    pub(crate) most_delay: Span,
    /// The largest share by which the clock of an instance is too fast or too slow.
    pub(crate) drift: f64,
    /// How often an instance crashes, and starts anew.
    pub(crate) crashes: u32,
    /// How often an instance cannot reach the store for half a second.
    pub(crate) partitions: u32,
    /// How often the store forgets everything, as after a failover to an empty server.
    pub(crate) failovers: u32,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The instants of all admitted requests, by the clock of the store.
    pub(crate) uses: Vec<Time>,
    pub(crate) requests: u64,
    /// Requests in the second half of the run.
    pub(crate) late_requests: u64,
    /// Calls that reached the store.
    pub(crate) calls: u64,
    /// Requests decided without a call.
    pub(crate) covered: u64,
    /// Reported units beyond the limit, as the store measured them.
    pub(crate) excess: u64,
    /// When the store forgot usage or a report was lost, and how much.
    pub(crate) forgotten: Vec<(Time, u64)>,
}

/// A clock on virtual time. It may be too fast or too slow.
#[derive(Clone)]
struct SimulatedClock {
    begun: Instant,
    speed: f64,
}

impl SimulatedClock {
    fn elapsed(&self) -> f64 {
        Instant::now().duration_since(self.begun).as_micros() as f64
    }
}

impl Clock for SimulatedClock {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn now(&self) -> Time {
        START + Span::from_micros((self.elapsed() * self.speed) as u64)
    }
}

/// The way of one instance to the store.
struct Network {
    store: Arc<MemoryStore<SimulatedClock>>,
    faults: Faults,
    random: Mutex<fastrand::Rng>,
    is_cut: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    excess: Arc<AtomicU64>,
    lost: Arc<Mutex<Vec<(Time, u64)>>>,
}

/// Notes the units of a report that does not reach the store.
struct InReport<'a>(u64, &'a Network);

impl InReport<'_> {
    fn arrived(mut self) {
        self.0 = 0;
    }
}

impl Drop for InReport<'_> {
    fn drop(&mut self) {
        if self.0 > 0 {
            let now = self.1.store.clock().now();
            self.1.lost.lock().push((now, self.0));
        }
    }
}

impl Network {
    /// Returns the delays of a request and of its answer; `None` for a message that is lost.
    fn luck(&self) -> [Option<Duration>; 2] {
        let mut random = self.random.lock();
        [(); 2].map(|()| {
            let delay = random.u64(0..=self.faults.most_delay.as_micros());
            let is_lost = random.f64() < self.faults.loss;
            (!is_lost).then(|| Duration::from_micros(delay))
        })
    }

    async fn call<T>(
        &self,
        call: impl FnOnce(&MemoryStore<SimulatedClock>) -> T,
    ) -> Result<T, StoreError> {
        let sent_at = Instant::now();
        let [there, back] = self.luck();
        let lost = |sent_at: Instant| async move {
            sleep_until(sent_at + TIMEOUT).await;
            Err(StoreError::Timeout)
        };
        if self.is_cut.load(Ordering::Relaxed) {
            return lost(sent_at).await;
        }
        let Some(there) = there else {
            return lost(sent_at).await;
        };
        sleep(there).await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = call(&self.store);
        match back {
            Some(back) if Instant::now() + back < sent_at + TIMEOUT => {
                sleep(back).await;
                Ok(answer)
            }
            _ => lost(sent_at).await,
        }
    }
}

impl Store for Network {
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(self.call(move |store| store.apply(charges, ask)))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(self.call(move |store| store.peek(charges, ask)))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(self.call(move |store| store.refund(charges, units, charged_at)))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Answer::later(self.call(move |store| store.reset(charges)))
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        let report = InReport(units, self);
        Answer::later(self.call(move |store| {
            report.arrived();
            let level = store.report(charge, units);
            let excess = level.map_or(0, |it| it.excess);
            self.excess.fetch_add(excess, Ordering::Relaxed);
            level
        }))
    }
}

/// The wrapper under test, of one instance.
#[derive(Clone)]
enum Wrapper {
    Leased(Arc<Prepaid<Network>>),
    Async(Arc<Reported<Network>>),
}

impl Wrapper {
    fn store(&self) -> &dyn Store {
        match self {
            Wrapper::Leased(it) => &**it,
            Wrapper::Async(it) => &**it,
        }
    }

    /// Returns the admitted units that are lost if the instance crashes now.
    fn pending(&self) -> u64 {
        match self {
            Wrapper::Leased(_) => 0,
            Wrapper::Async(it) => it.reported_usage().pending_units,
        }
    }
}

/// An instance. A crash replaces its store.
struct Instance {
    wrapper: Mutex<Wrapper>,
    is_cut: Arc<AtomicBool>,
    clock: SimulatedClock,
}

/// Runs a fleet. In leased mode, the limit leaves room for slices.
pub(crate) fn run(it: &Run) -> Outcomes {
    match it.mode {
        Mode::Leased { slice } => {
            let (limit, slice) = it.limit.prepaid(slice).unwrap();
            simulate(it, &limit, Mode::Leased { slice })
        }
        mode => simulate(it, &it.limit, mode),
    }
}

fn simulate(it: &Run, limit: &Limit, mode: Mode) -> Outcomes {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, fleet(it.clone(), limit.clone(), mode))
}

async fn fleet(it: Run, limit: Limit, mode: Mode) -> Outcomes {
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(it.seed);
    let exact = SimulatedClock { begun, speed: 1.0 };
    let store = Arc::new(MemoryStore::with_clock(10_000, exact.clone()));
    let calls = Arc::new(AtomicU64::new(0));
    let (excess, lost) = (Arc::new(AtomicU64::new(0)), Arc::default());
    let limit: &'static Limit = Box::leak(Box::new(limit));
    let charge = Charge {
        mode,
        ..Charge::new(Key::from_bits(0xfeed << 96 | 7), limit)
    };
    let start = |random: &mut fastrand::Rng, is_cut: &Arc<AtomicBool>, clock: &SimulatedClock| {
        let network = Network {
            store: Arc::clone(&store),
            faults: it.faults.clone(),
            random: Mutex::new(random.fork()),
            is_cut: Arc::clone(is_cut),
            calls: Arc::clone(&calls),
            excess: Arc::clone(&excess),
            lost: Arc::clone(&lost),
        };
        let (instances, clock) = (
            u32::try_from(it.instances).unwrap(),
            Arc::new(clock.clone()),
        );
        match mode {
            Mode::Async { .. } => Wrapper::Async(Arc::new(Reported::new(network, clock))),
            _ => Wrapper::Leased(Arc::new(Prepaid::new(network, clock, instances))),
        }
    };
    let instances: Vec<Instance> = (0..it.instances)
        .map(|_| {
            let speed = 1.0 + it.faults.drift * (random.f64() * 2.0 - 1.0);
            let clock = SimulatedClock { begun, speed };
            let is_cut = Arc::default();
            Instance {
                wrapper: Mutex::new(start(&mut random, &is_cut, &clock)),
                is_cut,
                clock,
            }
        })
        .collect();
    let uses = Rc::new(std::cell::RefCell::new(Vec::new()));
    let (requests, covered) = (Cell::new(0), Rc::new(Cell::new(0)));
    let (mut forgotten, mut late_requests) = (Vec::new(), 0);
    let millis = it.length.as_micros() / 1000;
    let due = |count: u32, random: &mut fastrand::Rng| -> Vec<u64> {
        (0..count).map(|_| random.u64(0..millis)).collect()
    };
    let crashes = due(it.faults.crashes, &mut random);
    let cuts = due(it.faults.partitions, &mut random);
    let failovers = due(it.faults.failovers, &mut random);
    for tick in 0..millis {
        sleep_until(begun + Duration::from_millis(tick)).await;
        for _ in crashes.iter().filter(|at| **at == tick) {
            let instance = &instances[random.usize(..instances.len())];
            let mut wrapper = instance.wrapper.lock();
            let pending = wrapper.pending();
            if pending > 0 {
                lost.lock().push((exact.now(), pending));
            }
            *wrapper = start(&mut random, &instance.is_cut, &instance.clock);
        }
        for _ in cuts.iter().filter(|at| **at == tick) {
            let is_cut = Arc::clone(&instances[random.usize(..instances.len())].is_cut);
            is_cut.store(true, Ordering::Relaxed);
            tokio::task::spawn_local(async move {
                sleep(Duration::from_millis(500)).await;
                is_cut.store(false, Ordering::Relaxed);
            });
        }
        if failovers.contains(&tick) {
            let left = store.report(&charge, 0).unwrap().left;
            let capacity = i64::try_from(limit.capacity()).unwrap();
            forgotten.push((exact.now(), u64::try_from(capacity - left).unwrap()));
            store.reset(&[charge]);
        }
        if tick % 25 == 0 {
            for instance in &instances {
                let wrapper = instance.wrapper.lock().clone();
                match &wrapper {
                    Wrapper::Async(it) => it.report_due(),
                    Wrapper::Leased(_) if tick % 50 == 0 => wrapper.store().sweep(),
                    Wrapper::Leased(_) => {}
                }
            }
        }
        for _ in 0..count(&it.traffic, tick, &mut random) {
            let index = match it.traffic.skewed {
                // A few instances get most requests.
                true => {
                    let most = random.usize(..instances.len());
                    random.usize(..=most)
                }
                false => random.usize(..instances.len()),
            };
            let wrapper = instances[index].wrapper.lock().clone();
            requests.set(requests.get() + 1);
            late_requests += u64::from(tick >= millis / 2);
            let (uses, covered, exact) = (Rc::clone(&uses), Rc::clone(&covered), exact.clone());
            tokio::task::spawn_local(async move {
                let charges = [charge];
                match wrapper.store().apply(&charges, Ask::Exactly(1)) {
                    Answer::Now(Ok(applied)) => {
                        let may_deny = matches!(wrapper, Wrapper::Async(_));
                        assert!(applied.allowed || may_deny, "only the store denies");
                        covered.set(covered.get() + 1);
                        // It is admitted now. `applied.now` is the time of the draw.
                        if applied.allowed {
                            uses.borrow_mut().push(exact.now());
                        }
                    }
                    Answer::Now(Err(_)) => {}
                    Answer::Later(later) => {
                        if let Ok(applied) = later.await
                            && applied.allowed
                        {
                            uses.borrow_mut().push(applied.now);
                        }
                    }
                }
            });
        }
    }
    sleep(Duration::from_secs(1)).await;
    forgotten.extend(lost.lock().iter());
    forgotten.sort_unstable();
    Outcomes {
        uses: uses.borrow().clone(),
        requests: requests.get(),
        late_requests,
        calls: calls.load(Ordering::Relaxed),
        covered: covered.get(),
        excess: excess.load(Ordering::Relaxed),
        forgotten,
    }
}

/// Returns how many requests come in this millisecond.
fn count(traffic: &Traffic, tick: u64, random: &mut fastrand::Rng) -> u64 {
    // Bursts: all requests of half a second come in its first 50 ms.
    let (per_second, is_quiet) = match traffic.bursty {
        true => (traffic.per_second * 10, tick % 500 >= 50),
        false => (traffic.per_second, false),
    };
    if is_quiet {
        return 0;
    }
    let expected = per_second as f64 / 1000.0;
    // Twice a uniform number has the right mean, and varies enough.
    let wanted = expected * 2.0 * random.f64();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = wanted as u64;
    whole + u64::from(random.f64() < wanted - whole as f64)
}
