//! Test files: what passes, what fails, and what is rejected.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use tollgate::Config;
use tollgate_simulate::rule_tests::TestFile;

const RULES: &str = r#"
version: 1
default_plan: free
plans:
  free: { api: { rate: 10/m, burst: 10 } }
  pro: { api: { rate: 60/m, burst: 60 } }
tenants:
  acme: { plan: pro }
routes:
  - { method: POST, path: /login, action: login }
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: sliding-log, limit: 2, window: 10m, backoff: { after: 1, base: 30s, max: 1h } }
  - { id: api, match: { action: search }, per: [tenant], algorithm: gcra, rate: 10/m, burst: 10 }
  - { id: strict, match: { action: search }, per: [tenant], algorithm: fixed-window, limit: 3, window: 1m, state: shadow }
  - { id: tokens, match: { action: chat }, per: [tenant], algorithm: quota, limit: 100, period: month }
  - { id: exports, match: { action: export }, per: [tenant], algorithm: concurrency, limit: 1, lease: 30s }
  - { id: drip, match: { action: drip }, per: [user], algorithm: leaky-bucket, rate: 1/s, queue: 2, shape: true }
"#;

fn rules() -> Config {
    tollgate::parse("rules.yaml", RULES, &|_| None).unwrap()
}

/// Runs a file of tests. Returns its failures as they are printed.
fn run(tests: &str) -> String {
    let text = format!("version: 1\ntests:\n{tests}");
    let file = TestFile::read("x.test.yaml", &text).map_err(|error| error.to_string());
    let outcome = file.unwrap().run(&rules(), &|_| true);
    let outcome = outcome.map_err(|error| error.to_string()).unwrap();
    let printed = outcome.failures.map(|it| it.to_string());
    printed.unwrap_or_default()
}

fn rejected(text: &str) -> String {
    match TestFile::read("x.test.yaml", text) {
        Err(error) => error.to_string(),
        Ok(file) => file.run(&rules(), &|_| true).unwrap_err().to_string(),
    }
}

