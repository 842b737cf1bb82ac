//! Checks that nothing drifts in the long run, and that no idle time gives more than a full allowance.
//!
//! The tests send a million requests at each rate. After each request, they compare the admitted amount
//! with the configured amount, in exact integers.

use tollgate_core::{Leaky, Limiting, Rate, Span, Time, gcra, leaky_bucket, token_bucket};

const REQUESTS: u64 = 1_000_000;
const START: u64 = 1_000_000_007;

/// The rates under test: amount and period.
const RATES: [(u64, Span); 5] = [
    (1, Span::DAY),
    (7, Span::HOUR),
    (3, Span::SECOND),
    (333, Span::SECOND),
    (1_000_000, Span::SECOND),
];

const BURSTS: [u64; 3] = [1, 2, 10];

/// A limit with its rate, and the amount it has admitted since [`START`].
struct Counted<L: Limiting> {
    limit: L,
    state: L::State,
    rate: Rate,
    admitted: u64,
}

impl<L: Limiting> Counted<L> {
    fn new(limit: L, rate: Rate) -> Counted<L> {
        Counted {
            limit,
            state: L::State::default(),
            rate,
            admitted: 0,
        }
    }

    /// Asks for one unit. If it is denied, returns the promised instant.
    fn ask(&mut self, now: u64) -> Option<u64> {
        let verdict = self.limit.decide(&self.state, 1, Time::from_micros(now));
        if verdict.is_allowed() {
            self.limit
                .charge(&mut self.state, 1, Time::from_micros(now));
            self.admitted += 1;
            let configured = self.configured(now);
            assert!(
                self.admitted <= configured,
                "{} admitted at {now}, configured {configured} ({})",
                self.admitted,
                self.rate
            );
        }
        verdict.retry_at().map(Time::as_micros)
    }

    /// Returns the least amount that a client gets until `now` if it always asks at the promised instant.
    /// With a capacity above 1, this is the configured amount less one.
    ///
    /// A bucket with a capacity of 1 is full as soon as its token is there. It cannot store the time from the
    /// arrival of the token to the end of that microsecond. So each token takes a whole number of
    /// microseconds, rounded up.
    fn due(&self, now: u64) -> u64 {
        if self.limit.capacity() > 1 {
            return self.configured(now) - 1;
        }
        let interval = self.rate.period().as_micros().div_ceil(self.rate.amount());
        1 + (now - START) / interval
    }

    /// Returns the configured amount from the start to `now`.
    fn configured(&self, now: u64) -> u64 {
        let (amount, period) = (self.rate.amount(), self.rate.period().as_micros());
        let refilled = u128::from(amount) * u128::from(now - START) / u128::from(period);
        self.limit.capacity() + u64::try_from(refilled).unwrap_or(u64::MAX)
    }
}

/// Runs `proof` for each algorithm at each rate and burst.
macro_rules! at_every_rate {
    ($proof:ident) => {
        for (amount, period) in RATES {
            for burst in BURSTS {
                let rate = Rate::new(amount, period).unwrap();
                $proof(Counted::new(gcra::new(rate, burst).unwrap(), rate));
                $proof(Counted::new(token_bucket::new(burst, rate).unwrap(), rate));
                let leaky = leaky_bucket::new(rate, burst - 1, Leaky::Police);
                $proof(Counted::new(leaky.unwrap(), rate));
            }
        }
    };
}

/// Asks again at each promised instant, and a microsecond before it. At a rate of one a day, the clock
/// would end before a million requests. So at this rate it asks twenty times before each promised instant.
fn greedy(mut counted: Counted<impl Limiting>) {
    let impatience = if counted.rate.period() == Span::DAY {
        20
    } else {
        1
    };
    let (mut now, mut asked) = (START, 0);
    while asked < REQUESTS {
        asked += 1;
        let Some(promised) = counted.ask(now) else {
            continue;
        };
        let refused_at = now;
        for step in 1..=impatience {
            asked += 1;
            let early = refused_at + (promised - 1 - refused_at) * step / impatience;
            assert_eq!(counted.ask(early), Some(promised), "at {early}");
        }
        now = promised;
    }
    counted.ask(now);
    let (admitted, least) = (counted.admitted, counted.due(now));
    assert!(
        admitted >= least,
        "{admitted} admitted of {least} at {}",
        counted.rate
    );
}

#[test]
fn a_greedy_client_gets_the_configured_rate_and_never_a_token_more() {
    at_every_rate!(greedy);
}

/// Asks at random instants, on average `DENSITY` times as often as the rate allows.
fn jittery(mut counted: Counted<impl Limiting>) {
    const DENSITY: u64 = 20;
    let interval = counted.rate.period().as_micros() / counted.rate.amount();
    let longest = (2 * interval / DENSITY).max(1);
    let (mut random, mut now) = (Random(longest), START);
    for _ in 0..REQUESTS {
        now += random.below(longest + 1);
        counted.ask(now);
    }
    assert!(counted.admitted <= counted.configured(now));
    assert!(
        counted.admitted >= counted.limit.capacity(),
        "at least the burst is admitted"
    );
}

#[test]
fn a_jittery_client_never_gets_a_token_more_than_the_configured_rate() {
    at_every_rate!(jittery);
}

/// Spends a burst of 10 at `start`, and pauses for `idle`. Returns how many requests are admitted at once
/// after the pause.
fn pass_after(limit: &impl Limiting, start: u64, idle: u64) -> u64 {
    let mut state = Default::default();
    let mut pass = |now| {
        let mut passed = 0;
        while limit.decide(&state, 1, Time::from_micros(now)).is_allowed() {
            limit.charge(&mut state, 1, Time::from_micros(now));
            passed += 1;
        }
        passed
    };
    assert_eq!(pass(start), 10, "a fresh burst");
    pass(start + idle)
}

fn idle_time_is_worth_its_seconds(limit: &impl Limiting) {
    let expected = |idle: u64| (idle / 1_000_000).min(10);
    for idle in (0..=30_000).map(|millis| millis * 1000) {
        for idle in [idle, idle + 999] {
            assert_eq!(
                pass_after(limit, START, idle),
                expected(idle),
                "idle for {idle}"
            );
        }
    }
    let mut random = Random(7);
    for _ in 0..100_000 {
        let start = random.below(1 << 50);
        let idle = match random.below(3) {
            0 => random.below(12_000_000),
            1 => (random.below(12) + 1) * 1_000_000 + random.below(3) - 1,
            _ => random.below(1 << 50),
        };
        assert_eq!(
            pass_after(limit, start, idle),
            expected(idle),
            "{start}, idle for {idle}"
        );
    }
}

#[test]
fn a_drained_burst_of_ten_is_worth_its_idle_seconds_and_never_more_than_ten() {
    let rate = Rate::new(1, Span::SECOND).unwrap();
    idle_time_is_worth_its_seconds(&gcra::new(rate, 10).unwrap());
    idle_time_is_worth_its_seconds(&token_bucket::new(10, rate).unwrap());
    idle_time_is_worth_its_seconds(&leaky_bucket::new(rate, 9, Leaky::Police).unwrap());
}

/// The random numbers of Splitmix64, which are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
