//! `tollgate serve`: the server, from flags to the last request.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate::{Config, Engine};
use tollgate_config::{Admin, Grpc, Listen, Mode, Resp, Server, Store};
use tollgate_server::audit::Audit;
use tollgate_server::control::{ReloadError, SIGNAL, Source};
use tollgate_server::events::Webhook;
use tollgate_server::net::ListenError;
use tollgate_server::{Address, ControlPlane, DoorError, Doors};

use crate::Answer;
use crate::audit::DataArgs;
use crate::config::{self, ConfigArgs};
use crate::logs::{self, LogArgs};

/// Runs the server. Flags win over the environment, which wins over the file.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Start even if the store cannot be reached: failure policies decide until it can
    #[arg(long, env = "TOLLGATE_WITHOUT_STORE")]
    without_store: bool,

    #[command(flatten)]
    doors: DoorArgs,

    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    logs: LogArgs,
}

/// Where to listen. What else a door has is in the config.
#[derive(Clone, clap::Args)]
struct DoorArgs {
    /// Where to listen for HTTP; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_HTTP")]
    http: Option<SocketAddr>,

    /// Where to listen for Envoy's rate limit requests, such as 127.0.0.1:8081
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_GRPC")]
    grpc: Option<SocketAddr>,

    /// Where to listen for Redis clients, such as 127.0.0.1:6390
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_RESP")]
    resp: Option<SocketAddr>,

    /// Where to listen for operators, such as 127.0.0.1:8082
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_ADMIN")]
    admin: Option<SocketAddr>,
}

impl DoorArgs {
    fn put_into(&self, server: &mut Server) {
        let new = |address| Listen::new(address, server.tls.clone());
        if let Some(address) = self.http {
            server.http.address = address;
        }
        if let Some(address) = self.grpc {
            let grpc = server.grpc.get_or_insert_with(|| Grpc::new(new(address)));
            grpc.listen.address = address;
        }
        if let Some(address) = self.resp {
            let resp = server.resp.get_or_insert_with(|| Resp::new(new(address)));
            resp.listen.address = address;
        }
        if let Some(address) = self.admin {
            let admin = server.admin.get_or_insert_with(|| Admin::new(new(address)));
            admin.listen.address = address;
        }
    }

    /// `config` with these doors, if they fit together.
    fn over(&self, mut config: Config) -> Result<Config, String> {
        self.put_into(&mut config.server);
        config.check_doors()?;
        Ok(config)
    }
}

pub(crate) fn run(args: &Args) -> Answer {
    config::block_on(serve(args))
}

async fn serve(args: &Args) -> Answer {
    let source = source(args);
    let config = args.config.load()?;
    let exporter = logs::start(&args.logs, &config.telemetry)?;
    let config = args.doors.over(config);
    let config = config.map_err(|error| format!("error: {error}"))?;
    let engine = Arc::new(start(args, &config).await?);
    // Before listening, so that no signal is missed once somebody has seen the server.
    let no_signals = |error| format!("error: cannot watch signals: {error}");
    let stop = Stop::new().map_err(no_signals)?;
    let hangups = signal(SignalKind::hangup()).map_err(no_signals)?;
    let doors = Doors::open(&config)
        .await
        .map_err(|error| cannot_open(&error))?;
    let addresses = doors
        .addresses()
        .map_err(|error| format!("error: cannot tell where the server listens: {error}"))?;
    let audit = Audit::of(&args.data.data, &engine)
        .map_err(|error| format!("error: cannot keep an audit trail: {error}"))?;
    let webhook = Webhook::start(&engine).map_err(|error| format!("error: {error}"))?;
    let control = ControlPlane::new(engine, source, audit)
        .with_overrides(&args.data.data)
        .with_webhook(webhook);
    // A store that does not answer is not waited for long.
    control.overrides().refresh().await;
    let control = Arc::new(control);
    announce(args, &config, &addresses);
    tokio::select! {
        () = doors.serve(Arc::clone(&control), stop.wait()) => {}
        () = reload_at(hangups, &control) => {}
    }
    if let Some(webhook) = control.webhook() {
        webhook.stop().await;
    }
    control.audit().close().await;
    // After the last request: what was admitted is in the ledger, or in its spill file, before this ends.
    control.engine().close().await;
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    say("stopped\n");
    Ok(true)
}

/// Says what is served, and where.
fn announce(args: &Args, config: &Config, addresses: &[Address]) {
    let count = config.policy.rules.len();
    let origin = match &args.config.config {
        Some(file) => format!("{count} rules of {}", file.display()),
        None => format!("{count} starter rules"),
    };
    say(&format!(
        "tollgate {} with {origin}\n",
        env!("CARGO_PKG_VERSION")
    ));
    if let Some(store) = describe_store(&config.store) {
        say(&format!("state in {store}\n"));
    }
    for address in addresses {
        // Whoever waits for the server reads this line: all doors are open by then, and overrides hold.
        match address.door {
            "http" => say(&format!("listening on {address}\n")),
            door => say(&format!("{door} on {address}\n")),
        }
    }
    if args.config.is_starter() {
        say(&lines_to_try(addresses));
    }
}

