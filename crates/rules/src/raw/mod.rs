//! The rules of a config as they are written: which fields exist, of which kind. Whether the values
//! make sense together is decided in `validate`.
//!
//! Every doc comment here is also the description of the field in the JSON schema.

mod cost;
mod tiers;

pub(crate) use cost::{AttributeType, RawCost};
pub(crate) use tiers::{RawBudget, RawNumbers, RawTenant};

use crate::document::{
    Amount, At, Duration, Flag, Lease, List, Named, Node, Percent, PlainRate, Problems,
    RateOrUnlimited, Read, Text, Value, Whole, entries, no_such_word, schema, section, wanted,
    words,
};
use crate::period::{Every, Start};
use crate::placement::Placement;
use crate::rule::{Durability, FailurePolicy, Missing, RuleState};
use crate::share::{Carried, Grace, Overdraft};
use crate::zone::ZoneFrom;

section! {
    /// What a config limits.
    pub struct RawPolicy is "a policy" {
        /// The version of the format: 1.
        version (required): Whole = "version",
        /// The types of attributes that are not text in expressions: int, double or bool.
        attributes: Named<AttributeType> = "attributes",
        /// Allowances that several rules draw on, by name.
        budgets: Named<RawBudget> = "budgets",
        /// Plans: numbers by rule or budget, in the place of those that stand there.
        plans: Named<Named<RawNumbers>> = "plans",
        /// The plan of tenants that have none.
        default_plan: Text = "default_plan",
        /// Tenants, by the value of the attribute tenant: their plans, and numbers of their own.
        tenants: Named<RawTenant> = "tenants",
        /// The rules. A request that no rule matches is allowed.
        rules (required): List<RawRule> = "rules",
    }
}

section! {
    /// A rule: which requests, whose allowance, how much.
    pub(crate) struct RawRule is "a rule" {
        /// The name of the rule, unique and stable: state belongs to it.
        id (required): Text = "id",
        /// Which requests: attribute to value, list of values, or glob. All must hold.
        matches: Conditions = "match",
        /// Which requests, as a CEL expression over the attributes that yields a bool.
        when: Formula = "when",
        /// Whose allowance: the attributes that make the subject. None: one allowance for all.
        per: List<Text> = "per",
        /// What to do with a request that lacks an attribute the rule needs.
        missing: Missing = "missing",
        /// The budget to draw on. It says whose allowance, and how to count.
        budget: Text = "budget",
        /// How to count. A rule that draws on a budget has none.
        algorithm: RawAlgorithm = "algorithm",
        /// The most in a window or a period, or at once for concurrency.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Duration = "window",
        /// The period of a quota: hour, day, week, month or year, or several, such as 3 months.
        period: Every = "period",
        /// Whose clocks say when the period of a quota begins: a name such as Europe/Berlin, or tenant for each tenant's own. Unless given: the tenant's where the allowance is per tenant, or UTC.
        timezone: ZoneFrom = "timezone",
        /// The day that the period of a quota begins on: 1 to 31 of a month, monday to sunday of a week, or a month and a day of a year, such as 04-01. The first unless given.
        anchor: Start = "anchor",
        /// What a quota admits beyond its limit, with a warning: an amount, or a share of the limit such as 10%.
        grace: Grace = "grace",
        /// How long a slot of concurrency is held unless it is renewed, 100ms to 24h: 30s unless given.
        lease: Lease = "lease",
        /// Into how many parts a sliding-counter divides its window: 10 unless given.
        buckets: Whole = "buckets",
        /// A cheaper sliding-counter that estimates from two windows.
        estimate: RawEstimate = "estimate",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: RateOrUnlimited = "refill",
        /// How fast, for gcra and leaky-bucket.
        rate: RateOrUnlimited = "rate",
        /// How many at once, for gcra: the amount of the rate unless given.
        burst: Whole = "burst",
        /// How many may wait, for leaky-bucket: 0 unless given.
        queue: Whole = "queue",
        /// Whether a leaky-bucket tells requests to wait, instead of only refusing.
        shape: Flag = "shape",
        /// The longest wait that shaping may ask for.
        max_wait: Duration = "max_wait",
        /// An attribute whose value, where a request has it, is the limit: attributes.NAME. The numbers of the rule hold where it has not.
        limit_from: Text = "limit_from",
        /// The most that limit_from may say.
        ceiling: Text = "ceiling",
        /// What a request costs: a number, a CEL expression that yields an int, or a table. 1 unless given.
        cost: RawCost = "cost",
        /// Whether refused requests are charged too.
        charge_denied: Flag = "charge_denied",
        /// What becomes of counts when numbers change: keep unless given. On a quota it may also be an amount or a share such as 10%: how much of what is left of a period goes into the next.
        carry_over: Carried = "carry_over",
        /// Whether a quota is kept in the ledger: async, strict to write before answering, or none. Unless given: async where there is a ledger.
        durability: Durability = "durability",
        /// How far below nothing the allowance may go when a reservation is settled for more than it held: an amount, a share of the limit such as 10%, or unlimited. Unless given: unlimited for quotas, and 0 for rates.
        overdraft: Overdraft = "overdraft",
        /// Refusals that lengthen the wait.
        backoff: RawBackoff = "backoff",
        /// What to do when the store cannot be reached.
        on_store_failure: FailurePolicy = "on_store_failure",
        /// The most that an instance allows while the store cannot be reached, all subjects together; only with on_store_failure emergency-limit.
        emergency_limit: PlainRate = "emergency_limit",
        /// Which keys share a place of a Redis cluster: tenant unless given.
        placement: Placement = "placement",
        /// Whether the rule is enforced, only observed, or off.
        state: RuleState = "state",
        /// For what share of the subjects the rule is on.
        rollout: Percent = "rollout",
        /// The rule in force that this one may take the place of. It is compared with it, and refuses nothing; what it does not say, it has from it.
        candidate_of: Text = "candidate_of",
        /// How exactly to count.
        mode: RawMode = "mode",
        /// What to tell a client that this rule refuses.
        message: Text = "message",
    }
}

