//! Every config of docs/gateway.md, and that of the surge, started with its upstreams on other ports.

use tollgate_rig::Redis;

use crate::common::gate::{Gate, Script};

#[test]
fn every_config_of_the_docs_serves_requests() {
    let docs = include_str!("../../../../docs/gateway.md");
    let blocks = docs.split("```").skip(1).step_by(2);
    let configs: Vec<&str> = blocks
        .filter_map(|block| block.strip_prefix("yaml\n"))
        .collect();
    assert_eq!(configs.len(), 3);
    let app = Script::echo();
    let other = Script::echo();
    for config in configs {
        let config = config.replace(":8000", ":0");
        let config = config.replace("127.0.0.1:9001", &other.address.to_string());
        let config = ["127.0.0.1:9000", "127.0.0.1:9100"]
            .iter()
            .fold(config, |config, server| {
                config.replace(server, &app.address.to_string())
            });
        let gate = Gate::of(&config.replace("access_log: json", "access_log: off"));
        let answer = gate.get("/reports/1");
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(gate.post("/v1/chat", r#"{"max_tokens": 10}"#).status, 200);
    }
}

/// The config of `cargo xtask demo surge`.
#[test]
fn config_of_the_surge_limits_every_endpoint() {
    let redis = Redis::start();
    let app = Script::echo();
    let text = include_str!("../../../../examples/surge/surge.yaml");
    let text = text.replace("127.0.0.1:8000", "127.0.0.1:0");
    let text = text.replace("127.0.0.1:9000", &app.address.to_string());
    let environment = |name: &str| match name {
        "SURGE_REDIS" => Some(redis.url()),
        _ => Some("the secret of these tests".to_owned()),
    };
    let mut config = tollgate_config::parse("surge.yaml", &text, &environment)
        .unwrap_or_else(|error| panic!("{error}"));
    config.server.http.address.set_port(0);
    let gate = Gate::of_config(config);
    for (path, rule) in [
        ("/fares?from=a", "fares"),
        ("/nearby", "nearby"),
        ("/drivers/location", "locations"),
        ("/history", "history"),
        ("/admin/statistics", "statistics"),
    ] {
        let answer = gate.get(path);
        let line = format!("x-tollgate-rule: {rule}\r\n");
        assert!(answer.text.contains(&line), "{path} got {}", answer.text);
    }
    assert_eq!(gate.post("/rides", "").status, 200);
    assert!((0..1000).any(|_| gate.post("/rides", "").status == 429));
}