#[test]
fn every_kind_of_step_can_pass() {
    let failures = run(r"
  - name: back-off
    with: { action: login, user: ann }
    steps:
      - { times: 2, every: 1s, expect: allowed }
      - { expect: denied, rule: login, reason: exceeded, granted: 0 }
      - { do: peek, with: { user: bob }, expect: allowed, remaining: 2, limit: 2 }
      - { do: reset, expect: allowed }
  - name: plans, up to, refunds and shadows
    with: { action: search, tenant: acme }
    steps:
      - { cost: 100, up_to: true, granted: 60, limit: 60, rule: api, shadow_denied: [strict] }
      - { expect: denied, retry_after: 1s }
      - { do: refund, cost: 5 }
      - { times: 10, allowed: 5 }
      - { with: { tenant: other }, times: 3, expect: allowed, shadow_denied: [] }
  - name: a quota starts again with the month
    start: 2026-01-31T23:59:59Z
    with: { action: chat, tenant: acme }
    steps:
      - { cost: 100, expect: allowed, remaining: 0 }
      - { expect: denied, retry_after: 1s }
      - { after: 1s, expect: allowed, remaining: 99 }
  - name: reservations
    with: { action: chat, tenant: acme }
    steps:
      - { do: reserve, cost: 90, ttl: 1m, as: call, expect: allowed }
      - { cost: 20, expect: denied }
      - { do: commit, of: call, cost: 30 }
      - { do: peek, cost: 70, expect: allowed }
      - { do: reserve, cost: 70, as: other }
      - { do: release, of: other }
      - { do: release, of: call, expect: failed }
  - name: leases
    with: { action: export, tenant: acme }
    steps:
      - { do: acquire, as: one, expect: allowed }
      - { do: acquire, as: two, expect: denied, rule: exports }
      - { after: 20s, do: renew, of: one }
      - { after: 20s, do: acquire, expect: denied }
      - { do: release, of: one }
      - { do: acquire, expect: allowed }
      - { at: 71s, do: acquire, expect: allowed }
  - name: shaping tells the delay
    with: { action: drip, user: ann }
    steps:
      - { expect: allowed, delay: 0s }
      - { expect: allowed, delay: 1s }
  - name: routes set the action
    with: { user: joe }
    steps:
      - { request: 'POST https://Example.com:8443//login/?next=1', times: 2, expect: allowed, rule: login }
      - { request: POST /login, expect: denied }
      - { request: GET /login, expect: allowed }
");
    assert_eq!(failures, "");
}

#[test]
fn failures_name_the_line_the_expectation_and_the_rules() {
    let failures = run(r"
  - name: wrong
    with: { action: login, user: ann }
    steps:
      - { times: 3, expect: allowed }
      - { times: 2, allowed: 1 }
      - { remaining: 7, rule: api }
      - { with: { action: none }, expect: denied }
");
    let expected = "\
x.test.yaml:7:29: expected allowed, but request 3 of 3 is denied
    |
  7 |       - { times: 3, expect: allowed }
    |                             ^^^^^^^
  help: login (sliding-log) denies, 0 of 2 left, retry in 600 s

x.test.yaml:8:30: expected 1 of 2 requests to be allowed, but 0 are
    |
  8 |       - { times: 2, allowed: 1 }
    |                              ^
";
    assert!(failures.starts_with(expected), "{failures}");
    for part in [
        "expected rule api, but it is login",
        "expected remaining 7, but it is 0",
        "x.test.yaml:10:43: expected denied, but this request is allowed",
        "help: no rule applies to this request",
    ] {
        assert!(failures.contains(part), "{part}\n{failures}");
    }
}

#[test]
fn errors_of_steps_are_failures_unless_they_are_expected() {
    let failures = run(r"
  - name: wrong
    with: { action: export, tenant: acme }
    steps:
      - { do: acquire, as: one }
      - { do: commit, of: one }
      - { do: acquire, as: two, expect: denied }
      - { do: release, of: two }
");
    assert!(
        failures.contains("x.test.yaml:8:9: this request failed"),
        "{failures}"
    );
    assert!(failures.contains("help: `one` is a lease"), "{failures}");
    assert!(
        failures.contains("help: `two` was not granted"),
        "{failures}"
    );
}

#[test]
fn wrong_files_are_rejected_with_place_and_remedy() {
    let wrong = rejected(
        r"version: 2
start: yesterday
tests:
  - name: a
    steps:
      - { at: 5s, after: 5s }
      - { at: 1s, expct: allowed }
      - { times: 0 }
      - { times: 2, allowed: 3 }
      - { expect: refused, reason: exceded }
      - { do: commit, with: { a: b } }
      - { do: release, of: nothing }
      - { request: /login, with: { 1x: y } }
      - { cost: 9007199254740993 }
  - name: a
    steps: []
  - steps: []
",
    );
    for part in [
        "x.test.yaml:1:10: version 2 is not supported",
        "x.test.yaml:2:8: `yesterday` is not a time",
        "`at` and `after` cannot be used together",
        "x.test.yaml:7:15: this step is before the one above it",
        "help: the step before ends at 5s: use a later time, or `after`",
        "`expct` is not a field of a step",
        "help: did you mean `expect`?",
        "0 is not between 1 and 10000000",
        "3 requests cannot be allowed",
        "expected `allowed`, `denied` or `failed`, found `refused`",
        "`exceded` is not a reason",
        "help: did you mean `exceeded`?",
        "`do: commit` needs `of`",
        "`with` has no effect with `do: commit`",
        "no earlier step makes `nothing`",
        "`/login` is not a request",
        "`1x` is not an attribute name",
        "is above the largest amount",
        "there are two tests `a`",
        "this test has no `name`",
    ] {
        assert!(wrong.contains(part), "{part}\n---\n{wrong}");
    }
    assert!(rejected("").contains("start with `version: 1`"));
    let unknown = "version: 1\ntests:\n  - { name: a, steps: [{ rule: logn }] }\n";
    assert_eq!(
        rejected(unknown),
        "x.test.yaml:3:32: the config has no rule `logn`\n    |\n  3 |   - { name: a, steps: [{ rule: logn }] }\n    \
         |                                ^^^^\n  help: did you mean `login`?"
    );
}

#[test]
fn rollouts_pick_the_same_subjects_in_every_run() {
    let text = "version: 1\nrules: [{ id: r, per: [user], algorithm: fixed-window, limit: 0, window: 1m, rollout: 50% }]\n";
    let decided = || {
        let config = tollgate::parse("rules.yaml", text, &|_| None).unwrap();
        let limiter = tollgate_simulate::VirtualLimiter::new(&config, tollgate::Time::default());
        let users: Vec<String> = (0..64).map(|user| user.to_string()).collect();
        let decide = |user: &String| {
            let attributes = tollgate::Attributes::from([("user", user.as_str())]);
            limiter.check_now(&attributes).is_allowed()
        };
        users.iter().map(decide).collect::<Vec<_>>()
    };
    assert_eq!(decided(), decided());
}
