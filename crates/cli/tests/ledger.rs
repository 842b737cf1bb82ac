//! The ledger of a server as operators use it, from `serve` to the export for billing.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Serving, is_like};
use sqlx::sqlite::SqliteConnectOptions;
use tollgate_ledger::{Database, Entry, EntryId, EntryQuery, Ledger, Options};
use tollgate_rig::{Postgres, wait};

const RULES: &str = "
subjects: { hash_secret: 'a secret of these tests' }
rules:
  - { id: yearly, match: { action: [search, export] }, per: [tenant], algorithm: quota, limit: 100, period: year }
";

struct Server {
    serving: Serving,
    admin: String,
}

impl Server {
    fn start(config: &Path) -> Server {
        let config = config.display().to_string();
        let mut serving = Serving::start(&["--admin", "127.0.0.1:0", "--config", &config]);
        let admin = serving.admin();
        Server { serving, admin }
    }

    /// Runs a command; returns its output and its exit code.
    fn run(&self, args: &[&str]) -> (String, Option<i32>) {
        run(&self.admin, args)
    }

    fn check(&self, attributes: &[&str], times: &str) {
        let url = &self.serving.url;
        let args = ["check", "--server", url, "--repeat", times];
        let (said, code) = self.run(&[&args[..], attributes].concat());
        assert_eq!(code, Some(0), "{said}");
    }
}

fn run(admin: &str, args: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .env("TOLLGATE_ADMIN_URL", admin)
        .env_remove("TOLLGATE_TOKEN")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

/// Writes a config with a ledger into a new directory.
fn config(ledger: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger.replace("FOLDER", &folder.path().display().to_string());
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, format!("version: 1\nledger: {ledger}{RULES}")).unwrap();
    (folder, path)
}

fn are_like(said: &str, expected: &[&str]) {
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, pattern) in lines.iter().zip(expected) {
        assert!(is_like(line, pattern), "{line}\n--- is not\n{pattern}");
    }
}

#[test]
fn usage_is_in_the_ledger_when_the_server_has_stopped() {
    // The flush interval is too long to write anything before the stop.
    let (_folder, path) = config("{ sqlite: FOLDER/books.db, flush_interval: 1m }");
    let server = Server::start(&path);
    server.check(&["action=search", "tenant=acme"], "7");
    let (_, code) = server.serving.interrupt();
    assert_eq!(code, Some(0));
    let server = Server::start(&path);
    let (said, code) = server.run(&["usage", "acme"]);
    assert_eq!(code, Some(0), "{said}");
    are_like(
        &said,
        &[
            "action  rule    period  used  reserved  granted  limit  share",
            "search  yearly  ....       7         0        0    100     7%",
        ],
    );
    // The counter continues from the ledger.
    let args = ["check", "--server", &server.serving.url];
    let (said, _) = server.run(&[&args[..], &["action=search", "tenant=acme"]].concat());
    assert!(said.contains("92 of 100 left"), "{said}");
}

#[test]
fn ledger_commands_work_with_sqlite() {
    let (_folder, path) = config("{ sqlite: FOLDER/books.db }");
    ledger_commands(&Server::start(&path));
}

#[test]
fn ledger_commands_work_with_postgres() {
    let postgres = Postgres::start();
    let url = postgres.database("books");
    let (_folder, path) = config(&format!("{{ postgres: \"{url}\", spill: FOLDER/spill }}"));
    ledger_commands(&Server::start(&path));
}

