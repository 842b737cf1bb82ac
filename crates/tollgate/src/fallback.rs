//! Decisions while the store fails: the failure policy of each rule decides, in this process.
//!
//! | policy | answer | how far the fleet may exceed a limit |
//! |---|---|---|
//! | `fail-open` | allowed | without bound while the store is down |
//! | `fail-closed` | denied, retry in 5 s | never |
//! | `local-fallback` | counted here, against limit / replicas × factor | by the factor; and per outage by one share per instance, plus the amount that the store refills meanwhile |
//! | `degraded` | allowed, with a flag | without bound while the store is down |
//! | `cached` | counted here, from the last known state of the subject | once per instance |
//! | `emergency-limit` | counted here, all subjects together | the emergency limit per instance |
//! | none | denied as unavailable, retry in 5 s | never |
//!
//! When the store is back, it does not learn the counts of this process. So each outage exceeds a limit
//! at most once by the amount in the table.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_config::{Config, FailurePolicy, RequestLimits, Resolution, Rule, RuleStore};
use tollgate_core::{Admission, Charge, Denial, Enforcement, Limit, OnDenied, Outcome, Span};
use tollgate_store::{Applied, Ask, Clock, MemoryStore, Store};

use crate::reply::Reply;
use crate::rule_outcome::{RuleOutcome, RuleOutcomes, RuleVerdict, Source};

/// The retry time of requests that are denied because the store failed.
pub(crate) const RETRY_AFTER: Span = Span::from_secs(5);

/// A share of each limit: `numerator / denominator`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) numerator: u32,
    pub(crate) denominator: u32,
}

impl Share {
    const WHOLE: Share = Share {
        numerator: 1,
        denominator: 1,
    };
}

/// Counts the requests that failure policies admit while the store does not answer.
pub(crate) struct Fallback {
    /// The counts. A reload keeps them.
    store: MemoryStore<Arc<dyn Clock>>,
}

/// How the rules of a config decide while the store fails, in the order of the file.
#[derive(Default)]
pub(crate) struct RuleFallbacks {
    fallbacks: Vec<RuleFallback>,
    /// Whether a rule has the policy `cached`.
    pub(crate) has_cached: bool,
}

/// How one rule decides while the store fails.
struct RuleFallback {
    policy: Option<FailurePolicy>,
    /// The limit that this process counts against, if the policy counts.
    limit: Option<Limit>,
    /// The rule's own limit, and the share of it that `limit` is. A request with another limit gets the
    /// same share of that limit.
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
        fallbacks: &RuleFallbacks,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let request_limits = RequestLimits::default();
        let mut local: SmallVec<[Charge<'_>; 6]> = SmallVec::new();
        let mut denied = false;
        for (charge, fallback) in fallbacks.of(resolution) {
            if let Some(limit) = fallback.counted(charge) {
                local.push(fallback.local(charge, limit, &request_limits));
            }
            denied |= fallback.denies_uncounted() && charge.enforces();
        }
        // A denied request takes nothing.
        let applied = if take && !denied {
            self.store.apply(&local, ask)
        } else {
            self.store.peek(&local, ask)
        };
        let mut outcomes = applied.outcomes.iter();
        let decided = fallbacks.of(resolution).zip(&resolution.rules);
        let decided = decided.map(|((charge, fallback), rule)| {
            let counted = fallback.counted(charge);
            let denies = fallback.denies_uncounted() && charge.enforces();
            let limit = charge.limit.soft_limit();
            let verdict = match counted.and_then(|_| outcomes.next()) {
                Some(outcome) => RuleVerdict::Decided(*outcome),
                None if denies && !charge.limit.is_companion() => {
                    RuleVerdict::StoreFailed(applied.now + RETRY_AFTER, limit)
                }
                None => RuleVerdict::Assumed(limit),
            };
            let mut outcome = RuleOutcome {
                rule: *rule,
                key: Some(charge.key.into()),
                enforcement: charge.enforcement,
                fallback: fallback.policy,
                window: charge.limit.window(),
                grace: 0,
                source: Source::of(charge),
                verdict,
            };
            if let Limit::Quota(quota) = fallback.limit.as_ref().unwrap_or(charge.limit) {
                outcome.apply_period(quota, applied.now);
            }
            outcome
        });
        let decided: RuleOutcomes = decided.collect();
        let allowed = applied.allowed && !denied;
        let applied = Applied {
            now: applied.now,
            allowed,
            granted: if allowed { applied.granted } else { 0 },
            ..Applied::default()
        };
        Reply {
            applied,
            policies: Some(Box::new(decided)),
            latency: None,
        }
    }

