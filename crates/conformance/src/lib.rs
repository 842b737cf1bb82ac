//! The test suite that every store passes.
//!
//! A store that passes gives the same answers as the memory store and the Redis store, to the last
//! unit and microsecond.
//!
//! * [`cases`]: situations with known answers. Each case is a function.
//! * [`random`]: sends long random sequences of requests to the store under test and to the
//!   [`reference`](mod@reference) store. Both have to give the same answer at every step.
//! * [`random_holds`]: does the same with holds. It also keeps accounts of all units, to find units that
//!   get lost.
//!
//! # Testing your own store
//!
//! 1. Implement `Store`, with holds, and with a clock that a test can set.
//! 2. Add `tollgate-conformance` to the `[dev-dependencies]`.
//! 3. Implement [`Fixture`] for a type that holds an empty store.
//! 4. Call [`conformance_suite!`] in a file under `tests/`. The macro makes one `#[test]` of each case and
//!    each random sequence. Each test builds a store of its own.
//!
//! ```
//! use tollgate_conformance::Fixture;
//! use tollgate_core::Time;
//! use tollgate_store::{Clock, ManualClock, MemoryStore};
//!
//! struct Memory(MemoryStore<ManualClock>);
//!
//! impl Fixture for Memory {
//!     type Store = MemoryStore<ManualClock>;
//!
//!     fn store(&self) -> &Self::Store {
//!         &self.0
//!     }
//!
//!     fn set_time(&self, now: Time) {
//!         self.0.clock().set(now);
//!     }
//! }
//!
//! tollgate_conformance::conformance_suite! {
//!     fixture: Memory(MemoryStore::with_clock(100_000, ManualClock::default())),
//!     block_on: tollgate_conformance::block_on,
//!     steps: tollgate_conformance::STEPS,
//! }
//! ```
//!
//! `block_on` runs a future to its end. If the store needs a runtime, pass the `block_on` of that runtime.
//! If the servers behind a store start slowly, use the `one_test` form of the macro.

// This library is test code: it may panic and print.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::print_stdout
)]

pub mod cases;
mod kind;
pub mod random;
pub mod random_holds;
pub mod reference;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tollgate_core::{HoldId, Key, Span, Tag, Time, Token};
use tollgate_store::{NewHold, Purpose, Store};

pub use kind::Kind;

/// The time at which every case and every random sequence starts: the start of a second.
pub const START: Time = Time::from_micros(1_700_000_000_000_000);

/// The number of steps of a random sequence in an ordinary run.
pub const STEPS: usize = 2_000;

/// Returns the seed of a random test: `usual`, or a new one in a long run, which sets `TOLLGATE_PROOF_CASES`. Prints
/// the seed, so that a failure shows it. `TOLLGATE_SEED` replays a run.
#[must_use]
pub fn seed(usual: u64) -> u64 {
    let is_long = std::env::var_os("TOLLGATE_PROOF_CASES").is_some();
    let seed = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => seed.parse().expect("TOLLGATE_SEED is a whole number"),
        Err(_) if is_long => RandomState::new().hash_one(usual),
        Err(_) => usual,
    };
    println!("TOLLGATE_SEED={seed}");
    seed
}

/// An empty store under test, with room for at least 10,000 keys, and its clock.
pub trait Fixture {
    /// The store's type.
    type Store: Store;

    /// Returns the store.
    fn store(&self) -> &Self::Store;

    /// Sets the store's clock. The new time may be earlier than the old time.
    fn set_time(&self, now: Time);

    /// Returns what random sequences contain. In such sequences, the store must give the same answers as the
    /// reference.
    fn range(&self) -> random::Range {
        random::Range::All
    }
}

/// Returns whether the store under test has a ledger. Such a store restores missing states by itself, so
/// cases and sequences about missing states do not apply to it.
pub fn has_ledger(fixture: &impl Fixture) -> bool {
    fixture.store().records_usage()
}

/// Returns key number `n`. Its bits are spread evenly, like the bits of a hashed subject.
#[must_use]
pub fn key(n: u64) -> Key {
    let (low, high) = (spread(n), spread(n ^ 0x5555_5555_5555_5555));
    Key::from_bits(u128::from(high) << 64 | u128::from(low))
}

