use std::fs;

use serde_json::json;
use tollgate::{ManualClock, Span};

use super::*;

const START: u64 = 1_770_000_000_000_000;

struct Setup {
    directory: tempfile::TempDir,
    clock: ManualClock,
    audit: Audit,
}

impl Setup {
    fn new() -> Setup {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(Time::from_micros(START));
        let data = directory.path().join("data");
        let audit = Audit::open(&data, Arc::new(clock.clone()), Copies::default()).unwrap();
        Setup {
            directory,
            clock,
            audit,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("data").join(FILE)
    }

    async fn write(&self, what: &str, who: &str) {
        self.audit.write(Entry::new(what, who)).await;
    }

    async fn find(&self, fields: &[(&str, &str)]) -> Vec<String> {
        let mut query = Query::default();
        for (name, text) in fields {
            query.set(name, text, self.clock.now()).unwrap();
        }
        let found = self.audit.find(query).await.unwrap().entries;
        found
            .iter()
            .map(|it| format!("{} {}", it.who, it.what))
            .collect()
    }
}

#[tokio::test]
async fn entry_is_one_line_and_is_found_again() {
    let setup = Setup::new();
    assert!(!setup.path().exists(), "made by the first entry");
    assert_eq!(setup.find(&[]).await, [""; 0]);
    let entry = Entry::new(CONFIG_RELOAD, "ops")
        .change("a", json!({ "version": "b" }))
        .because(Some("more \"room\"\nfor acme"));
    setup.audit.write(entry.clone()).await;
    let text = fs::read_to_string(setup.path()).unwrap();
    let expected = r#"{"at":"2026-02-02T02:40:00.000Z","who":"ops","what":"config.reload","from":"a","to":{"version":"b"},"why":"more \"room\"\nfor acme","v":1}"#;
    assert_eq!(text, format!("{expected}\n"));
    let found = setup.audit.find(Query::default()).await.unwrap();
    let at = "2026-02-02T02:40:00.000Z".to_owned();
    assert_eq!(found.entries, [Entry { at, ..entry }]);
    assert!(!found.is_cut);
    assert_eq!(setup.audit.errors(), 0);
}

#[tokio::test]
async fn newest_entries_come_first_and_filters_apply() {
    let setup = Setup::new();
    for (what, who) in [
        ("reset", "ann"),
        ("config.reload", "file"),
        ("config.refused", "ann"),
        ("refund", "bob"),
    ] {
        setup.write(what, who).await;
        setup.clock.advance(Span::from_secs(3600));
    }
    let all = [
        "bob refund",
        "ann config.refused",
        "file config.reload",
        "ann reset",
    ];
    assert_eq!(setup.find(&[]).await, all);
    assert_eq!(setup.find(&[("limit", "2")]).await, all[..2]);
    assert_eq!(setup.find(&[("what", "config")]).await, all[1..3]);
    assert_eq!(setup.find(&[("what", "config.reload")]).await, all[2..3]);
    assert_eq!(setup.find(&[("what", "conf")]).await, [""; 0]);
    assert_eq!(setup.find(&[("who", "ann")]).await, [all[1], all[3]]);
    assert_eq!(setup.find(&[("since", "2h")]).await, all[..2]);
    let week = [("since", "7d"), ("what", ""), ("limit", "")];
    assert_eq!(setup.find(&week).await, all);
    let since = [("since", "2026-02-02T04:40:00Z")];
    assert_eq!(setup.find(&since).await, all[..2]);
}

#[test]
fn bad_query_is_rejected() {
    let mut query = Query::default();
    for (name, text) in [
        ("limit", "0"),
        ("limit", "1001"),
        ("limit", "-1"),
        ("since", "yesterday"),
        ("since", "1w"),
        ("since", "+1h"),
        ("since", "h"),
        ("since", "ä"),
        ("since", "99999999999999999999d"),
        ("until", "1h"),
    ] {
        let error = query.set(name, text, Time::from_micros(START));
        let named = if name == "until" { name } else { text };
        assert!(error.unwrap_err().to_string().contains(named), "{name}");
    }
    assert_eq!(query, Query::default());
}

#[tokio::test]
async fn torn_line_is_skipped_and_the_next_entry_starts_on_its_own_line() {
    let setup = Setup::new();
    setup.write("reset", "ann").await;
    let mut file = OpenOptions::new().append(true).open(setup.path()).unwrap();
    let torn = br#"{"at":"2026-02-02T02:40:00.000Z","who":"to"#;
    file.write_all(torn).unwrap();
    assert_eq!(setup.find(&[]).await, ["ann reset"]);
    setup.write("refund", "bob").await;
    assert_eq!(setup.find(&[]).await, ["bob refund", "ann reset"]);
    let lines = fs::read_to_string(setup.path()).unwrap();
    assert_eq!(lines.lines().count(), 3);
}

#[tokio::test]
async fn moved_file_is_started_again() {
    let setup = Setup::new();
    setup.write("reset", "ann").await;
    fs::rename(setup.path(), setup.path().with_extension("old")).unwrap();
    setup.write("reset", "bob").await;
    assert_eq!(setup.find(&[]).await, ["bob reset"]);
}

#[tokio::test]
async fn failed_writes_are_counted_and_do_not_block() {
    let setup = Setup::new();
    // A directory where the file should be.
    fs::create_dir_all(setup.path()).unwrap();
    setup.write("reset", "ann").await;
    setup.write("reset", "ann").await;
    assert_eq!(setup.audit.errors(), 2);
    fs::remove_dir(setup.path()).unwrap();
    setup.write("reset", "bob").await;
    assert_eq!(setup.find(&[]).await, ["bob reset"]);
    assert_eq!(setup.audit.errors(), 2);
}

#[tokio::test]
async fn disabled_trail_accepts_entries_and_finds_none() {
    let audit = Audit::nowhere();
    audit.record(Entry::new(RESET, "ann"));
    audit.write(Entry::new(RESET, "ann")).await;
    let found = audit.find(Query::default()).await.unwrap();
    assert_eq!(found, Trail::default());
}

#[tokio::test]
async fn entry_is_written_without_waiting() {
    let setup = Setup::new();
    for number in 0..200 {
        setup.audit.record(Entry::new(RESET, &format!("n{number}")));
    }
    setup.write("refund", "last").await;
    let found = setup.find(&[("limit", "1000")]).await;
    assert_eq!(found.len(), 201);
    assert_eq!([&found[0], &found[200]], ["last refund", "n0 reset"]);
}

#[test]
fn long_files_are_read_in_blocks_and_only_as_far_as_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let now = Time::from_micros(START);
    let line = |number: usize| {
        let mut entry = Entry::new(RESET, &format!("n{number}"));
        entry.at = instant(now);
        entry.why = Some("x".repeat(number % 400));
        serde_json::to_string(&entry).unwrap() + "\n"
    };
    let mut text: String = (0..5000).map(line).collect();
    // A line of another program in the middle, longer than any entry.
    text.insert_str(0, &format!("{}\n", "y".repeat(300_000)));
    text += &format!("{}\n", "z".repeat(200_000));
    text += &(5000..6000).map(line).collect::<String>();
    fs::write(&path, &text).unwrap();
    for number in [0, 1, 2500, 4999, 5000, 5999] {
        let mut one = Query::default();
        one.set("who", &format!("n{number}"), now).unwrap();
        let found = read(&path, &one, u64::MAX).unwrap();
        assert_eq!(found.entries.len(), 1, "{number}");
        assert!(!found.is_cut);
    }
    let mut thousand = Query::default();
    thousand.set("limit", "1000", now).unwrap();
    let newest = read(&path, &thousand, u64::MAX).unwrap();
    assert!(newest.is_cut);
    assert_eq!(newest.entries[0].who, "n5999");
    assert_eq!(newest.entries[999].who, "n5000");
    let little = read(&path, &thousand, 10_000).unwrap();
    assert!(little.is_cut);
    assert!((10..200).contains(&little.entries.len()));
}

