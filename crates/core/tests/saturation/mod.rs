//! A service that can be saturated, on virtual time: workers, a queue without bound, and clients that ask at a
//! fixed rate whatever the answers are. A controller says how many requests may be in flight.

#![allow(dead_code)] // Each user of this model needs a part of it.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)] // A model, with numbers that fit.

pub(crate) mod peers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use tollgate_core::Time;
use tollgate_core::adaptive::{Adaptive, Ended, part};

/// Something that says how many requests may be in flight.
pub(crate) trait Controller {
    fn record(&mut self, ended: Ended);
    fn limit(&self) -> u64;
    fn limit_of_the_first(&self) -> u64 {
        self.limit()
    }
}

impl Controller for Adaptive {
    fn record(&mut self, ended: Ended) {
        Adaptive::record(self, ended);
    }

    fn limit(&self) -> u64 {
        Adaptive::limit(self)
    }

    fn limit_of_the_first(&self) -> u64 {
        Adaptive::limit_of_the_first(self)
    }
}

/// No limit at all.
pub(crate) struct Unlimited;

impl Controller for Unlimited {
    fn record(&mut self, _: Ended) {}

    fn limit(&self) -> u64 {
        u64::MAX / 200
    }
}

/// The service from some time on.
#[derive(Clone, Copy)]
pub(crate) struct Phase {
    /// When it begins, in seconds.
    pub(crate) from: u64,
    pub(crate) workers: u64,
    /// The mean time that a worker needs for a request, in microseconds.
    pub(crate) service: u64,
}

/// The clients of a class.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Requests a second.
    pub(crate) rate: u64,
}

/// A run of the model.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) phases: Vec<Phase>,
    /// One for each class, the most important first.
    pub(crate) loads: Vec<Load>,
    /// Percent of the limit that the last class may not use.
    pub(crate) reserve: u64,
    /// Whether times are exponentially distributed, or all the same.
    pub(crate) varies: bool,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// After how many microseconds clients give up, if they do. The service works on such a request all the same.
    pub(crate) patience: Option<u64>,
}

/// What happened in a part of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    /// Latencies of the requests that were answered, in microseconds.
    pub(crate) latencies: Vec<u64>,
    /// Requests asked and denied, by class.
    pub(crate) asked: Vec<u64>,
    pub(crate) denied: Vec<u64>,
    /// The limit at the end.
    pub(crate) limit: u64,
    /// Microseconds that workers worked, and those that they existed.
    pub(crate) busy: u64,
    pub(crate) available: u64,
}

/// The length of a bucket.
pub(crate) const BUCKET: u64 = 500_000;

impl Bucket {
    /// Returns a percentile of the latencies in microseconds; 0 if there are none.
    pub(crate) fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        sorted.get(last * percent / 100).copied().unwrap_or(0)
    }
}

/// Deterministic random numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns an exponentially distributed span with this mean.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((mean as f64) * -uniform.ln()).round().max(1.0) as u64
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { class: usize },
    Done(Request),
    GivesUp(Request),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    number: u64,
    started: u64,
    in_flight: u64,
}

impl Request {
    fn ended(&self, now: u64, abandoned: bool) -> Ended {
        Ended {
            started: Time::from_micros(self.started),
            answered: Time::from_micros(now),
            in_flight: self.in_flight,
            failed: false,
            abandoned,
        }
    }
}

impl Run {
    /// Runs the model, and returns what happened in each half second.
    pub(crate) fn play(&self, controller: &mut dyn Controller) -> Vec<Bucket> {
        let mut random = Random::new(self.seed);
        let mut events = BinaryHeap::new();
        let mut queue: VecDeque<Request> = VecDeque::new();
        let (mut busy, mut in_flight) = (0_u64, 0_u64);
        let classes = self.loads.len();
        let end = self.seconds * 1_000_000;
        let empty = Bucket {
            asked: vec![0; classes],
            denied: vec![0; classes],
            ..Bucket::default()
        };
        let mut buckets = vec![empty; usize::try_from(end / BUCKET).unwrap()];
        for (class, load) in self.loads.iter().enumerate() {
            if let Some(gap) = 1_000_000_u64.checked_div(load.rate) {
                let first = random.exponential(gap);
                events.push(Reverse((first, Event::Arrival { class })));
            }
        }
        let (mut last, mut number, mut waited_for) = (0, 0, HashSet::new());
        while let Some(Reverse((now, event))) = events.pop() {
            if now >= end {
                break;
            }
            self.account(&mut buckets, last, now, busy);
            last = now;
            let bucket = &mut buckets[usize::try_from(now / BUCKET).unwrap()];
            let phase = self.phase(now);
            match event {
                Event::Arrival { class } => {
                    let gap = random.exponential(1_000_000 / self.loads[class].rate);
                    events.push(Reverse((now + gap, Event::Arrival { class })));
                    bucket.asked[class] += 1;
                    let may = match class {
                        0 => controller.limit_of_the_first(),
                        _ => part(controller.limit(), class, classes, self.reserve),
                    };
                    if in_flight >= may {
                        bucket.denied[class] += 1;
                    } else {
                        in_flight += 1;
                        number += 1;
                        let request = Request {
                            number,
                            started: now,
                            in_flight,
                        };
                        queue.push_back(request);
                        waited_for.insert(number);
                        if let Some(patience) = self.patience {
                            events.push(Reverse((now + patience, Event::GivesUp(request))));
                        }
                    }
                }
                Event::Done(request) => {
                    busy -= 1;
                    if waited_for.remove(&request.number) {
                        in_flight -= 1;
                        bucket.latencies.push(now - request.started);
                        controller.record(request.ended(now, false));
                    }
                }
                Event::GivesUp(request) => {
                    if waited_for.remove(&request.number) {
                        in_flight -= 1;
                        controller.record(request.ended(now, true));
                    }
                }
            }
            bucket.limit = controller.limit_of_the_first();
            while busy < phase.workers
                && let Some(request) = queue.pop_front()
            {
                busy += 1;
                let takes = match self.varies {
                    true => random.exponential(phase.service),
                    false => phase.service,
                };
                events.push(Reverse((now + takes, Event::Done(request))));
            }
        }
        buckets
    }

