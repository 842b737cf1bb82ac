//! The config file of a Tollgate deployment.
//!
//! [`load`] and [`parse`] read a file into a [`Config`]. They report every problem, with its line and
//! column, the line itself and the remedy. A config says where the doors listen, where state and usage
//! are kept, and what is logged and sent. It also says what is limited: that part is a [`Policy`] of
//! `tollgate-rules`, which this crate does not look into.
//!
//! Each section is one module: the fields, their validation, and the validated data. Nothing here
//! listens or connects. A config that was accepted need not be checked again.
//!
//! ```
//! use tollgate_config::{Attributes, RequestLimits, parse};
//! use tollgate_core::Keyring;
//!
//! let config = parse("tollgate.yaml", r#"
//! version: 1
//! store: memory
//! rules:
//!   - { id: search, per: [tenant], algorithm: gcra, rate: 100/m, burst: 20 }
//! "#, &|_| None)?;
//! let keyring = Keyring::new(b"a secret of 16 bytes", &config.namespace);
//! let rules = config.compile(keyring, &[]);
//!
//! let request = Attributes::from([("tenant", "acme")]);
//! assert_eq!(rules.resolve(&request, &RequestLimits::default()).charges.len(), 1);
//! # Ok::<(), tollgate_config::ConfigError>(())
//! ```

mod authentication;
mod config;
mod csv;
mod diff;
mod events;
mod fields;
mod foreign;
mod headers;
mod ledger;
mod mask;
mod path;
mod priorities;
mod route;
mod secrets;
mod server;
mod shedding;
mod store;
mod subjects;
mod telemetry;
mod tenant_files;
mod upstream;

pub use authentication::{
    ApiKey, ApiKeyTable, ApiKeys, Authentication, CertificateName, Jwk, JwkSet, Jwt, JwtAlgorithm,
    JwtKeys, KeyMaterial,
};
#[cfg(feature = "schema")]
pub use config::json_schema;
pub use config::{
    Checked, Config, check, load, load_offline, load_text, other_paths, parse, read_text,
};
pub use diff::diff;
pub use events::{Events, HttpUrl, Webhook};
pub use headers::{AnswerForm, Families, Headers, ResetForm};
pub use ledger::{Ledger, LedgerDatabase, PostgresUrl};
pub use mask::{mask, unmask};
pub use path::{MAX_PATH, normal_path, strict_path};
pub use priorities::Priorities;
pub use route::{RequestField, Route, Routes};
pub use secrets::Secret;
pub use server::{
    AccessLog, AccessLogFormat, Admin, DRAIN, DataToken, ExemptPaths, Gateway, Grpc, Listen,
    MAX_CONNECTIONS_PER_CLIENT, Resp, Role, Server, ThrottleFailure, TlsFiles, Token, TokenScope,
    TokenScopes, UnknownDomain,
};
pub use shedding::Adaptive;
pub use store::{
    CircuitBreaker, ClockSource, Login, Mode, NamedStore, Password, Redis, RedisUrl, Store,
    UrlError,
};
pub use subjects::{ClientHeader, SubjectHeaders, Subjects};
pub use telemetry::{Denials, OtlpUrl, Telemetry};
#[doc(no_inline)]
pub use tollgate_rules::{
    AttributeType, Attributes, Blocks, Ceiling, CompileOptions, ConfigError, Counter,
    DEFAULT_MAX_WAITING, DenialBody, DenialField, Difference, Durability, Effect, Explanation,
    FailurePolicy, FairShares, FieldValue, LARGEST_MAX_WAITING, LONGEST_MAX_WAIT, LimitSource,
    LogDenials, Missing, ModeName, NamedSubject, NumberFrom, Overridden, Override, Placement,
    Policy, Problem, RequestLimits, RequestSource, Resolution, Rollout, Rule, RuleBuilder,
    RuleDenial, RuleDenialReason, RuleError, RuleProblem, RuleSet, RuleState, RuleStore, Scope,
    Tiers, Waiting, address_text, fair_classes, is_attribute_name, summary,
};
pub use upstream::{
    HealthCheck, Upstream, UpstreamHost, UpstreamProtocol, UpstreamServer, Upstreams,
};
