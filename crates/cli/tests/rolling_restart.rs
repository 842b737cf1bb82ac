//! A rolling restart as docs/operating.md describes it: two instances on one Redis are restarted one after
//! the other, behind nginx and behind Envoy, while many clients send requests. No request fails.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::net::SocketAddr;
use std::path::Path;

use common::Serving;
use common::load::{Client, Http, Load, PATIENCE};
use tollgate_rig::{Port, Redis, ReverseProxy, ReverseProxyKind, wait};

const CLIENTS: usize = 32;

/// The document with the settings of nginx and Envoy.
const DOCS: &str = include_str!("../../../docs/operating.md");

/// Returns the block of the document that begins with `start`.
fn block(start: &str) -> &'static str {
    let mut blocks = DOCS.split("```").skip(1).step_by(2);
    blocks.find_map(|block| block.strip_prefix(start)).unwrap()
}

/// Replaces a text that occurs.
fn replaced(text: &str, written: &str, real: &str) -> String {
    assert!(text.contains(written), "{written} is not in {text}");
    text.replace(written, real)
}

/// A server that keeps its addresses over restarts.
struct Instance {
    http: Port,
    grpc: Port,
    config: String,
    serving: Serving,
}

impl Instance {
    fn start(config: &Path) -> Instance {
        let (http, grpc) = (Port::free(), Port::free());
        let config = config.display().to_string();
        Instance {
            serving: serve(&http, &grpc, &config),
            http,
            grpc,
            config,
        }
    }

    /// Restarts the instance as an operator does.
    fn restart(&mut self) {
        self.serving.send_sigterm();
        let ended = self.serving.child.wait().unwrap();
        assert_eq!(ended.code(), Some(0));
        self.serving = serve(&self.http, &self.grpc, &self.config);
        wait::until("the new server is ready", PATIENCE, || {
            let ready = ureq::get(format!("{}/readyz", self.serving.url)).call();
            ready.is_ok()
        });
        wait::until("the proxy uses the new server", PATIENCE, || {
            self.decisions() > 0
        });
    }

    /// Returns how many requests the process has decided.
    fn decisions(&self) -> u64 {
        let page = ureq::get(format!("{}/metrics", self.serving.url)).call();
        let page = page.unwrap().body_mut().read_to_string().unwrap();
        let count = page.lines().filter_map(|line| {
            let api = line.strip_prefix("rate_limit_checks_total{rule=\"api\"")?;
            api.rsplit(' ').next()?.parse::<u64>().ok()
        });
        count.sum()
    }
}

fn serve(http: &Port, grpc: &Port, config: &str) -> Serving {
    let (http, grpc) = (http.address(), grpc.address());
    Serving::start(&["--config", config, "--http", &http, "--grpc", &grpc])
}

/// Starts two instances and the proxy, and restarts the instances one after the other while the clients
/// send requests.
fn restart_behind(
    kind: ReverseProxyKind,
    config: impl FnOnce(&str, &[Instance; 2]) -> String,
    client: impl Fn(SocketAddr, usize) -> Http,
) {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    let text = format!(
        "version: 1\n\
         server: {{ drain: 2s }}\n\
         subjects: {{ hash_secret: a secret of 16 bytes, trusted_proxies: [127.0.0.1/32] }}\n\
         store: {{ redis: {{ url: \"redis://{}\", timeout: 10s, connect_timeout: 10s }} }}\n\
         rules: [{{ id: api, algorithm: gcra, rate: 1000000/s, burst: 1000000, on_store_failure: fail-closed }}]\n",
        redis.address()
    );
    std::fs::write(&rules, text).unwrap();
    let mut instances = [Instance::start(&rules), Instance::start(&rules)];
    let proxy = ReverseProxy::start(kind, |address| {
        vec![("proxy.yaml", config(address, &instances))]
    });
    let address = proxy.address().parse().unwrap();
    let clients = (0..CLIENTS).map(|index| Box::new(client(address, index)) as Box<dyn Client>);
    let clients: Vec<_> = clients.collect();
    // A proxy may listen before it knows its upstream.
    wait::until("the proxy passes requests on", PATIENCE, || {
        client(address, 0).send().is_ok()
    });
    let load = Load::start(clients);
    load.wait_for_answers(10);
    for instance in &mut instances {
        instance.restart();
        load.wait_for_answers(10);
    }
    load.stop();
    let (answers, lost) = load.join();
    assert!(
        lost.is_empty(),
        "{} of {answers} requests failed: {lost:#?}\n{}",
        lost.len(),
        proxy.log()
    );
}

