use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures_util::FutureExt;
use tollgate::{Attributes, Config, RequestOrigin};

use super::segments::{Bounds, find};
use super::*;

const NOW: Time = Time::from_micros(1_700_000_000_000_000);
const HOUR: Span = Span::from_secs(3600);

fn config(denials: &str) -> Config {
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: a secret of sixteen bytes }}\ntelemetry: {{ denials: {{ {denials} }} }}\nrules:\n\
         - {{ id: api, per: [api_key], log_denials: all, algorithm: fixed-window, limit: 1, window: 300d }}\n\
         - {{ id: org, per: [tenant], algorithm: fixed-window, limit: 1000000, window: 300d }}\n"
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn engine(denials: &str) -> Engine {
    let config = config(denials);
    Engine::start(&config).now_or_never().unwrap().unwrap()
}

fn in_directory(directory: &Path, more: &str) -> String {
    format!("directory: {}{more}", directory.display())
}

/// Asks once, and returns whether the request is allowed.
fn ask(engine: &Engine, key: &str) -> bool {
    let attributes = Attributes::from([("api_key", key), ("tenant", "acme"), ("action", "read")]);
    let snapshot = engine.snapshot();
    let origin = RequestOrigin {
        door: "http",
        trace: Some(7),
    };
    let snapshot = snapshot.with_origin(origin);
    let asked = snapshot.ask(&attributes, tollgate::Ask::Exactly(1));
    asked.now_or_never().unwrap().is_allowed()
}

/// Makes `count` denials of a key.
fn deny(engine: &Engine, key: &str, count: usize) {
    ask(engine, key);
    for _ in 0..count {
        assert!(!ask(engine, key));
    }
}

fn query(parameters: &[(&str, &str)]) -> Query {
    let mut query = Query::default();
    for (name, text) in parameters {
        query.set(name, text, SystemClock::new().now()).unwrap();
    }
    query
}

fn of_key(engine: &Engine, key: &str, parameters: &[(&str, &str)]) -> Query {
    let mut query = query(parameters);
    let attributes = Attributes::from([("api_key", key)]);
    for subject in engine.active().subjects_of(&attributes) {
        query.add_subject(subject);
    }
    query
}

fn seqs(found: &FoundDenials) -> Vec<u64> {
    found.denials.iter().map(|denial| denial.seq).collect()
}

#[tokio::test]
async fn denial_has_all_its_facts_and_no_raw_subject() {
    let engine = engine("");
    let journal = Journal::start(&engine).unwrap();
    deny(&engine, "secret-key", 1);
    let found = journal
        .find(of_key(&engine, "secret-key", &[]))
        .await
        .unwrap();
    let [denial] = &found.denials[..] else {
        panic!("{found:?}");
    };
    let text = serde_json::to_value(denial).unwrap();
    assert_eq!(
        (&text["ruleId"], &text["reason"]),
        (&"api".into(), &"exceeded".into())
    );
    assert_eq!((&text["limit"], &text["remaining"]), (&1.into(), &0.into()));
    assert_eq!(
        (&text["door"], &text["action"]),
        (&"http".into(), &"read".into())
    );
    assert_eq!(
        (&text["tenantId"], &text["subjectType"]),
        (&"acme".into(), &"api_key".into())
    );
    assert_eq!(
        (&text["algorithm"], &text["kind"]),
        (&"fixed-window".into(), &"rate".into())
    );
    assert_eq!(text["numbersFrom"], "limit 1 (rule), window 300d (rule)");
    assert_eq!(text["traceId"], "00000000000000000000000000000007");
    assert_eq!(text["configVersion"], engine.rules().version());
    assert!(text["retryAfterMillis"].as_u64().unwrap() > 0);
    assert_eq!(denial.other_subject_hashes.len(), 1, "the tenant");
    assert!(!text.to_string().contains("secret-key"));
    let first = &denial.subject_hash.as_deref().unwrap()[..8];
    let by_hash = journal.find(query(&[("hash", first)])).await.unwrap();
    assert_eq!(by_hash.denials, found.denials);
}

#[tokio::test]
async fn denial_is_found_by_the_subject_of_every_rule_of_the_request() {
    let engine = engine("");
    let journal = Journal::start(&engine).unwrap();
    deny(&engine, "k1", 1);
    deny(&engine, "k2", 2);
    let count = async |attributes: &[(&str, &str)]| {
        let mut query = Query::default();
        let attributes: Attributes<'_> = attributes.iter().copied().collect();
        for subject in engine.active().subjects_of(&attributes) {
            query.add_subject(subject);
        }
        journal.find(query).await.unwrap().denials.len()
    };
    assert_eq!(count(&[("api_key", "k1")]).await, 1);
    assert_eq!(count(&[("api_key", "k2")]).await, 2);
    assert_eq!(count(&[("tenant", "acme")]).await, 3);
    assert_eq!(count(&[("tenant", "other")]).await, 0);
    assert_eq!(count(&[("user", "ann")]).await, 0);
}

