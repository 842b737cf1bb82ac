//! Fair shares of an allowance, as a config describes them: who shares it, with which weights and lanes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tollgate_core::Subject;
use tollgate_core::fair::{Client, Lane, MAX_LANES, MAX_WEIGHT, WHOLE};

use crate::document::{
    At, Duration, Field, List, Named, Node, Percent, Problems, Read, Short, Text, Whole,
    percentage, section, suggestion,
};
use crate::rule::Rule;
use crate::symbols::AttributeId;
use crate::validate::check_attribute;
use crate::waiting;

/// The attribute that stands for the plan of the request's tenant, if plans are configured.
pub(crate) const PLAN: &str = "plan";
/// The most values that have a weight of their own.
const MAX_WEIGHTS: usize = 1000;

/// How clients share an allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fairness {
    pub(crate) per: Vec<String>,
    pub(crate) weights: Option<Weights>,
    pub(crate) lanes: Option<Lanes>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_waiting: Option<Whole>,
}

/// The weights of clients, by the value of an attribute. A client with another value has weight 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) by: String,
    pub(crate) of: Vec<(String, u32)>,
}

/// The lanes of an allowance, by the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    pub(crate) by: String,
    pub(crate) named: Vec<(String, Lane)>,
    /// The lane of requests with another value, or none.
    pub(crate) otherwise: usize,
}

impl Fairness {
    /// The attributes that make a client.
    #[must_use]
    pub fn per(&self) -> &[String] {
        &self.per
    }

    /// The names of the lanes, in order; empty without lanes.
    pub fn lane_names(&self) -> impl Iterator<Item = &str> {
        let named = self.lanes.iter().flat_map(|it| &it.named);
        named.map(|(name, _)| name.as_str())
    }

    /// The lanes of the bucket: one for everything if the config has none.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        match &self.lanes {
            Some(lanes) => lanes.named.iter().map(|(_, lane)| *lane).collect(),
            None => vec![Lane::ONLY],
        }
    }
}

/// The lanes of a fair rule with their shares in hundredths of a percent, and all weights that its clients can have.
pub type FairClasses = (Vec<(Arc<str>, u32)>, Vec<u32>);

/// Returns the lanes of a fair rule, in order, and the weights of clients, in order; `None` for other rules. A rule
/// without lanes has one lane without a name.
#[must_use]
pub fn fair_classes(rule: &Rule) -> Option<FairClasses> {
    let fairness = rule.counting.numbers.fair.as_ref()?;
    let lanes = match &fairness.lanes {
        Some(lanes) => {
            let named = lanes.named.iter();
            named
                .map(|(name, lane)| (name.as_str().into(), lane.share))
                .collect()
        }
        None => vec![("".into(), WHOLE)],
    };
    let given = fairness.weights.iter().flat_map(|it| &it.of);
    let mut weights: Vec<u32> = given.map(|(_, weight)| *weight).chain([1]).collect();
    weights.sort_unstable();
    weights.dedup();
    Some((lanes, weights))
}

/// Shows fair shares as `explain` and a comparison of configs tell them.
impl fmt::Display for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "per {}", self.per.join(" + "))?;
        if let Some(weights) = &self.weights {
            write!(f, ", weights by {}:", weights.by)?;
            for (value, weight) in &weights.of {
                write!(f, " {value} {weight}")?;
            }
        }
        if let Some(lanes) = &self.lanes {
            write!(f, ", lanes by {}:", lanes.by)?;
            for (name, lane) in &lanes.named {
                let strict = if lane.strict { " strict" } else { "" };
                write!(f, " {name} {}{strict}", percentage(lane.share))?;
            }
            let (otherwise, _) = &lanes.named[lanes.otherwise];
            write!(f, ", otherwise {otherwise}")?;
        }
        if let Some(max_wait) = &self.max_wait {
            write!(f, ", max_wait {max_wait}")?;
        }
        if let Some(max_waiting) = &self.max_waiting {
            write!(f, ", max_waiting {max_waiting}")?;
        }
        Ok(())
    }
}

/// Fair shares, ready for requests.
#[derive(Debug)]
pub(crate) struct CompiledFair {
    /// The attributes that make a client, as an index of `RuleSet::subjects`.
    pub(crate) client: usize,
    pub(crate) weights: Option<CompiledWeights>,
    pub(crate) lanes: Option<CompiledLanes>,
}

#[derive(Debug)]
pub(crate) struct CompiledWeights {
    pub(crate) by: AttributeId,
    pub(crate) of: HashMap<Box<str>, u32>,
    /// The weights of the plans, if weights go by the plan.
    pub(crate) plans: Option<Box<[u32]>>,
}

