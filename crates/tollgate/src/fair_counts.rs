//! What the clients of fair rules got, by lane and weight, and about how many clients there are.
//!
//! Lanes and weights come from the config, so the number of counters is bounded. No client has a counter of
//! its own: clients are bits of a small bitmap, from which their number is estimated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::{RuleSet, fair_classes};
use tollgate_core::fair::{Client, MEMORY};
use tollgate_core::{Charge, Limit, Time};

use crate::decision::Decision;
use crate::striped::Striped;

/// What the clients of one lane and weight got from a fair rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairClass {
    /// The name of the lane; empty if the rule has no lanes.
    pub lane: Arc<str>,
    /// The weight of the clients.
    pub weight: u32,
    /// Checks that the rule allowed.
    pub allowed: u64,
    /// Checks that the rule denied.
    pub denied: u64,
    /// Units that were taken.
    pub units: u64,
    /// About how many clients asked within the last 30 to 60 seconds.
    pub clients: u64,
}

/// What a fair rule gave to its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairRule {
    /// The rule, as an index of the rules in the file.
    pub rule: usize,
    /// The lanes in the order of the config: their names, and their guaranteed parts in hundredths of a
    /// percent. One lane without a name if the rule has none.
    pub lanes: Vec<(Arc<str>, u32)>,
    /// The figures of each lane and weight.
    pub classes: Vec<FairClass>,
    /// Whether the rule has a bucket for each subject of its `per`. Then the figures add up all buckets.
    pub has_buckets: bool,
}

impl FairRule {
    /// Says which share of its bucket a client gets while all clients of its lane compete: by its weight, and by the
    /// clients that asked this instance lately. If the rule has several buckets, says the least share: the clients of
    /// other buckets do not compete.
    #[must_use]
    pub fn share_in_words(&self, client: Client) -> Option<String> {
        let (lane, part) = self.lanes.get(usize::from(client.lane))?;
        let own = u64::from(client.weight);
        let of_lane = self.classes.iter().filter(|it| it.lane == *lane);
        let active: u64 = of_lane.map(|it| it.clients * u64::from(it.weight)).sum();
        let active = active.max(own);
        // Hundredths of a percent.
        let share = u64::from(*part) * own / active;
        let of = match &**lane {
            "" => String::new(),
            lane => format!(" in lane {lane}"),
        };
        let (whole, rest) = (share / 100, share % 100);
        let (about, all) = match self.has_buckets {
            true => ("at least about", " in all buckets of the rule together"),
            false => ("about", ""),
        };
        Some(format!(
            "guaranteed share now {about} {whole}.{rest:02}%: weight {own} of about {active}{of}{all}"
        ))
    }
}

/// The fair rules of a config.
pub(crate) struct FairCounts(Box<[Counted]>);

struct Counted {
    rule: u32,
    id: Arc<str>,
    lanes: Vec<(Arc<str>, u32)>,
    /// All weights of the config, in order.
    weights: Vec<u32>,
    has_buckets: bool,
    counts: Arc<Counts>,
}

/// The counts of each weight of the first lane, then of the second.
type Counts = Box<[ClassCounts]>;

#[derive(Default)]
struct ClassCounts {
    /// At [`ALLOWED`], [`DENIED`] and [`UNITS`].
    sums: Striped<3>,
    clients: Clients,
}

const ALLOWED: usize = 0;
const DENIED: usize = 1;
const UNITS: usize = 2;

impl FairCounts {
    /// Finds the fair rules of `rules`. A rule with the same lanes and weights as in `before` keeps its counts.
    pub(crate) fn new(rules: &RuleSet, before: Option<&FairCounts>) -> FairCounts {
        let counted = (0u32..).zip(rules.rules()).filter_map(|(rule, it)| {
            let (lanes, weights) = fair_classes(it)?;
            let id = it.shared_id();
            let same = |known: &&Counted| {
                known.id == id && known.lanes == lanes && known.weights == weights
            };
            let known = before.and_then(|it| it.0.iter().find(same));
            let counts = known.map_or_else(
                || {
                    let classes = 0..lanes.len() * weights.len();
                    Arc::new(classes.map(|_| ClassCounts::default()).collect())
                },
                |it| Arc::clone(&it.counts),
            );
            Some(Counted {
                rule,
                id,
                lanes,
                weights,
                has_buckets: !it.per().is_empty(),
                counts,
            })
        });
        FairCounts(counted.collect())
    }

