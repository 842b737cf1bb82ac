//! Decisions in words, for people at a terminal. No door depends on these words.

use std::fmt;

use tollgate_config::{Effect, Explanation, summary};
use tollgate_core::Span;

use crate::decision::{Decision, Reason, RuleDecision};
use crate::rejections::SUBJECT_DIGITS;

/// A rule that applies to a request, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppliedRule {
    /// The limit in force, after plan, tenant, request and overrides: `gcra: 10 at once, all back in 10h`.
    pub limit: String,
    /// The start of the hashed subject, as the log of denials has it.
    pub subject: String,
    /// The decision of this rule alone: `allows, 10 of 10 left`.
    pub now: String,
}

impl Decision {
    /// Describes a rule that applies to the request of this decision. The explanation must be of the same
    /// request and the same rules. Returns `None` if the rule does not apply.
    ///
    /// ```
    /// # use tollgate::{Ask, Attributes, Limiter};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: api, per: [user], algorithm: gcra, rate: 1/h, burst: 10 }]
    /// # ")?;
    /// let ann = Attributes::from([("user", "ann")]);
    /// let (explained, decision) = (limiter.explain(&ann), limiter.peek_now(&ann, Ask::Exactly(1)));
    /// let api = decision.applied(&explained[0]).unwrap();
    /// assert_eq!(api.limit, "gcra: 10 at once, all back in 10h");
    /// assert_eq!(api.now, "allows, 10 of 10 left");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn applied(&self, explanation: &Explanation) -> Option<AppliedRule> {
        let Effect::Applies { limit, subject, .. } = &explanation.effect else {
            return None;
        };
        let index = explanation.rule as usize;
        let decided = self.rules().find(|rule| rule.index() == index);
        Some(AppliedRule {
            limit: summary(limit),
            subject: subject.to_hex().as_str()[..SUBJECT_DIGITS].to_owned(),
            now: decided.map_or_else(|| "not asked".to_owned(), |rule| rule.to_string()),
        })
    }
}

impl Decision {
    /// Describes the block that denies the request, for operators; `None` if it is not blocked.
    #[must_use]
    pub fn block_in_words(&self) -> Option<String> {
        let block = self.blocked_by()?;
        let end = match self.retry_after() {
            Some(rest) => format!("for {}", wait_in_words(rest)),
            None => "until unblocked".to_owned(),
        };
        let (name, author, reason) = (block.name(), block.author(), block.reason());
        Some(format!("{name} denies {end}, by {author}: {reason}"))
    }
}

/// Writes the decision of a rule: `denies, 0 of 10 left, retry in 5 s`.
impl fmt::Display for RuleDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_allowed(), self.is_shadow()) {
            (true, _) => "allows",
            (false, false) => "denies",
            (false, true) => "would deny",
        })?;
        match (self.remaining(), self.limit()) {
            (Some(remaining), Some(limit)) => write!(f, ", {remaining} of {limit} left")?,
            (_, None) if self.is_allowed() => f.write_str(", unlimited")?,
            // The store did not decide.
            _ => {}
        }
        if let Some(grace) = self.grace() {
            write!(f, ", {} of {} grace left", grace.left, grace.of)?;
        }
        if let Some(reason) = self.reason().filter(|it| *it != Reason::Exceeded) {
            write!(f, " ({})", reason.name().replace('_', " "))?;
        }
        if let Some(wait) = self.retry_after() {
            write!(f, ", retry in {}", wait_in_words(wait))?;
        }
        if self.delay() > Span::ZERO {
            write!(f, ", wait {} first", wait_in_words(self.delay()))?;
        }
        match self.fallback() {
            Some(policy) => write!(f, ", decided by its failure policy {}", policy.name()),
            None => Ok(()),
        }
    }
}

/// Writes a wait in one unit, rounded up.
///
/// ```
/// use tollgate::{Span, wait_in_words};
///
/// assert_eq!(wait_in_words(Span::from_secs(3_601)), "61 min");
/// ```
#[must_use]
pub fn wait_in_words(wait: Span) -> String {
    const UNITS: [(&str, u64); 5] = [
        ("ms", 1),
        ("s", 1_000),
        ("min", 60_000),
        ("h", 3_600_000),
        ("days", 86_400_000),
    ];
    let millis = wait.as_millis_ceil();
    // A unit is used up to ten of the next larger unit, so that rounding adds at most a tenth.
    let fits = |pair: &&[(&str, u64)]| millis <= pair[1].1.saturating_mul(10);
    let unit = UNITS.windows(2).find(fits).map_or(UNITS[4], |pair| pair[0]);
    format!("{} {}", millis.div_ceil(unit.1), unit.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_short_and_never_too_short() {
        let waits = [
            1,
            9_999,
            10_001,
            600_000,
            600_001,
            40_000_000,
            1_346_566_588,
        ];
        let expected = [
            "1 ms", "9999 ms", "11 s", "600 s", "11 min", "12 h", "16 days",
        ];
        assert_eq!(waits.map(Span::from_millis).map(wait_in_words), expected);
    }
}
