//! Fair shares under contention, on virtual time: the promises of `tollgate_core::fair`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_core::fair::{self, Client, Fair, Lane, State, WHOLE};
use tollgate_core::{Limiting, Rate, Span, Time};

/// A client that asks again after a gap: exponential if it is a hammering client, fixed otherwise.
#[derive(Clone, Copy)]
struct Asker {
    name: &'static str,
    client: Client,
    cost: u64,
    starts: f64,
    gap: Gap,
}

#[derive(Clone, Copy)]
enum Gap {
    /// Asks this many times a second, at random instants.
    Random(f64),
    /// Asks every so many seconds.
    Every(f64),
    /// Asks this many times at once, every so many seconds.
    Bursts(u32, f64),
}

#[derive(Debug, Default)]
struct Got {
    admitted: u64,
    denied: u64,
}

fn client(id: u64, weight: u32, lane: u8) -> Client {
    Client { id, weight, lane }
}

fn hammer(name: &'static str, id: u64, weight: u32, per_second: f64) -> Asker {
    Asker {
        name,
        client: client(id, weight, 0),
        cost: 1,
        starts: 0.0,
        gap: Gap::Random(per_second),
    }
}

/// A small random generator, so that a seed replays.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        #[allow(clippy::cast_precision_loss)]
        let unit = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        unit
    }
}

const START: f64 = 1_700_000_000.0;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn instant(seconds: f64) -> Time {
    Time::from_micros(((START + seconds) * 1e6) as u64)
}

/// Runs the askers against one bucket, as a store would: a denied request is noted, an admitted one
/// charged.
fn run(limit: &Fair, askers: &[Asker], seconds: f64) -> (BTreeMap<&'static str, Got>, State) {
    let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
    let mut state = State::default();
    let mut got: BTreeMap<&'static str, Got> = BTreeMap::new();
    let mut due: Vec<(f64, u32)> = askers.iter().map(|it| (it.starts, 0)).collect();
    loop {
        let next = due.iter().enumerate();
        let next = next.min_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let Some((place, (at, asked))) = next.map(|(place, it)| (place, *it)) else {
            return (got, state);
        };
        if at > seconds {
            return (got, state);
        }
        let asker = askers[place];
        let limit = limit.for_client(asker.client);
        let now = instant(at);
        let got = got.entry(asker.name).or_default();
        if limit.decide(&state, asker.cost, now).is_allowed() {
            limit.charge(&mut state, asker.cost, now);
            got.admitted += asker.cost;
        } else {
            limit.note_denied(&mut state, asker.cost, now);
            got.denied += 1;
        }
        let gap = match asker.gap {
            Gap::Random(rate) => -(1.0 - random.unit()).ln() / rate,
            Gap::Every(gap) => gap,
            Gap::Bursts(size, every) if (asked + 1) % size == 0 => {
                every - 1e-4 * f64::from(size - 1)
            }
            Gap::Bursts(..) => 1e-4,
        };
        due[place] = (at + gap, asked + 1);
    }
}

fn hundred_a_second() -> Fair {
    fair::new(100, Rate::new(100, Span::SECOND).unwrap()).unwrap()
}

#[test]
fn a_loud_client_does_not_starve_a_quiet_one() {
    let quiet = Asker {
        gap: Gap::Every(0.1),
        ..hammer("quiet", 2, 1, 0.0)
    };
    let (got, _) = run(
        &hundred_a_second(),
        &[hammer("loud", 1, 1, 2000.0), quiet],
        30.0,
    );
    assert_eq!(got["quiet"].denied, 0);
    let loud = got["loud"].admitted;
    // 90 a second, and the bucket that was full at the start.
    assert!((88 * 30..=90 * 30 + 100).contains(&loud), "{loud}");
}

#[test]
fn one_client_alone_gets_everything() {
    let (got, _) = run(&hundred_a_second(), &[hammer("only", 1, 1, 1000.0)], 20.0);
    let admitted = got["only"].admitted;
    assert!((98 * 20..=100 * 20 + 100).contains(&admitted), "{admitted}");
    // Its first burst is as large as that of a plain bucket.
    let (limit, mut state) = (
        hundred_a_second().for_client(client(1, 1, 0)),
        State::default(),
    );
    for asked in 0..100 {
        assert!(
            limit.decide(&state, 1, instant(0.0)).is_allowed(),
            "{asked}"
        );
        limit.charge(&mut state, 1, instant(0.0));
    }
    assert!(!limit.decide(&state, 1, instant(0.0)).is_allowed());
}

