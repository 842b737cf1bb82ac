//! Near-limit events: a subject has almost used up a quota, and there is still time to act.
//!
//! An event happens when a request raises the usage of a quota from below a threshold to the threshold
//! or above it. The instance computes this from the store's answer to that request alone, and remembers
//! nothing. The store decides one request after the other. So exactly one request of the fleet crosses
//! a threshold, and its instance raises the event.
//!
//! Rates have no events: they change within seconds. Shadow rules have no events either. A decision of
//! a failure policy raises no event, because its usage is not counted.
//!
//! An amount that was carried over or granted is used first, and does not count towards the limit. So
//! at a threshold of 80 %, a fifth of the limit is left.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tollgate_config::{Attributes, RuleSet};
use tollgate_core::quota::Quota;
use tollgate_core::{Algorithm, Charge, Limit, Outcome, Period, Subject, Time};
use tollgate_store::Applied;

use crate::holds::random;
use crate::pace::{Pace, start};

/// The `tracing` target of the log lines, for filters of subscribers.
pub const EVENTS: &str = "tollgate::events";

/// The most events that are logged in a second.
const LINES_PER_SECOND: u32 = 100;

/// The most bytes of a tenant and of an action in an event.
const MAX_NAME: usize = 256;

/// The threshold of the whole limit, in percent.
const WHOLE: u8 = 100;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The usage reached a threshold below the limit.
    NearLimit,
    /// The usage reached the limit. Only grace is left, if the quota has grace.
    LimitReached,
    /// Nothing is left, grace included. Further requests are denied.
    Exhausted,
}

impl EventKind {
    /// Returns the kind's name in logs and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::NearLimit => "near_limit",
            EventKind::LimitReached => "limit_reached",
            EventKind::Exhausted => "exhausted",
        }
    }
}

/// The unique id of an event, shown as a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(u128);

impl EventId {
    fn new() -> EventId {
        // A UUID of version 4: random.
        let version = random() & !(0xf << 76) | 0x4 << 76;
        EventId(version & !(0x3 << 62) | 0x2 << 62)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
        f.write_str(&parts.join("-"))
    }
}

/// A subject has nearly or wholly used up a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The unique id.
    pub id: EventId,
    /// The time by the store's clock.
    pub at: Time,
    /// The kind.
    pub kind: EventKind,
    /// The name of the allowance: the rule, or the budget that it draws on.
    pub rule: Arc<str>,
    /// The tenant that the request named.
    pub tenant: Option<Box<str>>,
    /// The action that the request named.
    pub action: Option<Box<str>>,
    /// The hashed subject.
    pub subject: Subject,
    /// The threshold, in percent of the limit; `None` if the quota is exhausted.
    pub threshold: Option<u8>,
    /// The usage, with this request. It is above the limit if grace is in use.
    pub used: u64,
    /// The limit, without grace.
    pub limit: u64,
    /// The amount that may be used beyond the limit.
    pub grace: u64,
    /// The period of the quota.
    pub period: Period,
}

/// The number of events of a rule at a threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCount {
    /// The name of the allowance.
    pub rule: Arc<str>,
    /// The threshold in percent; `None` for exhausted quotas.
    pub threshold: Option<u8>,
    /// The number of events.
    pub events: u64,
}

type Listener = Box<dyn Fn(&Arc<Event>) + Send + Sync>;

/// Finds events in decisions, counts and logs them, and calls the listeners.
pub struct Events {
    /// The thresholds in percent, ascending.
    thresholds: Box<[u8]>,
    /// For each allowance, a count for each threshold, and one for exhaustion.
    counts: Mutex<HashMap<Arc<str>, Box<[u64]>>>,
    listeners: RwLock<Vec<Listener>>,
    pace: Pace,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("thresholds", &self.thresholds)
            .field("listeners", &self.listeners.read().len())
            .finish_non_exhaustive()
    }
}

impl Events {
    /// Makes events at `thresholds`, which are in percent of the limit and ascending. Without
    /// thresholds there are no events.
    pub(crate) fn new(thresholds: &[u8]) -> Events {
        Events {
            thresholds: thresholds.into(),
            counts: Mutex::default(),
            listeners: RwLock::default(),
            pace: Pace::new(LINES_PER_SECOND),
        }
    }

