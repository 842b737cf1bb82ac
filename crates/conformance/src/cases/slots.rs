//! Checks leases of slots: their number is bounded, clients get them in order, and only their owner changes
//! them.

use tollgate_core::concurrency::Holder;
use tollgate_core::{Admission, Charge, Denial, Enforcement, Span, Time, Token};

use super::holds::{
    ENDLESS, LONG, ONE_SLOT, commit, ended, extend, find, held, hold, settle, slots, taken,
};
use super::{CAPACITY, apply, charge, costing, enforced, just_before, left, peek, reset};
use crate::{Fixture, Kind, START, TTL, reservation};
use tollgate_store::{
    Applied, Ask, Extended, Held, HoldState, NewHold, Purpose, Settle, Settled, Store, Wait,
};

const MINE: Token = Token::new(77);

fn lease(number: u128) -> NewHold<'static> {
    NewHold {
        purpose: Purpose::Lease,
        token: MINE,
        ..reservation(number)
    }
}

/// Returns a lease that waits for a second, with its number as the ticket.
fn waiting(number: u128) -> NewHold<'static> {
    patient(number, Span::SECOND)
}

fn patient(ticket: u128, patience: Span) -> NewHold<'static> {
    NewHold {
        wait: Some(Wait { ticket, patience }),
        ..lease(ticket)
    }
}

const GIVE_BACK: Settle = Settle::ReleaseLease { token: MINE };