#[test]
fn shares_follow_weights_whatever_the_speed_of_the_clients() {
    let askers = [hammer("five", 1, 5, 400.0), hammer("one", 2, 1, 3000.0)];
    let (got, _) = run(&hundred_a_second(), &askers, 40.0);
    let share = |name: &str| got[name].admitted * 1000 / (100 * 40 + 100);
    assert!((808..=858).contains(&share("five")), "{got:?}");
    assert!((141..=191).contains(&share("one")), "{got:?}");
    // Three clients: one of them needs less than its share, and the others divide what it leaves.
    let modest = Asker {
        gap: Gap::Every(0.1),
        ..hammer("modest", 3, 1, 0.0)
    };
    let askers = [
        hammer("fast", 1, 1, 2000.0),
        hammer("slow", 2, 1, 150.0),
        modest,
    ];
    let (got, _) = run(&hundred_a_second(), &askers, 40.0);
    assert_eq!(got["modest"].denied, 0);
    let (fast, slow) = (got["fast"].admitted, got["slow"].admitted);
    assert!(fast.abs_diff(slow) * 33 <= fast, "{got:?}");
    assert!(fast + slow >= 88 * 40, "{got:?}");
}

#[test]
fn one_of_a_thousand_is_never_denied_below_its_share() {
    let mut askers: Vec<_> = (0..1000).map(|id| hammer("loud", id, 1, 3.0)).collect();
    for asker in &mut askers {
        asker.starts = 0.5;
    }
    askers.push(Asker {
        gap: Gap::Bursts(3, 30.0),
        ..hammer("quiet", 7000, 1, 0.0)
    });
    let (got, state) = run(&hundred_a_second(), &askers, 95.0);
    assert_eq!(got["quiet"].denied, 0, "{got:?}");
    assert_eq!(got["quiet"].admitted, 12);
    assert!(got["loud"].admitted >= 98 * 90, "{got:?}");
    assert!(state.clients() <= 1001);
}

#[test]
fn shares_go_by_cost_and_not_by_requests() {
    let large = Asker {
        cost: 7,
        ..hammer("large", 1, 1, 500.0)
    };
    let (got, _) = run(
        &hundred_a_second(),
        &[large, hammer("small", 2, 1, 500.0)],
        40.0,
    );
    let (large, small) = (got["large"].admitted, got["small"].admitted);
    assert!(large.abs_diff(small) * 20 <= large, "{got:?}");
}

fn lanes(strict: bool) -> Fair {
    let lane = |share| Lane { share, strict };
    let lanes = [lane(WHOLE * 60 / 100), lane(WHOLE * 40 / 100)];
    fair::with_lanes(100, Rate::new(100, Span::SECOND).unwrap(), &lanes).unwrap()
}

fn in_lane(name: &'static str, id: u64, lane: u8, per_second: f64) -> Asker {
    Asker {
        client: client(id, 1, lane),
        ..hammer(name, id, 1, per_second)
    }
}

#[test]
fn a_lane_gets_its_share_and_borrows_what_is_idle() {
    let both = [in_lane("high", 1, 0, 500.0), in_lane("low", 2, 1, 5000.0)];
    let (got, _) = run(&lanes(false), &both, 30.0);
    assert!(got["high"].admitted >= 59 * 30, "{got:?}");
    assert!(got["low"].admitted >= 39 * 30, "{got:?}");
    assert!(got["high"].admitted + got["low"].admitted <= 100 * 30 + 100);
    let (got, _) = run(&lanes(false), &both[1..], 30.0);
    assert!(got["low"].admitted >= 98 * 30, "{got:?}");
    let (got, _) = run(&lanes(true), &both[1..], 30.0);
    assert!(got["low"].admitted <= 40 * 30 + 40, "{got:?}");
    // A high lane that needs half of its share is never denied, and the low one gets the rest.
    let calm = Asker {
        gap: Gap::Every(1.0 / 30.0),
        ..in_lane("high", 1, 0, 0.0)
    };
    let (got, _) = run(&lanes(false), &[calm, both[1]], 30.0);
    assert_eq!(got["high"].denied, 0);
    assert!(got["low"].admitted >= 68 * 30, "{got:?}");
}

