//! The bodies of JSON answers. Each type is both what is serialised and what the OpenAPI document
//! describes, so the two cannot differ.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use tollgate::{
    Decision, FailurePolicy, Hold, HoldState, Holder, Holders, Kind, Reason, RuleDecision, Span,
    Subject, Time,
};
use tollgate_core::Algorithm;
use tollgate_ledger::UsageRow;
pub(super) use tollgate_respond::schema::codes;
use tollgate_respond::schema::{kinds_or_null, names};
pub(crate) use tollgate_respond::{Both, ProblemBody, VerdictBody};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::denial::denial;
use crate::usage::Usage;

/// How many holders of a rule an answer lists at most.
pub(super) const MAX_LISTED: usize = 256;

/// A decision for each request of a batch, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = Decisions)]
pub(crate) struct DecisionsBody<'a> {
    decisions: Vec<DecisionBody<'a>>,
}

impl<'a> DecisionsBody<'a> {
    pub(super) fn new(decisions: &'a [Decision]) -> DecisionsBody<'a> {
        DecisionsBody {
            decisions: decisions.iter().map(DecisionBody::new).collect(),
        }
    }
}

/// A decision. Its fields describe one rule: for a denial, the rule with the longest wait;
/// otherwise the rule with the least left. These fields are null if no rule applies, or if the request is
/// blocked.
#[derive(Serialize, ToSchema)]
#[schema(as = Decision)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecisionBody<'a> {
    pub(super) allowed: bool,
    /// The code, for programs. Only in a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = codes, required = false)]
    pub(super) code: Option<&'static str>,
    /// A sentence for people. Only in a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) message: Option<Cow<'a, str>>,
    /// For people: only if the request was allowed above the limit of a quota, within its grace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) warning: Option<&'a str>,
    #[schema(required = true)]
    pub(super) rule_id: Option<&'a str>,
    #[schema(schema_with = algorithms, required = true)]
    pub(super) algorithm: Option<&'static str>,
    /// The kind of the rule: `rate`, `budget`, `quota` or `concurrency`.
    #[schema(schema_with = kinds_or_null, required = true)]
    pub(super) kind: Option<&'static str>,
    /// Why the request was denied; null if it was not.
    #[schema(schema_with = reasons, required = true)]
    pub(super) reason: Option<&'static str>,
    /// The hashed subject.
    #[schema(value_type = Option<String>, required = true, pattern = "^[0-9a-f]{32}$")]
    pub(super) subject: Option<Hex>,
    /// The most units that are allowed at once; null if unlimited.
    #[schema(required = true)]
    pub(super) limit: Option<u64>,
    /// The units left under the limit; null if unlimited, or if the store did not decide.
    #[schema(required = true)]
    pub(super) remaining: Option<u64>,
    /// How long until the same request would be allowed, rounded up. Null if it is allowed, or if
    /// waiting does not help.
    #[schema(required = true)]
    pub(super) retry_after_millis: Option<u64>,
    /// When the whole limit is available again. Null if the store did not decide, or if the request
    /// is denied and waiting does not help.
    #[schema(required = true)]
    pub(super) reset_at_epoch_millis: Option<u64>,
    /// Only with shaping: wait this long before you proceed. The longest delay of all rules.
    pub(super) delay_millis: u64,
    /// How many units were charged.
    pub(super) granted: u64,
    /// Whether a shadow rule would have denied the request.
    pub(super) shadow_denied: bool,
    /// The failure policy that decided instead of the store; null if the store decided.
    #[schema(schema_with = policies, required = true)]
    pub(super) fallback: Option<&'static str>,
    /// Whether a rule with `on_store_failure: degraded` allowed the request. If so, skip optional work.
    pub(super) degraded: bool,
    /// `atomic`, or `compensated` if the keys are in several slots of a Redis Cluster.
    #[schema(schema_with = guarantees)]
    pub(super) guarantee: &'static str,
    /// The version of the config that decided.
    pub(super) config_version: &'a str,
    /// The time of the decision, by the clock of the store. A refund repeats it.
    pub(super) decided_at_epoch_micros: u64,
    /// Every rule that applies.
    #[schema(value_type = Vec<RuleDecisionBody<'a>>)]
    pub(super) rules: RuleList<'a>,
}

