//! The charges of a request by their store, and the answers of the stores.

use smallvec::SmallVec;
use tollgate_core::{Charge, Enforcement, OnDenied, Outcome, StoreId, Time};
use tollgate_store::{Applied, Outcomes};

/// The charges of a request in one store.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub(super) store: StoreId,
    /// The indexes of the charges in the request.
    indexes: SmallVec<[u8; 6]>,
    pub(super) charges: SmallVec<[Charge<'a>; 6]>,
}

impl<'a> Part<'a> {
    /// Returns the charges of `store`. If a charge refers to another by its index, the index is adapted, or removed
    /// if the other charge is in another store.
    pub(super) fn new(charges: &[Charge<'a>], store: StoreId) -> Part<'a> {
        let mut part = Part {
            store,
            indexes: SmallVec::new(),
            charges: SmallVec::new(),
        };
        for (index, charge) in (0..=u8::MAX).zip(charges) {
            if charge.store == store {
                part.indexes.push(index);
                part.charges.push(*charge);
            }
        }
        let indexes = &part.indexes;
        // A request has at most 255 charges. A place that does not exist is the last one.
        let place = |of: u8| indexes.iter().position(|it| *it == of);
        let place = |of: u8| place(of).and_then(|it| u8::try_from(it).ok());
        for charge in &mut part.charges {
            if let Enforcement::Instead(of) = charge.enforcement {
                charge.enforcement = place(of).map_or(Enforcement::Shadow, Enforcement::Instead);
            }
            if let OnDenied::Strike(of) = charge.on_denied {
                charge.on_denied = OnDenied::Strike(place(of).unwrap_or(u8::MAX));
            }
        }
        part
    }

    /// Writes the outcomes of this part to their places.
    pub(super) fn spread(&self, told: &[Outcome], outcomes: &mut [Outcome]) {
        for (index, outcome) in self.indexes.iter().zip(told) {
            if let Some(place) = outcomes.get_mut(usize::from(*index)) {
                *place = *outcome;
            }
        }
    }

    /// Returns the places of the charges that took units: those that count denied requests, or those that do not.
    pub(super) fn taken(&self, outcomes: &[Outcome], counts_denied: bool) -> SmallVec<[usize; 6]> {
        let charges = self.charges.iter().zip(outcomes).enumerate();
        let taken = charges.filter(|(_, (charge, outcome))| {
            // A shadow that would have denied has taken nothing.
            let took = charge.limit.has_amount() && outcome.is_allowed();
            took && charge.counts_denied() == counts_denied
        });
        taken.map(|(place, _)| place).collect()
    }

    /// Returns the charges that count denied requests.
    pub(super) fn counting(&self) -> Part<'a> {
        let both = self.indexes.iter().zip(&self.charges);
        let counting = both.filter(|(_, charge)| charge.counts_denied());
        let (indexes, charges) = counting.map(|(index, charge)| (*index, *charge)).unzip();
        Part {
            store: self.store,
            indexes,
            charges,
        }
    }
}

/// A part, and the answer of its store.
pub(super) struct Told<'a> {
    pub(super) part: Part<'a>,
    pub(super) applied: Applied,
}

pub(super) fn earliest(told: &[Told<'_>]) -> Time {
    let times = told.iter().map(|it| it.applied.now);
    times.min().unwrap_or_default()
}

/// Returns the outcomes of a request with this many charges, in their order.
pub(super) fn gather(charges: usize, told: &[Told<'_>]) -> Outcomes {
    let mut outcomes: Outcomes = std::iter::repeat_n(Outcome::UNDECIDED, charges).collect();
    for it in told {
        it.part.spread(&it.applied.outcomes, &mut outcomes);
    }
    outcomes
}
