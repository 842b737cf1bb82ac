//! Checks the text form of hold records. A record that is written and read again stays the same. A changed
//! text gives a record or an error, and never a panic. Texts that running deployments have stored can still
//! be read.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use proptest::prelude::*;
use tollgate_conformance::key;
use tollgate_core::backoff::Schedule;
use tollgate_core::fair::{self, Client, Lane};
use tollgate_core::{
    Algorithm, Anchor, Calendar, CarryOver, Enforcement, HoldId, Leaky, Limit, MAX_AMOUNT, Rate,
    Span, Tag, Time, Token, Unit, Zone, quota,
};
use tollgate_store::{HeldCharge, HoldRecord, HoldState, MAX_CHARGES, Purpose};

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

/// Makes a random limit of any algorithm.
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
        any::<u64>().prop_map(|id| Ok(fair_for(id))),
        (amount(), rate(), leaky())
            .prop_map(|(queue, rate, leaky)| Limit::leaky_bucket(rate, queue, leaky)),
        schedule().prop_map(Limit::backoff),
        (amount(), amount(), amount(), calendar()).prop_map(
            |(limit, grace, rollover, calendar)| Limit::quota(limit, grace, rollover, calendar)
        ),
        (amount(), calendar()).prop_map(|(limit, calendar)| {
            quota::new(limit, 0, 0, calendar).map(|it| Limit::Quota(it.closed()))
        }),
        (0..=100_000_u64, span()).prop_map(|(limit, lease)| Limit::concurrency(limit, lease)),
        prop::sample::select(Algorithm::ALL.to_vec()).prop_map(|it| Ok(Limit::unlimited(it))),
    ];
    any.prop_filter_map("core rejects these numbers", Result::ok)
}

/// Returns a fair bucket with two lanes, for a client of weight 5 in the second lane.
fn fair_for(id: u64) -> Limit {
    let lane = |share, strict| Lane { share, strict };
    let rate = Rate::new(90, Span::MINUTE).unwrap();
    let lanes = [lane(6_000, false), lane(4_000, true)];
    let fair = fair::with_lanes(30, rate, &lanes).unwrap();
    Limit::Fair(fair.for_client(Client {
        id,
        weight: 5,
        lane: 1,
    }))
}

fn charges() -> impl Strategy<Value = Vec<HeldCharge>> {
    let enforcement = prop_oneof![
        Just(Enforcement::Enforce),
        Just(Enforcement::Shadow),
        any::<u8>().prop_map(Enforcement::Instead),
    ];
    let how = prop::sample::select(CarryOver::ALL.to_vec());
    let numbers = (any::<u64>(), 0..=MAX_AMOUNT, any::<u64>(), any::<bool>());
    let charge = (limit(), enforcement, how, numbers, any::<u32>(), ".{0,20}").prop_map(
        |(limit, enforcement, carry_over, (cost, overdraft, taken, ledgered), tag, rule)| {
            HeldCharge {
                key: key(cost),
                overflow: key(taken),
                rule: rule.into(),
                tag: Tag::new(tag),
                limit,
                cost,
                enforcement,
                carry_over,
                ledgered,
                overdraft,
                taken,
            }
        },
    );
    prop::collection::vec(charge, 0..4)
}

fn record() -> impl Strategy<Value = HoldRecord> {
    let ended = prop_oneof![
        Just((HoldState::Reserved, None)),
        any::<u64>().prop_map(|actual| (HoldState::Consumed, Some(actual))),
        Just((HoldState::Released, None)),
        Just((HoldState::Expired, None)),
    ];
    let purpose = prop_oneof![Just(Purpose::Reservation), Just(Purpose::Lease)];
    let numbers = (any::<u128>(), any::<u32>(), any::<u64>(), any::<u64>());
    let parts = (ended, purpose, numbers, any::<u128>(), "[\\PC\n]{0,20}");
    (parts, charges(), any::<Option<u128>>()).prop_map(
        |(((state, actual), purpose, (id, tag, units, time), token, owner), charges, subject)| {
            HoldRecord {
                id: HoldId::new(id, Tag::new(tag)),
                purpose,
                state,
                units,
                actual,
                charged_at: Time::from_micros(time),
                expires_at: Time::from_micros(time / 2),
                fingerprint: time ^ units,
                fence: time,
                token: Token::new(token),
                owner: owner.as_str().into(),
                memo: owner.into(),
                subject,
                charges,
            }
        },
    )
}

