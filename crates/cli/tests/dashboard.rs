//! The dashboard in a real browser: sign in, see a denial arrive, explain it, block the subject, undo.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use common::Serving;
use tollgate_rig::clients;

/// The tokens are `test` (read) and `test2` (admin). One id and one message try to be markup.
const RULES: &str = r#"
version: 1
subjects: { hash_secret: keep this one to yourself }
server:
  admin:
    address: 127.0.0.1:0
    tokens:
      - { name: viewer, role: read, sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 }
      - { name: ops, role: admin, sha256: 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 }
rules:
  - { id: login, match: { action: login }, per: [user], log_denials: all, algorithm: fixed-window, limit: 2, window: 300d, message: "<img src=x onerror=alert(1)>" }
  - { id: trial, match: { action: login }, per: [user], algorithm: fixed-window, limit: 1, window: 300d, state: shadow }
"#;

#[test]
fn an_operator_sees_explains_blocks_and_undoes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let args = ["--config", "rules.yaml", "--log", "off"];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    let output = clients::playwright()
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard.cjs"))
        .args([&serving.url, &admin])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{failed}");
    assert!(told.contains("done"), "{told}");
}
