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
const UNPUBLISHED: [&str; 5] = [
    "tollgate-bench",
    "tollgate-faults",
    "tollgate-fuzz",
    "tollgate-rig",
    "xtask",
];

/// The most parts of a long run.
const MAX_PARTS: usize = 4;

/// How many seconds the slowest test programs take in a long run, by name: estimated from the times of a short run and
/// the number of cases. Only the balance of the parts depends on this table.
const SECONDS: [(&str, u32); 34] = [
    ("admin", 20),
    ("backoff", 45),
    ("browser", 40),
    ("calendars", 200),
    ("cap", 30),
    ("cluster", 250),
    ("config", 85),
    ("conformance", 150),
    ("connections", 40),
    ("dashboard", 15),
    ("deploy", 40),
    ("fleet", 15),
    ("gateway", 55),
    ("holds_at_every_door", 30),
    ("hostile", 20),
    ("killed", 50),
    ("known_denials", 60),
    ("leased_processes", 35),
    ("leases", 15),
    ("ledger", 100),
    ("ledger_fleet", 75),
    ("ledger_outage", 10),
    ("memory", 200),
    ("outage", 20),
    ("parity", 55),
    ("properties", 200),
    ("quick", 15),
    ("quotas", 90),
    ("reload_under_load", 75),
    ("rolling_restart", 15),
    ("runs", 25),
    ("schemathesis", 75),
    ("sums", 50),
    ("unread", 120),
];
/// How many seconds any other test program takes.
const OTHER_SECONDS: u32 = 3;
/// How many seconds of each stream the steps take that only part 1 has.
const OTHER_STEPS_SECONDS: u32 = 200;

#[derive(Args)]
pub(crate) struct Options {
    /// Run 5 to 100 times as many random cases of every property, and longer random sequences, attacks and outages.
    /// Seeds are new in each run, and a failure prints its seed. `--long 2/4` runs the second of four shares of the
    /// test programs; the steps that run no test programs belong to the first
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "1/1")]
    long: Option<Part>,
    /// Then test the Redis store with every supported server: Redis 6.2, 7.0 and 8.2, Valkey 9
    #[arg(long)]
    matrix: bool,
}

/// One of several shares of the test programs, which are run one share at a time.
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
            Some((number, of)) if (1..=of).contains(&number) && of <= MAX_PARTS => {
                Ok(Part { number, of })
            }
            _ => Err(format!(
                "write a part as 2/4, the second of four; there are at most {MAX_PARTS}"
            )),
        }
    }
}

impl Part {
    /// Returns this part's share of the test programs of a stream. The slowest programs are dealt first, each to the
    /// part that has the least to do, so the shares take about the same time.
    fn share(self, mut names: Vec<String>) -> Vec<String> {
        names.sort_by(|one, other| seconds(other).cmp(&seconds(one)).then(one.cmp(other)));
        let mut sums = vec![0; self.of];
        sums[0] = OTHER_STEPS_SECONDS;
        let mut share = Vec::new();
        for name in names {
            let least = (0..self.of).min_by_key(|at| sums[*at]).unwrap_or(0);
            sums[least] += seconds(&name);
            if least + 1 == self.number {
                share.push(name);
            }
        }
        share.sort_unstable();
        share
    }
}

/// Returns how long a test program takes in a long run.
fn seconds(name: &str) -> u32 {
    let known = SECONDS.iter().find(|(slow, _)| *slow == name);
    known.map_or(OTHER_SECONDS, |(_, seconds)| *seconds)
}

/// What the two streams of tests run. Each stream takes about half of the time.
struct Streams {
    first: Vec<String>,
    second: Vec<String>,
}

impl Streams {
    /// Returns the streams of all tests. Unit tests are in the second one.
    fn whole() -> Streams {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        Streams {
            first: words("--test [a-k]*"),
            second: words("--lib --bins --examples --test [!a-k]*"),
        }
    }

