//! Resolving a request allocates nothing, as long as no expression runs.

#![allow(clippy::unwrap_used)]

use tollgate_core::Keyring;
use tollgate_rules::{Attributes, Policy, RequestLimits, RuleSet};

const RULES: &str = r#"
version: 1
rules:
  - { id: api, match: { action: [search, lookup] }, per: [tenant, api_key], algorithm: gcra, rate: 100/m, burst: 20 }
  - { id: day, match: { path: "/v1/*" }, per: [tenant], algorithm: fixed-window, limit: 1000, window: 1d }
  - { id: login, match: { action: login }, per: [ip], algorithm: token-bucket, capacity: 5, refill: 1/s }
  - { id: free, match: { plan: free }, per: [tenant], algorithm: sliding-counter, limit: 10, window: 1m }
  - { id: admin, match: { role: admin }, per: [user], algorithm: sliding-log, limit: 10, window: 1m }
"#;

#[test]
fn five_rules_of_which_two_match_allocate_nothing() {
    let config = Policy::parse("x", RULES).unwrap();
    let rules = RuleSet::compile(&config, Keyring::new(b"0123456789abcdef", "x"));
    let run = || {
        let request = Attributes::from([
            ("tenant", "acme"),
            ("api_key", "k-123456"),
            ("action", "search"),
            ("path", "/v1/users"),
            ("ip", "10.0.0.1"),
        ]);
        let request_limits = RequestLimits::default();
        let resolution = rules.resolve(&request, &request_limits);
        assert_eq!(resolution.rules.as_slice(), [0, 1]);
    };
    run();
    let counted = allocation_counter::measure(run);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
