//! Imported configs decide as Envoy's rate limit service does. The tests compare them with a model
//! written from the service's documentation.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

use std::collections::HashMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use tollgate::{Attributes, Demand, Limiter, ManualClock, Span, Time};
use tollgate_import::{Domains, Kind, Source, envoy_ratelimit};

/// The start of an hour and of a week, so windows of all lengths start here.
const START: u64 = 2_800 * 7 * 86_400;
const UNITS: [(&str, u64); 3] = [("second", 1), ("minute", 60), ("hour", 3_600)];
const KEYS: [&str; 3] = ["a", "b.b", "in"];
const VALUES: [&str; 9] = ["", "x", "xy", "x*", "*y", "x*x", "x*y", "*x*", "*"];
const REQUESTED: [&str; 8] = ["", "x", "y", "xy", "xx", "x*", "x*x", "xxyy"];

#[derive(Clone, Debug)]
struct Node {
    /// The index of the key.
    key: usize,
    value: &'static str,
    /// The amount and the index of the unit. `Some(None)` is unlimited; `None` is a node without a
    /// limit.
    limit: Option<Option<(u64, usize)>>,
    shadow: bool,
    share: bool,
    children: Vec<Node>,
}

/// A descriptor of a request: entries, and hits.
type Descriptor = (Vec<(&'static str, &'static str)>, u64);

fn level(from: usize) -> BoxedStrategy<Vec<Node>> {
    if from == KEYS.len() {
        return Just(Vec::new()).boxed();
    }
    let node = (from..KEYS.len()).prop_flat_map(|key| {
        let limit = prop_oneof![
            1 => Just(None),
            1 => Just(Some(None)),
            6 => (0..4u64, 0..UNITS.len()).prop_map(|numbers| Some(Some(numbers))),
        ];
        (
            Just(key),
            proptest::sample::select(&VALUES),
            limit,
            prop::bool::weighted(0.15),
            any::<bool>(),
            level(key + 1),
        )
    });
    let node = node.prop_map(|(key, value, limit, shadow, share, children)| Node {
        key,
        value,
        limit,
        shadow,
        share: share && value.contains('*'),
        children,
    });
    prop::collection::vec(node, 0..6)
        .prop_map(|mut nodes| {
            let mut seen = Vec::new();
            nodes.retain(|node| {
                let new = !seen.contains(&(node.key, node.value));
                seen.push((node.key, node.value));
                new
            });
            nodes
        })
        .boxed()
}

fn requests() -> impl Strategy<Value = Vec<(u64, Vec<Descriptor>)>> {
    // Envoy sends entries in the order of its actions; here that is the order of the keys.
    let value = || prop::option::weighted(0.6, proptest::sample::select(&REQUESTED));
    let entries = (value(), value(), value(), prop::bool::weighted(0.1));
    let entries = entries.prop_map(|(a, b, c, other)| {
        let mut entries: Vec<_> = KEYS
            .into_iter()
            .zip([a, b, c])
            .filter_map(|(key, value)| value.map(|value| (key, value)))
            .collect();
        if other || entries.is_empty() {
            entries.push(("other", "x"));
        }
        entries
    });
    let descriptor = (entries, prop_oneof![4 => Just(1u64), 1 => 2..4u64]);
    let request = prop::collection::vec(descriptor, 1..3);
    let pause = prop_oneof![3 => Just(0u64), 2 => 1..40_000_000u64, 1 => 1..4_000_000_000u64];
    prop::collection::vec((pause, request), 1..40)
}

fn yaml(level: &[Node], indent: usize, text: &mut String) {
    let space = " ".repeat(indent);
    for node in level {
        writeln!(text, "{space}- key: '{}'", KEYS[node.key]).unwrap();
        if !node.value.is_empty() {
            writeln!(text, "{space}  value: '{}'", node.value).unwrap();
        }
        match node.limit {
            None => {}
            Some(None) => writeln!(text, "{space}  rate_limit: {{ unlimited: true }}").unwrap(),
            Some(Some((amount, unit))) => {
                let unit = UNITS[unit].0;
                let limit = format!("{{ unit: {unit}, requests_per_unit: {amount} }}");
                writeln!(text, "{space}  rate_limit: {limit}").unwrap();
            }
        }
        if node.shadow {
            writeln!(text, "{space}  shadow_mode: true").unwrap();
        }
        if node.share {
            writeln!(text, "{space}  share_threshold: true").unwrap();
        }
        if !node.children.is_empty() {
            writeln!(text, "{space}  descriptors:").unwrap();
            yaml(&node.children, indent + 2, text);
        }
    }
}

