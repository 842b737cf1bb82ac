//! Rules from code. A [`RuleBuilder`] takes numbers as validated types, so that only its texts can be
//! wrong.
//!
//! `build` writes the rule as YAML and parses it like a file. So there is one validation, and a rule
//! from code is the same as a rule from a file.

use std::fmt::{self, Write as _};

use tollgate_core::backoff::Backoff;
use tollgate_core::meter::Meter;
use tollgate_core::{Algorithm, Anchor, CarryOver, Leaky, Limit, Limiting, Rate, Span, Tick};

use crate::document::{Short, percentage};
use crate::fair_shares::FairShares;
use crate::mode::ModeName;
use crate::period::{Every, Start};
use crate::placement::Placement;
use crate::policy::Policy;
use crate::raw::AttributeType;
use crate::rule::{Ceiling, FailurePolicy, LogDenials, Missing, Rule, RuleState};

/// Builds a [`Rule`] in code.
///
/// ```
/// use tollgate_core::{Limit, Span};
/// use tollgate_rules::RuleBuilder;
///
/// let rule = RuleBuilder::new("login", Limit::sliding_log(5, Span::from_secs(600))?)
///     .matching("action", ["login"])
///     .per(["user"])
///     .build()?;
/// assert_eq!(rule.subject_type(), "user");
///
/// let wrong = RuleBuilder::new("login", Limit::sliding_log(5, Span::from_secs(600))?)
///     .when("usr == 'ann'")
///     .per(["the user"])
///     .build();
/// let error = wrong.unwrap_err().to_string();
/// assert!(error.starts_with("rule `login`, field `per`: `the user` cannot be the name of an attribute"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Budgets, plans, tenants and candidates concern several rules: write them in a file.
#[derive(Clone, Debug)]
#[must_use = "call `build`"]
pub struct RuleBuilder {
    id: String,
    matches: Vec<(String, Vec<String>)>,
    attributes: Vec<(String, AttributeType)>,
    /// The name and the YAML value of each field. A field occurs once.
    fields: Vec<(&'static str, String)>,
    /// Problems that only a rule from code can have.
    problems: Vec<RuleProblem>,
}

/// Why a rule from code was rejected: every problem, with its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    rule: String,
    problems: Vec<RuleProblem>,
}

/// One problem of a rule from code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// The field, by its name in files.
    pub field: &'static str,
    /// The problem, in words.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
}

impl RuleError {
    /// The id of the rule, as given.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The problems. There is at least one.
    #[must_use]
    pub fn problems(&self) -> &[RuleProblem] {
        &self.problems
    }
}

impl std::error::Error for RuleError {}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let (rule, field) = (Short(&self.rule), problem.field);
            write!(f, "rule `{rule}`, field `{field}`: {}", problem.message)?;
            if let Some(help) = &problem.help {
                write!(f, " ({help})")?;
            }
        }
        Ok(())
    }
}

/// The share of the subjects for which a rule is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout(u16);

impl Rollout {
    /// Makes a share from percent. 100 and more mean all subjects.
    #[must_use]
    pub const fn percent(percent: u8) -> Rollout {
        Rollout::hundredths(percent as u16 * 100)
    }

    /// Makes a share from hundredths of a percent. 10,000 and more mean all subjects.
    #[must_use]
    pub const fn hundredths(hundredths: u16) -> Rollout {
        Rollout(if hundredths > 10_000 {
            10_000
        } else {
            hundredths
        })
    }
}

impl RuleBuilder {
    /// Starts a rule. The id must be unique and must not change: state and metrics are kept under it.
    /// Unless other methods say otherwise, the rule applies to every request, and all requests share
    /// one allowance.
    #[allow(clippy::needless_pass_by_value)] // Takes ownership: callers build the limit for this rule.
    pub fn new(id: impl Into<String>, limit: Limit) -> RuleBuilder {
        let mut rule = RuleBuilder {
            id: id.into(),
            matches: Vec::new(),
            attributes: Vec::new(),
            fields: Vec::new(),
            problems: Vec::new(),
        };
        rule.write_limit(&limit);
        rule
    }

    /// Applies the rule only to requests with a matching `attribute`: one of these values, or one of
    /// these globs, such as `/v1/*`. Several attributes must all match. A second call for the same
    /// attribute adds values.
    pub fn matching<V: Into<String>>(
        mut self,
        attribute: impl Into<String>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let attribute = attribute.into();
        let values = values.into_iter().map(Into::into);
        match self.matches.iter_mut().find(|(name, _)| *name == attribute) {
            Some((_, known)) => known.extend(values),
            None => self.matches.push((attribute, values.collect())),
        }
        self
    }

    /// Applies the rule only to requests for which this CEL expression is true.
    pub fn when(self, expression: &str) -> Self {
        self.with("when", quoted(expression))
    }

