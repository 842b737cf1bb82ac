//! Processes that are killed, and one whose disk is full: what was accepted is there, once.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // Helpers of tests fail and tell as tests do.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_ledger::{Database, Entry, Ledger, Options};

use self::common::{Books, grant, ids, own, period, range, until};

/// What a child of this test is to do: set by its parent.
const ROLE: &str = "TOLLGATE_LEDGER_CHILD";
const SPILL: &str = "TOLLGATE_LEDGER_SPILL";

/// This very test in another process.
fn child(test: &str, url: &str, spill: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, url)
        .env(SPILL, spill)
        .stdout(Stdio::piped());
    command
}

/// The same process, none of whose files may be longer than this many blocks: the system refuses to write
/// more.
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

/// The options that the parent gave, if this is a child.
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

/// Records until it is killed, and says what it knows to be on a disk.
async fn record_and_tell(options: Options) {
    let ledger = Ledger::start(options);
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

/// Kills a child that records, and gives what it knew to be safe.
fn kill_one_that_records(test: &str, url: &str, spill: &std::path::Path) -> u128 {
    let mut process = child(test, url, spill).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut safe: u128 = 0;
    for line in lines {
        if let Some(number) = line.unwrap().strip_prefix("safe ") {
            // One that the end of the process has torn is a shorter number.
            safe = safe.max(number.parse().unwrap_or(0));
            if safe >= 200 {
                // What it has said until then is in the pipe, and is read to its end.
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
async fn a_killed_process_with_a_database_loses_nothing_that_was_flushed() {
    if let Some(options) = given() {
        return record_and_tell(options).await;
    }
    let books = Books::sqlite();
    let Database::Sqlite(file) = &books.options.database else {
        unreachable!()
    };
    let test = "a_killed_process_with_a_database_loses_nothing_that_was_flushed";
    let safe = kill_one_that_records(test, file.to_str().unwrap(), &books.spill());
    nothing_safe_is_lost(&books.open().await, safe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_without_a_database_loses_nothing_that_was_spilled() {
    if let Some(options) = given() {
        return record_and_tell(options).await;
    }
    let (server, books) = own();
    let Database::Postgres(url) = &books.options.database else {
        unreachable!()
    };
    server.stop();
    let test = "a_killed_process_without_a_database_loses_nothing_that_was_spilled";
    let safe = kill_one_that_records(test, url, &books.spill());
    // A crash of the machine may leave a part of a line.
    let torn = b"0badc0de {\"id\":\"00";
    let mut spill = fs::read(books.spill()).unwrap();
    spill.extend_from_slice(torn);
    fs::write(books.spill(), spill).unwrap();
    server.start_again();
    let ledger = books.open().await;
    nothing_safe_is_lost(&ledger, safe).await;
    // And nothing more happens at the next start.
    ledger.close().await;
    nothing_safe_is_lost(&books.open().await, safe).await;
}

fn large(id: u128) -> Entry {
    Entry {
        why: "x".repeat(1000).into(),
        ..grant(id)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_nothing_that_was_accepted() {
    if let Some(mut options) = given() {
        options.max_queued = 100;
        let ledger = Ledger::start(options);
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
        // On a line of its own: the name of the test is on this one.
        println!("\naccepted {id}");
        // The database comes back, and the disk is still full.
        until("all is written", async || ledger.flush().await.is_ok()).await;
        return;
    }
    let (server, books) = own();
    let Database::Postgres(url) = &books.options.database else {
        unreachable!()
    };
    server.stop();
    let test = "a_full_disk_loses_nothing_that_was_accepted";
    let mut process = limited(&child(test, url, &books.spill()), 100)
        .spawn()
        .unwrap();
    // Kept until it ends, for what else it prints.
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let accepted = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let number = line.strip_prefix("accepted ")?;
        Some(number.parse::<u128>().unwrap())
    });
    let accepted = accepted.unwrap();
    assert!(accepted >= 100);
    server.start_again();
    assert!(process.wait().unwrap().success());
    assert_eq!(ids(&books.open().await).await, range(0..accepted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_on_a_full_disk_says_so_and_keeps_what_it_confirmed() {
    if let Some(options) = given() {
        let ledger = Ledger::open(options).await.unwrap();
        let mut id = 0;
        let error = loop {
            if let Err(error) = ledger.write(vec![large(id)]).await {
                break error;
            }
            id += 1;
        };
        assert!(error.to_string().contains("books.db"), "{error}");
        assert!(ledger.status().last_error.is_some());
        // What may be there after all is written again, and is there once.
        ledger.record(large(id)).unwrap();
        ledger.close().await;
        println!("\nconfirmed {id}");
        return;
    }
    let books = Books::sqlite();
    let Database::Sqlite(file) = &books.options.database else {
        unreachable!()
    };
    let test = "a_database_on_a_full_disk_says_so_and_keeps_what_it_confirmed";
    let child = child(test, file.to_str().unwrap(), &books.spill());
    let output = limited(&child, 2000).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let confirmed = text
        .lines()
        .find_map(|line| line.strip_prefix("confirmed "));
    let confirmed: u128 = confirmed.unwrap().parse().unwrap();
    assert!(confirmed > 0);
    assert_eq!(ids(&books.open().await).await, range(0..confirmed + 1));
}
