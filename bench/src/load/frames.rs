//! One HTTP/2 connection of the load generator as a state machine: bytes in, answers and bytes out.
//!
//! Header blocks are constants. The first request adds its fields to the server's table, and later requests
//! refer to them, as a real client does. Headers of answers are not decoded.

use std::collections::VecDeque;
use std::time::Duration;

use super::calls::{Calls, PREFIX};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Flags. `ACK` and `END_STREAM` are the same bit of different frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The window that each side starts with.
const FIRST_WINDOW: i64 = 65_535;
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// Requests whose state is kept at the same time. The oldest open request may be this far behind.
const SLOTS: usize = 1 << 16;

/// An answer that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// When the request was due, as given to [`Connection::ask`].
    pub(super) started: Duration,
    pub(super) is_allowed: bool,
}

/// A request whose answer is not complete.
#[derive(Clone, Copy)]
struct Open {
    stream: u32,
    started: Duration,
    is_allowed: bool,
}

pub(super) struct Connection<'a> {
    calls: &'a Calls,
    /// Bytes for the server.
    output: Vec<u8>,
    /// The bytes of a frame that is not complete.
    input: Vec<u8>,
    /// The fields of the first request.
    first_block: Vec<u8>,
    next_stream: u32,
    /// The bytes of messages that the server accepts now.
    window: i64,
    /// Requests that wait for the window.
    waiting: VecDeque<(usize, Duration)>,
    open: Vec<Option<Open>>,
}

