//! The kinds of values that fields have: text, flags, numbers with units, lists. Each has its
//! reader and its schema side by side.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use tollgate_core::{Rate, Span};

use crate::error::Problems;
use crate::read::{At, Read, wanted};
use crate::secrets::redacted;
use crate::units::{self, BadNumber};
use crate::yaml::{Node, Value};

/// A type whose schema is written down once, beside its reader.
macro_rules! schema {
    ($ty:ty, $name:literal, $schema:tt) => {
        impl schemars::JsonSchema for $ty {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(crate) use schema;

/// Any text: numbers and booleans are taken as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

impl Read for Text {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Text> {
        match node.text() {
            Some(text) if !node.is_null() => Some(Text(text.to_owned())),
            _ => {
                wanted(
                    "a text",
                    "write a text, or leave the field out",
                    node,
                    problems,
                );
                None
            }
        }
    }
}
schema!(Text, "Text", { "type": ["string", "integer", "boolean"] });

/// A text that may also be `off`: `None`.
#[derive(Clone, Debug)]
pub(crate) struct TextOrOff(pub(crate) Option<String>);

impl Read for TextOrOff {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<TextOrOff> {
        let Text(text) = Text::read(node, problems)?;
        Some(TextOrOff((text != "off").then_some(text)))
    }
}
schema!(TextOrOff, "TextOrOff", { "type": "string" });

/// `true` or `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag(pub(crate) bool);

impl Read for Flag {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Flag> {
        match node.text() {
            Some("true") => Some(Flag(true)),
            Some("false") => Some(Flag(false)),
            _ => {
                wanted("`true` or `false`", "write true or false", node, problems);
                None
            }
        }
    }
}
schema!(Flag, "Flag", { "type": "boolean" });

/// Numbers are shown as they are written.
macro_rules! shown {
    ($($ty:ident),+ or unlimited: $($optional:ident),+) => {
        $( impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        } )+
        $( impl fmt::Display for $optional {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0 {
                    Some(number) => number.fmt(f),
                    None => f.write_str("unlimited"),
                }
            }
        } )+
    };
}
shown!(Whole, Length, Lease, Flag or unlimited: Amount, Speed);

/// Reads a scalar with one of the `units` parsers.
pub(crate) fn number<T>(
    node: &Node,
    what: &str,
    help: &str,
    parse: impl FnOnce(&str) -> Result<T, BadNumber>,
    problems: &mut Problems<'_>,
) -> Option<T> {
    match node.text() {
        Some(text) if !node.is_null() => match parse(text) {
            Ok(number) => Some(number),
            Err(bad) => {
                problems.report(node.place, bad.message, bad.help);
                None
            }
        },
        _ => {
            wanted(what, help, node, problems);
            None
        }
    }
}

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) u64);

impl Read for Whole {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Whole> {
        number(
            node,
            "a whole number",
            "write a number such as 100",
            units::whole,
            problems,
        )
        .map(Whole)
    }
}
schema!(Whole, "Whole", { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^[0-9]+(_[0-9]+)*$" },
] });

/// A number that may also be `unlimited`: `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amount(pub(crate) Option<u64>);

impl Read for Amount {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Amount> {
        if node.text() == Some("unlimited") {
            return Some(Amount(None));
        }
        let help = "write a number such as 100, or `unlimited`";
        number(node, "a whole number", help, units::whole, problems)
            .map(|amount| Amount(Some(amount)))
    }
}
schema!(Amount, "Amount", { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^([0-9]+(_[0-9]+)*|unlimited)$" },
] });

/// A rate that may also be `unlimited`: `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed(pub(crate) Option<Rate>);

impl Read for Speed {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Speed> {
        if node.text() == Some("unlimited") {
            return Some(Speed(None));
        }
        let help = "write an amount per time such as 100/s, or `unlimited`";
        number(node, "a rate", help, units::rate, problems).map(|rate| Speed(Some(rate)))
    }
}
schema!(Speed, "Speed", {
    "type": "string",
    "pattern": "^([0-9]+(_[0-9]+)*/([0-9]+(_[0-9]+)*)?(us|ms|s|m|h|d)|unlimited)$",
    "examples": ["100/s", "60/m", "5/10m"],
});

/// A duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length(pub(crate) Span);

impl Read for Length {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Length> {
        number(
            node,
            "a duration",
            "write a duration such as 30s",
            units::span,
            problems,
        )
        .map(Length)
    }
}
schema!(Length, "Length", {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*(us|ms|s|m|h|d)$",
    "examples": ["50ms", "30s", "10m", "1h", "7d"],
});

