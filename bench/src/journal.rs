//! The journal of denials: what it costs a check; memory and files under a flood; and how long `tollgate why` takes
//! over a full journal.
//!
//! The cost of a check is measured in this process, with and without a reader of denials in turn. For the flood, the
//! server is a process of its own. Clients send `TG.CHECK` to its RESP door at a fixed rate, and nearly all requests
//! are denied.

mod hot_path;

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure, median};
use tollgate_rig::Stopwatch;

use crate::doors::resp::client::encode;
use crate::length::Length;
use crate::server::{Scratch, Server, free_addresses};
use crate::tollgate;

/// Denials in a second, by all clients together.
const RATE: f64 = 100_000.0;
const CLIENTS: u32 = 2;
/// The commands that a client sends at once.
const BATCH: u32 = 250;
const KEYS: u32 = 10_000;
const MEBI: f64 = 1024.0 * 1024.0;

/// The default `max_size` of the files.
const FILES: Bar = Bar::AtMost(256.0);
/// The default of 10,000 denials in memory at 2,144 bytes, and 8,192 that wait to be recorded.
const MEMORY: Bar = Bar::AtMost(32.0);
/// The server receives what the clients send, unless the machine is too slow for both.
const SENT: Bar = Bar::AtLeast(0.95 * RATE);
const SECOND: Bar = Bar::AtMost(1000.0);
/// How often `why` asks each question.
const TRIES: usize = 5;

/// One server with its doors and the directory of its journal.
struct Subject {
    server: Server,
    admin: SocketAddr,
    directory: PathBuf,
}

/// What a flood has shown.
#[derive(Default)]
struct Flood {
    per_second: f64,
    cpu_micros: f64,
    /// The growth of the resident memory, in mebibytes.
    memory: f64,
    /// The largest size of all files, in mebibytes.
    files: f64,
    recorded: u64,
    dropped: u64,
}

/// Returns the bars that were missed.
pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let seconds = if length.is_quick() { 2.0 } else { 60.0 };
    let mut report = Report::new("journal");
    hot_path::measure(length, &mut report)?;
    let scratch = Scratch::new()?;
    let program = tollgate::beside()?;
    let mut floods = Table::new([
        "recorded",
        "denials/s",
        "bar",
        "",
        "CPU us",
        "written",
        "dropped",
        "memory, MiB",
        "bar",
        "",
        "files, MiB",
        "bar",
        "",
    ]);
    let mut last = None;
    for (name, log_denials) in [("sampled", "sampled"), ("every denial", "all")] {
        let subject = Subject::start(&program, &scratch, log_denials)?;
        let flood = subject.flood(seconds)?;
        floods.row([
            name.to_owned(),
            figure(flood.per_second, 0),
            SENT.to_string(),
            SENT.verdict(flood.per_second),
            figure(flood.cpu_micros, 2),
            flood.recorded.to_string(),
            flood.dropped.to_string(),
            figure(flood.memory, 1),
            MEMORY.to_string(),
            MEMORY.verdict(flood.memory),
            figure(flood.files, 1),
            FILES.to_string(),
            FILES.verdict(flood.files),
        ]);
        last = Some(subject);
    }
    report.section(
        &format!(
            "{RATE} denials a second for {seconds} s at the RESP door, {KEYS} subjects of one rule: CPU time of a denial, and \
             the growth of the server's memory."
        ),
        &[floods],
    );
    if let Some(subject) = last {
        subject.ask_questions(&program, &mut report)?;
    }
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
}

