//! The dashboard in a real browser: sign in, see a denial arrive, explain it, block the subject, undo.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::path::Path;
use std::process::Command;

use common::Serving;
use tollgate_rig::clients;

/// The tokens are `test` (read) and `test2` (admin). A message and the name of a tenant try to be markup.
const RULES: &str = r#"
version: 1
subjects: { hash_secret: keep this one to yourself }
server:
  admin:
    address: 127.0.0.1:0
    tokens:
      - { name: viewer, role: read, sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 }
      - { name: ops, role: admin, sha256: 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752 }
ledger: { sqlite: ./books.db }
tenants: { "<img src=x onerror=alert(2)>": { overrides: { api: { rate: 300/s } } } }
budgets: { units: { per: [tenant], algorithm: quota, limit: 100, period: year } }
rules:
  - { id: login, match: { action: login }, per: [user], log_denials: all, algorithm: fixed-window, limit: 2, window: 300d, message: "<img src=x onerror=alert(1)>" }
  - { id: trial, match: { action: login }, per: [user], algorithm: fixed-window, limit: 1, window: 300d, state: shadow }
  - { id: api, match: { action: api }, per: [tenant], algorithm: gcra, rate: 100/s }
  - { id: api-next, candidate_of: api, algorithm: fixed-window, limit: 1, window: 300d }
  - { id: markup, match: { action: "<*" }, per: [tenant], log_denials: all, algorithm: fixed-window, limit: 0, window: 300d }
  - { id: buy, match: { action: buy }, budget: units, cost: 20 }
  - { id: rent, match: { action: rent }, budget: units, cost: 10 }
  - id: pool
    match: { action: pool }
    algorithm: token-bucket
    capacity: 100
    refill: 1/s
    fair: { per: [user], weights: { plan: { pro: 5 } }, lanes: { by: priority, shares: { high: 60%, low: 40% } } }
"#;

#[test]
fn an_operator_sees_explains_blocks_and_undoes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let args = ["--config", "rules.yaml", "--log", "off"];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    // The screenshots stay there.
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
    std::fs::create_dir_all(&pictures).unwrap();
    let output = clients::playwright()
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard.cjs"))
        .args([&serving.url, &admin])
        .arg(pictures)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{failed}");
    assert!(told.contains("done"), "{told}");
}

/// The rules of the picture of the dashboard.
const SHOWN: &str = r"
version: 1
rules:
  - { id: search, match: { action: search }, per: [tenant, api_key], algorithm: gcra, rate: 10/s, burst: 20 }
  - { id: export, match: { action: export }, per: [tenant], algorithm: token-bucket, capacity: 60, refill: 18/s }
  - { id: login, match: { action: login }, per: [user], algorithm: sliding-log, limit: 5, window: 10m }
  - { id: tenant, match: { tenant: '*' }, per: [tenant], algorithm: sliding-counter, limit: 6000, window: 1m }
  - { id: export-next, candidate_of: export, algorithm: gcra, rate: 12/s, burst: 40 }
";

/// The rules and the traffic of the picture of a simulation: docs/simulation.md names them.
const SIMULATED: &str =
    "version: 1\nrules: [{ id: api, per: [ip], algorithm: sliding-log, limit: 60, window: 1m }]\n";
const TRAFFIC: [&str; 2] = [
    "surge rate=20/s subjects=100 zipf=1.1 per=ip duration=10m",
    "attack rate=20/s per=ip duration=10m",
];

/// With `TOLLGATE_BLESS`, writes the pictures of the docs. Otherwise shows that they can be drawn.
#[test]
fn pictures_of_the_docs_can_be_drawn() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), SHOWN).unwrap();
    let args = [
        "--config",
        "rules.yaml",
        "--admin",
        "127.0.0.1:0",
        "--log",
        "off",
    ];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    std::fs::write(folder.path().join("simulated.yaml"), SIMULATED).unwrap();
    let simulated = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "simulate",
            "--config",
            "simulated.yaml",
            "--report",
            "report.html",
        ])
        .args(["--traffic", TRAFFIC[0], "--traffic", TRAFFIC[1]])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let failed = String::from_utf8_lossy(&simulated.stderr);
    assert!(simulated.status.success(), "{failed}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (pictures, seconds) = match std::env::var_os("TOLLGATE_BLESS") {
        Some(_) => (docs.clone(), "125"),
        None => (folder.path().to_owned(), "1"),
    };
    let output = clients::playwright()
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pictures.cjs"))
        .args([&serving.url, &admin])
        .args([&folder.path().join("report.html"), &pictures])
        .arg(seconds)
        .output()
        .unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failed}");
    // The pictures of the docs are as small as a page load.
    for name in ["dashboard.png", "simulation.png"] {
        assert!(std::fs::metadata(pictures.join(name)).unwrap().len() > 10_000);
        assert!(std::fs::metadata(docs.join(name)).unwrap().len() < 150_000);
    }
}
