//! The types of field values: text, flags, numbers with units, lists, maps of names. Each type has its
//! reader and its schema here.

use std::fmt;

use tollgate_core::{Rate, Span};

use super::units;
use super::{At, BadValue, Node, Problems, Read, Value, entries, redacted, wanted};
use crate::schema;

/// Any text: numbers and booleans are taken as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl Read for Text {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Text> {
        if let (Some(text), false) = (node.text(), node.is_null()) {
            return Some(Text(text.to_owned()));
        }
        wanted(
            "a text",
            "write a text, or leave the field out",
            node,
            problems,
        );
        None
    }
}
schema!(Text, "Text", _generator => { "type": ["string", "integer", "boolean"] });

/// A text; `None` if the field is `off`.
#[derive(Clone, Debug)]
pub struct TextOrOff(pub Option<String>);

impl Read for TextOrOff {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<TextOrOff> {
        let Text(text) = Text::read(node, problems)?;
        Some(TextOrOff((text != "off").then_some(text)))
    }
}
schema!(TextOrOff, "TextOrOff", _generator => { "type": "string" });

/// `true` or `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub bool);

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
schema!(Flag, "Flag", _generator => { "type": "boolean" });

/// Displays numbers as a config writes them.
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
shown!(Whole, Duration, Lease, Flag or unlimited: Amount, RateOrUnlimited);

/// Reads a scalar as a number, with the parser `parse`.
pub fn number<T>(
    node: &Node,
    what: &str,
    help: &str,
    parse: impl FnOnce(&str) -> Result<T, BadValue>,
    problems: &mut Problems<'_>,
) -> Option<T> {
    match node.text() {
        Some(text) if !node.is_null() => problems.accept(node.place, parse(text)),
        _ => {
            wanted(what, help, node, problems);
            None
        }
    }
}

/// Reads a number as [`number`] does. Returns `Some(None)` for the text `word`.
#[allow(clippy::option_option)] // The outer `None` means that the value was rejected.
pub(crate) fn number_or<T>(
    word: &str,
    node: &Node,
    (what, help): (&str, &str),
    parse: impl FnOnce(&str) -> Result<T, BadValue>,
    problems: &mut Problems<'_>,
) -> Option<Option<T>> {
    match node.text() {
        Some(text) if text == word => Some(None),
        _ => number(node, what, help, parse, problems).map(Some),
    }
}

/// A whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole(pub u64);

impl Read for Whole {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Whole> {
        let help = "write a number such as 100";
        number(node, "a whole number", help, units::whole, problems).map(Whole)
    }
}
schema!(Whole, "Whole", _generator => { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^[0-9]+(_[0-9]+)*$" },
] });

/// A whole number; `None` if the field is `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub Option<u64>);

impl Read for Amount {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Amount> {
        let help = (
            "a whole number",
            "write a number such as 100, or `unlimited`",
        );
        number_or("unlimited", node, help, units::whole, problems).map(Amount)
    }
}
schema!(Amount, "Amount", _generator => { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^([0-9]+(_[0-9]+)*|unlimited)$" },
] });

/// A rate; `None` if the field is `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateOrUnlimited(pub Option<Rate>);

impl Read for RateOrUnlimited {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RateOrUnlimited> {
        let help = (
            "a rate",
            "write an amount per time such as 100/s, or `unlimited`",
        );
        number_or("unlimited", node, help, units::rate, problems).map(RateOrUnlimited)
    }
}
schema!(RateOrUnlimited, "RateOrUnlimited", _generator => {
    "type": "string",
    "pattern": "^([0-9]+(_[0-9]+)*/([0-9]+(_[0-9]+)*)?(us|ms|s|m|h|d)|unlimited)$",
    "examples": ["100/s", "60/m", "5/10m"],
});

/// A duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration(pub Span);

impl Read for Duration {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Duration> {
        let help = "write a duration such as 30s";
        number(node, "a duration", help, units::span, problems).map(Duration)
    }
}
schema!(Duration, "Duration", _generator => {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*(us|ms|s|m|h|d)$",
    "examples": ["50ms", "30s", "10m", "1h", "7d"],
});

/// The shortest and the longest time that a slot may be held without being renewed.
const LEASE: std::ops::RangeInclusive<Span> = Span::from_millis(100)..=Span::DAY;

/// How long a slot is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(pub Span);

