//! A simulation: requests through the rules of one config or two, on a virtual clock.

use tollgate::{Ask, Attributes, Config, Time};

use crate::VirtualLimiter;
use crate::report::Report;
use crate::stats::Stats;

/// How often expired states are forgotten and the memory is measured, in requests.
const SWEEP_EVERY: u64 = 1024;

/// Requests through the rules of one config or two.
///
/// ```
/// use tollgate::{Attributes, Time};
/// use tollgate_simulate::Simulation;
///
/// let config = tollgate::parse("rules.yaml", "
/// version: 1
/// rules: [{ id: api, per: [user], algorithm: fixed-window, limit: 5, window: 1m }]
/// ", &|_| None)?;
/// let mut simulation = Simulation::new(&config, None, false);
/// for second in 0..10 {
///     let time = Time::from_micros(1_800_000_000_000_000 + second * 1_000_000);
///     simulation.decide(time, &Attributes::from([("user", "ann")]), 1);
/// }
/// let report = simulation.finish();
/// assert_eq!((report.requests, report.new.denied), (10, 5));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Simulation {
    new: Side,
    old: Option<Side>,
    requests: u64,
    first: Time,
    last: Time,
    /// Requests that both configs allow, only the new one denies, only the old one denies, both deny.
    pub(crate) changes: [u64; 4],
}

/// One config with its state and its counts.
#[derive(Debug)]
struct Side {
    limiter: VirtualLimiter,
    stats: Stats,
    version: String,
}

impl Side {
    fn new(config: &Config, show_subjects: bool, sides: usize) -> Side {
        Side {
            limiter: VirtualLimiter::new(config, Time::default()),
            stats: Stats::new(config, show_subjects, sides),
            version: config.policy.version.clone(),
        }
    }

    /// Decides a request. Returns whether it is allowed.
    fn decide(&mut self, at: Time, attributes: &Attributes<'_>, units: u64) -> bool {
        self.limiter.set_time(at);
        let decision = self.limiter.ask_now(attributes, Ask::Exactly(units));
        self.stats.add(at, attributes, &decision);
        decision.is_allowed()
    }

    /// Forgets expired states, and measures the memory.
    fn sweep(&mut self, at: Time) {
        self.limiter.sweep();
        let usage = self.limiter.store().usage();
        let bucket = self.stats.series.at(at);
        bucket.keys = bucket.keys.max(usage.keys);
        bucket.bytes = bucket.bytes.max(usage.bytes);
    }
}

impl Simulation {
    /// Starts without usage. With `old`, each request is decided by both configs. `show_subjects` keeps the
    /// plain text of denied subjects for the report; otherwise the report has hashes.
    #[must_use]
    pub fn new(new: &Config, old: Option<&Config>, show_subjects: bool) -> Simulation {
        let sides = if old.is_some() { 2 } else { 1 };
        Simulation {
            new: Side::new(new, show_subjects, sides),
            old: old.map(|config| Side::new(config, show_subjects, sides)),
            requests: 0,
            first: Time::default(),
            last: Time::default(),
            changes: [0; 4],
        }
    }

    /// Decides a request of `units` at a time. Times must not go backwards.
    pub fn decide(&mut self, at: Time, attributes: &Attributes<'_>, units: u64) {
        self.decide_both(at, attributes, attributes, units);
    }

    /// Decides a request to which the routes and networks of the old config give other attributes.
    pub fn decide_both(
        &mut self,
        at: Time,
        attributes: &Attributes<'_>,
        of_old: &Attributes<'_>,
        units: u64,
    ) {
        if self.requests == 0 {
            self.first = at;
        }
        self.last = at;
        let new = self.new.decide(at, attributes, units);
        if let Some(old) = &mut self.old {
            let old = old.decide(at, of_old, units);
            self.changes[usize::from(!old) * 2 + usize::from(!new)] += 1;
        }
        if self.requests.is_multiple_of(SWEEP_EVERY) {
            self.sweep(at);
        }
        self.requests += 1;
    }

    fn sweep(&mut self, at: Time) {
        self.new.sweep(at);
        if let Some(old) = &mut self.old {
            old.sweep(at);
        }
    }

    /// Ends the simulation.
    #[must_use]
    pub fn finish(mut self) -> Report {
        if self.requests > 0 {
            self.sweep(self.last);
        }
        let times = (self.first, self.last);
        let new = (&self.new.stats, self.new.version.as_str());
        let old = self
            .old
            .as_ref()
            .map(|old| (&old.stats, old.version.as_str()));
        Report::new(self.requests, times, new, old, self.changes)
    }
}
