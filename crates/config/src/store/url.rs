//! The address of one Redis: `redis://user:password@host:6379/0`.
//!
//! An error names the problem and never quotes the URL: any part of a malformed URL may be a password.

use std::fmt;
use std::net::Ipv6Addr;

use tollgate_rules::document::BadValue;

use crate::secrets::Secret;

/// The default port of Redis.
pub(crate) const PORT: u16 = 6379;
/// The default port of a Sentinel.
pub(crate) const SENTINEL_PORT: u16 = 26379;
/// The longest name of a host.
const MAX_HOST: usize = 253;

/// The address of a Redis, with the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    /// A name or an address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port (default 6379, or 26379 for a Sentinel).
    pub port: u16,
    /// Whether the connection is encrypted: `rediss`.
    pub tls: bool,
    /// The user, decoded.
    pub username: Option<String>,
    /// The password, decoded.
    pub password: Option<Secret>,
    /// The database (default 0).
    pub database: u32,
}

impl RedisUrl {
    /// Reads a URL such as `rediss://user:p%40ss@[2001:db8::1]:6380/2`.
    ///
    /// # Errors
    /// If the text is not the URL of a Redis. The error does not quote the text.
    ///
    /// ```
    /// use tollgate_config::RedisUrl;
    ///
    /// let url = RedisUrl::parse("rediss://:p%40ss@cache.internal/2")?;
    /// assert_eq!((url.host.as_str(), url.port, url.database), ("cache.internal", 6379, 2));
    /// assert_eq!(url.password.as_ref().map(|it| it.expose()), Some(&b"p@ss"[..]));
    /// assert_eq!(url.to_string(), "rediss://cache.internal:6379/2");
    /// # Ok::<(), tollgate_config::UrlError>(())
    /// ```
    pub fn parse(text: &str) -> Result<RedisUrl, UrlError> {
        RedisUrl::parse_or(text, PORT)
    }

    /// Reads a URL. Its default port is `port`.
    pub(crate) fn parse_or(text: &str, port: u16) -> Result<RedisUrl, UrlError> {
        let parts = Parts::of(text)?;
        let tls = match parts.scheme.as_str() {
            "redis" => false,
            "rediss" => true,
            _ => return Err(UrlError::Scheme(parts.scheme)),
        };
        let (username, password) = parts.login()?;
        let (host, port) = address(parts.hosts, port)?;
        Ok(RedisUrl {
            host,
            port,
            tls,
            username,
            password,
            database: match parts.path {
                "" => 0,
                path => digits(path).ok_or(UrlError::BadDatabase)?,
            },
        })
    }
}

/// Shows the URL without the user and the password, for logs.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let address = host_port(&self.host, self.port);
        write!(f, "{scheme}://{address}/{}", self.database)
    }
}

/// Writes a host and its port as in a URL.
pub(crate) fn host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Why a URL was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// The URL does not start with a scheme and `://`.
    NoScheme,
    /// The URL's scheme is not a scheme of Redis.
    Scheme(String),
    /// The URL does not name a host.
    NoHost,
    /// The URL's host is not the name of a host.
    BadHost,
    /// The URL's host is an IPv6 address without brackets.
    BareIpv6,
    /// The URL names several hosts.
    SeveralHosts,
    /// The URL's port is not a number from 1 to 65535.
    BadPort,
    /// The URL's database is not a number.
    BadDatabase,
    /// A `%` in the user or the password is not followed by two hexadecimal digits, or the bytes are not UTF-8.
    BadEscape,
    /// A `/`, `?` or `#` in the user or the password is not escaped.
    Unescaped,
    /// The URL has a query or a fragment.
    Query,
}

impl UrlError {
    /// Returns the remedy.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match self {
            UrlError::NoScheme => "start with redis://, or with rediss:// for TLS",
            UrlError::Scheme(_) => "use redis://, or rediss:// for TLS",
            UrlError::NoHost => {
                "name the host after `//`, or after `@` if there is a user or a password"
            }
            UrlError::BadHost => {
                "a host has letters, digits, `.`, `_` and `-`; put `@` between a password and the host"
            }
            UrlError::BareIpv6 => "an IPv6 address stands in brackets, such as [::1]:6379",
            UrlError::SeveralHosts => "write one URL for each host",
            UrlError::BadPort => {
                "after the host and `:` comes a number from 1 to 65535; put `@` between a password and the host"
            }
            UrlError::BadDatabase => "after the host and `/` comes a number such as 0, or nothing",
            UrlError::BadEscape | UrlError::Unescaped => {
                "write `%25` for `%`, `%2F` for `/`, `%3F` for `?`, `%23` for `#`, `%40` for `@`"
            }
            UrlError::Query => {
                "remove everything after the number of the database: no parameters are supported"
            }
        }
    }
}

impl std::error::Error for UrlError {}

