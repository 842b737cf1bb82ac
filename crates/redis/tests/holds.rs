//! Holds on real servers. Repeated calls make a hold once, any instance can settle it, and nothing is left
//! behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use common::{LONG, RUNTIME, block_on, charge, connect, options};
use tollgate_conformance::{Kind, TTL, hold_id as id, reservation};
use tollgate_core::{Charge, HoldId, Limit, OnDenied, Span, Tag, Token};
use tollgate_redis::RedisStore;
use tollgate_rig::{Cluster, Redis};
use tollgate_store::{
    Ask, Extended, Held, HoldRecord, HoldState, ManualClock, NewHold, OpenBound, Purpose, Settle,
    Settled, Store, StoreError, Wait,
};

fn lease(number: u128) -> NewHold<'static> {
    NewHold {
        purpose: Purpose::Lease,
        token: Token::new(number),
        ..reservation(number)
    }
}

fn left(store: &RedisStore, charge: Charge<'_>) -> u64 {
    let seen = block_on(store.peek(&[charge], Ask::Exactly(0))).unwrap();
    seen.outcomes[0].remaining
}

fn held(
    store: &RedisStore,
    charges: &[Charge<'_>],
    units: u64,
    new: &NewHold<'_>,
) -> Arc<HoldRecord> {
    match block_on(store.hold(charges, units, new)).unwrap() {
        Held::Taken { record, .. } => record,
        other => panic!("{other:?}"),
    }
}

fn done(store: &RedisStore, number: u128, how: Settle) -> Arc<HoldRecord> {
    match block_on(store.settle(id(number), how)).unwrap() {
        Settled::Done(record) => record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn concurrent_duplicates_charge_once() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let limit = Arc::new(Kind::FixedWindow.limit(1_000, LONG));
    for number in 1..=20 {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (store, limit) = (store.clone(), Arc::clone(&limit));
                RUNTIME.spawn(async move {
                    let charge = charge(1, &limit);
                    let held = store
                        .hold(&[charge], 10, &reservation(number))
                        .await
                        .unwrap();
                    let settled = store.settle(id(number), Settle::Commit { actual: 4 }).await;
                    (
                        matches!(held, Held::Taken { .. }),
                        matches!(settled.unwrap(), Settled::Done(_)),
                    )
                })
            })
            .collect();
        let answers: Vec<(bool, bool)> =
            tasks.into_iter().map(|it| block_on(it).unwrap()).collect();
        assert_eq!(answers.iter().filter(|it| it.0).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|it| it.1).count(), 1, "{answers:?}");
    }
    assert_eq!(left(&store, charge(1, &limit)), 1_000 - 20 * 4);
    common::every_key_expires(&redis);
}

#[test]
fn a_hold_of_one_instance_is_settled_by_another() {
    let redis = Redis::start();
    let (one, other) = (connect(options(&redis)), connect(options(&redis)));
    let window = Kind::FixedWindow.limit(100, LONG);
    let slots = Limit::concurrency(1, TTL).unwrap();
    let both = [charge(1, &window), charge(2, &slots)];
    let record = held(&one, &both, 10, &reservation(1));
    assert_eq!(block_on(other.find_hold(id(1))).unwrap(), Some(record));
    let extended = block_on(other.extend(id(1), Span::HOUR, None)).unwrap();
    assert!(matches!(extended, Extended::Done(_)), "{extended:?}");
    let record = done(&other, 1, Settle::Commit { actual: 3 });
    assert_eq!(record.state, HoldState::Consumed);
    assert_eq!((left(&one, both[0]), left(&one, both[1])), (97, 1));
    // The first instance remembers the hold as it was made, and does not know that it has ended.
    let late = block_on(one.settle(id(1), Settle::Release)).unwrap();
    assert_eq!(late, Settled::Already(record));
    common::every_key_expires(&redis);
}

#[test]
fn flushed_scripts_are_sent_again() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let window = Kind::FixedWindow.limit(100, LONG);
    let one = charge(1, &window);
    let forget = || redis.cli(&["SCRIPT", "FLUSH"]);
    held(&store, &[one], 10, &reservation(1));
    forget();
    held(&store, &[one], 10, &reservation(2));
    forget();
    assert!(block_on(store.find_hold(id(2))).unwrap().is_some());
    forget();
    done(&store, 2, Settle::Release);
    forget();
    assert_eq!(block_on(store.due_holds(9)).unwrap(), []);
    assert_eq!(left(&store, one), 90);
}

