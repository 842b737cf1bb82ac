//! Runs the commands of a page of the docs, and compares their output.

use std::path::Path;
use std::process::Command;

use super::{Serving, are_like};

/// A server that a page has started, and its ports in the place of those of the page.
struct Started {
    /// Ends with the page.
    _serving: Serving,
    ports: [(&'static str, String); 2],
}

impl Started {
    /// Starts a server with the arguments of a page, on free ports.
    fn new(args: &str, folder: &Path) -> Started {
        let args = args.replace(":8080", ":0").replace(":8082", ":0");
        let args: Vec<&str> = args.split_whitespace().chain(["--log", "off"]).collect();
        let mut serving = Serving::start_in(folder, &args);
        let admin = serving.admin();
        let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
        Started {
            ports: [("8080", port(&serving.url)), ("8082", port(&admin))],
            _serving: serving,
        }
    }
}

/// Runs a page in `folder`. A block of YAML whose first line is a comment with a file name is written to that
/// file. The commands of `console` blocks are run in order by bash. Each must print the lines below it. A block of `sh`
/// that is `tollgate serve` starts a server for the commands after it. Returns how many commands were run.
pub(crate) fn run(page: &str, folder: &Path) -> usize {
    let mut commands = 0;
    let mut server = None;
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').unwrap();
        match language {
            "yaml" | "json" | "text" => write(text, folder),
            "sh" => {
                if let Some(args) = text.trim().strip_prefix("tollgate serve ") {
                    server = Some(Started::new(args, folder));
                }
            }
            "console" => {
                for example in text.split("$ ").skip(1) {
                    let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
                    compare(line, &run_line(line, folder, server.as_ref()), expected);
                    commands += 1;
                }
            }
            _ => {}
        }
    }
    commands
}

/// Writes the file that the first line of a block names, if it names one.
fn write(text: &str, folder: &Path) {
    let (first, rest) = text.split_once('\n').unwrap();
    if let Some(name) = first.strip_prefix("# ")
        && !name.contains(' ')
    {
        std::fs::write(folder.join(name), format!("{rest}\n")).unwrap();
    }
}

/// Runs a line, and returns what it prints on both streams.
fn run_line(line: &str, folder: &Path, server: Option<&Started>) -> String {
    let mut line = line.to_owned();
    let mut admin = None;
    if let Some(Started { ports, .. }) = server {
        for (shown, port) in ports {
            line = line.replace(&format!(":{shown}"), &format!(":{port}"));
        }
        admin = Some((
            "TOLLGATE_ADMIN_URL",
            format!("http://127.0.0.1:{}", ports[1].1),
        ));
    }
    let tollgate = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", tollgate.parent().unwrap().display());
    let output = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{line}")])
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_STORE")
        .envs(admin)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn compare(line: &str, output: &str, expected: &str) {
    let trimmed = |text: &str| {
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
        lines.join("\n")
    };
    let (output, expected) = (trimmed(output), trimmed(expected));
    assert!(
        are_like(&output, &expected),
        "$ {line}\n{output}\n--- expected\n{expected}"
    );
}
