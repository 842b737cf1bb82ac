//! Sends long random sequences of requests to a store and to the reference, and compares the answers.
//!
//! There are few subjects, so that requests interact. The numbers of limits change. The clock jumps to
//! promised instants, to the microsecond before a promised instant, far ahead, and back. All random
//! numbers come from a generator whose [`seed`](super::seed) is fixed, so that a failure is the same on every
//! machine. A long run draws new numbers each time, and a failure prints their seed.

use tollgate_core::fair::Client;
use tollgate_core::{CarryOver, Charge, Enforcement, Limit, OnDenied, Recorded, Span, Time};

use super::cases::retry_at;
use super::reference::ReferenceStore;
use super::{Fixture, Kind, START, key, spread};
use tollgate_store::{AllowanceLevel, Applied, Ask, Balance, ManualClock, Store, StoreError};

/// The contents of random sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Everything.
    All,
    /// Everything, but each request has only one charge.
    OneCharge,
    /// A clock that never goes back, limits that keep their numbers, and charges that do not depend on
    /// each other.
    Steady,
}

impl Range {
    /// Returns whether a charge may depend on another charge of its request. A store that keeps charges on
    /// different servers cannot decide such charges.
    #[must_use]
    pub fn judges_together(self) -> bool {
        self == Range::All
    }

    /// Returns a random limit. If charges are on different servers, a request that one of them denies opens the
    /// new period of a quota on the others. This changes what is carried over, so nothing is.
    fn limit(self, random: &mut Random, kind: Kind) -> Limit {
        match random.limit(kind) {
            Limit::Quota(it) if self == Range::Steady => {
                let quota = Limit::quota(it.limit(), it.grace(), 0, it.calendar().clone());
                quota.expect("a valid quota")
            }
            limit => limit,
        }
    }
}

/// Sends `steps` random operations on subjects of `kinds` to the store and to the reference, and compares
/// every answer.
pub async fn same_answers(fixture: &impl Fixture, kinds: &[Kind], steps: usize) {
    if crate::has_ledger(fixture) && kinds.contains(&Kind::LedgeredQuota) {
        return;
    }
    let mut script = Script::new(fixture.range(), kinds);
    let reference = ReferenceStore::new(ManualClock::at(script.now));
    fixture.set_time(script.now);
    for step in 0..steps {
        let operation = script.next(step);
        if let Operation::MoveTo(time) = operation {
            if time < script.now {
                reset_expired(fixture, &reference, &script).await;
            }
            (script.now, script.latest) = (time, script.latest.max(time));
            fixture.set_time(time);
            reference.clock().set(time);
        } else {
            let expected = script.run(&operation, &reference).await;
            let reply = script.run(&operation, fixture.store()).await;
            assert_eq!(
                reply, expected,
                "step {step} of {kinds:?}: {operation:?} at {:?} on {:?}",
                script.now, script.subjects
            );
            if let Ok(Reply::Applied(applied)) = expected {
                script.assert_denial_is_told(&operation, &applied);
                script.remember(&operation, &applied);
            }
        }
        if script.now < script.latest || script.has_quotas() {
            reset_expired(fixture, &reference, &script).await;
        }
    }
}

/// Resets expired states. A store may or may not have forgotten an expired state. For quotas, and when the
/// clock goes back, this would change the answers.
async fn reset_expired(
    fixture: &impl Fixture,
    reference: &ReferenceStore<ManualClock>,
    script: &Script,
) {
    for subject in &script.subjects {
        let charge = subject.charge(0, Enforcement::Enforce, OnDenied::Nothing);
        if !reference.keeps(&charge) {
            let reset = fixture.store().reset(&[charge]).await;
            reset.expect("the store answers");
        }
    }
}

/// The number of subjects, unless there are more kinds. There are few subjects, so that requests interact.
const SUBJECTS: usize = 5;
/// The distance between the subject numbers of two rounds.
const ROUND: u64 = 100;

struct Script {
    range: Range,
    random: Random,
    subjects: Vec<Subject>,
    now: Time,
    latest: Time,
    /// Recent requests that took units, each with its units and its time.
    taken: Vec<(Vec<Item>, u64, Time)>,
    /// The instant of the retry or the reset that an answer promised last.
    promised: Time,
}

