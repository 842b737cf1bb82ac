//! Concurrency rules whose limit follows the latency that clients report (`adaptive`).
//!
//! Each instance has a limit of its own for each subject, moved by the reports that this instance gets. Instances
//! that share a store compare the slots that all of them hold with their own limit. So all instances together hold
//! at most the largest limit of an instance, which is at most the limit of the rule.
//!
//! Bound: [`MAX_SUBJECTS`] subjects have a limit of their own. A subject that was not reported for [`FORGET_AFTER`] makes
//! room for another. Further subjects have the limit of the rule.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_config::{Attributes, RequestLimits, Resolution, Rule, RuleSet};
use tollgate_core::adaptive::{Adaptive, Ended, Numbers};
use tollgate_core::{Key, Limit, Span, Time};
use tollgate_store::{Applied, Store};

use crate::active_config::ActiveConfig;
use crate::limiter::Limiter;
use crate::shedding::NEARLY;
use crate::snapshot::Snapshot;

/// The most subjects whose limit follows reports, of all rules together.
pub(crate) const MAX_SUBJECTS: usize = 10_000;
/// After this time without a report, a subject may lose its limit to another subject.
const FORGET_AFTER: Span = Span::from_secs(600);

/// The limits of this instance.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveLimits(Mutex<Subjects>);

#[derive(Debug, Default)]
struct Subjects {
    moved: HashMap<Key, Moved>,
    /// When all places are taken, none of them becomes free before this.
    full_until: Time,
}

#[derive(Debug)]
struct Moved {
    /// The id of the rule.
    rule: Arc<str>,
    adaptive: Adaptive,
    /// How many slots were held when a client took the last one.
    held: u64,
    reported_at: Time,
}

/// What a client knows of a request that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyReport {
    /// How long the service took.
    pub latency: Span,
    /// Whether the service failed to answer, or said that it is overloaded.
    pub failed: bool,
    /// How many requests were in flight. Without it, the slots count that this instance saw held.
    pub in_flight: Option<u64>,
}

/// The limit of a rule after a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptedLimit {
    /// The id of the rule.
    pub rule: String,
    /// The limit of this instance now.
    pub limit: u64,
    /// The limit of the rule, which is the largest.
    pub ceiling: u64,
    /// Whether nearly all of the limit is in use, so that a cheaper answer would help.
    pub degraded: bool,
}

/// Returns whether the limit of a rule follows reports.
pub(crate) fn has_adaptive(rules: &RuleSet) -> bool {
    rules.rules().iter().any(|rule| rule.adaptive().is_some())
}

impl AdaptiveLimits {
    /// Moves the limit of a subject. Returns the limit, and whether it is nearly used.
    fn report(
        &self,
        (key, rule): (Key, &Rule),
        numbers: Numbers,
        report: &LatencyReport,
        now: Time,
    ) -> Option<(u64, bool)> {
        let mut subjects = self.0.lock();
        if !subjects.has_place(key, now) {
            return None;
        }
        let moved = &mut subjects.moved;
        let known = moved.remove(&key);
        // Other numbers begin anew.
        let known = known.filter(|it| it.adaptive.numbers() == numbers);
        let mut known = match known {
            Some(known) => known,
            None => Moved {
                rule: rule.shared_id(),
                adaptive: Adaptive::new(numbers).ok()?,
                held: 0,
                reported_at: now,
            },
        };
        known.reported_at = now;
        let in_flight = report.in_flight.unwrap_or(known.held);
        known.adaptive.record(Ended {
            started: now - report.latency,
            answered: now,
            // More slots may be held from before the limit has shrunk.
            in_flight: in_flight.min(known.adaptive.limit()),
            failed: report.failed,
            abandoned: false,
        });
        let limit = known.adaptive.limit();
        moved.insert(key, known);
        Some((
            limit,
            in_flight.saturating_mul(100) > limit.saturating_mul(NEARLY),
        ))
    }

    /// Returns the lowest limit of a subject of each rule, if reports have moved one.
    pub(crate) fn lowest(&self) -> HashMap<Arc<str>, u64> {
        let mut lowest: HashMap<Arc<str>, u64> = HashMap::new();
        for moved in self.0.lock().moved.values() {
            let limit = moved.adaptive.limit();
            match lowest.get_mut(&moved.rule) {
                Some(known) => *known = limit.min(*known),
                None => {
                    lowest.insert(Arc::clone(&moved.rule), limit);
                }
            }
        }
        lowest
    }
}

