//! Reservations, leases and usage in the OpenAPI document.

use serde_json::{Value, json};
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathsBuilder,
};
use utoipa::openapi::schema::{
    AllOfBuilder, AnyOfBuilder, ComponentsBuilder, ObjectBuilder, Schema,
};
use utoipa::openapi::{ContentBuilder, Ref, Required, Response, ResponseBuilder};

use super::hold_body::{
    AcquireBody, CommitBody, EndBody, ExtendBody, FreeBody, HoldersBody, RenewBody, ReserveBody,
};
use super::openapi::{BLOCKED, HeaderFields};
use crate::describe::{
    Describe, JSON, answer, described, error, failure, hearing, item, looking, number_schema,
    reference, taking, text_schema,
};
use crate::respond::answers::{self, DecisionBody};
use crate::respond::{EndedBody, ErrorBody};

/// How to write a period.
const PERIOD: &str = "A year, month, week or day, such as `2026`, `2026-07`, `2026-W29` or `2026-07-31`. It selects periods that start in it, in their own time zone. `current`, the default, selects the current periods.";
const TOKEN: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

pub(super) fn paths(paths: PathsBuilder, fields: &HeaderFields) -> PathsBuilder {
    let post = |operation| item(HttpMethod::Post, operation);
    paths
        .path("/v1/reservations", post(reserve(fields)))
        .path(
            "/v1/reservations/{id}",
            item(HttpMethod::Get, get_reservation()),
        )
        .path("/v1/reservations/{id}/commit", post(commit()))
        .path("/v1/reservations/{id}/release", post(release()))
        .path("/v1/reservations/{id}/extend", post(extend()))
        .path("/v1/leases", post(acquire(fields)))
        .path("/v1/leases/holders", post(holders()))
        .path("/v1/leases/{id}", item(HttpMethod::Delete, free()))
        .path("/v1/leases/{id}/renew", post(renew()))
        .path("/v1/usage/{tenant}", item(HttpMethod::Get, usage()))
}

pub(super) fn schemas(components: ComponentsBuilder) -> ComponentsBuilder {
    components
        .schema_from::<ReserveBody<'_>>()
        .schema_from::<CommitBody>()
        .schema_from::<EndBody>()
        .schema_from::<ExtendBody>()
        .schema_from::<AcquireBody<'_>>()
        .schema_from::<RenewBody>()
        .schema_from::<FreeBody>()
        .schema_from::<HoldersBody<'_>>()
        .schema_from::<EndedBody>()
        .schema_from::<answers::ReservationBody>()
        .schema_from::<answers::LeaseBody>()
        .schema_from::<answers::NewLeaseBody>()
        .schema_from::<answers::HoldersBody>()
        .schema_from::<answers::RuleHoldersBody>()
        .schema_from::<answers::HolderBody>()
        .schema_from::<answers::TenantUsageBody<'_>>()
        .schema_from::<answers::UsageBody<'_>>()
}

fn reserve(fields: &HeaderFields) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme"}, "cost": 500, "ttl": "60s", "idempotencyKey": "order-1"
    });
    let held = [
        reference::<answers::ReservationBody>(),
        reference::<DecisionBody<'_>>(),
    ];
    let before = "Reserved before under this idempotency key: nothing was charged now.";
    let used = "The idempotency key was used for another request (`RESERVATION_CONFLICT`), or for a reservation that was released or has expired (`RESERVATION_ENDED`, with `state` and `actual`).";
    let either = AnyOfBuilder::new()
        .item(reference::<ErrorBody>())
        .item(reference::<EndedBody>());
    taking::<ReserveBody<'_>>("reserve", example)
        .summary(Some("Charges an estimate that is settled later."))
        .ok::<answers::ReservationBody>(before)
        .response("201", fields.with_fields(of("Reserved.", all(held))))
        .response("409", of(used, either.build().into()))
        .response("403", fields.denial::<DecisionBody<'_>>(BLOCKED))
        .response(
            "429",
            fields.denial_or_failure(
                "Denied, or the subject has too many open reservations and leases (`TOO_MANY_HOLDS`).",
            ),
        )
        .response(
            "503",
            fields.denial_or_failure("Denied, as for a check; or the store does not answer."),
        )
}

fn get_reservation() -> OperationBuilder {
    let operation = looking("getReservation")
        .summary(Some("Returns a reservation."))
        .parameter(id())
        .ok::<answers::ReservationBody>("The reservation.")
        .fails("400", "BAD_REQUEST", "This is not an id.");
    unknown(operation, "RESERVATION_UNKNOWN")
}

fn commit() -> OperationBuilder {
    let operation = taking::<CommitBody>("commit", json!({"actual": 120}))
        .summary(Some("Ends a reservation with the units that were used."))
        .ok::<answers::ReservationBody>("The reservation has ended.");
    ending(operation.parameter(id()))
}

fn release() -> OperationBuilder {
    let operation = hearing::<EndBody>("release", json!({}))
        .summary(Some("Ends a reservation and gives all of it back."))
        .ok::<answers::ReservationBody>("The reservation has ended.");
    ending(operation.parameter(id()))
}

fn extend() -> OperationBuilder {
    let operation = taking::<ExtendBody>("extend", json!({"ttl": "60s"}))
        .summary(Some("Extends a reservation."))
        .ok::<answers::ReservationBody>("Extended.");
    ending(operation.parameter(id()))
}

