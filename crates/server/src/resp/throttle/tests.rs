//! The answers of `CL.THROTTLE`, compared with redis-cell.

use tollgate::{Limiter, ManualClock, Time};

use super::*;
use crate::resp::frame::{Args, parse};

const RULES: &str =
    "version: 1\nrules: [{ id: all, algorithm: fixed-window, limit: 1, window: 1s }]";
const START: Time = Time::from_micros(1_700_000_000_000_000);

struct Bench {
    limiter: Limiter<tollgate::Traced<tollgate::MemoryStore<ManualClock>>>,
    clock: ManualClock,
    limits: Limits,
}

impl Bench {
    fn new() -> Bench {
        let config = tollgate_config::parse("rules.yaml", RULES, &|_| None).unwrap();
        let clock = ManualClock::at(START);
        Bench {
            limiter: Limiter::with_clock(&config, clock.clone()).unwrap(),
            clock,
            limits: Limits::default(),
        }
    }

    fn at_millis(&self, millis: u64) {
        self.clock.set(START + Span::from_millis(millis));
    }

    fn try_throttle(&mut self, line: &str) -> Result<[i64; 5], CommandError> {
        let (mut bytes, mut args) = (format!("{line}\n").into_bytes(), Args::default());
        parse(&mut bytes, &mut args).unwrap().unwrap();
        let asked = ThrottleArgs::read(&Command::new(&bytes, &args))?;
        let limit = self.limits.get(asked.numbers)?;
        let told = self.limiter.throttle_now(asked.key, limit, asked.quantity);
        Ok(answer(&told.unwrap()))
    }

    fn throttle(&mut self, line: &str) -> [i64; 5] {
        self.try_throttle(line).unwrap()
    }
}

#[test]
fn example_of_the_redis_cell_manual() {
    let mut bench = Bench::new();
    let answer = bench.throttle("CL.THROTTLE user123 15 30 60");
    assert_eq!(answer, [0, 16, 15, -1, 2]);
}

#[test]
fn drained_refilled_peeked_and_asked_for_too_much() {
    // max_burst 4, one a second. Milliseconds, quantity, answer.
    let table = [
        // A quantity above the limit.
        (0, 6, [1, 5, 5, -1, 0]),
        // Drained, one by one.
        (0, 1, [0, 5, 4, -1, 1]),
        (0, 1, [0, 5, 3, -1, 2]),
        (0, 1, [0, 5, 2, -1, 3]),
        (0, 1, [0, 5, 1, -1, 4]),
        (0, 1, [0, 5, 0, -1, 5]),
        (0, 1, [1, 5, 0, 1, 5]),
        // A quantity of 0 is not limited, even if the key is drained.
        (0, 0, [0, 5, 0, -1, 5]),
        // Refilled.
        (3000, 1, [0, 5, 2, -1, 3]),
        (3100, 1, [0, 5, 1, -1, 4]),
        (4000, 1, [0, 5, 1, -1, 4]),
        (8000, 1, [0, 5, 4, -1, 1]),
        (9500, 1, [0, 5, 4, -1, 1]),
        // A quantity of 0 charges nothing.
        (9500, 0, [0, 5, 4, -1, 1]),
        // More than one at a time.
        (9500, 2, [0, 5, 2, -1, 3]),
        (9500, 5, [1, 5, 2, 3, 3]),
        (9500, 6, [1, 5, 2, -1, 3]),
    ];
    let mut bench = Bench::new();
    for (millis, quantity, expected) in table {
        bench.at_millis(millis);
        let line = format!("CL.THROTTLE key 4 1 1 {quantity}");
        assert_eq!(bench.throttle(&line), expected, "{quantity} at {millis} ms");
    }
}

#[test]
fn rates_faster_than_one_per_second() {
    let mut bench = Bench::new();
    // Ten a second, three at once. Milliseconds, quantity, answer.
    for (millis, quantity, expected) in [
        (0, 1, [0, 3, 2, -1, 1]),
        (0, 1, [0, 3, 1, -1, 1]),
        (0, 1, [0, 3, 0, -1, 1]),
        (0, 1, [1, 3, 0, 1, 1]),
        (99, 1, [1, 3, 0, 1, 1]),
        (100, 1, [0, 3, 0, -1, 1]),
        (400, 0, [0, 3, 3, -1, 0]),
    ] {
        bench.at_millis(millis);
        let line = format!("CL.THROTTLE key 2 10 1 {quantity}");
        assert_eq!(bench.throttle(&line), expected, "{quantity} at {millis} ms");
    }
}

#[test]
fn seconds_are_rounded_up_from_whole_milliseconds() {
    for (micros, expected) in [
        (0, 0),
        (1, 0),
        (999, 0),
        (1000, 1),
        (1_000_000, 1),
        (1_000_999, 1),
        (1_001_000, 2),
        (59_999_700, 60),
    ] {
        assert_eq!(seconds(Span::from_micros(micros)), expected, "{micros} us");
    }
}

