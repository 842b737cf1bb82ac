//! Requests that are passed on, denied or answered with an error, and the headers of both ways.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use tollgate_rig::wait;

use super::NONE;
use crate::common;
use crate::common::gate::{Gate, SOON, Script, ok, read_request};

const TWO: &str =
    "rules: [{ id: two, per: [ip], algorithm: fixed-window, limit: 2, window: 1h }]\n";

#[test]
fn request_and_answer_pass_with_the_decision_in_their_headers() {
    let app = Script::answering(|seen| {
        let text = format!("{}{}", seen.head, String::from_utf8_lossy(&seen.body));
        let length = text.len();
        format!(
            "HTTP/1.1 201 Created\r\ncontent-length: {length}\r\nx-app: yes\r\nratelimit: \"app\";r=1\r\n\
             x-ratelimit-limit: 7\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n{text}"
        )
    });
    let gate = Gate::start(&format!(
        "{}{TWO}headers: {{ families: [ietf, x-ratelimit] }}\n",
        app.section("")
    ));
    let url = format!("http://{}/items/7?q=%2F", gate.address);
    let answer = common::post(&url, "name=ann", &[("x-custom", "kept")]);
    assert_eq!(answer.status, 201);
    assert_eq!(answer.header("x-app"), "yes");
    assert_eq!(answer.header("x-hop"), "");
    assert_eq!(
        answer.header("x-ratelimit-limit"),
        "2",
        "that of the gateway"
    );
    assert!(answer.header("ratelimit").starts_with("\"two\";r=1"));
    let text = &answer.text;
    assert!(
        text.starts_with("POST /items/7?q=%2F HTTP/1.1\r\n"),
        "{text}"
    );
    assert!(text.ends_with("name=ann"), "{text}");
    let host = format!("host: {}\r\n", gate.address);
    for line in [
        host.as_str(),
        "x-custom: kept\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
        "x-forwarded-proto: http\r\n",
        "x-real-ip: 127.0.0.1\r\n",
        "content-length: 8\r\n",
        "x-tollgate-decision: allowed\r\n",
        "x-tollgate-rule: two\r\n",
        "x-tollgate-limit: 2\r\n",
        "x-tollgate-remaining: 1\r\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn denied_request_reaches_no_upstream() {
    let app = Script::echo();
    let gate = Gate::start(&format!("{}{TWO}", app.section("")));
    assert_eq!([0; 2].map(|_| gate.get("/").status), [200, 200]);
    let denied = gate.get_with("/", &[("accept", "application/problem+json")]);
    assert_eq!(denied.status, 429);
    assert!(!denied.header("retry-after").is_empty());
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.json()["ruleId"], "two");
    assert_eq!(app.requests(), 2);
}

/// Each thread has its own connections to an upstream, so the requests of one client share one.
#[test]
fn connection_to_the_upstream_is_kept() {
    let app = Script::echo();
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let last = "host: a\r\nconnection: close\r\n\r\n";
    let requests = format!("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\n{last}");
    let answers = gate.raw(requests.as_bytes());
    assert_eq!(answers.matches("200 OK").count(), 2, "{answers}");
    assert_eq!((app.requests(), app.connections()), (2, 1));
}

#[test]
fn routes_choose_the_upstream_and_exempt_paths_have_no_limit() {
    let (api, web) = (
        Script::answering(|_| ok("api")),
        Script::answering(|_| ok("web")),
    );
    let upstreams = format!(
        "upstreams:\n  api: {{ servers: [\"http://{}\"] }}\n  web: {{ servers: [\"http://{}\"] }}\n",
        api.address, web.address
    );
    let routes = "routes:\n  - { path: \"/api/*\", action: api, upstream: api }\n  \
                  - { path: \"/web/*\", action: web, upstream: web }\n";
    let rules = "rules: [{ id: one, match: { action: web }, algorithm: fixed-window, limit: 1, window: 1h }]\n";
    let door = "gateway: { address: \"127.0.0.1:0\", exempt: [/web/health, \"/web/assets/*\"] }";
    let gate = Gate::start_with(door, &format!("{upstreams}{routes}{rules}"));
    assert_eq!(gate.get("/api/x").text, "api");
    assert_eq!(gate.get("/api/../web/x").text, "web");
    assert_eq!(gate.get("/web/x").status, 429);
    for path in ["/web/health", "/web/assets/a.css"] {
        assert_eq!(gate.get(path).text, "web", "{path}");
    }
    for path in ["/web/assets/../x", "/web//health", "/web/assets/%2e%2e/x"] {
        let raw = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert!(
            gate.raw(raw.as_bytes()).starts_with("HTTP/1.1 429"),
            "{path}"
        );
    }
    let lost = gate.get("/elsewhere");
    assert_eq!(
        (lost.status, &lost.json()["code"]),
        (404, &"NO_ROUTE".into())
    );
}

