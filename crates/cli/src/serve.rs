//! `tollgate serve`: runs the server, from its flags to a graceful stop.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tollgate::{Config, Engine, Rule, RuleStore, Span};
use tollgate_config::{
    Admin, Gateway, Grpc, Listen, Mode, Redis, Resp, Store, Upstream, Upstreams,
};
use tollgate_server::audit::Audit;
use tollgate_server::control::{ReloadError, SIGNAL, Source};
use tollgate_server::events::Webhook;
use tollgate_server::journal::Journal;
use tollgate_server::net::ListenError;
use tollgate_server::{Address, ControlPlane, DoorError, Doors};

use crate::audit::DataArgs;
use crate::config::{ConfigArgs, GATEWAY_STARTER, STARTER};
use crate::logs::{self, LogArgs};
use crate::terminal::count_rules;
use crate::{CommandResult, failed};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Start even if the store is unreachable: failure policies decide until it is back
    #[arg(long, env = "TOLLGATE_WITHOUT_STORE")]
    without_store: bool,

    #[command(flatten)]
    doors: DoorArgs,

    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    logs: LogArgs,
}

/// The addresses to listen on. Everything else about a door is in the config.
#[derive(Clone, clap::Args)]
pub(crate) struct DoorArgs {
    /// Listen for HTTP here; port 0 picks a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_HTTP")]
    http: Option<SocketAddr>,

    /// Listen for gRPC here (Envoy's rate limit service and Tollgate's own), such as 127.0.0.1:8081
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_GRPC")]
    grpc: Option<SocketAddr>,

    /// Listen for Redis clients here, such as 127.0.0.1:6390
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_RESP")]
    resp: Option<SocketAddr>,

    /// Listen for operators here, such as 127.0.0.1:8082
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_ADMIN")]
    admin: Option<SocketAddr>,

    /// Listen here for requests to pass on, within limits, such as 127.0.0.1:8000
    #[arg(long, value_name = "ADDRESS", env = "TOLLGATE_GATEWAY")]
    gateway: Option<SocketAddr>,

    /// Pass the requests of the gateway on to this server, such as http://127.0.0.1:9000
    /// [default: the upstreams in the config file]
    #[arg(long, value_name = "URL", env = "TOLLGATE_UPSTREAM")]
    upstream: Option<String>,
}

impl DoorArgs {
    /// Applies the flags, and checks that the doors fit together.
    pub(crate) fn apply(&self, mut config: Config) -> Result<Config, String> {
        let server = &mut config.server;
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
        if let Some(address) = self.gateway {
            let gateway = server
                .gateway
                .get_or_insert_with(|| Gateway::new(new(address)));
            gateway.listen.address = address;
        }
        if let Some(url) = &self.upstream {
            if !config.upstreams.is_empty() {
                return Err(
                    "--upstream: the config file has `upstreams`; use one of the two".into(),
                );
            }
            if config.server.gateway.is_none() {
                return Err(
                    "--upstream http://… needs a gateway: add --gateway 127.0.0.1:8000".into(),
                );
            }
            let upstream = Upstream::of_url(url).map_err(|error| format!("--upstream: {error}"))?;
            config.upstreams = Upstreams::one("upstream", upstream);
        }
        config.check_doors()?;
        Ok(config)
    }
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    let source = source(args);
    let starter = match args.doors.gateway {
        Some(_) => GATEWAY_STARTER,
        None => STARTER,
    };
    let config = args.config.load_or(starter)?;
    let exporter = logs::start(&args.logs, &config.telemetry)?;
    let config = args.doors.apply(config).map_err(failed)?;
    let engine = Arc::new(start(args, &config).await?);
    // Listen for signals before the doors open: a client that sees the server may send a signal at
    // once.
    let (mut signals, mut further_signals) = (StopSignals::new()?, StopSignals::new()?);
    let hangups = listen_for(SignalKind::hangup())?;
    let (drains, drain) = oneshot::channel();
    let stop = async {
        let drain = signals.drain_time(config.server.drain).await;
        let _ = drains.send(drain);
        drain
    };
    let doors = Doors::open(&config).await;
    let doors = doors.map_err(|error| describe_door_error(&error))?;
    let addresses = doors
        .addresses()
        .map_err(|error| format!("error: failed to read the address of a listener: {error}"))?;
    let audit = Audit::of(&args.data.data, &engine)
        .map_err(|error| format!("error: failed to open the audit trail: {error}"))?;
    let webhook = Webhook::start(&engine).map_err(failed)?;
    let journal = Journal::start(&engine).map_err(failed)?;
    let control = ControlPlane::new(engine, source, audit)
        .with_journal(journal)
        .with_overrides(&args.data.data)
        .with_webhook(webhook);
    // Overrides and a rollback are in force before the first request. A store that does not answer delays the start
    // only for a short time.
    control.refresh().await;
    control.keep_first_version().await;
    let control = Arc::new(control);
    let problem = control.engine().store_problem();
    announce(args, &config, problem.as_deref(), &addresses);
    let second_signal = async {
        further_signals.next().await;
        further_signals.next().await;
    };
    let is_finished = tokio::select! {
        biased;
        () = second_signal => false,
        () = doors.serve(Arc::clone(&control), stop) => true,
        () = say_when_drained(drain) => true,
        () = reload_on_hangup(hangups, &control) => true,
    };
    if !is_finished {
        say("ended by a second signal: requests in flight got no answer\n");
    }
    let closing = async {
        if let Some(webhook) = control.webhook() {
            webhook.stop().await;
        }
        if let Some(journal) = control.journal() {
            journal.close().await;
        }
        control.audit().close().await;
        // Close the engine after the last request, so that the usage of all admitted requests reaches
        // the ledger or its spill file.
        control.engine().close().await;
        if let Some(exporter) = exporter {
            exporter.stop().await;
        }
    };
    tokio::select! {
        () = closing => {}
        _ = further_signals.next() => {
            say("ended by another signal: usage that was not written yet is lost\n");
            return Ok(false);
        }
    }
    if is_finished {
        say("stopped\n");
    }
    Ok(is_finished)
}

