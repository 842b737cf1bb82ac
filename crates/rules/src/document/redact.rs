//! Texts to quote in messages, without the parts that may be secret.

use std::borrow::Cow;
use std::ops::Range;

/// Replaces the part of a text that may be secret by `***`, so that a message can quote the text.
#[must_use]
pub fn redacted(text: &str) -> Cow<'_, str> {
    match secret_part(text) {
        None => Cow::Borrowed(text),
        Some(part) => Cow::Owned(format!("{}***{}", &text[..part.start], &text[part.end..])),
    }
}

/// Finds the part of a text that may be secret, if the text may be a URL. That is the user and
/// password, the query, or a port that is not a number.
#[must_use]
pub fn secret_part(text: &str) -> Option<Range<usize>> {
    let scheme = text.find("://");
    let start = scheme.map_or(0, |at| at + 3);
    let rest = &text[start..];
    if let Some(at) = rest.rfind('@') {
        let login = scheme.is_some() || rest[..at].contains(':');
        return login.then(|| match rest.find('?') {
            Some(_) => start..text.len(),
            None => start..start + at,
        });
    }
    scheme?;
    let query = rest.find('?').map(|query| start + query..text.len());
    let bracket = rest.starts_with('[').then(|| rest.find(']')).flatten();
    let from = bracket.unwrap_or(0);
    let Some(colon) = rest[from..].find(':').map(|colon| from + colon + 1) else {
        return query;
    };
    let port = rest[colon..].split(['/', '?', '#', ',']).next()?;
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_port {
        query
    } else {
        Some(start + colon..text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_not_quoted() {
        let table = [
            ("redis://host:6379/0", "redis://host:6379/0"),
            ("redis://[::1]:6379", "redis://[::1]:6379"),
            ("redis://app:hunter2@host:6379", "redis://***@host:6379"),
            ("redis://hunter2@host", "redis://***@host"),
            ("redis://app:hun/t@er2@host", "redis://***@host"),
            ("app:hunter2@host", "***@host"),
            ("me@example.com", "me@example.com"),
            ("redis://app:hunter2", "redis://app:***"),
            ("redis://:hunter2/0", "redis://:***"),
            ("redis://[::1]:hunter2", "redis://[::1]:***"),
            ("redis://host?password=hunter2", "redis://host***"),
            ("redis://a:b@host?password=hunter2", "redis://***"),
            ("10:30", "10:30"),
            ("", ""),
        ];
        for (text, shown) in table {
            assert_eq!(redacted(text), shown, "{text}");
        }
    }
}
