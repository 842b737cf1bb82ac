//! Holds in several cluster slots. If one slot fails half-way, nothing is lost: the missing steps are done
//! when the hold is due.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use common::{LIMIT, LONG, RUNTIME, block_on, charge, connect};
use tollgate_conformance::{Kind, START, TTL, hold_id as id, reservation};
use tollgate_core::{Balance, Charge, HoldId, Limit, Recorded, Span, Tag, Token};
use tollgate_redis::RedisStore;
use tollgate_rig::{Cluster, Redis, wait};
use tollgate_store::{
    Ask, Held, HoldRecord, ManualClock, NewHold, Purpose, Settle, Settled, Store, Wait,
};

fn lease(number: u128) -> NewHold<'static> {
    NewHold {
        purpose: Purpose::Lease,
        token: Token::new(number),
        ..reservation(number)
    }
}

/// A cluster, a store with a manual clock, and two tags. The keys with these tags are on other servers than
/// the deciding records.
struct Setup {
    cluster: Cluster,
    clock: ManualClock,
    store: RedisStore,
    prefix: String,
    others: [Tag; 2],
}

impl Setup {
    fn start() -> Setup {
        let cluster = common::cluster_that_bears_pauses();
        let clock = ManualClock::at(START);
        let options = common::by_clock(common::cluster_options(&cluster), &clock);
        let prefix = options.key_prefix.clone();
        let keeper = |tag: Tag| {
            let slot = cluster.slot_of(&format!("{{{:08x}}}", tag.number()));
            cluster.master_of_slot(slot)
        };
        let first = keeper(Tag::default());
        let mut tags = (1..100).map(Tag::new);
        let other = tags.find(|tag| keeper(*tag) != first).unwrap();
        let last = tags.find(|tag| ![first, keeper(other)].contains(&keeper(*tag)));
        Setup {
            store: connect(options),
            others: [other, last.unwrap()],
            cluster,
            clock,
            prefix,
        }
    }

    /// Returns the name of the record of a hold for this tag.
    fn record(&self, tag: Tag, number: u128) -> String {
        let (prefix, tag) = (&self.prefix, tag.number());
        format!("{prefix}:v1:{{{tag:08x}}}:hold:{number:032x}")
    }

    /// Returns the server that has a key.
    fn server_of(&self, key: &str) -> &Redis {
        let slot = self.cluster.slot_of(key);
        &self.cluster.nodes()[self.cluster.master_of_slot(slot)]
    }

    fn cli(&self, arguments: &[&str]) -> String {
        self.server_of(arguments[1])
            .cli(arguments)
            .trim()
            .to_owned()
    }

    fn left(&self, charge: Charge<'_>) -> u64 {
        let seen = block_on(self.store.peek(&[charge], Ask::Exactly(0))).unwrap();
        seen.outcomes[0].remaining
    }

