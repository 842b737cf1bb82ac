//! `cargo xtask test`: the checks that every change must pass.

use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;

use crate::components;
use crate::shell::{self, Failure, Step};
use crate::tally::Tally;

/// The manifest of the library, whose features are optional.
const LIBRARY: &str = "crates/tollgate/Cargo.toml";
/// The packages of this workspace that are not published.
const UNPUBLISHED: [&str; 4] = ["tollgate-bench", "tollgate-faults", "tollgate-rig", "xtask"];

/// All packages, those whose tests take the longest with `--long` first.
const PACKAGES: [&str; 18] = [
    "tollgate",
    "tollgate-redis",
    "tollgate-store",
    "tollgate-cli",
    "tollgate-server",
    "tollgate-core",
    "tollgate-ledger",
    "tollgate-rules",
    "tollgate-faults",
    "tollgate-rig",
    "tollgate-config",
    "tollgate-conformance",
    "tollgate-import",
    "tollgate-respond",
    "tollgate-tower",
    "tollgate-simulate",
    "tollgate-bench",
    "xtask",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Run 10 to 100 times as many random cases of every property, new ones each time, and longer random
    /// sequences against Redis and outages. `--long 2/4` tests the second of four shares of the packages
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "1/1")]
    long: Option<Part>,
    /// Then test the Redis store with every supported server: Redis 6.2, 7.0 and 8.2, Valkey 9
    #[arg(long)]
    matrix: bool,
}

/// One of several shares of the packages, which are tested one share at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// From 1 to `of`.
    number: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/');
        let numbers = numbers.and_then(|(number, of)| number.parse().ok().zip(of.parse().ok()));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) && of <= PACKAGES.len() => {
                Ok(Part { number, of })
            }
            _ => Err("write a part as 2/4: the second of four".to_owned()),
        }
    }
}

impl Part {
    /// Returns the packages of this part. Neighbours in the list take about the same time, so each part gets
    /// a similar share.
    fn packages(self) -> impl Iterator<Item = &'static str> {
        PACKAGES.into_iter().skip(self.number - 1).step_by(self.of)
    }
}

/// Runs the steps up to the first that fails. Prints the sum of all tests as the last line.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut tally = Tally::default();
    let code = shell::report(steps(options, &mut tally));
    if !tally.is_empty() {
        println!("\n{tally}");
    }
    code
}

fn steps(options: &Options, tally: &mut Tally) -> Result<(), Failure> {
    components::ensure(components::TEST)?;
    Step::cargo("format", "fmt --all --check").run()?;
    Step::cargo(
        "lints",
        "clippy --workspace --all-targets --locked -- -D warnings",
    )
    .run()?;

    match options.long {
        Some(part) if part.of > 1 => tests("tests", options.long)
            .args(
                &part
                    .packages()
                    .flat_map(|it| ["--package", it])
                    .collect::<Vec<_>>(),
            )
            .run_watched(|line| tally.add_line(line))?,
        long => all_tests(long, tally)?,
    }
    if tally.is_empty() {
        return Err(Failure::new("==> tests: failed, no test was run"));
    }

    for features in feature_sets(&shell::root().join(LIBRARY))? {
        Step::cargo(
            "features",
            "check --locked --quiet -p tollgate --lib --no-default-features --features",
        )
        .args(&[&features])
        .run()?;
    }
    Step::cargo(
        "fuzz targets",
        "check --locked --quiet --manifest-path fuzz/Cargo.toml",
    )
    .run()?;
    // This step works offline, because everything was downloaded for the tests.
    Step::cargo(
        "packages",
        "package --workspace --no-verify --allow-dirty --offline --quiet",
    )
    .args(&UNPUBLISHED.map(|name| ["--exclude", name]).concat())
    .run()?;
    Step::cargo("docs", "doc --workspace --no-deps --locked")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    if options.matrix {
        matrix(tally)?;
    }
    Ok(())
}

/// Makes a step that runs tests.
fn tests(name: &'static str, long: Option<Part>) -> Step {
    let tests = Step::cargo(name, "test --locked");
    match long {
        // The second number is for properties that do not set their own number of cases. Some of them are slow.
        Some(_) => tests
            .env("TOLLGATE_PROOF_CASES", "100")
            .env("PROPTEST_CASES", "2560"),
        // A short run always uses the same random cases, so two runs of one commit agree.
        None => tests.env("PROPTEST_RNG_SEED", "1"),
    }
}