impl<'a> DecisionBody<'a> {
    pub(crate) fn new(decision: &'a Decision) -> DecisionBody<'a> {
        let rule = decision.rule();
        let rule = rule.as_ref();
        let (code, message) = denial(decision).unzip();
        let retry_after = decision.retry_after();
        let reset_at = rule.and_then(RuleDecision::reset_at);
        DecisionBody {
            allowed: decision.is_allowed(),
            code,
            message,
            warning: decision.warning(),
            rule_id: rule.map(|it| it.rule().id()),
            algorithm: rule.map(|it| it.rule().algorithm().name()),
            kind: rule.map(|it| it.kind().name()),
            reason: decision.reason().map(Reason::name),
            subject: rule.and_then(RuleDecision::subject).map(Hex),
            limit: rule.and_then(RuleDecision::limit),
            remaining: rule.and_then(RuleDecision::remaining),
            retry_after_millis: retry_after.map(Span::as_millis_ceil),
            reset_at_epoch_millis: reset_at.map(Time::as_millis_ceil),
            delay_millis: decision.delay().as_millis_ceil(),
            granted: decision.granted(),
            shadow_denied: decision.shadow_denied(),
            fallback: decision.fallback().map(FailurePolicy::name),
            degraded: decision.is_degraded(),
            guarantee: decision.guarantee().name(),
            config_version: decision.config_version(),
            decided_at_epoch_micros: decision.decided_at().as_micros(),
            rules: RuleList(decision),
        }
    }
}

/// The rules of a decision. The rules are read while the answer is written, so no list is built.
/// RESP answers do not have this field.
pub(super) struct RuleList<'a>(&'a Decision);

impl<'a> RuleList<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = RuleDecisionBody<'a>> {
        self.0.rules().map(RuleDecisionBody::new)
    }
}

impl Serialize for RuleList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// One rule's part in a decision.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleDecision)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleDecisionBody<'a> {
    pub(super) rule_id: &'a str,
    pub(super) allowed: bool,
    /// Whether the rule is a shadow rule, which never denies.
    pub(super) shadow: bool,
    #[schema(schema_with = algorithms)]
    pub(super) algorithm: &'static str,
    #[schema(schema_with = kinds)]
    pub(super) kind: &'static str,
    #[schema(schema_with = reasons, required = true)]
    pub(super) reason: Option<&'static str>,
    #[schema(value_type = Option<String>, required = true, pattern = "^[0-9a-f]{32}$")]
    pub(super) subject: Option<Hex>,
    #[schema(required = true)]
    pub(super) limit: Option<u64>,
    #[schema(required = true)]
    pub(super) remaining: Option<u64>,
    #[schema(required = true)]
    pub(super) retry_after_millis: Option<u64>,
    #[schema(required = true)]
    pub(super) reset_at_epoch_millis: Option<u64>,
    /// Only if a failure policy decided instead of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = policies, required = false)]
    pub(super) fallback: Option<&'static str>,
    /// Only while the usage of a quota is above its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) grace: Option<GraceBody>,
    pub(super) delay_millis: u64,
}