#[derive(Debug)]
struct Subject {
    number: u64,
    kind: Kind,
    limit: Limit,
    carry_over: CarryOver,
}

/// A charge, with the index of its subject.
#[derive(Clone, Copy, Debug)]
struct Item {
    subject: usize,
    cost: u64,
    enforcement: Enforcement,
    on_denied: OnDenied,
}

#[derive(Debug)]
enum Operation {
    Apply(Vec<Item>, Ask),
    Peek(Vec<Item>, Ask),
    Refund(Vec<Item>, u64, Time),
    Reset(Vec<Item>),
    Restore(Vec<Item>, Vec<Balance>),
    Adjust(Item, i64, i64),
    Balance(Item),
    Report(Item, u64),
    MoveTo(Time),
}

/// The answer of a store to an operation.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Applied(Box<Applied>),
    Balance(Option<Balance>),
    Level(Option<AllowanceLevel>),
    Nothing,
}

impl Subject {
    fn charge(&self, cost: u64, enforcement: Enforcement, on_denied: OnDenied) -> Charge<'_> {
        Charge {
            overflow: key(self.number + ROUND / 2),
            rule: "rule",
            cost,
            enforcement,
            on_denied,
            carry_over: self.carry_over,
            recorded: (self.kind == Kind::LedgeredQuota).then(Recorded::default),
            ..Charge::new(key(self.number), &self.limit)
        }
    }
}

impl Script {
    fn new(range: Range, kinds: &[Kind]) -> Script {
        let seed = |seed: u64, kind: &Kind| spread(seed.wrapping_add(*kind as u64));
        let mut random = Random(kinds.iter().fold(super::seed(0), seed));
        let subjects = (0..).zip(kinds.iter().cycle());
        let subjects = subjects.take(SUBJECTS.max(kinds.len()));
        let subjects = subjects.map(|(number, kind)| Subject {
            number,
            kind: *kind,
            limit: range.limit(&mut random, *kind),
            carry_over: CarryOver::Keep,
        });
        Script {
            range,
            subjects: subjects.collect(),
            random,
            now: START,
            latest: START,
            taken: Vec::new(),
            promised: START,
        }
    }

    fn next(&mut self, step: usize) -> Operation {
        if step % 500 == 499 {
            // All subjects are replaced by new ones.
            let subjects = self.subjects.iter_mut();
            subjects.for_each(|subject| subject.number += ROUND);
            self.taken.clear();
        }
        if self.has_quotas() && self.random.below(10) == 0 {
            return self.balance_operation();
        }
        match self.random.below(100) {
            0..50 => Operation::Apply(self.items(), self.random.ask()),
            50..62 => Operation::Peek(self.items(), self.random.ask()),
            62..70 if !self.taken.is_empty() => {
                let chosen = self.random.index(self.taken.len());
                let (items, units, at) = self.taken[chosen].clone();
                Operation::Refund(items, self.random.below(units + 2), at)
            }
            70..73 => Operation::Reset(self.items()),
            73..77 => {
                let chosen = self.random.index(self.subjects.len());
                let kind = self.subjects[chosen].kind;
                let limit = self.random.limit(kind);
                let carry_over = CarryOver::ALL[self.random.index(3)];
                if self.range != Range::Steady {
                    self.subjects[chosen].limit = limit;
                    self.subjects[chosen].carry_over = carry_over;
                }
                Operation::Peek(self.items(), self.random.ask())
            }
            77..80 => Operation::Report(self.items()[0], self.random.below(30)),
            _ => {
                let time = self.random.time(self.now, self.promised);
                Operation::MoveTo(match self.range {
                    Range::Steady => time.max(self.now),
                    Range::All | Range::OneCharge => time,
                })
            }
        }
    }

    fn has_quotas(&self) -> bool {
        let mut subjects = self.subjects.iter();
        subjects.any(|it| matches!(it.limit, Limit::Quota(_)))
    }

    fn has_fair_buckets(&self) -> bool {
        self.subjects.iter().any(|it| it.kind == Kind::Fair)
    }

