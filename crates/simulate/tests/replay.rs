//! Access logs of every format, and what cannot be read.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::io::{Cursor, Write as _};

use tollgate::Config;
use tollgate_simulate::log::{Fields, Format, LogSummary, Progress, Replay, Source};

const ROUTES: &str = r#"
version: 1
routes:
  - { method: POST, path: /login, action: login }
  - { host: "www.example.com", action: web }
rules: []
"#;

fn config() -> Config {
    tollgate::parse("rules.yaml", ROUTES, &|_| None).unwrap()
}

/// Replays logs. Returns the time in microseconds and the attributes of each request.
fn replay(logs: &[&[u8]], fields: Fields) -> (Vec<(u64, String)>, LogSummary) {
    let progress = Progress::default();
    let sources = logs.iter().enumerate().map(|(place, log)| {
        Source::new(&format!("log{place}"), Cursor::new(log.to_vec()), &progress).unwrap()
    });
    let (config, mut seen) = (config(), Vec::new());
    let replay = Replay::new(&config, fields, sources.collect());
    let summary = replay.run(&mut |time, attributes| {
        let pairs = attributes
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        seen.push((time.as_micros(), pairs.collect::<Vec<_>>().join(" ")));
    });
    (seen, summary.unwrap())
}

fn guessed() -> Fields {
    Fields {
        format: None,
        mapped: Vec::new(),
        fixed: Vec::new(),
    }
}

fn mapped(attribute: &str, field: &str) -> Fields {
    let mapped = vec![(attribute.to_owned(), field.to_owned())];
    Fields {
        mapped,
        ..guessed()
    }
}

fn micros(text: &str) -> u64 {
    let time: jiff::Timestamp = text.parse().unwrap();
    u64::try_from(time.as_microsecond()).unwrap()
}

#[test]
fn each_format_gives_the_attributes_of_forward_auth() {
    let at = micros("2026-10-10T20:55:36Z");
    let combined = br#"192.0.2.1 - ann [10/Oct/2026:13:55:36 -0700] "POST //login/?a=b HTTP/1.1" 200 12 "-" "curl/8" "acme""#;
    let (seen, summary) = replay(&[combined], mapped("tenant", "field10"));
    let expected = "method=POST path=/login action=login ip=192.0.2.1 user=ann tenant=acme subject_type=user subject=user:ann";
    assert_eq!(seen, [(at, expected.to_owned())]);
    assert_eq!(
        (summary.formats.as_slice(), summary.whole_seconds),
        (&[Format::Combined][..], true)
    );

    let envoy = br#"[2026-10-10T20:55:36.310Z] "GET /a?b HTTP/2" 204 - 154 0 226 100 "10.0.0.9, 2001:db8::7" "ua" "id" "WWW.example.com:443" "tcp://10.0.2.1:80""#;
    let (seen, summary) = replay(&[envoy], guessed());
    let expected = "method=GET path=/a host=www.example.com action=web ip=2001:db8::7 subject_type=ip subject=ip:2001:db8::/64";
    assert_eq!(seen, [(at + 310_000, expected.to_owned())]);
    assert_eq!(
        (summary.formats.as_slice(), summary.whole_seconds),
        (&[Format::Envoy][..], false)
    );

    let alb = br#"https 2026-10-10T20:55:37.000000Z app/lb/50 192.0.2.2:2817 10.0.0.1:80 0.0 0.1 0.0 200 200 34 366 "GET https://www.example.com:443/x HTTP/1.1" "curl" - - arn "Root=1" "d" "c" 0 2026-10-10T20:55:36.500000Z "forward""#;
    let (seen, _) = replay(&[alb], mapped("trace", "trace_id"));
    let expected = "method=GET path=/x host=www.example.com scheme=https action=web ip=192.0.2.2 trace=Root=1 subject_type=ip subject=ip:192.0.2.2";
    assert_eq!(seen, [(at + 500_000, expected.to_owned())]);

    let json = br#"{"ts":1791665736.25,"other":[1,{"a":null}],"client":{"ip":"192.0.2.3"},"request":"POST /login HTTP/1.1","headers":{"x-key":"k\"1"},"user":null}"#;
    let (seen, _) = replay(&[json], mapped("api_key", "headers.x-key"));
    let expected = "method=POST path=/login action=login ip=192.0.2.3 api_key=k\"1 subject_type=api_key subject=api_key:k\"1";
    assert_eq!(seen, [(at + 250_000, expected.to_owned())]);
}

