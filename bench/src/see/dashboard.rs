//! The dashboard: bytes and time of a page load, the longest task of each page under a large config, and what a viewer
//! costs the server. Chromium is driven by `dashboard.cjs`.
//!
//! The dashboard shows the counts of the metrics, and the busiest subjects of a sample. Both are kept with or without a
//! viewer. What a viewer costs is the difference between two servers with the same load, one of them with a viewer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure, median};
use tollgate_bench::workload::api_keys;
use tollgate_rig::clients;

use crate::doors::http::load::Requests;
use crate::length::Length;
use crate::round::{Rounds, alternate};
use crate::rules::{TENANTS, config};
use crate::server::{Scratch, Server, free_addresses};
use crate::tollgate;

const FEW_RULES: usize = 10;
const MANY_RULES: usize = 500;
const CONNECTIONS: u32 = 50;
const KEYS: usize = 10_000;

const LOAD_KILOBYTES: Bar = Bar::Below(150.0);
const LOAD_MILLIS: Bar = Bar::Below(200.0);
const TASK_MILLIS: Bar = Bar::AtMost(50.0);
/// The CPU time of a request while someone looks, relative to nobody.
const VIEWED: Bar = Bar::AtMost(1.02);
/// The percentage of a core that a viewer takes from an idle server.
const IDLE: Bar = Bar::AtMost(1.0);

const SCRIPT: &str = include_str!("dashboard.cjs");

/// A server with its doors.
struct Side {
    server: Server,
    admin: SocketAddr,
}

impl Side {
    fn start(tollgate: &Path, scratch: &Scratch, rules: &str) -> Result<Side, Box<dyn Error>> {
        let [http, admin] = free_addresses()?;
        let text = format!("{rules}\nserver:\n  http: {http}\n  admin: {admin}\n");
        let file = scratch.file(&format!("see-{}.yaml", http.port()), text.as_bytes())?;
        let mut command = Command::new(tollgate);
        command.args(["serve", "--log", "error", "--config"]);
        command.arg(file).current_dir(scratch.path(""));
        // A directory of its own, so that no server finds the overrides of another.
        command.env(
            "TOLLGATE_DATA",
            scratch.directory(&format!("data-{}", http.port()))?,
        );
        let server = Server::start_on("tollgate", http, command)?;
        for _ in 0..100 {
            if TcpStream::connect(admin).is_ok() {
                return Ok(Side { server, admin });
            }
            sleep(Duration::from_millis(50));
        }
        Err("the admin door does not listen".into())
    }

    /// Follows the live figures, until the viewer is dropped.
    fn view(&self) -> Result<Viewer, Box<dyn Error>> {
        let mut stream = TcpStream::connect(self.admin)?;
        let request = format!("GET /v1/live HTTP/1.1\r\nHost: {}\r\n\r\n", self.admin);
        stream.write_all(request.as_bytes())?;
        let mut first = [0; 4096];
        let length = stream.read(&mut first)?;
        if !first[..length].starts_with(b"HTTP/1.1 200 ") {
            return Err(String::from_utf8_lossy(&first[..length]).into());
        }
        let mut reader = stream.try_clone()?;
        std::thread::spawn(move || while reader.read(&mut first).is_ok_and(|it| it > 0) {});
        Ok(Viewer(stream))
    }

