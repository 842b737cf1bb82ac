//! Requests as the script reads them, and its replies. The layout is described in `frame.lua`.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::leaky_bucket::Leaky;
use tollgate_core::meter::Meter;
use tollgate_core::{
    Admission, Charge, Denial, Key, Limit, Limiting, Outcome, Span, Tag, Tick, Time,
};
use tollgate_store::{Applied, Ask, Guarantee};

use crate::name::{Name, Naming};
use crate::script::{Families, Family, Script};

/// The largest number that the script can tell from its neighbours.
const MAX: u64 = (1 << 53) - 1;

/// What is asked of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Apply = b'0',
    Peek = b'1',
    Refund = b'2',
    Reset = b'3',
}

/// A request's charges in one slot, taken apart and owned.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    up_to: bool,
    units: u64,
    charged_at: Time,
    charges: SmallVec<[Item; 2]>,
}

#[derive(Clone, Debug)]
struct Item {
    key: Key,
    tag: Tag,
    family: Family,
    name: Name,
    /// The limit, as the script reads it.
    limit: SmallVec<[u8; 32]>,
    capacity: u64,
    flags: u8,
    cost: u64,
    total: u64,
}

const ENFORCES: u8 = 1;
const CHARGED_WHEN_REFUSED: u8 = 2;

impl Request {
    /// The request that `charges` make. Those without a bound are left out: see [`fill`].
    pub(crate) fn new(
        naming: &Naming,
        operation: Operation,
        charges: &[Charge<'_>],
        ask: Ask,
        charged_at: Time,
    ) -> Request {
        let items = charges.iter().enumerate().filter_map(|(index, charge)| {
            let family = Family::of(charge.limit)?;
            let same = |earlier: &&Charge<'_>| {
                earlier.key == charge.key && Family::of(earlier.limit) == Some(family)
            };
            let earlier = charges[..index].iter().filter(same);
            let total = earlier.fold(charge.cost, |sum, it| sum.saturating_add(it.cost));
            let enforces = if charge.enforces() { ENFORCES } else { 0 };
            let counts = if charge.charge_denied {
                CHARGED_WHEN_REFUSED
            } else {
                0
            };
            Some(Item {
                key: charge.key,
                tag: charge.tag,
                family,
                name: naming.name(charge, family),
                limit: limit_record(charge.limit, family),
                capacity: charge.limit.capacity(),
                flags: enforces | counts,
                cost: charge.cost.min(MAX),
                total: total.min(MAX),
            })
        });
        Request {
            operation,
            up_to: matches!(ask, Ask::UpTo(_)),
            units: ask.units().min(MAX),
            charged_at,
            charges: items.collect(),
        }
    }

    /// Whether the script has anything to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// How many charges it has.
    pub(crate) fn charges(&self) -> usize {
        self.charges.len()
    }

    /// The script it needs if it is called alone.
    pub(crate) fn script(&self) -> Arc<Script> {
        let mut families = Families::default();
        for item in &self.charges {
            families.add(item.family);
        }
        Script::of(families)
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
        Request {
            operation,
            up_to: matches!(ask, Ask::UpTo(_)),
            units: ask.units().min(MAX),
            charged_at: Time::default(),
            charges: self.charges.clone(),
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

    /// The charges at these places, which are in order.
    pub(crate) fn at(&self, places: &[usize]) -> Request {
        let charges = places.iter().map(|place| self.charges[*place].clone());
        Request {
            charges: charges.collect(),
            ..*self
        }
    }

    /// The places of the charges that are charged when refused, too, or of the others.
    pub(crate) fn charged_when_refused(&self, wanted: bool) -> Vec<usize> {
        let is = |item: &Item| item.flags & CHARGED_WHEN_REFUSED != 0;
        let all = self.charges.iter().enumerate();
        let chosen = all.filter(|(_, item)| is(item) == wanted);
        chosen.map(|(place, _)| place).collect()
    }

    /// How soon it is likely to be refused: the fewest units that ever fit into a charge that may
    /// refuse.
    pub(crate) fn fewest_that_fit(&self) -> u64 {
        let enforcing = self
            .charges
            .iter()
            .filter(|item| item.flags & ENFORCES != 0);
        let fits = enforcing.map(|item| item.capacity / item.cost.max(1));
        fits.min().unwrap_or(u64::MAX)
    }

    /// The slot and the tag of each charge, in order.
    pub(crate) fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        self.charges.iter().map(|item| item.tag)
    }
}

/// Requests on their way to the script, all of the same operation and slot.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) families: Families,
    /// The keys: first those whose states are read whole.
    whole: Vec<(Key, Family, Name)>,
    long: Vec<(Key, Family, Name)>,
    pub(crate) limits: Vec<u8>,
    pub(crate) requests: Vec<u8>,
}

