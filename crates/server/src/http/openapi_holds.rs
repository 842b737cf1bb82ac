//! The description of reservations, leases and usage.

use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathsBuilder,
};
use utoipa::openapi::schema::{
    AllOfBuilder, AnyOfBuilder, ComponentsBuilder, ObjectBuilder, Schema, Type,
};
use utoipa::openapi::{ContentBuilder, Required, Response, ResponseBuilder};

use super::hold_body::{
    AcquireBody, CommitBody, EndBody, ExtendBody, FreeBody, HoldersBody, RenewBody, ReserveBody,
};
use super::openapi::Door;
use crate::describe::{
    JSON, answer, described, error, failure, hearing, item, looking, reference, taking,
};
use crate::respond::body::{self, DecisionBody};
use crate::respond::{EndedBody, ErrorBody};

/// What periods are called, at this door and at the admin door.
const PERIOD: &str = "A year, month, week or day, as `2026`, `2026-07`, `2026-W29`, `2026-07-31`: \
                      periods that start in it by their own clocks. Or `current`, which it is unless given.";
const TOKEN: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// Adds the paths.
pub(super) fn paths(paths: PathsBuilder, door: &Door) -> PathsBuilder {
    let post = |operation| item(HttpMethod::Post, operation);
    paths
        .path("/v1/reservations", post(reserve(door)))
        .path(
            "/v1/reservations/{id}",
            item(HttpMethod::Get, get_reservation()),
        )
        .path("/v1/reservations/{id}/commit", post(commit()))
        .path("/v1/reservations/{id}/release", post(release()))
        .path("/v1/reservations/{id}/extend", post(extend()))
        .path("/v1/leases", post(acquire(door)))
        .path("/v1/leases/holders", post(holders()))
        .path("/v1/leases/{id}", item(HttpMethod::Delete, free()))
        .path("/v1/leases/{id}/renew", post(renew()))
        .path("/v1/usage/{tenant}", item(HttpMethod::Get, usage()))
}

/// Adds the schemas.
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
        .schema_from::<body::ReservationBody>()
        .schema_from::<body::LeaseBody>()
        .schema_from::<body::NewLeaseBody>()
        .schema_from::<body::HoldersBody>()
        .schema_from::<body::RuleHoldersBody>()
        .schema_from::<body::HolderBody>()
        .schema_from::<body::TenantUsageBody<'_>>()
        .schema_from::<body::UsageBody<'_>>()
}

fn reserve(door: &Door) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme"}, "cost": 500, "ttl": "60s", "idempotencyKey": "order-1"
    });
    let held = both::<body::ReservationBody, DecisionBody<'_>>("Reserved.");
    let before = "Reserved before, under this idempotency key: nothing was taken.";
    let used = "The idempotency key was used for another request (`RESERVATION_CONFLICT`), or for one \
                that was released or whose time is over (`RESERVATION_ENDED`, with `state` and `actual`).";
    let either = AnyOfBuilder::new()
        .item(reference::<ErrorBody>())
        .item(reference::<EndedBody>());
    taking::<ReserveBody<'_>>("reserve", example)
        .summary(Some("Takes an estimate, to be settled later."))
        .response("200", answer::<body::ReservationBody>(before, None))
        .response("201", door.with_fields(held))
        .response("409", of(used, either.build().into()))
        .response("429", door.refusal::<DecisionBody<'_>>("Refused."))
        .response(
            "503",
            door.refusal_or_failure("Refused as a check is, or the store does not answer."),
        )
}

fn get_reservation() -> OperationBuilder {
    let operation = looking("getReservation")
        .summary(Some("How does a reservation stand?"))
        .parameter(id())
        .response("200", answer::<body::ReservationBody>("So.", None))
        .response("400", error("BAD_REQUEST", "This is no id."));
    unknown(operation, "RESERVATION_UNKNOWN")
}

fn commit() -> OperationBuilder {
    let operation = taking::<CommitBody>("commit", json!({"actual": 120}))
        .summary(Some("Ends a reservation with what was really used."))
        .response(
            "200",
            answer::<body::ReservationBody>("It has ended.", None),
        );
    ending(operation.parameter(id()))
}

fn release() -> OperationBuilder {
    let operation = hearing::<EndBody>("release", json!({}))
        .summary(Some("Ends a reservation and gives all of it back."))
        .response(
            "200",
            answer::<body::ReservationBody>("It has ended.", None),
        );
    ending(operation.parameter(id()))
}

fn extend() -> OperationBuilder {
    let operation = taking::<ExtendBody>("extend", json!({"ttl": "60s"}))
        .summary(Some("Keeps a reservation for longer."))
        .response("200", answer::<body::ReservationBody>("Until then.", None));
    ending(operation.parameter(id()))
}