fn acquire(fields: &HeaderFields) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme"}, "ttl": "30s", "owner": "worker-7", "wait": "2s"
    });
    let lease = [
        reference::<answers::LeaseBody>(),
        reference::<answers::NewLeaseBody>(),
        reference::<DecisionBody<'_>>(),
    ];
    taking::<AcquireBody<'_>>("acquireLease", example)
        .summary(Some("Takes a slot of every concurrency rule that applies."))
        .response("201", fields.with_fields(of("Granted.", all(lease))))
        .fails("422", "NOTHING_TO_LEASE", "No concurrency rule applies.")
        .response("403", fields.denial::<DecisionBody<'_>>(BLOCKED))
        .response(
            "429",
            fields.denial_or_failure(
                "Denied: no slot is free, or another rule denies. Or the subject has too many open \
                 reservations and leases (`TOO_MANY_HOLDS`).",
            ),
        )
        .response(
            "503",
            fields.denial_or_failure("Denied, as for a check; or the store does not answer."),
        )
}

fn renew() -> OperationBuilder {
    let operation = taking::<RenewBody>("renewLease", json!({"token": TOKEN, "ttl": "30s"}))
        .summary(Some("Renews a lease."))
        .parameter(id())
        .ok::<answers::LeaseBody>("Extended.")
        .response("409", ended("LEASE_ENDED"));
    owned(operation)
}

fn free() -> OperationBuilder {
    let token = ParameterBuilder::new()
        .name("Lease-Token")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(
            "The token, for clients that send no body with `DELETE`.",
        ))
        .schema(Some(text_schema().pattern(Some("^[0-9a-f]{32}$"))));
    let operation = hearing::<FreeBody>("releaseLease", json!({"token": TOKEN}))
        .summary(Some("Releases a lease."))
        .parameter(id())
        .parameter(token)
        .ok::<answers::LeaseBody>("The lease has ended.");
    owned(operation)
}

fn holders() -> OperationBuilder {
    taking::<HoldersBody<'_>>("holders", json!({"attributes": {"tenant": "acme"}}))
        .summary(Some("Who holds the slots that a request would need?"))
        .ok::<answers::HoldersBody>("The holders.")
        .response("503", unavailable())
}

fn usage() -> OperationBuilder {
    let no_nul = || text_schema().pattern(Some("^[^\\u0000]*$"));
    let period = text_schema().pattern(Some("^(current|[12][0-9]{3}(-(W(0[1-9]|[1-4][0-9]|5[0-3])|(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?))?)$"));
    looking("usage")
        .summary(Some("What has a tenant used?"))
        .parameter(path("tenant", "The tenant.", no_nul(), json!("acme")))
        .query("period", PERIOD, period)
        .query("action", "Only by this action.", no_nul())
        .query("rule", "Only under this rule.", no_nul())
    .ok::<answers::TenantUsageBody<'_>>("The usage.")
    .fails("400", "BAD_REQUEST", "A parameter is wrong.")
    .fails("409", "NO_LEDGER", "No ledger is configured.")
    .response(
        "503",
        later(
            "LEDGER_UNAVAILABLE",
            "The ledger does not answer, or too many usage queries are running (`LEDGER_BUSY`): retry.",
        ),
    )
}

/// Adds the responses of operations that end or extend a reservation.
fn ending(operation: OperationBuilder) -> OperationBuilder {
    let operation = operation.response("409", ended("RESERVATION_ENDED"));
    unknown(operation, "RESERVATION_UNKNOWN")
}

/// Adds the responses of operations that need a token.
fn owned(operation: OperationBuilder) -> OperationBuilder {
    let not_yours = "The token belongs to another lease.";
    let operation = operation.fails("403", "LEASE_NOT_YOURS", not_yours);
    unknown(operation, "LEASE_UNKNOWN")
}

fn unknown(operation: OperationBuilder, code: &str) -> OperationBuilder {
    let unknown = "Unknown id: it ended a while ago, never existed, or is of the other kind.";
    operation
        .response("404", error(code, unknown))
        .response("503", unavailable())
}

fn ended(code: &str) -> Response {
    let example = json!({
        "code": code, "message": "the reservation or lease has ended already", "state": "RELEASED", "actual": null
    });
    answer::<EndedBody>(
        "The reservation or lease has already ended, in another way.",
        Some(example),
    )
    .build()
}

fn unavailable() -> Response {
    let safe = "The store does not answer: retry, which is safe.";
    later("STORE_UNAVAILABLE", safe)
}

/// Describes an error after which a retry helps.
pub(super) fn later(code: &str, description: &str) -> Response {
    failure(code, description)
        .header("Retry-After", described(number_schema(1), "Seconds."))
        .build()
}

fn id() -> Parameter {
    let text = text_schema().pattern(Some("^(h1-[0-9a-f]{8}-[0-9a-f]{32}|unheld)$"));
    let example = json!(format!("h1-00000000-{TOKEN}"));
    path("id", "The `id` as it was returned.", text, example)
}

fn path(name: &str, description: &str, schema: ObjectBuilder, example: Value) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema))
        .example(Some(example))
        .build()
}

/// Returns the schema of an object with the fields of all these types.
fn all<const N: usize>(types: [Ref; N]) -> Schema {
    let all = types
        .into_iter()
        .fold(AllOfBuilder::new(), AllOfBuilder::item);
    all.build().into()
}

fn of(description: &str, schema: Schema) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(schema));
    ResponseBuilder::new()
        .description(description)
        .content(JSON, content.build())
}
