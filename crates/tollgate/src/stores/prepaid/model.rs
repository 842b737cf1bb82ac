//! An exhaustive search of the lease protocol: every order of events in a small world, with the production code of
//! slices and of the algorithms.
//!
//! The world has two or three instances, one of which has a slow clock, a store, and a network. In every state, every
//! event may come next: time passes, an instance sends a draw, a message arrives, an instance uses a unit, gives
//! ended slices back, or follows a change of the limit. No event has to come. So the search contains a message that is
//! late or lost (it never arrives), a paused instance (nothing of it happens for a time), and a crash (none of its
//! units is used any more, and another instance goes on). It visits every reachable state once, breadth first. After
//! each use it checks that no span of time has seen more uses than the configured limit admits.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use tollgate_core::fixed_window::FixedWindow;
use tollgate_core::meter::Meter;
use tollgate_core::sliding_log::SlidingLog;
use tollgate_core::{CarryOver, Limit, Limiting, Rate, Span, Time};

use super::slices::{Demand, Slice, Slices, StoreView};

const TICK: Span = Span::from_millis(32);
/// How long a slice lives: two ticks.
const SLICE: Span = Span::from_millis(64);
/// The start of an aligned window of two ticks.
const START: u64 = 1_024_000_000;

/// A limit of the search, and the most uses that it admits.
trait Checked: Limiting<State: Debug> {
    /// Returns whether the uses by tick keep the promise of the configured limit.
    fn holds(configured: &Self, uses: &[u64]) -> bool;

    /// Returns the limit as stores take it.
    fn limit(&self) -> Limit;

    /// Returns how long the units that were drawn at `now` may be used, if they belong to a period.
    fn ends_in(&self, _now: Time) -> Option<Span> {
        None
    }
}

impl Checked for Meter {
    fn limit(&self) -> Limit {
        Limit::Gcra(self.clone())
    }

    fn holds(configured: &Meter, uses: &[u64]) -> bool {
        let (capacity, per_tick, token, tick) = configured.parts();
        assert_eq!((per_tick, tick.micros()), (1, 1), "a simple rate");
        spans(uses).all(|(ticks, used)| used <= capacity + ticks * TICK.as_micros() / token)
    }
}

impl Checked for SlidingLog {
    fn limit(&self) -> Limit {
        Limit::SlidingLog(self.clone())
    }

    fn holds(configured: &SlidingLog, uses: &[u64]) -> bool {
        let window = configured.window().as_micros() / TICK.as_micros();
        spans(uses).all(|(ticks, used)| ticks >= window || used <= configured.capacity())
    }
}

impl Checked for FixedWindow {
    fn limit(&self) -> Limit {
        Limit::FixedWindow(self.clone())
    }

    fn holds(configured: &FixedWindow, uses: &[u64]) -> bool {
        let window = configured.window().as_micros() / TICK.as_micros();
        let window = usize::try_from(window).unwrap();
        let mut windows = uses.chunks(window);
        windows.all(|uses| uses.iter().sum::<u64>() <= configured.capacity())
    }

    fn ends_in(&self, now: Time) -> Option<Span> {
        let window = self.window().as_micros();
        Some(Span::from_micros(window - now.as_micros() % window))
    }
}