impl<'a> Connection<'a> {
    /// Makes a connection that calls `calls` on the host `authority`.
    pub(super) fn new(calls: &'a Calls, authority: &str) -> Connection<'a> {
        let mut output = PREFACE.to_vec();
        push_frame(&mut output, SETTINGS, 0, 0, &[]);
        // The server may send as much as it likes during a run.
        let more = LARGEST_WINDOW - 65_535;
        push_frame(&mut output, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        Connection {
            calls,
            output,
            input: Vec::new(),
            first_block: first_block(&calls.path, authority),
            next_stream: 1,
            window: FIRST_WINDOW,
            waiting: VecDeque::new(),
            open: vec![None; SLOTS],
        }
    }

    /// Sends the message with this number, as soon as the window allows it.
    pub(super) fn ask(&mut self, message: usize, started: Duration) -> Result<(), String> {
        self.waiting.push_back((message, started));
        self.send_waiting()
    }

    /// The bytes for the server. The caller removes those that it has sent.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    fn send_waiting(&mut self) -> Result<(), String> {
        while let Some(&(message, started)) = self.waiting.front() {
            let message = &self.calls.messages[message % self.calls.messages.len()];
            let length = i64::try_from(message.len()).unwrap_or(i64::MAX);
            if length > self.window {
                break;
            }
            self.window -= length;
            self.waiting.pop_front();
            let stream = self.next_stream;
            self.next_stream += 2;
            // :method POST, :scheme http, and the four fields of the first request.
            let later: &[u8] = &[0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
            let block = if stream == 1 {
                &self.first_block
            } else {
                later
            };
            push_frame(&mut self.output, HEADERS, END_HEADERS, stream, block);
            push_frame(&mut self.output, DATA, END_STREAM, stream, message);
            let open = Open {
                stream,
                started,
                is_allowed: false,
            };
            let slot = &mut self.open[slot(stream)];
            if slot.replace(open).is_some() {
                return Err("a request was not answered".to_owned());
            }
        }
        Ok(())
    }

    /// Reads what the server has sent, and calls `answered` for each answer that is complete.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        mut answered: impl FnMut(Answer),
    ) -> Result<(), String> {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let mut rest = input.as_slice();
        while let Some(head) = rest.first_chunk::<FRAME_HEAD>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = rest.get(FRAME_HEAD..FRAME_HEAD + length) else {
                break;
            };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if let Some(answer) = self.frame(head[3], head[4], stream, payload)? {
                answered(answer);
            }
            rest = &rest[FRAME_HEAD + length..];
        }
        let read = input.len() - rest.len();
        input.drain(..read);
        self.input = input;
        self.send_waiting()
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> Result<Option<Answer>, String> {
        let is_last = flags & END_STREAM != 0;
        match kind {
            DATA => {
                if flags & PADDED != 0 {
                    return Err("the server pads its answers".to_owned());
                }
                let is_allowed = self.calls.is_allowed(payload);
                if let Some(open) = self.opened(stream) {
                    // A message may be split: only its first part has the prefix.
                    open.is_allowed |= is_allowed && payload.len() >= PREFIX;
                }
                Ok(is_last.then(|| self.finish(stream)).flatten())
            }
            HEADERS => Ok(is_last.then(|| self.finish(stream)).flatten()),
            RST_STREAM => {
                // A server may reset a stream that it has answered.
                let answer = self.finish(stream);
                Ok(answer.map(|answer| Answer {
                    is_allowed: false,
                    ..answer
                }))
            }
            SETTINGS if flags & ACK == 0 => {
                check_settings(payload)?;
                push_frame(&mut self.output, SETTINGS, ACK, 0, &[]);
                Ok(None)
            }
            PING if flags & ACK == 0 => {
                push_frame(&mut self.output, PING, ACK, 0, payload);
                Ok(None)
            }
            GOAWAY => {
                let text = payload.get(8..).map(String::from_utf8_lossy);
                Err(format!(
                    "the server ends the connection: {}",
                    text.unwrap_or_default()
                ))
            }
            WINDOW_UPDATE if stream == 0 => {
                let more = payload
                    .first_chunk()
                    .map_or(0, |more| u32::from_be_bytes(*more));
                self.window += i64::from(more);
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn opened(&mut self, stream: u32) -> Option<&mut Open> {
        let open = self.open[slot(stream)].as_mut();
        open.filter(|open| open.stream == stream)
    }

    fn finish(&mut self, stream: u32) -> Option<Answer> {
        let open = *self.opened(stream)?;
        self.open[slot(stream)] = None;
        Some(Answer {
            started: open.started,
            is_allowed: open.is_allowed,
        })
    }
}

fn slot(stream: u32) -> usize {
    (stream / 2) as usize % SLOTS
}

fn push_frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    // Payloads have a few hundred bytes.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    output.extend_from_slice(&length.to_be_bytes()[1..]);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
    output.extend_from_slice(payload);
}

/// Returns the fields of the first request. Four of them enter the server's table.
fn first_block(path: &str, authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    // Each begins with the field's name as an index of the static table, or with a name of its own.
    let mut field = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        // The caller has checked the path; a longer length would need more bytes.
        block.push(u8::try_from(value.len()).unwrap_or(0x7e));
        block.extend_from_slice(value.as_bytes());
    };
    field(&[0x44], path);
    field(&[0x41], authority);
    field(&[0x5f], "application/grpc");
    field(&[0x40, 2, b't', b'e'], "trailers");
    block
}

/// Checks that the server lets this generator have enough requests in flight.
fn check_settings(payload: &[u8]) -> Result<(), String> {
    for setting in payload.chunks_exact(6) {
        let name = u16::from_be_bytes([setting[0], setting[1]]);
        let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
        if name == MAX_CONCURRENT_STREAMS && value < 64 {
            return Err(format!("the server allows only {value} requests in flight"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls {
        Calls::new("/a.B/C", &[8, 1], std::iter::once(b"message".to_vec()))
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_frame(&mut bytes, kind, flags, stream, payload);
        bytes
    }

    /// Returns the answers to `bytes`, received in pieces of this length.
    fn receive(connection: &mut Connection<'_>, bytes: &[u8], piece: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        for piece in bytes.chunks(piece) {
            connection
                .receive(piece, |answer| answers.push(answer))
                .unwrap();
        }
        answers
    }

    #[test]
    fn answers_are_found_in_pieces_of_any_length() {
        let calls = calls();
        let allowed = [0, 0, 0, 0, 2, 8, 1];
        let denied = [0, 0, 0, 0, 2, 8, 2];
        let mut bytes = frame(SETTINGS, 0, 0, &[]);
        for (stream, message) in [(1, allowed), (3, denied)] {
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &[0x88]));
            bytes.extend(frame(DATA, 0, stream, &message));
            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88]));
        }
        // An error has no message.
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 5, &[0x88]));
        for piece in 1..bytes.len() {
            let mut connection = Connection::new(&calls, "localhost");
            for micros in 1..=3 {
                connection.ask(0, Duration::from_micros(micros)).unwrap();
            }
            let answers = receive(&mut connection, &bytes, piece);
            let found: Vec<_> = answers
                .iter()
                .map(|it| (it.started.as_micros(), it.is_allowed))
                .collect();
            assert_eq!(found, [(1, true), (2, false), (3, false)], "{piece}");
        }
    }

    #[test]
    fn requests_wait_for_the_window() {
        let mut calls = calls();
        calls.messages = vec![vec![0; 40_000]];
        let mut connection = Connection::new(&calls, "localhost");
        connection.ask(0, Duration::ZERO).unwrap();
        let one = connection.output().len();
        connection.ask(0, Duration::ZERO).unwrap();
        assert_eq!(connection.output().len(), one);
        let more = frame(WINDOW_UPDATE, 0, 0, &40_000_u32.to_be_bytes());
        receive(&mut connection, &more, 4);
        assert!(connection.output().len() > one + 40_000);
    }

    #[test]
    fn pings_and_settings_are_acknowledged() {
        let calls = calls();
        let mut connection = Connection::new(&calls, "localhost");
        connection.output().clear();
        let mut bytes = frame(SETTINGS, 0, 0, &[]);
        bytes.extend(frame(PING, 0, 0, b"12345678"));
        bytes.extend(frame(PING, ACK, 0, b"12345678"));
        receive(&mut connection, &bytes, 100);
        let mut expected = frame(SETTINGS, ACK, 0, &[]);
        expected.extend(frame(PING, ACK, 0, b"12345678"));
        assert_eq!(*connection.output(), expected);
    }

    #[test]
    fn end_of_the_connection_is_an_error() {
        let calls = calls();
        let mut connection = Connection::new(&calls, "localhost");
        let bytes = frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0too_many_pings");
        let error = connection.receive(&bytes, |_| {}).unwrap_err();
        assert_eq!(error, "the server ends the connection: too_many_pings");
    }

    #[test]
    fn too_few_streams_are_an_error() {
        assert!(check_settings(&[0, 3, 0, 0, 0, 10]).is_err());
        assert!(check_settings(&[0, 3, 0, 0, 0, 100, 0, 4, 0, 0, 0, 1]).is_ok());
    }
}
