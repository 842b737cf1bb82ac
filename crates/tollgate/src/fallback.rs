//! When the store fails: each rule's policy decides, in this instance, in microseconds.
//!
//! | policy | answer | how far the fleet may exceed a limit |
//! |---|---|---|
//! | `fail-open` | allowed | without bound while the store is down |
//! | `fail-closed` | refused, try again in 5 s | never |
//! | `local-fallback` | counted here, by limit / replicas × factor | the factor; and each outage one share per instance, and what the store has refilled meanwhile |
//! | `degraded` | allowed, and flagged | without bound while the store is down |
//! | `cached` | counted here, from the last known state of the subject | once per instance |
//! | `emergency-limit` | counted here, all subjects together | the emergency limit per instance |
//! | none | refused as unavailable, try again in 5 s | never |
//!
//! What is counted here is not told to the store when it is back: an outage costs at most what the
//! table says, once.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_config::{Config, FailurePolicy, RequestLimits, Resolution, Rule};
use tollgate_core::{Admission, Charge, Denial, Enforcement, Limit, OnDenied, Outcome, Span};
use tollgate_store::{Applied, Ask, Clock, MemoryStore, Store};

use crate::entry::{Entries, Entry, Part, RuleVerdict};
use crate::reply::Reply;

/// How long those are told to wait who are refused because there is no store to ask.
pub(crate) const RETRY_AFTER: Span = Span::from_secs(5);

/// A share of each limit: `numerator / denominator`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) numerator: u32,
    pub(crate) denominator: u32,
}

/// Counts what failure policies admit while the store does not answer.
pub(crate) struct Fallback {
    /// What is counted here. It outlives changes of the config.
    store: MemoryStore<Arc<dyn Clock>>,
}

/// What to do about each rule of a config, in the order of the file.
#[derive(Default)]
pub(crate) struct Plans {
    plans: Vec<Plan>,
    /// Whether one of them goes on from what the store has said last.
    has_cached: bool,
}

/// What to do about one rule.
struct Plan {
    policy: Option<FailurePolicy>,
    /// The limit to count by here, if there is anything to count.
    limit: Option<Limit>,
    /// The limit that this is a share of, and which share. Who has another has that share of it.
    of: Option<(Limit, Share)>,
}

impl Fallback {
    pub(crate) fn new(max_keys: usize, clock: Arc<dyn Clock>) -> Fallback {
        Fallback {
            store: MemoryStore::with_clock(max_keys, clock),
        }
    }

