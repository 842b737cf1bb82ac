//! A server with another `hash_secret` is refused, until an operator accepts the new one.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::Serving;

fn tollgate(args: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .env_remove("TOLLGATE_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

fn remaining(serving: &Serving) -> String {
    let args = ["check", "--server", &serving.url, "tenant=acme"];
    let (said, _) = tollgate(&args);
    said
}

fn write(folder: &Path, name: &str, secrets: &str) -> String {
    let path = folder.join(name);
    let ledger = folder.join("books.db");
    let text = format!(
        "version: 1\nledger: {{ sqlite: {} }}\nsubjects: {{ {secrets} }}\nrules:\n  \
         - {{ id: yearly, per: [tenant], algorithm: quota, limit: 100, period: year }}\n",
        ledger.display()
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn changed_secret_is_refused_carried_over_or_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let old = write(
        folder.path(),
        "old.yaml",
        "hash_secret: the secret of last year",
    );
    let new = write(
        folder.path(),
        "new.yaml",
        "hash_secret: the secret of this year",
    );
    let both = write(
        folder.path(),
        "both.yaml",
        "hash_secret: the secret of this year, previous_hash_secrets: [the secret of last year]",
    );
    let server = Serving::start(&["--config", &old]);
    assert!(remaining(&server).contains("99 of 100 left"));
    // The old server still runs, and no other server may use its ledger.
    let (said, code) = tollgate(&["adopt", "--config", &new]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is in use by another server"), "{said}");
    assert_eq!(server.interrupt().1, Some(0));

    let (said, code) = tollgate(&["serve", "--http", "127.0.0.1:0", "--config", &new]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("books.db belongs to instances with another `subjects.hash_secret`"),
        "{said}"
    );
    assert!(
        said.contains("help: use the same secret as the other instances"),
        "{said}"
    );
    assert!(!said.contains("of this year"), "{said}");

    let server = Serving::start(&["--config", &both]);
    assert!(remaining(&server).contains("98 of 100 left"));
    assert_eq!(server.interrupt().1, Some(0));
    let server = Serving::start(&["--config", &new]);
    assert!(remaining(&server).contains("97 of 100 left"));
    assert_eq!(server.interrupt().1, Some(0));

    let third = write(
        folder.path(),
        "third.yaml",
        "hash_secret: the secret of next year",
    );
    let (said, code) = tollgate(&["adopt", "--config", &third]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("books.db belongs to this config now"),
        "{said}"
    );
    let server = Serving::start(&["--config", &third]);
    assert!(remaining(&server).contains("99 of 100 left"));
}

/// Without its config, `adopt` would look as if it had worked.
#[test]
fn state_in_memory_cannot_be_adopted() {
    let (said, code) = tollgate(&["adopt"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("help: give the config"), "{said}");
}