impl<'a> RuleDecisionBody<'a> {
    fn new(rule: RuleDecision<'a>) -> RuleDecisionBody<'a> {
        RuleDecisionBody {
            rule_id: rule.rule().id(),
            allowed: rule.is_allowed(),
            shadow: rule.is_shadow(),
            algorithm: rule.rule().algorithm().name(),
            kind: rule.kind().name(),
            reason: rule.reason().map(Reason::name),
            subject: rule.subject().map(Hex),
            limit: rule.limit(),
            remaining: rule.remaining(),
            retry_after_millis: rule.retry_after().map(Span::as_millis_ceil),
            reset_at_epoch_millis: rule.reset_at().map(Time::as_millis_ceil),
            fallback: rule.fallback().map(FailurePolicy::name),
            grace: rule.grace().map(|grace| GraceBody {
                limit: grace.of,
                remaining: grace.left,
            }),
            delay_millis: rule.delay().as_millis_ceil(),
        }
    }
}

/// The units that a quota allows above its limit, with a warning.
#[derive(Serialize, ToSchema)]
#[schema(as = Grace)]
pub(crate) struct GraceBody {
    pub(super) limit: u64,
    pub(super) remaining: u64,
}

/// A reservation.
#[derive(Serialize, ToSchema)]
#[schema(as = Reservation)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReservationBody {
    /// The id of the reservation. `unheld` if nothing is held: no rule applies, or a failure policy
    /// allowed the request.
    pub(super) id: String,
    #[schema(schema_with = reservation_states)]
    pub(super) state: &'static str,
    /// How many units were reserved.
    pub(super) cost: u64,
    /// How many units were used, once that is known.
    #[schema(required = true)]
    pub(super) actual: Option<u64>,
    /// How many of the used units were not charged, because no overdraft allowed them.
    pub(super) uncharged: u64,
    /// When the reservation is released automatically.
    pub(super) expires_at_epoch_millis: u64,
}

impl ReservationBody {
    pub(super) fn new(hold: &Hold) -> ReservationBody {
        ReservationBody {
            id: hold.id.to_string(),
            state: reservation_state(hold.state),
            cost: hold.units,
            actual: hold.actual,
            uncharged: hold.uncharged,
            expires_at_epoch_millis: millis(hold.expires_at),
        }
    }
}

/// A lease.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseBody {
    /// The id of the lease.
    pub(super) id: String,
    #[schema(schema_with = lease_states)]
    pub(super) state: &'static str,
    /// The name of the holder, as the client gave it.
    pub(super) owner: String,
    /// Larger than the fence of every earlier lease. The protected resource can reject a late
    /// holder that shows a smaller fence.
    pub(super) fence: u64,
    /// When the slot becomes free unless the lease is renewed.
    pub(super) expires_at_epoch_millis: u64,
}

impl LeaseBody {
    pub(super) fn new(lease: &Hold) -> LeaseBody {
        LeaseBody {
            id: lease.id.to_string(),
            state: lease_state(lease.state),
            owner: lease.owner.as_ref().to_owned(),
            fence: lease.fence,
            expires_at_epoch_millis: millis(lease.expires_at),
        }
    }
}

/// The fields that only the answer to a new lease has.
#[derive(Serialize, ToSchema)]
#[schema(as = NewLease)]
pub(crate) struct NewLeaseBody {
    /// Needed to renew or release the lease.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub(super) token: String,
}

/// The holders of slots, by rule.
#[derive(Serialize, ToSchema)]
#[schema(as = Holders)]
pub(crate) struct HoldersBody {
    /// Every concurrency rule that applies.
    pub(super) rules: Vec<RuleHoldersBody>,
}

/// The holders of a rule's slots.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleHolders)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleHoldersBody {
    pub(super) rule_id: String,
    /// How many slots there are.
    pub(super) limit: u64,
    /// Whether there are more holders than listed.
    pub(super) truncated: bool,
    #[schema(max_items = 256)]
    pub(super) holders: Vec<HolderBody>,
}

/// One holder of a slot.
#[derive(Serialize, ToSchema)]
#[schema(as = Holder)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HolderBody {
    pub(super) owner: String,
    pub(super) fence: u64,
    pub(super) expires_at_epoch_millis: u64,
}

impl HoldersBody {
    pub(super) fn new(rules: &[Holders]) -> HoldersBody {
        let holder = |holder: &Holder| HolderBody {
            owner: holder.owner.as_ref().to_owned(),
            fence: holder.fence,
            expires_at_epoch_millis: millis(holder.expires_at),
        };
        let rules = rules.iter().map(|rule| RuleHoldersBody {
            rule_id: rule.rule.clone(),
            limit: rule.limit,
            truncated: rule.holders.len() > MAX_LISTED,
            holders: rule.holders.iter().take(MAX_LISTED).map(holder).collect(),
        });
        HoldersBody {
            rules: rules.collect(),
        }
    }
}

