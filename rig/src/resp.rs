//! A small blocking Redis client, to inspect a server without the code under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reply of a server (RESP 2).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// A status, such as `OK`.
    Simple(String),
    /// An error that begins with its code, such as `MOVED 42 127.0.0.1:20001`.
    Error(String),
    /// A number.
    Int(i64),
    /// Any bytes.
    Bulk(Vec<u8>),
    /// Null: the key does not exist.
    Null,
    /// A list of replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the number.
    ///
    /// # Panics
    ///
    /// When the reply is not a number.
    pub fn int(self) -> i64 {
        match self {
            Reply::Int(number) => number,
            other => panic!("not a number: {other:?}"),
        }
    }

    /// Returns the bytes, or `None` for [`Reply::Null`].
    ///
    /// # Panics
    ///
    /// When the reply is not a bulk string.
    pub fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Reply::Bulk(bytes) => Some(bytes),
            Reply::Null => None,
            other => panic!("not a bulk string: {other:?}"),
        }
    }

    /// Returns the text of a status or bulk string.
    ///
    /// # Panics
    ///
    /// When the reply is anything else.
    pub fn text(self) -> String {
        match self {
            Reply::Simple(text) => text,
            Reply::Bulk(bytes) => String::from_utf8(bytes).expect("text"),
            other => panic!("not a text: {other:?}"),
        }
    }

    /// Returns the elements of a list.
    ///
    /// # Panics
    ///
    /// When the reply is not a list.
    pub fn items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }
}

trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection to a Redis server.
pub struct Resp {
    stream: BufReader<Box<dyn Stream>>,
}

impl std::fmt::Debug for Resp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resp").finish_non_exhaustive()
    }
}

impl Resp {
    /// Connects to `address`, such as `127.0.0.1:20001`.
    pub fn connect(address: &str) -> io::Result<Resp> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Resp::over(stream))
    }

    pub(crate) fn connect_unix(socket: &Path) -> io::Result<Resp> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Resp::over(stream))
    }

    fn over(stream: impl Stream + 'static) -> Resp {
        Resp {
            stream: BufReader::new(Box::new(stream)),
        }
    }

    /// Sends a command, and returns the reply. An error reply is a [`Reply::Error`], not an `Err`.
    pub fn try_command(&mut self, parts: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            let part = part.as_ref();
            bytes.extend(format!("${}\r\n", part.len()).into_bytes());
            bytes.extend(part);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)?;
        self.reply()
    }

    /// Sends a command, and returns the reply.
    ///
    /// # Panics
    ///
    /// When the connection breaks, or there is no reply within ten seconds.
    pub fn command(&mut self, parts: &[impl AsRef<[u8]>]) -> Reply {
        self.try_command(parts).unwrap_or_else(|error| {
            let name = parts.first().map(AsRef::as_ref).unwrap_or_default();
            panic!("no reply to {}: {error}", name.escape_ascii())
        })
    }

    /// Returns all keys, sorted.
    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = self.command(&["SCAN", &cursor, "COUNT", "1000"]).items();
            let [next, found] = <[Reply; 2]>::try_from(reply).expect("a cursor and keys");
            keys.extend(found.items().into_iter().filter_map(Reply::bytes));
            cursor = next.text();
            if cursor == "0" {
                break;
            }
        }
        keys.sort();
        // SCAN may return a key twice.
        keys.dedup();
        keys
    }

    /// Returns the value of a string.
    pub fn get(&mut self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.command(&["GET".as_bytes(), key.as_ref()]).bytes()
    }

    /// Returns the value of a key of any type, in the encoding of `DUMP`.
    pub fn dump(&mut self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        self.command(&["DUMP".as_bytes(), key.as_ref()]).bytes()
    }

    /// Returns the time to live of a key in milliseconds; -1 if it does not expire, -2 if it does not exist.
    pub fn pttl(&mut self, key: impl AsRef<[u8]>) -> i64 {
        self.command(&["PTTL".as_bytes(), key.as_ref()]).int()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| broken(&line));
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => Reply::Bulk(self.bulk(length)?),
                Err(_) => Reply::Null,
            },
            "*" => match usize::try_from(number()?) {
                Ok(count) => {
                    Reply::Array((0..count).map(|_| self.reply()).collect::<Result<_, _>>()?)
                }
                Err(_) => Reply::Null,
            },
            _ => return Err(broken(&line)),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn bulk(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP: {line:?}"))
}
