//! How candidates compare with the rules in force: whom they would refuse more, and whom fewer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::RuleSet;
use tollgate_core::Limit;

use crate::entry::Entry;

/// A candidate beside the rule in force, for the requests of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The candidate's id.
    pub candidate: Arc<str>,
    /// The id of the rule in force.
    pub current: Arc<str>,
    /// The plan of who asked; none if they have none.
    pub plan: Option<Arc<str>>,
    /// Requests that both allow.
    pub both_allow: u64,
    /// Requests that both refuse.
    pub both_refuse: u64,
    /// Requests that the candidate alone refuses.
    pub refuses_more: u64,
    /// Requests that the rule in force alone refuses.
    pub refuses_fewer: u64,
}

/// The candidates of a config.
pub(crate) struct Candidates(Box<[Pair]>);

struct Pair {
    /// Their places in the file.
    candidate: u32,
    current: u32,
    ids: (Arc<str>, Arc<str>),
    /// What is compared: other numbers begin anew.
    limits: (Limit, Limit),
    /// Who has no plan, then the plans in the order of the file.
    by_plan: Box<[OfPlan]>,
}

/// A plan, if there is one, and what was counted for it.
type OfPlan = (Option<Arc<str>>, Arc<Cells>);

/// By whether the candidate refuses, then whether the rule in force does.
#[derive(Default)]
struct Cells([[AtomicU64; 2]; 2]);

impl Candidates {
    /// Those of `rules`. What is compared as it was `before` goes on being counted.
    pub(crate) fn new(rules: &RuleSet, before: Option<&Candidates>) -> Candidates {
        let plans: Vec<Arc<str>> = rules.plans().map(Arc::from).collect();
        let pair = |(candidate, current): (u32, u32)| {
            let id = |place: u32| rules.rules()[place as usize].shared_id();
            let limit = |place: u32| rules.rules()[place as usize].limit().clone();
            let ids = (id(candidate), id(current));
            let limits = (limit(candidate), limit(current));
            let same = |pair: &&Pair| pair.ids == ids && pair.limits == limits;
            let known = before.and_then(|it| it.0.iter().find(same));
            let cells = |plan: Option<Arc<str>>| {
                let known = known.and_then(|pair| {
                    let mut of_plan = pair.by_plan.iter().filter(|(name, _)| *name == plan);
                    of_plan.next().map(|(_, cells)| Arc::clone(cells))
                });
                (plan, known.unwrap_or_default())
            };
            let plans = plans.iter().cloned().map(Some);
            Pair {
                candidate,
                current,
                by_plan: std::iter::once(None).chain(plans).map(cells).collect(),
                ids,
                limits,
            }
        };
        Candidates(rules.candidates().map(pair).collect())
    }

    /// Counts what was said to a request of a tenant on `plan`.
    #[inline]
    pub(crate) fn count(&self, entries: &[Entry], plan: Option<u16>) {
        for pair in &self.0 {
            let said = |rule: u32| entries.iter().find(|entry| entry.rule == rule);
            let Some(candidate) = said(pair.candidate) else {
                continue;
            };
            let current = said(pair.current);
            // What a failing store leaves open compares nothing.
            if !candidate.is_counted() || current.is_some_and(|entry| !entry.is_counted()) {
                continue;
            }
            // A rule that does not apply refuses nothing.
            let current_refuses = current.is_some_and(|entry| !entry.is_allowed());
            let place = plan.map_or(0, |plan| usize::from(plan) + 1);
            if let Some((_, cells)) = pair.by_plan.get(place) {
                let refuses = usize::from(!candidate.is_allowed());
                cells.0[refuses][usize::from(current_refuses)].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn comparisons(&self) -> Vec<Comparison> {
        let of_pair = |pair: &Pair| {
            let (candidate, current) = pair.ids.clone();
            let of_plan = pair.by_plan.iter().map(move |(plan, cells)| {
                let count = |candidate_refuses: usize, current_refuses: usize| {
                    cells.0[candidate_refuses][current_refuses].load(Ordering::Relaxed)
                };
                Comparison {
                    candidate: Arc::clone(&candidate),
                    current: Arc::clone(&current),
                    plan: plan.clone(),
                    both_allow: count(0, 0),
                    refuses_fewer: count(0, 1),
                    refuses_more: count(1, 0),
                    both_refuse: count(1, 1),
                }
            });
            of_plan.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_store::ManualClock;

    use crate::{Attributes, Limiter};

    const RULES: &str = "
version: 1
plans: { pro: { current: { limit: 30 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: current, per: [tenant], algorithm: fixed-window, limit: 10, window: 30d }
  - { id: larger, candidate_of: current, algorithm: fixed-window, limit: 20, window: 30d }
";

    /// How the candidate compares for a plan.
    fn compared(
        limiter: &Limiter<crate::Traced<tollgate_store::MemoryStore<ManualClock>>>,
        plan: Option<&str>,
    ) -> [u64; 4] {
        let comparisons = limiter.metrics().comparisons();
        let of_plan = comparisons.iter().find(|it| it.plan.as_deref() == plan);
        let it = of_plan.unwrap();
        assert_eq!((&*it.candidate, &*it.current), ("larger", "current"));
        [
            it.both_allow,
            it.refuses_fewer,
            it.refuses_more,
            it.both_refuse,
        ]
    }

    #[test]
    fn a_candidate_is_counted_as_if_it_were_in_force() {
        let config = tollgate_config::parse("rules.yaml", RULES, &|_| None).unwrap();
        let limiter = Limiter::with_clock(&config, ManualClock::default()).unwrap();
        let ask = |tenant| limiter.check_now(&Attributes::from([("tenant", tenant)]));
        let allowed = (0..40).filter(|_| ask("zed").is_allowed()).count();
        assert_eq!(allowed, 10);
        // It would have admitted twenty, and no more than that.
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        let allowed = (0..40).filter(|_| ask("acme").is_allowed()).count();
        assert_eq!(allowed, 30);
        assert_eq!(compared(&limiter, Some("pro")), [20, 0, 10, 10]);
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        // Another config goes on where this one was, unless it compares something else.
        let reload = |text: &str| {
            let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
            limiter.reload(&config);
        };
        reload(&RULES.replace("rules:", "headers: {}\nrules:"));
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        reload(&RULES.replace("limit: 10", "limit: 11"));
        assert!(ask("zed").is_allowed());
        assert_eq!(compared(&limiter, None), [0, 0, 1, 0]);
    }
}
