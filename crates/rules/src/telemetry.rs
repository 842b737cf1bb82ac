//! What a server tells of itself, and where.

use std::fmt;

/// What a server tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Telemetry {
    /// Where traces are sent; `None` if they are not.
    pub otlp: Option<OtlpUrl>,
    /// How many decisions are traced that belong to no trace yet, in hundredths of a percent: 1% unless
    /// given.
    pub sample: u16,
    /// How many refusals are logged in a second at most: 10 unless given; 0 logs none.
    pub rejections_per_second: u32,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            otlp: None,
            sample: 100,
            rejections_per_second: 10,
        }
    }
}

/// Where an OTLP collector takes HTTP: `http://127.0.0.1:4318`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtlpUrl {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address; an IPv6 address stands without its brackets.
    pub host: String,
    /// The port: 80 unless given, 443 with TLS.
    pub port: u16,
    /// What stands before `/v1/traces`: empty, or a path that starts with a slash and ends without.
    pub path: String,
}

impl fmt::Display for OtlpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let (host, port, path) = (&self.host, self.port, &self.path);
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}{path}")
        } else {
            write!(f, "{scheme}://{host}:{port}{path}")
        }
    }
}
