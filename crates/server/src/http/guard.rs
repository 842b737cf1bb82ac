//! Decides which requests of web pages a door accepts.
//!
//! A browser sends requests of any web page to any address, even to a door that only this machine can
//! reach. The page cannot read the answer, but a write would take effect. So a door refuses a request
//! with a foreign `Origin`, and a request that a browser marks as sent by another site. Other programs
//! send neither header.
//!
//! If the name of a page resolves to the address of a door (DNS rebinding), the page and the door have
//! the same origin for the browser. Only the `Host` shows the foreign name. So the admin door accepts
//! only names that it knows. Data doors stand behind proxies and accept any name. But when they check the
//! `Origin`, a foreign name does not count as their own.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use http::{HeaderValue, Method, Request, Version};
use tollgate_config::Listen;

use crate::outbound::Seldom;
use crate::respond::RequestError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// A door with a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardedDoor {
    Http,
    Admin,
}

impl GuardedDoor {
    /// Returns the section of the config that describes the door.
    fn name(self) -> &'static str {
        match self {
            GuardedDoor::Http => "server.http",
            GuardedDoor::Admin => "server.admin",
        }
    }
}

/// Refuses the requests of foreign web pages.
#[derive(Debug)]
pub(crate) struct Guard {
    door: GuardedDoor,
    address: SocketAddr,
    /// Names of the config, in lower case.
    hosts: Vec<String>,
    /// Origins of the config, in lower case.
    origins: Vec<String>,
    log: Seldom,
}

impl Guard {
    /// Guards the door that listens on `address`, with the names and origins of `listen`.
    pub(crate) fn new(door: GuardedDoor, address: SocketAddr, listen: &Listen) -> Guard {
        Guard {
            door,
            address,
            hosts: listen.hosts.clone(),
            origins: listen.origins.clone(),
            log: Seldom::default(),
        }
    }

    /// Returns an error if the door must not answer this request. Costs three lookups of headers if
    /// the request does not come from a browser.
    #[inline]
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), RequestError> {
        let headers = request.headers();
        if request.version() == Version::HTTP_11 {
            let mut hosts = headers.get_all(HOST).iter();
            if hosts.next().is_none() || hosts.next().is_some() {
                return Err(RequestError::NotOneHost);
            }
        }
        let is_browser = headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE);
        if self.door == GuardedDoor::Admin || is_browser {
            return self.check_page(request);
        }
        Ok(())
    }

    /// Checks where the request comes from. Logs a refusal, because the page that sent the request
    /// may be hostile.
    #[cold]
    fn check_page<B>(&self, request: &Request<B>) -> Result<(), RequestError> {
        let host = match self.door {
            GuardedDoor::Http => Ok(()),
            GuardedDoor::Admin => self.check_host(request),
        };
        let checked = host.and_then(|()| self.check_origin(request));
        if let Err(error) = &checked
            && let Some(unlogged) = self.log.due()
        {
            tracing::warn!(unlogged, "refused a request: {error}");
        }
        checked
    }

    /// Checks every host name in the request. A request to a proxy, and an HTTP/2 request, may have
    /// two: in the target and in `Host`.
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), RequestError> {
        let target = request.uri().authority().map(|it| it.as_str().as_bytes());
        let hosts = request.headers().get_all(HOST);
        let hosts = hosts.iter().map(HeaderValue::as_bytes);
        for host in target.into_iter().chain(hosts) {
            let known = std::str::from_utf8(host).is_ok_and(|host| {
                let (name, _) = split(host);
                self.is_known(name)
            });
            if !known {
                let (name, door) = (shown(host), self.door.name());
                return Err(RequestError::UnknownHost { name, door });
            }
        }
        Ok(())
    }

    fn check_origin<B>(&self, request: &Request<B>) -> Result<(), RequestError> {
        let (headers, path) = (request.headers(), request.uri().path());
        // A proxy passes on the headers of its own client here, such as the `Origin` of the page that
        // the proxy protects. The path takes requests of trusted proxies only.
        if self.door == GuardedDoor::Http && (path == "/auth" || path.starts_with("/auth/")) {
            return Ok(());
        }
        let foreign = |origin| {
            let door = self.door.name();
            Err(RequestError::ForeignOrigin { origin, door })
        };
        let mut has_origin = false;
        for origin in headers.get_all(ORIGIN) {
            has_origin = true;
            let allowed = origin
                .to_str()
                .is_ok_and(|origin| self.takes_origin(origin, headers));
            if !allowed {
                return foreign(shown(origin.as_bytes()));
            }
        }
        // Browsers send no `Origin` for an image, a script or a link. A link may be followed: the person
        // at the browser sees the answer, and the page does not.
        if !has_origin && is_cross_site(headers) && !is_link(request) {
            return foreign("another site".to_owned());
        }
        Ok(())
    }

    fn takes_origin(&self, origin: &str, headers: &HeaderMap) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.origins.contains(&origin) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else {
            return false;
        };
        let (name, port) = split(authority);
        if !self.is_known(name) {
            return false;
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let default = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let port = port.map_or(Some(default), |port| port.parse().ok());
        port == Some(self.address.port())
            || host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
    }

    /// Returns whether `name` means this machine or the door's address, or is listed in the config.
    fn is_known(&self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let bare = bare.unwrap_or(name);
        if let Ok(given) = bare.parse::<IpAddr>() {
            let (given, own) = (given.to_canonical(), self.address.ip().to_canonical());
            // A door that listens on all addresses accepts each of them. DNS rebinding needs a
            // name, and a name is never parsed as an address.
            let is_own = given.is_loopback() || given == own || own.is_unspecified();
            return is_own || self.hosts.iter().any(|it| *it == given.to_string());
        }
        let bare = bare.strip_suffix('.').unwrap_or(bare);
        let is = |known: &str| known.eq_ignore_ascii_case(bare);
        is("localhost") || self.hosts.iter().any(|known| is(known))
    }
}

