//! What clients see when `tollgate serve` is told to stop: nobody loses a request.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use common::Serving;
use common::load::{Answer, Client, Http, Load, PATIENCE, Throttle, read_answer};
use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConfig, RootCertStore};

/// How many clients of the HTTP door and of the RESP door send requests while the server stops.
const HTTP_CLIENTS: usize = 48;
const RESP_CLIENTS: usize = 24;
/// With TLS there are fewer clients: each of their connections needs a handshake.
const FEWER: usize = 6;

struct Server {
    serving: Serving,
    http: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
    /// The settings of clients, if the doors have TLS.
    tls: Option<Arc<ClientConfig>>,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(drain: &str) -> Server {
        Server::start_in(tempfile::tempdir().unwrap(), drain, None)
    }

    /// Starts a server with TLS at all doors.
    fn start_with_tls(drain: &str) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let cert = cert.self_signed(&key).unwrap();
        let [cert_file, key_file] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
        std::fs::write(&cert_file, cert.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let files = [cert_file, key_file].map(|file| file.display().to_string());
        let section = format!("{drain}, tls: {{ cert: {}, key: {} }}", files[0], files[1]);
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        Server::start_in(folder, &section, Some(Arc::new(tls)))
    }

    fn start_in(
        folder: tempfile::TempDir,
        section: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> Server {
        let config = folder.path().join("rules.yaml");
        let rules = format!(
            "version: 1\nserver: {{ {section} }}\nrules:\n  \
             - {{ id: api, match: {{ action: search }}, algorithm: gcra, rate: 1000000/s, burst: 1000000 }}\n  \
             - {{ id: jobs, match: {{ action: job }}, algorithm: concurrency, limit: 1, lease: 60s }}\n"
        );
        std::fs::write(&config, rules).unwrap();
        let config = config.display().to_string();
        let any = "127.0.0.1:0";
        let args = ["--config", &config, "--resp", any, "--admin", any];
        let mut serving = Serving::start(&args);
        let secure = if tls.is_some() { "s" } else { "" };
        let http = serving.url.strip_prefix(&format!("http{secure}://"));
        let http = http.unwrap().parse();
        let mut lines = serving.stdout.as_mut().unwrap().lines().map(Result::unwrap);
        let mut address = |start: &str| -> SocketAddr {
            let start = format!("{start}{secure}://");
            let found = lines.find_map(|line| Some(line.strip_prefix(&start)?.parse().unwrap()));
            found.unwrap()
        };
        let (resp, admin) = (address("resp on redis"), address("admin on http"));
        let last = lines.next().unwrap();
        assert!(last.starts_with("admin needs no token"), "{last}");
        Server {
            http: http.unwrap(),
            resp,
            admin,
            serving,
            tls,
            _folder: folder,
        }
    }

    fn load(&self) -> Load {
        let fewer = if self.tls.is_some() { FEWER } else { 1 };
        let http = (0..HTTP_CLIENTS / fewer).map(|_| {
            let client = Http::check(self.http).with_tls(self.tls.clone());
            Box::new(client) as Box<dyn Client>
        });
        let resp = (0..RESP_CLIENTS / fewer).map(|_| {
            let client = Throttle::new(self.resp).with_tls(self.tls.clone());
            Box::new(client) as Box<dyn Client>
        });
        Load::start(http.chain(resp).collect())
    }

    fn connect(&self, address: SocketAddr) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }

    fn get(&self, address: SocketAddr, path: &str) -> Answer {
        let mut stream = self.connect(address);
        send(
            &stream,
            &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        );
        read_answer(&mut stream).unwrap()
    }

    fn end(self) -> (String, Option<i32>) {
        self.serving.end()
    }

    /// Reads the next line of the output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.serving.stdout.as_mut().unwrap();
        stdout.read_line(&mut line).unwrap();
        line
    }
}

fn send(stream: &BufReader<TcpStream>, text: &str) {
    stream.get_ref().write_all(text.as_bytes()).unwrap();
}

