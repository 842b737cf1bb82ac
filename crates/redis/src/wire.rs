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
pub(crate) struct Batch<'r> {
    pub(crate) families: Families,
    /// A charge of each key: first of those whose states are read whole, then of the others.
    whole: Vec<&'r Item>,
    long: Vec<&'r Item>,
    limits: Vec<&'r [u8]>,
    requests: Vec<u8>,
}

/// Plain checks that follow each other: what they have in common, and where they are.
struct Run {
    /// The place of the first of their keys, which follow each other too.
    first: usize,
    length: u16,
    limit: usize,
    flags: u8,
    cost: u64,
}

/// Where the key of a charge is.
#[derive(Clone, Copy)]
struct Placed {
    place: usize,
    /// Whether no earlier charge has it.
    is_new: bool,
}

impl<'r> Batch<'r> {
    /// Puts requests together.
    pub(crate) fn new(requests: impl Iterator<Item = &'r Request> + Clone) -> Batch<'r> {
        let mut batch = Batch::default();
        let items = requests.clone().flat_map(|request| &request.charges);
        let placed: Vec<Placed> = items.map(|item| batch.place(item)).collect();
        let mut placed = placed.into_iter();
        let mut run: Option<Run> = None;
        for request in requests {
            let places: SmallVec<[Placed; 4]> =
                placed.by_ref().take(request.charges.len()).collect();
            match batch.plain(request, &places) {
                Some(next) => match &mut run {
                    Some(run) if run.takes(&next) => run.length += 1,
                    _ => {
                        batch.put_run(run.take());
                        run = Some(next);
                    }
                },
                None => {
                    batch.put_run(run.take());
                    batch.put_request(request, &places);
                }
            }
        }
        batch.put_run(run);
        batch
    }

    /// The place of the key of `item` among those that are read as it is.
    fn place(&mut self, item: &'r Item) -> Placed {
        self.families.add(item.family);
        let list = if item.family.is_whole() {
            &mut self.whole
        } else {
            &mut self.long
        };
        let same = |it: &&Item| (it.key, it.family) == (item.key, item.family);
        if let Some(place) = list.iter().position(same) {
            return Placed {
                place,
                is_new: false,
            };
        }
        list.push(item);
        Placed {
            place: list.len() - 1,
            is_new: true,
        }
    }

    /// The place of the key among all.
    fn key(&self, item: &Item, placed: Placed) -> usize {
        if item.family.is_whole() {
            placed.place
        } else {
            self.whole.len() + placed.place
        }
    }

    fn limit(&mut self, item: &'r Item) -> usize {
        let known = self.limits.iter().rposition(|it| **it == *item.limit);
        known.unwrap_or_else(|| {
            self.limits.push(&item.limit);
            self.limits.len() - 1
        })
    }

    /// A request as a run of one, if it is a plain check of a key that no other has asked for yet.
    fn plain(&mut self, request: &'r Request, places: &[Placed]) -> Option<Run> {
        let ([item], [placed]) = (&*request.charges, places) else {
            return None;
        };
        let plain = request.operation == Operation::Apply && !request.up_to && placed.is_new;
        plain.then(|| Run {
            first: self.key(item, *placed),
            length: 1,
            limit: self.limit(item),
            flags: item.flags,
            cost: item.cost.saturating_mul(request.units).min(MAX),
        })
    }

    fn put_run(&mut self, run: Option<Run>) {
        let Some(run) = run else {
            return;
        };
        self.requests.extend([0, 0]);
        self.requests.extend(run.length.to_le_bytes());
        self.requests.extend(place_number(run.first));
        self.requests.extend(place_number(run.limit));
        self.requests.push(run.flags);
        put(&mut self.requests, run.cost);
    }

    fn put_request(&mut self, request: &'r Request, places: &[Placed]) {
        let count = u16::try_from(request.charges.len()).unwrap_or(u16::MAX);
        self.requests.extend(count.to_le_bytes());
        self.requests.push(u8::from(request.up_to));
        put(&mut self.requests, request.units);
        put(&mut self.requests, request.charged_at.as_micros());
        for (item, placed) in request.charges.iter().zip(places) {
            let (key, limit) = (self.key(item, *placed), self.limit(item));
            self.requests.extend(place_number(key));
            self.requests.extend(place_number(limit));
            self.requests.push(item.flags);
            put(&mut self.requests, item.cost);
            put(&mut self.requests, item.total);
        }
    }

    /// The names of the keys, in the order of the script's numbers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'r [u8]> + '_ {
        self.whole.iter().chain(&self.long).map(|item| &*item.name)
    }

