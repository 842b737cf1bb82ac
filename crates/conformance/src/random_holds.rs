//! Sends long random sequences of holds to a store and to the reference, and compares the answers. Also
//! compares the store with accounts of the reserved and used units.
//!
//! There are few ids, so that calls are repeated, contradict each other, and come too late.

use std::collections::BTreeMap;

use tollgate_core::{CarryOver, Charge, Enforcement, HoldId, Limit, Span, Time, Token};

use super::random::{Random, Range};
use super::reference::ReferenceStore;
use super::{Fixture, Kind, START, hold_id, key, reservation, seed};
use tollgate_store::{
    Ask, Extended, Held, HoldRecord, ManualClock, NewHold, OpenBound, Purpose, Settle, Settled,
    Store, Wait,
};

/// The number of recent holds. Each call is about one of them.
const RECENT: u64 = 12;
const LONG: Span = Span::from_secs(1_000 * 86_400);

/// The limits of the subjects.
struct Subjects {
    limits: Vec<Limit>,
    /// Other numbers for each limit. With each change, the limit switches to its other numbers.
    others: Vec<Limit>,
    changes: Vec<usize>,
}

impl Subjects {
    /// Returns subjects with limits that keep their numbers.
    fn new(limits: Vec<Limit>) -> Subjects {
        Subjects {
            others: limits.clone(),
            changes: vec![0; limits.len()],
            limits,
        }
    }

    fn charge(&self, place: usize, cost: u64, enforcement: Enforcement) -> Charge<'_> {
        let limit = match self.changes[place] % 2 {
            0 => &self.limits[place],
            _ => &self.others[place],
        };
        Charge {
            overflow: key(place as u64 + (1 << 32)),
            rule: "rule",
            cost,
            enforcement,
            carry_over: CarryOver::ALL[self.changes[place] % 3],
            overdraft: place as u64 % 3,
            ..Charge::new(key(place as u64), limit)
        }
    }

    fn plain(&self, place: usize) -> Charge<'_> {
        self.charge(place, 1, Enforcement::Enforce)
    }
}

fn slots(limit: u64) -> Limit {
    Limit::concurrency(limit, Span::SECOND).expect("a limit of slots")
}

fn id(number: u64) -> HoldId {
    hold_id(number.into())
}

/// Returns the hold with this number. The same number always gives the same hold.
fn hold_of(number: u64) -> NewHold<'static> {
    let is_lease = number.is_multiple_of(3);
    NewHold {
        ttl: Span::from_millis(500 + 700 * (number % 7)),
        purpose: if is_lease {
            Purpose::Lease
        } else {
            Purpose::Reservation
        },
        token: Token::new(if is_lease { number.into() } else { 0 }),
        fingerprint: number,
        wait: number.is_multiple_of(2).then_some(Wait {
            ticket: number.into(),
            patience: Span::from_secs(if number.is_multiple_of(8) { 0 } else { 2 }),
        }),
        bound: number.is_multiple_of(5).then_some(OpenBound {
            subject: u128::from(number % 2),
            most: 2,
        }),
        ..reservation(number.into())
    }
}

fn settle_of(random: &mut Random, number: u64) -> Settle {
    match random.below(9) {
        0..4 => Settle::Commit {
            actual: random.below(9),
        },
        4 => Settle::Release,
        5 => Settle::Expire,
        6 => Settle::ReleaseLease {
            token: Token::new(number.into()),
        },
        7 => Settle::ReleaseLease {
            token: Token::new(u128::MAX),
        },
        _ => Settle::Undo,
    }
}