    /// Restores, adjusts or reads a balance. Sometimes the limit is not a quota.
    fn balance_operation(&mut self) -> Operation {
        let items = self.items();
        let mut some = || [0, 0, 1, 3, 8, 40, 1 << 52][self.random.index(7)];
        let amounts = (some(), some());
        match self.random.below(6) {
            0..3 => {
                let balances = items.iter().map(|_| Balance {
                    ends_at: [Time::default(), self.promised, self.now][self.random.index(3)],
                    used: self.random.below(12),
                    extra: self.random.below(3),
                });
                let balances = balances.collect();
                Operation::Restore(items, balances)
            }
            3 | 4 => {
                let mut signed = |amount: i64| match self.random.below(2) {
                    0 => amount,
                    _ => -amount,
                };
                Operation::Adjust(items[0], signed(amounts.0), signed(amounts.1))
            }
            _ => Operation::Balance(items[0]),
        }
    }

    /// Returns one to four charges. Charges of the same subject have the same settings.
    fn items(&mut self) -> Vec<Item> {
        let count = match self.range {
            Range::OneCharge => 1,
            // A fair bucket remembers a client whose charge was given back.
            Range::Steady if self.has_fair_buckets() => 1,
            Range::All | Range::Steady => [1, 1, 2, 2, 3, 4][self.random.index(6)],
        };
        let mut items: Vec<Item> = Vec::new();
        self.change_clients();
        for _ in 0..count {
            let subject = self.random.index(self.subjects.len());
            let cost = [0, 1, 1, 1, 2, 3, 5, 40][self.random.index(8)];
            let same = items.iter().find(|item| item.subject == subject);
            items.push(match same {
                Some(item) => Item { cost, ..*item },
                None => Item {
                    subject,
                    cost,
                    enforcement: match self.random.below(10) {
                        0..2 => Enforcement::Shadow,
                        // Sometimes there is no charge at this index.
                        2..4 if self.range.judges_together() => {
                            Enforcement::Instead([0, 1, 2, 3, 4][self.random.index(5)])
                        }
                        _ => Enforcement::Enforce,
                    },
                    on_denied: self.on_denied(subject),
                },
            });
        }
        items
    }

    /// Gives each fair bucket another client. There are few clients, so that they compete.
    fn change_clients(&mut self) {
        for subject in &mut self.subjects {
            if let Limit::Fair(it) = &subject.limit {
                let client = Client {
                    id: spread(self.random.below(4)),
                    weight: [1, 1, 1, 3, 7, 1000][self.random.index(6)],
                    lane: [0, 0, 1, 2][self.random.index(4)],
                };
                subject.limit = Limit::Fair(it.for_client(client));
            }
        }
    }

    /// Returns how a charge treats denials. A back-off watches a charge that may not exist. Other charges
    /// may count denied requests.
    fn on_denied(&mut self, subject: usize) -> OnDenied {
        let watches = self.subjects[subject].kind == Kind::Backoff;
        // If the charges are on different servers, one charge may count the request while another charge
        // still needs a restore. The reference does not do this.
        let ledger = |it: &Subject| it.kind == Kind::LedgeredQuota;
        let apart = self.range == Range::Steady && self.subjects.iter().any(ledger);
        match self.random.below(14) {
            0 | 1 if apart => OnDenied::Nothing,
            0 | 1 => OnDenied::Charge,
            _ if self.subjects[subject].kind == Kind::Fair => OnDenied::Note,
            2.. if watches && self.range.judges_together() => {
                OnDenied::Strike([0, 0, 1, 1, 2, 3, 9][self.random.index(7)])
            }
            _ => OnDenied::Nothing,
        }
    }

