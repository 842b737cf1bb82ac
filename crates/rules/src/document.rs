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

/// A duration as configs write it: `250ms`, `30s`, `10m`.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn duration(text: &str) -> Result<tollgate_core::Span, String> {
    let wrong = |bad: crate::units::BadNumber| format!("{}: {}", bad.message, bad.help);
    crate::units::span(text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use tollgate_core::Span;

    use super::duration;

    #[test]
    fn durations_are_read_as_in_a_config() {
        assert_eq!(duration("250ms"), Ok(Span::from_millis(250)));
        let bare = "`60` has no unit: say of what: write 60s, 60m or 60h";
        assert_eq!(duration("60"), Err(bare.to_owned()));
        assert!(duration(&"9".repeat(60_000)).unwrap_err().len() < 300);
    }
}
