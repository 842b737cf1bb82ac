//! Bytes to arguments: the only file that knows how a command looks on the wire.
//!
//! A command is parsed in place. The result is the positions of its arguments, so nothing is copied
//! or allocated. Only the quotes of inline commands are removed, in place.
//!
//! An incomplete command is parsed again from its start when more has arrived. Parsing again costs
//! a step per argument, not per byte, because lengths come first.

use smallvec::SmallVec;

use super::bounds::{MAX_ARGS, MAX_BULK, MAX_COMMAND, MAX_INLINE};
use super::inline;

/// Why bytes are not a command. The connection must end, because the start of the next command is
/// unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("a command of more than {MAX_ARGS} arguments")]
    TooManyArgs,
    #[error("an argument of more than {MAX_BULK} bytes")]
    LongBulk,
    #[error("a command of more than {MAX_COMMAND} bytes")]
    LongCommand,
    #[error("an inline command of more than {MAX_INLINE} bytes")]
    LongInline,
    #[error("invalid length")]
    BadLength,
    /// An argument that does not start with a dollar sign, such as a list within a list.
    #[error("expected '$', got '{}'", if .0.is_ascii_graphic() { char::from(*.0) } else { '?' })]
    NotBulk(u8),
    /// An argument that is longer than its length says.
    #[error("expected the end of an argument")]
    NoEnd,
    /// Quotes that do not close, or close in the middle of an argument.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// A request of another protocol.
    #[error("this is not an HTTP server")]
    Http,
}

/// The positions of a command's arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Args(SmallVec<[(u32, u32); 8]>);

impl Args {
    /// Adds an argument at `start..end`, both below [`MAX_COMMAND`].
    #[allow(clippy::cast_possible_truncation)]
    fn push(&mut self, start: usize, end: usize) -> Result<(), ProtocolError> {
        if self.0.len() == MAX_ARGS {
            return Err(ProtocolError::TooManyArgs);
        }
        self.0.push((start as u32, end as u32));
        Ok(())
    }
}

/// A command: its bytes, and the positions of its arguments.
#[derive(Clone, Copy)]
pub(super) struct Command<'a> {
    bytes: &'a [u8],
    args: &'a Args,
}

impl<'a> Command<'a> {
    pub(super) fn new(bytes: &'a [u8], args: &'a Args) -> Command<'a> {
        Command { bytes, args }
    }

    /// Copies the command, so that it outlives its input. Returns its bytes and the positions of its
    /// arguments.
    pub(super) fn detach(self) -> (Box<[u8]>, Args) {
        let end = self.args.0.last().map_or(0, |(_, end)| *end as usize);
        (self.bytes[..end].into(), self.args.clone())
    }

    /// Returns the number of arguments, the name included.
    pub(super) fn len(&self) -> usize {
        self.args.0.len()
    }

    /// Returns the name, as it was sent; `None` for a blank line or an empty list.
    #[inline]
    pub(super) fn name(&self) -> Option<&'a [u8]> {
        self.arg(0)
    }

    /// Returns argument number `index`; the name is number 0.
    #[inline]
    pub(super) fn arg(&self, index: usize) -> Option<&'a [u8]> {
        let (start, end) = *self.args.0.get(index)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// Returns the arguments from number `first` on.
    pub(super) fn args_from(&self, first: usize) -> impl Iterator<Item = &'a [u8]> {
        let this = *self;
        (first..self.len()).filter_map(move |index| this.arg(index))
    }
}

/// Finds the arguments of the command at the start of `bytes`, and returns its length; `None` if
/// the command is incomplete.
///
/// # Errors
/// If no command starts like this.
#[inline]
pub(super) fn parse(bytes: &mut [u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    args.0.clear();
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => list(bytes, args),
        Some(_) => line(bytes, args),
    }
}

/// Parses a command that is a list, such as `*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`.
#[inline]
fn list(bytes: &[u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    let Some((count, mut at)) = length(bytes, 1)? else {
        return Ok(None);
    };
    // An empty list is skipped.
    let count = count.unwrap_or(0);
    if count > MAX_ARGS {
        return Err(ProtocolError::TooManyArgs);
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::NotBulk(*other)),
        }
        let Some((size, start)) = length(bytes, at + 1)? else {
            return Ok(None);
        };
        let size = size.ok_or(ProtocolError::BadLength)?;
        if size > MAX_BULK {
            return Err(ProtocolError::LongBulk);
        }
        let end = start + size;
        if end + 2 > MAX_COMMAND {
            return Err(ProtocolError::LongCommand);
        }
        match bytes.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::NoEnd),
        }
        args.push(start, end)?;
        at = end + 2;
    }
    Ok(Some(at))
}

/// The most digits of a length.
const MAX_DIGITS: usize = 10;

/// Reads the length that starts at `at`. Returns the length and the position after it; `None` if the
/// length is incomplete. The inner `None` stands for a negative length.
#[inline]
fn length(bytes: &[u8], at: usize) -> Result<Option<(Option<usize>, usize)>, ProtocolError> {
    let negative = bytes.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let mut value: usize = 0;
    let mut end = first;
    loop {
        match bytes.get(end) {
            None => return Ok(None),
            Some(digit @ b'0'..=b'9') if end - first < MAX_DIGITS => {
                value = value * 10 + usize::from(digit - b'0');
                end += 1;
            }
            Some(b'\r') if end > first => break,
            Some(_) => return Err(ProtocolError::BadLength),
        }
    }
    match bytes.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some(((!negative).then_some(value), end + 2))),
        Some(_) => Err(ProtocolError::BadLength),
    }
}

