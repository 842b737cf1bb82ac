//! Every limit reads back from its text as it was, and no text makes anything but a limit or an error.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use proptest::prelude::*;
use tollgate_core::backoff::Schedule;
use tollgate_core::{
    Algorithm, Anchor, Calendar, Leaky, Limit, MAX_AMOUNT, Rate, Span, Unit, Zone,
};

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..=30_u64, 2 => 1..=100_000_u64, 1 => 1..=MAX_AMOUNT]
}

fn span() -> impl Strategy<Value = Span> {
    let micros = prop_oneof![
        4 => 1..=60_000_000_u64,
        2 => (1..=10_000_u64).prop_map(|secs| secs * 1_000_000),
        1 => 1..=Span::MAX.as_micros(),
        1 => Just(Span::MAX.as_micros()),
    ];
    micros.prop_map(Span::from_micros)
}

fn rate() -> impl Strategy<Value = Rate> {
    (1..=1_000_000_u64, span()).prop_map(|(amount, period)| Rate::new(amount, period).unwrap())
}

fn leaky() -> impl Strategy<Value = Leaky> {
    prop_oneof![
        Just(Leaky::Police),
        prop::option::of(span()).prop_map(|max_wait| Leaky::Shape { max_wait }),
    ]
}

fn calendar() -> impl Strategy<Value = Calendar> {
    let begins = prop_oneof![
        prop::sample::select(Unit::ALL.to_vec()).prop_map(|unit| (unit, Anchor::First)),
        (1..=7_u8).prop_map(|day| (Unit::Week, Anchor::Weekday(day))),
        (1..=31_u8).prop_map(|day| (Unit::Month, Anchor::Day(day))),
        (1..=12_u8, 1..=28_u8).prop_map(|(month, day)| (Unit::Year, Anchor::MonthDay(month, day))),
    ];
    let zone = prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Argentina/Salta"]);
    (1..=1000_u16, begins, zone).prop_map(|(every, (unit, anchor), zone)| {
        Calendar::new(every, unit, anchor, Zone::named(zone).unwrap()).unwrap()
    })
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let penalty = prop_oneof![Just(Span::ZERO), span()];
    (any::<u32>(), span(), 1..=100_u32, span(), span(), penalty).prop_map(
        |(after, base, factor, max, forget, penalty)| Schedule {
            after,
            base: base.min(max),
            factor,
            max: base.max(max),
            forget,
            penalty,
        },
    )
}

/// Numbers that the crate takes, of every algorithm.
fn limit() -> impl Strategy<Value = Limit> {
    let numbers = || (amount(), span());
    let any = prop_oneof![
        numbers().prop_map(|(limit, window)| Limit::fixed_window(limit, window)),
        numbers().prop_map(|(limit, window)| Limit::sliding_log(limit, window)),
        numbers().prop_map(|(limit, window)| Limit::two_window(limit, window)),
        (numbers(), 2..=60_u32)
            .prop_map(|((limit, window), buckets)| Limit::sliding_counter(limit, window, buckets)),
        (amount(), rate()).prop_map(|(capacity, rate)| Limit::token_bucket(capacity, rate)),
        (amount(), rate()).prop_map(|(burst, rate)| Limit::gcra(rate, burst)),
        (amount(), rate(), leaky())
            .prop_map(|(queue, rate, leaky)| Limit::leaky_bucket(rate, queue, leaky)),
        schedule().prop_map(Limit::backoff),
        (amount(), amount(), amount(), calendar()).prop_map(
            |(limit, grace, rollover, calendar)| Limit::quota(limit, grace, rollover, calendar)
        ),
        (0..=100_000_u64, span()).prop_map(|(limit, lease)| Limit::concurrency(limit, lease)),
        prop::sample::select(Algorithm::ALL.to_vec()).prop_map(|it| Ok(Limit::unlimited(it))),
    ];
    any.prop_filter_map("the crate refuses these numbers", Result::ok)
}

/// So many cases, times `TOLLGATE_PROOF_CASES`.
#[allow(clippy::expect_used, reason = "a wrong number fails the test")]
fn cases(cases: u32) -> u32 {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    cases * times.map_or(1, |times| times.parse::<u32>().expect("a whole number"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(4_000)))]

    #[test]
    fn a_limit_reads_back_as_it_was(limit in limit()) {
        let text = limit.to_text();
        prop_assert_eq!(Limit::from_text(&text), Ok(limit), "{}", text);
    }

    #[test]
    fn a_changed_text_is_a_limit_or_an_error(
        limit in limit(),
        at in any::<prop::sample::Index>(),
        other in any::<char>(),
    ) {
        let mut letters: Vec<char> = limit.to_text().chars().collect();
        let at = at.index(letters.len());
        letters[at] = other;
        let text: String = letters.into_iter().collect();
        if let Ok(read) = Limit::from_text(&text) {
            prop_assert_eq!(Limit::from_text(&read.to_text()), Ok(read));
        }
    }
}
