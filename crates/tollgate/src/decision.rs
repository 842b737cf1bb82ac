//! A decision: yes or no, by which rule, and what to tell the caller.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{
    Admission, Charge, Denial, Enforcement, Key, OnDenied, Outcome, Span, Subject, Time,
};
use tollgate_rules::{Refusal, RefusalReason, Rule, RuleSet, StoreFailure};
use tollgate_store::Guarantee;

/// What was decided about one request.
///
/// The fields of the whole are those of the rule that decides: of a refusal, the one that refuses
/// longest; of an admission, the one with the least left.
#[derive(Clone)]
pub struct Decision {
    rules: Arc<RuleSet>,
    allowed: bool,
    granted: u64,
    decided_at: Time,
    entries: Entries,
    deciding: Option<usize>,
    pub(crate) guarantee: Guarantee,
}

pub(crate) type Entries = SmallVec<[Entry; 4]>;

/// One rule's part in a decision.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) rule: u32,
    /// None if the rule refused before there was one.
    pub(crate) key: Option<KeyHalves>,
    pub(crate) enforcement: Enforcement,
    /// The policy that decided instead of the store.
    pub(crate) fallback: Option<StoreFailure>,
    /// The time in which the allowance comes back; zero if the rule refused before there was one.
    pub(crate) window: Span,
    pub(crate) part: Part,
    pub(crate) verdict: RuleVerdict,
}

/// Which part of a rule has spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The rule.
    Whole,
    /// Its back-off, which is heard with the rule.
    Backoff,
    /// Both, and the back-off alone refuses.
    BackedOff,
}

/// A key in two words: an `Option<Key>` would be twice as large.
#[derive(Clone, Copy)]
pub(crate) struct KeyHalves(u64, u64);

impl From<Key> for KeyHalves {
    #[allow(clippy::cast_possible_truncation)] // Cutting it in two is the point.
    fn from(key: Key) -> KeyHalves {
        KeyHalves((key.bits() >> 64) as u64, key.bits() as u64)
    }
}

impl From<KeyHalves> for Key {
    fn from(halves: KeyHalves) -> Key {
        Key::from_bits(u128::from(halves.0) << 64 | u128::from(halves.1))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum RuleVerdict {
    /// The store has decided.
    Decided(Outcome),
    /// The rule refused before the store was asked.
    Refused(RefusalReason),
    /// The store failed, and the rule allows without counting. The limit that would have decided.
    Assumed(u64),
    /// The store failed, and the rule refuses. When to try again, and the limit that would have decided.
    StoreFailed(Time, u64),
}

impl Part {
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>) -> Part {
        match charge.on_denied {
            OnDenied::Strike(_) => Part::Backoff,
            _ => Part::Whole,
        }
    }
}

impl Entry {
    /// Adds what the rule's back-off says. Whoever waits, waits for both.
    #[cold]
    fn hear(&mut self, backoff: &Entry) {
        let (RuleVerdict::Decided(own), RuleVerdict::Decided(block)) =
            (&mut self.verdict, &backoff.verdict)
        else {
            return;
        };
        let Admission::Denied(Denial::Until(until)) = block.admission else {
            return;
        };
        own.admission = match own.admission {
            Admission::Denied(Denial::Until(at)) => Admission::Denied(Denial::Until(at.max(until))),
            Admission::Denied(Denial::QueueFull(at)) => {
                Admission::Denied(Denial::QueueFull(at.max(until)))
            }
            Admission::Denied(Denial::Never) => Admission::Denied(Denial::Never),
            Admission::Allowed { .. } => {
                self.part = Part::BackedOff;
                Admission::Denied(Denial::Until(until))
            }
        };
        own.reset_at = own.reset_at.max(until);
    }

    /// What the store said to `charge` of the rule at `rule`.
    #[inline]
    pub(crate) fn of(charge: &Charge<'_>, rule: u32, verdict: RuleVerdict) -> Entry {
        Entry {
            rule,
            key: Some(charge.key.into()),
            enforcement: charge.enforcement,
            fallback: None,
            window: charge.limit.window(),
            part: Part::of(charge),
            verdict,
        }
    }

