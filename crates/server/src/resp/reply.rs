//! Answers as bytes, in either version of the protocol.

/// The version of the protocol that a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The common one: texts, numbers and lists.
    #[default]
    Resp2,
    /// Has maps, booleans and null as well.
    Resp3,
}

/// Writes one answer.
pub(crate) struct Reply<'o> {
    out: &'o mut Vec<u8>,
    protocol: Protocol,
}

impl<'o> Reply<'o> {
    /// Writes to the end of `out`.
    pub(super) fn new(out: &'o mut Vec<u8>, protocol: Protocol) -> Reply<'o> {
        Reply { out, protocol }
    }

    /// Writes a status, such as `OK`.
    pub(super) fn status(&mut self, text: &'static str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// Writes an error: its code, then its message. Replaces line ends by blanks.
    pub(crate) fn error(&mut self, code: &str, words: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        let words = words.bytes().map(|byte| byte.max(b' '));
        self.out.extend(words);
        self.end();
    }

    /// Writes a whole number.
    #[inline]
    pub(crate) fn integer(&mut self, number: i64) {
        // Most numbers are small, and written without a call.
        if let Ok(digit) = u8::try_from(number)
            && digit < 10
        {
            self.out
                .extend_from_slice(&[b':', b'0' + digit, b'\r', b'\n']);
            return;
        }
        self.out.push(b':');
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(digits.format(number).as_bytes());
        self.end();
    }

    /// Writes a whole number that is never negative.
    pub(crate) fn count(&mut self, number: u64) {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Writes a boolean. Writes 0 or 1 if the protocol has no booleans.
    pub(crate) fn truth(&mut self, truth: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(truth.into()),
            Protocol::Resp3 if truth => self.out.extend_from_slice(b"#t\r\n"),
            Protocol::Resp3 => self.out.extend_from_slice(b"#f\r\n"),
        }
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.end();
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Writes text for people.
    pub(super) fn page(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.text(text),
            Protocol::Resp3 => {
                self.head(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes the value, or null.
    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.null(),
        }
    }

    /// Writes an entry of a map: its name and its value.
    pub(crate) fn entry(&mut self, name: &str, value: impl Value) {
        self.text(name);
        value.write(self);
    }

    /// Starts a list of `length` values.
    #[inline]
    pub(crate) fn list(&mut self, length: usize) {
        self.head(b'*', length);
    }

    /// Starts a map of `pairs`. If the protocol has no maps, starts a list of names and values.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.head(b'*', pairs * 2),
            Protocol::Resp3 => self.head(b'%', pairs),
        }
    }

    #[inline]
    fn head(&mut self, kind: u8, length: usize) {
        self.out.push(kind);
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(digits.format(length).as_bytes());
        self.end();
    }

    #[inline]
    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A value of a map entry.
pub(crate) trait Value {
    fn write(self, to: &mut Reply<'_>);
}

impl Value for bool {
    fn write(self, to: &mut Reply<'_>) {
        to.truth(self);
    }
}

impl Value for u64 {
    fn write(self, to: &mut Reply<'_>) {
        to.count(self);
    }
}

impl Value for i64 {
    fn write(self, to: &mut Reply<'_>) {
        to.integer(self);
    }
}

impl Value for &str {
    fn write(self, to: &mut Reply<'_>) {
        to.text(self);
    }
}

impl<T: Value> Value for Option<T> {
    fn write(self, to: &mut Reply<'_>) {
        to.optional(self, |to, value| value.write(to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_protocol_has_its_own_forms() {
        let all = |reply: &mut Reply<'_>| {
            reply.map(1);
            reply.text("a");
            reply.truth(true);
            reply.null();
            reply.page("b");
            reply.integer(-7);
        };
        assert_eq!(
            written(Protocol::Resp2, all),
            "*2\r\n$1\r\na\r\n:1\r\n$-1\r\n$1\r\nb\r\n:-7\r\n"
        );
        assert_eq!(
            written(Protocol::Resp3, all),
            "%1\r\n$1\r\na\r\n#t\r\n_\r\n=5\r\ntxt:b\r\n:-7\r\n"
        );
    }

    #[test]
    fn error_is_one_line() {
        let error = written(Protocol::Resp2, |reply| {
            reply.error("ERR", "a\r\n+OK\u{7f}");
        });
        assert_eq!(error, "-ERR a  +OK\u{7f}\r\n");
    }
}