impl Batch {
    /// Puts requests together.
    pub(crate) fn new<'r>(requests: impl Iterator<Item = &'r Request> + Clone) -> Batch {
        let mut batch = Batch::default();
        for item in requests.clone().flat_map(|request| &request.charges) {
            batch.families.add(item.family);
            batch.place(item);
        }
        let mut records: Vec<&[u8]> = Vec::new();
        for request in requests {
            // A request has fewer charges than a config has rules, and those are bounded.
            #[allow(clippy::cast_possible_truncation)]
            let count = request.charges.len() as u8;
            batch.requests.extend([count, u8::from(request.up_to)]);
            put(&mut batch.requests, request.units);
            put(&mut batch.requests, request.charged_at.as_micros());
            for item in &request.charges {
                let limit = match records.iter().rposition(|it| **it == *item.limit) {
                    Some(known) => known,
                    None => {
                        records.push(&item.limit);
                        batch.limits.extend_from_slice(&item.limit);
                        records.len() - 1
                    }
                };
                let key = batch.position(item);
                batch.requests.extend(place_number(key));
                batch.requests.extend(place_number(limit));
                batch.requests.push(item.flags);
                put(&mut batch.requests, item.cost);
                put(&mut batch.requests, item.total);
            }
        }
        batch
    }

    fn place(&mut self, item: &Item) {
        let list = if item.family.is_whole() {
            &mut self.whole
        } else {
            &mut self.long
        };
        if !list
            .iter()
            .any(|(key, family, _)| (*key, *family) == (item.key, item.family))
        {
            list.push((item.key, item.family, item.name.clone()));
        }
    }

    fn position(&self, item: &Item) -> usize {
        let same = |it: &(Key, Family, Name)| (it.0, it.1) == (item.key, item.family);
        if item.family.is_whole() {
            self.whole.iter().position(same).unwrap_or_default()
        } else {
            self.whole.len() + self.long.iter().position(same).unwrap_or_default()
        }
    }

    /// The names of the keys, in the order of the script's numbers.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let names: Vec<&[u8]> = self
            .whole
            .iter()
            .chain(&self.long)
            .map(|it| &*it.2)
            .collect();
        names.into_iter()
    }

    /// How many of them are read whole.
    pub(crate) fn whole(&self) -> usize {
        self.whole.len()
    }
}

/// A place in a list of the script, which counts from 1.
fn place_number(index: usize) -> [u8; 2] {
    // Batches are bounded far below that.
    u16::try_from(index + 1).unwrap_or(u16::MAX).to_le_bytes()
}

fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes()[..7]);
}

