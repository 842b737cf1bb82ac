//! Reservations and leases of limiters without a ledger.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::sync::atomic::Ordering;

use common::Setup;
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Decision, Engine, Hold, HoldError, HoldName,
    LeaseToken, Limiter, Reserve, ReserveOutcome, Span,
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
/// A used-up allowance denies a reservation of 0 units, as it denies a check of 1 unit.
#[test]
fn reservation_of_nothing_is_denied_on_a_used_up_quota() {
    let text = "
version: 1
rules:
  - { id: monthly, per: [tenant], algorithm: quota, limit: 3, period: month }
";
    let limiter = Limiter::from_yaml("rules.yaml", text).unwrap();
    let (acme, nothing) = (acme(), Reserve::default());
    assert!(limiter.ask_now(&acme, Ask::Exactly(2)).is_allowed());
    let hold = held(limiter.reserve_now(&acme, &nothing).unwrap());
    let left = limiter.peek_now(&acme, Ask::Exactly(1));
    assert_eq!((hold.units, left.rule().unwrap().remaining()), (0, Some(1)));
    limiter.commit_now(&hold.id, 1).unwrap();
    for _ in 0..2 {
        let denied = limiter.reserve_now(&acme, &nothing).unwrap();
        let ReserveOutcome::Denied(denied) = denied else {
            panic!("{denied:?}");
        };
        let check = limiter.check_now(&acme);
        let reason = |decision: &Decision| decision.rule().unwrap().reason();
        assert_eq!(reason(&denied), reason(&check));
        assert_eq!(denied.rule().unwrap().remaining(), Some(0));
    }
}

/// While the store is down, a failure policy that counts does not give reservations of 0 units for free.
#[tokio::test]
async fn reservation_of_nothing_counts_while_the_store_fails() {
    let setup = Setup::new(
        "
  - { id: rate, per: [tenant], algorithm: fixed-window, limit: 2, window: 1h, on_store_failure: local-fallback }
",
    );
    setup.store.down.store(true, Ordering::Relaxed);
    let mut allowed = 0;
    for _ in 0..5 {
        let reserved = setup.limiter.reserve(&acme(), &Reserve::default()).await;
        allowed += usize::from(matches!(reserved.unwrap(), ReserveOutcome::Held { .. }));
    }
    assert_eq!(allowed, 2);
}

/// One tenant cannot fill the table of holds. Other tenants get reservations.
#[test]
fn open_holds_of_a_tenant_are_bounded() {
    let text = "
version: 1
subjects: { max_keys: 1000 }
rules:
  - { id: all, algorithm: fixed-window, limit: 1000000, window: 1h }
  - { id: user, per: [user], algorithm: fixed-window, limit: 1000000, window: 1h }
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 150, lease: 30s }
";
    let limiter = Limiter::from_yaml("rules.yaml", text).unwrap();
    let nothing = Reserve::default();
    let open = |attributes: &Attributes<'_>| {
        let mut made = Vec::new();
        loop {
            match limiter.reserve_now(attributes, &nothing) {
                Ok(reserved) => made.push(held(reserved).id),
                Err(HoldError::TooManyOpen { most }) => {
                    assert_eq!(made.len() as u64, most);
                    return made;
                }
                Err(other) => panic!("{other}"),
            }
        }
    };
    // By default, a tenth of `max_keys`. The users of a tenant count together.
    let made = open(&Attributes::from([("tenant", "acme"), ("user", "ann")]));
    assert_eq!(made.len(), 100);
    let bob = Attributes::from([("tenant", "acme"), ("user", "bob")]);
    let error = limiter.reserve_now(&bob, &nothing).unwrap_err();
    assert!(
        error.to_string().contains("subjects.max_open_holds"),
        "{error}"
    );
    limiter.release_now(&made[0]).unwrap();
    held(limiter.reserve_now(&bob, &nothing).unwrap());
    // Without a tenant, a hold belongs to the subject of the first rule that has one. Requests without a
    // subject count together.
    for attributes in [
        Attributes::from([("tenant", "other")]),
        Attributes::from([("user", "ann")]),
        Attributes::from([("user", "bob")]),
        Attributes::new(),
    ] {
        assert_eq!(open(&attributes).len(), 100, "{attributes:?}");
    }
    // The bound never takes slots away that a rule allows.
    let job = Attributes::from([("tenant", "jobs"), ("action", "job")]);
    for number in 0..151 {
        let lease = limiter.try_acquire_now(&job, &Acquire::default(), None);
        let is_granted = matches!(lease.unwrap(), AcquireOutcome::Granted { .. });
        assert_eq!(is_granted, number < 150, "{number}");
    }
    assert_eq!(limiter.rejected_holds(), [("subject", 6), ("store", 0)]);
}

