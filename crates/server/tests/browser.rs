//! Web pages must not control a server that their visitor's machine can reach. Tested with a real
//! browser, and with requests that are written byte by byte.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{get, size};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::browser::{self, Site};
use tollgate_server::{ControlPlane, Doors};

/// A server with all doors that speak in plain text, and an admin door without tokens.
struct Server {
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    _stop: oneshot::Sender<()>,
    _data: tempfile::TempDir,
}

impl Server {
    /// Starts a server. Both HTTP doors take requests from pages of `origin`.
    fn start(origin: Option<&str>) -> Server {
        let origins = json!(origin.into_iter().collect::<Vec<_>>());
        let yaml = format!(
            "version: 1
server:
  http: {{ address: \"127.0.0.1:0\", origins: {origins} }}
  resp: 127.0.0.1:0
  admin: {{ address: \"127.0.0.1:0\", hosts: [admin.example.com], origins: {origins} }}
rules:
  - {{ id: all, algorithm: fixed-window, limit: 1000, window: 30d }}
"
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let data = tempfile::tempdir().unwrap();
        let [http, resp, admin] = runtime.block_on(async {
            let engine = Arc::new(Engine::start(&config).await.unwrap());
            let doors = Doors::open(&config).await.unwrap();
            let addresses = doors.addresses().unwrap();
            let control = ControlPlane::of(engine).with_overrides(data.path());
            control.overrides().refresh().await;
            tokio::spawn(doors.serve(Arc::new(control), async {
                drop(stopped.await);
                Duration::ZERO
            }));
            [0, 1, 2].map(|at: usize| addresses[at].address)
        });
        Server {
            http,
            resp,
            admin,
            runtime: Some(runtime),
            _stop: stop,
            _data: data,
        }
    }

    /// Returns the overrides in force, and the units that all requests together have used.
    fn changes(&self) -> (usize, u64) {
        let overrides = get(&format!("http://{}/v1/overrides", self.admin), &[]);
        let overrides: Value = overrides.json();
        let peeked = common::post(
            &format!("http://{}/v1/peek", self.http),
            r#"{"attributes":{}}"#,
            &[],
        );
        let rule = &peeked.json()["rules"][0];
        let number = |name: &str| rule[name].as_u64().unwrap();
        let used = number("limit") - number("remaining");
        (overrides["overrides"].as_array().unwrap().len(), used)
    }

    /// The script of a hostile page: it writes to every door, in every way that needs no permission.
    fn attack(&self) -> String {
        let Server {
            http, resp, admin, ..
        } = self;
        format!(
            r#"
            const override = '{{"rule":"all","numbers":{{"limit":2000}},"for":"1d","reason":"x"}}';
            const check = '{{"attributes":{{}}}}';
            const command = 'TG.CHECK\r\nTG.CHECK user ann\r\n';
            const post = (url, body) => fetch(url, {{ method: 'POST', mode: 'no-cors', body }});
            const form = document.createElement('form');
            form.method = 'POST';
            form.enctype = 'text/plain';
            form.action = 'http://{http}/v1/check';
            form.target = 'frame';
            const field = document.createElement('input');
            field.name = '{{"attributes":{{"a":"';
            field.value = '"}}}}';
            form.append(field);
            const frame = document.createElement('iframe');
            frame.name = 'frame';
            document.body.append(frame, form);
            form.submit();
            Promise.allSettled([
                post('http://{admin}/v1/overrides', override),
                post('http://localhost:{admin_port}/v1/overrides', override),
                post('http://{http}/v1/check', check),
                post('http://{resp}/', command),
            ]).then((all) => {{ document.title = 'sent ' + all.map((it) => it.status).join(' '); }});
            "#,
            admin_port = admin.port(),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[test]
fn hostile_page_changes_nothing() {
    let server = Server::start(None);
    for _ in 0..size(1, 20) {
        let page = Site::new().run(&server.attack());
        // The browser did send the HTTP requests. The RESP door cuts the connection.
        let sent = "<title>sent fulfilled fulfilled fulfilled rejected</title>";
        assert!(page.contains(sent), "{page}");
        assert_eq!(server.changes(), (0, 0));
    }
}

#[test]
fn same_page_can_write_if_its_origin_is_listed() {
    let site = Site::new();
    let server = Server::start(Some(&site.origin()));
    let page = site.run(&server.attack());
    assert!(page.contains("sent fulfilled"), "{page}");
    let (overrides, used) = server.changes();
    assert_eq!(overrides, 1);
    assert!(used >= 1, "the check was counted");
}

#[test]
fn name_that_resolves_to_this_machine_does_not_open_the_admin_door() {
    let server = Server::start(None);
    let port = server.admin.port();
    let page = browser::open(&format!("http://rebound.example:{port}/v1/rules"));
    assert!(page.contains("UNKNOWN_HOST"), "{page}");
    let page = browser::open(&format!("http://localhost:{port}/v1/rules"));
    assert!(page.contains("configVersion"), "{page}");
}

/// Sends a request with these headers, and returns the answer.
fn send(address: SocketAddr, line: &str, headers: &[&str]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = r#"{"attributes":{}}"#;
    let (headers, length) = (headers.join("\r\n"), body.len());
    let request = format!(
        "{line} HTTP/1.1\r\n{headers}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn foreign_origins_are_refused_at_both_http_doors() {
    let server = Server::start(Some("https://app.example.com"));
    for (address, door) in [(server.http, "http"), (server.admin, "admin")] {
        let host = format!("host: {address}");
        for (origin, status) in [
            ("origin: http://evil.example.com".to_owned(), 403),
            ("origin: null".to_owned(), 403),
            ("origin: http://127.0.0.1:1".to_owned(), 403),
            ("sec-fetch-site: cross-site".to_owned(), 403),
            ("sec-fetch-site: same-site".to_owned(), 403),
            (format!("origin: http://{address}"), 200),
            (format!("origin: http://localhost:{}", address.port()), 200),
            ("origin: https://app.example.com".to_owned(), 200),
            ("sec-fetch-site: none".to_owned(), 200),
            ("accept: */*".to_owned(), 200),
        ] {
            let answer = send(address, "POST /v1/peek", &[&host, &origin]);
            let expected = format!("HTTP/1.1 {status} ");
            assert!(
                answer.starts_with(&expected),
                "{origin} at {door}: {answer}"
            );
            if status == 403 {
                assert!(answer.contains("FOREIGN_ORIGIN"), "{answer}");
                assert!(
                    answer.contains(&format!("server.{door}.origins")),
                    "{answer}"
                );
            }
        }
    }
}

/// Returns `text` with one byte replaced, inserted or removed.
fn with_one_change(text: &str, random: &mut fastrand::Rng) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (at, byte) = (random.usize(0..bytes.len()), random.u8(b'!'..=b'~'));
    match random.u8(0..3) {
        0 => bytes[at] = byte,
        1 => bytes.insert(at, byte),
        _ => drop(bytes.remove(at)),
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn origins_and_hosts_that_differ_in_one_byte_are_refused() {
    let (origin, host) = ("https://app.example.com", "admin.example.com");
    let server = Server::start(Some(origin));
    let own = format!("host: {}", server.admin);
    let mut random = fastrand::Rng::with_seed(tollgate_conformance::seed(1));
    for _ in 0..size(100, 20_000) {
        let other = with_one_change(origin, &mut random);
        let header = format!("origin: {other}");
        let answer = send(server.admin, "POST /v1/peek", &[&own, &header]);
        let is_same = other.eq_ignore_ascii_case(origin);
        let is_served = answer.starts_with("HTTP/1.1 200 ");
        assert_eq!(is_served, is_same, "{header}: {answer}");

        let other = with_one_change(host, &mut random);
        let header = format!("host: {other}");
        let answer = send(server.admin, "POST /v1/peek", &[&header]);
        let is_same = other.eq_ignore_ascii_case(host);
        let is_served = answer.starts_with("HTTP/1.1 200 ");
        assert_eq!(is_served, is_same, "{header}: {answer}");
    }
}

#[test]
fn only_the_admin_door_checks_the_host() {
    let server = Server::start(None);
    let port = server.admin.port();
    for (host, status) in [
        (format!("127.0.0.1:{port}"), 200),
        (format!("localhost:{port}"), 200),
        ("[::1]".to_owned(), 200),
        ("Admin.example.com".to_owned(), 200),
        ("evil.example.com".to_owned(), 403),
        (format!("evil.example.com:{port}"), 403),
        ("10.0.0.1".to_owned(), 403),
    ] {
        let host = format!("host: {host}");
        let answer = send(server.admin, "POST /v1/peek", &[&host]);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {answer}"
        );
        assert_eq!(answer.contains("UNKNOWN_HOST"), status == 403, "{answer}");
        let answer = send(server.http, "POST /v1/peek", &[&host]);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    let target = "POST http://evil.example.com/v1/peek";
    let answer = send(server.admin, target, &["host: localhost"]);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[test]
fn http_2_requests_are_checked_too() {
    let server = Server::start(None);
    let status = |address: SocketAddr, headers: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code}",
        ]);
        curl.arg("--http2-prior-knowledge");
        for header in headers {
            curl.args(["-H", header]);
        }
        let output = curl.arg(format!("http://{address}/healthz")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    for address in [server.http, server.admin] {
        assert_eq!(status(address, &[]), "2 200");
        assert_eq!(
            status(address, &["origin: http://evil.example.com"]),
            "2 403"
        );
    }
    // In HTTP/2, curl sends this as the authority of the target.
    let rebound = ["host: evil.example.com"];
    assert_eq!(status(server.admin, &rebound), "2 403");
    assert_eq!(status(server.http, &rebound), "2 200");
}

#[test]
fn http_1_1_needs_exactly_one_host() {
    let server = Server::start(None);
    for address in [server.http, server.admin] {
        for headers in [
            &["accept: */*"][..],
            &["host: localhost", "host: localhost"],
        ] {
            let answer = send(address, "POST /v1/peek", headers);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
            assert!(answer.contains("exactly one Host header"), "{answer}");
        }
    }
}
