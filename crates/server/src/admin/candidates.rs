//! Candidate rules at the admin door, compared with the rules in force.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::Admin;
use crate::respond;

/// How candidates compare with the rules in force.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Compared {
    config_version: String,
    candidates: Vec<CandidateBody>,
}

/// A candidate compared with the rule in force, for the requests of one plan.
#[derive(Serialize, ToSchema)]
#[schema(as = Candidate)]
#[serde(rename_all = "camelCase")]
pub(super) struct CandidateBody {
    candidate: String,
    current: String,
    /// The plan of the clients; null if they have none.
    #[schema(required = true)]
    plan: Option<String>,
    both_allow: u64,
    both_refuse: u64,
    /// Requests that only the candidate denies.
    refuses_more: u64,
    /// Requests that only the rule in force denies.
    refuses_fewer: u64,
}

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let live = admin.control.engine().active();
    let comparisons = live.metrics().comparisons().into_iter();
    let candidates = comparisons.map(|it| CandidateBody {
        candidate: it.candidate.to_string(),
        current: it.current.to_string(),
        plan: it.plan.map(|plan| plan.to_string()),
        both_allow: it.both_allow,
        both_refuse: it.both_deny,
        refuses_more: it.denies_more,
        refuses_fewer: it.denies_fewer,
    });
    respond::report(&Compared {
        config_version: live.rules().version().to_owned(),
        candidates: candidates.collect(),
    })
}
