//! Runs the commands of a page of the docs, and compares their output.

use std::path::Path;
use std::process::Command;

use super::is_like;

/// Runs a page in `folder`. A block of YAML whose first line is a comment with a file name is written to that
/// file. The commands of `console` blocks are run in order by bash. Each must print the lines below it.
/// Returns how many commands were run.
pub(crate) fn run(page: &str, folder: &Path) -> usize {
    let mut commands = 0;
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').unwrap();
        match language {
            "yaml" | "json" | "text" => write(text, folder),
            "console" => {
                for example in text.split("$ ").skip(1) {
                    let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
                    compare(line, &run_line(line, folder), expected);
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
fn run_line(line: &str, folder: &Path) -> String {
    let tollgate = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", tollgate.parent().unwrap().display());
    let output = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{line}")])
        .current_dir(folder)
        .env("PATH", path)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_STORE")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn compare(line: &str, output: &str, expected: &str) {
    let (output, expected) = (output.trim_end(), expected.trim_end());
    let same_length = output.lines().count() == expected.lines().count();
    let mut both = output.lines().zip(expected.lines());
    let alike = both.all(|(line, pattern)| is_like(line.trim_end(), pattern.trim_end()));
    assert!(
        same_length && alike,
        "$ {line}\n{output}\n--- expected\n{expected}"
    );
}
