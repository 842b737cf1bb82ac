//! Checks that the uses of a run keep the promise of the configured limit.

use tollgate::{Limit, Span, Time};

use crate::world::Outcomes;

/// Checks every span of a run.
///
/// # Errors
/// If a span has seen more uses than the limit admits, beyond what the store forgot in it.
pub(crate) fn check(limit: &Limit, result: &Outcomes) -> Result<(), String> {
    check_within(limit, result, Span::ZERO)
}

/// Checks every span of a run of async mode. A span may exceed the limit by the uses that were not known when its last
/// use was decided: those of the last `unknown`.
///
/// # Errors
/// If a span has seen more uses.
pub(crate) fn check_within(limit: &Limit, result: &Outcomes, unknown: Span) -> Result<(), String> {
    let mut uses = result.uses.clone();
    uses.sort_unstable();
    let within = |from: Time, to: Time| {
        let before = |at: Time| uses.partition_point(|it| *it <= at);
        (before(to) - before(from)) as u64
    };
    let unknown_at = |at: Time| match unknown {
        Span::ZERO => 0,
        _ => within(at - unknown, at),
    };
    let forgotten = &result.forgotten;
    match limit {
        Limit::Gcra(meter) | Limit::TokenBucket(meter) => {
            bucket(meter, &uses, forgotten, &unknown_at)
        }
        Limit::LeakyBucket(it) => bucket(it.meter(), &uses, forgotten, &unknown_at),
        Limit::SlidingLog(_) | Limit::SlidingCounter(_) => {
            window(limit, &uses, forgotten, &unknown_at)
        }
        Limit::FixedWindow(_) => period(limit, &uses, forgotten, &unknown_at),
        _ => Err("this limit has no judge".to_owned()),
    }
}

/// Returns the most uses by which a span of a bucket exceeds the limit.
#[allow(dead_code, reason = "not every test that uses this file asks for it")]
pub(crate) fn overshoot(meter: &tollgate::algorithms::meter::Meter, result: &Outcomes) -> u64 {
    let mut uses = result.uses.clone();
    uses.sort_unstable();
    let exceeds = |most: u64| bucket(meter, &uses, &[], &|_| most).is_err();
    let (mut low, mut high) = (0, uses.len() as u64);
    while low < high {
        let middle = (low + high) / 2;
        match exceeds(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// A bucket with the configured numbers admits all uses, if and only if no span exceeds the limit. When the store
/// forgets, the bucket forgets as much.
fn bucket(
    meter: &tollgate::algorithms::meter::Meter,
    uses: &[Time],
    forgotten: &[(Time, u64)],
    may: &dyn Fn(Time) -> u64,
) -> Result<(), String> {
    let (capacity, per_tick, token, tick) = meter.parts();
    let full = i128::from(capacity) * i128::from(token);
    let rate = i128::from(per_tick);
    let (mut level, mut last) = (full, uses.first().copied().unwrap_or_default());
    let mut forgotten = forgotten.iter().peekable();
    let mut given = 0;
    for at in uses {
        // The refill of a tick is there from its first microsecond on.
        let ticks = tick.of(*at) - tick.of(last);
        level = (level + i128::from(ticks) * rate).min(full + given);
        while let Some((_, units)) = forgotten.next_if(|(when, _)| when <= at) {
            given += i128::from(*units) * i128::from(token);
            level += i128::from(*units) * i128::from(token);
        }
        level -= i128::from(token);
        last = *at;
        if level < -i128::from(may(*at)) * i128::from(token) {
            let over = -level / i128::from(token);
            return Err(format!("{over} too many at {at:?} under {capacity}"));
        }
    }
    Ok(())
}

fn window(
    limit: &Limit,
    uses: &[Time],
    forgotten: &[(Time, u64)],
    may: &dyn Fn(Time) -> u64,
) -> Result<(), String> {
    let (capacity, window) = (limit.capacity(), limit.window());
    let mut first = 0;
    for (place, at) in uses.iter().enumerate() {
        while uses[first] + window <= *at {
            first += 1;
        }
        let used = (place - first + 1) as u64;
        let lost = lost(forgotten, uses[first], *at, window) + may(*at);
        if used > capacity + lost {
            return Err(format!(
                "{used} in a window of {window} at {at:?}, above {capacity} and {lost}"
            ));
        }
    }
    Ok(())
}

fn period(
    limit: &Limit,
    uses: &[Time],
    forgotten: &[(Time, u64)],
    may: &dyn Fn(Time) -> u64,
) -> Result<(), String> {
    let (capacity, window) = (limit.capacity(), limit.window());
    let number = |at: &Time| at.as_micros() / window.as_micros();
    for uses in uses.chunk_by(|a, b| number(a) == number(b)) {
        let last = uses[uses.len() - 1];
        let used = uses.len() as u64;
        let lost = lost(forgotten, uses[0], last, window) + may(last);
        if used > capacity + lost {
            return Err(format!(
                "{used} in the window of {:?}, above {capacity} and {lost}",
                uses[0]
            ));
        }
    }
    Ok(())
}

/// Returns what the store forgot in a span, or so shortly before it that the span still feels it.
fn lost(forgotten: &[(Time, u64)], from: Time, to: Time, window: Span) -> u64 {
    let felt = forgotten
        .iter()
        .filter(|(at, _)| *at + window >= from && *at <= to);
    felt.map(|(_, units)| units).sum()
}
