//! The books in the description of the admin door.

use serde_json::json;
use tollgate_config::Role;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathsBuilder,
};
use utoipa::openapi::schema::{ComponentsBuilder, ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Required, ResponseBuilder};

use super::post::{Direction, DriftBody, PostBody, ReconcileBody, ReconciledBody, StandingBody};
use super::query::{MOST_ROWS, ROWS};
use super::rows::{EntryBody, Total};
use super::{LedgerEntries, LedgerStatus, LedgerUsages};
use crate::admin::openapi::guarded;
use crate::describe::{answer, error, item, looking, taking};

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
                    posting("correct", "Sets right what is used, in this period."),
                    Role::Operate,
                ),
            ),
        )
        .path(
            "/v1/ledger/grants",
            item(
                post(),
                guarded(
                    posting("grant", "Gives more to use, in this period."),
                    Role::Operate,
                ),
            ),
        )
}

/// Adds what their bodies look like.
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
        .summary(Some("How the ledger is."))
        .response(
            "200",
            answer::<LedgerStatus>("Where it is, and how far behind.", None),
        );
    operation.response("409", no_ledger())
}

fn usage() -> OperationBuilder {
    let operation = looking("ledgerUsage").summary(Some("What was used, by tenant and period."));
    let operation = exported(
        operation,
        answer::<LedgerUsages>("Totals, as many as `limit`.", None),
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
    let operation = exported(operation, answer::<LedgerEntries>("A page of them.", None));
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
        .response(
            "200",
            answer::<StandingBody>("How the counter stands now.", None),
        )
        .response(
            "404",
            error(
                "NO_SUCH_COUNTER",
                "No ledgered rule of that name applies to the attributes.",
            ),
        )
        .response(
            "409",
            error(
                "POSTING_CONFLICT",
                "Something else was posted under this key; or the config has no `ledger` (`NO_LEDGER`).",
            ),
        )
        .response("503", unavailable())
}

fn reconcile() -> OperationBuilder {
    taking::<ReconcileBody>("reconcile", json!({"tenant": "acme", "repair": "none"}))
        .summary(Some(
            "Compares the counters of the store with the ledger. To repair wants the role operate.",
        ))
        .response("200", answer::<ReconciledBody>("What differs.", None))
        .response("409", no_ledger())
        .response("503", unavailable())
}

const PERIOD: &str = "A year, month, week or day, as `2026`, `2026-07`, `2026-W29`, `2026-07-15`: \
                      periods that start in it by their own clocks. Or `current`, which it is unless given.";
const FORMAT: &str = "`json` for a page, `csv` or `jsonl` for everything.";

/// Parameters of a query, and what is answered to wrong ones.
fn asked(operation: OperationBuilder, parameters: &[(&str, &str)]) -> OperationBuilder {
    let limit = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(MOST_ROWS))
        .default(Some(ROWS.into()));
    let parameter = |name: &str, description: &str, schema: ObjectBuilder| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(schema))
    };
    parameters
        .iter()
        .fold(operation, |operation, (name, description)| {
            let text = ObjectBuilder::new().schema_type(Type::String);
            operation.parameter(parameter(name, description, text))
        })
        .parameter(parameter(
            "limit",
            "How many rows a page has at most.",
            limit,
        ))
        .response(
            "400",
            error("BAD_REQUEST", "A parameter is not what it has to be."),
        )
        .response("409", no_ledger())
        .response("503", unavailable())
}

/// An answer that can be had in other formats, too.
fn exported(operation: OperationBuilder, response: ResponseBuilder) -> OperationBuilder {
    let text = || {
        let text = ObjectBuilder::new().schema_type(Type::String);
        ContentBuilder::new().schema(Some(text)).build()
    };
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
        "The ledger or the store does not answer, or others read so much of it already (`LEDGER_BUSY`).",
    )
}
