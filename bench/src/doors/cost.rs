//! System calls and allocations per request.
//!
//! `perf stat` counts the system calls of a server while a load generator runs. A program of this benchmark that
//! serves on one thread counts allocations: its answers are those of the server.

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Table, figure};

use super::resp::client::Dialect;
use super::resp::load::Limits;
use super::versus::{self, Keys, Pace, Sides, State};
use super::{Setting, grpc, http, resp};
use crate::engine::FIVE_RULES;
use crate::peers::{Peer, Work};
use crate::round::Round;
use crate::server::Server;
use crate::tollgate::{self, Door};

/// The system calls that are counted, by what they do.
const KINDS: [(&str, &[&str]); 4] = [
    ("read", &["read", "recvfrom", "readv", "recvmsg"]),
    ("write", &["write", "sendto", "writev", "sendmsg"]),
    ("wait", &["epoll_wait", "epoll_pwait"]),
    ("futex", &["futex"]),
];
const ALL: &str = "raw_syscalls:sys_enter";
/// How long a counting server runs besides its load.
const MORE: Duration = Duration::from_secs(2);
const IN_FLIGHT: u32 = 64;
const PACE: Pace = Pace::InFlight(IN_FLIGHT);
/// Commands of redis-benchmark.
const RESP_REQUESTS: u64 = 20_000;

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut calls = Table::new([
        "system calls per request",
        "all",
        "read",
        "write",
        "wait",
        "futex",
    ]);
    let reason = match system_calls(setting, &mut calls) {
        Ok(()) => String::new(),
        Err(error) => format!(" System calls were not measured: {error}."),
    };
    let mut memory = Table::new(["per request", "allocations", "bytes"]);
    for (name, door) in [
        ("HTTP", Door::Http),
        ("gRPC", Door::Grpc),
        ("RESP", Door::Resp),
    ] {
        let (count, bytes) = allocations(setting, door)?;
        memory.row([name.to_owned(), figure(count, 1), figure(bytes, 0)]);
    }
    report.section(
        &format!(
            "Per request, state in memory. HTTP: {} connections; gRPC: {IN_FLIGHT} in flight over 4; RESP: 50 \
             connections\nwithout a pipeline. Calls that are none of the four kinds count in the first column \
             only. \"Five rules\"\nis the work of the no-op, \"one limit\" that of the peers. {}.{reason}",
            http::CONNECTIONS,
            setting.peers.describe(&[Peer::Throttlecrab, Peer::Gubernator]),
        ),
        &[calls],
    );
    report.section(
        "Allocations of Tollgate under five rules of which two match, with the connections that the load opens.",
        &[memory],
    );
    Ok(())
}

fn system_calls(setting: &Setting, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let (_, seconds) = setting.length.rounds();
    {
        let requests = http::five_rules(&setting.scratch)?;
        let pair = http::Pair::start(setting, FIVE_RULES)?;
        for server in [&pair.tollgate, &pair.noop] {
            let name = format!("HTTP, five rules: {}", server.name());
            let load = requests.command(server.address(), http::CONNECTIONS, seconds);
            count(table, &name, server, &load)?;
        }
    }
    {
        let calls = grpc::five_rules(&setting.scratch)?;
        let pair = grpc::Pair::start(setting, FIVE_RULES)?;
        for server in [&pair.tollgate, &pair.noop] {
            let name = format!("gRPC, five rules: {}", server.name());
            let load = versus::load(server.address(), &calls, PACE, seconds)?;
            count(table, &name, server, &load)?;
        }
    }
    {
        let peers = [Peer::Throttlecrab, Peer::Gubernator];
        let mut sides = Sides::start(setting, &peers, Work::One, State::Memory)?;
        sides.set_keys(setting, Keys::Many)?;
        for side in sides.all() {
            let load = side.load(PACE, seconds)?;
            let name = format!("gRPC, one limit: {}", side.name());
            count(table, &name, &side.server, &load)?;
        }
    }
    let config = versus::config(Work::One, None);
    let tollgate = tollgate::start(&setting.tollgate, &setting.scratch, &config, Door::Resp)?;
    for server in [tollgate, resp::start_noop()?] {
        let requests = RESP_REQUESTS * u64::from(seconds);
        let load = redis_benchmark(server.address(), requests);
        let name = format!("RESP: {}", server.name());
        // The number is small.
        #[allow(clippy::cast_precision_loss)]
        row(table, &name, &perf(&server, &load)?, requests as f64)?;
    }
    Ok(())
}

/// Adds a row with the system calls of `server` while `load` runs.
fn count(
    table: &mut Table,
    name: &str,
    server: &Server,
    load: &Command,
) -> Result<(), Box<dyn Error>> {
    let printed = perf(server, load)?;
    let requests = Round::requests(&printed).ok_or_else(|| format!("no result:\n{printed}"))?;
    row(table, name, &printed, requests)
}

fn row(table: &mut Table, name: &str, printed: &str, requests: f64) -> Result<(), Box<dyn Error>> {
    let events = parse(printed);
    let sum = |kinds: &[&str]| {
        let counts = events.iter().filter(|(event, _)| {
            let call = event.strip_prefix("syscalls:sys_enter_");
            call.is_some_and(|call| kinds.contains(&call))
        });
        // A sum of nothing would be -0.
        counts.fold(0.0, |sum, (_, count)| sum + count)
    };
    let all = events.iter().find(|(event, _)| event == ALL);
    let (_, all) = all.ok_or_else(|| format!("perf has counted nothing:\n{printed}"))?;
    let mut cells = vec![name.to_owned(), figure(all / requests, 2)];
    cells.extend(KINDS.map(|(_, kinds)| figure(sum(kinds) / requests, 2)));
    table.push(cells);
    Ok(())
}

