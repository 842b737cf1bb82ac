//! Reservations and leases of limiters, without books.

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

/// However short the wait: who is the next one has the slot that is free when it is over.
#[tokio::test]
async fn the_last_ask_is_not_refused_by_its_own_place() {
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
        // It asks, and asks again when its wait is over. The slot is given back between.
        let asking = engine.acquire(&acme, &waits);
        let (next, freed) = tokio::join!(biased; asking, engine.free(&name, token));
        freed.unwrap();
        (name, token) = granted(next.unwrap());
    }
    // Whose wait was in vain keeps nobody waiting.
    let refused = engine.acquire(&acme, &waits).await.unwrap();
    assert!(matches!(refused, AcquireOutcome::Denied(_)), "{refused:?}");
    engine.free(&name, token).await.unwrap();
    granted(engine.acquire(&acme, &at_once).await.unwrap());
}

/// Where this process gives something back, it does not answer from what it knew before.
#[tokio::test]
async fn what_a_reservation_gives_back_can_be_had_at_once() {
    let setup = Setup::new(
        "
  - { id: tokens, per: [tenant], algorithm: fixed-window, limit: 10, window: 1h }
",
    );
    let (limiter, acme) = (&setup.limiter, acme());
    let wish = Reserve {
        units: 10,
        ..Reserve::default()
    };
    let refused = async || !limiter.ask(&acme, Ask::Exactly(5)).await.is_allowed();
    for ending in 0..3 {
        let hold = held(limiter.reserve(&acme, &wish).await.unwrap());
        assert!(refused().await);
        match ending {
            0 => limiter.release(&hold.id).await.unwrap().state,
            1 => limiter.commit(&hold.id, 0).await.unwrap().state,
            _ => {
                setup.clock.advance(tollgate::DEFAULT_TTL);
                assert_eq!(limiter.sweep_holds().await.unwrap(), 1);
                HoldState::Expired
            }
        };
        assert!(!refused().await, "{ending}");
        limiter.refund(&acme, 5, common::START).await.unwrap();
    }
}

/// An id says which it is: of the one nothing is done that is for the other.
#[tokio::test]
async fn a_lease_is_no_reservation() {
    let setup = Setup::new(
        "
  - { id: jobs, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s }
",
    );
    let (limiter, acme) = (&setup.limiter, acme());
    let acquired = limiter.try_acquire(&acme, &Acquire::default(), None).await;
    let (lease, token) = granted(acquired.unwrap());
    for told in [
        limiter.find_hold(&lease).await,
        limiter.commit(&lease, 1).await,
        limiter.release(&lease).await,
        limiter.extend(&lease, Span::HOUR).await,
    ] {
        assert!(
            matches!(told, Err(HoldError::OtherKind { is: "lease" })),
            "{told:?}"
        );
    }
    let wish = Reserve {
        units: 1,
        ..Reserve::default()
    };
    let hold = held(limiter.reserve(&acme, &wish).await.unwrap());
    for told in [
        limiter.renew(&hold.id, token, None).await,
        limiter.renew(&hold.id, token, Some(Span::HOUR)).await,
        limiter.free(&hold.id, token).await,
    ] {
        assert!(
            matches!(told, Err(HoldError::OtherKind { is: "reservation" })),
            "{told:?}"
        );
    }
    let found = limiter.find_hold(&hold.id).await.unwrap();
    assert_eq!(found.expires_at, hold.expires_at);
    limiter.free(&lease, token).await.unwrap();
}
