//! What was seen against what is promised.

use std::time::Duration;

use tollgate::FailurePolicy;

use crate::fault::{Fault, Meanwhile};
use crate::ledger::{Admission, Allowance, excess};
use crate::load::{QUIET, SUBJECTS, Sample};
use crate::policy::{By, EMERGENCY, LIMIT, Policy, SHARE};
use crate::run::{Fresh, Seen};

/// What a decision may take longer than the timeout.
pub const LEEWAY: Duration = Duration::from_millis(5);

/// What the median decision may take while the breaker is open.
pub const OPEN_MEDIAN: Duration = Duration::from_micros(50);

/// Of a hundred requests, how many a policy may have to decide although the store is there: a busy
/// machine can hold an answer up for longer than the timeout.
pub const STRAY_PERCENT: usize = 1;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No decision takes longer than the timeout and [`LEEWAY`].
    InTime,
    /// With the breaker open, the median decision takes less than [`OPEN_MEDIAN`].
    QuickWhenOpen,
    /// A breaker opens where the store is gone.
    Opens,
    /// Where the store is there, it decides.
    StoreDecides,
    /// No more is admitted than the policy promises.
    WithinBound,
    /// Every answer is one that the policy may give, and nothing panics.
    NoError,
    /// The store decides again, without anybody's help.
    ComesBack,
    /// Afterwards, somebody new gets exactly the limit, and who stays below it is never refused by
    /// the store.
    TotalsRight,
}

impl Promise {
    /// All of them, in the order of the report.
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

/// When the store decided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// It had decided all the time.
    NeverGone,
    /// So long after the fault's end.
    After(Duration),
    /// It did not.
    Never,
}

/// What one policy did in one fault.
#[derive(Clone, Debug)]
pub struct Row {
    /// The policy.
    pub policy: Policy,
    /// Requests in all.
    pub requests: usize,
    /// Those decided by the store.
    pub by_store: usize,
    /// Those decided by the policy.
    pub by_policy: usize,
    /// Requests during the fault, and those of them that were decided by the policy.
    pub meanwhile: (usize, usize),
    /// Those refused without a question, as their refusal was known.
    pub known_denials: usize,
    /// The longest decision.
    pub worst: Duration,
    /// The longest decision, each less the worst delay that it can have met.
    pub worst_undelayed: Duration,
    /// The median decision while a breaker was open.
    pub open_median: Option<Duration>,
    /// The most that one subject was admitted above the limit, in any span.
    pub above: u64,
    /// What was admitted beyond what the policy promises.
    pub wrong: u64,
    /// Answers that the policy may not give.
    pub errors: usize,
    /// When the store decided again.
    pub back: Back,
    /// What somebody new got then.
    pub fresh: Fresh,
    /// How often the store refused the subject that stays below its limit.
    pub wrong_refusals: usize,
    /// What was not kept.
    pub broken: Vec<Promise>,
}

/// Judges what was seen of a fault: a row for each policy.
#[must_use]
pub fn judge(fault: &Fault, seen: &Seen) -> Vec<Row> {
    let policies = Policy::ALL.iter().enumerate();
    let rows = policies.map(|(place, policy)| {
        let mut row = row(*policy, place, seen);
        let kept = |promise: &Promise| promise.is_kept(fault, seen, &row);
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
    /// Whether a machine that is too busy can break it.
    #[must_use]
    pub fn depends_on_machine(self) -> bool {
        matches!(
            self,
            Promise::InTime | Promise::QuickWhenOpen | Promise::StoreDecides
        )
    }

    fn is_kept(self, fault: &Fault, seen: &Seen, row: &Row) -> bool {
        let there = fault.meanwhile == Meanwhile::There;
        match self {
            Promise::InTime => row.worst_undelayed <= seen.timeout + LEEWAY,
            Promise::QuickWhenOpen => row.open_median.is_none_or(|median| median < OPEN_MEDIAN),
            Promise::Opens => there || row.open_median.is_some(),
            Promise::StoreDecides => {
                let (requests, by_policy) = row.meanwhile;
                !there || by_policy * 100 <= requests * STRAY_PERCENT
            }
            Promise::WithinBound => row.wrong == 0,
            Promise::NoError => row.errors == 0 && seen.panics == 0,
            Promise::ComesBack => row.back != Back::Never,
            Promise::TotalsRight => {
                row.fresh.is_exact() && (row.wrong_refusals == 0 || fault.may_refuse_more)
            }
        }
    }
}

fn row(policy: Policy, place: usize, seen: &Seen) -> Row {
    let samples = seen.samples.iter().filter(|it| it.policy == place);
    let samples: Vec<Sample> = samples.copied().collect();
    let count = |by| samples.iter().filter(|it| it.by == by).count();
    let undelayed = |it: &Sample| {
        let delay = seen.delays.worst_between(it.asked, it.answered);
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
        meanwhile: meanwhile(&samples, seen),
        known_denials: count(By::KnownDenial),
        worst: samples.iter().map(Sample::took).max().unwrap_or_default(),
        worst_undelayed: samples.iter().map(undelayed).max().unwrap_or_default(),
        open_median: median(open.map(Sample::took).collect()),
        above: above.max().unwrap_or_default(),
        wrong: wrong_by_store(&samples, seen.losses) + wrong_by_policy(policy, &samples, seen),
        errors: samples.iter().filter(|it| !it.proper).count(),
        back: back(&samples, seen),
        fresh: seen.fresh.get(place).copied().unwrap_or_default(),
        wrong_refusals: quiet
            .filter(|it| !it.allowed && it.by != By::Policy)
            .count(),
        broken: Vec::new(),
    }
}

/// What the store has admitted beyond the limit. Each time that it has lost what it knew, a
/// subject may have its capacity once more.
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

/// What the policy has admitted beyond what it promises.
fn wrong_by_policy(policy: Policy, samples: &[Sample], seen: &Seen) -> u64 {
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
            .map(|subject| wrong_by_cached(samples, subject, seen.losses))
            .sum(),
    }
}

/// `cached` goes on where the store has left off: up to the store's return, both together keep the
/// limit. Of those who ask at the same time, one may not be known to the other yet.
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
        // Where it was not needed, the store alone is to blame.
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

fn meanwhile(samples: &[Sample], seen: &Seen) -> (usize, usize) {
    let during = |it: &&Sample| it.answered >= seen.began && it.asked <= seen.ended;
    let during = samples.iter().filter(during);
    let by_policy = during.clone().filter(|it| it.by == By::Policy);
    (during.count(), by_policy.count())
}

fn back(samples: &[Sample], seen: &Seen) -> Back {
    if let (_, 0) = meanwhile(samples, seen) {
        return Back::NeverGone;
    }
    let after = |it: &&Sample| it.by == By::Store && it.answered >= seen.ended;
    let first = samples.iter().find(after);
    first.map_or(Back::Never, |it| Back::After(it.answered - seen.ended))
}

fn median(mut values: Vec<Duration>) -> Option<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