    fn charges(&self, items: &[Item]) -> Vec<Charge<'_>> {
        items.iter().map(|item| self.charge(item)).collect()
    }

    fn charge(&self, item: &Item) -> Charge<'_> {
        self.subjects[item.subject].charge(item.cost, item.enforcement, item.on_denied)
    }

    async fn run(&self, operation: &Operation, store: &impl Store) -> Result<Reply, StoreError> {
        let applied = match operation {
            Operation::Apply(items, ask) => {
                // The cases call `apply`. Here `apply_into` has to give the same answers.
                let (charges, mut applied) = (self.charges(items), Applied::default());
                match store.apply_into(&charges, *ask, &mut applied) {
                    None => applied,
                    Some(answer) => answer.await?,
                }
            }
            Operation::Peek(items, ask) => store.peek(&self.charges(items), *ask).await?,
            Operation::Refund(items, units, at) => {
                store.refund(&self.charges(items), *units, *at).await?
            }
            Operation::Reset(items) => {
                store.reset(&self.charges(items)).await?;
                return Ok(Reply::Nothing);
            }
            Operation::Restore(items, balances) => {
                store.restore(&self.charges(items), balances).await?;
                return Ok(Reply::Nothing);
            }
            Operation::Adjust(item, used, extra) => {
                let adjusted = store.adjust(&self.charge(item), *used, *extra).await?;
                return Ok(Reply::Balance(adjusted));
            }
            Operation::Balance(item) => {
                return Ok(Reply::Balance(store.balance(&self.charge(item)).await?));
            }
            Operation::Report(item, units) => {
                let level = store.report(&self.charge(item), *units).await?;
                return Ok(Reply::Level(level));
            }
            Operation::MoveTo(_) => return Ok(Reply::Nothing),
        };
        Ok(Reply::Applied(Box::new(applied)))
    }

    /// Panics if a denied request has no outcome that denies it.
    fn assert_denial_is_told(&self, operation: &Operation, applied: &Applied) {
        let Operation::Apply(items, _) = operation else {
            return;
        };
        let mut both = items.iter().zip(&applied.outcomes);
        let is_told = both.any(|(item, outcome)| {
            item.enforcement == Enforcement::Enforce && !outcome.is_allowed()
        });
        assert!(
            applied.allowed || is_told,
            "no outcome denies: {operation:?} of {:?}: {applied:?}",
            self.subjects
        );
    }

    fn remember(&mut self, operation: &Operation, applied: &Applied) {
        if let Some(outcome) = applied.outcomes.last() {
            self.promised = retry_at(outcome).unwrap_or(outcome.reset_at);
        }
        if let Operation::Apply(items, _) = operation
            && applied.granted > 0
        {
            if self.taken.len() == 8 {
                self.taken.remove(0);
            }
            let taken = (items.clone(), applied.granted, applied.now);
            self.taken.push(taken);
        }
    }
}

/// The generator splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        spread(self.0) % bound
    }

    #[allow(clippy::cast_possible_truncation)] // Below the length of a slice.
    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    fn limit(&mut self, kind: Kind) -> Limit {
        let capacity = [0, 1, 3, 7, 7, 10, 10, 10, 25, 25][self.index(10)];
        let window = [10, 1_000, 7_001, 1_000_000, 1_000_000, 30_000_000][self.index(6)];
        kind.limit(capacity, Span::from_micros(window))
    }

    fn ask(&mut self) -> Ask {
        match self.below(10) {
            0 => Ask::Exactly(0),
            1 => Ask::UpTo(self.below(3)),
            2 | 3 => Ask::UpTo(self.below(30)),
            4 => Ask::Exactly(self.below(12)),
            _ => Ask::Exactly(1),
        }
    }

    /// Returns a time soon after `now`, long after `now`, before `now`, at `promised`, or just before
    /// `promised`.
    fn time(&mut self, now: Time, promised: Time) -> Time {
        let now = now.as_micros();
        let promised = promised.as_micros().max(now);
        let time = Time::from_micros(match self.below(24) {
            0..4 => now + self.below(10),
            4..8 => now + self.below(2_000),
            8..12 => now + self.below(400_000),
            12 => now + self.below(60_000_000),
            13..16 => promised,
            16..18 => promised.saturating_sub(1).max(now),
            18..20 => (now / 1_000_000 + 1) * 1_000_000,
            20 => now - self.below(10),
            21 => now - self.below(5_000),
            22 => now - self.below(900_000),
            _ => now - self.below(40_000_000),
        });
        // At the end of time, no store decides anything.
        time.min(Time::MAX - Span::from_micros(1))
    }
}
