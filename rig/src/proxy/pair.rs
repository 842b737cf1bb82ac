//! The connection of a client, and the matching connection to the server.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use super::buffer::Buffer;

#[derive(Debug)]
pub(super) struct Pair {
    client: TcpStream,
    /// `None` if the client connected during a [`super::Fault::BlackHole`].
    server: Option<TcpStream>,
    up: Buffer,
    down: Buffer,
    /// Whether bytes were lost, so that the connection cannot continue.
    lossy: bool,
}

/// A socket of a pair, and the events to wait for.
#[derive(Debug)]
pub(super) struct Interest<'a> {
    pub(super) socket: &'a TcpStream,
    /// Whether to wait until bytes can be read.
    pub(super) read: bool,
    /// The time at which the next bytes have to be written, if there are any.
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

    /// Makes a pair with a client only: there is no connection to the server.
    pub(super) fn in_black_hole(client: TcpStream) -> Pair {
        prepare(&client);
        Pair {
            lossy: true,
            client,
            server: None,
            up: Buffer::default(),
            down: Buffer::default(),
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

    /// Reads the available bytes of both ends, which leave at `due`, and writes the bytes that leave at `now`
    /// or earlier. Returns whether the connection continues.
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

    /// Reads and drops the bytes of both ends. Returns whether the connection continues.
    pub(super) fn discard_input(&mut self) -> bool {
        self.lossy |= self.up.discard_input(&self.client);
        match &self.server {
            Some(server) => {
                self.lossy |= self.down.discard_input(server);
                !(self.up.has_ended() && self.down.has_ended())
            }
            None => !self.up.has_ended(),
        }
    }

    /// Drops the queued bytes of both directions.
    pub(super) fn discard_queued(&mut self) {
        self.lossy |= self.up.discard_queued();
        self.lossy |= self.down.discard_queued();
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