/// The signals that stop the server. Each value sees every signal that comes after it was made.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

#[derive(Clone, Copy)]
enum StopSignal {
    /// From a supervisor, which replaces this server by another one.
    Terminate,
    /// From a terminal.
    Interrupt,
}

impl StopSignals {
    fn new() -> Result<StopSignals, String> {
        Ok(StopSignals {
            terminate: listen_for(SignalKind::terminate())?,
            interrupt: listen_for(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.interrupt.recv() => StopSignal::Interrupt,
        }
    }

    /// Waits for a signal. Returns the drain time: zero after Ctrl-C, because a person who presses it wants the
    /// server to end now.
    async fn drain_time(&mut self, configured: Span) -> Duration {
        let drain = match self.next().await {
            StopSignal::Terminate => configured,
            StopSignal::Interrupt => Span::ZERO,
        };
        if drain != Span::ZERO {
            say(&format!(
                "stopping: not ready any more, but serving for {drain}; a second signal ends at once\n"
            ));
        }
        drain.into()
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal, String> {
    signal(kind).map_err(|error| format!("error: failed to install signal handlers: {error}"))
}

/// Says when the drain time is over. Never returns.
async fn say_when_drained(drain: oneshot::Receiver<Duration>) {
    if let Ok(drain) = drain.await {
        tokio::time::sleep(drain).await;
        say("finishing requests in flight\n");
    }
    std::future::pending::<()>().await;
}

/// Prints the rules, the store and the addresses.
fn announce(args: &Args, config: &Config, problem: Option<&str>, addresses: &[Address]) {
    let count = config.policy.rules.len();
    let origin = match &args.config.config {
        Some(file) => format!("{} of {}", count_rules(count), file.display()),
        None => format!("{count} starter rules"),
    };
    let version = env!("CARGO_PKG_VERSION");
    say(&format!("tollgate {version} with {origin}\n"));
    if let Some(store) = describe_store(&config.store) {
        say(&format!("state in {store}\n"));
    }
    for store in &config.stores {
        let (name, servers) = (&store.name, describe_redis(&store.redis));
        say(&format!("state of the store {name} in {servers}\n"));
    }
    if let Some(problem) = problem {
        say(&format!(
            "running WITHOUT the store: failure policies decide until it answers ({problem})\n"
        ));
    }
    for address in addresses {
        // Scripts wait for this line: all doors are open by now, and overrides are in force.
        match address.door {
            "http" => say(&format!("listening on {address}\n")),
            door => say(&format!("{door} on {address}\n")),
        }
    }
    for line in open_doors(config) {
        say(&line);
    }
    if let Some(admin) = &config.server.admin
        && admin.tokens.is_empty()
    {
        say(
            "admin needs no token: every user of this machine may change limits; see server.admin.tokens\n",
        );
    }
    if args.config.config.is_none() {
        say(&requests_to_try(addresses));
    }
}

/// Writes a line for each data door that every machine may use.
fn open_doors(config: &Config) -> Vec<String> {
    let doors = config.server.open_doors().into_iter();
    let lines = doors.map(|(door, listen)| {
        format!(
            "{door} is OPEN to every machine that reaches {}: it needs no token, password or client certificate; \
             see server.tokens\n",
            listen.address
        )
    });
    lines.collect()
}

/// Returns the file to read again at a reload, with the same flags; `None` for the starter rules.
fn source(args: &Args) -> Option<Source> {
    let file = args.config.config.clone()?;
    let (config, doors) = (args.config.clone(), args.doors.clone());
    let finish = move |read| doors.apply(config.apply_flags(read)?);
    Some(Source::new(file).finished_by(finish))
}

/// Reads the config file again at every SIGHUP. Never returns.
async fn reload_on_hangup(mut hangups: Signal, control: &Arc<ControlPlane>) {
    while hangups.recv().await.is_some() {
        // Problems in the file are logged by the reload itself.
        if let Err(error @ ReloadError::NoFile) = control.reload(SIGNAL, None).await {
            tracing::warn!(target: "tollgate::config", "SIGHUP ignored: {error}");
        }
    }
    std::future::pending::<()>().await;
}

fn describe_door_error(error: &DoorError) -> String {
    let door = error.door;
    let help = match &error.error {
        ListenError::Address { .. } => format!("choose another address with --{door}"),
        ListenError::Tls(_) => format!("check server.{door} and server.tls in the config"),
        ListenError::Password(_) | ListenError::AccessLog(_) => {
            format!("check server.{door} in the config")
        }
        ListenError::Upstream(_) => "check upstreams in the config".to_owned(),
        ListenError::Threads(_) => "raise the limit of threads (ulimit -u)".to_owned(),
    };
    format!("error: {error}\nhelp: {help}")
}

/// Starts the engine, and warns about settings that an operator may have missed.
async fn start(args: &Args, config: &Config) -> Result<Engine, String> {
    let engine = match Engine::start(config).await {
        Err(error) if error.is_passing() && args.without_store => {
            tracing::warn!(%error, "the store is unreachable; failure policies decide until it is back");
            Engine::start_unchecked(config)
        }
        Err(error) if error.is_store_unreachable() && has_policies(config) => {
            tracing::error!(%error, "the store is unreachable; starting without it: failure policies decide until it is back");
            Engine::start_without_store(config).await
        }
        Err(error) if error.is_store_unreachable() => {
            return Err(format!(
                "error: {error}\n      or set `on_store_failure` in every rule: then the server starts without the store\n      \
                 or start with --without-store: failure policies decide until the store answers"
            ));
        }
        Err(error) if error.is_passing() => {
            return Err(format!(
                "error: {error}\n      or start without the store, and let failure policies decide: --without-store"
            ));
        }
        started => started,
    };
    let engine = engine.map_err(failed)?;
    if config.redis_stores().next().is_none() {
        return Ok(engine);
    }
    if args.config.config.is_none() {
        tracing::warn!(
            "the starter rules use a public hash secret; use a config with subjects.hash_secret"
        );
    }
    let rules = config.policy.rules.iter();
    for rule in rules.filter(|rule| lacks_policy(rule, config)) {
        tracing::warn!(
            rule = rule.id(),
            "the rule has no on_store_failure: its requests get 503 while the store is down"
        );
    }
    Ok(engine)
}

/// Returns whether every rule says what happens while the store is down.
fn has_policies(config: &Config) -> bool {
    let mut rules = config.policy.rules.iter();
    rules.all(|rule| !lacks_policy(rule, config))
}

/// Returns whether a rule does not say what happens while its store is down, and its store may be down.
fn lacks_policy(rule: &Rule, config: &Config) -> bool {
    let may_fail = match rule.store() {
        RuleStore::Local => false,
        RuleStore::Default => config.store != Store::Memory,
        RuleStore::Named(_) => true,
    };
    may_fail && rule.on_store_failure().is_none()
}

/// Lists the servers that hold the state, without passwords; `None` for the memory store.
fn describe_store(store: &Store) -> Option<String> {
    match store {
        Store::Redis(redis) => Some(describe_redis(redis)),
        _ => None,
    }
}

/// Lists the servers of a Redis, without passwords.
pub(crate) fn describe_redis(redis: &Redis) -> String {
    let urls: Vec<String> = redis.urls.iter().map(ToString::to_string).collect();
    let urls = urls.join(", ");
    match &redis.mode {
        Mode::Standalone => urls,
        Mode::Sentinel { master } => format!("master {master} of the Sentinels {urls}"),
        Mode::Cluster => format!("the cluster at {urls}"),
    }
}

/// Prints to standard output. A closed pipe does not stop the server.
fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

fn requests_to_try(addresses: &[Address]) -> String {
    if let Some(gateway) = addresses.iter().find(|it| it.door == "gateway") {
        return gateway_requests(gateway, addresses);
    }
    let mut text = String::new();
    for address in addresses {
        text += &match address.door {
            "http" => http_requests(address),
            "resp" => redis_requests(address),
            "admin" => format!("\nThe rules in force:\n  curl {address}/v1/rules\n"),
            _ => String::new(),
        };
    }
    if let [_] = addresses {
        text += "\nTo open more doors: --resp 127.0.0.1:6390 (Redis clients), --grpc 127.0.0.1:8081 (Envoy),\n\
                 --admin 127.0.0.1:8082 (operators).\n\
                 To limit a service without changing it: --gateway 127.0.0.1:8000 --upstream http://127.0.0.1:9000\n";
    }
    text + "\n"
}

fn gateway_requests(gateway: &Address, addresses: &[Address]) -> String {
    let http = addresses.iter().find(|it| it.door == "http");
    let metrics = http.map_or_else(String::new, |http| {
        format!("\nMetrics of all decisions so far:\n  curl {http}/metrics\n")
    });
    format!(
        r"
Try it. Your service, with the rate limit in the headers of each answer:
  curl -i {gateway}/

100 requests at once, 50 a second after that, then 429 with Retry-After:
  seq 150 | xargs -P 20 -I _ curl -s -o /dev/null -w '%{{http_code}}\n' {gateway}/ | sort | uniq -c
{metrics}
"
    )
}

fn redis_requests(address: &Address) -> String {
    let (ip, port) = (address.address.ip(), address.address.port());
    format!(
        r"
The same rules for Redis clients, and a limit given in the command (30 a minute, a burst of 15 more):
  redis-cli -h {ip} -p {port} TG.CHECK action login user bob
  redis-cli -h {ip} -p {port} CL.THROTTLE user:bob 15 30 60
"
    )
}

fn http_requests(address: &Address) -> String {
    format!(
        r#"
Try it. Five logins in any 30 seconds, then 429 with Retry-After:
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\n' {address}/v1/check -d '{{"attributes":{{"action":"login","user":"ann"}}}}'; done

One decision, with its headers (a search costs 5 of 10, so the third is denied):
  curl -i {address}/v1/check -d '{{"attributes":{{"action":"search","tenant":"acme","api_key":"k1"}}}}'

4,000 tokens at once, 500 a second after that:
  curl {address}/v1/check -d '{{"attributes":{{"action":"complete","tenant":"acme","tokens":3000}}}}'

Mails go out one a second: see delayMillis, then 503 when three are waiting:
  for i in 1 2 3 4 5; do curl -s {address}/v1/check -d '{{"attributes":{{"action":"mail","tenant":"acme"}}}}'; echo; done

Metrics of all decisions so far:
  curl {address}/metrics
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_doors_are_named_at_the_start() {
        let hash = "0123456789abcdef".repeat(4);
        let lines = |server: &str| {
            let text = format!("version: 1\nrules: []\nserver: {{ {server} }}\n");
            open_doors(&tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap())
        };
        let doors = "http: \"0.0.0.0:8080\", resp: \"10.0.0.1:6390\"";
        let open = lines(doors);
        assert!(open[0].starts_with("http is OPEN to every machine that reaches 0.0.0.0:8080: "));
        assert!(open[1].starts_with("resp is OPEN to every machine that reaches 10.0.0.1:6390: "));
        let none: [String; 0] = [];
        assert_eq!(lines("http: \"127.0.0.1:8080\""), none);
        let tokens = format!("tokens: [{{ name: a, scopes: [check], sha256: {hash} }}]");
        assert_eq!(lines(&format!("{doors}, {tokens}")), none);
        let mutual = "tls: { cert: c, key: k, client_ca: a }";
        assert_eq!(lines(&format!("{doors}, {mutual}")), none);
        // TLS without a token or a client certificate admits every client.
        assert_eq!(
            lines(&format!("{doors}, tls: {{ cert: c, key: k }}")).len(),
            2
        );
        let password = "http: \"127.0.0.1:8080\", resp: { address: \"0.0.0.0:6390\", password: x }";
        assert_eq!(lines(password), none);
    }
}
