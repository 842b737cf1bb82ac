//! Denials that are held back before they are answered (`delay_denials`): how many at the same time, and
//! how often.
//!
//! The limiter decides at once. The caller of the limiter waits, and here is the bound on its waits.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most denials that are held back at the same time. Further denials are answered at once.
pub const MAX_DELAYED: usize = 1024;

/// Counts the denials that are held back.
#[derive(Debug, Default)]
pub struct DenialDelays {
    held: AtomicUsize,
    delayed: AtomicU64,
    at_once: AtomicU64,
}

/// Counts as one denial that is held back, until it is dropped.
#[derive(Debug)]
pub struct HeldDenial<'d>(&'d DenialDelays);

impl DenialDelays {
    /// Starts to hold back a denial. Returns `None` if [`MAX_DELAYED`] denials are held back already: then
    /// the denial has to be answered at once.
    pub fn start(&self) -> Option<HeldDenial<'_>> {
        let one_more = |held: usize| (held < MAX_DELAYED).then_some(held + 1);
        let order = Ordering::Relaxed;
        if self.held.fetch_update(order, order, one_more).is_err() {
            self.at_once.fetch_add(1, order);
            return None;
        }
        self.delayed.fetch_add(1, order);
        Some(HeldDenial(self))
    }

    /// Returns how many denials are held back now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns how many denials were held back so far.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Returns how many denials were answered at once, because too many were held back.
    #[must_use]
    pub fn at_once(&self) -> u64 {
        self.at_once.load(Ordering::Relaxed)
    }
}

impl Drop for HeldDenial<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_beyond_the_bound_are_answered_at_once() {
        let delays = DenialDelays::default();
        let held: Vec<_> = (0..MAX_DELAYED).map(|_| delays.start().unwrap()).collect();
        assert!(delays.start().is_none());
        let counts = || (delays.held(), delays.delayed(), delays.at_once());
        assert_eq!(counts(), (MAX_DELAYED, MAX_DELAYED as u64, 1));
        drop(held);
        assert_eq!(delays.held(), 0);
        assert!(delays.start().is_some());
    }
}
