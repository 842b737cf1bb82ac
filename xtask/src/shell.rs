//! Steps: cargo commands with a name. Each step is timed. A step that fails prints the command line to run it
//! again.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use crate::stopwatch::Stopwatch;

/// Why a command of this tool failed, as printed for its user.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the failure, if any, and returns the exit code.
pub(crate) fn report(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

/// A named call of cargo, in the root of this workspace or of another checkout.
pub(crate) struct Step {
    name: &'static str,
    checkout: Option<PathBuf>,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Step {
    /// Makes a step that runs `cargo` with the words of `line` as arguments.
    pub(crate) fn cargo(name: &'static str, line: &'static str) -> Step {
        Step {
            name,
            checkout: None,
            args: line.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
        }
    }

    pub(crate) fn env(mut self, variable: &'static str, value: impl Into<String>) -> Step {
        self.env.push((variable, value.into()));
        self
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Step {
        self.args.extend(args.iter().copied().map(str::to_owned));
        self
    }

    /// Makes the step run in `checkout`. If this is another checkout, it builds into its own `target` and
    /// ignores `CARGO_TARGET_DIR`, because the programs of both checkouts must exist at the same time.
    pub(crate) fn in_checkout(mut self, checkout: &Path) -> Step {
        if checkout != root() {
            let target = checkout.join("target").display().to_string();
            self.env.push(("CARGO_TARGET_DIR", target));
            self.checkout = Some(checkout.to_owned());
        }
        self
    }

    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.timed(Command::status)
    }

    /// Runs the step. Prints each line of its standard output, and then calls `see` with the line.
    pub(crate) fn run_watched(&self, see: impl FnMut(&str)) -> Result<(), Failure> {
        self.timed(|command| watch(command, see))
    }

    /// Like [`Step::run_watched`] for a benchmark: exit code 1 means that a bar was missed. Returns whether all bars
    /// were met.
    pub(crate) fn run_measured(&self, see: impl FnMut(&str)) -> Result<bool, Failure> {
        let mut is_met = true;
        self.timed(|command| {
            let status = watch(command, see)?;
            is_met = status.code() != Some(1);
            Ok(if is_met {
                status
            } else {
                ExitStatus::default()
            })
        })?;
        Ok(is_met)
    }

    /// Runs the step. Returns the result, and the lines of its standard output and its standard error.
    pub(crate) fn run_captured(&self) -> (Result<(), Failure>, Vec<String>) {
        let mut lines = Vec::new();
        let result = self.timed(|command| {
            let (output, writer) = io::pipe()?;
            let mut child = command.stderr(writer.try_clone()?).stdout(writer).spawn()?;
            // The command holds the other ends of the pipe.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line)? > 0 {
                lines.push(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
            child.wait()
        });
        (result, lines)
    }

    fn timed(
        &self,
        run: impl FnOnce(&mut Command) -> io::Result<ExitStatus>,
    ) -> Result<(), Failure> {
        println!("\n==> {}: {self}", self.name);
        let stopwatch = Stopwatch::start();
        let status = run(&mut self.command())
            .map_err(|error| Failure::new(format!("cannot run `{self}`: {error}")))?;
        let seconds = stopwatch.elapsed().as_secs_f64();
        if status.success() {
            println!("==> {}: ok in {seconds:.1} s", self.name);
            return Ok(());
        }
        Err(Failure::new(format!(
            "==> {}: failed after {seconds:.1} s ({status})\n    rerun: {self}",
            self.name
        )))
    }

    fn command(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(variable, value)| (variable, value)))
            .current_dir(self.checkout.clone().unwrap_or_else(root));
        command
    }
}

impl fmt::Display for Step {
    /// Writes the command line that runs the step again in a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(checkout) = &self.checkout {
            write!(f, "cd {} && ", checkout.display())?;
        }
        for (variable, value) in &self.env {
            write!(f, "{variable}=\"{value}\" ")?;
        }
        f.write_str("cargo")?;
        for arg in &self.args {
            write!(f, " {arg}")?;
        }
        Ok(())
    }
}

/// Runs `command`, prints each line of its standard output, and calls `see` with the line.
fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if let Some(output) = child.stdout.take() {
        pass_on(output, &mut see)?;
    }
    child.wait()
}

fn pass_on(output: impl io::Read, see: &mut impl FnMut(&str)) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        io::stdout().write_all(&line)?;
        io::stdout().flush()?;
        see(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

/// Returns the root of this workspace: the parent of this package.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package
        .as_deref()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."))
        .to_owned()
}