fn ledger_commands(server: &Server) {
    let (said, code) = server.run(&["usage", "acme"]);
    assert_eq!((said.as_str(), code), ("no usage\n", Some(0)));
    server.check(&["action=search", "tenant=acme"], "20");
    server.check(&["action=export", "tenant=acme"], "5");
    server.check(&["action=export", "tenant=zed"], "1");

    let posting = ["--rule", "yearly", "--attr", "action=search", "--reason"];
    let correct = ["correct", "acme", "--amount", "-2"];
    let (said, code) = server.run(&[&correct[..], &posting, &["counted twice"]].concat());
    assert_eq!(code, Some(0), "{said}");
    are_like(
        &said,
        &["yearly of acme: 23 used of 100, until ....-..-..T..:..:......Z"],
    );
    let grant = [
        "grant",
        "acme",
        "--amount",
        "50",
        "--idempotency-key",
        "ticket-1",
    ];
    let grant = [&grant[..], &posting, &["an apology"]].concat();
    let balance = "yearly of acme: 23 used of 100 and 50 more, until ....-..-..T..:..:......Z";
    are_like(&server.run(&grant).0, &[balance]);
    are_like(
        &server.run(&grant).0,
        &[&format!("already recorded: {balance}")],
    );
    let other: Vec<&str> = grant
        .iter()
        .map(|it| if *it == "50" { "51" } else { it })
        .collect();
    let (said, code) = server.run(&other);
    assert_eq!(code, Some(2), "{said}");
    are_like(
        &said,
        &[
            "error: the idempotency key `ticket-1` was used for another posting: a grant of 50; take a new key",
        ],
    );

    let (said, _) = server.run(&["usage", "acme"]);
    are_like(
        &said,
        &[
            "action  rule    period  used  reserved  granted  limit  share",
            // The share is the usage divided by the limit plus all grants. Grants under any action
            // count.
            "export  yearly  ....       5         0        0    100     3%",
            "search  yearly  ....      18         0       50    100    12%",
        ],
    );
    let (said, _) = server.run(&["usage", "acme", "--action", "export", "--json"]);
    assert!(said.starts_with(r#"{"isCut":false,"usage":[{"#), "{said}");

    let (said, code) = server.run(&["export", "--period", "current", "--format", "csv"]);
    assert_eq!(code, Some(0), "{said}");
    let rows: Vec<&str> = said.lines().collect();
    assert!(
        rows[0].starts_with("tenant,action,rule,allowance,period,"),
        "{said}"
    );
    assert_eq!(rows.len(), 4, "{said}");
    assert!(rows[2].starts_with("acme,search,yearly,yearly,"), "{said}");
    assert!(rows[2].ends_with(",18,0,50,-2,20,1,100"), "{said}");
    let entries = [
        "export",
        "--period",
        "current",
        "--entries",
        "--tenant",
        "acme",
    ];
    let (said, _) = server.run(&[&entries[..], &["--format", "jsonl"]].concat());
    for part in [
        r#""kind":"correction","amount":-2"#,
        r#""why":"an apology""#,
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("zed"), "{said}");
    let (said, code) = server.run(&["export", "--period", "1999-12"]);
    assert_eq!((said.lines().count(), code), (1, Some(0)), "{said}");

    let (said, code) = server.run(&["reconcile"]);
    let agree = "counters compared: 2, different: 0; ledger totals without a counter: 0, of removed rules: 0\n";
    assert_eq!((said.as_str(), code), (agree, Some(0)));
    let (said, code) = server.run(&["reconcile", "--tenant", "zed", "--repair", "counters"]);
    assert!(
        said.starts_with("counters compared: 1, different: 0;"),
        "{said}"
    );
    assert_eq!(code, Some(0));
}

/// Adds five units to the ledger, but not to the counter.
fn add_to_ledger(books: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut options = Options::new(Database::Sqlite(books.to_owned()));
        options.spill = Some(books.with_extension("meddled"));
        let ledger = Ledger::open(options).await.unwrap();
        let query = EntryQuery {
            namespace: "default".into(),
            to: tollgate::Time::MAX,
            ..EntryQuery::default()
        };
        let (_, entry) = ledger.entries(&query).await.unwrap().remove(0);
        let more = Entry {
            id: EntryId(4711),
            amount: 5,
            ..entry
        };
        ledger.write(vec![more]).await.unwrap();
        ledger.close().await;
    });
}

#[test]
fn unrepaired_drift_exits_with_1() {
    let (folder, path) = config("{ sqlite: FOLDER/books.db }");
    let server = Server::start(&path);
    server.check(&["action=search", "tenant=acme"], "20");
    server.run(&["usage", "acme"]);
    add_to_ledger(&folder.path().join("books.db"));
    let row = |repaired: &str| {
        format!("acme    yearly  ....-..-..T..:..:......Z  used      25       20     -5{repaired}")
    };
    let header = "tenant  rule    period from               what  ledger  counter  drift";
    let sum = "counters compared: 1, different: 1; ledger totals without a counter: 0, of removed rules: 0";
    let (said, code) = server.run(&["reconcile"]);
    are_like(&said, &[header, &row(""), sum]);
    assert_eq!(code, Some(1), "{said}");
    let (said, code) = server.run(&["reconcile", "--repair", "counters", "--reason", "a test"]);
    are_like(&said, &[header, &row("  repaired"), sum]);
    assert_eq!(code, Some(0), "{said}");
    let (_, code) = server.run(&["reconcile", "--json"]);
    assert_eq!(code, Some(0));
}

