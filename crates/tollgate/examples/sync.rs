//! Login protection in a synchronous program: rules from code, state in memory, no runtime.
//!
//! `cargo run -p tollgate --example sync`

#![allow(clippy::print_stdout, reason = "the example shows what happens")]

use tollgate::{Attributes, Limit, Limiter, Rate, RuleBuilder, Span};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let per_user = RuleBuilder::new("login", Limit::sliding_log(3, Span::from_secs(600))?)
        .matching("action", ["login"])
        .per(["user"])
        .build()?;
    let per_address = Limit::gcra(Rate::new(60, Span::MINUTE)?, 10)?;
    let per_address = RuleBuilder::new("address", per_address)
        .matching("action", ["login", "signup"])
        .per(["ip"])
        .build()?;
    let limiter = Limiter::from_rules([per_user, per_address])?;

    let ann = Attributes::from([("action", "login"), ("user", "ann"), ("ip", "192.0.2.1")]);
    for attempt in 1..=4 {
        let decision = limiter.check_now(&ann);
        match (decision.is_allowed(), decision.rule()) {
            (true, _) => println!("attempt {attempt}: allowed"),
            (false, rule) => println!(
                "attempt {attempt}: denied by the rule {}, try again in {} s",
                rule.map_or("none", |it| it.rule().id()),
                decision.retry_after().map_or(0, Span::as_secs_ceil),
            ),
        }
        assert_eq!(decision.is_allowed(), attempt <= 3);
    }

    let bob = Attributes::from([("action", "login"), ("user", "bob"), ("ip", "192.0.2.2")]);
    assert!(limiter.check_now(&bob).is_allowed());
    println!("another user: allowed");

    limiter.reset_now(&ann)?;
    assert!(limiter.check_now(&ann).is_allowed());
    println!("after a reset: allowed");
    Ok(())
}
