//! The description of the HTTP door: OpenAPI 3.1, rendered once, at `/openapi.json`.
//!
//! Bodies are described by the types that read them, answers by those that write them or by
//! [`schema`]. Here is what no type says: which path takes what, and which statuses it answers.

use axum::body::Bytes;
use serde_json::json;
use tollgate_config::Families;
use utoipa::ToSchema;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathsBuilder,
};
use utoipa::openapi::schema::{
    AllOfBuilder, AnyOfBuilder, ComponentsBuilder, ObjectBuilder, Schema, Type,
};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Required, Response, ResponseBuilder,
};

use super::body::{BatchBody, CheckBody, RefundBody};
use super::openapi_holds;
use crate::describe::{
    self, answer, described, description, error, failure, healthz, item, looking, metrics,
    reference, taking,
};
use crate::respond::{ErrorBody, Ready, ReadyConfig, body};

const PROBLEM: &str = "application/problem+json";

/// The methods of `/auth`: a proxy asks with that of the request it asks about.
const METHODS: [(HttpMethod, &str); 8] = [
    (HttpMethod::Get, "authGet"),
    (HttpMethod::Head, "authHead"),
    (HttpMethod::Post, "authPost"),
    (HttpMethod::Put, "authPut"),
    (HttpMethod::Patch, "authPatch"),
    (HttpMethod::Delete, "authDelete"),
    (HttpMethod::Options, "authOptions"),
    (HttpMethod::Trace, "authTrace"),
];

/// The description as it is sent.
pub(super) fn render(families: Families) -> Bytes {
    describe::render(&document(families))
}

fn document(families: Families) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "May this operation proceed now? Every path answers HEAD where it answers GET; a path \
             that does not exist is 404, and a method that a path does not take is 405 with \
             `Allow`, both with an `Error`. A head that is no HTTP, or beyond the bounds, is 400 \
             or 431, over HTTP/1.1 without a body.",
        ));
    let door = Door { families };
    let paths = PathsBuilder::new()
        .path("/v1/check", item(HttpMethod::Post, door.check()))
        .path("/v1/check/batch", item(HttpMethod::Post, check_batch()))
        .path("/v1/peek", item(HttpMethod::Post, peek()))
        .path("/v1/refund", item(HttpMethod::Post, refund()));
    let paths = openapi_holds::paths(paths, &door)
        .path("/auth", door.auth())
        .path("/healthz", item(HttpMethod::Get, healthz()))
        .path("/readyz", item(HttpMethod::Get, readyz()))
        .path("/metrics", item(HttpMethod::Get, metrics()))
        .path("/openapi.json", item(HttpMethod::Get, description()));
    let components = ComponentsBuilder::new()
        .schema_from::<CheckBody<'_>>()
        .schema_from::<BatchBody<'_>>()
        .schema_from::<RefundBody<'_>>()
        .schema_from::<body::DecisionBody<'_>>()
        .schema_from::<body::RuleDecisionBody<'_>>()
        .schema_from::<body::GraceBody>()
        .schema_from::<body::DecisionsBody<'_>>()
        .schema_from::<body::VerdictBody<'_>>()
        .schema_from::<body::ProblemBody<'_>>()
        .schema_from::<ErrorBody>()
        .schema_from::<Ready<'_>>()
        .schema_from::<ReadyConfig<'_>>();
    let components = openapi_holds::schemas(components);
    OpenApiBuilder::new()
        .info(info.build())
        .paths(paths.build())
        .components(Some(components.build()))
        .build()
}

/// What of the description depends on the config.
pub(super) struct Door {
    families: Families,
}

