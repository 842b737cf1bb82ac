//! Imported limits decide as Limitador does. The tests compare them with a model written from its
//! documentation.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::collections::HashMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use tollgate::{Attributes, Demand, Limiter, ManualClock, Time};
use tollgate_import::{Source, limitador};

/// The start of an hour, so windows of all lengths start here.
const START: u64 = 500_000 * 3_600;
const WINDOWS: [u64; 3] = [60, 90, 3_600];
const KEYS: [&str; 3] = ["req.method", "user", "in"];
const VALUES: [&str; 5] = ["GET", "POST", "", "G*", "it's \"it\"\\"];

/// A condition, independent of its syntax.
#[derive(Clone, Debug)]
enum Condition {
    Is(usize, &'static str),
    IsNot(usize, &'static str),
    OneOf(usize, &'static str, &'static str),
    Starts(usize, &'static str),
    Longer(usize, usize),
    Either(Box<Condition>, Box<Condition>),
    Both(Box<Condition>, Box<Condition>),
    Not(Box<Condition>),
}

use Condition::{Both, Either, Is, IsNot, Longer, Not, OneOf, Starts};

impl Condition {
    fn cel(&self) -> String {
        let entry = |key: &usize| format!("descriptors[0]['{}']", KEYS[*key]);
        let text = |value: &str| {
            let value = value.replace('\\', "\\\\").replace('\'', "\\'");
            format!("'{value}'")
        };
        match self {
            Is(key, value) => format!("{} == {}", entry(key), text(value)),
            IsNot(key, value) => format!("{} != {}", entry(key), text(value)),
            OneOf(key, a, b) => format!("{} in [{}, {}]", entry(key), text(a), text(b)),
            Starts(key, value) => format!("{}.startsWith({})", entry(key), text(value)),
            Longer(key, length) => format!("size({}) > {length}", entry(key)),
            Either(a, b) => format!("{} || {}", a.cel(), b.cel()),
            Both(a, b) => format!("{} && {}", a.grouped(), b.grouped()),
            Not(a) => format!("!({})", a.cel()),
        }
    }

    /// Writes the condition as an operand of `&&`, with brackets if its operator binds less than `&&`.
    fn grouped(&self) -> String {
        match self {
            Either(..) => format!("({})", self.cel()),
            _ => self.cel(),
        }
    }

    /// Whether the condition holds; `None` if it reads a missing entry.
    fn holds(&self, entries: &HashMap<&str, &str>) -> Option<bool> {
        let entry = |key: &usize| entries.get(KEYS[*key]).copied();
        match self {
            Is(key, value) => Some(entry(key)? == *value),
            IsNot(key, value) => Some(entry(key)? != *value),
            OneOf(key, a, b) => Some(entry(key)? == *a || entry(key)? == *b),
            Starts(key, value) => Some(entry(key)?.starts_with(value)),
            Longer(key, length) => Some(entry(key)?.chars().count() > *length),
            Either(a, b) => match (a.holds(entries), b.holds(entries)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Both(a, b) => match (a.holds(entries), b.holds(entries)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Not(a) => a.holds(entries).map(|it| !it),
        }
    }
}

#[derive(Clone, Debug)]
struct Limit {
    max: u64,
    seconds: u64,
    conditions: Vec<Condition>,
    variables: Vec<usize>,
}

fn condition() -> impl Strategy<Value = Condition> {
    let key = || 0..KEYS.len();
    let value = || proptest::sample::select(&VALUES);
    let leaf = prop_oneof![
        3 => (key(), value()).prop_map(|(key, value)| Is(key, value)),
        1 => (key(), value()).prop_map(|(key, value)| IsNot(key, value)),
        1 => (key(), value(), value()).prop_map(|(key, a, b)| OneOf(key, a, b)),
        1 => (key(), value()).prop_map(|(key, value)| Starts(key, value)),
        1 => (key(), 0..6usize).prop_map(|(key, length)| Longer(key, length)),
    ];
    leaf.prop_recursive(2, 4, 2, |inner| {
        let boxed = || inner.clone().prop_map(Box::new);
        prop_oneof![
            (boxed(), boxed()).prop_map(|(a, b)| Either(a, b)),
            (boxed(), boxed()).prop_map(|(a, b)| Both(a, b)),
            boxed().prop_map(Not),
        ]
    })
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let limit = (
        0..5u64,
        proptest::sample::select(&WINDOWS),
        prop::collection::vec(condition(), 0..3),
        proptest::sample::subsequence(vec![0usize, 1, 2], 0..3),
    );
    let limit = limit.prop_map(|(max, seconds, conditions, variables)| Limit {
        max,
        seconds,
        conditions,
        variables,
    });
    prop::collection::vec(limit, 1..5)
}

/// Makes requests. Each has a flag, the time since the last request, the values of the keys, and the
/// hits. If the flag is set, all windows end before the request.
fn requests() -> impl Strategy<Value = Vec<(bool, u64, [Option<&'static str>; 3], u64)>> {
    let value = || prop::option::weighted(0.8, proptest::sample::select(&VALUES));
    let values = (value(), value(), value()).prop_map(|(a, b, c)| [a, b, c]);
    let hits = prop_oneof![4 => Just(1u64), 1 => 2..4u64];
    prop::collection::vec((prop::bool::weighted(0.1), 0..2u64, values, hits), 1..30)
}

fn yaml(limits: &[Limit]) -> String {
    let mut text = String::new();
    for limit in limits {
        let (max, seconds) = (limit.max, limit.seconds);
        writeln!(
            text,
            "- namespace: shop\n  max_value: {max}\n  seconds: {seconds}"
        )
        .unwrap();
        writeln!(text, "  conditions:").unwrap();
        for condition in &limit.conditions {
            writeln!(text, "    - >-\n      {}", condition.cel()).unwrap();
        }
        writeln!(text, "  variables:").unwrap();
        for key in &limit.variables {
            writeln!(text, "    - descriptors[0]['{}']", KEYS[*key]).unwrap();
        }
    }
    text
}

/// A model of Limitador: counts, and when they end. A window starts with its first hit.
#[derive(Default)]
struct Model {
    counts: HashMap<String, (u64, u64)>,
}

impl Model {
    fn ask(
        &mut self,
        limits: &[Limit],
        now: u64,
        entries: &HashMap<&str, &str>,
        hits: u64,
    ) -> bool {
        let mut keys: Vec<(String, u64)> = Vec::new();
        for limit in limits {
            let applies = |it: &Condition| it.holds(entries) == Some(true);
            let values: Option<Vec<&str>> = limit
                .variables
                .iter()
                .map(|key| entries.get(KEYS[*key]).copied())
                .collect();
            let Some(values) = values.filter(|_| limit.conditions.iter().all(applies)) else {
                continue;
            };
            // Limitador identifies a limit by everything but its amount.
            let mut conditions: Vec<String> = limit.conditions.iter().map(Condition::cel).collect();
            conditions.sort();
            conditions.dedup();
            let identity = format!("{} {conditions:?} {:?}", limit.seconds, limit.variables);
            let key = format!("{identity} {values:?}");
            if keys.iter().any(|(known, _)| *known == key) {
                continue;
            }
            let count = self.counts.entry(key.clone()).or_default();
            if count.1 <= now {
                count.0 = 0;
            }
            if count.0 + hits > limit.max {
                return false;
            }
            keys.push((key, limit.seconds));
        }
        for (key, seconds) in keys {
            let count = self.counts.entry(key).or_default();
            if count.1 <= now {
                *count = (0, now + seconds);
            }
            count.0 += hits;
        }
        true
    }
}

proptest! {
    #[test]
    fn imported_rules_decide_like_the_original(limits in limits(), requests in requests()) {
        let text = yaml(&limits);
        let imported = limitador(&Source { name: "limits.yaml", text: &text }).unwrap();
        let config = tollgate_config::parse("imported.yaml", &imported.yaml, &|_| None).unwrap();
        let clock = ManualClock::at(Time::from_micros(START * 1_000_000));
        let limiter = Limiter::with_clock(&config, clock.clone()).unwrap();
        let mut model = Model::default();
        // A window starts at a different time in Limitador than in Tollgate, as a note says. So time
        // stays within one window, or moves on when all windows have ended.
        let (mut hour, mut now) = (START, START);
        for (later, pause, values, hits) in requests {
            now += pause;
            if later || now >= hour + 60 {
                hour += 2 * 3_600;
                now = hour;
            }
            clock.set(Time::from_micros(now * 1_000_000));
            let entries: HashMap<&str, &str> = KEYS
                .into_iter()
                .zip(values)
                .filter_map(|(key, value)| value.map(|value| (key, value)))
                .collect();
            let mut attributes = Attributes::from([("domain", "shop")]);
            attributes.extend(entries.iter().map(|(key, value)| (*key, *value)));
            let expected = model.ask(&limits, now, &entries, hits);
            let demands = [Demand::take(attributes, hits)];
            let found = limiter.ask_all_now(&demands).unwrap().is_allowed();
            prop_assert_eq!(found, expected, "{:?} of\n{}\n{}", entries, text, imported.yaml);
        }
    }
}
