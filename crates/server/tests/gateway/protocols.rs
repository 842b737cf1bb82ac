//! HTTP/2, TLS, gRPC and WebSockets through the gateway, with ordinary clients and servers.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use tollgate_rig::{ReverseProxy, ReverseProxyKind};

use super::NONE;
use crate::common::gate::{Gate, Script, ok};
use crate::own::{self, TollgateClient};

fn curl(args: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "-i"]).args(args).output();
    let output = output.expect("curl is not installed: apt-get install -y curl");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn clients_speak_http2_and_the_upstream_http1() {
    let app = Script::echo();
    let rules = "rules: [{ id: two, algorithm: fixed-window, limit: 2, window: 1h }]\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    let url = format!("http://{}/a?b", gate.address);
    let answer = curl(&["--http2-prior-knowledge", "-d", "hello", &url]);
    assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    assert!(answer.contains("ratelimit-remaining: 1"), "{answer}");
    assert!(
        answer.contains("POST /a?b HTTP/1.1\r\n") && answer.ends_with("hello"),
        "{answer}"
    );
    assert!(
        answer.contains(&format!("host: {}\r\n", gate.address)),
        "{answer}"
    );
    for status in [200, 429] {
        let answer = curl(&["--http2-prior-knowledge", &url]);
        assert!(answer.starts_with(&format!("HTTP/2 {status}")), "{answer}");
    }
}

#[test]
fn nginx_is_an_upstream_over_http1_http2_and_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, cert, key) = ("ca.pem", "server.pem", "server.key");
    super::write_certificates(folder.path());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let page = folder.path().join("html");
    std::fs::create_dir(&page).unwrap();
    std::fs::write(page.join("large"), "x".repeat(1_000_000)).unwrap();
    let nginx = |listen: &'static str, tls: bool| {
        let files = match tls {
            true => format!(
                "ssl_certificate {}; ssl_certificate_key {};",
                at(cert),
                at(key)
            ),
            false => String::new(),
        };
        let root = page.display().to_string();
        ReverseProxy::start(ReverseProxyKind::Nginx, move |address| {
            let conf = format!(
                "server {{ listen {address}{listen}; {files} root {root}; \
                 location = /who {{ return 200 \"$server_protocol $host $http_x_tollgate_decision\"; }} }}"
            );
            vec![("site.conf", conf)]
        })
    };
    for (listen, tls, more, expected) in [
        ("", false, "", "HTTP/1.1"),
        (" http2", false, ", protocol: http2", "HTTP/2.0"),
        (" ssl http2", true, "", "HTTP/2.0"),
        (" ssl", true, "", "HTTP/1.1"),
    ] {
        let server = nginx(listen, tls);
        let scheme = if tls { "https" } else { "http" };
        let address = server
            .address()
            .replace("127.0.0.1", if tls { "localhost" } else { "127.0.0.1" });
        let trust = match tls {
            true => format!(", ca: \"{}\"", at(ca)),
            false => String::new(),
        };
        let section = format!(
            "upstreams: {{ app: {{ servers: [\"{scheme}://{address}\"]{more}{trust} }} }}\n"
        );
        let gate = Gate::start(&format!("{section}{NONE}"));
        let who = gate.get("/who");
        assert_eq!(
            who.text,
            format!("{expected} 127.0.0.1 allowed"),
            "{listen}"
        );
        let large = gate.get("/large");
        assert_eq!(
            (large.status, large.text.len()),
            (200, 1_000_000),
            "{listen}"
        );
        let url = format!("http://{}/large", gate.address);
        let head = curl(&["-I", &url]);
        assert!(head.contains("content-length: 1000000"), "{head}");
        let large = curl(&["--http2-prior-knowledge", &url]);
        assert!(large.len() > 1_000_000);
    }
    // Without the authority, the certificate is not trusted.
    let server = nginx(" ssl", true);
    let address = server.address().replace("127.0.0.1", "localhost");
    let section = format!("upstreams: {{ app: {{ servers: [\"https://{address}\"] }} }}\n");
    let gate = Gate::start(&format!("{section}{NONE}"));
    assert_eq!(gate.get("/who").status, 502);
}

