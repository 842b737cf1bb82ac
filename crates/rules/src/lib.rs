//! The rules of Tollgate: text in, charges out.
//!
//! [`Policy::parse`] reads rules, budgets, plans and tenants. It reports every problem, with its line
//! and column, the line itself and the remedy. [`RuleSet::compile`] prepares a policy for requests.
//! [`RuleSet::resolve`] turns the attributes of one request into the [`Charge`](tollgate_core::Charge)s
//! that a store decides.
//!
//! This crate keeps no state, reads no clock, and does not depend on a store or a wire format: their
//! config is in `tollgate-config`. A policy that was accepted cannot be wrong later. Only two things
//! deny a request here: a missing attribute, and an expression that fails on the request's values. In
//! neither case does a request escape a rule.
//!
//! ```
//! use tollgate_core::Keyring;
//! use tollgate_rules::{Attributes, Policy, RequestLimits, RuleSet};
//!
//! let policy = Policy::parse("rules.yaml", r#"
//! version: 1
//! rules:
//!   - id: search
//!     match: { action: search }
//!     per: [tenant]
//!     algorithm: gcra
//!     rate: 100/m
//!     burst: 20
//! "#)?;
//! let rules = RuleSet::compile(&policy, Keyring::new(b"a secret of 16 bytes", "default"));
//!
//! let request = Attributes::from([("action", "search"), ("tenant", "acme")]);
//! let request_limits = RequestLimits::default();
//! assert_eq!(rules.resolve(&request, &request_limits).charges.len(), 1);
//! let other = Attributes::from([("action", "login"), ("tenant", "acme")]);
//! assert!(rules.resolve(&other, &request_limits).charges.is_empty());
//! # Ok::<(), tollgate_rules::ConfigError>(())
//! ```

mod adaptation;
mod address;
mod attributes;
mod blocks;
mod builder;
mod compile;
mod conditions;
mod counters;
mod denial_body;
mod diff;
pub mod document;
mod explain;
mod expr;
mod fair_shares;
mod fairness;
mod index;
mod layers;
mod limits;
mod mode;
mod named_subject;
mod overrides;
mod pattern;
mod period;
mod placement;
mod policy;
mod practices;
mod raw;
mod request;
mod request_limits;
mod resolution;
mod rule;
mod ruleset;
mod share;
mod source;
mod standing;
mod symbols;
mod tiers;
mod validate;
mod waiting;
mod warnings;
mod zone;

pub use adaptation::{Adaptation, Slowness};
pub use address::{address_text, network, parse_address, parse_network};
pub use attributes::Attributes;
pub use blocks::Blocks;
pub use builder::{Rollout, RuleBuilder, RuleError, RuleProblem};
pub use compile::CompileOptions;
pub use counters::Counter;
pub use denial_body::{DenialBody, DenialField, FieldValue, RawDenialBody};
pub use diff::{Difference, diff};
pub use document::{ConfigError, Problem};
pub use explain::{Effect, Explanation, NumberFrom, summary};
pub use fair_shares::FairShares;
pub use fairness::{FairClasses, Fairness, fair_classes};
pub use mode::ModeName;
pub use named_subject::NamedSubject;
pub use overrides::{Override, Scope};
pub use pattern::{Pattern, StrayBackslash};
pub use placement::Placement;
pub use policy::{EMPTY_HELP, Policy, TenantReader};
pub use raw::{AttributeType, RawPolicy};
pub use request_limits::RequestLimits;
pub use resolution::{Overridden, Resolution, RuleDenial, RuleDenialReason};
pub use rule::{
    Ceiling, DEFAULT_STORE, Durability, FailurePolicy, LOCAL_STORE, LogDenials, MAX_DENIAL_DELAY,
    Missing, Rule, RuleState, RuleStore,
};
pub use ruleset::RuleSet;
pub use source::{LimitSource, RequestSource};
pub use standing::{Previewed, ScopeNumbers, Standing, preview};
pub use tiers::Tiers;
pub use validate::{ID_HELP, Outside, is_attribute_name, is_id};
pub use waiting::{DEFAULT_MAX_WAITING, LARGEST_MAX_WAITING, LONGEST_MAX_WAIT, Waiting};
pub use warnings::Warning;
