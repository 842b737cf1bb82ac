//! Addresses as subjects: an IPv6 client owns a whole prefix, so the prefix is the subject.

use std::net::{IpAddr, Ipv6Addr};

/// The attribute that holds a client's address.
pub(crate) const ATTRIBUTE: &str = "ip";

/// Cuts an IPv6 address to its first `prefix` bits, and writes an IPv4 address that is mapped into IPv6
/// in the IPv4 notation. The result is the subject. `None` if the text itself is the subject.
pub(crate) fn subject(address: &str, prefix: u8) -> Option<String> {
    // A text without a colon is IPv4, or not an address.
    if !address.contains(':') {
        return None;
    }
    let address: Ipv6Addr = address.parse().ok()?;
    Some(network(address.into(), prefix))
}

/// Cuts an IPv6 address to its first `prefix` bits. Returns an IPv4 address as it is.
#[must_use]
pub fn network(address: IpAddr, prefix: u8) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            format!("{}/{prefix}", Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_its_prefix() {
        for (address, prefix, expected) in [
            ("2001:db8::1", 64, "2001:db8::/64"),
            ("2001:db8:0:0:ffff::9", 64, "2001:db8::/64"),
            ("2001:DB8::", 64, "2001:db8::/64"),
            ("2001:db8:0:1::1", 64, "2001:db8:0:1::/64"),
            ("2001:db8::1", 128, "2001:db8::1/128"),
            ("ffff::1", 1, "8000::/1"),
            // An IPv4 address in IPv6 notation.
            ("::ffff:192.0.2.1", 64, "192.0.2.1"),
        ] {
            let subject = subject(address, prefix);
            assert_eq!(subject.as_deref(), Some(expected), "{address}");
        }
    }

    #[test]
    fn other_texts_stand_for_themselves() {
        let texts = ["", "somebody", "a:b", "2001:db8::1%eth0", "[::1]"];
        for text in texts.into_iter().chain(["192.0.2.1"]) {
            assert_eq!(subject(text, 64), None, "{text}");
        }
    }
}
