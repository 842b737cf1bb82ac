//! The fields of rules in a config, and the type of each field. `validate` decides whether the values
//! make sense together.
//!
//! Every doc comment here is also the description of the field in the JSON schema.

use crate::adaptation::GivenAdaptation;
use crate::denial_body::RawDenialBody;
use crate::document::{
    Amount, At, Duration, Field, Flag, Lease, List, Named, Node, Percent, PlainRate, Problems,
    RateOrUnlimited, Read, Text, Value, Whole, entries, schema, section, wanted, words,
};
use crate::fairness::Fairness;
use crate::limits::Written;
use crate::mode::ModeName;
use crate::period::{Every, Start};
use crate::placement::Placement;
use crate::rule::{Durability, FailurePolicy, LogDenials, Missing, RuleState};
use crate::share::{Carried, Grace, Overdraft};
use crate::zone::ZoneFrom;

section! {
    /// The fields of a config that say what is limited. `RawPolicy::validate` turns them into a policy.
    pub struct RawPolicy is "a policy" {
        /// The version of the format: 1.
        version (required): Whole = "version",
        /// The types of attributes that are not text in expressions: int, double or bool.
        attributes: Named<AttributeType> = "attributes",
        /// Allowances that several rules draw on, by name.
        budgets: Named<RawBudget> = "budgets",
        /// Plans: each replaces numbers of rules and budgets, by their names.
        plans: Named<Named<RawNumbers>> = "plans",
        /// The plan of tenants without a plan of their own.
        default_plan: Text = "default_plan",
        /// An attribute that names the plan of a request: attributes.NAME, or jwt.claims.NAME for a claim of its token. A request without it, or with a name that is not a plan, has the plan of its tenant or the default plan.
        plan_from: Text = "plan_from",
        /// Tenants, by the value of the attribute tenant: their plans, and numbers of their own.
        tenants: Named<RawTenant> = "tenants",
        /// The rules. A request that no rule matches is allowed.
        rules (required): List<RawRule> = "rules",
    }
}

section! {
    /// A rule: which requests it limits, per which subject, and how much.
    pub(crate) struct RawRule is "a rule" {
        /// The name of the rule, unique and stable: state belongs to it.
        id (required): Text = "id",
        /// Which requests the rule limits: names of attributes, each with a value, a list of values, or a glob. The attribute ip also takes networks, such as 10.0.0.0/8. All attributes must match.
        matches: Conditions = "match",
        /// Which requests, as a CEL expression over the attributes that yields a bool.
        when: Formula = "when",
        /// How to treat a request that lacks an attribute the rule needs.
        missing: Missing = "missing",
        /// The budget to draw on. It defines the subject and the algorithm.
        budget: Text = "budget",
        /// The algorithm that counts. A rule that draws on a budget uses the budget's algorithm.
        algorithm: RawAlgorithm = "algorithm",
        /// An attribute that brings the limit of a request: attributes.NAME, or jwt.claims.NAME for a claim of its token. A request without the attribute gets the numbers of the rule.
        limit_from: Text = "limit_from",
        /// The highest limit that limit_from may bring.
        ceiling: Text = "ceiling",
        /// The cost of a request: a number, a CEL expression that yields an int, or a table (default 1).
        cost: RawCost = "cost",
        /// Whether denied requests are charged too.
        charge_denied: Flag = "charge_denied",
        /// A back-off: each further denial blocks the subject for longer.
        backoff: RawBackoff = "backoff",
        /// How to decide when the store fails.
        on_store_failure: FailurePolicy = "on_store_failure",
        /// The most that one instance allows while the store fails, for all subjects together; only with on_store_failure emergency-limit.
        emergency_limit: PlainRate = "emergency_limit",
        /// Whether the rule is enforced, only observed, or off.
        state: RuleState = "state",
        /// The share of subjects that the rule applies to.
        rollout: Percent = "rollout",
        /// The rule that this candidate may replace. A candidate is compared with that rule and denies nothing. Fields that the candidate leaves out are taken from that rule.
        candidate_of: Text = "candidate_of",
        /// The message for a client that this rule denies.
        message: Text = "message",
        /// The body of a denial by this rule, as a template: a text with fields such as {{retry_after}}, or a map with a content type.
        denial_body: RawDenialBody = "denial_body",
        /// How long a denial by this rule is held back before it is answered, 1ms to 5s (default: not at all).
        delay_denials: Duration = "delay_denials",
        /// Which denials are in the log and in the journal of denials: sampled, up to a number per second, or all (default sampled).
        log_denials: LogDenials = "log_denials",
        ..allowance: RawAllowance
    }
}