/// A lane that sends three quarters of its part at once is not denied because another lane asks for more.
#[test]
fn bursts_within_the_part_of_a_lane_are_not_denied() {
    let high = Asker {
        gap: Gap::Bursts(45, 1.0),
        ..in_lane("high", 1, 0, 0.0)
    };
    let (got, _) = run(&lanes(false), &[high, in_lane("low", 2, 1, 5000.0)], 30.0);
    assert_eq!(got["high"].denied, 0, "{got:?}");
    assert!(got["low"].admitted >= 54 * 30, "{got:?}");
}

/// A full lane passes its refill on, although one of its requests was denied lately.
#[test]
fn refill_of_a_full_lane_is_not_lost_after_a_denial() {
    let high = Asker {
        gap: Gap::Bursts(61, 2.0),
        ..in_lane("high", 1, 0, 0.0)
    };
    let (got, _) = run(&lanes(false), &[high, in_lane("low", 2, 1, 5000.0)], 60.0);
    assert!(got["high"].denied > 0, "{got:?}");
    assert!(got["high"].admitted >= 60 * 30, "{got:?}");
    let all = got["high"].admitted + got["low"].admitted;
    assert!((98 * 60..=100 * 60 + 100).contains(&all), "{all}: {got:?}");
}

/// What a full lane leaves goes to the other lanes by their shares, but not to a strict one.
#[test]
fn idle_part_is_divided_by_the_shares_of_the_other_lanes() {
    let lane = |share, strict| Lane { share, strict };
    let lanes = [
        lane(5000, false),
        lane(3000, false),
        lane(1000, false),
        lane(1000, true),
    ];
    let limit = fair::with_lanes(100, Rate::new(100, Span::SECOND).unwrap(), &lanes).unwrap();
    let askers = [
        in_lane("second", 2, 1, 2000.0),
        in_lane("third", 3, 2, 2000.0),
        in_lane("strict", 4, 3, 2000.0),
    ];
    let (got, _) = run(&limit, &askers, 30.0);
    let (second, third) = (got["second"].admitted, got["third"].admitted);
    assert!(second.abs_diff(3 * third) * 20 <= second, "{got:?}");
    assert!(got["strict"].admitted <= 10 * 30 + 10, "{got:?}");
    assert!(second + third >= 88 * 30, "{got:?}");
}

/// A request for more than half of the bucket finds it, although a client with small requests asks in a loop.
#[test]
fn large_requests_get_their_share_beside_small_ones() {
    for cost in [30, 60, 80, 90] {
        let large = Asker {
            cost,
            ..hammer("large", 1, 1, 20.0)
        };
        let (got, _) = run(
            &hundred_a_second(),
            &[large, hammer("small", 2, 1, 2000.0)],
            60.0,
        );
        let (large, small) = (got["large"].admitted, got["small"].admitted);
        assert!(large >= 42 * 60, "cost {cost}: {got:?}");
        assert!(large + small >= 98 * 60, "cost {cost}: {got:?}");
    }
}

/// Each retry time is true if nobody else asks. Here another client does, so it takes a few of them.
#[test]
fn large_request_that_comes_back_at_its_retry_time_is_admitted() {
    let (limit, mut state) = (hundred_a_second(), State::default());
    let [large, small] = [1, 2].map(|id| limit.for_client(client(id, 1, 0)));
    let (mut admitted, mut asked, mut due) = (Vec::new(), 0, instant(5.0));
    for milli in 0..30_000_u64 {
        let now = instant(0.0) + Span::from_millis(milli);
        match small.decide(&state, 1, now).is_allowed() {
            true => small.charge(&mut state, 1, now),
            false => small.note_denied(&mut state, 1, now),
        }
        if now < due {
            continue;
        }
        asked += 1;
        let verdict = large.decide(&state, 60, now);
        if verdict.is_allowed() {
            large.charge(&mut state, 60, now);
            admitted.push(milli);
        } else {
            large.note_denied(&mut state, 60, now);
            due = verdict.retry_at().expect("a time");
        }
    }
    // Its share is a request every 1.2 s, from 5 s on.
    assert!(admitted.len() >= 19, "{admitted:?}");
    assert!(asked <= 20 * admitted.len(), "{asked} for {admitted:?}");
}