#[test]
fn failing_upstream_gives_an_error_that_names_the_cause() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let section = format!("upstreams: {{ app: {{ servers: [\"http://{closed}\"] }} }}\n");
    let gate = Gate::start(&format!("{section}{TWO}"));
    let answer = gate.get("/");
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (502, &"UPSTREAM_UNREACHABLE".into())
    );
    assert_eq!(answer.header("ratelimit-limit"), "2", "a rule decided");
    for (answer, status, code) in [
        ("this is not HTTP\r\n\r\n", 502, "UPSTREAM_FAILED"),
        ("", 502, "UPSTREAM_FAILED"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            502,
            "UPSTREAM_FAILED",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            502,
            "UPSTREAM_FAILED",
        ),
        (
            "HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n",
            502,
            "UPSTREAM_FAILED",
        ),
    ] {
        let app = Script::start(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        });
        let gate = Gate::start(&format!("{}{NONE}", app.section(", retries: 0")));
        let got = gate.get("/");
        assert_eq!(
            (got.status, &got.json()["code"]),
            (status, &code.into()),
            "{answer:?}"
        );
    }
    let mute = Script::start(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let gate = Gate::start(&format!("{}{NONE}", mute.section(", read_timeout: 50ms")));
    let late = gate.get("/");
    assert_eq!(
        (late.status, &late.json()["code"]),
        (504, &"UPSTREAM_TIMEOUT".into())
    );
    let gate = Gate::start(&format!("{}{NONE}", mute.section(", timeout: 50ms")));
    assert_eq!(gate.get("/").status, 504);
}

#[test]
fn bodies_are_bounded_whatever_their_length_says() {
    let app = Script::echo();
    let door = "gateway: { address: \"127.0.0.1:0\", max_body: 1KB }";
    let gate = Gate::start_with(door, &format!("{}{NONE}", app.section("")));
    assert_eq!(gate.post("/", &"x".repeat(1000)).status, 200);
    let large = gate.post("/", &"x".repeat(1001));
    assert_eq!((large.status, app.requests()), (413, 1), "not even begun");
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    let raw = format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    assert!(gate.raw(raw.as_bytes()).starts_with("HTTP/1.1 413"));
}

#[test]
fn idle_connection_that_the_upstream_closed_is_not_an_error() {
    // Answers one request on each connection, then closes without a word.
    let app = Script::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(ok("once").as_bytes());
    });
    let gate = Gate::start(&format!("{}{NONE}", app.section(", retries: 0")));
    for _ in 0..20 {
        assert_eq!(gate.post("/", "body").text, "once");
    }
}

#[test]
fn another_server_is_tried_only_where_that_is_safe() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let app = Script::echo();
    let servers = format!(
        "upstreams: {{ app: {{ servers: [\"http://{closed}\", \"http://{}\"] }} }}\n",
        app.address
    );
    let gate = Gate::start(&format!("{servers}{NONE}"));
    for _ in 0..8 {
        assert_eq!(
            gate.post("/", "never sent twice").status,
            200,
            "nothing was sent before"
        );
    }
    // Takes the request, and closes.
    let taken: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&taken);
    let cutting = Script::start(move |mut stream| {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
        noted.lock().unwrap().push(text);
    });
    let servers = format!(
        "upstreams: {{ app: {{ servers: [\"http://{}\", \"http://{}\"], retries: 1 }} }}\n",
        cutting.address, app.address
    );
    let gate = Gate::start(&format!("{servers}{NONE}"));
    let mut statuses = [0; 2].map(|_| gate.post("/", "x").status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502], "a sent POST is not repeated");
    let before = taken.lock().unwrap().len();
    assert_eq!(
        [0; 2].map(|_| gate.get("/").status),
        [200, 200],
        "a GET is repeated"
    );
    assert!(taken.lock().unwrap().len() > before);
}

