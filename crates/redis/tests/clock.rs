//! A server whose clock differs from the clock of the instance: the clock of the server decides, including
//! the periods of quotas.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{block_on, charge, connect, options, take};
use tollgate_core::{Anchor, Calendar, Limit, Span, Time, Unit, Zone};
use tollgate_rig::{Redis, wait};
use tollgate_store::{Ask, Clock, Store, SystemClock};

const DAY: i64 = 86_400;

fn daily(limit: u64, rollover: u64) -> Limit {
    let zone = Zone::named("UTC").unwrap();
    let calendar = Calendar::new(1, Unit::Day, Anchor::First, zone).unwrap();
    Limit::quota(limit, 0, rollover, calendar).unwrap()
}

/// Even if the clocks are far apart, a quota admits exactly its limit, and its period ends by the server's
/// clock.
#[test]
fn a_quota_admits_its_limit_if_the_clock_of_the_server_is_wrong() {
    for days in [-400, -3, -2, -1, 1, 2, 3, 400] {
        let redis = Redis::with().clock_ahead(days * DAY).start();
        let store = connect(options(&redis));
        let limit = daily(5, 0);
        block_on(async {
            let mut admitted = 0;
            for _ in 0..12 {
                admitted += u64::from(take(&store, 1, &limit).await.unwrap().allowed);
            }
            assert_eq!(admitted, 5, "{days} days ahead");
            let applied = store
                .peek(&[charge(1, &limit)], Ask::Exactly(1))
                .await
                .unwrap();
            let there = SystemClock::new().now().as_micros() / 1_000_000;
            let there = there.checked_add_signed(days * DAY).unwrap();
            let seconds = applied.now.as_micros() / 1_000_000;
            assert!(seconds.abs_diff(there) < 60, "{days} days ahead");
            let resets = applied.outcomes[0].reset_at;
            let midnight = |time: Time| time.as_micros().is_multiple_of(Span::DAY.as_micros());
            assert!(midnight(resets) && resets > applied.now);
            assert!(resets.since(applied.now) <= Span::DAY);
        });
        // The difference is known.
        let ahead = store.census().servers[0].clock_ahead / 1_000_000;
        assert!(
            (ahead - days * DAY).abs() < 60,
            "{ahead} s ahead, and not {days} days"
        );
    }
}

/// A store that has not compared the clocks yet learns the time of the server from its answer.
#[test]
fn an_unchecked_store_admits_the_limit_of_a_quota_from_the_first_request_on() {
    let redis = Redis::with().clock_ahead(2 * DAY).start();
    let limit = daily(5, 2);
    block_on(async {
        let store = tollgate_redis::RedisStore::unchecked(options(&redis));
        let mut admitted = 0;
        for _ in 0..12 {
            admitted += u64::from(take(&store, 1, &limit).await.unwrap().allowed);
        }
        assert_eq!(admitted, 5);
        wait::until("a comparison of clocks", common::LIMIT, || {
            let census = store.census();
            census.servers.iter().any(|it| it.clock_ahead > 1_000_000)
        });
    });
}
