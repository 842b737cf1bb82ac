//! The plan of a call: its requests in the binary layout that the script reads. `frame.lua` describes the
//! layout, and what a run is. The plan also lists the keys of the call.

use std::collections::HashMap;

use tollgate_core::fair::Fair;
use tollgate_core::leaky_bucket::Leaky;
use tollgate_core::meter::Meter;
use tollgate_core::quota::Quota;
use tollgate_core::{Key, Limit, Span, Tick, Time};
use tollgate_store::Ask;

use crate::key_name::{KeyName, KeyNames};
use crate::request::{Item, MAX, Operation, Request};
use crate::room::Ceilings;
use crate::script::Family;

/// The length of the header before the limits.
const HEADER: usize = 37;

/// Requests of the same operation, cluster slot and families, in the order of the plan.
#[derive(Debug, Default)]
pub(crate) struct CallPlan {
    /// The runs, each with the indexes of its requests, in the order of the plan and of the replies.
    pub(crate) runs: Vec<Vec<usize>>,
    /// The indexes of the other requests, in the same order.
    pub(crate) others: Vec<usize>,
    pub(crate) keys: Vec<PlanKey>,
    /// How many keys, from the front, belong to runs.
    in_runs: usize,
    /// How many keys, from the front, are states that are read whole.
    whole: usize,
    limits: Vec<u8>,
    requests: Vec<u8>,
}

/// A key of a call: the index of a request that uses it, and the index of the charge in that request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanKey {
    pub(crate) request: usize,
    pub(crate) charge: usize,
    pub(crate) role: Role,
}

/// What a key of a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The state of the charge.
    State,
    /// The state that new subjects of the charge's rule share.
    Shared,
    /// The mark of the client with this id, beside the state of a fair bucket.
    Mark(u64),
}

impl PlanKey {
    fn own((request, charge): (usize, usize)) -> PlanKey {
        PlanKey {
            request,
            charge,
            role: Role::State,
        }
    }
}

/// Which charges of a call name the shared state of their rule.
pub(crate) struct Sharing<'s> {
    pub(crate) naming: &'s KeyNames,
    /// The cluster slot of all keys.
    pub(crate) slot: u16,
    pub(crate) names_shared: &'s dyn Fn(&Item) -> bool,
}

/// A run: requests that differ only in their keys. The first request stands for all.
struct Run<'r> {
    first: &'r Request,
    /// Each request, and the index of its first charge among all charges of the call.
    members: Vec<(usize, usize)>,
}

/// A key: the first charge that uses it, and its position among the keys of the call.
struct UsedKey {
    first_use: (usize, usize),
    is_whole: bool,
    /// The last run that uses the key, and the column.
    column: Option<(usize, usize)>,
    position: Option<usize>,
}