    /// Returns a share of the same streams. Unit tests belong to part 1.
    fn part(part: Part) -> Result<Streams, Failure> {
        let (first, second): (Vec<_>, Vec<_>) = test_programs(&shell::root())?
            .into_iter()
            .partition(|name| name.starts_with(|first| ('a'..='k').contains(&first)));
        let args = |names| {
            let share = part.share(names).into_iter();
            share.flat_map(|name| ["--test".to_owned(), name])
        };
        let units = ["--lib", "--bins", "--examples"].map(str::to_owned);
        let units = units.into_iter().filter(|_| part.number == 1);
        Ok(Streams {
            first: args(first).collect(),
            second: units.chain(args(second)).collect(),
        })
    }
}

/// Returns the names of the test programs of all packages. Some packages have programs with the same name.
fn test_programs(root: &Path) -> Result<Vec<String>, Failure> {
    let entries = |directory: &Path| {
        let failed = |error| Failure::new(format!("cannot read {}: {error}", directory.display()));
        let entries = std::fs::read_dir(directory).map_err(failed)?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.collect::<Vec<_>>())
    };
    let mut names = Vec::new();
    for package in [entries(root)?, entries(&root.join("crates"))?].concat() {
        let tests = package.join("tests");
        if !package.join("Cargo.toml").is_file() || !tests.is_dir() {
            continue;
        }
        for path in entries(&tests)? {
            let is_rust = path.extension().is_some_and(|it| it == "rs");
            if (is_rust || path.join("main.rs").is_file())
                && let Some(name) = path.file_stem().and_then(|it| it.to_str())
            {
                names.push(name.to_owned());
            }
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
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
    if let Some(part) = options.long.filter(|part| part.number > 1) {
        return tests_of(&Streams::part(part)?, options, tally);
    }
    Step::cargo("format", "fmt --all --check").run()?;
    Step::cargo(
        "lints",
        "clippy --workspace --all-targets --locked -- -D warnings",
    )
    .run()?;
    let streams = match options.long {
        Some(part) if part.of > 1 => Streams::part(part)?,
        _ => Streams::whole(),
    };
    tests_of(&streams, options, tally)?;
    tests("doc tests", options.long)
        .args(&["--doc"])
        .run_watched(|line| tally.add_line(line))?;

    let names = feature_names(&shell::root().join(LIBRARY))?;
    for features in feature_sets(&names, options.long.is_some()) {
        Step::cargo(
            "features",
            "check --locked --quiet -p tollgate --lib --no-default-features --features",
        )
        .args(&[&features])
        .run()?;
    }
    let unpublished = UNPUBLISHED.map(|name| ["--exclude", name]).concat();
    // This step works offline, because everything was downloaded for the tests.
    Step::cargo(
        "packages",
        "package --workspace --no-verify --allow-dirty --offline --quiet",
    )
    .args(&unpublished)
    .run()?;
    Step::cargo("docs", "doc --workspace --no-deps --locked")
        .args(&unpublished)
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    if options.matrix {
        matrix(tally)?;
    }
    Ok(())
}

/// Makes a step that runs tests of all packages.
fn tests(name: &'static str, long: Option<Part>) -> Step {
    let tests = Step::cargo(
        name,
        "test --locked --workspace --exclude tollgate-fuzz --no-fail-fast",
    );
    match long {
        // The second number is for properties that do not set their own number of cases. Some of them are slow.
        Some(_) => tests
            .env("TOLLGATE_PROOF_CASES", "100")
            .env("PROPTEST_CASES", "2560"),
        // A short run always uses the same random cases, so two runs of one commit agree.
        None => tests.env("PROPTEST_RNG_SEED", "1"),
    }
}

/// Runs the tests of two streams at the same time, because many tests wait for servers. The output of the second stream
/// is printed when it has ended.
fn tests_of(streams: &Streams, options: &Options, tally: &mut Tally) -> Result<(), Failure> {
    let tests = |name, args: &[&String]| {
        let args: Vec<&str> = args.iter().map(|arg| arg.as_str()).collect();
        tests(name, options.long).args(&args)
    };
    let [one, other] = [&streams.first, &streams.second].map(|it| it.iter().collect::<Vec<_>>());
    let build = tests("test programs", &[one.clone(), other.clone()].concat());
    build.args(&["--no-run"]).run()?;
    let (first, second) = (tests("tests a to k", &one), tests("other tests", &other));
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
    if tally.is_empty() {
        return Err(Failure::new("==> tests: failed, no test was run"));
    }
    Ok(())
}

/// Returns the features of the library. `ledger` is left out, because the feature of each database includes it.
fn feature_names(manifest: &Path) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(manifest)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", manifest.display())))?;
    let section = text.lines().skip_while(|line| *line != "[features]");
    let section = section.skip(1).take_while(|line| !line.starts_with('['));
    let names = section.filter_map(|line| line.split_once(" = "));
    let names = names.map(|(name, _)| name.to_owned());
    let names = names.filter(|name| !["default", "ledger"].contains(&name.as_str()));
    Ok(names.collect())
}