    /// Decides a request without the store. Takes nothing if `take` is false.
    pub(crate) fn decide(
        &self,
        plans: &Plans,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let request_limits = RequestLimits::default();
        let mut local: SmallVec<[Charge<'_>; 6]> = SmallVec::new();
        let mut refused = false;
        for (charge, plan) in plans.of(resolution) {
            // Blocks are kept in the store alone.
            if let Some(limit) = &plan.limit
                && !charge.limit.is_companion()
            {
                local.push(plan.local(charge, limit, &request_limits));
            }
            refused |= plan.refuses() && charge.enforces();
        }
        // Who is refused takes nothing from anyone.
        let applied = if take && !refused {
            self.store.apply(&local, ask)
        } else {
            self.store.peek(&local, ask)
        };
        let mut outcomes = applied.outcomes.iter();
        let entries = plans.of(resolution).zip(&resolution.rules);
        let entries = entries.map(|((charge, plan), rule)| {
            let verdict = match plan
                .limit
                .as_ref()
                .filter(|_| !charge.limit.is_companion())
                .and_then(|_| outcomes.next())
            {
                None if charge.limit.is_companion() => {
                    RuleVerdict::Assumed(charge.limit.soft_limit())
                }
                Some(outcome) => RuleVerdict::Decided(*outcome),
                None if plan.refuses() && charge.enforces() => {
                    RuleVerdict::StoreFailed(applied.now + RETRY_AFTER, charge.limit.soft_limit())
                }
                None => RuleVerdict::Assumed(charge.limit.soft_limit()),
            };
            let mut entry = Entry {
                rule: *rule,
                key: Some(charge.key.into()),
                enforcement: charge.enforcement,
                fallback: plan.policy,
                window: charge.limit.window(),
                grace: 0,
                part: Part::of(charge),
                verdict,
            };
            if let Limit::Quota(quota) = plan.limit.as_ref().unwrap_or(charge.limit) {
                entry.of_quota(quota, applied.now);
            }
            entry
        });
        let entries: Entries = entries.collect();
        let allowed = applied.allowed && !refused;
        let applied = Applied {
            now: applied.now,
            allowed,
            granted: if allowed { applied.granted } else { 0 },
            ..Applied::default()
        };
        Reply {
            applied,
            policies: Some(Box::new(entries)),
            latency: None,
        }
    }

    /// Notes what the store has said, where a policy wants to go on from there.
    #[inline]
    pub(crate) fn follow(&self, plans: &Plans, resolution: &Resolution<'_>, applied: &Applied) {
        if plans.has_cached {
            self.go_on_from(plans, resolution, applied);
        }
    }

    fn go_on_from(&self, plans: &Plans, resolution: &Resolution<'_>, applied: &Applied) {
        for ((charge, plan), outcome) in plans.of(resolution).zip(&applied.outcomes) {
            let counted = outcome.limit != Outcome::UNLIMITED
                && !charge.limit.is_companion()
                && outcome.admission != Admission::Denied(Denial::Unrestored);
            if plan.policy != Some(FailurePolicy::Cached) || !counted {
                continue;
            }
            self.store.reset(&[*charge]);
            let used = outcome.limit.saturating_sub(outcome.remaining);
            if used > 0 {
                let known = Charge {
                    cost: used,
                    enforcement: Enforcement::Shadow,
                    on_denied: OnDenied::Nothing,
                    recorded: None,
                    ..*charge
                };
                self.store.apply(&[known], Ask::Exactly(1));
            }
        }
    }

    /// Forgets what is counted here of these charges.
    pub(crate) fn forget(&self, charges: &[Charge<'_>]) {
        self.store.reset(charges);
    }

    /// Forgets expired state, a share of it at a time.
    pub(crate) fn sweep(&self) {
        Store::sweep(&self.store);
    }
}

impl Plans {
    /// What to do about the rules of `config`, which count by a `share` of their limits while the store
    /// does not answer. Nothing if the store cannot fail.
    pub(crate) fn new(config: &Config, share: Option<Share>) -> Plans {
        let Some(share) = share else {
            return Plans::default();
        };
        let plans: Vec<Plan> = config
            .policy
            .rules
            .iter()
            .map(|rule| plan(rule, share))
            .collect();
        let is_cached = |plan: &Plan| plan.policy == Some(FailurePolicy::Cached);
        Plans {
            has_cached: plans.iter().any(is_cached),
            plans,
        }
    }

    /// The charges of a request, each with what to do about it.
    fn of<'a, 'r>(
        &'a self,
        resolution: &'a Resolution<'r>,
    ) -> impl Iterator<Item = (&'a Charge<'r>, &'a Plan)> {
        let charges = resolution.charges.iter().zip(&resolution.rules);
        charges.map(|(charge, rule)| (charge, &self.plans[*rule as usize]))
    }
}

impl Plan {
    /// Whether it refuses without counting.
    fn refuses(&self) -> bool {
        matches!(self.policy, None | Some(FailurePolicy::FailClosed))
    }

    /// The charge to be counted here instead of `charge`.
    fn local<'p>(
        &self,
        charge: &Charge<'p>,
        limit: &'p Limit,
        request_limits: &'p RequestLimits,
    ) -> Charge<'p> {
        let key = match self.policy {
            Some(FailurePolicy::EmergencyLimit) => charge.overflow,
            _ => charge.key,
        };
        let limit = match (self.policy, &self.of) {
            (_, Some((own, share))) if own != charge.limit => {
                request_limits.keep(charge.limit.scaled(share.numerator, share.denominator))
            }
            // What is known of the subject was counted with these numbers.
            (Some(FailurePolicy::Cached), _) => charge.limit,
            _ => limit,
        };
        // What is counted here is some of the request: places in it mean nothing.
        let enforcement = match charge.enforcement {
            Enforcement::Enforce => Enforcement::Enforce,
            Enforcement::Shadow | Enforcement::Instead(_) => Enforcement::Shadow,
        };
        Charge {
            key,
            limit,
            enforcement,
            // What is counted here has nothing to be restored from.
            recorded: None,
            ..*charge
        }
    }
}

fn plan(rule: &Rule, share: Share) -> Plan {
    let policy = rule.on_store_failure();
    let limit = match policy {
        Some(FailurePolicy::LocalFallback) => {
            Some(rule.limit().scaled(share.numerator, share.denominator))
        }
        Some(FailurePolicy::Cached) => Some(rule.limit().clone()),
        // Validated with the config: a rate whose numbers count exactly, and as large as itself.
        Some(FailurePolicy::EmergencyLimit) => rule
            .emergency_limit()
            .and_then(|rate| Limit::token_bucket(rate.amount(), rate).ok()),
        _ => None,
    };
    let of = (policy == Some(FailurePolicy::LocalFallback)).then(|| (rule.limit().clone(), share));
    Plan { policy, limit, of }
}
