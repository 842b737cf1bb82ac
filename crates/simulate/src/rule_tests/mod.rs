//! Tests of rules: requests with times, and the decisions that are expected.
//!
//! [`TestFile::read`] reads a file, and [`TestFile::run`] runs its tests, each on a limiter of its own
//! without usage. `file.rs` is the form of a file, `run.rs` runs it, `outcome.rs` is the result and
//! `junit.rs` writes results for CI systems.
//!
//! ```
//! use tollgate_simulate::rule_tests::TestFile;
//!
//! let config = tollgate::parse("rules.yaml", "
//! version: 1
//! rules: [{ id: login, per: [user], algorithm: sliding-log, limit: 2, window: 10m }]
//! ", &|_| None)?;
//! let file = TestFile::read("login.test.yaml", "
//! version: 1
//! tests:
//!   - name: the third attempt is denied
//!     with: { user: ann }
//!     steps:
//!       - { times: 2, expect: allowed }
//!       - { expect: denied, rule: login, retry_after: 10m }
//!       - { after: 10m, expect: allowed }
//! ")?;
//! let outcome = file.run(&config, &|_| true)?;
//! assert_eq!((outcome.tests.len(), outcome.failed()), (1, 0));
//! # Ok::<(), tollgate::ConfigError>(())
//! ```

mod file;
mod junit;
mod outcome;
mod run;

pub use file::TestFile;
pub use junit::junit;
pub use outcome::{Failure, FileOutcome, TestOutcome};

/// Makes the JSON schema (draft 2020-12) of a test file, for editors.
#[cfg(feature = "schema")]
#[must_use]
pub fn json_schema() -> serde_json::Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<file::RawTestFile>();
    schema.insert("title".to_owned(), "Tollgate tests of rules".into());
    schema.to_value()
}
