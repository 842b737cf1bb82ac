//! One client cannot take all connections to an upstream.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};
use tollgate_rig::wait;

use super::NONE;
use crate::common::gate::{Gate, SOON, Script};

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// An upstream that never ends its answers.
fn endless() -> Script {
    Script::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart");
        let _ = stream.read(&mut [0; 1]);
    })
}

/// Sends a request from this address.
fn ask_from(address: &str, gate: &Gate) -> (String, TcpStream) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{address}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&gate.address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(HEAD).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    (String::from_utf8_lossy(&status[9..]).into_owned(), stream)
}

#[test]
fn client_gets_half_of_the_connections_to_a_server() {
    let app = endless();
    let section = app.section(", max_connections: 4, connect_timeout: 100ms, retries: 0");
    let gate = Gate::start(&format!("{section}{NONE}"));
    let (greedy, other) = ("127.0.0.2", "127.0.0.3");
    let held = [0; 2].map(|_| ask_from(greedy, &gate));
    assert!(held.iter().all(|(status, _)| status == "200"));
    let (status, mut stream) = ask_from(greedy, &gate);
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(status, "503");
    assert!(
        text.contains("UPSTREAM_BUSY") && text.contains("this client"),
        "{text}"
    );
    let others = [0; 2].map(|_| ask_from(other, &gate));
    assert!(others.iter().all(|(status, _)| status == "200"));
    assert_eq!(ask_from("127.0.0.4", &gate).0, "503", "all are in use");
    drop((held, others));
    wait::until("the requests have ended", SOON, || {
        gate.metric("tollgate_upstream_open_requests") == 0
    });
    assert_eq!(ask_from(greedy, &gate).0, "200");
}

#[test]
fn trusted_proxy_gets_all_connections() {
    let app = endless();
    let section = app.section(", max_connections: 4");
    let trusted = "subjects: { trusted_proxies: [127.0.0.2/32] }\n";
    let gate = Gate::start(&format!("{section}{trusted}{NONE}"));
    let held = [0; 4].map(|_| ask_from("127.0.0.2", &gate));
    assert!(held.iter().all(|(status, _)| status == "200"));
}
