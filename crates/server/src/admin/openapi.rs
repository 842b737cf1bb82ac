//! The OpenAPI 3.1 document of the admin door, rendered once, at `/openapi.json`.

use axum::body::Bytes;
use serde_json::json;
use utoipa::ToSchema;
use utoipa::openapi::HttpMethod::{self, Delete, Get, Post};
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn, PathsBuilder};
use utoipa::openapi::schema::ComponentsBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApiBuilder, Required};

use super::blocks::{BlockBody, BlocksBody, NewBlock, RemovedBlock};
use super::body::{NewNumbers, NewOverride, RefundBody, ReloadBody, ResetBody};
use super::candidates::{CandidateBody, Compared};
use super::overrides::{OverrideBody, OverridesBody, RestoreBody};
use super::versions::{RollbackBody, TextBody, VersionBody, VersionsBody};
use super::{ExplainedBody, Role, RuleBody, Rules};
use super::{advice, denials, fleet, ledger, overview, preview};
use crate::audit::{Concerned, Entry, MAX_WHY, Trail};
use crate::control::{Change, Changes, ConfigDiff, Named};
use crate::describe::{
    self, Describe, TOO_MANY_WRONG, answer, described, description, failure, healthz, hearing,
    item, looking, metrics, number_schema, readyz, taking, text_schema,
};
use crate::fleet::{FleetBody, Health, Instance, LedgerHealth, Line};
use crate::http::body::CheckBody;
use crate::journal::{FoundDenials, RecordedDenial};
use crate::respond::{BadConfigBody, ConfigProblemBody, ErrorBody, Ready, ReadyConfig, answers};

const TOKEN: &str = "token";