impl Subject {
    fn start(
        program: &Path,
        scratch: &Scratch,
        log_denials: &str,
    ) -> Result<Subject, Box<dyn Error>> {
        let [http, resp, admin] = free_addresses()?;
        let directory = scratch.path(&format!("journal-{log_denials}"));
        let config = format!(
            "version: 1\n\
             subjects: {{ hash_secret: a secret of sixteen bytes }}\n\
             server: {{ http: {http}, resp: {resp}, admin: {admin} }}\n\
             telemetry: {{ denials: {{ directory: {} }} }}\n\
             rules:\n\
             - {{ id: api, per: [api_key], algorithm: fixed-window, limit: 1, window: 30d, log_denials: {log_denials} }}\n",
            directory.display()
        );
        let file = scratch.file(&format!("journal-{log_denials}.yaml"), config.as_bytes())?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--log", "error", "--config"])
            .arg(file);
        command.arg("--data").arg(scratch.path("data"));
        Ok(Subject {
            server: Server::start_on("tollgate", resp, command)?,
            admin,
            directory,
        })
    }

    /// Sends requests that are denied for `seconds`, and watches the server meanwhile.
    fn flood(&self, seconds: f64) -> Result<Flood, Box<dyn Error>> {
        // The first request of each key is allowed.
        let denied = AtomicU64::new(0);
        client(
            self.server.address(),
            0.0,
            f64::from(KEYS / BATCH),
            &denied,
            true,
        )
        .map_err(|error| error.to_string())?;
        sleep(Duration::from_secs(1));
        let idle = self.server.resident_bytes()?;
        let cpu_before = self.server.cpu_micros()?;
        let mut flood = Flood::default();
        denied.store(0, Ordering::Relaxed);
        let is_over = AtomicBool::new(false);
        let watch = Stopwatch::start();
        scope(|scope| -> Result<(), Box<dyn Error>> {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (address, denied) = (self.server.address(), &denied);
                    let interval = f64::from(BATCH * CLIENTS) / RATE;
                    scope.spawn(move || {
                        client(address, interval, seconds / interval, denied, false)
                            .map_err(|error| error.to_string())
                    })
                })
                .collect();
            let is_over = &is_over;
            let watching = scope.spawn(move || {
                let (mut memory, mut files) = (0.0_f64, 0.0_f64);
                while !is_over.load(Ordering::Relaxed) {
                    let resident = self.server.resident_bytes().unwrap_or(f64::NAN);
                    memory = memory.max((resident - idle) / MEBI);
                    let size = directory_size(&self.directory).unwrap_or(0);
                    files = files.max(size as f64 / MEBI);
                    sleep(Duration::from_millis(20));
                }
                (memory, files)
            });
            let sent: Result<Vec<()>, String> = clients
                .into_iter()
                .map(|it| {
                    it.join()
                        .unwrap_or_else(|_| Err("a client panicked".to_owned()))
                })
                .collect();
            is_over.store(true, Ordering::Relaxed);
            (flood.memory, flood.files) = watching.join().map_err(|_| "the watch panicked")?;
            Ok(sent.map(drop)?)
        })?;
        let denied = denied.into_inner() as f64;
        flood.per_second = denied / watch.elapsed().as_secs_f64();
        flood.cpu_micros = (self.server.cpu_micros()? - cpu_before) / denied;
        let page = self.metrics()?;
        flood.recorded = metric(&page, "rate_limit_journal_written_total");
        flood.dropped = metric(&page, "rate_limit_journal_dropped_total");
        Ok(flood)
    }

    fn metrics(&self) -> Result<String, Box<dyn Error>> {
        let mut stream = TcpStream::connect(self.admin)?;
        let admin = self.admin;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
        )?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    }

    /// Asks `tollgate why` over the journal of the flood.
    fn ask_questions(&self, program: &Path, report: &mut Report) -> Result<(), Box<dyn Error>> {
        let size = directory_size(&self.directory)? as f64 / MEBI;
        let mut table = Table::new(["question", "median", "longest", "bar", ""]);
        for question in [
            "api_key=key-17",
            "api_key=nobody",
            "--action read",
            "--action nothing",
            "--door grpc",
            "--rule nothing",
            "api_key=nobody --since 1h",
        ] {
            let times = self.ask_why(program, question)?;
            let longest = times.iter().copied().fold(0.0, f64::max);
            table.row([
                format!("`{question}`"),
                figure(median(times), 0),
                figure(longest, 0),
                SECOND.to_string(),
                SECOND.verdict(longest),
            ]);
        }
        report.section(
            &format!(
                "Milliseconds of `tollgate why` over this journal of {size:.0} MiB, process start included, {TRIES} times each."
            ),
            &[table],
        );
        Ok(())
    }

    /// Runs `tollgate why` with these arguments. Returns the milliseconds of each run.
    fn ask_why(&self, program: &Path, question: &str) -> Result<Vec<f64>, Box<dyn Error>> {
        let mut times = Vec::new();
        for _ in 0..TRIES {
            let watch = Stopwatch::start();
            let output = Command::new(program)
                .arg("why")
                .args(question.split(' '))
                .args(["--admin", &format!("http://{}", self.admin)])
                .output()?;
            times.push(watch.elapsed().as_secs_f64() * 1000.0);
            // The exit code is 1 if there is no such denial.
            if !matches!(output.status.code(), Some(0 | 1)) {
                let complaint = String::from_utf8_lossy(&output.stderr);
                return Err(format!("tollgate why {question}: {complaint}").into());
            }
        }
        Ok(times)
    }
}

