//! A decision about a request: allowed or denied, by which rule, and the figures for the caller.

use std::sync::Arc;

use tollgate_config::{FailurePolicy, Override, Rule, RuleSet};
use tollgate_core::{
    Admission, Algorithm, Charge, Denial, Key, Limit, Outcome, Span, Subject, Time,
};
use tollgate_store::{Applied, Guarantee};

use crate::rule_outcome::{RuleOutcome, RuleOutcomes, RuleVerdict, Source};

/// The decision about one request.
///
/// One rule decides, and its figures are the figures of the decision. For a denied request, this is the
/// rule with the longest wait. For an allowed request, this is the rule with the least left. A blocked
/// request has no rule: it is denied before any rule.
#[derive(Clone)]
pub struct Decision {
    rules: Arc<RuleSet>,
    allowed: bool,
    granted: u64,
    decided_at: Time,
    /// How long after the decision it is answered.
    answered_after: Span,
    /// How long the request waited for its turn before it was decided.
    waited: Span,
    outcomes: RuleOutcomes,
    deciding: Option<usize>,
    guarantee: Guarantee,
    /// The block that denies the request. Then no rule was evaluated.
    block: Option<Arc<Override>>,
}

/// The kind of allowance that a rule guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An amount per time.
    Rate,
    /// An allowance that several rules draw on.
    Budget,
    /// An amount in each calendar period.
    Quota,
    /// A number of slots in use at the same time.
    Concurrency,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Rate, Kind::Budget, Kind::Quota, Kind::Concurrency];

    /// Returns the kind of a rule.
    #[must_use]
    pub fn of(rule: &Rule) -> Kind {
        match (rule.budget(), rule.algorithm()) {
            (Some(_), _) => Kind::Budget,
            (None, Algorithm::Quota) => Kind::Quota,
            (None, Algorithm::Concurrency) => Kind::Concurrency,
            (None, _) => Kind::Rate,
        }
    }

    /// Returns the kind's name in answers: `rate`, `budget`, `quota` or `concurrency`.
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

/// The amount that a quota admits beyond its limit, with a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// The whole amount.
    pub of: u64,
    /// The amount that is left.
    pub left: u64,
}

/// Why a rule or a block denies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The allowance is used up for now.
    Exceeded,
    /// Earlier denials have led to a block.
    BackedOff,
    /// The queue of a shaping rule is full, or the wait in the queue is too long.
    QueueFull,
    /// The cost is above the rule's capacity. Waiting does not help.
    NeverFits,
    /// The rule needs an attribute that the request does not carry.
    MissingAttribute,
    /// An expression of the rule cannot be evaluated for this request.
    BadExpression,
    /// The store failed, and the rule's failure policy denies.
    StoreFailed,
    /// The store failed, and the rule has no failure policy.
    StoreUnavailable,
    /// An operator has blocked a subject of the request. No rule denies for this reason.
    Blocked,
}

impl Reason {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Reason; 9] = [
        Reason::Exceeded,
        Reason::BackedOff,
        Reason::QueueFull,
        Reason::NeverFits,
        Reason::MissingAttribute,
        Reason::BadExpression,
        Reason::StoreFailed,
        Reason::StoreUnavailable,
        Reason::Blocked,
    ];

    /// Returns the reason's name in metrics and answers.
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
            Reason::Blocked => "blocked",
        }
    }
}

impl Decision {
    /// Makes an empty decision. It allows nothing until `conclude` fills it in.
    #[inline]
    pub(crate) fn new(rules: &Arc<RuleSet>) -> Decision {
        Decision {
            rules: Arc::clone(rules),
            allowed: false,
            granted: 0,
            decided_at: Time::default(),
            answered_after: Span::ZERO,
            waited: Span::ZERO,
            outcomes: RuleOutcomes::new(),
            deciding: None,
            guarantee: Guarantee::default(),
            block: None,
        }
    }

    /// Denies the request by `block`, at `now`.
    pub(crate) fn block(&mut self, block: Arc<Override>, now: Time) {
        self.decided_at = now;
        self.block = Some(block);
    }

    /// Adds the outcome of a charge of the rule at `rule`, or of its back-off.
    #[inline]
    pub(crate) fn add(&mut self, charge: &Charge<'_>, rule: u32, outcome: Outcome, now: Time) {
        self.outcomes.push(RuleOutcome::of(charge, rule, outcome));
        if let (Limit::Quota(quota), Some(added)) = (charge.limit, self.outcomes.last_mut()) {
            added.apply_period(quota, now);
        }
        if let Source::Backoff = Source::of(charge) {
            self.merge_backoff();
        }
    }

