//! Plans, tenants and budgets as they are written, and the numbers they give.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{RawAlgorithm, RawCarryOver, RawEstimate};
use crate::error::Problems;
use crate::limits::Written;
use crate::placement::Placement;
use crate::read::{At, Field, Read, entries, section};
use crate::values::{Amount, Flag, Length, List, Speed, Text, Whole};
use crate::yaml::Node;

section! {
    /// Numbers that replace those of a rule or a budget; those that are left out stay.
    struct RawNumbers is "numbers" {
        /// The most in a window, for fixed-window, sliding-log and sliding-counter.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Length = "window",
        /// Into how many parts a sliding-counter divides its window.
        buckets: Whole = "buckets",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: Speed = "refill",
        /// How fast, for gcra and leaky-bucket.
        rate: Speed = "rate",
        /// How many at once, for gcra.
        burst: Whole = "burst",
        /// How many may wait, for leaky-bucket.
        queue: Whole = "queue",
        /// The longest wait that shaping may ask for.
        max_wait: Length = "max_wait",
    }
}

section! {
    /// A tenant: its plan, and the numbers that are its own.
    struct RawTenant is "a tenant" {
        /// Its plan: default_plan unless given.
        plan: Text = "plan",
        /// Numbers that are its own, by rule or budget.
        overrides: Named<RawNumbers> = "overrides",
    }
}

section! {
    /// A budget: one allowance that several rules draw on.
    struct RawBudget is "a budget" {
        /// Whose: the attributes that make the subject. None: one allowance for all.
        per: List<Text> = "per",
        /// How to count.
        algorithm (required): RawAlgorithm = "algorithm",
        /// The most in a window, for fixed-window, sliding-log and sliding-counter.
        limit: Amount = "limit",
        /// The length of a window, for fixed-window, sliding-log and sliding-counter.
        window: Length = "window",
        /// Into how many parts a sliding-counter divides its window: 10 unless given.
        buckets: Whole = "buckets",
        /// A cheaper sliding-counter that estimates from two windows.
        estimate: RawEstimate = "estimate",
        /// The most tokens, for token-bucket.
        capacity: Amount = "capacity",
        /// How fast tokens return, for token-bucket.
        refill: Speed = "refill",
        /// How fast, for gcra and leaky-bucket.
        rate: Speed = "rate",
        /// How many at once, for gcra: the amount of the rate unless given.
        burst: Whole = "burst",
        /// How many may wait, for leaky-bucket: 0 unless given.
        queue: Whole = "queue",
        /// Whether a leaky-bucket tells requests to wait, instead of only refusing.
        shape: Flag = "shape",
        /// The longest wait that shaping may ask for.
        max_wait: Length = "max_wait",
        /// Which keys share a place of a Redis cluster: tenant unless given.
        placement: Placement = "placement",
        /// What becomes of counts when numbers change: keep unless given.
        carry_over: RawCarryOver = "carry_over",
    }
}

impl RawNumbers {
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            limit: &self.limit,
            window: &self.window,
            buckets: &self.buckets,
            estimate: &Field::Absent,
            capacity: &self.capacity,
            refill: &self.refill,
            rate: &self.rate,
            burst: &self.burst,
            queue: &self.queue,
            shape: &Field::Absent,
            max_wait: &self.max_wait,
        }
    }
}

/// The numbers of a section that has all of them.
macro_rules! written {
    ($section:ident) => {
        impl $section {
            pub(crate) fn written(&self) -> $crate::limits::Written<'_> {
                $crate::limits::Written {
                    limit: &self.limit,
                    window: &self.window,
                    buckets: &self.buckets,
                    estimate: &self.estimate,
                    capacity: &self.capacity,
                    refill: &self.refill,
                    rate: &self.rate,
                    burst: &self.burst,
                    queue: &self.queue,
                    shape: &self.shape,
                    max_wait: &self.max_wait,
                }
            }
        }
    };
}
pub(super) use written;

written!(RawBudget);

/// A map of names that the config chooses.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) Vec<(At<String>, At<T>)>);

impl<T: Read> Read for Named<T> {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Named<T>> {
        let entries = entries(node, "a map", problems)?;
        let mut named = Vec::with_capacity(entries.len());
        for (name, place, node) in entries {
            if let Some(value) = T::read(node, problems) {
                let name = At {
                    place,
                    value: name.to_owned(),
                };
                let place = node.place;
                named.push((name, At { place, value }));
            }
        }
        Some(Named(named))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("MapOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({ "type": "object", "additionalProperties": value })
    }
}