#[test]
fn values_of_other_programs_are_left_alone() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let window = Kind::FixedWindow.limit(100, LONG);
    let slots = Limit::concurrency(1, TTL).unwrap();
    held(&store, &[charge(1, &window)], 1, &reservation(1));
    let record = format!("tg:v1:{{00000000}}:hold:{:032x}", 2);
    redis.cli(&[
        "SET",
        &record,
        "something else, and long enough to be a record of a hold, if it were",
    ]);
    let held = block_on(store.hold(&[charge(1, &window)], 1, &reservation(2)));
    assert_eq!(held, Err(StoreError::Foreign(record.as_str().into())));
    let found = block_on(store.find_hold(id(2)));
    assert_eq!(found, Err(StoreError::Foreign(record.into())));
    // Slots are a sorted set; a string in their place is foreign.
    block_on(store.hold(&[charge(2, &slots)], 1, &lease(3))).unwrap();
    let mut resp = redis.connect();
    let key = resp
        .keys()
        .into_iter()
        .find(|it| it.ends_with(b":s"))
        .unwrap();
    let key = String::from_utf8(key).unwrap();
    redis.cli(&["SET", &key, "text"]);
    let held = block_on(store.hold(&[charge(1, &window), charge(2, &slots)], 1, &lease(4)));
    assert_eq!(held, Err(StoreError::Foreign(key.as_str().into())));
    assert_eq!(left(&store, charge(1, &window)), 99);
    // A record is a string; a list in its place is foreign.
    let list = format!("tg:v1:{{00000000}}:hold:{:032x}", 5);
    redis.cli(&["RPUSH", &list, "a"]);
    let held = block_on(store.hold(&[charge(1, &window)], 1, &reservation(5)));
    assert_eq!(held, Err(StoreError::Foreign(list.as_str().into())));
    assert_eq!(left(&store, charge(1, &window)), 99);
    assert_eq!(redis.cli(&["LLEN", &list]).trim(), "1");
    // A record with a changed text is foreign.
    let record = format!("tg:v1:{{00000000}}:hold:{:032x}", 1);
    redis.cli(&["SETRANGE", &record, "80", "\u{1}"]);
    let other = connect(options(&redis));
    let settled = block_on(other.settle(id(1), Settle::Release));
    assert_eq!(settled, Err(StoreError::Foreign(record.into())));
}

#[test]
fn a_wrong_index_is_corrected() {
    let redis = Redis::start();
    let clock = ManualClock::at(tollgate_core::Time::from_micros(1_700_000_000_000_000));
    let store = connect(common::by_clock(options(&redis), &clock));
    let index = "tg:v1:{00000000}:holds:default";
    let window = Kind::FixedWindow.limit(100, LONG);
    let one = charge(1, &window);
    held(&store, &[one], 1, &reservation(1));
    held(&store, &[one], 1, &reservation(2));
    done(&store, 2, Settle::Release);
    // The index says that these are due: an open hold, an ended one, an unknown one, and a text that is not an id.
    for member in [
        id(1).to_string(),
        id(2).to_string(),
        id(3).to_string(),
        "what".to_owned(),
    ] {
        redis.cli(&["ZADD", index, "1", &member]);
    }
    let due = || block_on(store.due_holds(100)).unwrap();
    assert_eq!(due(), [id(1), id(2), id(3)]);
    for number in 1..=3 {
        block_on(store.settle(id(number), Settle::Expire)).unwrap();
    }
    assert_eq!(due(), []);
    clock.advance(TTL);
    assert_eq!(due(), [id(1)]);
    done(&store, 1, Settle::Expire);
    assert_eq!(left(&store, one), 100);
}