/// The shortest and the longest that a slot may be held without being renewed.
const LEASE: std::ops::RangeInclusive<Span> = Span::from_millis(100)..=Span::DAY;

/// How long a slot is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease(pub(crate) Span);

impl Read for Lease {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Lease> {
        let Length(span) = Length::read(node, problems)?;
        if !LEASE.contains(&span) {
            let (from, to) = LEASE.into_inner();
            let message = format!("{span} is not between {from} and {to}");
            let help = format!(
                "write a duration from {from} to {to}; who needs a slot for longer renews it"
            );
            problems.report(node.place, message, help);
            return None;
        }
        Some(Lease(span))
    }
}
schema!(Lease, "Lease", {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*(us|ms|s|m|h|d)$",
    "examples": ["30s", "5m"],
});

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl Read for Size {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Size> {
        let help = "write a size such as 512MB or 10GB";
        number(node, "a size", help, units::size, problems).map(Size)
    }
}
schema!(Size, "Size", { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^[0-9]+(_[0-9]+)*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$", "examples": ["1GB", "512MB"] },
] });

/// A rate that is one: never `unlimited`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(pub(crate) Rate);

impl Read for Pace {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Pace> {
        let help = "write an amount per time such as 100/s";
        number(node, "a rate", help, units::rate, problems).map(Pace)
    }
}
schema!(Pace, "Pace", {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*/([0-9]+(_[0-9]+)*)?(us|ms|s|m|h|d)$",
    "examples": ["100/s", "60/m", "5/10m"],
});

/// A duration that may also be `off`: `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthOrOff(pub(crate) Option<Span>);

impl Read for LengthOrOff {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<LengthOrOff> {
        if node.text() == Some("off") {
            return Some(LengthOrOff(None));
        }
        let help = "write a duration such as 1s, or `off`";
        let length = number(node, "a duration", help, units::span, problems)?;
        Some(LengthOrOff((length != Span::ZERO).then_some(length)))
    }
}
schema!(LengthOrOff, "LengthOrOff", {
    "type": "string",
    "pattern": "^([0-9]+(_[0-9]+)*(us|ms|s|m|h|d)|off)$",
    "examples": ["50ms", "1s", "off"],
});

/// A percentage, in hundredths of a percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percent(pub(crate) u16);

impl Read for Percent {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Percent> {
        number(
            node,
            "a percentage",
            "write a percentage such as 25%",
            |text| units::percent(text, 100),
            problems,
        )
        .and_then(|hundredths| u16::try_from(hundredths).ok())
        .map(Percent)
    }
}
schema!(Percent, "Percent", {
    "type": "string",
    "pattern": r"^[0-9]{1,3}(\.[0-9]{1,2})?%$",
    "examples": ["100%", "0.5%"],
});

/// A percentage of up to 1000%, in hundredths of a percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factor(pub(crate) u32);

impl Read for Factor {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Factor> {
        let parse = |text: &str| units::percent(text, 1000);
        let help = "write a percentage such as 100%";
        number(node, "a percentage", help, parse, problems).map(Factor)
    }
}
schema!(Factor, "Factor", {
    "type": "string",
    "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?%$",
    "examples": ["100%", "150%"],
});

/// A text, or a list of texts.
#[derive(Debug)]
pub(crate) struct OneOrMany(pub(crate) Vec<At<Text>>);

impl Read for OneOrMany {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<OneOrMany> {
        if let Value::List(_) = &node.value {
            return List::read(node, problems).map(|List(items)| OneOrMany(items));
        }
        let place = node.place;
        let text = Text::read(node, problems)?;
        Some(OneOrMany(vec![At { place, value: text }]))
    }
}
schema!(OneOrMany, "OneOrMany", { "anyOf": [
    { "type": "string" },
    { "type": "array", "minItems": 1, "items": { "type": "string" } },
] });

/// A list. What cannot be read in it is reported and left out.
#[derive(Debug)]
pub(crate) struct List<T>(pub(crate) Vec<At<T>>);

impl<T: Read> Read for List<T> {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<List<T>> {
        let Value::List(items) = &node.value else {
            let help = match node.text() {
                Some(text) if !node.is_null() => format!("write [{}]", redacted(text)),
                _ => "write values in brackets such as [a, b], one per line after a dash, or [] for none".to_owned(),
            };
            wanted("a list", &help, node, problems);
            return None;
        };
        let read = |item: &Node| {
            let place = item.place;
            T::read(item, problems).map(|value| At { place, value })
        };
        Some(List(items.iter().filter_map(read).collect()))
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("ListOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        json_schema!({ "type": "array", "items": items })
    }
}
