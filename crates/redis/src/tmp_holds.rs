use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Span, Token};
use tollgate_store::*;
fn no<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("not yet".into()))
}
impl HoldStore for crate::RedisStore {
    async fn hold(&self, _: &[Charge<'_>], _: u64, _: &NewHold<'_>) -> Result<Held, StoreError> {
        no()
    }
    async fn settle(&self, _: HoldId, _: Settle) -> Result<Settled, StoreError> {
        no()
    }
    async fn extend(&self, _: HoldId, _: Span, _: Option<Token>) -> Result<Extended, StoreError> {
        no()
    }
    async fn find_hold(&self, _: HoldId) -> Result<Option<HoldRecord>, StoreError> {
        no()
    }
    async fn put_hold(&self, _: &HoldRecord) -> Result<bool, StoreError> {
        no()
    }
    async fn due_holds(&self, _: usize) -> Result<Vec<HoldId>, StoreError> {
        no()
    }
    async fn holders(&self, _: &Charge<'_>, _: usize) -> Result<Vec<Holder>, StoreError> {
        no()
    }
}
