//! Steady load: a few subjects send requests under every rule, and every answer is recorded.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tollgate::{Attributes, Decision, Remembered};
use tollgate_redis::{BreakerState, RedisStore};
use tollgate_rig::Stopwatch;

use crate::policy::{By, Policy};

/// The limiter under load.
pub type Limiter = tollgate::Limiter<Remembered<RedisStore>>;

/// The only tenant. All keys of a tenant are in one cluster slot, so a fault of this slot affects all keys.
const TENANT: &str = "acme";

/// A subject, and how often it sends requests.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The name of the user.
    pub name: &'static str,
    /// The number of concurrent tasks.
    pub tasks: u64,
    /// Checks per second of each task.
    pub per_second: u64,
}

/// The subjects of each rule. They send requests at 2 times, 1.5 times and 0.5 times their limit.
pub const SUBJECTS: [Subject; 3] = [
    Subject {
        name: "busy",
        tasks: 2,
        per_second: 50,
    },
    Subject {
        name: "brisk",
        tasks: 1,
        per_second: 75,
    },
    Subject {
        name: "quiet",
        tasks: 1,
        per_second: 25,
    },
];

/// The index of the subject that stays below its limit.
pub const QUIET: usize = 2;

/// One request, and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The index of its policy in [`Policy::ALL`].
    pub policy: usize,
    /// The index of its subject in [`SUBJECTS`].
    pub subject: usize,
    /// When the request was sent.
    pub asked: Duration,
    /// When the request was answered.
    pub answered: Duration,
    /// The part of the limiter that decided the request.
    pub by: By,
    /// Whether the request was admitted.
    pub allowed: bool,
    /// Whether the breaker was open from the request to the answer.
    pub open: bool,
    /// Whether the answer is one that the policy may give.
    pub proper: bool,
}

impl Sample {
    /// Returns how long the decision took.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.answered - self.asked
    }
}

/// The load on a limiter, until it is stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Sample>>>,
    /// For each policy, when the store last decided, in microseconds.
    by_store_at: Arc<[AtomicU64; Policy::ALL.len()]>,
}

impl Load {
    pub(crate) fn start(limiter: &Arc<Limiter>, clock: Stopwatch, stop: Arc<AtomicBool>) -> Load {
        let mut load = Load {
            stop,
            tasks: Vec::new(),
            by_store_at: Arc::default(),
        };
        for policy in 0..Policy::ALL.len() {
            for (index, subject) in SUBJECTS.iter().enumerate() {
                for _ in 0..subject.tasks {
                    let client = Client {
                        limiter: Arc::clone(limiter),
                        clock,
                        stop: Arc::clone(&load.stop),
                        by_store_at: Arc::clone(&load.by_store_at),
                        policy,
                        subject: index,
                    };
                    // The tasks start one after the other, so that they do not send at the same moments.
                    let start =
                        Duration::from_micros(700) * u32::try_from(load.tasks.len()).unwrap_or(0);
                    load.tasks.push(tokio::spawn(client.run(start)));
                }
            }
        }
        load
    }

    /// Whether the store has decided under every rule since `moment`.
    pub(crate) fn is_decided_by_store_since(&self, moment: Duration) -> bool {
        let moment = u64::try_from(moment.as_micros()).unwrap_or(u64::MAX);
        let mut all = self.by_store_at.iter();
        all.all(|at| at.load(Ordering::Relaxed) > moment)
    }

    /// Stops the load. Returns all samples in the order of their answers, and the errors of failed tasks.
    pub(crate) async fn stop(mut self) -> (Vec<Sample>, Vec<JoinError>) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut samples, mut failed) = (Vec::new(), Vec::new());
        for task in std::mem::take(&mut self.tasks) {
            match task.await {
                Ok(of_task) => samples.extend(of_task),
                Err(error) => failed.push(error),
            }
        }
        samples.sort_by_key(|sample| sample.answered);
        (samples, failed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One task of a subject under a rule.
struct Client {
    limiter: Arc<Limiter>,
    clock: Stopwatch,
    stop: Arc<AtomicBool>,
    by_store_at: Arc<[AtomicU64; Policy::ALL.len()]>,
    policy: usize,
    subject: usize,
}

impl Client {
    async fn run(self, start: Duration) -> Vec<Sample> {
        let policy = Policy::ALL[self.policy];
        let subject = SUBJECTS[self.subject];
        let period = Duration::from_micros(1_000_000 / subject.per_second);
        let mut ticks = interval_at(Instant::now() + start, period);
        // Ticks missed while waiting for an answer are skipped.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut samples = Vec::new();
        loop {
            ticks.tick().await;
            if self.stop.load(Ordering::Relaxed) {
                return samples;
            }
            let attributes = attributes(policy, subject.name);
            let was_open = self.is_open();
            let asked = self.clock.elapsed();
            let (decision, at_once) = ask(&self.limiter, &attributes).await;
            let answered = self.clock.elapsed();
            let open = was_open && self.is_open();
            let by = policy.decided_by(&decision, at_once);
            if by == By::Store {
                let at = u64::try_from(answered.as_micros()).unwrap_or(u64::MAX);
                self.by_store_at[self.policy].fetch_max(at, Ordering::Relaxed);
            }
            samples.push(Sample {
                policy: self.policy,
                subject: self.subject,
                asked,
                answered,
                by,
                allowed: decision.is_allowed(),
                open,
                proper: policy.may_answer(&decision, by),
            });
        }
    }

    fn is_open(&self) -> bool {
        let breakers = self.limiter.store().store().breakers();
        breakers
            .iter()
            .any(|(_, state)| *state == BreakerState::Open)
    }
}

/// Returns the attributes of a request of `user` under the rule of `policy`.
pub(crate) fn attributes<'a>(policy: Policy, user: &'a str) -> Attributes<'a> {
    Attributes::from([
        ("action", policy.name()),
        ("tenant", TENANT),
        ("user", user),
    ])
}

/// Checks a request. Returns the decision, and whether it was ready without waiting.
pub(crate) async fn ask(limiter: &Limiter, attributes: &Attributes<'_>) -> (Decision, bool) {
    let mut asking = pin!(limiter.check(attributes));
    let mut polls = 0;
    let decision = poll_fn(|context| {
        polls += 1;
        asking.as_mut().poll(context)
    });
    let decision = decision.await;
    (decision, polls == 1)
}
