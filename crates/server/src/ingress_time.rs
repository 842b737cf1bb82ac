//! The time of a request, as a trusted proxy brings it (`subjects.time_header`).
//!
//! A proxy may take a request, and ask later. With `clock: caller`, the store then decides at the time
//! when the proxy took the request. The time is a number since the epoch: seconds (with a fraction),
//! milliseconds or microseconds, by its number of digits. `t=` may stand before it. It is cut to whole
//! milliseconds, so that requests of one millisecond can share a call of the store.
//!
//! A time that cannot be right is ignored, and the clock of this host counts: several values, not a
//! number, or too far from the clock of this host. A time in the future becomes the present.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Extensions, HeaderMap, HeaderName};
use tollgate::{ActiveConfig, Clock, Snapshot, Span, SystemClock, Time};
use tollgate_config::Subjects;

use crate::net::Peer;

/// Reads the times of requests, as a config says.
pub(crate) struct IngressTime {
    header: Option<HeaderName>,
    max_skew: Span,
    subjects: Subjects,
    clock: SystemClock,
    /// Whether a time that was ignored was logged.
    warned: AtomicBool,
}

impl IngressTime {
    pub(crate) fn of(active: &ActiveConfig) -> IngressTime {
        IngressTime::new(&active.config().subjects)
    }

    pub(crate) fn new(subjects: &Subjects) -> IngressTime {
        // The config accepts only valid header names, so no name is dropped here.
        let header = subjects.time_header.as_deref();
        IngressTime {
            header: header.and_then(|name| HeaderName::try_from(name).ok()),
            max_skew: subjects.max_time_skew,
            subjects: subjects.clone(),
            clock: SystemClock::new(),
            warned: AtomicBool::new(false),
        }
    }

    /// Returns the snapshot of a request with `headers`, at the time of the request if its [`Peer`] is
    /// trusted to bring it.
    #[inline]
    pub(crate) fn apply<'l>(
        &self,
        snapshot: Snapshot<'l>,
        extensions: &Extensions,
        headers: &HeaderMap,
    ) -> Snapshot<'l> {
        match self.header {
            None => snapshot,
            Some(_) => {
                let peer = extensions.get::<Peer>().map(|Peer(peer)| *peer);
                self.apply_from(snapshot, peer, headers)
            }
        }
    }

    /// Returns the snapshot of a request with `headers` that `peer` sent, at the time of the request if `peer`
    /// is trusted to bring it.
    #[inline]
    pub(crate) fn apply_from<'l>(
        &self,
        snapshot: Snapshot<'l>,
        peer: Option<SocketAddr>,
        headers: &HeaderMap,
    ) -> Snapshot<'l> {
        if self.header.is_none() {
            return snapshot;
        }
        match self.read(peer, headers, self.clock.now()) {
            Some(time) => snapshot.at(time),
            None => snapshot,
        }
    }

    /// Returns the time that a request brings, if it is used.
    fn read(&self, peer: Option<SocketAddr>, headers: &HeaderMap, now: Time) -> Option<Time> {
        let name = self.header.as_ref()?;
        let peer = peer?.ip().to_canonical();
        let mut values = headers.get_all(name).iter();
        let value = values.next()?;
        if !self.subjects.is_trusted(peer) {
            return None;
        }
        let alone = values.next().is_none();
        let time = alone.then(|| parse(value.as_bytes())).flatten();
        let skew = |time: Time| now.since(time).max(time.since(now));
        let used = time.filter(|time| skew(*time) <= self.max_skew);
        if used.is_none() && !self.warned.swap(true, Ordering::Relaxed) {
            let (header, max_skew) = (name.as_str(), self.max_skew.to_string());
            tracing::warn!(
                header,
                max_skew,
                "ignored the time header of a trusted proxy: its value is not a time, or differs from the clock of this host by more than max_time_skew"
            );
        }
        used.map(|time| time.min(now))
    }
}

/// Reads a time in whole milliseconds.
fn parse(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let text = text.strip_prefix("t=").unwrap_or(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |text: &str| (1..=16).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let millis = match whole.len() {
        10 => {
            let digits: String = format!("{fraction:0<3}").chars().take(3).collect();
            number * 1000 + digits.parse::<u64>().ok()?
        }
        13 => number,
        16 => number / 1000,
        _ => return None,
    };
    Some(Time::from_micros(millis * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_700_000_000_500_000);

    fn times() -> IngressTime {
        let text = "
version: 1
subjects:
  hash_secret: 0123456789abcdef
  trusted_proxies: [10.0.0.0/8]
  time_header: X-Request-Start
store: { redis: { url: 'redis://localhost', clock: caller } }
rules: []
";
        let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
        IngressTime::new(&config.subjects)
    }

    fn read(peer: &str, values: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-request-start", value.parse().unwrap());
        }
        let peer = Some(SocketAddr::new(peer.parse().unwrap(), 1));
        times().read(peer, &headers, NOW).map(Time::as_micros)
    }

    #[test]
    fn every_usual_form_is_read_in_whole_milliseconds() {
        for (text, millis) in [
            ("1700000000", 1_700_000_000_000),
            ("1700000000.123", 1_700_000_000_123),
            ("t=1700000000.1239", 1_700_000_000_123),
            ("1700000000.1", 1_700_000_000_100),
            (" 1700000000123 ", 1_700_000_000_123),
            ("1700000000123999", 1_700_000_000_123),
        ] {
            let time = parse(text.as_bytes()).unwrap();
            assert_eq!(time.as_micros(), millis * 1000, "{text}");
        }
        for wrong in [
            "",
            "now",
            "-1700000000",
            "170000000",
            "1700000000.",
            "t=",
            "17000000001234567",
            "1e9",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn only_a_trusted_proxy_brings_a_time() {
        let given = ["1700000000.123"];
        assert_eq!(read("10.1.2.3", &given), Some(1_700_000_000_123_000));
        assert_eq!(read("::ffff:10.1.2.3", &given), Some(1_700_000_000_123_000));
        assert_eq!(read("192.0.2.1", &given), None);
        assert_eq!(times().read(None, &HeaderMap::new(), NOW), None);
    }

    #[test]
    fn time_that_cannot_be_right_is_not_used() {
        let proxy = "10.0.0.1";
        // The skew is at most five seconds.
        assert_eq!(read(proxy, &["1699999995.5"]), Some(1_699_999_995_500_000));
        assert_eq!(read(proxy, &["1699999995.4"]), None);
        assert_eq!(read(proxy, &["1700000005.6"]), None);
        assert_eq!(read(proxy, &["yesterday"]), None);
        assert_eq!(read(proxy, &["1700000000", "1700000001"]), None);
        assert_eq!(read(proxy, &[]), None);
        // A future time becomes the present.
        assert_eq!(read(proxy, &["1700000003"]), Some(NOW.as_micros()));
    }
}