section! {
    /// An allowance: its subject, its numbers and its terms.
    pub(crate) struct RawAllowance is "an allowance" {
        /// The attributes that make the subject. Without any, all requests share one allowance.
        per: List<Text> = "per",
        /// The most units in a window or a period. For concurrency, the most slots held at the same time.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Duration = "window",
        /// The period of a quota: hour, day, week, month or year, or several, such as 3 months.
        period: Every = "period",
        /// The time zone in which the periods of a quota begin: a name such as Europe/Berlin, or tenant for each tenant's own. Default: the tenant's if the allowance is per tenant, otherwise UTC.
        timezone: ZoneFrom = "timezone",
        /// The day that the period of a quota begins on: 1 to 31 of a month, monday to sunday of a week, or a month and a day of a year, such as 04-01. Default: the first.
        anchor: Start = "anchor",
        /// How much a quota admits beyond its limit, with a warning: an amount, or a share of the limit such as 10%.
        grace: Grace = "grace",
        /// How long a slot of concurrency is held unless it is renewed, 100ms to 24h (default 30s).
        lease: Lease = "lease",
        /// Into how many parts a sliding-counter divides its window (default 10).
        buckets: Whole = "buckets",
        /// A cheaper sliding-counter that estimates from two windows.
        estimate: RawEstimate = "estimate",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: RateOrUnlimited = "refill",
        /// How many units per time, such as 10/s, for gcra and leaky-bucket.
        rate: RateOrUnlimited = "rate",
        /// How many units at once, for gcra (default: the amount of the rate).
        burst: Whole = "burst",
        /// How many units may wait, for leaky-bucket (default 0).
        queue: Whole = "queue",
        /// Whether a leaky-bucket makes requests wait instead of denying them.
        shape: Flag = "shape",
        /// How long a request may wait for its turn instead of being denied, 1ms to 30s. For a leaky-bucket that shapes: the longest wait that it may ask for.
        max_wait: Duration = "max_wait",
        /// The most requests that wait for one bucket in one instance, 1 to 100000 (default 1000).
        max_waiting: Whole = "max_waiting",
        /// Fair shares, for token-bucket: while clients compete for the bucket, each gets its share.
        fair: Fairness = "fair",
        /// Which keys share a slot of a Redis cluster (default tenant).
        placement: Placement = "placement",
        /// The store that keeps the state: local (the memory of this instance, decided before any other store), a name of stores, or default (the store section). Default: default.
        store: Text = "store",
        /// How counts carry over when numbers change (default keep). For a quota also how much of the unused rest of a period goes into the next period: an amount, or a share such as 10%.
        carry_over: Carried = "carry_over",
        /// Whether the usage of a quota is recorded in the ledger: async (soon after the answer), strict (before the answer) or none. Default: async if there is a ledger.
        durability: Durability = "durability",
        /// How far the allowance may be overdrawn when a reservation is settled for more than it held: an amount, a share of the limit such as 10%, or unlimited. Default: unlimited for quotas, 0 for rates.
        overdraft: Overdraft = "overdraft",
        /// The longest time that a client may ask for when it takes or renews a slot of concurrency, up to 24h (default: lease).
        max_lease: Lease = "max_lease",
        /// A concurrency limit that follows the latency that clients report with POST /v1/report: true, or its fields. The limit of the rule is the largest.
        adaptive: GivenAdaptation = "adaptive",
        /// Where requests are decided: exact (in the store, every request), leased (in each instance, from units that it has drawn before) or async (in each instance, from counts that it reports later; all together may exceed the limit). Default: exact.
        mode: ModeName = "mode",
        /// How long drawn units may be used, for mode leased, 10ms to 1m (default 100ms).
        slice: Duration = "slice",
        /// How long admitted units may wait before they are reported to the store, for mode async, 50ms to 1m (default 500ms).
        flush: Duration = "flush",
    }
}

section! {
    /// A budget: one allowance that several rules draw on.
    pub(crate) struct RawBudget is "a budget" {
        /// The algorithm that counts.
        algorithm (required): RawAlgorithm = "algorithm",
        ..allowance: RawAllowance
    }
}

