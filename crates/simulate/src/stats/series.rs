//! Counts over time, in a bounded number of buckets. When there are too many, neighbours are joined.

use tollgate::Time;

/// The most buckets. An even number, so that all of them have a neighbour.
const MOST: usize = 480;
/// The shortest bucket, in microseconds.
const SHORTEST: u64 = 1_000_000;

/// The counts of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// The requests that were allowed.
    pub allowed: u64,
    /// The requests that were denied.
    pub denied: u64,
    /// The requests that a shadow rule would have denied.
    pub shadow_denied: u64,
    /// The most states that the store held.
    pub keys: u64,
    /// The most bytes that the states occupied.
    pub bytes: u64,
}

impl Bucket {
    fn join(self, other: Bucket) -> Bucket {
        Bucket {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
            keys: self.keys.max(other.keys),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// Counts over time.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) start: u64,
    pub(crate) width: u64,
    pub(crate) buckets: Vec<Bucket>,
}

impl Default for Series {
    fn default() -> Series {
        Series {
            start: 0,
            width: SHORTEST,
            buckets: Vec::new(),
        }
    }
}

impl Series {
    /// Returns the bucket of a time, which is not before that of the first call.
    pub(crate) fn at(&mut self, time: Time) -> &mut Bucket {
        let micros = time.as_micros();
        if self.buckets.is_empty() {
            self.start = micros - micros % SHORTEST;
        }
        let since = micros.saturating_sub(self.start);
        while since / self.width >= MOST as u64 {
            self.widen();
        }
        let place = usize::try_from(since / self.width).unwrap_or(MOST - 1);
        if place >= self.buckets.len() {
            self.buckets.resize(place + 1, Bucket::default());
        }
        &mut self.buckets[place]
    }

    fn widen(&mut self) {
        let pairs = self.buckets.chunks(2);
        let joined = pairs.map(|pair| pair.iter().copied().fold(Bucket::default(), Bucket::join));
        self.buckets = joined.collect();
        self.width *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_any_length_is_bounded_and_loses_nothing() {
        let mut series = Series::default();
        let start = 1_700_000_000_000_000;
        for second in 0..100_000_u64 {
            let bucket = series.at(Time::from_micros(start + second * 1_000_000));
            bucket.allowed += 1;
            bucket.keys = bucket.keys.max(second);
        }
        assert!(series.buckets.len() <= MOST);
        let allowed: u64 = series.buckets.iter().map(|it| it.allowed).sum();
        assert_eq!(allowed, 100_000);
        assert_eq!(series.buckets.last().unwrap().keys, 99_999);
        assert_eq!(series.start, start);
    }
}