    /// How many keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.whole.len() + self.long.len()
    }

    /// How many of them are read whole.
    pub(crate) fn whole(&self) -> usize {
        self.whole.len()
    }

    /// The limits as the script reads them.
    pub(crate) fn limits(&self) -> Vec<u8> {
        self.limits.concat()
    }

    /// The requests as the script reads them.
    pub(crate) fn requests(&self) -> &[u8] {
        &self.requests
    }
}

impl Run {
    /// Whether `next`, a run of one, goes on where this one ends.
    fn takes(&self, next: &Run) -> bool {
        next.first == self.first + usize::from(self.length)
            && (next.limit, next.flags, next.cost) == (self.limit, self.flags, self.cost)
            && self.length < u16::MAX
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

/// What stands in the place of what is left when there is more to say.
const IN_DETAIL: i64 = -1;
const FOREIGN: i64 = -2;

impl<I: Iterator<Item = i64>> Reply<I> {
    /// A reply of these numbers. None if there are none.
    pub(crate) fn new(numbers: I) -> Option<Reply<I>> {
        let now = Time::default();
        let mut reply = Reply { numbers, now };
        reply.now = reply.time()?;
        Some(reply)
    }

    fn number(&mut self) -> Option<u64> {
        u64::try_from(self.numbers.next()?).ok()
    }

    fn time(&mut self) -> Option<Time> {
        self.number().map(Time::from_micros)
    }

    /// What is said to `request`: a decision, or the place of the key that holds something that is
    /// not ours. None if the reply is not what a script of ours replies.
    pub(crate) fn next(&mut self, request: &Request) -> Option<Result<Applied, usize>> {
        let first = self.numbers.next()?;
        if first == FOREIGN {
            let place = self.number()?.checked_sub(1)?;
            return Some(Err(usize::try_from(place).ok()?));
        }
        let mut applied = Applied {
            now: self.now,
            allowed: true,
            granted: request.units,
            outcomes: SmallVec::new(),
            guarantee: Guarantee::Atomic,
        };
        if first != IN_DETAIL {
            // A plain check, allowed at once.
            let [item] = &*request.charges else {
                return None;
            };
            applied.outcomes.push(Outcome {
                admission: Admission::Allowed { delay: Span::ZERO },
                limit: item.capacity,
                remaining: u64::try_from(first).ok()?,
                reset_at: self.time()?,
            });
            return Some(Ok(applied));
        }
        applied.allowed = self.number()? == 1;
        let granted = self.number()?;
        applied.granted = match (applied.allowed, request.operation, request.up_to) {
            (false, ..) | (_, Operation::Refund | Operation::Reset, _) => 0,
            (true, _, true) => granted,
            (true, _, false) => request.units,
        };
        if request.operation == Operation::Reset {
            return Some(Ok(applied));
        }
        for item in &request.charges {
            let verdict = self.number()?;
            let admission = match verdict {
                0 => Admission::Allowed {
                    delay: Span::from_micros(self.number()?),
                },
                1 => Admission::Denied(Denial::Until(self.time()?)),
                2 => Admission::Denied(Denial::QueueFull(self.time()?)),
                3 => {
                    self.number()?;
                    Admission::Denied(Denial::Never)
                }
                _ => return None,
            };
            applied.outcomes.push(Outcome {
                admission,
                limit: item.capacity,
                remaining: self.number()?,
                reset_at: self.time()?,
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
