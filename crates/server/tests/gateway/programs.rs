//! Programs that test servers, and nginx before the gateway.

use std::process::Command;

use tollgate_rig::{ReverseProxy, ReverseProxyKind, raise_open_files, tools, wait};

use super::NONE;
use crate::common;
use crate::common::gate::{Gate, SOON, Script, ok};

/// Runs a program, and returns what it prints.
fn run(command: &mut Command, install: &str) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}\ninstall: {install}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text + &String::from_utf8_lossy(&output.stderr)
}

/// h2spec has a test for each sentence of the HTTP/2 standard about what a server must do.
#[test]
fn door_conforms_to_the_standard_of_http2() {
    let folder = tempfile::tempdir().unwrap();
    super::write_certificates(folder.path());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let app = Script::answering(|_| ok(&"x".repeat(2000)));
    let door = format!(
        "gateway: {{ address: \"127.0.0.1:0\", tls: {{ cert: \"{}\", key: \"{}\" }} }}",
        at("server.pem"),
        at("server.key")
    );
    let plain = Gate::start(&format!("{}{NONE}", app.section("")));
    let tls = Gate::start_with(&door, &format!("{}{NONE}", app.section("")));
    let program = tools::h2spec();
    let h2spec = |gate: &Gate, more: &[&str]| {
        let mut h2spec = Command::new(&program);
        let port = gate.address.port().to_string();
        h2spec.args(["-h", "localhost", "-p", &port, "-o", "10"]);
        run(h2spec.args(more), "see rig/src/tools.rs")
    };
    let text = h2spec(&tls, &["-t", "-k"]);
    assert!(text.contains("145 tests, 145 passed"), "{text}");
    // Without TLS, bytes that are not HTTP/2 are read as HTTP/1.1, and get the answer 400.
    let text = h2spec(&plain, &[]);
    let (_, failures) = text
        .split_once("Failures:")
        .unwrap_or_else(|| panic!("{text}"));
    assert!(failures.contains("145 tests, 144 passed"), "{text}");
    assert!(
        failures.contains("Sends invalid connection preface"),
        "{text}"
    );
}

#[test]
fn load_generators_get_only_good_answers() {
    let app = Script::answering(|_| ok("hello"));
    let gate = Gate::start(&format!("{}{NONE}", app.section("")));
    let url = format!("http://{}/", gate.address);
    // At most 100 at once: the upstream of the tests has room for 128 connections that it has not accepted yet.
    let mut h2load = Command::new("h2load");
    h2load.args(["-n", "2000", "-c", "10", "-m", "10", &url]);
    let text = run(&mut h2load, "apt-get install -y nghttp2-client");
    assert!(
        text.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"),
        "{text}"
    );
    assert!(text.contains("2000 2xx"), "{text}");
    let mut wrk = Command::new("wrk");
    wrk.args(["-t", "1", "-c", "20", "-d", "1s", &url]);
    let text = run(&mut wrk, "apt-get install -y wrk");
    assert!(text.contains("requests in"), "{text}");
    assert!(
        !text.contains("Non-2xx") && !text.contains("Socket errors"),
        "{text}"
    );
}

/// nginx tells the gateway which client it serves.
#[test]
fn nginx_stands_before_the_gateway() {
    let app = Script::echo();
    let rules = "rules: [{ id: one, per: [ip], algorithm: fixed-window, limit: 1, window: 1h }]\n\
                 subjects: { trusted_proxies: [127.0.0.1/32] }\n";
    let gate = Gate::start(&format!("{}{rules}", app.section("")));
    let gateway = gate.address;
    let nginx = ReverseProxy::start(ReverseProxyKind::Nginx, move |address| {
        // Tests come from one address, so a header stands for the address of the client.
        let conf = format!(
            "upstream gateway {{ server {gateway}; keepalive 4; }}\n\
             server {{ listen {address}; location / {{ proxy_pass http://gateway; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_set_header Host shop.test; \
             proxy_set_header X-Forwarded-For $http_test_client; }} }}"
        );
        vec![("site.conf", conf)]
    });
    let url = format!("http://{}/items", nginx.address());
    let get = |client: &str| {
        let spoofed = [("test-client", client), ("x-real-ip", "192.0.2.66")];
        common::get(&url, &spoofed)
    };
    let first = get("198.51.100.1");
    assert_eq!(first.status, 200, "{}", first.text);
    assert_eq!(first.header("ratelimit-remaining"), "0");
    for line in [
        "host: shop.test\r\n",
        "x-real-ip: 198.51.100.1\r\n",
        "x-forwarded-for: 198.51.100.1, 127.0.0.1\r\n",
    ] {
        assert!(first.text.contains(line), "{line} in {}", first.text);
    }
    let denied = get("198.51.100.1");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["ruleId"], "one");
    assert!(!denied.header("retry-after").is_empty());
    assert_eq!(get("198.51.100.2").status, 200);
}

/// As many connections as a door accepts, or as both ends of them may be open in this process.
#[test]
fn thousands_of_idle_connections_do_not_disturb_others() {
    let files = usize::try_from(raise_open_files(22_000).unwrap()).unwrap();
    let most = 10_000.min(files.saturating_sub(2000) / 2);
    assert!(
        most > 1000,
        "raise the limit of open files: ulimit -n 22000"
    );
    let app = Script::answering(|_| ok("hello"));
    let config = format!(
        "version: 1\nserver: {{ http: \"127.0.0.1:0\", gateway: \"127.0.0.1:0\", max_connections_per_client: 10000 }}\n{}{NONE}",
        app.section("")
    );
    let gate = Gate::of(&config);
    let open = "tollgate_connections{door=\"gateway\"}";
    // One connection is left for the request.
    let idle: Vec<_> = (1..most).map(|_| gate.connect()).collect();
    assert_eq!(gate.get("/").text, "hello");
    // The first ones are closed after 10 s, if this machine is that slow.
    assert!(gate.metric(open) > 0);
    let refused = "tollgate_refused_connections_total{door=\"gateway\"}";
    assert_eq!(gate.metric(refused), 0);
    drop(idle);
    wait::until("all connections are closed", SOON, || {
        gate.metric(open) == 0
    });
}
