//! Reloads of the config while the limiter works.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{START, Setup, config};
use tollgate::{Ask, Attributes, Config, FailurePolicy, Limiter, ManualClock, RuleCounts, Span};

fn rule(id: &str, limit: u32) -> String {
    format!(
        "  - {{ id: {id}, per: [user], algorithm: fixed-window, limit: {limit}, window: 1m }}\n"
    )
}

fn ann() -> Attributes<'static> {
    Attributes::from([("user", "ann")])
}

fn parse(yaml: &str) -> Config {
    tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap()
}

#[test]
fn reload_changes_numbers_and_keeps_state() {
    let limiter = Limiter::with_clock(&config(&rule("r", 2)), ManualClock::at(START)).unwrap();
    let admitted = |times: usize| (0..times).filter(|_| limiter.check_now(&ann()).is_allowed());
    assert_eq!(admitted(5).count(), 2);
    let raised = config(&rule("r", 5));
    let reloaded = limiter.reload(&raised);
    assert_eq!(reloaded.version, raised.policy.version);
    assert!(reloaded.needs_restart.is_empty());
    assert_eq!(admitted(5).count(), 3);
    limiter.reload(&config(&rule("r", 4)));
    assert_eq!(admitted(5).count(), 0);
    // The same numbers under another id are another rule.
    limiter.reload(&config(&rule("other", 5)));
    assert_eq!(admitted(9).count(), 5);
}

#[test]
fn reload_keeps_the_random_secret() {
    let limiter = Limiter::new(&config(&rule("r", 2))).unwrap();
    let subject = || {
        let decision = limiter.peek_now(&ann(), Ask::Exactly(0));
        decision.rules().next().unwrap().subject()
    };
    let before = subject();
    limiter.reload(&config(&rule("r", 3)));
    assert_eq!(subject(), before);
}

#[test]
fn counts_belong_to_the_id_of_a_rule() {
    let limiter = Limiter::new(&config(&[rule("a", 1), rule("b", 9)].concat())).unwrap();
    for _ in 0..3 {
        let _ = limiter.check_now(&ann());
    }
    let counts = |limiter: &Limiter| -> Vec<(String, u64, u64)> {
        let active = limiter.active();
        let counts_of = |(rule, counts): (&tollgate::Rule, RuleCounts)| {
            let denied = counts.denied.iter().sum();
            (rule.id().to_owned(), counts.allowed, denied)
        };
        let rules = active.rules().rules().iter();
        rules
            .zip(active.metrics().counts())
            .map(counts_of)
            .collect()
    };
    let of = |id: &str, allowed, denied| (id.to_owned(), allowed, denied);
    assert_eq!(counts(&limiter), [of("a", 1, 2), of("b", 3, 0)]);

    limiter.reload(&config(
        &[rule("new", 9), rule("b", 9), rule("a", 9)].concat(),
    ));
    let moved = [of("new", 0, 0), of("b", 3, 0), of("a", 1, 2)];
    assert_eq!(counts(&limiter), moved);
    let _ = limiter.check_now(&ann());
    let counted = [of("new", 1, 0), of("b", 4, 0), of("a", 2, 2)];
    assert_eq!(counts(&limiter), counted);

    // The counts of a removed rule are forgotten.
    limiter.reload(&config(&rule("b", 9)));
    limiter.reload(&config(&[rule("a", 9), rule("b", 9)].concat()));
    assert_eq!(counts(&limiter), [of("a", 0, 0), of("b", 4, 0)]);
}

#[cfg(feature = "redis")]
#[test]
fn decision_under_the_old_config_is_counted_in_the_new_one() {
    use std::sync::Arc;
    use tollgate_conformance::block_on;

    let engine = tollgate::Engine::start_unchecked(&config(&rule("r", 9))).unwrap();
    let snapshot = engine.snapshot();
    engine.reload(&config(&[rule("first", 9), rule("r", 1)].concat()));
    let decision = block_on(snapshot.ask(&ann(), Ask::Exactly(5)));
    assert!(decision.is_allowed(), "it began with a limit of 9");
    assert_eq!(
        decision.config_version(),
        snapshot.active().config().policy.version
    );
    assert!(Arc::ptr_eq(decision.rule_set(), snapshot.active().rules()));
    assert!(!Arc::ptr_eq(decision.rule_set(), &engine.rules()));
    let counts = engine.metrics().counts();
    assert_eq!((counts[0].allowed, counts[1].allowed), (0, 1));
    // Requests under the new config see the usage of the earlier request.
    assert!(!block_on(engine.ask(&ann(), Ask::Exactly(1))).is_allowed());
}