    /// Gives each subject an allowance of its own. These attributes make the subject.
    pub fn per<N: AsRef<str>>(self, attributes: impl IntoIterator<Item = N>) -> Self {
        let names = attributes.into_iter().map(|it| quoted(it.as_ref()));
        let names: Vec<String> = names.collect();
        self.with("per", format!("[{}]", names.join(", ")))
    }

    /// Sets the type of `attribute` in the expressions of this rule. The default is text.
    pub fn attribute(mut self, attribute: impl Into<String>, kind: AttributeType) -> Self {
        let attribute = attribute.into();
        self.attributes.retain(|(name, _)| *name != attribute);
        self.attributes.push((attribute, kind));
        self
    }

    /// Sets what a request costs: 1 unless this or [`cost_of`](Self::cost_of) is called.
    pub fn cost(self, cost: u64) -> Self {
        self.with("cost", cost.to_string())
    }

    /// Sets a CEL expression that yields what a request costs.
    pub fn cost_of(self, expression: &str) -> Self {
        self.with("cost", quoted(expression))
    }

    /// Sets how the rule treats a request that lacks an attribute the rule needs.
    pub fn missing(self, missing: Missing) -> Self {
        self.with("missing", missing.name().to_owned())
    }

    /// Charges denied requests too.
    pub fn charge_denied(self) -> Self {
        self.with("charge_denied", "true".to_owned())
    }

    /// Sets which denials of the rule are in the log and in the journal of denials.
    pub fn log_denials(self, which: LogDenials) -> Self {
        self.with("log_denials", which.name().to_owned())
    }

    /// Adds a back-off: repeated denials block a subject for longer.
    pub fn backoff(self, backoff: &Backoff) -> Self {
        let it = backoff.schedule();
        let (after, base, factor, max) = (it.after, it.base, it.factor, it.max);
        let mut text = format!("after: {after}, base: {base}, factor: {factor}, max: {max}");
        let _ = write!(text, ", forget: {}", it.forget);
        if it.penalty > Span::ZERO {
            let _ = write!(text, ", penalty: {}", it.penalty);
        }
        self.with("backoff", format!("{{ {text} }}"))
    }

    /// Sets what happens to counts when the numbers of the limit change.
    pub fn carry_over(mut self, carry_over: CarryOver) -> Self {
        if !self.fields.iter().any(|(it, _)| *it == "carry_over") {
            return self.with("carry_over", carry_over.name().to_owned());
        }
        if carry_over != CarryOver::Keep {
            let message = "a quota that moves units into its next period keeps its counts";
            let help = "leave `carry_over` out, or build the quota without rollover";
            self.problems.push(RuleProblem {
                field: "carry_over",
                message: message.to_owned(),
                help: Some(help.to_owned()),
            });
        }
        self
    }

    /// Sets how far below zero the allowance may go. A reservation that is settled for more than it
    /// held can take the allowance below zero.
    pub fn overdraft(self, amount: u64) -> Self {
        self.with("overdraft", amount.to_string())
    }

    /// Sets the longest time that a client may ask for when it takes or renews a slot of concurrency.
    /// Without this, the longest time is the lease of the limit.
    pub fn max_lease(self, most: Span) -> Self {
        self.with("max_lease", most.to_string())
    }

    /// Makes a limit of concurrency follow the latency that is reported for its requests, down to `min`.
    pub fn adaptive(self, min: u64) -> Self {
        self.with("adaptive", format!("{{ min: {min} }}"))
    }

    /// Takes the limit from an attribute of the request, up to `ceiling`. A request without the
    /// attribute gets the rule's own limit.
    pub fn limit_from(self, attribute: &str, ceiling: Ceiling) -> Self {
        self.with("limit_from", quoted(&format!("attributes.{attribute}")))
            .with("ceiling", ceiling.to_string())
    }

    /// Sets how the rule decides while the store does not answer.
    pub fn on_store_failure(self, policy: FailurePolicy) -> Self {
        self.with("on_store_failure", policy.name().to_owned())
    }

    /// While the store does not answer, each instance admits requests at `rate`, for all subjects
    /// together. This also sets the failure policy.
    pub fn emergency_limit(self, rate: Rate) -> Self {
        self.on_store_failure(FailurePolicy::EmergencyLimit)
            .with("emergency_limit", rate.to_string())
    }

    /// Sets which keys share a cluster slot of Redis Cluster.
    pub fn placement(self, placement: Placement) -> Self {
        let text = match placement {
            Placement::Tenant => "tenant".to_owned(),
            Placement::Subject => "subject".to_owned(),
            Placement::Rule => "rule".to_owned(),
            Placement::Sharded(parts) => format!("sharded({parts})"),
        };
        self.with("placement", text)
    }

