//! A decision: yes or no, by which rule, and what to tell the caller.

use std::sync::Arc;

use tollgate_config::{FailurePolicy, Rule, RuleSet};
use tollgate_core::{Admission, Algorithm, Key, Outcome, Span, Subject, Time};
use tollgate_store::{Applied, Guarantee};

use crate::entry::{Entries, Entry, Part, RuleVerdict};

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
    guarantee: Guarantee,
}

/// Which sort of allowance a rule guards. Callers are told them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// So much per time.
    Rate,
    /// An allowance that several rules draw on.
    Budget,
    /// So much in each calendar period.
    Quota,
    /// So many at once.
    Concurrency,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Rate, Kind::Budget, Kind::Quota, Kind::Concurrency];

    /// That of a rule.
    #[must_use]
    pub fn of(rule: &Rule) -> Kind {
        match (rule.budget(), rule.algorithm()) {
            (Some(_), _) => Kind::Budget,
            (None, Algorithm::Quota) => Kind::Quota,
            (None, Algorithm::Concurrency) => Kind::Concurrency,
            (None, _) => Kind::Rate,
        }
    }

    /// The name in answers: `rate`, `budget`, `quota` or `concurrency`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Rate => "rate",
            Kind::Budget => "budget",
            Kind::Quota => "quota",
            Kind::Concurrency => "concurrency",
        }
    }
}

/// What a quota admits beyond its limit, with a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// How much that is.
    pub of: u64,
    /// What is left of it.
    pub left: u64,
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
    /// A decision that no rule has taken part in yet.
    #[inline]
    pub(crate) fn new(
        rules: &Arc<RuleSet>,
        allowed: bool,
        granted: u64,
        applied: &Applied,
    ) -> Decision {
        Decision {
            rules: Arc::clone(rules),
            allowed,
            granted: if allowed { granted } else { 0 },
            decided_at: applied.now,
            entries: Entries::new(),
            deciding: None,
            guarantee: applied.guarantee,
        }
    }

    /// Adds what the rules say, in the order of the file, and finds the one that decides.
    #[inline]
    pub(crate) fn add(&mut self, entries: impl Iterator<Item = Entry>, in_order: bool) {
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
    pub fn fallback(&self) -> Option<FailurePolicy> {
        let deciding = self.rule().and_then(|rule| rule.fallback());
        deciding.or_else(|| self.entries.iter().find_map(|entry| entry.fallback))
    }

    /// Whether the request was let through by a rule that wants the caller to leave out what is
    /// optional.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let degraded = Some(FailurePolicy::Degraded);
        self.allowed && self.entries.iter().any(|entry| entry.fallback == degraded)
    }

    /// What the caller of an admitted request is to be warned of, in words.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        let mut entries = self.entries.iter();
        let in_grace = entries.any(|entry| entry.enforces() && entry.grace().is_some());
        (self.allowed && in_grace).then_some("over quota, within grace")
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
        !self.entry.enforces()
    }

    /// Why this rule refuses, if it does.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.entry.reason()
    }

    /// The failure policy that decided instead of the store, if one did.
    #[must_use]
    pub fn fallback(&self) -> Option<FailurePolicy> {
        self.entry.fallback
    }

    /// Which sort of allowance this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::of(self.rule())
    }

    /// The hashed subject; `None` if the request carries none for this rule.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        let salt = self.decision.rules.salt(self.entry.rule);
        self.entry.key.map(|key| Key::from(key).subject(salt))
    }

    /// The most that can be admitted at once, without a quota's grace; `None` if there is no bound.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.entry.verdict {
            RuleVerdict::Denied(_) => bounded(self.rule().limit().soft_limit()),
            _ => self.entry.limit(),
        }
    }

    /// A quota's grace while it is in use: above the limit.
    #[must_use]
    pub fn grace(&self) -> Option<Grace> {
        self.entry.grace()
    }

    /// The time in which the limit's drained allowance comes back, of a quota the period in force; zero if
    /// there is no bound.
    #[must_use]
    pub fn window(&self) -> Span {
        match &self.entry.verdict {
            RuleVerdict::Denied(_) => self.rule().limit().window(),
            _ => self.entry.window,
        }
    }

    /// Whether other numbers than the rule's own decided: those of a plan, a tenant, an override, or
    /// ones that the request brought along.
    #[must_use]
    pub fn is_renumbered(&self) -> bool {
        let own = self.rule().limit();
        self.limit() != bounded(own.soft_limit()) || self.window() != own.window()
    }

    /// What is left, up to the limit; `None` if there is no bound. A quota may have more than its limit,
    /// which was carried over or granted.
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

/// The amount, unless it stands for no bound.
pub(crate) fn bounded(amount: u64) -> Option<u64> {
    (amount != Outcome::UNLIMITED).then_some(amount)
}
