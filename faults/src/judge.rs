//! Compares the observations of a run with the promises.

use std::time::Duration;

use tollgate::FailurePolicy;

use crate::allowance::{Admission, Allowance, excess};
use crate::fault::{Availability, Fault};
use crate::load::{QUIET, SUBJECTS, Sample};
use crate::policy::{By, EMERGENCY, LIMIT, Policy, SHARE};
use crate::run::{Fresh, Observed};

/// How much longer than the timeout a decision may take.
pub const LEEWAY: Duration = Duration::from_millis(5);

/// The longest allowed median of decisions while the breaker is open.
pub const OPEN_MEDIAN: Duration = Duration::from_micros(50);

/// The percentage of requests that a policy may decide although the store is available. A busy machine can
/// delay an answer beyond the timeout.
pub const STRAY_PERCENT: usize = 1;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No decision takes longer than the timeout and [`LEEWAY`].
    InTime,
    /// With the breaker open, the median decision takes less than [`OPEN_MEDIAN`].
    QuickWhenOpen,
    /// The breaker opens if the store is unavailable.
    Opens,
    /// The store decides if it is available.
    StoreDecides,
    /// The policy does not admit more than its bound allows.
    WithinBound,
    /// Every answer is one that the policy may give, and nothing panics.
    NoError,
    /// The store decides again after the fault, without a restart or any other help.
    ComesBack,
    /// After the fault, a new subject gets exactly the limit, and the store never denies a subject below its
    /// limit.
    TotalsRight,
}

impl Promise {
    /// All promises, in the order of the report.
    pub const ALL: [Promise; 8] = [
        Promise::InTime,
        Promise::QuickWhenOpen,
        Promise::Opens,
        Promise::StoreDecides,
        Promise::WithinBound,
        Promise::NoError,
        Promise::ComesBack,
        Promise::TotalsRight,
    ];
}

/// When the store decided again after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The store decided all the time.
    NeverGone,
    /// This long after the end of the fault.
    After(Duration),
    /// The store did not decide again.
    Never,
}

/// The results of one policy in one fault.
#[derive(Clone, Debug)]
pub struct Row {
    /// The policy.
    pub policy: Policy,
    /// All requests.
    pub requests: usize,
    /// Requests decided by the store.
    pub by_store: usize,
    /// Requests decided by the policy.
    pub by_policy: usize,
    /// Requests during the fault, and how many of them the policy decided.
    pub during: (usize, usize),
    /// Requests denied from the cache of known denials.
    pub known_denials: usize,
    /// The longest decision.
    pub worst: Duration,
    /// The longest decision, without scheduling delays: from each decision, the worst delay during it is
    /// subtracted.
    pub worst_undelayed: Duration,
    /// The median decision while the breaker was open.
    pub open_median: Option<Duration>,
    /// The most that one subject got above its limit in any span of time.
    pub above: u64,
    /// How much was admitted beyond the bound of the policy.
    pub wrong: u64,
    /// Answers that the policy must not give.
    pub errors: usize,
    /// When the store decided again.
    pub back: Back,
    /// The requests of a new subject after the fault.
    pub fresh: Fresh,
    /// How often the store denied the subject that stays below its limit.
    pub wrong_denials: usize,
    /// The broken promises.
    pub broken: Vec<Promise>,
}

/// Judges the observations of a fault: one row for each policy.
#[must_use]
pub fn judge(fault: &Fault, observed: &Observed) -> Vec<Row> {
    let policies = Policy::ALL.iter().enumerate();
    let rows = policies.map(|(place, policy)| {
        let mut row = row(*policy, place, observed);
        let kept = |promise: &Promise| promise.is_kept(fault, observed, &row);
        row.broken = Promise::ALL
            .iter()
            .copied()
            .filter(|it| !kept(it))
            .collect();
        row
    });
    rows.collect()
}

impl Promise {
    /// Whether a busy machine can break the promise.
    #[must_use]
    pub fn depends_on_machine(self) -> bool {
        matches!(
            self,
            Promise::InTime | Promise::QuickWhenOpen | Promise::StoreDecides
        )
    }

    fn is_kept(self, fault: &Fault, observed: &Observed, row: &Row) -> bool {
        let is_available = fault.availability == Availability::Available;
        match self {
            Promise::InTime => row.worst_undelayed <= observed.timeout + LEEWAY,
            Promise::QuickWhenOpen => row.open_median.is_none_or(|median| median < OPEN_MEDIAN),
            Promise::Opens => is_available || row.open_median.is_some(),
            Promise::StoreDecides => {
                let (requests, by_policy) = row.during;
                !is_available || by_policy * 100 <= requests * STRAY_PERCENT
            }
            Promise::WithinBound => row.wrong == 0,
            Promise::NoError => row.errors == 0 && observed.panics == 0,
            Promise::ComesBack => row.back != Back::Never,
            Promise::TotalsRight => {
                row.fresh.is_exact() && (row.wrong_denials == 0 || fault.may_deny_more)
            }
        }
    }
}

