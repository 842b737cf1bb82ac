//! Requests in the form in which they wait in a queue: all values are owned. `call_plan` lays requests out
//! for the script, and `reply` reads the script's answers. `frame.lua` describes both layouts.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;
use smallvec::SmallVec;
use tollgate_core::{
    Admission, CarryOver, Charge, Enforcement, Key, Limit, OnDenied, Outcome, Span, Tag, Time,
};
use tollgate_store::{Applied, Ask};

use crate::key_name::{KeyName, KeyNames};
use crate::script::{Families, Family, Script};

/// The largest exact integer of the script. No limit is that large.
pub(crate) const MAX: u64 = (1 << 53) - 1;

/// An operation of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Apply = 0,
    Peek = 1,
    Refund = 2,
    Reset = 3,
    Restore = 4,
    Adjust = 5,
    Balance = 6,
    Hold = 7,
    Settle = 8,
    Extend = 9,
    Report = 10,
}

/// A request in one cluster slot.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) families: Families,
    pub(crate) ask: Ask,
    /// Whether another cluster slot has denied the request. If so, only charges that count denied requests
    /// are charged.
    pub(crate) denied: bool,
    /// For refund: when the units were charged.
    pub(crate) charged_at: Time,
    /// The time of the request, if the caller brings one; otherwise the epoch.
    pub(crate) at: Time,
    pub(crate) charges: SmallVec<[Item; 1]>,
    /// Further arguments of a call about a hold.
    pub(crate) hold_arguments: Option<Arc<HoldArguments>>,
}

/// The keys and arguments of a call about a hold, except for those of the plan, and the raw reply.
#[derive(Debug, Default)]
pub(crate) struct HoldArguments {
    /// The script to run, if it is a script that takes no plan.
    pub(crate) script: Option<&'static Script>,
    /// The keys after those of the plan.
    pub(crate) keys: Vec<KeyName>,
    /// The arguments after the plan.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) reply: Mutex<Value>,
}

/// A charge as the script gets it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) tag: Tag,
    pub(crate) family: Family,
    pub(crate) name: KeyName,
    pub(crate) limit: Limit,
    pub(crate) flags: u8,
    /// The index of the charge that this candidate may replace.
    pub(crate) instead: Option<usize>,
    /// The index of the charge whose denials this back-off counts.
    pub(crate) watches: Option<usize>,
    pub(crate) cost: u64,
    /// The cost, plus the costs of earlier charges with the same key.
    pub(crate) total: u64,
    /// For restore and adjust: its numbers, as `frame.lua` describes.
    pub(crate) numbers: [i64; 3],
}

const ENFORCES: u8 = 1;
const CHARGED_WHEN_DENIED: u8 = 2;
/// A back-off counts strikes, and a fair bucket notes which clients it denies.
const STRIKES: u8 = 16;
const NEEDS_STATE: u8 = 32;
const ANONYMOUS: u8 = 64;

impl Item {
    /// Whether new subjects of the rule may share a state. Slots and back-offs are not shared, and neither are quotas
    /// that a ledger has to restore.
    pub(crate) fn may_share(&self) -> bool {
        let is_shared = !matches!(self.family, Family::Concurrency | Family::Backoff);
        is_shared && self.flags & NEEDS_STATE == 0
    }

    /// Returns the id of the mark of the client, if the limit is a fair bucket.
    pub(crate) fn mark(&self) -> Option<u64> {
        match &self.limit {
            Limit::Fair(bucket) => Some(bucket.mark_id()),
            _ => None,
        }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.flags & ANONYMOUS != 0
    }
}