/// Returns the sets of features to check. A long run checks all combinations. A short run checks no feature, each one
/// alone, all but one, and all: code that is missing, or not used, shows in one of these.
fn feature_sets(names: &[String], all: bool) -> Vec<String> {
    let mut sets = vec![Vec::new()];
    for name in names {
        let with = sets.iter().map(|set| [set, &[name.clone()][..]].concat());
        sets.extend(with.collect::<Vec<Vec<String>>>());
    }
    let count = names.len();
    sets.retain(|set| all || [0, 1, count - 1, count].contains(&set.len()));
    sets.iter().map(|set| set.join(",")).collect()
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
    fn a_part_is_a_number_of_a_few() {
        let part = |text: &str| text.parse::<Part>();
        for wrong in ["0/4", "5/4", "1/0", "1/5", "2", "a/b", ""] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
        assert_eq!(part("1/1"), Ok(Part { number: 1, of: 1 }));
        assert_eq!(part("4/4"), Ok(Part { number: 4, of: 4 }));
    }

    #[test]
    fn parts_together_run_every_test_program_once() {
        let names = test_programs(&shell::root()).expect("readable");
        for known in ["conformance", "gateway", "architecture", "quick", "redis"] {
            assert!(names.iter().any(|name| name == known), "{known}");
        }
        for of in 1..=MAX_PARTS {
            let mut all = Vec::new();
            for number in 1..=of {
                let streams = Streams::part(Part { number, of }).expect("readable");
                // Without a name, Cargo would run everything.
                assert!(streams.first.len() > 1 && streams.second.len() > 1);
                let args = [streams.first, streams.second].concat();
                let has_units = args.iter().any(|arg| arg == "--lib");
                assert_eq!(has_units, number == 1);
                all.extend(args.into_iter().filter(|arg| !arg.starts_with("--")));
            }
            all.sort_unstable();
            assert_eq!(all, names, "{of}");
        }
    }

    #[test]
    fn slow_test_programs_exist_and_parts_take_about_the_same_time() {
        let names = test_programs(&shell::root()).expect("readable");
        for (slow, _) in SECONDS {
            assert!(names.iter().any(|name| name == slow), "{slow}");
        }
        let of = 2;
        let sums = [1, 2].map(|number| {
            let share = Part { number, of }.share(names.clone());
            share.iter().map(|name| seconds(name)).sum::<u32>()
        });
        assert!(
            (sums[0] + OTHER_STEPS_SECONDS).abs_diff(sums[1]) < 20,
            "{sums:?}"
        );
    }

    #[test]
    fn features_are_checked_alone_left_out_and_in_a_long_run_in_each_combination() {
        let names = feature_names(&shell::root().join(LIBRARY)).expect("the manifest is there");
        assert!(names.iter().any(|name| name == "redis"));
        assert!(!names.concat().contains("default"));
        let short = feature_sets(&names, false);
        assert_eq!(short[0], "");
        assert!(short.contains(&"redis".to_owned()));
        assert!(short.contains(&names.join(",")));
        assert!(short.contains(&names[1..].join(",")));
        assert_eq!(short.len(), 2 * names.len() + 2);
        let all = feature_sets(&names, true);
        assert_eq!(all.len(), 1 << names.len());
        assert!(short.iter().all(|set| all.contains(set)));
    }
}
