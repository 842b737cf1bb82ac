//! Known denials over HTTP: a server on Redis gives the same answers as a server in memory, even if the
//! answer is a denial that it remembers. Its headers name all rules of the request.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Answer, Running};
use tollgate_rig::Redis;

const RULES: &str = "
headers: { families: [ietf] }
rules:
  - { id: bucket, per: [user], algorithm: token-bucket, capacity: 10, refill: 1/m }
  - { id: hours, per: [user], algorithm: fixed-window, limit: 1000, window: 240h }
";

fn check(server: &Running, user: &str, cost: u64) -> Answer {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}},"cost":{cost}}}"#);
    server.post("/v1/check", &body)
}

fn both(run: impl Fn(&Running)) {
    let redis = Redis::start();
    // On a busy machine, Redis may need longer than the default timeout.
    let url = redis.url();
    let store = format!("store: {{ redis: {{ url: \"{url}\", timeout: 5s }} }}");
    for store in ["", &store] {
        let secret = "subjects: { hash_secret: 0123456789abcdef }";
        run(&Running::start(&format!(
            "version: 1\n{secret}\n{store}{RULES}"
        )));
    }
}

#[test]
fn costs_of_7_5_3_and_5_are_answered_as_in_memory() {
    both(|server| {
        let answers = [7, 5, 3, 5].map(|cost| check(server, "ann", cost));
        let statuses = answers.each_ref().map(|it| it.status);
        assert_eq!(statuses, [200, 429, 200, 429]);
        // Some seconds may have passed.
        let wait = |answer: &Answer| answer.header("retry-after").parse::<u64>().unwrap();
        assert!((60..=120).contains(&wait(&answers[1])));
        assert!((200..=300).contains(&wait(&answers[3])));
        for (answer, left) in answers.iter().zip([3, 3, 0, 0]) {
            let header = answer.header("ratelimit");
            assert!(header.contains(&format!("\"bucket\";r={left}")), "{header}");
        }
    });
}

#[test]
fn a_known_denial_names_all_rules_in_its_headers() {
    both(|server| {
        assert_eq!(check(server, "bob", 10).status, 200);
        let policies = |answer: &Answer| {
            assert_eq!(answer.status, 429);
            answer.header("ratelimit-policy")
        };
        let first = policies(&check(server, "bob", 1));
        assert!(
            first.contains("\"bucket\"") && first.contains("\"hours\""),
            "{first}"
        );
        for _ in 0..5 {
            assert_eq!(policies(&check(server, "bob", 1)), first);
        }
    });
}
