//! Reservations in the books whose ends are not what one would think of first.

use tollgate_ledger::Kind;
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{Books, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_of_nothing_is_in_the_books_with_what_was_used() {
    for restarts in [false, true] {
        let mut books = Books::new(QUOTA).await;
        let hold = reserve(&books, 0, Some("call-1")).await;
        assert_eq!(books.used().await, 0);
        if restarts {
            books.restart().await;
        }
        for _ in 0..2 {
            let settled = books.limiter.commit(&hold.id, 300).await.unwrap();
            assert_eq!(settled.state, HoldState::Consumed);
            assert_eq!((settled.actual, settled.uncharged), (Some(300), 0));
        }
        assert_eq!(books.used().await, 300);
        let kinds = books.kinds().await;
        assert!(kinds.contains(&(Kind::Settle, 300)), "{kinds:?}");
        assert_eq!(books.ask(0).await, Some(700));
        books.restart().await;
        assert_eq!(books.ask(0).await, Some(700));
    }
}
