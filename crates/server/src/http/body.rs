//! Request bodies: JSON in, questions out.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use tollgate_core::{MAX_AMOUNT, Span};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};

use super::bounds::{MAX_ATTRIBUTES, MAX_VALUE};
use crate::question::{self, AttributeMap, BadQuestion, Check, Question, Refund, Text};
use crate::respond::RequestError;

/// The question in a body.
pub(super) type Read<'a> = Result<Question<'a>, RequestError>;

/// A request to check or peek.
#[derive(Deserialize, ToSchema)]
#[schema(as = Check)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct CheckBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// How many units: 1 unless given. 0 charges nothing.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    cost: Option<u64>,
    /// Whether to charge as many units as are available, up to the cost.
    #[serde(default)]
    up_to: bool,
}

impl<'a> CheckBody<'a> {
    pub(crate) fn check(self) -> Result<Check<'a>, BadQuestion> {
        Check::new(self.attributes, self.cost, self.up_to)
    }
}

/// Reads a check that may wait for its turn, as long as its query says.
pub(super) fn check(body: &[u8], wait: Result<Span, RequestError>) -> Read<'_> {
    let check = parse::<CheckBody<'_>>(body)?.check()?;
    Ok(Question::Check(Check {
        wait: wait?,
        ..check
    }))
}

pub(super) fn peek(body: &[u8]) -> Read<'_> {
    Ok(Question::Peek(parse::<CheckBody<'_>>(body)?.check()?))
}

/// Several requests, each decided on its own, in order.
#[derive(Deserialize, ToSchema)]
#[schema(as = Batch)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody<'a> {
    #[serde(borrow)]
    #[schema(max_items = 256)]
    requests: Vec<CheckBody<'a>>,
}

pub(super) fn batch(body: &[u8]) -> Read<'_> {
    let BatchBody { requests } = parse(body)?;
    Ok(question::batch(requests.into_iter(), CheckBody::check)?)
}

/// A request to give back what a check charged.
#[derive(Deserialize, ToSchema)]
#[schema(as = Refund)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RefundBody<'a> {
    #[serde(borrow)]
    #[schema(schema_with = attribute_map)]
    attributes: AttributeMap<'a>,
    /// How many units: 1 unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = amount, required = false)]
    cost: Option<u64>,
    /// The `decidedAtEpochMicros` of the check: now unless given.
    #[serde(default, deserialize_with = "whole")]
    #[schema(schema_with = instant, required = false)]
    charged_at_epoch_micros: Option<u64>,
}

impl<'a> RefundBody<'a> {
    pub(crate) fn refund(self) -> Result<Refund<'a>, BadQuestion> {
        Refund::new(self.attributes, self.cost, self.charged_at_epoch_micros)
    }
}

pub(super) fn refund(body: &[u8]) -> Read<'_> {
    Ok(Question::Refund(parse::<RefundBody<'_>>(body)?.refund()?))
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, RequestError> {
    parse_like(body, r#"{"attributes":{"user":"ann"}}"#)
}

/// Parses a body. `like` is an example for the error message.
pub(crate) fn parse_like<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    like: &'static str,
) -> Result<T, RequestError> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first.is_none_or(|byte| *byte != b'{') {
        return Err(RequestError::NotAnObject { like });
    }
    serde_json::from_slice(body).map_err(RequestError::Json)
}

impl<'de: 'a, 'a> Deserialize<'de> for AttributeMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributeVisitor(PhantomData))
    }
}

struct AttributeVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for AttributeVisitor<'a> {
    type Value = AttributeMap<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attribute names and values")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut attributes = AttributeMap::default();
        while let Some((Scalar(name), Scalar(value))) = map.next_entry()? {
            attributes.add(name, value).map_err(de::Error::custom)?;
        }
        Ok(attributes)
    }
}

pub(crate) fn amount() -> Schema {
    whole_up_to(MAX_AMOUNT)
}

pub(crate) fn instant() -> Schema {
    whole_up_to(u64::MAX)
}

/// Returns the schema of the numbers that [`whole`] reads.
fn whole_up_to(maximum: u64) -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Integer, Type::Null]))
        .minimum(Some(0))
        .maximum(Some(maximum))
        .into()
}

