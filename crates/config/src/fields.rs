//! Readers of fields that several sections share: texts with `${VAR}`, numbers and durations in a range.

use std::ops::RangeInclusive;

use tollgate_core::Span;
use tollgate_rules::document::{At, Duration, Field, Problems, Text, Whole};

use crate::secrets::Secret;
use crate::store::Password;

/// The fewest bytes that a secret may have.
pub(crate) const MIN_SECRET: usize = 16;

/// Returns the value of an environment variable, for `${VAR}`.
pub(crate) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Returns the text of a field. Reports an empty text.
pub(crate) fn text(
    name: &str,
    field: &Field<Text>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let at = field.get()?;
    let text = expand(at, env, problems)?;
    if text.is_empty() {
        let help = format!("write a value, or remove `{name}`");
        problems.report(at.place, format!("`{name}` is empty"), help);
    }
    Some(text)
}

/// Returns a password, or the file that holds one. Reports a problem if both are given.
pub(crate) fn password(
    (name, given): (&str, &Field<Text>),
    (file_name, file): (&str, &Field<Text>),
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<Password> {
    if let (Some(_), Some(key)) = (given.key(), file.key()) {
        let message = format!("`{name}` and `{file_name}` cannot be used together");
        problems.report(key, message, "keep one of the two");
    }
    let given = text(name, given, env, problems);
    let path = text(file_name, file, env, problems);
    given
        .map(|password| Password::Text(Secret::new(password)))
        .or(path.map(|path| Password::File(path.into())))
}

/// Returns the remedy for a secret that is too short.
pub(crate) fn secret_help() -> String {
    format!("use at least {MIN_SECRET} random bytes, such as `openssl rand -hex 32` prints")
}

/// Replaces `value` by the number of a field, if the field is given. Reports a number that is not in
/// `range`.
pub(crate) fn number_in<T: TryFrom<u64>>(
    field: &Field<Whole>,
    value: &mut T,
    range: RangeInclusive<u64>,
    problems: &mut Problems<'_>,
) {
    let Some(at) = field.get() else { return };
    let given = at.value.0;
    match T::try_from(given) {
        Ok(given_in_range) if range.contains(&given) => *value = given_in_range,
        _ => {
            let (from, to) = range.into_inner();
            let message = format!("{given} is not between {from} and {to}");
            problems.report(
                at.place,
                message,
                format!("write a number from {from} to {to}"),
            );
        }
    }
}

/// Replaces `${VAR}` in a text. `None` if a variable is not set; the problem was reported.
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
        let in_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let starts_with_digit = name.starts_with(|c: char| c.is_ascii_digit());
        if name.is_empty() || starts_with_digit || !name.bytes().all(in_names) {
            // The message does not quote the text: it may be a part of a secret.
            let message = "the text in `${}` is not the name of a variable";
            problems.report(
                at.place,
                message,
                "write ${NAME}, with letters, digits and `_`",
            );
            return None;
        }
        match env(name) {
            Some(value) => expanded.push_str(&value),
            None => {
                let message = format!("the environment variable {name} is not set");
                let help = format!("set {name}, or write the value here");
                problems.report_outside(at.place, message, help);
                complete = false;
            }
        }
        rest = after;
    }
    expanded.push_str(rest);
    complete.then_some(expanded)
}

/// Replaces `value` by the duration of a field, if the field is given. Reports a duration that is not
/// in the range of `millis`.
pub(crate) fn duration_in(
    field: &Field<Duration>,
    value: &mut Span,
    millis: RangeInclusive<u64>,
    problems: &mut Problems<'_>,
) {
    let Some(at) = field.get() else { return };
    *value = at.value.0;
    let (from, to) = millis.into_inner();
    let (from, to) = (Span::from_millis(from), Span::from_millis(to));
    if !(from..=to).contains(value) {
        let message = format!("{value} is not between {from} and {to}");
        problems.report(
            at.place,
            message,
            format!("write a duration from {from} to {to}"),
        );
    }
}
