//! What the report says before the figures: the promises, the policies, and how it is measured.

use std::fmt::Write as _;

use super::{RUNS, names, plainly};
use crate::judge::{LEEWAY, OPEN_MEDIAN, Promise, STRAY_PERCENT};
use crate::load::SUBJECTS;
use crate::policy::{EMERGENCY, LIMIT, Policy, REPLICAS, SHARE, rules};
use crate::run::BREAKER_OPEN;

pub(super) fn text() -> String {
    let mut text = String::from(
        "# Faults\n\n\
         What the limiter does while its store fails: expected and seen. Written by \
         `cargo xtask faults`, which runs every fault against real Redis servers under steady load \
         and fails if a promise is broken. The figures are those of one run on a small machine that \
         it shared with others.\n\n\
         ## What is promised\n\n",
    );
    for promise in Promise::ALL {
        let _ = writeln!(text, "- **{}**: {}", promise.name(), words(promise));
    }
    let _ = write!(
        text,
        "\n## What each policy does\n\n\
         Every rule allows each user {} at once and {} a second. The store promises never to admit \
         more, in any span of time; each time a server loses what it knew, a subject may have its \
         capacity once more. What a policy admits comes on top:\n\n\
         | policy | while the store cannot be asked | bound on what the policy admits, one instance \
         | a request whose answer was lost (timeout, broken connection) |\n|---|---|---|---|\n",
        LIMIT.capacity, LIMIT.per_second,
    );
    for policy in Policy::ALL {
        let (does, bound, unknown) = policy_words(policy);
        let _ = writeln!(
            text,
            "| `{}` | {does} | {bound} | {unknown} |",
            policy.name()
        );
    }
    let _ = write!(
        text,
        "\nWhether the store has taken the unit of a request whose answer was lost is not known. The \
         request is never sent again, so it is never taken twice; what was taken comes back by itself, \
         as that of any admitted request. What policies count is not told to the store when it is \
         back.\n\n\
         ## How it is measured\n\n\
         One limiter and its load on one thread, with the defaults (timeout 50 ms, connect timeout \
         200 ms, 4 connections, the breaker opens after 5 failures and closes after 3 probes), except \
         that the breaker stays open for {} and not for 30 s, so that a run is short. *Back after* \
         depends on where in that time the fault ends: with the default it is up to 30 s. `replicas` is \
         {REPLICAS}, so that a share is not the whole. The rules:\n\n\
         ```yaml\n{}```\n\n\
         Under each rule three users ask, {} checks a second in all: {}. All keys are of one tenant, \
         and so in one slot of a cluster.\n\n",
        plainly(BREAKER_OPEN),
        rules(),
        SUBJECTS
            .iter()
            .map(|it| it.tasks * it.per_second)
            .sum::<u64>(),
        subjects(),
    );
    text.push_str(
        "Decisions are told apart by their answers: decided by the *store*, by the *policy*, or \
         refused as a *known* denial, which asks nobody for up to a second. *Above* is the most that \
         one user was admitted above the limit in any span of time, by store and policy together; \
         *wrong* is what was admitted beyond the bounds, and has to be 0. *Back after* is the time \
         from the end of the fault to the first decision by the store. *Fresh* is what a user got \
         after the fault whom nobody had seen before.\n",
    );
    let machine = Promise::ALL
        .into_iter()
        .filter(|it| it.depends_on_machine());
    let machine: Vec<Promise> = machine.collect();
    let _ = writeln!(
        text,
        "\nA busy machine can break some promises ({}) without the limiter's doing. If a run breaks \
         only such, the fault is run again, at most {RUNS} times; then the last run counts, and the \
         report says which it was.",
        names(&machine)
    );
    text
}

fn subjects() -> String {
    let subjects = SUBJECTS.iter().map(|it| {
        let tasks = match it.tasks {
            1 => String::new(),
            tasks => format!(" from {tasks} tasks"),
        };
        format!("{} {}{tasks}", it.name, it.tasks * it.per_second)
    });
    subjects.collect::<Vec<_>>().join(", ")
}

/// What a policy does, what bounds it, and what a lost answer means.
fn policy_words(policy: Policy) -> (&'static str, String, &'static str) {
    use tollgate::FailurePolicy::{
        Cached, Degraded, EmergencyLimit, FailClosed, FailOpen, LocalFallback,
    };
    let no_bound = || "none".to_owned();
    let nothing = || "0".to_owned();
    let in_any = |capacity, rate, whom| format!("{capacity} + {rate}/s × t in any span t, {whom}");
    match policy.0 {
        Some(FailOpen) => (
            "allows",
            no_bound(),
            "is allowed, and may have been counted",
        ),
        Some(Degraded) => (
            "allows, and says that the caller should leave out what is optional",
            no_bound(),
            "is allowed, and may have been counted",
        ),
        Some(FailClosed) => (
            "refuses, with 5 s to retry",
            nothing(),
            "is refused, and its unit may be lost to the subject",
        ),
        None => (
            "refuses as unavailable (503), with 5 s to retry",
            nothing(),
            "is refused, and its unit may be lost to the subject",
        ),
        Some(LocalFallback) => (
            "counts in memory, against limit / `replicas` × `fallback_factor`",
            in_any(SHARE.capacity, SHARE.per_second, "each subject"),
            "is counted in memory, and may have been counted by the store",
        ),
        Some(Cached) => (
            "counts in memory, on from the last known state of the subject",
            format!(
                "store and policy together {} + {}/s × t up to the store's return, and one for each \
                 request of the subject that was under way; then the store starts from its own count",
                LIMIT.capacity, LIMIT.per_second
            ),
            "is counted in memory, and may have been counted by the store",
        ),
        Some(EmergencyLimit) => (
            "counts in memory, all subjects together, against `emergency_limit`",
            in_any(
                EMERGENCY.capacity,
                EMERGENCY.per_second,
                "all subjects together",
            ),
            "is counted in memory, and may have been counted by the store",
        ),
    }
}

/// What a promise says.
fn words(promise: Promise) -> String {
    match promise {
        Promise::InTime => format!(
            "No decision takes longer than the timeout and {}. The longest is given as it was, \
             and *undelayed*: less the worst delay of a timer of 1 ms on the same thread while \
             it was under way (or at its start and its end together, if that is more). The \
             promise is about the latter. A limiter that blocked its thread would delay that \
             timer, too: compare the two.",
            plainly(LEEWAY)
        ),
        Promise::QuickWhenOpen => format!(
            "While the breaker is open, the median decision takes less than {}.",
            plainly(OPEN_MEDIAN)
        ),
        Promise::Opens => "Where the store is gone, the breaker opens.".to_owned(),
        Promise::StoreDecides => format!(
            "Where the store is there all the time, it decides: at most {STRAY_PERCENT}% is \
             left to policies, as a busy machine may hold an answer up for longer than the \
             timeout."
        ),
        Promise::WithinBound => {
            "In no span of time is more admitted than the bounds below say.".to_owned()
        }
        Promise::NoError => "Every answer is one that the policy may give, with a time to \
                             retry if it is a refusal, and nothing panics."
            .to_owned(),
        Promise::ComesBack => "The store decides again, without anybody's help.".to_owned(),
        Promise::TotalsRight => "Afterwards somebody new gets the limit, no more and no less \
                                 (but for what comes in while it asks), and who stays below the \
                                 limit is never refused by the store: nothing was forgotten, and \
                                 nothing counted twice."
            .to_owned(),
    }
}