/// Runs `load`, and returns what it and perf have printed.
fn perf(server: &Server, load: &Command) -> Result<String, Box<dyn Error>> {
    let calls = KINDS.iter().flat_map(|(_, kinds)| *kinds);
    let mut events = vec![ALL.to_owned()];
    events.extend(calls.map(|call| format!("syscalls:sys_enter_{call}")));
    let output = Command::new("perf")
        .args(["stat", "-x,", "-e", &events.join(",")])
        .args(["-p", &server.id().to_string(), "--"])
        .arg(load.get_program())
        .args(load.get_args())
        .output()
        .map_err(|error| format!("perf does not run ({error}): apt-get install -y linux-perf"))?;
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed += "\n";
    printed += &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(printed),
        false => Err(format!("perf cannot count system calls here: {printed}").into()),
    }
}

/// Reads the lines of `perf stat -x,`: the count, its unit, the event, and more.
fn parse(printed: &str) -> Vec<(String, f64)> {
    let mut events = Vec::new();
    for line in printed.lines() {
        let mut fields = line.split(',');
        if let (Some(count), Some(_), Some(event)) = (fields.next(), fields.next(), fields.next())
            && let Ok(count) = count.trim().parse()
        {
            events.push((event.to_owned(), count));
        }
    }
    events
}

/// Returns the allocations and their bytes per request through a door.
fn allocations(setting: &Setting, door: Door) -> Result<(f64, f64), Box<dyn Error>> {
    let (_, seconds) = setting.length.rounds();
    let (count, bytes, requests) = counted(setting, door, Some(seconds))?;
    let (idle_count, idle_bytes, _) = counted(setting, door, None)?;
    Ok((
        (count - idle_count) / requests,
        (bytes - idle_bytes) / requests,
    ))
}

/// Runs the counting server, with a load of this many seconds if there is one. Returns its allocations, their bytes,
/// and the requests.
fn counted(
    setting: &Setting,
    door: Door,
    load: Option<u32>,
) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let (config, address) = tollgate::config_file(&setting.scratch, FIVE_RULES, door)?;
    let (_, seconds) = setting.length.rounds();
    let program = tollgate::sibling("tollgate-bench-allocations", "tollgate-bench")?;
    let time = Duration::from_secs(seconds.into()) + MORE;
    let counting = Command::new(program)
        .arg("--config")
        .arg(config)
        .args(["--seconds", &time.as_secs().to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    // The server listens soon after its start; the load needs `MORE` less than the server runs.
    sleep(MORE / 4);
    let requests = load.map(|seconds| send(setting, door, address, seconds));
    let output = counting.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let requests = requests.transpose()?.unwrap_or(f64::NAN);
    let (count, bytes) =
        parse_allocations(&printed).ok_or_else(|| format!("no count: {printed}"))?;
    Ok((count, bytes, requests))
}

fn parse_allocations(printed: &str) -> Option<(f64, f64)> {
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix("allocations "))?;
    let (count, bytes) = line.split_once(' ')?;
    Some((count.parse().ok()?, bytes.parse().ok()?))
}

/// Sends requests to a server of another process. Returns their number.
fn send(
    setting: &Setting,
    door: Door,
    server: SocketAddr,
    seconds: u32,
) -> Result<f64, Box<dyn Error>> {
    let scratch = &setting.scratch;
    let mut load = match door {
        Door::Http => http::five_rules(scratch)?.command(server, http::CONNECTIONS, seconds),
        Door::Grpc => versus::load(server, &grpc::five_rules(scratch)?, PACE, seconds)?,
        Door::Resp => redis_benchmark(server, RESP_REQUESTS),
    };
    let output = load.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let requests = match door {
        Door::Http | Door::Grpc => Round::requests(&text),
        // The number is small.
        #[allow(clippy::cast_precision_loss)]
        Door::Resp => output.status.success().then_some(RESP_REQUESTS as f64),
    };
    requests.ok_or_else(|| format!("the load gave no result:\n{text}").into())
}

fn redis_benchmark(server: SocketAddr, requests: u64) -> Command {
    resp::load::command(server, Dialect::Cell, 1, Limits::Wide, requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_perf_are_read() {
        let printed = "result 1000 1000000 1 2 0\n\n\
            3010,,raw_syscalls:sys_enter,2000123,100.00,,\n\
            1000,,syscalls:sys_enter_writev,2000123,100.00,,\n\
            <not counted>,,syscalls:sys_enter_futex,0,0.00,,\n";
        let events = parse(printed);
        assert_eq!(
            events,
            [
                ("raw_syscalls:sys_enter".to_owned(), 3010.0),
                ("syscalls:sys_enter_writev".to_owned(), 1000.0)
            ]
        );
        let mut table = Table::new(["", "all", "read", "write", "wait", "futex"]);
        row(&mut table, "HTTP", printed, 1000.0).unwrap();
        assert!(
            table
                .markdown()
                .contains("| HTTP | 3.01 | 0.00 | 1.00 | 0.00 | 0.00 |")
        );
        assert!(row(&mut table, "HTTP", "no permission", 1.0).is_err());
    }

    #[test]
    fn allocations_are_read() {
        let printed = "starting\nallocations 1200 34000\n";
        assert_eq!(parse_allocations(printed), Some((1200.0, 34_000.0)));
        assert_eq!(parse_allocations("allocations\n"), None);
    }
}
