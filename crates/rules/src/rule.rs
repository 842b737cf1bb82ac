//! A validated rule: its numbers fit, its names are well formed, and its expressions type-check.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Algorithm, CarryOver, Enforcement, Limit, Rate, Span, StoreId};

use crate::adaptation::Adaptation;
use crate::denial_body::DenialBody;
use crate::document::words;
use crate::expr::Expr;
use crate::limits::Counting;
use crate::mode::ModeName;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::raw::RawAlgorithm;
use crate::share::{Overdraft, Share};
use crate::waiting::Waiting;

/// The longest delay of a denial. Doors answer a request within 10 seconds.
pub const MAX_DENIAL_DELAY: Span = Span::from_secs(5);

words! {
    /// How to treat a request that lacks an attribute the rule needs.
    pub enum Missing is "`skip` or `deny`" {
        /// The rule does not apply.
        Skip = "skip",
        /// The request is denied.
        Deny = "deny",
    }
}

words! {
    /// Whether a rule is enforced.
    pub enum RuleState is "a state" {
        /// The rule may deny.
        Enforce = "enforce",
        /// The rule is evaluated and charged, and never denies.
        Shadow = "shadow",
        /// The rule is ignored.
        Disabled = "disabled",
    }
}

words! {
    /// How to decide when the store fails.
    pub enum FailurePolicy is "a failure policy" {
        /// The request is allowed.
        FailOpen = "fail-open",
        /// The request is denied.
        FailClosed = "fail-closed",
        /// The request is counted in the memory of this instance, against limit / replicas x factor.
        LocalFallback = "local-fallback",
        /// The request is allowed, and the answer says so: the caller can shed optional work.
        Degraded = "degraded",
        /// The request is counted in the memory of this instance, starting from the last known state of the
        /// subject.
        Cached = "cached",
        /// A coarse cap per instance decides: the rule's [`emergency_limit`](Rule::emergency_limit),
        /// for all its subjects together.
        EmergencyLimit = "emergency-limit",
    }
}

words! {
    /// Whether usage is recorded in the ledger.
    pub enum Durability is "a durability" {
        /// Usage is written soon after the answer: a crash may lose the usage of one flush interval.
        Async = "async",
        /// Usage is written before the answer.
        Strict = "strict",
        /// Usage is not recorded.
        None = "none",
    }
}

words! {
    /// Which denials of a rule are in the log and in the journal of denials.
    pub enum LogDenials is "`sampled` or `all`" {
        /// Up to a number per second.
        Sampled = "sampled",
        /// All of them.
        All = "all",
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
    /// The counting of the rule itself, or of its budget.
    pub(crate) counting: Counting,
    pub(crate) budget: Option<Arc<str>>,
    pub(crate) limit_from: Option<LimitFrom>,
    pub(crate) candidate_of: Option<Arc<str>>,
    pub(crate) cost: Cost,
    pub(crate) charge_denied: bool,
    pub(crate) carry_over: CarryOver,
    pub(crate) durability: Durability,
    /// Whether the text leaves `durability` out, so that it is `async` if there is a ledger.
    pub(crate) durable_by_default: bool,
    /// As written; `None` if the text leaves `overdraft` out.
    pub(crate) overdraft: Option<Overdraft>,
    /// As written; `None` if the text leaves `max_lease` out.
    pub(crate) max_lease: Option<Span>,
    pub(crate) adaptive: Option<Adaptation>,
    /// The back-off, if the rule has one.
    pub(crate) backoff: Option<Limit>,
    pub(crate) on_store_failure: Option<FailurePolicy>,
    pub(crate) emergency_limit: Option<Rate>,
    pub(crate) placement: Placement,
    pub(crate) store: RuleStore,
    pub(crate) state: RuleState,
    /// The share of subjects, in hundredths of a percent.
    pub(crate) rollout: u16,
    pub(crate) message: Option<String>,
    pub(crate) denial_body: Option<Arc<DenialBody>>,
    pub(crate) delay_denials: Span,
    pub(crate) log_denials: LogDenials,
    pub(crate) subject_type: String,
}

/// The store that keeps the state of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuleStore {
    /// The store of the config's `store` section.
    #[default]
    Default,
    /// The memory of this instance. Its rules are decided before those of any other store.
    Local,
    /// The store with this name, from the config's `stores` section.
    Named(Arc<str>),
}