/// If the table of holds is full, the failure policies of the rules decide.
#[test]
fn full_table_of_holds_is_decided_by_failure_policies() {
    let text = "
version: 1
subjects: { max_keys: 1000, max_open_holds: 1000000 }
rules:
  - { id: open, match: { action: open }, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h, on_store_failure: fail-open }
  - { id: shut, match: { action: shut }, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h, on_store_failure: fail-closed }
  - { id: none, match: { action: none }, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h }
  - { id: here, match: { action: here }, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h, on_store_failure: local-fallback }
  - { id: last, match: { action: last }, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h, on_store_failure: cached }
";
    let limiter = Limiter::from_yaml("rules.yaml", text).unwrap();
    let nothing = Reserve::default();
    let reserve = |action: &str| {
        let attributes = Attributes::from([("tenant", "acme"), ("action", action)]);
        limiter.reserve_now(&attributes, &nothing).unwrap()
    };
    let mut unheld = 0;
    while unheld < 200 {
        match held(reserve("open")).id {
            HoldName::Unheld => unheld += 1,
            HoldName::Held(_) => {}
        }
    }
    for action in ["shut", "none"] {
        // The part of the table that the id belongs to may have room.
        let denied = (0..100).find_map(|_| match reserve(action) {
            ReserveOutcome::Denied(decision) => Some(decision),
            ReserveOutcome::Held { .. } => None,
        });
        assert!(denied.is_some(), "{action}");
    }
    for action in ["here", "last"] {
        let allowed = (0..100).filter(|_| matches!(reserve(action), ReserveOutcome::Held { .. }));
        assert!(allowed.count() < 90, "{action} counts what it admits");
    }
    let rejected = limiter.rejected_holds();
    assert_eq!(rejected[0], ("subject", 0));
    assert!(rejected[1].1 > 300, "{rejected:?}");
}

/// A reservation holds slots, so its time has the bound of a lease.
#[test]
fn reservation_holds_a_slot_no_longer_than_a_lease_may() {
    let limiter = Limiter::from_yaml(
        "rules.yaml",
        "
version: 1
rules:
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 9, lease: 30s }
  - { id: long, match: { action: long }, per: [tenant], algorithm: concurrency, limit: 9, lease: 1s, max_lease: 10m }
  - { id: tried, match: { action: tried }, per: [tenant], algorithm: concurrency, limit: 9, lease: 1s, state: shadow }
  - { id: plain, match: { action: [job, long, plain, tried] }, per: [tenant], algorithm: fixed-window, limit: 99, window: 1d }
",
    )
    .unwrap();
    for (action, bound, usual) in [
        ("job", Some(("jobs", 30)), 30),
        ("long", Some(("long", 600)), 60),
        ("plain", None, 60),
        ("tried", None, 60),
    ] {
        let attributes = Attributes::from([("tenant", "acme"), ("action", action)]);
        let reserve = |ttl| {
            let reserve = Reserve {
                ttl,
                ..Reserve::default()
            };
            limiter.reserve_now(&attributes, &reserve)
        };
        let ReserveOutcome::Held { hold, decision } = reserve(None).unwrap() else {
            panic!("{action}");
        };
        let made = decision.unwrap().decided_at();
        let lasts = hold.expires_at.since(made).as_micros();
        assert_eq!(lasts.div_ceil(1_000_000), usual, "{action}");
        let Some((rule, most)) = bound else {
            held(reserve(Some(Span::DAY)).unwrap());
            limiter.extend_now(&hold.id, Span::DAY).unwrap();
            continue;
        };
        let (most, above) = (Span::from_secs(most), Span::from_secs(most + 1));
        let expected = HoldError::AboveLease {
            rule: rule.to_owned(),
            span: above,
            most,
        };
        let longer = limiter.extend_now(&hold.id, above);
        assert_eq!(longer.unwrap_err().to_string(), expected.to_string());
        let longer = reserve(Some(above)).unwrap_err();
        assert_eq!(longer.to_string(), expected.to_string());
        limiter.extend_now(&hold.id, most).unwrap();
        held(reserve(Some(most)).unwrap());
    }
}

/// The client asks again because it has seen no answer. Meanwhile the rule has a shorter `lease`.
#[test]
fn repeated_reservation_is_found_under_a_shorter_lease() {
    let text = |lease: &str| {
        format!(
            "version: 1\nrules: [{{ id: jobs, per: [tenant], algorithm: concurrency, limit: 9, lease: {lease} }}]\n"
        )
    };
    let limiter = Limiter::from_yaml("rules.yaml", &text("60s")).unwrap();
    let reserve = |key| {
        let reserve = Reserve {
            ttl: Some(Span::from_secs(60)),
            idempotency_key: Some(key),
            ..Reserve::default()
        };
        limiter.reserve_now(&acme(), &reserve)
    };
    let hold = held(reserve("a").unwrap());
    limiter.reload(&tollgate::parse("rules.yaml", &text("30s"), &|_| None).unwrap());
    assert_eq!(held(reserve("a").unwrap()).id, hold.id);
    let new = reserve("b").unwrap_err();
    assert!(matches!(new, HoldError::AboveLease { .. }), "{new}");
}
