//! How a shared limiter comes to an answer: from what it knows, from its store and the books, or from the
//! failure policies.

use std::sync::atomic::Ordering;

use futures_util::future::join;
use tollgate_core::{Charge, Enforcement, Time};
use tollgate_rules::{Attributes, Resolution};
use tollgate_store::{Applied, Ask, Clock, Guarantee, HoldStore, Store, StoreError};

use super::SharedLimiter;
use crate::active_config::ActiveConfig;
use crate::batch::Told;
use crate::books::Books;
use crate::decision::Decision;
use crate::denials::{Denials, learn, refused_units, weight};
use crate::entry::Entry;
use crate::parties::Parties;
use crate::path::is_refused;

impl<S: HoldStore, C: Clock> SharedLimiter<S, C> {
    /// What a request that no rule refuses on sight is told.
    pub(super) async fn decide(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
        parties: &Parties<'_, '_>,
    ) -> Told {
        match self.known_denial(live, resolution, ask) {
            Some(told) => told,
            None => {
                let denials = self.denials.as_ref();
                self.apply(live, resolution, ask, parties, denials).await
            }
        }
    }

    /// The same without knowing it before. `denials` learns of it.
    pub(super) async fn apply(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
        parties: &Parties<'_, '_>,
        denials: Option<&Denials>,
    ) -> Told {
        let asked_at = self.clock.now();
        let applied = match self.books_of(&resolution.charges) {
            None => self.store.apply(&resolution.charges, ask).await,
            Some(books) => {
                books
                    .apply(&self.store, live, resolution, ask, parties)
                    .await
            }
        };
        match applied {
            Ok(applied) => {
                if let Some(denials) = denials {
                    let charges = &resolution.charges;
                    learn(denials, live.generation(), charges, &applied, ask, asked_at);
                }
                self.follow(live, resolution, &applied);
                Told::by_store(resolution, &applied).asked_at(asked_at)
            }
            Err(error) => {
                let told = self.fall_back(live, resolution, ask, true, &error);
                told.asked_at(asked_at)
            }
        }
    }

    /// What a request would be told now.
    pub(super) async fn look(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
    ) -> Told {
        let asked_at = self.clock.now();
        let peeked = match self.books_of(&resolution.charges) {
            None => self.store.peek(&resolution.charges, ask).await,
            Some(books) => books.peek(&self.store, &resolution.charges, ask).await,
        };
        let told = match peeked {
            Ok(applied) => Told::by_store(resolution, &applied),
            Err(error) => self.fall_back(live, resolution, ask, false, &error),
        };
        told.asked_at(asked_at)
    }

    /// The books, if a charge is kept in them.
    #[inline]
    pub(crate) fn books_of(&self, charges: &[Charge<'_>]) -> Option<&Books> {
        let books = self.books.as_deref()?;
        charges.iter().any(|it| it.ledgered).then_some(books)
    }

    /// A request that is refused without regard to its charges takes nothing, but is counted where a
    /// rule counts refused requests.
    pub(super) async fn count_refused(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
    ) -> Told {
        let charges = &resolution.charges;
        let counting = charges.iter().enumerate();
        let counting = counting.filter(|(_, charge)| charge.counts_denied());
        let (places, counting): (Vec<usize>, Vec<Charge<'_>>) = counting.unzip();
        let asked_at = self.clock.now();
        // At once, so that both together take no longer than one.
        let looked = async {
            match self.books_of(charges) {
                None => self.store.peek(charges, ask).await,
                Some(books) => books.peek(&self.store, charges, ask).await,
            }
        };
        let counted = async {
            match counting.is_empty() {
                true => Ok(Applied::default()),
                false => self.store.apply(&counting, ask).await,
            }
        };
        let (mut applied, counted) = match join(looked, counted).await {
            (Ok(applied), Ok(counted)) => (applied, counted),
            (Err(error), _) | (_, Err(error)) => {
                let told = self.fall_back(live, resolution, ask, false, &error);
                return told.asked_at(asked_at);
            }
        };
        for (place, outcome) in places.into_iter().zip(&counted.outcomes) {
            applied.outcomes[place] = *outcome;
        }
        Told::by_store(resolution, &applied).asked_at(asked_at)
    }

    /// The refusal of a request that needs no question to the store. It names the rules that are
    /// known to refuse, and no others.
    fn known_denial(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
    ) -> Option<Told> {
        let denials = self.denials.as_ref()?;
        let charges = &resolution.charges;
        // Who counts refused requests wants to see each, and so does who may take a rule's place.
        let candidate = |it: &Charge<'_>| matches!(it.enforcement, Enforcement::Instead(_));
        if charges.iter().any(|it| it.sees_denied() || candidate(it)) {
            return None;
        }
        let (now, units) = (self.clock.now(), refused_units(ask));
        let mut store_time = None;
        let rules = resolution.rules.iter().enumerate();
        let entries = rules.map(|(index, rule)| {
            let charge = &charges[index];
            let cost = weight(charges, index).saturating_mul(units);
            let enforcing = charge.enforces().then_some(charge)?;
            let known = denials.known(enforcing, live.generation(), cost, now)?;
            let then = known.store_time(now);
            store_time.get_or_insert(then);
            Some(Entry::of(charge, *rule, known.outcome, then))
        });
        let entries = entries.collect();
        let told = Told {
            now: store_time?,
            allowed: false,
            granted: 0,
            guarantee: Guarantee::Atomic,
            asked_at: None,
            entries,
        };
        self.known_denials.fetch_add(1, Ordering::Relaxed);
        Some(told)
    }

    /// Forgets all refusals that are known: who was refused may not be any more.
    pub(crate) fn forget_denials(&self) {
        if let Some(denials) = &self.denials {
            denials.forget_all();
        }
    }

    pub(super) fn forget(&self, charges: &[Charge<'_>]) {
        if let Some(denials) = &self.denials {
            denials.forget(charges);
        }
    }

    /// What the policies say in the store's place.
    pub(crate) fn fall_back(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
        error: &StoreError,
    ) -> Told {
        let refused = is_refused(resolution);
        let told = self
            .fallback
            .decide(live.plans(), resolution, ask, take && !refused);
        if take {
            self.failures.count(&told.entries);
            self.failures.log(told.now, error);
        }
        Told {
            now: told.now,
            allowed: told.allowed,
            granted: told.granted,
            guarantee: Guarantee::Atomic,
            asked_at: None,
            entries: told.entries.into_iter().map(Some).collect(),
        }
    }

    /// Logs a refusal. `asked_at` is when the store was asked, if it was.
    pub(crate) fn log_refusal(
        &self,
        decision: &Decision,
        attributes: &Attributes<'_>,
        asked_at: Option<Time>,
    ) {
        let now = self.clock.now();
        let latency = asked_at.map(|it| now.since(it));
        self.rejections.log(now, decision, attributes, latency);
    }
}
