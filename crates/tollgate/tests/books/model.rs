//! Random reservations, with repetitions, reordered calls and crashes, against a model that only adds up.
//!
//! A strict rule loses nothing. Of one that is not, a crash loses the latest steps, none that was flushed, and
//! of each all that was written by it: the model goes back to where the ledger is.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use proptest::prelude::*;
use tollgate::{Decision, Hold, HoldError, HoldName, Reserve, ReserveOutcome, Span, Time};
use tollgate_rig::Redis;
use tollgate_store::HoldState;

use super::lives::{Home, Lives, Memory};
use super::setup::acme;

const LIMIT: u64 = 1000;
/// What a unit costs under the other ledgered rule, which has room for more.
const COST: u64 = 2;
/// The most that the rate has at once: less than some sequences want.
const BURST: u64 = 600;
/// How long a reservation holds that does not say.
const TTL: Span = tollgate::DEFAULT_TTL;
/// How long after its time a reservation is ended that only the ledger knows.
const OVERDUE: Span = Span::MINUTE;

/// What somebody does, and may do again.
#[derive(Clone, Copy, Debug)]
enum Call {
    Reserve { key: u8, units: u64 },
    Commit { key: u8, actual: u64 },
    Release { key: u8 },
    Extend { key: u8, seconds: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Call),
    /// Twice at the same time.
    Both(Call),
    /// What was called so many calls ago, as it was.
    Again {
        back: usize,
    },
    Use {
        units: u64,
    },
    Wait {
        seconds: u64,
    },
    LoseCounts,
    Reset,
    Flush,
    Crash,
}

fn call() -> impl Strategy<Value = Call> {
    let key = 0..6_u8;
    // Few amounts, so that some calls are the same as others and some contradict them.
    let units = prop::sample::select(vec![1, 7, 120, 300, 399]);
    let actual = prop::sample::select(vec![0, 7, 120, 300, 450]);
    prop_oneof![
        4 => (key.clone(), units).prop_map(|(key, units)| Call::Reserve { key, units }),
        3 => (key.clone(), actual).prop_map(|(key, actual)| Call::Commit { key, actual }),
        2 => key.clone().prop_map(|key| Call::Release { key }),
        2 => (key, 1..200_u64).prop_map(|(key, seconds)| Call::Extend { key, seconds }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => call().prop_map(Step::Call),
        2 => call().prop_map(Step::Both),
        4 => (0..8_usize).prop_map(|back| Step::Again { back }),
        2 => (0..300_u64).prop_map(|units| Step::Use { units }),
        // All of them together are less than records of what has ended are kept.
        3 => (1..90_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::LoseCounts),
        1 => Just(Step::Reset),
        1 => Just(Step::Flush),
        2 => Just(Step::Crash),
    ]
}

/// What the model knows of a reservation.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    name: HoldName,
    units: u64,
    state: HoldState,
    used: u64,
    expires_at: Time,
    /// Whether what was used was reset since.
    is_forgotten: bool,
}

impl Known {
    /// Whether it is as the limiter says.
    fn is(&self, hold: &Hold) -> bool {
        let actual = (self.state == HoldState::Consumed).then_some(self.used);
        (self.name, self.units, self.state, self.expires_at)
            == (hold.id, hold.units, hold.state, hold.expires_at)
            && actual == hold.actual
    }
}

#[derive(Clone, Debug, Default)]
struct Model {
    used: u64,
    holds: BTreeMap<u8, Known>,
}

impl Model {
    fn taken(&self) -> u64 {
        let holds = self.holds.values().map(|hold| match hold.state {
            HoldState::Reserved => hold.units,
            HoldState::Consumed if !hold.is_forgotten => hold.used,
            HoldState::Consumed | HoldState::Released | HoldState::Expired => 0,
        });
        self.used + holds.sum::<u64>()
    }

    /// What the ledgered rules should have.
    fn expected(&self) -> Vec<u64> {
        vec![self.taken(), COST * self.taken()]
    }