#[test]
fn server_that_fails_its_checks_gets_no_requests() {
    let well = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_well = Arc::clone(&well);
    let sick = Script::answering(move |seen| {
        if seen.head.starts_with("GET /healthz ")
            && !is_well.load(std::sync::atomic::Ordering::Relaxed)
        {
            return "HTTP/1.1 503 Sick\r\ncontent-length: 0\r\n\r\n".to_owned();
        }
        ok("sick")
    });
    let sound = Script::answering(|_| ok("sound"));
    let section = format!(
        "upstreams: {{ app: {{ servers: [\"http://{}\", \"http://{}\"], health: {{ path: /healthz, every: 100ms }} }} }}\n",
        sick.address, sound.address
    );
    let gate = Gate::start(&format!("{section}{NONE}"));
    let answers =
        |count: usize| -> Vec<String> { (0..count).map(|_| gate.get("/").text).collect() };
    assert!(
        answers(4).contains(&"sick".to_owned()),
        "requests alternate"
    );
    well.store(false, std::sync::atomic::Ordering::Relaxed);
    let up = format!(
        "tollgate_upstream_up{{upstream=\"app\",server=\"http://{}\"}} ",
        sick.address
    );
    wait::until("the server is out", SOON, || gate.metric(&up) == 0);
    assert_eq!(answers(4), ["sound"; 4]);
    well.store(true, std::sync::atomic::Ordering::Relaxed);
    wait::until("the server is back", SOON, || gate.metric(&up) == 1);
    assert!(answers(4).contains(&"sick".to_owned()));
}

