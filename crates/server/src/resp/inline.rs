//! Inline commands: arguments separated by blanks, quoted as in `redis-cli` and `telnet`.
//!
//! In double quotes `\n`, `\r`, `\t`, `\a`, `\b` and `\xHH` are bytes, and any other character
//! after a backslash is itself. In single quotes only `\'` has a meaning.

use super::frame::ProtocolError;

/// Finds the next argument of `line` from `at` on, and removes its quotes in place. Returns its
/// start and end, and where to continue; `None` at the end of the line.
pub(super) fn unquote(
    line: &mut [u8],
    mut at: usize,
) -> Result<Option<(usize, usize, usize)>, ProtocolError> {
    while line.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    if at >= line.len() {
        return Ok(None);
    }
    // Writing never overtakes reading, because no escape is shorter than its meaning.
    let (start, mut end) = (at, at);
    loop {
        match line.get(at) {
            None => break,
            Some(byte) if byte.is_ascii_whitespace() => break,
            Some(quote @ (b'"' | b'\'')) => {
                let quote = *quote;
                (at, end) = quoted(line, quote, at + 1, end)?;
            }
            Some(byte) => {
                line[end] = *byte;
                at += 1;
                end += 1;
            }
        }
    }
    Ok(Some((start, end, at)))
}

/// Copies quoted text from `at` to `end`. Returns where to continue to read and write.
fn quoted(
    line: &mut [u8],
    quote: u8,
    mut at: usize,
    mut end: usize,
) -> Result<(usize, usize), ProtocolError> {
    loop {
        let byte = *line.get(at).ok_or(ProtocolError::Quotes)?;
        if byte == quote {
            // A closing quote must end the argument.
            return match line.get(at + 1) {
                Some(next) if !next.is_ascii_whitespace() => Err(ProtocolError::Quotes),
                _ => Ok((at + 1, end)),
            };
        }
        let (meant, length) = match (byte, line.get(at + 1)) {
            (b'\\', Some(escaped)) if quote == b'"' => escape(*escaped, line.get(at + 2..at + 4)),
            (b'\\', Some(b'\'')) => (b'\'', 2),
            _ => (byte, 1),
        };
        line[end] = meant;
        at += length;
        end += 1;
    }
}

/// Returns the byte that a backslash and `escaped` stand for, and how many bytes they take.
#[allow(clippy::cast_possible_truncation)] // Two hexadecimal digits fit into a byte.
fn escape(escaped: u8, following: Option<&[u8]>) -> (u8, usize) {
    let digit = |byte| char::from(byte).to_digit(16);
    match (escaped, following) {
        (b'x', Some(&[high, low])) => match (digit(high), digit(low)) {
            (Some(high), Some(low)) => ((high << 4 | low) as u8, 4),
            _ => (b'x', 2),
        },
        (b'n', _) => (b'\n', 2),
        (b'r', _) => (b'\r', 2),
        (b't', _) => (b'\t', 2),
        (b'a', _) => (7, 2),
        (b'b', _) => (8, 2),
        (other, _) => (other, 2),
    }
}
