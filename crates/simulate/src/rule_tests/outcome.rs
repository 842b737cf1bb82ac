//! The outcome of a test file.

use tollgate_config::ConfigError;

/// The outcome of all tests of a file.
#[derive(Debug)]
pub struct FileOutcome {
    /// The name of the file.
    pub file: String,
    /// The outcome of each test that ran, in the order of the file.
    pub tests: Vec<TestOutcome>,
    /// All failures with the lines of the file, ready to print; `None` if all tests passed.
    pub failures: Option<ConfigError>,
}

impl FileOutcome {
    /// Returns how many tests failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        let failed = self.tests.iter().filter(|test| !test.failures.is_empty());
        failed.count()
    }
}

/// The outcome of a test.
#[derive(Debug)]
pub struct TestOutcome {
    /// The name of the test.
    pub name: String,
    /// The line of the name.
    pub line: usize,
    /// How many requests the test made.
    pub requests: u64,
    /// What was not as expected; empty if the test passed.
    pub failures: Vec<Failure>,
}

/// Something that was not as expected.
#[derive(Debug)]
pub struct Failure {
    /// The line in the test file.
    pub line: usize,
    /// The column in the test file.
    pub column: usize,
    /// What was expected, and what was decided.
    pub message: String,
    /// What each rule decided.
    pub detail: String,
}