#[test]
fn reasons_are_cut_between_characters() {
    let long = format!("{}é", "x".repeat(MAX_WHY - 1));
    let entry = Entry::new(RESET, "ann").because(Some(&long));
    assert_eq!(entry.why.unwrap().len(), MAX_WHY - 1);
}

#[tokio::test]
async fn closing_waits_for_queued_entries() {
    let setup = Setup::new();
    setup.audit.close().await;
    assert!(!setup.path().exists(), "nothing was recorded");
    for _ in 0..QUEUE / 2 {
        setup.audit.record(Entry::new(RESET, "ops"));
    }
    setup.audit.close().await;
    let text = fs::read_to_string(setup.path()).unwrap();
    assert_eq!(text.lines().count(), QUEUE / 2);
    Audit::nowhere().close().await;
}

#[tokio::test]
async fn file_is_private_and_a_link_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let setup = Setup::new();
    setup.write("reset", "ann").await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&setup.path()), 0o600);
    assert_eq!(mode(setup.path().parent().unwrap()), 0o700);

    let target = setup.directory.path().join("target");
    fs::rename(setup.path(), &target).unwrap();
    symlink(&target, setup.path()).unwrap();
    let before = fs::read(&target).unwrap();
    setup.write("reset", "bob").await;
    assert_eq!(setup.audit.errors(), 1);
    assert_eq!(fs::read(&target).unwrap(), before);
    let error = setup.audit.find(Query::default()).await.unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}