#[test]
fn sixty_four_clients_share_three_slots_in_order() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let limit = Arc::new(Limit::concurrency(3, TTL).unwrap());
    let inside = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let tasks: Vec<_> = (1..=64_u128)
        .map(|number| {
            let (store, limit, inside) = (store.clone(), Arc::clone(&limit), Arc::clone(&inside));
            RUNTIME.spawn(async move {
                let new = NewHold {
                    wait: Some(Wait {
                        ticket: number,
                        patience: TTL,
                    }),
                    ..lease(number)
                };
                loop {
                    match store.hold(&[charge(1, &limit)], 1, &new).await.unwrap() {
                        Held::Taken { .. } => break,
                        Held::Denied { ahead, .. } => assert!(ahead.is_some()),
                        other => panic!("{other:?}"),
                    }
                    tokio::task::yield_now().await;
                }
                let now = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                assert!(now <= 3, "{now} hold three slots");
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                let token = new.token;
                let settled = store.settle(new.id, Settle::ReleaseLease { token }).await;
                assert!(matches!(settled, Ok(Settled::Done(_))), "{settled:?}");
            })
        })
        .collect();
    tasks.into_iter().for_each(|it| block_on(it).unwrap());
    assert_eq!(block_on(store.holders(&charge(1, &limit), 9)).unwrap(), []);
    common::every_key_expires(&redis);
}

/// Returns a charge with its own tag.
fn tagged(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        tag: Tag::new(u32::try_from(number).unwrap()),
        ..charge(number, limit)
    }
}

#[test]
fn a_hold_in_several_cluster_slots_is_one_hold() {
    let cluster = Cluster::start(3, 0);
    let clock = ManualClock::at(tollgate_core::Time::from_micros(1_700_000_000_000_000));
    let options = common::by_clock(common::cluster_options(&cluster), &clock);
    let (one, other) = (connect(options.clone()), connect(options));
    let windows: Vec<Limit> = (0..3).map(|_| Kind::FixedWindow.limit(100, LONG)).collect();
    let slots = Limit::concurrency(1, TTL).unwrap();
    let mut all: Vec<Charge<'_>> = (1..).zip(&windows).map(|(n, it)| tagged(n, it)).collect();
    all.push(tagged(4, &slots));
    let stand = || all.iter().map(|it| left(&one, *it)).collect::<Vec<_>>();

    let record = held(&one, &all, 10, &lease(1));
    assert_eq!(stand(), [90, 90, 90, 0]);
    assert_eq!(block_on(other.find_hold(id(1))).unwrap(), Some(record));
    // The last slot denies: the charges in the other slots are undone, and the id can be used again.
    let denied = block_on(one.hold(&all, 10, &lease(2))).unwrap();
    assert!(matches!(denied, Held::Denied { .. }), "{denied:?}");
    assert_eq!(stand(), [90, 90, 90, 0]);
    assert_eq!(block_on(one.find_hold(id(2))).unwrap(), None);
    let token = Token::new(1);
    let extended = block_on(other.extend(id(1), Span::HOUR, Some(token))).unwrap();
    let Extended::Done(record) = extended else {
        panic!("{extended:?}");
    };
    clock.advance(TTL);
    assert_eq!(stand(), [90, 90, 90, 0], "renewed in every slot");
    assert_eq!(block_on(other.find_hold(id(1))).unwrap(), Some(record));
    done(&other, 1, Settle::ReleaseLease { token });
    assert_eq!(stand(), [90, 90, 90, 1]);

    held(&one, &all, 10, &reservation(3));
    let committed = done(&other, 3, Settle::Commit { actual: 4 });
    let taken: Vec<u64> = committed.charges.iter().map(|it| it.taken).collect();
    assert_eq!(taken, [4, 4, 4, 0]);
    assert_eq!(stand(), [86, 86, 86, 1]);
    let again = block_on(one.settle(id(3), Settle::Release)).unwrap();
    assert_eq!(again, Settled::Already(committed));

    held(&one, &all, 10, &reservation(4));
    clock.advance(TTL);
    assert_eq!(block_on(other.due_holds(9)).unwrap(), [id(4)]);
    done(&other, 4, Settle::Expire);
    assert_eq!(stand(), [86, 86, 86, 1]);
    assert_eq!(block_on(one.due_holds(9)).unwrap(), []);
}

