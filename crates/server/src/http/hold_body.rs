//! Request bodies about reservations and leases: JSON in, questions out.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use tollgate::{HoldName, LeaseToken, Span};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::document::duration;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use super::body::{Read, amount, attribute_map, parse, parse_like, whole};
use crate::question::{self, AttributeMap, BadQuestion, Question, Text, units};

/// A pattern for `100ms` to `1d`.
const TTL: &str =
    "^([1-9][0-9]{2,6}ms|[1-9][0-9]{0,3}s|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h|1d)$";

/// A request to charge an estimate that is settled later.
#[derive(Deserialize, ToSchema)]
#[schema(as = Reserve)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ReserveBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// How many units: 1 unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    cost: Option<u64>,
    #[serde(default)]
    #[schema(schema_with = ttl, required = false)]
    ttl: Duration,
    #[serde(default, borrow)]
    #[schema(schema_with = idempotency_key, required = false)]
    idempotency_key: Option<Text<'a>>,
}

pub(super) fn reserve(body: &[u8]) -> Read<'_> {
    let body: ReserveBody<'_> = parse(body)?;
    Ok(Question::Reserve {
        attributes: body.attributes,
        units: units(body.cost)?,
        ttl: body.ttl.0,
        idempotency_key: body.idempotency_key,
    })
}

/// A request to end a reservation with the units that were used.
#[derive(Deserialize, ToSchema)]
#[schema(as = Commit)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitBody {
    /// How many units were used.
    #[serde(deserialize_with = "required_whole")]
    #[schema(schema_with = used)]
    actual: u64,
}

pub(super) fn commit(id: HoldName, body: &[u8]) -> Read<'_> {
    let body: CommitBody = parse_like(body, r#"{"actual":120}"#)?;
    let actual = units(Some(body.actual))?;
    Ok(Question::Commit { id, actual })
}

/// A request to keep a reservation for longer.
#[derive(Deserialize, ToSchema)]
#[schema(as = Extend)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    #[schema(schema_with = required_ttl)]
    ttl: Duration,
}

pub(super) fn extend(id: HoldName, body: &[u8]) -> Read<'_> {
    let body: ExtendBody = parse_like(body, r#"{"ttl":"60s"}"#)?;
    let ttl = body.ttl.0.ok_or(BadQuestion::NoTtl)?;
    Ok(Question::Extend { id, ttl })
}

/// A request to release a reservation. It has no fields.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Release)]
#[serde(deny_unknown_fields)]
pub(super) struct EndBody {}

/// Reads a request to release a reservation. The body may be missing.
pub(super) fn release(id: HoldName, body: &[u8]) -> Read<'_> {
    if !body.trim_ascii().is_empty() {
        let _: EndBody = parse_like(body, "{}")?;
    }
    Ok(Question::Release(id))
}

/// A request for a slot of every concurrency rule.
#[derive(Deserialize, ToSchema)]
#[schema(as = Acquire)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    #[serde(default)]
    #[schema(schema_with = ttl, required = false)]
    ttl: Duration,
    /// The name of the holder, shown in the list of holders.
    #[serde(default, borrow)]
    #[schema(value_type = Option<String>, max_length = 128)]
    owner: Option<Text<'a>>,
    /// How long to wait for a free slot, up to `30s`. No wait unless given.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^([0-9]{1,4}ms|[12]?[0-9]s|30s)$")]
    wait: Duration,
}

pub(super) fn acquire(body: &[u8]) -> Read<'_> {
    let body: AcquireBody<'_> = parse(body)?;
    Ok(Question::AcquireLease {
        attributes: body.attributes,
        ttl: body.ttl.0,
        owner: body.owner.unwrap_or_default(),
        wait: body.wait.0.unwrap_or(Span::ZERO),
        asked: None,
    })
}

/// A request to keep a lease for longer.
#[derive(Deserialize, ToSchema)]
#[schema(as = Renew)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewBody {
    /// The token that came with the lease.
    #[schema(value_type = String, pattern = "^[0-9a-f]{32}$")]
    token: Token,
    #[serde(default)]
    #[schema(schema_with = renewed_ttl, required = false)]
    ttl: Duration,
}

pub(super) fn renew(id: HoldName, body: &[u8]) -> Read<'_> {
    let body: RenewBody = parse_like(body, r#"{"token":"…","ttl":"30s"}"#)?;
    let (token, ttl) = (body.token.0, body.ttl.0);
    Ok(Question::RenewLease { id, token, ttl })
}

/// A request to release a lease.
#[derive(Deserialize, ToSchema)]
#[schema(as = Free)]
#[serde(deny_unknown_fields)]
pub(super) struct FreeBody {
    /// The token that came with the lease.
    #[schema(value_type = String, pattern = "^[0-9a-f]{32}$")]
    token: Token,
}

pub(super) fn free(id: HoldName, body: &[u8]) -> Read<'_> {
    let FreeBody { token } = parse_like(body, r#"{"token":"…"}"#)?;
    let token = token.0;
    Ok(Question::ReleaseLease { id, token })
}

/// A request for the holders of slots.
#[derive(Deserialize, ToSchema)]
#[schema(as = WhoHolds)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldersBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
}

pub(super) fn holders(body: &[u8]) -> Read<'_> {
    let HoldersBody { attributes } = parse(body)?;
    Ok(Question::Holders(attributes))
}

/// A duration such as `60s`, or none.
#[derive(Default)]
pub(super) struct Duration(pub(super) Option<Span>);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DurationVisitor).map(Duration)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Option<Span>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"60s\" or \"500ms\"")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        duration(text).map(Some).map_err(E::custom)
    }
}

/// A token. The error does not repeat the text that was sent.
struct Token(LeaseToken);

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        let token = question::token(text.as_bytes());
        Ok(Token(token.map_err(de::Error::custom)?))
    }
}

/// Reads a whole number. Null is an error.
fn required_whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = whole(deserializer)?;
    number
        .ok_or_else(|| de::Error::invalid_type(de::Unexpected::Unit, &"a whole number, 0 or more"))
}

fn used() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(MAX_AMOUNT))
        .description(Some("How many units were used."))
        .into()
}

/// Returns the schema of an optional text. The engine checks the ranges of durations, and the length of
/// texts in bytes.
fn optional_text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some(description))
}

fn ttl() -> Schema {
    optional_text("For how long, unless extended: from `100ms` to `1d`.")
        .pattern(Some(TTL))
        .into()
}

fn renewed_ttl() -> Schema {
    optional_text("For how long from now: from `100ms` to `1d`. The rule's `lease` unless given.")
        .pattern(Some(TTL))
        .into()
}

fn required_ttl() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(TTL))
        .description(Some("For how long from now: from `100ms` to `1d`."))
        .into()
}

fn idempotency_key() -> Schema {
    let repeats = "Repeats under one key and tenant return the first reservation. A different request \
                   under that key is rejected.";
    optional_text(repeats)
        .max_length(Some(256))
        .pattern(Some("^[^\\u0000]+$"))
        .into()
}
