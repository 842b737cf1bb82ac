//! The short way of a limiter whose state is in this process and whose books are elsewhere: most requests
//! wait for nobody, and take it.

use tollgate_rules::{Attributes, RequestLimits, Resolution};
use tollgate_store::{Applied, Ask, Clock, MemoryStore};

use crate::SharedLimiter;
use crate::active_config::ActiveConfig;
use crate::books::{is_strict, is_unrestored, lines, taken};
use crate::decision::Decision;
use crate::limiter::SWEEP;
use crate::parties::{Parties, Party};
use crate::path::{conclude, is_refused};

impl<C: Clock, D: Clock> SharedLimiter<MemoryStore<D>, C> {
    /// Forgets expired state, a small share of it at a time: that of the store, which nobody else sweeps,
    /// and of what was decided without it.
    pub(crate) fn sweep_all(&self) {
        self.store.0.sweep(SWEEP);
        self.sweep();
    }

    /// As [`ask`](Self::ask), where nobody has to be waited for; `None`, and nothing is taken, where
    /// somebody has.
    pub fn ask_at_once(&self, attributes: &Attributes<'_>, ask: Ask) -> Option<Decision> {
        self.ask_at_once_under(&self.current.load(), attributes, ask)
    }

    #[inline]
    pub(crate) fn ask_at_once_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        ask: Ask,
    ) -> Option<Decision> {
        let request_limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        live.rules()
            .resolve_into(attributes, &request_limits, &mut resolution);
        let books = self.books_of(&resolution.charges);
        let is_strict = live.has_strict() && is_strict(lines(live, &resolution));
        if is_refused(&resolution) || (books.is_some() && is_strict) {
            return None;
        }
        let mut applied = Applied::default();
        self.store
            .apply_into(&resolution.charges, ask, &mut applied);
        if let Some(books) = books {
            if is_unrestored(&applied) {
                return None;
            }
            let parties = Parties::One(attributes);
            if applied.allowed
                && books
                    .note_at_once(live, &resolution, &applied, &parties)
                    .is_err()
            {
                let charges = taken(&resolution.charges, &applied);
                self.store.refund(&charges, applied.granted, applied.now);
                return None;
            }
        }
        self.follow(live, &resolution, &applied);
        // What is returned is made where it is returned: it is large enough for its copies to show.
        let decision = Some(conclude(live.rules(), &resolution, &applied));
        if let Some(decision) = &decision {
            live.metrics().count(decision.entries(), resolution.plan);
            if decision.is_allowed() {
                live.notice(&resolution.charges, &applied, |_| Party::of(attributes));
            } else {
                self.log_refusal(decision, attributes, None);
            }
        }
        decision
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::Span;
    use tollgate_store::{ManualClock, Store};

    use super::*;
    use crate::SharedOptions;

    #[tokio::test]
    async fn its_store_is_swept() {
        let text = "version: 1\nrules: [{ id: all, per: [user], algorithm: fixed-window, limit: 9, window: 1s }]\n";
        let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
        let clock = ManualClock::at(tollgate_core::Time::from_micros(1_000_000));
        let store = MemoryStore::with_clock(1000, clock.clone());
        let options = SharedOptions::default();
        let limiter = SharedLimiter::with_clock(&config, store, options, clock.clone());
        for user in 0..100 {
            let user = user.to_string();
            limiter
                .check(&Attributes::from([("user", user.as_str())]))
                .await;
        }
        assert_eq!(limiter.store.usage().await.unwrap().keys, 100);
        clock.advance(Span::MINUTE);
        for _ in 0..1000 {
            limiter.sweep_all();
        }
        assert_eq!(limiter.store.usage().await.unwrap().keys, 0);
    }
}