#[test]
fn no_request_is_lost_at_sigterm() {
    let mut server = Server::start("drain: 3s");
    let load = server.load();
    load.wait_for_answers(10);
    server.serving.send_sigterm();
    assert_eq!(
        server.line(),
        "stopping: not ready any more, but serving for 3s; a second signal ends at once\n"
    );
    // The listeners go on, and the server says that it is not ready.
    for door in [server.http, server.admin] {
        let ready = server.get(door, "/readyz");
        assert_eq!(ready.status, 503, "{}", ready.body);
        assert!(ready.body.contains("SHUTTING_DOWN"), "{}", ready.body);
        assert!(ready.closes(), "{}", ready.head);
        assert_eq!(server.get(door, "/healthz").status, 200);
    }
    let mut resp = server.connect(server.resp);
    send(&resp, "INFO tollgate\r\nPING\r\n");
    let mut info = String::new();
    while !info.contains("+PONG") {
        assert_ne!(resp.read_line(&mut info).unwrap(), 0, "{info}");
    }
    assert!(info.contains("\r\ndraining:1\r\n"), "{info}");
    load.wait_for_answers(10);
    let (printed, code) = server.end();
    assert_eq!(
        (&*printed, code),
        ("finishing requests in flight\nstopped\n", Some(0))
    );
    let (answers, lost) = load.join();
    assert!(lost.is_empty(), "{} of {answers}: {lost:#?}", lost.len());
}

#[test]
fn no_request_is_lost_at_sigterm_with_tls() {
    let mut server = Server::start_with_tls("drain: 1s");
    let load = server.load();
    load.wait_for_answers(5);
    server.serving.send_sigterm();
    assert!(server.line().starts_with("stopping"));
    load.wait_for_answers(5);
    let (printed, code) = server.end();
    assert_eq!(
        (&*printed, code),
        ("finishing requests in flight\nstopped\n", Some(0))
    );
    let (answers, lost) = load.join();
    assert!(lost.is_empty(), "{} of {answers}: {lost:#?}", lost.len());
}

/// Even without a drain time, a client that is about to send its next request gets an answer.
#[test]
fn no_request_is_lost_at_sigint() {
    let server = Server::start("drain: 1h");
    let load = server.load();
    load.wait_for_answers(10);
    server.serving.signal("-INT");
    let (printed, code) = server.end();
    assert_eq!(
        (&*printed, code),
        ("finishing requests in flight\nstopped\n", Some(0))
    );
    let (answers, lost) = load.join();
    assert!(lost.is_empty(), "{} of {answers}: {lost:#?}", lost.len());
}

/// A request whose first bytes have arrived is answered, also if the rest comes after the end of all idle
/// connections.
#[test]
fn request_that_has_begun_is_answered() {
    let mut server = Server::start("drain: 0s");
    let (mut http, mut resp) = (server.connect(server.http), server.connect(server.resp));
    // The connections have had a request each, so the server has accepted them.
    send(&http, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    let answer = read_answer(&mut http).unwrap();
    assert!(!answer.closes(), "{}", answer.head);
    send(&resp, "PING\r\n");
    let mut answer = String::new();
    resp.read_line(&mut answer).unwrap();
    let (mut idle, mut fresh) = (server.connect(server.resp), server.connect(server.http));
    send(&idle, "PING\r\n");
    idle.read_line(&mut answer).unwrap();
    assert_eq!(answer, "+PONG\r\n+PONG\r\n");
    send(&http, "GET /healthz HT");
    send(&resp, "*1\r\n$4\r\nPI");
    send(&fresh, "P");

    server.serving.send_sigterm();
    assert_eq!(server.line(), "finishing requests in flight\n");
    // An idle connection is closed.
    assert_eq!(idle.read_line(&mut answer).unwrap(), 0);
    send(&http, "TP/1.1\r\nHost: x\r\n\r\n");
    let last = read_answer(&mut http).unwrap();
    assert_eq!(last.body, "ok\n");
    assert!(last.closes(), "{}", last.head);
    send(&resp, "NG\r\n");
    answer.clear();
    resp.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "+PONG\r\n");
    send(
        &fresh,
        "OST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{\"attributes\":{}}",
    );
    assert_eq!(read_answer(&mut fresh).unwrap().status, 200);
    let (printed, code) = server.end();
    assert_eq!((&*printed, code), ("stopped\n", Some(0)));
}

#[test]
fn second_signal_ends_at_once() {
    for (first, second) in [("-TERM", "-TERM"), ("-TERM", "-INT"), ("-INT", "-TERM")] {
        let mut server = Server::start("drain: 0s");
        // This request waits for the slot of another one, for longer than the test.
        let mut waiting = server.connect(server.resp);
        send(
            &waiting,
            "TG.ACQUIRE action job\r\nTG.ACQUIRE action job WAIT 20000\r\n",
        );
        let mut held = String::new();
        waiting.read_line(&mut held).unwrap();
        server.serving.signal(first);
        assert_eq!(server.line(), "finishing requests in flight\n");
        server.serving.signal(second);
        let (printed, code) = server.end();
        assert_eq!(
            (&*printed, code),
            (
                "ended by a second signal: requests in flight got no answer\n",
                Some(1)
            )
        );
    }
}
