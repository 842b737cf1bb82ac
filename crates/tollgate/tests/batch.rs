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

fn take<'a>(by: &'a str, subject: &'a str, units: u64) -> Demand<'a> {
    demand(by, subject, Effect::Take(units))
}

fn demand<'a>(by: &'a str, subject: &'a str, effect: Effect) -> Demand<'a> {
    Demand {
        attributes: Attributes::from([("by", by), (by, subject), ("user", subject)]),
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

/// Returns the amount that the deciding rule of each demand has left.
fn left(batch: &BatchDecision) -> Vec<Option<u64>> {
    let rules = batch.decisions().iter().map(tollgate::Decision::rule);
    rules
        .map(|rule| rule.and_then(|it| it.remaining()))
        .collect()
}

fn met(batch: &BatchDecision) -> Vec<bool> {
    batch
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

    let denied = limiter
        .ask_all_now(&[take("route", "r", 1), take("key", "a", 7)])
        .unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(met(&denied), [true, false]);
    assert_eq!(left(&denied), [Some(13), Some(6)]);
    assert_eq!(denied.decisions()[0].granted(), 0);
    assert_eq!(
        denied.deciding().unwrap().rule().unwrap().rule().id(),
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
fn look_takes_nothing_and_can_deny_the_batch() {
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
fn units_are_given_back_if_the_batch_is_allowed() {
    let limiter = limiter(RULES);
    let give = |units| demand("key", "a", Effect::GiveBack(units));
    limiter.ask_all_now(&[take("key", "a", 9)]).unwrap();
    let denied = limiter
        .ask_all_now(&[give(5), take("route", "r", 21)])
        .unwrap();
    assert_eq!((denied.is_allowed(), left(&denied)[0]), (false, Some(1)));
    let allowed = limiter
        .ask_all_now(&[give(5), take("route", "r", 1)])
        .unwrap();
    assert_eq!((allowed.is_allowed(), left(&allowed)[0]), (true, Some(6)));
    // A refund gives back at most the amount that was taken.
    assert_eq!(left(&limiter.ask_all_now(&[give(50)]).unwrap()), [Some(10)]);
    assert_eq!(
        limiter.metrics().counts()[0].allowed,
        1,
        "only demands that take are counted"
    );
}

#[test]
fn overrides_apply_to_numbers_of_a_demand() {
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
fn numbers_of_a_demand_replace_those_of_the_rule() {
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
fn first_numbers_for_a_key_hold_for_the_whole_batch() {
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
fn unusable_numbers_are_an_error_that_names_the_rule() {
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
fn demand_denied_before_the_store_denies_the_batch() {
    let limiter = limiter(RULES);
    let without_user = Demand::take(Attributes::from([("by", "login")]), 1);
    for _ in 0..3 {
        let all = [
            take("key", "a", 1),
            take("login", "ann", 1),
            without_user.clone(),
        ];
        let denied = limiter.ask_all_now(&all).unwrap();
        assert_eq!(met(&denied), [true, true, false]);
        assert_eq!(left(&denied)[0], Some(10));
    }
    assert!(
        !limiter
            .ask_all_now(&[take("login", "ann", 1)])
            .unwrap()
            .is_allowed()
    );
}

#[test]
fn shadow_rule_never_denies_the_batch() {
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
fn least_left_or_longest_wait_decides_a_batch() {
    let limiter = limiter(RULES);
    let free = || Demand::take(Attributes::new(), 1);
    let all = limiter
        .ask_all_now(&[free(), take("route", "r", 19), take("key", "a", 1)])
        .unwrap();
    assert_eq!(all.deciding().unwrap().rule().unwrap().rule().id(), "route");
    assert!(limiter.ask_all_now(&[free()]).unwrap().deciding().is_none());
    limiter.ask_all_now(&[take("key", "a", 9)]).unwrap();
    // The window may end before or after the 3 minutes that one unit of 20 per hour takes to come back.
    let all = limiter
        .ask_all_now(&[take("route", "r", 2), take("key", "a", 1)])
        .unwrap();
    let waits = all.decisions().iter().map(tollgate::Decision::retry_after);
    assert_eq!(all.deciding().unwrap().retry_after(), waits.max().unwrap());
}

#[test]
fn too_many_charges_are_an_error() {
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
fn empty_batch_is_allowed() {
    let none = limiter(RULES).ask_all_now(&[]).unwrap();
    assert!(none.is_allowed() && none.decisions().is_empty());
}

fn ask_all(setup: &Setup, demands: &[Demand<'_>]) -> BatchDecision {
    block_on(setup.limiter.ask_all(demands)).unwrap()
}

#[test]
fn store_is_asked_once_per_batch() {
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
fn denial_of_a_sum_is_not_remembered_for_its_parts() {
    let setup = Setup::new(RULES);
    ask_all(&setup, &[take("key", "a", 5)]);
    let denied = ask_all(&setup, &[take("key", "a", 3), take("key", "a", 3)]);
    assert_eq!(met(&denied), [true, false]);
    assert!(ask_all(&setup, &[take("key", "a", 3)]).is_allowed());
    let asked = setup.asked();
    assert!(!ask_all(&setup, &[take("key", "a", 3), take("key", "a", 3)]).is_allowed());
    assert_eq!(setup.asked(), asked + 1, "others may change what is left");
}

#[test]
fn denials_by_numbers_of_a_demand_are_not_remembered() {
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
fn failure_policies_decide_each_demand_of_a_batch() {
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
    let denied = ask_all(&setup, &[take("open", "", 5), take("local", "", 1)]);
    assert_eq!(met(&denied), [true, false]);
    let known = ask_all(&setup, &[many()]);
    assert_eq!(
        left(&known),
        [Some(6)],
        "the numbers of the demand, from the last known state on"
    );

    let denied = ask_all(&setup, &[take("open", "", 1), take("none", "", 1)]);
    assert_eq!(met(&denied), [true, false]);
    let reason = denied.deciding().unwrap().rule().unwrap().reason();
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
    /// At one instant, a batch is allowed if and only if its demands are allowed one after the other.
    #[test]
    fn batch_decides_like_single_requests(
        requests in prop::collection::vec(prop::collection::vec(any_demand(), 0..5), 1..12),
    ) {
        let (whole, parts) = (limiter(RULES), limiter(RULES));
        let shared = Setup::new(RULES);
        for request in requests {
            let demands: Vec<Demand<'_>> = request
                .iter()
                .map(|(by, who, units)| take(["key", "route"][*by], ["a", "b", "c"][*who], *units))
                .collect();
            let batch = whole.ask_all_now(&demands).unwrap();
            let elsewhere = ask_all(&shared, &demands);
            prop_assert_eq!(batch.is_allowed(), elsewhere.is_allowed());
            let mut apart = Vec::new();
            for demand in &demands {
                let Effect::Take(units) = demand.effect else { continue };
                let decision = parts.ask_now(&demand.attributes, tollgate::Ask::Exactly(units));
                if !decision.is_allowed() {
                    break;
                }
                apart.push((demand, units, decision));
            }
            prop_assert_eq!(batch.is_allowed(), apart.len() == demands.len());
            if batch.is_allowed() {
                let expected: Vec<_> = apart
                    .iter()
                    .map(|(_, _, it)| it.rules().map(|rule| rule.remaining()).collect::<Vec<_>>())
                    .collect();
                let found: Vec<_> = batch
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