/// Returns the schema of the attributes that [`AttributeVisitor`] reads. The visitor counts the length
/// of values in bytes, not in characters.
pub(crate) fn attribute_map() -> Schema {
    let name = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"));
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(MAX_VALUE));
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(i64::MIN))
        .maximum(Some(u64::MAX));
    let value = OneOfBuilder::new()
        .item(text)
        .item(number)
        .item(ObjectBuilder::new().schema_type(Type::Boolean));
    let map = ObjectBuilder::new()
        .property_names(Some(Schema::from(name.build())))
        .additional_properties(Some(Schema::from(value.build())))
        .max_properties(Some(MAX_ATTRIBUTES))
        .description(Some("The attributes of the request: names and values."));
    map.into()
}

/// A text, or a number or a boolean as text.
struct Scalar<'a>(Text<'a>);

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor).map(Scalar)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a whole number, true or false")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(value.to_owned()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        let whole = whole_of(value).ok_or_else(|| not_whole(value, &self))?;
        Ok(Cow::Owned(whole.to_string()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(if value { "true" } else { "false" }))
    }
}

/// Reads a whole number, or null.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(WholeVisitor)
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, 0 or more")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        let whole = whole_of(value).and_then(|whole| u64::try_from(whole).ok());
        whole.map(Some).ok_or_else(|| not_whole(value, &self))
    }
}

/// Returns the whole number that equals `value`; `None` if there is none. In JSON, 7.0 and 7e0 are the
/// whole number 7, and some languages write it like that. A number beyond 64 bits was rounded by the
/// parser, so it is not accepted.
#[allow(clippy::cast_possible_truncation)] // The value is whole and in range.
fn whole_of(value: f64) -> Option<i128> {
    const BEYOND: f64 = 18_446_744_073_709_551_616.0;
    let is_whole = value.fract() == 0.0 && value > -BEYOND / 2.0 && value < BEYOND;
    is_whole.then_some(value as i128)
}

fn not_whole<E: de::Error>(value: f64, expected: &impl de::Expected) -> E {
    E::invalid_type(de::Unexpected::Float(value), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes_of(json: &str) -> Result<String, String> {
        let body: CheckBody<'_> = parse(json.as_bytes()).map_err(|error| error.to_string())?;
        let attributes = body.attributes.attributes();
        let pairs = attributes.iter().map(|(n, v)| format!("{n}={v}"));
        Ok(pairs.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn numbers_and_booleans_are_attribute_values() {
        let attributes = attributes_of(r#"{"attributes":{"a":"x\ty","b":-7,"c":true}}"#);
        assert_eq!(attributes.unwrap(), "a=x\ty b=-7 c=true");
    }

    #[test]
    fn whole_numbers_may_be_written_as_floats() {
        let json = r#"{"attributes":{"a":7.0,"b":-7e2,"c":18446744073709551615},"cost":2e0}"#;
        let attributes = attributes_of(json).unwrap();
        assert_eq!(attributes, "a=7 b=-700 c=18446744073709551615");
        let body: CheckBody<'_> = parse(json.as_bytes()).unwrap();
        assert_eq!(body.check().unwrap().ask, tollgate::Ask::Exactly(2));
        for wrong in [
            r#"{"attributes":{"a":18446744073709551616}}"#,
            r#"{"attributes":{"a":-9223372036854775809}}"#,
            r#"{"attributes":{"a":1e300}}"#,
            r#"{"attributes":{},"cost":-2.0}"#,
            r#"{"attributes":{},"cost":0.5}"#,
            r#"{"attributes":{},"cost":"1"}"#,
            r#"{"attributes":{},"cost":18446744073709551616}"#,
        ] {
            assert!(parse::<CheckBody<'_>>(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bad_attribute_is_rejected_by_name() {
        let long = format!(
            r#"{{"attributes":{{"a":"{}"}}}}"#,
            "x".repeat(MAX_VALUE + 1)
        );
        let many: Vec<_> = (0..=MAX_ATTRIBUTES)
            .map(|i| format!(r#""a{i}":"x""#))
            .collect();
        let many = format!(r#"{{"attributes":{{{}}}}}"#, many.join(","));
        for (json, says) in [
            (r#"{"attributes":{"a":"1","a":"2"}}"#, "given twice"),
            (r#"{"attributes":{"a b":"1"}}"#, "not an attribute name"),
            (r#"{"attributes":{"a":null}}"#, "a text, a whole number"),
            (r#"{"attributes":{"a":1.5}}"#, "a text, a whole number"),
            (r#"{"attributes":{"a":[]}}"#, "a text, a whole number"),
            (r#"{"attributes":{},"costs":1}"#, "unknown field `costs`"),
            (r#"{"attributes":{},"cost":-1}"#, "-1"),
            (r#"{"cost":1}"#, "missing field `attributes`"),
            (&long, "at most 1024"),
            (&many, "more than 32"),
        ] {
            let error = attributes_of(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