impl CallPlan {
    /// Makes the plan of a call. `now` returns about the current time of the server.
    pub(crate) fn new(
        requests: &[&Request],
        sharing: &Sharing<'_>,
        now: &dyn Fn() -> Time,
    ) -> CallPlan {
        let (mut used_keys, of_charges) = used_keys(requests);
        let names_shared = |request: &Request, item: &Item| {
            request.makes_states() && item.may_share() && (sharing.names_shared)(item)
        };
        let mut plan = CallPlan::default();
        let mut known = KnownLimits::default();
        let mut runs: Vec<Run<'_>> = Vec::new();
        let mut others = Vec::new();
        let mut next = 0;
        for (number, request) in requests.iter().enumerate() {
            let first = next;
            next += request.charges.len();
            let keys = &of_charges[first..next];
            let shares = |item: &Item| names_shared(request, item);
            if !is_plain(request) || request.charges.iter().any(shares) {
                others.push((number, first));
                continue;
            }
            let same = |run: &Run<'_>| are_alike(run.first, request);
            let run = runs.iter().rposition(same).unwrap_or(runs.len());
            // A key is in one column of a run only: a column is decided before the next one.
            let fits = |(column, key): (usize, &usize)| {
                let used = used_keys[*key].column;
                used.is_none_or(|used| used.0 != run || used.1 == column)
            };
            if !keys.iter().enumerate().all(fits) {
                others.push((number, first));
                continue;
            }
            for (column, key) in keys.iter().enumerate() {
                used_keys[*key].column = Some((run, column));
            }
            if run == runs.len() {
                runs.push(Run {
                    first: request,
                    members: Vec::new(),
                });
            }
            runs[run].members.push((number, first));
        }

        for run in &runs {
            put(&mut plan.requests, run.members.len() as u64, 2);
            put(&mut plan.requests, run.first.charges.len() as u64, 2);
            for (column, item) in run.first.charges.iter().enumerate() {
                let limit = plan.limit(&mut known, item, (0, 0), now);
                put(&mut plan.requests, limit, 2);
                plan.requests.push(item.flags);
                put(&mut plan.requests, item.cost * run.first.ask.units(), 7);
                plan.put_column(run, column, &of_charges, &mut used_keys);
            }
            plan.runs.push(run.members.iter().map(|it| it.0).collect());
        }
        plan.in_runs = plan.keys.len();

        let others_charges = |(number, first): &(usize, usize)| {
            let charges = requests[*number].charges.len();
            *first..*first + charges
        };
        let places = |(number, first): &(usize, usize)| {
            let number = *number;
            let charges = others_charges(&(number, *first)).enumerate();
            charges.map(move |(index, charge)| (charge, (number, index)))
        };
        let mut marks: HashMap<(usize, u64), usize> = HashMap::new();
        let mut shared: HashMap<KeyName, usize> = HashMap::new();
        for is_whole in [true, false] {
            for charge in others.iter().flat_map(others_charges) {
                let used = &mut used_keys[of_charges[charge]];
                if used.is_whole == is_whole && used.position.is_none() {
                    used.position = Some(plan.keys.len());
                    plan.keys.push(PlanKey::own(used.first_use));
                }
            }
            for (number, _) in &others {
                for (charge, item) in requests[*number].charges.iter().enumerate() {
                    if item.family.is_whole() == is_whole && names_shared(requests[*number], item) {
                        let name = sharing.naming.shared(&item.name, sharing.slot);
                        let position = shared.entry(name).or_insert(plan.keys.len());
                        if *position == plan.keys.len() {
                            plan.keys.push(PlanKey {
                                request: *number,
                                charge,
                                role: Role::Shared,
                            });
                        }
                    }
                }
            }
            if is_whole {
                for (charge, (request, index)) in others.iter().flat_map(places) {
                    if let Some(id) = requests[request].charges[index].mark() {
                        marks.entry((of_charges[charge], id)).or_insert_with(|| {
                            plan.keys.push(PlanKey {
                                request,
                                charge: index,
                                role: Role::Mark(id),
                            });
                            plan.keys.len() - 1
                        });
                    }
                }
                plan.whole = plan.keys.len();
            }
        }
        for (number, first) in others {
            let request = requests[number];
            plan.others.push(number);
            put(&mut plan.requests, request.charges.len() as u64, 2);
            let up_to = u8::from(matches!(request.ask, Ask::UpTo(_)));
            plan.requests.push(up_to | u8::from(request.denied) << 1);
            put(&mut plan.requests, request.ask.units(), 7);
            for (charge, item) in request.charges.iter().enumerate() {
                let used = &used_keys[of_charges[first + charge]];
                let position = used.position.unwrap_or_default();
                let mark = item
                    .mark()
                    .and_then(|id| marks.get(&(of_charges[first + charge], id)));
                let keys = (position, mark.copied().unwrap_or_default());
                let limit = plan.limit(&mut known, item, keys, now);
                put(&mut plan.requests, position as u64 + 1, 2);
                let shared = names_shared(request, item)
                    .then(|| shared.get(&sharing.naming.shared(&item.name, sharing.slot)))
                    .flatten();
                put(&mut plan.requests, shared.map_or(0, |at| *at as u64 + 1), 2);
                put(&mut plan.requests, limit, 2);
                plan.requests.push(item.flags);
                for other in [item.instead, item.watches] {
                    let number = other.map_or(0, |index| index as u64 + 1);
                    put(&mut plan.requests, number, 2);
                }
                put(&mut plan.requests, item.cost, 7);
                put(&mut plan.requests, item.total, 7);
            }
        }
        plan
    }

    /// Appends the keys of a column: the position of the first if they are new and different, or 0 and the position of
    /// each.
    fn put_column(
        &mut self,
        run: &Run<'_>,
        column: usize,
        of_charges: &[usize],
        used_keys: &mut [UsedKey],
    ) {
        let first = self.keys.len();
        let mut positions = Vec::with_capacity(run.members.len());
        for (_, charge) in &run.members {
            let used = &mut used_keys[of_charges[charge + column]];
            let position = *used.position.get_or_insert(self.keys.len());
            if position == self.keys.len() {
                self.keys.push(PlanKey::own(used.first_use));
            }
            positions.push(position as u64 + 1);
        }
        if self.keys.len() - first == positions.len() {
            put(&mut self.requests, first as u64 + 1, 2);
        } else {
            put(&mut self.requests, 0, 2);
            for position in positions {
                put(&mut self.requests, position, 2);
            }
        }
    }

