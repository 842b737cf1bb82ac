//! Parts of the OpenAPI 3.1 documents of the HTTP door and the admin door.

use axum::body::Bytes;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Header, OpenApi, Ref, Required, Response, ResponseBuilder};

use crate::respond::{ErrorBody, Ready};

pub(crate) const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// Renders a document.
pub(crate) fn render(document: &OpenApi) -> Bytes {
    // A document always becomes JSON: all keys of its maps are strings.
    Bytes::from(document.to_json().unwrap_or_default())
}

pub(crate) fn healthz() -> OperationBuilder {
    looking("healthz")
        .summary(Some("Is the process alive?"))
        .response("200", text("It is.", "ok\n"))
}

pub(crate) fn readyz() -> OperationBuilder {
    looking("readyz")
        .summary(Some("Does the server accept requests?"))
        .ok::<Ready<'_>>("It does.")
        .fails("503", "SHUTTING_DOWN", "The server is shutting down.")
}

pub(crate) fn metrics() -> OperationBuilder {
    looking("metrics")
        .summary(Some("Metrics in the Prometheus text format."))
        .response(
            "200",
            text("All metrics.", "rate_limit_known_denials_total 0\n"),
        )
}

pub(crate) fn description() -> OperationBuilder {
    let any = ContentBuilder::new().schema(Some(ObjectBuilder::new()));
    let response = ResponseBuilder::new()
        .description("An OpenAPI 3.1 document.")
        .content(JSON, any.build());
    looking("openapi")
        .summary(Some("This description."))
        .response("200", response)
}

/// Shorter ways to add to an operation.
pub(crate) trait Describe: Sized {
    /// Adds status 200 with a body of this type.
    fn ok<T: ToSchema>(self, description: &str) -> Self;
    /// Adds an error.
    fn fails(self, status: &str, code: &str, description: &str) -> Self;
    /// Adds an optional parameter of the query.
    fn query(self, name: &str, description: &str, schema: ObjectBuilder) -> Self;
}

impl Describe for OperationBuilder {
    fn ok<T: ToSchema>(self, description: &str) -> Self {
        self.response("200", answer::<T>(description, None))
    }

    fn fails(self, status: &str, code: &str, description: &str) -> Self {
        self.response(status, error(code, description))
    }

    fn query(self, name: &str, description: &str, schema: ObjectBuilder) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(schema));
        self.parameter(parameter)
    }
}

/// The description of an answer to a token that was not compared.
pub(crate) const TOO_MANY_WRONG: &str = "Too many wrong tokens came from this address, so this one was not compared. `Retry-After` says when to try again.";

/// Returns the schema of a text.
pub(crate) fn text_schema() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Returns the schema of a whole number of at least `minimum`.
pub(crate) fn number_schema(minimum: u64) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(minimum))
}

pub(crate) fn item(method: HttpMethod, operation: OperationBuilder) -> PathItem {
    PathItem::new(method, operation)
}

/// Starts an operation that reads a JSON body.
pub(crate) fn taking<T: ToSchema>(id: &str, example: Value) -> OperationBuilder {
    reading::<T>(id, example, Required::True)
}

/// Starts an operation that reads an optional JSON body.
pub(crate) fn hearing<T: ToSchema>(id: &str, example: Value) -> OperationBuilder {
    reading::<T>(id, example, Required::False)
}

fn reading<T: ToSchema>(id: &str, example: Value, required: Required) -> OperationBuilder {
    let content = ContentBuilder::new()
        .schema(Some(reference::<T>()))
        .example(Some(example));
    let body = RequestBodyBuilder::new()
        .required(Some(required))
        .content(JSON, content.build());
    looking(id)
        .request_body(Some(body.build()))
        .fails("400", "BAD_REQUEST", "The body is wrong.")
        .fails("408", "TOO_SLOW", "The body took too long to arrive.")
        .fails("413", "TOO_LARGE", "The body is too large.")
}

/// Starts an operation without a body.
pub(crate) fn looking(id: &str) -> OperationBuilder {
    let too_many = "The request has too many headers.";
    OperationBuilder::new()
        .operation_id(Some(id))
        .fails("431", "TOO_LARGE", too_many)
        .fails(
            "503",
            "NO_ROOM",
            "The connection, or all connections together, hold too much memory.",
        )
}

pub(crate) fn answer<T: ToSchema>(description: &str, example: Option<Value>) -> ResponseBuilder {
    let content = ContentBuilder::new()
        .schema(Some(reference::<T>()))
        .example(example);
    ResponseBuilder::new()
        .description(description)
        .content(JSON, content.build())
}

pub(crate) fn failure(code: &str, description: &str) -> ResponseBuilder {
    let example = json!({"code": code, "message": description});
    answer::<ErrorBody>(description, Some(example))
}

pub(crate) fn error(code: &str, description: &str) -> Response {
    failure(code, description).build()
}

fn text(description: &str, example: &str) -> Response {
    let content = ContentBuilder::new()
        .schema(Some(text_schema()))
        .example(Some(example.into()));
    ResponseBuilder::new()
        .description(description)
        .content(TEXT, content.build())
        .build()
}

pub(crate) fn described(value: ObjectBuilder, description: &str) -> Header {
    let mut header = Header::new(value);
    header.description = Some(description.to_owned());
    header
}

pub(crate) fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}
