//! The body of a denial, from a template of the config or of a rule.

use http::HeaderMap;
use tollgate::{Decision, Reason, RuleDecision, Span, Time};
use tollgate_config::{DenialBody, DenialField, FieldValue};

use crate::denial::{denial, status};

/// Returns the body of a denial. `headers` are those of the request. Returns `None` if no rule denies.
#[must_use]
pub fn render(body: &DenialBody, decision: &Decision, headers: &HeaderMap) -> Option<String> {
    let rule = decision.rule()?;
    let (code, message) = denial(decision)?;
    let status = status(decision);
    let rendered = body.render(|field| match field {
        DenialField::Code => text(code),
        DenialField::Message => FieldValue::Text(message.clone()),
        DenialField::Rule => text(rule.rule().id()),
        DenialField::Kind => text(rule.kind().name()),
        DenialField::Reason => rule
            .reason()
            .map(Reason::name)
            .map_or(FieldValue::Absent, text),
        DenialField::Status => FieldValue::Number(status.as_u16().into()),
        DenialField::Title => text(status.canonical_reason().unwrap_or_default()),
        DenialField::Dimension => text(rule.rule().subject_type()),
        DenialField::TraceId => trace_id(headers).map_or(FieldValue::Absent, text),
        DenialField::ConfigVersion => text(decision.config_version()),
        number => self::number(number, &rule).map_or(FieldValue::Absent, FieldValue::Number),
    });
    Some(rendered)
}

fn text(text: &str) -> FieldValue<'_> {
    FieldValue::Text(text.into())
}

/// Returns the value of a field that is a number, if the denial has one.
fn number(field: DenialField, rule: &RuleDecision<'_>) -> Option<u64> {
    match field {
        DenialField::RetryAfter => rule.retry_after().map(|wait| wait.as_secs_ceil().max(1)),
        DenialField::RetryAfterMillis => rule.retry_after().map(Span::as_millis_ceil),
        DenialField::Limit => rule.limit(),
        DenialField::Remaining => rule.remaining(),
        DenialField::Reset => rule.reset_at().map(|at| at.as_millis_ceil().div_ceil(1000)),
        DenialField::ResetMillis => rule.reset_at().map(Time::as_millis_ceil),
        DenialField::ResetAfter => rule.reset_after().map(Span::as_secs_ceil),
        DenialField::Window => Some(rule.window().as_secs_ceil()),
        _ => None,
    }
}

/// Returns the id of the trace that a request belongs to (`traceparent`).
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let id = parent.split('-').nth(1)?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_id = id.len() == 32 && id.bytes().all(is_hex) && id.bytes().any(|it| it != b'0');
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_trace_id_is_told() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let zero = "0".repeat(32);
        for (parent, expected) in [
            (format!("00-{id}-00f067aa0ba902b7-01"), Some(id)),
            (format!("00-{zero}-00f067aa0ba902b7-01"), None),
            ("00-\"}-00f067aa0ba902b7-01".to_owned(), None),
            ("nonsense".to_owned(), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", parent.parse().unwrap());
            assert_eq!(trace_id(&headers), expected, "{parent}");
        }
        assert_eq!(trace_id(&HeaderMap::new()), None);
    }
}
