//! What a change would do, before it is made; and the numbers of a rule with the layers that set them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use serde::Serialize;
use tollgate::NumberFrom;
use tollgate_rules::{Previewed, ScopeNumbers, Standing};
use utoipa::ToSchema;
use utoipa::openapi::Required;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};

use super::blocks::NewBlock;
use super::body::NewOverride;
use super::overrides::{OverrideBody, parameters};
use super::versions::unchanged;
use super::{Admin, Answer, Operator, RuleBody};
use crate::control::ConfigDiff;
use crate::describe::{Describe, answer, looking, taking, text_schema};
use crate::overrides::Preview;
use crate::respond::{self, BadConfigBody, RequestError};

/// How many plans, tenants and subjects are listed with the numbers of a rule.
const MOST_SCOPES: usize = 50;

/// What an override or a block would change.
#[derive(Serialize, ToSchema)]
#[schema(as = Preview)]
#[serde(rename_all = "camelCase")]
pub(super) struct PreviewBody {
    config_version: String,
    /// The override or block that would be set.
    wanted: OverrideBody,
    /// The override or block that it would replace; null if there is none. Its `stored` brings it back.
    #[schema(required = true)]
    replaces: Option<OverrideBody>,
    /// The values that would change: at most 50. Empty if nothing would change.
    changes: Vec<ChangedBody>,
    /// Whether more values would change.
    is_cut: bool,
}

/// A value that would change.
#[derive(Serialize, ToSchema)]
#[schema(as = PreviewedChange)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangedBody {
    /// Null for a block, which denies before any rule.
    #[schema(required = true)]
    rule_id: Option<String>,
    /// Whom the change applies to, in words.
    #[schema(rename = "for", example = "plan pro")]
    #[serde(rename = "for")]
    whom: String,
    #[schema(example = "rate")]
    what: &'static str,
    #[schema(required = true, example = "100/s")]
    before: Option<String>,
    #[schema(required = true, example = "50/s")]
    after: Option<String>,
}

impl From<Previewed> for ChangedBody {
    fn from(it: Previewed) -> ChangedBody {
        ChangedBody {
            rule_id: it.rule.map(|rule| rule.to_string()),
            whom: it.whom,
            what: it.what,
            before: it.before,
            after: it.after,
        }
    }
}

/// A rule in force, its numbers, and the layers that set them.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleDetails<'a> {
    config_version: &'a str,
    rule: RuleBody<'a>,
    /// The numbers for everyone, and then for plans, tenants and subjects with other numbers: at most 50.
    scopes: Vec<ScopeBody>,
    /// Whether further plans, tenants or subjects have other numbers.
    is_cut: bool,
}

/// The numbers of a rule for everyone, a plan, a tenant or a subject.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleScope)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScopeBody {
    /// Whom the numbers apply to, in words.
    #[schema(rename = "for", example = "plan pro")]
    #[serde(rename = "for")]
    whom: String,
    /// The limit that results from the numbers, in words.
    limit: String,
    numbers: Vec<NumberBody>,
}

/// A number of a rule, and the layer that set it.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleNumber)]
pub(super) struct NumberBody {
    #[schema(example = "rate")]
    name: &'static str,
    #[schema(example = "100/s")]
    value: String,
    /// The rule, a plan, a tenant or an override, in words.
    #[schema(example = "plan pro")]
    from: String,
}

impl From<ScopeNumbers> for ScopeBody {
    fn from(it: ScopeNumbers) -> ScopeBody {
        let number = |NumberFrom { name, value, from }| NumberBody { name, value, from };
        ScopeBody {
            whom: it.whom,
            limit: it.limit,
            numbers: it.numbers.into_iter().map(number).collect(),
        }
    }
}