impl CompiledWeights {
    fn of(&self, values: &[Option<&str>], plan: Option<u16>) -> u32 {
        let of_value = || self.of.get(values[self.by as usize]?).copied();
        of_plan(self.plans.as_deref(), plan)
            .or_else(of_value)
            .unwrap_or(1)
    }
}

#[derive(Debug)]
pub(crate) struct CompiledLanes {
    pub(crate) by: AttributeId,
    pub(crate) named: Box<[(Box<str>, u8)]>,
    pub(crate) otherwise: u8,
    /// The lanes of the plans, if lanes go by the plan.
    pub(crate) plans: Option<Box<[u8]>>,
}

impl CompiledLanes {
    pub(crate) fn named(&self, name: &str) -> u8 {
        let found = self.named.iter().find(|(it, _)| **it == *name);
        found.map_or(self.otherwise, |(_, lane)| *lane)
    }

    fn of(&self, values: &[Option<&str>], plan: Option<u16>) -> u8 {
        let of_value = || Some(self.named(values[self.by as usize]?));
        of_plan(self.plans.as_deref(), plan)
            .or_else(of_value)
            .unwrap_or(self.otherwise)
    }
}

/// Returns what the plan of a request has in a list by plan. Without a list or a plan, the attribute of the request
/// counts.
fn of_plan<T: Copy>(plans: Option<&[T]>, plan: Option<u16>) -> Option<T> {
    plans?.get(usize::from(plan?)).copied()
}

impl CompiledFair {
    /// Returns the client of a request with these values, and the plan of its tenant. A request that lacks an
    /// attribute of the client has no `subject`: all such requests are one client.
    pub(crate) fn asks(
        &self,
        subject: Option<Subject>,
        values: &[Option<&str>],
        plan: Option<u16>,
    ) -> Client {
        let weight = self.weights.as_ref().map_or(1, |it| it.of(values, plan));
        let lane = self.lanes.as_ref().map_or(0, |it| it.of(values, plan));
        // The bits of a keyed hash: half of them identify a client among the clients of one bucket.
        #[allow(clippy::cast_possible_truncation)]
        let id = subject.map_or(0, |it| (it.bits() >> 64) as u64);
        Client { id, weight, lane }
    }
}

section! {
    /// Fair shares: while clients compete for an allowance, each gets its share.
    pub(crate) struct RawFair is "`fair`" {
        /// The attributes that make a client. Requests without one of them are one client together.
        per (required): List<Text> = "per",
        /// The weights of clients, by the value of one attribute, such as plan (default 1). The plan of a tenant counts if the attribute is plan.
        weights: Named<Named<Whole>> = "weights",
        /// Lanes: guaranteed parts of the allowance, by the value of an attribute.
        lanes: RawLanes = "lanes",
        /// How long a request may wait for its turn at a door that waits, 1ms to 30s (default: not at all).
        max_wait: Duration = "max_wait",
        /// The most requests that wait for one bucket in one instance, 1 to 100000 (default 1000).
        max_waiting: Whole = "max_waiting",
    }
}

section! {
    /// Lanes: guaranteed parts of an allowance. A lane borrows what others leave.
    pub(crate) struct RawLanes is "`lanes`" {
        /// The attribute that names the lane of a request.
        by (required): Text = "by",
        /// The guaranteed part of each lane. Together they are 100%.
        shares (required): Named<Percent> = "shares",
        /// The lanes that never get more than their part.
        strict: List<Text> = "strict",
        /// The lane of requests that name none, or another one (default: the last lane).
        otherwise: Text = "otherwise",
    }
}

