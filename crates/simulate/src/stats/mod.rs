//! What is counted during a simulation. Every table is bounded, so that a log of any size needs the same
//! memory.

pub(crate) mod retries;
pub(crate) mod series;
pub(crate) mod subjects;
pub(crate) mod tally;

use tollgate::{
    Algorithm, Attributes, Config, Decision, RuleDecision, RuleEffect, RuleSet, Span, Time,
};

use self::retries::Retries;
use self::series::Series;
use self::subjects::{Bursts, MOST_TRACED, Needs, Seen, Subjects, TraceRoom};
use self::tally::{Counts, Tally};

/// The most tenants and hours with a row of their own.
const MOST_TENANTS: usize = 10_000;
const MOST_HOURS: usize = 10_000;
/// The most subjects with a row of their own: of one rule, and of all rules together.
const MOST_SUBJECTS: usize = 20_000;
const MOST_SUBJECTS_IN_ALL: usize = 200_000;
/// The most subjects whose bursts are traced, and the most requests that their traces keep, of all rules together: 16 MiB.
const MOST_TRACED_IN_ALL: usize = 16_384;
const MOST_TRACE_ENTRIES: usize = 1 << 20;
const HOUR: u64 = Span::HOUR.as_micros();

/// The counts of one config.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) all: Counts,
    /// Requests that no rule applied to.
    pub(crate) unlimited: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) series: Series,
    pub(crate) retries: Retries,
    pub(crate) rules: Vec<OfRule>,
    pub(crate) plans: Tally,
    pub(crate) tenants: Tally,
    /// By hour, in microseconds since 1970 divided by an hour.
    pub(crate) hours: Tally,
    pub(crate) calls: Calls,
    traces: TraceRoom,
    show_subjects: bool,
    /// The hour of the last request, as text.
    hour: (u64, String),
}

/// How often the store is called, by mode.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    /// A call for each request that a rule counts.
    pub(crate) exact: u64,
    /// As `exact`, but known denials are repeated without a call.
    pub(crate) remembered: u64,
    /// One call for each subject and slice.
    pub(crate) leased: u64,
    /// One call for each subject and flush.
    pub(crate) flushed: u64,
}

/// The counts of a rule.
#[derive(Debug)]
pub(crate) struct OfRule {
    pub(crate) id: String,
    pub(crate) algorithm: Algorithm,
    /// How many requests this rule allowed and denied. Another rule may have denied an allowed one.
    pub(crate) counts: Counts,
    /// Denials that this rule decided.
    pub(crate) decided: u64,
    /// Whether the rule only counts.
    pub(crate) is_shadow: bool,
    pub(crate) subjects: Subjects,
    pub(crate) bursts: Bursts,
    per: Vec<String>,
    fixed_cost: Option<u64>,
}

impl Stats {
    /// `sides` is the number of configs that share the memory for traces.
    pub(crate) fn new(config: &Config, show_subjects: bool, sides: usize) -> Stats {
        let rules = &config.policy.rules;
        let traced = (MOST_TRACED_IN_ALL / sides / rules.len().max(1)).clamp(1, MOST_TRACED);
        let most = (MOST_SUBJECTS_IN_ALL / rules.len().max(1)).min(MOST_SUBJECTS);
        let rules = rules.iter().map(|rule| OfRule {
            id: rule.id().to_owned(),
            algorithm: rule.algorithm(),
            counts: Counts::default(),
            decided: 0,
            is_shadow: rule.enforcement() == tollgate::Enforcement::Shadow,
            subjects: Subjects::new(most),
            bursts: Bursts::new(traced),
            per: rule.per().to_vec(),
            fixed_cost: rule.fixed_cost(),
        });
        Stats {
            all: Counts::default(),
            unlimited: 0,
            shadow_denied: 0,
            series: Series::default(),
            retries: Retries::default(),
            rules: rules.collect(),
            plans: Tally::new(MOST_TENANTS),
            tenants: Tally::new(MOST_TENANTS),
            hours: Tally::new(MOST_HOURS),
            calls: Calls::default(),
            traces: TraceRoom::new(MOST_TRACE_ENTRIES / sides),
            show_subjects,
            hour: (u64::MAX, String::new()),
        }
    }

    /// Counts a decision.
    pub(crate) fn add(&mut self, at: Time, attributes: &Attributes<'_>, decision: &Decision) {
        let is_allowed = decision.is_allowed();
        self.all.add(is_allowed);
        let bucket = self.series.at(at);
        match is_allowed {
            true => bucket.allowed += 1,
            false => bucket.denied += 1,
        }
        if decision.shadow_denied() {
            bucket.shadow_denied += 1;
            self.shadow_denied += 1;
        }
        let hour = at.as_micros() / HOUR;
        if self.hour.0 != hour {
            self.hour = (hour, hour.to_string());
        }
        self.hours.add(&self.hour.1, is_allowed);
        if let Some(tenant) = attributes.get("tenant") {
            self.tenants.add(tenant, is_allowed);
        }
        if let Some(plan) = decision.rule_set().plan_of(attributes) {
            self.plans.add(plan, is_allowed);
        }
        if !is_allowed {
            self.retries.add(decision.retry_after());
        }
        self.add_rules(at, attributes, decision);
    }

