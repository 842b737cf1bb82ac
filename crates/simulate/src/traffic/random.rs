//! Random numbers that are the same on every machine.

/// A generator of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 up to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number below `most`, which is above 0.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(most);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Returns a number with the exponential distribution of mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_as_expected() {
        let mut random = Random::new(7);
        let count = 200_000;
        let mean = |total: f64| total / f64::from(count);
        let units: f64 = (0..count).map(|_| random.unit()).sum();
        assert!((mean(units) - 0.5).abs() < 0.01, "{units}");
        let waits: f64 = (0..count).map(|_| random.exponential()).sum();
        assert!((mean(waits) - 1.0).abs() < 0.02, "{waits}");
        let mut seen = [0_u32; 5];
        for _ in 0..count {
            seen[usize::try_from(random.below(5)).unwrap()] += 1;
        }
        assert!(
            seen.iter().all(|n| (38_000..42_000).contains(n)),
            "{seen:?}"
        );
    }
}
