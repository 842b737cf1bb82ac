//! Known refusals: who has just been refused until some instant need not be asked about again.
//!
//! Only where time alone decides: a refusal holds until its instant whatever others do, unless
//! something is given back. Where this instance gives something back, it forgets; what others give
//! back is noticed when the refusal is forgotten, which is after `longest` at the latest.
//!
//! The table has a fixed number of places, and who comes last has the place: forgetting a refusal
//! costs a question to the store, and never a wrong answer.
//!
//! A refusal holds under the config that it was made with, and says nothing about others: after a
//! change, nobody waits for a limit that is no more. Configs are told apart by their generation.

use parking_lot::Mutex;
use tollgate_core::{Admission, Algorithm, Charge, Denial, Key, Outcome, Span, Time};
use tollgate_store::{Applied, Ask};

/// How many refusals are known at most.
const PLACES: usize = 16_384;

pub(crate) struct Denials {
    longest: Span,
    places: Box<[Mutex<Option<Known>>]>,
}

/// A refusal, by this instance's clock and by the store's.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    key: Key,
    generation: u64,
    /// What the limit was: other numbers may not refuse.
    numbers: (u64, Span),
    /// What was refused. More is refused, too.
    cost: u64,
    pub(crate) outcome: Outcome,
    /// When this instance asked, and until when it need not ask again.
    asked_at: Time,
    until: Time,
    /// The store's time of the refusal.
    decided_at: Time,
}

impl Known {
    /// The store's time now, as far as it can be told from here.
    pub(crate) fn store_time(&self, now: Time) -> Time {
        self.decided_at + now.since(self.asked_at)
    }
}

impl Denials {
    /// Remembers refusals for `longest` at most.
    pub(crate) fn new(longest: Span) -> Denials {
        Denials {
            longest,
            places: (0..PLACES).map(|_| Mutex::new(None)).collect(),
        }
    }

    fn place(&self, key: Key) -> &Mutex<Option<Known>> {
        // Keys are spread evenly, so any of their bits will do.
        #[allow(clippy::cast_possible_truncation)]
        let place = (key.bits() >> 40) as usize % PLACES;
        &self.places[place]
    }

    /// The refusal of `cost` for this charge that still holds at `now`, under the config of this
    /// generation.
    pub(crate) fn known(
        &self,
        charge: &Charge<'_>,
        generation: u64,
        cost: u64,
        now: Time,
    ) -> Option<Known> {
        let known = (*self.place(charge.key).lock())?;
        // A clock that went back knows nothing any more.
        let holds = known.asked_at <= now && now < known.until;
        let same = known.key == charge.key
            && known.generation == generation
            && known.numbers == numbers(charge);
        (same && known.cost <= cost && holds).then_some(known)
    }

    /// Remembers that `cost` was refused until `at`, under the config of this generation. Asked at
    /// `asked_at`, decided at `decided_at` by the store's clock.
    #[allow(clippy::too_many_arguments)] // All are what a refusal is.
    pub(crate) fn remember(
        &self,
        charge: &Charge<'_>,
        generation: u64,
        cost: u64,
        outcome: Outcome,
        at: Time,
        asked_at: Time,
        decided_at: Time,
    ) {
        // Counted from before the question, so that it is forgotten in time.
        let known = Known {
            key: charge.key,
            generation,
            numbers: numbers(charge),
            cost,
            outcome,
            asked_at,
            until: asked_at + at.since(decided_at).min(self.longest),
            decided_at,
        };
        *self.place(charge.key).lock() = Some(known);
    }

    /// Forgets everything.
    pub(crate) fn forget_all(&self) {
        for place in &self.places {
            *place.lock() = None;
        }
    }

    /// Forgets what is known of these charges.
    pub(crate) fn forget(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let mut place = self.place(charge.key).lock();
            if place.is_some_and(|known| known.key == charge.key) {
                *place = None;
            }
        }
    }
}

/// What tells limits of one algorithm apart.
fn numbers(charge: &Charge<'_>) -> (u64, Span) {
    (charge.limit.capacity(), charge.limit.window())
}

/// Stands for all configs where none has a say.
pub(crate) const ANY: u64 = u64::MAX;

/// Remembers who was refused until when, under the config of this generation.
pub(crate) fn learn(
    denials: &Denials,
    generation: u64,
    charges: &[Charge<'_>],
    applied: &Applied,
    ask: Ask,
    asked_at: Time,
) {
    if applied.allowed {
        return;
    }
    for (index, (charge, outcome)) in charges.iter().zip(&applied.outcomes).enumerate() {
        if let Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) = outcome.admission
            && charge.enforces()
            && !charge.sees_denied()
            // A slot may be given back sooner.
            && charge.limit.algorithm() != Algorithm::Concurrency
        {
            let cost = weight(charges, index).saturating_mul(refused_units(ask));
            denials.remember(
                charge,
                generation,
                cost,
                *outcome,
                at,
                asked_at,
                applied.now,
            );
        }
    }
}

/// What a unit costs the charge at `index` together with those of the same key before it: that is
/// what it is asked for.
pub(crate) fn weight(charges: &[Charge<'_>], index: usize) -> u64 {
    let charge = &charges[index];
    let same = charges[..index].iter().filter(|it| it.key == charge.key);
    same.fold(charge.cost, |sum, it| sum.saturating_add(it.cost))
}

/// The units that were refused if the request was: of as many as there are, not even one was.
pub(crate) fn refused_units(ask: Ask) -> u64 {
    match ask {
        Ask::Exactly(units) => units,
        Ask::UpTo(units) => units.min(1),
    }
}
