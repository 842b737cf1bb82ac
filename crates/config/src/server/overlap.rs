//! Whether two doors can listen on two addresses at the same time.

use std::net::{IpAddr, SocketAddr};

/// Whether a connection to `a` could also be one to `b`. Port 0 takes a free port, so it never overlaps.
pub(crate) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |wide: IpAddr, narrow: IpAddr| match wide {
        IpAddr::V4(wide) => wide.is_unspecified() && narrow.is_ipv4(),
        // Linux accepts IPv4 connections on `::` too, by default.
        IpAddr::V6(wide) => wide.is_unspecified(),
    };
    let (port, other) = (a.port(), b.port());
    let (a, b) = (a.ip().to_canonical(), b.ip().to_canonical());
    port != 0 && port == other && (a == b || covers(a, b) || covers(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_one_covers_the_other() {
        let table = [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
        ];
        for (a, b, expected) in table {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(overlap(a, b), expected, "{a} {b}");
            assert_eq!(overlap(b, a), expected, "{b} {a}");
        }
    }
}
