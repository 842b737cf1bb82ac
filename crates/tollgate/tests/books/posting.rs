//! What operators post under idempotency keys, and what they find when they compare.

use std::time::Duration;

use tollgate::{Ask, Attributes, PostError, Posted, Posting, Repair, Standing};

use super::QUOTA;
use super::setup::{Books, acme};

fn posting(what: Posted, key: &str) -> Posting<'_> {
    Posting {
        rule: "monthly",
        what,
        who: "ann",
        why: "a goodwill gesture",
        idempotency_key: Some(key),
    }
}

fn conflict(told: Result<Standing, PostError>) -> String {
    match told {
        Err(error @ PostError::Conflict { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_one_posting() {
    let mut books = Books::new(QUOTA).await;
    books.ask(300).await;
    let grant = posting(Posted::Grant(50), "ticket-7");
    let first = books.post(&grant).await.unwrap();
    assert!(!first.repeated);
    for restarts in [false, true] {
        if restarts {
            books.restart().await;
        }
        let again = books.post(&grant).await.unwrap();
        assert_eq!((again.repeated, again.extra), (true, 50));
        let other = Posting {
            why: "the same in other words",
            who: "bob",
            ..grant
        };
        assert!(books.post(&other).await.unwrap().repeated);
        for (what, says) in [
            (Posted::Grant(51), "a grant of 50; take a new key"),
            (Posted::Correction(50), "a grant of 50; take a new key"),
        ] {
            let told = conflict(books.post(&posting(what, "ticket-7")).await);
            assert!(told.contains("`ticket-7`") && told.contains(says), "{told}");
        }
        let zed = Attributes::from([("tenant", "zed")]);
        let told = conflict(books.limiter.post(&zed, &grant).await);
        assert!(told.contains("at another counter"), "{told}");
        let (counter, used) = (books.counter().await, books.used().await);
        assert_eq!((counter.used, counter.extra, used), (300, 50, 300));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_that_was_cut_is_known_by_what_was_asked_for() {
    let books = Books::new(QUOTA).await;
    books.ask(100).await;
    let cut = posting(Posted::Correction(-500), "ticket-7");
    assert_eq!(books.post(&cut).await.unwrap().used, 0);
    books.ask(700).await;
    assert!(books.post(&cut).await.unwrap().repeated);
    for amount in [-100, -501, 500] {
        conflict(
            books
                .post(&posting(Posted::Correction(amount), "ticket-7"))
                .await,
        );
    }
    assert_eq!((books.used().await, books.counter().await.used), (700, 700));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_post_the_same_at_once_one_is_heard() {
    let books = Books::new(QUOTA).await;
    books.ask(300).await;
    let correction = posting(Posted::Correction(10), "ticket-7");
    let told = futures_util::future::join_all((0..8).map(|_| books.post(&correction))).await;
    let new = told.iter().filter(|it| !it.as_ref().unwrap().repeated);
    assert_eq!(new.count(), 1);
    assert_eq!((books.used().await, books.counter().await.used), (310, 310));
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_are_compared_and_repaired_too() {
    let carried = QUOTA.replace("period: month", "period: month\n    carry_over: 200");
    for rules in [QUOTA, &carried] {
        for repair in [Repair::Counters, Repair::Ledger] {
            for (used, extra) in [(0, 30), (0, -20), (40, -20)] {
                let mut books = Books::new(rules).await;
                books.ask(900).await;
                books.clock.advance(tollgate::Span::from_secs(31 * 86_400));
                books.ask(10).await;
                let granted = posting(Posted::Grant(50), "ticket-7");
                let before = books.post(&granted).await.unwrap();
                assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
                books.distort(used, extra).await;
                let found = books.reconcile(repair).await;
                let drift = &found.drifts[0];
                assert_eq!((drift.ledger, drift.counter), (10, 10 + used));
                let booked = i64::try_from(before.extra).unwrap();
                let told = (drift.ledger_extra, drift.counter_extra);
                assert_eq!(told, (booked, booked + extra));
                assert!(drift.repaired);
                assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
                let expected = match repair {
                    Repair::Ledger => (10 + used, booked + extra),
                    _ => (10, booked),
                };
                books.restart().await;
                books.ask(0).await;
                let counter = books.counter().await;
                let told = (counter.used.cast_signed(), counter.extra.cast_signed());
                assert_eq!(told, expected, "and after a restart");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_differ_are_waited_for_once() {
    let books = Books::flushed_every(Duration::from_secs(1), QUOTA).await;
    let tenants: Vec<String> = (0..60).map(|it| format!("tenant-{it}")).collect();
    for tenant in &tenants {
        let attributes = Attributes::from([("tenant", tenant.as_str())]);
        books.limiter.ask(&attributes, Ask::Exactly(7)).await;
    }
    books.forget(&tenants, 3).await;
    // Two seconds, and not two minutes.
    let limit = Duration::from_secs(60);
    let found = tokio::time::timeout(limit, books.reconcile(Repair::Counters)).await;
    let found = found.unwrap();
    assert_eq!((found.compared, found.drifts.len()), (60, 60));
    assert!(
        found
            .drifts
            .iter()
            .all(|it| (it.ledger, it.counter) == (7, 4))
    );
    assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
    assert_eq!(
        books.limiter.ask(&acme(), Ask::Exactly(1)).await.granted(),
        1
    );
}