impl Read for Lease {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Lease> {
        let Duration(span) = Duration::read(node, problems)?;
        if !LEASE.contains(&span) {
            let (from, to) = LEASE.into_inner();
            let message = format!("{span} is not between {from} and {to}");
            let help = format!(
                "write a duration from {from} to {to}; a client that needs a slot for longer renews it"
            );
            problems.report(node.place, message, help);
            return None;
        }
        Some(Lease(span))
    }
}
schema!(Lease, "Lease", _generator => {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*(us|ms|s|m|h|d)$",
    "examples": ["30s", "5m"],
});

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl Read for Size {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Size> {
        let help = "write a size such as 512MB or 10GB";
        number(node, "a size", help, units::size, problems).map(Size)
    }
}
schema!(Size, "Size", _generator => { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": "^[0-9]+(_[0-9]+)*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$", "examples": ["1GB", "512MB"] },
] });

/// A rate that cannot be `unlimited`.
#[derive(Clone, Copy, Debug)]
pub struct PlainRate(pub Rate);

impl Read for PlainRate {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<PlainRate> {
        let help = "write an amount per time such as 100/s";
        number(node, "a rate", help, units::rate, problems).map(PlainRate)
    }
}
schema!(PlainRate, "PlainRate", _generator => {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*/([0-9]+(_[0-9]+)*)?(us|ms|s|m|h|d)$",
    "examples": ["100/s", "60/m", "5/10m"],
});

/// A duration; `None` if the field is `off`.
#[derive(Clone, Copy, Debug)]
pub struct DurationOrOff(pub Option<Span>);

impl Read for DurationOrOff {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<DurationOrOff> {
        let help = ("a duration", "write a duration such as 1s, or `off`");
        let span = number_or("off", node, help, units::span, problems)?;
        Some(DurationOrOff(span.filter(|span| *span != Span::ZERO)))
    }
}
schema!(DurationOrOff, "DurationOrOff", _generator => {
    "type": "string",
    "pattern": "^([0-9]+(_[0-9]+)*(us|ms|s|m|h|d)|off)$",
    "examples": ["50ms", "1s", "off"],
});

/// A percentage up to 100%, in hundredths of a percent.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u16);

impl Read for Percent {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Percent> {
        let parse = |text: &str| units::percent(text, 100);
        let help = "write a percentage such as 25%";
        let hundredths = number(node, "a percentage", help, parse, problems)?;
        u16::try_from(hundredths).ok().map(Percent)
    }
}
schema!(Percent, "Percent", _generator => {
    "type": "string",
    "pattern": r"^[0-9]{1,3}(\.[0-9]{1,2})?%$",
    "examples": ["100%", "0.5%"],
});

/// A percentage up to 1000%, in hundredths of a percent.
#[derive(Clone, Copy, Debug)]
pub struct Factor(pub u32);

impl Read for Factor {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Factor> {
        let parse = |text: &str| units::percent(text, 1000);
        let help = "write a percentage such as 100%";
        number(node, "a percentage", help, parse, problems).map(Factor)
    }
}
schema!(Factor, "Factor", _generator => {
    "type": "string",
    "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?%$",
    "examples": ["100%", "150%"],
});

/// A text, or a list of texts.
#[derive(Debug)]
pub struct Texts(pub Vec<At<Text>>);

impl Read for Texts {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Texts> {
        if let Value::List(_) = &node.value {
            return List::read(node, problems).map(|List(items)| Texts(items));
        }
        let place = node.place;
        let value = Text::read(node, problems)?;
        Some(Texts(vec![At { place, value }]))
    }
}
schema!(Texts, "Texts", _generator => { "anyOf": [
    { "type": "string" },
    { "type": "array", "minItems": 1, "items": { "type": "string" } },
] });

/// A list. Items that cannot be read are reported and left out.
#[derive(Debug)]
pub struct List<T>(pub Vec<At<T>>);

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
schema!([T] List<T>, format!("ListOf{}", T::schema_name()), generator => {
    "type": "array", "items": generator.subschema_for::<T>(),
});

/// A map with names that the file chooses. Values that cannot be read are reported and left out.
#[derive(Debug)]
pub struct Named<T>(pub Vec<(At<String>, At<T>)>);

impl<T: Read> Read for Named<T> {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Named<T>> {
        let entries = entries(node, "a map", problems)?;
        let mut named = Vec::with_capacity(entries.len());
        for (name, key, node) in entries {
            if let Some(value) = T::read(node, problems) {
                let (place, name) = (node.place, name.to_owned());
                named.push((
                    At {
                        place: key,
                        value: name,
                    },
                    At { place, value },
                ));
            }
        }
        Some(Named(named))
    }
}
schema!([T] Named<T>, format!("MapOf{}", T::schema_name()), generator => {
    "type": "object", "additionalProperties": generator.subschema_for::<T>(),
});
