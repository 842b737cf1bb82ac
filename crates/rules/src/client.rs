//! Who asks, for doors that read it from a request: which headers, and whose word counts.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address;
use crate::config::{Secret, Subjects};
use crate::read::words;

words! {
    /// A header in which proxies name the client's address.
    pub enum ClientHeader is "a header of the client's address" {
        /// A list of addresses, the nearest last.
        XForwardedFor = "x-forwarded-for",
        /// The same as a standard (RFC 7239).
        Forwarded = "forwarded",
        /// One address.
        XRealIp = "x-real-ip",
    }
}

/// The headers that say who asks, in small letters; `None` for those that are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubjectHeaders {
    /// The API key: `x-api-key` unless given.
    pub api_key: Option<String>,
    /// The user, believed from trusted proxies: `x-user-id` unless given.
    pub user: Option<String>,
    /// The service account, believed from trusted proxies: `x-service-account` unless given.
    pub service_account: Option<String>,
    /// The tenant, believed from trusted proxies: `x-tenant-id` unless given.
    pub tenant: Option<String>,
}

impl Default for SubjectHeaders {
    fn default() -> SubjectHeaders {
        let named = |name: &str| Some(name.to_owned());
        SubjectHeaders {
            api_key: named("x-api-key"),
            user: named("x-user-id"),
            service_account: named("x-service-account"),
            tenant: named("x-tenant-id"),
        }
    }
}

impl Default for Subjects {
    fn default() -> Subjects {
        Subjects {
            hash_secret: None::<Secret>,
            trusted_proxies: Vec::new(),
            client_header: None,
            headers: SubjectHeaders::default(),
            internal: Vec::new(),
            test_header: None,
            ipv6_prefix: 64,
            max_keys: 10_000_000,
        }
    }
}

impl Subjects {
    /// Whether `address` is that of a proxy whose word on clients is believed.
    #[must_use]
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        is_in(&self.trusted_proxies, address)
    }

    /// Whether `address` is that of a client inside.
    #[must_use]
    pub fn is_internal(&self, address: IpAddr) -> bool {
        is_in(&self.internal, address)
    }

    /// What a client at `address` is limited by: its IPv4 address, or the prefix of its IPv6
    /// address that it owns.
    ///
    /// ```
    /// let subjects = tollgate_rules::Subjects::default();
    /// assert_eq!(subjects.network_of("2001:db8::7".parse()?), "2001:db8::/64");
    /// assert_eq!(subjects.network_of("::ffff:192.0.2.1".parse()?), "192.0.2.1");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn network_of(&self, address: IpAddr) -> String {
        address::network(address, self.ipv6_prefix)
    }
}

fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}
