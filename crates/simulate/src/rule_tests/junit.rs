//! Writes outcomes as JUnit XML, which CI systems read.

use std::fmt::Write as _;

use super::FileOutcome;

/// Writes the outcomes of several files as JUnit XML. Times are left out: tests run on a virtual clock.
#[must_use]
pub fn junit(outcomes: &[FileOutcome]) -> String {
    let tests: usize = outcomes.iter().map(|it| it.tests.len()).sum();
    let failed: usize = outcomes.iter().map(FileOutcome::failed).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites name=\"tollgate test\" tests=\"{tests}\" failures=\"{failed}\" errors=\"0\">\n"
    );
    for outcome in outcomes {
        let file = escaped(&outcome.file);
        let (tests, failed) = (outcome.tests.len(), outcome.failed());
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  <testsuite name=\"{file}\" tests=\"{tests}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\">"
        );
        for test in &outcome.tests {
            let (name, line) = (escaped(&test.name), test.line);
            let _ = write!(
                text,
                "    <testcase classname=\"{file}\" name=\"{name}\" file=\"{file}\" line=\"{line}\""
            );
            if test.failures.is_empty() {
                text += "/>\n";
                continue;
            }
            text += ">\n";
            for failure in &test.failures {
                let (message, line) = (escaped(&failure.message), failure.line);
                let detail = escaped(&failure.detail);
                let _ = writeln!(
                    text,
                    "      <failure message=\"{message}\">{file}:{line}: {message}\n{detail}</failure>"
                );
            }
            text += "    </testcase>\n";
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// Writes a text for XML. Characters that XML does not permit become spaces.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::{Failure, TestOutcome};
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let outcome = FileOutcome {
            file: "a&b.yaml".to_owned(),
            tests: vec![TestOutcome {
                name: "<\"x\u{1}\">".to_owned(),
                line: 3,
                requests: 1,
                failures: vec![Failure {
                    line: 4,
                    column: 1,
                    message: "expected <5>".to_owned(),
                    detail: "login denies".to_owned(),
                }],
            }],
            failures: None,
        };
        assert_eq!(
            junit(&[outcome]),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuites name=\"tollgate test\" tests=\"1\" failures=\"1\" errors=\"0\">\n\
             \x20 <testsuite name=\"a&amp;b.yaml\" tests=\"1\" failures=\"1\" errors=\"0\" skipped=\"0\">\n\
             \x20   <testcase classname=\"a&amp;b.yaml\" name=\"&lt;&quot;x &quot;&gt;\" file=\"a&amp;b.yaml\" line=\"3\">\n\
             \x20     <failure message=\"expected &lt;5&gt;\">a&amp;b.yaml:4: expected &lt;5&gt;\nlogin denies</failure>\n\
             \x20   </testcase>\n  </testsuite>\n</testsuites>\n"
        );
    }
}
