//! Adds up the `test result:` lines of `cargo test`, one for each test binary.

use std::fmt;

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Tally {
    /// Adds the counts of `line`, if it is a result line.
    pub(crate) fn add_line(&mut self, line: &str) {
        if let Some(counts) = Tally::of_line(line) {
            self.passed += counts.passed;
            self.failed += counts.failed;
            self.skipped += counts.skipped;
        }
    }

    /// Whether any test was run.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed == 0
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
    fn of_line(line: &str) -> Option<Tally> {
        let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Tally::default();
        for part in counts.split(';') {
            let Some((number, what)) = part.trim().split_once(' ') else {
                continue;
            };
            let count = match what {
                "passed" => &mut tally.passed,
                "failed" => &mut tally.failed,
                "ignored" => &mut tally.skipped,
                _ => continue,
            };
            *count = number.parse().ok()?;
        }
        Some(tally)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_ignored_counts_as_skipped() {
        let mut tally = Tally::default();
        for line in [
            "running 4 tests\n",
            "test tests::a ... ok\n",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n",
        ] {
            tally.add_line(line);
        }
        assert_eq!(tally.to_string(), "4 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn other_lines_are_ignored() {
        let mut tally = Tally::default();
        tally.add_line("the test result: ok. 3 passed; 0 failed");
        tally.add_line("test result: odd");
        assert!(tally.is_empty());
    }

    #[test]
    fn skipped_tests_do_not_count_as_a_run() {
        let mut tally = Tally::default();
        tally.add_line("test result: ok. 0 passed; 0 failed; 9 ignored; 0 measured");
        assert!(tally.is_empty());
    }
}
