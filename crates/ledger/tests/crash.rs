//! Killed processes and a full disk: every entry that was reported as safe is in the ledger, once.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // Helpers may panic and print, like tests.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_ledger::{Database, Entry, Ledger, Options};

use self::common::{Fixture, grant, ids, own, period, range, until};

/// The environment variable that makes a process a child of this test. Its value is the URL of the database.
const ROLE: &str = "TOLLGATE_LEDGER_CHILD";
const SPILL: &str = "TOLLGATE_LEDGER_SPILL";

/// Returns a command that runs this test in another process.
fn child(test: &str, url: &str, spill: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, url)
        .env(SPILL, spill)
        .stdout(Stdio::piped());
    command
}

/// Returns the same command with a limit on the size of its files, in blocks.
fn limited(child: &Command, blocks: u32) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""),
        ])
        .arg("sh")
        .arg(child.get_program())
        .args(child.get_args())
        .envs(
            child
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdout(Stdio::piped());
    shell
}

/// Returns the options from the parent, if this process is a child.
fn given() -> Option<Options> {
    let url = std::env::var(ROLE).ok()?;
    let database = match url.starts_with("postgres://") {
        true => Database::Postgres(url),
        false => Database::Sqlite(url.into()),
    };
    let mut options = Options::new(database);
    options.flush_interval = Duration::from_millis(20);
    options.spill = Some(std::env::var_os(SPILL).unwrap().into());
    Some(options)
}

/// Records until the process is killed, and prints how many entries are on disk.
async fn record_and_print(options: Options) {
    let ledger = Ledger::start(options).unwrap();
    let mut id = 0;
    loop {
        for _ in 0..10 {
            ledger.record(grant(id)).unwrap();
            id += 1;
        }
        until("all is on a disk", async || ledger.status().queued == 0).await;
        println!("safe {id}");
    }
}

/// Kills a child that records, and returns how many entries it knew to be safe.
fn kill_a_recording_child(test: &str, url: &str, spill: &std::path::Path) -> u128 {
    let mut process = child(test, url, spill).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut safe: u128 = 0;
    for line in lines {
        if let Some(number) = line.unwrap().strip_prefix("safe ") {
            // The last line may be cut off. Its number is then smaller, which is still correct.
            safe = safe.max(number.parse().unwrap_or(0));
            if safe >= 200 {
                // The pipe still has earlier lines, which are read to the end.
                let _ = process.kill();
            }
        }
    }
    process.wait().unwrap();
    assert!(safe >= 200);
    safe
}

async fn nothing_safe_is_lost(ledger: &Ledger, safe: u128) {
    let found = ids(ledger).await;
    let count = found.len() as u128;
    assert_eq!(found, range(0..count));
    assert!((safe..safe + 20).contains(&count), "{safe} {count}");
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(u128::try_from(balance.granted).unwrap(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_loses_no_flushed_entry() {
    if let Some(options) = given() {
        return record_and_print(options).await;
    }
    let fixture = Fixture::sqlite();
    let Database::Sqlite(file) = &fixture.options.database else {
        unreachable!()
    };
    let test = "a_killed_process_loses_no_flushed_entry";
    let safe = kill_a_recording_child(test, file.to_str().unwrap(), &fixture.spill());
    nothing_safe_is_lost(&fixture.open().await, safe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_loses_no_spilled_entry() {
    if let Some(options) = given() {
        return record_and_print(options).await;
    }
    let (server, fixture) = own();
    let Database::Postgres(url) = &fixture.options.database else {
        unreachable!()
    };
    server.stop();
    let test = "a_killed_process_loses_no_spilled_entry";
    let safe = kill_a_recording_child(test, url, &fixture.spill());
    // A crash of the machine may leave part of a line.
    let torn = b"0badc0de {\"id\":\"00";
    let mut spill = fs::read(fixture.spill()).unwrap();
    spill.extend_from_slice(torn);
    fs::write(fixture.spill(), spill).unwrap();
    server.start_again();
    let ledger = fixture.open().await;
    nothing_safe_is_lost(&ledger, safe).await;
    // Another start finds the same entries.
    ledger.close().await;
    nothing_safe_is_lost(&fixture.open().await, safe).await;
}

fn large(id: u128) -> Entry {
    Entry {
        why: "x".repeat(1000).into(),
        ..grant(id)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_no_accepted_entry() {
    if let Some(mut options) = given() {
        options.max_queued = 100;
        let ledger = Ledger::start(options).unwrap();
        let mut id = 0;
        until("nothing more is accepted", async || {
            while ledger.record(large(id)).is_ok() {
                id += 1;
            }
            let error = ledger.status().last_error.unwrap_or_default();
            error.contains("cannot write the spill file") && ledger.status().queued == 100
        })
        .await;
        assert_eq!(ledger.status().dropped, 0);
        // On a new line: the test harness has printed the test's name on the current one.
        println!("\naccepted {id}");
        // The database is back; the disk is still full.
        until("all is written", async || ledger.flush().await.is_ok()).await;
        return;
    }
    let (server, fixture) = own();
    let Database::Postgres(url) = &fixture.options.database else {
        unreachable!()
    };
    server.stop();
    let test = "a_full_disk_loses_no_accepted_entry";
    let mut process = limited(&child(test, url, &fixture.spill()), 100)
        .spawn()
        .unwrap();
    // Kept open until the child ends, because the child prints more.
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let accepted = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let number = line.strip_prefix("accepted ")?;
        Some(number.parse::<u128>().unwrap())
    });
    let accepted = accepted.unwrap();
    assert!(accepted >= 100);
    server.start_again();
    assert!(process.wait().unwrap().success());
    assert_eq!(ids(&fixture.open().await).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_on_a_full_disk_keeps_confirmed_entries() {
    if let Some(options) = given() {
        let ledger = Ledger::open(options).await.unwrap();
        let mut id = 0;
        let error = loop {
            if let Err(error) = ledger.write(vec![large(id)]).await {
                break error;
            }
            id += 1;
        };
        assert!(error.to_string().contains("ledger.db"), "{error}");
        assert!(ledger.status().last_error.is_some());
        // The outcome of this entry is unknown, so it is written again. It is stored once.
        ledger.record(large(id)).unwrap();
        ledger.close().await;
        println!("\nconfirmed {id}");
        return;
    }
    let fixture = Fixture::sqlite();
    let Database::Sqlite(file) = &fixture.options.database else {
        unreachable!()
    };
    let test = "a_database_on_a_full_disk_keeps_confirmed_entries";
    let child = child(test, file.to_str().unwrap(), &fixture.spill());
    let output = limited(&child, 2000).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let confirmed = text
        .lines()
        .find_map(|line| line.strip_prefix("confirmed "));
    let confirmed: u128 = confirmed.unwrap().parse().unwrap();
    assert!(confirmed > 0);
    assert_eq!(ids(&fixture.open().await).await, range(0..confirmed + 1));
}