/// The hold waits in the queue of one cluster slot, and another slot denies it. The hold leaves the queue,
/// and the denial counts once.
#[test]
fn leaving_a_queue_does_not_count_a_second_denial() {
    let cluster = Cluster::start(3, 0);
    let store = connect(common::cluster_options(&cluster));
    let window = Kind::FixedWindow.limit(100, LONG);
    let slots = Limit::concurrency(1, TTL).unwrap();
    let nothing = Kind::FixedWindow.limit(0, LONG);
    let counts = Charge {
        on_denied: OnDenied::Charge,
        ..tagged(1, &window)
    };
    let slot = Charge {
        tag: counts.tag,
        ..charge(2, &slots)
    };
    held(&store, &[slot], 1, &lease(1));
    let waits = NewHold {
        wait: Some(Wait {
            ticket: 9,
            patience: Span::HOUR,
        }),
        ..lease(2)
    };
    let all = [counts, slot, tagged(3, &nothing)];
    match block_on(store.hold(&all, 1, &waits)).unwrap() {
        Held::Denied { ahead, .. } => assert_eq!(ahead, None),
        other => panic!("{other:?}"),
    }
    assert_eq!(left(&store, counts), 99);
    let token = Token::new(1);
    done(&store, 1, Settle::ReleaseLease { token });
    assert_eq!(left(&store, slot), 1, "the queue is empty");
}

/// Simulates a process that died while it ended the hold.
#[test]
fn open_parts_are_ended_when_the_hold_is_due() {
    let cluster = Cluster::start(3, 0);
    let clock = ManualClock::at(tollgate_core::Time::from_micros(1_700_000_000_000_000));
    let options = common::by_clock(common::cluster_options(&cluster), &clock);
    let prefix = options.key_prefix.clone();
    let store = connect(options);
    let (first, second) = (
        Kind::FixedWindow.limit(100, LONG),
        Kind::FixedWindow.limit(100, LONG),
    );
    let both = [tagged(1, &first), tagged(2, &second)];
    held(&store, &both, 10, &reservation(1));
    let keeper = |key: &str| {
        let slot = cluster.nodes()[0].cli(&["CLUSTER", "KEYSLOT", key]);
        let slot: u16 = slot.trim().parse().unwrap();
        let nodes = cluster.nodes().iter();
        let mut nodes = nodes.filter(|node| {
            let counted = node.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
            counted.trim() != "0"
        });
        nodes.next().unwrap()
    };
    let record = format!("{prefix}:v1:{{00000000}}:hold:{:032x}", 1);
    // The deciding record is released; the other parts are still open.
    keeper(&record).cli(&["SETRANGE", &record, "1", "\u{2}"]);
    clock.advance(TTL);
    assert_eq!(block_on(store.due_holds(9)).unwrap(), [id(1)]);
    let settled = block_on(store.settle(id(1), Settle::Expire)).unwrap();
    assert!(matches!(settled, Settled::Already(_)), "{settled:?}");
    assert_eq!((left(&store, both[0]), left(&store, both[1])), (100, 100));
    assert_eq!(block_on(store.due_holds(9)).unwrap(), []);
}

/// Simulates a server that has lost the data of one slot.
#[test]
fn a_lease_with_a_lost_slot_is_not_renewed() {
    let cluster = Cluster::start(3, 0);
    let store = connect(common::cluster_options(&cluster));
    let slots = Limit::concurrency(1, TTL).unwrap();
    let window = Kind::FixedWindow.limit(100, LONG);
    let (first, second, rate) = (tagged(1, &slots), tagged(2, &slots), tagged(3, &window));
    let token = Token::new(1);
    let renew = |number: u128, ttl| {
        let extending = store.extend(id(number), ttl, Some(Token::new(number)));
        block_on(extending).unwrap()
    };
    held(&store, &[first, second, rate], 1, &lease(1));
    assert!(matches!(renew(1, TTL), Extended::Done(_)));
    block_on(store.reset(&[second])).unwrap();
    held(&store, &[second], 1, &lease(2));
    let before = block_on(store.find_hold(id(1))).unwrap().unwrap();
    for _ in 0..2 {
        assert_eq!(renew(1, Span::HOUR), Extended::Lapsed(Arc::clone(&before)));
    }
    assert!(matches!(renew(2, TTL), Extended::Done(_)));
    done(&store, 1, Settle::ReleaseLease { token });
    assert_eq!((left(&store, first), left(&store, second)), (1, 0));
}