#[tokio::test]
async fn memory_and_files_together_have_every_denial_once() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("denials");
    let denials = in_directory(&directory, ", recent: 100");
    let first = engine(&denials);
    let journal = Journal::start(&first).unwrap();
    deny(&first, "k1", 150);
    deny(&first, "k2", 1);
    deny(&first, "k1", 150);
    let all = [("limit", "1000")];
    // The first request with a key is allowed; the second series starts with a denial.
    let expected: Vec<u64> = (1..=302).rev().filter(|seq| *seq != 151).collect();
    let found = journal.find(of_key(&first, "k1", &all)).await.unwrap();
    assert_eq!(seqs(&found), expected);
    assert!(!found.is_cut);
    let found = journal
        .find(of_key(&first, "k1", &[("limit", "120")]))
        .await
        .unwrap();
    assert_eq!(seqs(&found), expected[..120]);
    assert!(found.is_cut);
    assert_eq!(
        seqs(&journal.find(of_key(&first, "k2", &all)).await.unwrap()),
        [151]
    );
    for (parameters, count) in [
        ([("rule", "api"), ("limit", "1000")], 302),
        ([("rule", "org"), ("limit", "1000")], 0),
        ([("action", "read"), ("limit", "1000")], 302),
        ([("door", "grpc"), ("limit", "1000")], 0),
        ([("since", "1h"), ("limit", "1000")], 302),
        ([("until", "1h"), ("limit", "1000")], 0),
    ] {
        let found = journal.find(query(&parameters)).await.unwrap();
        assert_eq!(found.denials.len(), count, "{parameters:?}");
    }
    journal.close().await;
    drop(journal);
    // The next process goes on where this one has ended.
    let second = engine(&denials);
    let journal = Journal::start(&second).unwrap();
    deny(&second, "k2", 1);
    assert_eq!(
        seqs(&journal.find(of_key(&second, "k2", &all)).await.unwrap()),
        [303, 151]
    );
    let counts = journal.counts();
    assert_eq!(
        (counts.written, counts.queue_full, counts.disk_failed),
        (1, 0, 0)
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let mut size = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        let bytes = fs::read(&path).unwrap();
        size += bytes.len() as u64;
        assert!(!String::from_utf8_lossy(&bytes).contains("\"k1\""));
    }
    assert_eq!(counts.size, Some(size));
    assert!(matches!(
        Journal::start(&engine(&denials)),
        Err(JournalError::Locked { .. })
    ));
}

#[tokio::test]
async fn action_is_found_as_it_was_sent() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine(&in_directory(home.path(), ", recent: 100"));
    let journal = Journal::start(&engine).unwrap();
    let actions = [
        "read",
        "read all",
        "\"re\\ad\"",
        "le\u{e7}on \u{1f600}",
        "a/b",
    ];
    for action in actions {
        // The first of two requests may be allowed.
        for _ in 0..2 {
            let attributes =
                Attributes::from([("api_key", "k"), ("tenant", "acme"), ("action", action)]);
            let _ = engine.check(&attributes).now_or_never().unwrap();
        }
    }
    // More denials than the memory keeps, so that the actions are in files.
    deny(&engine, "k1", 150);
    let all = [("limit", "1000")];
    let count = async |action: &str| {
        let found = journal.find(query(&[all[0], ("action", action)]));
        found.await.unwrap().denials.len()
    };
    for action in &actions[1..] {
        assert_eq!(count(action).await, 2, "{action}");
    }
    assert_eq!(count("read").await, 151);
    for other in ["rea", "ead", "read\",\"tenantId", "A/B"] {
        assert_eq!(count(other).await, 0, "{other}");
    }
}

#[tokio::test]
async fn slow_reader_learns_how_many_denials_it_has_missed() {
    let engine = engine("recent: 100");
    let journal = Journal::start(&engine).unwrap();
    deny(&engine, "k1", 10);
    let latest = journal.find(query(&[("limit", "3")])).await.unwrap();
    assert_eq!((seqs(&latest), latest.next), (vec![10, 9, 8], 11));
    let never = || false;
    let follow = async |after: u64, more: &[(&str, &str)]| {
        let mut query = query(more);
        query.after = Some(after);
        journal.follow(&query, never).await
    };
    let none = follow(11, &[]).await;
    assert_eq!((seqs(&none), none.next, none.missed), (vec![], 11, 0));
    deny(&engine, "k1", 150);
    journal.catch_up().await;
    // The allowed request of the first series makes the 151st denial.
    let found = follow(11, &[("limit", "2")]).await;
    assert_eq!(
        (seqs(&found), found.next, found.missed),
        (vec![62, 63], 64, 51)
    );
    assert!(found.is_cut);
    let found = follow(64, &[("limit", "1000")]).await;
    assert_eq!((seqs(&found).len(), found.next, found.missed), (98, 162, 0));
    // A number from before a restart.
    let found = follow(1_000_000, &[("limit", "1")]).await;
    assert_eq!((seqs(&found), found.missed), (vec![62], 0));
    // Filters.
    let found = follow(64, &[("rule", "org")]).await;
    assert_eq!((seqs(&found), found.next), (vec![], 162));
}