/// Multiplies `cases` by the number in `TOLLGATE_PROOF_CASES`, which counts as at most 20.
#[allow(clippy::expect_used, reason = "a wrong number fails the test")]
fn cases(cases: u32) -> u32 {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    let times = times.map_or(1, |times| times.parse::<u32>().expect("a whole number"));
    cases * times.min(20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(4_000)))]

    #[test]
    fn a_record_reads_back_as_it_was(record in record()) {
        let text = record.to_text();
        prop_assert_eq!(HoldRecord::from_text(&text), Ok(record), "{}", text);
    }

    #[test]
    fn a_changed_text_is_a_record_or_an_error(
        record in record(),
        at in any::<prop::sample::Index>(),
        other in any::<char>(),
    ) {
        let mut letters: Vec<char> = record.to_text().chars().collect();
        let at = at.index(letters.len());
        letters[at] = other;
        let text: String = letters.into_iter().collect();
        let cut: String = text.chars().take(at).collect();
        for text in [text, cut] {
            if let Ok(read) = HoldRecord::from_text(&text) {
                prop_assert_eq!(HoldRecord::from_text(&read.to_text()), Ok(read));
            }
        }
    }
}

const FIRST: &str = "hold/1 h1-00000002-00000000000000000000000000000001 reservation consumed 6 2 \
    1700000000000000 1700000060000000 00000000000000ff 0 00000000000000000000000000000000 .me%20%25%c3%bc .";

const KEYS: &str = "0000000000000000000000000000000a 0000000000000000000000000000000b";

/// Returns texts of charges in version 1, each with its limit. Running deployments have stored such texts. So
/// never change a text here: only add more.
fn stored() -> Vec<(&'static str, Limit)> {
    let minute = |amount| Rate::new(amount, Span::MINUTE).unwrap();
    let days =
        |unit, anchor, zone| Calendar::new(2, unit, anchor, Zone::named(zone).unwrap()).unwrap();
    let shape = |max_wait| Leaky::Shape { max_wait };
    vec![
        (
            ".a 0000beef 1 enforce keep plain 0 6 fixed-window 100 60000000",
            Limit::fixed_window(100, Span::MINUTE).unwrap(),
        ),
        (
            ". 00000000 1 shadow reset plain 0 0 sliding-log 7 1000000",
            Limit::sliding_log(7, Span::SECOND).unwrap(),
        ),
        (
            ".a 0000beef 1 instead-3 proportional plain 0 0 two-window 7 1000000",
            Limit::two_window(7, Span::SECOND).unwrap(),
        ),
        (
            ".a 0000beef 2 enforce keep plain 0 12 sliding-counter 100 60000000 10",
            Limit::sliding_counter(100, Span::MINUTE, 10).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 5 6 token-bucket 30 3 2000000 us",
            Limit::token_bucket(30, minute(90)).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 gcra 30 3 2000000 us",
            Limit::gcra(minute(90), 30).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 leaky-bucket 31 3 2000000 us police",
            Limit::leaky_bucket(minute(90), 30, Leaky::Police).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 leaky-bucket 31 3 2000000 us shape",
            Limit::leaky_bucket(minute(90), 30, shape(None)).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 leaky-bucket 31 3 2000000 us shape 500000",
            Limit::leaky_bucket(minute(90), 30, shape(Some(Span::from_millis(500)))).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 0 backoff 2 1000000 2 5000000 60000000 0",
            Limit::backoff(Schedule {
                after: 2,
                base: Span::SECOND,
                factor: 2,
                max: Span::from_secs(5),
                forget: Span::MINUTE,
                penalty: Span::ZERO,
            })
            .unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep ledgered 9 6 quota 100 10 5 2 month day-31 Europe/Berlin",
            Limit::quota(
                100,
                10,
                5,
                days(Unit::Month, Anchor::Day(31), "Europe/Berlin"),
            )
            .unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep ledgered 0 6 quota 100 0 0 2 week weekday-1 UTC",
            Limit::quota(100, 0, 0, days(Unit::Week, Anchor::Weekday(1), "UTC")).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep ledgered 0 6 quota 100 0 0 2 year date-4-6 UTC",
            Limit::quota(100, 0, 0, days(Unit::Year, Anchor::MonthDay(4, 6), "UTC")).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 0 closed-quota 100 0 0 2 day first UTC",
            Limit::Quota(
                quota::new(100, 0, 0, days(Unit::Day, Anchor::First, "UTC"))
                    .unwrap()
                    .closed(),
            ),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 1 concurrency 4 30000000",
            Limit::concurrency(4, Span::from_secs(30)).unwrap(),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 unlimited token-bucket",
            Limit::unlimited(Algorithm::TokenBucket),
        ),
        (
            ".a 0000beef 1 enforce keep plain 0 6 fair 30 3 2000000 us 000000000000002a 5 1 lane-6000 strict-4000",
            fair_for(42),
        ),
    ]
}

