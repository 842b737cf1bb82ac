//! Resident memory of a server with every door open: idle, and with many live keys.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use tollgate_bench::table::{Bar, Table, figure};

use super::resp::client::{Client, Dialect};
use super::{Setting, peer, resp};
use crate::report::Report;
use crate::server::Server;

const IDLE: Bar = Bar::AtMost(25.0);
const FULL: Bar = Bar::AtMost(120.0);
/// Bytes in a megabyte.
const MEGA: f64 = 1e6;
/// How long a server may take to finish its start.
const SETTLE: Duration = Duration::from_secs(1);
/// Keys that are asked for at once.
const AT_ONCE: usize = 100;
/// One key of so many is looked at again.
const SAMPLE: usize = 100;

/// Megabytes of one server.
struct Resident {
    idle: f64,
    full: f64,
}

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let keys = if setting.quick { 100_000 } else { 1_000_000 };
    let ours = measure(&resp::start(setting)?, Dialect::Cell, keys)?;
    let theirs = match &setting.peer {
        Some(peer) => measure(&peer.start()?, Dialect::Throttlecrab, keys)?,
        None => Resident {
            idle: f64::NAN,
            full: f64::NAN,
        },
    };
    let mut table = Table::new(["resident, MB", "tollgate", "bar", "", peer::NAME]);
    let full = format!("{keys} keys");
    for (name, our, bar, their) in [
        ("idle", ours.idle, IDLE, theirs.idle),
        (&full, ours.full, FULL, theirs.full),
    ] {
        table.row([
            name.to_owned(),
            figure(our, 1),
            bar.to_string(),
            bar.verdict(our),
            figure(their, 1),
        ]);
    }
    report.section(
        &format!(
            "Every door open; keys of 16 bytes, each asked for once through RESP, one a day; {} {} with \
             RESP only.\n1 MB is a million bytes.",
            peer::NAME,
            peer::VERSION
        ),
        &[table],
    );
    Ok(())
}

fn measure(server: &Server, dialect: Dialect, keys: usize) -> Result<Resident, Box<dyn Error>> {
    sleep(SETTLE);
    let idle = server.resident_bytes()? / MEGA;
    let mut client = Client::connect(server.address(), dialect)?;
    let one_a_day = [dialect.burst_of_one(), "1", "86400"];
    let name = |number: usize| format!("key:{number:012}");
    let mut allowed = 0;
    for first in (0..keys).step_by(AT_ONCE) {
        let some = first..keys.min(first + AT_ONCE);
        allowed += client.ask(some.map(name), one_a_day)?;
    }
    let full = server.resident_bytes()? / MEGA;
    // What is still limited is still there.
    let again = client.ask((0..keys).step_by(keys / SAMPLE).map(name), one_a_day)?;
    match (allowed, again) {
        (allowed, 0) if allowed == keys => Ok(Resident { idle, full }),
        _ => {
            let name = server.name();
            Err(format!(
                "{name} allowed {allowed} of {keys} keys, and then {again} of a sample again"
            )
            .into())
        }
    }
}
