//! A validated rule: numbers that fit, names that are well formed, expressions that type-check.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Algorithm, CarryOver, Enforcement, Limit, Rate};

use crate::document::words;
use crate::expr::Expr;
use crate::limits::Counting;
use crate::pattern::Pattern;
use crate::period::Every;
use crate::placement::Placement;
use crate::share::{Overdraft, Share};

words! {
    /// What to do with a request that lacks an attribute the rule needs.
    pub enum Missing is "`skip` or `deny`" {
        /// The rule does not apply.
        Skip = "skip",
        /// The request is refused.
        Deny = "deny",
    }
}

words! {
    /// Whether a rule is enforced.
    pub enum RuleState is "a state" {
        /// It may refuse.
        Enforce = "enforce",
        /// It is evaluated and charged, and never refuses.
        Shadow = "shadow",
        /// It is not looked at.
        Disabled = "disabled",
    }
}

words! {
    /// What to do when the store cannot be reached.
    pub enum FailurePolicy is "a failure policy" {
        /// The request is allowed.
        FailOpen = "fail-open",
        /// The request is refused.
        FailClosed = "fail-closed",
        /// It is counted in the memory of this instance, against limit / replicas x factor.
        LocalFallback = "local-fallback",
        /// It is allowed, and the answer says so: the caller can shed optional work.
        Degraded = "degraded",
        /// It is counted in the memory of this instance, from the last known state of the subject on.
        Cached = "cached",
        /// A coarse cap of this instance decides: the rule's [`emergency_limit`](Rule::emergency_limit),
        /// for all its subjects together.
        EmergencyLimit = "emergency-limit",
    }
}

words! {
    /// Whether what is used is kept in the ledger.
    pub enum Durability is "a durability" {
        /// It is written soon after: a crash may lose what was used within the flush interval.
        Async = "async",
        /// It is written before the answer.
        Strict = "strict",
        /// It is not.
        None = "none",
    }
}

/// A rule of a config.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Arc<str>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) when: Option<Arc<Expr>>,
    pub(crate) per: Vec<String>,
    pub(crate) missing: Missing,
    /// The rule's own, or its budget's.
    pub(crate) counting: Counting,
    pub(crate) budget: Option<Arc<str>>,
    pub(crate) limit_from: Option<LimitFrom>,
    pub(crate) candidate_of: Option<Arc<str>>,
    pub(crate) cost: Cost,
    pub(crate) charge_denied: bool,
    pub(crate) carry_over: CarryOver,
    pub(crate) durability: Durability,
    /// Whether that is `async` where there is a ledger, as nothing else is said.
    pub(crate) durable_by_default: bool,
    /// As it is written.
    pub(crate) overdraft: Option<Overdraft>,
    /// How refusals lengthen the wait.
    pub(crate) backoff: Option<Limit>,
    pub(crate) on_store_failure: Option<FailurePolicy>,
    pub(crate) emergency_limit: Option<Rate>,
    pub(crate) placement: Placement,
    pub(crate) state: RuleState,
    /// Hundredths of a percent.
    pub(crate) rollout: u16,
    pub(crate) message: Option<String>,
    pub(crate) subject_type: String,
}

/// The values of one attribute that a rule accepts.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: String,
    pub(crate) accepted: Arc<[Pattern]>,
}

/// What a request costs under a rule.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    Fixed(u64),
    Expr(Arc<Expr>),
    Table(Arc<CostTable>),
}

/// What requests cost, by which they are.
#[derive(Debug)]
pub(crate) struct CostTable {
    /// The first whose conditions hold says the cost.
    pub(crate) rows: Vec<(Vec<Condition>, Cost)>,
    pub(crate) otherwise: Cost,
}

/// An attribute that brings the limit along.
#[derive(Clone, Debug)]
pub(crate) struct LimitFrom {
    pub(crate) attribute: String,
    pub(crate) ceiling: Ceiling,
}

/// The most that an attribute may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ceiling {
    /// In the rule's window.
    Amount(u64),
    Rate(Rate),
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ceiling::Amount(amount) => amount.fmt(f),
            Ceiling::Rate(rate) => rate.fmt(f),
        }
    }
}