#[tokio::test]
async fn reader_waits_for_the_next_denial_or_for_the_end_of_the_server() {
    let engine = Arc::new(engine(""));
    let journal = Arc::new(Journal::start(&engine).unwrap());
    let mut waiting = query(&[("wait", "30")]);
    waiting.after = Some(1);
    let (reader, query) = (Arc::clone(&journal), waiting.clone());
    let reader = tokio::spawn(async move { reader.follow(&query, || false).await });
    deny(&engine, "k1", 1);
    assert_eq!(seqs(&reader.await.unwrap()), [1]);
    waiting.after = Some(2);
    let found = journal.follow(&waiting, || true).await;
    assert_eq!((seqs(&found), found.next), (vec![], 2));
}

#[tokio::test]
async fn every_denial_is_recorded_or_counted_as_dropped() {
    let home = tempfile::tempdir().unwrap();
    let engine = Arc::new(engine(&in_directory(
        home.path(),
        ", max_size: 1MiB, recent: 100",
    )));
    let journal = Journal::start(&engine).unwrap();
    let threads = [0, 1].map(|_| {
        let engine = Arc::clone(&engine);
        std::thread::spawn(move || (0..50_000).filter(|_| !ask(&engine, "k1")).count() as u64)
    });
    let denied: u64 = threads.into_iter().map(|it| it.join().unwrap()).sum();
    assert_eq!(denied, 99_999);
    journal.close().await;
    let counts = journal.counts();
    assert_eq!(counts.written + counts.queue_full, denied, "{counts:?}");
    assert!(counts.written > 0);
    assert!(counts.size.unwrap() <= 1 << 20, "{counts:?}");
    assert_eq!(journal.shared.ring.lock().len(), 100);
}

/// Returns the whole records of `count` denials, from the sequence number `first` on, at `at`.
fn records(count: u64, first: u64, at: Time) -> Vec<u8> {
    let engine = engine("");
    let reader = engine.read_denials(1).unwrap();
    deny(&engine, "k1", 1);
    let mut denial = reader.next().unwrap();
    denial.at = at;
    let mut records = Vec::new();
    for seq in first..first + count {
        encode(&denial, denial.source().as_ref(), seq, &mut records);
    }
    records
}

fn size_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|it| it.unwrap().metadata().unwrap().len())
        .sum()
}

#[test]
fn millions_of_records_stay_within_the_bounds() {
    let home = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_size: 1 << 20,
        max_age: HOUR,
    };
    let mut segments = Segments::open(home.path(), bounds).unwrap();
    let mut ring = Ring::new(100, 1);
    let step = records(64, 1, NOW);
    assert!(step.len() <= MAX_STEP);
    let one = &step[..record::head(&step).unwrap().length];
    for round in 0..50_000 {
        segments.append(&step, 64, NOW).unwrap();
        (0..64).for_each(|_| ring.push(one));
        assert!(segments.size() <= bounds.max_size);
        if round % 1000 == 0 {
            assert_eq!(size_of(home.path()), segments.size());
        }
    }
    assert_eq!(segments.next(), 3_200_001);
    assert_eq!((ring.len(), ring.next()), (100, 3_200_001));
    assert!(segments.size() > bounds.max_size / 2, "the space is used");
    assert_eq!(size_of(home.path()), segments.size());
}

#[test]
fn old_segments_are_removed() {
    let home = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_size: 1 << 20,
        max_age: HOUR,
    };
    let minutes = |minutes: u64| NOW + Span::from_secs(60 * minutes);
    let mut segments = Segments::open(home.path(), bounds).unwrap();
    for minute in 0..120 {
        let seq = segments.next();
        let record = records(1, seq, minutes(minute));
        segments.append(&record, 1, minutes(minute)).unwrap();
        segments.remove_old(minutes(minute)).unwrap();
    }
    let query = query(&[("limit", "1000")]);
    let found = find(home.path(), &query, u64::MAX, 1000).unwrap();
    let (newest, oldest) = (found[0].seq, found.last().unwrap().seq);
    assert_eq!(newest, 120);
    // An hour, and the rest of a segment of a sixteenth of an hour.
    assert!((55..=61).contains(&oldest), "{oldest}");
    segments.remove_old(minutes(1000)).unwrap();
    assert_eq!((segments.size(), size_of(home.path())), (0, 0));
}

