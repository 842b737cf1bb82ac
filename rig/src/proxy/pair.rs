//! A client's connection, and the one to the server that belongs to it.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use super::line::Line;

#[derive(Debug)]
pub(super) struct Pair {
    client: TcpStream,
    /// `None` when the client came while the way was a black hole.
    server: Option<TcpStream>,
    up: Line,
    down: Line,
    /// Bytes have vanished: what would follow makes no sense.
    lossy: bool,
}

/// A socket of a pair, and what it is waited for.
#[derive(Debug)]
pub(super) struct Interest<'a> {
    pub(super) socket: &'a TcpStream,
    /// It may have bytes for us.
    pub(super) read: bool,
    /// When we have bytes for it.
    pub(super) write: Option<Duration>,
}

impl Pair {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> Pair {
        prepare(&server);
        Pair {
            server: Some(server),
            lossy: false,
            ..Pair::in_black_hole(client)
        }
    }

    /// A client that will never reach the server.
    pub(super) fn in_black_hole(client: TcpStream) -> Pair {
        prepare(&client);
        Pair {
            lossy: true,
            client,
            server: None,
            up: Line::default(),
            down: Line::default(),
        }
    }

    pub(super) fn interests(&self) -> impl Iterator<Item = Interest<'_>> {
        let client = Interest {
            socket: &self.client,
            read: self.up.is_open(),
            write: self.down.next_due(),
        };
        let server = self.server.as_ref().map(|socket| Interest {
            socket,
            read: self.down.is_open(),
            write: self.up.next_due(),
        });
        [client].into_iter().chain(server)
    }

    /// Takes what both ends have, to leave at `due`, and passes on what is due `now`. Says whether
    /// the connection goes on.
    pub(super) fn relay(&mut self, now: Duration, due: Duration) -> io::Result<bool> {
        let Some(server) = &self.server else {
            return Ok(false);
        };
        self.up.fill(&self.client, due)?;
        self.down.fill(server, due)?;
        self.up.drain(server, now)?;
        self.down.drain(&self.client, now)?;
        Ok(!(self.up.is_closed() && self.down.is_closed()))
    }

    /// Takes what both ends have, and loses it. Says whether the connection goes on.
    pub(super) fn swallow(&mut self) -> bool {
        self.lossy |= self.up.swallow(&self.client);
        match &self.server {
            Some(server) => {
                self.lossy |= self.down.swallow(server);
                !(self.up.has_ended() && self.down.has_ended())
            }
            None => !self.up.has_ended(),
        }
    }

    /// Loses what is under way.
    pub(super) fn lose(&mut self) {
        self.lossy |= self.up.lose();
        self.lossy |= self.down.lose();
    }

    pub(super) fn is_lossy(&self) -> bool {
        self.lossy
    }

    pub(super) fn reset(self) {
        reset(self.client);
        self.server.into_iter().for_each(reset);
    }
}

/// Closes the connection with RST instead of FIN.
pub(super) fn reset(stream: TcpStream) {
    let linger = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    linger.expect("a socket that can be reset");
    drop(stream);
}

fn prepare(stream: &TcpStream) {
    stream.set_nonblocking(true).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
}
