//! One request's view of an engine: the config that was in force when it began.

use std::sync::Arc;

use tollgate_core::Time;
use tollgate_rules::{Attributes, Explanation};
use tollgate_store::{Ask, StoreError};

use crate::engine::with_limiter;
use crate::{ActiveConfig, BatchDecision, Decision, Demand, DemandError, Engine};

/// An engine with one config, for a request that looks at the config more than once: which action it
/// is, what is decided, and what the answer says then belong together, whatever is put in force
/// meanwhile.
pub struct Snapshot<'e> {
    engine: &'e Engine,
    live: Arc<ActiveConfig>,
}

impl<'e> Snapshot<'e> {
    pub(crate) fn new(engine: &'e Engine, live: Arc<ActiveConfig>) -> Snapshot<'e> {
        Snapshot { engine, live }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &'e Engine {
        self.engine
    }

    /// The config, and what was made of it.
    #[must_use]
    pub fn live(&self) -> &Arc<ActiveConfig> {
        &self.live
    }

    /// As [`Engine::ask`].
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let live = &self.live;
        if let Engine::Kept(limiter) = self.engine
            && let Some(decision) = limiter.ask_at_once_under(live, attributes, ask)
        {
            return decision;
        }
        with_limiter!(
            self.engine,
            |limiter| limiter.ask_under(live, attributes, ask),
            |limiter| Box::pin(limiter.ask_under(live, attributes, ask)).await
        )
    }

    /// As [`Engine::peek`].
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let live = &self.live;
        with_limiter!(
            self.engine,
            |limiter| limiter.peek_under(live, attributes, ask),
            |limiter| Box::pin(limiter.peek_under(live, attributes, ask)).await
        )
    }

    /// As [`Engine::ask_all`].
    ///
    /// # Errors
    /// As there.
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        let live = &self.live;
        with_limiter!(
            self.engine,
            |limiter| limiter.ask_all_under(live, demands),
            |limiter| Box::pin(limiter.ask_all_under(live, demands)).await
        )
    }

    /// As [`Engine::refund`].
    ///
    /// # Errors
    /// As there.
    pub async fn refund(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        let live = &self.live;
        with_limiter!(
            self.engine,
            |limiter| Ok(limiter.refund_under(live, attributes, units, charged_at)),
            |limiter| { Box::pin(limiter.refund_under(live, attributes, units, charged_at)).await }
        )
    }

    /// As [`Engine::reset`].
    ///
    /// # Errors
    /// As there.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        let live = &self.live;
        with_limiter!(
            self.engine,
            |limiter| {
                limiter.reset_under(live, attributes);
                Ok(())
            },
            |limiter| Box::pin(limiter.reset_under(live, attributes)).await
        )
    }

    /// As [`Engine::explain`].
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.live.rules().explain(attributes)
    }
}