    /// Keeps the rule's state in the memory of this instance, and decides it before the rules of any other
    /// store.
    pub fn local(self) -> Self {
        self.with("store", "local".to_owned())
    }

    /// Shares the allowance fairly: while clients compete for it, each gets its share. Only for a token bucket.
    pub fn fair(self, shares: &FairShares) -> Self {
        self.with("fair", shares.to_yaml())
    }

    /// Decides in each instance from units that it has drawn before, and that it may use for `slice`. All instances
    /// together never admit more than the limit.
    pub fn leased(mut self, slice: Span) -> Self {
        self.set("mode", ModeName::Leased.name());
        self.fields.retain(|(name, _)| *name != "flush");
        self.with("slice", slice.to_string())
    }

    /// Decides in each instance from its own counts, which it reports after `flush` at the latest. All instances
    /// together may admit more than the limit.
    pub fn asynchronous(mut self, flush: Span) -> Self {
        self.set("mode", ModeName::Async.name());
        self.fields.retain(|(name, _)| *name != "slice");
        self.with("flush", flush.to_string())
    }

    /// Sets whether the rule is enforced, only observed, or off.
    pub fn state(self, state: RuleState) -> Self {
        self.with("state", state.name().to_owned())
    }

    /// Turns the rule on for a share of its subjects.
    pub fn rollout(self, rollout: Rollout) -> Self {
        self.with("rollout", percentage(rollout.0.into()))
    }

    /// Sets the message for denied clients.
    pub fn message(self, message: &str) -> Self {
        self.with("message", quoted(message))
    }

    /// Sets the body of denials, as a template: see [`DenialBody::parse`](crate::DenialBody::parse).
    pub fn denial_body(self, template: &str, content_type: &str) -> Self {
        let (template, content_type) = (quoted(template), quoted(content_type));
        let body = format!("{{ template: {template}, content_type: {content_type} }}");
        self.with("denial_body", body)
    }

    /// Holds back denials before they are answered: at most
    /// [`MAX_DENIAL_DELAY`](crate::MAX_DENIAL_DELAY).
    pub fn delay_denials(self, delay: Span) -> Self {
        self.with("delay_denials", delay.to_string())
    }

    /// Lets requests wait for their turn: see `max_wait` of a rule.
    pub fn max_wait(self, wait: Span) -> Self {
        self.with("max_wait", wait.to_string())
    }

    /// Sets how many requests may wait for one bucket. Has no effect without [`max_wait`](Self::max_wait).
    pub fn max_waiting(self, most: u32) -> Self {
        self.with("max_waiting", most.to_string())
    }

    /// Builds the rule.
    ///
    /// # Errors
    /// If a text is wrong (an id, the name of an attribute, a glob, an expression), or if fields
    /// contradict each other. The error has every problem, with its field.
    pub fn build(self) -> Result<Rule, RuleError> {
        // Each field is on its own line, so that the line of a problem gives the field.
        let mut names = vec!["version"];
        let mut text = "version: 1".to_owned();
        if !self.attributes.is_empty() {
            let kind = |(name, kind): &(String, AttributeType)| {
                format!("{}: {}", quoted(name), kind.name())
            };
            let kinds: Vec<String> = self.attributes.iter().map(kind).collect();
            let _ = write!(text, "\nattributes: {{ {} }}", kinds.join(", "));
            names.push("attributes");
        }
        let _ = write!(text, "\nrules:\n- id: {}", quoted(&self.id));
        names.extend(["rules", "id"]);
        if !self.matches.is_empty() {
            let condition = |(name, values): &(String, Vec<String>)| {
                let values: Vec<String> = values.iter().map(|it| quoted(it)).collect();
                format!("{}: [{}]", quoted(name), values.join(", "))
            };
            let conditions: Vec<String> = self.matches.iter().map(condition).collect();
            let _ = write!(text, "\n  match: {{ {} }}", conditions.join(", "));
            names.push("match");
        }
        for (name, value) in &self.fields {
            let _ = write!(text, "\n  {name}: {value}");
            names.push(name);
        }
        let mut problems = self.problems;
        match Policy::parse(&self.id, &text) {
            Ok(mut policy) if problems.is_empty() => {
                if let Some(rule) = policy.rules.pop() {
                    return Ok(rule);
                }
            }
            Ok(_) => {}
            Err(error) => problems.extend(error.problems().iter().map(|problem| {
                let line = problem.position().map_or(0, |(line, _)| line);
                RuleProblem {
                    field: names.get(line.saturating_sub(1)).copied().unwrap_or("id"),
                    message: problem.message().to_owned(),
                    help: problem.help().map(str::to_owned),
                }
            })),
        }
        Err(RuleError {
            rule: self.id,
            problems,
        })
    }

    /// Sets a field. The new value replaces an earlier value of the field.
    fn with(mut self, name: &'static str, value: String) -> Self {
        self.set(name, value);
        self
    }