    pub(crate) fn refused(refusal: &Refusal) -> Entry {
        let enforcement = if refusal.shadow {
            Enforcement::Shadow
        } else {
            Enforcement::Enforce
        };
        let verdict = RuleVerdict::Refused(refusal.reason);
        Entry {
            rule: refusal.rule,
            key: None,
            enforcement,
            fallback: None,
            window: Span::ZERO,
            part: Part::Whole,
            verdict,
        }
    }

    pub(crate) fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Whether the store has decided, or the rule itself.
    pub(crate) fn is_counted(&self) -> bool {
        let stood_in = matches!(
            self.verdict,
            RuleVerdict::Assumed(_) | RuleVerdict::StoreFailed(..)
        );
        self.fallback.is_none() && !stood_in
    }

    pub(crate) fn is_allowed(&self) -> bool {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => outcome.is_allowed(),
            RuleVerdict::Assumed(_) => true,
            RuleVerdict::Refused(_) | RuleVerdict::StoreFailed(..) => false,
        }
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        match &self.verdict {
            RuleVerdict::Refused(RefusalReason::MissingAttribute) => Some(Reason::MissingAttribute),
            RuleVerdict::Refused(RefusalReason::BadExpression) => Some(Reason::BadExpression),
            RuleVerdict::Assumed(_) => None,
            RuleVerdict::StoreFailed(..) => Some(match self.fallback {
                Some(_) => Reason::StoreFailed,
                None => Reason::StoreUnavailable,
            }),
            RuleVerdict::Decided(_) if self.part == Part::BackedOff => Some(Reason::BackedOff),
            RuleVerdict::Decided(outcome) => reason_of(outcome),
        }
    }

    fn retry_at(&self) -> Option<Time> {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => match outcome.admission {
                Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
                _ => None,
            },
            RuleVerdict::StoreFailed(at, _) => Some(*at),
            RuleVerdict::Refused(_) | RuleVerdict::Assumed(_) => None,
        }
    }

    fn remaining(&self) -> u64 {
        match &self.verdict {
            RuleVerdict::Decided(outcome) => outcome.remaining,
            RuleVerdict::Assumed(_) => Outcome::UNLIMITED,
            RuleVerdict::Refused(_) | RuleVerdict::StoreFailed(..) => 0,
        }
    }
}

/// Which sort of allowance a rule guards. Callers are told them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// So much per time.
    Rate,
    /// An allowance that several rules draw on.
    Budget,
}

impl Kind {
    /// The name in answers: `rate` or `budget`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Rate => "rate",
            Kind::Budget => "budget",
        }
    }
}

/// Why a rule refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The allowance is spent for now.
    Exceeded,
    /// Refusals before this one have led to a block.
    BackedOff,
    /// The queue of a shaping rule is full, or its wait too long.
    QueueFull,
    /// The cost is above the rule's capacity: no wait would help.
    NeverFits,
    /// The rule needs an attribute that the request does not carry.
    MissingAttribute,
    /// An expression of the rule cannot be evaluated for this request.
    BadExpression,
    /// The store failed, and the rule then refuses.
    StoreFailed,
    /// The store failed, and the rule does not say what then.
    StoreUnavailable,
}

impl Reason {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Reason; 8] = [
        Reason::Exceeded,
        Reason::BackedOff,
        Reason::QueueFull,
        Reason::NeverFits,
        Reason::MissingAttribute,
        Reason::BadExpression,
        Reason::StoreFailed,
        Reason::StoreUnavailable,
    ];

    /// The name in metrics and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Exceeded => "exceeded",
            Reason::BackedOff => "backed_off",
            Reason::QueueFull => "queue_full",
            Reason::NeverFits => "never_fits",
            Reason::MissingAttribute => "missing_attribute",
            Reason::BadExpression => "bad_expression",
            Reason::StoreFailed => "store_failed",
            Reason::StoreUnavailable => "store_unavailable",
        }
    }
}

