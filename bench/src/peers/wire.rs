//! Messages in the encoding of protocol buffers, and requests to Envoy's rate limit service.

use super::Work;
use crate::load::calls::Calls;

pub(crate) const DOMAIN: &str = "bench";
const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The answer `overall_code: OK`.
const OK: &[u8] = &[0x08, 1];

/// A message, field by field.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Adds a number.
    pub(crate) fn number(mut self, field: u8, value: u64) -> Message {
        self.0.push(field << 3);
        self.varint(value);
        self
    }

    /// Adds a text, or a message.
    pub(crate) fn bytes(mut self, field: u8, value: impl AsRef<[u8]>) -> Message {
        let value = value.as_ref();
        self.0.push(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }
}

/// Returns the value of an attribute of the request for `key`.
pub(crate) fn value(attribute: &str, key: &str) -> String {
    match attribute {
        "api_key" => key.to_owned(),
        // Of the same length for each attribute, so that all limits cost the same.
        other => format!("{}{}", &other[..1], &key[1..]),
    }
}

/// Returns calls of `ShouldRateLimit` with a descriptor for each attribute of `work`.
pub(crate) fn rls(work: Work, keys: &[String]) -> Calls {
    let messages = keys.iter().map(|key| {
        let mut request = Message::default().bytes(1, DOMAIN);
        for attribute in work.attributes() {
            let entry = Message::default()
                .bytes(1, attribute)
                .bytes(2, value(attribute, key));
            let descriptor = Message::default().bytes(1, entry.done());
            request = request.bytes(2, descriptor.done());
        }
        request.done()
    });
    Calls::new(RLS, OK, messages)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;

    use super::*;

    #[test]
    fn rls_request_has_a_descriptor_for_each_attribute() {
        let calls = rls(Work::Four, &["0123456789abcdef".to_owned()]);
        let message = RateLimitRequest::decode(&calls.messages[0][5..]).unwrap();
        let entries: Vec<_> = message
            .descriptors
            .iter()
            .map(|it| (it.entries[0].key.as_str(), it.entries[0].value.as_str()))
            .collect();
        let expected = [
            ("api_key", "0123456789abcdef"),
            ("user", "u123456789abcdef"),
            ("session", "s123456789abcdef"),
            ("device", "d123456789abcdef"),
        ];
        assert_eq!(
            (message.domain.as_str(), entries),
            ("bench", expected.to_vec())
        );
    }

    #[test]
    fn numbers_have_as_many_bytes_as_they_need() {
        let number = |value| Message::default().number(1, value).done();
        assert_eq!(number(1), [8, 1]);
        assert_eq!(number(300), [8, 0xac, 2]);
        assert_eq!(number(1_000_000_000).len(), 6);
    }
}