    /// Returns the offset of the limit of `item` in the plan, and adds the limit if it is new. `keys` are the
    /// indexes of the bucket and of the mark, for a fair bucket.
    fn limit<'r>(
        &mut self,
        known: &mut KnownLimits<'r>,
        item: &'r Item,
        keys: (usize, usize),
        now: &dyn Fn() -> Time,
    ) -> u64 {
        let next = |limits: &Vec<u8>| (HEADER + limits.len() + 1) as u64;
        let numbers = known.numbers.iter().rev();
        let numbers = numbers.clone().find(|(it, _)| **it == item.limit);
        let mut at = next(&self.limits);
        match numbers {
            Some((_, numbers)) => at = *numbers,
            None => {
                match &item.limit {
                    Limit::Fair(bucket) => put_fair(&mut self.limits, bucket),
                    other => put_limit(&mut self.limits, other, item.family, now),
                }
                known.numbers.push((&item.limit, at));
            }
        }
        let Limit::Fair(bucket) = &item.limit else {
            return at;
        };
        // The limit of a client refers to the numbers, which are the same for all clients.
        let (client, anonymous) = (bucket.client(), u8::from(item.is_anonymous()));
        let of_client = (at, keys, client.weight, anonymous);
        if let Some(known) = known.clients.get(&of_client) {
            return *known;
        }
        let numbers = at;
        let at = next(&self.limits);
        known.clients.insert(of_client, at);
        self.limits.push(item.family as u8);
        put(&mut self.limits, numbers, 2);
        put(&mut self.limits, keys.0 as u64 + 1, 2);
        put(&mut self.limits, keys.1 as u64 + 1, 2);
        put(&mut self.limits, client.weight.into(), 2);
        self.limits.push(client.lane | anonymous << 7);
        at
    }

    /// Returns the plan as the script reads it. With `now` 0, the script uses the server's time. `full` says that the
    /// server may be out of memory.
    pub(crate) fn to_bytes(
        &self,
        operation: Operation,
        now: Time,
        margin: Span,
        ceilings: Ceilings,
        full: bool,
    ) -> Vec<u8> {
        let size = HEADER + self.limits.len() + self.requests.len();
        let mut bytes = Vec::with_capacity(size);
        put(&mut bytes, now.as_micros(), 7);
        put(&mut bytes, margin.as_micros(), 7);
        bytes.push(operation as u8 | u8::from(full) << 4);
        // The record of a hold comes after all states. It is read together with them if all states are read
        // whole.
        let of_hold = matches!(
            operation,
            Operation::Hold | Operation::Settle | Operation::Extend
        );
        let with_record = usize::from(of_hold && self.whole == self.keys.len());
        put(&mut bytes, (self.whole + with_record) as u64, 2);
        put(&mut bytes, self.runs.len() as u64, 2);
        put(&mut bytes, self.in_runs as u64, 2);
        put(&mut bytes, (HEADER + self.limits.len() + 1) as u64, 2);
        put(&mut bytes, ceilings.keys, 7);
        put(&mut bytes, ceilings.anonymous, 7);
        bytes.extend_from_slice(&self.limits);
        bytes.extend_from_slice(&self.requests);
        bytes
    }
}

/// The limits of a plan, each with its offset.
#[derive(Default)]
struct KnownLimits<'r> {
    numbers: Vec<(&'r Limit, u64)>,
    /// Of each client of a fair bucket: the offset of the numbers, the indexes of bucket and mark, the weight,
    /// and whether the subject is anonymous.
    clients: HashMap<(u64, (usize, usize), u32, u8), u64>,
}

/// Returns all keys, and for each charge the index of its key.
fn used_keys(requests: &[&Request]) -> (Vec<UsedKey>, Vec<usize>) {
    let charges = requests.iter().map(|request| request.charges.len()).sum();
    let mut used_keys: Vec<UsedKey> = Vec::with_capacity(charges);
    let mut of_charges = Vec::with_capacity(charges);
    let mut known: HashMap<(Key, Family), usize, foldhash::fast::RandomState> = HashMap::default();
    known.reserve(charges);
    for (number, request) in requests.iter().enumerate() {
        for (charge, item) in request.charges.iter().enumerate() {
            let entry = known.entry((item.key, item.family));
            let index = *entry.or_insert(used_keys.len());
            if index == used_keys.len() {
                used_keys.push(UsedKey {
                    first_use: (number, charge),
                    is_whole: item.family.is_whole(),
                    column: None,
                    position: None,
                });
            }
            of_charges.push(index);
        }
    }
    (used_keys, of_charges)
}