    /// Adds an outcome that does not come from the store.
    pub(crate) fn add_other(&mut self, outcome: RuleOutcome) {
        self.outcomes.push(outcome);
        if outcome.source == Source::Backoff {
            self.merge_backoff();
        }
    }

    /// Merges the outcome of a back-off, which was added last, into the outcome of its rule.
    #[cold]
    fn merge_backoff(&mut self) {
        if let Some(backoff) = self.outcomes.pop() {
            match self.outcomes.last_mut() {
                Some(rule) => rule.add_backoff(&backoff),
                None => self.outcomes.push(backoff),
            }
        }
    }

    /// Finds the rule that decides. Call this after all outcomes were added.
    #[inline]
    pub(crate) fn decide(&mut self, allowed: bool, granted: u64, applied: &Applied) {
        self.allowed = allowed;
        self.granted = if allowed { granted } else { 0 };
        self.decided_at = applied.now;
        self.guarantee = applied.guarantee;
        self.find_deciding();
    }

    #[inline]
    fn find_deciding(&mut self) {
        if !self.allowed {
            return self.find_denying();
        }
        let mut least = None;
        for (index, outcome) in self.outcomes.iter().enumerate() {
            if outcome.enforces() {
                let remaining = outcome.remaining();
                if least.is_none_or(|(_, of_least)| remaining < of_least) {
                    least = Some((index, remaining));
                }
            }
        }
        self.deciding = least.map(|(index, _)| index);
    }

    #[cold]
    fn find_denying(&mut self) {
        let outcomes = self.outcomes.iter().enumerate();
        // If several waits are equal, the first rule in the file counts.
        let denying = outcomes
            .filter(|(_, outcome)| outcome.enforces() && !outcome.is_allowed())
            .rev()
            .max_by_key(|(_, outcome)| outcome.retry_at().unwrap_or(Time::MAX));
        self.deciding = denying.map(|(index, _)| index);
    }

    /// Makes the rule at index `rule` deny the request for at least `wait` from the time of the answer, because
    /// others wait before it; with `is_full` because too many wait. Nothing was taken for the request.
    #[cfg(feature = "wait")]
    pub(crate) fn keep_out(&mut self, rule: u32, wait: Span, is_full: bool) {
        let at = self.answered_at() + wait;
        let mut outcomes = self.outcomes.iter_mut();
        if let Some(outcome) = outcomes.find(|it| it.rule == rule && it.enforces()) {
            outcome.keep_out(at, is_full);
            if !outcome.is_allowed() {
                (self.allowed, self.granted) = (false, 0);
            }
        }
        self.find_deciding();
    }

    /// Puts the outcomes into the order of the file.
    #[cold]
    pub(crate) fn sort(&mut self) {
        self.outcomes.sort_by_key(|outcome| outcome.rule);
    }

    #[inline]
    pub(crate) fn outcomes(&self) -> &[RuleOutcome] {
        &self.outcomes
    }

    /// Returns whether the request may proceed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the units that were taken: all that the request asked for, or fewer with [`Ask::UpTo`];
    /// 0 if denied.
    ///
    /// [`Ask::UpTo`]: crate::Ask::UpTo
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the time of the decision by the store's clock. Refunds need it.
    #[must_use]
    pub fn decided_at(&self) -> Time {
        self.decided_at
    }

    /// Returns how long a denial is to be held back before it is answered: the longest `delay_denials` of
    /// the rules that deny. Zero if the request is allowed, or if the store failed.
    #[must_use]
    pub fn denial_delay(&self) -> Span {
        if self.allowed {
            return Span::ZERO;
        }
        let denying = self.rules().filter(|rule| {
            let failed = matches!(
                rule.reason(),
                None | Some(Reason::StoreFailed | Reason::StoreUnavailable)
            );
            !rule.is_shadow() && !failed
        });
        let delays = denying.map(|rule| rule.rule().delay_denials());
        delays.max().unwrap_or(Span::ZERO)
    }

    /// Lets the waits of the decision count from a time that is later by `by`, because the decision was held back,
    /// or was made for an earlier time. If the retry time of a rule has passed by then, the rule leaves out what
    /// remains.
    pub fn answer_later(&mut self, by: Span) {
        self.answered_after = Span::from_micros(
            self.answered_after
                .as_micros()
                .saturating_add(by.as_micros()),
        );
    }

    /// Returns how long the request waited for its turn before it was decided (`max_wait`).
    #[must_use]
    pub fn waited(&self) -> Span {
        self.waited
    }

    /// Notes how long the request waited for its turn.
    #[cfg(feature = "wait")]
    pub(crate) fn has_waited(&mut self, waited: Span) {
        self.waited = waited;
    }

