//! Fair shares beside an ideal fluid scheduler (GPS), on virtual time, with random clients.
//!
//! Time is divided into spans in which the bucket refills once. In each span, the fluid scheduler divides one
//! refill by weight among the clients that are there. A client gets its share of it, or what it asked for if
//! that is less. A stronger scheduler also divides what clients leave among the others (max-min fairness). Both
//! know the future and split requests, which no limiter can.

#![allow(clippy::unwrap_used)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

use proptest::prelude::*;
use tollgate_core::fair::{self, Client, Fair, Lane, State, WHOLE};
use tollgate_core::{Limiting, Rate, Span, Time};

/// The steps of a span in which clients join and leave the fluid scheduler.
const STEPS: u32 = 20;
const START: u64 = 1_700_000_000_000_000;

/// A client that asks from one instant to another.
#[derive(Clone, Debug)]
struct Asker {
    weight: u32,
    cost: u64,
    /// What it asks for, as a multiple of the refill divided by the number of clients.
    hunger: f64,
    /// How many requests come at once.
    burst: u32,
    lane: u8,
    /// When it joins and leaves, as parts of the run.
    active: (f64, f64),
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    at: u64,
    client: usize,
    admitted: bool,
}

#[derive(Clone, Debug)]
struct Scenario {
    capacity: u64,
    rate: u64,
    /// How many times the bucket refills.
    spans: u64,
    /// The shares of the lanes in percent.
    lanes: Vec<u32>,
    askers: Vec<Asker>,
    seed: u64,
}

impl Scenario {
    /// The time in which the bucket refills, in microseconds.
    fn span(&self) -> u64 {
        self.capacity * 1_000_000 / self.rate
    }

    fn limit(&self) -> Fair {
        let refill = Rate::new(self.rate, Span::SECOND).unwrap();
        let lane = |percent: &u32| Lane {
            share: percent * WHOLE / 100,
            strict: false,
        };
        let lanes: Vec<_> = self.lanes.iter().map(lane).collect();
        fair::with_lanes(self.capacity, refill, &lanes).unwrap()
    }

    /// Returns what a lane gets of each refill.
    fn part(&self, lane: u8) -> f64 {
        self.capacity as f64 * f64::from(self.lanes[usize::from(lane)]) / 100.0
    }

    /// Returns all asks in order.
    fn asks(&self) -> Vec<Ask> {
        let mut random = Random(self.seed | 1);
        let length = (self.span() * self.spans) as f64;
        let mut asks = Vec::new();
        for (client, asker) in self.askers.iter().enumerate() {
            let mates = self.askers.iter().filter(|it| it.lane == asker.lane);
            let part = self.part(asker.lane) / self.capacity as f64;
            let share = self.rate as f64 * part / mates.count() as f64;
            let units = asker.cost as f64 * f64::from(asker.burst);
            let mean_gap = units / (share * asker.hunger) * 1e6;
            let mut at = asker.active.0 * length;
            while at < asker.active.1 * length {
                asks.extend((0..asker.burst).map(|_| Ask {
                    at: at as u64,
                    client,
                    admitted: false,
                }));
                at += mean_gap * 2.0 * random.unit();
            }
        }
        asks.sort_by_key(|it| it.at);
        asks
    }

    /// Decides all asks with the fair bucket. Some of them come with a clock that is behind.
    fn decide(&self, asks: &mut [Ask]) {
        let (limit, mut state) = (self.limit(), State::default());
        let mut random = Random(self.seed.rotate_left(17) | 1);
        for ask in asks {
            let asker = &self.askers[ask.client];
            let back = match random.unit() < 0.05 {
                true => (random.unit() * 20_000.0) as u64,
                false => 0,
            };
            let now = Time::from_micros(START + ask.at - back);
            let limit = limit.for_client(Client {
                id: 1 + ask.client as u64,
                weight: asker.weight,
                lane: asker.lane,
            });
            ask.admitted = limit.decide(&state, asker.cost, now).is_allowed();
            match ask.admitted {
                true => limit.charge(&mut state, asker.cost, now),
                false => limit.note_denied(&mut state, asker.cost, now),
            }
        }
    }

