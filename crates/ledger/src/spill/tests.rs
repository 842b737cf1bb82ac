use std::fs;
use std::ops::Range;

use tempfile::TempDir;

use super::*;
use crate::entry::tests::{entry, entry_with};

fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let name = directory.path().join("spill");
    (directory, name)
}

fn spill(name: &Path) -> Spill {
    let mut spill = Spill::new(Some(name.to_owned()), 1 << 20);
    spill.adopt();
    spill
}

fn append(spill: &mut Spill, ids: Range<u128>) {
    spill.append(&lines(ids)).unwrap();
}

fn lines(ids: Range<u128>) -> Lines {
    let mut lines = Lines::default();
    for id in ids {
        lines.push(&Queued::One(entry(id)));
    }
    lines
}

/// Reads all ids, in pages of `most`.
fn drain(spill: &mut Spill, most: usize) -> Vec<u128> {
    let mut ids = Vec::new();
    while !spill.is_empty() {
        let read = spill.read(most).unwrap();
        ids.extend(read.entries.iter().map(|it| it.id.0));
        spill.advance(&read);
    }
    ids
}

#[test]
fn lines_are_read_in_order_and_then_the_file_is_emptied() {
    let (_directory, name) = directory();
    let mut spill = spill(&name);
    append(&mut spill, 0..5);
    append(&mut spill, 5..7);
    assert_eq!(spill.entries(), 7);
    assert_eq!(spill.bytes(), fs::metadata(&name).unwrap().len());
    assert_eq!(spill.oldest(), Some(entry(0).at));
    assert_eq!(drain(&mut spill, 3), (0..7).collect::<Vec<_>>());
    assert_eq!((spill.entries(), spill.bytes()), (0, 0));
    assert_eq!(spill.oldest(), None);
    assert_eq!((spill.appended, spill.drained, spill.lost), (7, 7, 0));
    assert_eq!(fs::metadata(&name).unwrap().len(), 0);
}

#[test]
fn lines_appended_during_a_read_come_last() {
    let (_directory, name) = directory();
    let mut spill = spill(&name);
    append(&mut spill, 0..4);
    let read = spill.read(2).unwrap();
    append(&mut spill, 4..6);
    spill.advance(&read);
    assert_eq!(drain(&mut spill, 10), [2, 3, 4, 5]);
}

#[test]
fn unread_lines_survive_a_crash() {
    let (_directory, name) = directory();
    let mut first = spill(&name);
    append(&mut first, 0..4);
    let read = first.read(2).unwrap();
    first.advance(&read);
    drop(first);
    // Entries 0 and 1 are written twice, which is harmless because of their ids.
    let mut second = spill(&name);
    append(&mut second, 4..5);
    assert_eq!(drain(&mut second, 10), [0, 1, 2, 3, 4]);
}

#[test]
fn a_torn_last_line_is_cut_off_and_earlier_lines_stay() {
    let whole = lines(0..3).bytes;
    let second_ends = lines(0..2).bytes.len();
    let torn = (second_ends + 1..whole.len()).step_by(23);
    for length in torn.chain([whole.len() - 1]) {
        let (_directory, name) = directory();
        fs::write(&name, &whole[..length]).unwrap();
        let mut spill = spill(&name);
        assert_eq!(spill.entries(), 2, "{length}");
        append(&mut spill, 7..8);
        assert_eq!(drain(&mut spill, 10), [0, 1, 7], "{length}");
    }
}

#[test]
fn a_last_line_with_a_missing_beginning_is_cut_off() {
    let (_directory, name) = directory();
    let mut whole = lines(0..3).bytes;
    let second_ends = lines(0..2).bytes.len();
    let last = whole.len() - 1;
    whole[second_ends..last].fill(0);
    fs::write(&name, &whole).unwrap();
    assert_eq!(drain(&mut spill(&name), 10), [0, 1]);
}

#[test]
fn a_damaged_line_is_skipped_and_its_file_kept() {
    let (directory, name) = directory();
    let mut whole = lines(0..3).bytes;
    whole[lines(0..1).bytes.len() + 20] ^= 1;
    fs::write(&name, &whole).unwrap();
    let mut spill = spill(&name);
    assert_eq!(drain(&mut spill, 1), [0, 2]);
    let aside = directory.path().join("spill.damaged-1");
    assert_eq!(fs::read(aside).unwrap(), whole);
    append(&mut spill, 5..6);
    assert_eq!(drain(&mut spill, 10), [5]);
}