impl RuleStore {
    /// Returns the id of the store, as charges carry it.
    #[must_use]
    pub fn id(&self) -> StoreId {
        match self {
            RuleStore::Default => StoreId::DEFAULT,
            RuleStore::Local => StoreId::LOCAL,
            RuleStore::Named(name) => StoreId::named(name),
        }
    }

    /// Returns the name as rules write it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            RuleStore::Default => DEFAULT_STORE,
            RuleStore::Local => LOCAL_STORE,
            RuleStore::Named(name) => name,
        }
    }
}

/// The name of the store of the config's `store` section.
pub const DEFAULT_STORE: &str = "default";
/// The name of the store in the memory of this instance.
pub const LOCAL_STORE: &str = "local";

/// The values of one attribute that a rule accepts.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: String,
    pub(crate) accepted: Arc<[Pattern]>,
}

/// The cost of a request under a rule.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    Fixed(u64),
    Expr(Arc<Expr>),
    Table(Arc<CostTable>),
}

/// The costs of requests by their attributes.
#[derive(Debug)]
pub(crate) struct CostTable {
    /// The first row whose conditions hold sets the cost.
    pub(crate) rows: Vec<(Vec<Condition>, Cost)>,
    pub(crate) otherwise: Cost,
}

/// An attribute that brings the limit of a request.
#[derive(Clone, Debug)]
pub(crate) struct LimitFrom {
    pub(crate) attribute: String,
    pub(crate) ceiling: Ceiling,
}