/// Runs all tests.
///
/// Many tests wait for servers, so the test programs run in two streams. Each takes about half of the time.
/// The output of the second stream is printed when it has ended.
fn all_tests(long: Option<Part>, tally: &mut Tally) -> Result<(), Failure> {
    let tests = |name| tests(name, long).args(&["--workspace", "--no-fail-fast"]);
    tests("test programs").args(&["--no-run"]).run()?;
    let first = tests("tests a to k").args(&["--test", "[a-k]*"]);
    let second = tests("other tests").args(&["--lib", "--bins", "--examples", "--test", "[!a-k]*"]);
    let (first, (second, lines)) = std::thread::scope(|scope| {
        let second = scope.spawn(|| second.run_captured());
        let first = first.run_watched(|line| tally.add_line(line));
        let failed = || {
            (
                Err(Failure::new("the second stream of tests panicked")),
                Vec::new(),
            )
        };
        (first, second.join().unwrap_or_else(|_| failed()))
    });
    for line in lines {
        print!("{line}");
        tally.add_line(&line);
    }
    first?;
    second?;
    tests("doc tests")
        .args(&["--doc"])
        .run_watched(|line| tally.add_line(line))
}

/// Returns all combinations of the features of the library. `ledger` is left out, because the feature of each
/// database includes it.
fn feature_sets(manifest: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(manifest)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", manifest.display())))?;
    let section = text.lines().skip_while(|line| *line != "[features]");
    let section = section.skip(1).take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.split_once(" = "));
    let names = names.map(|(name, _)| name);
    let mut sets = vec![String::new()];
    for name in names.filter(|name| !["default", "ledger"].contains(name)) {
        let with = sets.iter().map(|set| format!("{set},{name}"));
        sets.extend(with.collect::<Vec<_>>());
    }
    Ok(sets)
}

/// Runs the tests of the Redis store once for each server.
fn matrix(tally: &mut Tally) -> Result<(), Failure> {
    let mut servers = Vec::new();
    Step::cargo("servers", "run --locked -q -p tollgate-rig --bin servers").run_watched(
        |line| {
            if let Some((name, program)) = line.trim_end().split_once('\t') {
                servers.push((name.to_owned(), program.to_owned()));
            }
        },
    )?;
    for (name, program) in servers {
        println!("\n==> {name}");
        Step::cargo("tests", "test --locked -p tollgate-redis")
            .env("TOLLGATE_REDIS_SERVER", program)
            .run_watched(|line| tally.add_line(line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_the_whole_workspace() {
        let part = |text: &str| text.parse::<Part>();
        for wrong in ["0/4", "5/4", "1/0", "1/99", "2", "a/b", ""] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
        let of_all: Vec<_> = (1..=4)
            .flat_map(|number| Part { number, of: 4 }.packages())
            .collect();
        let mut members = Vec::new();
        for directory in ["crates", "."] {
            for member in std::fs::read_dir(shell::root().join(directory)).expect("it is there") {
                let manifest = member.expect("readable").path().join("Cargo.toml");
                let Ok(text) = std::fs::read_to_string(manifest) else {
                    continue;
                };
                let name = text.lines().find_map(|line| line.strip_prefix("name = "));
                members.push(
                    name.expect("a package has a name")
                        .trim_matches('"')
                        .to_owned(),
                );
            }
        }
        // The fuzz targets are a workspace of their own.
        members.retain(|name| name != "tollgate-fuzz");
        members.sort_unstable();
        let mut sorted = of_all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, members);
        assert_eq!(part("1/1"), Ok(Part { number: 1, of: 1 }));
    }

    #[test]
    fn each_combination_of_features_is_checked() {
        let sets = feature_sets(&shell::root().join(LIBRARY)).expect("the manifest is there");
        assert_eq!(sets[0], "");
        assert!(sets.contains(&",redis".to_owned()));
        assert!(sets.contains(&",redis,ledger-postgres".to_owned()));
        assert!(!sets.concat().contains("default"));
        assert!(sets.len().is_power_of_two());
    }
}