#[test]
fn new_numbers_for_a_key_apply_at_once_and_usage_stays() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.throttle("CL.THROTTLE key 9 1 1 10"),
        [0, 10, 0, -1, 10]
    );
    assert_eq!(bench.throttle("CL.THROTTLE key 14 1 1"), [0, 15, 4, -1, 11]);
    assert_eq!(bench.throttle("CL.THROTTLE key 4 1 1"), [1, 5, 0, 1, 5]);
}

#[test]
fn wrong_arguments_are_named() {
    let mut bench = Bench::new();
    let long = format!("{} 1 1 1", "k".repeat(MAX_KEY + 1));
    for (args, says) in [
        ("key 1 1 1 1 1", "wrong number of arguments"),
        ("key x 1 1", "max_burst is not a whole number: 'x'"),
        ("key '' 1 1", "max_burst is not a whole number: ''"),
        ("key 1.5 1 1", "max_burst is not a whole number: '1.5'"),
        ("key -1 1 1", "max_burst must not be negative"),
        ("key 1 0 1", "count must be above 0"),
        ("key 1 -1 1", "count must not be negative"),
        ("key 1 1 0", "period must be above 0"),
        ("key 1 1 1 -1", "quantity must not be negative"),
        (
            "key 1 1 99999999999999999999",
            "period is above the largest amount",
        ),
        ("key 1 1 4503599627370495", "longer than 71 years"),
        (
            "key 4503599627370495 1 1",
            "these numbers do not make a limit",
        ),
        (&long, "the key is longer than 1024 bytes"),
    ] {
        let line = format!("CL.THROTTLE {args}");
        let error = bench.try_throttle(&line).unwrap_err().to_string();
        assert!(error.contains(says), "{line}: {error}");
    }
}

#[test]
fn connection_remembers_few_limits_and_accepts_any() {
    let mut bench = Bench::new();
    for round in 0..3 {
        for burst in 0..20 {
            let answers = bench.throttle(&format!("CL.THROTTLE {round}-{burst} {burst} 1 60"));
            assert_eq!(answers[1..3], [burst + 1, burst]);
        }
    }
    assert_eq!(bench.limits.known.len(), MAX_LIMITS);
}

/// The computation of redis-cell: a theoretical arrival time in nanoseconds, with the emission
/// interval cut to whole nanoseconds.
#[derive(Default)]
struct Cell {
    arrival: Option<i128>,
}

impl Cell {
    fn throttle(&mut self, now: i128, numbers: [i64; 4]) -> [i64; 5] {
        let [max_burst, count, period, quantity] = numbers.map(i128::from);
        let interval = period * 1_000_000_000 / count;
        let tolerance = interval * (max_burst + 1);
        let arrival = self.arrival.filter(|at| *at > now).unwrap_or(now);
        let next = arrival + interval * quantity;
        let limited = next - tolerance > now;
        let (mut retry_after, mut until_full) = (-1, next - now);
        if limited {
            until_full = arrival - now;
            if interval * quantity <= tolerance {
                retry_after = Cell::seconds(next - tolerance - now);
            }
        } else {
            self.arrival = Some(next);
        }
        let left = tolerance - until_full;
        let remaining = (left / 1000) / (interval / 1000);
        let whole = |number: i128| i64::try_from(number).unwrap();
        [
            i64::from(limited),
            whole(max_burst + 1),
            whole(remaining),
            whole(retry_after),
            whole(Cell::seconds(until_full)),
        ]
    }

    fn seconds(nanos: i128) -> i128 {
        nanos / 1_000_000_000 + i128::from(nanos % 1_000_000_000 >= 1_000_000)
    }
}

#[test]
fn answers_equal_redis_cell_if_its_interval_is_whole_microseconds() {
    let numbers: [[i64; 3]; 8] = [
        [0, 1, 1],
        [0, 1, 60],
        [15, 30, 60],
        [4, 1, 1],
        [99, 100, 60],
        [2, 10, 1],
        [1000, 1000, 1],
        [5, 8, 3600],
    ];
    for (index, [max_burst, count, period]) in numbers.into_iter().enumerate() {
        let (mut bench, mut cell) = (Bench::new(), Cell::default());
        let mut random = 0x9E37_79B9_7F4A_7C15_u64 + index as u64;
        let mut draw = |range: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % range
        };
        let interval = 1_000_000 * period.unsigned_abs() / count.unsigned_abs();
        let mut seen = [0; 2];
        for step in 0..2000 {
            let pause = match draw(4) {
                0 => 0,
                1 => interval,
                _ => draw(interval * 3),
            };
            bench.clock.advance(Span::from_micros(pause));
            let quantity = match draw(8) {
                0 => 0,
                1 => draw(max_burst.unsigned_abs() + 4),
                _ => 1,
            };
            let quantity = i64::try_from(quantity).unwrap();
            let now = i128::from(tollgate::Clock::now(&bench.clock).as_micros()) * 1000;
            let expected = cell.throttle(now, [max_burst, count, period, quantity]);
            let line = format!("CL.THROTTLE key {max_burst} {count} {period} {quantity}");
            assert_eq!(bench.throttle(&line), expected, "step {step}: {line}");
            seen[usize::from(expected[0] == 1)] += 1;
        }
        assert!(
            seen.iter().all(|it| *it > 50),
            "{seen:?} of {count}/{period}"
        );
    }
}
