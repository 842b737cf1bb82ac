//! Back-off: repeated denials lengthen the wait.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use tollgate::{
    Attributes, Decision, Limiter, ManualClock, MemoryStore, Reason, Span, Time, Traced,
};

const RULES: &str = "
version: 1
rules:
  - { id: all, algorithm: fixed-window, limit: 100, window: 30d }
  - id: login
    match: { action: login }
    per: [user]
    algorithm: sliding-log
    limit: 2
    window: 1m
    backoff: { after: 1, base: 2m, factor: 3, max: 30m, forget: 1h, penalty: 10s }
";

struct Case {
    limiter: Limiter<Traced<MemoryStore<ManualClock>>>,
    clock: ManualClock,
}

impl Case {
    fn new(yaml: &str) -> Case {
        let clock = ManualClock::default();
        clock.set(Time::from_micros(1_790_000_000_000_000));
        let config = tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap();
        let limiter = Limiter::with_clock(&config, clock.clone()).unwrap();
        Case { limiter, clock }
    }

    fn ask(&self, user: &str) -> Decision {
        self.limiter
            .check_now(&Attributes::from([("action", "login"), ("user", user)]))
    }

    /// Returns the reason and the wait of a denial.
    fn denied(&self, user: &str) -> (Reason, Span) {
        let decision = self.ask(user);
        assert!(!decision.is_allowed());
        let rule = decision.rule().unwrap();
        assert_eq!(rule.rule().id(), "login");
        // A rule and its back-off are reported as one.
        assert_eq!(decision.rules().len(), 2);
        (rule.reason().unwrap(), decision.retry_after().unwrap())
    }
}

#[test]
fn repeated_denials_lengthen_the_wait() {
    let case = Case::new(RULES);
    assert!(case.ask("ann").is_allowed());
    assert!(case.ask("ann").is_allowed());
    // The first denial does not block.
    assert_eq!(case.denied("ann"), (Reason::Exceeded, Span::MINUTE));
    // The second denial blocks.
    assert_eq!(case.denied("ann"), (Reason::Exceeded, Span::from_secs(120)));
    // The window is over, but the block is not. Each further request adds a penalty.
    case.clock.advance(Span::from_secs(90));
    assert_eq!(case.denied("ann"), (Reason::BackedOff, Span::from_secs(40)));
    assert_eq!(case.denied("ann"), (Reason::BackedOff, Span::from_secs(50)));
    assert!(case.ask("bob").is_allowed());
    case.clock.advance(Span::from_secs(50));
    assert!(case.ask("ann").is_allowed());
    assert!(case.ask("ann").is_allowed());
    // The next block is three times as long.
    assert_eq!(case.denied("ann"), (Reason::Exceeded, Span::from_secs(360)));
    // After an hour without denials, the blocks are forgotten.
    case.clock.advance(Span::from_secs(3600));
    assert!(case.ask("ann").is_allowed());
    assert!(case.ask("ann").is_allowed());
    assert_eq!(case.denied("ann"), (Reason::Exceeded, Span::MINUTE));
    let counts = case.limiter.metrics().counts()[1];
    let of = |reason: Reason| counts.denied[reason as usize];
    assert_eq!((of(Reason::Exceeded), of(Reason::BackedOff)), (4, 2));
}

#[test]
fn denials_of_other_rules_are_not_strikes() {
    let case = Case::new(&RULES.replace("limit: 100", "limit: 1"));
    assert!(case.ask("ann").is_allowed());
    for _ in 0..10 {
        let decision = case.ask("ann");
        assert_eq!(decision.rule().unwrap().rule().id(), "all");
        assert!(decision.rules().nth(1).unwrap().is_allowed());
    }
}

#[test]
fn reset_ends_a_block_and_shadow_rules_never_block() {
    let case = Case::new(RULES);
    while case.ask("ann").is_allowed() {}
    case.denied("ann");
    let ann = Attributes::from([("action", "login"), ("user", "ann")]);
    case.limiter.reset_now(&ann).unwrap();
    assert!(case.ask("ann").is_allowed());
    let case = Case::new(&RULES.replace("limit: 2", "state: shadow\n    limit: 2"));
    for _ in 0..10 {
        assert!(case.ask("ann").is_allowed());
    }
    let login = case.ask("ann").rules().nth(1).map(|rule| rule.reason());
    assert_eq!(login, Some(Some(Reason::Exceeded)));
}