/// The usage of a tenant.
#[derive(Serialize, ToSchema)]
#[schema(as = TenantUsage)]
pub(crate) struct TenantUsageBody<'a> {
    pub(super) tenant: &'a str,
    /// Whether there are more rows. Narrow the request to see them.
    pub(super) truncated: bool,
    /// The usage, by rule, action and period.
    #[schema(max_items = 256)]
    pub(super) usage: Vec<UsageBody<'a>>,
}

/// The usage of an action under a rule in a period.
#[derive(Serialize, ToSchema)]
#[schema(as = Usage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageBody<'a> {
    pub(super) rule_id: &'a str,
    /// The allowance that was counted: the id of the rule, or of its budget.
    pub(super) allowance: &'a str,
    /// Empty if the requests had no action.
    pub(super) action: &'a str,
    pub(super) starts_at_epoch_millis: u64,
    pub(super) ends_at_epoch_millis: u64,
    /// The used and reserved units.
    pub(super) used: i64,
    /// How much of `used` is held by open reservations.
    pub(super) reserved: i64,
    /// The units granted in addition to the limit.
    pub(super) granted: i64,
    /// How much of `used` comes from corrections.
    pub(super) corrections: i64,
    pub(super) requests: u64,
}

impl<'a> TenantUsageBody<'a> {
    pub(super) fn new(usage: &'a Usage) -> TenantUsageBody<'a> {
        let rows = usage.rows.iter().map(|row: &UsageRow| UsageBody {
            rule_id: &row.rule,
            allowance: &row.allowance,
            action: &row.action,
            starts_at_epoch_millis: millis(row.period.start),
            ends_at_epoch_millis: millis(row.period.end),
            used: row.used,
            reserved: row.reserved,
            granted: row.granted,
            corrections: row.corrections,
            requests: row.requests,
        });
        TenantUsageBody {
            tenant: &usage.tenant,
            truncated: usage.is_truncated,
            usage: rows.collect(),
        }
    }
}

/// A hashed subject in hexadecimal digits.
pub(super) struct Hex(pub(super) Subject);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_hex().as_str())
    }
}

/// Returns the name of a reservation's state.
pub(super) fn reservation_state(state: HoldState) -> &'static str {
    match state {
        HoldState::Reserved => "RESERVED",
        HoldState::Consumed => "CONSUMED",
        HoldState::Released => "RELEASED",
        HoldState::Expired => "EXPIRED",
    }
}

/// Returns the name of a lease's state. A lease is never settled, so it is not consumed.
pub(super) fn lease_state(state: HoldState) -> &'static str {
    match state {
        HoldState::Reserved => "HELD",
        HoldState::Consumed | HoldState::Released => "RELEASED",
        HoldState::Expired => "EXPIRED",
    }
}

/// Converts a time into milliseconds. Rounds down, so that a client that relies on this time is not
/// late.
fn millis(time: Time) -> u64 {
    time.as_micros() / 1000
}

fn reservation_states() -> Schema {
    names(&["RESERVED", "CONSUMED", "RELEASED", "EXPIRED"], false)
}

fn lease_states() -> Schema {
    names(&["HELD", "RELEASED", "EXPIRED"], false)
}

fn kinds() -> Schema {
    names(&Kind::ALL.map(Kind::name), false)
}

fn reasons() -> Schema {
    names(&Reason::ALL.map(Reason::name), true)
}

fn algorithms() -> Schema {
    names(&Algorithm::ALL.map(Algorithm::name), true)
}

fn policies() -> Schema {
    let all = [
        FailurePolicy::FailOpen,
        FailurePolicy::FailClosed,
        FailurePolicy::LocalFallback,
        FailurePolicy::Degraded,
        FailurePolicy::Cached,
        FailurePolicy::EmergencyLimit,
    ];
    names(&all.map(FailurePolicy::name), true)
}

fn guarantees() -> Schema {
    names(&["atomic", "compensated"], false)
}