/// The file that the rules come from, read again with the same flags; none for the starter rules.
fn source(args: &Args) -> Option<Source> {
    let file = args.config.config.clone()?;
    let (config, doors) = (args.config.clone(), args.doors.clone());
    let finish = move |read| doors.over(config.over(read)?);
    Some(Source::new(file).finished_by(finish))
}

/// Reads the config file again at every SIGHUP, for ever.
async fn reload_at(mut hangups: Signal, control: &Arc<ControlPlane>) {
    while hangups.recv().await.is_some() {
        // What is wrong with a file is logged where it is read.
        if let Err(error @ ReloadError::NoFile) = control.reload(SIGNAL, None).await {
            tracing::warn!(target: "tollgate::config", "SIGHUP changes nothing: {error}");
        }
    }
    // Nobody can send any more.
    std::future::pending::<()>().await;
}

fn cannot_open(error: &DoorError) -> String {
    let door = error.door;
    let help = match &error.error {
        ListenError::Address { .. } => format!("choose another with --{door}"),
        ListenError::Tls(_) => format!("see server.{door} and server.tls in the config"),
        ListenError::Password(_) => format!("see server.{door} in the config"),
    };
    format!("error: {error}\nhelp: {help}")
}

/// The limiter, with a word on what an operator would want to know.
async fn start(args: &Args, config: &Config) -> Result<Engine, String> {
    let engine = match Engine::start(config).await {
        Err(error) if error.is_passing() && args.without_store => {
            tracing::warn!(%error, "the store cannot be reached: failure policies decide");
            Engine::start_unchecked(config)
        }
        Err(error) if error.is_passing() => {
            return Err(format!(
                "error: {error}\n      or start without it, and let failure policies decide: --without-store"
            ));
        }
        started => started,
    };
    let engine = engine.map_err(|error| format!("error: {error}"))?;
    if config.store == Store::Memory {
        return Ok(engine);
    }
    if args.config.is_starter() {
        tracing::warn!(
            "the starter rules hash subjects with a secret that everybody knows: \
             use a config with subjects.hash_secret"
        );
    }
    for rule in &config.policy.rules {
        if rule.on_store_failure().is_none() {
            let rule = rule.id();
            tracing::warn!(
                rule,
                "no on_store_failure: answers 503 while the store is down"
            );
        }
    }
    Ok(engine)
}

/// Where state lives, without any password; none if that is here.
pub(crate) fn describe_store(store: &Store) -> Option<String> {
    let Store::Redis(redis) = store else {
        return None;
    };
    let urls: Vec<String> = redis.urls.iter().map(ToString::to_string).collect();
    let urls = urls.join(", ");
    Some(match &redis.mode {
        Mode::Standalone => urls,
        Mode::Sentinel { master } => format!("the master {master} of the Sentinels {urls}"),
        Mode::Cluster => format!("the cluster of {urls}"),
    })
}

/// Tells whoever started the server. Nobody may be listening any more: that is no reason to stop.
fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

/// The signals that stop a server.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Stop> {
        Ok(Stop {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        say("finishing requests in flight\n");
    }
}

fn lines_to_try(addresses: &[Address]) -> String {
    let mut text = String::new();
    for address in addresses {
        text += &match address.door {
            "http" => lines_for_http(address),
            "resp" => lines_for_redis_clients(address),
            "admin" => format!("\nThe rules in force:\n  curl {address}/v1/rules\n"),
            _ => String::new(),
        };
    }
    if let [_] = addresses {
        text += "\nOther doors are opened by --resp 127.0.0.1:6390 (Redis clients), --grpc 127.0.0.1:8081 \
                 (Envoy)\nand --admin 127.0.0.1:8082 (operators).\n";
    }
    text + "\n"
}

fn lines_for_redis_clients(address: &Address) -> String {
    let (ip, port) = (address.address.ip(), address.address.port());
    format!(
        r"
The same rules for Redis clients, and limits of your own (30 in a minute, 15 more at once):
  redis-cli -h {ip} -p {port} TG.CHECK action login user bob
  redis-cli -h {ip} -p {port} CL.THROTTLE user:bob 15 30 60
"
    )
}

fn lines_for_http(address: &Address) -> String {
    format!(
        r#"
Try it. Five logins in any 30 seconds, then 429 with Retry-After:
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\n' {address}/v1/check -d '{{"attributes":{{"action":"login","user":"ann"}}}}'; done

One decision, with its headers (a search costs 5 of 10, so the third is refused):
  curl -i {address}/v1/check -d '{{"attributes":{{"action":"search","tenant":"acme","api_key":"k1"}}}}'

4,000 tokens at once, 500 a second after that:
  curl {address}/v1/check -d '{{"attributes":{{"action":"complete","tenant":"acme","tokens":3000}}}}'

Mails take turns, one a second: see delayMillis, then 503 when three wait:
  for i in 1 2 3 4 5; do curl -s {address}/v1/check -d '{{"attributes":{{"action":"mail","tenant":"acme"}}}}'; echo; done

What has been decided so far:
  curl {address}/metrics
"#
    )
}
