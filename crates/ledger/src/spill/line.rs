//! An entry or a note as a line of the spill file: a checksum of eight hexadecimal digits, a blank, and JSON.

use std::borrow::Cow;
use std::io::Write;

use crc::{CRC_32_ISCSI, Crc};
use serde::{Deserialize, Serialize};
use tollgate_core::Time;

use crate::entry::{Entry, EntryId, HoldNote, Kind, Period};
use crate::note::Note;

/// The longest line that is believed to be one: all texts as long as may be, and escaped.
pub(crate) const MOST_LINE: usize = 1 << 20;

const SUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
/// Digits of the checksum, and the blank.
const HEAD: usize = 9;

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    id: Hex,
    at: u64,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    tenant: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow)]
    rule: Cow<'a, str>,
    #[serde(borrow)]
    allowance: Cow<'a, str>,
    key: Hex,
    start: u64,
    end: u64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    amount: i64,
    count: u32,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    hold: Option<HoldLine<'a>>,
    #[serde(default, borrow, skip_serializing_if = "str::is_empty")]
    who: Cow<'a, str>,
    #[serde(default, borrow, skip_serializing_if = "str::is_empty")]
    why: Cow<'a, str>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct HoldLine<'a> {
    id: Hex,
    tag: u32,
    expires_at: u64,
    #[serde(default, borrow, skip_serializing_if = "str::is_empty")]
    record: Cow<'a, str>,
}

/// A note has a field that no entry has.
#[derive(Serialize, Deserialize)]
struct NoteLine<'a> {
    note: Hex,
    at: u64,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    who: Cow<'a, str>,
    #[serde(borrow)]
    what: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spilled {
    Entry(Entry),
    Note(Note),
}

impl Spilled {
    pub(super) fn at(&self) -> Time {
        match self {
            Spilled::Entry(entry) => entry.at,
            Spilled::Note(note) => note.at,
        }
    }
}

/// 128 bits as hexadecimal digits: JSON has no such numbers.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Hex(u128);

impl From<Hex> for String {
    fn from(hex: Hex) -> String {
        format!("{:032x}", hex.0)
    }
}

impl TryFrom<String> for Hex {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Hex, Self::Error> {
        u128::from_str_radix(&text, 16).map(Hex)
    }
}

/// Appends `entry` as a line, with its end.
pub(crate) fn encode(entry: &Entry, to: &mut Vec<u8>) {
    let line = Line {
        id: Hex(entry.id.0),
        at: entry.at.as_micros(),
        namespace: Cow::Borrowed(&entry.namespace),
        tenant: Cow::Borrowed(&entry.tenant),
        action: Cow::Borrowed(&entry.action),
        rule: Cow::Borrowed(&entry.rule),
        allowance: Cow::Borrowed(&entry.allowance),
        key: Hex(entry.key),
        start: entry.period.start.as_micros(),
        end: entry.period.end.as_micros(),
        kind: Cow::Borrowed(entry.kind.name()),
        amount: entry.amount,
        count: entry.count,
        hold: entry.hold.as_ref().map(|hold| HoldLine {
            id: Hex(hold.id),
            tag: hold.tag,
            expires_at: hold.expires_at.as_micros(),
            record: Cow::Borrowed(&hold.record),
        }),
        who: Cow::Borrowed(&entry.who),
        why: Cow::Borrowed(&entry.why),
        idempotency_key: entry.idempotency_key.as_deref().map(Cow::Borrowed),
    };
    write(&line, to);
}

/// The same for a note.
pub(crate) fn encode_note(note: &Note, to: &mut Vec<u8>) {
    let line = NoteLine {
        note: Hex(note.id.0),
        at: note.at.as_micros(),
        namespace: Cow::Borrowed(&note.namespace),
        who: Cow::Borrowed(&note.who),
        what: Cow::Borrowed(&note.what),
        text: Cow::Borrowed(&note.text),
    };
    write(&line, to);
}

fn write(line: &impl Serialize, to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(b"         ");
    // Neither JSON of texts and numbers nor a vector refuses anything.
    let _ = serde_json::to_writer(&mut *to, line);
    let sum = SUM.checksum(&to[start + HEAD..]);
    let _ = write!(&mut to[start..start + HEAD], "{sum:08x} ");
    to.push(b'\n');
}

