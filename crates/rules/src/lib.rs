//! The rules file of Tollgate: text in, charges out.
//!
//! [`parse`] reads a file into a [`Config`], or says everything that is wrong with it, each with
//! its line and column, the line itself and what would be right. [`RuleSet::compile`] prepares the
//! rules of a config for requests; [`RuleSet::resolve`] turns the attributes of one request into
//! the [`Charge`](tollgate_core::Charge)s that a store decides.
//!
//! Nothing here keeps state, reads a clock or knows a wire format. What was accepted at load
//! cannot be wrong later: the only refusals left for a request are an attribute that it lacks and
//! an expression that its values break, and neither lets it escape a rule that says otherwise.
//!
//! ```
//! use tollgate_core::Keyring;
//! use tollgate_rules::{Attributes, RequestLimits, RuleSet, parse};
//!
//! let config = parse("rules.yaml", r#"
//! version: 1
//! rules:
//!   - id: search
//!     match: { action: search }
//!     per: [tenant]
//!     algorithm: gcra
//!     rate: 100/m
//!     burst: 20
//! "#, &|_| None)?;
//! let rules = RuleSet::compile(&config, Keyring::new(b"a secret of 16 bytes", &config.namespace));
//!
//! let request = Attributes::from([("action", "search"), ("tenant", "acme")]);
//! let request_limits = RequestLimits::default();
//! assert_eq!(rules.resolve(&request, &request_limits).charges.len(), 1);
//! let other = Attributes::from([("action", "login"), ("tenant", "acme")]);
//! assert!(rules.resolve(&other, &request_limits).charges.is_empty());
//! # Ok::<(), tollgate_rules::ConfigError>(())
//! ```

mod address;
mod attributes;
mod client;
mod compile;
mod config;
mod counters;
mod csv;
mod diff;
pub mod document;
mod error;
mod events;
mod explain;
mod expr;
mod files;
mod index;
mod layers;
mod ledger;
mod limits;
mod overrides;
mod path;
mod pattern;
mod period;
mod placement;
mod raw;
mod read;
mod request_limits;
mod resolution;
mod route;
mod rule;
mod ruleset;
mod schema;
mod secrets;
mod server;
mod share;
mod store;
mod suggest;
mod symbols;
mod telemetry;
mod tiers;
mod units;
mod validate;
mod values;
mod yaml;
mod zone;

pub use attributes::Attributes;
pub use client::{ClientHeader, SubjectHeaders};
pub use config::{
    Config, Families, Headers, Secret, Subjects, load, parse, read_text, tenant_paths,
};
pub use counters::Counter;
pub use diff::{Difference, diff};
pub use error::{ConfigError, Problem};
pub use events::{Events, Webhook, WebhookUrl};
pub use explain::{Effect, Explanation, NumberFrom};
pub use ledger::{Ledger, LedgerDatabase, PostgresUrl};
pub use overrides::{Override, Scope};
pub use path::{MAX_PATH, normal_path};
pub use placement::Placement;
pub use request_limits::RequestLimits;
pub use resolution::{Overridden, Resolution, RuleDenial, RuleDenialReason};
pub use route::Routes;
pub use rule::{Durability, FailurePolicy, Missing, Rule, RuleState};
pub use ruleset::RuleSet;
pub use schema::json_schema;
pub use server::{
    Admin, Grpc, Listen, Resp, Role, Server, ThrottleFailure, TlsFiles, Token, UnknownDomain,
};
pub use store::{
    CircuitBreaker, ClockSource, Login, Mode, Password, Redis, RedisUrl, Store, UrlError,
};
pub use telemetry::{OtlpUrl, Telemetry};
pub use tiers::Tiers;
pub use validate::is_attribute_name;