impl From<UrlError> for BadValue {
    fn from(error: UrlError) -> BadValue {
        BadValue::new(error.to_string(), error.help())
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrlError::NoScheme => "the URL has no scheme",
            UrlError::Scheme(scheme) => return write!(f, "`{scheme}` is not a scheme of Redis"),
            UrlError::NoHost => "the URL does not name a host",
            UrlError::BadHost => "the host of the URL is not the name of a host",
            UrlError::BareIpv6 => "the URL has more than one `:` after the host",
            UrlError::SeveralHosts => "the URL names several hosts",
            UrlError::BadPort => "the port of the URL is not a port",
            UrlError::BadDatabase => "the database of the URL is not a number",
            UrlError::BadEscape => {
                "a `%` in the user or password of the URL does not start an escape of UTF-8 text"
            }
            UrlError::Unescaped => {
                "a `/`, `?` or `#` in the user or password of the URL is not escaped"
            }
            UrlError::Query => "the URL has a query or a fragment",
        })
    }
}

/// The parts of a URL: `scheme://userinfo@hosts/path`.
pub(crate) struct Parts<'t> {
    /// In lower case.
    pub(crate) scheme: String,
    userinfo: Option<&'t str>,
    pub(crate) hosts: &'t str,
    /// Without the slash before it.
    pub(crate) path: &'t str,
}

impl<'t> Parts<'t> {
    pub(crate) fn of(text: &'t str) -> Result<Parts<'t>, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::NoScheme)?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-');
        if scheme.is_empty() || scheme.len() > 20 || !scheme.bytes().all(is_scheme) {
            return Err(UrlError::NoScheme);
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None if path.contains('@') => return Err(UrlError::Unescaped),
            None => (None, authority),
        };
        if path.contains(['?', '#']) {
            return Err(match path.contains('@') {
                true => UrlError::Unescaped,
                false => UrlError::Query,
            });
        }
        Ok(Parts {
            scheme: scheme.to_ascii_lowercase(),
            userinfo,
            hosts,
            path: path.strip_prefix('/').unwrap_or(path),
        })
    }

    pub(crate) fn has_login(&self) -> bool {
        self.userinfo.is_some()
    }

    /// Returns the user and the password, decoded. An empty one is `None`.
    pub(crate) fn login(&self) -> Result<(Option<String>, Option<Secret>), UrlError> {
        let Some(userinfo) = self.userinfo else {
            return Ok((None, None));
        };
        let (username, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let given = |text: String| (!text.is_empty()).then_some(text);
        let (username, password) = (given(decode(username)?), given(decode(password)?));
        Ok((username, password.map(Secret::new)))
    }
}

/// Reads a host and its port. The default port is `default`.
pub(crate) fn address(text: &str, default: u16) -> Result<(String, u16), UrlError> {
    if text.contains(',') {
        return Err(UrlError::SeveralHosts);
    }
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or(UrlError::BadHost)?;
        let host: Ipv6Addr = host.parse().map_err(|_| UrlError::BadHost)?;
        let port = match rest.strip_prefix(':') {
            Some(written) => port(written)?,
            None if rest.is_empty() => default,
            None => return Err(UrlError::BadPort),
        };
        return Ok((host.to_string(), port));
    }
    let (host, port) = match text.split_once(':') {
        Some(("", _)) => return Err(UrlError::NoHost),
        Some((_, port)) if port.contains(':') => return Err(UrlError::BareIpv6),
        Some((host, written)) => (host, port(written)?),
        None => (text, default),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    if host.len() > MAX_HOST || !host.bytes().all(is_host) {
        return Err(UrlError::BadHost);
    }
    Ok((host.to_owned(), port))
}

fn port(text: &str) -> Result<u16, UrlError> {
    let port = digits(text).and_then(|port| u16::try_from(port).ok());
    port.filter(|port| *port != 0).ok_or(UrlError::BadPort)
}

