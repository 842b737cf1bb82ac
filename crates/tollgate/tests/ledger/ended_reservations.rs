//! Ended reservations, read again after a restart.

use tollgate::{HoldError, Span};
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{LedgerSetup, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn committed_reservation_survives_restarts_unchanged() {
    let limited = QUOTA.replace("period: month", "period: month\n    overdraft: 100");
    let costly = QUOTA.replace("period: month", "period: month\n    cost: 3");
    // The rules, the actual usage of 300 reserved units, and the units that were not charged.
    for (rules, actual, uncharged) in [
        (QUOTA, 0, 0),
        (QUOTA, 120, 0),
        (&limited, 1100, 0),
        (&limited, 1234, 134),
        (&costly, 0, 0),
        (&costly, 7, 0),
    ] {
        let mut setup = LedgerSetup::new(rules).await;
        let hold = reserve(&setup, 300, None).await;
        let first = setup.limiter.commit(&hold.id, actual).await.unwrap();
        assert_eq!((first.actual, first.uncharged), (Some(actual), uncharged));
        for _ in 0..2 {
            setup.restart().await;
            let found = setup.limiter.find_hold(&hold.id).await.unwrap();
            assert_eq!(found, first, "{actual} of {rules}");
            let again = setup.limiter.commit(&hold.id, actual).await;
            assert_eq!(again.unwrap(), first, "{actual} of {rules}");
            let other = setup.limiter.commit(&hold.id, actual + 1).await;
            assert!(matches!(other, Err(HoldError::Ended(_))), "{other:?}");
            let released = setup.limiter.release(&hold.id).await;
            assert!(matches!(released, Err(HoldError::Ended(_))), "{released:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn released_and_expired_reservations_stay_unused_after_restarts() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let released = reserve(&setup, 300, None).await;
    let expired = reserve(&setup, 200, None).await;
    setup.limiter.release(&released.id).await.unwrap();
    setup.clock.advance(Span::from_secs(200));
    setup.sweep().await;
    for _ in 0..2 {
        setup.restart().await;
        let found = setup.limiter.find_hold(&released.id).await.unwrap();
        assert_eq!((found.state, found.actual), (HoldState::Released, None));
        setup.limiter.release(&released.id).await.unwrap();
        let found = setup.limiter.find_hold(&expired.id).await.unwrap();
        assert_eq!((found.state, found.actual), (HoldState::Expired, None));
        for hold in [&released, &expired] {
            let late = setup.limiter.commit(&hold.id, 0).await;
            assert!(matches!(late, Err(HoldError::Ended(_))), "{late:?}");
        }
        assert_eq!(setup.used().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_reservation_keeps_its_extended_expiry() {
    let mut setup = LedgerSetup::new(QUOTA).await;
    let hold = reserve(&setup, 300, None).await;
    setup.limiter.extend(&hold.id, Span::HOUR).await.unwrap();
    let ended = setup.limiter.commit(&hold.id, 0).await.unwrap();
    setup.restart().await;
    setup.clock.advance(Span::from_secs(3000));
    setup.sweep().await;
    assert_eq!(setup.limiter.find_hold(&hold.id).await.unwrap(), ended);
}