/// Whether a request may be in a run.
fn is_plain(request: &Request) -> bool {
    let Ask::Exactly(units) = request.ask else {
        return false;
    };
    let is_plain = |item: &Item| {
        let has_runs = match &item.limit {
            Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::FixedWindow(_) => true,
            Limit::LeakyBucket(bucket) => bucket.leaky() == Leaky::Police,
            _ => false,
        };
        let cost = item.cost.checked_mul(units);
        has_runs
            && cost.is_some_and(|cost| (1..=MAX).contains(&cost))
            // No earlier charge of the request has the same key.
            && item.total == item.cost
            && item.instead.is_none()
            && item.watches.is_none()
    };
    request.operation == Operation::Apply && !request.denied && request.charges.iter().all(is_plain)
}

/// Whether two requests that may be in a run differ only in their keys.
fn are_alike(one: &Request, other: &Request) -> bool {
    let (units, others) = (one.ask.units(), other.ask.units());
    let alike = |(a, b): (&Item, &Item)| {
        a.cost * units == b.cost * others && a.flags == b.flags && a.limit == b.limit
    };
    one.charges.len() == other.charges.len() && one.charges.iter().zip(&other.charges).all(alike)
}

/// Appends a little-endian number of `width` bytes.
fn put(bytes: &mut Vec<u8>, number: u64, width: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..width]);
}

fn put_limit(bytes: &mut Vec<u8>, limit: &Limit, family: Family, now: &dyn Fn() -> Time) {
    bytes.push(family as u8);
    match limit {
        Limit::TokenBucket(meter) | Limit::Gcra(meter) => put_meter(bytes, meter),
        Limit::LeakyBucket(bucket) => {
            put_meter(bytes, bucket.meter());
            let (shapes, wait) = match bucket.leaky() {
                Leaky::Police => (0, MAX),
                Leaky::Shape { max_wait } => (1, max_wait.map_or(MAX, Span::as_micros)),
            };
            bytes.push(shapes);
            put(bytes, wait, 7);
        }
        Limit::FixedWindow(_) => {
            put_fixed_window(bytes, limit.window().as_micros(), limit.capacity());
        }
        Limit::SlidingLog(_) => {
            put(bytes, limit.window().as_micros(), 7);
            put(bytes, limit.capacity(), 7);
        }
        Limit::SlidingCounter(counter) => {
            let (limit, buckets, length) = counter.parts();
            // At most 60.
            put(bytes, buckets, 1);
            put(bytes, length, 7);
            put(bytes, limit, 7);
        }
        Limit::TwoWindow(window) => {
            let (limit, ticks, tick) = window.parts();
            bytes.push(if tick == Tick::Micro { b'w' } else { b'x' });
            put(bytes, ticks, 7);
            put(bytes, limit, 7);
        }
        Limit::Backoff(backoff) => {
            let it = backoff.schedule();
            bytes.push(b'o');
            put(bytes, it.after.into(), 4);
            // At most 100.
            put(bytes, it.factor.into(), 1);
            for span in [it.base, it.max, it.forget, it.penalty] {
                put(bytes, span.as_micros(), 7);
            }
        }
        Limit::Quota(quota) => put_quota(bytes, quota, now()),
        Limit::Concurrency(slots) => put(bytes, slots.limit(), 7),
        // `CallPlan::limit` puts the numbers and the client apart.
        Limit::Fair(_) | Limit::Unlimited(_) => {}
    }
}

/// Appends the numbers of a fair bucket, as `fair.lua` describes them.
fn put_fair(bytes: &mut Vec<u8>, bucket: &Fair) {
    put(bytes, fastrand::u32(..).into(), 4);
    let at = bytes.len();
    bytes.extend([0, b'p']);
    let ((capacity, per_tick, token, tick), parts) = (bucket.meter().parts(), bucket.parts());
    put(bytes, tick.micros(), 2);
    put(bytes, capacity, 7);
    put(bytes, token, 7);
    put(bytes, per_tick.into(), 4);
    put(bytes, parts.scale, 3);
    put(bytes, parts.epoch, 4);
    put(bytes, parts.earned, 7);
    // At most eight lanes.
    put(bytes, parts.shares.len() as u64, 1);
    for (share, lane) in parts.shares.iter().zip(bucket.lanes()) {
        put(bytes, share | u64::from(lane.strict) << 15, 2);
    }
    let size = bytes.len() - at - 1;
    // At most 52.
    bytes[at] = u8::try_from(size).unwrap_or(u8::MAX);
}