pub(super) async fn rule(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Answer {
    let live = admin.control.engine().active();
    let rules = live.rules();
    let rule = rules.rules().iter().find(|it| it.id() == id);
    let standing = Standing::new(&live.config().policy, live.overrides(), rules.keyring());
    let found = rule.and_then(|rule| Some((rule, standing.of(&id, MOST_SCOPES)?)));
    let (rule, (scopes, is_cut)) = found.ok_or(RequestError::NoSuchRule(id))?;
    Ok(respond::report(&RuleDetails {
        config_version: rules.version(),
        rule: RuleBody::of(rule),
        scopes: scopes.into_iter().map(ScopeBody::from).collect(),
        is_cut,
    }))
}

pub(super) async fn of_override(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let text = String::from_utf8_lossy(&body);
    let preview = admin.control.overrides().preview(&text, &who.name).await?;
    Ok(previewed(&admin, preview))
}

pub(super) async fn of_block(admin: Arc<Admin>, who: Operator, body: Bytes) -> Answer {
    let text = String::from_utf8_lossy(&body);
    let overrides = admin.control.overrides();
    let preview = overrides.preview_block(&text, &who.name).await?;
    Ok(previewed(&admin, preview))
}

fn previewed(admin: &Admin, it: Preview) -> axum::response::Response {
    respond::report(&PreviewBody {
        config_version: admin.control.engine().rules().version().to_owned(),
        wanted: OverrideBody::of(&it.wanted, None),
        replaces: it
            .replaces
            .as_deref()
            .map(|it| OverrideBody::of(it, None).with_stored(it.to_json())),
        changes: it.changes.into_iter().map(ChangedBody::from).collect(),
        is_cut: it.is_cut,
    })
}

pub(super) async fn of_config(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Answer {
    let [version] = parameters(&query.unwrap_or_default(), ["version"])?;
    let diff = admin.control.diff(version.as_deref()).await;
    Ok(respond::report(&diff.map_err(unchanged)?))
}

/// Returns the parameter of a path that names a rule.
pub(super) fn rule_parameter() -> ParameterBuilder {
    ParameterBuilder::new()
        .name("rule")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some("The id of the rule."))
        .schema(Some(text_schema()))
}

pub(super) fn describe_rule() -> OperationBuilder {
    looking("rule")
        .summary(Some(
            "A rule in force: its numbers, and which layer set each of them.",
        ))
        .parameter(rule_parameter())
        .ok::<RuleDetails<'_>>("The rule.")
        .fails("404", "NO_SUCH_RULE", "No such rule is in force.")
}

pub(super) fn describe_override() -> OperationBuilder {
    let example = serde_json::json!({
        "rule": "api", "scale": "50%", "for": "1h", "reason": "load",
    });
    let wrong =
        "The override is not valid, or would have no effect (`NO_EFFECT`, without `problems`).";
    taking::<NewOverride>("previewOverride", example)
        .summary(Some("What an override would change. Changes nothing."))
        .ok::<PreviewBody>("The values before and after.")
        .fails(
            "409",
            "NO_HASH_SECRET",
            "A restart would forget the subject.",
        )
        .response("422", answer::<BadConfigBody<'_>>(wrong, None))
}

pub(super) fn describe_block() -> OperationBuilder {
    let example = serde_json::json!({ "subject": "api_key=k1", "for": "1h", "reason": "abuse" });
    taking::<NewBlock>("previewBlock", example)
        .summary(Some("What a block would change. Changes nothing."))
        .ok::<PreviewBody>("The values before and after.")
        .fails(
            "409",
            "NO_HASH_SECRET",
            "A restart would forget the subject.",
        )
        .response(
            "422",
            answer::<BadConfigBody<'_>>("The block is not valid.", None),
        )
}

pub(super) fn describe_config() -> OperationBuilder {
    let version =
        "An older version, as a rollback would put it in force: the config file unless given.";
    let conflict = "The text or a secret of the version is not known; or, as `NO_CONFIG_FILE`, the server was started without a file.";
    looking("configDiff")
        .summary(Some(
            "The config file, or an older version, compared with the config in force. Changes nothing.",
        ))
        .query("version", version, text_schema())
        .ok::<ConfigDiff>("What would change.")
        .fails("400", "BAD_REQUEST", "A parameter is wrong.")
        .fails("404", "NO_SUCH_VERSION", "There is no such version.")
        .fails("409", "NOT_RESTORABLE", conflict)
        .response(
            "422",
            answer::<BadConfigBody<'_>>("The text has problems.", None),
        )
}
