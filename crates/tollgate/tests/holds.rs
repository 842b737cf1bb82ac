//! Reservations and leases of limiters without a ledger.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use common::Setup;
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Engine, Hold, HoldError, HoldName, LeaseToken,
    Reserve, ReserveOutcome, Span,
};
use tollgate_store::HoldState;

fn acme() -> Attributes<'static> {
    Attributes::from([("tenant", "acme")])
}

fn granted(acquiring: AcquireOutcome) -> (HoldName, LeaseToken) {
    match acquiring {
        AcquireOutcome::Granted { lease, token, .. } => (lease.id, token),
        AcquireOutcome::Denied(decision) => panic!("{decision:?}"),
    }
}

fn held(reserving: ReserveOutcome) -> Hold {
    match reserving {
        ReserveOutcome::Held { hold, .. } => hold,
        ReserveOutcome::Denied(decision) => panic!("{decision:?}"),
    }
}

/// If a slot is free when the wait ends, the next client in the queue gets it, even after a short wait.
#[tokio::test]
async fn last_attempt_is_not_denied_by_its_own_place_in_the_queue() {
    let text = "
version: 1
rules:
  - { id: jobs, per: [tenant], algorithm: concurrency, limit: 1, lease: 30s }
";
    let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
    let engine = Engine::start(&config).await.unwrap();
    let acme = acme();
    let at_once = Acquire::default();
    let waits = Acquire {
        wait: Span::from_millis(10),
        ..at_once
    };
    let (mut name, mut token) = granted(engine.acquire(&acme, &at_once).await.unwrap());
    for _ in 0..3 {
        // The slot is given back between the first and the last attempt of the waiting client.
        let asking = engine.acquire(&acme, &waits);
        let (next, freed) = tokio::join!(biased; asking, engine.free(&name, token));
        freed.unwrap();
        (name, token) = granted(next.unwrap());
    }
    // A client that stops waiting does not block the queue.
    let denied = engine.acquire(&acme, &waits).await.unwrap();
    assert!(matches!(denied, AcquireOutcome::Denied(_)), "{denied:?}");
    engine.free(&name, token).await.unwrap();
    granted(engine.acquire(&acme, &at_once).await.unwrap());
}

/// When a reservation gives units back, the limiter forgets a known denial.
#[tokio::test]
async fn units_given_back_by_a_reservation_are_available_at_once() {
    let setup = Setup::new(
        "
  - { id: tokens, per: [tenant], algorithm: fixed-window, limit: 10, window: 1h }
",
    );
    let (limiter, acme) = (&setup.limiter, acme());
    let request = Reserve {
        units: 10,
        ..Reserve::default()
    };
    let denied = async || !limiter.ask(&acme, Ask::Exactly(5)).await.is_allowed();
    for ending in 0..3 {
        let hold = held(limiter.reserve(&acme, &request).await.unwrap());
        assert!(denied().await);
        match ending {
            0 => limiter.release(&hold.id).await.unwrap().state,
            1 => limiter.commit(&hold.id, 0).await.unwrap().state,
            _ => {
                setup.clock.advance(tollgate::DEFAULT_TTL);
                assert_eq!(limiter.sweep_holds().await.unwrap(), 1);
                HoldState::Expired
            }
        };
        assert!(!denied().await, "{ending}");
        limiter.refund(&acme, 5, common::START).await.unwrap();
    }
}

/// Calls for reservations reject the id of a lease, and calls for leases reject the id of a
/// reservation.
#[tokio::test]
async fn lease_and_reservation_calls_reject_each_others_ids() {
    let setup = Setup::new(
        "
  - { id: jobs, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s }
",
    );
    let (limiter, acme) = (&setup.limiter, acme());
    let acquired = limiter.try_acquire(&acme, &Acquire::default(), None).await;
    let (lease, token) = granted(acquired.unwrap());
    for answer in [
        limiter.find_hold(&lease).await,
        limiter.commit(&lease, 1).await,
        limiter.release(&lease).await,
        limiter.extend(&lease, Span::HOUR).await,
    ] {
        assert!(
            matches!(answer, Err(HoldError::OtherKind { is: "lease" })),
            "{answer:?}"
        );
    }
    let request = Reserve {
        units: 1,
        ..Reserve::default()
    };
    let hold = held(limiter.reserve(&acme, &request).await.unwrap());
    for answer in [
        limiter.renew(&hold.id, token, None).await,
        limiter.renew(&hold.id, token, Some(Span::HOUR)).await,
        limiter.free(&hold.id, token).await,
    ] {
        assert!(
            matches!(answer, Err(HoldError::OtherKind { is: "reservation" })),
            "{answer:?}"
        );
    }
    let found = limiter.find_hold(&hold.id).await.unwrap();
    assert_eq!(found.expires_at, hold.expires_at);
    limiter.free(&lease, token).await.unwrap();
}

/// A lease that has lost its slot is expired, even if no sweep has ended it yet.
#[tokio::test]
async fn late_renewal_says_that_the_lease_has_expired() {
    let setup = Setup::new(
        "
  - { id: jobs, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s }
",
    );
    let (limiter, acme) = (&setup.limiter, acme());
    let acquired = limiter.try_acquire(&acme, &Acquire::default(), None).await;
    let (lease, token) = granted(acquired.unwrap());
    setup.clock.advance(Span::from_secs(30));
    for sweep in [false, true] {
        if sweep {
            assert_eq!(limiter.sweep_holds().await.unwrap(), 1);
        }
        match limiter.renew(&lease, token, None).await {
            Err(HoldError::Ended(hold)) => assert_eq!(hold.state, HoldState::Expired),
            other => panic!("{other:?}"),
        }
    }
}
