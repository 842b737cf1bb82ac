//! Resident memory of a server with every door open: idle, and with many live keys.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure};

use super::resp::client::{Client, Dialect, Numbers};
use super::{Setting, resp};
use crate::peers::{Peer, throttlecrab};
use crate::server::Server;

const IDLE: Bar = Bar::AtMost(25.0);
const FULL: Bar = Bar::AtMost(120.0);
/// Bytes in a megabyte.
const MEGA: f64 = 1e6;
/// How long to wait until a server has finished its start.
const SETTLE: Duration = Duration::from_secs(1);
/// How many keys a client asks for at once.
const AT_ONCE: usize = 100;
/// How many clients ask at the same time.
const CLIENTS: usize = 32;
/// The number of keys that are asked for again.
const SAMPLE: usize = 100;
/// The limit of each key: two requests at once, and one more a day later. With a burst of one, throttlecrab
/// would store nothing.
const NUMBERS: Numbers = Numbers {
    at_once: 2,
    count: 1,
    period: 86_400,
};

/// The resident memory of one server, in megabytes.
struct Resident {
    idle: f64,
    full: f64,
}

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let keys = setting.length.pick(100_000, 1_000_000, 1_000_000);
    let ours = measure(&resp::start(setting)?, Dialect::Cell, keys)?;
    let theirs = match setting.peers.get(Peer::Throttlecrab) {
        Ok(peer) => {
            let server = throttlecrab::start(peer, throttlecrab::Door::Resp)?;
            measure(&server, Dialect::Throttlecrab, keys)?
        }
        Err(_) => Resident {
            idle: f64::NAN,
            full: f64::NAN,
        },
    };
    let mut table = Table::new([
        "resident, MB",
        "tollgate",
        "bar",
        "",
        Peer::Throttlecrab.name(),
    ]);
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
            "Every door is open. Keys have 16 bytes, and the client sends one command for each key through \
             RESP. The\nlimit is two at once and one a day. {} has only its RESP door. 1 MB is a million \
             bytes.",
            setting.peers.describe(&[Peer::Throttlecrab])
        ),
        &[table],
    );
    Ok(())
}

fn name(number: usize) -> String {
    format!("key:{number:012}")
}

/// Asks for each of `keys` once. Returns how many requests were allowed.
fn fill(server: &Server, dialect: Dialect, keys: usize) -> Result<usize, Box<dyn Error>> {
    let part = |mine: usize| -> Result<usize, Box<dyn Error>> {
        let mut client = Client::connect(server.address(), dialect)?;
        let mut allowed = 0;
        for first in (0..keys).step_by(AT_ONCE).skip(mine).step_by(CLIENTS) {
            let some = first..keys.min(first + AT_ONCE);
            allowed += client.ask(some.map(name), NUMBERS)?;
        }
        Ok(allowed)
    };
    // Several clients, because throttlecrab makes each client wait for TCP acknowledgements.
    std::thread::scope(|scope| {
        let clients = (0..CLIENTS)
            .map(|mine| scope.spawn(move || part(mine).map_err(|error| error.to_string())));
        let clients: Vec<_> = clients.collect();
        let mut allowed = 0;
        for client in clients {
            allowed += client.join().map_err(|_| "a client has panicked")??;
        }
        Ok(allowed)
    })
}

fn measure(server: &Server, dialect: Dialect, keys: usize) -> Result<Resident, Box<dyn Error>> {
    sleep(SETTLE);
    let idle = server.resident_bytes()? / MEGA;
    let allowed = fill(server, dialect, keys)?;
    let full = server.resident_bytes()? / MEGA;
    let mut client = Client::connect(server.address(), dialect)?;
    // A server that still knows the first request of a key allows the second, and denies the third.
    let sample = || (0..keys).step_by(keys / SAMPLE).map(name);
    let second = client.ask(sample(), NUMBERS)?;
    let third = client.ask(sample(), NUMBERS)?;
    if (allowed, second, third) == (keys, SAMPLE, 0) {
        return Ok(Resident { idle, full });
    }
    let name = server.name();
    Err(format!(
        "{name} allowed {allowed} of {keys} keys; of {SAMPLE} of them {second} a second time, and {third} \
         a third time"
    )
    .into())
}
