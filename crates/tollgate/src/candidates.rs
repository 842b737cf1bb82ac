//! Compares each candidate with the rule in force: how many requests only one of the two denies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::RuleSet;
use tollgate_core::Limit;

use crate::rule_outcome::RuleOutcome;

/// How a candidate compares with the rule in force, for the requests of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The candidate's id.
    pub candidate: Arc<str>,
    /// The id of the rule in force.
    pub current: Arc<str>,
    /// The plan of the tenants that asked; `None` for tenants without a plan.
    pub plan: Option<Arc<str>>,
    /// Requests that both allow.
    pub both_allow: u64,
    /// Requests that both deny.
    pub both_deny: u64,
    /// Requests that only the candidate denies.
    pub denies_more: u64,
    /// Requests that only the rule in force denies.
    pub denies_fewer: u64,
}

/// The candidates of a config.
pub(crate) struct Candidates(Box<[Pair]>);

struct Pair {
    /// The indexes of both rules in the file.
    candidate: u32,
    current: u32,
    ids: (Arc<str>, Arc<str>),
    /// The limits of both rules. If a reload changes one of them, counting starts again at zero.
    limits: (Limit, Limit),
    /// The counts of tenants without a plan, and then those of each plan, in the order of the file.
    by_plan: Box<[PlanCounts]>,
}

/// A plan, or none, and its counts. The first index says whether the candidate denies, and the second
/// whether the rule in force denies.
type PlanCounts = (Option<Arc<str>>, Arc<[[AtomicU64; 2]; 2]>);

impl Candidates {
    /// Finds the candidates of `rules`. Pairs that are unchanged since `before` keep their counts.
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

    /// Counts the outcomes of a request of a tenant on `plan`.
    #[inline]
    pub(crate) fn count(&self, outcomes: &[RuleOutcome], plan: Option<u16>) {
        for pair in &self.0 {
            let of = |rule: u32| outcomes.iter().find(|outcome| outcome.rule == rule);
            let Some(candidate) = of(pair.candidate) else {
                continue;
            };
            let current = of(pair.current);
            // While the store fails, there is nothing to compare.
            if !candidate.is_counted() || current.is_some_and(|outcome| !outcome.is_counted()) {
                continue;
            }
            // A rule that does not apply to the request denies nothing.
            let current_denies = current.is_some_and(|outcome| !outcome.is_allowed());
            let place = plan.map_or(0, |plan| usize::from(plan) + 1);
            if let Some((_, cells)) = pair.by_plan.get(place) {
                let denies = usize::from(!candidate.is_allowed());
                cells[denies][usize::from(current_denies)].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn comparisons(&self) -> Vec<Comparison> {
        let of_pair = |pair: &Pair| {
            let (candidate, current) = pair.ids.clone();
            let of_plan = pair.by_plan.iter().map(move |(plan, cells)| {
                let count = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
                let [[both_allow, denies_fewer], [denies_more, both_deny]] = &**cells;
                Comparison {
                    candidate: Arc::clone(&candidate),
                    current: Arc::clone(&current),
                    plan: plan.clone(),
                    both_allow: count(both_allow),
                    denies_fewer: count(denies_fewer),
                    denies_more: count(denies_more),
                    both_deny: count(both_deny),
                }
            });
            of_plan.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Acquire, Attributes, Config, Limiter, ManualClock, MemoryStore, Reserve, Store, Traced,
    };

    const RULES: &str = "
version: 1
plans: { pro: { current: { limit: 30 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: current, per: [tenant], algorithm: fixed-window, limit: 10, window: 30d }
  - { id: larger, candidate_of: current, algorithm: fixed-window, limit: 20, window: 30d }
";

    fn limiter(rules: &str) -> Limiter<Traced<MemoryStore<ManualClock>>> {
        Limiter::with_clock(&config(rules), ManualClock::default()).unwrap()
    }

    fn config(rules: &str) -> Config {
        tollgate_config::parse("rules.yaml", rules, &|_| None).unwrap()
    }

    /// Returns how the candidate compares for a plan.
    fn compared(limiter: &Limiter<impl Store>, plan: Option<&str>) -> [u64; 4] {
        let comparisons = limiter.metrics().comparisons();
        let of_plan = comparisons.iter().find(|it| it.plan.as_deref() == plan);
        let it = of_plan.unwrap();
        assert_eq!((&*it.candidate, &*it.current), ("larger", "current"));
        [it.both_allow, it.denies_fewer, it.denies_more, it.both_deny]
    }

    #[test]
    fn a_candidate_is_counted_as_if_it_were_in_force() {
        let limiter = limiter(RULES);
        let ask = |tenant| limiter.check_now(&Attributes::from([("tenant", tenant)]));
        let allowed = (0..40).filter(|_| ask("zed").is_allowed()).count();
        assert_eq!(allowed, 10);
        // The candidate would have admitted twenty.
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        let allowed = (0..40).filter(|_| ask("acme").is_allowed()).count();
        assert_eq!(allowed, 30);
        assert_eq!(compared(&limiter, Some("pro")), [20, 0, 10, 10]);
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        // A reload keeps the counts, unless it changes a limit that is compared.
        limiter.reload(&config(&RULES.replace("rules:", "headers: {}\nrules:")));
        assert_eq!(compared(&limiter, None), [10, 10, 0, 20]);
        limiter.reload(&config(&RULES.replace("limit: 10", "limit: 11")));
        assert!(ask("zed").is_allowed());
        assert_eq!(compared(&limiter, None), [0, 0, 1, 0]);
    }

    #[test]
    fn a_reservation_and_a_lease_count_for_the_plan_of_their_tenant() {
        let slots =
            "  - { id: slots, per: [tenant], algorithm: concurrency, limit: 9, lease: 1m }\n";
        let limiter = limiter(&format!("{RULES}{slots}"));
        let acme = Attributes::from([("tenant", "acme")]);
        let one = Reserve {
            units: 1,
            ..Reserve::default()
        };
        limiter.reserve_now(&acme, &one).unwrap();
        assert_eq!(compared(&limiter, Some("pro")), [1, 0, 0, 0]);
        let acquire = Acquire::default();
        limiter.try_acquire_now(&acme, &acquire, None).unwrap();
        assert_eq!(compared(&limiter, Some("pro")), [2, 0, 0, 0]);
        assert_eq!(compared(&limiter, None), [0; 4]);
    }
}