    /// Opens the dashboard in Chromium.
    fn browse(&self, scratch: &Scratch, seconds: u32) -> Result<Browsed, Box<dyn Error>> {
        let script = scratch.file("dashboard.cjs", SCRIPT.as_bytes())?;
        let output = clients::playwright()
            .arg(script)
            .args([
                format!("http://{}", self.server.address()),
                format!("http://{}", self.admin),
                seconds.to_string(),
            ])
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// A connection that follows the live figures. A thread reads from it.
struct Viewer(TcpStream);

impl Drop for Viewer {
    fn drop(&mut self) {
        // The server may have ended first.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// What Chromium has measured.
#[derive(Deserialize)]
struct Browsed {
    loads: Vec<PageLoad>,
    pages: Vec<Page>,
}

#[derive(Deserialize)]
struct PageLoad {
    bytes: f64,
    files: u32,
    millis: f64,
}

#[derive(Deserialize)]
struct Page {
    name: String,
    /// The longest task.
    millis: f64,
    tasks: u32,
}

/// Adds tables to the report.
pub(super) fn measure(length: Length, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (scratch, tollgate) = (Scratch::new()?, tollgate::beside()?);
    browse(length, report, &scratch, &tollgate)?;
    view(length, report, &scratch, &tollgate)
}

fn browse(
    length: Length,
    report: &mut Report,
    scratch: &Scratch,
    tollgate: &Path,
) -> Result<(), Box<dyn Error>> {
    let seconds = length.pick(2, 10, 30);
    let few = Side::start(tollgate, scratch, &config(FEW_RULES, 0))?;
    let few = few.browse(scratch, 1)?;
    let many = Side::start(tollgate, scratch, &large_config())?;
    let many = many.browse(scratch, seconds)?;
    let mut loads = Table::new(["page load", "KB", "bar", "", "ms", "bar", "", "files"]);
    for (name, browsed, has_bar) in [
        (format!("{FEW_RULES} rules"), &few, true),
        (
            format!("{MANY_RULES} rules, {TENANTS} tenants"),
            &many,
            false,
        ),
    ] {
        let of = |figure: fn(&PageLoad) -> f64| median(browsed.loads.iter().map(figure).collect());
        let (kilobytes, millis) = (of(|it| it.bytes / 1000.0), of(|it| it.millis));
        let bars = match has_bar {
            true => [LOAD_KILOBYTES, LOAD_MILLIS],
            false => [Bar::None; 2],
        };
        loads.row([
            name,
            figure(kilobytes, 1),
            bars[0].to_string(),
            bars[0].verdict(kilobytes),
            figure(millis, 0),
            bars[1].to_string(),
            bars[1].verdict(millis),
            browsed
                .loads
                .last()
                .map_or_else(String::new, |it| it.files.to_string()),
        ]);
    }
    report.section(
        "The dashboard in Chromium, on loopback: everything that an empty cache loads, and the time until the rules are\n\
         shown; medians of 5 loads.",
        &[loads],
    );
    let mut tasks = Table::new(["page", "longest task, ms", "bar", "", "tasks"]);
    for page in &many.pages {
        tasks.row([
            page.name.clone(),
            figure(page.millis, 1),
            TASK_MILLIS.to_string(),
            TASK_MILLIS.verdict(page.millis),
            page.tasks.to_string(),
        ]);
    }
    report.section(
        &format!(
            "Tasks of the page's main thread in Chromium's trace, with {MANY_RULES} rules, {TENANTS} tenants, live figures and denials."
        ),
        &[tasks],
    );
    Ok(())
}

/// Returns a config with a rule that denies, and quotas in a ledger.
fn large_config() -> String {
    let rules = config(MANY_RULES, TENANTS);
    format!(
        "{rules}  - {{ id: strict, match: {{ action: search }}, per: [api_key], algorithm: fixed-window, limit: 1, window: 1h, log_denials: all }}\n  \
         - {{ id: monthly, per: [tenant], algorithm: quota, limit: 1000000, period: month }}\n\
         subjects: {{ hash_secret: the secret of a benchmark }}\nledger: {{ sqlite: ./see.db }}\n"
    )
}

fn view(
    length: Length,
    report: &mut Report,
    scratch: &Scratch,
    tollgate: &Path,
) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = length.pick((1, 1), (7, 2), (15, 3));
    let rules = config(FEW_RULES, 0);
    let start = || Side::start(tollgate, scratch, &rules);
    let mut sides = [start()?, start()?];
    let body = |key: &String| {
        format!(
            r#"{{"attributes":{{"tenant":"t1","api_key":"{key}","action":"search","method":"GET","route":"/v1/items"}}}}"#
        )
    };
    let bodies: Vec<String> = api_keys(KEYS).iter().map(body).collect();
    let requests = Requests::new(scratch, "viewed", "/v1/check", "", &bodies)?;
    let viewer = sides[1].view()?;
    let measured = alternate(rounds, &mut sides, |side| {
        requests.run(&side.server, CONNECTIONS, seconds)
    })?;
    drop(viewer);
    let cpu: Vec<f64> = measured.iter().map(Rounds::cpu_micros).collect();
    let rate: Vec<f64> = measured.iter().map(Rounds::per_second).collect();
    let mut table = Table::new(["figure", "nobody looks", "a viewer", "ratio", "bar", ""]);
    for (name, values, digits, bar) in [
        ("CPU us a request", &cpu, 2, VIEWED),
        ("requests/s", &rate, 0, Bar::None),
    ] {
        let ratio = values[1] / values[0];
        table.row([
            name.to_owned(),
            figure(values[0], digits),
            figure(values[1], digits),
            figure(ratio, 3),
            bar.to_string(),
            bar.verdict(ratio),
        ]);
    }
    report.section(
        &format!(
            "What a viewer costs: `POST /v1/check` under {FEW_RULES} rules, medians of {rounds} alternating rounds of {seconds} s. The counts \
             and the sample of\nbusy subjects are kept with or without a viewer."
        ),
        &[table],
    );
    let idle = Side::start(tollgate, scratch, &large_config())?;
    let (rounds, seconds) = length.pick((1, 2), (5, 5), (7, 10));
    // Just after its start, a server still writes its config and fills caches. So a first pair of readings is not counted.
    let mut readings = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for is_viewed in [false, true] {
            let viewer = is_viewed.then(|| idle.view()).transpose()?;
            let before = idle.server.cpu_micros()?;
            sleep(Duration::from_secs(seconds));
            let used = idle.server.cpu_micros()? - before;
            drop(viewer);
            if round > 0 {
                readings[usize::from(is_viewed)].push(used / (seconds as f64 * 1e6) * 100.0);
            }
        }
    }
    let shares = readings.map(median);
    let mut table = Table::new(["an idle server", "% of a core", "bar", ""]);
    for (name, share, bar) in [
        ("nobody looks", shares[0], Bar::None),
        ("a viewer", shares[1], Bar::None),
        ("the viewer alone", (shares[1] - shares[0]).max(0.0), IDLE),
    ] {
        table.row([
            name.to_owned(),
            figure(share, 2),
            bar.to_string(),
            bar.verdict(share),
        ]);
    }
    report.section(
        &format!("An idle server with {MANY_RULES} rules and {TENANTS} tenants: medians of {rounds} alternating readings of {seconds} s, after a \
             first pair that is not counted."),
        &[table],
    );
    Ok(())
}