    /// Remembers the answers of the store for rules with the policy `cached`.
    #[inline]
    pub(crate) fn follow(
        &self,
        fallbacks: &RuleFallbacks,
        resolution: &Resolution<'_>,
        applied: &Applied,
    ) {
        if !fallbacks.has_cached {
            return;
        }
        for ((charge, fallback), outcome) in fallbacks.of(resolution).zip(&applied.outcomes) {
            let counted = outcome.limit != Outcome::UNLIMITED
                && !charge.limit.is_companion()
                && outcome.admission != Admission::Denied(Denial::Unrestored)
                && outcome.is_decided();
            if fallback.policy != Some(FailurePolicy::Cached) || !counted {
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

    /// Forgets the counts of these charges.
    pub(crate) fn forget(&self, charges: &[Charge<'_>]) {
        self.store.reset(charges);
    }

    /// Forgets some of the expired state.
    pub(crate) fn sweep(&self) {
        Store::sweep(&self.store);
    }
}

impl RuleFallbacks {
    /// Makes the fallbacks of the rules of `config`. Rules with the policy `local-fallback` count against a
    /// `share` of their limits. Without a share, the store is in this process. Such a store fails only when
    /// it is full of open holds, so answers are not remembered for the policy `cached`.
    pub(crate) fn new(config: &Config, share: Option<Share>) -> RuleFallbacks {
        let follows = share.is_some();
        let share = share.unwrap_or(Share::WHOLE);
        let rules = config.policy.rules.iter();
        let fallbacks = rules.map(|it| RuleFallback::of_rule(it, share_of(it, config, share)));
        let fallbacks: Vec<_> = fallbacks.collect();
        let is_cached = |fallback: &RuleFallback| fallback.policy == Some(FailurePolicy::Cached);
        RuleFallbacks {
            has_cached: follows && fallbacks.iter().any(is_cached),
            fallbacks,
        }
    }

    /// Returns the charges of a request, each with the fallback of its rule.
    fn of<'a, 'r>(
        &'a self,
        resolution: &'a Resolution<'r>,
    ) -> impl Iterator<Item = (&'a Charge<'r>, &'a RuleFallback)> {
        let charges = resolution.charges.iter().zip(&resolution.rules);
        charges.map(|(charge, rule)| (charge, &self.fallbacks[*rule as usize]))
    }
}

/// Returns the share of a rule's limit that this instance counts while the rule's store fails. `default` is
/// the share of the default store.
fn share_of(rule: &Rule, config: &Config, default: Share) -> Share {
    let RuleStore::Named(name) = rule.store() else {
        return default;
    };
    let store = config.stores.iter().find(|it| it.name == *name);
    store.map_or(default, |store| Share {
        numerator: store.redis.fallback_factor,
        denominator: store.redis.replicas.saturating_mul(10_000),
    })
}

impl RuleFallback {
    fn of_rule(rule: &Rule, share: Share) -> RuleFallback {
        let policy = rule.on_store_failure();
        let limit = match policy {
            Some(FailurePolicy::LocalFallback) => {
                Some(rule.limit().scaled(share.numerator, share.denominator))
            }
            Some(FailurePolicy::Cached) => Some(rule.limit().clone()),
            // The config was validated: this rate makes an exact token bucket.
            Some(FailurePolicy::EmergencyLimit) => rule
                .emergency_limit()
                .and_then(|rate| Limit::token_bucket(rate.amount(), rate).ok()),
            _ => None,
        };
        let of =
            (policy == Some(FailurePolicy::LocalFallback)).then(|| (rule.limit().clone(), share));
        RuleFallback { policy, limit, of }
    }

    /// Returns the limit that `charge` is counted against in this process. `None` for a back-off: its
    /// blocks are only in the store.
    fn counted(&self, charge: &Charge<'_>) -> Option<&Limit> {
        self.limit.as_ref().filter(|_| !charge.limit.is_companion())
    }

    /// Returns whether the rule denies without counting.
    fn denies_uncounted(&self) -> bool {
        matches!(self.policy, None | Some(FailurePolicy::FailClosed))
    }

    /// Returns the charge that is counted in this process instead of `charge`.
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
            // The last known state was counted against the limit of the charge.
            (Some(FailurePolicy::Cached), _) => charge.limit,
            _ => limit,
        };
        let limit = match (self.policy, limit, charge.limit) {
            // Two limits of different clients are equal, so the limit of the rule has another client.
            (Some(FailurePolicy::LocalFallback), Limit::Fair(bucket), Limit::Fair(asks)) => {
                request_limits.keep(Limit::Fair(bucket.for_client(asks.client())))
            }
            _ => limit,
        };
        // Only some charges are counted in this process, so an index of `Instead` would not match.
        let enforcement = match charge.enforcement {
            Enforcement::Enforce => Enforcement::Enforce,
            Enforcement::Shadow | Enforcement::Instead(_) => Enforcement::Shadow,
        };
        Charge {
            key,
            limit,
            enforcement,
            // Counts of this process are not in the ledger.
            recorded: None,
            ..*charge
        }
    }
}
