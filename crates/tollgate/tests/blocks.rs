//! Blocked subjects: denied before any rule, without a call of the store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::sync::Arc;

use common::Setup;
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Decision, Demand, Limit, Override, Rate, Reason,
    Reserve, ReserveOutcome, Span,
};
use tollgate_conformance::block_on;

const RULES: &str = "
  - { id: api, per: [user], algorithm: fixed-window, limit: 5, window: 10d, charge_denied: true }
  - { id: slots, match: { action: work }, per: [user], algorithm: concurrency, limit: 2, lease: 1h }
";

struct Blocked(Setup);

impl Blocked {
    /// Blocks `subject` for a minute, or forever.
    fn new(subject: &str, lasts: &str) -> Blocked {
        let setup = Setup::new(RULES);
        let text = format!(r#"{{"subject":"{subject}",{lasts},"reason":"abuse"}}"#);
        let keyring = setup.limiter.rules().keyring().clone();
        let now = common::START.as_millis_ceil();
        let block = Override::parse_block(&text, now, &keyring).unwrap();
        setup.limiter.set_overrides(Arc::from([Arc::new(block)]));
        Blocked(setup)
    }

    fn check(&self, user: &str) -> Decision {
        block_on(self.0.limiter.check(&Attributes::from([("user", user)])))
    }

    fn asked(&self) -> usize {
        self.0.asked()
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        self.0
            .limiter
            .blocked()
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

fn is_blocked(decision: &Decision) {
    assert!(!decision.is_allowed());
    assert_eq!(decision.reason(), Some(Reason::Blocked));
    assert_eq!((decision.rules().len(), decision.granted()), (0, 0));
    assert!(decision.rule().is_none());
}

#[test]
fn a_blocked_subject_is_denied_by_every_call_without_the_store() {
    let case = Blocked::new("user=ann", r#""for":"1m""#);
    let limiter = &case.0.limiter;
    let ann = Attributes::from([("user", "ann"), ("action", "work")]);
    let denied = case.check("ann");
    is_blocked(&denied);
    assert_eq!(denied.retry_after(), Some(Span::MINUTE));
    assert_eq!(denied.blocked_by().unwrap().reason(), "abuse");
    is_blocked(&block_on(limiter.ask(&ann, Ask::UpTo(3))));
    is_blocked(&block_on(limiter.peek(&ann, Ask::Exactly(1))));
    let reserve = Reserve {
        units: 1,
        ..Reserve::default()
    };
    match block_on(limiter.reserve(&ann, &reserve)).unwrap() {
        ReserveOutcome::Denied(decision) => is_blocked(&decision),
        ReserveOutcome::Held { .. } => panic!("a blocked subject holds a reservation"),
    }
    match block_on(limiter.try_acquire(&ann, &Acquire::default(), None)).unwrap() {
        AcquireOutcome::Denied(decision) => is_blocked(&decision),
        AcquireOutcome::Granted { .. } => panic!("a blocked subject holds a lease"),
    }
    let both = [
        Demand::take(Attributes::from([("user", "bob")]), 1),
        Demand::take(ann.clone(), 1),
    ];
    let together = block_on(limiter.ask_all(&both)).unwrap();
    assert!(!together.is_allowed());
    is_blocked(&together.decisions()[1]);
    is_blocked(together.deciding().unwrap());
    assert_eq!(together.decisions()[0].granted(), 0);
    assert_eq!(case.asked(), 0);
    // The peek is not counted.
    assert_eq!(case.counted(), [("user", 5)]);
    // Nobody else was charged.
    assert_eq!(case.check("bob").rule().unwrap().remaining(), Some(4));
}

#[test]
fn a_block_ends_to_the_millisecond() {
    let case = Blocked::new("user=ann", r#""for":"1m""#);
    case.0.clock.advance(Span::from_millis(59_999));
    let denied = case.check("ann");
    is_blocked(&denied);
    assert_eq!(denied.retry_after(), Some(Span::from_millis(1)));
    case.0.clock.advance(denied.retry_after().unwrap());
    let allowed = case.check("ann");
    assert!(allowed.is_allowed());
    // Blocked requests are not charged, not even by a rule with `charge_denied`.
    assert_eq!(allowed.rule().unwrap().remaining(), Some(4));
}

#[test]
fn a_block_without_an_end_has_no_retry_time() {
    let case = Blocked::new("ip=10.0.0.0/8", r#""forever":true"#);
    let from = |ip| {
        block_on(
            case.0
                .limiter
                .check(&Attributes::from([("user", "ann"), ("ip", ip)])),
        )
    };
    case.0.clock.advance(Span::from_secs(900 * 86_400));
    let denied = from("10.2.3.4");
    is_blocked(&denied);
    assert_eq!(denied.retry_after(), None);
    assert!(from("11.2.3.4").is_allowed());
    assert_eq!(case.counted(), [("ip", 1)]);
    let words = denied.block_in_words().unwrap();
    assert_eq!(
        words,
        "block:ip:10.0.0.0/8 denies until unblocked, by : abuse"
    );
}

#[test]
fn a_blocked_key_of_an_ad_hoc_limit_is_denied() {
    let case = Blocked::new("key=user:ann", r#""for":"90s""#);
    let limit = Limit::gcra(Rate::new(1, Span::SECOND).unwrap(), 16).unwrap();
    let throttle = |key: &[u8]| block_on(case.0.limiter.throttle(key, &limit, 1)).unwrap();
    let denied = throttle(b"user:ann");
    assert!(!denied.is_allowed());
    assert_eq!(denied.reason(), Some(Reason::Blocked));
    assert_eq!((denied.limit(), denied.remaining()), (16, 0));
    assert_eq!(denied.retry_after(), Some(Span::from_secs(90)));
    assert_eq!(denied.reset_after(), Span::from_secs(90));
    assert_eq!(case.asked(), 0);
    assert!(throttle(b"user:bob").is_allowed());
    assert_eq!(case.counted(), [("key", 1)]);
}

#[test]
fn a_change_of_blocks_keeps_the_compiled_rules() {
    let case = Blocked::new("user=ann", r#""for":"1m""#);
    let limiter = &case.0.limiter;
    let (rules, generation) = (limiter.rules(), limiter.active().generation());
    limiter.set_overrides(Arc::from([]));
    assert!(Arc::ptr_eq(&rules, &limiter.rules()));
    assert!(limiter.active().generation() > generation);
    assert!(case.check("ann").is_allowed());
}
