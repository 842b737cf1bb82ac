//! Several demands decided as one request.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use common::{Options, START, Setup, config};
use proptest::prelude::*;
use tollgate::{
    Attributes, BatchDecision, Demand, DemandError, Effect, Limiter, MAX_CHARGES, ManualClock,
    MemoryStore, Numbers, Reason, Span, Traced,
};
use tollgate_conformance::block_on;

const RULES: &str = "
  - { id: key, match: { by: key }, per: [key], algorithm: fixed-window, limit: 10, window: 1h }
  - { id: route, match: { by: route }, per: [route], algorithm: gcra, rate: 20/h, burst: 20 }
  - { id: login, match: { by: login }, per: [user], missing: deny, algorithm: sliding-log,
      limit: 3, window: 1h, charge_denied: true }
  - { id: watch, match: { by: watch }, algorithm: fixed-window, limit: 1, window: 1h, state: shadow }
  - { id: open, match: { by: open }, algorithm: gcra, rate: unlimited }
";

fn limiter(rules: &str) -> Limiter<Traced<MemoryStore<ManualClock>>> {
    Limiter::with_clock(&config(rules), ManualClock::at(START)).unwrap()
}

fn take<'a>(by: &'a str, who: &'a str, units: u64) -> Demand<'a> {
    demand(by, who, Effect::Take(units))
}

fn demand<'a>(by: &'a str, who: &'a str, effect: Effect) -> Demand<'a> {
    Demand {
        attributes: Attributes::from([("by", by), (by, who), ("user", who)]),
        effect,
        numbers: None,
    }
}

fn numbered<'a>(demand: Demand<'a>, amount: u64, period: Span) -> Demand<'a> {
    Demand {
        numbers: Some(Numbers { amount, period }),
        ..demand
    }
}

/// What is left by the rule that decides each demand.
fn left(together: &BatchDecision) -> Vec<Option<u64>> {
    let rules = together.decisions().iter().map(tollgate::Decision::rule);
    rules
        .map(|rule| rule.and_then(|it| it.remaining()))
        .collect()
}

fn met(together: &BatchDecision) -> Vec<bool> {
    together
        .decisions()
        .iter()
        .map(tollgate::Decision::is_allowed)
        .collect()
}

#[test]
fn all_demands_are_met_or_nothing_is_taken() {
    let limiter = limiter(RULES);
    let both = limiter
        .ask_all_now(&[take("key", "a", 4), take("route", "r", 7)])
        .unwrap();
    assert!(both.is_allowed());
    assert_eq!(left(&both), [Some(6), Some(13)]);
    let granted: Vec<u64> = both
        .decisions()
        .iter()
        .map(tollgate::Decision::granted)
        .collect();
    assert_eq!(granted, [4, 7]);

    let refused = limiter
        .ask_all_now(&[take("route", "r", 1), take("key", "a", 7)])
        .unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(met(&refused), [true, false]);
    assert_eq!(left(&refused), [Some(13), Some(6)]);
    assert_eq!(refused.decisions()[0].granted(), 0);
    assert_eq!(
        refused.deciding().unwrap().rule().unwrap().rule().id(),
        "key"
    );
}

#[test]
fn demands_of_one_subject_add_up() {
    let limiter = limiter(RULES);
    let twice = limiter
        .ask_all_now(&[take("key", "a", 6), take("key", "a", 5)])
        .unwrap();
    assert_eq!(met(&twice), [true, false]);
    assert_eq!(left(&twice), [Some(10), Some(10)]);
    let twice = limiter
        .ask_all_now(&[take("key", "a", 6), take("key", "a", 4)])
        .unwrap();
    assert!(twice.is_allowed());
    assert_eq!(left(&twice), [Some(4), Some(0)]);
}

#[test]
fn a_look_takes_nothing_and_refuses_what_it_stands_beside() {
    let limiter = limiter(RULES);
    let look = || demand("key", "a", Effect::Look);
    assert_eq!(left(&limiter.ask_all_now(&[look()]).unwrap()), [Some(10)]);
    let both = limiter
        .ask_all_now(&[look(), take("key", "a", 10)])
        .unwrap();
    assert_eq!(
        (both.is_allowed(), left(&both)),
        (true, vec![Some(10), Some(0)])
    );

    let spent = limiter
        .ask_all_now(&[look(), take("route", "r", 1)])
        .unwrap();
    assert_eq!(
        (spent.is_allowed(), met(&spent)),
        (false, vec![false, true])
    );
    assert_eq!(left(&spent), [Some(0), Some(20)]);
    assert!(spent.deciding().unwrap().retry_after().is_some());
}