fn acquire(door: &Door) -> OperationBuilder {
    let example = json!({
        "attributes": {"tenant": "acme"}, "ttl": "30s", "owner": "worker-7", "wait": "2s"
    });
    let lease = AllOfBuilder::new()
        .item(reference::<body::LeaseBody>())
        .item(reference::<body::NewLeaseBody>())
        .item(reference::<DecisionBody<'_>>());
    let held = of("Held.", lease.build().into());
    taking::<AcquireBody<'_>>("acquireLease", example)
        .summary(Some("Takes a slot of every concurrency rule that applies."))
        .response("201", door.with_fields(held))
        .response(
            "422",
            error("NOTHING_TO_LEASE", "No concurrency rule applies."),
        )
        .response(
            "429",
            door.refusal::<DecisionBody<'_>>("Refused: no slot is free, or another rule refuses."),
        )
        .response(
            "503",
            door.refusal_or_failure("Refused as a check is, or the store does not answer."),
        )
}

fn renew() -> OperationBuilder {
    let operation = taking::<RenewBody>("renewLease", json!({"token": TOKEN, "ttl": "30s"}))
        .summary(Some("Keeps a lease for longer."))
        .parameter(id())
        .response("200", answer::<body::LeaseBody>("Until then.", None))
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
        .schema(Some(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some("^[0-9a-f]{32}$")),
        ));
    let operation = hearing::<FreeBody>("releaseLease", json!({"token": TOKEN}))
        .summary(Some("Gives a lease back."))
        .parameter(id())
        .parameter(token)
        .response("200", answer::<body::LeaseBody>("It is free.", None));
    owned(operation)
}

fn holders() -> OperationBuilder {
    taking::<HoldersBody<'_>>("holders", json!({"attributes": {"tenant": "acme"}}))
        .summary(Some("Who holds the slots that a request would need?"))
        .response("200", answer::<body::HoldersBody>("Those do.", None))
        .response("503", unavailable())
}

fn usage() -> OperationBuilder {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let kept = || text().pattern(Some("^[^\\u0000]*$"));
    let operation = looking("usage")
        .summary(Some("What has a tenant used?"))
        .parameter(path("tenant", "Whose.", kept(), json!("acme")));
    let period = "^(current|[12][0-9]{3}(-(W(0[1-9]|[1-4][0-9]|5[0-3])|(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?))?)$";
    [
        ("period", PERIOD, text().pattern(Some(period))),
        ("action", "Only by this action.", kept()),
        ("rule", "Only under this rule.", kept()),
    ]
    .into_iter()
    .fold(operation, |operation, (name, description, schema)| {
        operation.parameter(
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Query)
                .required(Required::False)
                .description(Some(description))
                .schema(Some(schema)),
        )
    })
    .response("200", answer::<body::TenantUsageBody<'_>>("So much.", None))
    .response(
        "400",
        error("BAD_REQUEST", "A parameter is not what it has to be."),
    )
    .response("409", error("NO_LEDGER", "No ledger is configured."))
    .response(
        "503",
        later(
            "LEDGER_UNAVAILABLE",
            "The ledger does not answer, or too many read it already (`LEDGER_BUSY`): try again.",
        ),
    )
}

/// What is answered by whatever ends a reservation.
fn ending(operation: OperationBuilder) -> OperationBuilder {
    let operation = operation.response("409", ended("RESERVATION_ENDED"));
    unknown(operation, "RESERVATION_UNKNOWN")
}

/// What is answered by whatever needs a token.
fn owned(operation: OperationBuilder) -> OperationBuilder {
    let not_yours = "The token is not that of this lease.";
    let operation = operation.response("403", error("LEASE_NOT_YOURS", not_yours));
    unknown(operation, "LEASE_UNKNOWN")
}

fn unknown(operation: OperationBuilder, code: &str) -> OperationBuilder {
    let unknown =
        "There is none of that id: it ended a while ago, never was, or is of the other kind.";
    operation
        .response("404", error(code, unknown))
        .response("503", unavailable())
}

fn ended(code: &str) -> Response {
    let example = json!({
        "code": code, "message": "it has ended already", "state": "RELEASED", "actual": null
    });
    answer::<EndedBody>("It has ended otherwise.", Some(example)).build()
}

fn unavailable() -> Response {
    let harmless = "The store does not answer: try again, which does no harm.";
    later("STORE_UNAVAILABLE", harmless)
}

/// What is answered where it is worth trying again.
fn later(code: &str, description: &str) -> Response {
    let seconds = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1));
    failure(code, description)
        .header("Retry-After", described(seconds, "Seconds."))
        .build()
}

fn id() -> Parameter {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^(h1-[0-9a-f]{8}-[0-9a-f]{32}|unheld)$"));
    let example = json!(format!("h1-00000000-{TOKEN}"));
    path("id", "The `id` as it was given.", text, example)
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

/// An answer that is both.
fn both<A: ToSchema, B: ToSchema>(description: &str) -> ResponseBuilder {
    let both = AllOfBuilder::new()
        .item(reference::<A>())
        .item(reference::<B>());
    of(description, both.build().into())
}

fn of(description: &str, schema: Schema) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(schema));
    ResponseBuilder::new()
        .description(description)
        .content(JSON, content.build())
}