#[test]
fn tls_is_served_with_both_protocols() {
    let folder = tempfile::tempdir().unwrap();
    super::write_certificates(folder.path());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let app = Script::answering(|seen| ok(&seen.head));
    let door = format!(
        "gateway: {{ address: \"127.0.0.1:0\", tls: {{ cert: \"{}\", key: \"{}\" }} }}",
        at("server.pem"),
        at("server.key")
    );
    let gate = Gate::start_with(&door, &format!("{}{NONE}", app.section("")));
    let url = format!("https://localhost:{}/", gate.address.port());
    for (flag, version) in [("--http1.1", "HTTP/1.1 200"), ("--http2", "HTTP/2 200")] {
        let answer = curl(&["--cacert", &at("ca.pem"), flag, &url]);
        assert!(answer.starts_with(version), "{answer}");
        assert!(answer.contains("x-forwarded-proto: https"), "{answer}");
    }
}

/// The upstream is Tollgate's own gRPC door: its answers end with trailers.
#[test]
fn grpc_passes_with_its_trailers_and_denials_are_grpc() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rules =
        "rules: [{ id: inner, per: [user], algorithm: fixed-window, limit: 5, window: 1h }]\n";
    let server = runtime.block_on(crate::doors::Server::start(rules, "memory", "gateway"));
    let section = format!(
        "upstreams: {{ grpc: {{ servers: [\"http://{}\"], protocol: http2 }} }}\n",
        server.grpc
    );
    let rules = "rules: [{ id: calls, algorithm: fixed-window, limit: 2, window: 1h }]\n";
    let gate = Gate::start(&format!("{section}{rules}"));
    runtime.block_on(async {
        let channel = tonic::transport::Endpoint::new(format!("http://{}", gate.address));
        let channel = channel.unwrap().connect().await.unwrap();
        let mut client = TollgateClient::new(channel);
        let ask = |user: &str| own::check([("user", user)]);
        let answer = client.check(ask("ann")).await.unwrap();
        assert!(answer.get_ref().allowed);
        assert!(
            answer.metadata().contains_key("ratelimit-limit"),
            "{answer:?}"
        );
        // An error of the service is in its trailers.
        let wrong = client.check(ask(&"x".repeat(2000))).await.unwrap_err();
        assert_eq!(wrong.code(), tonic::Code::InvalidArgument);
        let denied = client.check(ask("ann")).await.unwrap_err();
        assert_eq!(denied.code(), tonic::Code::ResourceExhausted);
        assert!(
            denied.message().starts_with("Too many requests."),
            "{denied}"
        );
        assert!(denied.metadata().contains_key("retry-after"));
    });
}

/// The Python library `websockets` on both sides.
#[test]
fn web_sockets_of_an_ordinary_library_pass() {
    let script = r#"
import asyncio, sys, websockets
async def echo(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[1])):
        print("listening", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        uri = "ws://" + sys.argv[2] + "/chat"
        async with websockets.connect(uri, max_size=None) as socket:
            for message in ["hello", "x" * 500_000, b"\x00\xff" * 1000]:
                await socket.send(message)
                assert await socket.recv() == message
        print("done", flush=True)
asyncio.run(main())
"#;
    let port = tollgate_rig::Port::free();
    let (_, number) = port
        .address()
        .rsplit_once(':')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let section = format!(
        "upstreams: {{ app: {{ servers: [\"http://{}\"] }} }}\n",
        port.address()
    );
    let rules = "rules: [{ id: open, per: [ip], algorithm: concurrency, limit: 5, lease: 30s }]\n";
    let gate = Gate::start(&format!("{section}{rules}"));
    let mut python = tollgate_rig::clients::python_with_websockets();
    let child = python
        .args(["-c", script, &number, &gate.address.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listening");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(child.wait().unwrap().success());
    gate.wait_for_no_slots();
}