#[test]
fn a_line_of_any_length_is_skipped() {
    let (_directory, name) = directory();
    let mut file = lines(0..1).bytes;
    file.extend(std::iter::repeat_n(b'x', line::MOST_LINE * 3));
    file.push(b'\n');
    file.extend(lines(1..2).bytes);
    fs::write(&name, &file).unwrap();
    assert_eq!(drain(&mut spill(&name), 10), [0, 1]);
}

#[test]
fn processes_have_their_own_files_and_adopt_those_of_ended_ones() {
    let (directory, name) = directory();
    let (mut first, mut second) = (spill(&name), spill(&name));
    append(&mut first, 0..2);
    append(&mut second, 2..4);
    assert!(directory.path().join("spill.1").exists());
    assert_eq!(spill(&name).entries(), 0, "both processes run");
    drop(second);
    let mut third = spill(&name);
    append(&mut third, 4..5);
    assert_eq!(drain(&mut third, 10), [2, 3, 4]);
    assert_eq!(drain(&mut first, 10), [0, 1]);
    // All files are unlocked again.
    drop((first, third));
    let mut last = spill(&name);
    append(&mut last, 9..10);
    assert_eq!(last.entries(), 1);
    assert!(fs::metadata(&name).unwrap().len() > 0);
}

#[test]
fn files_left_later_are_adopted_before_new_lines() {
    let (_directory, name) = directory();
    let (mut first, mut second) = (spill(&name), spill(&name));
    append(&mut first, 0..2);
    append(&mut second, 2..4);
    assert_eq!(drain(&mut first, 10), [0, 1]);
    first.adopt();
    assert!(first.is_empty(), "the second process runs");
    drop(second);
    first.adopt();
    assert_eq!(first.entries(), 2);
    append(&mut first, 4..6);
    let read = first.read(10).unwrap();
    first.advance(&read);
    // Only lines that were appended here are skipped.
    first.pass(&lines(4..5), None);
    assert_eq!(drain(&mut first, 10), [5]);
    assert_eq!((first.appended, first.drained), (6, 6));
    first.adopt();
    assert!(first.is_empty());
}

#[test]
fn a_file_that_cannot_be_moved_aside_is_adopted_once() {
    let (_directory, name) = directory();
    let mut whole = lines(0..3).bytes;
    whole[lines(0..1).bytes.len() + 20] ^= 1;
    fs::write(&name, &whole).unwrap();
    let mut spill = spill(&name);
    let read = spill.read(10).unwrap();
    // Another program has removed the file, so there is nothing to move.
    fs::remove_file(&name).unwrap();
    spill.advance(&read);
    assert_eq!(spill.files.len(), 1, "it stays locked");
    spill.adopt();
    assert!(spill.is_empty());
    append(&mut spill, 5..6);
    assert_eq!(drain(&mut spill, 10), [5]);
}

#[test]
fn a_full_spill_takes_nothing_and_keeps_its_lines() {
    let (_directory, name) = directory();
    let room = lines(0..3).bytes.len() as u64;
    let mut spill = Spill::new(Some(name), room);
    append(&mut spill, 0..3);
    let error = spill.append(&lines(3..4)).unwrap_err();
    assert!(matches!(error, SpillError::Full { .. }), "{error}");
    assert_eq!(drain(&mut spill, 10), [0, 1, 2]);
    append(&mut spill, 3..4);
}

#[test]
fn drained_lines_do_not_count_and_their_space_is_freed() {
    let (directory, name) = directory();
    let page = lines(1000..1010).bytes.len() as u64;
    let room = 4 * page;
    let mut spill = Spill::new(Some(name), room);
    append(&mut spill, 1000..1010);
    append(&mut spill, 1010..1020);
    let lengths = || -> Vec<u64> {
        let files = fs::read_dir(directory.path()).unwrap();
        let lengths = files.map(|file| file.unwrap().metadata().unwrap().len());
        lengths.collect()
    };
    let (mut ids, mut longest) = (Vec::new(), 0);
    // As many entries are appended as are drained, so the spill is never empty.
    for page in 0..50 {
        let read = spill.read(10).unwrap();
        let first = 1020 + page * 10;
        append(&mut spill, first..first + 10);
        ids.extend(read.entries.iter().map(|it| it.id.0));
        spill.advance(&read);
        assert!(!spill.is_empty());
        longest = longest.max(lengths().iter().sum());
    }
    ids.extend(drain(&mut spill, 7));
    assert_eq!(ids, (1000..1520).collect::<Vec<_>>());
    assert_eq!((spill.appended, spill.drained), (520, 520));
    assert!(longest <= 2 * room, "{longest} of {room}");
    // Two files are enough, and both are empty now.
    assert_eq!(lengths(), [0, 0]);
}

