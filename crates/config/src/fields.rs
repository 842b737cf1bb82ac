//! Readers of fields that several sections share: texts with `${VAR}`, numbers and durations in a range.

use std::ops::RangeInclusive;

use tollgate_core::Span;
use tollgate_rules::document::{At, Duration, Field, Problems, Text, Whole};

/// The fewest bytes that a secret may have.
pub(crate) const MIN_SECRET: usize = 16;

/// Answers for `${VAR}`.
pub(crate) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Returns the text of a field, and reports an empty one.
pub(crate) fn text(
    name: &str,
    field: &Field<Text>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let at = field.get()?;
    let text = expand(at, env, problems)?;
    if text.is_empty() {
        problems.report(
            at.place,
            format!("`{name}` is empty"),
            format!("write a value, or remove `{name}`"),
        );
    }
    Some(text)
}

/// Returns the number of a field, and reports one that is not in `range`.
pub(crate) fn number_in<T>(
    field: &Field<Whole>,
    default: T,
    range: std::ops::RangeInclusive<u64>,
    problems: &mut Problems<'_>,
) -> T
where
    T: TryFrom<u64>,
{
    let Some(at) = field.get() else {
        return default;
    };
    let value = at.value.0;
    if range.contains(&value)
        && let Ok(value) = T::try_from(value)
    {
        return value;
    }
    let (from, to) = range.into_inner();
    problems.report(
        at.place,
        format!("{value} is not between {from} and {to}"),
        format!("write a number from {from} to {to}"),
    );
    default
}

/// Returns the text with `${VAR}` replaced; `None` if a variable is not set, which was reported.
pub(crate) fn expand(at: &At<Text>, env: Env<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let mut rest = at.value.0.as_str();
    let mut expanded = String::new();
    let mut complete = true;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            problems.report(at.place, "a `${` is not closed", "write ${NAME}");
            return None;
        };
        let well_formed = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !well_formed {
            // Never quoted: the text may be a part of a secret.
            problems.report(
                at.place,
                "the text in `${}` is not the name of a variable",
                "write ${NAME}, with letters, digits and `_`",
            );
            return None;
        }
        match env(name) {
            Some(value) => expanded.push_str(&value),
            None => {
                problems.report(
                    at.place,
                    format!("the environment variable {name} is not set"),
                    format!("set {name}, or write the value here"),
                );
                complete = false;
            }
        }
        rest = after;
    }
    expanded.push_str(rest);
    complete.then_some(expanded)
}

/// Returns the duration of a field, and reports one that is not in `range`.
pub(crate) fn duration_in(
    field: &Field<Duration>,
    default: Span,
    range: RangeInclusive<Span>,
    problems: &mut Problems<'_>,
) -> Span {
    let Some(at) = field.get() else {
        return default;
    };
    let span = at.value.0;
    if !range.contains(&span) {
        let (from, to) = range.into_inner();
        problems.report(
            at.place,
            format!("{span} is not between {from} and {to}"),
            format!("write a duration from {from} to {to}"),
        );
    }
    span
}
