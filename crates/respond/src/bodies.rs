//! The bodies of denials. Each type is both what is serialised and what an OpenAPI document describes.

use std::borrow::Cow;

use serde::Serialize;
use tollgate::{Decision, RuleDecision, Span, Time};

use crate::denial::denial;
#[cfg(feature = "openapi")]
use crate::schema::{codes, kinds_or_null};

/// A denial for a client: the fields of the denying rule, without its subject.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Verdict))]
#[serde(rename_all = "camelCase")]
pub struct VerdictBody<'a> {
    allowed: bool,
    #[cfg_attr(feature = "openapi", schema(schema_with = codes))]
    code: &'static str,
    message: Cow<'a, str>,
    /// Null if the client is blocked.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    rule_id: Option<&'a str>,
    #[cfg_attr(feature = "openapi", schema(schema_with = kinds_or_null, required = true))]
    kind: Option<&'static str>,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    limit: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    remaining: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    retry_after_millis: Option<u64>,
    #[cfg_attr(feature = "openapi", schema(required = true))]
    reset_at_epoch_millis: Option<u64>,
}

impl<'a> VerdictBody<'a> {
    /// Returns `None` if neither a rule nor a block denies.
    #[must_use]
    pub fn new(decision: &'a Decision) -> Option<VerdictBody<'a>> {
        let (code, message) = denial(decision)?;
        let rule = decision.rule();
        let rule = rule.as_ref();
        let reset_at = rule.and_then(RuleDecision::reset_at);
        Some(VerdictBody {
            allowed: decision.is_allowed(),
            code,
            message,
            rule_id: rule.map(|it| it.rule().id()),
            kind: rule.map(|it| it.kind().name()),
            limit: rule.and_then(RuleDecision::limit),
            remaining: rule.and_then(RuleDecision::remaining),
            retry_after_millis: decision.retry_after().map(Span::as_millis_ceil),
            reset_at_epoch_millis: reset_at.map(Time::as_millis_ceil),
        })
    }
}

/// The members that make a body a problem document (RFC 9457).
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Problem))]
pub struct ProblemBody<'a> {
    /// `about:blank`.
    pub r#type: &'static str,
    /// The words of the status.
    pub title: &'static str,
    /// The status.
    pub status: u16,
    /// The same as `message`.
    pub detail: Cow<'a, str>,
}

/// Why a request got no decision.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Error))]
pub struct ErrorBody {
    /// For programs: does not change.
    #[cfg_attr(feature = "openapi", schema(example = "BAD_REQUEST"))]
    pub code: &'static str,
    /// For people: what is wrong, and how to fix it.
    pub message: String,
}

/// Two bodies as one JSON object.
#[derive(Debug, Serialize)]
pub struct Both<A: Serialize, B: Serialize> {
    /// The members that come first.
    #[serde(flatten)]
    pub first: A,
    /// The members that follow.
    #[serde(flatten)]
    pub second: B,
}