impl Decision {
    /// A decision at `decided_at` that no rule has taken part in yet.
    #[inline]
    pub(crate) fn new(
        rules: Arc<RuleSet>,
        allowed: bool,
        granted: u64,
        decided_at: Time,
    ) -> Decision {
        Decision {
            rules,
            allowed,
            granted: if allowed { granted } else { 0 },
            decided_at,
            entries: Entries::new(),
            deciding: None,
            guarantee: Guarantee::Atomic,
        }
    }

    /// Adds what the rules say, in the order of the file, and finds the one that decides.
    #[inline]
    pub(crate) fn conclude(&mut self, entries: impl Iterator<Item = Entry>, in_order: bool) {
        for entry in entries {
            match self.entries.last_mut() {
                Some(rule) if entry.part == Part::Backoff => rule.hear(&entry),
                _ => self.entries.push(entry),
            }
        }
        if !in_order {
            self.entries.sort_by_key(|entry| entry.rule);
        }
        let enforcing = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.enforces());
        let deciding = if self.allowed {
            enforcing.min_by_key(|(_, entry)| entry.remaining())
        } else {
            // Of equals, the first in the file.
            enforcing
                .filter(|(_, entry)| !entry.is_allowed())
                .rev()
                .max_by_key(|(_, entry)| entry.retry_at().unwrap_or(Time::MAX))
        };
        self.deciding = deciding.map(|(index, _)| index);
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether the request may proceed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The units taken: those asked for, or as many as there were if that was asked; 0 if refused.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// The store's time of the decision. A refund names it.
    #[must_use]
    pub fn decided_at(&self) -> Time {
        self.decided_at
    }

    /// The rules that decided: those that were in force when the request began.
    #[must_use]
    pub fn rule_set(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// The version of the rules that decided.
    #[must_use]
    pub fn config_version(&self) -> &str {
        self.rules.version()
    }

    /// The rule that decides; `None` if no enforcing rule applies to the request.
    #[must_use]
    pub fn rule(&self) -> Option<RuleDecision<'_>> {
        self.deciding.and_then(|index| self.rules().nth(index))
    }

    /// Every rule that applies, in the order of the file, shadow rules included.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = RuleDecision<'_>> {
        self.entries.iter().map(|entry| RuleDecision {
            entry,
            decision: self,
        })
    }

    /// How long until the same request would be admitted, as far as the rules that refuse it know:
    /// the longest of theirs. `None` if it was allowed, or no wait would help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        self.rule().and_then(|rule| rule.retry_after())
    }

    /// How long an admitted request has to wait for its turn.
    #[must_use]
    pub fn delay(&self) -> Span {
        let enforcing = self.rules().filter(|rule| !rule.is_shadow());
        enforcing
            .map(|rule| rule.delay())
            .max()
            .unwrap_or(Span::ZERO)
    }

    /// The failure policy that decided instead of the store: of the rule that decides, or of the
    /// first that has one. `None` if the store answered.
    #[must_use]
    pub fn fallback(&self) -> Option<StoreFailure> {
        let deciding = self.rule().and_then(|rule| rule.fallback());
        deciding.or_else(|| self.entries.iter().find_map(|entry| entry.fallback))
    }

    /// Whether the request was let through by a rule that wants the caller to leave out what is
    /// optional.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let degraded = Some(StoreFailure::Degraded);
        self.allowed && self.entries.iter().any(|entry| entry.fallback == degraded)
    }

    /// How the rules' allowances were taken together.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// Whether a shadow rule would have refused.
    #[must_use]
    pub fn shadow_denied(&self) -> bool {
        self.rules()
            .any(|rule| rule.is_shadow() && !rule.is_allowed())
    }
}

impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decision")
            .field("allowed", &self.allowed)
            .field("rule", &self.rule().map(|rule| rule.rule().id()))
            .field("retry_after", &self.retry_after())
            .finish_non_exhaustive()
    }
}