/// How long a [`reservation`] lasts.
pub const TTL: Span = Span::MINUTE;

/// Returns the id of hold number `n`.
#[must_use]
pub fn hold_id(n: u128) -> HoldId {
    HoldId::new(n, Tag::default())
}

/// Returns a reservation with the id of hold number `n`.
#[must_use]
pub fn reservation(n: u128) -> NewHold<'static> {
    NewHold {
        id: hold_id(n),
        ttl: TTL,
        purpose: Purpose::Reservation,
        token: Token::NONE,
        owner: "someone",
        memo: "",
        idempotency_key: None,
        fingerprint: 7,
        wait: None,
        bound: None,
    }
}

/// Spreads the bits of `n` evenly, as the output function of splitmix64 does.
const fn spread(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// Runs `future` to its end on this thread, for a store that needs no runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Makes a `#[test]` of every case and every random sequence. Each test evaluates `fixture` to get its own
/// store, and runs on `block_on`. `steps` is the length of a random sequence.
///
/// The `one_test` form makes a single `#[test]` of the whole suite. Use it for stores with servers that
/// start slowly: `shared` is evaluated once, and `fixture` once per case.
///
/// ```
/// # use tollgate_core::Time;
/// # use tollgate_conformance::Fixture;
/// # use tollgate_store::{Clock, ManualClock, MemoryStore};
/// # struct Memory(MemoryStore<ManualClock>);
/// # impl Fixture for Memory {
/// #     type Store = MemoryStore<ManualClock>;
/// #     fn store(&self) -> &Self::Store { &self.0 }
/// #     fn set_time(&self, now: Time) { self.0.clock().set(now); }
/// # }
/// tollgate_conformance::conformance_suite! {
///     one_test: the_whole_suite_passes_in_memory,
///     shared: keys = 100_000,
///     fixture: Memory(MemoryStore::with_clock(keys, ManualClock::default())),
///     block_on: tollgate_conformance::block_on,
///     steps: tollgate_conformance::STEPS,
/// }
/// ```
#[macro_export]
macro_rules! conformance_suite {
    (fixture: $fixture:expr, block_on: $block_on:path, steps: $steps:expr $(,)?) => {
        $crate::conformance_suite! { @suite tests $fixture, $block_on, $steps }
    };
    (
        one_test: $name:ident,
        shared: $shared:ident = $start:expr,
        fixture: $fixture:expr, block_on: $block_on:path, steps: $steps:expr $(,)?
    ) => {
        #[test]
        fn $name() {
            let $shared = $start;
            $crate::conformance_suite! { @suite statements $fixture, $block_on, $steps }
        }
    };
    (@suite $form:ident $fixture:expr, $block_on:path, $steps:expr) => {
        $crate::conformance_suite! { @cases $form $fixture, $block_on;
            the_first_request_is_allowed
            exactly_the_capacity_is_admitted
            a_denial_names_the_exact_microsecond_of_admission
            a_cost_is_taken_whole_or_not_at_all
            a_cost_of_zero_takes_nothing
            a_cost_above_the_capacity_is_never_admitted
            an_unlimited_charge_allows_everything
            a_capacity_of_zero_denies_everything
            a_fixed_window_ends_on_the_edge_of_the_clock
            a_sliding_log_frees_each_cost_after_one_window
            a_shaping_bucket_assigns_turns
            the_whole_allowance_is_back_at_the_reset_instant
            an_expired_state_equals_a_fresh_one
            a_clock_that_goes_back_refills_nothing
            a_state_survives_a_clock_that_steps_back
            a_refund_gives_back_the_charge
            a_late_refund_gives_nothing_back
            a_refund_to_an_unknown_subject_does_nothing
            a_reset_forgets_the_state
            a_peek_takes_nothing_and_answers_the_same
            a_request_without_charges_is_allowed
            outcomes_come_in_the_order_of_the_charges
            one_denial_charges_nothing
            up_to_grants_what_fits_into_every_charge
            up_to_is_denied_if_not_even_one_fits
            a_shadow_never_denies
            a_shadow_is_charged_with_the_others_and_only_if_it_allows
            a_candidate_is_charged_as_if_it_replaced_another
            a_candidate_for_no_charge_is_a_shadow
            a_denied_request_counts_under_charge_denied
            charges_of_one_key_add_up
            a_raised_limit_acts_at_once_and_a_lowered_one_counts_the_usage
            changed_numbers_carry_over_at_the_first_apply_even_if_denied
            gcra_and_token_bucket_share_a_state
            a_proportional_change_keeps_the_used_share
            a_proportional_change_scales_each_entry
            a_change_that_resets_gives_the_whole_allowance
            a_capacity_of_zero_has_no_shares
            an_unlimited_time_changes_no_state
            another_algorithm_starts_fresh
            an_expired_log_keeps_the_latest_instant
            denials_beyond_the_free_ones_block_for_longer_and_longer
            a_block_takes_nothing_from_the_watched_limit
            strikes_are_forgotten_after_a_quiet_time
            a_request_during_a_block_adds_the_penalty
            denials_by_other_charges_are_not_strikes
            the_denials_of_a_shadow_are_strikes
            a_back_off_counts_denials_and_nothing_else
            a_candidate_ignores_the_block_of_the_charge_it_replaces
            a_changed_schedule_carries_over
            a_quota_holds_until_its_period_ends
            a_day_in_which_clocks_change_is_one_day
            a_quota_admits_its_grace_and_no_more
            the_rest_of_a_period_is_carried_into_the_next
            the_rollover_is_bounded
            a_quota_keeps_its_usage_in_another_calendar
            a_refund_of_an_earlier_period_gives_nothing_back
            keys_are_independent
            a_report_counts_although_the_limit_denies
            late_calls_under_old_numbers_carry_nothing_over
            a_report_to_a_limit_without_an_amount_does_nothing
            a_commit_of_less_gives_back_the_rest
            a_commit_of_all_changes_nothing
            a_commit_of_more_takes_the_overrun_up_to_the_overdraft
            a_reservation_of_zero_units_is_charged_for_the_used_units
            an_overdraft_refills_first
            a_reset_charge_is_not_given_back
            a_release_gives_everything_back
            a_hold_expires_at_its_expiry_and_not_before
            an_expired_open_hold_can_be_committed_and_extended
            an_extension_never_shortens
            a_repeated_hold_takes_nothing_again
            one_denial_holds_nothing
            a_hold_of_nothing_is_denied_without_allowance
            open_holds_of_a_subject_are_bounded
            a_shadow_that_denies_is_not_held
            a_refilled_charge_is_not_given_back_twice
            a_hold_may_have_no_charges
            an_unknown_hold_is_unknown
            a_record_is_restored_unless_it_exists
            a_long_owner_is_cut
            settling_a_hold_frees_units_for_others
            a_settle_keeps_changed_numbers
            a_settle_does_not_reset_again
            a_hold_may_end_before_the_numbers_change
            charges_of_one_key_are_settled_in_its_present_numbers
            a_hold_is_settled_in_another_calendar
            a_hold_is_settled_when_a_period_of_another_calendar_has_ended
            at_most_limit_slots_are_held
            a_check_takes_no_slot
            a_slot_is_free_at_the_end_of_its_lease
            a_renewed_lease_lasts_longer
            a_lease_whose_slot_was_reset_is_not_renewed
            only_the_owner_changes_a_lease
            the_other_charges_of_a_lease_are_final
            waiting_clients_are_served_in_order
            a_client_that_stops_asking_loses_its_place
            a_client_without_patience_gives_up_its_place
            a_client_that_waits_for_several_slots_is_not_overtaken
            a_client_that_other_charges_deny_does_not_wait
            a_lowered_limit_lets_holders_finish
            fences_only_grow
            holders_are_listed
            a_limit_of_zero_slots_denies_everything
            a_hold_takes_one_slot_of_each
        }
        $crate::conformance_suite! { @without_ledger $form $fixture, $block_on;
            a_recorded_quota_is_not_decided_without_a_state
            a_request_that_needs_a_restore_leaves_no_trace
            a_shadow_that_needs_a_restore_denies_nothing
            a_balance_of_another_calendar_has_a_retry_time
            a_state_of_an_earlier_period_is_a_state
            a_restored_balance_counts
            an_existing_state_is_not_restored
            a_restore_does_not_convert_an_existing_state
            the_first_of_two_restores_wins
            a_balance_of_an_earlier_period_is_rolled_forward
            a_balance_restored_as_zero_is_not_forgotten
            a_balance_is_adjusted_within_bounds
            a_recorded_quota_is_not_settled_without_a_state
            a_settle_that_changes_nothing_needs_no_state
            a_grant_ends_with_its_period
            a_reset_quota_still_has_a_state
        }
        $crate::conformance_suite! { @random $form $fixture, $block_on, $steps;
            random_requests_to_fixed_windows => [FixedWindow]
            random_requests_to_sliding_logs => [SlidingLog]
            random_requests_to_sliding_counters => [SlidingCounter]
            random_requests_to_two_window_counters => [TwoWindow]
            random_requests_to_token_buckets => [TokenBucket]
            random_requests_to_gcra => [Gcra]
            random_requests_to_policing_leaky_buckets => [LeakyPolice]
            random_requests_to_shaping_leaky_buckets => [LeakyShape, LeakyShapeInTime]
            random_requests_to_windows => [FixedWindow, SlidingLog, SlidingCounter, TwoWindow]
            random_requests_to_meters => [TokenBucket, Gcra, LeakyPolice, LeakyShapeInTime]
            random_requests_to_all_algorithms => [
                FixedWindow, SlidingLog, SlidingCounter, TwoWindow, TokenBucket, Gcra,
                LeakyPolice, LeakyShape, LeakyShapeInTime, Backoff, Quota
            ]
            random_requests_to_quotas => [Quota]
            random_requests_to_ledgered_quotas => [LedgeredQuota]
            random_requests_to_quotas_and_rates => [
                Quota, Gcra, LedgeredQuota, FixedWindow, Backoff, SlidingLog
            ]
            random_requests_to_back_offs => [Backoff, FixedWindow, Backoff, Gcra]
            random_requests_to_fair_buckets => [Fair]
            random_requests_to_fair_buckets_and_rates => [Fair, Gcra, Backoff, FixedWindow]
        }
        $crate::conformance_suite! { @holds $form $fixture, $block_on, $steps;
            random_holds_match_the_reference random_holds_leak_nothing
        }
    };
    (@cases $form:ident $fixture:expr, $block_on:path; $($case:ident)*) => {$(
        $crate::conformance_suite! {
            @run $form $case, $fixture, $block_on, it => {
                $crate::Fixture::set_time(&it, $crate::START);
                $crate::cases::$case(&it)
            }
        }
    )*};
    (@without_ledger tests $fixture:expr, $block_on:path; $($case:ident)*) => {
        $crate::conformance_suite! { @cases tests $fixture, $block_on; $($case)* }
    };
    (@without_ledger statements $fixture:expr, $block_on:path; $($case:ident)*) => {
        if !$crate::has_ledger(&$fixture) {
            $crate::conformance_suite! { @cases statements $fixture, $block_on; $($case)* }
        }
    };
    (@random $form:ident $fixture:expr, $block_on:path, $steps:expr;
        $($name:ident => [$($kind:ident),*])*
    ) => {$(
        $crate::conformance_suite! {
            @run $form $name, $fixture, $block_on,
            it => $crate::random::same_answers(&it, &[$($crate::Kind::$kind),*], $steps)
        }
    )*};
    (@holds $form:ident $fixture:expr, $block_on:path, $steps:expr; $($name:ident)*) => {$(
        $crate::conformance_suite! {
            @run $form $name, $fixture, $block_on, it => $crate::random_holds::$name(&it, $steps)
        }
    )*};
    (@run tests $name:ident, $fixture:expr, $block_on:path, $it:ident => $run:expr) => {
        #[test]
        fn $name() {
            let $it = $fixture;
            $block_on($run);
        }
    };
    (@run statements $name:ident, $fixture:expr, $block_on:path, $it:ident => $run:expr) => {
        println!("{}", stringify!($name));
        let $it = $fixture;
        $block_on($run);
    };
}