    /// Returns what the fluid scheduler guarantees to each client in each span.
    fn fluid(&self, asks: &[Ask]) -> Vec<Vec<f64>> {
        let mut spans = self.sums(asks.iter());
        for (place, span) in spans.iter_mut().enumerate() {
            let mut shares = vec![0.0; self.askers.len()];
            for step in 0..STEPS {
                let at =
                    (place as f64 + (f64::from(step) + 0.5) / f64::from(STEPS)) / self.spans as f64;
                let is_there = |it: &Asker| (it.active.0..it.active.1).contains(&at);
                for (share, asker) in shares.iter_mut().zip(&self.askers) {
                    let mates = self.askers.iter().filter(|it| it.lane == asker.lane);
                    let weights: u32 = mates.filter(|it| is_there(it)).map(|it| it.weight).sum();
                    if is_there(asker) {
                        let part = f64::from(asker.weight) / f64::from(weights);
                        *share += self.part(asker.lane) / f64::from(STEPS) * part;
                    }
                }
            }
            for (wanted, share) in span.iter_mut().zip(shares) {
                *wanted = wanted.min(share);
            }
        }
        spans
    }

    /// Returns what a fluid scheduler gives to each client in each span, if it also divides what is left over.
    fn fluid_with_leftovers(&self, asks: &[Ask]) -> Vec<Vec<f64>> {
        let mut spans = self.sums(asks.iter());
        for span in &mut spans {
            *span = divided(self.capacity as f64, span, &self.askers);
        }
        spans
    }

    /// Returns what the bucket gave to each client in each span.
    fn given(&self, asks: &[Ask]) -> Vec<Vec<f64>> {
        self.sums(asks.iter().filter(|it| it.admitted))
    }

    /// Adds up the costs of asks, by span and client.
    fn sums<'a>(&self, asks: impl Iterator<Item = &'a Ask>) -> Vec<Vec<f64>> {
        let mut spans = vec![vec![0.0; self.askers.len()]; self.spans as usize];
        for ask in asks {
            let span = &mut spans[(ask.at / self.span()) as usize];
            span[ask.client] += self.askers[ask.client].cost as f64;
        }
        spans
    }
}

/// Divides `amount` by weight: nobody gets more than it wants, and what one leaves goes to the others.
fn divided(mut amount: f64, wanted: &[f64], askers: &[Asker]) -> Vec<f64> {
    let mut given = vec![0.0; wanted.len()];
    loop {
        let wants_more = |it: &usize| wanted[*it] - given[*it] > 1e-9;
        let open: Vec<usize> = (0..wanted.len()).filter(wants_more).collect();
        let weights: f64 = open.iter().map(|it| f64::from(askers[*it].weight)).sum();
        if open.is_empty() || amount < 1e-9 {
            return given;
        }
        let each = amount / weights;
        for it in open {
            let part = (each * f64::from(askers[it].weight)).min(wanted[it] - given[it]);
            given[it] += part;
            amount -= part;
        }
    }
}

/// A small random generator, so that a seed replays.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the most that any span of time lacks: the largest `ideal - real` over consecutive spans.
fn worst_lag(ideal: impl Iterator<Item = f64>, real: impl Iterator<Item = f64>) -> f64 {
    let (mut lag, mut worst) = (0.0_f64, 0.0_f64);
    for (ideal, real) in ideal.zip(real) {
        lag = (lag + ideal - real).max(0.0);
        worst = worst.max(lag);
    }
    worst
}

fn askers() -> impl Strategy<Value = Asker> {
    let hunger = prop_oneof![Just(0.3), Just(0.9), Just(2.0), Just(10.0), Just(40.0)];
    let active = (0.0..0.5, 0.3..1.0).prop_map(|(from, length): (f64, f64)| {
        let until = if from + length > 0.9 {
            1.0
        } else {
            from + length
        };
        (from, until)
    });
    (1_u32..9, 1_u64..4, hunger, 1_u32..4, active).prop_map(
        |(weight, cost, hunger, burst, active)| Asker {
            weight,
            cost,
            hunger,
            burst,
            lane: 0,
            active,
        },
    )
}

