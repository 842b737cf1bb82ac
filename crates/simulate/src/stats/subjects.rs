//! The subjects of a rule: what each asked for and got, and the bursts that it was allowed. Both tables are
//! bounded. Subjects after the bound are counted together.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// The most traced subjects of a rule, and as many again of those that were denied. With many rules, each has fewer.
pub(super) const MOST_TRACED: usize = 128;
/// The most requests of a traced subject in one window. A subject with more is not traced any more.
const MOST_IN_WINDOW: usize = 16_384;
/// The slice of a leased rule and the flush of an async rule, in microseconds.
const SLICE: u64 = 100_000;
const FLUSH: u64 = 500_000;

/// What a subject asked for, and what it got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) asked: u64,
    pub(crate) allowed: u64,
    /// The subject in plain text, if it was denied and names are shown.
    pub(crate) name: Option<Box<str>>,
    /// The last slice and flush in which the subject needed the store.
    slice: u64,
    flush: u64,
    /// Until when its denial is known.
    denied_until: u64,
}

/// Which modes would call the store for a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) remembered: bool,
    pub(crate) leased: bool,
    pub(crate) flushed: bool,
}

/// The subjects of a rule.
#[derive(Debug)]
pub(crate) struct Subjects {
    rows: HashMap<u128, Asked>,
    most: usize,
    /// Requests of subjects without a row: all, and those that were allowed.
    pub(crate) other: (u64, u64),
}

/// One request of a subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) subject: u128,
    pub(crate) at: u64,
    /// Whether the rule allows the request.
    pub(crate) is_allowed: bool,
    /// When the rule would allow it, if it denies.
    pub(crate) retry_at: u64,
}

impl Subjects {
    pub(crate) fn new(most: usize) -> Subjects {
        Subjects {
            rows: HashMap::new(),
            most,
            other: (0, 0),
        }
    }

    /// Counts a request. Returns which modes would call the store, and whether the subject was denied before.
    pub(crate) fn add(
        &mut self,
        seen: Seen,
        name: impl FnOnce() -> Option<Box<str>>,
    ) -> (Needs, bool) {
        let full = self.rows.len() >= self.most;
        let row = match self.rows.entry(seen.subject) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(_) if full => {
                self.other.0 += 1;
                self.other.1 += u64::from(seen.is_allowed);
                let needs = Needs {
                    remembered: true,
                    leased: true,
                    flushed: true,
                };
                return (needs, false);
            }
            Entry::Vacant(row) => row.insert(Asked::default()),
        };
        row.asked += 1;
        row.allowed += u64::from(seen.is_allowed);
        // Slices are counted from 1, so that the first one differs from none.
        let (slice, flush) = (seen.at / SLICE + 1, seen.at / FLUSH + 1);
        let is_known = seen.at < row.denied_until;
        let needs = Needs {
            remembered: !is_known,
            leased: !is_known && row.slice != slice,
            flushed: row.flush != flush,
        };
        (row.slice, row.flush) = (slice, flush);
        if !seen.is_allowed {
            row.denied_until = row.denied_until.max(seen.retry_at);
            if row.name.is_none() {
                row.name = name();
            }
        }
        (needs, row.allowed < row.asked)
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = (u128, &Asked)> {
        self.rows.iter().map(|(subject, row)| (*subject, row))
    }

    pub(crate) fn get(&self, subject: u128) -> Option<&Asked> {
        self.rows.get(&subject)
    }
}

/// The most that one subject was allowed in any window, against its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) admitted: u64,
    pub(crate) limit: u64,
    /// In microseconds.
    pub(crate) window: u64,
}

impl Burst {
    /// Whether this is a larger share of its limit than another.
    fn exceeds(self, other: Burst) -> bool {
        let cross =
            |one: Burst, other: Burst| u128::from(one.admitted) * u128::from(other.limit.max(1));
        other.limit == 0 || cross(self, other) > cross(other, self)
    }
}

/// The units that a subject was allowed in the last window.
#[derive(Debug, Default)]
struct Trace {
    admitted: VecDeque<(u64, u64)>,
    sum: u64,
    /// Whether there were too many requests to keep.
    is_given_up: bool,
}

/// How many requests the traces of all rules may still keep.
#[derive(Debug)]
pub(crate) struct TraceRoom {
    left: usize,
}

impl TraceRoom {
    pub(crate) fn new(entries: usize) -> TraceRoom {
        TraceRoom { left: entries }
    }

    /// Adds a request to a trace. Returns whether there was room.
    fn push(&mut self, trace: &mut Trace, entry: (u64, u64)) -> bool {
        let before = trace.admitted.capacity();
        // A list that is full grows to twice its length.
        if trace.admitted.len() == before && before.max(4) > self.left {
            return false;
        }
        trace.admitted.push_back(entry);
        self.left = (self.left + before).saturating_sub(trace.admitted.capacity());
        true
    }

