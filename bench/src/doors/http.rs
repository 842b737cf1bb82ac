//! Requests per second of `POST /v1/check`, against an axum server with a constant answer.

use std::error::Error;

use super::{Setting, comparison};
use crate::engine::FIVE_RULES;
use crate::http::{CONNECTIONS, Pair};
use crate::report::Report;
use crate::round::alternate;

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.effort();
    let pair = Pair::start(&setting.tollgate, &setting.scratch, FIVE_RULES)?;
    let [ours, theirs] = alternate(rounds, [&pair.tollgate, &pair.noop], |server| {
        pair.measure(server, CONNECTIONS, seconds)
    })?;
    let mut table = comparison::table("connections");
    let bars = (comparison::RATE, comparison::CPU);
    comparison::row(&mut table, &CONNECTIONS.to_string(), &ours, &theirs, bars);
    report.section(
        &format!(
            "`POST /v1/check` by wrk, five rules of which two match, state in memory, an answer of {} \
             bytes;\nmedians of {rounds} alternating rounds of {seconds} s.",
            pair.answer
        ),
        &[table],
    );
    Ok(())
}
