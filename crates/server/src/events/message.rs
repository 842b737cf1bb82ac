//! The message of an event, and its signature.

use std::fmt::Write;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{CONTENT_TYPE, HeaderValue, InvalidHeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use serde::Serialize;
use sha2::Sha256;
use tollgate::{Event, Time};
use tollgate_config::Secret;

use crate::audit::instant;

/// The header with the time and the signature of a message.
pub const SIGNATURE: &str = "tollgate-signature";

/// The header with the id of an event, which is the same for every attempt.
pub const EVENT_ID: &str = "tollgate-event-id";

/// Signs messages with a secret.
#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

impl Signer {
    /// Makes a signer. Returns `None` only if HMAC rejects the secret, which it never does.
    pub(super) fn new(secret: &Secret) -> Option<Signer> {
        Hmac::new_from_slice(secret.expose()).map(Signer).ok()
    }

    /// Signs `body`, which is sent at `now`. The signed text is the time in seconds, a dot, and the
    /// body.
    fn sign(&self, body: &[u8], now: Time) -> String {
        let seconds = (now.as_micros() / 1_000_000).to_string();
        let mut mac = self.0.clone();
        mac.update(seconds.as_bytes());
        mac.update(b".");
        mac.update(body);
        let mut text = format!("t={seconds},v1=");
        for byte in mac.finalize().into_bytes() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Makes the message about `event`, to be sent to `target` at `now`.
    pub(super) fn request(
        &self,
        target: &Uri,
        event: &Event,
        body: &Bytes,
        now: Time,
    ) -> Result<Request<Bytes>, InvalidHeaderValue> {
        let mut request = Request::new(body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = target.clone();
        let agent = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let signature = self.sign(body, now);
        headers.insert(SIGNATURE, HeaderValue::from_str(&signature)?);
        headers.insert(EVENT_ID, HeaderValue::from_str(&event.id.to_string())?);
        Ok(request)
    }
}

/// An event as it is sent.
#[derive(Serialize)]
struct Message<'e> {
    r#type: String,
    id: String,
    time: String,
    data: Data<'e>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'e> {
    kind: &'static str,
    rule: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'e str>,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u8>,
    used: u64,
    limit: u64,
    grace: u64,
    period_start: String,
    period_end: String,
}

/// Makes the body of the message about `event`.
pub(super) fn body(event: &Event) -> Bytes {
    let message = Message {
        r#type: format!("quota.{}", event.kind.name()),
        id: event.id.to_string(),
        time: instant(event.at),
        data: Data {
            kind: event.kind.name(),
            rule: &event.rule,
            tenant: event.tenant.as_deref(),
            action: event.action.as_deref(),
            subject: event.subject.to_string(),
            threshold: event.threshold,
            used: event.used,
            limit: event.limit,
            grace: event.grace,
            period_start: instant(event.period.start),
            period_end: instant(event.period.end),
        },
    };
    // A message always becomes JSON: it has only strings and numbers.
    serde_json::to_vec(&message).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_equals_that_of_openssl() {
        let signer = Signer::new(&Secret::new("0123456789abcdef".to_owned())).unwrap();
        let at = Time::from_micros(1_700_000_000_999_999);
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let expected = "9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23";
        let signature = signer.sign(br#"{"a":1}"#, at);
        assert_eq!(signature, format!("t=1700000000,v1={expected}"));
    }
}