words! {
    /// How to count.
    pub(crate) enum RawAlgorithm is "an algorithm" {
        /// A counter per aligned window.
        FixedWindow = "fixed-window",
        /// Every request, exactly.
        SlidingLog = "sliding-log",
        /// A window in parts, or estimated from two windows.
        SlidingCounter = "sliding-counter",
        /// Tokens that return at a rate.
        TokenBucket = "token-bucket",
        /// A rate and a burst, in one number.
        Gcra = "gcra",
        /// A queue that drains at a rate.
        LeakyBucket = "leaky-bucket",
        /// So much in each period of the calendar.
        Quota = "quota",
        /// So many at once.
        Concurrency = "concurrency",
    }
}

section! {
    /// Refusals that lengthen the wait.
    pub(crate) struct RawBackoff is "`backoff`" {
        /// How many refusals are free: 0 unless given.
        after: Whole = "after",
        /// How long the first of the others blocks.
        base (required): Duration = "base",
        /// How many times as long each further one blocks, up to 100: 2 unless given.
        factor: Whole = "factor",
        /// How long one blocks at most: 1h unless given, or the base if that is longer.
        max: Duration = "max",
        /// All is forgotten after so long without a refusal: as long as max unless given.
        forget: Duration = "forget",
        /// What asking while blocked adds to the block: nothing unless given.
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

tiers::written!(RawRule);

/// How exactly to count: `exact` is the only mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawMode;

impl Read for RawMode {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RawMode> {
        match node.text() {
            Some("exact") => return Some(RawMode),
            Some(mode @ ("leased" | "async")) => problems.report(
                node.place,
                format!("there is no mode `{mode}`"),
                "leave `mode` out, or write `exact`: every check is decided exactly",
            ),
            _ => no_such_word("a mode", &["exact"], node, problems),
        }
        None
    }
}

schema!(RawMode, "Mode", _generator => { "enum": ["exact"] });

/// A number or a CEL expression.
#[derive(Clone, Debug)]
pub(crate) struct Formula {
    pub(crate) text: String,
    /// Where the text starts in the source, if it stands there letter for letter.
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
        Some(Formula {
            text: text.to_owned(),
            verbatim,
        })
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
                problems.report(
                    place,
                    format!("`{name}` is given twice"),
                    format!("it was first given on line {line}: write one list of values"),
                );
                continue;
            }
            let values = match &node.value {
                Value::List(items) => {
                    if items.is_empty() {
                        problems.report(
                            node.place,
                            format!("no value of `{name}` would match"),
                            "list at least one value, or leave the condition out",
                        );
                    }
                    items
                        .iter()
                        .filter_map(|item| accepted(item, problems))
                        .collect()
                }
                _ => accepted(node, problems).into_iter().collect(),
            };
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