section! {
    /// Numbers that replace those of a rule or a budget. Numbers that are left out stay as they are.
    pub(crate) struct RawNumbers is "numbers" {
        /// The most units in a window or a period. For concurrency, the most slots held at the same time.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Duration = "window",
        /// The period of a quota: hour, day, week, month or year, or several, such as 3 months.
        period: Every = "period",
        /// The time zone in which the periods of a quota begin: a name such as Europe/Berlin, or tenant for each tenant's own.
        timezone: ZoneFrom = "timezone",
        /// The day that the period of a quota begins on: 1 to 31 of a month, monday to sunday of a week, or a month and a day of a year, such as 04-01.
        anchor: Start = "anchor",
        /// How much a quota admits beyond its limit, with a warning: an amount, or a share of the limit such as 10%.
        grace: Grace = "grace",
        /// How much of the unused rest of a quota's period goes into the next period: an amount, or a share such as 10%.
        carry_over: Carried = "carry_over",
        /// How long a slot of concurrency is held unless it is renewed, 100ms to 24h.
        lease: Lease = "lease",
        /// Into how many parts a sliding-counter divides its window.
        buckets: Whole = "buckets",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: RateOrUnlimited = "refill",
        /// How many units per time, such as 10/s, for gcra and leaky-bucket.
        rate: RateOrUnlimited = "rate",
        /// How many units at once, for gcra.
        burst: Whole = "burst",
        /// How many units may wait, for leaky-bucket.
        queue: Whole = "queue",
        /// The longest wait that shaping may ask for.
        max_wait: Duration = "max_wait",
    }
}

section! {
    /// A tenant: its plan, and its own numbers.
    pub(crate) struct RawTenant is "a tenant" {
        /// The tenant's plan (default: default_plan).
        plan: Text = "plan",
        /// The time zone of the tenant's quotas, such as Europe/Berlin (default UTC). A zone that a rule or a plan names takes precedence.
        timezone: Text = "timezone",
        /// The tenant's own numbers, by rule or budget.
        overrides: Named<RawNumbers> = "overrides",
    }
}

words! {
    /// The algorithm that counts.
    pub(crate) enum RawAlgorithm is "an algorithm" {
        /// A counter per aligned window.
        FixedWindow = "fixed-window",
        /// The time of every request, so the count is exact.
        SlidingLog = "sliding-log",
        /// A window in parts, or estimated from two windows.
        SlidingCounter = "sliding-counter",
        /// Tokens that return at a rate.
        TokenBucket = "token-bucket",
        /// A rate and a burst, in one number.
        Gcra = "gcra",
        /// A queue that drains at a rate.
        LeakyBucket = "leaky-bucket",
        /// An amount in each calendar period.
        Quota = "quota",
        /// A number of slots held at the same time.
        Concurrency = "concurrency",
    }
}

section! {
    /// A back-off: each further denial blocks the subject for longer.
    pub(crate) struct RawBackoff is "`backoff`" {
        /// How many denials come before the first block (default 0).
        after: Whole = "after",
        /// How long the first block lasts.
        base (required): Duration = "base",
        /// The factor by which each further denial lengthens the block, up to 100 (default 2).
        factor: Whole = "factor",
        /// The longest block (default 1h, or the base if that is longer).
        max: Duration = "max",
        /// After this time without a denial, earlier denials are forgotten (default: max).
        forget: Duration = "forget",
        /// How much each request during a block lengthens the block (default nothing).
        penalty: Duration = "penalty",
    }
}

words! {
    /// How a sliding-counter estimates.
    pub(crate) enum RawEstimate is "an estimate" {
        /// From the current and the previous window.
        TwoWindow = "two-window",
    }
}

impl RawNumbers {
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            limit: &self.limit,
            window: &self.window,
            period: &self.period,
            timezone: &self.timezone,
            anchor: &self.anchor,
            grace: &self.grace,
            carry_over: &self.carry_over,
            lease: &self.lease,
            buckets: &self.buckets,
            estimate: &Field::Absent,
            capacity: &self.capacity,
            refill: &self.refill,
            rate: &self.rate,
            burst: &self.burst,
            queue: &self.queue,
            shape: &Field::Absent,
            max_wait: &self.max_wait,
            max_waiting: &Field::Absent,
            fair: &Field::Absent,
        }
    }
}