/// A path, its method, the role it needs, and its description.
pub(super) type Guarded = (&'static str, HttpMethod, Role, OperationBuilder);

/// Renders the document.
pub(super) fn render() -> Bytes {
    let info = InfoBuilder::new()
        .title("Tollgate, for operators")
        .version(env!("CARGO_PKG_VERSION"));
    let guarded: [Guarded; 31] = [
        ("/v1/rules", Get, Role::Read, rules()),
        (
            "/v1/rules/{rule}",
            Get,
            Role::Read,
            preview::describe_rule(),
        ),
        (
            "/v1/rules/{rule}/subjects",
            Get,
            Role::Read,
            overview::describe_subjects(),
        ),
        ("/v1/explain", Post, Role::Read, explain()),
        ("/v1/peek", Post, Role::Read, peek()),
        ("/v1/advise", Post, Role::Read, advice::describe()),
        ("/v1/reset", Post, Role::Operate, reset()),
        ("/v1/refund", Post, Role::Operate, refund()),
        ("/v1/reload", Post, Role::Admin, reload()),
        ("/v1/candidates", Get, Role::Read, candidates()),
        ("/v1/overrides", Get, Role::Read, overrides()),
        ("/v1/overrides", Post, Role::Operate, set_override()),
        ("/v1/overrides", Delete, Role::Operate, clear_override()),
        (
            "/v1/overrides/preview",
            Post,
            Role::Operate,
            preview::describe_override(),
        ),
        (
            "/v1/overrides/restore",
            Post,
            Role::Operate,
            restore_override(),
        ),
        ("/v1/blocks", Get, Role::Read, blocks()),
        ("/v1/blocks", Post, Role::Operate, block()),
        ("/v1/blocks", Delete, Role::Operate, unblock()),
        (
            "/v1/blocks/preview",
            Post,
            Role::Operate,
            preview::describe_block(),
        ),
        ("/v1/blocks/remove", Post, Role::Operate, remove_block()),
        ("/v1/config/versions", Get, Role::Read, versions()),
        ("/v1/config/versions/{version}", Get, Role::Admin, version()),
        (
            "/v1/config/diff",
            Get,
            Role::Admin,
            preview::describe_config(),
        ),
        ("/v1/rollback", Post, Role::Admin, rollback()),
        ("/v1/audit", Get, Role::Read, audit()),
        ("/v1/denials", Get, Role::Read, denials::describe()),
        ("/v1/denials", Post, Role::Read, denials::describe_search()),
        ("/v1/overview", Get, Role::Read, overview::describe()),
        ("/v1/live", Get, Role::Read, overview::describe_live()),
        ("/v1/fleet", Get, Role::Read, fleet::describe()),
        ("/metrics", Get, Role::Read, metrics()),
    ];
    let mut paths = PathsBuilder::new();
    for (path, method, role, operation) in guarded.into_iter().chain(ledger::openapi::paths()) {
        let forbidden = format!("The token lacks the `{}` role.", role.name());
        let operation = operation
            .security(SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, []))
            .fails("401", "NO_TOKEN", "The token is missing or unknown.")
            .fails("403", "NOT_PERMITTED", &forbidden)
            .fails("429", "TOO_MANY_WRONG_TOKENS", TOO_MANY_WRONG);
        paths = paths.path(path, item(method, operation));
    }
    let paths = paths
        .path("/healthz", item(Get, healthz()))
        .path("/readyz", item(Get, readyz()))
        .path("/openapi.json", item(Get, description()));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = ComponentsBuilder::new()
        .schema_from::<CheckBody<'_>>()
        .schema_from::<ResetBody<'_>>()
        .schema_from::<RefundBody<'_>>()
        .schema_from::<ReloadBody>()
        .schema_from::<Change>()
        .schema_from::<Changes>()
        .schema_from::<Named>()
        .schema_from::<BadConfigBody<'_>>()
        .schema_from::<ConfigProblemBody<'_>>()
        .schema_from::<Compared>()
        .schema_from::<CandidateBody>()
        .schema_from::<OverridesBody>()
        .schema_from::<OverrideBody>()
        .schema_from::<RestoreBody>()
        .schema_from::<NewOverride>()
        .schema_from::<NewNumbers>()
        .schema_from::<BlocksBody>()
        .schema_from::<BlockBody>()
        .schema_from::<NewBlock>()
        .schema_from::<RemovedBlock>()
        .schema_from::<advice::QuestionsBody>()
        .schema_from::<advice::AdviceBody>()
        .schema_from::<advice::AdviceFigures>()
        .schema_from::<VersionsBody<'_>>()
        .schema_from::<VersionBody>()
        .schema_from::<TextBody>()
        .schema_from::<RollbackBody>()
        .schema_from::<Trail>()
        .schema_from::<Entry>()
        .schema_from::<Concerned>()
        .schema_from::<denials::SubjectBody<'_>>()
        .schema_from::<FoundDenials>()
        .schema_from::<RecordedDenial>()
        .schema_from::<answers::DecisionBody<'_>>()
        .schema_from::<answers::RuleDecisionBody<'_>>()
        .schema_from::<answers::GraceBody>()
        .schema_from::<Rules<'_>>()
        .schema_from::<RuleBody<'_>>()
        .schema_from::<preview::RuleDetails<'_>>()
        .schema_from::<preview::ScopeBody>()
        .schema_from::<preview::NumberBody>()
        .schema_from::<preview::PreviewBody>()
        .schema_from::<preview::ChangedBody>()
        .schema_from::<ConfigDiff>()
        .schema_from::<ExplainedBody<'_>>()
        .schema_from::<Ready<'_>>()
        .schema_from::<ReadyConfig<'_>>()
        .schema_from::<ErrorBody>()
        .schema_from::<FleetBody>()
        .schema_from::<Instance>()
        .schema_from::<Line>()
        .schema_from::<Health>()
        .schema_from::<LedgerHealth>()
        .schema_from::<overview::Overview>()
        .schema_from::<overview::RequestFigures>()
        .schema_from::<overview::RuleFigures>()
        .schema_from::<overview::FairFigures>()
        .schema_from::<overview::LaneFigures>()
        .schema_from::<overview::WeightFigures>()
        .schema_from::<overview::DoorFigures>()
        .schema_from::<overview::Histogram>()
        .schema_from::<overview::StoreFigures>()
        .schema_from::<overview::RuleKeys>()
        .schema_from::<overview::HotKeyFigures>()
        .schema_from::<overview::RuleSubjects>()
        .schema_from::<overview::LedgerFigures>()
        .schema_from::<overview::ProcessFigures>()
        .security_scheme(TOKEN, SecurityScheme::Http(bearer));
    let components = ledger::openapi::components(components);
    let document = OpenApiBuilder::new()
        .info(info.build())
        .paths(paths.build())
        .components(Some(components.build()));
    describe::render(&document.build())
}