/// A model of the service.
struct Model<'m> {
    root: &'m [Node],
    counts: HashMap<String, u64>,
}

impl Model<'_> {
    /// Returns whether the request is admitted. Each limit counts the request, even if another limit
    /// denies it.
    fn ask(&mut self, now: u64, request: &[Descriptor]) -> bool {
        let mut passes = true;
        for (entries, hits) in request {
            let Some((node, key)) = find(self.root, entries) else {
                continue;
            };
            let Some(Some((amount, unit))) = node.limit else {
                continue;
            };
            let window = now / (UNITS[unit].1 * 1_000_000);
            let count = self.counts.entry(format!("{key} {window}")).or_default();
            *count += hits;
            passes &= *count <= amount || node.shadow;
        }
        passes
    }
}

/// Finds the node that all entries lead to, and the key of its count.
fn find<'n>(level: &'n [Node], entries: &[(&str, &str)]) -> Option<(&'n Node, String)> {
    let ((key, value), rest) = entries.split_first()?;
    let known = || level.iter().filter(|node| KEYS[node.key] == *key);
    let exact = known().find(|node| !node.value.is_empty() && node.value == *value);
    let wild = || known().find(|node| node.value.contains('*') && glob(node.value, value));
    let bare = || known().find(|node| node.value.is_empty());
    let node = exact.or_else(wild).or_else(bare)?;
    let counted = if node.share { node.value } else { value };
    let own = format!("{key}={counted};");
    if rest.is_empty() {
        node.limit.is_some().then_some((node, own))
    } else {
        let (found, below) = find(&node.children, rest)?;
        Some((found, own + &below))
    }
}

fn glob(pattern: &str, value: &str) -> bool {
    match pattern.chars().next() {
        None => value.is_empty(),
        Some('*') => {
            glob(&pattern[1..], value) || (!value.is_empty() && glob(pattern, &value[1..]))
        }
        Some(c) => value.starts_with(c) && glob(&pattern[1..], &value[1..]),
    }
}

proptest! {
    #[test]
    fn imported_rules_decide_like_the_original(root in level(0), requests in requests()) {
        let mut text = "domain: 'the domain'\ndescriptors:\n".to_owned();
        yaml(&root, 0, &mut text);
        let source = Source { name: "limits.yaml", text: &text };
        let imported = envoy_ratelimit(&[source], Domains::Once).unwrap();
        for note in &imported.notes {
            let exact = note.kind != Kind::LeftOut && note.kind != Kind::Differs;
            prop_assert!(exact || note.position.is_none(), "{}\n{}", note, text);
        }
        let config = tollgate_config::parse("imported.yaml", &imported.yaml, &|_| None).unwrap();
        let clock = ManualClock::at(Time::from_micros(START * 1_000_000));
        let limiter = Limiter::with_clock(&config, clock.clone()).unwrap();
        let mut model = Model { root: &root, counts: HashMap::new() };
        let mut now = START * 1_000_000;
        for (pause, request) in requests {
            now += pause;
            clock.advance(Span::from_micros(pause));
            let demands: Vec<Demand<'_>> = request
                .iter()
                .map(|(entries, hits)| {
                    let mut attributes = Attributes::from([("domain", "the domain")]);
                    attributes.extend(entries.iter().copied());
                    Demand::take(attributes, *hits)
                })
                .collect();
            let expected = model.ask(now, &request);
            let found = limiter.ask_all_now(&demands).unwrap().is_allowed();
            prop_assert_eq!(found, expected, "{:?} of\n{}\n{}", request, text, imported.yaml);
        }
    }
}