    fn held(&self, charges: &[Charge<'_>], units: u64, new: &NewHold<'_>) -> Arc<HoldRecord> {
        match block_on(self.store.hold(charges, units, new)).unwrap() {
            Held::Taken { record, .. } => record,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&self, number: u128, how: Settle) -> Settled {
        block_on(self.store.settle(id(number), how)).unwrap()
    }

    fn due(&self) -> Vec<HoldId> {
        block_on(self.store.due_holds(100)).unwrap()
    }
}

fn at(tag: Tag, charge: Charge<'_>) -> Charge<'_> {
    Charge { tag, ..charge }
}

/// Another slot denies, and the charges of the earlier slots cannot be undone. They are returned when the
/// hold is due.
#[test]
fn charges_that_cannot_be_undone_are_returned_when_due() {
    let setup = Setup::start();
    let (window, nothing) = (
        Arc::new(Kind::FixedWindow.limit(100, LONG)),
        Arc::new(Kind::FixedWindow.limit(0, LONG)),
    );
    let [middle, last] = setup.others;
    let all = move || (window.clone(), nothing.clone());
    let windows = all();
    let taken = [charge(1, &windows.0), at(middle, charge(2, &windows.0))];
    for (number, sabotaged) in [(1, Tag::default()), (2, middle)] {
        let (record, hidden) = (
            setup.record(sabotaged, number),
            format!("{{{:08x}}}hidden", sabotaged.number()),
        );
        let refuser = setup.server_of(&setup.record(last, number));
        refuser.pause();
        let (store, limits) = (setup.store.clone(), all());
        let making = RUNTIME.spawn(async move {
            let charges = [
                charge(1, &limits.0),
                at(middle, charge(2, &limits.0)),
                at(last, charge(3, &limits.1)),
            ];
            store.hold(&charges, 10, &reservation(number)).await
        });
        wait::until("a part", LIMIT, || {
            setup.cli(&["EXISTS", &setup.record(middle, number)]) == "1"
        });
        setup.cli(&["RENAME", &record, &hidden]);
        setup.cli(&["SET", &record, "something else", "PX", "600000"]);
        refuser.resume();
        let denied = block_on(making).unwrap().unwrap();
        assert!(matches!(denied, Held::Denied { .. }), "{denied:?}");
        setup.cli(&["RENAME", &hidden, &record]);
        assert!(taken.iter().any(|it| setup.left(*it) == 90));
        setup.clock.advance(TTL);
        assert_eq!(setup.due(), [id(number)], "{sabotaged:?}");
        setup.settle(number, Settle::Expire);
        assert_eq!(taken.map(|it| setup.left(it)), [100, 100], "{sabotaged:?}");
        assert_eq!(setup.due(), []);
    }
}

/// The call that makes a part is slow: the part does not exist when the hold ends, and comes later.
#[test]
fn a_late_part_is_ended_when_the_hold_is_due() {
    let setup = Setup::start();
    let window = Kind::FixedWindow.limit(100, LONG);
    let other = setup.others[0];
    let both = [charge(1, &window), at(other, charge(2, &window))];
    let (record, hidden) = (
        setup.record(other, 1),
        format!("{{{:08x}}}hidden", other.number()),
    );
    setup.held(&both, 10, &reservation(1));
    setup.cli(&["RENAME", &record, &hidden]);
    let settled = setup.settle(1, Settle::Commit { actual: 4 });
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    assert_eq!(both.map(|it| setup.left(it)), [96, 90]);
    setup.cli(&["RENAME", &hidden, &record]);
    setup.clock.advance(TTL);
    assert_eq!(setup.due(), [id(1)]);
    let settled = setup.settle(1, Settle::Expire);
    assert!(matches!(settled, Settled::Already(_)), "{settled:?}");
    assert_eq!(both.map(|it| setup.left(it)), [96, 96]);
    assert_eq!(setup.due(), []);
}

/// No part of a hold is made after the hold has expired, because no instance would end that part.
#[test]
fn no_part_of_an_expired_hold_is_made() {
    let setup = Setup::start();
    let mut options = common::cluster_options(&setup.cluster);
    options.key_prefix.clone_from(&setup.prefix);
    let store = connect(options);
    let window = Arc::new(Kind::FixedWindow.limit(100, LONG));
    let other = setup.others[0];
    let late = setup.server_of(&setup.record(other, 1));
    late.pause();
    let (making, limit) = (store.clone(), Arc::clone(&window));
    let making = RUNTIME.spawn(async move {
        let both = [charge(1, &limit), at(other, charge(2, &limit))];
        let new = NewHold {
            ttl: Span::from_millis(300),
            ..reservation(1)
        };
        making.hold(&both, 10, &new).await
    });
    wait::until("its end", LIMIT, || {
        !block_on(store.due_holds(9)).unwrap().is_empty()
    });
    late.resume();
    let made = block_on(making).unwrap();
    assert!(made.is_err(), "{made:?}");
    for charge in [charge(1, &window), at(other, charge(2, &window))] {
        let seen = block_on(store.peek(&[charge], Ask::Exactly(0))).unwrap();
        assert_eq!(seen.outcomes[0].remaining, 100);
    }
}

/// Usage of a ledgered quota stays, even if its server has lost the part of the hold.
#[test]
fn ledgered_usage_is_not_lost_with_a_part() {
    let setup = Setup::start();
    let (window, quota) = (
        Kind::FixedWindow.limit(1_000, LONG),
        Kind::Quota.limit(1_000, LONG),
    );
    let other = setup.others[0];
    let ledgered = Charge {
        recorded: Some(Recorded::default()),
        ..at(other, charge(2, &quota))
    };
    let Limit::Quota(numbers) = &quota else {
        panic!("{quota:?}");
    };
    let nothing = Balance {
        ends_at: numbers.period_at(START).end,
        used: 0,
        extra: 0,
    };
    block_on(setup.store.restore(&[ledgered], &[nothing])).unwrap();
    for (number, how, taken) in [
        (1, Settle::Commit { actual: 500 }, [500, 500]),
        (2, Settle::Release, [0, 0]),
    ] {
        setup.held(&[charge(1, &window), ledgered], 10, &reservation(number));
        setup.cli(&["DEL", &setup.record(other, number)]);
        let Settled::Done(record) = setup.settle(number, how) else {
            panic!("not done");
        };
        let answers: Vec<u64> = record.charges.iter().map(|it| it.taken).collect();
        assert_eq!(answers, taken);
    }
}

/// A server that is down does not block the end of other holds.
#[test]
fn a_hold_that_cannot_be_ended_is_due_again_later() {
    let setup = Setup::start();
    let window = Kind::FixedWindow.limit(100, LONG);
    let other = setup.others[0];
    let both = [charge(1, &window), at(other, charge(2, &window))];
    setup.held(&both, 10, &reservation(1));
    setup.held(&both[..1], 10, &reservation(2));
    setup.clock.advance(TTL);
    assert_eq!(setup.due(), [id(1), id(2)]);
    // The part in another cluster slot cannot be read.
    let (record, hidden) = (
        setup.record(other, 1),
        format!("{{{:08x}}}hidden", other.number()),
    );
    setup.cli(&["RENAME", &record, &hidden]);
    setup.cli(&["SET", &record, "something else", "PX", "600000"]);
    let settled = setup.settle(1, Settle::Expire);
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    assert_eq!(setup.due(), [id(2)]);
    setup.clock.advance(Span::from_secs(10));
    assert_eq!(setup.due(), [id(2), id(1)]);
    let settled = block_on(setup.store.settle(id(1), Settle::Expire));
    assert!(settled.is_err(), "{settled:?}");
    assert_eq!(setup.due(), [id(2)]);
    setup.cli(&["RENAME", &hidden, &record]);
    // The deciding record cannot be read.
    let (record, hidden) = (setup.record(Tag::default(), 2), "{00000000}hidden");
    setup.cli(&["RENAME", &record, hidden]);
    setup.cli(&["SET", &record, "something else", "PX", "600000"]);
    let settled = block_on(setup.store.settle(id(2), Settle::Expire));
    assert!(settled.is_err(), "{settled:?}");
    assert_eq!(setup.due(), []);
    setup.cli(&["RENAME", hidden, &record]);
    setup.clock.advance(Span::from_secs(10));
    assert_eq!(setup.due(), [id(1), id(2)]);
    setup.settle(1, Settle::Expire);
    setup.settle(2, Settle::Expire);
    assert_eq!(both.map(|it| setup.left(it)), [100, 100]);
    assert_eq!(setup.due(), []);
}

/// A hold waits for full concurrency limits in several cluster slots. It keeps its place, and at the end it
/// leaves all queues.
#[test]
fn a_hold_that_waits_in_several_cluster_slots_keeps_its_place() {
    let setup = Setup::start();
    let slots = Limit::concurrency(1, TTL).unwrap();
    let other = setup.others[0];
    let both = [charge(1, &slots), at(other, charge(2, &slots))];
    setup.held(&both, 1, &lease(1));
    let waits = |patience| NewHold {
        wait: Some(Wait {
            ticket: 9,
            patience,
        }),
        ..lease(2)
    };
    let denied = |new: &NewHold<'_>| match block_on(setup.store.hold(&both, 1, new)).unwrap() {
        Held::Denied { ahead, .. } => ahead,
        other => panic!("{other:?}"),
    };
    assert_eq!(denied(&waits(Span::HOUR)), Some(0));
    // Now the first limit has a free slot, and the second does not.
    let token = Token::new(1);
    setup.settle(1, Settle::ReleaseLease { token });
    setup.held(&both[1..], 1, &lease(3));
    assert_eq!(denied(&waits(Span::HOUR)), Some(0));
    setup.held(&both[..1], 1, &lease(4));
    assert_eq!(denied(&waits(Span::HOUR)), Some(0));
    assert_eq!(denied(&waits(Span::ZERO)), None);
    for number in [3, 4] {
        let token = Token::new(number);
        setup.settle(number, Settle::ReleaseLease { token });
    }
    assert_eq!(both.map(|it| setup.left(it)), [1, 1], "no hold waits");
}

/// Fences grow even if the clocks of the servers differ.
#[test]
fn fences_in_several_cluster_slots_only_grow() {
    let setup = Setup::start();
    let slots = Limit::concurrency(1, TTL).unwrap();
    let other = setup.others[0];
    let both = [charge(1, &slots), at(other, charge(2, &slots))];
    let free = |number| {
        let token = Token::new(number);
        setup.settle(number, Settle::ReleaseLease { token });
    };
    setup.clock.advance(Span::from_secs(30));
    let ahead = setup.held(&both[1..], 1, &lease(1));
    free(1);
    setup.clock.set(START);
    let first = setup.held(&both, 1, &lease(2));
    assert!(first.fence > ahead.fence);
    free(2);
    let second = setup.held(&both[..1], 1, &lease(3));
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
}