#[test]
fn a_denied_client_is_admitted_at_its_retry_time_at_the_latest() {
    let limit = hundred_a_second();
    let mut state = State::default();
    let now = instant(0.0);
    let [one, other] = [1, 2].map(|id| limit.for_client(client(id, 1, 0)));
    for _ in 0..300 {
        for it in [&one, &other] {
            match it.decide(&state, 1, now).is_allowed() {
                true => it.charge(&mut state, 1, now),
                false => it.note_denied(&mut state, 1, now),
            }
        }
    }
    for it in [one, other] {
        let denied = it.decide(&state, 1, now);
        let at = denied.retry_at().expect("denied");
        assert!(at > now && at <= now + Span::SECOND, "{at:?}");
        assert!(it.decide(&state, 1, at).is_allowed());
    }
    let never = limit.decide(&state, 101, now);
    assert!(!never.is_allowed() && never.retry_at().is_none());
}

#[test]
fn a_refund_gives_tokens_and_share_back() {
    let limit = hundred_a_second().for_client(client(1, 1, 0));
    let (mut state, now) = (State::default(), instant(0.0));
    limit.charge(&mut state, 60, now);
    limit.refund(&mut state, 60, now, now);
    assert!(limit.decide(&state, 100, now).is_allowed());
}

/// Units that a client reserves, and gives back when the bucket has refilled them, were missing for the others. So
/// they count as its share: reserving again and again does not take the shares of others.
#[test]
fn reservations_that_are_given_back_late_do_not_take_shares_of_others() {
    let (limit, mut state) = (hundred_a_second(), State::default());
    let reserves = limit.for_client(client(100, 1, 0));
    let others: Vec<Fair> = (0..3)
        .map(|id| limit.for_client(client(id, 1, 0)))
        .collect();
    let (mut taken, mut open) = ([0; 3], Vec::new());
    for milli in 0..60_000_u64 {
        let now = instant(0.0) + Span::from_millis(milli);
        for _ in 0..3 {
            match reserves.decide(&state, 1, now).is_allowed() {
                true => {
                    reserves.charge(&mut state, 1, now);
                    open.push(now);
                }
                false => reserves.note_denied(&mut state, 1, now),
            }
        }
        open.retain(|at| {
            let is_open = now < *at + Span::from_millis(100);
            if !is_open {
                reserves.refund(&mut state, 1, *at, now);
            }
            is_open
        });
        let other = usize::try_from(milli % 3).unwrap();
        match others[other].decide(&state, 1, now).is_allowed() {
            true => {
                others[other].charge(&mut state, 1, now);
                taken[other] += 1;
            }
            false => others[other].note_denied(&mut state, 1, now),
        }
    }
    // A quarter of the refill each.
    assert!(taken.iter().all(|it| *it >= 24 * 60), "{taken:?}");
}