#[test]
fn attributes_of_a_route_come_from_headers_query_and_body() {
    let app = Script::echo();
    let more = format!(
        "{}routes: [{{ path: /chat, action: chat, attributes: {{ tokens: body.max_tokens, model: body.options.model, version: header.x-version, page: query.page }} }}]\n\
         rules:\n\
         - {{ id: tokens, match: {{ action: chat }}, missing: deny, algorithm: token-bucket, capacity: 1000, refill: 1/h, cost: 'int(tokens)' }}\n\
         - {{ id: big, match: {{ model: big }}, algorithm: fixed-window, limit: 1, window: 1h }}\n\
         - {{ id: old, match: {{ version: v1 }}, algorithm: fixed-window, limit: 0, window: 1h }}\n\
         - {{ id: deep, when: 'has(attributes.page) && int(page) > 100', algorithm: fixed-window, limit: 0, window: 1h }}\n\
         - {{ id: bytes, match: {{ method: PUT }}, algorithm: token-bucket, capacity: 100, refill: 1/h, cost: 'int(size)' }}\n",
        app.section("")
    );
    let gate = Gate::start(&more);
    let chat = |body: &str| gate.post("/chat", body);
    let first = chat(r#"{"max_tokens": 600, "options": {"model": "big"}}"#);
    assert_eq!(first.status, 200, "{}", first.text);
    assert!(
        first.text.ends_with(r#"{"model": "big"}}"#),
        "the body is passed on"
    );
    let rule = |answer: common::Answer| answer.json()["ruleId"].as_str().unwrap_or("-").to_owned();
    assert_eq!(rule(chat(r#"{"max_tokens": 600}"#)), "tokens");
    assert_eq!(
        rule(chat(r#"{"max_tokens": 1, "options": {"model": "big"}}"#)),
        "big"
    );
    assert_eq!(rule(chat("{}")), "tokens", "missing: deny");
    assert_eq!(chat("not JSON").status, 400);
    assert_eq!(chat("[1]").status, 400);
    let huge = format!("{{\"max_tokens\": 1, \"x\": \"{}\"}}", "x".repeat(70_000));
    assert_eq!(chat(&huge).status, 413);
    let url = format!("http://{}/chat?page=101", gate.address);
    assert_eq!(
        rule(common::post(&url, r#"{"max_tokens": 1}"#, &[])),
        "deep"
    );
    let url = format!("http://{}/chat", gate.address);
    let old = common::post(&url, r#"{"max_tokens": 1}"#, &[("x-version", "v1")]);
    assert_eq!(rule(old), "old");
    let put = |length: usize| {
        let body = "x".repeat(length);
        let raw = format!(
            "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        gate.raw(raw.as_bytes())
    };
    assert!(put(60).starts_with("HTTP/1.1 200"));
    assert!(put(60).starts_with("HTTP/1.1 429"));
    assert!(put(40).starts_with("HTTP/1.1 200"));
}

/// The gateway knows the size of a body that it reads, also if the client did not say it.
#[test]
fn size_of_a_chunked_body_is_known_if_the_route_reads_it() {
    let app = Script::echo();
    let more = format!(
        "{}routes: [{{ path: /chat, action: chat, attributes: {{ model: body.model }} }}]\n\
         rules: [{{ id: bytes, missing: deny, algorithm: token-bucket, capacity: 30, refill: 1/h, cost: 'int(size)' }}]\n",
        app.section("")
    );
    let gate = Gate::start(&more);
    let chunked = |path: &str| {
        let body = r#"{"model": "small"}"#;
        let raw = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
             {:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        gate.raw(raw.as_bytes())
    };
    // Of 30 units, the first body takes 18.
    assert!(chunked("/chat").starts_with("HTTP/1.1 200"));
    assert!(chunked("/chat").starts_with("HTTP/1.1 429"));
    let unread = chunked("/other");
    assert!(
        unread.contains("MISSING") || unread.contains("missing"),
        "{unread}"
    );
}

#[test]
fn access_log_has_a_line_for_each_request() {
    let app = Script::answering(|_| ok("hello"));
    let folder = tempfile::tempdir().unwrap();
    for (format, file) in [("json", "json.log"), ("combined", "combined.log")] {
        let path = folder.path().join(file);
        let door = format!(
            "gateway: {{ address: \"127.0.0.1:0\", access_log: {{ format: {format}, file: \"{}\" }} }}",
            path.display()
        );
        let rules = "routes: [{ action: all }]\nrules: [{ id: one, per: [ip], algorithm: fixed-window, limit: 1, window: 1h }]\n";
        let gate = Gate::start_with(&door, &format!("{}{rules}", app.section("")));
        gate.get_with("/a?token=secret", &[("user-agent", "curl \"8\"")]);
        gate.get("/b");
        wait::until("both lines are written", SOON, || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.lines().count() == 2)
        });
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        if format == "combined" {
            assert!(lines[0].starts_with("127.0.0.1 - - ["), "{text}");
            assert!(
                lines[0].ends_with(r#""GET /a HTTP/1.1" 200 5 "-" "curl \"8\"""#),
                "{text}"
            );
            assert!(lines[1].contains(r#""GET /b HTTP/1.1" 429 "#), "{text}");
            continue;
        }
        let json: Vec<serde_json::Value> = lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let fields = [
            "client", "method", "path", "status", "bytes", "decision", "rule", "action", "upstream",
        ];
        let shown = |at: usize| fields.map(|field| json[at][field].to_string()).join(" ");
        assert_eq!(
            shown(0),
            r#""127.0.0.1" "GET" "/a" 200 5 "allowed" "one" "all" "app""#
        );
        assert!(shown(1).contains(r#"429"#) && shown(1).ends_with(r#""denied" "one" "all" null"#));
        assert!(json[0]["durationMicros"].is_u64());
    }
}

#[test]
fn access_log_tells_which_clients_went_away() {
    // The upstream answers a part of the body of `/part`, and `/silent` not at all.
    let app = Script::start(|stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        while let Some(seen) = read_request(&mut reader) {
            let answer = match seen.head.split(' ').nth(1) {
                Some("/silent") => continue,
                Some("/part") => "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\npart".to_owned(),
                _ => ok("hello"),
            };
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let door = format!(
        "gateway: {{ address: \"127.0.0.1:0\", access_log: {{ format: json, file: \"{}\" }} }}",
        path.display()
    );
    let gate = Gate::start_with(&door, &format!("{}{NONE}", app.section("")));
    let ask = |target: &str| {
        let mut stream = gate.connect();
        write!(stream, "GET {target} HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stream
    };
    let line = |number: usize| -> serde_json::Value {
        let mut text = String::new();
        wait::until("the line is written", SOON, || {
            text = std::fs::read_to_string(&path).unwrap_or_default();
            text.lines().count() == number
        });
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    assert_eq!(gate.get("/").status, 200);
    let whole = line(1);
    assert_eq!(whole["status"], 200);
    assert!(whole["broken"].is_null(), "{whole}");
    let mut stream = ask("/part");
    let mut answer = Vec::new();
    while !answer.ends_with(b"part") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    drop(stream);
    let part = line(2);
    let shown = |line: &serde_json::Value| {
        let fields = ["status", "bytes", "broken", "upstream"];
        fields.map(|field| line[field].to_string()).join(" ")
    };
    assert_eq!(shown(&part), r#"200 4 true "app""#);
    let silent = ask("/silent");
    wait::until("the request is at the upstream", SOON, || {
        gate.metric("tollgate_upstream_open_requests") == 1
    });
    drop(silent);
    assert_eq!(shown(&line(3)), r#"499 0 true "app""#);
}

#[test]
fn stopping_gateway_finishes_open_requests() {
    let (begun, release) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(())));
    let held = release.lock().unwrap();
    let (noted, wait_for) = (Arc::clone(&begun), Arc::clone(&release));
    let app = Script::answering(move |_| {
        *noted.lock().unwrap() = true;
        drop(wait_for.lock().unwrap());
        ok("finished")
    });
    let mut gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let mut stream = gate.connect();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    wait::until("the request is at the upstream", SOON, || {
        *begun.lock().unwrap()
    });
    gate.stop();
    drop(held);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("finished"), "{answer}");
    gate.join();
}