/// Returns scenarios with costs up to the largest that the bucket promises to admit, and up to three lanes. Clients
/// with large requests ask again and again: a request that was denied is lost, and few of them are no fair sample.
fn scenarios_with_large_requests_and_lanes() -> impl Strategy<Value = Scenario> {
    let lanes = prop_oneof![
        2 => Just(vec![100]),
        1 => Just(vec![60, 40]),
        1 => Just(vec![50, 30, 20]),
    ];
    let large = proptest::collection::vec((0.0..1.0, any::<bool>(), 0_u8..6), 8);
    (scenarios(), lanes, large).prop_map(|(mut scenario, lanes, large)| {
        if lanes.len() > 1 {
            // The smallest lane is as large as the smallest bucket.
            (scenario.capacity, scenario.rate) = (scenario.capacity * 5, scenario.rate * 5);
        }
        scenario.lanes = lanes;
        for (asker, (part, is_large, lane)) in scenario.askers.iter_mut().zip(large) {
            asker.lane = lane % scenario.lanes.len() as u8;
            let percent = scenario.lanes[usize::from(asker.lane)];
            let most = scenario.capacity as f64 * f64::from(percent) / 100.0;
            asker.cost = asker.cost.min(most as u64);
            if is_large {
                asker.cost = ((most * 15.0 / 16.0 * part) as u64).max(1);
                // At least 20 times in each span.
                (asker.burst, asker.hunger) = (1, 160.0 * asker.cost as f64 / most);
            }
        }
        scenario
    })
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let askers = proptest::collection::vec(askers(), 2..9);
    (20_u64..200, 20_u64..200, askers, any::<u64>()).prop_map(|(capacity, rate, askers, seed)| {
        Scenario {
            capacity,
            rate,
            spans: 40,
            lanes: vec![100],
            askers,
            seed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No client falls behind its share by more than one burst, which is a full bucket, and one request.
    #[test]
    fn no_client_falls_behind_the_fluid_scheduler(scenario in scenarios()) {
        let mut asks = scenario.asks();
        scenario.decide(&mut asks);
        let (fluid, given) = (scenario.fluid(&asks), scenario.given(&asks));
        for (client, asker) in scenario.askers.iter().enumerate() {
            let lag = worst_lag(
                fluid.iter().map(|it| it[client]),
                given.iter().map(|it| it[client]),
            );
            let bound = (scenario.capacity + asker.cost) as f64;
            prop_assert!(lag <= bound, "client {client} lacks {lag:.1} of {bound}");
        }
    }

    /// Large requests wait for each other, so that they fall behind by up to three bursts and one request.
    #[test]
    fn large_requests_and_lanes_do_not_fall_behind_either(scenario in scenarios_with_large_requests_and_lanes()) {
        let mut asks = scenario.asks();
        scenario.decide(&mut asks);
        let (fluid, given) = (scenario.fluid(&asks), scenario.given(&asks));
        for (client, asker) in scenario.askers.iter().enumerate() {
            let lag = worst_lag(
                fluid.iter().map(|it| it[client]),
                given.iter().map(|it| it[client]),
            );
            let bound = 3.0 * scenario.part(asker.lane) + asker.cost as f64;
            prop_assert!(lag <= bound, "client {client} lacks {lag:.1} of {bound}");
        }
    }

    /// With what others leave, no client falls behind by more than three bursts and one request. The bucket
    /// remembers what a client saved up, and the scheduler does not: bursts of quiet clients are a part of this.
    #[test]
    fn leftovers_are_divided_by_weight_too(scenario in scenarios()) {
        let mut asks = scenario.asks();
        scenario.decide(&mut asks);
        let (fluid, given) = (scenario.fluid_with_leftovers(&asks), scenario.given(&asks));
        for (client, asker) in scenario.askers.iter().enumerate() {
            let lag = worst_lag(
                fluid.iter().map(|it| it[client]),
                given.iter().map(|it| it[client]),
            );
            let bound = (3 * scenario.capacity + asker.cost) as f64;
            prop_assert!(lag <= bound, "client {client} lacks {lag:.1} of {bound}");
        }
    }

    /// While a client asks for more than there is, the refill is used, but for 2% and one full bucket.
    #[test]
    fn the_refill_is_used_while_a_client_asks(scenario in scenarios(), weight in 1_u32..9) {
        let mut scenario = scenario;
        scenario.askers.push(Asker {
            weight,
            cost: 1,
            hunger: 40.0,
            burst: 1,
            lane: 0,
            active: (0.0, 1.0),
        });
        let mut asks = scenario.asks();
        scenario.decide(&mut asks);
        let used: f64 = scenario.given(&asks).iter().flatten().sum();
        let refilled = (scenario.capacity * scenario.spans) as f64;
        let least = refilled * 0.98 - scenario.capacity as f64;
        prop_assert!(used >= least, "{used} of {refilled}");
    }
}