    /// Gives up a trace.
    fn free(&mut self, trace: &mut Trace) {
        self.left += trace.admitted.capacity();
        *trace = Trace {
            is_given_up: true,
            ..Trace::default()
        };
    }
}

/// The bursts of a rule.
#[derive(Debug)]
pub(crate) struct Bursts {
    traces: HashMap<u128, Trace>,
    /// The most traced subjects, and as many again of those that were denied.
    most: usize,
    pub(crate) largest: Burst,
}

impl Bursts {
    pub(crate) fn new(most: usize) -> Bursts {
        Bursts {
            traces: HashMap::new(),
            most,
            largest: Burst::default(),
        }
    }

    /// Notes that `units` were allowed.
    pub(crate) fn add(
        &mut self,
        room: &mut TraceRoom,
        (subject, was_denied): (u128, bool),
        (at, units): (u64, u64),
        (limit, window): (u64, u64),
    ) {
        let most = if was_denied { 2 * self.most } else { self.most };
        let full = self.traces.len() >= most;
        let trace = match self.traces.entry(subject) {
            Entry::Occupied(trace) => trace.into_mut(),
            Entry::Vacant(_) if full => return,
            Entry::Vacant(trace) => trace.insert(Trace::default()),
        };
        if trace.is_given_up {
            return;
        }
        // Entries that have left the window first, so that a trace grows only if it has to.
        while let Some((first, units)) = trace.admitted.front().copied()
            && first.saturating_add(window) <= at
        {
            trace.admitted.pop_front();
            trace.sum = trace.sum.saturating_sub(units);
        }
        if trace.admitted.len() >= MOST_IN_WINDOW || !room.push(trace, (at, units)) {
            return room.free(trace);
        }
        trace.sum = trace.sum.saturating_add(units);
        let burst = Burst {
            admitted: trace.sum,
            limit,
            window,
        };
        if burst.exceeds(self.largest) {
            self.largest = burst;
        }
    }

    /// Returns how many subjects were traced to the end.
    pub(crate) fn traced(&self) -> usize {
        self.traces.values().filter(|it| !it.is_given_up).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_burst_is_the_most_in_any_window() {
        let (mut bursts, mut room) = (Bursts::new(MOST_TRACED), TraceRoom::new(1_000));
        // Ten at the end of a minute, ten at the start of the next.
        for at in (50..60).chain(60..70) {
            bursts.add(&mut room, (1, false), (at * 1_000_000, 1), (10, 60_000_000));
        }
        let expected = Burst {
            admitted: 20,
            limit: 10,
            window: 60_000_000,
        };
        assert_eq!(bursts.largest, expected);
        bursts.add(&mut room, (1, false), (200_000_000, 1), (10, 60_000_000));
        assert_eq!((bursts.largest, bursts.traced()), (expected, 1));
    }

    #[test]
    fn traces_and_subjects_are_bounded() {
        let (mut bursts, mut subjects) = (Bursts::new(MOST_TRACED), Subjects::new(10));
        let mut room = TraceRoom::new(10_000);
        for subject in 0..10_000_u128 {
            bursts.add(
                &mut room,
                (subject, true),
                (u64::try_from(subject).unwrap_or_default(), 1),
                (10, 1000),
            );
            let seen = Seen {
                subject,
                at: 1,
                is_allowed: true,
                retry_at: 0,
            };
            subjects.add(seen, || None);
        }
        assert_eq!(bursts.traced(), 2 * MOST_TRACED);
        assert_eq!(
            (subjects.rows().len(), subjects.other),
            (10, (9_990, 9_990))
        );
    }

    #[test]
    fn traces_of_all_rules_share_their_room() {
        let mut room = TraceRoom::new(1_000);
        let mut rules = [Bursts::new(MOST_TRACED), Bursts::new(MOST_TRACED)];
        let numbers = (10, 1_000_000);
        for at in 0..5_000 {
            for rule in &mut rules {
                for subject in 0..20 {
                    rule.add(&mut room, (subject, false), (at, 1), numbers);
                }
            }
            let kept = rules.iter().flat_map(|rule| rule.traces.values());
            let kept: usize = kept.map(|trace| trace.admitted.capacity()).sum();
            assert!(kept <= 1_000, "{kept} after {at}");
            assert_eq!(kept + room.left, 1_000);
        }
        assert!(rules[0].largest.admitted >= 16, "{:?}", rules[0].largest);
    }

    #[test]
    fn modes_call_the_store_once_per_slice_or_flush() {
        let mut subjects = Subjects::new(10);
        let mut calls = [0; 3];
        for at in (0..1_000_000).step_by(10_000) {
            let seen = Seen {
                subject: 1,
                at,
                is_allowed: at < 500_000,
                retry_at: 1_000_000,
            };
            let (needs, _) = subjects.add(seen, || None);
            for (calls, need) in
                calls
                    .iter_mut()
                    .zip([needs.remembered, needs.leased, needs.flushed])
            {
                *calls += u32::from(need);
            }
        }
        assert_eq!(calls, [51, 6, 2]);
    }
}