impl Request {
    /// Makes the request for `charges`. Unlimited charges are left out: see [`crate::reply::fill`].
    pub(crate) fn new(
        naming: &KeyNames,
        operation: Operation,
        charges: &[Charge<'_>],
        ask: Ask,
    ) -> Request {
        // Unlimited charges are left out, so the indexes of the other charges change.
        let index_of = |other: u8| {
            let bounded = |charge: &&Charge<'_>| Family::of(charge.limit).is_some();
            let other = usize::from(other);
            charges.get(other).filter(bounded)?;
            Some(charges[..other].iter().filter(bounded).count())
        };
        let items = charges.iter().enumerate().filter_map(|(index, charge)| {
            let family = Family::of(charge.limit)?;
            let same = |earlier: &&Charge<'_>| {
                earlier.key == charge.key && Family::of(earlier.limit) == Some(family)
            };
            let earlier = charges[..index].iter().filter(same);
            let total = earlier.fold(charge.cost, |sum, it| sum.saturating_add(it.cost));
            let (manner, instead) = match charge.enforcement {
                Enforcement::Enforce => (ENFORCES, None),
                Enforcement::Shadow => (0, None),
                Enforcement::Instead(index) => (0, index_of(index)),
            };
            let (counts, watches) = match charge.on_denied {
                OnDenied::Nothing => (0, None),
                OnDenied::Note => (STRIKES, None),
                OnDenied::Charge => (CHARGED_WHEN_DENIED, None),
                OnDenied::Strike(index) => (STRIKES, index_of(index)),
            };
            let carry_over = match charge.carry_over {
                CarryOver::Keep => 0,
                CarryOver::Proportional => 4,
                CarryOver::Reset => 8,
            };
            let needs_state = if charge.needs_state() { NEEDS_STATE } else { 0 };
            let anonymous = if charge.anonymous { ANONYMOUS } else { 0 };
            Some(Item {
                key: charge.key,
                tag: charge.tag,
                family,
                name: naming.name(charge, family),
                limit: charge.limit.clone(),
                flags: manner | counts | carry_over | needs_state | anonymous,
                instead,
                watches,
                cost: charge.cost.min(MAX),
                total: total.min(MAX),
                numbers: [0; 3],
            })
        });
        let (charges, first): (SmallVec<[Item; 1]>, _) = (items.collect(), charges.first());
        Request {
            operation,
            families: charges.iter().map(|item| item.family).collect(),
            ask: exact(ask),
            denied: false,
            charged_at: Time::default(),
            at: first.map_or_else(Time::default, |charge| charge.at),
            charges,
            hold_arguments: None,
        }
    }

    /// Whether this request may be sent to a server that is out of memory: only requests that make no key of
    /// their own, because they change existing keys and shared states.
    pub(crate) fn fits_full_server(&self) -> bool {
        matches!(
            self.operation,
            Operation::Apply
                | Operation::Report
                | Operation::Refund
                | Operation::Adjust
                | Operation::Settle
                | Operation::Extend
        ) && self
            .hold_arguments
            .as_ref()
            .is_none_or(|it| it.script.is_none())
    }

    /// Returns how many keys the charges need.
    pub(crate) fn keys(&self) -> usize {
        let marks = self.charges.iter().filter(|it| it.mark().is_some());
        self.charges.len() + marks.count()
    }

    /// Whether the operation decides for a subject without a state: with a new state, or with a shared state.
    pub(crate) fn makes_states(&self) -> bool {
        matches!(
            self.operation,
            Operation::Apply | Operation::Peek | Operation::Hold | Operation::Report
        )
    }

    /// Returns the numbers of all charges as the script reads them.
    pub(crate) fn numbers(&self) -> Vec<u8> {
        let numbers = self.charges.iter().flat_map(|item| item.numbers);
        // Larger values are not exact in the script, and no real number is that large.
        let exact = numbers.map(|it| it.clamp(-MAX.cast_signed(), MAX.cast_signed()));
        exact.flat_map(i64::to_le_bytes).collect()
    }

