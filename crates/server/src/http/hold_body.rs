//! Request bodies about reservations and leases.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use tollgate::{Acquire, Attributes, HoldName, LeaseToken, Reserve, Span};
use tollgate_core::MAX_AMOUNT;
use tollgate_rules::document::duration;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use super::body::{AttributeMap, Text, amount, attribute_map, units, whole};
use crate::respond::RequestError;

/// From `100ms` to `1d`, as people write it.
const TTL: &str =
    "^([1-9][0-9]{2,6}ms|[1-9][0-9]{0,3}s|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h|1d)$";

/// A request to take an estimate, to be settled later.
#[derive(Deserialize, ToSchema)]
#[schema(as = Reserve)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ReserveBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// How many units; 1 unless said otherwise.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    cost: Option<u64>,
    #[serde(default)]
    #[schema(schema_with = ttl, required = false)]
    ttl: Lasting,
    #[serde(default, borrow)]
    #[schema(schema_with = idempotency_key, required = false)]
    idempotency_key: Option<Text<'a>>,
}

impl ReserveBody<'_> {
    pub(super) fn attributes(&self) -> Attributes<'_> {
        self.attributes.attributes()
    }

    pub(super) fn effect(&self) -> Result<Reserve<'_>, RequestError> {
        Ok(Reserve {
            units: units(self.cost)?,
            ttl: self.ttl.0,
            idempotency_key: self.idempotency_key.as_deref(),
        })
    }
}

/// A request to end a reservation with what was really used.
#[derive(Deserialize, ToSchema)]
#[schema(as = Commit)]
#[serde(deny_unknown_fields)]
pub(super) struct CommitBody {
    /// How many units.
    #[serde(deserialize_with = "whole_there")]
    #[schema(schema_with = used)]
    actual: u64,
}

impl CommitBody {
    pub(super) fn actual(&self) -> Result<u64, RequestError> {
        units(Some(self.actual))
    }
}

/// A request to keep a reservation for longer.
#[derive(Deserialize, ToSchema)]
#[schema(as = Extend)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    #[schema(schema_with = ttl_there)]
    ttl: Lasting,
}

impl ExtendBody {
    pub(super) fn ttl(&self) -> Result<Span, RequestError> {
        self.ttl.0.ok_or(RequestError::NoTtl)
    }
}

/// A request to give a reservation back: there is nothing to say.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = Release)]
#[serde(deny_unknown_fields)]
pub(super) struct EndBody {}

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
    ttl: Lasting,
    #[serde(default, borrow)]
    #[schema(schema_with = owner, required = false)]
    owner: Option<Text<'a>>,
    #[serde(default)]
    #[schema(schema_with = wait, required = false)]
    wait: Lasting,
}

impl AcquireBody<'_> {
    pub(super) fn attributes(&self) -> Attributes<'_> {
        self.attributes.attributes()
    }

    pub(super) fn effect(&self) -> Acquire<'_> {
        Acquire {
            ttl: self.ttl.0,
            owner: self.owner.as_deref().unwrap_or_default(),
            wait: self.wait.0.unwrap_or(Span::ZERO),
        }
    }
}

/// A request to keep a lease for longer.
#[derive(Deserialize, ToSchema)]
#[schema(as = Renew)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewBody {
    #[schema(schema_with = token)]
    token: Token,
    #[serde(default)]
    #[schema(schema_with = ttl_anew, required = false)]
    ttl: Lasting,
}

impl RenewBody {
    pub(super) fn token(&self) -> LeaseToken {
        self.token.0
    }

    /// For how long; for the rule's lease if not said.
    pub(super) fn ttl(&self) -> Option<Span> {
        self.ttl.0
    }
}

/// A request to give a lease back.
#[derive(Deserialize, ToSchema)]
#[schema(as = Free)]
#[serde(deny_unknown_fields)]
pub(super) struct FreeBody {
    #[schema(schema_with = token)]
    token: Token,
}

impl FreeBody {
    pub(super) fn token(&self) -> LeaseToken {
        self.token.0
    }
}

/// A question who holds slots.
#[derive(Deserialize, ToSchema)]
#[schema(as = WhoHolds)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldersBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
}

impl HoldersBody<'_> {
    pub(super) fn attributes(&self) -> Attributes<'_> {
        self.attributes.attributes()
    }
}

/// The reservation or lease that a path names.
pub(super) fn name(text: &str) -> Result<HoldName, RequestError> {
    HoldName::from_str(text).map_err(RequestError::BadName)
}

/// The token of a header.
pub(super) fn token_of(text: &[u8]) -> Result<LeaseToken, RequestError> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    LeaseToken::from_str(text).map_err(|_| RequestError::BadToken)
}

/// A duration such as `60s`, or none.
#[derive(Default)]
struct Lasting(Option<Span>);

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LastingVisitor).map(Lasting)
    }
}

struct LastingVisitor;

impl Visitor<'_> for LastingVisitor {
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

/// A token. One that is none has no owner, so what it says is not repeated.
struct Token(LeaseToken);

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        let token = LeaseToken::from_str(&text);
        let token = token.map_err(|_| de::Error::custom(RequestError::BadToken))?;
        Ok(Token(token))
    }
}

/// A whole number, and not null.
fn whole_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
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

/// What [`Lasting`] takes, but for other ways to write the same: which spans are right is the engine's to
/// say.
fn lasting(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some(description))
}

fn ttl() -> Schema {
    lasting("For how long, unless extended: from `100ms` to `1d`.")
        .pattern(Some(TTL))
        .into()
}

fn ttl_anew() -> Schema {
    lasting("For how long from now: from `100ms` to `1d`; the rule's `lease` unless said.")
        .pattern(Some(TTL))
        .into()
}

/// The same where it has to be said.
fn ttl_there() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(TTL))
        .description(Some("For how long from now: from `100ms` to `1d`."))
        .into()
}

fn wait() -> Schema {
    lasting("How long to wait for a free slot, up to `30s`; not at all unless said.")
        .pattern(Some("^([0-9]{1,4}ms|[12]?[0-9]s|30s)$"))
        .into()
}

/// Lengths are bytes to the engine, which bounds them, and characters here.
fn text(description: &str, most: usize) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(most))
        .description(Some(description))
}

fn idempotency_key() -> Schema {
    let same = "Who says the same twice under one key, for one tenant, has one reservation.";
    text(same, 256).pattern(Some("^[^\\u0000]+$")).into()
}

fn owner() -> Schema {
    text("Who will hold it, for those who list holders.", 128).into()
}

fn token() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[0-9a-f]{32}$"))
        .description(Some("The token that came with the lease."))
        .into()
}
