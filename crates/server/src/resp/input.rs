//! Input of a client that is not answered yet.

use super::bounds::MAX_COMMAND;

/// The space for one read.
const ROOM: usize = 4 * 1024;
/// The space for one read of a client that sends much.
const MORE_ROOM: usize = 16 * 1024;

/// Bytes that were read, some of them answered.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Bytes before this position are answered.
    start: usize,
}

impl Input {
    /// Creates an empty input.
    #[must_use]
    pub fn new() -> Input {
        Input::default()
    }

    /// Returns the bytes that are not answered yet.
    #[must_use]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    /// Marks `length` more bytes as answered.
    pub(super) fn consume(&mut self, length: usize) {
        self.start = (self.start + length).min(self.bytes.len());
    }

    /// Returns whether everything is answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Returns how many bytes this occupies.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the buffer to append input to, with space for it.
    pub fn room(&mut self) -> &mut Vec<u8> {
        let filled = self.bytes.len() == self.bytes.capacity();
        if self.is_empty() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
        let wanted = match (filled, self.bytes.len()) {
            (false, 0) if self.bytes.capacity() > MORE_ROOM => {
                self.bytes.shrink_to(ROOM);
                ROOM
            }
            (true, 0) if self.bytes.capacity() > 0 => MORE_ROOM,
            (_, 0) => ROOM,
            // An incomplete command.
            (_, length) => (length * 2).clamp(MORE_ROOM, MAX_COMMAND + ROOM),
        };
        let space = wanted.saturating_sub(self.bytes.len()).max(ROOM / 4);
        self.bytes.reserve_exact(space);
        &mut self.bytes
    }
}

impl From<&[u8]> for Input {
    fn from(bytes: &[u8]) -> Input {
        Input {
            bytes: bytes.to_vec(),
            start: 0,
        }
    }
}
