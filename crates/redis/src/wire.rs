//! Requests, taken apart and owned. How they are laid out for the script is in `plan.rs`, and how its
//! replies are read in `reply.rs`; both layouts are described in `frame.lua`.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;
use smallvec::SmallVec;
use tollgate_core::{
    Admission, CarryOver, Charge, Enforcement, Key, Limit, OnDenied, Outcome, Span, Tag, Time,
};
use tollgate_store::{Applied, Ask};

use crate::name::{Name, Naming};
use crate::script::{Families, Family, Script};

/// The largest number that the script can tell from its neighbours. No limit is that large.
pub(crate) const MAX: u64 = (1 << 53) - 1;

/// What is asked of the script.
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
}

/// A request's charges in one slot, taken apart and owned.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) families: Families,
    pub(crate) up_to: bool,
    /// Whether it has been refused in another slot: what counts refused requests is to count it.
    pub(crate) refused: bool,
    pub(crate) units: u64,
    pub(crate) charged_at: Time,
    pub(crate) charges: SmallVec<[Item; 1]>,
    /// What is asked about a hold beside that.
    pub(crate) question: Option<Arc<Question>>,
}

/// What a call about holds has beside its plan, and the reply as it came.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// The script, if it is one that reads no plan.
    pub(crate) script: Option<&'static Script>,
    /// The keys behind those of the plan.
    pub(crate) keys: Vec<Name>,
    /// The arguments behind the plan.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) reply: Mutex<Value>,
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    tag: Tag,
    pub(crate) family: Family,
    pub(crate) name: Name,
    pub(crate) limit: Limit,
    pub(crate) flags: u8,
    /// The place of the charge in whose place it is judged.
    pub(crate) instead: Option<usize>,
    /// The place of the charge that it watches.
    pub(crate) watches: Option<usize>,
    pub(crate) cost: u64,
    /// With the costs of those before it that have the same key.
    pub(crate) total: u64,
    /// To restore or to adjust: its numbers, as `frame.lua` says.
    pub(crate) numbers: [i64; 3],
}

const ENFORCES: u8 = 1;
const CHARGED_WHEN_REFUSED: u8 = 2;
const STRIKES: u8 = 16;
const NEEDS_STATE: u8 = 32;

/// The flags for what becomes of a state under other numbers.
fn carried(how: CarryOver) -> u8 {
    match how {
        CarryOver::Keep => 0,
        CarryOver::Proportional => 4,
        CarryOver::Reset => 8,
    }
}

impl Operation {
    /// Whether it is about a hold.
    pub(crate) fn is_of_holds(self) -> bool {
        matches!(
            self,
            Operation::Hold | Operation::Settle | Operation::Extend
        )
    }
}