    fn phase(&self, now: u64) -> Phase {
        let mut phases = self.phases.iter().rev();
        *phases.find(|it| it.from * 1_000_000 <= now).unwrap()
    }

    /// Counts the work of the workers from `last` to `now`.
    fn account(&self, buckets: &mut [Bucket], last: u64, now: u64, busy: u64) {
        let bucket = &mut buckets[usize::try_from(last / BUCKET).unwrap()];
        let workers = self.phase(last).workers;
        bucket.busy += busy.min(workers) * (now - last);
        bucket.available += workers * (now - last);
    }
}

/// Figures of a stretch of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// The 99th percentile of the latency, in microseconds.
    pub p99: u64,
    /// Percent of the time of the workers.
    pub(crate) utilisation: f64,
    /// The standard deviation of the limit, in percent of its mean.
    pub(crate) oscillation: f64,
    pub(crate) mean_limit: f64,
}

/// Returns the figures of the buckets from second `from` to second `to`.
pub(crate) fn figures(buckets: &[Bucket], from: u64, to: u64) -> Figures {
    let index = |second: u64| usize::try_from(second * 1_000_000 / BUCKET).unwrap();
    let part = &buckets[index(from)..index(to)];
    let all = Bucket {
        latencies: part.iter().flat_map(|it| it.latencies.clone()).collect(),
        ..Bucket::default()
    };
    let (busy, available) = part.iter().fold((0, 0), |(busy, available), it| {
        (busy + it.busy, available + it.available)
    });
    let limits: Vec<f64> = part.iter().map(|it| it.limit as f64).collect();
    let mean = limits.iter().sum::<f64>() / limits.len() as f64;
    let squares = limits.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
    Figures {
        p99: all.percentile(99),
        utilisation: 100.0 * busy as f64 / available as f64,
        oscillation: 100.0 * (squares / limits.len() as f64).sqrt() / mean,
        mean_limit: mean,
    }
}

/// Returns after how many seconds from `second` on the p99 of every half second until `to` is at most `bound`
/// microseconds; `None` if it never is.
pub(crate) fn recovered(buckets: &[Bucket], second: u64, to: u64, bound: u64) -> Option<f64> {
    let index = |second: u64| usize::try_from(second * 1_000_000 / BUCKET).unwrap();
    let part = &buckets[index(second)..index(to)];
    let bad = part.iter().rposition(|it| it.percentile(99) > bound);
    match bad {
        None => Some(0.0),
        Some(last) if last + 1 == part.len() => None,
        Some(last) => Some((last + 1) as f64 * BUCKET as f64 / 1e6),
    }
}

/// Returns the percentage of the requests of `class` that were admitted.
pub(crate) fn success(buckets: &[Bucket], class: usize) -> f64 {
    let asked: u64 = buckets.iter().map(|it| it.asked[class]).sum();
    let denied: u64 = buckets.iter().map(|it| it.denied[class]).sum();
    100.0 * (asked - denied) as f64 / asked as f64
}

impl Phase {
    /// Returns the p99 of the latency if no request waits, for times that vary: -ln(0.01) = 4.6 times the mean.
    pub(crate) fn p99_without_queue(&self) -> u64 {
        self.service * 46 / 10
    }
}

/// A service of 2000 requests a second that has half of its capacity from 30 s to 60 s: half of the workers, or
/// workers that need twice the time. Important requests come at 600 a second, others at 1800.
pub(crate) fn halving(is_slower: bool) -> Run {
    let healthy = Phase {
        from: 0,
        workers: 100,
        service: 50_000,
    };
    let half = match is_slower {
        true => Phase {
            from: 30,
            service: 100_000,
            ..healthy
        },
        false => Phase {
            from: 30,
            workers: 50,
            ..healthy
        },
    };
    Run {
        phases: vec![
            healthy,
            half,
            Phase {
                from: 60,
                ..healthy
            },
        ],
        loads: vec![Load { rate: 600 }, Load { rate: 1800 }],
        reserve: 30,
        varies: true,
        seconds: 90,
        seed: 7,
        patience: None,
    }
}

/// A service that gets `rate` requests a second, a quarter of them important.
pub(crate) fn overload(workers: u64, service: u64, rate: u64, seconds: u64) -> Run {
    let rates = [rate / 4, rate - rate / 4];
    Run {
        phases: vec![Phase {
            from: 0,
            workers,
            service,
        }],
        loads: rates.map(|rate| Load { rate }).to_vec(),
        reserve: 30,
        varies: true,
        seconds,
        seed: 11,
        patience: None,
    }
}
