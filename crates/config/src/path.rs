//! Paths of URLs in their normal form, so that each path has one spelling.
//!
//! Servers treat `/login`, `//login`, `/./login`, `/x/../login` and `/%6Cogin` as the same path. A
//! limit by path must do the same, or clients evade it with another spelling.

/// The longest path with a normal form, in bytes.
pub const MAX_PATH: usize = 4096;

/// Returns the normal form of a path. It has no needless escapes, and writes escapes in capital
/// letters. It has one slash at the start, and no empty, `.` or `..` segments. An escaped slash stays
/// escaped, because it does not separate segments. `None` if the result is longer than [`MAX_PATH`].
///
/// Pass the path without its query. Any bytes have a normal form. A path in normal form stays as it is.
///
/// ```
/// use tollgate_config::normal_path;
///
/// for path in ["/login", "//login", "/x/.././login", "/%6cogin"] {
///     assert_eq!(normal_path(path.as_bytes()).as_deref(), Some("/login"));
/// }
/// assert_eq!(normal_path("/caf\u{e9}/%2f".as_bytes()).as_deref(), Some("/caf%C3%A9/%2F"));
/// ```
#[must_use]
pub fn normal_path(path: &[u8]) -> Option<String> {
    let mut normal = String::with_capacity(path.len().min(MAX_PATH) + 1);
    let mut segments = path.split(|byte| *byte == b'/').peekable();
    // The text before the first slash is a segment too, so a path without a leading slash gets one.
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let start = normal.len();
        normal.push('/');
        write_segment(segment, &mut normal);
        match &normal[start + 1..] {
            "" | "." => normal.truncate(start),
            ".." => {
                normal.truncate(start);
                normal.truncate(normal.rfind('/').unwrap_or(0));
            }
            // `normal` may be longer than `MAX_PATH` for now: a later `..` can shorten it. The input
            // bounds its length.
            _ => continue,
        }
        // `/a/`, `/a/.` and `/a/b/..` all mean the directory `/a/`.
        if is_last {
            normal.push('/');
        }
    }
    (normal.len() <= MAX_PATH).then_some(normal)
}

fn write_segment(segment: &[u8], normal: &mut String) {
    let mut rest = segment;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (first, &rest[1..]),
            },
            _ => (first, after),
        };
        rest = after;
        if is_plain(byte) {
            normal.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            normal.push('%');
            normal.push(char::from(DIGITS[usize::from(byte >> 4)]));
            normal.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Whether a byte is written without an escape in a normal form.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#')
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|it| u8::try_from(it).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(path: &str) -> String {
        normal_path(path.as_bytes()).unwrap()
    }

    #[test]
    fn one_path_has_one_spelling() {
        let table = [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            ("a", "/a"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("//a///b", "/a/b"),
            ("/./a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/b/../c", "/a/c"),
            ("/../../a", "/a"),
            ("/a/%2e%2E/b", "/b"),
            ("/%2e", "/"),
            ("/...", "/..."),
            ("/%61%2D%7e", "/a-~"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2f..%2fb", "/a%2F..%2Fb"),
            ("/a%3Fb%23c", "/a%3Fb%23c"),
            ("/a%3ab%40c%2b", "/a:b@c+"),
            ("/a b", "/a%20b"),
            ("/100%", "/100%25"),
            ("/%", "/%25"),
            ("/%4", "/%254"),
            ("/%zz", "/%25zz"),
            ("/%2541", "/%2541"),
            ("/%00\t", "/%00%09"),
            ("/é", "/%C3%A9"),
            ("/%c3%a9", "/%C3%A9"),
            ("/A", "/A"),
            ("/a;b=c,d", "/a;b=c,d"),
            (r"/a\..\b", r"/a\..\b"),
        ];
        for (path, expected) in table {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn detours_do_not_make_a_path_too_long() {
        let long = "/x/..".repeat(3000) + "/login";
        assert_eq!(normal(&long), "/login");
        assert_eq!(normal_path("/a".repeat(MAX_PATH).as_bytes()), None);
        assert_eq!(normal_path(&[b'/'; 100_000]).as_deref(), Some("/"));
        assert!(normal_path(&vec![b'a'; MAX_PATH - 1]).is_some());
        assert!(normal_path(&vec![b'a'; MAX_PATH]).is_none());
    }

    proptest! {
        #[test]
        fn the_normal_form_of_a_normal_form_is_itself(path in proptest::collection::vec(any::<u8>(), 0..60)) {
            let once = normal_path(&path).unwrap();
            prop_assert_eq!(normal(&once), once.as_str());
            prop_assert!(once.starts_with('/') && once.bytes().all(|byte| byte.is_ascii_graphic()));
        }

        #[test]
        fn spelling_makes_no_difference(path in "(/[a-z.%]{0,4}){1,5}", escaped: u64) {
            // Any byte but a slash and a percent sign may be escaped, in small or capital letters.
            let spelled: String = path.bytes().enumerate().map(|(at, byte)| {
                match (escaped >> (at % 64)) & 1 {
                    1 if !matches!(byte, b'/' | b'%') && !path[..at].ends_with('%')
                        && !path[..at.saturating_sub(1)].ends_with('%') =>
                        if at % 2 == 0 { format!("%{byte:02x}") } else { format!("%{byte:02X}") },
                    _ => char::from(byte).to_string(),
                }
            }).collect();
            prop_assert_eq!(normal(&spelled), normal(&path));
        }
    }
}
