//! The statuses of each protocol, as labels. A status is counted at its place in the list.

use http::{HeaderMap, HeaderName, StatusCode};
use tonic::Code;

/// The names of the statuses of a protocol, by their places.
pub(crate) type Statuses = &'static [&'static str];

/// The length of the longest list.
pub(super) const MAX: usize = 28;

/// HTTP statuses, the most frequent first.
pub(crate) const HTTP: Statuses = &[
    "200", "429", "503", "201", "400", "401", "403", "404", "405", "408", "409", "413", "414",
    "415", "422", "431", "500", "101", "204", "206", "301", "302", "304", "502", "504", OTHER,
];

/// gRPC codes, by their numbers.
pub(crate) const GRPC: Statuses = &[
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The first words of RESP errors. `OK` is any answer that is not an error.
pub(crate) const RESP: Statuses = &[
    "OK",
    "ERR",
    "TRYAGAIN",
    "NOAUTH",
    "WRONGPASS",
    "NOPROTO",
    "TGUNKNOWN",
    "TGNOTYOURS",
    "TGCONFLICT",
    "TGENDED",
    "TGTOOMANY",
    "TGNOLEASE",
    "TGNOLEDGER",
    OTHER,
];

/// A status that is not in the list.
const OTHER: &str = "other";

const _: () = assert!(HTTP.len() <= MAX && GRPC.len() <= MAX && RESP.len() <= MAX);

/// The header with the code of a gRPC call that failed before it had an answer.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The place of RESP answers that are not errors.
pub(crate) const RESP_OK: usize = 0;

/// Returns the place of an HTTP status.
#[inline]
pub(crate) fn http(status: StatusCode) -> usize {
    match status.as_u16() {
        200 => 0,
        429 => 1,
        503 => 2,
        _ => place(HTTP, status.as_str().as_bytes()),
    }
}

/// Returns the code of a gRPC answer. An answer without a code in its head has it at its end, and did not
/// fail.
#[inline]
pub(crate) fn grpc(headers: &HeaderMap) -> Code {
    match headers.get(GRPC_STATUS) {
        None => Code::Ok,
        Some(code) => Code::from_bytes(code.as_bytes()),
    }
}

/// Returns the place of a RESP answer.
#[inline]
pub(crate) fn resp(answer: &[u8]) -> usize {
    match answer.strip_prefix(b"-") {
        None => RESP_OK,
        Some(error) => resp_error(error),
    }
}

#[cold]
fn resp_error(error: &[u8]) -> usize {
    let code = error.split(|byte| *byte == b' ').next();
    place(RESP, code.unwrap_or_default())
}

#[cold]
fn place(names: Statuses, name: &[u8]) -> usize {
    let known = names.iter().position(|known| known.as_bytes() == name);
    known.unwrap_or(names.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_place() {
        for name in &HTTP[..HTTP.len() - 1] {
            let status = StatusCode::from_bytes(name.as_bytes()).unwrap();
            assert_eq!(HTTP[http(status)], *name);
        }
        assert_eq!(HTTP[http(StatusCode::IM_A_TEAPOT)], OTHER);
        for name in &RESP[1..RESP.len() - 1] {
            assert_eq!(RESP[resp(format!("-{name} why\r\n").as_bytes())], *name);
        }
        assert_eq!(RESP[resp(b"-OOPS\r\n")], OTHER);
        assert_eq!(RESP[resp(b"+PONG\r\n")], "OK");
        assert_eq!(GRPC[Code::Unauthenticated as usize], "UNAUTHENTICATED");
        assert_eq!(GRPC[Code::ResourceExhausted as usize], "RESOURCE_EXHAUSTED");
    }

    #[test]
    fn code_of_a_failed_call_is_in_its_head() {
        let mut headers = HeaderMap::new();
        assert_eq!(grpc(&headers), Code::Ok);
        headers.insert(GRPC_STATUS, "8".parse().unwrap());
        assert_eq!(grpc(&headers), Code::ResourceExhausted);
    }
}
