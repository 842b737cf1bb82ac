//! Every config of docs/gateway.md, started with its upstreams on other ports.

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
