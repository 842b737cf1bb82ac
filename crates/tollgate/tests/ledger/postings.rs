//! Postings of operators under idempotency keys, and reconciliation.

use std::time::Duration;

use tollgate::{Ask, Attributes, PostError, Posted, Posting, Repair, Standing};

use super::QUOTA;
use super::setup::{LedgerSetup, acme};

fn posting(what: Posted, key: &str) -> Posting<'_> {
    Posting {
        rule: "monthly",
        what,
        who: "ann",
        why: "a goodwill gesture",
        idempotency_key: Some(key),
    }
}

fn conflict(answer: Result<Standing, PostError>) -> String {
    match answer {
        Err(error @ PostError::Conflict { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_stands_for_one_posting() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    setup.ask(300).await;
    let grant = posting(Posted::Grant(50), "ticket-7");
    let first = setup.post(&grant).await.unwrap();
    assert!(!first.repeated);
    for restarts in [false, true] {
        if restarts {
            setup.restart().await;
        }
        let again = setup.post(&grant).await.unwrap();
        assert_eq!((again.repeated, again.extra), (true, 50));
        let other = Posting {
            why: "the same in other words",
            who: "bob",
            ..grant
        };
        assert!(setup.post(&other).await.unwrap().repeated);
        for (what, says) in [
            (Posted::Grant(51), "a grant of 50; take a new key"),
            (Posted::Correction(50), "a grant of 50; take a new key"),
        ] {
            let answer = conflict(setup.post(&posting(what, "ticket-7")).await);
            assert!(
                answer.contains("`ticket-7`") && answer.contains(says),
                "{answer}"
            );
        }
        let zed = Attributes::from([("tenant", "zed")]);
        let answer = conflict(setup.limiter.post(&zed, &grant).await);
        assert!(answer.contains("at another counter"), "{answer}");
        let (counter, used) = (setup.counter().await, setup.used().await);
        assert_eq!((counter.used, counter.extra, used), (300, 50, 300));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_of_a_cut_correction_is_recognised() {
    let setup = LedgerSetup::new(QUOTA).await;
    setup.ask(100).await;
    let cut = posting(Posted::Correction(-500), "ticket-7");
    assert_eq!(setup.post(&cut).await.unwrap().used, 0);
    setup.ask(700).await;
    assert!(setup.post(&cut).await.unwrap().repeated);
    for amount in [-100, -501, 500] {
        conflict(
            setup
                .post(&posting(Posted::Correction(amount), "ticket-7"))
                .await,
        );
    }
    assert_eq!((setup.used().await, setup.counter().await.used), (700, 700));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_equal_postings_are_done_once() {
    let setup = LedgerSetup::new(QUOTA).await;
    setup.ask(300).await;
    let correction = posting(Posted::Correction(10), "ticket-7");
    let answer = futures_util::future::join_all((0..8).map(|_| setup.post(&correction))).await;
    let new = answer.iter().filter(|it| !it.as_ref().unwrap().repeated);
    assert_eq!(new.count(), 1);
    assert_eq!((setup.used().await, setup.counter().await.used), (310, 310));
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_of_grants_is_found_and_repaired() {
    let carried = QUOTA.replace("period: month", "period: month\n    carry_over: 200");
    for rules in [QUOTA, &carried] {
        for repair in [Repair::Counters, Repair::Ledger] {
            for (used, extra) in [(0, 30), (0, -20), (40, -20)] {
                let mut setup = LedgerSetup::new(rules).await;
                setup.ask(900).await;
                setup.clock.advance(tollgate::Span::from_secs(31 * 86_400));
                setup.ask(10).await;
                let granted = posting(Posted::Grant(50), "ticket-7");
                let before = setup.post(&granted).await.unwrap();
                assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
                setup.distort(used, extra).await;
                let found = setup.reconcile(repair).await;
                let drift = &found.drifts[0];
                assert_eq!((drift.ledger, drift.counter), (10, 10 + used));
                let granted_extra = i64::try_from(before.extra).unwrap();
                let answer = (drift.ledger_extra, drift.counter_extra);
                assert_eq!(answer, (granted_extra, granted_extra + extra));
                assert!(drift.repaired);
                assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
                let expected = match repair {
                    Repair::Ledger => (10 + used, granted_extra + extra),
                    _ => (10, granted_extra),
                };
                setup.restart().await;
                setup.ask(0).await;
                let counter = setup.counter().await;
                let answer = (counter.used.cast_signed(), counter.extra.cast_signed());
                assert_eq!(answer, expected, "and after a restart");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extra_is_what_was_granted_and_carried_over() {
    let rules = QUOTA.replace("period: month", "period: month\n    carry_over: 200");
    let setup = LedgerSetup::new(&rules).await;
    setup.ask(900).await;
    assert_eq!(setup.extra().await, 0);
    setup.clock.advance(tollgate::Span::from_secs(31 * 86_400));
    setup.ask(10).await;
    assert_eq!(setup.extra().await, 100);
    let granted = setup.post(&posting(Posted::Grant(50), "ticket-7")).await;
    assert_eq!((setup.extra().await, granted.unwrap().extra), (150, 150));
}

#[tokio::test(flavor = "multi_thread")]
async fn comparison_waits_once_for_all_differences() {
    let setup = LedgerSetup::flushed_every(Duration::from_secs(1), QUOTA).await;
    let tenants: Vec<String> = (0..60).map(|it| format!("tenant-{it}")).collect();
    for tenant in &tenants {
        let attributes = Attributes::from([("tenant", tenant.as_str())]);
        setup.limiter.ask(&attributes, Ask::Exactly(7)).await;
    }
    setup.forget(&tenants, 3).await;
    // All counters share the same waits. Waiting for each of the sixty counters would take two minutes.
    let limit = Duration::from_secs(60);
    let found = tokio::time::timeout(limit, setup.reconcile(Repair::Counters)).await;
    let found = found.unwrap();
    assert_eq!((found.compared, found.drifts.len()), (60, 60));
    assert!(
        found
            .drifts
            .iter()
            .all(|it| (it.ledger, it.counter) == (7, 4))
    );
    assert_eq!(setup.reconcile(Repair::Nothing).await.drifts, []);
    assert_eq!(
        setup.limiter.ask(&acme(), Ask::Exactly(1)).await.granted(),
        1
    );
}