#[test]
fn two_files_of_one_process_are_adopted() {
    let (directory, name) = directory();
    let page = lines(1000..1010).bytes.len() as u64;
    let mut first = Spill::new(Some(name.clone()), 3 * page);
    append(&mut first, 1000..1020);
    let read = first.read(10).unwrap();
    first.advance(&read);
    append(&mut first, 1020..1025);
    assert!(directory.path().join("spill.1").exists());
    assert_eq!(first.entries(), 15);
    drop(first);
    let all: Vec<u128> = (1000..1025).collect();
    assert_eq!(drain(&mut spill(&name), 100), all);
}

#[test]
fn the_older_of_two_files_is_read_first() {
    let (_directory, name) = directory();
    let timed = |ids: Range<u64>| {
        let mut lines = Lines::default();
        for id in ids {
            let entry = entry_with(id.into(), |it| it.at = Time::from_micros(id));
            lines.push(&Queued::One(entry));
        }
        lines
    };
    fs::write(numbered(&name, 1), timed(1..3).bytes).unwrap();
    fs::write(&name, timed(3..5).bytes).unwrap();
    assert_eq!(drain(&mut spill(&name), 10), [1, 2, 3, 4]);
}

#[test]
fn lines_that_reach_the_database_late_are_skipped() {
    let (_directory, name) = directory();
    let mut spill = spill(&name);
    let in_transit = lines(0..3);
    spill.append(&in_transit).unwrap();
    append(&mut spill, 3..5);
    spill.pass(&in_transit, None);
    assert_eq!(spill.drained, 3);
    assert_eq!(drain(&mut spill, 10), [3, 4]);
}

#[test]
fn a_truncated_file_does_not_block_later_lines() {
    let (_directory, name) = directory();
    let mut spill = spill(&name);
    append(&mut spill, 0..5);
    let file = fs::OpenOptions::new().write(true).open(&name).unwrap();
    file.set_len(lines(0..2).bytes.len() as u64).unwrap();
    assert_eq!(drain(&mut spill, 10), [0, 1]);
    assert_eq!((spill.appended, spill.drained, spill.lost), (5, 5, 3));
    append(&mut spill, 5..6);
    assert_eq!(drain(&mut spill, 10), [5]);
}

#[test]
fn lines_appended_to_a_truncated_file_are_not_lost() {
    let (_directory, name) = directory();
    let mut spill = spill(&name);
    append(&mut spill, 0..5);
    let file = fs::OpenOptions::new().write(true).open(&name).unwrap();
    file.set_len(0).unwrap();
    let read = spill.read(10).unwrap();
    assert!(read.entries.is_empty());
    append(&mut spill, 5..7);
    spill.advance(&read);
    assert_eq!(drain(&mut spill, 10), [5, 6]);
    assert_eq!((spill.appended, spill.drained, spill.lost), (7, 7, 5));
}

#[test]
fn a_spill_that_cannot_be_written_takes_nothing() {
    let mut nowhere = Spill::new(None, 1 << 20);
    let error = nowhere.append(&lines(0..1)).unwrap_err();
    assert!(matches!(error, SpillError::Nowhere));
    let mut missing = Spill::new(Some("/no/such/directory/spill".into()), 1 << 20);
    missing.adopt();
    let error = missing.append(&lines(0..1)).unwrap_err().to_string();
    let expected = "cannot open the spill file /no/such/directory/spill: ";
    assert!(error.starts_with(expected), "{error}");
    assert!(missing.is_empty());
}

#[test]
fn a_device_is_not_used_as_a_spill_file() {
    let mut device = Spill::new(Some("/dev/zero".into()), 1 << 20);
    device.adopt();
    assert!(device.is_empty());
    assert!(device.append(&lines(0..1)).is_err());
}

#[test]
fn a_file_of_another_program_is_skipped() {
    let (_directory, name) = directory();
    fs::write(&name, b"not ours\nat all\n").unwrap();
    let mut spill = spill(&name);
    assert_eq!(drain(&mut spill, 10), Vec::<u128>::new());
    append(&mut spill, 0..1);
    assert_eq!(drain(&mut spill, 10), [0]);
}

#[test]
fn a_last_line_of_a_newer_version_is_kept() {
    let (directory, name) = directory();
    let mut file = lines(0..2).bytes;
    // A whole line that this program cannot read, with its checksum.
    file.extend(b"dc441264 {\"v\":2}\n");
    fs::write(&name, &file).unwrap();
    let mut spill = spill(&name);
    assert_eq!(spill.entries(), 3);
    assert_eq!(drain(&mut spill, 10), [0, 1]);
    let aside = directory.path().join("spill.damaged-1");
    assert_eq!(fs::read(aside).unwrap(), file);
}
