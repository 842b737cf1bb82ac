//! Random reservations, with repeats, reordered calls and crashes, compared with a simple model.
//!
//! A strict rule loses nothing in a crash. Another rule may lose its latest steps, each as a whole, but
//! no step that was flushed. The model then goes back to the state of the ledger.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use proptest::prelude::*;
use tollgate::{Decision, Hold, HoldError, HoldName, Reserve, ReserveOutcome, Span, Time};
use tollgate_rig::Redis;
use tollgate_store::HoldState;

use super::process::{Memory, Process, StoreKind};
use super::setup::acme;

const LIMIT: u64 = 1000;
/// The cost of a unit under the second ledgered rule, which has a larger limit.
const COST: u64 = 2;
/// The capacity of the rate: less than some sequences ask for.
const BURST: u64 = 600;
/// The default time to live of a reservation.
const TTL: Span = tollgate::DEFAULT_TTL;
/// How long after its expiry the ledger ends a reservation that the store has lost.
const OVERDUE: Span = Span::MINUTE;

/// A call of a client, which may be repeated.
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
    /// The same call twice at the same time.
    Both(Call),
    /// Repeats an earlier call.
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
    // Few amounts, so that some calls repeat others and some contradict them.
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
        // All waits together are shorter than the retention of ended holds.
        3 => (1..90_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::LoseCounts),
        1 => Just(Step::Reset),
        1 => Just(Step::Flush),
        2 => Just(Step::Crash),
    ]
}

/// A reservation in the model.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    name: HoldName,
    units: u64,
    state: HoldState,
    used: u64,
    expires_at: Time,
    /// Whether a reset has cleared the usage of the reservation.
    is_forgotten: bool,
}