impl Request {
    /// The request that `charges` make. Those without a bound are left out: see [`crate::reply::fill`].
    pub(crate) fn new(
        naming: &Naming,
        operation: Operation,
        charges: &[Charge<'_>],
        ask: Ask,
        charged_at: Time,
    ) -> Request {
        // Places among those that the script sees.
        let place_of = |other: u8| {
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
                Enforcement::Instead(place) => (0, place_of(place)),
            };
            let (counts, watches) = match charge.on_denied {
                OnDenied::Nothing => (0, None),
                OnDenied::Charge => (CHARGED_WHEN_REFUSED, None),
                OnDenied::Strike(place) => (STRIKES, place_of(place)),
            };
            let needs_state = if charge.needs_state() { NEEDS_STATE } else { 0 };
            Some(Item {
                key: charge.key,
                tag: charge.tag,
                family,
                name: naming.name(charge, family),
                limit: charge.limit.clone(),
                flags: manner | counts | carried(charge.carry_over) | needs_state,
                instead,
                watches,
                cost: charge.cost.min(MAX),
                total: total.min(MAX),
                numbers: [0; 3],
            })
        });
        let (up_to, units) = parts(ask);
        Request {
            operation,
            families: Families::default(),
            up_to,
            refused: false,
            units,
            charged_at,
            charges: items.collect(),
            question: None,
        }
        .with_families()
    }

    fn with_families(mut self) -> Request {
        self.families = self.charges.iter().map(|item| item.family).collect();
        self
    }

    /// The same with numbers for each charge, in their order.
    pub(crate) fn with_numbers(mut self, numbers: impl IntoIterator<Item = [i64; 3]>) -> Request {
        for (item, numbers) in self.charges.iter_mut().zip(numbers) {
            item.numbers = numbers;
        }
        self
    }

    /// The numbers of all charges as the script reads them.
    pub(crate) fn numbers(&self) -> Vec<u8> {
        let numbers = self.charges.iter().flat_map(|item| item.numbers);
        // What a double cannot tell from its neighbours is more than any number here may be.
        let exact = numbers.map(|it| it.clamp(-MAX.cast_signed(), MAX.cast_signed()));
        exact.flat_map(i64::to_le_bytes).collect()
    }

    /// Whether the script has anything to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// How many charges it has.
    pub(crate) fn charges(&self) -> usize {
        self.charges.len()
    }

    /// The script it needs.
    pub(crate) fn script(&self) -> &'static Script {
        match &self.question {
            None => Script::of(self.families),
            Some(question) => question
                .script
                .unwrap_or_else(|| Script::of_holds(self.families, self.operation)),
        }
    }

    /// The same charges as a hold.
    pub(crate) fn asking_holds(&self, operation: Operation, question: Arc<Question>) -> Request {
        Request {
            operation,
            question: Some(question),
            ..self.clone()
        }
    }

    /// What is asked for.
    pub(crate) fn ask(&self) -> Ask {
        if self.up_to {
            Ask::UpTo(self.units)
        } else {
            Ask::Exactly(self.units)
        }
    }

    /// The same charges, asked for something else.
    pub(crate) fn asking(&self, operation: Operation, ask: Ask) -> Request {
        let (up_to, units) = parts(ask);
        Request {
            operation,
            up_to,
            refused: false,
            units,
            charged_at: Time::default(),
            ..self.clone()
        }
    }

    /// The same for `units` that have been refused in another slot: nothing is taken, and what counts
    /// refused requests counts this one.
    pub(crate) fn refused(&self, units: u64) -> Request {
        Request {
            refused: true,
            ..self.asking(Operation::Apply, Ask::Exactly(units))
        }
    }

    /// The refund of `units` that were taken at `charged_at`.
    pub(crate) fn refund(&self, units: u64, charged_at: Time) -> Request {
        let refund = self.asking(Operation::Refund, Ask::Exactly(units));
        Request {
            charged_at,
            ..refund
        }
    }

    /// The charges at these places, which are in order. Those that are judged with one at another place
    /// are judged without.
    pub(crate) fn at(&self, places: &[usize]) -> Request {
        let charges = places.iter().map(|place| {
            let item = &self.charges[*place];
            let there = |other: Option<usize>| places.binary_search(&other?).ok();
            Item {
                instead: there(item.instead),
                watches: there(item.watches),
                ..item.clone()
            }
        });
        Request {
            charges: charges.collect(),
            question: None,
            ..*self
        }
        .with_families()
    }

    /// The places of the charges that are charged when refused, too, or of the others. Those that nothing
    /// is taken from are neither.
    pub(crate) fn charged_when_refused(&self, wanted: bool) -> Vec<usize> {
        let is = |item: &Item| item.flags & CHARGED_WHEN_REFUSED != 0;
        let all = self.charges.iter().enumerate();
        let all = all.filter(|(_, item)| item.limit.has_amount());
        let chosen = all.filter(|(_, item)| is(item) == wanted);
        chosen.map(|(place, _)| place).collect()
    }

    /// Whether one that may refuse has told that it does.
    pub(crate) fn refuses(&self, outcomes: &[Outcome]) -> bool {
        self.refuses_but_for(None, outcomes)
    }

    /// The same of those that have no queue to wait in.
    pub(crate) fn refuses_beyond_slots(&self, outcomes: &[Outcome]) -> bool {
        let mut told = self.charges.iter().zip(outcomes);
        told.any(|(item, it)| {
            let may_refuse = item.flags & ENFORCES != 0 && item.family != Family::Concurrency;
            may_refuse && !it.is_allowed()
        })
    }

    fn refuses_but_for(&self, other: Option<usize>, outcomes: &[Outcome]) -> bool {
        let told = self.charges.iter().zip(outcomes).enumerate();
        let counts = |place: usize, item: &Item| {
            other.is_none() || (Some(place) != other && item.watches != other)
        };
        told.filter(|(place, (item, _))| counts(*place, item))
            .any(|(_, (item, it))| item.flags & ENFORCES != 0 && !it.is_allowed())
    }

    /// The places of those that were charged although these outcomes refuse, as they would have let
    /// the request pass in the place of another.
    pub(crate) fn stood_in(&self, outcomes: &[Outcome]) -> Vec<usize> {
        let all = self.charges.iter().enumerate();
        let stood_in = all.filter(|(_, item)| {
            item.flags & CHARGED_WHEN_REFUSED == 0
                && item.instead.is_some()
                && !self.refuses_but_for(item.instead, outcomes)
        });
        stood_in.map(|(place, _)| place).collect()
    }

    /// What is said where nothing could be learnt: that nothing is known to be left, and nobody
    /// refuses.
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

    /// How soon it is likely to be refused: the fewest units that ever fit into a charge that may
    /// refuse.
    pub(crate) fn fewest_that_fit(&self) -> u64 {
        let enforcing = self
            .charges
            .iter()
            .filter(|item| item.flags & ENFORCES != 0 && item.limit.has_amount());
        let fits = enforcing.map(|item| item.limit.capacity() / item.cost.max(1));
        fits.min().unwrap_or(u64::MAX)
    }

    /// The tag of each charge, in order.
    pub(crate) fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.charges.iter().map(|item| item.tag)
    }
}

fn parts(ask: Ask) -> (bool, u64) {
    (matches!(ask, Ask::UpTo(_)), ask.units().min(MAX))
}