    #[allow(clippy::needless_pass_by_value)] // Numbers and texts, made for the call.
    fn set(&mut self, name: &'static str, value: impl ToString) {
        self.fields.retain(|(known, _)| *known != name);
        self.fields.push((name, value.to_string()));
    }

    /// Writes the algorithm and its numbers.
    fn write_limit(&mut self, limit: &Limit) {
        if let Limit::Backoff(_) = limit {
            self.problems.push(RuleProblem {
                field: "algorithm",
                message: "a back-off is not a limit by itself".to_owned(),
                help: Some("give the rule another limit, and call `backoff`".to_owned()),
            });
            return self.write_limit(&Limit::unlimited(Algorithm::FixedWindow));
        }
        self.set("algorithm", limit.algorithm().name());
        match limit {
            Limit::FixedWindow(_)
            | Limit::SlidingLog(_)
            | Limit::TwoWindow(_)
            | Limit::SlidingCounter(_) => {
                self.set("limit", limit.capacity());
                self.set("window", limit.window());
                match limit {
                    Limit::TwoWindow(_) => self.set("estimate", "two-window"),
                    Limit::SlidingCounter(counter) => self.set("buckets", counter.parts().1),
                    _ => {}
                }
            }
            Limit::TokenBucket(meter) => {
                self.set("capacity", meter.capacity());
                self.set("refill", rate_of(meter));
            }
            Limit::Fair(fair) => {
                self.set("capacity", fair.meter().capacity());
                self.set("refill", rate_of(fair.meter()));
                self.problems.push(RuleProblem {
                    field: "fair",
                    message: "a limit does not say who shares it".to_owned(),
                    help: Some("read the rule from a config, with `fair: { per: […] }`".to_owned()),
                });
            }
            Limit::Gcra(meter) => {
                self.set("rate", rate_of(meter));
                self.set("burst", meter.capacity());
            }
            Limit::LeakyBucket(bucket) => {
                self.set("rate", rate_of(bucket.meter()));
                self.set("queue", bucket.meter().capacity().saturating_sub(1));
                if let Leaky::Shape { max_wait } = bucket.leaky() {
                    self.set("shape", true);
                    if let Some(wait) = max_wait {
                        self.set("max_wait", wait);
                    }
                }
            }
            Limit::Quota(quota) => {
                let calendar = quota.calendar();
                let (count, unit) = calendar.unit();
                self.set("limit", quota.limit());
                self.set("period", Every { count, unit });
                self.set("timezone", calendar.zone().name());
                if calendar.anchor() != Anchor::First {
                    self.set("anchor", Start(calendar.anchor()));
                }
                if quota.grace() > 0 {
                    self.set("grace", quota.grace());
                }
                if quota.rollover() > 0 {
                    self.set("carry_over", quota.rollover());
                }
            }
            Limit::Concurrency(slots) => {
                self.set("limit", slots.limit());
                self.set("lease", slots.lease());
            }
            Limit::Unlimited(algorithm) => self.write_unlimited(*algorithm),
            Limit::Backoff(_) => {}
        }
    }

    /// Writes the fields that the algorithm requires, so that the limit is `unlimited`.
    fn write_unlimited(&mut self, algorithm: Algorithm) {
        let numbers: &[(&str, &str)] = match algorithm {
            Algorithm::TokenBucket => &[("capacity", "unlimited"), ("refill", "unlimited")],
            Algorithm::Gcra | Algorithm::LeakyBucket => &[("rate", "unlimited")],
            Algorithm::Quota => &[("limit", "unlimited"), ("period", "day")],
            Algorithm::Concurrency => &[("limit", "unlimited")],
            _ => &[("limit", "unlimited"), ("window", "1s")],
        };
        for (name, value) in numbers {
            self.set(name, value);
        }
    }
}

/// Writes the rate of a meter per second, minute, hour or day: the first of these in which the amount
/// is a whole number.
fn rate_of(meter: &Meter) -> String {
    let (_, amount, token, tick) = meter.parts();
    let (amount, micros) = (u64::from(amount), token * Tick::micros(tick));
    for period in [Span::SECOND, Span::MINUTE, Span::HOUR, Span::DAY] {
        let total = u128::from(amount) * u128::from(period.as_micros());
        if total.is_multiple_of(micros.into())
            && let Ok(whole) = u64::try_from(total / u128::from(micros))
            && let Ok(rate) = Rate::new(whole, period)
        {
            return rate.to_string();
        }
    }
    format!("{amount}/{}", Span::from_micros(micros))
}

/// Writes a text as a quoted YAML string.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    if !text.contains('\'') && text.chars().all(is_plain) {
        return format!("'{text}'");
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            _ if is_plain(c) => quoted.push(c),
            _ => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
        }
    }
    quoted + "\""
}
