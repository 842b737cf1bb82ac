//! Reads files: a YAML tree with positions, typed values and sections, and all problems of a file with
//! their positions.
//!
//! Rule files, the config of a deployment and the configs of other rate limiters are read with this
//! module. The module reads the values of a text. It does not check whether the values make sense together.
//!
//! ```
//! use tollgate_rules::document::{Problems, parse_document};
//!
//! let mut problems = Problems::new("limit: ten");
//! let root = parse_document("start with a `limit`", &mut problems);
//! if let Some(root) = root {
//!     problems.report(root.place, "`ten` is not a number", "write 10");
//! }
//! let error = problems.into_error("limits.yaml").to_string();
//! assert!(error.starts_with("limits.yaml:1:1: `ten` is not a number"));
//! ```

mod elsewhere;
mod problems;
mod redact;
mod section;
mod suggest;
mod units;
mod values;
mod yaml;

#[doc(hidden)]
pub use crate::{schema, section, words};
pub use problems::{BadValue, ConfigError, Place, Problem, Problems};
pub use redact::{redacted, secret_part};
pub use section::{
    At, Field, Read, Section, entries, no_such_word, read_section, unknown_field, wanted,
};
#[cfg(feature = "schema")]
pub use section::{add_field, add_fields, object_schema};
pub use suggest::{nearest, one_of, suggestion};
pub use units::{Short, percent, percentage, rate, span, whole};
pub(crate) use values::number_or;
pub use values::{
    Amount, Duration, DurationOrOff, Factor, Flag, Lease, List, Named, Percent, PlainRate,
    RateOrUnlimited, Size, Text, TextOrOff, Texts, Whole, number,
};
pub use yaml::{Node, Value, parse_document};

/// Reads a duration as configs write it: `250ms`, `30s`, `10m`.
///
/// # Errors
/// The problem of the text, and how to fix it.
pub fn duration(text: &str) -> Result<tollgate_core::Span, String> {
    span(text).map_err(|bad| format!("{}: {}", bad.message, bad.help))
}

#[cfg(test)]
mod tests {
    use tollgate_core::Span;

    use super::duration;

    #[test]
    fn durations_are_read_as_in_a_config() {
        assert_eq!(duration("250ms"), Ok(Span::from_millis(250)));
        let bare = "`60` has no unit: write 60s, 60m or 60h";
        assert_eq!(duration("60"), Err(bare.to_owned()));
        assert!(duration(&"9".repeat(60_000)).unwrap_err().len() < 300);
    }
}
