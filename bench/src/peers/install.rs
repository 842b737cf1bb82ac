//! Installs peers from their registries into `$XDG_CACHE_HOME/tollgate/peers` or `~/.cache/tollgate/peers`. Each
//! version has a directory of its own.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program of a registry.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    /// The crate, or the Go module.
    pub(crate) module: &'static str,
    pub(crate) version: &'static str,
    /// The directory of the program in its Go module.
    pub(crate) directory: &'static str,
    /// The file name of the program.
    pub(crate) program: &'static str,
}

/// Returns the directory of all peers.
pub(crate) fn home() -> Result<PathBuf, Box<dyn Error>> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(env::home_dir()?.join(".cache")));
    let cache = cache.ok_or("no home directory to install into")?;
    let peers = cache.join("tollgate").join("peers");
    std::fs::create_dir_all(&peers)?;
    Ok(peers)
}

impl Package {
    fn root(&self) -> Result<PathBuf, Box<dyn Error>> {
        let name = self.module.rsplit('/').find(|part| !is_major(part));
        let name = name.unwrap_or(self.module);
        Ok(home()?.join(format!("{name}-{}", self.version)))
    }

    fn path(&self) -> Result<PathBuf, Box<dyn Error>> {
        Ok(self.root()?.join("bin").join(self.program))
    }

    /// Returns the program if it is installed.
    pub(crate) fn installed(&self) -> Option<PathBuf> {
        self.path().ok().filter(|program| program.is_file())
    }

    /// Builds a crate.
    pub(crate) fn cargo_install(&self) -> Result<PathBuf, Box<dyn Error>> {
        if let Some(program) = self.installed() {
            return Ok(program);
        }
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut install = Command::new(cargo);
        // Build outside of this workspace, because its settings must not apply.
        install.current_dir(home()?).env_remove("CARGO_TARGET_DIR");
        install.args([
            "install",
            self.module,
            "--version",
            self.version,
            "--locked",
        ]);
        install.arg("--root").arg(self.root()?);
        run(&mut install)?;
        self.path()
    }

    /// Builds a program of a Go module. `go install` rejects modules with `replace` directives: they are built from
    /// the copy in Go's module cache.
    pub(crate) fn go_install(&self) -> Result<PathBuf, Box<dyn Error>> {
        if let Some(program) = self.installed() {
            return Ok(program);
        }
        let program = self.path()?;
        let Package {
            module,
            version,
            directory,
            ..
        } = self;
        let source = format!("{module}@{version}");
        let mut download = go(&home()?)?;
        let downloaded = run(download.args(["mod", "download", "-json", &source]))?;
        let copy = module_directory(&downloaded).ok_or("go mod download names no directory")?;
        let mut build = go(Path::new(&copy))?;
        build.args(["build", "-mod=readonly", "-trimpath", "-o"]);
        run(build.arg(&program).arg(format!("./{directory}")))?;
        Ok(program)
    }
}

/// Builds a program of our own from these files, in a directory of its own.
pub(crate) fn go_build(
    name: &str,
    files: &[(&str, &str)],
    requires: &str,
) -> Result<PathBuf, Box<dyn Error>> {
    let root = home()?.join(name);
    let program = root.join("bin").join(name);
    let is_same = |(file, text): &(&str, &str)| {
        let old = std::fs::read_to_string(root.join(file));
        old.is_ok_and(|old| old == *text)
    };
    // `go get` adds what the requirement needs to the first file, so that one is kept under another name.
    let stamp = (".requires", requires);
    if program.is_file() && files.iter().chain([&stamp]).all(is_same) {
        return Ok(program);
    }
    std::fs::create_dir_all(root.join("bin"))?;
    for (file, text) in files {
        std::fs::write(root.join(file), text)?;
    }
    std::fs::write(root.join("go.mod"), format!("module {name}\n\ngo 1.21\n"))?;
    run(go(&root)?.args(["get", requires]))?;
    run(go(&root)?
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg("."))?;
    std::fs::write(root.join(stamp.0), stamp.1)?;
    Ok(program)
}

fn go(directory: &Path) -> Result<Command, Box<dyn Error>> {
    let program = go_program().ok_or("go is not installed: https://go.dev/doc/install")?;
    let mut go = Command::new(program);
    go.current_dir(directory).env("GOWORK", "off");
    Ok(go)
}

/// Finds `go` on the PATH, or where its installer puts it.
fn go_program() -> Option<OsString> {
    let usual = ["go", "/usr/local/go/bin/go"];
    let found = usual.into_iter().find(|go| {
        let quiet = Command::new(go)
            .arg("version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        quiet.is_ok_and(|status| status.success())
    });
    found.map(OsString::from)
}

/// Whether a part of a module's path is only its major version.
fn is_major(part: &str) -> bool {
    let digits = part.strip_prefix('v').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}

/// Returns `Dir` in the output of `go mod download -json`.
fn module_directory(json: &str) -> Option<String> {
    let module: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(module.get("Dir")?.as_str()?.to_owned())
}

/// Runs a command, and returns its output. The error has the last line that says why.
fn run(command: &mut Command) -> Result<String, Box<dyn Error>> {
    eprintln!("==> {command:?}");
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(reason(&printed, &complaint).into())
}

/// Returns why an installation failed, on one line.
fn reason(printed: &str, complaint: &str) -> String {
    // `go mod download -json` puts its reason into its output.
    let json: Option<serde_json::Value> = serde_json::from_str(printed).ok();
    let error = json.as_ref().and_then(|it| it.get("Error")?.as_str());
    let error = error.or_else(|| {
        let mut lines = complaint.lines().map(str::trim);
        let first = lines.clone().find(|line| line.contains("error"));
        first.or_else(|| lines.rfind(|line| !line.is_empty()))
    });
    error.unwrap_or("it gave no reason").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_module_is_found() {
        let json = r#"{ "Path": "example.com/a", "Version": "v1.0.0", "Dir": "/cache/a@v1.0.0" }"#;
        assert_eq!(module_directory(json).as_deref(), Some("/cache/a@v1.0.0"));
        assert_eq!(module_directory("go: downloading"), None);
    }

    #[test]
    fn reason_is_the_line_that_says_why() {
        let json = r#"{ "Path": "a", "Error": "a@v1: 404 Not Found" }"#;
        assert_eq!(reason(json, ""), "a@v1: 404 Not Found");
        let complaint = "   Compiling a v1\nerror: failed to run custom build command\n\nCaused by:\n  no protoc\n";
        assert_eq!(
            reason("", complaint),
            "error: failed to run custom build command"
        );
        assert_eq!(reason("", "go: a: 403\n\n"), "go: a: 403");
        assert_eq!(reason("", ""), "it gave no reason");
    }

    #[test]
    fn major_version_is_not_the_name_of_a_module() {
        let package = Package {
            module: "example.com/limits/v2",
            version: "v2.4.0",
            directory: "cmd/limits",
            program: "limits",
        };
        assert!(package.root().unwrap().ends_with("limits-v2.4.0"));
    }
}