/// The most that an attribute may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// An amount in the rule's window.
    Amount(u64),
    /// A rate, for algorithms that have one.
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

    /// Returns an owned handle to the name.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// The limit in the config. A plan, a tenant, a request or an override may change it.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.counting.limit
    }

    /// The attribute in which a request may bring a limit (`limit_from`), if there is one.
    #[must_use]
    pub fn limit_attribute(&self) -> Option<&str> {
        self.limit_from.as_ref().map(|from| from.attribute.as_str())
    }

    /// The budget that the rule draws on, if there is one.
    #[must_use]
    pub fn budget(&self) -> Option<&str> {
        self.budget.as_deref()
    }

    /// The rule that this rule may replace, if this rule is a candidate.
    #[must_use]
    pub fn candidate_of(&self) -> Option<&str> {
        self.candidate_of.as_deref()
    }

    /// The name under which numbers and state are kept: the name of the budget, or the id of the rule.
    #[must_use]
    pub fn allowance(&self) -> &Arc<str> {
        self.budget.as_ref().unwrap_or(&self.id)
    }

    /// How the rule counts.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.counting.limit.algorithm()
    }

    /// The attributes that make the subject, as written. Empty if all requests share one allowance.
    #[must_use]
    pub fn per(&self) -> &[String] {
        &self.per
    }

    /// The type of subject that the rule limits: the names of [`per`](Rule::per) joined with `+`, or `global`.
    #[must_use]
    pub fn subject_type(&self) -> &str {
        &self.subject_type
    }

    /// How the rule treats a request that lacks an attribute it needs.
    #[must_use]
    pub fn missing(&self) -> Missing {
        self.missing
    }

    /// Whether the rule may deny. The answer has no meaning for a disabled rule.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        match self.state {
            _ if self.candidate_of.is_some() => Enforcement::Shadow,
            RuleState::Shadow => Enforcement::Shadow,
            RuleState::Enforce | RuleState::Disabled => Enforcement::Enforce,
        }
    }

    /// Whether the rule is enforced, only observed, or off.
    #[must_use]
    pub fn state(&self) -> RuleState {
        self.state
    }

    /// The cost of one unit, if it is the same for all requests.
    #[must_use]
    pub fn fixed_cost(&self) -> Option<u64> {
        match self.cost {
            Cost::Fixed(cost) => Some(cost),
            Cost::Expr(_) | Cost::Table(_) => None,
        }
    }

    /// Whether denied requests are charged too.
    #[must_use]
    pub fn charge_denied(&self) -> bool {
        self.charge_denied
    }

    /// The back-off of the rule, if it has one.
    #[must_use]
    pub fn backoff(&self) -> Option<&Limit> {
        self.backoff.as_ref()
    }

    /// How counts carry over when the rule's numbers change.
    #[must_use]
    pub fn carry_over(&self) -> CarryOver {
        self.carry_over
    }

    /// How long a request may wait for its turn under the rule, and how many may wait; `None` if none may. A
    /// rule that shapes is not among these: it admits a request first, and tells it how long to wait.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        let numbers = &self.counting.numbers;
        match (&numbers.fair, self.counting.algorithm) {
            (_, RawAlgorithm::LeakyBucket) => None,
            (Some(fair), _) => Waiting::of(fair.max_wait, fair.max_waiting),
            (None, _) => Waiting::of(numbers.max_wait, numbers.max_waiting),
        }
    }

    /// Where the rule's requests are decided, as the config says. An override may set another mode.
    #[must_use]
    pub fn mode(&self) -> ModeName {
        self.counting.modes.name
    }

    /// How usage is recorded, if a ledger is open. The rule or its budget sets this.
    ///
    /// A reload cannot open a ledger. So a rule may say `async` or `strict` while no ledger is open.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// How far the allowance may be overdrawn when a reservation is settled for more than it held.
    pub(crate) fn overdraft(&self) -> Overdraft {
        self.overdraft.unwrap_or(match self.algorithm() {
            // Usage that has happened is always charged to a quota.
            Algorithm::Quota => Overdraft::Unlimited,
            _ => Overdraft::Most(Share::NOTHING),
        })
    }

    /// The longest time that a client may ask for when it takes or renews a slot; `None` if that is the
    /// lease.
    #[must_use]
    pub fn max_lease(&self) -> Option<Span> {
        self.max_lease
    }

    /// How the limit follows the latency that clients report; `None` if it does not.
    #[must_use]
    pub fn adaptive(&self) -> Option<Adaptation> {
        self.adaptive
    }

    /// How to decide when the store fails; `None` if the rule does not say.
    #[must_use]
    pub fn on_store_failure(&self) -> Option<FailurePolicy> {
        self.on_store_failure
    }

    /// The most that one instance allows while the store fails, for all subjects together. Only a rule
    /// with [`FailurePolicy::EmergencyLimit`] has this limit, and such a rule always has it.
    #[must_use]
    pub fn emergency_limit(&self) -> Option<Rate> {
        self.emergency_limit
    }

    /// The store that keeps the rule's state.
    #[must_use]
    pub fn store(&self) -> &RuleStore {
        &self.store
    }

    /// Which keys of the rule share a cluster slot.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The share of subjects that the rule applies to, in hundredths of a percent.
    #[must_use]
    pub fn rollout(&self) -> u16 {
        self.rollout
    }

    /// Which denials of the rule are in the log and in the journal of denials.
    #[must_use]
    pub fn log_denials(&self) -> LogDenials {
        self.log_denials
    }

    /// The message for a client that the rule denies.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The template for the body of a denial by the rule, if it has one of its own.
    #[must_use]
    pub fn denial_body(&self) -> Option<&Arc<DenialBody>> {
        self.denial_body.as_ref()
    }

    /// How long a denial by the rule is held back before it is answered; zero if it is not.
    #[must_use]
    pub fn delay_denials(&self) -> Span {
        self.delay_denials
    }
}
