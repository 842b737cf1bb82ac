//! Addresses and networks: how they are read, compared and looked up, and the subject of an address.
//!
//! Clients and proxies write one address in several ways: with a port, in brackets, with spaces, as IPv4
//! in IPv6 notation. All of them mean the same address here, so they match the same networks and make
//! the same subject. An IPv6 client owns a whole prefix, so the prefix is the subject.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use ipnet::IpNet;

use crate::document::{BadValue, Short};

/// The attribute that holds a client's address.
pub(crate) const ATTRIBUTE: &str = "ip";

/// The longest text of an address, with brackets, a zone and a port.
const MAX_ADDRESS: usize = 128;

/// Parses an address as clients and proxies write it: with or without spaces around it, brackets, a zone
/// and a port. An IPv4 address in IPv6 notation is returned as IPv4.
///
/// ```
/// let address = tollgate_rules::parse_address("[::ffff:192.0.2.1]:80");
/// assert_eq!(address, "192.0.2.1".parse().ok());
/// assert_eq!(tollgate_rules::parse_address("somebody"), None);
/// ```
#[must_use]
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim_ascii();
    if text.len() > MAX_ADDRESS {
        return None;
    }
    let address = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let port = port.strip_prefix(':').map_or(port.is_empty(), is_port);
        port.then(|| ipv6(address)).flatten()?.into()
    } else if text.matches(':').count() > 1 {
        ipv6(text)?.into()
    } else {
        let (address, port) = text.split_once(':').unwrap_or((text, "0"));
        let address: Ipv4Addr = is_port(port).then(|| address.parse().ok()).flatten()?;
        IpAddr::V4(address)
    };
    Some(address.to_canonical())
}

/// Returns an address as a text, as its `Display` does. Doors do this for each request, and for IPv4 this is
/// faster than `Display`.
///
/// ```
/// let address = tollgate_rules::address_text([192, 0, 2, 1].into());
/// assert_eq!(address, "192.0.2.1");
/// ```
#[must_use]
pub fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        return address.to_string();
    };
    let mut text = String::with_capacity(15);
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let zeros = digits[..2].iter().take_while(|digit| **digit == 0).count();
        text.extend(digits[zeros..].iter().map(|digit| char::from(b'0' + digit)));
    }
    text
}

/// Parses an IPv6 address. Drops its zone, which has a meaning only on the machine that wrote the
/// address.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    let address = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _)) => address,
        None => text,
    };
    address.parse().ok()
}

/// Returns whether `text` is a port, or one of the forms in RFC 7239 that hide a port.
fn is_port(text: &str) -> bool {
    let hidden = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(hidden),
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

/// Parses a network such as `10.0.0.0/8` or `fd00::/8`.
///
/// # Errors
/// If the text is not a network, if bits after the prefix are set, or if the network is IPv4 in IPv6
/// notation.
pub fn parse_network(text: &str) -> Result<IpNet, BadValue> {
    let Ok(network) = text.parse::<IpNet>() else {
        let help = match text.parse::<IpAddr>() {
            Ok(address) => format!("write {}", IpNet::from(address.to_canonical())),
            Err(_) => "write one such as 10.0.0.0/8 or fd00::/8".to_owned(),
        };
        return Err(BadValue::new(
            format!("`{}` is not a network", Short(text)),
            help,
        ));
    };
    let whole = network.trunc();
    if whole != network {
        let message = format!("`{text}` has bits set after the prefix");
        return Err(BadValue::new(
            message,
            format!("write the network, {whole}"),
        ));
    }
    let Some(plain) = as_ipv4(network) else {
        return Ok(network);
    };
    let message = format!("`{text}` is an IPv4 network in IPv6 notation");
    let help = format!("write {plain}: IPv4 addresses are compared as IPv4");
    Err(BadValue::new(message, help))
}

/// Returns the IPv4 network that an IPv4-mapped IPv6 network stands for.
fn as_ipv4(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(network) = network else {
        return None;
    };
    let address = network.addr().to_ipv4_mapped()?;
    let prefix = network.prefix_len().checked_sub(96)?;
    IpNet::new(address.into(), prefix).ok()
}

/// Returns the network that a value of the attribute `ip` in a `match` stands for. An address is a
/// network of one address. `None` if the value is a plain text, such as `unknown`.
pub(crate) fn matched_network(text: &str) -> Result<Option<IpNet>, BadValue> {
    if text.contains('/') {
        return parse_network(text).map(Some);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Some(address.to_canonical().into()));
    }
    let digits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    if !digits && !text.contains(':') {
        return Ok(None);
    }
    let help = match parse_address(text) {
        Some(address) => format!("write {address}"),
        None => "write an address such as 192.0.2.1, or a network such as 10.0.0.0/8 or fd00::/8"
            .to_owned(),
    };
    let message = format!("`{}` is not an address", Short(text));
    Err(BadValue::new(message, help))
}

