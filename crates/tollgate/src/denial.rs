//! A denial, as a record of fixed size: the log and the journal of denials are made from it.
//!
//! A record is made on the path of a request, so it allocates nothing. Its texts are cut to a length.
//! [`DeniedRequest::source`] is expensive, and is for the thread that writes the record.

use std::fmt;
use std::sync::Arc;

use tollgate_config::{
    Attributes, FailurePolicy, LimitSource, NamedSubject, Override, RequestLimits, RequestSource,
    Resolution, RuleSet,
};
use tollgate_core::{Charge, Span, Subject, Time};

use crate::decision::{Decision, Kind, RuleDecision, bounded};
use crate::pace::start;
use crate::throttle::Throttled;

/// The attributes that are kept in plain text.
const TENANT: &str = "tenant";
const ACTION: &str = "action";

/// The most bytes of a tenant and of an action.
const MAX_TEXT: usize = 128;

/// The most subjects of a record.
pub const MAX_SUBJECTS: usize = 4;

/// The name in place of a rule, if a subject has too many open holds. Ids of rules never start with `@`.
const HOLDS: &str = "@holds";
/// The name in place of a rule, if an operator has blocked the subject.
const BLOCK: &str = "@block";

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOrigin {
    /// The door that the request came through; `library` without a door.
    pub door: &'static str,
    /// The id of the trace that the request belongs to, if its caller named one.
    pub trace: Option<u128>,
}

impl Default for RequestOrigin {
    fn default() -> RequestOrigin {
        RequestOrigin {
            door: "library",
            trace: None,
        }
    }
}

/// A denial.
#[derive(Clone)]
pub struct DeniedRequest {
    /// When the request was denied, by the clock of this machine.
    pub at: Time,
    /// Where the request came from.
    pub origin: RequestOrigin,
    /// The largest amount that can be admitted at once; `None` if unlimited.
    pub limit: Option<u64>,
    /// The amount that is left; `None` if it is not known.
    pub remaining: Option<u64>,
    /// How long to wait before the same request can be admitted; `None` if waiting does not help.
    pub retry_after: Option<Span>,
    /// The kind of allowance, such as `rate`.
    pub kind: &'static str,
    /// Why the request was denied, such as `exceeded`.
    pub reason: &'static str,
    /// The failure policy that decided instead of the store.
    pub policy: Option<FailurePolicy>,
    /// How long the request waited for its store; `None` if it did not wait.
    pub latency: Option<Span>,
    /// How many denials of the same rule before this one were not recorded.
    pub suppressed: u64,
    rules: Arc<RuleSet>,
    by: DeniedBy,
    algorithm: &'static str,
    brought: Option<RequestSource>,
    /// The overrides of the subject that concern the rule.
    own_overrides: Box<[Arc<Override>]>,
    tenant: CutText,
    /// The plan that the request named.
    plan: Option<u16>,
    action: CutText,
    /// The first is that of the rule that denies; the others are those of the request's other rules.
    subjects: [Option<Subject>; MAX_SUBJECTS],
    /// Whether the first subject is that of the rule that denies.
    has_own_subject: bool,
}

/// What denies a request.
#[derive(Clone)]
enum DeniedBy {
    /// The rule at this index.
    Rule(u32),
    /// A limit without a rule.
    Limit(&'static str),
    /// A block of the subject.
    Block(Arc<Override>),
}

/// A text that is cut to a length.
#[derive(Clone, Copy)]
struct CutText {
    bytes: [u8; MAX_TEXT],
    length: u8,
    is_cut: bool,
}

impl CutText {
    fn new(text: Option<&str>) -> CutText {
        let text = text.unwrap_or_default();
        let kept = start(text, MAX_TEXT).as_bytes();
        let mut bytes = [0; MAX_TEXT];
        bytes[..kept.len()].copy_from_slice(kept);
        CutText {
            bytes,
            length: u8::try_from(kept.len()).unwrap_or(0),
            is_cut: kept.len() < text.len(),
        }
    }