/// Asks for a hold, and fails unless it is denied.
async fn denied(
    fixture: &impl Fixture,
    charges: &[Charge<'_>],
    new: &NewHold<'_>,
) -> (Applied, Option<u64>) {
    match hold(fixture, charges, 1, new).await {
        Held::Denied { applied, ahead } => (applied, ahead),
        other => panic!("not denied: {other:?}"),
    }
}

/// At most `limit` slots are held. A further client gets a slot only after one is given back.
pub async fn at_most_limit_slots_are_held(fixture: &impl Fixture) {
    let three = slots(3);
    let one = charge(1, &three);
    for number in 1..=3 {
        held(fixture, &[one], 1, &lease(number)).await;
        assert_eq!(u128::from(left(fixture, one).await), 3 - number);
    }
    let (applied, ahead) = denied(fixture, &[one], &lease(4)).await;
    let until = Admission::Denied(Denial::Until(START + TTL));
    assert_eq!(applied.outcomes[0].admission, until);
    assert_eq!((applied.outcomes[0].limit, ahead), (3, None));
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    denied(fixture, &[one], &lease(5)).await;
}

/// A request without a hold passes if a slot is free, and does not take the slot.
pub async fn a_check_takes_no_slot(fixture: &impl Fixture) {
    let both = [charge(1, &ONE_SLOT), charge(2, &ENDLESS)];
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
pub async fn a_slot_is_free_at_the_end_of_its_lease(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
    let record = held(fixture, &[one], 1, &lease(1)).await;
    fixture.set_time(just_before(record.expires_at));
    denied(fixture, &[one], &lease(2)).await;
    fixture.set_time(record.expires_at);
    held(fixture, &[one], 1, &lease(2)).await;
    let lapsed = extend(fixture, 1, TTL, Some(MINE)).await;
    assert_eq!(lapsed, Extended::Lapsed(record));
    let first = ended(fixture, 1, Settle::Expire).await;
    assert_eq!(first.state, HoldState::Expired);
    denied(fixture, &[one], &lease(3)).await;
}

/// A renewed lease lasts for its whole time, counted from the renewal.
pub async fn a_renewed_lease_lasts_longer(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
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
    denied(fixture, &[one], &lease(2)).await;
    fixture.set_time(now + TTL);
    held(fixture, &[one], 1, &lease(2)).await;
}

/// After a reset of its slot, a holder cannot renew its lease. So there is never one holder too many.
pub async fn a_lease_whose_slot_was_reset_is_not_renewed(fixture: &impl Fixture) {
    let two = slots(2);
    let both = [charge(1, &ONE_SLOT), charge(2, &two)];
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
    // The other slot of the lease is free when the lease ends.
    assert_eq!(left(fixture, both[1]).await, 1);
    fixture.set_time(record.expires_at);
    assert_eq!(left(fixture, both[1]).await, 2);
    ended(fixture, 1, Settle::Expire).await;
    denied(fixture, &both[..1], &lease(4)).await;
}

/// Only a client with the token ends or renews a lease.
pub async fn only_the_owner_changes_a_lease(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
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
    denied(fixture, &[one], &lease(2)).await;
    let record = ended(fixture, 1, GIVE_BACK).await;
    let foreigner = settle(fixture, 1, Settle::ReleaseLease { token: foreign }).await;
    assert_eq!(foreigner, Settled::NotYours);
    let again = settle(fixture, 1, GIVE_BACK).await;
    assert_eq!(again, Settled::Already(record));
    held(fixture, &[], 1, &reservation(3)).await;
    assert_eq!(settle(fixture, 3, GIVE_BACK).await, Settled::NotYours);
    for token in [MINE, Token::NONE] {
        let leased = extend(fixture, 3, LONG, Some(token)).await;
        assert_eq!(leased, Extended::NotYours);
    }
}

/// When a lease ends, only its slot comes back. The other charges of the lease stay.
pub async fn the_other_charges_of_a_lease_are_final(fixture: &impl Fixture) {
    let two = slots(2);
    let both = [charge(1, &two), charge(2, &ENDLESS)];
    held(fixture, &both, 3, &lease(1)).await;
    held(fixture, &both, 3, &lease(2)).await;
    let record = ended(fixture, 1, GIVE_BACK).await;
    assert_eq!(taken(&record), [0, 3]);
    fixture.set_time(START + TTL);
    ended(fixture, 2, Settle::Expire).await;
    assert_eq!(left(fixture, both[0]).await, 2);
    assert_eq!(left(fixture, both[1]).await, CAPACITY - 6);
}

/// Waiting clients get slots in the order of their arrival, and before clients that do not wait.
pub async fn waiting_clients_are_served_in_order(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
    held(fixture, &[one], 1, &lease(1)).await;
    for number in 2..=4 {
        let (_, ahead) = denied(fixture, &[one], &waiting(number)).await;
        assert_eq!(ahead.map(u128::from), Some(number - 2));
    }
    let (_, ahead) = denied(fixture, &[one], &waiting(3)).await;
    assert_eq!(ahead, Some(1), "a client that asks again keeps its place");
    let (_, ahead) = denied(fixture, &[one], &lease(5)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    for number in 2..=4 {
        for other in (number + 1..=4).rev() {
            denied(fixture, &[one], &waiting(other)).await;
        }
        let (applied, _) = denied(fixture, &[one], &lease(6)).await;
        assert_eq!(applied.outcomes[0].remaining, 0);
        assert!(!apply(fixture, &[one], Ask::Exactly(1)).await.allowed);
        held(fixture, &[one], 1, &waiting(number)).await;
        ended(fixture, number, GIVE_BACK).await;
    }
    held(fixture, &[one], 1, &lease(6)).await;
}

/// A client that does not ask again within its patience loses its place.
pub async fn a_client_that_stops_asking_loses_its_place(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
    held(fixture, &[one], 1, &lease(1)).await;
    denied(fixture, &[one], &waiting(2)).await;
    fixture.set_time(START + Span::from_millis(500));
    let (_, ahead) = denied(fixture, &[one], &waiting(3)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 1, GIVE_BACK).await;
    let gone = START + Span::SECOND;
    fixture.set_time(just_before(gone));
    denied(fixture, &[one], &waiting(3)).await;
    fixture.set_time(gone);
    held(fixture, &[one], 1, &waiting(3)).await;
    let (_, ahead) = denied(fixture, &[one], &waiting(2)).await;
    assert_eq!(ahead, Some(0), "it gets a new place");
}

/// A patience of zero means the last try: the client still has its place in this call, and loses it
/// afterwards.
pub async fn a_client_without_patience_gives_up_its_place(fixture: &impl Fixture) {
    let one = charge(1, &ONE_SLOT);
    let last = |number| patient(number, Span::ZERO);
    held(fixture, &[one], 1, &lease(1)).await;
    denied(fixture, &[one], &waiting(2)).await;
    denied(fixture, &[one], &waiting(3)).await;
    let (_, ahead) = denied(fixture, &[one], &last(3)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &[one], 1, &last(2)).await;
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    let (_, ahead) = denied(fixture, &[one], &last(5)).await;
    assert_eq!(ahead, None);
    ended(fixture, 4, GIVE_BACK).await;
    assert_eq!(left(fixture, one).await, 1, "no client waits");
    held(fixture, &[one], 1, &lease(6)).await;
}

/// A client that needs slots of several limits has a place in all queues.
pub async fn a_client_that_waits_for_several_slots_is_not_overtaken(fixture: &impl Fixture) {
    // If the limits are on different servers, each server has its own order of clients.
    if !fixture.range().judges_together() {
        return;
    }
    let both = [charge(1, &ONE_SLOT), charge(2, &ONE_SLOT)];
    let [first, second] = [&both[..1], &both[1..]];
    held(fixture, first, 1, &lease(1)).await;
    let (_, ahead) = denied(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, Some(0));
    // While this client waits for one of the two slots, no other client takes the other slot.
    denied(fixture, second, &lease(3)).await;
    let (_, ahead) = denied(fixture, second, &waiting(3)).await;
    assert_eq!(ahead, Some(1));
    let (_, ahead) = denied(fixture, first, &waiting(4)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 1, GIVE_BACK).await;
    for (number, alone) in [(3, second), (4, first)] {
        let (_, ahead) = denied(fixture, alone, &waiting(number)).await;
        assert_eq!(ahead, Some(1));
    }
    held(fixture, &both, 1, &waiting(2)).await;
    let (_, ahead) = denied(fixture, &both, &waiting(5)).await;
    assert_eq!(ahead, Some(1));
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, first, 1, &waiting(4)).await;
    held(fixture, second, 1, &waiting(3)).await;
    // A shadow makes no client wait, and a cost of 0 needs no place.
    let watching = enforced(Enforcement::Shadow, charge(6, &ONE_SLOT));
    let free = costing(0, charge(7, &ONE_SLOT));
    denied(fixture, &[both[0], watching, free], &waiting(8)).await;
    held(fixture, &[charge(6, &ONE_SLOT)], 1, &lease(9)).await;
    held(fixture, &[charge(7, &ONE_SLOT)], 1, &lease(10)).await;
}

/// A client waits only if nothing but slots is missing.
pub async fn a_client_that_other_charges_deny_does_not_wait(fixture: &impl Fixture) {
    let window = Kind::FixedWindow.limit(1, LONG);
    let both = [charge(1, &ONE_SLOT), charge(2, &window)];
    held(fixture, &both, 1, &lease(1)).await;
    let (_, ahead) = denied(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, None);
    // A client that another charge denies also loses the place it had before.
    let (_, ahead) = denied(fixture, &both[..1], &waiting(2)).await;
    assert_eq!(ahead, Some(0));
    let (_, ahead) = denied(fixture, &both, &waiting(2)).await;
    assert_eq!(ahead, None);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &both[..1], 1, &lease(3)).await;
}

/// Holders keep their slots under a lower limit. No slot is taken until enough are given back.
pub async fn a_lowered_limit_lets_holders_finish(fixture: &impl Fixture) {
    let (three, two) = (slots(3), slots(2));
    for number in 1..=3 {
        held(fixture, &[charge(1, &three)], 1, &lease(number)).await;
    }
    let one = charge(1, &two);
    assert_eq!(left(fixture, one).await, 0);
    ended(fixture, 1, GIVE_BACK).await;
    denied(fixture, &[one], &lease(4)).await;
    ended(fixture, 2, GIVE_BACK).await;
    held(fixture, &[one], 1, &lease(4)).await;
    denied(fixture, &[one], &lease(5)).await;
    held(fixture, &[charge(1, &three)], 1, &lease(5)).await;
}

/// Every fence is larger than all earlier fences. This is also true after releases and resets, and while the
/// clock stands still.
pub async fn fences_only_grow(fixture: &impl Fixture) {
    let two = slots(2);
    let one = charge(1, &two);
    let (mut last, mut now) = (0, START);
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

/// Holders are listed with owner, fence and expiry.
pub async fn holders_are_listed(fixture: &impl Fixture) {
    let three = slots(3);
    let one = charge(1, &three);
    let store = fixture.store();
    let mut expected = Vec::new();
    for (number, owner) in [(1_u8, "first"), (2, "second worker ü"), (3, "")] {
        let new = NewHold {
            owner,
            ttl: Span::from_secs(u64::from(number) * 10),
            ..lease(number.into())
        };
        let record = held(fixture, &[one], 1, &new).await;
        let (fence, ends) = (record.fence, record.expires_at);
        expected.push((number.into(), owner.to_owned(), fence, ends));
    }
    let list = async |most: usize| -> Vec<(u128, String, u64, Time)> {
        let holders = store.holders(&one, most).await.expect("the store answers");
        let parts = |it: Holder| (it.hold, it.owner.to_string(), it.fence, it.expires_at);
        holders.into_iter().map(parts).collect()
    };
    assert_eq!(list(9).await, expected);
    assert_eq!(list(2).await, expected[..2]);
    fixture.set_time(START + Span::from_secs(10));
    assert_eq!(list(9).await, expected[1..]);
    ended(fixture, 2, GIVE_BACK).await;
    assert_eq!(list(9).await, expected[2..]);
    let window = Kind::FixedWindow.limit(1, LONG);
    let none = store.holders(&charge(1, &window), 9).await;
    assert_eq!(none, Ok(Vec::new()));
    assert!(find(fixture, 3).await.is_some());
}

/// A limit of zero slots denies every hold, and waiting does not help.
pub async fn a_limit_of_zero_slots_denies_everything(fixture: &impl Fixture) {
    let none = slots(0);
    let one = charge(1, &none);
    for new in [lease(1), waiting(1)] {
        let outcome = denied(fixture, &[one], &new).await.0.outcomes[0];
        assert_eq!(outcome.admission, Admission::Denied(Denial::Never));
    }
}

/// A hold takes one slot of each limit, whatever its units.
pub async fn a_hold_takes_one_slot_of_each(fixture: &impl Fixture) {
    let two = slots(2);
    let both = [charge(1, &two), charge(2, &ONE_SLOT)];
    let record = held(fixture, &both, 5, &lease(1)).await;
    assert!(record.fence > 0);
    assert_eq!(left(fixture, both[0]).await, 1);
    assert_eq!(left(fixture, both[1]).await, 0);
    assert_eq!(left(fixture, charge(3, &ONE_SLOT)).await, 1);
    denied(fixture, &both, &lease(2)).await;
    assert_eq!(left(fixture, both[0]).await, 1);
    ended(fixture, 1, GIVE_BACK).await;
    held(fixture, &both, 1, &lease(2)).await;
}
