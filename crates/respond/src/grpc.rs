//! Denials of gRPC calls: a gRPC client reads a gRPC status, and not the status of HTTP.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Returns whether a request is a gRPC call.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

/// Turns a denial into an answer that has only trailers. The rate limit fields stay.
pub(crate) fn status(denial: Response<Bytes>, message: &str) -> Response<Bytes> {
    let (mut parts, _) = denial.into_parts();
    let code: u16 = match parts.status {
        StatusCode::FORBIDDEN => 7,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        _ => 8,
    };
    parts.status = StatusCode::OK;
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, GRPC);
    parts.headers.insert(GRPC_STATUS, code.into());
    if let Ok(message) = HeaderValue::from_str(&escaped(message)) {
        parts.headers.insert(GRPC_MESSAGE, message);
    }
    Response::from_parts(parts, Bytes::new())
}

/// Escapes a message as the protocol asks for: printable ASCII stays, except for the percent sign.
fn escaped(message: &str) -> String {
    let mut escaped = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(char::from(byte)),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                escaped.push('%');
                escaped.push(char::from(DIGITS[usize::from(byte >> 4)]));
                escaped.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_escaped() {
        assert_eq!(escaped("100% of \u{fc}\n"), "100%25 of %C3%BC%0A");
    }
}
