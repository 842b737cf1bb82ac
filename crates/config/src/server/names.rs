//! The names of a door, and the origins of web pages that may use it.

use std::net::IpAddr;

use tollgate_rules::document::{Field, List, Problems, Short, Text};

use crate::fields::{Env, expand};

/// The most names or origins of a door.
const MAX_NAMES: usize = 64;

/// Reads host names, in lower case. IPv6 addresses lose their brackets.
pub(super) fn hosts(
    field: &Field<List<Text>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<String> {
    let help = "write the name alone, without a scheme and a port, such as `admin.example.com`";
    read(field, env, problems, "a host name", help, host)
}

/// Reads origins, in lower case.
pub(super) fn origins(
    field: &Field<List<Text>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<String> {
    let help = "write it as browsers send it: scheme, name, and the port unless it is the \
                default of the scheme, such as `https://app.example.com`";
    read(
        field,
        env,
        problems,
        "the origin of a web page",
        help,
        origin,
    )
}

fn read(
    field: &Field<List<Text>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
    what: &str,
    help: &str,
    normal: fn(&str) -> Option<String>,
) -> Vec<String> {
    let given = field.value().map_or(&[][..], |list| &list.0);
    if let Some(at) = given.get(MAX_NAMES) {
        let message = format!("there are more than {MAX_NAMES} entries");
        problems.report(at.place, message, "list fewer");
    }
    let mut names = Vec::new();
    for at in given.iter().take(MAX_NAMES) {
        let Some(text) = expand(at, env, problems) else {
            continue;
        };
        match normal(&text) {
            Some(name) => names.push(name),
            None => {
                let message = format!("`{}` is not {what}", Short(&text));
                problems.report(at.place, message, help);
            }
        }
    }
    names
}

fn host(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
        return Some(address.to_string());
    }
    let in_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = !text.is_empty() && text.len() <= 253 && text.bytes().all(in_names);
    is_name.then(|| text.to_ascii_lowercase())
}

fn origin(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, authority) = text.split_once("://")?;
    let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && !port.ends_with(']') => {
            let port: u16 = port.parse().ok()?;
            // Browsers leave the default port out.
            if matches!((scheme, port), ("http", 80) | ("https", 443)) {
                return None;
            }
            name
        }
        _ => authority,
    };
    let is_bracketed = name.starts_with('[');
    let is_valid = !scheme.is_empty()
        && scheme.bytes().all(in_scheme)
        && host(name).is_some()
        // An IPv6 address has brackets, and nothing else has.
        && is_bracketed == name.contains(':');
    is_valid.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        for good in [
            "https://app.example.com",
            "http://localhost:3000",
            "http://[::1]:3000",
            "http://[::1]",
            "http://10.0.0.1:81",
            "chrome-extension://abcdef",
        ] {
            assert_eq!(origin(good).as_deref(), Some(good));
        }
        assert_eq!(
            origin("HTTPS://App.Example.com").as_deref(),
            Some("https://app.example.com")
        );
        for bad in [
            "",
            "*",
            "null",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://app.example.com:443",
            "http://app:80",
            "http://app:x",
            "http://a b",
            "http://::1",
            "://app",
        ] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }

    #[test]
    fn hosts_have_neither_scheme_nor_port() {
        assert_eq!(
            host("Admin.Example.com").as_deref(),
            Some("admin.example.com")
        );
        assert_eq!(host("10.1.2.3").as_deref(), Some("10.1.2.3"));
        assert_eq!(host("[FD00::1]").as_deref(), Some("fd00::1"));
        for bad in ["", "*", "a:80", "http://a", "a/b", "a b"] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }
}
