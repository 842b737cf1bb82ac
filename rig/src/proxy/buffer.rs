//! One direction of a connection: a queue of bytes, each with a time to leave.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How many bytes the queue may hold. When it is full, the proxy stops reading from the sender.
const CAPACITY: usize = 8 << 20;
const CHUNK: usize = 16 << 10;

#[derive(Debug)]
struct Chunk {
    /// When the chunk may leave, as time since the start of the proxy.
    due: Duration,
    /// The bytes; an empty chunk is the end of the stream.
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Buffer {
    chunks: VecDeque<Chunk>,
    /// How many bytes are in `chunks`.
    held: usize,
    /// Whether the sender has ended its stream.
    ended: bool,
    /// Whether the end of the stream was passed on to the receiver.
    closed: bool,
}

impl Buffer {
    /// Whether the proxy reads from the sender.
    pub(super) fn is_open(&self) -> bool {
        !self.ended && self.held < CAPACITY
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns when the next bytes may leave.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.chunks.front().map(|chunk| chunk.due)
    }

    /// Reads the available bytes of the sender, which leave at `due`.
    pub(super) fn fill(&mut self, mut from: &TcpStream, due: Duration) -> io::Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        let mut buffer = [0; CHUNK];
        if let Some(length) = if_ready(from.read(&mut buffer))? {
            let bytes = buffer[..length].to_vec();
            self.ended = bytes.is_empty();
            self.held += bytes.len();
            self.chunks.push_back(Chunk { due, bytes });
        }
        Ok(())
    }

    /// Writes the bytes that are due, as far as the receiver accepts them.
    pub(super) fn drain(&mut self, mut to: &TcpStream, now: Duration) -> io::Result<()> {
        while let Some(chunk) = self.chunks.front_mut().filter(|it| it.due <= now) {
            if chunk.bytes.is_empty() {
                to.shutdown(Shutdown::Write)?;
                self.closed = true;
            } else {
                let Some(length) = if_ready(to.write(&chunk.bytes))? else {
                    return Ok(());
                };
                self.held -= length;
                chunk.bytes.drain(..length);
                if !chunk.bytes.is_empty() {
                    return Ok(());
                }
            }
            self.chunks.pop_front();
        }
        Ok(())
    }

    /// Reads and drops the available bytes of the sender. Returns whether there were any.
    pub(super) fn discard_input(&mut self, from: &TcpStream) -> bool {
        let broken = self.fill(from, Duration::ZERO).is_err();
        self.ended |= broken;
        self.discard_queued() || broken
    }

    /// Drops the bytes in the queue. Returns whether there were any.
    pub(super) fn discard_queued(&mut self) -> bool {
        let any = !self.chunks.is_empty();
        self.chunks.clear();
        self.held = 0;
        any
    }
}

/// Turns the error of a socket that is not ready into `None`.
fn if_ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