impl Read for Fairness {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Fairness> {
        let raw = RawFair::read(node, problems)?;
        let before = problems.len();
        if raw.per.is_absent() {
            let help = "add the attributes that make a client, such as `per: [tenant]`";
            problems.report(node.place, "`fair` has no `per`", help);
        }
        let per = raw.per.get()?;
        if per.value.0.is_empty() {
            let help = "list the attributes that make a client, such as [tenant]";
            problems.report(
                per.place,
                "without attributes there is only one client",
                help,
            );
        }
        let mut names: Vec<String> = Vec::new();
        for at in &per.value.0 {
            check_attribute(&at.value.0, at.place, problems);
            if names.contains(&at.value.0) {
                let message = format!("`{}` is listed twice", at.value.0);
                problems.report(at.place, message, "list it once");
            }
            names.push(at.value.0.clone());
        }
        let fairness = Fairness {
            per: names,
            weights: weights(&raw.weights, problems)?,
            lanes: lanes(&raw.lanes, problems)?,
            max_wait: raw.max_wait.value().copied(),
            max_waiting: raw.max_waiting.value().copied(),
        };
        waiting::check(&raw.max_wait, &raw.max_waiting, problems);
        (problems.len() == before).then_some(fairness)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Fairness {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        RawFair::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        RawFair::json_schema(generator)
    }
}

/// Returns the weights. The outer `None` means that they are wrong; the problem was reported.
#[allow(clippy::option_option)]
fn weights(
    field: &Field<Named<Named<Whole>>>,
    problems: &mut Problems<'_>,
) -> Option<Option<Weights>> {
    let at = match field {
        Field::Absent => return Some(None),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => at,
    };
    let [(by, values)] = &at.value.0[..] else {
        let message = "weights go by one attribute";
        let help =
            "write one attribute with its values, such as `weights: { plan: { free: 1, pro: 5 } }`";
        problems.report(at.place, message, help);
        return None;
    };
    check_attribute(&by.value, by.place, problems);
    let mut of: Vec<(String, u32)> = Vec::new();
    for (value, weight) in &values.value.0 {
        if of.iter().any(|(known, _)| *known == value.value) {
            let message = format!("`{}` is given twice", Short(&value.value));
            problems.report(value.place, message, "keep one of the two");
        }
        let whole = u32::try_from(weight.value.0).unwrap_or(u32::MAX);
        if !(1..=MAX_WEIGHT).contains(&whole) {
            let message = format!("a weight of {whole} is not between 1 and {MAX_WEIGHT}");
            let help =
                "write a whole number; weights are relative, so 1 and 5 are the same as 10 and 50";
            problems.report(weight.place, message, help);
        }
        of.push((value.value.clone(), whole));
    }
    if of.is_empty() || of.len() > MAX_WEIGHTS {
        let message = format!(
            "{} values have a weight, and 1 to {MAX_WEIGHTS} can",
            of.len()
        );
        problems.report(values.place, message, "other values have the weight 1");
    }
    let by = by.value.clone();
    Some(Some(Weights { by, of }))
}

/// Returns the lanes. The outer `None` means that they are wrong; the problem was reported.
#[allow(clippy::option_option)]
fn lanes(field: &Field<RawLanes>, problems: &mut Problems<'_>) -> Option<Option<Lanes>> {
    let at = match field {
        Field::Absent => return Some(None),
        Field::Broken { .. } => return None,
        Field::Given { at, .. } => at,
    };
    let raw = &at.value;
    for (name, is_absent, sample) in [
        ("by", raw.by.is_absent(), "`by: priority`"),
        (
            "shares",
            raw.shares.is_absent(),
            "`shares: { high: 60%, low: 40% }`",
        ),
    ] {
        if is_absent {
            let message = format!("`lanes` has no `{name}`");
            problems.report(at.place, message, format!("add {sample}"));
        }
    }
    let (by, shares) = (raw.by.get()?, raw.shares.get()?);
    check_attribute(&by.value.0, by.place, problems);
    let mut named: Vec<(String, Lane)> = Vec::new();
    for (name, share) in &shares.value.0 {
        if named.iter().any(|(known, _)| *known == name.value) {
            let message = format!("`{}` is given twice", Short(&name.value));
            problems.report(name.place, message, "keep one of the two");
        }
        if share.value.0 == 0 {
            let message = format!("the lane `{}` has no share", Short(&name.value));
            let help = "give it at least 0.01%: a lane without a share would wait for ever";
            problems.report(share.place, message, help);
        }
        let lane = Lane {
            share: share.value.0.into(),
            strict: false,
        };
        named.push((name.value.clone(), lane));
    }
    let sum: u32 = named.iter().map(|(_, lane)| lane.share).sum();
    if !(1..=MAX_LANES).contains(&named.len()) {
        let message = format!("there are {} lanes", named.len());
        problems.report(
            shares.place,
            message,
            format!("write 1 to {MAX_LANES} lanes"),
        );
        return None;
    }
    if sum != WHOLE {
        let message = format!("the shares are {} together", percentage(sum));
        problems.report(shares.place, message, "make them 100% together");
    }
    let place = |at: &At<Text>, problems: &mut Problems<'_>| {
        let name = at.value.0.as_str();
        let found = shares.value.0.iter().position(|(it, _)| it.value == name);
        if found.is_none() {
            let known = shares.value.0.iter().map(|(it, _)| it.value.as_str());
            let help = suggestion(name, known, "name a lane of `shares`");
            let message = format!("there is no lane `{}`", Short(name));
            problems.report(at.place, message, help);
        }
        found
    };
    for at in raw.strict.value().map_or(&[][..], |list| &list.0) {
        if let Some(lane) = place(at, problems) {
            named[lane].1.strict = true;
        }
    }
    let otherwise = match raw.otherwise.get() {
        Some(at) => place(at, problems)?,
        None => named.len() - 1,
    };
    let by = by.value.0.clone();
    Some(Some(Lanes {
        by,
        named,
        otherwise,
    }))
}