    /// Returns the time for which waits are told, by the store's clock.
    fn answered_at(&self) -> Time {
        self.decided_at + self.answered_after
    }

    /// Returns the rules that were in force when the request began.
    #[must_use]
    pub fn rule_set(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Returns the version of the rules that decided.
    #[must_use]
    pub fn config_version(&self) -> &str {
        self.rules.version()
    }

    /// Returns the block that denies the request, for operators. Its reason and its author must not be
    /// told to clients.
    #[must_use]
    pub fn blocked_by(&self) -> Option<&Override> {
        self.block.as_deref()
    }

    /// Returns why the request is denied: by a block, or by the rule that decides. `None` if the request
    /// is allowed.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match &self.block {
            Some(_) => Some(Reason::Blocked),
            None => self.rule().and_then(|rule| rule.reason()),
        }
    }

    /// Returns the rule that decides; `None` if no enforcing rule applies to the request.
    #[must_use]
    pub fn rule(&self) -> Option<RuleDecision<'_>> {
        self.deciding.and_then(|index| self.rules().nth(index))
    }

    /// Returns every rule that applies, in the order of the file, shadow rules included.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = RuleDecision<'_>> {
        self.outcomes.iter().map(|outcome| RuleDecision {
            outcome,
            decision: self,
        })
    }

    /// Returns how long to wait before the same request can be allowed: the longest wait of the rules
    /// that deny it, or the rest of a block. `None` if the request was allowed, or if waiting does not
    /// help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        match &self.block {
            Some(block) => {
                let end = Span::from_millis(block.expires_at()?);
                let now = Span::from_micros(self.decided_at.as_micros());
                Some(Span::from_micros(
                    end.as_micros().saturating_sub(now.as_micros()),
                ))
            }
            None => self.rule().and_then(|rule| rule.retry_after()),
        }
    }

    /// Returns how long an admitted request has to wait for its turn.
    #[must_use]
    pub fn delay(&self) -> Span {
        let enforcing = self.rules().filter(|rule| !rule.is_shadow());
        enforcing
            .map(|rule| rule.delay())
            .max()
            .unwrap_or(Span::ZERO)
    }

    /// Returns the failure policy that decided instead of the store. If several did, returns that of
    /// the deciding rule, or else that of the first rule with one. `None` if the store answered.
    #[must_use]
    pub fn fallback(&self) -> Option<FailurePolicy> {
        let deciding = self.rule().and_then(|rule| rule.fallback());
        deciding.or_else(|| self.outcomes.iter().find_map(|outcome| outcome.fallback))
    }

    /// Returns whether the store failed, so that failure policies decided, or a rule without a policy
    /// denied.
    #[must_use]
    pub fn store_failed(&self) -> bool {
        self.outcomes.iter().any(|outcome| {
            matches!(
                outcome.verdict,
                RuleVerdict::Assumed(_) | RuleVerdict::StoreFailed(..)
            ) || outcome.fallback.is_some()
        })
    }

    /// Returns whether a rule with the policy `degraded` allowed the request. The caller should then
    /// skip optional work.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let degraded = Some(FailurePolicy::Degraded);
        self.allowed
            && self
                .outcomes
                .iter()
                .any(|outcome| outcome.fallback == degraded)
    }

    /// Returns a warning text for the caller of an allowed request.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        let mut outcomes = self.outcomes.iter();
        let in_grace = outcomes.any(|outcome| outcome.enforces() && outcome.grace().is_some());
        (self.allowed && in_grace).then_some("over quota, within grace")
    }

    /// Returns how the charges were taken together: at one instant, or server by server.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// Returns whether a shadow rule would have denied the request.
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

/// The outcome of one rule in a decision.
#[derive(Clone, Copy)]
pub struct RuleDecision<'d> {
    outcome: &'d RuleOutcome,
    decision: &'d Decision,
}

