//! The HTTP door, tested by schemathesis: it generates good and bad requests from the OpenAPI document,
//! and checks the answers against the document.
//!
//! `TOLLGATE_PROOF_CASES=5` makes five times as many, and larger numbers too.

mod common;

use common::Running;
use tollgate_rig::clients;

/// How many requests for each path and method.
const EXAMPLES: u32 = 15;

const RULES: &str = r"
version: 1
subjects: { trusted_proxies: [127.0.0.1/32] }
rules:
  - { id: roomy, per: [user], missing: skip, algorithm: gcra, rate: 1000000/s, burst: 1000000 }
  - { id: tight, match: { user: ann }, per: [user], algorithm: fixed-window, limit: 5, window: 10d }
  - { id: slots, algorithm: concurrency, limit: 100000, lease: 1s, max_lease: 24h }
  - { id: watch, algorithm: sliding-counter, limit: 3, window: 10d, state: shadow }
";

#[test]
fn schemathesis_finds_nothing() {
    let server = Running::start(RULES);
    let times = std::env::var("TOLLGATE_PROOF_CASES").map_or(1, |times| {
        times
            .parse::<u32>()
            .expect("TOLLGATE_PROOF_CASES is a whole number")
            .min(5)
    });
    let seed = tollgate_conformance::seed(20) % (1 << 32);
    let directory = tempfile::tempdir().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis.toml");
    let output = clients::schemathesis()
        // schemathesis writes notes to its working directory.
        .current_dir(&directory)
        .args(["--config-file", config, "run"])
        .arg(format!("http://{}/openapi.json", server.address))
        // Phases that need several requests have nothing to follow here: there are no links and no
        // logins.
        .args(["--phases", "examples,coverage,fuzzing"])
        // Run every check that the config does not exclude.
        .arg("--continue-on-failure")
        .args(["--max-examples", &(EXAMPLES * times).to_string()])
        .args(["--seed", &seed.to_string(), "--no-color"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    // The test must not pass because requests were missing.
    assert!(printed.contains("Tested: 26"), "{printed}");
}