fn limit_record(limit: &Limit, family: Family) -> SmallVec<[u8; 32]> {
    let mut record: SmallVec<[u8; 32]> = SmallVec::new();
    record.push(family as u8);
    match limit {
        Limit::TokenBucket(meter) | Limit::Gcra(meter) => meter_record(&mut record, meter),
        Limit::LeakyBucket(bucket) => {
            meter_record(&mut record, bucket.meter());
            let (shapes, wait) = match bucket.leaky() {
                Leaky::Police => (0, MAX),
                Leaky::Shape { max_wait } => (1, max_wait.map_or(MAX, Span::as_micros)),
            };
            record.push(shapes);
            record.extend_from_slice(&wait.to_le_bytes()[..7]);
        }
        Limit::FixedWindow(window) => {
            let (limit, window) = (window.capacity(), window.window());
            record.push(b'f');
            record.extend_from_slice(&window.as_micros().to_le_bytes()[..7]);
            record.extend_from_slice(&limit.to_le_bytes()[..7]);
        }
        Limit::SlidingLog(log) => {
            record.extend_from_slice(&log.window().as_micros().to_le_bytes()[..7]);
            record.extend_from_slice(&log.capacity().to_le_bytes()[..7]);
        }
        Limit::SlidingCounter(counter) => {
            let (limit, buckets, length) = counter.parts();
            // At most 60.
            record.push(u8::try_from(buckets).unwrap_or(u8::MAX));
            record.extend_from_slice(&length.to_le_bytes()[..7]);
            record.extend_from_slice(&limit.to_le_bytes()[..7]);
        }
        Limit::TwoWindow(window) => {
            let (limit, ticks, tick) = window.parts();
            record.push(if tick == Tick::Micro { b'w' } else { b'x' });
            record.extend_from_slice(&ticks.to_le_bytes()[..7]);
            record.extend_from_slice(&limit.to_le_bytes()[..7]);
        }
        Limit::Unlimited(_) => {}
    }
    record
}

fn meter_record(record: &mut SmallVec<[u8; 32]>, meter: &Meter) {
    let (capacity, per_tick, token, tick) = meter.parts();
    record.push(if tick == Tick::Micro { b'a' } else { b'b' });
    record.extend_from_slice(&capacity.to_le_bytes()[..7]);
    record.extend_from_slice(&token.to_le_bytes()[..7]);
    record.extend_from_slice(&per_tick.to_le_bytes());
}

/// Reads a reply, request by request.
pub(crate) struct Reply<I> {
    numbers: I,
    now: Time,
}

impl<I: Iterator<Item = u64>> Reply<I> {
    /// A reply of these numbers. None if there are none.
    pub(crate) fn new(mut numbers: I) -> Option<Reply<I>> {
        let now = Time::from_micros(numbers.next()?);
        Some(Reply { numbers, now })
    }

    /// What is said to `request`: a decision, or the place of the key that holds something that is
    /// not ours. None if the reply is not what a script of ours replies.
    pub(crate) fn next(&mut self, request: &Request) -> Option<Result<Applied, usize>> {
        let now = self.now;
        let status = self.numbers.next()?;
        if status == 2 {
            let place = self.numbers.next()?.checked_sub(1)?;
            return Some(Err(usize::try_from(place).ok()?));
        }
        let mut applied = Applied {
            now,
            allowed: true,
            granted: request.units,
            outcomes: SmallVec::new(),
            guarantee: Guarantee::Atomic,
        };
        if status == 1 {
            applied.allowed = self.numbers.next()? == 1;
            applied.granted = self.numbers.next()?;
        }
        if request.operation == Operation::Reset {
            return Some(Ok(applied));
        }
        for item in &request.charges {
            let admission = match status {
                0 => Admission::Allowed { delay: Span::ZERO },
                _ => {
                    let (verdict, when) = (self.numbers.next()?, self.numbers.next()?);
                    match verdict {
                        0 => Admission::Allowed {
                            delay: Span::from_micros(when),
                        },
                        1 => Admission::Denied(Denial::Until(Time::from_micros(when))),
                        2 => Admission::Denied(Denial::QueueFull(Time::from_micros(when))),
                        3 => Admission::Denied(Denial::Never),
                        _ => return None,
                    }
                }
            };
            applied.outcomes.push(Outcome {
                admission,
                limit: item.capacity,
                remaining: self.numbers.next()?,
                reset_at: Time::from_micros(self.numbers.next()?),
            });
        }
        Some(Ok(applied))
    }
}

/// Puts the outcomes of charges without a bound, which the script never sees, where they belong.
pub(crate) fn fill(applied: &mut Applied, charges: &[Charge<'_>]) {
    for (index, charge) in charges.iter().enumerate() {
        if Family::of(charge.limit).is_none() {
            let outcome = Outcome {
                admission: Admission::Allowed { delay: Span::ZERO },
                limit: Outcome::UNLIMITED,
                remaining: Outcome::UNLIMITED,
                reset_at: applied.now,
            };
            applied.outcomes.insert(index, outcome);
        }
    }
}