fn row(policy: Policy, place: usize, observed: &Observed) -> Row {
    let samples = observed.samples.iter().filter(|it| it.policy == place);
    let samples: Vec<Sample> = samples.copied().collect();
    let count = |by| samples.iter().filter(|it| it.by == by).count();
    let undelayed = |it: &Sample| {
        let delay = observed.delays.worst_between(it.asked, it.answered);
        it.took().saturating_sub(delay)
    };
    let admitted = |subject| admissions(&samples, move |it| it.subject == subject);
    let above = (0..SUBJECTS.len()).map(|subject| excess(&admitted(subject), LIMIT));
    let open = samples.iter().filter(|it| it.by == By::Policy && it.open);
    let quiet = samples.iter().filter(|it| it.subject == QUIET);
    Row {
        policy,
        requests: samples.len(),
        by_store: count(By::Store),
        by_policy: count(By::Policy),
        during: during(&samples, observed),
        known_denials: count(By::KnownDenial),
        worst: samples.iter().map(Sample::took).max().unwrap_or_default(),
        worst_undelayed: samples.iter().map(undelayed).max().unwrap_or_default(),
        open_median: median(open.map(Sample::took).collect()),
        above: above.max().unwrap_or_default(),
        wrong: wrong_by_store(&samples, observed.losses)
            + wrong_by_policy(policy, &samples, observed),
        errors: samples.iter().filter(|it| !it.proper).count(),
        back: back(&samples, observed),
        fresh: observed.fresh.get(place).copied().unwrap_or_default(),
        wrong_denials: quiet
            .filter(|it| !it.allowed && it.by != By::Policy)
            .count(),
        broken: Vec::new(),
    }
}

/// Returns how much the store admitted beyond the limit. Each time the store loses its state, a subject may
/// use its capacity again.
fn wrong_by_store(samples: &[Sample], losses: u64) -> u64 {
    let allowance = Allowance {
        capacity: LIMIT.capacity * (1 + losses),
        ..LIMIT
    };
    let of = |subject| {
        let of_subject = move |it: &Sample| it.subject == subject && it.by == By::Store;
        excess(&admissions(samples, of_subject), allowance)
    };
    (0..SUBJECTS.len()).map(of).sum()
}

/// Returns how much the policy admitted beyond its bound.
fn wrong_by_policy(policy: Policy, samples: &[Sample], observed: &Observed) -> u64 {
    let by_policy = |it: &Sample| it.by == By::Policy;
    let of_each = |allowance| {
        let of = |subject| {
            let of_subject = move |it: &Sample| it.subject == subject && by_policy(it);
            excess(&admissions(samples, of_subject), allowance)
        };
        (0..SUBJECTS.len()).map(of).sum()
    };
    match policy.0 {
        Some(FailurePolicy::FailOpen | FailurePolicy::Degraded) => 0,
        Some(FailurePolicy::FailClosed) | None => admissions(samples, by_policy).len() as u64,
        Some(FailurePolicy::LocalFallback) => of_each(SHARE),
        Some(FailurePolicy::EmergencyLimit) => excess(&admissions(samples, by_policy), EMERGENCY),
        Some(FailurePolicy::Cached) => (0..SUBJECTS.len())
            .map(|subject| wrong_by_cached(samples, subject, observed.losses))
            .sum(),
    }
}

/// Returns how much the store and `cached` admitted together beyond the limit of a subject. The policy
/// continues from the last state of the store, so both together keep the limit until the store is back.
/// Requests in flight at the same time may not be in that state yet.
fn wrong_by_cached(samples: &[Sample], subject: usize, losses: u64) -> u64 {
    let allowance = Allowance {
        capacity: LIMIT.capacity * (1 + losses) + SUBJECTS[subject].tasks - 1,
        ..LIMIT
    };
    let of_subject: Vec<Sample> = samples
        .iter()
        .filter(|it| it.subject == subject && it.by != By::KnownDenial)
        .copied()
        .collect();
    let spans = of_subject.chunk_by(|one, next| !(one.by == By::Policy && next.by == By::Store));
    let wrong = spans
        // Spans in which only the store decided are judged by `wrong_by_store`.
        .filter(|span| span.iter().any(|it| it.by == By::Policy))
        .map(|span| excess(&admissions(span, |_| true), allowance));
    wrong.sum()
}

fn admissions(samples: &[Sample], which: impl Fn(&Sample) -> bool) -> Vec<Admission> {
    let admitted = samples.iter().filter(|it| it.allowed && which(it));
    let admissions = admitted.map(|it| Admission {
        asked: it.asked,
        answered: it.answered,
    });
    admissions.collect()
}

fn during(samples: &[Sample], observed: &Observed) -> (usize, usize) {
    let is_during = |it: &&Sample| it.answered >= observed.began && it.asked <= observed.ended;
    let during = samples.iter().filter(is_during);
    let by_policy = during.clone().filter(|it| it.by == By::Policy);
    (during.count(), by_policy.count())
}

fn back(samples: &[Sample], observed: &Observed) -> Back {
    if let (_, 0) = during(samples, observed) {
        return Back::NeverGone;
    }
    let after = |it: &&Sample| it.by == By::Store && it.answered >= observed.ended;
    let first = samples.iter().find(after);
    first.map_or(Back::Never, |it| Back::After(it.answered - observed.ended))
}

fn median(mut values: Vec<Duration>) -> Option<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