/// Sends `steps` random calls to the store and to the reference, and compares every answer.
pub async fn random_holds_match_the_reference(fixture: &impl Fixture, steps: usize) {
    let (store, range) = (fixture.store(), fixture.range());
    let mut random = Random(seed(5));
    let reference = ReferenceStore::new(ManualClock::at(START));
    let mut now = START;
    fixture.set_time(now);
    let kinds = [
        Kind::FixedWindow,
        Kind::Gcra,
        Kind::SlidingLog,
        Kind::TokenBucket,
        Kind::TwoWindow,
        Kind::SlidingCounter,
        Kind::LeakyPolice,
        Kind::Quota,
        // A fair bucket remembers a client whose charge was given back.
        match range {
            Range::Steady => Kind::Gcra,
            Range::All | Range::OneCharge => Kind::Fair,
        },
    ];
    let slots = [slots(1), slots(2), slots(4)];
    let limits = |capacity, window, calendar| {
        let limits = kinds.map(|kind| match kind {
            Kind::Quota => kind.limit(capacity, calendar),
            _ => kind.limit(capacity, window),
        });
        limits.into_iter().chain(slots.clone()).collect()
    };
    let mut subjects = Subjects {
        others: limits(31, Span::from_secs(9), Span::from_millis(1)),
        ..Subjects::new(limits(12, Span::from_secs(5), Span::SECOND))
    };
    let mut last = 1;
    for step in 0..steps {
        let number = last + 1 - random.below(RECENT.min(last));
        if range != Range::Steady && random.below(20) == 0 {
            let place = random.index(subjects.limits.len());
            subjects.changes[place] += 1;
        }
        match random.below(10) {
            0..4 => {
                let number = if random.below(3) > 0 {
                    last += 1;
                    last
                } else {
                    number
                };
                let most = if range == Range::All { 3 } else { 1 };
                let charges: Vec<Charge<'_>> = (0..=random.below(most))
                    .map(|_| {
                        let place = random.index(subjects.limits.len());
                        let enforcement = match random.below(6) {
                            0 => Enforcement::Shadow,
                            _ => Enforcement::Enforce,
                        };
                        subjects.charge(place, 1 + random.below(2), enforcement)
                    })
                    .collect();
                let (units, mut new) = (random.below(6), hold_of(number));
                if random.below(10) == 0 {
                    new.fingerprint += 1;
                }
                let expected = reference.hold(&charges, units, &new).await;
                let reply = store.hold(&charges, units, &new).await;
                assert_eq!(
                    reply, expected,
                    "step {step}: {units} of {charges:?}, {new:?}"
                );
            }
            4..6 => {
                let how = settle_of(&mut random, number);
                let expected = reference.settle(id(number), how).await;
                let reply = store.settle(id(number), how).await;
                assert_eq!(reply, expected, "step {step}: {how:?} of {number}");
            }
            6 => {
                let ttl = Span::from_millis(random.below(4_000));
                let token = match random.below(4) {
                    0 => None,
                    1 => Some(Token::new(u128::MAX)),
                    _ => Some(Token::new(number.into())),
                };
                let expected = reference.extend(id(number), ttl, token).await;
                let reply = store.extend(id(number), ttl, token).await;
                assert_eq!(reply, expected, "step {step}: {ttl} more for {number}");
            }
            7 => {
                let due = reference.due_holds(100).await.expect("it answers");
                if range == Range::All {
                    let reply = store.due_holds(100).await;
                    assert_eq!(reply.as_ref(), Ok(&due), "step {step}");
                }
                for id in due {
                    let expected = reference.settle(id, Settle::Expire).await;
                    let reply = store.settle(id, Settle::Expire).await;
                    assert_eq!(reply, expected, "step {step}: {id} is due");
                }
            }
            _ => {
                let passed = match random.below(3) {
                    0 => Span::from_micros(random.below(3)),
                    1 => Span::from_millis(random.below(500)),
                    _ => Span::from_millis(random.below(4_000)),
                };
                now = now + passed;
                fixture.set_time(now);
                reference.clock().set(now);
            }
        }
        for charge in (0..subjects.limits.len()).map(|place| subjects.plain(place)) {
            let expected = reference.peek(&[charge], Ask::Exactly(1)).await;
            let reply = store.peek(&[charge], Ask::Exactly(1)).await;
            assert_eq!(reply, expected, "step {step}: a look at {charge:?}");
        }
        let expected = reference.find_hold(id(number)).await;
        assert_eq!(store.find_hold(id(number)).await, expected, "step {step}");
        let charge = subjects.plain(subjects.limits.len() - 1);
        let expected = reference.holders(&charge, 9).await;
        assert_eq!(store.holders(&charge, 9).await, expected, "step {step}");
    }
}