/// Returns the sum of a metric over all its labels.
fn metric(page: &str, name: &str) -> u64 {
    let lines = page.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    values.sum()
}

fn directory_size(directory: &Path) -> std::io::Result<u64> {
    let mut size = 0;
    for entry in std::fs::read_dir(directory)? {
        // The server removes files meanwhile.
        size += entry?.metadata().map_or(0, |it| it.len());
    }
    Ok(size)
}

/// Sends `batches` batches of requests, one every `interval` seconds, and counts the denials. With `in_order`,
/// asks for each key once.
fn client(
    address: SocketAddr,
    interval: f64,
    batches: f64,
    denied: &AtomicU64,
    in_order: bool,
) -> Result<(), Box<dyn Error>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(256 * 1024, stream);
    let mut random = fastrand::Rng::new();
    let watch = Stopwatch::start();
    let (mut batch, mut next) = (0.0, 0);
    while batch < batches {
        let due = Duration::from_secs_f64(batch * interval);
        sleep(due.saturating_sub(watch.elapsed()));
        let mut commands = Vec::new();
        for _ in 0..BATCH {
            let key = if in_order { next } else { random.u32(..KEYS) };
            next += 1;
            let key = format!("key-{key}");
            commands.extend(encode(&["TG.CHECK", "action", "read", "api_key", &key]));
        }
        stream.get_mut().write_all(&commands)?;
        let mut count = 0;
        for _ in 0..BATCH {
            count += u64::from(!read_answer(&mut stream)?);
        }
        denied.fetch_add(count, Ordering::Relaxed);
        batch += 1.0;
    }
    Ok(())
}

/// Reads the answer to `TG.CHECK`: names and values, of which the first is `allowed`. Returns whether the request
/// is allowed.
fn read_answer(stream: &mut impl BufRead) -> Result<bool, Box<dyn Error>> {
    let head = read_value(stream)?;
    let Some(count) = head.strip_prefix('*').and_then(|it| it.parse::<u32>().ok()) else {
        return Err(format!("the answer to TG.CHECK is {head}").into());
    };
    let mut allowed = false;
    for index in 0..count {
        let value = read_value(stream)?;
        allowed |= index == 1 && value == ":1";
    }
    Ok(allowed)
}

/// Reads a line, and the text after it if the line announces one.
fn read_value(stream: &mut impl BufRead) -> Result<String, Box<dyn Error>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err("the server has closed the connection".into());
    }
    let line = line.trim_end();
    if let Some(length) = line
        .strip_prefix('$')
        .and_then(|it| it.parse::<usize>().ok())
    {
        let mut text = vec![0; length + 2];
        stream.read_exact(&mut text)?;
        text.truncate(length);
        return Ok(String::from_utf8(text)?);
    }
    Ok(line.to_owned())
}
