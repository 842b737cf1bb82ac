//! The requests of a run: a gRPC method, its messages, and how an answer that allows begins.

use std::error::Error;
use std::path::Path;

/// The bytes before each message: whether it is compressed, and its length.
pub(crate) const PREFIX: usize = 5;
/// Longer paths would need a longer encoding of their length.
const LONGEST_PATH: usize = 126;

/// Requests of one method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    /// The path of the method: `/package.Service/Method`.
    pub(crate) path: String,
    /// Where in the message of an answer `allowed` stands.
    pub(crate) allowed_at: usize,
    /// The bytes of an answer that allows, from `allowed_at`.
    pub(crate) allowed: Vec<u8>,
    /// The messages, each with its prefix.
    pub(crate) messages: Vec<Vec<u8>>,
}

impl Calls {
    /// Makes calls of `path`. An answer allows if its message begins with `allowed`.
    pub(crate) fn new(
        path: &str,
        allowed: &[u8],
        messages: impl Iterator<Item = Vec<u8>>,
    ) -> Calls {
        Calls {
            path: path.to_owned(),
            allowed_at: 0,
            allowed: allowed.to_vec(),
            messages: messages.map(|message| framed(&message)).collect(),
        }
    }

    /// Whether the message of an answer allows. `data` has the prefix.
    pub(crate) fn is_allowed(&self, data: &[u8]) -> bool {
        let from = data.get(PREFIX + self.allowed_at..);
        from.is_some_and(|from| from.starts_with(&self.allowed))
    }

    /// Returns the bytes of a file for [`Calls::read`].
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = framed(self.path.as_bytes());
        bytes.extend(framed(self.allowed_at.to_string().as_bytes()));
        bytes.extend(framed(&self.allowed));
        for message in &self.messages {
            bytes.extend_from_slice(message);
        }
        bytes
    }

    pub(crate) fn read(file: &Path) -> Result<Calls, Box<dyn Error>> {
        Calls::parse(&std::fs::read(file)?).map_err(|error| {
            let file = file.display();
            format!("{file} is not a file of requests: {error}").into()
        })
    }

    fn parse(mut bytes: &[u8]) -> Result<Calls, Box<dyn Error>> {
        let mut parts = Vec::new();
        while let Some(head) = bytes.first_chunk::<PREFIX>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let part = bytes.split_at_checked(PREFIX + length as usize);
            let (part, rest) = part.ok_or("it ends early")?;
            parts.push(part.to_vec());
            bytes = rest;
        }
        let mut parts = parts.into_iter();
        let mut text = || -> Result<Vec<u8>, Box<dyn Error>> {
            let part = parts.next().ok_or("it is too short")?;
            Ok(part[PREFIX..].to_vec())
        };
        let (path, at, allowed) = (text()?, text()?, text()?);
        let calls = Calls {
            path: String::from_utf8(path)?,
            allowed_at: String::from_utf8(at)?.parse()?,
            allowed,
            messages: parts.collect(),
        };
        match calls.path.len() <= LONGEST_PATH && !calls.messages.is_empty() {
            true => Ok(calls),
            false => Err("its path is too long, or it has no messages".into()),
        }
    }
}

/// Returns a message with its prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend(length.to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_all_calls() {
        let messages = [b"first".to_vec(), Vec::new(), b"third".to_vec()];
        let calls = Calls::new("/a.B/C", &[8, 1], messages.into_iter());
        assert_eq!(Calls::parse(&calls.to_bytes()).unwrap(), calls);
        assert!(Calls::parse(&calls.to_bytes()[..20]).is_err());
    }

    #[test]
    fn answer_allows_by_its_bytes() {
        let mut calls = Calls::new("/a.B/C", &[8, 1], std::iter::once(Vec::new()));
        assert!(calls.is_allowed(&framed(&[8, 1, 18, 0])));
        assert!(!calls.is_allowed(&framed(&[8, 2])));
        assert!(!calls.is_allowed(b""));
        calls.allowed_at = 2;
        assert!(calls.is_allowed(&framed(&[10, 9, 8, 1])));
    }
}
