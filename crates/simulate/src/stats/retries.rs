//! How long denied requests have to wait: counts by powers of two of a millisecond.

use tollgate::Span;

const PLACES: usize = 42;

/// The waits of denied requests.
#[derive(Clone, Debug)]
pub(crate) struct Retries {
    /// The waits up to 1 ms, 2 ms, 4 ms and so on.
    counts: [u64; PLACES],
    /// Denials that no wait helps.
    pub(crate) never: u64,
    pub(crate) longest: Span,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            counts: [0; PLACES],
            never: 0,
            longest: Span::ZERO,
        }
    }
}

impl Retries {
    pub(crate) fn add(&mut self, wait: Option<Span>) {
        let Some(wait) = wait else {
            self.never += 1;
            return;
        };
        self.longest = self.longest.max(wait);
        let millis = wait.as_millis_ceil().max(1);
        let place = usize::try_from(millis.next_power_of_two().ilog2()).unwrap_or(PLACES);
        self.counts[place.min(PLACES - 1)] += 1;
    }

    /// Returns the upper bound of each place in milliseconds and its count, from the first place with waits to
    /// the last.
    pub(crate) fn places(&self) -> Vec<(u64, u64)> {
        let is_used = |count: &u64| *count > 0;
        let Some(first) = self.counts.iter().position(is_used) else {
            return Vec::new();
        };
        let last = self.counts.iter().rposition(is_used).unwrap_or(first);
        let places = (first..=last).map(|place| (1 << place, self.counts[place]));
        places.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_powers_of_two() {
        let mut retries = Retries::default();
        for millis in [0, 1, 2, 3, 4, 9] {
            retries.add(Some(Span::from_millis(millis)));
        }
        retries.add(None);
        assert_eq!(retries.places(), [(1, 2), (2, 1), (4, 2), (8, 0), (16, 1)]);
        assert_eq!((retries.never, retries.longest), (1, Span::from_millis(9)));
    }
}
