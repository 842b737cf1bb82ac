//! The bodies of JSON answers in the minimal form: the fewest fields with which a client can act.

use serde::Serialize;
use tollgate::{Decision, RuleDecision, Span, Time};
use utoipa::ToSchema;

use super::answers::codes;
use super::denial::denial_code;

/// A decision in the minimal form: the figures of the rule that the full form describes too. A field without
/// a value is left out.
#[derive(Serialize, ToSchema)]
#[schema(as = MinimalDecision)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MinimalDecisionBody {
    allowed: bool,
    /// Denials only, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = codes, required = false)]
    code: Option<&'static str>,
    /// The most units that are allowed at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<u64>,
    /// The units left under the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    remaining: Option<u64>,
    /// How long until the same request would be allowed, rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_millis: Option<u64>,
    /// When the whole limit is available again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reset_at_epoch_millis: Option<u64>,
    /// Only with shaping: wait this long before you proceed. The longest delay of all rules.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    delay_millis: u64,
    /// How many units were charged.
    granted: u64,
    /// Only if a rule with `on_store_failure: degraded` allowed the request. Skip optional work then.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    degraded: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde passes a reference.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde passes a reference.
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl MinimalDecisionBody {
    pub(super) fn new(decision: &Decision) -> MinimalDecisionBody {
        let rule = decision.rule();
        let rule = rule.as_ref();
        let retry_after = decision.retry_after();
        let reset_at = rule.and_then(RuleDecision::reset_at);
        MinimalDecisionBody {
            allowed: decision.is_allowed(),
            code: denial_code(decision),
            limit: rule.and_then(RuleDecision::limit),
            remaining: rule.and_then(RuleDecision::remaining),
            retry_after_millis: retry_after.map(Span::as_millis_ceil),
            reset_at_epoch_millis: reset_at.map(Time::as_millis_ceil),
            delay_millis: decision.delay().as_millis_ceil(),
            granted: decision.granted(),
            degraded: decision.is_degraded(),
        }
    }
}

/// A decision in the minimal form for each request of a batch, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = MinimalDecisions)]
pub(crate) struct MinimalDecisionsBody {
    decisions: Vec<MinimalDecisionBody>,
}

impl MinimalDecisionsBody {
    pub(super) fn new(decisions: &[Decision]) -> MinimalDecisionsBody {
        MinimalDecisionsBody {
            decisions: decisions.iter().map(MinimalDecisionBody::new).collect(),
        }
    }
}