fn rules() -> OperationBuilder {
    looking("rules")
        .summary(Some("The rules in force."))
        .ok::<Rules<'_>>("All rules, in the order of the file.")
}

fn explain() -> OperationBuilder {
    let summary =
        "Which rules apply to a request and what they would decide, and why the others do not.";
    asking::<CheckBody<'_>>("explain")
        .summary(Some(summary))
        .ok::<ExplainedBody<'_>>("A line for each rule, and the decision.")
}

fn peek() -> OperationBuilder {
    asking::<CheckBody<'_>>("peek")
        .summary(Some("What would a check answer? Charges nothing."))
        .ok::<answers::DecisionBody<'_>>("The answer.")
}

fn reset() -> OperationBuilder {
    asking::<ResetBody<'_>>("reset")
        .summary(Some("Resets the usage of the subjects of a request."))
        .ok::<answers::DecisionBody<'_>>("How the limits stand now.")
        .response("503", unavailable())
}

fn refund() -> OperationBuilder {
    asking::<RefundBody<'_>>("refund")
        .summary(Some("Gives back the units that a check charged."))
        .ok::<answers::DecisionBody<'_>>("How the limits stand now.")
        .response("503", unavailable())
}

fn reload() -> OperationBuilder {
    let example = json!({
        "outcome": "applied", "configVersion": "0f1e2d3c4b5a", "rules": 2,
        "changes": {
            "added": {"count": 0, "ids": []},
            "removed": {"count": 0, "ids": []},
            "changed": {"count": 1, "ids": ["api"]},
        },
        "differences": ["rule api: limit 5 becomes 6: more for tenants without a plan"],
        "needsRestart": [],
    });
    let problems = "The file has problems, and the previous config stays in force.";
    hearing::<ReloadBody>("reload", json!({"reason": "more room for acme"}))
        .summary(Some("Reads the config file again, and puts it in force."))
        .response(
            "200",
            answer::<Change>("Whether the config was new.", Some(example)),
        )
        .fails(
            "409",
            "NO_CONFIG_FILE",
            "The server was started without a file.",
        )
        .response("422", answer::<BadConfigBody<'_>>(problems, None))
}

fn candidates() -> OperationBuilder {
    looking("candidates")
        .summary(Some("How candidates compare with the rules in force."))
        .ok::<Compared>("All candidates, by plan.")
}

fn overrides() -> OperationBuilder {
    looking("overrides")
        .summary(Some("Limits that were changed at run time."))
        .ok::<OverridesBody>("All overrides.")
}

fn set_override() -> OperationBuilder {
    let example = json!({
        "tenant": "acme", "scale": "200%", "for": "1d", "reason": "launch day",
    });
    let summary = "Changes limits for a subject, a tenant, a plan or everyone. Replaces the override of the same name.";
    let wrong =
        "The override is not valid, or would have no effect (`NO_EFFECT`, without `problems`).";
    taking::<NewOverride>("setOverride", example)
        .summary(Some(summary))
        .ok::<OverrideBody>("The override, which is in force now.")
        .fails(
            "409",
            "TOO_MANY_OVERRIDES",
            "There are too many overrides; or, as `NO_HASH_SECRET`, a restart would forget the subject.",
        )
        .response("422", answer::<BadConfigBody<'_>>(wrong, None))
        .response("503", unavailable())
}

fn restore_override() -> OperationBuilder {
    let example = json!({ "stored": {
        "v": 1, "tenant": "acme", "scale": "200%", "reason": "launch day", "author": "ops",
        "setAtEpochMillis": 1_780_000_000_000_u64,
    } });
    let wrong = "The text is not that of an override; or the override has expired, or would have no effect (`NO_EFFECT`, without `problems`).";
    taking::<RestoreBody>("restoreOverride", example)
        .summary(Some("Brings back an override or a block that was cleared or replaced. Replaces the override of the same name."))
        .ok::<OverrideBody>("The override, which is in force now.")
        .fails("409", "TOO_MANY_OVERRIDES", "There are too many overrides or blocks.")
        .response("422", answer::<BadConfigBody<'_>>(wrong, None))
        .response("503", unavailable())
}

fn clear_override() -> OperationBuilder {
    let name = ParameterBuilder::new()
        .name("name")
        .parameter_in(ParameterIn::Query)
        .required(Required::True)
        .description(Some(
            "The name of the override, such as `tenant:acme/api-rate`.",
        ))
        .schema(Some(text_schema()));
    let reason = text_schema().max_length(Some(MAX_WHY));
    let unknown = "There is no override of that name.";
    looking("clearOverride")
        .summary(Some("Clears an override."))
        .parameter(name)
        .query("reason", "Why, for the audit trail.", reason)
        .ok::<OverrideBody>("The override that was cleared.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .fails("404", "NO_SUCH_OVERRIDE", unknown)
        .response("503", unavailable())
}

fn blocks() -> OperationBuilder {
    looking("blocks")
        .summary(Some("Subjects that are denied before any rule."))
        .ok::<BlocksBody>("All blocks.")
}

fn block() -> OperationBuilder {
    let example = json!({ "subject": "api_key=k1", "for": "1h", "reason": "abuse" });
    let summary =
        "Denies a subject before any rule, at every door. Replaces the block of the same subject.";
    taking::<NewBlock>("block", example)
        .summary(Some(summary))
        .ok::<BlockBody>("The block, which is in force now.")
        .fails(
            "409",
            "TOO_MANY_BLOCKS",
            "There are too many blocks; or, as `NO_HASH_SECRET`, a restart would forget the subject.",
        )
        .response(
            "422",
            answer::<BadConfigBody<'_>>("The block is not valid.", None),
        )
        .response("503", unavailable())
}

fn remove_block() -> OperationBuilder {
    let example = json!({ "subject": "api_key=k1", "reason": "over" });
    let summary =
        "Removes the block of a subject. As DELETE, with the subject in the body: no URL shows it.";
    taking::<RemovedBlock>("removeBlock", example)
        .summary(Some(summary))
        .ok::<BlockBody>("The block that was removed.")
        .fails("404", "NOT_BLOCKED", "The subject is not blocked.")
        .response("503", unavailable())
}

fn unblock() -> OperationBuilder {
    let reason = text_schema().max_length(Some(MAX_WHY));
    looking("unblock")
        .summary(Some("Removes the block of a subject."))
        .query(
            "subject",
            "The subject, such as `api_key=k1`.",
            text_schema(),
        )
        .query(
            "name",
            "Instead of the subject: the name of the block.",
            text_schema(),
        )
        .query("reason", "Why, for the audit trail.", reason)
        .ok::<BlockBody>("The block that was removed.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .fails("404", "NOT_BLOCKED", "The subject is not blocked.")
        .response("503", unavailable())
}

fn versions() -> OperationBuilder {
    looking("configVersions")
        .summary(Some("The versions of the config that were in force."))
        .ok::<VersionsBody<'_>>("At most 20 versions.")
        .response("503", unavailable())
}

fn version() -> OperationBuilder {
    let version = ParameterBuilder::new()
        .name("version")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The version."))
        .schema(Some(text_schema()));
    looking("configVersion")
        .summary(Some(
            "A version of the config, with its text. Secrets are masked.",
        ))
        .parameter(version)
        .ok::<TextBody>("The version.")
        .fails("404", "NO_SUCH_VERSION", "There is no such version.")
        .response("503", unavailable())
}

fn rollback() -> OperationBuilder {
    let example = json!({ "version": "0f1e2d3c4b5a", "reason": "the new limits were too low" });
    let summary = "Puts an older version of the config in force, until the config file changes or is reloaded.";
    let conflict = "The text or a secret of the version is not known, or the config file has this version; or, as `NO_CONFIG_FILE`, the server was started without a file.";
    taking::<RollbackBody>("rollback", example)
        .summary(Some(summary))
        .ok::<Change>("What has changed.")
        .fails("404", "NO_SUCH_VERSION", "There is no such version.")
        .fails("409", "NOT_RESTORABLE", conflict)
        .response(
            "422",
            answer::<BadConfigBody<'_>>("The text is not valid any more.", None),
        )
        .response("503", unavailable())
}

fn audit() -> OperationBuilder {
    let limit = number_schema(1).maximum(Some(1000));
    let limit = limit.default(Some(100.into()));
    let what = "Only changes of this kind, such as `reset`, or of all kinds with a prefix, such as `config`.";
    let since = "Only entries since a time (RFC 3339), or not older than an age such as `1h`.";
    let unavailable = "The audit trail cannot be read.";
    looking("audit")
        .summary(Some("The audit trail, the newest first."))
        .query("limit", "The most entries.", limit)
        .query("what", what, text_schema())
        .query("who", "Only entries of this author.", text_schema())
        .query("since", since, text_schema())
        .ok::<Trail>("Entries.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .fails("503", "AUDIT_UNAVAILABLE", unavailable)
}

fn asking<T: ToSchema>(id: &str) -> OperationBuilder {
    taking::<T>(id, json!({"attributes": {"user": "ann"}}))
}

fn unavailable() -> utoipa::openapi::Response {
    let description = "The store does not answer; the change may have been applied.";
    failure("STORE_UNAVAILABLE", description)
        .header("Retry-After", described(number_schema(1), "Seconds."))
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use http_body_util::BodyExt;
    use serde_json::Value;
    use tollgate::Engine;
    use tower_service::Service;

    use super::super::router;
    use super::*;
    use crate::audit::Audit;
    use crate::control::{ControlPlane, Source};
    use crate::journal::Journal;

    async fn ask(routes: &mut Router, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = routes.call(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn every_path_answers_as_described() {
        let rules = "version: 1\nsubjects: { hash_secret: a secret of sixteen bytes }\nrules:\n\
            - { id: user, per: [user], algorithm: fixed-window, limit: 5, window: 1d }\n\
            - { id: open, algorithm: gcra, rate: unlimited, on_store_failure: fail-open }\n\
            - { id: monthly, per: [user], algorithm: quota, limit: 50, period: month }";
        let folder = tempfile::tempdir().unwrap();
        let books = folder.path().join("books.db");
        let rules = &format!("{rules}\nledger: {{ sqlite: {} }}", books.display());
        let config = tollgate_config::parse("rules.yaml", rules, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, rules).unwrap();
        let audit = Audit::start(folder.path()).unwrap();
        let journal = Journal::start(&engine).unwrap();
        let control =
            ControlPlane::new(engine, Some(Source::new(file.clone())), audit).with_journal(journal);
        let mut routes = router(Arc::new(control));
        let (_, described) = ask(&mut routes, "GET", "/openapi.json", "").await;
        let described: Value = serde_json::from_str(&described).unwrap();
        let (_, listed) = ask(&mut routes, "GET", "/nowhere", "").await;
        for (path, item) in described["paths"].as_object().unwrap() {
            assert!(listed.contains(path), "{path}: {listed}");
            // This answer has no end. A document of it is that of `/v1/overview`.
            if path == "/v1/live" {
                continue;
            }
            let (method, operation) = item.as_object().unwrap().iter().next().unwrap();
            let right = match path.as_str() {
                "/v1/reload" => r#"{"reason":"because"}"#,
                "/v1/ledger/corrections" | "/v1/ledger/grants" => {
                    r#"{"attributes":{"user":"ann"},"rule":"monthly","amount":2,"reason":"because"}"#
                }
                "/v1/ledger/reconcile" => r#"{"repair":"ledger"}"#,
                "/v1/overrides/preview" => {
                    r#"{"rule":"user","scale":"50%","for":"1h","reason":"because"}"#
                }
                "/v1/blocks/preview" => r#"{"subject":"user=ann","for":"1h","reason":"because"}"#,
                "/v1/advise" => r#"{"limit":50}"#,
                // Nobody is blocked.
                "/v1/blocks/remove" => r#"{"subject":"user=ann"}"#,
                // Nothing was stored, so there is nothing to bring back.
                "/v1/overrides/restore" => r#"{"stored":{}}"#,
                // There is no such version.
                "/v1/rollback" => r#"{"version":"0f1e2d3c4b5a","reason":"because"}"#,
                _ => r#"{"attributes":{"user":"ann"}}"#,
            };
            let found = match path.as_str() {
                "/v1/rollback" | "/v1/blocks/remove" => 404,
                "/v1/overrides/restore" => 422,
                _ => 200,
            };
            // An override is read like a config, and has problems like one.
            let wrong = if path.ends_with("/preview") { 422 } else { 400 };
            for (body, expected) in [(right, found), ("{", wrong)] {
                let (status, answer) = ask(&mut routes, &method.to_uppercase(), path, body).await;
                if method == "post" {
                    assert_eq!(status, expected, "{path}: {answer}");
                }
                is_described(&described, operation, path, status, &answer);
            }
        }
        let entries = ask(&mut routes, "GET", "/v1/audit?limit=1&who=anonymous", "").await;
        let (status, answer) = ask(&mut routes, "GET", "/v1/audit?limit=none", "").await;
        let audit = &described["paths"]["/v1/audit"]["get"];
        is_described(&described, audit, "/v1/audit", entries.0, &entries.1);
        assert_eq!(status, 400);
        is_described(&described, audit, "/v1/audit", status, &answer);
        let (status, answer) = ask(&mut routes, "GET", "/v1/rules/user", "").await;
        assert_eq!(status, 200, "{answer}");
        let rule = &described["paths"]["/v1/rules/{rule}"]["get"];
        is_described(&described, rule, "/v1/rules/user", status, &answer);
        std::fs::write(&file, "version: 2\n").unwrap();
        let (status, answer) = ask(&mut routes, "GET", "/v1/config/diff", "").await;
        assert_eq!(status, 422, "{answer}");
        let diff = &described["paths"]["/v1/config/diff"]["get"];
        is_described(&described, diff, "/v1/config/diff", status, &answer);
        let (status, answer) = ask(&mut routes, "POST", "/v1/reload", "").await;
        assert_eq!(status, 422, "{answer}");
        let reload = &described["paths"]["/v1/reload"]["post"];
        is_described(&described, reload, "/v1/reload", status, &answer);
    }

    fn is_described(described: &Value, operation: &Value, path: &str, status: u16, answer: &str) {
        let content = &operation["responses"][status.to_string()]["content"];
        let Some(json) = content.get("application/json") else {
            assert!(content["text/plain"].is_object(), "{path}: {status}");
            return;
        };
        let whole = json!({
            "components": described["components"],
            "allOf": [json["schema"]],
        });
        let validator = jsonschema::validator_for(&whole).unwrap();
        let answer: Value = serde_json::from_str(answer).unwrap();
        assert!(validator.is_valid(&answer), "{path}: {answer}");
    }
}