#[test]
fn record_that_a_crash_has_cut_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_size: 1 << 20,
        max_age: HOUR,
    };
    let open = || Segments::open(home.path(), bounds).unwrap();
    open().append(&records(3, 1, NOW), 3, NOW).unwrap();
    let entries = fs::read_dir(home.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    let segment = entries.filter(|it| it.extension().unwrap() == "journal");
    let segment = segment.last().unwrap();
    let whole = fs::read(&segment).unwrap();
    let record = records(1, 4, NOW);
    let query = query(&[]);
    let mut damaged = record.clone();
    damaged[200] ^= 1;
    for torn in [
        &record[..1],
        &record[..95],
        &record[..record.len() - 1],
        damaged.as_slice(),
        &[0u8; 300][..],
    ] {
        fs::write(&segment, [&whole, torn].concat()).unwrap();
        assert_eq!(find(home.path(), &query, u64::MAX, 9).unwrap().len(), 3);
        let mut segments = open();
        assert_eq!(
            (segments.next(), fs::read(&segment).unwrap()),
            (4, whole.clone())
        );
        segments.append(&record, 1, NOW).unwrap();
        assert_eq!(find(home.path(), &query, u64::MAX, 9).unwrap().len(), 4);
    }
    // The process ended while it created the segment.
    for length in [0, 5, 16, 40] {
        fs::write(&segment, &whole[..length]).unwrap();
        assert_eq!((open().next(), segment.exists()), (1, false));
    }
}

#[test]
fn records_before_and_after_a_damaged_one_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_size: 1 << 20,
        max_age: HOUR,
    };
    let open = || Segments::open(home.path(), bounds).unwrap();
    open().append(&records(9, 1, NOW), 9, NOW).unwrap();
    let path = home.path().join("denials-00000000000000000001.journal");
    let whole = fs::read(&path).unwrap();
    let length = record::head(&whole[16..]).unwrap().length;
    let all = [("limit", "1000")];
    for damaged in 1..9_u64 {
        let start = 16 + length * usize::try_from(damaged - 1).unwrap();
        // The checksum, the length (shorter, and longer than all records), the sequence number, the time, and the
        // object.
        for (at, bits) in [
            (0, 1),
            (4, 1),
            (5, 4),
            (5, 0x80),
            (6, 1),
            (8, 0x80),
            (20, 7),
            (200, 1),
        ] {
            let mut bytes = whole.clone();
            bytes[start + at] ^= bits;
            fs::write(&path, &bytes).unwrap();
            let at = format!("record {damaged}, byte {at}");
            let expected: Vec<u64> = (1..=9).rev().filter(|seq| *seq != damaged).collect();
            let found = || {
                let found = find(home.path(), &query(&all), u64::MAX, 1000).unwrap();
                found.iter().map(|it| it.seq).collect::<Vec<_>>()
            };
            assert_eq!(found(), expected, "{at}");
            let mut segments = open();
            assert_eq!(segments.next(), 10, "{at}");
            segments.append(&records(1, 10, NOW), 1, NOW).unwrap();
            assert_eq!(found(), [&[10], &expected[..]].concat(), "{at}");
        }
    }
}

#[test]
fn newer_version_and_foreign_files_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        max_size: 1 << 20,
        max_age: HOUR,
    };
    let path = home.path().join("denials-00000000000000000001.journal");
    let error = |header: &[u8]| {
        fs::write(&path, header).unwrap();
        Segments::open(home.path(), bounds)
            .err()
            .unwrap()
            .to_string()
    };
    let newer = error(b"TG-DENIALS\r\n\x02\0\0\0and more");
    assert!(
        newer.contains("version 2") && newer.contains("reads version 1"),
        "{newer}"
    );
    assert!(newer.contains("use the newer build"), "{newer}");
    let foreign = error(b"something else entirely");
    assert!(foreign.contains("move it away"), "{foreign}");
}

#[test]
fn hostile_texts_fit_into_a_record() {
    let engine = engine("");
    let reader = engine.read_denials(1).unwrap();
    let long = "\"\u{0}\\".repeat(300);
    for _ in 0..2 {
        let attributes = Attributes::from([
            ("api_key", "k"),
            ("tenant", long.as_str()),
            ("action", long.as_str()),
        ]);
        let _ = engine.check(&attributes).now_or_never().unwrap();
    }
    let denial = reader.next().unwrap();
    assert_eq!(denial.source(), None, "the tenant's name was cut");
    let mut record = Vec::new();
    encode(&denial, None, 1, &mut record);
    assert!(record.len() <= record::MAX_RECORD);
    let decoded = record::decode(&record).unwrap();
    assert!(decoded.tenant_id.unwrap().starts_with("\" \\"));
    assert_eq!(decoded.rule_id, "api");
}
