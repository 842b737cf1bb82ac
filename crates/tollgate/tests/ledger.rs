//! A limiter with a ledger: usage and reservations survive restarts and agree with the ledger.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "ledger/calendar.rs"]
mod calendar;
#[path = "ledger/ended_reservations.rs"]
mod ended_reservations;
#[path = "ledger/model.rs"]
mod model;
#[path = "ledger/postings.rs"]
mod postings;
#[path = "ledger/process.rs"]
mod process;
#[path = "ledger/restores.rs"]
mod restores;
#[path = "ledger/setup.rs"]
mod setup;
#[path = "common/with_ledger.rs"]
mod with_ledger;
#[path = "ledger/zero_units.rs"]
mod zero_units;

use setup::{LedgerSetup, acme, reserve};
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, HoldError, Posted, Posting, Repair, Reserve,
    ReserveOutcome, Span,
};
use tollgate_ledger::Kind;
use tollgate_store::HoldState;

const QUOTA: &str = "
  - id: monthly
    per: [tenant]
    algorithm: quota
    limit: 1000
    period: month
    on_store_failure: fail-closed
";

#[tokio::test(flavor = "multi_thread")]
async fn usage_survives_a_restart() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    assert_eq!(setup.ask(300).await, Some(700));
    setup.restart().await;
    assert_eq!(setup.ask(300).await, Some(400));
    setup.restart().await;
    assert_eq!(
        setup.ask(500).await,
        None,
        "a restart does not start a new month"
    );
    assert_eq!(setup.used().await, 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_count_is_restored() {
    let setup = LedgerSetup::new(QUOTA).await;
    assert_eq!(setup.ask(300).await, Some(700));
    setup.lose_counts();
    assert_eq!(setup.ask(1).await, Some(699));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_restore_a_count_once() {
    let setup = LedgerSetup::new(QUOTA).await;
    assert_eq!(setup.ask(500).await, Some(500));
    for _ in 0..20 {
        setup.lose_counts();
        let asking = (0..8).map(|_| setup.ask(1));
        let answer = futures_util::future::join_all(asking).await;
        assert!(answer.iter().all(Option::is_some));
    }
    assert_eq!(setup.used().await, 660);
    assert_eq!(setup.ask(340).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_month_starts_at_zero_and_the_old_month_stays_in_the_ledger() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(900).await;
    let july = setup.period();
    setup.clock.advance(Span::from_secs(31 * 86_400));
    setup.restart().await;
    assert_eq!(setup.ask(10).await, Some(990));
    assert_eq!(setup.balance(july).await.used, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn carried_over_amount_survives_a_restart() {
    let rules = QUOTA.replace("period: month", "period: month\n    carry_over: 200");
    let mut setup = LedgerSetup::new(&rules).await;
    setup.ask(900).await;
    setup.clock.advance(Span::from_secs(31 * 86_400));
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(1100));
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_usage_is_in_the_database_before_the_answer() {
    let rules = QUOTA.replace("period: month", "period: month\n    durability: strict");
    let setup = LedgerSetup::new(&rules).await;
    assert_eq!(setup.ask(7).await, Some(993));
    assert_eq!(setup.used_in_database().await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_cannot_be_recorded_is_denied_and_not_taken() {
    let rules = QUOTA.replace("period: month", "period: month\n    durability: strict");
    let setup = LedgerSetup::new(&rules).await;
    assert_eq!(setup.ask(7).await, Some(993));
    setup.ledger().close().await;
    assert_eq!(setup.ask(7).await, None, "the policy denies");
    let counter = setup.counter().await;
    assert_eq!(counter.used, 7, "and nothing stays taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_charges_the_actual_usage() {
    for (actual, used) in [(120, 120), (500, 500), (800, 800), (0, 0)] {
        let setup = LedgerSetup::new(QUOTA).await;
        let hold = reserve(&setup, 500, None).await;
        assert_eq!(setup.used().await, 500);
        let settled = setup.limiter.commit(&hold.id, actual).await.unwrap();
        assert_eq!(settled.state, HoldState::Consumed);
        assert_eq!((settled.actual, settled.uncharged), (Some(actual), 0));
        assert_eq!(setup.used().await, used);
        assert_eq!(
            setup.ask(0).await,
            Some(1000 - u64::try_from(used).unwrap())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_can_be_repeated() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let first = reserve(&setup, 500, Some("call-1")).await;
    let again = reserve(&setup, 500, Some("call-1")).await;
    assert_eq!(first.id, again.id);
    assert_eq!(setup.used().await, 500);
    let other = Reserve {
        units: 400,
        idempotency_key: Some("call-1"),
        ..Reserve::default()
    };
    let conflict = setup.limiter.reserve(&acme(), &other).await;
    assert!(matches!(conflict, Err(HoldError::Conflict)), "{conflict:?}");
    for _ in 0..3 {
        setup.limiter.commit(&first.id, 120).await.unwrap();
        setup.restart().await;
    }
    let error = setup.limiter.commit(&first.id, 121).await.unwrap_err();
    let HoldError::Ended(hold) = error else {
        panic!("{error}");
    };
    assert_eq!(hold.actual, Some(120));
    let error = setup.limiter.release(&first.id).await.unwrap_err();
    assert!(matches!(error, HoldError::Ended(_)), "{error}");
    let repeated = reserve(&setup, 500, Some("call-1")).await;
    assert_eq!(repeated.state, HoldState::Consumed);
    assert_eq!(setup.used().await, 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_survives_a_restart() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let hold = reserve(&setup, 500, Some("call-1")).await;
    setup.restart().await;
    let again = reserve(&setup, 500, Some("call-1")).await;
    assert_eq!(again.id, hold.id, "and is not made twice");
    setup.restart().await;
    setup.limiter.extend(&hold.id, Span::HOUR).await.unwrap();
    setup.restart().await;
    let found = setup.limiter.find_hold(&hold.id).await.unwrap();
    assert_eq!(found.expires_at, setup.clock_now() + Span::HOUR);
    setup.limiter.commit(&hold.id, 80).await.unwrap();
    assert_eq!(setup.used().await, 80);
    assert_eq!(setup.ask(0).await, Some(920));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsettled_reservation_expires_and_is_given_back() {
    for restarts in [false, true] {
        let mut setup = LedgerSetup::new(QUOTA).await;
        let hold = reserve(&setup, 500, None).await;
        assert_eq!(setup.limiter.sweep_holds().await.unwrap(), 0);
        if restarts {
            setup.restart().await;
        }
        setup.clock.advance(Span::from_secs(200));
        setup.sweep().await;
        assert_eq!(setup.used().await, 0);
        assert_eq!(setup.ask(0).await, Some(1000));
        let late = setup.limiter.commit(&hold.id, 500).await.unwrap_err();
        assert!(matches!(late, HoldError::Ended(_)), "{late}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_and_grants_act_at_once_and_survive_restarts() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(1000).await;
    let post = |what, key| Posting {
        rule: "monthly",
        what,
        who: "ann",
        why: "a goodwill gesture",
        idempotency_key: key,
    };
    setup
        .post(&post(Posted::Correction(-100), None))
        .await
        .unwrap();
    assert_eq!(setup.ask(100).await, Some(0));
    let grant = post(Posted::Grant(50), Some("ticket-7"));
    for _ in 0..3 {
        setup.post(&grant).await.unwrap();
        setup.restart().await;
    }
    assert_eq!(setup.ask(50).await, Some(0));
    assert_eq!(setup.ask(1).await, None);
    assert_eq!(
        setup.kinds().await,
        [
            (Kind::Use, 1150),
            (Kind::Correction, -100),
            (Kind::Grant, 50)
        ]
    );
    for wrong in [
        Posting { why: " ", ..grant },
        Posting {
            rule: "daily",
            ..grant
        },
        post(Posted::Correction(0), None),
    ] {
        assert!(setup.post(&wrong).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_found_and_repaired_in_both_directions() {
    for repair in [Repair::Counters, Repair::Ledger] {
        let setup = LedgerSetup::new(QUOTA).await;
        setup.ask(300).await;
        let clean = setup.reconcile(Repair::Nothing).await;
        assert_eq!((clean.compared, clean.drifts.len()), (1, 0));
        setup.distort(40, 0).await;
        let found = setup.reconcile(Repair::Nothing).await;
        let drift = &found.drifts[0];
        assert_eq!(
            (drift.ledger, drift.counter, drift.repaired),
            (300, 340, false)
        );
        assert_eq!(drift.tenant, "acme");
        assert!(setup.reconcile(repair).await.drifts[0].repaired);
        assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
        let expected = if repair == Repair::Counters { 300 } else { 340 };
        assert_eq!(setup.used().await, expected);
        assert_eq!(setup.counter().await.used, u64::try_from(expected).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_and_resets_are_recorded() {
    let setup = LedgerSetup::new(QUOTA).await;
    let decision = setup.limiter.ask(&acme(), Ask::Exactly(300)).await;
    let at = decision.decided_at();
    setup.limiter.refund(&acme(), 100, at).await.unwrap();
    assert_eq!(setup.used().await, 200);
    setup.limiter.reset(&acme()).await.unwrap();
    assert_eq!(setup.used().await, 0);
    assert_eq!(setup.ask(0).await, Some(1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_holds_slots_and_charges_other_rules() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: in-flight, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s }}"
    );
    let setup = LedgerSetup::new(&rules).await;
    let acquire = async || {
        setup
            .limiter
            .try_acquire(&acme(), &Acquire::default(), None)
            .await
    };
    let mut leases = Vec::new();
    for _ in 0..2 {
        let AcquireOutcome::Granted { lease, token, .. } = acquire().await.unwrap() else {
            panic!("denied");
        };
        leases.push((lease, token));
    }
    assert!(leases[1].0.fence > leases[0].0.fence);
    assert!(matches!(acquire().await, Ok(AcquireOutcome::Denied(_))));
    let (first, second) = (&leases[0], &leases[1]);
    let stolen = setup.limiter.free(&first.0.id, second.1).await;
    assert!(matches!(stolen, Err(HoldError::NotYours)));
    setup.limiter.free(&first.0.id, first.1).await.unwrap();
    assert!(matches!(
        acquire().await,
        Ok(AcquireOutcome::Granted { .. })
    ));
    assert_eq!(setup.used().await, 3, "a denied request uses nothing");
    let without_tenant = Attributes::from([("user", "ann")]);
    let none = setup
        .limiter
        .try_acquire(&without_tenant, &Acquire::default(), None)
        .await;
    assert!(matches!(none, Err(HoldError::NothingToLease)));
    let listed = setup.limiter.holders(&acme()).await.unwrap();
    assert_eq!(listed[0].holders.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_reservation_takes_nothing() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: rate, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }}"
    );
    let setup = LedgerSetup::new(&rules).await;
    let request = Reserve {
        units: 200,
        ..Reserve::default()
    };
    let answer = setup.limiter.reserve(&acme(), &request).await.unwrap();
    assert!(matches!(answer, ReserveOutcome::Denied(_)));
    assert_eq!(setup.used().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn refund_never_exceeds_usage() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let decision = setup.limiter.ask(&acme(), Ask::Exactly(10)).await;
    let at = decision.decided_at();
    setup.limiter.refund(&acme(), 1_000_000, at).await.unwrap();
    assert_eq!(setup.used().await, 0);
    let correction = Posting {
        rule: "monthly",
        what: Posted::Correction(-500),
        who: "ann",
        why: "too much",
        idempotency_key: None,
    };
    setup.ask(100).await;
    setup.post(&correction).await.unwrap();
    assert_eq!(setup.used().await, 0);
    setup.ask(300).await;
    setup.restart().await;
    assert_eq!(setup.ask(0).await, Some(700), "a restart forgets no usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_with_unwritable_text_is_recorded() {
    let setup = LedgerSetup::new(QUOTA).await;
    let odd = Attributes::from([("tenant", "acme"), ("action", "x\0y")]);
    assert!(setup.limiter.ask(&odd, Ask::Exactly(5)).await.is_allowed());
    assert_eq!(setup.used().await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn released_reservation_is_not_made_again_under_its_key() {
    let setup = LedgerSetup::new(QUOTA).await;
    let hold = reserve(&setup, 500, Some("call-1")).await;
    setup.limiter.release(&hold.id).await.unwrap();
    let request = Reserve {
        units: 500,
        idempotency_key: Some("call-1"),
        ..Reserve::default()
    };
    let again = setup.limiter.reserve(&acme(), &request).await;
    assert!(matches!(again, Err(HoldError::Ended(_))), "{again:?}");
    assert_eq!(setup.used().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_clears_usage_and_keeps_reservations() {
    for restarts in [false, true] {
        // The actual usage (`None` for a release), and the recorded usage afterwards.
        for (actual, used) in [
            (Some(120), 120),
            (Some(500), 500),
            (Some(800), 800),
            (None, 0),
        ] {
            let mut setup = LedgerSetup::new(QUOTA).await;
            setup.ask(100).await;
            let hold = reserve(&setup, 500, None).await;
            setup.limiter.reset(&acme()).await.unwrap();
            assert_eq!((setup.used().await, setup.counter().await.used), (500, 500));
            if restarts {
                setup.restart().await;
            }
            setup.ask(30).await;
            match actual {
                Some(actual) => setup.limiter.commit(&hold.id, actual).await.unwrap(),
                None => setup.limiter.release(&hold.id).await.unwrap(),
            };
            let counter = i64::try_from(setup.counter().await.used).unwrap();
            assert_eq!((setup.used().await, counter), (used + 30, used + 30));
            setup.limiter.reset(&acme()).await.unwrap();
            assert_eq!((setup.used().await, setup.ask(0).await), (0, Some(1000)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn correction_does_not_touch_reserved_units() {
    let setup = LedgerSetup::new(QUOTA).await;
    setup.ask(100).await;
    let hold = reserve(&setup, 500, None).await;
    let correction = Posting {
        rule: "monthly",
        what: Posted::Correction(-1000),
        who: "ann",
        why: "too much",
        idempotency_key: None,
    };
    assert_eq!(setup.post(&correction).await.unwrap().used, 500);
    setup.limiter.release(&hold.id).await.unwrap();
    assert_eq!((setup.used().await, setup.counter().await.used), (0, 0));
}
