//! Paths of URLs in their normal form, so that each place has one spelling.
//!
//! Servers and applications treat `/login`, `//login`, `/./login`, `/x/../login` and `/%6Cogin` as the
//! same place, and many of them also `/login/`, `/login;x=1`, `/login%2F` and `/login\`. A limit by path
//! must do the same, or clients evade it with another spelling.

/// The longest path with a normal form, in bytes.
pub const MAX_PATH: usize = 4096;

/// Returns the normal form of a path. A slash, a backslash and their escapes separate segments. The
/// normal form has one slash before each segment and none at the end. It has no empty, `.` or `..`
/// segments, no parameters (`;` and the text after it in a segment) and no needless escapes. Its
/// escapes are in capital letters. `None` if the result is longer than [`MAX_PATH`].
///
/// Pass the path without its query. Any bytes have a normal form. A path in normal form stays as it is.
///
/// ```
/// use tollgate_config::normal_path;
///
/// for path in ["/login", "//login", "/x/.././login", "/%6cogin", "/login/", "/login;a=b", "/login%2F"] {
///     assert_eq!(normal_path(path.as_bytes()).as_deref(), Some("/login"));
/// }
/// assert_eq!(normal_path("/caf\u{e9}".as_bytes()).as_deref(), Some("/caf%C3%A9"));
/// ```
#[must_use]
pub fn normal_path(path: &[u8]) -> Option<String> {
    let mut normal = String::with_capacity(path.len().min(MAX_PATH) + 1);
    let (mut rest, mut more) = (path, true);
    while more {
        let start = normal.len();
        normal.push('/');
        let mut is_parameter = false;
        more = false;
        while let Some((byte, after)) = decoded(rest) {
            rest = after;
            if matches!(byte, b'/' | b'\\') {
                more = true;
                break;
            }
            is_parameter |= byte == b';';
            if !is_parameter {
                write_byte(byte, &mut normal);
            }
        }
        close_segment(&mut normal, start);
    }
    if normal.is_empty() {
        normal.push('/');
    }
    // The length is checked only here, because a later `..` can shorten `normal`. Until now, the length
    // of the input bounds it.
    (normal.len() <= MAX_PATH).then_some(normal)
}

/// Returns the strict form of a path, for servers that treat paths with the same [`normal_path`] as
/// different paths. The strict form keeps a slash at the end, parameters, backslashes and escaped slashes.
/// It has no empty, `.` or `..` segments and no needless escapes. `None` if the result is longer than
/// [`MAX_PATH`].
///
/// ```
/// use tollgate_config::strict_path;
///
/// for path in ["/a/", "//a/", "/x/.././a/", "/%61/"] {
///     assert_eq!(strict_path(path.as_bytes()).as_deref(), Some("/a/"));
/// }
/// assert_eq!(strict_path(b"/a;b=c/%2f").as_deref(), Some("/a;b=c/%2F"));
/// ```
#[must_use]
pub fn strict_path(path: &[u8]) -> Option<String> {
    let mut strict = String::with_capacity(path.len().min(MAX_PATH) + 1);
    let mut segments = path.split(|byte| *byte == b'/').peekable();
    // The text before the first slash is a segment too, so a path without a leading slash gets one.
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let start = strict.len();
        strict.push('/');
        let mut rest = segment;
        while let Some((byte, after)) = decoded(rest) {
            rest = after;
            write_byte(byte, &mut strict);
        }
        // `/a/`, `/a/.` and `/a/b/..` all mean the directory `/a/`.
        if close_segment(&mut strict, start) && is_last {
            strict.push('/');
        }
    }
    (strict.len() <= MAX_PATH).then_some(strict)
}

/// Removes the segment that begins at `start` if it is empty, `.` or `..`. For `..`, removes the segment
/// before it too. Returns whether a segment was removed.
fn close_segment(path: &mut String, start: usize) -> bool {
    match &path[start + 1..] {
        "" | "." => path.truncate(start),
        ".." => {
            path.truncate(start);
            path.truncate(path.rfind('/').unwrap_or(0));
        }
        _ => return false,
    }
    true
}

/// Returns the first byte of a text, and the text after it. Decodes the byte if it is escaped. A `%`
/// that does not begin an escape is returned as it is.
fn decoded(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, after) = text.split_first()?;
    if let (b'%', [high, low, rest @ ..]) = (first, after)
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, rest));
    }
    Some((first, after))
}

fn write_byte(byte: u8, path: &mut String) {
    if is_plain(byte) {
        path.push(char::from(byte));
    } else {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        path.push('%');
        path.push(char::from(DIGITS[usize::from(byte >> 4)]));
        path.push(char::from(DIGITS[usize::from(byte & 15)]));
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

    fn strict(path: &str) -> String {
        strict_path(path.as_bytes()).unwrap()
    }

    /// Paths whose normal form and strict form are the same. Each has that form beside it.
    const SAME: [(&str, &str); 25] = [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("a", "/a"),
        ("/a", "/a"),
        ("//a///b", "/a/b"),
        ("/./a/./b", "/a/b"),
        ("/a/b/../c", "/a/c"),
        ("/../../a", "/a"),
        ("/a/%2e%2E/b", "/b"),
        ("/%2e", "/"),
        ("/...", "/..."),
        ("/%61%2D%7e", "/a-~"),
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
        ("/A,b", "/A,b"),
    ];

    #[test]
    fn one_path_has_one_spelling() {
        for (path, expected) in SAME {
            assert_eq!(normal(path), expected, "{path}");
            assert_eq!(strict(path), expected, "{path}");
        }
    }

    #[test]
    fn spellings_of_one_place_have_one_normal_form() {
        let login = [
            "/login/",
            "/login//",
            "/login/.",
            "/login/./",
            "/login/x/..",
            "/login;x=1",
            "/login;",
            "/login;a/",
            "/login/;a=b",
            "/;a/login",
            "/x/..;/login",
            "/x/..;a=b/login",
            "/login%3bx=1",
            "/login%2f",
            "/login%2F.",
            "/x%2f..%2flogin",
            r"/login\",
            r"\login",
            r"/x\..\login",
            "/login%5c",
            "/login%5C%2f",
            "/.;/login",
            "/%6C%6fgin/",
        ];
        for path in login {
            assert_eq!(normal(path), "/login", "{path}");
        }
        assert_eq!(normal("/a%2fb;c/d;e"), "/a/b/d");
        assert_eq!(normal("/a%252fb"), "/a%252fb");
        assert_eq!(normal(";x"), "/");
        assert_eq!(normal("/LOGIN"), "/LOGIN");
    }

    #[test]
    fn strict_form_tells_more_apart() {
        let table = [
            ("/a/", "/a/"),
            ("/./a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2f..%2fb", "/a%2F..%2Fb"),
            ("/a;b=c,d", "/a;b=c,d"),
            (r"/a\..\b", r"/a\..\b"),
            ("/a%5cb", r"/a\b"),
        ];
        for (path, expected) in table {
            assert_eq!(strict(path), expected, "{path}");
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
            let strict_once = strict_path(&path).unwrap();
            prop_assert_eq!(strict(&strict_once), strict_once.as_str());
            // Paths with the same strict form have the same normal form.
            prop_assert_eq!(normal(&strict_once), once);
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
            prop_assert_eq!(strict(&spelled), strict(&path));
        }
    }
}
