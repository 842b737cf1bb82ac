//! The part of the report before the figures: promises, policies and method.

use std::fmt::Write as _;

use super::{RUNS, plainly};
use crate::judge::{LEEWAY, OPEN_MEDIAN, Promise, STRAY_PERCENT};
use crate::load::SUBJECTS;
use crate::policy::{EMERGENCY, LIMIT, Policy, REPLICAS, SHARE, rules};
use crate::run::BREAKER_OPEN;

pub(super) fn text() -> String {
    let mut text = String::from(
        "# Faults\n\n\
         This page shows what the limiter does while its store fails: what is expected, and what \
         was seen. `cargo xtask faults` writes the page. The command runs every fault against real \
         Redis servers under steady load, and fails if a promise is broken. The figures are from \
         one run on a small, shared machine.\n\n\
         ## What is promised\n\n",
    );
    for promise in Promise::ALL {
        let _ = writeln!(text, "- **{}**: {}", promise.name(), words(promise));
    }
    let _ = write!(
        text,
        "\n## What each policy does\n\n\
         Every rule allows each user {} at once and {} a second. The store never admits more in \
         any span of time. Each time a server loses its data, a subject may get its capacity once \
         more. A policy may admit these units in addition:\n\n\
         | policy | while the store is unreachable | bound on what the policy admits, per instance \
         | a request that got no answer (timeout, broken connection) |\n|---|---|---|---|\n",
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
        "\nIf a request got no answer, the store may have taken its unit. The limiter never sends \
         the request again, so the unit is never taken twice. The unit refills like any other. \
         When the store is back, it does not learn what policies have counted.\n\n\
         ## How it is measured\n\n\
         One limiter and its load run on one thread, with the defaults: timeout 50 ms, connect \
         timeout 200 ms, 4 connections, a breaker that opens after 5 failures and closes after 3 \
         probes. Two settings are not the default:\n\n\
         - The breaker stays open for {}, not for 30 s, so that a run is short. With the default, \
         it may take up to 30 s after a fault until the store decides again.\n\
         - `replicas` is {REPLICAS}, so that the share of an instance is not the whole limit.\n\n\
         These are the rules:\n\n\
         ```yaml\n{}```\n\n\
         Three users send {} checks a second under each rule: {}. All keys belong to one \
         tenant, so they are in one cluster slot.\n\n",
        plainly(BREAKER_OPEN),
        rules(),
        SUBJECTS
            .iter()
            .map(|it| it.tasks * it.per_second)
            .sum::<u64>(),
        subjects(),
    );
    text.push_str(
        "The tables have these columns:\n\n\
         | column | meaning |\n|---|---|\n\
         | by store, by policy | decisions by the store, and by the failure policy |\n\
         | known | denials that were known from an earlier answer. For up to a second, they need no \
         request to a server |\n\
         | worst | the longest decision, as measured |\n\
         | undelayed | the longest decision, without the delay of the machine: see below |\n\
         | median, open | the median decision while the breaker is open |\n\
         | above | the most units that one user got above the limit, in any span of time, from \
         store and policy together |\n\
         | wrong | units that were admitted beyond the bounds; must be 0 |\n\
         | errors | answers that the policy must not give; must be 0 |\n\
         | back after | the time from the end of the fault to the first decision by the store |\n\
         | fresh | the units that a new user got after the fault |\n\n\
         The delay of the machine is measured with a 1 ms timer on the same thread. It is the worst \
         delay of the timer during the decision. If the sum of the delays at the start and at the \
         end of the decision is larger, that sum is used. A limiter that blocked its thread would \
         delay the timer too, so compare `worst` with `undelayed`.\n",
    );
    let machine = Promise::ALL
        .into_iter()
        .filter(|it| it.depends_on_machine())
        .map(|it| format!("**{}**", it.name()));
    let machine: Vec<String> = machine.collect();
    let _ = writeln!(
        text,
        "\nA busy machine alone can break some promises: {}. If a run breaks only these promises, \
         the fault is run again, at most {RUNS} times in total. The report shows the last run, and \
         says which run it was.",
        machine.join(", ")
    );
    text
}

fn subjects() -> String {
    let subjects = SUBJECTS.iter().map(|it| {
        let tasks = match it.tasks {
            1 => String::new(),
            tasks => format!(" from {tasks} tasks"),
        };
        format!("`{}` sends {}{tasks}", it.name, it.tasks * it.per_second)
    });
    subjects.collect::<Vec<_>>().join(", ")
}

/// Returns the behaviour of a policy, its bound, and what happens to a request that got no answer.
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
            "allows, and tells the caller to leave out optional work",
            no_bound(),
            "is allowed, and may have been counted",
        ),
        Some(FailClosed) => (
            "denies, with a retry time of 5 s",
            nothing(),
            "is denied, and the subject may have lost the unit",
        ),
        None => (
            "denies as unavailable (503), with a retry time of 5 s",
            nothing(),
            "is denied, and the subject may have lost the unit",
        ),
        Some(LocalFallback) => (
            "counts in memory, against limit / `replicas` × `fallback_factor`",
            in_any(SHARE.capacity, SHARE.per_second, "each subject"),
            "is counted in memory, and may have been counted by the store",
        ),
        Some(Cached) => (
            "counts in memory, starting from the last known state of the subject",
            format!(
                "store and policy together {} + {}/s × t until the store is back, plus one for \
                 each request of the subject that was in flight. When the store is back, it \
                 continues from its own count",
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

/// Returns a promise as sentences.
fn words(promise: Promise) -> String {
    match promise {
        Promise::InTime => format!(
            "No decision takes longer than the timeout plus {}. Delays of the machine do \
             not count: the promise is about the *undelayed* time of a decision, which is \
             explained [below](#how-it-is-measured).",
            plainly(LEEWAY)
        ),
        Promise::QuickWhenOpen => format!(
            "While the breaker is open, the median decision takes less than {}.",
            plainly(OPEN_MEDIAN)
        ),
        Promise::Opens => "If the store is gone, the breaker opens.".to_owned(),
        Promise::StoreDecides => format!(
            "If the store is there all the time, the store decides. Policies decide at most \
             {STRAY_PERCENT}% of the requests, because a busy machine may delay an answer beyond \
             the timeout."
        ),
        Promise::WithinBound => {
            "In any span of time, no more is admitted than the bounds below allow.".to_owned()
        }
        Promise::NoError => "Every answer is one that the policy may give. A denial has a retry \
                             time. Nothing panics."
            .to_owned(),
        Promise::ComesBack => {
            "After the fault, the store decides again, without an operator.".to_owned()
        }
        Promise::TotalsRight => {
            "After the fault, a new user gets exactly the limit, plus the units \
                                 that refill meanwhile. The store never denies a user below the \
                                 limit. So no unit was forgotten, and no unit was counted twice."
                .to_owned()
        }
    }
}