/// Parses an inline command, such as `ECHO hi\r\n`. People type these in a terminal.
fn line(bytes: &mut [u8], args: &mut Args) -> Result<Option<usize>, ProtocolError> {
    let within = bytes.len().min(MAX_INLINE);
    let Some(end) = bytes[..within].iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() >= MAX_INLINE {
            Err(ProtocolError::LongInline)
        } else {
            Ok(None)
        };
    };
    let mut rest = 0;
    while let Some((start, stop, next)) = inline::unquote(&mut bytes[..end], rest)? {
        args.push(start, stop)?;
        rest = next;
    }
    if let Some(first) = Command::new(bytes, args).name()
        && (first.eq_ignore_ascii_case(b"POST") || first.eq_ignore_ascii_case(b"HOST:"))
    {
        // A browser that was tricked into connecting must not send commands in a request body.
        return Err(ProtocolError::Http);
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the first command of `text`. Returns its arguments and the rest of the text.
    fn read(text: &str) -> Result<Option<(Vec<String>, String)>, ProtocolError> {
        let (mut bytes, mut args) = (text.as_bytes().to_vec(), Args::default());
        let Some(length) = parse(&mut bytes, &mut args)? else {
            return Ok(None);
        };
        let command = Command::new(&bytes, &args);
        let texts = command
            .args_from(0)
            .map(|it| String::from_utf8_lossy(it).into_owned());
        let rest = String::from_utf8_lossy(&bytes[length..]).into_owned();
        Ok(Some((texts.collect(), rest)))
    }

    fn command(text: &str) -> Vec<String> {
        let (args, rest) = read(text).unwrap().unwrap();
        assert_eq!(rest, "");
        args
    }

    #[test]
    fn list_of_texts_is_a_command() {
        assert_eq!(
            command("*2\r\n$4\r\nECHO\r\n$5\r\na\r\nb\n\r\n"),
            ["ECHO", "a\r\nb\n"]
        );
        assert_eq!(
            command("*3\r\n$1\r\nX\r\n$0\r\n\r\n$1\r\ny\r\n"),
            ["X", "", "y"]
        );
    }

    #[test]
    fn line_is_a_command() {
        assert_eq!(command("PING\r\n"), ["PING"]);
        assert_eq!(command("  ECHO   hi\tthere \n"), ["ECHO", "hi", "there"]);
        let quoted = "ECHO \"a b\\x41\\n\\\"\\xg\" 'c d\\'\\n' x\"y z\"\r\n";
        assert_eq!(command(quoted), ["ECHO", "a bA\n\"xg", "c d'\\n", "xy z"]);
    }

    #[test]
    fn bytes_after_a_command_are_left_alone() {
        let (args, rest) = read("*1\r\n$4\r\nPING\r\n*1\r\n$4").unwrap().unwrap();
        assert_eq!((args, rest.as_str()), (vec!["PING".to_owned()], "*1\r\n$4"));
    }

    #[test]
    fn blank_lines_and_empty_lists_are_skipped() {
        for nothing in ["\r\n", "\n", "   \r\n", "*0\r\n", "*-1\r\n"] {
            assert_eq!(command(nothing), Vec::<String>::new(), "{nothing:?}");
        }
    }

    #[test]
    fn incomplete_command_waits_for_the_rest() {
        for whole in [
            "*2\r\n$4\r\nECHO\r\n$12\r\nhello, world\r\n",
            "ECHO \"hello, world\"\r\n",
        ] {
            for cut in 0..whole.len() - 1 {
                assert_eq!(read(&whole[..cut]), Ok(None), "{:?}", &whole[..cut]);
            }
            assert!(read(whole).unwrap().is_some());
        }
    }

    #[test]
    fn bad_command_is_an_error_as_early_as_possible() {
        use ProtocolError::*;
        let long_inline = "x".repeat(MAX_INLINE);
        let bulk = format!("$8000\r\n{}\r\n", "x".repeat(8000));
        let long = format!("*9\r\n{}$8000\r\n", bulk.repeat(4));
        for (text, error) in [
            ("*129\r\n", TooManyArgs),
            ("*99999999999\r\n", BadLength),
            ("*\r\n", BadLength),
            ("*-\r\n", BadLength),
            ("*1x\r\n", BadLength),
            ("*1\rx", BadLength),
            ("* 1\r\n", BadLength),
            ("*1\r\n$8193\r\n", LongBulk),
            ("*1\r\n$-1\r\n", BadLength),
            ("*1\r\n*1\r\n", NotBulk(b'*')),
            ("*1\r\n:5\r\n", NotBulk(b':')),
            ("*1\r\n\u{1}", NotBulk(1)),
            ("*1\r\n$1\r\nab\r\n", NoEnd),
            ("ECHO \"a\r\n", Quotes),
            ("ECHO 'a'b\r\n", Quotes),
            ("POST / HTTP/1.1\r\n", Http),
            ("Host: x\r\n", Http),
            (&long_inline, LongInline),
            (&long, LongCommand),
        ] {
            assert_eq!(read(text), Err(error), "{text:?}");
        }
        assert_eq!(NotBulk(1).to_string(), "expected '$', got '?'");
    }
}