/// Reads a number that consists of digits, without a sign.
fn digits(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Decodes percent escapes, such as `%41`.
pub(crate) fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut hex = || char::from(rest.next()?).to_digit(16);
        let (high, low) = hex().zip(hex()).ok_or(UrlError::BadEscape)?;
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| UrlError::BadEscape)?);
    }
    String::from_utf8(bytes).map_err(|_| UrlError::BadEscape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exposed(url: &RedisUrl) -> Option<&str> {
        let bytes = url.password.as_ref()?.expose();
        Some(std::str::from_utf8(bytes).unwrap())
    }

    #[test]
    fn every_part_is_read() {
        // Host, port, encryption, user, password, database.
        let table = "
            redis://localhost => localhost 6379 plain - - 0
            redis://localhost/ => localhost 6379 plain - - 0
            rediss://localhost:1 => localhost 1 tls - - 0
            REDIS://h:65535/15 => h 65535 plain - - 15
            redis://10.0.0.1:6380 => 10.0.0.1 6380 plain - - 0
            redis://[::1] => ::1 6379 plain - - 0
            rediss://[2001:db8::1]:7/3 => 2001:db8::1 7 tls - - 3
            redis://my_cache-1.internal => my_cache-1.internal 6379 plain - - 0
            redis://u:p@h:1/2 => h 1 plain u p 2
            redis://:p@h => h 6379 plain - p 0
            redis://u@h => h 6379 plain u - 0
            redis://u:@h => h 6379 plain u - 0
            redis://@h => h 6379 plain - - 0
            redis://a%40b:p%2Fq%3a@h => h 6379 plain a@b p/q: 0
            redis://u:p:q@r@h => h 6379 plain u p:q@r 0
            redis://u:%C3%A4+@h => h 6379 plain u ä+ 0
        ";
        for (text, expected) in table.lines().filter_map(|line| line.split_once(" => ")) {
            let url =
                RedisUrl::parse(text.trim()).unwrap_or_else(|error| panic!("{text}: {error}"));
            let tls = if url.tls { "tls" } else { "plain" };
            let user = url.username.as_deref().unwrap_or("-");
            let password = exposed(&url).unwrap_or("-");
            let (host, port, database) = (&url.host, url.port, url.database);
            let found = format!("{host} {port} {tls} {user} {password} {database}");
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn errors_name_the_problem() {
        let table = [
            ("", UrlError::NoScheme),
            ("localhost:6379", UrlError::NoScheme),
            ("redis:/localhost", UrlError::NoScheme),
            ("://localhost", UrlError::NoScheme),
            ("a b://localhost", UrlError::NoScheme),
            ("http://localhost", UrlError::Scheme("http".to_owned())),
            (
                "redis-cluster://h",
                UrlError::Scheme("redis-cluster".to_owned()),
            ),
            ("redis://", UrlError::NoHost),
            ("redis:///0", UrlError::NoHost),
            ("redis://:6379", UrlError::NoHost),
            ("redis://u:p@", UrlError::NoHost),
            ("redis://u:p@:6379", UrlError::NoHost),
            ("redis://a b", UrlError::BadHost),
            ("redis://[::1", UrlError::BadHost),
            ("redis://[localhost]", UrlError::BadHost),
            ("redis://ä", UrlError::BadHost),
            ("redis://::1", UrlError::NoHost),
            ("redis://2001:db8::1", UrlError::BareIpv6),
            ("redis://a,b", UrlError::SeveralHosts),
            ("redis://a:1,b:2", UrlError::SeveralHosts),
            ("redis://h:", UrlError::BadPort),
            ("redis://h:0", UrlError::BadPort),
            ("redis://h:65536", UrlError::BadPort),
            ("redis://h:+1", UrlError::BadPort),
            ("redis://h:99999999999", UrlError::BadPort),
            ("redis://[::1]6379", UrlError::BadPort),
            ("redis://u:hunter2", UrlError::BadPort),
            ("redis://h/zero", UrlError::BadDatabase),
            ("redis://h/-1", UrlError::BadDatabase),
            ("redis://h/0/1", UrlError::BadDatabase),
            ("redis://u:p%@h", UrlError::BadEscape),
            ("redis://u:p%4@h", UrlError::BadEscape),
            ("redis://u:p%+4@h", UrlError::BadEscape),
            ("redis://u:p%ff@h", UrlError::BadEscape),
            ("redis://u:p/q@h", UrlError::Unescaped),
            ("redis://u:p?q@h", UrlError::Unescaped),
            ("redis://u:p#q@h", UrlError::Unescaped),
            ("redis://h?db=1", UrlError::Query),
            ("redis://h/1#a", UrlError::Query),
        ];
        for (text, expected) in table {
            let error = RedisUrl::parse(text).err();
            assert_eq!(error.as_ref(), Some(&expected), "{text}");
            assert!(!expected.to_string().contains("hunter2"), "{text}");
            assert!(!expected.help().is_empty());
        }
    }

    #[test]
    fn sentinels_have_a_port_of_their_own() {
        let port = |text| RedisUrl::parse_or(text, SENTINEL_PORT).map(|url| url.port);
        assert_eq!(port("redis://a"), Ok(26379));
        assert_eq!(port("redis://[::1]"), Ok(26379));
        assert_eq!(port("redis://a:6379"), Ok(6379));
    }

    #[test]
    fn a_password_is_not_printed() {
        let url = RedisUrl::parse("redis://app:hunter2@h").unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
        assert_eq!(url.to_string(), "redis://h:6379/0");
    }

    proptest! {
        #[test]
        fn escaped_logins_are_decoded(user in "\\PC{1,12}", password in "\\PC{1,12}") {
            let escape = |text: &str| -> String {
                text.bytes().map(|byte| format!("%{byte:02x}")).collect()
            };
            let text = format!("redis://{}:{}@h", escape(&user), escape(&password));
            let url = RedisUrl::parse(&text).unwrap();
            prop_assert_eq!(url.username.as_deref(), Some(user.as_str()));
            prop_assert_eq!(exposed(&url), Some(password.as_str()));
        }

        #[test]
        fn printed_urls_are_read_back(
            host in "[a-z0-9.-]{1,20}", port in 1u16.., tls: bool, database: u32,
        ) {
            let (username, password) = (None, None);
            let url = RedisUrl { host, port, tls, username, password, database };
            prop_assert_eq!(RedisUrl::parse(&url.to_string()), Ok(url));
        }

        #[test]
        fn no_text_panics(text in "(redis://)?[a-z:@/%\\[\\],?#0-9é]{0,24}") {
            let _ = RedisUrl::parse(&text);
        }
    }
}