#[test]
fn sections_that_need_a_restart_are_named_and_unchanged() {
    let yaml = |top: &str, subjects: &str, server: &str| {
        format!("version: 1\n{top}subjects: {{ {subjects} }}\nserver: {{ {server} }}\nrules: []\n")
    };
    let secret = "hash_secret: 0123456789abcdef, max_keys: 1000";
    let (subjects, server) = (format!("{secret}, ipv6_prefix: 64"), "http: 127.0.0.1:0");
    let running = parse(&yaml("namespace: one\n", &subjects, server));
    let limiter = Limiter::new(&running).unwrap();
    let reload = |config: &Config| limiter.reload(config).needs_restart;
    let none: [&str; 0] = [];

    let other = "hash_secret: fedcba9876543210, max_keys: 2000";
    let store = "namespace: two\nstore: { redis: { url: \"redis://127.0.0.1\" } }\n\
                 telemetry: { denials: { recent: 200 } }\n\
                 ledger: { sqlite: ./tollgate.db }\nevents: { near_limit: [50] }\n";
    let all = parse(&yaml(store, other, "http: 127.0.0.1:1"));
    let named = [
        "namespace",
        "subjects.hash_secret",
        "subjects.max_keys",
        "subjects.max_anonymous_keys",
        "store",
        "server",
        "telemetry",
        "ledger",
        "events",
    ];
    assert_eq!(reload(&all), named);
    let active = limiter.active();
    assert_eq!(active.config().namespace, "one");
    assert_eq!(active.config().store, running.store);
    assert_eq!(active.config().subjects.max_keys, 1000);
    assert_eq!(active.config().ledger, None);
    assert_eq!(active.config().events, running.events);
    assert_eq!(active.config().policy.version, all.policy.version);
    // The comparison is with the config in force, not with the one of the last reload.
    assert_eq!(reload(&all), named);
    assert_eq!(reload(&running), none);

    let more = format!("{secret}, ipv6_prefix: 48, trusted_proxies: [10.0.0.0/8]");
    let followed = parse(&yaml("namespace: one\n", &more, server));
    assert_eq!(reload(&followed), none);
    assert_eq!(limiter.active().config().subjects.ipv6_prefix, 48);
}

#[test]
fn reload_changes_tokens_but_never_removes_them_from_an_open_door() {
    let hash = "ab".repeat(32);
    let admin = |address: &str, tokens: &str| {
        let doors = format!("server: {{ admin: {{ address: \"{address}\"{tokens} }} }}");
        parse(&format!("version: 1\n{doors}\nrules: []\n"))
    };
    let token = |name: &str| format!(", tokens: [{{ name: {name}, role: read, sha256: {hash} }}]");
    let limiter = Limiter::new(&admin("0.0.0.0:8082", &token("ann"))).unwrap();
    let names = || -> Vec<String> {
        let active = limiter.active();
        let admin = active.config().server.admin.as_ref().unwrap();
        admin.tokens.iter().map(|it| it.name.clone()).collect()
    };
    let reloaded = limiter.reload(&admin("0.0.0.0:8082", &token("bob")));
    assert!(reloaded.needs_restart.is_empty());
    assert_eq!(names(), ["bob"]);
    // An empty list of tokens is safe only on a loopback address. The door still listens on another
    // address.
    let reloaded = limiter.reload(&admin("127.0.0.1:8082", ""));
    assert_eq!(reloaded.needs_restart, ["server"]);
    assert_eq!(names(), ["bob"]);
}

#[test]
fn reload_forgets_known_denials() {
    let setup = Setup::new(&rule("r", 2));
    assert_eq!(setup.admitted("ann", 5), 2);
    let asked = setup.asked();
    assert_eq!(setup.admitted("ann", 5), 0);
    assert_eq!(setup.asked(), asked, "the denial is known");
    setup.limiter.reload(&config(&rule("r", 4)));
    assert_eq!(setup.admitted("ann", 5), 2);
}

#[test]
fn reload_changes_policies_and_keeps_local_counts() {
    let with = |policy: &str| {
        config(&format!(
            "  - {{ id: r, per: [user], algorithm: fixed-window, limit: 4, window: 1m, \
             on_store_failure: {policy} }}\n"
        ))
    };
    let setup = Setup::new(&rule("before", 4));
    setup.limiter.reload(&with("local-fallback"));
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 3), 3);
    setup.limiter.reload(&with("fail-open"));
    assert_eq!(setup.check("ann").fallback(), Some(FailurePolicy::FailOpen));
    setup.limiter.reload(&with("local-fallback"));
    assert_eq!(setup.admitted("ann", 3), 1);
    setup.pass(Span::MINUTE);
    assert_eq!(setup.admitted("ann", 9), 4);
}

#[test]
fn check_allocates_nothing_after_a_reload() {
    let limiter = Limiter::new(&config(&rule("r", 1_000_000))).unwrap();
    let user = ann();
    let allocations = || {
        // Enough checks to sample hot keys.
        for _ in 0..200 {
            let _ = limiter.check_now(&user);
        }
        allocation_counter::measure(|| {
            for _ in 0..100 {
                let _ = limiter.check_now(&user);
            }
        })
        .count_total
    };
    assert_eq!(allocations(), 0);
    limiter.reload(&config(&rule("r", 2_000_000)));
    assert_eq!(allocations(), 0);
}