/// An open record is kept for days, so that charges are returned even if no instance was running for hours.
/// An ended record is kept for an hour.
#[test]
fn an_open_record_is_kept_for_days_and_an_ended_one_for_an_hour() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let window = Kind::FixedWindow.limit(100, LONG);
    let hours = |number: u128| {
        let record = format!("tg:v1:{{00000000}}:hold:{number:032x}");
        let left: u64 = redis.cli(&["PTTL", &record]).trim().parse().unwrap();
        left / 3_600_000
    };
    for number in 1..=4 {
        held(&store, &[charge(1, &window)], 1, &reservation(number));
        assert_eq!(hours(number), 7 * 24);
    }
    let extended = block_on(store.extend(id(2), Span::from_secs(86_460), None)).unwrap();
    assert!(matches!(extended, Extended::Done(_)), "{extended:?}");
    assert_eq!(hours(2), 8 * 24);
    done(&store, 1, Settle::Commit { actual: 1 });
    done(&store, 2, Settle::Release);
    assert_eq!((hours(1), hours(2)), (1, 25));
    // Records that are restored from a ledger are kept just as long.
    let open = block_on(store.find_hold(id(3))).unwrap().unwrap();
    let ended = block_on(store.find_hold(id(1))).unwrap().unwrap();
    for (number, record) in [(5, open), (6, ended)] {
        let record = HoldRecord {
            id: id(number),
            ..HoldRecord::clone(&record)
        };
        assert_eq!(block_on(store.put_hold(&record)), Ok(true));
    }
    assert_eq!((hours(5), hours(6)), (7 * 24, 1));
    let index: u64 = redis
        .cli(&["PTTL", "tg:v1:{00000000}:holds:default"])
        .trim()
        .parse()
        .unwrap();
    assert!(index >= 7 * 86_400_000);
    assert_eq!(
        block_on(store.find_hold(id(1))).unwrap().unwrap().actual,
        Some(1)
    );
}

/// Another hold gets the id of an ended hold. The process that made the ended hold still remembers it.
#[test]
fn a_reused_id_settles_the_current_hold() {
    let redis = Redis::start();
    let (one, other) = (connect(options(&redis)), connect(options(&redis)));
    let window = Kind::FixedWindow.limit(100, LONG);
    let (old, new) = (charge(1, &window), charge(2, &window));
    let record = |number: u128| format!("tg:v1:{{00000000}}:hold:{number:032x}");
    for (number, charges) in [(1, vec![new]), (2, vec![new, charge(3, &window)])] {
        held(&one, &[old], 10, &reservation(number));
        done(&other, number, Settle::Commit { actual: 10 });
        redis.cli(&["DEL", &record(number)]);
        held(&other, &charges, 20, &reservation(number));
        let extended = block_on(one.extend(id(number), Span::HOUR, None)).unwrap();
        assert!(matches!(extended, Extended::Done(_)), "{extended:?}");
    }
    for number in [1, 2] {
        let settled = done(&one, number, Settle::Commit { actual: 5 });
        assert!(settled.charges.iter().all(|it| it.key != old.key));
    }
    assert_eq!((left(&one, old), left(&one, new)), (80, 90));

    // The same without an extension.
    held(&one, &[old], 10, &reservation(3));
    done(&other, 3, Settle::Release);
    redis.cli(&["DEL", &record(3)]);
    held(&other, &[new], 20, &reservation(3));
    done(&one, 3, Settle::Release);
    assert_eq!((left(&one, old), left(&one, new)), (80, 90));
}

/// Outside a cluster, the holds of a subject count together, even if their charges have different tags.
#[test]
fn open_holds_of_a_subject_count_together_under_all_tags() {
    let redis = Redis::start();
    let store = connect(options(&redis));
    let new = |number: u32| NewHold {
        id: HoldId::new(number.into(), Tag::new(number)),
        bound: Some(OpenBound {
            subject: 7,
            most: 2,
        }),
        ..reservation(number.into())
    };
    let hold = |number: u32| block_on(store.hold(&[], 0, &new(number))).unwrap();
    for number in [1, 2] {
        assert!(matches!(hold(number), Held::Taken { .. }), "{number}");
    }
    assert_eq!(hold(3), Held::TooMany);
    let set = format!("tg:v1:{{00000000}}:open:{:032x}", 7);
    assert_eq!(redis.cli(&["ZCARD", &set]).trim(), "2");
    let released = block_on(store.settle(new(1).id, Settle::Release)).unwrap();
    assert!(matches!(released, Settled::Done(_)), "{released:?}");
    assert!(matches!(hold(3), Held::Taken { .. }));
    // The set expires even if no instance ends its holds.
    let kept: i64 = redis.cli(&["PTTL", &set]).trim().parse().unwrap();
    assert!(kept > 0, "{kept}");
}
