//! Combines the verdicts on all charges of a request. Computes whether the request passes, how many units
//! fit, and what the result means for each charge. No function here reads or writes a state.

use smallvec::SmallVec;
use tollgate_core::{Charge, Enforcement, OnDenied};

use super::one_charge::{Look, RequestResult};

/// The verdicts on all charges of a request, in the order of the charges.
pub(super) type Looks = SmallVec<[Look; 6]>;

/// Returns whether every enforcing charge allows the request.
pub(super) fn all_allow(charges: &[Charge<'_>], looks: &[Look]) -> bool {
    let mut both = charges.iter().zip(looks);
    both.all(|(charge, look)| !charge.enforces() || look.verdict.is_allowed())
}

/// Returns whether the usage of an enforcing charge has to be restored first.
pub(super) fn is_unrestored(charges: &[Charge<'_>], looks: &[Look]) -> bool {
    let mut both = charges.iter().zip(looks);
    both.any(|(charge, look)| charge.enforces() && look.verdict.is_unrestored())
}

/// Returns what the result of the request means for `charge`. `allowed` says whether the request passes.
pub(super) fn result_for(
    charges: &[Charge<'_>],
    looks: &[Look],
    charge: &Charge<'_>,
    allowed: bool,
) -> RequestResult {
    RequestResult {
        passes: allowed || stands_in(charges, looks, charge),
        struck: is_struck(looks, charge),
    }
}

/// Returns whether the request would pass if the candidate `charge` replaced its charge.
fn stands_in(charges: &[Charge<'_>], looks: &[Look], charge: &Charge<'_>) -> bool {
    let Enforcement::Instead(place) = charge.enforcement else {
        return false;
    };
    if usize::from(place) >= charges.len() {
        return false;
    }
    let mut all = charges.iter().zip(looks).enumerate();
    all.all(|(i, (other, look))| {
        let is_replaced = i == usize::from(place) || other.on_denied == OnDenied::Strike(place);
        is_replaced || !other.enforces() || look.verdict.is_allowed()
    })
}

/// Returns whether the charge that `charge` watches denies the request.
fn is_struck(looks: &[Look], charge: &Charge<'_>) -> bool {
    let OnDenied::Strike(place) = charge.on_denied else {
        return false;
    };
    let watched = looks.get(usize::from(place));
    watched.is_some_and(|look| !look.verdict.is_allowed() && !look.verdict.is_unrestored())
}

/// Returns the cost of one unit: the sum over charge `i` and the earlier charges of the same key.
pub(super) fn weight(charges: &[Charge<'_>], i: usize) -> u64 {
    let key = charges[i].key;
    let same = charges[..i].iter().filter(|charge| charge.key == key);
    let costs = same.map(|charge| charge.cost);
    costs.fold(charges[i].cost, u64::saturating_add)
}

/// Returns how many units fit into all charges, up to `most`.
pub(super) fn available_units(charges: &[Charge<'_>], looks: &[Look], most: u64) -> u64 {
    let available = looks.iter().map(|look| look.verdict.available);
    units_within(charges, available, most)
}

/// Returns how many units fit into the `available` amount of each charge, up to `most`.
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