#[test]
fn compressed_logs_are_merged_by_time_and_seconds_are_spread() {
    let line = |second: u32, user: &str| {
        format!(
            "192.0.2.1 - {user} [10/Oct/2026:13:55:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    let one: String = [(10, "a"), (10, "b"), (12, "c")]
        .iter()
        .map(|(s, u)| line(*s, u))
        .collect();
    let two: String = [(10, "d"), (11, "e"), (10, "f")]
        .iter()
        .map(|(s, u)| line(*s, u))
        .collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(two.as_bytes()).unwrap();
    let (seen, summary) = replay(&[one.as_bytes(), &gzip.finish().unwrap()], guessed());
    let start = micros("2026-10-10T13:55:10Z");
    let users: Vec<(u64, String)> = seen
        .iter()
        .map(|(at, text)| {
            let user = text.split(" user=").nth(1).unwrap();
            (at - start, user.split(' ').next().unwrap().to_owned())
        })
        .collect();
    let expected = [
        (0, "a"),
        (333_333, "b"),
        (666_666, "d"),
        (1_000_000, "e"),
        (1_500_000, "f"),
        (2_000_000, "c"),
    ];
    assert_eq!(users, expected.map(|(at, user)| (at, user.to_owned())));
    assert_eq!((summary.requests, summary.out_of_order), (6, 1));
    assert_eq!(summary.furthest_back.as_millis_ceil(), 1000);
}

#[test]
fn malformed_lines_are_counted_and_the_first_are_named() {
    let mut log =
        b"192.0.2.1 - - [10/Oct/2026:13:55:10 +0000] \"GET / HTTP/1.1\" 200 1\n\n".to_vec();
    log.extend(b"rubbish\n\xff\xfe\n");
    log.extend(b"192.0.2.1 - - [10/Oct/2026:13:55:10 +0000] \"GET / HTTP/1.1 200 1\n");
    log.extend(b"192.0.2.1 - - [10/Foo/2026:13:55:10 +0000] \"GET / HTTP/1.1\" 200 1\n");
    log.extend([b'x'].repeat(200_000));
    log.extend(b"\n192.0.2.1 - - [10/Oct/2026:13:55:11 +0000] \"\\x16\\x03\" 400 1\n");
    log.extend(b"rubbish\n".repeat(100));
    let (seen, summary) = replay(&[&log], guessed());
    assert_eq!(seen.len(), 2, "{seen:?}");
    // What is not a request has only the attributes of its client.
    assert_eq!(
        seen[1].1,
        "ip=192.0.2.1 subject_type=ip subject=ip:192.0.2.1"
    );
    assert_eq!(summary.malformed, 105);
    let mut places: Vec<(u64, &str)> = summary
        .first_malformed
        .iter()
        .map(|it| (it.line, it.problem))
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            (3, "the line has no time in brackets"),
            (4, "the line is not UTF-8"),
            (5, "a quote or a bracket is not closed"),
            (6, "the time cannot be read"),
            (7, "the line is longer than 64 KiB"),
        ]
    );
}

#[test]
fn unknown_field_is_rejected_with_the_known_ones() {
    let progress = Progress::default();
    let log = b"192.0.2.1 - - [10/Oct/2026:13:55:10 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let source = Source::new("log", Cursor::new(log.to_vec()), &progress).unwrap();
    let config = config();
    let error = Replay::new(&config, mapped("tenant", "x-tenant"), vec![source])
        .run(&mut |_, _| {})
        .unwrap_err();
    let expected = "the combined format has no field \"x-tenant\": its fields are ip, ident, user,";
    assert!(error.to_string().starts_with(expected), "{error}");
}