impl Subjects {
    /// Returns whether a subject has a place, or there is one for it. Makes room if it can.
    fn has_place(&mut self, key: Key, now: Time) -> bool {
        if self.moved.len() < MAX_SUBJECTS || self.moved.contains_key(&key) {
            return true;
        }
        if now < self.full_until {
            return false;
        }
        self.moved
            .retain(|_, it| now.since(it.reported_at) < FORGET_AFTER);
        // A subject that is reported again stays for longer, so this is a lower bound.
        let oldest = self.moved.values().map(|it| it.reported_at).min();
        self.full_until = oldest.map_or(now, |at| at + FORGET_AFTER);
        self.moved.len() < MAX_SUBJECTS
    }
}

impl<S: Store> Limiter<S> {
    /// Returns the rules whose limit follows reports, with the lowest limit of a subject at this instance.
    #[must_use]
    pub fn adapted_limits(&self) -> Vec<(Arc<str>, u64)> {
        let active = self.loaded();
        if !active.has_adaptive() {
            return Vec::new();
        }
        let lowest = self.adaptive_limits.lowest();
        let rules = active.rules().rules().iter();
        let rules = rules.filter(|rule| rule.adaptive().is_some());
        let limit = |rule: &Rule| lowest.get(rule.id()).copied();
        rules
            .map(|rule| {
                (
                    rule.shared_id(),
                    limit(rule).unwrap_or(rule.limit().capacity()),
                )
            })
            .collect()
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Reports how long a service took for a request with these attributes. This moves the limits of the
    /// concurrency rules with `adaptive` that apply to the request, on this instance. Returns these limits.
    #[must_use]
    pub fn report(&self, attributes: &Attributes<'_>, report: &LatencyReport) -> Vec<AdaptedLimit> {
        if !self.active.has_adaptive() {
            return Vec::new();
        }
        let limits = RequestLimits::default();
        let rules = self.active.rules();
        let resolution = rules.resolve(attributes, &limits);
        let now = self.limiter.clock.now();
        let charges = resolution.charges.iter().zip(&resolution.rules);
        let adapted = charges.filter_map(|(charge, rule)| {
            let rule = &rules.rules()[*rule as usize];
            let (adaptation, Limit::Concurrency(slots)) = (rule.adaptive()?, charge.limit) else {
                return None;
            };
            let ceiling = slots.limit();
            let numbers = Numbers {
                min: adaptation.min().min(ceiling),
                max: ceiling,
                start: ceiling,
                slow: adaptation.slow(),
            };
            let moved = &self.limiter.adaptive_limits;
            let subject = (charge.key, rule);
            let told = moved.report(subject, numbers, report, now);
            let (limit, degraded) = told.unwrap_or((ceiling, false));
            Some(AdaptedLimit {
                rule: rule.id().to_owned(),
                limit,
                ceiling,
                degraded,
            })
        });
        adapted.collect()
    }

    /// Replaces the limits of rules with `adaptive` by those of this instance.
    #[inline]
    pub(crate) fn adapt<'r>(&self, resolution: &mut Resolution<'r>, limits: &'r RequestLimits) {
        if self.active.has_adaptive() {
            self.adapt_charges(resolution, limits);
        }
    }

    #[cold]
    fn adapt_charges<'r>(&self, resolution: &mut Resolution<'r>, limits: &'r RequestLimits) {
        let rules = self.active.rules().rules();
        let moved = &self.limiter.adaptive_limits.0.lock().moved;
        for (charge, rule) in resolution.charges.iter_mut().zip(&resolution.rules) {
            let Limit::Concurrency(slots) = charge.limit else {
                continue;
            };
            if rules[*rule as usize].adaptive().is_some()
                && let Some(moved) = moved.get(&charge.key)
                && let limit = moved.adaptive.limit()
                && limit < slots.limit()
                && let Ok(limit) = Limit::concurrency(limit, slots.lease())
            {
                charge.limit = limits.keep(limit);
            }
        }
    }

    /// Notes how many slots are held of the rules with `adaptive`.
    #[inline]
    pub(crate) fn note_held(&self, resolution: &Resolution<'_>, applied: &Applied) {
        if self.active.has_adaptive() {
            let moved = &mut self.limiter.adaptive_limits.0.lock().moved;
            for (charge, outcome) in resolution.charges.iter().zip(&applied.outcomes) {
                if outcome.is_decided()
                    && let Some(moved) = moved.get_mut(&charge.key)
                {
                    moved.held = outcome.limit.saturating_sub(outcome.remaining);
                }
            }
        }
    }
}
