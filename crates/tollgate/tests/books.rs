//! A limiter with a ledger: what outlives it, and what the books say.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "books/calendar.rs"]
mod calendar;
#[path = "books/holding.rs"]
mod holding;
#[path = "books/lives.rs"]
mod lives;
#[path = "books/model.rs"]
mod model;
#[path = "books/posting.rs"]
mod posting;
#[path = "books/restoring.rs"]
mod restoring;
#[path = "books/revived.rs"]
mod revived;
#[path = "books/setup.rs"]
mod setup;
#[path = "common/with_ledger.rs"]
mod with_ledger;

use setup::{Books, acme, reserve};
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
async fn what_was_used_outlives_the_process() {
    let mut books = Books::new(QUOTA).await;
    assert_eq!(books.ask(300).await, Some(700));
    books.restart().await;
    assert_eq!(books.ask(300).await, Some(400));
    books.restart().await;
    assert_eq!(books.ask(500).await, None, "a restart is no second month");
    assert_eq!(books.used().await, 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_the_store_has_lost_is_restored() {
    let books = Books::new(QUOTA).await;
    assert_eq!(books.ask(300).await, Some(700));
    books.lose_counts();
    assert_eq!(books.ask(1).await, Some(699));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_find_no_count_restore_it_once() {
    let books = Books::new(QUOTA).await;
    assert_eq!(books.ask(500).await, Some(500));
    for _ in 0..20 {
        books.lose_counts();
        let asking = (0..8).map(|_| books.ask(1));
        let told = futures_util::future::join_all(asking).await;
        assert!(told.iter().all(Option::is_some));
    }
    assert_eq!(books.used().await, 660);
    assert_eq!(books.ask(340).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_month_is_a_new_count_and_the_old_one_stays_in_the_books() {
    let mut books = Books::new(QUOTA).await;
    books.ask(900).await;
    let july = books.period();
    books.clock.advance(Span::from_secs(31 * 86_400));
    books.restart().await;
    assert_eq!(books.ask(10).await, Some(990));
    assert_eq!(books.balance(july).await.used, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_carried_over_is_carried_over_by_the_books_too() {
    let rules = QUOTA.replace("period: month", "period: month\n    carry_over: 200");
    let mut books = Books::new(&rules).await;
    books.ask(900).await;
    books.clock.advance(Span::from_secs(31 * 86_400));
    books.restart().await;
    assert_eq!(books.ask(0).await, Some(1100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_rule_is_in_the_database_when_it_answers() {
    let rules = QUOTA.replace("period: month", "period: month\n    durability: strict");
    let books = Books::new(&rules).await;
    assert_eq!(books.ask(7).await, Some(993));
    assert_eq!(books.used_in_database().await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_noted_is_not_admitted_and_not_taken() {
    let rules = QUOTA.replace("period: month", "period: month\n    durability: strict");
    let books = Books::new(&rules).await;
    assert_eq!(books.ask(7).await, Some(993));
    books.ledger().close().await;
    assert_eq!(books.ask(7).await, None, "the policy refuses");
    let counter = books.counter().await;
    assert_eq!(counter.used, 7, "and nothing stays taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_settled_with_what_was_used() {
    for (actual, used) in [(120, 120), (500, 500), (800, 800), (0, 0)] {
        let books = Books::new(QUOTA).await;
        let hold = reserve(&books, 500, None).await;
        assert_eq!(books.used().await, 500);
        let settled = books.limiter.commit(&hold.id, actual).await.unwrap();
        assert_eq!(settled.state, HoldState::Consumed);
        assert_eq!((settled.actual, settled.uncharged), (Some(actual), 0));
        assert_eq!(books.used().await, used);
        assert_eq!(
            books.ask(0).await,
            Some(1000 - u64::try_from(used).unwrap())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_can_be_repeated() {
    let mut books = Books::new(QUOTA).await;
    let first = reserve(&books, 500, Some("call-1")).await;
    let again = reserve(&books, 500, Some("call-1")).await;
    assert_eq!(first.id, again.id);
    assert_eq!(books.used().await, 500);
    let other = Reserve {
        units: 400,
        idempotency_key: Some("call-1"),
        ..Reserve::default()
    };
    let conflict = books.limiter.reserve(&acme(), &other).await;
    assert!(matches!(conflict, Err(HoldError::Conflict)), "{conflict:?}");
    for _ in 0..3 {
        books.limiter.commit(&first.id, 120).await.unwrap();
        books.restart().await;
    }
    let error = books.limiter.commit(&first.id, 121).await.unwrap_err();
    let HoldError::Ended(hold) = error else {
        panic!("{error}");
    };
    assert_eq!(hold.actual, Some(120));
    let error = books.limiter.release(&first.id).await.unwrap_err();
    assert!(matches!(error, HoldError::Ended(_)), "{error}");
    let repeated = reserve(&books, 500, Some("call-1")).await;
    assert_eq!(repeated.state, HoldState::Consumed);
    assert_eq!(books.used().await, 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_outlives_the_process_that_made_it() {
    let mut books = Books::new(QUOTA).await;
    let hold = reserve(&books, 500, Some("call-1")).await;
    books.restart().await;
    let again = reserve(&books, 500, Some("call-1")).await;
    assert_eq!(again.id, hold.id, "and is not made twice");
    books.restart().await;
    books.limiter.extend(&hold.id, Span::HOUR).await.unwrap();
    books.restart().await;
    let found = books.limiter.find_hold(&hold.id).await.unwrap();
    assert_eq!(found.expires_at, books.clock_now() + Span::HOUR);
    books.limiter.commit(&hold.id, 80).await.unwrap();
    assert_eq!(books.used().await, 80);
    assert_eq!(books.ask(0).await, Some(920));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_settles_comes_back() {
    for restarts in [false, true] {
        let mut books = Books::new(QUOTA).await;
        let hold = reserve(&books, 500, None).await;
        assert_eq!(books.limiter.sweep_holds().await.unwrap(), 0);
        if restarts {
            books.restart().await;
        }
        books.clock.advance(Span::from_secs(200));
        books.sweep().await;
        assert_eq!(books.used().await, 0);
        assert_eq!(books.ask(0).await, Some(1000));
        let late = books.limiter.commit(&hold.id, 500).await.unwrap_err();
        assert!(matches!(late, HoldError::Ended(_)), "{late}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_and_grants_act_at_once_and_stay() {
    let mut books = Books::new(QUOTA).await;
    books.ask(1000).await;
    let post = |what, key| Posting {
        rule: "monthly",
        what,
        who: "ann",
        why: "a goodwill gesture",
        idempotency_key: key,
    };
    books
        .post(&post(Posted::Correction(-100), None))
        .await
        .unwrap();
    assert_eq!(books.ask(100).await, Some(0));
    let grant = post(Posted::Grant(50), Some("ticket-7"));
    for _ in 0..3 {
        books.post(&grant).await.unwrap();
        books.restart().await;
    }
    assert_eq!(books.ask(50).await, Some(0));
    assert_eq!(books.ask(1).await, None);
    assert_eq!(
        books.kinds().await,
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
        assert!(books.post(&wrong).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_found_and_repaired_in_the_direction_asked() {
    for repair in [Repair::Counters, Repair::Ledger] {
        let books = Books::new(QUOTA).await;
        books.ask(300).await;
        let clean = books.reconcile(Repair::Nothing).await;
        assert_eq!((clean.compared, clean.drifts.len()), (1, 0));
        books.distort(40, 0).await;
        let found = books.reconcile(Repair::Nothing).await;
        let drift = &found.drifts[0];
        assert_eq!(
            (drift.ledger, drift.counter, drift.repaired),
            (300, 340, false)
        );
        assert_eq!(drift.tenant, "acme");
        assert!(books.reconcile(repair).await.drifts[0].repaired);
        assert_eq!(books.reconcile(Repair::Nothing).await.drifts, []);
        let expected = if repair == Repair::Counters { 300 } else { 340 };
        assert_eq!(books.used().await, expected);
        assert_eq!(books.counter().await.used, u64::try_from(expected).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_is_given_back_in_the_books() {
    let books = Books::new(QUOTA).await;
    let decision = books.limiter.ask(&acme(), Ask::Exactly(300)).await;
    let at = decision.decided_at();
    books.limiter.refund(&acme(), 100, at).await.unwrap();
    assert_eq!(books.used().await, 200);
    books.limiter.reset(&acme()).await.unwrap();
    assert_eq!(books.used().await, 0);
    assert_eq!(books.ask(0).await, Some(1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holds_slots_and_uses_the_rest() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: in-flight, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s }}"
    );
    let books = Books::new(&rules).await;
    let acquire = async || {
        books
            .limiter
            .try_acquire(&acme(), &Acquire::default(), None)
            .await
    };
    let mut leases = Vec::new();
    for _ in 0..2 {
        let AcquireOutcome::Granted { lease, token, .. } = acquire().await.unwrap() else {
            panic!("refused");
        };
        leases.push((lease, token));
    }
    assert!(leases[1].0.fence > leases[0].0.fence);
    assert!(matches!(acquire().await, Ok(AcquireOutcome::Denied(_))));
    let (first, second) = (&leases[0], &leases[1]);
    let stolen = books.limiter.free(&first.0.id, second.1).await;
    assert!(matches!(stolen, Err(HoldError::NotYours)));
    books.limiter.free(&first.0.id, first.1).await.unwrap();
    assert!(matches!(
        acquire().await,
        Ok(AcquireOutcome::Granted { .. })
    ));
    assert_eq!(books.used().await, 3, "refused ones use nothing");
    let nobody = Attributes::from([("user", "ann")]);
    let none = books
        .limiter
        .try_acquire(&nobody, &Acquire::default(), None)
        .await;
    assert!(matches!(none, Err(HoldError::NothingToLease)));
    let listed = books.limiter.holders(&acme()).await.unwrap();
    assert_eq!(listed[0].holders.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_reservations_take_nothing() {
    let rules = format!(
        "{QUOTA}\n  - {{ id: rate, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }}"
    );
    let books = Books::new(&rules).await;
    let wish = Reserve {
        units: 200,
        ..Reserve::default()
    };
    let told = books.limiter.reserve(&acme(), &wish).await.unwrap();
    assert!(matches!(told, ReserveOutcome::Denied(_)));
    assert_eq!(books.used().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_given_back_than_was_used() {
    let mut books = Books::new(QUOTA).await;
    let decision = books.limiter.ask(&acme(), Ask::Exactly(10)).await;
    let at = decision.decided_at();
    books.limiter.refund(&acme(), 1_000_000, at).await.unwrap();
    assert_eq!(books.used().await, 0);
    let correction = Posting {
        rule: "monthly",
        what: Posted::Correction(-500),
        who: "ann",
        why: "too much",
        idempotency_key: None,
    };
    books.ask(100).await;
    books.post(&correction).await.unwrap();
    assert_eq!(books.used().await, 0);
    books.ask(300).await;
    books.restart().await;
    assert_eq!(
        books.ask(0).await,
        Some(700),
        "and nothing is used for free after a restart"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_databases_do_not_take_is_counted_all_the_same() {
    let books = Books::new(QUOTA).await;
    let odd = Attributes::from([("tenant", "acme"), ("action", "x\0y")]);
    assert!(books.limiter.ask(&odd, Ask::Exactly(5)).await.is_allowed());
    assert_eq!(books.used().await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_was_released_is_not_made_again_under_its_key() {
    let books = Books::new(QUOTA).await;
    let hold = reserve(&books, 500, Some("call-1")).await;
    books.limiter.release(&hold.id).await.unwrap();
    let wish = Reserve {
        units: 500,
        idempotency_key: Some("call-1"),
        ..Reserve::default()
    };
    let again = books.limiter.reserve(&acme(), &wish).await;
    assert!(matches!(again, Err(HoldError::Ended(_))), "{again:?}");
    assert_eq!(books.used().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_forgets_what_was_used_and_keeps_what_is_reserved() {
    for restarts in [false, true] {
        // What was used of it, or that it was released; what is used then.
        for (actual, used) in [
            (Some(120), 120),
            (Some(500), 500),
            (Some(800), 800),
            (None, 0),
        ] {
            let mut books = Books::new(QUOTA).await;
            books.ask(100).await;
            let hold = reserve(&books, 500, None).await;
            books.limiter.reset(&acme()).await.unwrap();
            assert_eq!((books.used().await, books.counter().await.used), (500, 500));
            if restarts {
                books.restart().await;
            }
            books.ask(30).await;
            match actual {
                Some(actual) => books.limiter.commit(&hold.id, actual).await.unwrap(),
                None => books.limiter.release(&hold.id).await.unwrap(),
            };
            let counter = i64::try_from(books.counter().await.used).unwrap();
            assert_eq!((books.used().await, counter), (used + 30, used + 30));
            books.limiter.reset(&acme()).await.unwrap();
            assert_eq!((books.used().await, books.ask(0).await), (0, Some(1000)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_correction_takes_nothing_back_that_is_reserved() {
    let books = Books::new(QUOTA).await;
    books.ask(100).await;
    let hold = reserve(&books, 500, None).await;
    let correction = Posting {
        rule: "monthly",
        what: Posted::Correction(-1000),
        who: "ann",
        why: "too much",
        idempotency_key: None,
    };
    assert_eq!(books.post(&correction).await.unwrap().used, 500);
    books.limiter.release(&hold.id).await.unwrap();
    assert_eq!((books.used().await, books.counter().await.used), (0, 0));
}