/// One rule's part in a decision.
#[derive(Clone, Copy)]
pub struct RuleDecision<'d> {
    entry: &'d Entry,
    decision: &'d Decision,
}

impl<'d> RuleDecision<'d> {
    /// The rule.
    #[must_use]
    pub fn rule(&self) -> &'d Rule {
        &self.decision.rules.rules()[self.index()]
    }

    /// The rule's place in the file.
    #[must_use]
    pub fn index(&self) -> usize {
        self.entry.rule as usize
    }

    /// Whether this rule admits the request.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.entry.is_allowed()
    }

    /// Whether this rule only watches.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.entry.enforcement != Enforcement::Enforce
    }

    /// Why this rule refuses, if it does.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.entry.reason()
    }

    /// The failure policy that decided instead of the store, if one did.
    #[must_use]
    pub fn fallback(&self) -> Option<StoreFailure> {
        self.entry.fallback
    }

    /// Which sort of allowance this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.rule().budget() {
            Some(_) => Kind::Budget,
            None => Kind::Rate,
        }
    }

    /// The hashed subject; `None` if the request carries none for this rule.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        let salt = self.decision.rules.salt(self.entry.rule);
        self.entry.key.map(|key| Key::from(key).subject(salt))
    }

    /// The most that can be admitted at once; `None` if there is no bound.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.entry.verdict {
            RuleVerdict::Decided(outcome) => bounded(outcome.limit),
            RuleVerdict::Assumed(limit) | RuleVerdict::StoreFailed(_, limit) => bounded(*limit),
            RuleVerdict::Refused(_) => bounded(self.rule().limit().capacity()),
        }
    }

    /// The time in which the limit's drained allowance comes back; zero if there is no bound.
    #[must_use]
    pub fn window(&self) -> Span {
        match &self.entry.verdict {
            RuleVerdict::Refused(_) => self.rule().limit().window(),
            _ => self.entry.window,
        }
    }

    /// Whether other numbers than the rule's own decided: those of a plan, a tenant, an override, or
    /// ones that the request brought along.
    #[must_use]
    pub fn is_renumbered(&self) -> bool {
        let own = self.rule().limit();
        self.limit() != bounded(own.capacity()) || self.window() != own.window()
    }

    /// What is left; `None` if there is no bound.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        bounded(self.entry.remaining())
    }

    /// How long until the same cost would be admitted; `None` if it is, or no wait would help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        self.entry
            .retry_at()
            .map(|at| at.since(self.decision.decided_at))
    }

    /// The instant at which the whole allowance is back if nothing more is taken.
    #[must_use]
    pub fn reset_at(&self) -> Time {
        match &self.entry.verdict {
            RuleVerdict::Decided(outcome) => outcome.reset_at,
            _ => self.decision.decided_at,
        }
    }

    /// How long until the whole allowance is back if nothing more is taken.
    #[must_use]
    pub fn reset_after(&self) -> Span {
        self.reset_at().since(self.decision.decided_at)
    }

    /// How long the request has to wait for its turn.
    #[must_use]
    pub fn delay(&self) -> Span {
        match &self.entry.verdict {
            RuleVerdict::Decided(Outcome {
                admission: Admission::Allowed { delay },
                ..
            }) => *delay,
            _ => Span::ZERO,
        }
    }
}

/// Why a limit refuses, if it does.
pub(crate) fn reason_of(outcome: &Outcome) -> Option<Reason> {
    match outcome.admission {
        Admission::Allowed { .. } => None,
        Admission::Denied(Denial::Until(_)) => Some(Reason::Exceeded),
        Admission::Denied(Denial::QueueFull(_)) => Some(Reason::QueueFull),
        Admission::Denied(Denial::Never) => Some(Reason::NeverFits),
    }
}

/// The amount, unless it stands for no bound.
pub(crate) fn bounded(amount: u64) -> Option<u64> {
    (amount != Outcome::UNLIMITED).then_some(amount)
}