    /// Counts a decision about `charges`, which belong to `rules`.
    #[inline]
    pub(crate) fn count(&self, charges: &[Charge<'_>], rules: &[u32], decision: &Decision) {
        if self.0.is_empty() {
            return;
        }
        for (charge, rule) in charges.iter().zip(rules) {
            if let Limit::Fair(bucket) = charge.limit
                && let Some(counted) = self.0.iter().find(|it| it.rule == *rule)
            {
                counted.count(bucket.client(), charge.cost, decision);
            }
        }
    }

    pub(crate) fn figures(&self, now: Time) -> Vec<FairRule> {
        self.0.iter().map(|it| it.figures(now)).collect()
    }
}

impl Counted {
    fn count(&self, client: Client, cost: u64, decision: &Decision) {
        let outcomes = decision.outcomes();
        let own = outcomes.iter().find(|it| it.rule == self.rule);
        let Some(own) = own.filter(|it| it.is_counted()) else {
            return;
        };
        let weight = self.weights.binary_search(&client.weight);
        let Ok(weight) = weight else { return };
        let place = usize::from(client.lane) * self.weights.len() + weight;
        let Some(class) = self.counts.get(place) else {
            return;
        };
        class.clients.note(client.id, decision.decided_at());
        let verdict = match own.is_allowed() {
            true => ALLOWED,
            false => DENIED,
        };
        class.sums.add(verdict, 1);
        class
            .sums
            .add(UNITS, cost.saturating_mul(decision.granted()));
    }

    fn figures(&self, now: Time) -> FairRule {
        let places = self
            .lanes
            .iter()
            .flat_map(|(lane, _)| self.weights.iter().map(move |weight| (lane, *weight)));
        let classes = places.zip(self.counts.iter()).map(|((lane, weight), it)| {
            let [allowed, denied, units] = it.sums.sums();
            FairClass {
                lane: Arc::clone(lane),
                weight,
                allowed,
                denied,
                units,
                clients: it.clients.estimate(now),
            }
        });
        FairRule {
            rule: self.rule as usize,
            lanes: self.lanes.clone(),
            classes: classes.collect(),
            has_buckets: self.has_buckets,
        }
    }
}

/// How many words a bitmap of clients has.
const WORDS: usize = 64;

/// The clients that asked lately, as bits of two bitmaps: one for the current [`MEMORY`] span, one for the span
/// before it. A bit stands for all clients whose ids hash to it, so the number of clients is an estimate: within
/// 5% up to 10,000 clients.
struct Clients {
    /// The span of the latest request.
    span: AtomicU64,
    bits: [[AtomicU64; WORDS]; 2],
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            span: AtomicU64::new(0),
            bits: [const { [const { AtomicU64::new(0) }; WORDS] }; 2],
        }
    }
}

impl Clients {
    /// Notes that a client asked at `now`.
    fn note(&self, id: u64, now: Time) {
        let span = now.as_micros() / MEMORY.as_micros();
        self.turn(span);
        let place = usize::try_from(id % (WORDS as u64 * 64)).unwrap_or_default();
        let word = &self.bits[usize::from(span % 2 == 1)][place / 64];
        let bit = 1 << (place % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the bitmaps of spans that are over. A request of another thread may be lost meanwhile.
    fn turn(&self, span: u64) {
        let before = self.span.load(Ordering::Relaxed);
        if span <= before {
            return;
        }
        let turned = self
            .span
            .compare_exchange(before, span, Ordering::Relaxed, Ordering::Relaxed);
        if turned.is_ok() {
            let skipped = usize::from(span > before + 1);
            for bits in [span % 2, (span + 1) % 2].iter().take(1 + skipped) {
                for word in &self.bits[usize::from(*bits == 1)] {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// Estimates the number of clients by linear counting: from the share of bits that are not set.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn estimate(&self, now: Time) -> u64 {
        self.turn(now.as_micros() / MEMORY.as_micros());
        let [one, other] = &self.bits;
        let words = one.iter().zip(other);
        let set = words.map(|(one, other)| {
            let both = one.load(Ordering::Relaxed) | other.load(Ordering::Relaxed);
            u64::from(both.count_ones())
        });
        let (set, all): (u64, f64) = (set.sum(), (WORDS * 64) as f64);
        let free = (all - set as f64).max(1.0);
        (all * (all / free).ln()).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::Span;

    use super::*;

    #[test]
    fn number_of_clients_is_estimated_and_forgotten() {
        let clients = Clients::default();
        let start = Time::from_micros(1_700_000_000_000_000);
        assert_eq!(clients.estimate(start), 0);
        let mut id = 1_u64;
        for expected in [1, 10, 1_000, 10_000] {
            let clients = Clients::default();
            for _ in 0..expected {
                id = id
                    .wrapping_mul(0x5851_F42D_4C95_7F2D)
                    .wrapping_add(0x1405_7B7E_F767_814F);
                clients.note(id >> 20, start);
                clients.note(id >> 20, start);
            }
            let seen = clients.estimate(start + Span::from_secs(29));
            assert!(
                seen.abs_diff(expected) * 20 <= expected,
                "{seen} {expected}"
            );
            let later = start + Span::from_secs(61);
            assert_eq!(clients.estimate(later), 0);
        }
    }
}