impl Known {
    /// Returns whether the limiter reports the same state.
    fn matches(&self, hold: &Hold) -> bool {
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

    /// Returns the expected usage of the ledgered rules.
    fn expected(&self) -> Vec<u64> {
        vec![self.taken(), COST * self.taken()]
    }

    /// Checks a decision: the quota is exact, and a denied request has a rule that denies it.
    fn check(&self, decision: &Decision, units: u64) {
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
        answer: Result<ReserveOutcome, HoldError>,
    ) {
        match (answer, self.holds.get(&key)) {
            (Ok(ReserveOutcome::Held { hold, decision }), None) => {
                let decision = decision.unwrap();
                self.check(&decision, units);
                assert!(decision.is_allowed() && self.taken() + units <= LIMIT);
                let known = Known {
                    name: hold.id,
                    units,
                    state: HoldState::Reserved,
                    used: 0,
                    expires_at: now + TTL,
                    is_forgotten: false,
                };
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
                self.holds.insert(key, known);
            }
            (Ok(ReserveOutcome::Held { hold, decision }), Some(known)) => {
                assert!(decision.is_none(), "it was made twice");
                assert!(
                    known.matches(&hold) && known.units == units,
                    "{known:?}, {hold:?}"
                );
            }
            (Ok(ReserveOutcome::Denied(decision)), known) => {
                assert!(known.is_none() && !decision.is_allowed());
                self.check(&decision, units);
            }
            (Err(HoldError::Conflict), Some(known)) => assert_ne!(known.units, units),
            (Err(HoldError::Ended(hold)), Some(known)) => {
                assert!(matches!(
                    known.state,
                    HoldState::Released | HoldState::Expired
                ));
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
            }
            (Err(error), _) => panic!("{error}"),
        }
    }

    fn committed(&mut self, key: u8, actual: u64, answer: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match answer {
            Ok(hold) => {
                if known.state == HoldState::Reserved {
                    (known.state, known.used) = (HoldState::Consumed, actual);
                }
                assert!(
                    known.matches(&hold) && known.used == actual,
                    "{known:?}, {hold:?}"
                );
            }
            Err(HoldError::Ended(hold)) => {
                assert_ne!(known.state, HoldState::Reserved);
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
                assert_ne!(hold.actual, Some(actual), "it was a repeat");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn released(&mut self, key: u8, answer: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match answer {
            Ok(hold) => {
                if known.state == HoldState::Reserved {
                    known.state = HoldState::Released;
                }
                assert_eq!(known.state, HoldState::Released);
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
            }
            Err(HoldError::Ended(hold)) => {
                assert!(matches!(
                    known.state,
                    HoldState::Consumed | HoldState::Expired
                ));
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn extended(&mut self, key: u8, until: Time, answer: Result<Hold, HoldError>) {
        let known = self.holds.get_mut(&key).unwrap();
        match answer {
            Ok(hold) => {
                assert_eq!(known.state, HoldState::Reserved);
                known.expires_at = known.expires_at.max(until);
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
            }
            Err(HoldError::Ended(hold)) => {
                assert_ne!(known.state, HoldState::Reserved);
                assert!(known.matches(&hold), "{known:?}, {hold:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A limiter and its model.
struct Trial<H: StoreKind> {
    process: Process<H>,
    is_strict: bool,
    model: Model,
    /// The model at the last flush and after each step since then.
    since: Vec<Model>,
    calls: Vec<Call>,
    /// Whether the store may have lost holds that should expire.
    has_lost: bool,
}

impl<H: StoreKind> Trial<H> {
    async fn new(kind: H, is_strict: bool) -> Trial<H> {
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
            process: Process::new(kind, &rules.concat()).await,
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
                let decision = self.process.ask(&acme(), units).await;
                self.model.check(&decision, units);
                if decision.is_allowed() {
                    self.model.used += units;
                }
            }
            Step::Wait { seconds } => self.wait(Span::from_secs(seconds)).await,
            Step::LoseCounts => {
                self.process.lose_counts().await;
                self.has_lost = H::SURVIVES_CRASH;
            }
            Step::Reset => {
                self.process.limiter().reset(&acme()).await.unwrap();
                self.model.used = 0;
                for known in self.model.holds.values_mut() {
                    known.is_forgotten = known.state == HoldState::Consumed;
                }
                // A reset flushes each rule first, so a part of it may be on disk.
                self.flush().await;
            }
            Step::Flush => self.flush().await,
            Step::Crash => self.crash().await,
        }
        self.since.push(self.model.clone());
        let (counted, expected) = (self.process.counted().await, self.model.expected());
        for (counted, expected) in counted.iter().zip(&expected) {
            assert!(
                counted.is_none_or(|it| it == *expected),
                "the counter has {counted:?} instead of {expected}"
            );
        }
        if self.is_strict {
            assert_eq!(self.process.recorded().await, expected, "the ledger");
        }
    }

    /// Makes the call this many times at once.
    async fn call(&mut self, call: Call, times: usize) {
        self.calls.push(call);
        let (limiter, now) = (self.process.limiter(), self.process.now());
        let name = |key: u8| self.model.holds.get(&key).map(|known| known.name);
        match call {
            Call::Reserve { key, units } => {
                let text = format!("key-{key}");
                let request = Reserve {
                    units,
                    idempotency_key: Some(&text),
                    ..Reserve::default()
                };
                let acme = acme();
                let answer = join_all((0..times).map(|_| limiter.reserve(&acme, &request)));
                let mut answer = answer.await;
                // Only one of the equal calls makes the reservation. Check it first.
                answer.sort_by_key(|it| {
                    let made = it.as_ref().is_ok_and(|it| it.decision().is_some());
                    std::cmp::Reverse(made)
                });
                for answer in answer {
                    self.model.reserved((key, units), now, answer);
                }
            }
            Call::Commit { key, actual } => {
                let Some(name) = name(key) else { return };
                let answer = join_all((0..times).map(|_| limiter.commit(&name, actual)));
                for answer in answer.await {
                    self.model.committed(key, actual, answer);
                }
            }
            Call::Release { key } => {
                let Some(name) = name(key) else { return };
                let answer = join_all((0..times).map(|_| limiter.release(&name)));
                for answer in answer.await {
                    self.model.released(key, answer);
                }
            }
            Call::Extend { key, seconds } => {
                let Some(name) = name(key) else { return };
                let ttl = Span::from_secs(seconds);
                let answer = join_all((0..times).map(|_| limiter.extend(&name, ttl)));
                for answer in answer.await {
                    self.model.extended(key, now + ttl, answer);
                }
            }
        }
    }

    /// Advances the clock. Checks that exactly the due reservations expire.
    async fn wait(&mut self, span: Span) {
        self.process.clock.advance(span);
        self.process.sweep().await;
        let now = self.process.now();
        for known in self.model.holds.values_mut() {
            let hold = self.process.limiter().find_hold(&known.name).await.unwrap();
            let is_due = known.state == HoldState::Reserved && now >= known.expires_at;
            // If the store has lost a reservation, the ledger ends it, but only `OVERDUE` after its
            // expiry. Until then it may still be open.
            let may_wait = self.has_lost && now <= known.expires_at + OVERDUE;
            if is_due && !(may_wait && hold.state == HoldState::Reserved) {
                known.state = HoldState::Expired;
            }
            assert!(known.matches(&hold), "at {now:?}: {known:?}, {hold:?}");
        }
        self.has_lost = false;
        self.flush().await;
    }

    async fn flush(&mut self) {
        self.process.flush().await;
        assert_eq!(
            self.process.recorded().await,
            self.model.expected(),
            "the ledger"
        );
        self.since = vec![self.model.clone()];
    }

    /// Ends the process. The ledger must then match the model after some step since the last flush, and the
    /// model continues from there.
    async fn crash(&mut self) {
        if H::SURVIVES_CRASH && !self.is_strict {
            // Without this, the counts in Redis would be ahead of the ledger until a reconciliation.
            self.flush().await;
        }
        self.process.crash().await;
        let recorded = self.process.recorded().await;
        let mut found = BTreeMap::new();
        for (key, known) in &self.model.holds {
            match self.process.limiter().find_hold(&known.name).await {
                Ok(hold) => {
                    found.insert(*key, hold);
                }
                Err(HoldError::Unknown) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let is_recorded = |model: &&Model| {
            model.expected() == recorded
                && model.holds.len() == found.len()
                && model
                    .holds
                    .iter()
                    .all(|(key, known)| found.get(key).is_some_and(|hold| known.matches(hold)))
        };
        let lost = self
            .since
            .iter()
            .rev()
            .position(|model| is_recorded(&model));
        let Some(lost) = lost else {
            panic!("{recorded:?}, {found:?} match none of {:?}", self.since);
        };
        assert!(!self.is_strict || lost == 0, "{lost} steps are lost");
        self.model = self.since[self.since.len() - 1 - lost].clone();
        self.since = vec![self.model.clone()];
    }

    /// Ends all reservations, and checks that all unused units are available then.
    async fn end(mut self) {
        self.process.clock.advance(Span::from_secs(3 * 3600));
        self.process.sweep().await;
        self.process.sweep().await;
        for known in self.model.holds.values_mut() {
            if known.state == HoldState::Reserved {
                known.state = HoldState::Expired;
            }
        }
        let used = self.model.taken();
        assert_eq!(self.process.recorded().await, self.model.expected());
        let decision = self.process.ask(&acme(), 0).await;
        let left: Vec<Option<u64>> = decision.rules().map(|it| it.remaining()).collect();
        let expected = [
            LIMIT.saturating_sub(used),
            (100 * LIMIT).saturating_sub(COST * used),
            BURST,
        ];
        assert_eq!(left, expected.map(Some));
        self.process.end().await;
    }
}

fn run<H: StoreKind>(kind: impl FnOnce() -> H, steps: Vec<Step>, is_strict: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut trial = Trial::new(kind(), is_strict).await;
        for step in steps {
            trial.step(step).await;
        }
        trial.end().await;
    });
}

/// Returns a config with `cases` times the number in `TOLLGATE_PROOF_CASES`. The number counts as at most 5, because
/// each case starts servers.
fn cases(cases: u32) -> ProptestConfig {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    ProptestConfig {
        cases: cases * times.map_or(1, |times| times.parse::<u32>().unwrap().min(5)),
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

    /// Counts and holds in Redis survive a crash of the process.
    #[test]
    fn reservations_add_up_on_redis(
        steps in prop::collection::vec(step(), 1..40),
        is_strict in any::<bool>(),
    ) {
        run(Redis::start, steps, is_strict);
    }
}