#[test]
fn what_is_given_back_comes_back_if_the_request_is_allowed() {
    let limiter = limiter(RULES);
    let give = |units| demand("key", "a", Effect::GiveBack(units));
    limiter.ask_all_now(&[take("key", "a", 9)]).unwrap();
    let refused = limiter
        .ask_all_now(&[give(5), take("route", "r", 21)])
        .unwrap();
    assert_eq!((refused.is_allowed(), left(&refused)[0]), (false, Some(1)));
    let allowed = limiter
        .ask_all_now(&[give(5), take("route", "r", 1)])
        .unwrap();
    assert_eq!((allowed.is_allowed(), left(&allowed)[0]), (true, Some(6)));
    // More than was taken does not come back.
    assert_eq!(left(&limiter.ask_all_now(&[give(50)]).unwrap()), [Some(10)]);
    assert_eq!(
        limiter.metrics().counts()[0].allowed,
        1,
        "only what is taken is counted"
    );
}

#[test]
fn an_emergency_holds_for_numbers_that_are_brought_along() {
    let limiter = limiter(RULES);
    let limit = || {
        let asked =
            limiter.ask_all_now(&[numbered(demand("key", "a", Effect::Look), 100, Span::DAY)]);
        asked.unwrap().decisions()[0].rule().unwrap().limit()
    };
    let put = |text: &str| {
        let it = tollgate::Override::parse(text, 0).unwrap();
        limiter.set_overrides([std::sync::Arc::new(it)].into());
    };
    assert_eq!(limit(), Some(100));
    put(r#"{ "scale": "50%", "for": "1h", "reason": "x" }"#);
    assert_eq!(limit(), Some(50));
    put(r#"{ "scale": "0%", "for": "1h", "reason": "x" }"#);
    assert_eq!(limit(), Some(0));
    put(r#"{ "rule": "key", "numbers": { "limit": 2 }, "for": "1h", "reason": "x" }"#);
    assert_eq!(limit(), Some(2));
}

#[test]
fn numbers_of_a_demand_replace_those_of_its_rules_and_keep_the_state() {
    let limiter = limiter(RULES);
    limiter.ask_all_now(&[take("key", "a", 4)]).unwrap();
    let more = limiter
        .ask_all_now(&[numbered(take("key", "a", 1), 100, Span::DAY)])
        .unwrap();
    let rule = more.decisions()[0].rule().unwrap();
    assert_eq!((rule.limit(), rule.remaining()), (Some(100), Some(95)));
    assert_eq!((rule.window(), rule.is_renumbered()), (Span::DAY, true));
    let less = limiter
        .ask_all_now(&[numbered(take("key", "a", 1), 5, Span::HOUR)])
        .unwrap();
    assert!(!less.is_allowed());
    let own = limiter.ask_all_now(&[take("key", "a", 1)]).unwrap();
    let rule = own.decisions()[0].rule().unwrap();
    assert_eq!((rule.limit(), rule.remaining()), (Some(10), Some(4)));
    assert_eq!((rule.window(), rule.is_renumbered()), (Span::HOUR, false));

    let none = limiter
        .ask_all_now(&[numbered(take("open", "x", 1), 0, Span::HOUR)])
        .unwrap();
    assert_eq!(
        none.deciding().unwrap().rule().unwrap().reason(),
        Some(Reason::NeverFits)
    );
}

#[test]
fn a_key_has_one_set_of_numbers_in_a_request_the_first() {
    let limiter = limiter(RULES);
    let demands = [
        take("key", "a", 1),
        numbered(take("key", "a", 1), 50, Span::MINUTE),
        numbered(take("key", "a", 1), 2, Span::SECOND),
        take("key", "b", 1),
    ];
    let all = limiter.ask_all_now(&demands).unwrap();
    assert!(all.is_allowed());
    assert_eq!(left(&all), [Some(49), Some(48), Some(47), Some(9)]);
    let windows = all.decisions().iter().map(|it| it.rule().unwrap().window());
    let minute = Span::MINUTE;
    assert_eq!(
        windows.collect::<Vec<_>>(),
        [minute, minute, minute, Span::HOUR]
    );
}

#[test]
fn numbers_that_a_rule_cannot_have_are_named() {
    let limiter = limiter(RULES);
    let odd = numbered(take("route", "r", 1), 999_999_937, Span::DAY);
    match limiter.ask_all_now(&[take("key", "a", 1), odd]) {
        Err(DemandError::Numbers { demand, rule, .. }) => {
            assert_eq!((demand, &*rule), (1, "route"));
        }
        other => assert!(other.is_err(), "{other:?}"),
    }
    let look = limiter
        .ask_all_now(&[demand("key", "a", Effect::Look)])
        .unwrap();
    assert_eq!(left(&look), [Some(10)], "nothing was taken");
}

#[test]
fn a_demand_refused_on_sight_refuses_all_and_is_counted_where_refusals_count() {
    let limiter = limiter(RULES);
    let nobody = Demand::take(Attributes::from([("by", "login")]), 1);
    for _ in 0..3 {
        let all = [take("key", "a", 1), take("login", "ann", 1), nobody.clone()];
        let refused = limiter.ask_all_now(&all).unwrap();
        assert_eq!(met(&refused), [true, true, false]);
        assert_eq!(left(&refused)[0], Some(10));
    }
    assert!(
        !limiter
            .ask_all_now(&[take("login", "ann", 1)])
            .unwrap()
            .is_allowed()
    );
}

#[test]
fn a_shadow_rule_never_refuses_its_neighbours() {
    let limiter = limiter(RULES);
    for n in 0..3 {
        let both = limiter
            .ask_all_now(&[take("watch", "", 1), take("key", "a", 1)])
            .unwrap();
        assert_eq!(met(&both), [true, true]);
        assert_eq!(both.decisions()[0].shadow_denied(), n > 0);
    }
}

#[test]
fn the_least_left_or_the_longest_wait_decides() {
    let limiter = limiter(RULES);
    let free = || Demand::take(Attributes::new(), 1);
    let all = limiter
        .ask_all_now(&[free(), take("route", "r", 19), take("key", "a", 1)])
        .unwrap();
    assert_eq!(all.deciding().unwrap().rule().unwrap().rule().id(), "route");
    assert!(limiter.ask_all_now(&[free()]).unwrap().deciding().is_none());
    limiter.ask_all_now(&[take("key", "a", 9)]).unwrap();
    // The window ends in less than the 3 min that one of 20 an hour takes to come back, or later.
    let all = limiter
        .ask_all_now(&[take("route", "r", 2), take("key", "a", 1)])
        .unwrap();
    let waits = all.decisions().iter().map(tollgate::Decision::retry_after);
    assert_eq!(all.deciding().unwrap().retry_after(), waits.max().unwrap());
}

#[test]
fn more_charges_than_a_store_takes_at_once_are_refused() {
    let limiter = limiter("  - { id: r, algorithm: fixed-window, limit: 1000, window: 1h }\n");
    let demands = |count| vec![Demand::take(Attributes::new(), 1); count];
    assert!(
        limiter
            .ask_all_now(&demands(MAX_CHARGES))
            .unwrap()
            .is_allowed()
    );
    let error = limiter.ask_all_now(&demands(MAX_CHARGES + 1)).unwrap_err();
    assert_eq!(
        error,
        DemandError::TooMany {
            charges: MAX_CHARGES + 1
        }
    );
    assert_eq!(
        left(&limiter.ask_all_now(&demands(1)).unwrap()),
        [Some(744)]
    );
}

#[test]
fn no_demands_are_all_met() {
    let none = limiter(RULES).ask_all_now(&[]).unwrap();
    assert!(none.is_allowed() && none.decisions().is_empty());
}

fn ask_all(setup: &Setup, demands: &[Demand<'_>]) -> BatchDecision {
    block_on(setup.limiter.ask_all(demands)).unwrap()
}

#[test]
fn a_shared_store_is_asked_once() {
    let setup = Setup::new(RULES);
    let all = ask_all(
        &setup,
        &[
            take("key", "a", 2),
            take("key", "a", 3),
            take("route", "r", 1),
        ],
    );
    assert_eq!(left(&all), [Some(8), Some(5), Some(19)]);
    assert_eq!(setup.asked(), 1);
}

#[test]
fn a_refusal_of_a_sum_is_not_taken_for_one_of_its_parts() {
    let setup = Setup::new(RULES);
    ask_all(&setup, &[take("key", "a", 5)]);
    let refused = ask_all(&setup, &[take("key", "a", 3), take("key", "a", 3)]);
    assert_eq!(met(&refused), [true, false]);
    assert!(ask_all(&setup, &[take("key", "a", 3)]).is_allowed());
    let asked = setup.asked();
    assert!(!ask_all(&setup, &[take("key", "a", 3), take("key", "a", 3)]).is_allowed());
    assert_eq!(setup.asked(), asked + 1, "others may change what is left");
}

#[test]
fn refusals_by_numbers_of_a_demand_are_not_remembered() {
    let setup = Setup::new(RULES);
    ask_all(&setup, &[take("key", "a", 5)]);
    let few = || numbered(take("key", "a", 1), 5, Span::HOUR);
    assert!(!ask_all(&setup, &[few()]).is_allowed());
    assert!(ask_all(&setup, &[take("key", "a", 5)]).is_allowed());
    assert!(!ask_all(&setup, &[take("key", "a", 1)]).is_allowed());
    let many = numbered(take("key", "a", 1), 50, Span::HOUR);
    assert!(ask_all(&setup, &[many]).is_allowed());
}

#[test]
fn a_failing_store_leaves_it_to_the_policies_of_all_demands() {
    let rules = "
  - { id: open, match: { by: open }, algorithm: fixed-window, limit: 1, window: 1h,
      on_store_failure: fail-open }
  - { id: local, match: { by: local }, algorithm: fixed-window, limit: 2, window: 1h,
      on_store_failure: local-fallback }
  - { id: cached, match: { by: cached }, algorithm: fixed-window, limit: 2, window: 1h,
      on_store_failure: cached }
  - { id: none, match: { by: none }, algorithm: fixed-window, limit: 1, window: 1h }
";
    let options = Options {
        denial_cache: None,
        ..Options::default()
    };
    let setup = Setup::with_options(rules, options);
    let many = || numbered(take("cached", "", 1), 9, Span::HOUR);
    assert!(ask_all(&setup, &[many(), many()]).is_allowed());
    setup.store_is_down(true);
    assert!(ask_all(&setup, &[take("open", "", 5), take("local", "", 2)]).is_allowed());
    let refused = ask_all(&setup, &[take("open", "", 5), take("local", "", 1)]);
    assert_eq!(met(&refused), [true, false]);
    let known = ask_all(&setup, &[many()]);
    assert_eq!(
        left(&known),
        [Some(6)],
        "the numbers of the demand, from the last known state on"
    );

    let refused = ask_all(&setup, &[take("open", "", 1), take("none", "", 1)]);
    assert_eq!(met(&refused), [true, false]);
    let reason = refused.deciding().unwrap().rule().unwrap().reason();
    assert_eq!(reason, Some(Reason::StoreUnavailable));
    let look = ask_all(
        &setup,
        &[demand("none", "", Effect::Look), take("open", "", 1)],
    );
    assert_eq!(met(&look), [false, true]);
    let back = block_on(
        setup
            .limiter
            .ask_all(&[demand("none", "", Effect::GiveBack(1))]),
    );
    assert!(matches!(back, Err(DemandError::Store(_))), "{back:?}");
}

fn any_demand() -> impl Strategy<Value = (usize, usize, u64)> {
    (0..2_usize, 0..3_usize, 0..6_u64)
}

proptest! {
    /// At one instant, demands are met together if and only if they are one after the other.
    #[test]
    fn together_is_as_one_after_the_other(
        requests in prop::collection::vec(prop::collection::vec(any_demand(), 0..5), 1..12),
    ) {
        let (whole, parts) = (limiter(RULES), limiter(RULES));
        let shared = Setup::new(RULES);
        for request in requests {
            let demands: Vec<Demand<'_>> = request
                .iter()
                .map(|(by, who, units)| take(["key", "route"][*by], ["a", "b", "c"][*who], *units))
                .collect();
            let together = whole.ask_all_now(&demands).unwrap();
            let elsewhere = ask_all(&shared, &demands);
            prop_assert_eq!(together.is_allowed(), elsewhere.is_allowed());
            let mut apart = Vec::new();
            for demand in &demands {
                let Effect::Take(units) = demand.effect else { continue };
                let decision = parts.ask_now(&demand.attributes, tollgate::Ask::Exactly(units));
                if !decision.is_allowed() {
                    break;
                }
                apart.push((demand, units, decision));
            }
            prop_assert_eq!(together.is_allowed(), apart.len() == demands.len());
            if together.is_allowed() {
                let expected: Vec<_> = apart
                    .iter()
                    .map(|(_, _, it)| it.rules().map(|rule| rule.remaining()).collect::<Vec<_>>())
                    .collect();
                let found: Vec<_> = together
                    .decisions()
                    .iter()
                    .map(|it| it.rules().map(|rule| rule.remaining()).collect::<Vec<_>>())
                    .collect();
                prop_assert_eq!(found, expected);
            } else {
                // Nothing was taken.
                for (demand, units, decision) in apart {
                    let at = decision.decided_at();
                    parts.refund_now(&demand.attributes, units, at).unwrap();
                }
            }
        }
    }
}