/// Returns each span from one tick to another: the ticks between them, and the uses in it.
fn spans(uses: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    (0..uses.len()).flat_map(move |from| {
        let mut used = 0;
        (0..).zip(&uses[from..]).map(move |(ticks, count)| {
            used += count;
            (ticks, used)
        })
    })
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mail {
    Draw {
        node: usize,
        units: u64,
        sent_at: Time,
        numbers: usize,
        fence: u64,
    },
    Drawn {
        node: usize,
        taken: (u64, Time),
        sent_at: Time,
        ends_in: Option<Span>,
        numbers: usize,
        fence: u64,
    },
    Back {
        slice: Slice,
    },
}

#[derive(Clone)]
struct Node {
    slices: Slices,
    /// Which numbers the node has: an index of the limits.
    numbers: usize,
}

/// A state of the world.
#[derive(Clone)]
struct World<L: Limiting> {
    tick: u64,
    state: L::State,
    /// The numbers under which the state was written.
    written: usize,
    nodes: Vec<Node>,
    mail: Vec<Mail>,
    draws_left: u8,
    uses: Vec<u64>,
}

/// The limits of a search: the configured one, and those under which units are drawn, before and after a change.
struct Search<L> {
    configured: L,
    drawn_under: Vec<L>,
    nodes: usize,
    ticks: u64,
    draws: u8,
    /// The units of a draw.
    units: u64,
    /// Whether no draw under old numbers arrives after one under new numbers. Such a draw carries the state over to the
    /// old numbers, as in mode `exact`. A lower limit then forgets what it cannot hold.
    loses_old_draws: bool,
}

impl<L: Checked> Search<L> {
    /// Visits every reachable state. Returns the number of states, or the uses that break the promise.
    fn run(&self) -> Result<usize, Vec<u64>> {
        let view = StoreView {
            limit: 0,
            remaining: 0,
            reset_at: Time::default(),
        };
        let node = Node {
            slices: Slices::new(view, Demand::default()),
            numbers: 0,
        };
        let first = World::<L> {
            tick: 0,
            state: L::State::default(),
            written: 0,
            nodes: vec![node; self.nodes],
            mail: Vec::new(),
            draws_left: self.draws,
            uses: vec![0],
        };
        let (mut seen, mut queue) = (
            HashSet::from([fingerprint(&first)]),
            VecDeque::from([first]),
        );
        while let Some(world) = queue.pop_front() {
            for next in self.successors(&world) {
                if next.uses != world.uses && !L::holds(&self.configured, &next.uses) {
                    return Err(next.uses);
                }
                if seen.insert(fingerprint(&next)) {
                    queue.push_back(next);
                }
            }
        }
        Ok(seen.len())
    }

    /// Returns the states that one event leads to.
    fn successors(&self, world: &World<L>) -> Vec<World<L>> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut World<L>) -> bool| {
            let mut world = world.clone();
            if change(&mut world) {
                world.mail.sort_unstable();
                next.push(world);
            }
        };
        add(&|it| {
            it.tick += 1;
            it.uses.push(0);
            it.tick <= self.ticks
        });
        for node in 0..self.nodes {
            add(&|it| it.send(node, self.units));
            add(&|it| it.spend(node));
            add(&|it| it.sweep(node));
            add(&|it| it.follow(node, &self.drawn_under));
        }
        for place in 0..world.mail.len() {
            let is_old = matches!(
                world.mail[place],
                Mail::Draw { numbers, .. } if numbers < world.written
            );
            if !(self.loses_old_draws && is_old) {
                add(&|it| it.deliver(place, &self.drawn_under));
            }
        }
        next
    }
}

impl<L: Checked> World<L> {
    fn now(&self) -> Time {
        Time::from_micros(START) + Span::from_micros(self.tick * TICK.as_micros())
    }

    /// Returns the time by the clock of a node. The clock of node 0 loses 1/64.
    fn local(&self, node: usize) -> Time {
        let since = self.tick * TICK.as_micros();
        Time::from_micros(if node == 0 { since - since / 64 } else { since })
    }

    fn send(&mut self, node: usize, units: u64) -> bool {
        let (sent_at, it) = (self.local(node), &self.nodes[node]);
        let (numbers, fence) = (it.numbers, it.slices.fence());
        let busy = |it: &Mail| matches!(it, Mail::Draw { node: of, .. } | Mail::Drawn { node: of, .. } if *of == node);
        if self.draws_left == 0 || self.mail.iter().any(busy) {
            return false;
        }
        self.draws_left -= 1;
        self.mail.push(Mail::Draw {
            node,
            units,
            sent_at,
            numbers,
            fence,
        });
        true
    }

    fn spend(&mut self, node: usize) -> bool {
        let now = self.local(node);
        let used = self.nodes[node].slices.spend(1, now).is_some();
        if used && let Some(last) = self.uses.last_mut() {
            *last += 1;
        }
        used
    }

    fn sweep(&mut self, node: usize) -> bool {
        let now = self.local(node);
        let ended = self.nodes[node].slices.ended(now);
        self.give_back(&ended);
        !ended.is_empty()
    }

    fn give_back(&mut self, slices: &[Slice]) {
        let back = slices.iter().map(|it| Mail::Back { slice: *it });
        self.mail.extend(back);
    }

    /// Gives slices back that were drawn under other numbers, if their limit has periods.
    fn give_back_after_change(&mut self, slices: &[Slice], limit: &L) {
        if limit.limit().has_periods() {
            self.give_back(slices);
        }
    }

    /// A node learns of the change of numbers, and ends its slices.
    fn follow(&mut self, node: usize, limits: &[L]) -> bool {
        let it = &mut self.nodes[node];
        if it.numbers + 1 >= limits.len() {
            return false;
        }
        it.numbers += 1;
        let (ended, numbers) = (it.slices.end_all(), it.numbers);
        self.give_back_after_change(&ended, &limits[numbers]);
        true
    }

