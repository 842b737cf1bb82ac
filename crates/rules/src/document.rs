//! How a config is read, for those who read the configs of others: YAML as a tree that knows where
//! everything stands, and all problems of a file at their places.
//!
//! ```
//! use tollgate_rules::document::{Problems, parse_document};
//!
//! let mut problems = Problems::new("limit: ten");
//! let root = parse_document("start with a `limit`", &mut problems);
//! if let Some(root) = root {
//!     problems.report(root.place, "`ten` is no number", "write 10");
//! }
//! let error = problems.into_error("limits.yaml").to_string();
//! assert!(error.starts_with("limits.yaml:1:1: `ten` is no number"));
//! ```

pub use crate::error::{Place, Problems};
pub use crate::read::{entries, unknown_field, wanted};
pub use crate::yaml::{Node, Value, parse_document};