    /// Calls `listener` with every event from now on. The call delays the decision, so it must be quick.
    pub fn listen(&self, listener: impl Fn(&Arc<Event>) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Returns the number of events of each quota among `rules`, by threshold.
    #[must_use]
    pub fn counts(&self, rules: &RuleSet) -> Vec<EventCount> {
        let mut all: Vec<EventCount> = Vec::new();
        if self.thresholds.is_empty() {
            return all;
        }
        let counts = self.counts.lock();
        let thresholds = self.thresholds.iter().copied().map(Some);
        for rule in quotas(rules) {
            if all.iter().any(|it| it.rule == *rule) {
                continue;
            }
            let counted = counts.get(rule);
            let thresholds = thresholds.clone().chain([None]).enumerate();
            all.extend(thresholds.map(|(place, threshold)| EventCount {
                rule: Arc::clone(rule),
                threshold,
                events: counted.map_or(0, |it| it[place]),
            }));
        }
        all
    }

    /// Forgets the counts of quotas that are not among `rules`.
    pub(crate) fn keep(&self, rules: &RuleSet) {
        let mut counts = self.counts.lock();
        counts.retain(|name, _| quotas(rules).any(|rule| rule == name));
    }

    /// Raises an event for each threshold that a request crossed. The store has admitted the request.
    /// `attributes` maps the index of a charge to the attributes of its request.
    #[inline]
    pub(crate) fn notice<'q, 'a: 'q>(
        &self,
        charges: &[Charge<'_>],
        applied: &Applied,
        attributes: impl Fn(usize) -> &'q Attributes<'a>,
    ) {
        let Some(lowest) = self.thresholds.first() else {
            return;
        };
        for (place, (charge, outcome)) in charges.iter().zip(&applied.outcomes).enumerate() {
            let Limit::Quota(quota) = charge.limit else {
                continue;
            };
            if !outcome.is_decided() {
                continue;
            }
            let step = Step::of(quota, charge.cost, applied.granted, outcome.remaining);
            if step.is_at(*lowest) && charge.enforces() {
                self.raise_crossed(step, charge, quota, outcome, applied.now, || {
                    attributes(place)
                });
            }
        }
    }

    /// Raises an event for each threshold that lies between the usage before and after.
    fn raise_crossed<'q, 'a: 'q>(
        &self,
        step: Step,
        charge: &Charge<'_>,
        quota: &Quota,
        outcome: &Outcome,
        now: Time,
        attributes: impl Fn() -> &'q Attributes<'a>,
    ) {
        let raise = |place, kind, threshold| {
            // The event names the period that the count belongs to, and `reset_at` is the end of that
            // period. `now` may lie in an earlier period, if the store's clock was set back.
            let last = outcome.reset_at.as_micros().saturating_sub(1);
            let name = |attribute: &str| {
                let text = attributes().get(attribute).unwrap_or_default();
                (!text.is_empty()).then(|| start(text, MAX_NAME).into())
            };
            let event = Event {
                id: EventId::new(),
                at: now,
                kind,
                rule: charge.rule.into(),
                tenant: name("tenant"),
                action: name("action"),
                subject: charge.subject(),
                threshold,
                used: u64::try_from(step.after).unwrap_or(0),
                limit: quota.limit(),
                grace: quota.grace(),
                period: quota.period_at(Time::from_micros(last)),
            };
            self.raise(place, event);
        };
        for (place, threshold) in self.thresholds.iter().enumerate() {
            if step.crosses(*threshold) {
                let kind = match *threshold < WHOLE {
                    true => EventKind::NearLimit,
                    false => EventKind::LimitReached,
                };
                raise(place, kind, Some(*threshold));
            }
        }
        if outcome.remaining == 0 && step.after > step.before {
            raise(self.thresholds.len(), EventKind::Exhausted, None);
        }
    }

    #[cold]
    fn raise(&self, place: usize, event: Event) {
        let mut counts = self.counts.lock();
        let new = || vec![0; self.thresholds.len() + 1].into();
        counts.entry(Arc::clone(&event.rule)).or_insert_with(new)[place] += 1;
        drop(counts);
        if self.pace.admits(event.at) {
            log(&event, self.pace.take_suppressed());
        }
        let event = Arc::new(event);
        for listener in self.listeners.read().iter() {
            listener(&event);
        }
    }
}

/// Returns the names of the quotas among `rules`. A budget appears once for each rule that draws on it.
fn quotas(rules: &RuleSet) -> impl Iterator<Item = &Arc<str>> {
    let quotas = rules.rules().iter();
    let quotas = quotas.filter(|rule| rule.algorithm() == Algorithm::Quota);
    quotas.map(tollgate_config::Rule::allowance)
}