impl std::fmt::Debug for RuleDecision<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleDecision")
            .field("rule", &self.rule().id())
            .field("allowed", &self.is_allowed())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl<'d> RuleDecision<'d> {
    /// Returns the rule.
    #[must_use]
    pub fn rule(&self) -> &'d Rule {
        &self.decision.rules.rules()[self.index()]
    }

    /// Returns the rule's index in the file.
    #[must_use]
    pub fn index(&self) -> usize {
        self.outcome.rule as usize
    }

    /// Returns whether this rule admits the request.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_allowed()
    }

    /// Returns whether this rule only counts and never denies.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        !self.outcome.enforces()
    }

    /// Returns why this rule denies the request, if it does.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.outcome.reason()
    }

    /// Returns the failure policy that decided instead of the store, if one did.
    #[must_use]
    pub fn fallback(&self) -> Option<FailurePolicy> {
        self.outcome.fallback
    }

    /// Returns the kind of allowance.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::of(self.rule())
    }

    /// Returns the key of the subject's state; `None` if the request has no subject for this rule.
    pub(crate) fn key(&self) -> Option<Key> {
        self.outcome.key.map(Key::from)
    }

    /// Returns the hashed subject; `None` if the request has none for this rule.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        let salt = self.decision.rules.salt(self.outcome.rule);
        self.outcome.key.map(|key| Key::from(key).subject(salt))
    }

    /// Returns the largest amount that can be admitted at once, without a quota's grace; `None` if
    /// unlimited.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.outcome.verdict {
            RuleVerdict::Denied(_) => bounded(self.rule().limit().soft_limit()),
            _ => self.outcome.limit(),
        }
    }

    /// Returns the grace of a quota whose usage is above its limit.
    #[must_use]
    pub fn grace(&self) -> Option<Grace> {
        self.outcome.grace()
    }

    /// Returns how long an empty allowance takes to refill. For a quota, this is the length of its
    /// current period. Zero if unlimited.
    #[must_use]
    pub fn window(&self) -> Span {
        match &self.outcome.verdict {
            RuleVerdict::Denied(_) => self.rule().limit().window(),
            _ => self.outcome.window,
        }
    }

    /// Returns whether numbers of a plan, a tenant, an override or the request itself replaced the
    /// rule's own numbers.
    #[must_use]
    pub fn is_renumbered(&self) -> bool {
        let own = self.rule().limit();
        self.limit() != bounded(own.soft_limit()) || self.window() != own.window()
    }

    /// Returns the amount that was left after the decision; `None` if unlimited, if the store was not asked
    /// or did not answer, or if the decision is answered [later](Decision::answer_later) than the retry time. A quota
    /// may have more left than its limit, if an amount was carried over or granted.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        let answered_at = self.decision.answered_at();
        let has_refilled = |at: Time| answered_at > self.decision.decided_at && at <= answered_at;
        match &self.outcome.verdict {
            _ if self.outcome.retry_at().is_some_and(has_refilled) => None,
            RuleVerdict::Decided(_) => bounded(self.outcome.remaining()),
            _ => None,
        }
    }

    /// Returns how long to wait before the same cost can be admitted. `None` if the cost was admitted,
    /// or if waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        self.outcome
            .retry_at()
            .map(|at| at.since(self.decision.answered_at()))
    }

    /// Returns when the whole allowance is back, if nothing more is taken. This is never before the retry
    /// time. `None` if the store was not asked or did not answer, or if the rule denies and waiting does not
    /// help.
    #[must_use]
    pub fn reset_at(&self) -> Option<Time> {
        match &self.outcome.verdict {
            RuleVerdict::Decided(outcome) if !never_fits(outcome) => Some(outcome.reset_at),
            _ => None,
        }
    }

    /// Returns how long until the whole allowance is back if nothing more is taken; `None` as for
    /// [`reset_at`](Self::reset_at).
    #[must_use]
    pub fn reset_after(&self) -> Option<Span> {
        self.reset_at()
            .map(|at| at.since(self.decision.answered_at()))
    }

    /// Returns how long until the current window ends: the period of a quota, or else a window that is
    /// aligned to the epoch. `None` if the store did not decide, or if the limit has no window.
    #[must_use]
    pub fn window_left(&self) -> Option<Span> {
        let RuleVerdict::Decided(outcome) = &self.outcome.verdict else {
            return None;
        };
        let now = self.decision.answered_at();
        if self.rule().algorithm() == Algorithm::Quota {
            return Some(outcome.reset_at.since(now));
        }
        let window = self.window().as_micros();
        let passed = now.as_micros().checked_rem(window)?;
        Some(Span::from_micros(window - passed))
    }

    /// Returns how long the request has to wait for its turn.
    #[must_use]
    pub fn delay(&self) -> Span {
        match &self.outcome.verdict {
            RuleVerdict::Decided(Outcome {
                admission: Admission::Allowed { delay },
                ..
            }) => *delay,
            _ => Span::ZERO,
        }
    }
}

/// Returns whether a limit denies for good: waiting does not help.
fn never_fits(outcome: &Outcome) -> bool {
    outcome.admission == Admission::Denied(Denial::Never)
}

/// Returns `None` for an unlimited amount.
pub(crate) fn bounded(amount: u64) -> Option<u64> {
    (amount != Outcome::UNLIMITED).then_some(amount)
}
