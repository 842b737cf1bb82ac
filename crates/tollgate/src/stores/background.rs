//! What `Prepaid` and `Reported` share: owned charges, calls that no request waits for, and tables of keys.

use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// The most calls that [`Calls::run_all`] has on their way at a time.
const MOST_AT_ONCE: usize = 256;

/// Calls that no request waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Arc<Running>);

#[derive(Debug, Default)]
struct Running {
    count: AtomicUsize,
    #[cfg(feature = "wait")]
    ended: tokio::sync::Notify,
}

/// A call that has not ended.
struct OnItsWay(Calls);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.0.count.fetch_sub(1, Ordering::AcqRel);
        #[cfg(feature = "wait")]
        self.0.0.ended.notify_waiters();
    }
}

impl Calls {
    /// Runs a call to its end: at once if the store answers at once, otherwise as a task. Without a runtime, a call
    /// that has to wait is dropped.
    pub(super) fn run(&self, call: impl Future<Output = ()> + Send + 'static) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        let on_its_way = OnItsWay(self.clone());
        let mut call = Box::pin(async move {
            call.await;
            drop(on_its_way);
        });
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

    /// Runs calls to their ends, many at a time, and waits until no call is on its way.
    pub(super) async fn run_all<C: Future<Output = ()> + Send + 'static>(
        &self,
        calls: impl IntoIterator<Item = C>,
    ) {
        for call in calls {
            self.wait_until(|| self.0.count.load(Ordering::Acquire) < MOST_AT_ONCE)
                .await;
            self.run(call);
        }
        self.wait_until(|| self.0.count.load(Ordering::Acquire) == 0)
            .await;
    }

    /// Waits until `is_so` is true. It is asked again after each end of a call.
    pub(super) async fn wait_until(&self, is_so: impl Fn() -> bool) {
        #[cfg(feature = "wait")]
        loop {
            let ended = self.0.ended.notified();
            // Without a call on its way, nothing would change any more.
            if is_so() || self.0.count.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
        #[cfg(not(feature = "wait"))]
        let _ = is_so;
    }
}

/// The hasher of keys. The bits of a key are already a keyed hash, so it returns them.
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
