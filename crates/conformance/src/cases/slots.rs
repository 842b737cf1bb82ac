//! Leases of slots: so many at once, in order, and nobody else's.

use tollgate_core::{Admission, Charge, Denial, Limit, Span, Time, Token};

use super::holds::{LONG, TTL, commit, ended, extend, find, held, hold, id, reservation, settle};
use super::{CAPACITY, START, apply, charge, just_before, left, peek, reset};
use crate::{Fixture, Kind};
use tollgate_store::{
    Applied, Ask, Extended, Held, HoldState, NewHold, Purpose, Settle, Settled, Store, Wait,
};

const MINE: Token = Token::new(77);

fn slots(limit: u64) -> Limit {
    Limit::concurrency(limit, TTL).expect("a limit of slots")
}

fn lease(number: u128) -> NewHold<'static> {
    NewHold {
        purpose: Purpose::Lease,
        token: MINE,
        ..reservation(number)
    }
}

/// Waits under the number of the hold.
fn waiting(number: u128) -> NewHold<'static> {
    NewHold {
        wait: Some(Wait {
            ticket: number,
            patience: Span::SECOND,
        }),
        ..lease(number)
    }
}

const GIVE_BACK: Settle = Settle::ReleaseLease { token: MINE };

/// Holds, and wants a refusal.
async fn refused(
    fixture: &impl Fixture,
    charges: &[Charge<'_>],
    new: &NewHold<'_>,
) -> (Applied, Option<u64>) {
    match hold(fixture, charges, 1, new).await {
        Held::Denied { applied, ahead } => (applied, ahead),
        other => panic!("not refused: {other:?}"),
    }
}

/// So many and no more, until one is given back.
pub async fn slots_are_held_by_so_many_at_once(fixture: &impl Fixture) {
    fixture.set_time(START);
    let three = slots(3);
    let one = charge(1, &three);
    for number in 1..=3 {
        held(fixture, &[one], 1, &lease(number)).await;
        assert_eq!(
            left(fixture, one).await,
            3 - u64::try_from(number).unwrap_or(0)
        );
    }
    let (applied, ahead) = refused(fixture, &[one], &lease(4)).await;
    let until = Admission::Denied(Denial::Until(START + TTL));
    assert_eq!(applied.outcomes[0].admission, until);
    assert_eq!((applied.outcomes[0].limit, ahead), (3, None));
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    refused(fixture, &[one], &lease(5)).await;
}

/// A request that holds nothing passes while a slot is free, and takes none.
pub async fn a_check_of_slots_only_looks(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (one_slot, window) = (slots(1), Kind::FixedWindow.limit(CAPACITY, LONG));
    let both = [charge(1, &one_slot), charge(2, &window)];
    for _ in 0..2 {
        let applied = apply(fixture, &both, Ask::Exactly(2)).await;
        assert!(applied.allowed, "{applied:?}");
        assert_eq!(applied.outcomes[0].remaining, 1);
    }
    let applied = apply(fixture, &both, Ask::UpTo(3)).await;
    assert_eq!(applied.granted, 3);
    assert_eq!(left(fixture, both[1]).await, CAPACITY - 7);
    held(fixture, &both[..1], 1, &lease(1)).await;
    for look in [
        apply(fixture, &both, Ask::Exactly(1)).await,
        apply(fixture, &both, Ask::UpTo(3)).await,
        peek(fixture, &both, Ask::Exactly(1)).await,
    ] {
        assert!(!look.allowed, "{look:?}");
        assert_eq!(look.outcomes[0].remaining, 0);
    }
    assert_eq!(left(fixture, both[1]).await, CAPACITY - 7);
    assert!(peek(fixture, &both, Ask::Exactly(0)).await.allowed);
}

/// A crashed holder's slot is free at the end of its lease, and not a microsecond before.
pub async fn a_slot_is_free_when_its_lease_is_over(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    let record = held(fixture, &[one], 1, &lease(1)).await;
    fixture.set_time(just_before(record.expires_at));
    refused(fixture, &[one], &lease(2)).await;
    fixture.set_time(record.expires_at);
    held(fixture, &[one], 1, &lease(2)).await;
    let lapsed = extend(fixture, 1, TTL, Some(MINE)).await;
    assert_eq!(lapsed, Extended::Lapsed(record));
    let first = ended(fixture, 1, Settle::Expire).await;
    assert_eq!(first.state, HoldState::Expired);
    refused(fixture, &[one], &lease(3)).await;
}

/// A renewed lease lasts from then on.
pub async fn a_renewed_lease_lasts(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    held(fixture, &[one], 1, &lease(1)).await;
    let mut now = START;
    for _ in 0..3 {
        now = now + Span::from_secs(50);
        fixture.set_time(now);
        let Extended::Done(record) = extend(fixture, 1, TTL, Some(MINE)).await else {
            panic!("the owner renews");
        };
        assert_eq!(record.expires_at, now + TTL);
    }
    fixture.set_time(just_before(now + TTL));
    refused(fixture, &[one], &lease(2)).await;
    fixture.set_time(now + TTL);
    held(fixture, &[one], 1, &lease(2)).await;
}

/// Who was thrown out by a reset is told so, and is not one holder too many for ever.
pub async fn a_lease_whose_slot_was_reset_is_not_renewed(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (one_slot, two) = (slots(1), slots(2));
    let both = [charge(1, &one_slot), charge(2, &two)];
    let record = held(fixture, &both, 1, &lease(1)).await;
    reset(fixture, &both[..1]).await;
    let lapsed = extend(fixture, 1, LONG, Some(MINE)).await;
    assert_eq!(lapsed, Extended::Lapsed(record.clone()));
    assert_eq!(find(fixture, 1).await, Some(record.clone()));
    held(fixture, &both[..1], 1, &lease(2)).await;
    let lapsed = extend(fixture, 1, LONG, Some(MINE)).await;
    assert_eq!(lapsed, Extended::Lapsed(record.clone()));
    let renewed = extend(fixture, 2, LONG, Some(MINE)).await;
    assert!(matches!(renewed, Extended::Done(_)), "{renewed:?}");
    // What it has of the others is free when its time is over.
    assert_eq!(left(fixture, both[1]).await, 1);
    fixture.set_time(record.expires_at);
    assert_eq!(left(fixture, both[1]).await, 2);
    ended(fixture, 1, Settle::Expire).await;
    refused(fixture, &both[..1], &lease(4)).await;
}

/// Only who has the token ends or renews a lease.
pub async fn nobody_else_touches_a_lease(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    let record = held(fixture, &[one], 1, &lease(1)).await;
    let foreign = Token::new(78);
    for how in [
        Settle::ReleaseLease { token: foreign },
        Settle::ReleaseLease { token: Token::NONE },
        Settle::Release,
        commit(1),
    ] {
        assert_eq!(settle(fixture, 1, how).await, Settled::NotYours, "{how:?}");
    }
    for token in [None, Some(foreign), Some(Token::NONE)] {
        assert_eq!(extend(fixture, 1, LONG, token).await, Extended::NotYours);
    }
    assert_eq!(find(fixture, 1).await, Some(record));
    refused(fixture, &[one], &lease(2)).await;
    let record = ended(fixture, 1, GIVE_BACK).await;
    let foreigner = settle(fixture, 1, Settle::ReleaseLease { token: foreign }).await;
    assert_eq!(foreigner, Settled::NotYours);
    assert_eq!(
        settle(fixture, 1, GIVE_BACK).await,
        Settled::Already(record)
    );
    held(fixture, &[], 1, &reservation(3)).await;
    assert_eq!(settle(fixture, 3, GIVE_BACK).await, Settled::NotYours);
    for token in [MINE, Token::NONE] {
        let leased = extend(fixture, 3, LONG, Some(token)).await;
        assert_eq!(leased, Extended::NotYours);
    }
}

/// Only the slot of a lease comes back.
pub async fn what_else_a_lease_costs_is_final(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (two, window) = (slots(2), Kind::FixedWindow.limit(CAPACITY, LONG));
    let both = [charge(1, &two), charge(2, &window)];
    held(fixture, &both, 3, &lease(1)).await;
    held(fixture, &both, 3, &lease(2)).await;
    let record = ended(fixture, 1, GIVE_BACK).await;
    assert_eq!(
        record.charges.iter().map(|it| it.taken).collect::<Vec<_>>(),
        [0, 3]
    );
    fixture.set_time(START + TTL);
    ended(fixture, 2, Settle::Expire).await;
    assert_eq!(left(fixture, both[0]).await, 2);
    assert_eq!(left(fixture, both[1]).await, CAPACITY - 6);
}

/// First come, first served: among those who wait, and before those who do not.
pub async fn who_waits_is_served_in_order(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    held(fixture, &[one], 1, &lease(1)).await;
    for number in 2..=4 {
        let (_, ahead) = refused(fixture, &[one], &waiting(number)).await;
        assert_eq!(ahead, Some(u64::try_from(number).unwrap_or(0) - 2));
    }
    let (_, ahead) = refused(fixture, &[one], &waiting(3)).await;
    assert_eq!(ahead, Some(1), "asked again, it keeps its place");
    let (_, ahead) = refused(fixture, &[one], &lease(5)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    for number in 2..=4 {
        for other in (number + 1..=4).rev() {
            refused(fixture, &[one], &waiting(other)).await;
        }
        let (applied, _) = refused(fixture, &[one], &lease(6)).await;
        assert_eq!(applied.outcomes[0].remaining, 0);
        assert!(!apply(fixture, &[one], Ask::Exactly(1)).await.allowed);
        held(fixture, &[one], 1, &waiting(number)).await;
        ended(fixture, number, GIVE_BACK).await;
    }
    held(fixture, &[one], 1, &lease(6)).await;
}

/// Who does not ask again within its patience has gone.
pub async fn who_goes_away_loses_the_place(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    held(fixture, &[one], 1, &lease(1)).await;
    refused(fixture, &[one], &waiting(2)).await;
    fixture.set_time(START + Span::from_millis(500));
    let (_, ahead) = refused(fixture, &[one], &waiting(3)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 1, GIVE_BACK).await;
    let gone = START + Span::SECOND;
    fixture.set_time(just_before(gone));
    refused(fixture, &[one], &waiting(3)).await;
    fixture.set_time(gone);
    held(fixture, &[one], 1, &waiting(3)).await;
    let (_, ahead) = refused(fixture, &[one], &waiting(2)).await;
    assert_eq!(ahead, Some(0), "it comes anew");
}

/// Who asks for the last time is judged by its place, and keeps nobody waiting after that.
pub async fn who_asks_for_the_last_time_gives_up_its_place(fixture: &impl Fixture) {
    fixture.set_time(START);
    let one_slot = slots(1);
    let one = charge(1, &one_slot);
    let last = |number: u128| NewHold {
        wait: Some(Wait {
            ticket: number,
            patience: Span::ZERO,
        }),
        ..lease(number)
    };
    held(fixture, &[one], 1, &lease(1)).await;
    refused(fixture, &[one], &waiting(2)).await;
    refused(fixture, &[one], &waiting(3)).await;
    let (_, ahead) = refused(fixture, &[one], &last(3)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &[one], 1, &last(2)).await;
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    let (_, ahead) = refused(fixture, &[one], &last(5)).await;
    assert_eq!(ahead, None);
    ended(fixture, 4, GIVE_BACK).await;
    assert_eq!(left(fixture, one).await, 1, "nobody waits");
    held(fixture, &[one], 1, &lease(6)).await;
}

/// Who needs slots of several has a place in all queues: at each of them the other may be free.
pub async fn who_waits_for_several_is_overtaken_at_none(fixture: &impl Fixture) {
    // Where they are kept apart, each has its own order.
    if !fixture.range().judges_together() {
        return;
    }
    fixture.set_time(START);
    let one_slot = slots(1);
    let both = [charge(1, &one_slot), charge(2, &one_slot)];
    let [first, second] = [&both[..1], &both[1..]];
    held(fixture, first, 1, &lease(1)).await;
    let (_, ahead) = refused(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, Some(0));
    // While it waits for the first, nobody takes the second from it, and the other way round.
    refused(fixture, second, &lease(3)).await;
    let (_, ahead) = refused(fixture, second, &waiting(3)).await;
    assert_eq!(ahead, Some(1));
    let (_, ahead) = refused(fixture, first, &waiting(4)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 1, GIVE_BACK).await;
    for number in [3, 4] {
        let alone = if number == 3 { second } else { first };
        let (_, ahead) = refused(fixture, alone, &waiting(number)).await;
        assert_eq!(ahead, Some(1));
    }
    held(fixture, &both, 1, &waiting(2)).await;
    let (_, ahead) = refused(fixture, &both, &waiting(5)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, first, 1, &waiting(4)).await;
    held(fixture, second, 1, &waiting(3)).await;
    // What only shadows keeps nobody waiting, and what costs nothing needs no place.
    let watching = Charge {
        enforcement: tollgate_core::Enforcement::Shadow,
        ..charge(6, &one_slot)
    };
    let free = Charge {
        cost: 0,
        ..charge(7, &one_slot)
    };
    refused(fixture, &[both[0], watching, free], &waiting(8)).await;
    held(fixture, &[charge(6, &one_slot)], 1, &lease(9)).await;
    held(fixture, &[charge(7, &one_slot)], 1, &lease(10)).await;
}

/// Waiting helps against full slots only.
pub async fn who_is_refused_by_others_too_does_not_wait(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (one_slot, window) = (slots(1), Kind::FixedWindow.limit(1, LONG));
    let both = [charge(1, &one_slot), charge(2, &window)];
    held(fixture, &both, 1, &lease(1)).await;
    let (_, ahead) = refused(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, None);
    // Nor does it keep the place that it had before.
    let (_, ahead) = refused(fixture, &both[..1], &waiting(2)).await;
    assert_eq!(ahead, Some(0));
    let (_, ahead) = refused(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &both[..1], 1, &lease(3)).await;
}

/// Present holders finish; nobody comes until enough have gone.
pub async fn a_lowered_limit_lets_holders_finish(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (three, two) = (slots(3), slots(2));
    for number in 1..=3 {
        held(fixture, &[charge(1, &three)], 1, &lease(number)).await;
    }
    let one = charge(1, &two);
    assert_eq!(left(fixture, one).await, 0);
    ended(fixture, 1, GIVE_BACK).await;
    refused(fixture, &[one], &lease(4)).await;
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    refused(fixture, &[one], &lease(5)).await;
    held(fixture, &[charge(1, &three)], 1, &lease(5)).await;
}

/// Every slot has a larger number than all before, over releases, resets, and a clock that stands still.
pub async fn fences_only_grow(fixture: &impl Fixture) {
    fixture.set_time(START);
    let two = slots(2);
    let one = charge(1, &two);
    let mut last = 0;
    let mut now = START;
    for number in 1..=12 {
        match number {
            5 => now = just_before(now),
            9 => {
                now = now + LONG;
                reset(fixture, &[one]).await;
            }
            _ => {}
        }
        fixture.set_time(now);
        let record = held(fixture, &[one], 1, &lease(number)).await;
        assert!(record.fence > last, "{} after {last}", record.fence);
        last = record.fence;
        ended(fixture, number, GIVE_BACK).await;
    }
    assert_eq!(held(fixture, &[], 1, &lease(20)).await.fence, 0);
}

/// Who holds what, and for how long.
pub async fn holders_are_listed(fixture: &impl Fixture) {
    fixture.set_time(START);
    let three = slots(3);
    let one = charge(1, &three);
    let store = fixture.store();
    let mut expected = Vec::new();
    for (number, owner) in [(1, "first"), (2, "second worker ü"), (3, "")] {
        let new = NewHold {
            owner,
            memo: "",
            idempotency_key: None,
            ttl: Span::from_secs(u64::try_from(number).unwrap_or(0) * 10),
            ..lease(number)
        };
        let record = held(fixture, &[one], 1, &new).await;
        expected.push((number, owner.to_owned(), record.fence, record.expires_at));
    }
    let list = async |most: usize| -> Vec<(u128, String, u64, Time)> {
        let holders = store.holders(&one, most).await.expect("the store answers");
        let parts = holders.into_iter();
        parts
            .map(|it| (it.hold, it.owner.to_string(), it.fence, it.expires_at))
            .collect()
    };
    assert_eq!(list(9).await, expected);
    assert_eq!(list(2).await, expected[..2]);
    fixture.set_time(START + Span::from_secs(10));
    assert_eq!(list(9).await, expected[1..]);
    ended(fixture, 2, GIVE_BACK).await;
    assert_eq!(list(9).await, expected[2..]);
    let window = Kind::FixedWindow.limit(1, LONG);
    let nobody = store.holders(&charge(1, &window), 9).await;
    assert_eq!(nobody, Ok(Vec::new()));
    assert!(find(fixture, id(3).bits()).await.is_some());
}

/// No slots: no wait would help.
pub async fn no_slots_admit_nobody(fixture: &impl Fixture) {
    fixture.set_time(START);
    let none = slots(0);
    let one = charge(1, &none);
    for new in [lease(1), waiting(1)] {
        let (applied, _) = refused(fixture, &[one], &new).await;
        assert_eq!(
            applied.outcomes[0].admission,
            Admission::Denied(Denial::Never)
        );
    }
}

/// One slot each, and different subjects do not meet.
pub async fn a_hold_takes_one_slot_of_each(fixture: &impl Fixture) {
    fixture.set_time(START);
    let (two, one_slot) = (slots(2), slots(1));
    let both = [charge(1, &two), charge(2, &one_slot)];
    let record = held(fixture, &both, 5, &lease(1)).await;
    assert!(record.fence > 0);
    assert_eq!(left(fixture, both[0]).await, 1);
    assert_eq!(left(fixture, both[1]).await, 0);
    assert_eq!(left(fixture, charge(3, &one_slot)).await, 1);
    refused(fixture, &both, &lease(2)).await;
    assert_eq!(left(fixture, both[0]).await, 1);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &both, 1, &lease(2)).await;
}