    /// Returns the text; `None` if it is empty.
    fn get(&self) -> Option<&str> {
        let kept = &self.bytes[..usize::from(self.length)];
        let text = std::str::from_utf8(kept).unwrap_or_default();
        (!text.is_empty()).then_some(text)
    }
}

impl DeniedRequest {
    /// Makes the record of a denied decision. `brought` says that the request brought numbers beside its
    /// attributes.
    pub(crate) fn of_decision(
        (at, origin): (Time, RequestOrigin),
        decision: &Decision,
        deciding: &RuleDecision<'_>,
        attributes: &Attributes<'_>,
        (latency, brought): (Option<Span>, Option<RequestSource>),
    ) -> DeniedRequest {
        let rules = decision.rule_set();
        let index = u32::try_from(deciding.index()).unwrap_or(u32::MAX);
        let in_attribute = || rules.brings_limit(index, attributes);
        let brought = brought.or_else(|| in_attribute().then_some(RequestSource::Attribute));
        let own = deciding.subject();
        // A subject of several attributes is also found by each of them.
        let per = deciding.rule().per();
        let several = if per.len() > 1 { per } else { &[] };
        let each = several.iter().filter_map(|name| {
            let value = attributes.get(name)?;
            Some(rules.single_subject(name, value))
        });
        let others = decision.rules().filter_map(|rule| rule.subject());
        DeniedRequest {
            at,
            origin,
            limit: deciding.limit(),
            remaining: deciding.remaining(),
            retry_after: deciding.retry_after(),
            kind: deciding.kind().name(),
            reason: deciding.reason().map_or("", crate::Reason::name),
            policy: deciding.fallback(),
            latency,
            suppressed: 0,
            rules: Arc::clone(rules),
            by: DeniedBy::Rule(index),
            algorithm: deciding.rule().algorithm().name(),
            brought,
            own_overrides: rules.own_overrides(index, attributes),
            tenant: CutText::new(attributes.get(TENANT)),
            plan: rules.named_plan(attributes),
            action: CutText::new(attributes.get(ACTION)),
            subjects: distinct(own.into_iter().chain(each).chain(others)),
            has_own_subject: own.is_some(),
        }
    }

    /// Makes the record of a blocked request, which may be admitted after `retry_after`. It is found by the
    /// blocked subject, and by the subjects of the rules that would apply.
    pub(crate) fn of_block(
        (at, origin): (Time, RequestOrigin),
        (block, retry_after): (&Arc<Override>, Option<Span>),
        attributes: &Attributes<'_>,
        rules: &Arc<RuleSet>,
    ) -> DeniedRequest {
        let own = block.subject().and_then(NamedSubject::hash);
        let own = own.map(Subject::from_bits);
        let limits = RequestLimits::default();
        let resolution = rules.resolve(attributes, &limits);
        let others = resolution.charges.iter().map(Charge::subject);
        DeniedRequest {
            at,
            origin,
            limit: None,
            remaining: None,
            retry_after,
            kind: "block",
            reason: crate::Reason::Blocked.name(),
            policy: None,
            latency: None,
            suppressed: 0,
            rules: Arc::clone(rules),
            by: DeniedBy::Block(Arc::clone(block)),
            algorithm: "",
            brought: None,
            own_overrides: Box::default(),
            tenant: CutText::new(attributes.get(TENANT)),
            plan: None,
            action: CutText::new(attributes.get(ACTION)),
            subjects: distinct(own.into_iter().chain(others)),
            has_own_subject: own.is_some(),
        }
    }

    /// Makes the record of a denial by an ad-hoc limit.
    pub(crate) fn of_throttle(
        (at, origin): (Time, RequestOrigin),
        charge: &Charge<'_>,
        throttled: &Throttled,
        rules: &Arc<RuleSet>,
        latency: Option<Span>,
    ) -> DeniedRequest {
        DeniedRequest {
            at,
            origin,
            limit: bounded(throttled.limit()),
            remaining: bounded(throttled.remaining()),
            retry_after: throttled.retry_after(),
            kind: Kind::Rate.name(),
            reason: throttled.reason().map_or("", crate::Reason::name),
            policy: None,
            latency,
            suppressed: 0,
            rules: Arc::clone(rules),
            by: DeniedBy::Limit(crate::throttle::NAME),
            algorithm: charge.limit.algorithm().name(),
            brought: Some(RequestSource::Numbers),
            own_overrides: Box::default(),
            tenant: CutText::new(None),
            plan: None,
            action: CutText::new(None),
            subjects: distinct([charge.subject()].into_iter()),
            has_own_subject: true,
        }
    }

    /// Makes the record of a reservation or a lease that was denied because its subject has `most` open ones.
    pub(crate) fn of_hold(
        (at, origin): (Time, RequestOrigin),
        resolution: &Resolution<'_>,
        attributes: &Attributes<'_>,
        rules: &Arc<RuleSet>,
        most: u64,
    ) -> DeniedRequest {
        let subjects = resolution.charges.iter().map(Charge::subject);
        DeniedRequest {
            at,
            origin,
            limit: Some(most),
            remaining: Some(0),
            retry_after: None,
            kind: Kind::Concurrency.name(),
            reason: "too_many_holds",
            policy: None,
            latency: None,
            suppressed: 0,
            rules: Arc::clone(rules),
            by: DeniedBy::Limit(HOLDS),
            algorithm: "",
            brought: None,
            own_overrides: Box::default(),
            tenant: CutText::new(attributes.get(TENANT)),
            plan: None,
            action: CutText::new(attributes.get(ACTION)),
            subjects: distinct(subjects),
            has_own_subject: false,
        }
    }