/// Units that come back at once count neither for the bucket nor for the client.
#[test]
fn units_that_are_given_back_at_once_do_not_count_as_the_share() {
    let (limit, mut state) = (hundred_a_second(), State::default());
    let [reserves, takes] = [1, 2].map(|id| limit.for_client(client(id, 1, 0)));
    let (mut settled, mut taken) = (0, 0);
    for milli in 0..60_000_u64 {
        let now = instant(0.0) + Span::from_millis(milli);
        match takes.decide(&state, 1, now).is_allowed() {
            true => {
                takes.charge(&mut state, 1, now);
                taken += 1;
            }
            false => takes.note_denied(&mut state, 1, now),
        }
        match reserves.decide(&state, 20, now).is_allowed() {
            true => {
                reserves.charge(&mut state, 20, now);
                reserves.refund(&mut state, 16, now, now);
                settled += 4;
            }
            false => reserves.note_denied(&mut state, 20, now),
        }
    }
    assert!(settled * 10 >= taken * 9, "{settled} and {taken}");
    assert!(taken * 10 >= settled * 9, "{settled} and {taken}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Random clients, weights, costs, lanes and steps of time, also backwards: the total is never above the
    /// bucket, and a cost within `available` always passes.
    #[test]
    fn the_total_is_never_above_the_bucket(
        capacity in 1_u64..200,
        rate in 1_u64..500,
        two_lanes in any::<bool>(),
        steps in proptest::collection::vec((0_u64..12, 1_u32..9, 0_u8..2, 1_u64..6, -2000_i64..40_000), 1..600),
    ) {
        let refill = Rate::new(rate, Span::SECOND).unwrap();
        let limit = match two_lanes {
            true => fair::with_lanes(capacity, refill, lanes(false).lanes()).unwrap(),
            false => fair::new(capacity, refill).unwrap(),
        };
        let mut state = State::default();
        let start = instant(0.0).as_micros();
        // The first request may come before `start`.
        let (mut micros, mut latest) = (start, 0);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (id, weight, lane, cost, step) in steps {
            micros = micros.saturating_add_signed(step);
            latest = latest.max(micros);
            let now = Time::from_micros(micros);
            let limit = limit.for_client(client(id, weight, lane));
            let verdict = limit.decide(&state, cost, now);
            let available = verdict.available;
            if available > 0 {
                prop_assert!(limit.decide(&state, available, now).is_allowed());
            }
            if verdict.is_allowed() {
                limit.charge(&mut state, cost, now);
                taken.push((latest, cost));
            } else {
                limit.note_denied(&mut state, cost, now);
            }
        }
        for first in 0..taken.len() {
            let mut sum = 0;
            for (at, cost) in &taken[first..] {
                sum += cost;
                let span = at - taken[first].0;
                prop_assert!((sum - capacity.min(sum)) * 1_000_000 <= rate * span);
            }
        }
    }

    /// Requests of clients that the bucket knows are decided in place, with the same answers and the same state as
    /// all requests: with random clients, weights that change, costs, lanes and steps of time, also backwards.
    #[test]
    fn known_clients_are_decided_as_all_clients(
        capacity in 1_u64..200,
        rate in 1_u64..500,
        two_lanes in any::<bool>(),
        notes in any::<bool>(),
        pace in 1_i64..2000,
        steps in proptest::collection::vec((0_u64..12, 0_u32..40, 0_u8..2, 0_u64..9, -20_i64..400), 1..600),
    ) {
        let refill = Rate::new(rate, Span::SECOND).unwrap();
        let limit = match two_lanes {
            true => fair::with_lanes(capacity, refill, lanes(false).lanes()).unwrap(),
            false => fair::new(capacity, refill).unwrap(),
        };
        let mut state = State::default();
        let mut micros = instant(0.0).as_micros();
        for (id, weight, lane, cost, step) in steps {
            micros = micros.saturating_add_signed(step * pace);
            let now = Time::from_micros(micros);
            // Few clients change their weights.
            let weight = 1 + u32::try_from(id % 3).unwrap() + weight / 39;
            let limit = limit.for_client(client(id, weight, lane));
            let (mut in_place, before) = (state.clone(), state.clone());
            let left = limit.take_as_known(&mut in_place, cost, now);
            let verdict = limit.decide(&state, cost, now);
            match verdict.is_allowed() {
                true => limit.charge(&mut state, cost, now),
                false if notes => limit.note_denied(&mut state, cost, now),
                false => {}
            }
            if left.is_some() {
                prop_assert!(verdict.is_allowed());
                prop_assert_eq!(left, Some(limit.left(&state, verdict.available, cost, now)));
                prop_assert_eq!(&in_place, &state);
            } else {
                prop_assert_eq!(in_place, before);
            }
        }
    }
}

/// The first request of a client, and the first one of an epoch, begin something. All others that pass are decided
/// in place.
#[test]
fn most_requests_of_known_clients_are_decided_in_place() {
    for limit in [hundred_a_second(), lanes(false)] {
        let (mut state, mut in_place) = (State::default(), 0);
        for asked in 0..1000_u64 {
            let now = instant(0.0) + Span::from_millis(20 * asked);
            let limit = limit.for_client(client(asked % 10, 1, 0));
            match limit.take_as_known(&mut state, 1, now) {
                Some(_) => in_place += 1,
                None => {
                    assert!(limit.decide(&state, 1, now).is_allowed());
                    limit.charge(&mut state, 1, now);
                }
            }
        }
        assert!(in_place >= 900, "{in_place}");
    }
}
