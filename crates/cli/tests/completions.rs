//! The completions, in the real shells.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write as _;
use std::process::{Command, Stdio};

const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

fn completions(shell: &str) -> String {
    let output = Command::new(TOLLGATE)
        .args(["completions", shell])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `script` in bash after the completions, and returns the printed words.
fn bash(script: &str) -> Vec<String> {
    let mut bash = Command::new("bash")
        .args(["--norc", "--noprofile", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash is needed: apt-get install bash");
    let text = completions("bash") + "\n" + script + "\n";
    bash.stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = bash.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    printed.split_whitespace().map(str::to_owned).collect()
}

/// Completes the last of `words`, as bash does.
fn complete(words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last = words.len() - 1;
    let (current, previous) = (words[last], words[last - 1]);
    bash(&format!(
        "COMP_WORDS=({}); COMP_CWORD={last}\n\
         function=$(complete -p tollgate | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
         \"$function\" tollgate '{current}' '{previous}'\n\
         echo \"${{COMPREPLY[@]}}\"",
        quoted.join(" ")
    ))
}

#[test]
fn bash_completes_commands_options_and_nested_commands() {
    assert_eq!(complete(&["tollgate", "val"]), ["validate"]);
    let import = complete(&["tollgate", "import", ""]);
    for name in ["envoy-ratelimit", "limitador"] {
        assert!(import.iter().any(|it| it == name), "{import:?}");
    }
    let check = complete(&["tollgate", "check", "--con"]);
    assert_eq!(check, ["--config"]);
    let shells = complete(&["tollgate", "completions", "z"]);
    assert_eq!(shells, ["zsh"]);
}

#[test]
fn other_shells_get_a_script_with_every_command() {
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = completions(shell);
        for name in ["serve", "validate", "import", "completions"] {
            assert!(script.contains(name), "{shell} lacks {name}");
        }
    }
}

#[test]
fn unknown_shell_is_rejected() {
    let output = Command::new(TOLLGATE)
        .args(["completions", "tcsh"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("possible values: bash"), "{error}");
}