    /// Whether a decision says what it should: the quota exactly, and somebody refuses what is refused.
    fn explains(&self, decision: &Decision, units: u64) {
        let quota = decision.rules().find(|rule| rule.rule().id() == "monthly");
        let fits = units == 0 || self.taken() + units <= LIMIT;
        assert_eq!(quota.unwrap().is_allowed(), fits, "{decision:?}");
        let others = decision.rules().all(|rule| rule.is_allowed());
        assert_eq!(decision.is_allowed(), others, "{decision:?}");
    }

    fn reserved(
        &mut self,
        (key, units): (u8, u64),
        now: Time,
        told: Result<ReserveOutcome, HoldError>,
    ) {
        match (told, self.holds.get(&key)) {
            (Ok(ReserveOutcome::Held { hold, decision }), None) => {
                let decision = decision.unwrap();
                self.explains(&decision, units);
                assert!(decision.is_allowed() && self.taken() + units <= LIMIT);
                let known = Known {
                    name: hold.id,
                    units,
                    state: HoldState::Reserved,
                    used: 0,
                    expires_at: now + TTL,
                    is_forgotten: false,
                };
                assert!(known.is(&hold), "{known:?}, {hold:?}");
                self.holds.insert(key, known);
            }
            (Ok(ReserveOutcome::Held { hold, decision }), Some(known)) => {
                assert!(decision.is_none(), "it was made twice");
                assert!(
                    known.is(&hold) && known.units == units,
                    "{known:?}, {hold:?}"
                );
            }
            (Ok(ReserveOutcome::Denied(decision)), known) => {
                assert!(known.is_none() && !decision.is_allowed());
                self.explains(&decision, units);
            }
            (Err(HoldError::Conflict), Some(known)) => assert_ne!(known.units, units),
            (Err(HoldError::Ended(hold)), Some(known)) => {
                assert!(matches!(
                    known.state,
                    HoldState::Released | HoldState::Expired
                ));
                assert!(known.is(&hold), "{known:?}, {hold:?}");
            }
            (Err(error), _) => panic!("{error}"),
        }
    }