    pub(crate) fn script(&self) -> &'static Script {
        match &self.hold_arguments {
            None if self.operation == Operation::Report => Script::of_reports(self.families),
            None => Script::of(self.families),
            Some(arguments) => arguments
                .script
                .unwrap_or_else(|| Script::of_holds(self.families, self.operation)),
        }
    }

    /// Returns the same charges for a call about a hold.
    pub(crate) fn for_hold(&self, operation: Operation, arguments: Arc<HoldArguments>) -> Request {
        Request {
            operation,
            hold_arguments: Some(arguments),
            ..self.clone()
        }
    }

    /// Returns the same charges with another operation and units.
    pub(crate) fn asking(&self, operation: Operation, ask: Ask) -> Request {
        Request {
            operation,
            ask: exact(ask),
            denied: false,
            charged_at: Time::default(),
            ..self.clone()
        }
    }

    /// Returns the request for `units` that another cluster slot has denied. Only charges that count denied
    /// requests are charged.
    pub(crate) fn denied_elsewhere(&self, units: u64) -> Request {
        Request {
            denied: true,
            ..self.asking(Operation::Apply, Ask::Exactly(units))
        }
    }

    /// Returns the refund of `units` that were charged at `charged_at`.
    pub(crate) fn refund(&self, units: u64, charged_at: Time) -> Request {
        Request {
            charged_at,
            ..self.asking(Operation::Refund, Ask::Exactly(units))
        }
    }

    /// Returns the request with only the charges at these sorted indexes. References to charges that are left
    /// out are removed.
    pub(crate) fn only(&self, indexes: &[usize]) -> Request {
        let charges = indexes.iter().map(|index| {
            let item = &self.charges[*index];
            let there = |other: Option<usize>| indexes.binary_search(&other?).ok();
            Item {
                instead: there(item.instead),
                watches: there(item.watches),
                ..item.clone()
            }
        });
        let charges: SmallVec<[Item; 1]> = charges.collect();
        Request {
            families: charges.iter().map(|item| item.family).collect(),
            charges,
            hold_arguments: None,
            ..*self
        }
    }

    /// Returns the indexes of the charges that are charged for denied requests too. If `wanted` is false,
    /// returns the indexes of all other charges. Charges of limits without an amount are left out.
    pub(crate) fn charged_when_denied(&self, wanted: bool) -> Vec<usize> {
        let chosen = self.charges.iter().enumerate().filter(|(_, item)| {
            item.limit.has_amount() && (item.flags & CHARGED_WHEN_DENIED != 0) == wanted
        });
        chosen.map(|(index, _)| index).collect()
    }

    /// Returns whether an enforced charge denies. Charges for which `counts` returns false are ignored.
    pub(crate) fn denies(
        &self,
        outcomes: &[Outcome],
        counts: impl Fn(usize, &Item) -> bool,
    ) -> bool {
        let mut both = self.charges.iter().zip(outcomes).enumerate();
        both.any(|(index, (item, it))| {
            item.flags & ENFORCES != 0 && !it.is_allowed() && counts(index, item)
        })
    }

    /// Returns the indexes of candidates that were charged although the request is denied. Each of them would
    /// have allowed the request in place of the charge that denies.
    pub(crate) fn charged_instead(&self, outcomes: &[Outcome]) -> Vec<usize> {
        let charged = self.charges.iter().enumerate().filter(|(_, charged)| {
            let instead = charged.instead;
            let others = |index, item: &Item| Some(index) != instead && item.watches != instead;
            charged.flags & CHARGED_WHEN_DENIED == 0
                && instead.is_some()
                && !self.denies(outcomes, others)
        });
        charged.map(|(index, _)| index).collect()
    }

    /// Returns an answer in place of a server that does not answer: no units remain, and no charge denies.
    pub(crate) fn unknown(&self, now: Time) -> Applied {
        let outcomes = self.charges.iter().map(|item| Outcome {
            admission: Admission::Allowed { delay: Span::ZERO },
            limit: item.limit.capacity(),
            remaining: 0,
            reset_at: now,
        });
        Applied {
            now,
            allowed: true,
            outcomes: outcomes.collect(),
            ..Applied::default()
        }
    }

    /// Returns how many units fit into the smallest enforced limit. The fewer units fit, the more likely is a
    /// denial.
    pub(crate) fn fewest_that_fit(&self) -> u64 {
        let bounds = |item: &&Item| item.flags & ENFORCES != 0 && item.limit.has_amount();
        let enforcing = self.charges.iter().filter(bounds);
        let fits = enforcing.map(|item| item.limit.capacity() / item.cost.max(1));
        fits.min().unwrap_or(u64::MAX)
    }
}

/// Returns a number of units that is exact in the script.
fn exact(ask: Ask) -> Ask {
    match ask {
        Ask::Exactly(units) => Ask::Exactly(units.min(MAX)),
        Ask::UpTo(units) => Ask::UpTo(units.min(MAX)),
    }
}