/// Values by network. A lookup costs one hash for each prefix length in use. The number of networks does
/// not matter.
#[derive(Debug, Default)]
pub(crate) struct NetworkMap<T>(Vec<Level<T>>);

/// The networks with one prefix length.
#[derive(Debug)]
struct Level<T> {
    v4: bool,
    prefix: u8,
    values: HashMap<u128, T, RandomState>,
}

impl<T: Default> NetworkMap<T> {
    /// Returns the value of a network. A new network gets the default.
    pub(crate) fn entry(&mut self, network: IpNet) -> &mut T {
        let (v4, prefix) = (matches!(network, IpNet::V4(_)), network.prefix_len());
        let same = |level: &Level<T>| level.v4 == v4 && level.prefix == prefix;
        let place = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(Level {
                v4,
                prefix,
                values: HashMap::default(),
            });
            self.0.len() - 1
        });
        let bits = leading_bits(network.addr(), prefix);
        self.0[place].values.entry(bits).or_default()
    }
}

impl<T> NetworkMap<T> {
    /// Returns the values of all networks that contain `address`.
    pub(crate) fn all(&self, address: IpAddr) -> impl Iterator<Item = &T> {
        let levels = self.0.iter();
        let levels = levels.filter(move |level| level.v4 == address.is_ipv4());
        levels.filter_map(move |level| level.values.get(&leading_bits(address, level.prefix)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns an address with the bits after its first `prefix` bits cleared.
fn leading_bits(address: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32u8),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let dropped = u32::from(width.saturating_sub(prefix));
    bits & u128::MAX.checked_shl(dropped).unwrap_or(0)
}

/// Returns the subject of an address: IPv4 in plain notation, or IPv6 cut to its first `prefix` bits.
/// `None` if the text itself is the subject.
pub(crate) fn subject(text: &str, prefix: u8) -> Option<String> {
    // IPv4 has only one plain notation. A text without these characters is in that notation, or is
    // not an address.
    let plain = |byte: u8| byte != b':' && !byte.is_ascii_whitespace();
    if text.bytes().all(plain) {
        return None;
    }
    parse_address(text).map(|address| network(address, prefix))
}

/// Cuts an IPv6 address to its first `prefix` bits. Returns an IPv4 address as it is.
#[must_use]
pub fn network(address: IpAddr, prefix: u8) -> String {
    match address.to_canonical() {
        address @ IpAddr::V4(_) => address_text(address),
        IpAddr::V6(address) => {
            let bits = leading_bits(address.into(), prefix);
            format!("{}/{prefix}", Ipv6Addr::from_bits(bits))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_of_an_address_is_that_of_its_display() {
        for octet in 0..=255 {
            let address = IpAddr::from([octet, 255 - octet, octet / 2, 0]);
            assert_eq!(address_text(address), address.to_string());
        }
        let address = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
        assert_eq!(address_text(address), "2001:db8::1");
    }

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
    fn all_notations_of_an_address_make_one_subject() {
        let v4 = [
            "192.0.2.1:80",
            " 192.0.2.1",
            "192.0.2.1 ",
            "\t192.0.2.1:65535",
            "::ffff:192.0.2.1",
            "::FFFF:c000:0201",
            "[::ffff:192.0.2.1]",
            "[::ffff:192.0.2.1]:443",
        ];
        for text in v4 {
            assert_eq!(subject(text, 64).as_deref(), Some("192.0.2.1"), "{text:?}");
        }
        let v6 = [
            "::1",
            "[::1]",
            "[::1]:80",
            " ::1 ",
            "0:0:0:0:0:0:0:1",
            "::1%eth0",
            "[::1%1]:80",
        ];
        for text in v6 {
            assert_eq!(subject(text, 128).as_deref(), Some("::1/128"), "{text:?}");
        }
    }

    #[test]
    fn other_texts_stand_for_themselves() {
        let texts = [
            "",
            " ",
            "somebody",
            "a:b",
            "192.0.2.1:",
            "192.0.2.1:80000",
            "[::1",
            "[::1]x",
        ];
        let longer = ["192.0.2.1, 192.0.2.2", "1.2.3", "192.0.2.1"];
        for text in texts.into_iter().chain(longer) {
            assert_eq!(subject(text, 64), None, "{text}");
        }
        assert_eq!(subject(&(" ".repeat(200) + ":"), 64), None);
    }

    #[test]
    fn matched_values_are_networks_addresses_or_plain_texts() {
        let network = |text: &str| matched_network(text).map(|it| it.map(|it| it.to_string()));
        assert_eq!(network("10.0.0.0/8"), Ok(Some("10.0.0.0/8".to_owned())));
        assert_eq!(network("fd00::/8"), Ok(Some("fd00::/8".to_owned())));
        assert_eq!(network("192.0.2.1"), Ok(Some("192.0.2.1/32".to_owned())));
        let mapped = network("::ffff:192.0.2.1");
        assert_eq!(mapped, Ok(Some("192.0.2.1/32".to_owned())));
        assert_eq!(
            network("2001:DB8::1"),
            Ok(Some("2001:db8::1/128".to_owned()))
        );
        assert_eq!(network("unknown"), Ok(None));
        assert_eq!(network(""), Ok(None));
        let wrong = [
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0/8",
            "::ffff:10.0.0.0/104",
            "a/b",
            "/8",
        ];
        let more = [
            "10.0.0",
            "10.0.0.256",
            "192.0.2.1:80",
            "[::1]",
            "::g",
            "fd00::/129",
            "10.0.0.0/",
        ];
        for text in wrong.into_iter().chain(more) {
            let bad = network(text).unwrap_err();
            assert!(!bad.help.is_empty(), "{text}");
        }
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        // Few distinct bits, so that networks overlap.
        let bits = prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>()];
        (any::<bool>(), bits, 0u32..128).prop_map(|(v4, bits, flip)| {
            let bits = bits ^ (1 << flip);
            match v4 {
                #[allow(clippy::cast_possible_truncation)]
                true => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
                false => IpAddr::V6(Ipv6Addr::from_bits(bits)),
            }
        })
    }

    proptest! {
        #[test]
        fn a_map_finds_every_network_that_contains_an_address(
            networks in proptest::collection::vec((any_address(), 0u8..=128), 0..12),
            address in any_address(),
        ) {
            let networks = networks.into_iter().map(|(address, prefix)| {
                let most = if address.is_ipv4() { 32 } else { 128 };
                IpNet::new(address, prefix.min(most)).unwrap().trunc()
            });
            let networks: Vec<IpNet> = networks.collect();
            let mut map: NetworkMap<Vec<usize>> = NetworkMap::default();
            for (index, network) in networks.iter().enumerate() {
                map.entry(*network).push(index);
            }
            let mut found: Vec<usize> = map.all(address).flatten().copied().collect();
            found.sort_unstable();
            let all = networks.iter().enumerate();
            let expected = all.filter(|(_, it)| it.contains(&address)).map(|(index, _)| index);
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (parse_address(&text), matched_network(&text), subject(&text, 64));
        }
    }
}