fn put_quota(bytes: &mut Vec<u8>, quota: &Quota, now: Time) {
    bytes.push(if quota.is_closed() { b'Q' } else { b'q' });
    for amount in quota.numbers() {
        put(bytes, amount, 7);
    }
    put(bytes, quota.calendar().fingerprint(), 7);
    for start in quota.calendar().around(now).starts {
        put(bytes, start.as_micros(), 7);
    }
    // Four nominal periods and a day are at least three real periods: a real period may be longer than the
    // nominal one.
    let three = quota.calendar().nominal().as_micros() * 4 + Span::DAY.as_micros();
    put(bytes, Time::from_micros(three).as_micros(), 7);
}

fn put_fixed_window(bytes: &mut Vec<u8>, window: u64, limit: u64) {
    put(bytes, window, 7);
    put(bytes, limit, 7);
    // A window ends before 2^54, because a window and the current time are below 2^53.
    let width_of_number = width((1 << 54) / window.max(1));
    let width_of_usage = width(limit);
    for width in [width_of_number, width_of_usage] {
        bytes.extend([b'<', b'I', b'0' + width]);
    }
    let at = bytes.len();
    bytes.extend([0, 0]);
    let (limit, zeros_of_limit) = without_zeros(limit, 7);
    let (window, zeros_of_window) = without_zeros(window, 15);
    bytes.push(128 + zeros_of_limit * 16 + zeros_of_window);
    put_in_groups(bytes, limit);
    put_in_groups(bytes, window);
    // At most 17: a number has up to 53 bits.
    let size = u8::try_from(bytes.len() - at - 2).unwrap_or(u8::MAX);
    let before_usage = size + width_of_number;
    bytes[at] = size;
    bytes[at + 1] = before_usage + width_of_usage;
    bytes.extend_from_slice(before_usage.to_string().as_bytes());
}

/// Returns how many bytes a number has: at least 1, and at most 7 for a number below 2^56.
fn width(number: u64) -> u8 {
    let bits = u64::BITS - number.leading_zeros();
    u8::try_from(bits.div_ceil(8)).map_or(1, |width| width.max(1))
}

fn put_meter(bytes: &mut Vec<u8>, meter: &Meter) {
    let (capacity, per_tick, token, tick) = meter.parts();
    let kind = match (tick, per_tick) {
        (Tick::Micro, 1) => 128,
        (Tick::Milli, 1) => 129,
        (Tick::Micro, _) => 130,
        (Tick::Milli, _) => 131,
    };
    bytes.push(kind);
    put(bytes, tick.micros(), 2);
    put(bytes, capacity, 7);
    put(bytes, token, 7);
    put(bytes, per_tick.into(), 4);
    let at = bytes.len();
    bytes.extend([0, 0]);
    let (capacity, zeros_of_capacity) = without_zeros(capacity, 15);
    let (token, zeros_of_token) = without_zeros(token, 15);
    bytes[at + 1] = zeros_of_capacity * 16 + zeros_of_token;
    put_in_groups(bytes, capacity);
    put_in_groups(bytes, token);
    if per_tick > 1 {
        put_in_groups(bytes, per_tick.into());
    }
    let size = bytes.len() - at - 1;
    // At most 23: a number has up to 53 bits, or 32.
    bytes[at] = u8::try_from(size).unwrap_or(u8::MAX);
}

/// Removes up to `most` decimal zeros from the end of a number. Returns the rest and the count of zeros.
fn without_zeros(mut number: u64, most: u8) -> (u64, u8) {
    let mut zeros = 0;
    while number > 0 && zeros < most && number.is_multiple_of(10) {
        number /= 10;
        zeros += 1;
    }
    (number, zeros)
}

/// Appends a number in groups of seven bits, the lowest first; all but the last have the high bit set.
fn put_in_groups(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 128 {
        // The low eight bits.
        #[allow(clippy::cast_possible_truncation)]
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    put(bytes, number, 1);
}
