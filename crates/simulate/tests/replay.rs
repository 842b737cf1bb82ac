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

/// Returns the attributes of a line whose other attributes do not matter.
fn attributes_of(line: &str) -> String {
    let (seen, summary) = replay(&[line.as_bytes()], guessed());
    assert_eq!(summary.malformed, 0, "{:?}", summary.first_malformed);
    seen.into_iter().map(|(_, attributes)| attributes).collect()
}

#[test]
fn absent_json_values_leave_their_place_to_later_names() {
    let line = r#"{"time":"","ts":"2026-10-10T20:55:36Z","ip":"-","remote_addr":"192.0.2.9","user":"\u002d","remote_user":"ann"}"#;
    assert_eq!(
        attributes_of(line),
        "ip=192.0.2.9 user=ann subject_type=user subject=user:ann"
    );
}

#[test]
fn json_of_envoy_and_istio_names_the_client() {
    let line = r#"{"start_time":"2026-10-10T20:55:36.310Z","method":"GET","path":"/a?b","protocol":"HTTP/2","authority":"www.example.com:443","x_forwarded_for":"198.51.100.9, 192.0.2.1","downstream_remote_address":"192.0.2.1:49152"}"#;
    let expected = "method=GET path=/a host=www.example.com action=web ip=192.0.2.1 subject_type=ip subject=ip:192.0.2.1";
    assert_eq!(attributes_of(line), expected);
    let forwarded = line.replace(r#","downstream_remote_address":"192.0.2.1:49152""#, "");
    assert_eq!(attributes_of(&forwarded), expected);
    let v6 = line.replace("192.0.2.1:49152", "[2001:db8::7]:49152");
    assert!(attributes_of(&v6).contains(" ip=2001:db8::7 "), "{v6}");
}

#[test]
fn json_of_caddy_is_nested() {
    let line = r#"{"level":"info","ts":1791665736.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.0.0.1","remote_port":"41342","client_ip":"192.0.2.1","proto":"HTTP/2.0","method":"POST","host":"www.example.com","uri":"/login?a=b","headers":{"User-Agent":["curl"]}},"user_id":"","duration":0.0009,"status":200}"#;
    assert_eq!(
        attributes_of(line),
        "method=POST path=/login host=www.example.com action=login ip=192.0.2.1 subject_type=ip subject=ip:192.0.2.1"
    );
    let older = line.replace(r#""client_ip":"192.0.2.1","#, "");
    assert!(attributes_of(&older).contains(" ip=10.0.0.1 "));
}

#[test]
fn duration_is_not_the_time_of_a_request() {
    let line = r#"{"time":0.005,"ip":"192.0.2.1","time_local":"10/Oct/2026:13:55:36 -0700"}"#;
    let (seen, _) = replay(&[line.as_bytes()], guessed());
    assert_eq!(seen[0].0, micros("2026-10-10T20:55:36Z"));
    let (seen, summary) = replay(&[br#"{"time":12,"ip":"192.0.2.1"}"#], guessed());
    assert_eq!((seen.len(), summary.malformed), (0, 1));
    assert_eq!(
        summary.first_malformed[0].problem,
        "no time of the line can be read"
    );
}

#[test]
fn combined_lines_may_have_times_of_iso_8601() {
    let line = r#"192.0.2.1 - - [2026-10-10T20:55:36+00:00] "GET /a HTTP/1.1" 200 12"#;
    assert!(attributes_of(line).starts_with("method=GET path=/a ip=192.0.2.1"));
}

#[test]
fn version_of_the_protocol_is_not_a_scheme() {
    let line = r#"{"time":"2026-10-10T20:55:36Z","ip":"192.0.2.1","proto":"HTTP/1.1"}"#;
    assert!(!attributes_of(line).contains("scheme"));
    let line = line.replace("HTTP/1.1", "https");
    assert!(attributes_of(&line).contains("scheme=https"));
}

#[test]
fn gateway_log_names_tenant_user_and_plan() {
    let line = r#"{"time":"2026-10-10T20:55:36Z","ip":"192.0.2.1","tenant":"acme","user":"ann","plan":"pro"}"#;
    assert_eq!(
        attributes_of(line),
        "ip=192.0.2.1 user=ann tenant=acme plan=pro subject_type=user subject=user:ann"
    );
}

#[test]
fn format_is_that_of_most_of_the_first_lines() {
    let log = "# started at [noon]\n\n{\"time\":\"2026-10-10T20:55:36Z\",\"ip\":\"192.0.2.1\"}\n\
               {\"time\":\"2026-10-10T20:55:37Z\",\"ip\":\"192.0.2.2\"}\n";
    let (seen, summary) = replay(&[log.as_bytes()], guessed());
    assert_eq!(summary.formats, [Format::Json]);
    assert_eq!((seen.len(), summary.malformed), (2, 1));
    assert_eq!(summary.first_malformed[0].line, 1);
}

fn line_at(time: &str, user: &str) -> String {
    format!("{{\"time\":\"{time}\",\"user\":\"{user}\"}}\n")
}

/// Returns the times of requests since `start`, with the first letter of their users.
fn places(seen: &[(u64, String)], start: &str) -> Vec<(u64, char)> {
    let start = micros(start);
    let user = |text: &str| text.split("user=").nth(1).unwrap().chars().next().unwrap();
    seen.iter()
        .map(|(at, text)| (at - start, user(text)))
        .collect()
}

#[test]
fn requests_of_a_second_mix_with_those_that_have_fractions() {
    let whole: String = "abcd"
        .chars()
        .map(|user| line_at("2026-10-10T13:55:10Z", &user.to_string()))
        .collect();
    let exact: String = [("10.3", "e"), ("10.6", "f"), ("11.1", "g")]
        .iter()
        .map(|(second, user)| line_at(&format!("2026-10-10T13:55:{second}Z"), user))
        .collect();
    let (seen, summary) = replay(&[whole.as_bytes(), exact.as_bytes()], guessed());
    let expected = [
        (0, 'a'),
        (250_000, 'b'),
        (300_000, 'e'),
        (500_000, 'c'),
        (600_000, 'f'),
        (750_000, 'd'),
        (1_100_000, 'g'),
    ];
    assert_eq!(places(&seen, "2026-10-10T13:55:10Z"), expected);
    assert_eq!(summary.out_of_order, 0);
}

#[test]
fn wrong_time_in_the_future_does_not_move_later_requests() {
    let log: String = [
        ("2026-10-10T13:55:10.0Z", "a"),
        ("2036-10-10T13:55:10.5Z", "x"),
        ("2026-10-10T13:55:11.0Z", "b"),
        ("2026-10-10T13:55:12.0Z", "c"),
        // The log of the next day but one continues.
        ("2026-10-12T13:55:10.0Z", "d"),
        ("2026-10-12T13:55:11.0Z", "e"),
    ]
    .iter()
    .map(|(time, user)| line_at(time, user))
    .collect();
    let (seen, summary) = replay(&[log.as_bytes()], guessed());
    let day = 2 * 86_400_000_000;
    let expected = [
        (0, 'a'),
        (1_000_000, 'b'),
        (2_000_000, 'c'),
        (day, 'd'),
        (day + 1_000_000, 'e'),
    ];
    assert_eq!(places(&seen, "2026-10-10T13:55:10Z"), expected);
    assert_eq!((summary.malformed, summary.out_of_order), (1, 0));
    let first = &summary.first_malformed[0];
    assert_eq!(
        (first.line, first.problem),
        (
            2,
            "the time is more than a day after those of the next lines"
        )
    );
}

#[test]
fn wrong_first_time_does_not_move_the_log() {
    let log = line_at("2036-10-10T13:55:10Z", "x")
        + &line_at("2036-10-10T13:55:11Z", "x")
        + &line_at("2026-10-10T13:55:10Z", "a")
        + &line_at("2026-10-10T13:55:11Z", "b")
        + &line_at("2026-10-10T13:55:12Z", "c");
    let (seen, summary) = replay(&[log.as_bytes()], guessed());
    let expected = [(0, 'a'), (1_000_000, 'b'), (2_000_000, 'c')];
    assert_eq!(places(&seen, "2026-10-10T13:55:10Z"), expected);
    assert_eq!(summary.malformed, 2);
}
