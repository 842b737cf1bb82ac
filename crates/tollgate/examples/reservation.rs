//! A token budget for calls to a language model. The number of tokens is known only after a call. So
//! the program reserves an estimate, and later commits the real usage.
//!
//! `cargo run -p tollgate --example reservation`

#![allow(clippy::print_stdout, reason = "the example shows what happens")]

use tollgate::{
    Anchor, Ask, Attributes, Calendar, Limit, Limiter, Reserve, ReserveOutcome, RuleBuilder, Unit,
    Zone,
};

type Error = Box<dyn std::error::Error>;

/// Returns the tokens that a call used. Some calls fail.
fn call_model(tokens: Option<u64>) -> Result<u64, &'static str> {
    tokens.ok_or("the model is overloaded")
}

pub(crate) fn main() -> Result<(), Error> {
    let daily = Calendar::new(1, Unit::Day, Anchor::First, Zone::utc())?;
    let tokens = RuleBuilder::new("tokens", Limit::quota(10_000, 0, 0, daily)?)
        .per(["tenant"])
        .build()?;
    let limiter = Limiter::from_rules([tokens])?;
    let acme = Attributes::from([("tenant", "acme")]);

    // Estimates, and the real usage of each call.
    let calls = [(4_000, Some(1_200)), (4_000, None), (4_000, Some(4_500))];
    for (estimate, used) in calls {
        let reserve = Reserve {
            units: estimate,
            ..Reserve::default()
        };
        let ReserveOutcome::Held { hold, .. } = limiter.reserve_now(&acme, &reserve)? else {
            return Err("there are enough tokens".into());
        };
        match call_model(used) {
            Ok(used) => {
                limiter.commit_now(&hold.id, used)?;
                println!(
                    "reserved {estimate}, used {used}: {} left",
                    left(&limiter, &acme)
                );
            }
            Err(error) => {
                limiter.release_now(&hold.id)?;
                println!(
                    "reserved {estimate}, {error}: {} left",
                    left(&limiter, &acme)
                );
            }
        }
    }
    assert_eq!(left(&limiter, &acme), 4_300);

    let reserve = Reserve {
        units: 5_000,
        ..Reserve::default()
    };
    let outcome = limiter.reserve_now(&acme, &reserve)?;
    assert!(matches!(outcome, ReserveOutcome::Denied(_)));
    println!("reserving 5000: denied until tomorrow");
    Ok(())
}

fn left(limiter: &Limiter, attributes: &Attributes<'_>) -> u64 {
    let decision = limiter.peek_now(attributes, Ask::Exactly(1));
    decision.rule().and_then(|it| it.remaining()).unwrap_or(0)
}