    fn deliver(&mut self, place: usize, limits: &[L]) -> bool {
        let now = self.now();
        match self.mail.remove(place) {
            Mail::Draw {
                node,
                units,
                sent_at,
                numbers,
                fence,
            } => {
                let limit = self.carry_over(numbers, limits);
                let units = units.min(limit.decide(&self.state, 0, now).available);
                if units > 0 {
                    limit.charge(&mut self.state, units, now);
                    let ends_in = limit.ends_in(now);
                    self.mail.push(Mail::Drawn {
                        node,
                        taken: (units, now),
                        sent_at,
                        ends_in,
                        numbers,
                        fence,
                    });
                }
            }
            Mail::Drawn {
                node,
                taken,
                sent_at,
                ends_in,
                numbers,
                fence,
            } => {
                let drawn_under = limits[numbers].limit();
                let slice = Slice::new(taken, &drawn_under, sent_at, SLICE, ends_in);
                let (local, it) = (self.local(node), &mut self.nodes[node]);
                let view = it.slices.view;
                if it.numbers == numbers {
                    let back = it.slices.drawn(slice, view, fence, local);
                    self.give_back(&back);
                } else {
                    let back = it.slices.drawn_under_others(slice, fence);
                    let numbers = it.numbers;
                    self.give_back_after_change(&back, &limits[numbers]);
                }
            }
            Mail::Back { slice } => {
                // A refund carries nothing over.
                limits[self.written].refund(&mut self.state, slice.units, slice.refund_at, now);
            }
        }
        true
    }

    /// Carries the state over to these numbers, as a store does.
    fn carry_over<'l>(&mut self, numbers: usize, limits: &'l [L]) -> &'l L {
        let limit = &limits[numbers];
        if numbers != self.written {
            let now = self.now();
            limit.carry_over(&limits[self.written], &mut self.state, CarryOver::Keep, now);
            self.written = numbers;
        }
        limit
    }
}

fn fingerprint<L: Checked>(world: &World<L>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let state = format!("{:?}", world.state);
    let nodes = world.nodes.iter();
    let nodes: Vec<_> = nodes.map(|it| (&it.slices, it.numbers)).collect();
    let left = world.draws_left;
    (
        world.tick,
        state,
        world.written,
        nodes,
        &world.mail,
        left,
        &world.uses,
    )
        .hash(&mut hasher);
    hasher.finish()
}

fn meter(limit: &Limit) -> Meter {
    match limit {
        Limit::Gcra(it) => it.clone(),
        _ => unreachable!("a gcra limit"),
    }
}

/// Returns a limit of one unit per tick, with this burst, and its prepaid numbers.
fn gcra(burst: u64) -> (Meter, Meter) {
    let rate = Rate::new(1, Span::from_millis(32)).unwrap();
    let limit = Limit::gcra(rate, burst).unwrap();
    let (prepaid, slice) = limit.prepaid(SLICE).unwrap();
    assert_eq!(slice, SLICE);
    (meter(&limit), meter(&prepaid))
}

#[test]
fn no_order_of_events_exceeds_a_rate() {
    let (configured, prepaid) = gcra(4);
    let search = |drawn_under, nodes, ticks| Search {
        configured: configured.clone(),
        drawn_under,
        nodes,
        ticks,
        draws: 3,
        units: 2,
        loses_old_draws: false,
    };
    let two = search(vec![prepaid.clone()], 2, 3).run();
    assert!(two.unwrap() > 1_000);
    let three = search(vec![prepaid.clone()], 3, 2).run();
    assert!(three.unwrap() > 1_000);
    // Instances follow a lower limit one after the other.
    let lower = meter(&Limit::gcra(Rate::new(1, TICK).unwrap(), 1).unwrap());
    let changing = search(vec![prepaid.clone(), lower.clone()], 2, 2).run();
    assert!(changing.unwrap() > 1_000);
    // Instances follow a higher limit one after the other. The higher limit is the bound.
    let (six, higher) = gcra(6);
    let raised = Search {
        configured: six,
        drawn_under: vec![lower, higher],
        units: 4,
        loses_old_draws: true,
        ..search(Vec::new(), 2, 2)
    };
    assert!(raised.run().unwrap() > 1_000);
    // Under its own numbers, the limit would be exceeded. So the search finds what it looks for.
    let unprepared = search(vec![configured.clone()], 2, 3).run();
    assert!(unprepared.is_err());
}

#[test]
fn no_order_of_events_exceeds_a_sliding_window() {
    let log = |window: u64| tollgate_core::sliding_log::new(2, Span::from_millis(window)).unwrap();
    let search = |window| Search {
        configured: log(64),
        drawn_under: vec![log(window)],
        nodes: 2,
        ticks: 3,
        draws: 3,
        units: 2,
        loses_old_draws: false,
    };
    assert!(search(128).run().unwrap() > 1_000);
    assert!(search(64).run().is_err());
}

#[test]
fn no_order_of_events_exceeds_a_period() {
    let window = tollgate_core::fixed_window::new(2, Span::from_millis(64)).unwrap();
    let search = Search {
        configured: window.clone(),
        drawn_under: vec![window],
        nodes: 2,
        ticks: 3,
        draws: 3,
        units: 2,
        loses_old_draws: false,
    };
    assert!(search.run().unwrap() > 1_000);
}
