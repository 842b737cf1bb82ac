//! Splits CEL expressions into tokens.

/// A token, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Name(&'t str),
    Number(&'t str),
    /// A string with its quotes, and its value unless it has unusual escapes.
    Text(&'t str, Option<String>),
    Sign(&'t str),
}

const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")", "[", "]", "{", "}", ".", ",", "?",
    ":", "+", "-", "*", "/", "%",
];

/// Returns the tokens of `text`. The error names the part that is not supported.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = if first == '\'' || first == '"' {
            string(rest, first)?
        } else if first.is_ascii_alphabetic() || first == '_' {
            let (name, after) = split(rest, |c| c.is_ascii_alphanumeric() || c == '_');
            if after.starts_with(['\'', '"']) {
                return Err(format!(
                    "strings with the prefix `{name}` are not supported"
                ));
            }
            (Token::Name(name), after)
        } else if first.is_ascii_digit() {
            let (number, after) = split(rest, |c| c.is_ascii_alphanumeric() || c == '.');
            (Token::Number(number), after)
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            if rest.starts_with("//") {
                return Err("comments in conditions are not supported".to_owned());
            }
            let (sign, after) = rest.split_at(sign.len());
            (Token::Sign(sign), after)
        } else {
            return Err(format!("`{first}` is not part of CEL"));
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    Ok(tokens)
}

fn split(text: &str, part: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !part(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// Reads a string in `quotes`; returns it and the rest.
fn string(text: &str, quotes: char) -> Result<(Token<'_>, &str), String> {
    let inner = &text[1..];
    if inner.starts_with([quotes; 2].iter().collect::<String>().as_str()) {
        return Err("strings in triple quotes are not supported".to_owned());
    }
    let mut value = Some(String::new());
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == quotes {
            let (written, after) = text.split_at(at + 2);
            return Ok((Token::Text(written, value), after));
        }
        let meant = match c {
            '\\' => match chars.next() {
                Some((_, 'n')) => Some('\n'),
                Some((_, 't')) => Some('\t'),
                Some((_, 'r')) => Some('\r'),
                Some((_, same @ ('\\' | '\'' | '"' | '`' | '?'))) => Some(same),
                _ => None,
            },
            '\n' | '\r' => break,
            c => Some(c),
        };
        value = value.zip(meant).map(|(mut value, c)| {
            value.push(c);
            value
        });
    }
    Err("a string has no closing quote".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn expression_is_split_into_tokens() {
        let found = tokens(r#"descriptors[0]['a.b'] != "x\"y""#).unwrap();
        let text = |written, value: &str| Token::Text(written, Some(value.to_owned()));
        assert_eq!(
            found,
            [
                Token::Name("descriptors"),
                Token::Sign("["),
                Token::Number("0"),
                Token::Sign("]"),
                Token::Sign("["),
                text("'a.b'", "a.b"),
                Token::Sign("]"),
                Token::Sign("!="),
                text(r#""x\"y""#, "x\"y"),
            ]
        );
        assert_eq!(
            tokens(r"'\u00e4'").unwrap(),
            [Token::Text(r"'\u00e4'", None)]
        );
    }

    #[test]
    fn unsupported_syntax_is_an_error() {
        for wrong in [
            "'a", "r'a'", "'''a'''", "a // b", "a # b", "'a\nb'", "'\\", "ä",
        ] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }
}