    fn add_rules(&mut self, at: Time, attributes: &Attributes<'_>, decision: &Decision) {
        let is_allowed = decision.is_allowed();
        let deciding = decision.rule().map(|rule| rule.index());
        let (mut needs, mut applied) = (Needs::default(), 0);
        for rule in decision.rules() {
            applied += 1;
            let Some(of_rule) = self.rules.get_mut(rule.index()) else {
                continue;
            };
            of_rule.counts.add(rule.is_allowed());
            if !is_allowed && deciding == Some(rule.index()) {
                of_rule.decided += 1;
            }
            let traces = &mut self.traces;
            let more = of_rule.add(
                at,
                attributes,
                (&rule, decision),
                self.show_subjects,
                traces,
            );
            needs.remembered |= more.remembered;
            needs.leased |= more.leased;
            needs.flushed |= more.flushed;
        }
        if applied == 0 {
            self.unlimited += 1;
        }
        self.calls.exact += u64::from(applied > 0);
        self.calls.remembered += u64::from(needs.remembered);
        self.calls.leased += u64::from(needs.leased);
        self.calls.flushed += u64::from(needs.flushed);
    }
}

impl OfRule {
    fn add(
        &mut self,
        at: Time,
        attributes: &Attributes<'_>,
        (rule, decision): (&RuleDecision<'_>, &Decision),
        show_subjects: bool,
        traces: &mut TraceRoom,
    ) -> Needs {
        let Some(subject) = rule.subject() else {
            return Needs::default();
        };
        let micros = at.as_micros();
        let wait = rule.retry_after().map_or(0, Span::as_micros);
        let seen = Seen {
            subject: subject.bits(),
            at: micros,
            is_allowed: rule.is_allowed(),
            retry_at: micros.saturating_add(wait),
        };
        let per = &self.per;
        let name = || show_subjects.then(|| named(per, attributes));
        let (needs, was_denied) = self.subjects.add(seen, name);
        let counts_bursts = !matches!(
            self.algorithm,
            Algorithm::Concurrency | Algorithm::Quota | Algorithm::Backoff
        );
        if counts_bursts
            && decision.granted() > 0
            && let Some(limit) = rule.limit()
        {
            let cost = self
                .fixed_cost
                .unwrap_or_else(|| cost(decision.rule_set(), attributes, rule.index()));
            let units = cost.saturating_mul(decision.granted());
            let numbers = (limit, rule.window().as_micros());
            let subject = (subject.bits(), was_denied);
            self.bursts.add(traces, subject, (micros, units), numbers);
        }
        needs
    }
}

/// Returns the cost of one unit of a request under a rule.
fn cost(rules: &RuleSet, attributes: &Attributes<'_>, rule: usize) -> u64 {
    let explained = rules.explain(attributes);
    let explained = explained.iter().find(|it| it.rule as usize == rule);
    match explained.map(|it| &it.effect) {
        Some(RuleEffect::Applies { cost, .. }) => *cost,
        _ => 0,
    }
}

/// Writes the attributes that make a subject.
fn named(per: &[String], attributes: &Attributes<'_>) -> Box<str> {
    let values = per.iter().map(|name| {
        let value = attributes.get(name).unwrap_or("-");
        let value: String = value.chars().take(80).collect();
        format!("{name}={value}")
    });
    values.collect::<Vec<_>>().join(" ").into()
}

#[cfg(test)]
mod tests {
    use tollgate::{Attributes, Time, parse};

    use crate::Simulation;

    #[test]
    fn requests_are_counted_by_the_plan_that_they_name() {
        let text = "
version: 1
plan_from: attributes.plan
plans:
  free: {}
  pro: {}
tenants:
  acme: { plan: free }
rules:
  - { id: api, per: [tenant], algorithm: fixed-window, limit: 10, window: 1h }
";
        let config = parse("rules", text, &|_| None).unwrap();
        let mut simulation = Simulation::new(&config, None, false);
        let start = Time::from_micros(1_700_000_000_000_000);
        for attributes in [
            vec![("tenant", "acme")],
            vec![("tenant", "acme"), ("plan", "pro")],
            vec![("tenant", "new"), ("plan", "pro")],
            vec![("plan", "pro")],
            vec![("tenant", "acme"), ("plan", "unknown")],
            vec![("tenant", "new")],
        ] {
            let attributes: Attributes<'_> = attributes.into_iter().collect();
            simulation.decide(start, &attributes, 1);
        }
        let report = simulation.finish();
        let plans = report.new.plans.iter();
        let mut plans: Vec<(&str, u64)> = plans
            .map(|row| (row.name.as_str(), row.counts.requests()))
            .collect();
        plans.sort_unstable();
        assert_eq!(plans, [("free", 2), ("pro", 3)]);
    }
}
