//! The requests of the benchmark: their rules and their keys.

use tollgate_core::{Charge, Key, Keyring, Leaky, Limit, ParamError, Rate, RuleSalt, Span, Tag};

/// The number of subjects of most rules.
pub(super) const SUBJECTS: usize = 100_000;

/// A capacity that no run uses up. It refills so slowly that every state stays live.
const CAPACITY: u64 = 1_000_000;

/// One rule of a request.
pub(super) struct Rule {
    name: &'static str,
    limit: Limit,
    salt: RuleSalt,
    subjects: Vec<Key>,
}

impl Rule {
    pub(super) fn new(name: &'static str, limit: Limit, subjects: usize) -> Rule {
        let keyring = Keyring::new(b"the secret of a benchmark", "bench");
        let (salt, kind) = (keyring.rule(name), keyring.kind(["number"]));
        let key = |number: usize| Key::new(salt, kind.subject([number.to_string().as_str()]));
        Rule {
            name,
            limit,
            salt,
            subjects: (0..subjects).map(key).collect(),
        }
    }
}

/// The cluster slots of the keys.
#[derive(Clone, Copy)]
pub(super) enum Placement {
    /// One cluster slot for all keys.
    OneSlot,
    /// A cluster slot for each subject, by its hash.
    BySubject,
}

/// Requests under the same rules.
pub(super) struct Traffic {
    rules: Vec<Rule>,
    placement: Placement,
}

impl Traffic {
    pub(super) fn new(rules: Vec<Rule>) -> Traffic {
        Traffic {
            rules,
            placement: Placement::OneSlot,
        }
    }

    /// Makes requests under one rule with [`SUBJECTS`] subjects.
    pub(super) fn single(limit: Limit) -> Traffic {
        Traffic::new(vec![Rule::new("bench", limit, SUBJECTS)])
    }

    pub(super) fn placed(self, placement: Placement) -> Traffic {
        Traffic { placement, ..self }
    }

    /// Returns the charges of the subject with this number.
    pub(super) fn charges(&self, number: usize) -> Vec<Charge<'_>> {
        let charges = self.rules.iter().map(|rule| {
            let key = rule.subjects[number % rule.subjects.len()];
            Charge {
                overflow: Key::overflow(rule.salt),
                rule: rule.name,
                tag: match self.placement {
                    Placement::OneSlot => Tag::default(),
                    Placement::BySubject => key.subject(rule.salt).tag(),
                },
                ..Charge::new(key, &rule.limit)
            }
        });
        charges.collect()
    }
}

/// Returns every algorithm by its name in configs, with limits that keep all states live during a run.
pub(super) fn limits() -> Result<Vec<(&'static str, Limit)>, ParamError> {
    let rate = Rate::new(1, Span::MINUTE)?;
    let queue = CAPACITY - 1;
    Ok(vec![
        ("gcra", Limit::gcra(rate, CAPACITY)?),
        ("token-bucket", Limit::token_bucket(CAPACITY, rate)?),
        ("fixed-window", Limit::fixed_window(CAPACITY, Span::DAY)?),
        (
            "leaky-bucket",
            Limit::leaky_bucket(rate, queue, Leaky::Police)?,
        ),
        (
            "sliding-counter, two windows",
            Limit::two_window(CAPACITY, Span::DAY)?,
        ),
        (
            "sliding-counter, 10 sub-buckets",
            Limit::sliding_counter(CAPACITY, Span::DAY, 10)?,
        ),
        ("sliding-log", Limit::sliding_log(CAPACITY, Span::DAY)?),
    ])
}

/// The numbers of [`limits`] as arguments of the reference scripts.
pub(super) mod numbers {
    pub(in crate::redis) const CAPACITY: &str = "1000000";
    pub(in crate::redis) const MICROS_PER_UNIT: &str = "60000000";
    pub(in crate::redis) const WINDOW_MILLIS: &str = "86400000";
}