#[test]
fn stored_texts_of_version_1_are_read_and_written_as_before() {
    let texts = stored()
        .into_iter()
        .map(|(text, limit)| (format!("{KEYS} {text}"), limit));
    let (texts, limits): (Vec<_>, Vec<_>) = texts.unzip();
    let text = format!("{FIRST}\n{}", texts.join("\n"));
    let record = HoldRecord::from_text(&text).unwrap();
    assert_eq!(record.id, HoldId::new(1, Tag::new(2)));
    assert_eq!((&*record.owner, record.actual), ("me %ü", Some(2)));
    let read: Vec<_> = record.charges.iter().map(|it| it.limit.clone()).collect();
    assert_eq!(read, limits);
    assert_eq!(record.charges[2].enforcement, Enforcement::Instead(3));
    assert_eq!(record.charges[10].overdraft, 9);
    assert_eq!(record.to_text(), text);
}

/// A record in version 2. Never change it, as above.
const SECOND: &str = "hold/2 h1-00000002-00000000000000000000000000000001 reservation reserved 6 - \
    1700000000000000 1700000060000000 00000000000000ff 0 00000000000000000000000000000000 . . \
    000000000000000000000000000000cd";

#[test]
fn stored_texts_of_version_2_have_a_subject() {
    let record = HoldRecord::from_text(SECOND).unwrap();
    assert_eq!(record.subject, Some(0xcd));
    assert_eq!(record.to_text(), SECOND);
    assert_eq!(HoldRecord::from_text(FIRST).unwrap().subject, None);
    let (without, _) = SECOND.rsplit_once(' ').unwrap();
    assert_eq!(
        HoldRecord::from_text(without).unwrap_err().to_string(),
        "line 1 of the record: a subject is missing or malformed"
    );
}

#[test]
fn a_closed_bucket_stays_closed() {
    let bucket = Limit::leaky_bucket(Rate::new(1, Span::SECOND).unwrap(), 3, Leaky::Police);
    let closed = bucket.unwrap().renumbered(0, Span::SECOND).unwrap();
    let mut record = HoldRecord::from_text(FIRST).unwrap();
    let charge = tollgate_core::Charge::new(key(1), &closed);
    record.charges.push(HeldCharge::of(&charge, 0));
    assert_eq!(HoldRecord::from_text(&record.to_text()), Ok(record));
}

#[test]
fn errors_name_the_line_and_the_missing_word() {
    let why = |text: &str| HoldRecord::from_text(text).unwrap_err().to_string();
    assert_eq!(
        why("hold/3 x"),
        "a record of a hold begins with `hold/2` or `hold/1`: this text is something else, or was written by a \
         newer version"
    );
    let id = HoldId::new(1, Tag::new(2));
    assert_eq!(
        why(&format!("hold/1 {id} loan")),
        "line 1 of the record: a purpose is missing or malformed"
    );
    assert_eq!(
        why(&format!("{FIRST}\nzz")),
        "line 2 of the record: a key is missing or malformed"
    );
    let limit = |text: &str| {
        let charge = format!("{KEYS} .a 0000beef 1 enforce keep plain 0 6 {text}");
        let why = why(&format!("{FIRST}\n{charge}"));
        let why = why.strip_prefix("line 2 of the record: ").unwrap();
        why.strip_suffix(" is missing or malformed")
            .unwrap()
            .to_owned()
    };
    assert_eq!(limit("unlimited"), "an algorithm");
    assert_eq!(limit("leaking-bucket 1"), "an algorithm");
    assert_eq!(limit("fixed-window 1"), "a time span in microseconds");
    assert_eq!(limit("fixed-window +1 1"), "an amount");
    assert_eq!(limit("fixed-window 1 1 1"), "the end of the line");
    assert_eq!(limit("gcra 1 1 1 s"), "a tick");
    assert_eq!(limit("leaky-bucket 1 1 1 us drip"), "`police` or `shape`");
}

#[test]
fn a_text_with_too_many_charges_is_rejected() {
    let many = format!("{FIRST}{}", "\n".repeat(MAX_CHARGES + 1));
    assert!(HoldRecord::from_text(&many).is_err());
}

#[test]
fn numbers_out_of_range_are_rejected() {
    for limit in [
        "fixed-window 9007199254740993 1000000",
        "fixed-window 1 0",
        "gcra 1 0 1 us",
        "gcra 1 1 0 us",
        "gcra 9007199254740991 1 9007199254740991 us",
        "gcra 1000 1 9007199254740 ms",
        "leaky-bucket 1 1 1 us shape 0",
        "sliding-counter 1 1000000 100000",
        "backoff 1 10 200 100 100 0",
        "concurrency 100001 1000000",
        "quota 1 0 0 0 day first UTC",
        "quota 1 0 0 1 day day-1 UTC",
        "quota 1 0 0 1 day first Nowhere/At_All",
    ] {
        let text = format!("{FIRST}\n{KEYS} .a 0000beef 1 enforce keep plain 0 6 {limit}");
        let error = HoldRecord::from_text(&text).unwrap_err();
        let is_of_limit = matches!(error, tollgate_store::RecordError::Limit { line: 2, .. });
        assert!(is_of_limit, "{limit}: {error}");
    }
}
