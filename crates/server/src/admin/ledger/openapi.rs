//! The ledger in the OpenAPI document of the admin door.

use serde_json::json;
use tollgate_config::Role;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathsBuilder};
use utoipa::openapi::schema::ComponentsBuilder;
use utoipa::openapi::{ContentBuilder, ResponseBuilder};

use super::post::{Direction, DriftBody, PostBody, ReconcileBody, ReconciledBody, StandingBody};
use super::query::{MOST_ROWS, ROWS};
use super::rows::{EntryBody, Total};
use super::{LedgerEntries, LedgerStatus, LedgerUsages};
use crate::admin::openapi::guarded;
use crate::describe::{Describe, answer, error, item, looking, number_schema, taking, text_schema};

/// Adds the paths.
pub(in crate::admin) fn paths(paths: PathsBuilder) -> PathsBuilder {
    let (get, post) = (|| HttpMethod::Get, || HttpMethod::Post);
    paths
        .path("/v1/ledger", item(get(), guarded(status(), Role::Read)))
        .path(
            "/v1/ledger/usage",
            item(get(), guarded(usage(), Role::Read)),
        )
        .path(
            "/v1/ledger/entries",
            item(get(), guarded(entries(), Role::Read)),
        )
        .path(
            "/v1/ledger/reconcile",
            item(post(), guarded(reconcile(), Role::Read)),
        )
        .path(
            "/v1/ledger/corrections",
            item(
                post(),
                guarded(
                    posting("correct", "Corrects what is used, in this period."),
                    Role::Operate,
                ),
            ),
        )
        .path(
            "/v1/ledger/grants",
            item(
                post(),
                guarded(
                    posting("grant", "Grants more to use, in this period."),
                    Role::Operate,
                ),
            ),
        )
}

/// Adds the schemas of the bodies.
pub(in crate::admin) fn components(components: ComponentsBuilder) -> ComponentsBuilder {
    components
        .schema_from::<LedgerStatus>()
        .schema_from::<LedgerUsages>()
        .schema_from::<Total>()
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
    let operation = looking("ledger")
        .summary(Some("The status of the ledger."))
        .ok::<LedgerStatus>("Where the ledger is, and how far it is behind.");
    operation.response("409", no_ledger())
}

fn usage() -> OperationBuilder {
    let operation = looking("ledgerUsage").summary(Some("What was used, by tenant and period."));
    let operation = exported(
        operation,
        answer::<LedgerUsages>("Totals, at most `limit`.", None),
    );
    asked(
        operation,
        &[
            ("tenant", "Only of this tenant."),
            ("action", "Only by this action."),
            ("rule", "Only under this rule."),
            ("period", PERIOD),
            ("format", FORMAT),
        ],
    )
}

fn entries() -> OperationBuilder {
    let operation = looking("ledgerEntries").summary(Some("The entries of the ledger."));
    let operation = exported(
        operation,
        answer::<LedgerEntries>("A page of entries.", None),
    );
    asked(
        operation,
        &[
            ("tenant", "Only of this tenant."),
            ("period", PERIOD),
            ("after", "The `next` of the page before."),
            ("format", FORMAT),
        ],
    )
}

fn posting(id: &str, summary: &str) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme", "action": "search"}, "rule": "monthly", "amount": 50,
        "reason": "counted twice on Monday", "idempotencyKey": "ticket-4711",
    });
    taking::<PostBody<'_>>(id, example)
        .summary(Some(summary))
        .ok::<StandingBody>("How the counter stands now.")
        .fails(
            "404",
            "NO_SUCH_COUNTER",
            "No rule of that name with a ledger applies to the attributes.",
        )
        .fails(
            "409",
            "POSTING_CONFLICT",
            "A different posting has this key; or the config has no `ledger` (`NO_LEDGER`).",
        )
        .response("503", unavailable())
}

fn reconcile() -> OperationBuilder {
    taking::<ReconcileBody>("reconcile", json!({"tenant": "acme", "repair": "none"}))
        .summary(Some(
            "Compares the counters of the store with the ledger. A repair needs the `operate` role.",
        ))
        .ok::<ReconciledBody>("What differs.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

const PERIOD: &str = "A year, month, week or day, such as `2026`, `2026-07`, `2026-W29` or `2026-07-15`. It selects periods that start in it, in their own time zone. `current`, the default, selects the current periods.";
const FORMAT: &str = "`json` for a page, `csv` or `jsonl` for everything.";

/// The parameters of a query, and the response to wrong ones.
fn asked(operation: OperationBuilder, parameters: &[(&str, &str)]) -> OperationBuilder {
    let limit = number_schema(1)
        .maximum(Some(MOST_ROWS))
        .default(Some(ROWS.into()));
    let texts = parameters.iter();
    texts
        .fold(operation, |operation, (name, description)| {
            operation.query(name, description, text_schema())
        })
        .query("limit", "The most rows of a page.", limit)
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .response("409", no_ledger())
        .response("503", unavailable())
}

/// A response that is also available in other formats.
fn exported(operation: OperationBuilder, response: ResponseBuilder) -> OperationBuilder {
    let text = || ContentBuilder::new().schema(Some(text_schema())).build();
    let response = response
        .content("text/csv", text())
        .content("application/x-ndjson", text());
    operation.response("200", response)
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
