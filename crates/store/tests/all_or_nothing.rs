//! Sends requests with random mixes of algorithms. If one enforcing charge denies, every state stays exactly
//! the same. Otherwise every charge is taken in full.

mod common;

use common::{charge, store};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate_conformance::Kind;
use tollgate_core::{Charge, Enforcement, Limit, Span};
use tollgate_store::{Ask, ManualClock, MemoryStore};

#[derive(Clone, Debug)]
struct Item {
    subject: usize,
    cost: u64,
    shadow: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    let kinds = Kind::ALL.into_iter().chain([Kind::LeakyShapeInTime]);
    prop::sample::select(kinds.collect::<Vec<_>>())
}

fn limit() -> impl Strategy<Value = Limit> {
    (
        kind(),
        1..30_u64,
        prop::sample::select(vec![10, 997, 50_000, 1_000_000]),
    )
        .prop_map(|(kind, capacity, window)| kind.limit(capacity, Span::from_micros(window)))
}

/// A request, and the microseconds that pass before it.
type Step = ((Vec<Item>, Ask), u64);

fn request(subjects: usize) -> impl Strategy<Value = (Vec<Item>, Ask)> {
    let item =
        (0..subjects, 0..12_u64, prop::bool::weighted(0.2)).prop_map(|(subject, cost, shadow)| {
            Item {
                subject,
                cost,
                shadow,
            }
        });
    let ask = prop_oneof![
        3 => (0..4_u64).prop_map(Ask::Exactly),
        1 => (0..9_u64).prop_map(Ask::UpTo)
    ];
    (prop::collection::vec(item, 1..=6), ask)
}

/// Makes random limits, and a random sequence of requests.
fn scene() -> impl Strategy<Value = (Vec<Limit>, Vec<Step>)> {
    prop::collection::vec(limit(), 1..=6).prop_flat_map(|limits| {
        let passes = prop_oneof![4 => 0..100_u64, 1 => 0..200_000_u64];
        let requests = prop::collection::vec((request(limits.len()), passes), 1..40);
        (Just(limits), requests)
    })
}

fn all_of<'l>(limits: &'l [Limit]) -> Vec<Charge<'l>> {
    (1..)
        .zip(limits)
        .map(|(number, limit)| charge(number, limit))
        .collect()
}

fn charges_of<'l>(items: &[Item], limits: &'l [Limit]) -> Vec<Charge<'l>> {
    let all = all_of(limits);
    // All charges of a subject have the same settings, like the charges of one rule.
    let shadow = |subject| items.iter().any(|it| it.subject == subject && it.shadow);
    items
        .iter()
        .map(|item| Charge {
            cost: item.cost,
            enforcement: match shadow(item.subject) {
                true => Enforcement::Shadow,
                false => Enforcement::Enforce,
            },
            ..all[item.subject]
        })
        .collect()
}

/// Returns the amount left of each subject, and its state as text unless the state has expired.
fn states(store: &MemoryStore<ManualClock>, limits: &[Limit]) -> Vec<(u64, Option<String>)> {
    let all = all_of(limits);
    let told = store.peek(&all, Ask::Exactly(0));
    let dumped = store.dump(&all);
    let both = told.outcomes.iter().zip(dumped);
    both.map(|(outcome, state)| {
        let live = outcome.reset_at > told.now;
        (outcome.remaining, state.filter(|_| live))
    })
    .collect()
}

/// Multiplies `cases` by the number in `TOLLGATE_PROOF_CASES`, which counts as at most 20.
#[allow(clippy::expect_used, reason = "a wrong number fails the test")]
fn cases(cases: u32) -> u32 {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    let times = times.map_or(1, |times| times.parse::<u32>().expect("a whole number"));
    cases * times.min(20)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(2_000),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_denied_request_changes_no_bit_of_any_state((limits, requests) in scene()) {
        let store = store(100_000);
        for ((items, ask), passes) in requests {
            store.clock().advance(Span::from_micros(passes));
            let charges = charges_of(&items, &limits);
            let before = states(&store, &limits);
            let applied = store.apply(&charges, ask);
            let after = states(&store, &limits);
            if !applied.allowed {
                prop_assert_eq!(&before, &after, "{:?} of {:?}", ask, items);
                continue;
            }
            for (subject, (before, after)) in before.iter().zip(&after).enumerate() {
                let of_subject = charges.iter().zip(&applied.outcomes).zip(&items);
                let taken: u64 = of_subject
                    .filter(|((_, outcome), item)| item.subject == subject && outcome.is_allowed())
                    .map(|((charge, _), _)| charge.cost * applied.granted)
                    .sum();
                prop_assert_eq!(before.0 - taken, after.0, "{:?} of {:?}", ask, items);
                prop_assert!(taken > 0 || before.1 == after.1);
            }
        }
    }
}