/// Returns whether a rule is a quota, and so may have events.
pub(crate) fn has_quotas(rules: &RuleSet) -> bool {
    quotas(rules).next().is_some()
}

/// The usage of a quota before and after a request. It is negative while more than the limit is left.
#[derive(Clone, Copy)]
struct Step {
    limit: i64,
    before: i64,
    after: i64,
}

impl Step {
    /// Computes the step of a request that took `units` at `cost` each and left `remaining`. Amounts
    /// are below 2^53.
    #[inline]
    fn of(quota: &Quota, cost: u64, units: u64, remaining: u64) -> Step {
        let most = (quota.limit() + quota.grace()).cast_signed();
        let after = most.saturating_sub_unsigned(remaining);
        Step {
            limit: quota.limit().cast_signed(),
            before: after.saturating_sub_unsigned(cost.saturating_mul(units)),
            after,
        }
    }

    /// Returns whether the usage after the request is at least this percentage of the limit.
    #[inline]
    fn is_at(&self, percent: u8) -> bool {
        reaches(self.after, percent, self.limit)
    }

    /// Returns whether the request reaches this threshold, and the usage before was below it.
    fn crosses(&self, percent: u8) -> bool {
        self.is_at(percent) && !reaches(self.before, percent, self.limit)
    }
}

#[inline]
fn reaches(used: i64, percent: u8, limit: i64) -> bool {
    used.saturating_mul(100) >= limit.saturating_mul(i64::from(percent))
}

/// Logs an event. `suppressed` is the number of events before it that were not logged.
fn log(event: &Event, suppressed: Option<u64>) {
    let subject = event.subject.to_hex();
    macro_rules! write {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                target: EVENTS,
                id = %event.id,
                kind = event.kind.name(),
                rule = &*event.rule,
                tenant = event.tenant.as_deref(),
                action = event.action.as_deref(),
                subject = start(subject.as_str(), 8),
                threshold = event.threshold,
                used = event.used,
                limit = event.limit,
                grace = (event.grace > 0).then_some(event.grace),
                period_start = event.period.start.as_micros() / 1_000_000,
                period_end = event.period.end.as_micros() / 1_000_000,
                suppressed,
                $message
            )
        };
    }
    match event.kind {
        EventKind::NearLimit => write!(info, "a quota is nearly used up"),
        EventKind::LimitReached => write!(warn, "the limit of a quota is reached"),
        EventKind::Exhausted => write!(warn, "a quota is used up"),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Anchor, Calendar, Unit, Zone};

    use super::*;

    fn quota(limit: u64, grace: u64) -> Quota {
        let month = Calendar::new(1, Unit::Month, Anchor::First, Zone::utc()).unwrap();
        tollgate_core::quota::new(limit, grace, 0, month).unwrap()
    }

    #[test]
    fn threshold_is_crossed_by_the_request_that_reaches_it() {
        let ten = quota(10, 0);
        let crosses = |cost, remaining| Step::of(&ten, cost, 1, remaining).crosses(80);
        assert!(!crosses(1, 3), "7 are used");
        assert!(crosses(1, 2), "8 are used");
        assert!(!crosses(1, 1), "it was crossed before");
        assert!(crosses(9, 1), "from 0 to 9");
        assert!(!crosses(0, 2), "a request for nothing crosses nothing");
    }

    #[test]
    fn threshold_between_two_units_rounds_up() {
        let seven = quota(7, 0);
        // 80 % of 7 is 5.6.
        assert!(!Step::of(&seven, 1, 1, 2).crosses(80));
        assert!(Step::of(&seven, 1, 1, 1).crosses(80));
    }

    #[test]
    fn largest_numbers_are_exact() {
        let most = tollgate_core::MAX_AMOUNT / 2;
        let large = quota(most, most);
        assert!(Step::of(&large, 1, 1, most).crosses(100));
        assert!(!Step::of(&large, 1, 1, most + 1).is_at(100));
        assert!(!Step::of(&large, 1, 1, u64::MAX).is_at(1));
        assert!(Step::of(&large, u64::MAX, u64::MAX, 0).crosses(1));
    }

    #[test]
    fn id_is_a_uuid() {
        let id = EventId::new().to_string();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
        assert_ne!(id, EventId::new().to_string());
    }
}
