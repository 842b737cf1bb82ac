//! Splits a line of an access log into its fields: words, `"quoted texts"` and `[texts in brackets]`.

use smallvec::SmallVec;

/// The fields of a line, without their quotes and brackets.
pub(super) type Tokens<'l> = SmallVec<[&'l str; 28]>;

/// Fields after this many are left out.
const MAX_TOKENS: usize = 64;

/// Splits a line. `None` if a quote or a bracket is not closed.
pub(super) fn split(line: &str) -> Option<Tokens<'_>> {
    let bytes = line.as_bytes();
    let mut tokens = Tokens::new();
    let mut at = 0;
    while tokens.len() < MAX_TOKENS {
        while bytes.get(at) == Some(&b' ') {
            at += 1;
        }
        let Some(first) = bytes.get(at) else { break };
        let (start, end) = match first {
            b'"' => (at + 1, at + 1 + quoted(&bytes[at + 1..])?),
            b'[' => {
                let length = bytes[at..].iter().position(|byte| *byte == b']')?;
                (at + 1, at + length)
            }
            _ => {
                let length = bytes[at..].iter().position(|byte| *byte == b' ');
                (at, length.map_or(bytes.len(), |length| at + length))
            }
        };
        tokens.push(line.get(start..end)?);
        at = end + usize::from(start > at);
    }
    Some(tokens)
}

/// Returns where a quoted text ends. A backslash escapes the next character.
fn quoted(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_brackets_hold_spaces() {
        let line = r#"1.2.3.4 - ann [10/Oct/2026:13:55:36 -0700] "GET /a b" 200 "x \"y\" z"  end"#;
        let tokens = split(line).unwrap();
        assert_eq!(
            tokens.as_slice(),
            [
                "1.2.3.4",
                "-",
                "ann",
                "10/Oct/2026:13:55:36 -0700",
                "GET /a b",
                "200",
                r#"x \"y\" z"#,
                "end"
            ]
        );
    }

    #[test]
    fn open_quotes_and_brackets_are_rejected() {
        for line in ["\"GET /", "[10/Oct", "a \"b\\\"", "\"\\"] {
            assert_eq!(split(line), None, "{line}");
        }
        assert_eq!(split("").unwrap().len(), 0);
        assert_eq!(split(&"a ".repeat(1000)).unwrap().len(), MAX_TOKENS);
    }
}