    /// Returns the id of the rule; a name that starts with `@` if no rule has denied the request.
    #[must_use]
    pub fn rule(&self) -> &str {
        match &self.by {
            DeniedBy::Rule(index) => self.rules.rules()[*index as usize].id(),
            DeniedBy::Limit(name) => name,
            DeniedBy::Block(_) => BLOCK,
        }
    }

    /// Returns the type of the subject: the names of its attributes; `None` if there is no subject of one
    /// type.
    #[must_use]
    pub fn subject_type(&self) -> Option<&str> {
        match &self.by {
            DeniedBy::Rule(index) => Some(self.rules.rules()[*index as usize].subject_type()),
            DeniedBy::Limit(HOLDS) => None,
            DeniedBy::Limit(_) => Some("key"),
            DeniedBy::Block(block) => block.subject().map(NamedSubject::attribute),
        }
    }

    /// Returns the hashed subject of the rule that denies; `None` if the request has none.
    #[must_use]
    pub fn subject(&self) -> Option<Subject> {
        self.subjects[0].filter(|_| self.has_own_subject)
    }

    /// Returns the hashed subjects of all rules of the request, at most [`MAX_SUBJECTS`]. The denial is found
    /// again by each of them.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.subjects.into_iter().flatten()
    }

    /// Returns the algorithm of the rule; `None` if no limit of a rule was asked.
    #[must_use]
    pub fn algorithm(&self) -> Option<&'static str> {
        (!self.algorithm.is_empty()).then_some(self.algorithm)
    }

    /// Returns the tenant that the request named, cut to a length.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.get()
    }

    /// Returns the action that the request named, cut to a length.
    #[must_use]
    pub fn action(&self) -> Option<&str> {
        self.action.get()
    }

    /// Returns the version of the rules that decided.
    #[must_use]
    pub fn config_version(&self) -> &str {
        self.rules.version()
    }

    /// Returns the rules that decided.
    #[must_use]
    pub fn rule_set(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Returns the plan that the request named, as an index of [`RuleSet::plans`]; `None` if it named none.
    #[must_use]
    pub fn named_plan(&self) -> Option<u16> {
        self.plan
    }

    /// Returns how the request brought numbers of its own, if it did.
    #[must_use]
    pub fn brought(&self) -> Option<RequestSource> {
        self.brought
    }

    /// Returns the block that denied the request, if an operator has blocked its subject.
    #[must_use]
    pub fn block(&self) -> Option<&Override> {
        match &self.by {
            DeniedBy::Block(block) => Some(block),
            _ => None,
        }
    }

    /// Returns whether an override of the subject changes numbers of the rule.
    #[must_use]
    pub fn has_own_overrides(&self) -> bool {
        !self.own_overrides.is_empty()
    }

    /// Returns where the numbers came from; `None` if no rule has denied the request, or if it is not known
    /// any more because the tenant's name was cut. This allocates.
    #[must_use]
    pub fn source(&self) -> Option<LimitSource> {
        match &self.by {
            DeniedBy::Rule(index) if !self.tenant.is_cut => Some(self.rules.source(
                *index,
                self.tenant(),
                self.plan,
                &self.own_overrides,
                self.brought,
            )),
            _ => None,
        }
    }
}

impl fmt::Debug for DeniedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedRequest")
            .field("rule", &self.rule())
            .field("reason", &self.reason)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// Returns the first distinct subjects, in order.
fn distinct(subjects: impl Iterator<Item = Subject>) -> [Option<Subject>; MAX_SUBJECTS] {
    let mut found = [None; MAX_SUBJECTS];
    let mut count = 0;
    for subject in subjects {
        if count == MAX_SUBJECTS {
            break;
        }
        if !found.contains(&Some(subject)) {
            found[count] = Some(subject);
            count += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_and_says_so() {
        let text = CutText::new(Some("acme"));
        assert_eq!((text.get(), text.is_cut), (Some("acme"), false));
        let long = "é".repeat(100);
        let text = CutText::new(Some(&long));
        assert_eq!(text.get(), Some(&long[..MAX_TEXT]));
        assert!(text.is_cut);
        assert_eq!(CutText::new(None).get(), None);
        assert_eq!(CutText::new(Some("")).get(), None);
    }
}
