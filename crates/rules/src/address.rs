//! Addresses as subjects: an IPv6 client owns a whole prefix, so the prefix is the subject.

use std::net::{IpAddr, Ipv6Addr};

/// The attribute that holds a client's address.
pub(crate) const ATTRIBUTE: &str = "ip";

/// The subject that `address` stands for: an IPv6 address cut to `prefix` bits, an IPv4 address
/// written in IPv6 as IPv4. `None` if the text itself is the subject.
pub(crate) fn subject(address: &str, prefix: u8) -> Option<String> {
    // A text without a colon is IPv4, or not an address.
    if !address.contains(':') {
        return None;
    }
    let address: Ipv6Addr = address.parse().ok()?;
    Some(network(address.into(), prefix))
}

/// An IPv6 address cut to `prefix` bits, or an IPv4 address.
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
        let in_64 = ["2001:db8::1", "2001:db8:0:0:ffff::9", "2001:DB8::"];
        for address in in_64 {
            assert_eq!(subject(address, 64).as_deref(), Some("2001:db8::/64"));
        }
        assert_eq!(
            subject("2001:db8:0:1::1", 64).as_deref(),
            Some("2001:db8:0:1::/64")
        );
        assert_eq!(
            subject("2001:db8::1", 128).as_deref(),
            Some("2001:db8::1/128")
        );
        assert_eq!(subject("ffff::1", 1).as_deref(), Some("8000::/1"));
    }

    #[test]
    fn ipv4_stands_for_itself_however_it_is_written() {
        assert_eq!(subject("192.0.2.1", 64), None);
        assert_eq!(
            subject("::ffff:192.0.2.1", 64).as_deref(),
            Some("192.0.2.1")
        );
    }

    #[test]
    fn other_texts_stand_for_themselves() {
        for text in ["", "somebody", "a:b", "2001:db8::1%eth0", "[::1]"] {
            assert_eq!(subject(text, 64), None, "{text}");
        }
    }
}