/// What a line without its end is, if it is right.
pub(crate) fn decode(line: &[u8]) -> Option<Spilled> {
    let (head, json) = line.split_at_checked(HEAD)?;
    let sum = str::from_utf8(head).ok()?.strip_suffix(' ')?;
    if u32::from_str_radix(sum, 16).ok()? != SUM.checksum(json) {
        return None;
    }
    let Ok(line) = serde_json::from_slice::<Line<'_>>(json) else {
        return note(serde_json::from_slice(json).ok()?).map(Spilled::Note);
    };
    let entry = Entry {
        id: EntryId(line.id.0),
        at: Time::from_micros(line.at),
        namespace: line.namespace.into(),
        tenant: line.tenant.into(),
        action: line.action.into(),
        rule: line.rule.into(),
        allowance: line.allowance.into(),
        key: line.key.0,
        period: Period {
            start: Time::from_micros(line.start),
            end: Time::from_micros(line.end),
        },
        kind: Kind::parse(&line.kind)?,
        amount: line.amount,
        count: line.count,
        hold: line.hold.map(|hold| HoldNote {
            id: hold.id.0,
            tag: hold.tag,
            expires_at: Time::from_micros(hold.expires_at),
            record: hold.record.into(),
        }),
        who: line.who.into(),
        why: line.why.into(),
        idempotency_key: line.idempotency_key.map(Into::into),
    };
    entry.check().ok()?;
    Some(Spilled::Entry(entry))
}

fn note(line: NoteLine<'_>) -> Option<Note> {
    let note = Note {
        id: EntryId(line.note.0),
        at: Time::from_micros(line.at),
        namespace: line.namespace.into(),
        who: line.who.into(),
        what: line.what.into(),
        text: line.text.into(),
    };
    note.check().ok()?;
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::entry;
    use crate::entry::{MOST_NAME, MOST_RECORD, MOST_TEXT, MOST_VALUE};

    fn line(entry: &Entry) -> Vec<u8> {
        let mut line = Vec::new();
        encode(entry, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        line
    }

    fn full() -> Entry {
        Entry {
            kind: Kind::Reserve,
            amount: -3,
            hold: Some(HoldNote {
                id: u128::MAX,
                tag: 9,
                expires_at: Time::MAX,
                record: "{\"a\": \"\n\"}".into(),
            }),
            who: "Zoë".into(),
            why: "line\nbreak".into(),
            idempotency_key: Some("".into()),
            ..entry(u128::MAX)
        }
    }

    #[test]
    fn entries_come_back_as_they_were() {
        for entry in [entry(1), full()] {
            assert_eq!(decode(&line(&entry)), Some(Spilled::Entry(entry)));
        }
    }

    #[test]
    fn notes_come_back_as_they_were() {
        let note = Note {
            id: EntryId(u128::MAX),
            at: Time::from_micros(7),
            namespace: "prod".into(),
            who: "Zoë".into(),
            what: "override.set".into(),
            text: "{\"a\": \"\n\"}".into(),
        };
        let mut line = Vec::new();
        encode_note(&note, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        assert_eq!(decode(&line), Some(Spilled::Note(note)));
        line[20] ^= 1;
        assert_eq!(decode(&line), None);
    }

    #[test]
    fn the_longest_entry_is_not_too_long_for_a_line() {
        let text = |length| "\u{1}".repeat(length).into();
        let mut entry = Entry {
            namespace: text(MOST_NAME),
            tenant: text(MOST_VALUE),
            action: text(MOST_VALUE),
            rule: text(MOST_NAME),
            allowance: text(MOST_NAME),
            who: text(MOST_TEXT),
            why: text(MOST_TEXT),
            idempotency_key: Some(text(MOST_TEXT)),
            ..full()
        };
        if let Some(hold) = &mut entry.hold {
            hold.record = text(MOST_RECORD);
        }
        let line = line(&entry);
        assert!(line.len() < MOST_LINE, "{}", line.len());
        assert_eq!(decode(&line), Some(Spilled::Entry(entry)));
    }

    #[test]
    fn a_line_with_anything_changed_or_missing_is_none() {
        let line = line(&full());
        for place in 0..line.len() {
            assert_eq!(decode(&line[..place]), None, "cut at {place}");
            let mut changed = line.clone();
            changed[place] ^= 1;
            assert_eq!(decode(&changed), None, "changed at {place}");
        }
    }
}
