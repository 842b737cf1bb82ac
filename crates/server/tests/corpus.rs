//! Bodies that fuzzing found interesting (`fuzz/fuzz_targets/http_body.rs`): each gets a JSON
//! answer from every path, and the server goes on. The first byte of a file selects the path.

mod common;

use common::Running;

const RULES: &str = r#"
version: 1
rules:
  - { id: log, match: { action: "a*" }, per: [user], algorithm: sliding-log, limit: 5, window: 1s }
  - { id: cost, when: 'has(attributes.n)', per: [tenant], missing: deny, algorithm: token-bucket,
      capacity: 1000, refill: 10/s, cost: 'int(n) * 2' }
  - { id: counter, per: [user], algorithm: sliding-counter, limit: 9, window: 1s, charge_denied: true }
"#;

#[test]
fn every_body_of_the_corpus_is_answered_in_json() {
    let server = Running::start(RULES);
    let paths = [
        "/v1/check",
        "/v1/check/batch",
        "/v1/peek",
        "/v1/refund",
        "/v1/reservations",
        "/v1/reservations/unheld/commit",
        "/v1/reservations/unheld/release",
        "/v1/reservations/unheld/extend",
        "/v1/leases",
        "/v1/leases/unheld/renew",
        "/v1/leases/holders",
    ];
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let mut answered = 0;
    let files = std::fs::read_dir(corpus).unwrap();
    let bodies = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let all = bodies.flat_map(|body| paths.map(|path| (path, body.clone())));
    for (path, bytes) in all {
        let (_, body) = bytes.split_first().unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = server.raw(&[head.as_bytes(), body].concat());
        let (_, json) = answer.split_once("\r\n\r\n").unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert!(json.is_object(), "{answer}");
        answered += 1;
    }
    assert!(answered >= 50 * paths.len(), "{answered} of the corpus");
}