words! {
    /// The type of an attribute in expressions.
    pub enum AttributeType is "a type" {
        /// Text, the default.
        String = "string",
        /// A whole number.
        Int = "int",
        /// A number.
        Double = "double",
        /// True or false.
        Bool = "bool",
    }
}

section! {
    /// A table of costs: the first row that matches a request sets its cost.
    pub(crate) struct RawCostTable is "a table of costs" {
        /// The rows, in order.
        table (required): List<RawCostRow> = "table",
        /// The cost of a request that matches no row (default 1).
        otherwise: Formula = "otherwise",
    }
}

section! {
    /// A row of a table of costs.
    pub(crate) struct RawCostRow is "a row of costs" {
        /// Which requests the row is for: names of attributes, each with a value, a list of values, or a glob. All attributes must match.
        matches (required): Conditions = "match",
        /// The cost of these requests: a number, or a CEL expression that yields an int.
        cost (required): Formula = "cost",
    }
}

/// One cost for all requests, or a table.
#[derive(Debug)]
pub(crate) enum RawCost {
    One(Formula),
    Table(Box<RawCostTable>),
}

impl Read for RawCost {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RawCost> {
        match &node.value {
            Value::Map(_) => RawCostTable::read(node, problems).map(|it| RawCost::Table(it.into())),
            _ => Formula::read(node, problems).map(RawCost::One),
        }
    }
}

schema!(RawCost, "Cost", generator => { "anyOf": [generator.subschema_for::<Formula>(), generator.subschema_for::<RawCostTable>()] });

/// A number or a CEL expression.
#[derive(Clone, Debug)]
pub(crate) struct Formula {
    pub(crate) text: String,
    /// Where the text starts in the source, if it is written there without escapes.
    pub(crate) verbatim: Option<usize>,
}

impl Read for Formula {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Formula> {
        let Some(text) = node.text().filter(|_| !node.is_null()) else {
            let help = "write it in quotes, such as 'method != \"OPTIONS\"'";
            wanted("an expression", help, node, problems);
            return None;
        };
        let written = problems.source().get(node.place.start..node.place.end);
        let verbatim = written.and_then(|written| {
            let quotes = usize::from(!node.is_plain());
            let inner = written.get(quotes..written.len().checked_sub(quotes)?)?;
            (inner == text).then_some(node.place.start + quotes)
        });
        let text = text.to_owned();
        Some(Formula { text, verbatim })
    }
}

schema!(Formula, "Formula", _generator => { "type": ["string", "integer", "boolean"] });

/// The conditions of a `match`.
#[derive(Debug)]
pub(crate) struct Conditions(pub(crate) Vec<(At<String>, Vec<At<String>>)>);

impl Read for Conditions {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Conditions> {
        let mut conditions: Vec<(At<String>, Vec<At<String>>)> = Vec::new();
        for (name, place, node) in entries(node, "`match`", problems)? {
            if let Some((first, _)) = conditions.iter().find(|(known, _)| known.value == name) {
                let line = problems.line_of(first.place);
                let help = format!("the first one is on line {line}: write one list of values");
                problems.report(place, format!("`{name}` is given twice"), help);
                continue;
            }
            let values = match &node.value {
                Value::List(items) => &items[..],
                _ => std::slice::from_ref(node),
            };
            if values.is_empty() {
                let message = format!("no value of `{name}` would match");
                let help = "list at least one value, or remove the condition";
                problems.report(node.place, message, help);
            }
            let values = values.iter();
            let values = values
                .filter_map(|value| accepted(value, problems))
                .collect();
            let value = name.to_owned();
            conditions.push((At { place, value }, values));
        }
        Some(Conditions(conditions))
    }
}

fn accepted(node: &Node, problems: &mut Problems<'_>) -> Option<At<String>> {
    match node.text() {
        Some(text) if !node.is_null() => Some(At {
            place: node.place,
            value: text.to_owned(),
        }),
        _ => {
            let help = "write a value, a list of values, or a glob such as \"/v1/*\"";
            wanted("a value", help, node, problems);
            None
        }
    }
}

schema!(Conditions, "Conditions", generator => {
    "type": "object",
    "propertyNames": { "pattern": crate::validate::ATTRIBUTE_PATTERN },
    "additionalProperties": {
        "anyOf": [generator.subschema_for::<Text>(), { "type": "array", "minItems": 1, "items": generator.subschema_for::<Text>() }],
    },
});