    fn committed(&mut self, key: u8, actual: u64, told: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match told {
            Ok(hold) => {
                if known.state == HoldState::Reserved {
                    (known.state, known.used) = (HoldState::Consumed, actual);
                }
                assert!(
                    known.is(&hold) && known.used == actual,
                    "{known:?}, {hold:?}"
                );
            }
            Err(HoldError::Ended(hold)) => {
                assert_ne!(known.state, HoldState::Reserved);
                assert!(known.is(&hold), "{known:?}, {hold:?}");
                assert_ne!(hold.actual, Some(actual), "it was a repetition");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn released(&mut self, key: u8, told: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match told {
            Ok(hold) => {
                if known.state == HoldState::Reserved {
                    known.state = HoldState::Released;
                }
                assert_eq!(known.state, HoldState::Released);
                assert!(known.is(&hold), "{known:?}, {hold:?}");
            }
            Err(HoldError::Ended(hold)) => {
                assert!(matches!(
                    known.state,
                    HoldState::Consumed | HoldState::Expired
                ));
                assert!(known.is(&hold), "{known:?}, {hold:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn extended(&mut self, key: u8, until: Time, told: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match told {
            Ok(hold) => {
                assert_eq!(known.state, HoldState::Reserved);
                known.expires_at = known.expires_at.max(until);
                assert!(known.is(&hold), "{known:?}, {hold:?}");
            }
            Err(HoldError::Ended(hold)) => {
                assert_ne!(known.state, HoldState::Reserved);
                assert!(known.is(&hold), "{known:?}, {hold:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A limiter, and the model that it is held against.
struct Trial<H: Home> {
    lives: Lives<H>,
    is_strict: bool,
    model: Model,
    /// The model after each step since the ledger was flushed, that of then first.
    since: Vec<Model>,
    calls: Vec<Call>,
    /// Whether the store may have lost holds that are to be expired.
    has_lost: bool,
}

impl<H: Home> Trial<H> {
    async fn new(home: H, is_strict: bool) -> Trial<H> {
        let durability = if is_strict { "strict" } else { "async" };
        let quota = |id: &str, cost: u64, limit: u64| {
            format!(
                "
  - id: {id}
    per: [tenant]
    algorithm: quota
    cost: {cost}
    limit: {limit}
    period: month
    durability: {durability}
    on_store_failure: fail-closed"
            )
        };
        let rate = format!(
            "
  - {{ id: rate, per: [tenant], algorithm: token-bucket, capacity: {BURST}, refill: 20/s }}"
        );
        let rules = [
            quota("monthly", 1, LIMIT),
            quota("tokens", COST, 100 * LIMIT),
            rate,
        ];
        Trial {
            lives: Lives::new(home, &rules.concat()).await,
            is_strict,
            model: Model::default(),
            since: vec![Model::default()],
            calls: Vec::new(),
            has_lost: false,
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Call(call) => self.call(call, 1).await,
            Step::Both(call) => self.call(call, 2).await,
            Step::Again { back } => {
                if let Some(call) = self.calls.iter().rev().nth(back).copied() {
                    self.call(call, 1).await;
                }
            }
            Step::Use { units } => {
                let decision = self.lives.ask(&acme(), units).await;
                self.model.explains(&decision, units);
                if decision.is_allowed() {
                    self.model.used += units;
                }
            }
            Step::Wait { seconds } => self.wait(Span::from_secs(seconds)).await,
            Step::LoseCounts => {
                self.lives.lose_counts().await;
                self.has_lost = H::OUTLIVES;
            }
            Step::Reset => {
                self.lives.limiter().reset(&acme()).await.unwrap();
                self.model.used = 0;
                for known in self.model.holds.values_mut() {
                    known.is_forgotten = known.state == HoldState::Consumed;
                }
                // Each rule is flushed before it is reset: what was done to one may be on the disk.
                self.flush().await;
            }
            Step::Flush => self.flush().await,
            Step::Crash => self.crash().await,
        }
        self.since.push(self.model.clone());
        let (counted, expected) = (self.lives.counted().await, self.model.expected());
        for (counted, expected) in counted.iter().zip(&expected) {
            assert!(
                counted.is_none_or(|it| it == *expected),
                "{counted:?} is counted, and should be {expected}"
            );
        }
        if self.is_strict {
            assert_eq!(self.lives.booked().await, expected, "the books");
        }
    }

    /// Does it so many times at once.
    async fn call(&mut self, call: Call, times: usize) {
        self.calls.push(call);
        let (limiter, now) = (self.lives.limiter(), self.lives.now());
        let name = |key: u8| self.model.holds.get(&key).map(|known| known.name);
        match call {
            Call::Reserve { key, units } => {
                let text = format!("key-{key}");
                let wish = Reserve {
                    units,
                    idempotency_key: Some(&text),
                    ..Reserve::default()
                };
                let acme = acme();
                let told = join_all((0..times).map(|_| limiter.reserve(&acme, &wish)));
                let mut told = told.await;
                // Of several who make it, one has made it.
                told.sort_by_key(|it| {
                    let made = it.as_ref().is_ok_and(|it| it.decision().is_some());
                    std::cmp::Reverse(made)
                });
                for told in told {
                    self.model.reserved((key, units), now, told);
                }
            }
            Call::Commit { key, actual } => {
                let Some(name) = name(key) else { return };
                let told = join_all((0..times).map(|_| limiter.commit(&name, actual)));
                for told in told.await {
                    self.model.committed(key, actual, told);
                }
            }
            Call::Release { key } => {
                let Some(name) = name(key) else { return };
                let told = join_all((0..times).map(|_| limiter.release(&name)));
                for told in told.await {
                    self.model.released(key, told);
                }
            }
            Call::Extend { key, seconds } => {
                let Some(name) = name(key) else { return };
                let ttl = Span::from_secs(seconds);
                let told = join_all((0..times).map(|_| limiter.extend(&name, ttl)));
                for told in told.await {
                    self.model.extended(key, now + ttl, told);
                }
            }
        }
    }

    /// Lets time pass: what has ended by itself had to end, and has.
    async fn wait(&mut self, span: Span) {
        self.lives.clock.advance(span);
        self.lives.sweep().await;
        let now = self.lives.now();
        for known in self.model.holds.values_mut() {
            let hold = self.lives.limiter().find_hold(&known.name).await.unwrap();
            let is_due = known.state == HoldState::Reserved && now >= known.expires_at;
            // One that the store does not know is ended later, by the ledger.
            let may_wait = self.has_lost && now <= known.expires_at + OVERDUE;
            if is_due && !(may_wait && hold.state == HoldState::Reserved) {
                known.state = HoldState::Expired;
            }
            assert!(known.is(&hold), "at {now:?}: {known:?}, {hold:?}");
        }
        self.has_lost = false;
        self.flush().await;
    }

    async fn flush(&mut self) {
        self.lives.flush().await;
        assert_eq!(
            self.lives.booked().await,
            self.model.expected(),
            "the books"
        );
        self.since = vec![self.model.clone()];
    }

    /// Ends the process. The model goes on from what is in the ledger, which is where it was at some time
    /// since it was flushed.
    async fn crash(&mut self) {
        if H::OUTLIVES && !self.is_strict {
            // Else the counts would be ahead of the books, until somebody reconciles them.
            self.flush().await;
        }
        self.lives.crash().await;
        let booked = self.lives.booked().await;
        let mut found = BTreeMap::new();
        for (key, known) in &self.model.holds {
            match self.lives.limiter().find_hold(&known.name).await {
                Ok(hold) => {
                    found.insert(*key, hold);
                }
                Err(HoldError::Unknown) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let is_there = |model: &&Model| {
            model.expected() == booked
                && model.holds.len() == found.len()
                && model
                    .holds
                    .iter()
                    .all(|(key, known)| found.get(key).is_some_and(|hold| known.is(hold)))
        };
        let lost = self.since.iter().rev().position(|model| is_there(&model));
        let Some(lost) = lost else {
            panic!("{booked:?}, {found:?} was never so since {:?}", self.since);
        };
        assert!(!self.is_strict || lost == 0, "{lost} steps are lost");
        self.model = self.since[self.since.len() - 1 - lost].clone();
        self.since = vec![self.model.clone()];
    }

    /// Nothing leaks: once all has ended, what is left is what nobody used.
    async fn end(mut self) {
        self.lives.clock.advance(Span::from_secs(3 * 3600));
        self.lives.sweep().await;
        self.lives.sweep().await;
        for known in self.model.holds.values_mut() {
            if known.state == HoldState::Reserved {
                known.state = HoldState::Expired;
            }
        }
        let used = self.model.taken();
        assert_eq!(self.lives.booked().await, self.model.expected());
        let decision = self.lives.ask(&acme(), 0).await;
        let left: Vec<Option<u64>> = decision.rules().map(|it| it.remaining()).collect();
        let expected = [
            LIMIT.saturating_sub(used),
            (100 * LIMIT).saturating_sub(COST * used),
            BURST,
        ];
        assert_eq!(left, expected.map(Some));
        self.lives.end().await;
    }
}

fn run<H: Home>(home: impl FnOnce() -> H, steps: Vec<Step>, is_strict: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut trial = Trial::new(home(), is_strict).await;
        for step in steps {
            trial.step(step).await;
        }
        trial.end().await;
    });
}

fn cases(cases: u32) -> ProptestConfig {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    ProptestConfig {
        cases: cases * times.map_or(1, |times| times.parse::<u32>().unwrap()),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn reservations_add_up(
        steps in prop::collection::vec(step(), 1..40),
        is_strict in any::<bool>(),
    ) {
        run(|| Memory, steps, is_strict);
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// Where what the store knows outlives the process.
    #[test]
    fn reservations_add_up_on_redis(
        steps in prop::collection::vec(step(), 1..40),
        is_strict in any::<bool>(),
    ) {
        run(Redis::start, steps, is_strict);
    }
}
