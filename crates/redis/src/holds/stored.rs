//! Records of holds as they are stored in Redis: a binary head, and the text of the record as it
//! was made. The script reads and changes the head. `holds.lua` describes the layout.

use tollgate_core::{Time, Token};
use tollgate_store::{HoldRecord, HoldState, Purpose};

use crate::request::MAX;

/// The length of the head before the amounts of the charges.
const HEAD: usize = 65;

/// States and purposes. The index of each is its code in the record.
const STATES: [HoldState; 4] = [
    HoldState::Reserved,
    HoldState::Consumed,
    HoldState::Released,
    HoldState::Expired,
];
const PURPOSES: [Purpose; 2] = [Purpose::Reservation, Purpose::Lease];

/// The stored form of a hold in one cluster slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredHold {
    pub(super) state: HoldState,
    pub(super) purpose: Purpose,
    pub(super) units: u64,
    pub(super) actual: Option<u64>,
    pub(super) charged_at: Time,
    pub(super) expires_at: Time,
    pub(super) token: Token,
    pub(super) fingerprint: u64,
    pub(super) fence: u64,
    /// What each charge in this cluster slot has taken.
    pub(super) taken: Vec<u64>,
    /// The text of the whole record in the deciding slot; empty in others.
    pub(super) text: String,
}

impl StoredHold {
    /// Returns the part of a record that one cluster slot stores. `indexes` are the charges in that slot. Only
    /// the slot that `decides` stores the text of the record.
    pub(super) fn of(record: &HoldRecord, indexes: &[usize], decides: bool) -> StoredHold {
        let taken = indexes.iter().map(|index| record.charges[*index].taken);
        StoredHold {
            state: record.state,
            purpose: record.purpose,
            units: record.units,
            actual: record.actual,
            charged_at: record.charged_at,
            expires_at: record.expires_at,
            token: record.token,
            fingerprint: record.fingerprint,
            fence: record.fence,
            taken: taken.collect(),
            text: if decides {
                record.to_text()
            } else {
                String::new()
            },
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![b'h', code(&STATES, &self.state), purpose_code(self.purpose)];
        put(&mut bytes, self.units);
        bytes.push(u8::from(self.actual.is_some()));
        put(&mut bytes, self.actual.unwrap_or(0));
        put(&mut bytes, self.charged_at.as_micros());
        put(&mut bytes, self.expires_at.as_micros());
        bytes.extend(self.token.bits().to_be_bytes());
        bytes.extend(self.fingerprint.to_be_bytes());
        put(&mut bytes, self.fence);
        // Cannot overflow: a record has few charges.
        let count = u16::try_from(self.taken.len()).unwrap_or(u16::MAX);
        bytes.extend(count.to_le_bytes());
        self.taken.iter().for_each(|it| put(&mut bytes, *it));
        bytes.extend(self.text.as_bytes());
        bytes
    }

    /// Parses a stored record; `None` if the bytes are not one.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<StoredHold> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| number(&head[at..at + 7]);
        let (state, purpose) = match head {
            [b'h', state, purpose, ..] => (*state, *purpose),
            _ => return None,
        };
        let count = usize::from(u16::from_le_bytes([head[63], head[64]]));
        let (taken, text) = rest.split_at_checked(count * 7)?;
        Some(StoredHold {
            state: *STATES.get(usize::from(state))?,
            purpose: *PURPOSES.get(usize::from(purpose))?,
            units: number(3),
            actual: (head[10] == 1).then(|| number(11)),
            charged_at: Time::from_micros(number(18)),
            expires_at: Time::from_micros(number(25)),
            token: Token::new(u128::from_be_bytes(head[32..48].try_into().ok()?)),
            fingerprint: u64::from_be_bytes(head[48..56].try_into().ok()?),
            fence: number(56),
            taken: taken.chunks_exact(7).map(self::number).collect(),
            text: std::str::from_utf8(text).ok()?.to_owned(),
        })
    }

    /// Brings `record` up to date from this part, which must be the deciding one. Before, `record` has the
    /// values from when the hold was made. `indexes` are the positions, in the record, of the charges in this
    /// part's cluster slot.
    pub(super) fn update(&self, record: &mut HoldRecord, indexes: &[usize]) {
        record.state = self.state;
        record.units = self.units;
        record.actual = self.actual;
        record.charged_at = self.charged_at;
        record.expires_at = self.expires_at;
        record.fence = self.fence;
        self.update_charges(record, indexes);
    }

    /// Updates the charges of `record` at `indexes` from this part in another cluster slot.
    pub(super) fn update_charges(&self, record: &mut HoldRecord, indexes: &[usize]) {
        record.fence = record.fence.max(self.fence);
        for (index, taken) in indexes.iter().zip(&self.taken) {
            if let Some(charge) = record.charges.get_mut(*index) {
                charge.taken = *taken;
            }
        }
    }
}

/// Returns the position of a value, which is its code in the record.
fn code<T: PartialEq>(all: &[T], value: &T) -> u8 {
    let position = all.iter().position(|it| it == value);
    u8::try_from(position.unwrap_or_default()).unwrap_or_default()
}

pub(super) fn purpose_code(purpose: Purpose) -> u8 {
    code(&PURPOSES, &purpose)
}

/// Appends a number in seven bytes.
pub(super) fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.min(MAX).to_le_bytes()[..7]);
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().rev();
    digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_are_parsed() {
        let value = StoredHold {
            state: HoldState::Consumed,
            purpose: Purpose::Lease,
            units: 3,
            actual: Some(MAX),
            charged_at: Time::from_micros(1_700_000_000_000_000),
            expires_at: Time::from_micros(1_700_000_060_000_000),
            token: Token::new(u128::MAX - 7),
            fingerprint: u64::MAX - 9,
            fence: 1_700_000_000_000_001,
            taken: vec![3, 0, 1 << 52],
            text: "hold/1 ü".to_owned(),
        };
        let bytes = value.to_bytes();
        assert_eq!(StoredHold::from_bytes(&bytes), Some(value));
        for end in 0..HEAD + 21 {
            assert_eq!(StoredHold::from_bytes(&bytes[..end]), None, "{end}");
        }
        for (place, other) in [(0, b'x'), (1, 9), (2, 9)] {
            let mut changed = bytes.clone();
            changed[place] = other;
            assert_eq!(StoredHold::from_bytes(&changed), None, "{place}");
        }
    }
}
