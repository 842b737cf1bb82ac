//! Random reservations, with repetitions, reordered calls and restarts, against a model that only adds up.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate::{Hold, HoldError, HoldName, Reserve, Reserving, Span};
use tollgate_store::HoldState;

use super::setup::{Books, acme};

const LIMIT: u64 = 1000;

#[derive(Clone, Debug)]
enum Step {
    Reserve { key: u8, units: u64 },
    Commit { key: u8, actual: u64 },
    Release { key: u8 },
    Extend { key: u8, seconds: u64 },
    Use { units: u64 },
    Wait { seconds: u64 },
    LoseCounts,
    Reset,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6_u8;
    prop_oneof![
        4 => (key.clone(), 1..400_u64).prop_map(|(key, units)| Step::Reserve { key, units }),
        3 => (key.clone(), 0..500_u64).prop_map(|(key, actual)| Step::Commit { key, actual }),
        2 => key.clone().prop_map(|key| Step::Release { key }),
        1 => (key, 1..200_u64).prop_map(|(key, seconds)| Step::Extend { key, seconds }),
        2 => (0..300_u64).prop_map(|units| Step::Use { units }),
        2 => (1..120_u64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::LoseCounts),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ]
}

/// What the model knows of a reservation.
#[derive(Clone, Debug)]
struct Known {
    name: HoldName,
    units: u64,
    state: HoldState,
    used: u64,
    /// Whether what was used was reset since.
    is_forgotten: bool,
}

#[derive(Default)]
struct Model {
    used: u64,
    holds: HashMap<u8, Known>,
}

impl Model {
    fn taken(&self) -> u64 {
        let holds = self.holds.values().map(|hold| match hold.state {
            HoldState::Reserved => hold.units,
            HoldState::Consumed if !hold.is_forgotten => hold.used,
            HoldState::Consumed | HoldState::Released | HoldState::Expired => 0,
        });
        self.used + holds.sum::<u64>()
    }
}

/// Takes over what a sweep has ended: only what was open can have been.
fn expire(model: &mut Model, key: u8, hold: &Hold) {
    if let Some(known) = model.holds.get_mut(&key)
        && known.state == HoldState::Reserved
        && hold.state == HoldState::Expired
    {
        known.state = HoldState::Expired;
    }
}

async fn run(steps: Vec<Step>, is_strict: bool) {
    let durability = if is_strict { "strict" } else { "async" };
    let rules = format!(
        "
  - id: monthly
    per: [tenant]
    algorithm: quota
    limit: {LIMIT}
    period: month
    durability: {durability}
    on_store_failure: fail-closed
"
    );
    let mut books = Books::new(&rules).await;
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Reserve { key, units } => {
                let text = format!("key-{key}");
                let wish = Reserve {
                    units,
                    idempotency_key: Some(&text),
                    ..Reserve::default()
                };
                match (
                    books.limiter.reserve(&acme(), &wish).await,
                    model.holds.get(&key),
                ) {
                    (Ok(Reserving::Held { hold, decision }), known) => {
                        assert_eq!(decision.is_none(), known.is_some());
                        if let Some(known) = known {
                            assert_eq!((known.name, known.units), (hold.id, units));
                        } else {
                            assert!(model.taken() + units <= LIMIT, "more than there is");
                            let known = Known {
                                name: hold.id,
                                units,
                                state: HoldState::Reserved,
                                used: 0,
                                is_forgotten: false,
                            };
                            model.holds.insert(key, known);
                        }
                    }
                    (Ok(Reserving::Refused(_)), known) => {
                        assert!(known.is_none() && model.taken() + units > LIMIT);
                    }
                    (Err(HoldError::Conflict), Some(known)) => assert_ne!(known.units, units),
                    (Err(HoldError::Ended(hold)), Some(known)) => {
                        assert!(matches!(
                            known.state,
                            HoldState::Released | HoldState::Expired
                        ));
                        assert_eq!(known.state, hold.state);
                    }
                    (Err(error), _) => panic!("{error}"),
                }
            }
            Step::Commit { key, actual } => {
                let Some(known) = model.holds.get_mut(&key) else {
                    continue;
                };
                match books.limiter.commit(&known.name, actual).await {
                    Ok(_) if known.state == HoldState::Consumed => assert_eq!(known.used, actual),
                    Ok(_) => {
                        assert_eq!(known.state, HoldState::Reserved);
                        known.state = HoldState::Consumed;
                        known.used = actual;
                    }
                    Err(HoldError::Ended(hold)) => {
                        assert_eq!(hold.state, known.state);
                        assert_eq!(hold.actual.is_some(), hold.state == HoldState::Consumed);
                        assert_ne!(hold.actual, Some(actual), "it was a repetition");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Release { key } => {
                let Some(known) = model.holds.get_mut(&key) else {
                    continue;
                };
                match books.limiter.release(&known.name).await {
                    Ok(hold) => {
                        assert_ne!(known.state, HoldState::Consumed);
                        known.state = hold.state;
                    }
                    Err(HoldError::Ended(hold)) => assert_eq!(hold.state, known.state),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Extend { key, seconds } => {
                let Some(known) = model.holds.get(&key) else {
                    continue;
                };
                let ttl = Span::from_secs(seconds);
                match books.limiter.extend(&known.name, ttl).await {
                    Ok(_) => assert_eq!(known.state, HoldState::Reserved),
                    Err(HoldError::Ended(_)) => assert_ne!(known.state, HoldState::Reserved),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Use { units } => match books.ask(units).await {
                Some(left) => {
                    model.used += units;
                    assert_eq!(left, LIMIT.saturating_sub(model.taken()));
                }
                None => assert!(units > 0 && model.taken() + units > LIMIT),
            },
            Step::Wait { seconds } => {
                books.clock.advance(Span::from_secs(seconds));
                books.sweep().await;
                let names: Vec<(u8, HoldName)> = model
                    .holds
                    .iter()
                    .map(|(key, it)| (*key, it.name))
                    .collect();
                for (key, name) in names {
                    let hold = books.limiter.find_hold(&name).await.unwrap();
                    expire(&mut model, key, &hold);
                }
            }
            Step::LoseCounts => books.lose_counts(),
            Step::Reset => {
                books.limiter.reset(&acme()).await.unwrap();
                model.used = 0;
                for known in model.holds.values_mut() {
                    known.is_forgotten = known.state == HoldState::Consumed;
                }
            }
            Step::Restart if is_strict => books.crash().await,
            Step::Restart => books.restart().await,
        }
        let booked = books.used().await;
        assert_eq!(u64::try_from(booked).unwrap(), model.taken(), "the books");
    }
    // Nothing leaks: once all has ended, what is left is what nobody used.
    books.clock.advance(Span::from_secs(3 * 3600));
    books.sweep().await;
    books.sweep().await;
    for known in model.holds.values_mut() {
        if known.state == HoldState::Reserved {
            known.state = HoldState::Expired;
        }
    }
    let used = model.taken();
    assert_eq!(u64::try_from(books.used().await).unwrap(), used);
    assert_eq!(books.ask(0).await, Some(LIMIT.saturating_sub(used)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn reservations_add_up(
        steps in prop::collection::vec(step(), 1..40),
        is_strict in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(run(steps, is_strict));
    }
}
