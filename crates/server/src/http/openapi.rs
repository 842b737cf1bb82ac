//! The OpenAPI 3.1 document of the HTTP door, rendered once, at `/openapi.json`.
//!
//! Bodies are described by the types that read or write them. This module adds the paths and their
//! statuses.

use axum::body::Bytes;
use serde_json::json;
use tollgate_config::{Families, Headers, ResetForm};
use utoipa::ToSchema;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, Paths, PathsBuilder,
};
use utoipa::openapi::schema::{AllOfBuilder, AnyOfBuilder, ComponentsBuilder, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, OpenApiBuilder, Required, Response, ResponseBuilder,
};

use super::body::{BatchBody, CheckBody, RefundBody};
use super::openapi_holds::{self, later};
use super::report;
use crate::describe::{
    self, Describe, answer, described, description, healthz, item, metrics, number_schema, readyz,
    reference, taking, text_schema,
};
use crate::respond::{ErrorBody, Ready, ReadyConfig, answers, minimal};

/// The name of the security scheme.
const TOKEN: &str = "token";

const PROBLEM: &str = "application/problem+json";

/// The methods of `/auth`. A proxy uses the method of the request it asks about.
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

/// Renders the document.
pub(super) fn render(headers: &Headers) -> Bytes {
    let info = InfoBuilder::new()
        .title("Tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "May this operation proceed now? Every path that answers GET also answers HEAD. An unknown path gets 404, and a wrong method 405 with `Allow`, both with an `Error`. Paths that describe 401 need a token, with a scope, if the config has `server.tokens`. A head that is not HTTP, or beyond the bounds, gets 400 or 431, over HTTP/1.1 without a body.",
        ));
    let fields = HeaderFields {
        headers: headers.clone(),
    };
    let paths = PathsBuilder::new()
        .path("/v1/check", item(HttpMethod::Post, fields.check()))
        .path("/v1/check/batch", item(HttpMethod::Post, check_batch()))
        .path("/v1/peek", item(HttpMethod::Post, peek()))
        .path("/v1/refund", item(HttpMethod::Post, refund()))
        .path("/v1/report", item(HttpMethod::Post, report::describe()));
    let paths = openapi_holds::paths(paths, &fields)
        .path("/auth", fields.auth())
        .path("/healthz", item(HttpMethod::Get, healthz()))
        .path("/readyz", item(HttpMethod::Get, readyz()))
        .path("/metrics", item(HttpMethod::Get, metrics()))
        .path("/openapi.json", item(HttpMethod::Get, description()));
    let components = ComponentsBuilder::new()
        .schema_from::<CheckBody<'_>>()
        .schema_from::<BatchBody<'_>>()
        .schema_from::<RefundBody<'_>>()
        .schema_from::<report::ReportBody<'_>>()
        .schema_from::<report::ReportedBody>()
        .schema_from::<report::LimitBody>()
        .schema_from::<answers::DecisionBody<'_>>()
        .schema_from::<answers::RuleDecisionBody<'_>>()
        .schema_from::<answers::GraceBody>()
        .schema_from::<answers::DecisionsBody<'_>>()
        .schema_from::<minimal::MinimalDecisionBody>()
        .schema_from::<minimal::MinimalDecisionsBody>()
        .schema_from::<answers::VerdictBody<'_>>()
        .schema_from::<answers::ProblemBody<'_>>()
        .schema_from::<ErrorBody>()
        .schema_from::<Ready<'_>>()
        .schema_from::<ReadyConfig<'_>>();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components =
        openapi_holds::schemas(components).security_scheme(TOKEN, SecurityScheme::Http(bearer));
    // Without tokens in the config, requests need none.
    let with_token = SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, []);
    let mut paths = paths.build();
    add_tokens(&mut paths);
    let document = OpenApiBuilder::new()
        .info(info.build())
        .security(Some([SecurityRequirement::default(), with_token]))
        .paths(paths)
        .components(Some(components.build()));
    describe::render(&document.build())
}

/// The description of a denial of a blocked subject.
pub(super) const BLOCKED: &str = "Denied: an operator has blocked a subject of the request. `Retry-After` is present if the block has an end.";

/// Adds the answers to requests without a token, or with a token that lacks the scope. Probes, and this
/// description, need no token.
fn add_tokens(paths: &mut Paths) {
    let answers = [
        ("401", "NO_TOKEN", "The token is missing or unknown."),
        ("403", "NOT_PERMITTED", "The token lacks the scope."),
        ("429", "TOO_MANY_WRONG_TOKENS", describe::TOO_MANY_WRONG),
    ];
    for (path, item) in &mut paths.paths {
        if matches!(path.as_str(), "/healthz" | "/readyz" | "/openapi.json") {
            continue;
        }
        let operations = [
            &mut item.get,
            &mut item.head,
            &mut item.post,
            &mut item.put,
            &mut item.patch,
            &mut item.delete,
            &mut item.options,
            &mut item.trace,
        ];
        for operation in operations.into_iter().flatten() {
            for (status, code, description) in answers {
                let responses = &mut operation.responses.responses;
                let known = responses.entry(status.to_owned());
                known.or_insert_with(|| describe::error(code, description).into());
            }
        }
    }
}

