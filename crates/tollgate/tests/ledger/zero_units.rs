//! A reservation of zero units.

use tollgate_ledger::Kind;
use tollgate_store::HoldState;

use super::QUOTA;
use super::setup::{LedgerSetup, reserve};

#[tokio::test(flavor = "multi_thread")]
async fn reservation_of_zero_units_records_its_actual_usage() {
    for restarts in [false, true] {
        let mut setup = LedgerSetup::new(QUOTA).await;
        let hold = reserve(&setup, 0, Some("call-1")).await;
        assert_eq!(setup.used().await, 0);
        if restarts {
            setup.restart().await;
        }
        for _ in 0..2 {
            let settled = setup.limiter.commit(&hold.id, 300).await.unwrap();
            assert_eq!(settled.state, HoldState::Consumed);
            assert_eq!((settled.actual, settled.uncharged), (Some(300), 0));
        }
        assert_eq!(setup.used().await, 300);
        let kinds = setup.kinds().await;
        assert!(kinds.contains(&(Kind::Settle, 300)), "{kinds:?}");
        assert_eq!(setup.ask(0).await, Some(700));
        setup.restart().await;
        assert_eq!(setup.ask(0).await, Some(700));
    }
}