impl Door {
    fn check(&self) -> OperationBuilder {
        let admission = json!({
            "allowed": true, "ruleId": "api", "algorithm": "gcra", "kind": "rate", "reason": null,
            "subject": "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "limit": 20, "remaining": 19,
            "retryAfterMillis": null, "resetAtEpochMillis": 1_770_000_000_600_u64,
            "delayMillis": 0, "granted": 1, "shadowDenied": false, "fallback": null,
            "degraded": false, "guarantee": "atomic", "configVersion": "5d0b3c1a",
            "decidedAtEpochMicros": 1_770_000_000_000_000_u64, "rules": []
        });
        let allowed = self.with_fields(answer::<body::DecisionBody<'_>>(
            "Allowed.",
            Some(admission),
        ));
        let refused = "Refused. `Retry-After` is there where a wait helps.";
        let queue = "Refused by a shaping rule whose queue is full, or by a rule that has no policy \
                     for a store that fails.";
        taking::<CheckBody<'_>>("check", json!({"attributes": {"user": "ann"}, "cost": 1}))
            .summary(Some("May this proceed now? If so, it is charged."))
            .response("200", allowed)
            .response("429", self.refusal::<body::DecisionBody<'_>>(refused))
            .response("503", self.refusal::<body::DecisionBody<'_>>(queue))
    }

    /// The question of a proxy. Below `/auth/` it is asked with the path of the original request.
    fn auth(&self) -> PathItem {
        let mut item = PathItem::default();
        for (method, id) in METHODS {
            let operation = self.auth_with(id);
            item.merge_operations(PathItem::new(method, operation));
        }
        item
    }

    fn auth_with(&self, id: &str) -> OperationBuilder {
        let allowed = self.with_fields(ResponseBuilder::new().description("Allowed."));
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some("May the request that a proxy has received proceed?"))
            .description(Some(
                "For proxies that the config trusts. The request is described by X-Forwarded-Method \
                 and X-Forwarded-Uri, or by X-Original-Method and X-Original-URI (or \
                 X-Original-URL), never by both; or it is this one, its path below /auth/. \
                 A body is not read.",
            ))
            .response("200", allowed)
            .response("400", error("BAD_REQUEST", "The headers do not say which request is meant."))
            .response("403", error("UNTRUSTED_PROXY", "Whoever asks is not a trusted proxy."))
            .response("414", error("TOO_LARGE", "The path is too long."))
            .response("429", self.refusal::<body::VerdictBody<'_>>("Refused."))
            .response("431", error("TOO_LARGE", "A header is too long, or there are too many."))
            .response("503", self.refusal::<body::VerdictBody<'_>>("Refused: a queue is full, or the store failed."));
        let headers = [
            ("X-Forwarded-Method", "The method.", "GET"),
            (
                "X-Forwarded-Uri",
                "The path, with or without a query.",
                "/search?q=x",
            ),
            ("X-Forwarded-Host", "The host.", "shop.example"),
            ("X-Forwarded-Proto", "`http` or `https`.", "https"),
        ];
        headers.into_iter().fold(operation, |operation, header| {
            let (name, what, example) = header;
            operation.parameter(
                ParameterBuilder::new()
                    .name(name)
                    .parameter_in(ParameterIn::Header)
                    .required(Required::False)
                    .description(Some(what))
                    .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
                    .example(Some(example.into())),
            )
        })
    }

    /// A refusal, in both of its forms.
    pub(super) fn refusal<T: ToSchema>(&self, description: &str) -> Response {
        self.refusing::<T>(answer::<T>(description, None))
    }

    /// A refusal, or an error where nothing could be decided.
    pub(super) fn refusal_or_failure(&self, description: &str) -> Response {
        let either = AnyOfBuilder::new()
            .item(reference::<body::DecisionBody<'_>>())
            .item(reference::<ErrorBody>());
        let content = ContentBuilder::new().schema(Some(Schema::from(either.build())));
        let response = ResponseBuilder::new()
            .description(description)
            .content(describe::JSON, content.build());
        self.refusing::<body::DecisionBody<'_>>(response)
    }

    fn refusing<T: ToSchema>(&self, response: ResponseBuilder) -> Response {
        let problem = AllOfBuilder::new()
            .item(reference::<body::ProblemBody<'_>>())
            .item(reference::<T>());
        let problem = ContentBuilder::new().schema(Some(Schema::from(problem.build())));
        let wait = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1));
        let response = response.content(PROBLEM, problem.build()).header(
            "Retry-After",
            described(
                wait,
                "Seconds until the same request would be admitted, rounded up.",
            ),
        );
        self.with_fields(response)
    }

    /// Adds the rate limit fields that the config selects.
    pub(super) fn with_fields(&self, mut response: ResponseBuilder) -> Response {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let number = || {
            ObjectBuilder::new()
                .schema_type(Type::Integer)
                .minimum(Some(0))
        };
        let Families {
            ietf,
            ratelimit,
            x_ratelimit,
        } = self.families;
        if ietf {
            let policy = "What the rules allow: `\"api\";q=20;w=12`. One for each rule.";
            let state = "How the deciding rule stands: `\"api\";r=7;t=3`.";
            response = response
                .header("RateLimit-Policy", described(text(), policy))
                .header("RateLimit", described(text(), state));
        }
        for (wanted, prefix, reset) in [
            (ratelimit, "", "Seconds until the whole allowance is back."),
            (
                x_ratelimit,
                "X-",
                "When the whole allowance is back, in seconds since the epoch.",
            ),
        ] {
            if wanted {
                let name = |field| format!("{prefix}RateLimit-{field}");
                response = response
                    .header(name("Limit"), described(number(), "The most at once."))
                    .header(
                        name("Remaining"),
                        described(number(), "What is left of it."),
                    )
                    .header(name("Reset"), described(number(), reset));
            }
        }
        response.build()
    }
}

fn check_batch() -> OperationBuilder {
    let example = json!({"requests": [{"attributes": {"user": "ann"}}]});
    taking::<BatchBody<'_>>("checkBatch", example)
        .summary(Some("Several checks at once, each decided on its own."))
        .response(
            "200",
            answer::<body::DecisionsBody<'_>>("A decision for each.", None),
        )
}

fn peek() -> OperationBuilder {
    taking::<CheckBody<'_>>("peek", json!({"attributes": {"user": "ann"}}))
        .summary(Some("What would a check say? Takes nothing."))
        .response(
            "200",
            answer::<body::DecisionBody<'_>>("What it would say: see `allowed`.", None),
        )
}

fn refund() -> OperationBuilder {
    let example = json!({
        "attributes": {"user": "ann"}, "cost": 1, "chargedAtEpochMicros": 1_770_000_000_000_000_u64
    });
    let later = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1));
    let unavailable = "The store does not answer: whether it was given back is not known.";
    taking::<RefundBody<'_>>("refund", example)
        .summary(Some("Gives back what a check took."))
        .response(
            "200",
            answer::<body::DecisionBody<'_>>("How things stand now.", None),
        )
        .response(
            "503",
            failure("STORE_UNAVAILABLE", unavailable)
                .header("Retry-After", described(later, "Seconds.")),
        )
}

fn readyz() -> OperationBuilder {
    looking("readyz")
        .summary(Some("Does the server take requests?"))
        .response("200", answer::<Ready<'_>>("It does.", None))
        .response(
            "503",
            error("SHUTTING_DOWN", "It finishes what is in flight."),
        )
}