/// The query parameter of a check that may wait.
const WAIT: &str = "How long the request may wait for its turn instead of being denied, such as `200ms`: at most as long as the `max_wait` of the rules that deny it. A rule without `max_wait` denies at once. Default: the request does not wait.";

/// The parts that depend on the config.
pub(super) struct HeaderFields {
    headers: Headers,
}

impl HeaderFields {
    fn check(&self) -> OperationBuilder {
        let admission = json!({
            "allowed": true, "ruleId": "api", "algorithm": "gcra", "kind": "rate", "reason": null,
            "subject": "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "limit": 20, "remaining": 19,
            "retryAfterMillis": null, "resetAtEpochMillis": 1_770_000_000_600_u64,
            "delayMillis": 0, "granted": 1, "shadowDenied": false, "fallback": null,
            "degraded": false, "guarantee": "atomic", "configVersion": "5d0b3c1a",
            "decidedAtEpochMicros": 1_770_000_000_000_000_u64, "rules": []
        });
        let allowed = decision_in_either_form("Allowed.", Some(admission));
        let allowed = self.with_fields(with_preference_applied(allowed));
        let denied = "Denied. `Retry-After` is present if a wait helps.";
        let queue = "Denied because a queue is full (a shaping rule, or a rule with `max_wait`), or by a rule without a failure policy while the store fails.";
        let example = json!({"attributes": {"user": "ann"}, "cost": 1});
        let wait = ParameterBuilder::new()
            .name("wait")
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(WAIT))
            .schema(Some(
                text_schema().pattern(Some("^(0|[1-9][0-9]{0,5}(us|ms|s))$")),
            ))
            .example(Some("200ms".into()));
        with_prefer(taking::<CheckBody<'_>>("check", example))
            .parameter(wait)
            .summary(Some("May this proceed now? If so, it is charged."))
            .response("200", allowed)
            .response("403", self.denied_check(BLOCKED))
            .response("429", self.denied_check(denied))
            .response("503", self.denied_check(queue))
    }

    /// Describes the denial of a check, in either form.
    fn denied_check(&self, description: &str) -> Response {
        let response = decision_in_either_form(description, None);
        self.denying::<answers::DecisionBody<'_>>(with_preference_applied(response))
    }

    /// Describes `/auth`, and the paths below it, for every method.
    fn auth(&self) -> PathItem {
        let mut item = PathItem::default();
        for (method, id) in METHODS {
            item.merge_operations(PathItem::new(method, self.auth_with(id)));
        }
        item
    }

