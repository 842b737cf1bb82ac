//! What the looks at all charges of a request amount to: whether it passes, how many units do, and what
//! that means to each charge.

use smallvec::SmallVec;
use tollgate_core::{Charge, Enforcement, OnDenied};

use super::visit::{Fate, Look};

/// What each charge of a request was told.
pub(super) type Looks = SmallVec<[Look; 6]>;

/// Whether every enforcing charge allows the request.
pub(super) fn all_allow(charges: &[Charge<'_>], looks: &[Look]) -> bool {
    charges
        .iter()
        .zip(looks)
        .all(|(charge, look)| !charge.enforces() || look.verdict.is_allowed())
}

/// Whether an enforcing charge has to be restored before anything can be decided.
pub(super) fn is_unrestored(charges: &[Charge<'_>], looks: &[Look]) -> bool {
    let mut both = charges.iter().zip(looks);
    both.any(|(charge, look)| charge.enforces() && look.verdict.is_unrestored())
}

/// What becomes of a request that is `allowed` or not, as `charge` sees it.
pub(super) fn fate_of(
    charges: &[Charge<'_>],
    looks: &[Look],
    charge: &Charge<'_>,
    allowed: bool,
) -> Fate {
    Fate {
        passes: allowed || stands_in(charges, looks, charge),
        struck: is_struck(looks, charge),
    }
}

/// Whether `charge` would have let the request pass, asked in the place of another.
fn stands_in(charges: &[Charge<'_>], looks: &[Look], charge: &Charge<'_>) -> bool {
    let Enforcement::Instead(place) = charge.enforcement else {
        return false;
    };
    if usize::from(place) >= charges.len() {
        return false;
    }
    let others = charges.iter().zip(looks).enumerate();
    others
        .filter(|(i, (other, _))| {
            *i != usize::from(place) && other.on_denied != OnDenied::Strike(place)
        })
        .all(|(_, (other, look))| !other.enforces() || look.verdict.is_allowed())
}

/// Whether the charge that `charge` watches refuses.
fn is_struck(looks: &[Look], charge: &Charge<'_>) -> bool {
    let OnDenied::Strike(place) = charge.on_denied else {
        return false;
    };
    let watched = looks.get(usize::from(place));
    watched.is_some_and(|look| !look.verdict.is_allowed() && !look.verdict.is_unrestored())
}

/// What a unit costs charge `i` together with the charges of the same key before it.
pub(super) fn weight(charges: &[Charge<'_>], i: usize) -> u64 {
    let key = charges[i].key;
    let same = charges[..i].iter().filter(|charge| charge.key == key);
    same.fold(charges[i].cost, |sum, charge| {
        sum.saturating_add(charge.cost)
    })
}

/// How many units fit into what each charge has, up to `most`.
pub(super) fn available_units(charges: &[Charge<'_>], looks: &[Look], most: u64) -> u64 {
    units_within(
        charges,
        looks.iter().map(|look| look.verdict.available),
        most,
    )
}

/// How many units fit into what is `available` to each charge, up to `most`.
pub(super) fn units_within(
    charges: &[Charge<'_>],
    available: impl Iterator<Item = u64>,
    most: u64,
) -> u64 {
    let fitting = charges.iter().zip(available).enumerate();
    fitting
        .filter(|(_, (charge, _))| charge.enforces() && charge.limit.has_amount())
        .filter_map(|(i, (_, available))| available.checked_div(weight(charges, i)))
        .fold(most, u64::min)
}
