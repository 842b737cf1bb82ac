//! What became of a reservation, as it is found again after the process that ended it.

use tollgate::{HoldError, Span};
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{Books, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_found_again_as_it_was_said() {
    let limited = QUOTA.replace("period: month", "period: month\n    overdraft: 100");
    let costly = QUOTA.replace("period: month", "period: month\n    cost: 3");
    // The rules, what was used of 300, and how much of that nobody was charged for.
    for (rules, actual, uncharged) in [
        (QUOTA, 0, 0),
        (QUOTA, 120, 0),
        (&limited, 1100, 0),
        (&limited, 1234, 134),
        (&costly, 0, 0),
        (&costly, 7, 0),
    ] {
        let mut books = Books::new(rules).await;
        let hold = reserve(&books, 300, None).await;
        let first = books.limiter.commit(&hold.id, actual).await.unwrap();
        assert_eq!((first.actual, first.uncharged), (Some(actual), uncharged));
        for _ in 0..2 {
            books.restart().await;
            let found = books.limiter.find_hold(&hold.id).await.unwrap();
            assert_eq!(found, first, "{actual} of {rules}");
            let again = books.limiter.commit(&hold.id, actual).await;
            assert_eq!(again.unwrap(), first, "{actual} of {rules}");
            let other = books.limiter.commit(&hold.id, actual + 1).await;
            assert!(matches!(other, Err(HoldError::Ended(_))), "{other:?}");
            let released = books.limiter.release(&hold.id).await;
            assert!(matches!(released, Err(HoldError::Ended(_))), "{released:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_back_is_not_taken_for_used() {
    let mut books = Books::new(QUOTA).await;
    let released = reserve(&books, 300, None).await;
    let expired = reserve(&books, 200, None).await;
    books.limiter.release(&released.id).await.unwrap();
    books.clock.advance(Span::from_secs(200));
    books.sweep().await;
    for _ in 0..2 {
        books.restart().await;
        let found = books.limiter.find_hold(&released.id).await.unwrap();
        assert_eq!((found.state, found.actual), (HoldState::Released, None));
        books.limiter.release(&released.id).await.unwrap();
        let found = books.limiter.find_hold(&expired.id).await.unwrap();
        assert_eq!((found.state, found.actual), (HoldState::Expired, None));
        for hold in [&released, &expired] {
            let late = books.limiter.commit(&hold.id, 0).await;
            assert!(matches!(late, Err(HoldError::Ended(_))), "{late:?}");
        }
        assert_eq!(books.used().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_extension_has_said_holds_for_what_has_ended_too() {
    let mut books = Books::new(QUOTA).await;
    let hold = reserve(&books, 300, None).await;
    books.limiter.extend(&hold.id, Span::HOUR).await.unwrap();
    let ended = books.limiter.commit(&hold.id, 0).await.unwrap();
    books.restart().await;
    books.clock.advance(Span::from_secs(3000));
    books.sweep().await;
    assert_eq!(books.limiter.find_hold(&hold.id).await.unwrap(), ended);
}
