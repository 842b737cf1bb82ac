//! What `Prepaid` and `Reported` share: owned charges, calls that no request waits for, and tables of keys.

use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::task::{Context, Poll, Waker};

use tollgate_core::{Charge, Enforcement, Key, Limit, OnDenied, Span};
use tollgate_store::HeldCharge;

/// An owned charge of one unit.
#[derive(Debug)]
pub(super) struct OwnedCharge {
    held: HeldCharge,
    anonymous: bool,
    /// The time of its mode: how long a slice may live, or how long units wait for their report.
    pub(super) span: Span,
}

impl OwnedCharge {
    pub(super) fn of(charge: &Charge<'_>, span: Span) -> OwnedCharge {
        let single = Charge { cost: 1, ..*charge };
        OwnedCharge {
            held: HeldCharge::of(&single, 0),
            anonymous: charge.anonymous,
            span,
        }
    }

    pub(super) fn key(&self) -> Key {
        self.held.key
    }

    pub(super) fn limit(&self) -> &Limit {
        &self.held.limit
    }

    /// Returns the charge. It enforces, so that a draw of a shadow takes only what its limit allows.
    pub(super) fn as_charge(&self) -> Charge<'_> {
        Charge {
            enforcement: Enforcement::Enforce,
            on_denied: OnDenied::Nothing,
            anonymous: self.anonymous,
            ..self.held.as_charge()
        }
    }
}

/// Runs a call to its end: at once if the store answers at once, otherwise as a task. Without a runtime, a call
/// that has to wait is dropped.
pub(super) fn run(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(()) = call.as_mut().poll(&mut context) {
        return;
    }
    #[cfg(feature = "wait")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        // The task polls the call again with its own waker.
        runtime.spawn(call);
    }
}

/// Hashes a key: its bits are a keyed hash already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

pub(super) type Hashed = BuildHasherDefault<KeyHasher>;

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[allow(clippy::cast_possible_truncation)] // Half of the bits are enough.
    fn write_u128(&mut self, bits: u128) {
        self.0 = bits as u64;
    }
}
