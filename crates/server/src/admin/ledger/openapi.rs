//! The ledger in the OpenAPI document of the admin door.

use serde_json::json;
use tollgate_config::Role;
use utoipa::openapi::HttpMethod::{Get, Post};
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::schema::ComponentsBuilder;
use utoipa::openapi::{ContentBuilder, ResponseBuilder};

use super::post::{Direction, DriftBody, PostBody, ReconcileBody, ReconciledBody, StandingBody};
use super::query::{MOST_ROWS, ROWS};
use super::quotas::{BurndownBody, BurndownPoint, QuotaBody, QuotasBody};
use super::rows::{EntryBody, Total};
use super::{LedgerEntries, LedgerStatus, LedgerUsages};
use crate::admin::openapi::Guarded;
use crate::describe::{Describe, answer, error, looking, number_schema, taking, text_schema};

pub(in crate::admin) fn paths() -> [Guarded; 8] {
    let correct = posting(
        "correct",
        "Corrects the recorded usage of the current period.",
    );
    let grant = posting("grant", "Raises the limit for the current period.");
    [
        ("/v1/ledger", Get, Role::Read, status()),
        ("/v1/ledger/usage", Get, Role::Read, usage()),
        ("/v1/ledger/quotas", Get, Role::Read, quotas()),
        ("/v1/ledger/burndown", Get, Role::Read, burndown()),
        ("/v1/ledger/entries", Get, Role::Read, entries()),
        ("/v1/ledger/reconcile", Post, Role::Read, reconcile()),
        ("/v1/ledger/corrections", Post, Role::Operate, correct),
        ("/v1/ledger/grants", Post, Role::Operate, grant),
    ]
}

/// Adds the schemas of the bodies.
pub(in crate::admin) fn components(components: ComponentsBuilder) -> ComponentsBuilder {
    components
        .schema_from::<LedgerStatus>()
        .schema_from::<LedgerUsages>()
        .schema_from::<Total>()
        .schema_from::<QuotasBody>()
        .schema_from::<QuotaBody>()
        .schema_from::<BurndownBody>()
        .schema_from::<BurndownPoint>()
        .schema_from::<LedgerEntries>()
        .schema_from::<EntryBody>()
        .schema_from::<PostBody<'_>>()
        .schema_from::<StandingBody>()
        .schema_from::<ReconcileBody>()
        .schema_from::<Direction>()
        .schema_from::<ReconciledBody>()
        .schema_from::<DriftBody>()
}

fn status() -> OperationBuilder {
    looking("ledger")
        .summary(Some("The status of the ledger."))
        .ok::<LedgerStatus>("Where the ledger is, and how far it is behind.")
        .response("409", no_ledger())
}

fn usage() -> OperationBuilder {
    let summary = "The usage, by tenant and period.";
    let parameters = [
        ("tenant", "Only usage of this tenant."),
        ("action", "Only usage by this action."),
        ("rule", "Only usage under this rule."),
        ("period", PERIOD),
        ("format", FORMAT),
    ];
    let answer = answer::<LedgerUsages>("Totals, at most `limit`.", None);
    query("ledgerUsage", summary, answer, &parameters)
}

fn quotas() -> OperationBuilder {
    let limit = number_schema(1).maximum(Some(MOST_ROWS));
    let limit = limit.default(Some(ROWS.into()));
    looking("ledgerQuotas")
        .summary(Some(
            "What tenants have used and have left of their quotas and budgets, by period.",
        ))
        .query("tenant", "Only this tenant.", text_schema())
        .query("period", PERIOD, text_schema())
        .query("limit", "The most rows.", limit)
        .ok::<QuotasBody>("The quotas, at most `limit`.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

fn burndown() -> OperationBuilder {
    looking("ledgerBurndown")
        .summary(Some(
            "How a tenant used a quota during a period, with grants and corrections.",
        ))
        .query("tenant", "The tenant.", text_schema())
        .query("rule", "The rule or the budget.", text_schema())
        .query("period", PERIOD, text_schema())
        .ok::<BurndownBody>("At most 60 points. Without usage in the period, there are none.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

fn entries() -> OperationBuilder {
    let parameters = [
        ("tenant", "Only entries of this tenant."),
        ("period", PERIOD),
        ("after", "The `next` of the page before."),
        ("format", FORMAT),
    ];
    let answer = answer::<LedgerEntries>("A page of entries.", None);
    query(
        "ledgerEntries",
        "The entries of the ledger.",
        answer,
        &parameters,
    )
}

fn posting(id: &str, summary: &str) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme", "action": "search"}, "rule": "monthly", "amount": 50,
        "reason": "counted twice on Monday", "idempotencyKey": "ticket-4711",
    });
    let unknown = "No rule of that name with a ledger applies to the attributes.";
    let conflict = "A different posting has this key; or the config has no `ledger` (`NO_LEDGER`).";
    taking::<PostBody<'_>>(id, example)
        .summary(Some(summary))
        .ok::<StandingBody>("How the counter stands now.")
        .fails("404", "NO_SUCH_COUNTER", unknown)
        .fails("409", "POSTING_CONFLICT", conflict)
        .response("503", unavailable())
}

fn reconcile() -> OperationBuilder {
    let summary =
        "Compares the counters of the store with the ledger. A repair needs the `operate` role.";
    taking::<ReconcileBody>("reconcile", json!({"tenant": "acme", "repair": "none"}))
        .summary(Some(summary))
        .ok::<ReconciledBody>("The counters that differ.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

const PERIOD: &str = "A year, month, week or day, such as `2026`, `2026-07`, `2026-W29` or `2026-07-15`. It selects periods that start in it, in their own time zone. `current`, the default, selects the current periods.";
const FORMAT: &str = "`json` for a page, `csv` or `jsonl` for everything.";

/// Returns an operation with text parameters. Its response is also available in other formats.
fn query(
    id: &str,
    summary: &str,
    answer: ResponseBuilder,
    parameters: &[(&str, &str)],
) -> OperationBuilder {
    let text = || ContentBuilder::new().schema(Some(text_schema())).build();
    let answer = answer
        .content("text/csv", text())
        .content("application/x-ndjson", text());
    let limit = number_schema(1).maximum(Some(MOST_ROWS));
    let limit = limit.default(Some(ROWS.into()));
    let operation = looking(id).summary(Some(summary)).response("200", answer);
    parameters
        .iter()
        .fold(operation, |operation, (name, description)| {
            operation.query(name, description, text_schema())
        })
        .query("limit", "The most rows of a page.", limit)
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

fn no_ledger() -> utoipa::openapi::Response {
    error("NO_LEDGER", "The config has no `ledger`.")
}

fn unavailable() -> utoipa::openapi::Response {
    error(
        "LEDGER_UNAVAILABLE",
        "The ledger or the store does not answer, or too many large queries are running (`LEDGER_BUSY`).",
    )
}
