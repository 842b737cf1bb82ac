//! A report that is printed at once, and written into a document at the end.

use std::error::Error;
use std::path::Path;

use tollgate_bench::table::Table;

const END: &str = "<!-- end of what it wrote -->\n";

pub(crate) struct Report {
    /// The marker before the report in the document.
    begin: String,
    text: String,
}

impl Report {
    /// Returns the report of `cargo xtask bench <bench> --write`.
    pub(crate) fn new(bench: &str) -> Report {
        Report {
            begin: format!("<!-- written by `cargo xtask bench {bench} --write` -->\n"),
            text: String::new(),
        }
    }

    /// Adds a paragraph.
    pub(crate) fn say(&mut self, about: &str) {
        println!("{about}\n");
        self.text += &format!("\n{about}\n");
    }

    pub(crate) fn section(&mut self, about: &str, tables: &[Table]) {
        self.say(about);
        for table in tables {
            println!("{table}");
            self.text += &format!("\n{}", table.markdown());
        }
    }

    /// Replaces the report of an earlier run in `file`.
    pub(crate) fn write(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let old = std::fs::read_to_string(file)?;
        let begin = &self.begin;
        let parts = old.split_once(begin).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(END)?;
            Some((before, after))
        });
        let Some((before, after)) = parts else {
            let file = file.display();
            return Err(format!("{file} lacks the markers of this report:\n{begin}{END}").into());
        };
        let new = [before, begin, &self.text, "\n", END, after].concat();
        Ok(std::fs::write(file, new)?)
    }
}