/// Splits host and port. The port may be missing.
fn split(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        // The last colon of an IPv6 address is within its brackets.
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (authority, None),
    }
}

/// Returns whether a browser says that another site sent the request. Two ports of one machine are the
/// same site, and not the same origin.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let own = [&b"same-origin"[..], b"none"];
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    sites.any(|site| !own.contains(&site.as_bytes()))
}

/// Returns whether a person follows a link, so that the answer becomes the page that the person
/// sees.
fn is_link<B>(request: &Request<B>) -> bool {
    let is = |name, value: &str| {
        let given = request.headers().get(name);
        given.is_some_and(|given| given == value)
    };
    *request.method() == Method::GET
        && is(SEC_FETCH_MODE, "navigate")
        && is(SEC_FETCH_DEST, "document")
}

/// Returns the start of a header, for a message.
fn shown(header: &[u8]) -> String {
    let text = String::from_utf8_lossy(header);
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(door: GuardedDoor, address: &str) -> Guard {
        let address = address.parse().unwrap();
        let mut listen = Listen::new(address, None);
        listen.hosts = vec!["admin.example.com".to_owned(), "fd00::7".to_owned()];
        listen.origins = vec!["https://app.example.com".to_owned()];
        Guard::new(door, address, &listen)
    }

    fn code(guard: &Guard, request: &[(&str, &str)]) -> &'static str {
        let mut built = Request::builder().uri("/v1/reset").method("POST");
        for (name, value) in request {
            built = match *name {
                ":path" => built.uri(*value),
                ":method" => built.method(*value),
                name => built.header(name, *value),
            };
        }
        match guard.check(&built.body(()).unwrap()) {
            Ok(()) => "ok",
            Err(RequestError::NotOneHost) => "host",
            Err(RequestError::UnknownHost { .. }) => "unknown",
            Err(RequestError::ForeignOrigin { .. }) => "foreign",
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn http_1_1_needs_exactly_one_host() {
        let guard = guard(GuardedDoor::Http, "127.0.0.1:8080");
        assert_eq!(code(&guard, &[]), "host");
        assert_eq!(code(&guard, &[("host", "a"), ("host", "a")]), "host");
        assert_eq!(code(&guard, &[("host", "any.example.com")]), "ok");
        let mut older = Request::new(());
        *older.version_mut() = Version::HTTP_10;
        assert!(guard.check(&older).is_ok());
    }

    #[test]
    fn admin_door_knows_its_names() {
        let local = guard(GuardedDoor::Admin, "127.0.0.1:8082");
        let wide = guard(GuardedDoor::Admin, "[::]:8082");
        for (host, at_local, at_wide) in [
            ("localhost", "ok", "ok"),
            ("LocalHost.:9", "ok", "ok"),
            ("127.0.0.1:8082", "ok", "ok"),
            ("127.9.9.9", "ok", "ok"),
            ("[::1]:8082", "ok", "ok"),
            ("[::ffff:127.0.0.1]", "ok", "ok"),
            ("Admin.Example.com:8082", "ok", "ok"),
            ("[fd00::7]:1", "ok", "ok"),
            ("10.1.2.3:8082", "unknown", "ok"),
            ("evil.example.com", "unknown", "unknown"),
            ("localhost.evil.example.com", "unknown", "unknown"),
            ("127.0.0.1.evil.example.com", "unknown", "unknown"),
            ("127.0.0.1@evil.example.com", "unknown", "unknown"),
            ("", "unknown", "unknown"),
        ] {
            assert_eq!(code(&local, &[("host", host)]), at_local, "{host}");
            assert_eq!(code(&wide, &[("host", host)]), at_wide, "{host}");
        }
        let target = [(":path", "http://evil.example.com/"), ("host", "localhost")];
        assert_eq!(code(&local, &target), "unknown");
    }

    #[test]
    fn foreign_origins_are_refused() {
        for door in [GuardedDoor::Http, GuardedDoor::Admin] {
            let guard = guard(door, "127.0.0.1:8082");
            for (origin, expected) in [
                ("http://127.0.0.1:8082", "ok"),
                ("http://localhost:8082", "ok"),
                ("http://[::1]:8082", "ok"),
                // The address that the client uses for the door, such as a forwarded port.
                ("http://localhost:9000", "ok"),
                ("https://app.example.com", "ok"),
                ("HTTPS://App.Example.com", "ok"),
                ("http://app.example.com", "foreign"),
                ("https://app.example.com:8443", "foreign"),
                ("http://127.0.0.1:3000", "foreign"),
                ("http://127.0.0.1", "foreign"),
                ("http://evil.example.com:8082", "foreign"),
                ("http://10.0.0.9:8082", "foreign"),
                ("null", "foreign"),
                ("", "foreign"),
                ("file://", "foreign"),
            ] {
                let request = [("host", "localhost:9000"), ("origin", origin)];
                assert_eq!(code(&guard, &request), expected, "{origin}");
            }
        }
    }

    #[test]
    fn rebound_name_is_not_the_own_origin_of_a_data_door() {
        let guard = guard(GuardedDoor::Http, "127.0.0.1:8080");
        let request = [
            ("host", "evil.example.com:8080"),
            ("origin", "http://evil.example.com:8080"),
        ];
        assert_eq!(code(&guard, &request), "foreign");
    }

    #[test]
    fn browsers_say_when_another_site_asks() {
        let guard = guard(GuardedDoor::Admin, "127.0.0.1:8082");
        let host = ("host", "localhost");
        for (site, expected) in [
            ("none", "ok"),
            ("same-origin", "ok"),
            ("same-site", "foreign"),
            ("cross-site", "foreign"),
            ("anything", "foreign"),
        ] {
            assert_eq!(code(&guard, &[host, ("sec-fetch-site", site)]), expected);
        }
        let link = |method, dest| {
            let request = [
                host,
                (":method", method),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", dest),
            ];
            code(&guard, &request)
        };
        assert_eq!(link("GET", "document"), "ok");
        assert_eq!(link("GET", "iframe"), "foreign");
        assert_eq!(link("POST", "document"), "foreign");
        // A listed origin may send requests, although it is another site.
        let listed = [
            host,
            ("sec-fetch-site", "cross-site"),
            ("origin", "https://app.example.com"),
        ];
        assert_eq!(code(&guard, &listed), "ok");
    }

    #[test]
    fn forward_auth_takes_the_headers_of_the_page_it_protects() {
        let page = [("host", "a"), ("origin", "https://shop.example.com")];
        let at = |door, path| {
            let request = [&page[..], &[(":path", path)]].concat();
            code(&guard(door, "127.0.0.1:8080"), &request)
        };
        assert_eq!(at(GuardedDoor::Http, "/auth"), "ok");
        assert_eq!(at(GuardedDoor::Http, "/auth/x"), "ok");
        assert_eq!(at(GuardedDoor::Http, "/authentic"), "foreign");
        assert_eq!(at(GuardedDoor::Http, "/v1/check"), "foreign");
    }
}
