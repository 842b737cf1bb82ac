//! Why each rule applies to a request, or does not, in words.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Enforcement;

use crate::attributes::Attributes;
use crate::rule::{Rule, RuleState};
use crate::ruleset::{RefusalReason, Request, RuleSet, Verdict};

/// What one rule makes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The rule, as an index of [`RuleSet::rules`].
    pub rule: u32,
    /// Its id.
    pub id: Arc<str>,
    /// Whose allowance it concerns: the attributes that make its subject.
    pub per: Vec<String>,
    /// Whether the rule only observes.
    pub shadow: bool,
    /// What it does.
    pub effect: Effect,
}

/// What a rule does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It charges the request.
    Applies {
        /// The cost of one unit of the request.
        cost: u64,
    },
    /// It does not concern the request.
    Skips {
        /// Why, in words.
        why: String,
    },
    /// It refuses the request without asking a store.
    Refuses {
        /// Which kind of refusal.
        reason: RefusalReason,
        /// Why, in words.
        why: String,
    },
}

impl Explanation {
    /// Whether the rule charges the request.
    #[must_use]
    pub fn applies(&self) -> bool {
        matches!(self.effect, Effect::Applies { .. })
    }

    /// Why it does not, in words.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        match &self.effect {
            Effect::Applies { .. } => None,
            Effect::Skips { why } | Effect::Refuses { why, .. } => Some(why),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.id)?;
        match &self.effect {
            Effect::Applies { cost } if self.per.is_empty() => {
                write!(f, "applies, cost {cost}, one allowance for all")?;
            }
            Effect::Applies { cost } => {
                write!(f, "applies, cost {cost}, per {}", self.per.join(" + "))?;
            }
            Effect::Skips { why } => write!(f, "does not apply: {why}")?,
            Effect::Refuses { why, .. } => write!(f, "refuses: {why}")?,
        }
        if self.shadow {
            f.write_str(" (shadow)")?;
        }
        Ok(())
    }
}

impl RuleSet {
    /// What each rule makes of a request, in order.
    ///
    /// ```
    /// # use tollgate_core::Keyring;
    /// # use tollgate_rules::{Attributes, RuleSet, parse};
    /// # let config = parse("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: login, match: { action: login }, algorithm: fixed-window, limit: 5, window: 1m }]
    /// # ", &|_| None)?;
    /// # let rules = RuleSet::compile(&config, Keyring::new(b"a secret of 16 bytes", "default"));
    /// let why = rules.explain(&Attributes::from([("action", "search")]));
    /// assert_eq!(
    ///     why[0].to_string(),
    ///     "login: does not apply: match: action is \"search\", wanted \"login\"",
    /// );
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        let mut request = Request::new(attributes);
        self.prepare_for(&mut request);
        let rules = (0u32..).zip(self.compiled.iter().zip(&self.rules));
        let explain = |(index, (compiled, rule)): (u32, (_, &Rule))| {
            let verdict = self.consider(compiled, &mut request);
            let effect = match (&verdict, compiled.refuses(&verdict)) {
                (Verdict::Applies { cost, .. }, _) => Effect::Applies { cost: *cost },
                (_, Some(reason)) => Effect::Refuses {
                    reason,
                    why: self.words(rule, &verdict, attributes),
                },
                (_, None) => Effect::Skips {
                    why: self.words(rule, &verdict, attributes),
                },
            };
            Explanation {
                rule: index,
                id: rule.shared_id(),
                per: rule.per.clone(),
                shadow: rule.enforcement() == Enforcement::Shadow
                    && rule.state() != RuleState::Disabled,
                effect,
            }
        };
        rules.map(explain).collect()
    }

    fn words(&self, rule: &Rule, verdict: &Verdict, attributes: &Attributes<'_>) -> String {
        match verdict {
            Verdict::Applies { .. } => String::new(),
            Verdict::Disabled => "disabled".to_owned(),
            Verdict::WhenFalse => "when: false".to_owned(),
            Verdict::NoSubject(slot) => {
                format!("per: the request carries no {}", self.symbols.name(*slot))
            }
            Verdict::NoValue(what, Some(name)) => format!("{what}: the request carries no {name}"),
            Verdict::NoValue(what, None) => {
                format!("{what}: the request carries not all attributes it reads")
            }
            Verdict::Broken(what, how) => format!("{what}: {how}"),
            Verdict::OutOfRollout(draw) => {
                let rollout = percent(u64::from(rule.rollout));
                if rule.rollout == 0 {
                    format!("rollout: rollout is {rollout}%")
                } else {
                    let draw = percent(*draw);
                    format!("rollout: subject is at {draw}%, rollout is {rollout}%")
                }
            }
            Verdict::Unmatched(index) => {
                rule.conditions.get(*index).map_or_else(String::new, |it| {
                    let name = &it.attribute;
                    let wanted: Vec<String> = it.accepted.iter().map(ToString::to_string).collect();
                    let wanted = match wanted.as_slice() {
                        [one] => format!("{one:?}"),
                        many => format!("one of [{}]", many.join(", ")),
                    };
                    match attributes.get(name) {
                        Some(value) => format!("match: {name} is {value:?}, wanted {wanted}"),
                        None => format!("match: the request carries no {name}, wanted {wanted}"),
                    }
                })
            }
        }
    }
}

/// Hundredths of a percent as a percentage without needless zeros.
fn percent(hundredths: u64) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