/// The reserved and used units of a hold.
#[derive(Clone, Debug)]
struct Account {
    places: Vec<usize>,
    units: u64,
    expires_at: Time,
    /// The used units of each charge, after the hold has ended.
    used: Option<Vec<u64>>,
}

/// Returns the units of one limit that are neither reserved nor used.
fn left(accounts: &BTreeMap<u64, Account>, place: usize, limit: u64) -> u64 {
    let mut taken = 0;
    for account in accounts.values() {
        for (i, other) in account.places.iter().enumerate() {
            if *other == place {
                taken += account.used.as_ref().map_or(account.units, |used| used[i]);
            }
        }
    }
    limit.saturating_sub(taken)
}

/// Reserves, commits, releases, extends and expires holds, in any order and repeatedly, on windows that do
/// not end. At every step, the amount left is the limit less the reserved and used units, and at most
/// `limit` slots are held. When all holds are settled, only the used units are gone.
pub async fn random_holds_leak_nothing(fixture: &impl Fixture, steps: usize) {
    const LIMIT: u64 = 300;
    const SLOTS: u64 = 3;
    let store = fixture.store();
    let mut random = Random(seed(11));
    let mut now = START;
    fixture.set_time(now);
    let mut limits = vec![Kind::FixedWindow.limit(LIMIT, LONG); 3];
    limits.push(slots(SLOTS));
    let subjects = Subjects::new(limits);
    let plain = |place| Charge {
        overdraft: 0,
        ..subjects.plain(place)
    };
    // Compares the units left in each window with the accounts.
    let check = async |accounts: &BTreeMap<u64, Account>, step: usize| {
        for place in 0..3 {
            let remaining = remaining(store, &plain(place)).await;
            assert_eq!(remaining, left(accounts, place, LIMIT), "step {step}");
        }
    };
    let mut accounts: BTreeMap<u64, Account> = BTreeMap::new();
    // The number of the latest hold.
    let mut last = 0;
    for step in 0..steps {
        let number = last + 1 - random.below(RECENT.min(last + 1));
        match random.below(8) {
            0..3 => {
                let number = if random.below(4) > 0 {
                    last += 1;
                    last
                } else {
                    number.min(last).max(1)
                };
                let places: Vec<usize> = (0..4).filter(|_| random.below(2) == 0).collect();
                let charges: Vec<Charge<'_>> = places.iter().map(|it| plain(*it)).collect();
                let units = 1 + random.below(40);
                let new = NewHold {
                    purpose: Purpose::Reservation,
                    wait: None,
                    bound: None,
                    ..hold_of(number)
                };
                let fits = |place: &usize| match *place {
                    3 => holders(&accounts, now) < SLOTS,
                    place => left(&accounts, place, LIMIT) >= units,
                };
                let known = accounts.contains_key(&number);
                let fits = places.iter().all(fits);
                let held = store.hold(&charges, units, &new).await;
                match held.expect("the store answers") {
                    Held::Taken { record, .. } if fits && !known => {
                        let account = Account {
                            places,
                            units,
                            expires_at: record.expires_at,
                            used: None,
                        };
                        accounts.insert(number, account);
                    }
                    Held::Repeated(_) if known => {}
                    Held::Denied { .. } if !fits && !known => {}
                    other => panic!("step {step}: {other:?}, {fits}, {known}"),
                }
            }
            3..6 => {
                let how = match settle_of(&mut random, number) {
                    Settle::ReleaseLease { .. } | Settle::Undo => Settle::Release,
                    Settle::Commit { actual } => Settle::Commit { actual: actual * 6 },
                    other => other,
                };
                let before = accounts.clone();
                let account = accounts.get_mut(&number);
                let settled = store.settle(id(number), how).await;
                match (account, settled.expect("the store answers")) {
                    (None, Settled::Unknown) => {}
                    (Some(account), Settled::Already(_)) if account.used.is_some() => {}
                    (Some(account), Settled::NotYet(_))
                        if how == Settle::Expire && now < account.expires_at => {}
                    (Some(account), Settled::Done(record)) if account.used.is_none() => {
                        let used = |place: &usize| match how {
                            _ if *place == 3 => 0,
                            Settle::Commit { actual } => {
                                let most = account.units + left(&before, *place, LIMIT);
                                actual.min(most)
                            }
                            _ => 0,
                        };
                        let used: Vec<u64> = account.places.iter().map(used).collect();
                        let taken = record.charges.iter().map(|it| it.taken);
                        assert_eq!(taken.collect::<Vec<_>>(), used, "step {step}");
                        account.used = Some(used);
                    }
                    other => panic!("step {step}: {how:?} of {number}: {other:?}"),
                }
            }
            6 => {
                let ttl = Span::from_millis(random.below(5_000));
                let extended = store.extend(id(number), ttl, None).await;
                let account = accounts.get_mut(&number);
                match (account, extended.expect("the store answers")) {
                    (None, Extended::Unknown) => {}
                    (Some(account), Extended::Ended(_)) if account.used.is_some() => {}
                    (Some(account), Extended::Lapsed(_))
                        if account.places.contains(&3) && now >= account.expires_at => {}
                    (Some(account), Extended::Done(record)) if account.used.is_none() => {
                        account.expires_at = account.expires_at.max(now + ttl);
                        assert_eq!(record.expires_at, account.expires_at, "step {step}");
                    }
                    other => panic!("step {step}: {number} for {ttl}: {other:?}"),
                }
            }
            _ => {
                now = now + Span::from_millis(random.below(1_500));
                fixture.set_time(now);
            }
        }
        check(&accounts, step).await;
        let free = SLOTS.saturating_sub(holders(&accounts, now));
        assert_eq!(remaining(store, &plain(3)).await, free, "step {step}");
        if left(&accounts, 0, LIMIT) < 20 {
            finish(store, &mut accounts).await;
            check(&accounts, step).await;
            let all: Vec<Charge<'_>> = (0..4).map(plain).collect();
            store.reset(&all).await.expect("the store answers");
            accounts.clear();
            // The next calls are about new holds only.
            last += RECENT;
        }
    }
    finish(store, &mut accounts).await;
    check(&accounts, steps).await;
    assert_eq!(remaining(store, &plain(3)).await, SLOTS);
}

/// Returns how many slots are held.
fn holders(accounts: &BTreeMap<u64, Account>, now: Time) -> u64 {
    let holds = |it: &&Account| it.used.is_none() && it.places.contains(&3) && it.expires_at > now;
    accounts.values().filter(holds).count() as u64
}

async fn remaining<S: Store>(store: &S, charge: &Charge<'_>) -> u64 {
    let seen = store.peek(&[*charge], Ask::Exactly(0)).await;
    seen.expect("the store answers").outcomes[0].remaining
}

/// Releases all open holds.
async fn finish<S: Store>(store: &S, accounts: &mut BTreeMap<u64, Account>) {
    for (number, account) in accounts.iter_mut() {
        if account.used.is_none() {
            let settled = store.settle(id(*number), Settle::Release).await;
            let done = |it: &HoldRecord| it.charges.iter().all(|it| it.taken == 0);
            assert!(matches!(settled, Ok(Settled::Done(it)) if done(&it)));
            account.used = Some(vec![0; account.places.len()]);
        }
    }
}