#[test]
fn failed_command_exits_with_2_and_a_reason() {
    let (_folder, path) = config("{ sqlite: FOLDER/books.db }");
    let server = Server::start(&path);
    let posting = ["--rule", "yearly", "--reason", "x", "--amount"];
    for (args, said) in [
        (
            &["usage", "acme", "--period", "July"][..],
            "`period` must be a year",
        ),
        (&["usage", ""], "TENANT is empty"),
        (&["export", "--period", ""], "--period is empty"),
        (
            &["export", "--period", "2026-99"],
            "`period` must be a year",
        ),
        (
            &[&["correct", "acme"], &posting[..], &["1"]].concat(),
            "no ledgered rule `yearly`",
        ),
        (
            &[&["correct", "acme"], &posting[..], &["0"]].concat(),
            "the amount must be",
        ),
        (
            &[&["grant", "acme"], &posting[..], &["-1"]].concat(),
            "--amount",
        ),
        (
            &[
                &["correct", "acme", "--attr", "action"],
                &posting[..],
                &["1"],
            ]
            .concat(),
            "NAME=VALUE",
        ),
        (
            &[
                &["correct", "acme", "--attr", "tenant=x"],
                &posting[..],
                &["1"],
            ]
            .concat(),
            "given twice",
        ),
    ] {
        let (answer, code) = server.run(args);
        assert_eq!(code, Some(2), "{args:?}: {answer}");
        assert!(answer.contains(said), "{args:?}: {answer}");
    }
    let (answer, code) = run("http://127.0.0.1:1", &["export", "--period", "2026-07"]);
    assert_eq!(code, Some(2), "{answer}");
    assert!(answer.contains("--admin"), "{answer}");
}

/// Starts a server that must fail, and returns its error.
fn start_error(config: &Path) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--config"])
        .arg(config)
        .env_remove("TOLLGATE_CONFIG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = wait::at_most(Duration::from_secs(30), || child.try_wait().unwrap());
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(ended.and_then(|it| it.code()), Some(2), "{said}");
    said
}

/// Writes a ledger, and runs `make_newer` to mark it as the ledger of a newer program. Returns the
/// error of the next start.
fn newer(path: &Path, make_newer: impl FnOnce()) -> String {
    let server = Server::start(path);
    server.check(&["action=search", "tenant=acme"], "7");
    let (_, code) = server.serving.interrupt();
    assert_eq!(code, Some(0));
    make_newer();
    start_error(path)
}

#[test]
fn sqlite_ledger_of_a_newer_program_is_rejected_and_unchanged() {
    let (folder, path) = config("{ sqlite: FOLDER/books.db }");
    let file = folder.path().join("books.db");
    let files = || {
        let found = std::fs::read_dir(folder.path()).unwrap();
        let found = found.map(|it| it.unwrap().path());
        let found = found.map(|it| (it.clone(), std::fs::read(it).unwrap()));
        found.collect::<BTreeMap<PathBuf, Vec<u8>>>()
    };
    let mut before = BTreeMap::new();
    let said = newer(&path, || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = SqliteConnectOptions::new().filename(&file);
            let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
            let newer = sqlx::query("INSERT INTO schema_version (version) VALUES (1000)");
            newer.execute(&pool).await.unwrap();
            pool.close().await;
        });
        before = files();
    });
    let place = file.display();
    assert!(
        said.contains(&format!("the ledger {place} has schema version 1000"))
            && said.contains("run the newer program, or use another ledger"),
        "{said}"
    );
    assert_eq!(
        files().keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    assert!(files() == before, "a file has changed");
}

#[test]
fn postgres_ledger_of_a_newer_program_is_rejected_and_unchanged() {
    let postgres = Postgres::start();
    let url = postgres.database("books");
    let (_folder, path) = config(&format!("{{ postgres: \"{url}\", spill: FOLDER/spill }}"));
    let said = newer(&path, || {
        let newer = "INSERT INTO schema_version (version) VALUES (1000)";
        postgres.sql_in("books", newer);
    });
    assert!(said.contains("has schema version 1000"), "{said}");
    let written = "SELECT sum(amount) FROM entries";
    assert_eq!(postgres.sql_in("books", written), "7");
}

#[test]
fn second_server_on_a_sqlite_ledger_is_refused() {
    let (_folder, path) = config("{ sqlite: FOLDER/books.db }");
    let mut first = Server::start(&path);
    first.check(&["action=search", "tenant=acme"], "60");
    let config = path.display().to_string();
    let second = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--config", &config])
        .env("TOLLGATE_DATA", path.with_extension("data"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(
        said.contains("books.db is in use by another server"),
        "{said}"
    );
    assert!(said.contains("or use a PostgreSQL ledger"), "{said}");

    // Commands of operators work while the server is running.
    let (said, code) = first.run(&["usage", "acme"]);
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = first.run(&["export", "--period", "current"]);
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = first.run(&["reconcile"]);
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = first.run(&["doctor", "--config", &config]);
    assert_eq!(code, Some(0), "{said}");

    // The lock is freed when the process ends, even if it is killed.
    first.serving.child.kill().unwrap();
    first.serving.child.wait().unwrap();
    let next = Server::start(&path);
    let args = ["check", "--server", &next.serving.url];
    let (said, _) = next.run(&[&args[..], &["action=search", "tenant=acme"]].concat());
    assert!(said.contains("39 of 100 left"), "{said}");
}
