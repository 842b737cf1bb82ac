//! The report: printed as it comes, and put into a document at the end.

use std::error::Error;
use std::path::Path;

use tollgate_bench::table::Table;

const BEGIN: &str = "<!-- written by `cargo xtask bench redis --write` -->\n";
const END: &str = "<!-- end of what it wrote -->\n";

pub(super) struct Report {
    text: String,
}

impl Report {
    pub(super) fn new(about: String) -> Report {
        println!("{about}\n");
        Report { text: about + "\n" }
    }

    pub(super) fn section(&mut self, about: &str, tables: &[Table]) {
        println!("{about}\n");
        self.text += &format!("\n{about}\n");
        for table in tables {
            println!("{table}");
            self.text += &format!("\n{}", table.markdown());
        }
    }

    /// Replaces what an earlier run has written into `file`.
    pub(super) fn write(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let old = std::fs::read_to_string(file)?;
        let parts = old.split_once(BEGIN).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(END)?;
            Some((before, after))
        });
        let Some((before, after)) = parts else {
            let file = file.display();
            return Err(format!("{file} has no place for this between\n{BEGIN}{END}").into());
        };
        let new = [before, BEGIN, "\n", &self.text, "\n", END, after].concat();
        Ok(std::fs::write(file, new)?)
    }
}
