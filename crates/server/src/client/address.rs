//! The client's address behind trusted proxies.
//!
//! Every proxy on the way appends the address of its peer to the end of a list, in a header. So the
//! list is read from its end. As long as an address belongs to a trusted proxy, the address before it
//! can be trusted. The first address that is not a trusted proxy is the client. The client itself may
//! have written all addresses before that one.
//!
//! If an address cannot be read, the search ends, and the last readable address counts as the client.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use tollgate_config::{ClientHeader, Subjects};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The most proxies that are followed.
const MAX_HOPS: usize = 32;

/// Returns the client behind `peer`, which is a trusted proxy.
pub(super) fn behind(peer: IpAddr, headers: &HeaderMap, subjects: &Subjects) -> IpAddr {
    let header = subjects.client_header.or_else(|| first(headers));
    match header {
        None => peer,
        Some(ClientHeader::XForwardedFor) => {
            let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
            let hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
            follow(peer, hops, subjects)
        }
        Some(ClientHeader::Forwarded) => {
            let lines = headers.get_all(FORWARDED).iter().rev();
            let hops = lines.flat_map(|line| rsplit_unquoted(line.as_bytes(), b',').map(node));
            follow(peer, hops, subjects)
        }
        Some(ClientHeader::XRealIp) => {
            let mut lines = headers.get_all(X_REAL_IP).iter();
            match (lines.next(), lines.next()) {
                (Some(line), None) => follow(peer, [line.as_bytes()].into_iter(), subjects),
                // A proxy replaces this header, and does not append to it.
                _ => peer,
            }
        }
    }
}

/// Returns the first of the headers that is present. Only this header is used, because a header that
/// proxies do not set comes from the client.
fn first(headers: &HeaderMap) -> Option<ClientHeader> {
    [
        (X_FORWARDED_FOR, ClientHeader::XForwardedFor),
        (FORWARDED, ClientHeader::Forwarded),
        (X_REAL_IP, ClientHeader::XRealIp),
    ]
    .into_iter()
    .find_map(|(name, header)| headers.contains_key(name).then_some(header))
}

/// Follows the addresses, the nearest first, and returns the first one that is not a trusted proxy.
fn follow<'h>(peer: IpAddr, hops: impl Iterator<Item = &'h [u8]>, subjects: &Subjects) -> IpAddr {
    let mut known = peer;
    let hops = hops.map(<[u8]>::trim_ascii).filter(|hop| !hop.is_empty());
    for address in hops.take(MAX_HOPS).map_while(address) {
        known = address;
        if !subjects.is_trusted(address) {
            break;
        }
    }
    known
}

/// Parses an address as proxies write it.
fn address(text: &[u8]) -> Option<IpAddr> {
    tollgate_rules::parse_address(std::str::from_utf8(text).ok()?)
}

/// Splits a `Forwarded` line, and returns its parts, the last first. A separator in quotes does not
/// separate. Quotes are also paired from the right. So a client that opens a quote and does not close
/// it cannot hide the addresses that proxies append.
fn rsplit_unquoted(line: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let at = last_outside_quotes(line, separator);
        rest = at.map(|at| &line[..at]);
        Some(at.map_or(line, |at| &line[at + 1..]))
    })
}

/// Finds the last `separator` outside quotes.
fn last_outside_quotes(line: &[u8], separator: u8) -> Option<usize> {
    let is_escaped = |at: usize| {
        let backslashes = line[..at].iter().rev().take_while(|byte| **byte == b'\\');
        backslashes.count() % 2 == 1
    };
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match *byte {
            b'"' if quoted && is_escaped(at) => {}
            b'"' => quoted = !quoted,
            byte if byte == separator && !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns the `for` parameter of an element of `Forwarded`. Returns the whole element, which is not an
/// address, if it has no `for` or two of them.
fn node(element: &[u8]) -> &[u8] {
    let mut values = rsplit_unquoted(element, b';').filter_map(|pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        pair[..equals]
            .eq_ignore_ascii_case(b"for")
            .then_some(&pair[equals + 1..])
    });
    match (values.next(), values.next()) {
        (Some([b'"', value @ .., b'"']), None) => value,
        (Some(value), None) => value,
        _ => element,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_proxies_write_them() {
        let table = [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("192.0.2.1:_hidden", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("[fe80::1%25eth0]:80", Some("fe80::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:c000:201]:80", Some("192.0.2.1")),
            ("2001:db8::1:443", Some("2001:db8::1:443")),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("example.com", None),
            ("192.0.2", None),
            ("192.0.2.256", None),
            ("010.0.0.1", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.1:+80", None),
            ("192.0.2.1:80:90", None),
            ("192.0.2.1%eth0", None),
            ("[192.0.2.1]", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]443", None),
            ("[2001:db8::1]:_", None),
            ("2001:db8::1]", None),
            ("fe80::1%", None),
            ("1.2.3.4 5.6.7.8", None),
            ("\"192.0.2.1\"", None),
        ];
        for (text, expected) in table {
            let expected: Option<IpAddr> = expected.map(|it| it.parse().unwrap());
            assert_eq!(address(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(address(b"192.0.2.1\xff"), None);
        assert_eq!(
            address(format!("fe80::1%{}", "x".repeat(200)).as_bytes()),
            None
        );
    }

    #[test]
    fn elements_are_split_from_the_right() {
        let elements = |line: &'static str| {
            let elements = rsplit_unquoted(line.as_bytes(), b',').map(node);
            let text = elements.map(|it| std::str::from_utf8(it).unwrap().trim());
            text.collect::<Vec<_>>()
        };
        assert_eq!(elements("for=a;proto=http, for=b"), ["b", "a"]);
        assert_eq!(elements("For=\"[::1]:80\" ; by=x"), ["[::1]:80"]);
        assert_eq!(elements("host=\"a,b;for=c\";for=d"), ["d"]);
        assert_eq!(elements("host=\"a\\\",b\";for=d,FOR=e"), ["e", "d"]);
        assert_eq!(elements("for=a;for=b"), ["for=a;for=b"]);
        assert_eq!(elements("proto=http"), ["proto=http"]);
        assert_eq!(elements(""), [""]);
        // An open quote on the left does not change what stands on the right.
        assert_eq!(elements("for=\"a, for=b"), ["b", "\"a"]);
        assert_eq!(elements("x=\"\\\", for=\"b\"")[0], "b");
    }
}