/// nginx passes checks on, and asks about requests for an application (`auth_request`). It never sends a
/// POST request twice.
#[test]
fn no_request_fails_behind_nginx() {
    let config = |address: &str, [one, other]: &[Instance; 2]| {
        let upstream = block("nginx\n");
        let upstream = replaced(upstream, "10.0.0.5:8080", &one.http.address());
        let upstream = replaced(&upstream, "10.0.0.6:8080", &other.http.address());
        // Shorter than the drain time of this test.
        let upstream = replaced(&upstream, "keepalive_timeout 4s", "keepalive_timeout 1s");
        format!(
            r#"
{upstream}
server {{
    listen {address};

    location /v1/ {{
        proxy_pass http://tollgate;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }}

    location = /app {{
        auth_request /_tollgate;
        proxy_pass http://{address}/ok;
    }}

    location = /_tollgate {{
        internal;
        proxy_pass http://tollgate/auth;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
        proxy_set_header X-Original-Method $request_method;
        proxy_set_header X-Original-URI $request_uri;
        proxy_set_header X-Forwarded-For $remote_addr;
    }}

    location = /ok {{ return 200 "ok\n"; }}
}}
"#
        )
    };
    restart_behind(ReverseProxyKind::Nginx, config, |address, index| {
        match index % 4 {
            0 => Http::get(address, "/app"),
            _ => Http::check(address),
        }
    });
}

/// Envoy asks over gRPC, and denies a request if it gets no answer.
#[test]
fn no_request_fails_behind_envoy() {
    let upstream = Port::free();
    let config = |address: &str, [one, other]: &[Instance; 2]| {
        let socket = |address: &str| {
            let (host, port) = address.rsplit_once(':').unwrap();
            format!("{{ socket_address: {{ address: {host}, port_value: {port} }} }}")
        };
        let endpoint =
            |address: &str| format!("{{ endpoint: {{ address: {} }} }}", socket(address));
        // Faster, because the drain time of this test is shorter.
        let checks = replaced(block("yml\n"), "interval: 1s", "interval: 0.25s");
        ENVOY
            .replace("HEALTH_CHECKS", &checks)
            .replace("LISTEN", &socket(address))
            .replace("UPSTREAM_ADDRESS", &socket(&upstream.address()))
            .replace("UPSTREAM_ENDPOINT", &endpoint(&upstream.address()))
            .replace("ONE", &endpoint(&one.grpc.address()))
            .replace("OTHER", &endpoint(&other.grpc.address()))
    };
    restart_behind(ReverseProxyKind::Envoy, config, |address, _| {
        Http::get(address, "/")
    });
}

/// One listener with the rate limit filter, and one that stands for the application.
const ENVOY: &str = r#"
static_resources:
  listeners:
  - address: LISTEN
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ingress
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: "/" }
                route:
                  cluster: upstream
                  rate_limits: [{ actions: [{ remote_address: {} }] }]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              timeout: 10s
              failure_mode_deny: true
              rate_limit_service:
                transport_api_version: V3
                grpc_service: { envoy_grpc: { cluster_name: tollgate } }
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  - address: UPSTREAM_ADDRESS
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: upstream
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{ match: { prefix: "/" }, direct_response: { status: 200, body: { inline_string: "ok\n" } } }]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: upstream
    type: STATIC
    load_assignment:
      cluster_name: upstream
      endpoints: [{ lb_endpoints: [UPSTREAM_ENDPOINT] }]
  - name: tollgate
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
HEALTH_CHECKS
    load_assignment:
      cluster_name: tollgate
      endpoints: [{ lb_endpoints: [ONE, OTHER] }]
"#;