    fn auth_with(&self, id: &str) -> OperationBuilder {
        let allowed = self.with_fields(ResponseBuilder::new().description("Allowed."));
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some("May the request that a proxy received proceed?"))
            .description(Some(
                "For proxies that the config trusts. The request is described by X-Forwarded-Method and X-Forwarded-Uri, or by X-Original-Method and X-Original-URI (or X-Original-URL), never by both. Or it is this request, with its path below /auth/. A body is not read.",
            ))
            .response("200", allowed)
            .fails("400", "BAD_REQUEST", "The headers do not describe a request.")
            .response(
                "403",
                self.either::<answers::VerdictBody<'_>>(
                    "The client is blocked; or, with the code `UNTRUSTED_PROXY` or `NOT_PERMITTED`, the peer is not a trusted proxy or its token lacks the scope.",
                ),
            )
            .fails("414", "TOO_LARGE", "The path is too long.")
            .response("429", self.denial::<answers::VerdictBody<'_>>("Denied."))
            .fails("431", "TOO_LARGE", "A header is too long, or there are too many.")
            .response("503", self.denial::<answers::VerdictBody<'_>>("Denied: a queue is full, or the store failed."));
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
                    .schema(Some(text_schema()))
                    .example(Some(example.into())),
            )
        })
    }

    /// Describes a denial, as JSON and as a problem document.
    pub(super) fn denial<T: ToSchema>(&self, description: &str) -> Response {
        self.denying::<T>(answer::<T>(description, None))
    }

    /// Describes a denial, or an error if nothing could be decided.
    pub(super) fn denial_or_failure(&self, description: &str) -> Response {
        self.either::<answers::DecisionBody<'_>>(description)
    }

    /// Describes a denial with the body `T`, or an error.
    fn either<T: ToSchema>(&self, description: &str) -> Response {
        let either = AnyOfBuilder::new()
            .item(reference::<T>())
            .item(reference::<ErrorBody>());
        let content = ContentBuilder::new().schema(Some(Schema::from(either.build())));
        let response = ResponseBuilder::new()
            .description(description)
            .content(describe::JSON, content.build());
        self.denying::<T>(response)
    }

    fn denying<T: ToSchema>(&self, response: ResponseBuilder) -> Response {
        let problem = AllOfBuilder::new()
            .item(reference::<answers::ProblemBody<'_>>())
            .item(reference::<T>());
        let problem = ContentBuilder::new().schema(Some(Schema::from(problem.build())));
        let mut response = response.content(PROBLEM, problem.build());
        if let Some(body) = &self.headers.denial_body {
            // The config replaces the body by a text that has no schema.
            response = response.content(body.content_type(), ContentBuilder::new().build());
        }
        let response = response.header(
            "Retry-After",
            described(
                number_schema(1),
                "Seconds until the same request would be admitted, rounded up.",
            ),
        );
        self.with_fields(response)
    }

    /// Adds the rate limit fields that the config selects.
    pub(super) fn with_fields(&self, mut response: ResponseBuilder) -> Response {
        let Families {
            ietf,
            ratelimit,
            x_ratelimit,
        } = self.headers.families;
        if ietf {
            let policy = "What the rules allow: `\"api\";q=20;w=12`. One for each rule.";
            let state = "How the deciding rule stands: `\"api\";r=7;t=3`.";
            response = response
                .header("RateLimit-Policy", described(text_schema(), policy))
                .header("RateLimit", described(text_schema(), state));
        }
        for (wanted, prefix, form) in [
            (ratelimit, "", self.headers.ratelimit_reset),
            (x_ratelimit, "X-", self.headers.x_ratelimit_reset),
        ] {
            let reset = match form {
                ResetForm::Seconds => "Seconds until the whole allowance is back.",
                ResetForm::Epoch => "When the whole allowance is back, in seconds since the epoch.",
            };
            if wanted {
                let name = |field| format!("{prefix}RateLimit-{field}");
                response = response
                    .header(
                        name("Limit"),
                        described(number_schema(0), "The most at once."),
                    )
                    .header(
                        name("Remaining"),
                        described(number_schema(0), "What is left."),
                    )
                    .header(name("Reset"), described(number_schema(0), reset));
            }
        }
        response.build()
    }
}

/// Adds the header with which a client asks for a form of answer.
fn with_prefer(operation: OperationBuilder) -> OperationBuilder {
    let what = "`return=minimal` for a short answer, `return=representation` for the whole answer.";
    operation.parameter(
        ParameterBuilder::new()
            .name("Prefer")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(what))
            .schema(Some(text_schema()))
            .example(Some("return=minimal".into())),
    )
}

/// Describes one of two bodies: `T`, or the minimal form `M`.
fn in_either_form<T: ToSchema, M: ToSchema>(
    description: &str,
    example: Option<serde_json::Value>,
) -> ResponseBuilder {
    let either = AnyOfBuilder::new()
        .item(reference::<T>())
        .item(reference::<M>());
    let content = ContentBuilder::new()
        .schema(Some(Schema::from(either.build())))
        .example(example);
    ResponseBuilder::new()
        .description(description)
        .content(describe::JSON, content.build())
}

fn decision_in_either_form(
    description: &str,
    example: Option<serde_json::Value>,
) -> ResponseBuilder {
    in_either_form::<answers::DecisionBody<'_>, minimal::MinimalDecisionBody>(description, example)
}

fn with_preference_applied(response: ResponseBuilder) -> ResponseBuilder {
    response.header(
        "Preference-Applied",
        described(text_schema(), "The preference that the answer follows."),
    )
}

fn check_batch() -> OperationBuilder {
    let example = json!({"requests": [{"attributes": {"user": "ann"}}]});
    let decisions = in_either_form::<answers::DecisionsBody<'_>, minimal::MinimalDecisionsBody>(
        "One decision for each check.",
        None,
    );
    with_prefer(taking::<BatchBody<'_>>("checkBatch", example))
        .summary(Some("Several checks at once, each decided on its own."))
        .response("200", with_preference_applied(decisions))
}

fn peek() -> OperationBuilder {
    let decision = decision_in_either_form("What it would answer: see `allowed`.", None);
    let example = json!({"attributes": {"user": "ann"}});
    with_prefer(taking::<CheckBody<'_>>("peek", example))
        .summary(Some("What would a check answer? Charges nothing."))
        .response("200", with_preference_applied(decision))
}

fn refund() -> OperationBuilder {
    let example = json!({
        "attributes": {"user": "ann"}, "cost": 1, "chargedAtEpochMicros": 1_770_000_000_000_000_u64
    });
    let unavailable = "The store does not answer; the units may have been given back.";
    let decision = decision_in_either_form("How the limits stand now.", None);
    with_prefer(taking::<RefundBody<'_>>("refund", example))
        .summary(Some("Gives back what a check charged."))
        .response("200", with_preference_applied(decision))
        .response("503", later("STORE_UNAVAILABLE", unavailable))
}
