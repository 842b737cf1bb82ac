//! The commands of the RESP servers, and a client that sends many commands at once.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

/// The command of a server.
#[derive(Clone, Copy)]
pub(crate) enum Dialect {
    /// `CL.THROTTLE` of redis-cell: 0 means allowed.
    Cell,
    /// `THROTTLE` of throttlecrab: 1 means allowed.
    Throttlecrab,
}

impl Dialect {
    pub(crate) fn command(self) -> &'static str {
        match self {
            Dialect::Cell => "CL.THROTTLE",
            Dialect::Throttlecrab => "THROTTLE",
        }
    }

    /// Returns the burst argument that allows `at_once` requests. In redis-cell it does not include the first
    /// request.
    fn burst(self, at_once: u32) -> u32 {
        match self {
            Dialect::Cell => at_once.saturating_sub(1),
            Dialect::Throttlecrab => at_once,
        }
    }

    /// Returns the first number of an answer that allows.
    fn allowed(self) -> &'static str {
        match self {
            Dialect::Cell => ":0",
            Dialect::Throttlecrab => ":1",
        }
    }
}

/// A limit: `at_once` requests at once, and `count` in `period` seconds.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) at_once: u32,
    pub(crate) count: u32,
    pub(crate) period: u32,
}

impl Numbers {
    /// Returns the arguments after the key in a command.
    pub(crate) fn words(self, dialect: Dialect) -> [String; 3] {
        [dialect.burst(self.at_once), self.count, self.period].map(|it| it.to_string())
    }
}

/// Returns a command as bytes on the wire.
pub(crate) fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// A connection that waits for its answers.
pub(crate) struct Client {
    dialect: Dialect,
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, dialect: Dialect) -> Result<Client, Box<dyn Error>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let stream = BufReader::new(stream);
        Ok(Client { dialect, stream })
    }

    /// Sends a command for each of `keys`, all at once. Returns how many are allowed.
    pub(crate) fn ask(
        &mut self,
        keys: impl IntoIterator<Item = String>,
        numbers: Numbers,
    ) -> Result<usize, Box<dyn Error>> {
        let [burst, count, period] = &numbers.words(self.dialect);
        let (mut commands, mut asked) = (Vec::new(), 0);
        for key in keys {
            let words = [self.dialect.command(), &key, burst, count, period];
            commands.extend(encode(&words));
            asked += 1;
        }
        self.stream.get_mut().write_all(&commands)?;
        let mut allowed = 0;
        for _ in 0..asked {
            allowed += usize::from(self.read_answer()?);
        }
        Ok(allowed)
    }

    /// Whether the next answer allows.
    fn read_answer(&mut self) -> Result<bool, Box<dyn Error>> {
        let head = self.read_line()?;
        if head != "*5" {
            let command = self.dialect.command();
            return Err(format!("the answer to {command} is {head}").into());
        }
        let first = self.read_line()?;
        for _ in 1..5 {
            self.read_line()?;
        }
        Ok(first == self.dialect.allowed())
    }

    fn read_line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("the server has closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }
}
