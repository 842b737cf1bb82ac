//! `Prefer: return=minimal` and `return=representation` (RFC 7240): whether a client wants a short or a full answer.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate_config::AnswerForm;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Returns the form of answer that a client prefers; `None` if it does not say. The first `return` counts.
/// Other preferences, and other values, are ignored.
pub(super) fn preference(headers: &HeaderMap) -> Option<AnswerForm> {
    // Most requests have no such header, and getting a single value is the fastest way to see that.
    headers.get(PREFER)?;
    let lines = headers.get_all(PREFER).iter();
    let lines = lines.filter_map(|value| value.to_str().ok());
    let mut values = lines.flat_map(|line| line.split(',')).filter_map(|one| {
        // Parameters after a semicolon say nothing here.
        let one = one.split(';').next().unwrap_or_default();
        let (name, value) = one.split_once('=')?;
        let is_return = name.trim().eq_ignore_ascii_case("return");
        is_return.then(|| value.trim().trim_matches('"'))
    });
    let value = values.next()?;
    [
        ("minimal", AnswerForm::Minimal),
        ("representation", AnswerForm::Full),
    ]
    .into_iter()
    .find_map(|(name, form)| value.eq_ignore_ascii_case(name).then_some(form))
}

/// Tells the client that its preference was followed.
pub(super) fn tell_applied(headers: &mut HeaderMap, form: AnswerForm) {
    let applied = match form {
        AnswerForm::Minimal => HeaderValue::from_static("return=minimal"),
        AnswerForm::Full => HeaderValue::from_static("return=representation"),
    };
    headers.insert(PREFERENCE_APPLIED, applied);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&'static str]) -> Option<AnswerForm> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, HeaderValue::from_static(line));
        }
        preference(&headers)
    }

    #[test]
    fn first_return_counts_and_others_are_ignored() {
        let (full, minimal) = (Some(AnswerForm::Full), Some(AnswerForm::Minimal));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["return=minimal"]), minimal);
        assert_eq!(of(&["Return = Minimal ; foo=bar"]), minimal);
        assert_eq!(of(&["return=\"minimal\""]), minimal);
        assert_eq!(of(&["respond-async, wait=10, return=minimal"]), minimal);
        assert_eq!(of(&["respond-async", "return=representation"]), full);
        assert_eq!(of(&["return=representation, return=minimal"]), full);
        assert_eq!(of(&["return=nothing, return=minimal"]), None);
        assert_eq!(of(&["return", "minimal", "handling=lenient"]), None);
    }
}
