//! One line of the spill file: a checksum of eight hexadecimal digits, a blank, and JSON.
//!
//! The JSON is the serde form of an [`Entry`] or a [`Note`], and `v`, the version of the form. Lines without
//! `v` have version 0, with the same fields. A reader skips lines of a later version, and keeps the file. A
//! field with a default may be added without a new version. Any other change needs a new version here.

use std::io::Write;

use crc::{CRC_32_ISCSI, Crc};
use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Note};

/// The length of the longest line: each text has its maximum length, and is escaped.
pub(crate) const MOST_LINE: usize = 1 << 20;

/// The version that is written.
const VERSION: u32 = 1;

const CHECKSUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
/// The length of the checksum and the blank.
const HEAD: usize = 9;

#[derive(Serialize)]
struct Line<'a, T> {
    v: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    v: u32,
}

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spilled {
    Entry(Entry),
    Note(Note),
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The checksum is wrong: the line is incomplete after a crash, or damaged.
    Checksum,
    /// The line is whole, but this program cannot read it: a newer program may have written it.
    Content,
}

/// Appends an [`Entry`] or a [`Note`] as a line, with its line end.
pub(crate) fn encode(content: &impl Serialize, to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(b"         ");
    let line = Line {
        v: VERSION,
        content,
    };
    // Cannot fail: the JSON has only texts and numbers, and a vector can grow.
    let _ = serde_json::to_writer(&mut *to, &line);
    let sum = CHECKSUM.checksum(&to[start + HEAD..]);
    let _ = write!(&mut to[start..start + HEAD], "{sum:08x} ");
    to.push(b'\n');
}

/// Reads a line without its line end.
pub(crate) fn decode(line: &[u8]) -> Result<Spilled, Unreadable> {
    let (head, json) = line.split_at_checked(HEAD).ok_or(Unreadable::Checksum)?;
    let digits = str::from_utf8(head)
        .ok()
        .and_then(|it| it.strip_suffix(' '));
    let sum = digits.and_then(|it| u32::from_str_radix(it, 16).ok());
    if sum != Some(CHECKSUM.checksum(json)) {
        return Err(Unreadable::Checksum);
    }
    let content = || {
        let Version { v } = serde_json::from_slice(json).ok()?;
        if v > VERSION {
            return None;
        }
        if let Ok(entry) = serde_json::from_slice::<Entry>(json) {
            return entry.check().is_ok().then_some(Spilled::Entry(entry));
        }
        let note: Note = serde_json::from_slice(json).ok()?;
        note.check().is_ok().then_some(Spilled::Note(note))
    };
    content().ok_or(Unreadable::Content)
}

#[cfg(test)]
mod tests {
    use tollgate_core::Time;

    use super::*;
    use crate::entry::tests::entry;
    use crate::entry::{EntryId, HoldNote, Kind, MOST_NAME, MOST_RECORD, MOST_TEXT, MOST_VALUE};

    fn line(content: &impl Serialize) -> Vec<u8> {
        let mut line = Vec::new();
        encode(content, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        line
    }

    /// Returns a line with a correct checksum.
    fn sealed(json: &str) -> Vec<u8> {
        format!("{:08x} {json}", CHECKSUM.checksum(json.as_bytes())).into_bytes()
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

    fn note() -> Note {
        Note {
            id: EntryId(u128::MAX),
            at: Time::from_micros(7),
            namespace: "prod".into(),
            who: "Zoë".into(),
            what: "override.set".into(),
            text: "{\"a\": \"\n\"}".into(),
        }
    }

    #[test]
    fn entries_come_back_as_they_were() {
        for entry in [entry(1), full()] {
            assert_eq!(decode(&line(&entry)), Ok(Spilled::Entry(entry)));
        }
    }

    #[test]
    fn notes_come_back_as_they_were() {
        let mut line = line(&note());
        assert_eq!(decode(&line), Ok(Spilled::Note(note())));
        line[20] ^= 1;
        assert_eq!(decode(&line), Err(Unreadable::Checksum));
    }

    /// Reads lines of programs that did not write a version yet.
    #[test]
    fn lines_of_version_0_are_read() {
        let lines: [(&str, Spilled); 3] = [
            (
                r#"aed12119 {"id":"00000000000000000000000000000001","at":1000000,"namespace":"test","tenant":"acme","action":"search","rule":"monthly","allowance":"monthly","key":"00000000000000000000000000000007","start":0,"end":2000000,"kind":"use","amount":1,"count":1}"#,
                Spilled::Entry(entry(1)),
            ),
            (
                r#"7f7c043b {"id":"ffffffffffffffffffffffffffffffff","at":1000000,"namespace":"test","tenant":"acme","action":"search","rule":"monthly","allowance":"monthly","key":"00000000000000000000000000000007","start":0,"end":2000000,"kind":"reserve","amount":-3,"count":1,"hold":{"id":"ffffffffffffffffffffffffffffffff","tag":9,"expires_at":4503599627370496,"record":"{\"a\": \"\n\"}"},"who":"Zoë","why":"line\nbreak","idempotency_key":""}"#,
                Spilled::Entry(full()),
            ),
            (
                r#"70326a87 {"note":"ffffffffffffffffffffffffffffffff","at":7,"namespace":"prod","who":"Zoë","what":"override.set","text":"{\"a\": \"\n\"}"}"#,
                Spilled::Note(note()),
            ),
        ];
        for (line, expected) in lines {
            assert_eq!(decode(line.as_bytes()), Ok(expected), "{line}");
        }
    }

    /// If the text in this test has to change, the stored form has changed. Make sure that the old form can
    /// still be read.
    #[test]
    fn lines_are_written_in_version_1() {
        let line = String::from_utf8(line(&entry(1))).unwrap();
        assert_eq!(
            &line[HEAD..],
            r#"{"v":1,"id":"00000000000000000000000000000001","at":1000000,"namespace":"test","tenant":"acme","action":"search","rule":"monthly","allowance":"monthly","key":"00000000000000000000000000000007","start":0,"end":2000000,"kind":"use","amount":1,"count":1}"#
        );
    }

    #[test]
    fn lines_of_a_later_version_are_not_read() {
        let line = String::from_utf8(line(&entry(1))).unwrap();
        let json = &line[HEAD..];
        assert!(decode(&sealed(json)).is_ok());
        let later = sealed(&json.replace("\"v\":1", "\"v\":2"));
        assert_eq!(decode(&later), Err(Unreadable::Content));
        let other = sealed("{}");
        assert_eq!(decode(&other), Err(Unreadable::Content));
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let line = String::from_utf8(line(&entry(1))).unwrap();
        let more = line[HEAD..].replace("{\"v\":1", "{\"v\":1,\"later\":[]");
        assert_eq!(decode(&sealed(&more)), Ok(Spilled::Entry(entry(1))));
    }

    #[test]
    fn the_longest_entry_fits_into_a_line() {
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
        assert_eq!(decode(&line), Ok(Spilled::Entry(entry)));
    }

    #[test]
    fn a_changed_or_cut_line_is_not_read() {
        let line = line(&full());
        for place in 0..line.len() {
            let cut = decode(&line[..place]);
            assert_eq!(cut, Err(Unreadable::Checksum), "cut at {place}");
            let mut changed = line.clone();
            changed[place] ^= 1;
            let changed = decode(&changed);
            assert_eq!(changed, Err(Unreadable::Checksum), "changed at {place}");
        }
    }
}
