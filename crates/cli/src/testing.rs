//! `tollgate test`: runs tests of rules on a virtual clock.

use std::path::{Path, PathBuf};

use tollgate_simulate::rule_tests::{FileOutcome, TestFile, junit};

use crate::terminal::printable;
use crate::{CommandResult, config};

/// Larger files are rejected unread.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Runs tests of rules. A test is a list of requests with times, and the decisions that are expected. All
/// state is in memory: the store and the ledger of the config are not used, and a `${VAR}` need not be set.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The test files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Test this config instead of the one that each file names
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Run only tests whose name contains this text
    #[arg(long, short, value_name = "TEXT")]
    filter: Option<String>,

    /// Also write the results to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut outcomes = Vec::new();
    for path in &args.files {
        let outcome = run_file(path, args)?;
        report(&outcome);
        outcomes.push(outcome);
    }
    if let Some(path) = &args.junit {
        std::fs::write(path, junit(&outcomes))
            .map_err(|error| format!("error: failed to write {}: {error}", path.display()))?;
    }
    let ran: usize = outcomes.iter().map(|it| it.tests.len()).sum();
    if ran == 0 {
        let help = match &args.filter {
            Some(text) => format!("no test has {text:?} in its name"),
            None => "add tests to the file".to_owned(),
        };
        return Err(format!("error: no test was run: {help}"));
    }
    let failed: usize = outcomes.iter().map(FileOutcome::failed).sum();
    if args.files.len() > 1 {
        println!("{} in all, {failed} failed", count(ran));
    }
    Ok(failed == 0)
}

fn run_file(path: &Path, args: &Args) -> Result<FileOutcome, String> {
    let name = path.display().to_string();
    let text = read(path)?;
    let render = |error| config::render(&error);
    let file = TestFile::read(&name, &text).map_err(render)?;
    let config = match (&args.config, file.config()) {
        (Some(config), _) => config.clone(),
        (None, Some(config)) => path.parent().unwrap_or(Path::new("")).join(config),
        (None, None) => {
            return Err(format!(
                "error: {name} does not say which config to test: add `config: rules.yaml`, or give --config"
            ));
        }
    };
    let config = tollgate_config::load_offline(&config).map_err(render)?;
    let wanted = |name: &str| args.filter.as_ref().is_none_or(|it| name.contains(it));
    file.run(&config, &wanted).map_err(render)
}

fn read(path: &Path) -> Result<String, String> {
    let name = path.display();
    let failed = |error| format!("error: failed to read {name}: {error}");
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > MAX_BYTES {
        return Err(format!("error: {name} is larger than {MAX_BYTES} bytes"));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Prints a line for each test, then all failures with their lines.
fn report(outcome: &FileOutcome) {
    for test in &outcome.tests {
        let word = if test.failures.is_empty() {
            "ok"
        } else {
            "failed"
        };
        println!("{word:<6}  {}", printable(&test.name));
    }
    if let Some(failures) = &outcome.failures {
        eprintln!("{}\n", config::render(failures).trim_end());
    }
    let (file, failed) = (printable(&outcome.file), outcome.failed());
    println!("{file}: {}, {failed} failed", count(outcome.tests.len()));
}

fn count(tests: usize) -> String {
    format!("{tests} test{}", if tests == 1 { "" } else { "s" })
}