impl Rule {
    /// The name of the rule, unique in its config.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name, to keep.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// The numbers, where no plan, tenant, request or override says otherwise.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.counting.limit
    }

    /// How it counts, in words: `gcra: 10 at once, all back in 10h`.
    #[must_use]
    pub fn summary(&self) -> String {
        let name = self.algorithm().name();
        match self.limit() {
            Limit::Unlimited(_) => format!("{name}: unlimited"),
            Limit::Quota(quota) => {
                let (count, unit) = quota.calendar().unit();
                let (limit, every) = (quota.limit(), Every { count, unit });
                match quota.grace() {
                    0 => format!("{name}: {limit} in each {every}"),
                    grace => {
                        format!("{name}: {limit} in each {every}, and {grace} more with a warning")
                    }
                }
            }
            Limit::Concurrency(slots) => {
                let (limit, lease) = (slots.limit(), slots.lease());
                format!("{name}: {limit} at once, each held for {lease} unless renewed")
            }
            limit => {
                let (capacity, window) = (limit.capacity(), limit.window());
                format!("{name}: {capacity} at once, all back in {window}")
            }
        }
    }

    /// The budget that it draws on, if it does.
    #[must_use]
    pub fn budget(&self) -> Option<&str> {
        self.budget.as_deref()
    }

    /// The rule that it may take the place of, if it is a candidate.
    #[must_use]
    pub fn candidate_of(&self) -> Option<&str> {
        self.candidate_of.as_deref()
    }

    /// The name that its numbers and its state go by: its budget's, or its own.
    #[must_use]
    pub fn allowance(&self) -> &Arc<str> {
        self.budget.as_ref().unwrap_or(&self.id)
    }

    /// How it counts.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.counting.limit.algorithm()
    }

    /// The attributes that make its subject, as written; empty for one allowance for all.
    #[must_use]
    pub fn per(&self) -> &[String] {
        &self.per
    }

    /// What kind of subject it limits: the names of [`per`](Rule::per) joined with `+`, or `global`.
    #[must_use]
    pub fn subject_type(&self) -> &str {
        &self.subject_type
    }

    /// What it does with a request that lacks an attribute it needs.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// Whether it may refuse. A disabled rule never gets that far.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        match self.state {
            _ if self.candidate_of.is_some() => Enforcement::Shadow,
            RuleState::Shadow => Enforcement::Shadow,
            RuleState::Enforce | RuleState::Disabled => Enforcement::Enforce,
        }
    }

    /// Whether it is enforced, observed or off.
    #[must_use]
    pub fn state(&self) -> RuleState {
        self.state
    }

    /// Whether refused requests are charged too.
    #[must_use]
    pub fn charge_denied(&self) -> bool {
        self.charge_denied
    }

    /// How its refusals lengthen the wait, if they do.
    #[must_use]
    pub fn backoff(&self) -> Option<&Limit> {
        self.backoff.as_ref()
    }

    /// What becomes of counts when its numbers change.
    #[must_use]
    pub fn carry_over(&self) -> CarryOver {
        self.carry_over
    }

    /// Whether what is used is kept in the ledger: its own word, or its budget's.
    ///
    /// A reload cannot open a ledger: the config in force says whether there is one.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// How far below nothing the allowance may go when a reservation is settled for more than it held.
    pub(crate) fn overdraft(&self) -> Overdraft {
        self.overdraft.unwrap_or(match self.algorithm() {
            // What was used was used.
            Algorithm::Quota => Overdraft::Unlimited,
            _ => Overdraft::Most(Share::NOTHING),
        })
    }

    /// What to do when the store cannot be reached, if the config says.
    #[must_use]
    pub fn on_store_failure(&self) -> Option<FailurePolicy> {
        self.on_store_failure
    }

    /// The most that one instance allows while the store cannot be reached, all subjects together:
    /// given exactly with [`FailurePolicy::EmergencyLimit`].
    #[must_use]
    pub fn emergency_limit(&self) -> Option<Rate> {
        self.emergency_limit
    }

    /// Which of its keys share a place of a cluster.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// For what share of the subjects it is on, in hundredths of a percent.
    #[must_use]
    pub fn rollout(&self) -> u16 {
        self.rollout
    }

    /// What to tell a client that it refuses.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}
